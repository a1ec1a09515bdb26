"""What became of one task in one run: the row that the run view and the leaderboard share."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from kernelforge.records import Attempt, Operator, Origin, Profile, Verdict
from kernelforge.report.text import choices


class View(BaseModel):
    """Base of every view: plain data computed from records, JSON by ``model_dump_json``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", use_attribute_docstrings=True)


class TaskSummary(View):
    """One task of one run."""

    run: str
    task: str
    verdict: Verdict | None
    """OK when something correct was found, else the latest attempt's; None when the run never came to the task."""
    rounds: int
    """Attempts made."""
    best: str | None
    """Id of the best attempt: the last one accepted."""
    moves: tuple[str, ...]
    """How the best came about, from its seed: move or operator of each ancestor and itself."""
    generality: float | None
    """Share of sizes that the best supports."""
    reward: float | None
    dram_bytes: float | None
    compulsory_bytes: float | None
    dram_ratio: float | None
    """DRAM bytes over compulsory bytes: 1 is the least there can be."""
    sectors_per_request: float | None
    """32-byte sectors per global memory request, loads and stores together."""
    launches: int | None
    bound: str | None
    """What limits the best, by measurement or by the model: see ``origin``."""
    time_us: float | None
    origin: Origin | None
    """Whether ``time_us`` and ``bound`` are measured or modelled."""
    speedup: float | None
    speedup_lower: float | None
    speedup_eager: float | None
    finished: str | None
    """Why work on the task ended; None while there is something left to do."""


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The last accepted attempt of one task."""
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)


def moves_to(attempt: Attempt, attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """Move or operator of every step from the seed to ``attempt``."""
    by_id = {one.id: one for one in attempts}
    chain: list[str] = []
    current: Attempt | None = attempt
    while current is not None and len(chain) <= len(attempts):
        chain.append(step_name(current))
        current = by_id.get(current.parent or "")
    return tuple(reversed(chain))


def step_name(attempt: Attempt) -> str:
    """The built-in move of an attempt, else its operator; of a tuned one, with the values that were chosen."""
    if attempt.operator is Operator.TUNE and attempt.candidate is not None:
        return f"{attempt.operator.value} {choices(attempt.candidate.choices)}".rstrip()
    move = attempt.finding.move if attempt.finding is not None else None
    return move or attempt.operator.value


def sectors_per_request(profile: Profile) -> float | None:
    """Sectors over requests, for global loads and stores together; None when the kernel makes no request."""
    sectors = requests = 0.0
    for access in ("ld", "st"):
        sectors += profile.value(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{access}.sum") or 0.0
        requests += profile.value(f"l1tex__t_requests_pipe_lsu_mem_global_op_{access}.sum") or 0.0
    return sectors / requests if requests else None


def launches_of(attempt: Attempt) -> int | None:
    """Kernel launches at the full size."""
    if attempt.profile is not None:
        return sum(kernel.launches for kernel in attempt.profile.kernels)
    if attempt.evaluation.correctness is not None:
        for check in attempt.evaluation.correctness.sizes:
            if check.size == "full":
                return check.launches
    return None


def summarise(run: str, task: str, attempts: Sequence[Attempt], finished: str | None = None) -> TaskSummary:
    """Sum up one task.

    Args:
        attempts: all attempts of the run at the task, in order.
        finished: why work on it ended, if it did.
    """
    best = best_of(attempts)
    shown = best or (attempts[-1] if attempts else None)
    profile = best.profile if best else None
    speed = best.evaluation.performance if best else None
    correctness = best.evaluation.correctness if best else None
    roofline = profile.roofline if profile else None
    return TaskSummary(
        run=run,
        task=task,
        verdict=shown.evaluation.verdict if shown else None,
        rounds=len(attempts),
        best=best.id if best else None,
        moves=moves_to(best, attempts) if best else (),
        generality=correctness.generality if correctness else None,
        reward=shown.reward.value if shown else None,
        dram_bytes=roofline.dram_bytes if roofline else None,
        compulsory_bytes=roofline.compulsory_bytes if roofline else None,
        dram_ratio=roofline.dram_bytes / roofline.compulsory_bytes if roofline and roofline.compulsory_bytes else None,
        sectors_per_request=sectors_per_request(profile) if profile else None,
        launches=launches_of(best) if best else None,
        bound=speed.bound if speed else roofline.bound if roofline else None,
        time_us=speed.time_us if speed else None,
        origin=speed.origin if speed else None,
        speedup=speed.speedup if speed else None,
        speedup_lower=speed.speedup_lower if speed else None,
        speedup_eager=speed.speedup_eager if speed else None,
        finished=finished,
    )
