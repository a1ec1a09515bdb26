"""The correctness stage: runs at every size, each compared with the oracle's values.

On a GPU every size but the full one is also run on an emulated device, which checks what no GPU does: each access.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from kernelforge.candidate import ResolvedPlan
from kernelforge.compile import Artifact
from kernelforge.compile.ptx_text import written_inline
from kernelforge.devices.base import RUN_LIMIT_S, Device, RunFailure, RunRequest, RunResult, Session
from kernelforge.errors import TaskError
from kernelforge.evaluation.generators.recipe import TEST_PREFIX
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, failed_check
from kernelforge.records import (
    Comparison,
    InputGenerator,
    Size,
    SizeCheck,
    Stage,
    Task,
    TaskFacts,
    Verdict,
    content_hash,
)
from kernelforge.sandbox.shared_memory import Blob, same_bytes

VARIATIONS = 2**32 - 1
"""How many variations a run may have besides 0, which tuning and profiles have: see ``RunRequest.variation``."""

POISONS = (0xFF, 0x5A)
"""Workspace, outputs and shared memory hold each of these bytes in turn before a run; the results must agree. As
floats the first is NaN, the second large (1.5e16 in float32)."""

SMALL_SIZE_INSTRUCTIONS = 1_000_000_000
"""A run at a small or hidden size that executes more thread instructions than this never ends: ``TIMEOUT``."""

EVALUATION_SECONDS = 180.0
"""One evaluation that takes longer than this once it has the device is ended: ``TIMEOUT``. Honest ones take seconds."""

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
}


class _Unscreened(Exception):
    """The emulated device beside a GPU lacks something that the candidate uses: the GPU alone decides."""


@dataclass(kw_only=True)
class EvaluationState(BuildState):
    """What the cascade has gathered so far."""

    seed: int
    started: float = field(default_factory=time.perf_counter)
    """When it got the device: to wait for one is not the candidate's doing."""
    executed: int = 0
    """Most thread instructions of any run at the size at hand."""
    sectors: int = 0
    """Most sectors that any run at the size at hand asked of global memory."""
    source: str = ""
    """The candidate's, to tell an instruction that it wrote itself from one that the compiler emitted."""
    unscreened: str = ""
    """What the candidate uses that the emulated device beside a GPU lacks."""


class DeviceSession(NamedTuple):
    """Where a plan is run: the device, or the emulated one that checks beside it."""

    device: Device
    session: Session


class SessionCache(ExitStack):
    """One runner per distinct build of a candidate and device; sizes that share a build share its runner."""

    def __init__(self, device: Device, screen: Device | None) -> None:
        super().__init__()
        self._device = device
        self._screen = screen
        self._open: dict[tuple[str, str], Session] = {}

    def of(self, artifact: Artifact) -> DeviceSession:
        """On the device."""
        return self._on(self._device, artifact)

    def all(self, artifact: Artifact) -> tuple[DeviceSession, ...]:
        """On the emulated device that checks, where there is one, and on the device."""
        return (*(() if self._screen is None else (self._on(self._screen, artifact),)), self.of(artifact))

    def drop_screen(self) -> None:
        """From now on without the emulated device: it lacks what the candidate uses."""
        self._screen = None

    def _on(self, device: Device, artifact: Artifact) -> DeviceSession:
        key = device.name, artifact.build.key
        if key not in self._open:
            self._open[key] = self.enter_context(device.open(artifact))
        return DeviceSession(device, self._open[key])


class Checker:
    """Runs candidates for one task on one device, and asks its oracle whether what they gave is right.

    Args:
        device: where candidates run.
        screen: an emulated device that runs every size but the full one too.
        run_limit_s: longest that one run of a plan may take.
    """

    def __init__(
        self,
        task: Task,
        oracle: Oracle,
        facts: TaskFacts,
        device: Device,
        screen: Device | None,
        run_limit_s: float = RUN_LIMIT_S,
    ) -> None:
        self.task = task
        self.oracle = oracle
        self.facts = facts
        self.device = device
        self.screen = screen
        self.run_limit_s = run_limit_s
        self.generators: tuple[InputGenerator, ...] = ()
        """Generators in force, all of them admitted."""

    def sessions(self) -> SessionCache:
        """Runners for one candidate; the caller closes them."""
        return SessionCache(self.device, self.screen)

    def check_size(
        self, sessions: SessionCache, size: Size, work: EvaluationState, families: Sequence[str] | None = None
    ) -> None:
        """Run a size on inputs of ``families``, or of all that torch passes there, and record that it was right.

        Raises:
            StageFailed: it was not.
            TaskError: the oracle has no such inputs.
        """
        families = tuple(self.oracle.families(size.name) if families is None else families)
        worst = 0.0
        for position, family in enumerate(families):
            # The task's own distribution runs under both poisons; the others take turns.
            poisons = POISONS if position == 0 else (POISONS[position % 2],)
            with self.drawn(size, family, work) as draw:
                comparison = self.run_and_compare(sessions, size, draw, poisons, work)
            worst = max(worst, comparison.error or 0.0)
        plan = work.plans[size.name]
        work.checks.append(
            SizeCheck(size=size.name, status="passed", families=families, error=worst, launches=len(plan.launches))
        )

    def check_generators(self, sessions: SessionCache, work: EvaluationState) -> None:
        """The generators' inputs, once our own families passed at every such size: they add tests and replace none."""
        for check in tuple(work.checks):
            if check.status != "passed":
                continue
            size, families, worst = self.task.size(check.size), list(check.families), check.error or 0.0
            for position, generator in enumerate(self.generators):
                if size.name not in generator.sizes:
                    continue
                family = f"{TEST_PREFIX}{generator.name}"
                with ExitStack() as stack:
                    try:
                        draw = stack.enter_context(self.drawn(size, family, work))
                    except TaskError:
                        # Torch itself fails on this draw: it is no test.
                        continue
                    poisons = (POISONS[position % 2],)
                    worst = max(worst, self.run_and_compare(sessions, size, draw, poisons, work).error or 0.0)
                families.append(family)
            note(check.model_copy(update={"families": tuple(families), "error": worst}), work)

    @contextmanager
    def drawn(self, size: Size, family: str, work: EvaluationState, *, expected: bool = True) -> Iterator[DrawHandle]:
        """Fresh inputs with their expected outputs, which stay with the oracle and are forgotten afterwards.

        ``expected=False`` makes the inputs alone.
        """
        with work.clock("oracle"):
            seed = int(content_hash(work.seed, self.task.name, size.name, family), 16)
            draw = self.oracle.draw(size.name, family, seed, expected=expected)
        try:
            yield draw
        finally:
            self.oracle.release(draw.handle)

    def run_and_compare(
        self, sessions: SessionCache, size: Size, draw: DrawHandle, poisons: tuple[int, ...], work: EvaluationState
    ) -> Comparison:
        """Run everywhere; the comparison with the largest error."""
        artifact = work.artifacts[size.name]
        worst = Comparison(ok=True)
        for place in sessions.all(artifact) if size.name != "full" else (sessions.of(artifact),):
            try:
                found = self.run_at(place, size, draw, poisons, work)
            except _Unscreened as unscreened:
                sessions.drop_screen()
                work.unscreened = str(unscreened)
                continue
            worst = max(worst, found, key=lambda comparison: comparison.error or 0.0)
        return worst

    def run_at(
        self, place: DeviceSession, size: Size, draw: DrawHandle, poisons: tuple[int, ...], work: EvaluationState
    ) -> Comparison:
        """Run once per poison; values must pass whatever memory held before.

        A device that runs blocks in one fixed order must give the same to the last bit; on a GPU, where atomics
        have no order, each result is compared by itself. An emulated device takes another variation for every draw,
        one for all poisons of the draw: what hangs on values that hardware leaves open gives other answers.
        """
        variation = self.variation(size, draw.family, work)
        plan, specs = work.plans[size.name], self.facts.at(size.name).outputs
        ordered = place.device.capabilities.checks_accesses
        instructions = None if size.name == "full" or not ordered else SMALL_SIZE_INSTRUCTIONS
        first: tuple[Blob, ...] | None = None
        worst = Comparison(ok=True)
        for poison in poisons:
            self._refuse_overtime(size, draw.family, work)
            result = self._run(place, self.request(plan, draw, poison, instructions, variation), work)
            if result.faults:
                if place.device is not self.device and result.faults[0].kind == "unsupported":
                    raise _Unscreened(result.faults[0].message)
                self.fault(result.faults[0], size, draw.family, work)
            if first is not None and all(map(same_bytes, first, result.outputs)):
                continue
            if first is not None and ordered:
                self.fail(Verdict.WRONG, size, draw.family, _USED_BEFORE_WRITTEN, work)
            with work.clock("oracle"):
                shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
                comparison = self.oracle.check(draw.handle, result.outputs, shapes, dtypes)
            if not comparison.ok:
                message = comparison.message if first is None else f"{_USED_BEFORE_WRITTEN}: {comparison.message}"
                self.fail(Verdict.WRONG, size, draw.family, message, work, comparison.error)
            first = result.outputs
            worst = max(worst, comparison, key=lambda comparison: comparison.error or 0.0)
        return worst

    def variation(self, size: Size, family: str, work: EvaluationState) -> int:
        """What an emulated device makes of values that hardware leaves open, in runs on one draw."""
        return 1 + int(content_hash("variation", work.seed, self.task.name, size.name, family), 16) % VARIATIONS

    def request(
        self, plan: ResolvedPlan, draw: DrawHandle, poison: int, instructions: int | None = None, variation: int = 0
    ) -> RunRequest:
        """The run of a plan on the tensors of a draw."""
        tensors: dict[int, Blob] = {}
        mutable: set[int] = set()
        for buffer in plan.buffers:
            if isinstance(buffer.source, int):
                tensors[buffer.id] = draw.tensors.get(buffer.source, b"")
                if buffer.source in self.task.policy.mutates:
                    mutable.add(buffer.id)
            elif isinstance(buffer.source, str):
                tensors[buffer.id] = draw.weights.get(buffer.source, b"")
            if buffer.given and len(tensors[buffer.id]) != buffer.nbytes:
                raise TaskError(
                    f"{buffer.label} has {len(tensors[buffer.id])} bytes in one draw and {buffer.nbytes} in another: "
                    "shapes of inputs and weights must not depend on the seed"
                )
        return RunRequest(
            plan,
            tensors,
            poison=poison,
            mutable=frozenset(mutable),
            deadline_s=self.run_limit_s,
            max_thread_instructions=instructions,
            variation=variation,
        )

    def _run(self, place: DeviceSession, request: RunRequest, work: EvaluationState) -> RunResult:
        work.go_on()
        start = time.perf_counter()
        result = place.session.run(request)
        elapsed = time.perf_counter() - start
        work.executed = max(work.executed, result.thread_instructions or 0)
        work.sectors = max(work.sectors, result.global_sectors or 0)
        # A run that ended in a fault does not say how long it took; the wait was for the kernel all the same.
        spent = elapsed if result.faults else min(result.seconds, elapsed)
        part = "emulation" if place.device.kind == "emulated" else "run"
        work.seconds[part] = work.seconds.get(part, 0.0) + spent
        return result

    def fail(
        self,
        verdict: Verdict,
        size: Size,
        family: str,
        message: str,
        work: EvaluationState,
        error: float | None = None,
        *,
        stage: Stage | None = None,
    ) -> NoReturn:
        """Record the failed check and end the cascade. Of a hidden size nothing is told but the verdict."""
        check, reason = failed_check(verdict, size, family, message, error)
        note(check, work)
        raise StageFailed(verdict, stage or _stage(size), reason)

    def _refuse_overtime(self, size: Size, family: str, work: EvaluationState) -> None:
        """Many short launches pass under the limits of each; together they may not hold a run up."""
        if time.perf_counter() - work.started > EVALUATION_SECONDS:
            message = f"the evaluation took more than {EVALUATION_SECONDS:g} s in all; launch fewer or faster kernels"
            self.fail(Verdict.TIMEOUT, size, family, message, work)

    def fault(
        self, fault: RunFailure, size: Size, family: str, work: EvaluationState, *, stage: Stage | None = None
    ) -> NoReturn:
        """Record the check that a run ended in a fault at, and end the cascade.

        What a device lacks is no score, for a compiler or a plan may need it; but an instruction that the candidate
        wrote itself is refused like anything else that cannot be checked, or whoever fears a low score could have none.
        It is ``POLICY`` at the gate's stage and no verdict of its own: to the candidate, to rewards and to boards it is
        one more rule on inline assembly.
        """
        message, verdict = fault.message, _VERDICT_OF_FAULT[fault.kind]
        if fault.ptx_line is not None and self._wrote(fault.ptx_line, size, work):
            verdict, stage = Verdict.POLICY, "policy"
            message = f"inline assembly holds what {self.device.name} cannot check: {message}; write it in CUDA C++"
        elif fault.kind == "unsupported":
            message += f"; this is a limit of {self.device.name} and no score: write the kernel without it"
        self.fail(verdict, size, family, message, work, stage=stage)

    @staticmethod
    def _wrote(line: int, size: Size, work: EvaluationState) -> bool:
        """Whether the candidate answers for a line of its build's PTX."""
        return written_inline(work.source, work.artifacts[size.name].ptx.decode(errors="replace"), line)


def note(check: SizeCheck, work: EvaluationState) -> None:
    """Record a check, in place of what was known of its size before."""
    for position, known in enumerate(work.checks):
        if known.size == check.size:
            work.checks[position] = check
            return
    work.checks.append(check)


def _stage(size: Size) -> Stage:
    if size.is_hidden:
        return "hidden"
    return "full" if size.name == "full" else "small"
