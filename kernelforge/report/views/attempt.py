"""The data of one attempt's report: stages passed, sizes, performance, profile."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from typing import Literal, get_args

from kernelforge.candidate import chosen_values, combinations_of
from kernelforge.evaluation.generators.parser import caught_by
from kernelforge.records import (
    Attempt,
    Build,
    EnergyEstimate,
    Evaluation,
    Finding,
    Fingerprint,
    Language,
    Message,
    Operator,
    Performance,
    Profile,
    Reward,
    Screening,
    SizeCheck,
    Stage,
    StartOrigin,
    Task,
    TaskFacts,
    Timing,
    Verdict,
    outcome_words,
)
from kernelforge.records.timing import UNRANKED
from kernelforge.report.formatting import number
from kernelforge.report.views import View
from kernelforge.report.views.bounds import KernelBounds, Reach, kernel_bounds, reach
from kernelforge.report.views.diff import Diff, attempt_diffs, unified
from kernelforge.report.views.messages import Cost, total_cost
from kernelforge.report.views.roofline import RooflinePoint, floor_us, roofline_point, spec_of_fingerprint
from kernelforge.report.views.task import MetricChange, compulsory_bytes, host_bytes, metric_changes, plausible_time_us
from kernelforge.tasks import list_suites
from kernelforge.utils.shell_hints import shell_command


class EvaluationView(View):
    """An evaluation and the profile of a correct candidate."""

    evaluation: Evaluation
    profile: Profile | None


GateStatus = Literal["passed", "failed", "not compared", "not reached", "not applicable"]

_ORDER: tuple[str, ...] = get_args(Stage)
_OF_BUILD = ("plan", "compile", "policy")
"""Gates that do not apply to a candidate of kind ``modelnew``: it has no launch plan, and KernelForge does not build
it."""


class Gate(View):
    """One gate of the cascade."""

    name: Stage
    status: GateStatus
    """``not compared``: no value was compared, ``detail`` gives the reason. ``not reached``: an earlier gate ended the
    cascade, or this one could not decide (verdict ``INFRA``)."""
    detail: str
    """Reason for a failure or for not applying, or what was measured; may be empty."""
    error: float | None
    """Largest error over its sizes, as a multiple of the tolerance: above 1 fails."""
    checks: tuple[SizeCheck, ...]
    """For the gates ``small``, ``hidden`` and ``full``: each size with its error."""


def gates_of(evaluation: Evaluation) -> tuple[Gate, ...]:
    """Every gate in the cascade's order."""
    return tuple(_gate(name, evaluation) for name in get_args(Stage) if name != "done")


def _gate(name: Stage, evaluation: Evaluation) -> Gate:
    checks = _checks(name, evaluation)
    status, detail = _judged(name, evaluation, checks)
    errors = [check.error for check in checks if check.error is not None]
    return Gate(name=name, status=status, detail=detail, error=max(errors, default=None), checks=checks)


def _judged(name: Stage, evaluation: Evaluation, checks: Sequence[SizeCheck]) -> tuple[GateStatus, str]:
    ended = evaluation.verdict is not Verdict.OK and evaluation.stage == name
    if ended and evaluation.verdict is Verdict.INFRA:
        return "not reached", f"INFRA, no statement about the candidate: {evaluation.reason}"
    if ended:
        return "failed", evaluation.reason
    reached = evaluation.verdict is Verdict.OK or _ORDER.index(evaluation.stage) > _ORDER.index(name)
    if evaluation.lane != "plan" and name in _OF_BUILD:
        what = "a ModelNew class is Python" if evaluation.lane == "modelnew" else "a C function runs on the CPU"
        return "not applicable", f"{what}: it has no launch plan and no build of ours"
    if name in ("small", "hidden", "full"):
        return _at_sizes(checks, reached)
    if name == "sanitizer":
        return _sanitizer(evaluation, reached)
    if name == "timing":
        return _timing(evaluation, evaluation.performance, reached)
    return ("passed", "") if reached else ("not reached", "")


def _checks(name: Stage, evaluation: Evaluation) -> tuple[SizeCheck, ...]:
    if name not in ("small", "hidden", "full") or evaluation.correctness is None:
        return ()
    return tuple(
        check
        for check in evaluation.correctness.sizes
        if check.size == name or (name == "hidden" and check.size.startswith("hidden"))
    )


def _at_sizes(checks: Sequence[SizeCheck], reached: bool) -> tuple[GateStatus, str]:
    """Status of a gate whose sizes did not end the cascade. A further test may fail the small size after the hidden
    sizes passed."""
    states = {check.status for check in checks}
    refused = sum(check.status == "guarded" for check in checks)
    remark = f"{refused} of {len(checks)} refused by the plan's own assert" if refused else ""
    if "passed" in states:
        notes = dict.fromkeys(check.message for check in checks if _noted(check))
        return "passed", "; ".join(filter(None, (remark, *notes)))
    if not reached:
        return "not reached", ""
    if "skipped" in states:
        why = next(check.message for check in checks if check.status == "skipped")
        return "not compared", why.removeprefix("values not compared: ")
    return ("passed", remark) if refused else ("not applicable", "the task has no such size")


def _noted(check: SizeCheck) -> bool:
    """Whether a size passed with a note: compared in part, on fewer inputs, or without its profile."""
    return check.status == "passed" and bool(check.message)


def _sanitizer(evaluation: Evaluation, reached: bool) -> tuple[GateStatus, str]:
    if evaluation.fingerprint.device_kind == "emulated":
        return "not applicable", "the emulated device checks every access itself"
    if "sanitizer" in evaluation.seconds and reached:
        return "passed", ""
    return ("not applicable", "compute-sanitizer was not asked for") if reached else ("not reached", "")


def _timing(evaluation: Evaluation, speed: Performance | None, reached: bool) -> tuple[GateStatus, str]:
    kind = evaluation.fingerprint.device_kind
    if kind != "cuda":
        why = "times are modelled, not measured" if kind == "emulated" else "nothing is timed on this device"
        return "not applicable", why
    if not reached:
        return "not reached", ""
    if speed is None:
        return "not applicable", "it was not timed"
    if speed.quarantined is not None:
        return "failed", f"quarantined: {speed.quarantined}"
    return "passed", f"{speed.samples} samples, {number(speed.time_us)} µs"


class TrialRow(View):
    """One combination of ``# tune:`` values that was tried on the attempt's candidate."""

    choices: dict[str, int]
    own: bool
    """Whether these are the candidate's own values."""
    rung: int
    """Rung of the search that it reached; times are comparable within a rung."""
    time_us: float | None
    problem: str


class SideRow(View):
    """One side of a timing: the candidate, or a baseline with the candidate's speedup over it."""

    name: str
    fastest: bool
    """Whether the attempt's speedup is against this baseline."""
    median_us: float
    low_us: float
    """95 % interval of the median."""
    high_us: float
    samples: int
    captured: bool
    """Whether it was replayed from a CUDA graph; if not, its time includes launches from the host."""
    node_gap_us: float | None
    """Time of an empty kernel there; each kernel's time contains it once."""
    speedup: float | None
    """Measured in blocks that alternate, so it may differ a little from the ratio of the medians."""
    low: float | None
    """95 % interval of ``speedup``."""
    high: float | None


class AttemptView(View):
    """One attempt, compared with its parent and with the task's best."""

    id: str
    run: str
    task: str
    number: int
    operator: Operator
    start: StartOrigin | None = None
    """Where a start comes from; None for every other attempt."""
    parent: str | None
    best: str | None
    """Id of the task's best attempt, possibly this one; None where there is none, or it was not given."""
    candidate: str | None
    """Hash of the candidate; None when the reply held none."""
    lane: str | None
    language: Language | None
    """Language of its kernels."""
    coder: str
    """Specification of the Coder that wrote it; empty for a tuned child."""
    technique: str
    """Technique requested from the Coder; empty for none."""
    inspirations: tuple[str, ...]
    """Ids of other attempts in the Coder's prompt."""
    cost: Cost
    caught_by: str | None
    """Name of the Tester's generator on whose inputs it failed."""
    choices: dict[str, int]
    """Value of every ``# tune:`` name."""
    parent_choices: dict[str, int]
    """Those of the parent's candidate."""
    source: str | None
    plan: str | None
    diffs: tuple[Diff, ...]
    """Source and plan against the parent's, then against those of the task's best if that is another attempt. Empty
    where there is nothing to compare with."""
    verdict: Verdict
    stage: str
    reason: str
    build: Build | None
    gates: tuple[Gate, ...]
    """Of the cascade, in its order."""
    checks: tuple[SizeCheck, ...]
    performance: Performance | None
    sides: tuple[SideRow, ...]
    """The candidate, then its baselines; empty where nothing was measured. Samples are in ``performance.timing``."""
    floor_us: float | None
    """Least time of the task on this device: compulsory bytes at peak bandwidth; None where they are unknown."""
    floor_share: float | None
    """Floor over measured time. Above 1 where caches help; None where the time is modelled or quarantined."""
    ceiling_share: float | None
    """Reached share of the governing ceiling: the roofline time of the candidate's own bytes and operations
    (``place.ceiling_us``) over its time. Only where profile and time have the same origin, measured or modelled; None
    where the time is quarantined."""
    place: RooflinePoint | None
    """Position under the device's roofs; None without a profile."""
    parent_place: RooflinePoint | None
    finding: Finding | None
    metrics: tuple[MetricChange, ...]
    bounds: tuple[KernelBounds, ...]
    """Kernels by what binds them, the longest first; empty where no limits are modelled."""
    reach: Reach | None
    """The predicted time between the least there can be and PyTorch's; None without a prediction."""
    profile_notes: tuple[str, ...]
    """Caveats of the metrics."""
    energy: EnergyEstimate | None
    """Of an emulated device, estimated; None without a profile."""
    trials: tuple[TrialRow, ...]
    """The furthest and fastest first."""
    combinations: int
    """Combinations of ``# tune:`` values that were there to be tried; 0 without trials."""
    reward: Reward
    accepted: bool
    note: str
    started: str
    seconds: float
    timings: dict[str, float]
    fingerprint: Fingerprint
    replay: tuple[str, ...]
    """Shell commands that show it with its messages, write its candidate to a file, and evaluate that file."""
    messages: tuple[Message, ...] | None
    """Prompts and replies, if requested."""
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size."""
    equals: str | None = None
    """Key of the evaluation that it shares with an equal attempt: same PTX and plan but for names. None where it ran
    itself."""
    equal_to: str | None = None
    """Id of that attempt."""
    screening: Screening | None = None
    """Outcome on the emulated device in front of the GPU, with the time that it predicted; None without one."""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return outcome_words(self.verdict, self.uncompared)

    def diff(self, name: Literal["source", "plan"], beside: Literal["parent", "best"] = "parent") -> Diff | None:
        """One of :attr:`diffs`, if present."""
        return next((diff for diff in self.diffs if (diff.name, diff.beside) == (name, beside)), None)

    @property
    def source_diff(self) -> str | None:
        """Unified diff against the parent's source; None without a parent's source, or for too long texts."""
        return unified(self.diff("source"))

    @property
    def plan_diff(self) -> str | None:
        """The same for the plan."""
        return unified(self.diff("plan"))


def attempt_view(
    attempt: Attempt,
    parent: Attempt | None,
    *,
    best: Attempt | None = None,
    original: Attempt | None = None,
    task: Task | None = None,
    facts: TaskFacts | None = None,
    messages: bool = False,
    results: str = "",
) -> AttemptView:
    """View of an attempt.

    Args:
        parent: the attempt it came from, if any.
        best: the task's best attempt, if any.
        original: the attempt whose evaluation it shares, if any.
        task: as journalled with the run.
        facts: facts of the task from the oracle.
        messages: include every prompt and reply.
        results: value of ``--results`` for commands; empty where the default folder is used.
    """
    candidate, evaluation = attempt.candidate, attempt.evaluation
    before = parent.candidate if parent else None
    speed = evaluation.performance
    point = roofline_point(attempt)
    spec = spec_of_fingerprint(evaluation.fingerprint)
    least = floor_us(compulsory_bytes(facts, (attempt,)), spec, host_bytes(facts))
    measured_us = plausible_time_us(attempt)
    time_us = speed.time_us if speed and speed.quarantined is None else None
    alike = point is not None and speed is not None and point.time_origin is speed.origin
    return AttemptView.of(
        attempt,
        evaluation,
        best=best.id if best else None,
        equal_to=original.id if original else None,
        candidate=candidate.hash if candidate else None,
        lane=candidate.lane if candidate else None,
        language=candidate.language if candidate else None,
        cost=total_cost(attempt.messages),
        caught_by=caught_by(evaluation),
        choices=chosen_values(candidate) if candidate else {},
        parent_choices=chosen_values(before) if before else {},
        source=candidate.source if candidate else None,
        plan=candidate.plan if candidate else None,
        diffs=_diffs(attempt, parent, best),
        gates=gates_of(evaluation),
        checks=evaluation.correctness.sizes if evaluation.correctness else (),
        performance=speed,
        sides=sides_of(speed.timing) if speed and speed.timing else (),
        floor_us=least,
        floor_share=least / measured_us if least is not None and measured_us else None,
        ceiling_share=point.ceiling_us / time_us if alike and point and point.ceiling_us and time_us else None,
        place=point,
        parent_place=roofline_point(parent),
        metrics=metric_changes(attempt, parent),
        bounds=kernel_bounds(attempt.profile),
        reach=reach(speed, least, point.ceiling_us if point else None),
        profile_notes=attempt.profile.notes if attempt.profile else (),
        energy=attempt.profile.energy if attempt.profile else None,
        trials=_trials(attempt),
        combinations=combinations_of(candidate) if candidate and attempt.trials else 0,
        timings=evaluation.seconds,
        replay=_replay(attempt, task, results),
        messages=attempt.messages if messages else None,
    )


def _trials(attempt: Attempt) -> tuple[TrialRow, ...]:
    own = chosen_values(attempt.candidate) if attempt.candidate else {}
    rows = [TrialRow(own=trial.choices == own, **trial.model_dump()) for trial in attempt.trials]
    return tuple(sorted(rows, key=_how_far))


def _how_far(row: TrialRow) -> tuple[bool, int, float]:
    return row.time_us is None, -row.rung, row.time_us or 0.0


def _diffs(attempt: Attempt, parent: Attempt | None, best: Attempt | None) -> tuple[Diff, ...]:
    diffs = attempt_diffs(parent, attempt, "parent") if parent else ()
    if best is None or best.id in (attempt.id, parent.id if parent else ""):
        return diffs
    return (*diffs, *attempt_diffs(best, attempt, "best"))


def sides_of(timing: Timing) -> tuple[SideRow, ...]:
    """The candidate, then its baselines, with the speedup over each baseline that was timed in turns with it."""
    rows = []
    for side in (timing.candidate, *timing.baselines):
        ratio = timing.ratio(side.name)
        rows.append(
            SideRow.of(
                side,
                fastest=side.name == timing.fastest,
                low_us=side.interval_us[0],
                high_us=side.interval_us[1],
                samples=len(side.samples_us),
                speedup=ratio.speedup if ratio else None,
                low=ratio.interval[0] if ratio else None,
                high=ratio.interval[1] if ratio else None,
            )
        )
    return tuple(rows)


def unhidden_eager_us(timing: Timing | None) -> float | None:
    """Time of eager PyTorch where the host waits for each flush, so that its launches are visible; None where it was
    not measured."""
    sides = () if timing is None else timing.baselines
    return next((side.median_us for side in sides if side.name in UNRANKED), None)


@cache
def _shipped() -> frozenset[str]:
    """Names of the shipped suites; cached because a report asks for each attempt."""
    return frozenset(list_suites())


def _replay(attempt: Attempt, task: Task | None, results: str) -> tuple[str, ...]:
    """Shell commands. The folder of a suite that is not shipped is not journalled, so its candidates can be shown but
    there is no command that evaluates them."""
    lines = [shell_command("show", attempt.id, options=["--messages"], results=results)]
    if attempt.candidate is not None and attempt.candidate.lane == "plan":
        file = f"{attempt.task.replace('/', '-')}-{attempt.number:02d}.md"
        show = shell_command("show", attempt.id, options=["--candidate"], results=results)
        lines.append(f"{show} > {shlex.quote(file)}")
        if task is not None and task.suite in _shipped():
            where = ["--task", f"{task.suite}/{task.name}", "--device", attempt.evaluation.fingerprint.device]
            lines.append(shell_command("eval", file, options=where))
    return tuple(lines)
