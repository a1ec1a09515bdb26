"""Runs of one candidate on one device.

The stages share them: they draw inputs, run plans, compare outputs with the oracle's values, and end the cascade with
a verdict.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from kernelforge.candidate import ResolvedPlan
from kernelforge.compile import Artifact
from kernelforge.compile.ptx_text import written_inline
from kernelforge.devices.base import (
    EMULATED_RUN_LIMIT_S,
    RUN_LIMIT_S,
    Device,
    RunFailure,
    RunRequest,
    RunResult,
    Session,
)
from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, failed_check
from kernelforge.evaluation.stages.kept_draws import KeptDraws
from kernelforge.records import (
    Comparison,
    Fingerprint,
    Performance,
    Profile,
    Size,
    SizeCheck,
    Stage,
    Task,
    TaskFacts,
    Verdict,
    content_hash,
    language_of,
)
from kernelforge.sandbox.shared_memory import Blob, same_bytes

VARIATIONS = 2**32 - 2
"""Variations that a run may have besides 0, which tuning and profiles use: see ``RunRequest.variation``."""

POISONS = (0xFF, 0x5A)
"""Workspace, outputs and shared memory hold each of these bytes in turn before a run; the results must agree. As
floats the first is NaN, the second large (1.5e16 in float32)."""

SMALL_SIZE_INSTRUCTIONS = 4_000_000_000
"""Most thread instructions of a run at a small or hidden size, or as many as :data:`PADDING` allows where those are
more; one that executes more is taken for one that never ends: ``TIMEOUT``."""

PADDING = 256
"""A kernel may execute this many thread instructions per flop or byte of the reference. Above it the size is not large,
the kernel is slow: ``TIMEOUT``."""

FULL_SIZE_INSTRUCTIONS = 8_000_000_000
"""The full size is run whole on an emulated device up to this many thread instructions, else only sampled."""

LATE_SECONDS_PER_OPERATION = 2e-8
"""A run at a small or hidden size of an emulated device is ``late`` after this many seconds for each operation of the
reference, where that is more than usual: the plain kernels of an AlexNet take four thread instructions for each, of
which a core does 1e9 in a second."""

EVALUATION_SECONDS = 180.0
"""Longest evaluation on a GPU, from when it has the device; a longer one is ended: ``TIMEOUT``. Honest ones take
seconds. On an emulated device the work of each run is limited instead, and the plan says how many there are."""

_USED_BEFORE_WRITTEN = (
    "the result changes with what memory held before the run: "
    "an element of an output, of workspace or of shared memory is used before it is written"
)

_VERDICT_OF_FAULT = {
    "sanitizer": Verdict.CRASH,
    "crash": Verdict.CRASH,
    "timeout": Verdict.TIMEOUT,
    "memory": Verdict.LIMIT,
    "unsupported": Verdict.INFRA,
    "late": Verdict.INFRA,
}


class Unscreened(Exception):
    """The emulated device in front of a GPU lacks something that the candidate uses: the GPU alone decides."""


class OverBudget(Exception):
    """A run at the full size took more work than such a run may: that alone does not tell that it never ends."""


class CountedProfile(NamedTuple):
    """A profile by an emulated device at the full size, for that of the GPU behind it."""

    profile: Profile
    note: str
    """Where it was counted, and on which share of the blocks."""
    performance: Performance | None
    """The modelled time; None of torch operators."""
    checks: tuple[SizeCheck, ...]
    """Of the other sizes, on that device."""
    fingerprint: Fingerprint
    """Of evaluations on that device."""


@dataclass(kw_only=True)
class EvaluationState(BuildState):
    """Results that the cascade has gathered so far."""

    seed: int
    started: float = field(default_factory=time.perf_counter)
    """When the device was acquired; queueing time is not charged to the candidate."""
    executed: int = 0
    """Most thread instructions of any run at the current size."""
    forward: int = 0
    """The same without those of ``setup``."""
    sectors: int = 0
    """Most sectors that any run at the current size requested from global memory."""
    source: str = ""
    """The candidate's, to tell an instruction that it wrote itself from one that the compiler emitted."""
    counted: CountedProfile | None = None
    """From the emulated device in front of a GPU."""
    kept: KeptDraws | None = None
    """Draws that this evaluation shares with others of its task; None for draws of its own."""

    def record(self, check: SizeCheck) -> None:
        """Record a check, in place of an earlier one of its size."""
        for index, earlier in enumerate(self.checks):
            if earlier.size == check.size:
                self.checks[index] = check
                return
        self.checks.append(check)

    def fail(
        self,
        verdict: Verdict,
        size: Size,
        family: str,
        message: str,
        error: float | None = None,
        *,
        stage: Stage | None = None,
    ) -> NoReturn:
        """Record the failed check and end the cascade. For a hidden size the message is replaced by the verdict's.

        Raises:
            StageFailed: always.
        """
        check, reason = failed_check(verdict, size, family, message, error)
        self.record(check)
        raise StageFailed(verdict, stage or _stage(size), reason)

    @contextmanager
    def drawn(
        self, oracle: Oracle, size: Size, family: str, *turn: int, expected: bool = True, tiled: bool = False
    ) -> Iterator[DrawHandle]:
        """Fresh inputs with their expected outputs, which stay with the oracle and are forgotten afterwards.

        Args:
            oracle: draws them.
            size: one of the task's.
            family: of inputs, one that the oracle admits there.
            turn: tells several draws of one size and family apart.
            expected: whether outputs are computed too.
            tiled: whether large inputs may be drawn in part: see :meth:`.Oracle.draw`.
        """
        with self.clock("oracle"):
            seed = int(content_hash(self.seed, oracle.task.name, size.name, family, *turn), 16)
            draw = oracle.draw(size.name, family, seed, expected=expected, tiled=tiled)
        try:
            yield draw
        finally:
            oracle.release(draw.handle)


class CandidateRuns(ExitStack):
    """Runs one candidate, and asks the oracle whether its outputs are right. A context: leaving it ends the runners.

    Args:
        task: the task.
        oracle: the task's oracle.
        facts: of the task.
        device: where the candidate runs.
        work: the candidate's builds and checks.
        run_limit_s: longest that one run of a plan may take; None for what is usual on the device.
        worst_errors: whether approximate instructions of an emulated device err as far as they may.
        behind: the GPU that candidates are built for, where ``device`` is the emulated one in front of it.
    """

    def __init__(
        self,
        task: Task,
        oracle: Oracle,
        facts: TaskFacts,
        device: Device,
        work: EvaluationState,
        run_limit_s: float | None = None,
        worst_errors: bool = False,
        behind: Device | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self.oracle = oracle
        self.facts = facts
        self.device = device
        self.work = work
        self.run_limit_s = run_limit_s or usual_limit_s(device)
        self._limit_binds = run_limit_s is not None or device.capabilities.measures_time
        self.worst_errors = worst_errors
        self.arch = (behind or device).arch
        """Architecture of the builds."""
        self._in_front = behind is not None
        self._sessions: dict[str, Session] = {}

    def on_device(self, artifact: Artifact) -> Session:
        """A runner on the device. Sizes that share a build share its runner."""
        key = artifact.build.key
        if key not in self._sessions:
            self._sessions[key] = self.enter_context(self.device.open(artifact))
        return self._sessions[key]

    @contextmanager
    def drawn(self, size: Size, family: str, *, expected: bool = True, tiled: bool = False) -> Iterator[DrawHandle]:
        """See :meth:`EvaluationState.drawn`."""
        with self.work.drawn(self.oracle, size, family, expected=expected, tiled=tiled) as draw:
            yield draw

    def run_and_compare(self, size: Size, draw: DrawHandle, poisons: tuple[int, ...]) -> Comparison:
        """Run once per poison; values must pass for every byte that memory held before.

        A device that runs blocks in one fixed order must give the same to the last bit; on a GPU, where atomics
        have no order, each result is compared by itself. An emulated device takes another variation for every draw,
        one for all poisons of the draw: outputs that depend on values that hardware leaves open then differ.

        Returns:
            The comparison with the largest error.

        Raises:
            StageFailed: a run faulted, or its outputs are wrong.
            Unscreened: this device is in front of a GPU, and lacks what the plan needs.
            OverBudget: at the full size a run took over its limit of work.
        """
        work, session = self.work, self.on_device(self.work.artifacts[size.name])
        plan, specs = work.plans[size.name], self.facts.at(size.name).outputs
        ordered = self.device.capabilities.checks_accesses
        instructions = self.most_work(size)
        first: tuple[Blob, ...] | None = None
        worst = Comparison(ok=True)
        for poison in poisons:
            self._refuse_overtime(size, draw.family)
            result = self._run(
                session, self.request(plan, draw, poison, instructions, self.variation(size, draw.family))
            )
            if result.faults:
                if self._in_front and result.faults[0].kind in ("unsupported", "late"):
                    raise Unscreened(result.faults[0].message)
                self.refuse(result.faults[0], size, draw.family)
            if first is not None and all(map(same_bytes, first, result.outputs)):
                continue
            if first is not None and ordered:
                work.fail(Verdict.WRONG, size, draw.family, _USED_BEFORE_WRITTEN)
            with work.clock("oracle"):
                shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
                comparison = self.oracle.check(draw.handle, result.outputs, shapes, dtypes)
            if not comparison.ok:
                message = comparison.message if first is None else f"{_USED_BEFORE_WRITTEN}: {comparison.message}"
                work.fail(Verdict.WRONG, size, draw.family, message, comparison.error)
            first = result.outputs
            worst = max(worst, comparison, key=_error)
        return worst

    def most_work(self, size: Size) -> int | None:
        """Limit on the work of a run of everything, in thread instructions; None where it is not counted."""
        if not self.device.capabilities.checks_accesses:
            return None
        if size.name == "full":
            # A profile, which may be of some blocks, counted no more than a quarter of this.
            return 4 * FULL_SIZE_INSTRUCTIONS
        facts = self.facts.at(size.name)
        return max(SMALL_SIZE_INSTRUCTIONS, PADDING * (facts.flops + facts.moved_bytes))

    def variation(self, size: Size, family: str) -> int:
        """Selects values that hardware leaves open, for an emulated device's runs on one draw."""
        return 1 + int(content_hash("variation", self.work.seed, self.task.name, size.name, family), 16) % VARIATIONS

    def request(
        self, plan: ResolvedPlan, draw: DrawHandle, poison: int, instructions: int | None = None, variation: int = 0
    ) -> RunRequest:
        """The run of a plan on the tensors of a draw.

        Raises:
            TaskError: the draw does not fit the plan.
        """
        return run_request(
            self.task,
            plan,
            draw,
            poison,
            limit_s=self._limit_s(draw.size),
            limit_binds=self._limit_binds,
            instructions=instructions,
            variation=variation,
            worst_errors=self.worst_errors,
        )

    def _limit_s(self, size: str) -> float:
        """Longest time of a run, in seconds. Where it is no limit on the candidate, a reference of very many operations
        lets it be longer; the full size has a limit of work that does not grow with them."""
        if self._limit_binds or size == "full":
            return self.run_limit_s
        return max(self.run_limit_s, LATE_SECONDS_PER_OPERATION * self.facts.at(size).flops)

    def _run(self, session: Session, request: RunRequest) -> RunResult:
        work = self.work
        work.go_on()
        start = time.perf_counter()
        result = session.run(request)
        elapsed = time.perf_counter() - start
        work.executed = max(work.executed, result.thread_instructions or 0)
        work.forward = max(work.forward, result.forward_instructions or 0)
        work.sectors = max(work.sectors, result.global_sectors or 0)
        # A run that ended in a fault does not say how long it took; the wait was for the kernel all the same.
        spent = elapsed if result.faults else min(result.seconds, elapsed)
        part = "emulation" if self.device.kind == "emulated" else "run"
        work.seconds[part] = work.seconds.get(part, 0.0) + spent
        return result

    def _refuse_overtime(self, size: Size, family: str) -> None:
        """Limit the evaluation on a GPU as a whole: many short launches pass under the limits of each."""
        if self.device.capabilities.measures_time and time.perf_counter() - self.work.started > EVALUATION_SECONDS:
            message = f"the evaluation took more than {EVALUATION_SECONDS:g} s in all; launch fewer or faster kernels"
            self.work.fail(Verdict.TIMEOUT, size, family, message)

    def refuse(self, fault: RunFailure, size: Size, family: str) -> NoReturn:
        """End the cascade for a fault of a run of everything, but for one that the full size's budget ended.

        Raises:
            StageFailed: the candidate, or the device, is at fault.
            OverBudget: the run's work was limited, and it took more.
        """
        limited = self.most_work(size) is not None and not self._limit_binds
        if size.name == "full" and fault.kind == "timeout" and limited:
            raise OverBudget(fault.message)
        self.fault(fault, size, family)

    def fault(self, fault: RunFailure, size: Size, family: str, *, stage: Stage | None = None) -> NoReturn:
        """Record the check whose run ended in a fault, and end the cascade.

        A feature that the device lacks is no score, because a compiler or a plan may need it; but an instruction that
        the candidate wrote itself is refused like anything else that cannot be checked, or an author who fears a low
        score could have none. It is ``POLICY`` at the gate's stage instead of another verdict: to the candidate, to
        rewards and to boards it is one more rule on inline assembly.

        Raises:
            StageFailed: always.
        """
        message, verdict = fault.message, _VERDICT_OF_FAULT[fault.kind]
        if fault.ptx_line is not None and self._wrote(fault.ptx_line, size):
            verdict, stage = Verdict.POLICY, "policy"
            message = f"inline assembly holds what {self.device.name} cannot check: {message}; write it in CUDA C++"
        elif fault.kind == "unsupported":
            message += f"; this is a limit of {self.device.name} and no score: write the kernel without it"
        elif fault.kind == "late":
            message += "; this machine is slow or busy, twice, which is no score"
        self.work.fail(verdict, size, family, message, stage=stage)

    def _wrote(self, line: int, size: Size) -> bool:
        """Whether the candidate's own source holds a line of its build's PTX, as inline assembly. Triton's has none."""
        if language_of(self.work.source) == "triton":
            return False
        ptx = self.work.artifacts[size.name].ptx.decode(errors="replace")
        return written_inline(self.work.source, ptx, line)


def usual_limit_s(device: Device) -> float:
    """Longest that one run of a plan may take where nothing else is asked for."""
    return RUN_LIMIT_S if device.capabilities.measures_time else EMULATED_RUN_LIMIT_S


def run_request(
    task: Task,
    plan: ResolvedPlan,
    draw: DrawHandle,
    poison: int,
    *,
    limit_s: float = RUN_LIMIT_S,
    limit_binds: bool = True,
    instructions: int | None = None,
    variation: int = 0,
    worst_errors: bool = False,
) -> RunRequest:
    """The run of a plan on the tensors of a draw.

    Raises:
        TaskError: a tensor of the draw has another size than the plan was resolved for.
    """
    tensors: dict[int, Blob] = {}
    tiled: dict[int, int] = {}
    mutable: set[int] = set()
    mapped: set[int] = set()
    for buffer in plan.buffers:
        if isinstance(buffer.source, int):
            tensors[buffer.id] = draw.tensors.get(buffer.source, b"")
            if buffer.source in task.policy.mutates:
                mutable.add(buffer.id)
            if buffer.source in task.policy.host_inputs:
                mapped.add(buffer.id)
        elif isinstance(buffer.source, str):
            tensors[buffer.id] = draw.weights.get(buffer.source, b"")
        if buffer.source is not None and buffer.source in draw.tiled:
            tiled[buffer.id] = draw.tiled[buffer.source]
        if buffer.provided and (nbytes := tiled.get(buffer.id) or len(tensors[buffer.id])) != buffer.nbytes:
            raise TaskError(
                f"{buffer.label} has {nbytes} bytes in one draw and {buffer.nbytes} in another: "
                "shapes of inputs and weights must not depend on the seed"
            )
    return RunRequest(
        plan,
        tensors,
        tiled=tiled,
        poison=poison,
        mutable=frozenset(mutable),
        mapped=frozenset(mapped),
        deadline_s=limit_s,
        deadline_binds=limit_binds,
        max_thread_instructions=instructions,
        variation=variation,
        worst_errors=worst_errors,
    )


def _error(comparison: Comparison) -> float:
    return comparison.error or 0.0


def _stage(size: Size) -> Stage:
    if size.is_hidden:
        return "hidden"
    return "full" if size.name == "full" else "small"
