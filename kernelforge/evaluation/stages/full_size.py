"""The full-size stage: the last correctness check of a candidate that passed every other size.

An emulated device profiles the candidate and compares the whole output where that is affordable, else parts of it. For
a device that measures, see the module ``full_size_measured``.

The candidate's behaviour never decides alone how much is compared. Where a whole run is too expensive, the device runs
the blocks that write a sample of elements on the real inputs; the secret seed chooses the sample, and the oracle
computes the reference on the slices that those elements need. Where that is impossible too, the check is ``skipped``
and the evaluation earns no reward.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernelforge.devices.base import (
    OPERATIONS_PER_INSTRUCTION,
    PartialSession,
    PartResult,
    RunFailed,
    RunRequest,
    Session,
)
from kernelforge.errors import ChildDied, SandboxError, TaskError
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.stages.candidate_runs import (
    FULL_SIZE_INSTRUCTIONS,
    PADDING,
    POISONS,
    SMALL_SIZE_INSTRUCTIONS,
    CandidateRuns,
    EvaluationState,
    OverBudget,
)
from kernelforge.evaluation.timing import tensor_bytes
from kernelforge.profiling.counts import SECTOR_BYTES
from kernelforge.profiling.metrics import HOST_SECTORS, MATRIX_OPERATIONS
from kernelforge.records import Comparison, Performance, Profile, SizeCheck, SizeFacts, Verdict, content_hash
from kernelforge.sandbox.shared_memory import Blob, same_bytes

DEAR_FLOPS = 2_000_000_000
"""A reference with more operations is not run before a profile has shown that a complete run is affordable."""

REFERENCE_BYTES = 768 << 20
"""A reference that touches more is not run: with its float64 twin it would not fit into the oracle's process."""

WRITTEN_BYTES = 2 << 30
"""Most that a plan may allocate where it is run whole on inputs of which the host holds a tile each."""

WHOLE_DRAW_BYTES = 3584 << 20
"""Tensors of a task that are drawn whole; of larger ones only a part, which stands in them again and again."""

TRAIN_DRAW_BYTES = 256 << 20
"""The same in training, where a task lets that: of what is drawn whole the oracle's process keeps the memory."""

PROFILE_POISON = 0
"""What memory holds before a profile: blocks that are left out must leave something harmless behind."""

ELEMENTS = 16
"""Elements of each output that a comparison in part is about; what else their blocks write is compared with them."""

PART_INSTRUCTIONS = 28_000_000_000
"""Most thread instructions to try and to run the blocks behind them, of which a matrix product counts what it computes;
the search for these blocks has a limit of its own."""

PROFILE_INSTRUCTIONS = 8_000_000_000
"""The same for a profile. It runs a few million as a rule: more only where a single block executes so many."""

DECIDING_INSTRUCTIONS = 4 * FULL_SIZE_INSTRUCTIONS
"""A profile goes on up to here where that is more than :data:`PADDING` allows: its count then tells a kernel that does
not end, or is far too slow, from one that is only long. Of larger tasks no count that can be had tells it."""

LEAST_SHARE, LEAST_SHARE_SAMPLED = 0.98, 0.75
"""Least share of the compulsory bytes that a believable profile counts; what samples are extrapolated to may err."""

_SAMPLED_SLACK, _EXACT_SLACK = 1.5, 1.01
"""By which factor a whole run may execute more than its profile counted, with and without blocks left out."""

_SECTORS = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum")
_BULK_SECTORS = "ptx__bulk_copy_sectors.sum"


def is_cheap(facts: SizeFacts) -> bool:
    """Whether the reference may be run for the sake of a comparison."""
    return facts.moved_bytes <= REFERENCE_BYTES and facts.flops <= DEAR_FLOPS


class FullSizeResult(NamedTuple):
    """The profile and the time of a candidate, as far as they are known."""

    profile: Profile | None = None
    performance: Performance | None = None
    missing: str = ""
    """Why there is no profile though one was asked for."""

    @property
    def instructions(self) -> float | None:
        """Thread instructions that the profile counted."""
        return None if self.profile is None else self.profile.value("ptx__thread_inst_executed.sum")

    @property
    def work(self) -> float | None:
        """The same, but a matrix product counts what it computes."""
        if self.profile is None or self.instructions is None:
            return None
        return self.instructions + (self.profile.value(MATRIX_OPERATIONS) or 0.0) / OPERATIONS_PER_INSTRUCTION


class FullSizeStage(ABC):
    """One candidate at the full size."""

    def __init__(self, runs: CandidateRuns) -> None:
        self.runs = runs
        self.work = runs.work
        self.device = runs.device
        self.oracle = runs.oracle
        self.size = runs.task.size("full")
        self.facts = runs.facts.at("full")
        self.family = runs.oracle.families("full")[0]
        self.plan = runs.work.plans["full"]
        self.artifact = runs.work.artifacts["full"]

    @abstractmethod
    def check(self, profile: bool) -> FullSizeResult | None:
        """Check, and time or profile where asked."""

    def passed(self, comparison: Comparison, message: str, families: tuple[str, ...] = ()) -> None:
        """Record that the values were right."""
        check = SizeCheck(
            size="full",
            status="passed",
            families=families or (self.family,),
            message=message,
            error=comparison.error,
            launches=len(self.plan.launches),
        )
        self.work.record(check)

    def other_families(self) -> tuple[str, ...]:
        """Families of inputs, besides the task's own, on which some slices of the outputs are compared; at most one."""
        with self.work.clock("oracle"):
            return tuple(filter(self.oracle.has_slices, self.oracle.families("full")[1:2]))

    def check_slices(self, session: Session, family: str) -> None:
        """Run whole on inputs of a family, and compare some slices of what came out.

        Raises:
            StageFailed: they are wrong, or the run faults.
            OverBudget: the run took over its limit of work.
        """
        with self.runs.drawn(self.size, family, expected=False) as draw:
            self.run_and_compare_whole(session, draw, PROFILE_POISON, "in the slices that were compared: ")

    def run_and_compare_whole(self, session: Session, draw: DrawHandle, poison: int, where: str = "") -> Comparison:
        """Run whole on a draw without expected outputs, and compare what can be of what came out.

        Raises:
            StageFailed: it is wrong, or the run faults.
            OverBudget: the run took over its limit of work.
        """
        with self.work.clock("emulation" if self.device.kind == "emulated" else "run"):
            most = self.runs.most_work(self.size)
            result = session.run(replace(self.request(draw, poison), max_thread_instructions=most))
        if result.faults:
            self.runs.refuse(result.faults[0], self.size, draw.family)
        self.work.forward = max(self.work.forward, result.forward_instructions or 0)
        comparison = self.compared(draw, {}, [(None, blob) for blob in result.outputs])
        if not comparison.ok:
            self.work.fail(Verdict.WRONG, self.size, draw.family, f"{where}{comparison.message}", comparison.error)
        return comparison

    def request(self, draw: DrawHandle, poison: int) -> RunRequest:
        variation = self.runs.variation(self.size, draw.family)
        return self.runs.request(self.plan, draw, poison, variation=variation)

    def compared(
        self, draw: DrawHandle, elements: Mapping[int, Sequence[int]], parts: Sequence[tuple[Blob | None, Blob]]
    ) -> Comparison:
        specs = self.facts.outputs
        shapes, dtypes = [spec.shape for spec in specs], [spec.dtype for spec in specs]
        with self.work.clock("oracle"):
            return self.oracle.check_part(draw.handle, elements, parts, shapes, dtypes)


class ModelledFullSize(FullSizeStage):
    """A dear size is compared in part, any other whole; but in part too where a profile shows a slow kernel.

    Args:
        runs: the candidate's runs.
        train: compare every size in part where that can be done, on the task's own inputs, and look for the blocks
            behind the elements near to them first.
    """

    def __init__(self, runs: CandidateRuns, *, train: bool = False) -> None:
        super().__init__(runs)
        self._train = train

    def check(self, profile: bool) -> FullSizeResult | None:
        try:
            checked = self._checked(profile, last=False)
        except ChildDied:
            # The first time another process may have killed it; a reference that takes all memory dies again.
            checked = self._checked(profile, last=True)
        return None if self.plan.libraries else checked

    def profile_alone(self) -> FullSizeResult:
        """The profile, without any comparison of values.

        Raises:
            StageFailed: a launch faulted, or the kernel is far too slow for the task.
        """
        with self._inputs() as draw:
            return self._profiled(draw)

    def _checked(self, profile: bool, *, last: bool) -> FullSizeResult | None:
        profiled: FullSizeResult | None = None
        tensors, memory = tensor_bytes(self.facts), self.device.memory_bytes
        if tensors > memory:
            self._skipped(
                f"its own tensors take {tensors / 1e9:.3g} GB, of {memory / 1e9:.3g} GB that this device has", None
            )
            return None
        try:
            if self._train or self._too_large or self.facts.flops > DEAR_FLOPS:
                with self._inputs() as draw:
                    why = self._compare_in_part(draw)
                    profiled = self._profiled(draw) if profile else None
                if not why:
                    return self._believed_in_part(profiled)
                if self._too_large and profiled is not None and _affordable(profiled) and self._is_mean():
                    try:
                        return self._compare_mean(profiled)
                    except OverBudget as error:
                        why, profiled = str(error), self._without_profile(profile)
                if self._too_large or not _affordable(profiled):
                    self._skipped(why, profiled)
                    return profiled
            with self.runs.drawn(self.size, self.family) as draw:
                if profile and profiled is None:
                    profiled = self._profiled(draw)
                if profiled is None or _affordable(profiled):
                    try:
                        return self._compare_complete(draw, profiled)
                    except OverBudget:
                        profiled = self._without_profile(profile)
                why = self._compare_in_part(draw)
        except (TaskError, SandboxError) as error:
            if isinstance(error, ChildDied) and not last:
                raise
            why = "" if self._compared else f"the reference cannot be run at this size here: {error}"
            if profile and profiled is None:
                with contextlib.suppress(TaskError, SandboxError), self._inputs() as draw:
                    profiled = self._profiled(draw)
            if not why and profile and profiled is None:
                profiled = FullSizeResult(missing=f"no profile: {error}")
        if not why:
            return self._believed_in_part(profiled)
        self._skipped(why, profiled)
        return profiled

    @property
    def _compared(self) -> bool:
        """Whether values were compared, and right: then only the profile can have failed."""
        return any(check.size == "full" and check.status == "passed" for check in self.work.checks)

    @property
    def _tiled(self) -> bool:
        """Whether the inputs are too large to be drawn whole."""
        return tensor_bytes(self.facts) > WHOLE_DRAW_BYTES

    @property
    def _too_large(self) -> bool:
        """Whether the reference is too large to be run whole."""
        return self._tiled or self.facts.moved_bytes > REFERENCE_BYTES

    @contextlib.contextmanager
    def _inputs(self) -> Iterator[DrawHandle]:
        """The task's own inputs, without what must come out."""
        with contextlib.ExitStack() as stack:
            tiled = self._tiled or (self._train and tensor_bytes(self.facts) > TRAIN_DRAW_BYTES)
            try:
                draw = stack.enter_context(self.runs.drawn(self.size, self.family, expected=False, tiled=tiled))
            except TaskError:
                if self._tiled or not tiled:
                    raise
                draw = stack.enter_context(self.runs.drawn(self.size, self.family, expected=False))
            yield draw

    def _compare_complete(self, draw: DrawHandle, profiled: FullSizeResult | None) -> FullSizeResult | None:
        """Run whole, and compare everything; some slices too on inputs of another family, where memory holds what it
        holds before a profile, so that a kernel cannot detect the profiling run and skip work."""
        self.work.forward = self.work.sectors = 0
        session = self.runs.on_device(self.artifact)
        others = self.other_families()
        instructions = None if profiled is None else profiled.instructions
        poisons = POISONS[:1] if others else _full_poisons(self.work.seed, instructions)
        comparison = self.runs.run_and_compare(self.size, draw, poisons)
        for family in others:
            self.check_slices(session, family)
        families = (draw.family, *others)
        message = ""
        if profiled is not None and (why := self._disbelieved(profiled)):
            profiled, message = None, f"the profile is left out: {why}"
        self.passed(comparison, message, families)
        return profiled

    def _is_mean(self) -> bool:
        """Whether the one number of a whole run can be compared, and the host can hold what the plan allocates."""
        allocated = sum(buffer.nbytes for buffer in self.plan.buffers if not buffer.provided)
        with self.work.clock("oracle"):
            return allocated <= WRITTEN_BYTES and self.oracle.is_mean()

    def _compare_mean(self, profiled: FullSizeResult) -> FullSizeResult | None:
        """Run whole, and compare the one number with the mean or the sum of the reference on parts of the inputs."""
        self.work.forward = self.work.sectors = 0
        session = self.runs.on_device(self.artifact)
        (poison,) = _full_poisons(self.work.seed, max(profiled.instructions or 0.0, SMALL_SIZE_INSTRUCTIONS + 1))
        with self._inputs() as draw:
            comparison = self.run_and_compare_whole(session, draw, poison)
        note = "compared with the reference on parts of the inputs, one after another"
        why = self._disbelieved(profiled)
        self.passed(comparison, note + (f"; the profile is left out: {why}" if why else ""))
        return None if why else profiled

    def _without_profile(self, profile: bool) -> FullSizeResult | None:
        """The result of a candidate whose run took over its limit of work: a profile that counted less is wrong.

        Raises:
            StageFailed: the kernel is far too slow for the task.
        """
        most = self.runs.most_work(self.size) or 0
        self._refuse_padding(most + 1)
        bound = PADDING * (self.facts.flops + self.facts.moved_bytes)
        less = f"to run it whole takes over {most:.2g} thread instructions, the budget, and the profile counted fewer"
        return FullSizeResult(missing=f"no profile: {less} ({bound:.2g} would be TIMEOUT)") if profile else None

    def _compare_in_part(self, draw: DrawHandle) -> str:
        """Run the blocks behind some elements of the outputs, and compare those; why that cannot be done, else nothing.

        Raises:
            StageFailed: one of them is wrong, a block faults, or nothing writes a part of the outputs.
        """
        families: tuple[str, ...] = (self.family,)
        if not self._too_large and not self._train:
            with self.work.clock("oracle"):
                sliced = self.oracle.has_slices()
            families += self.other_families() if sliced else self.oracle.families("full")[1:2]
        counts, worst = [], 0.0
        for family in families:
            with contextlib.ExitStack() as stack:
                family_draw = draw
                if family != draw.family:
                    family_draw = stack.enter_context(self.runs.drawn(self.size, family, expected=False))
                comparison = self._part_compared(family_draw)
            if isinstance(comparison, str):
                return comparison
            counts.append(comparison.total)
            worst = max(worst, comparison.error or 0.0)
        note = f"compared in part: {min(counts):,} elements of the output, at places drawn from the secret seed"
        self.passed(Comparison(ok=True, error=worst), note, families)
        return ""

    def _part_compared(self, draw: DrawHandle) -> Comparison | str:
        """The comparison of some elements; or why none could be had."""
        session = self.runs.on_device(self.artifact)
        if not isinstance(session, PartialSession):
            return f"{self.device.name} runs plans whole, and this one is too long"
        if any(isinstance(key, str) for key in draw.tiled):
            return "its weights take too much memory for the reference here"
        seed = int(content_hash(self.work.seed, self.runs.task.name, draw.family, "elements"), 16)
        try:
            with self.work.clock("oracle"):
                elements = self.oracle.choose(self.size.name, seed, ELEMENTS)
        except TaskError as error:
            return str(error)
        request = replace(self.request(draw, POISONS[0]), max_thread_instructions=PART_INSTRUCTIONS, nearby=self._train)
        with self.work.clock("emulation"):
            result = session.run_part(request, elements)
        if result.faults and result.faults[0].kind == "timeout":
            return (
                f"to run the blocks behind {ELEMENTS} of its elements takes over {PART_INSTRUCTIONS:.2g} "
                "thread instructions"
            )
        if result.faults and result.faults[0].kind == "memory":
            return result.faults[0].message  # of this machine: the profile tells whether the GPU's is enough
        if result.faults:
            self.runs.fault(result.faults[0], self.size, draw.family)
        if result.reason:
            return f"no part of it can be run by itself: {result.reason}"
        for output, part in enumerate(result.parts):
            if part.unwritten:
                total = self.facts.outputs[output].numel
                message = f"output {output}: nothing in the plan writes {part.unwritten:,} of its {total:,} elements"
                self.work.fail(Verdict.WRONG, self.size, draw.family, message)
        comparison = self.compared(draw, elements, [(part.elements, part.data) for part in result.parts])
        if not comparison.ok:
            with self.work.clock("emulation"):
                repeated = session.run_part(replace(request, poison=POISONS[1]), elements)
            if not _same(result, repeated):
                return "the part that was run depends on what memory held before"
            message = f"in the part that was compared: {comparison.message}"
            self.work.fail(Verdict.WRONG, self.size, draw.family, message, comparison.error)
        if 2 * comparison.total < sum(map(len, elements.values())):
            return "too few elements of the outputs could be had by themselves"
        return comparison

    def _believed_in_part(self, profiled: FullSizeResult | None) -> FullSizeResult | None:
        """The profile, if it can be right."""
        why = "" if profiled is None else below_least(profiled.profile, self.facts)
        note = f"the profile is left out: {why}" if why else "" if profiled is None else profiled.missing
        if note:
            check = self.work.checks[-1]
            self.work.record(check.model_copy(update={"message": f"{check.message}; {note}"}))
        return None if note else profiled

    def _skipped(self, reason: str, profiled: FullSizeResult | None) -> None:
        """Record that nothing could be compared here. That may be for the task's size, not for what the candidate does.

        Raises:
            StageFailed: the kernel is far too slow for the task, or no other size was compared.
        """
        instructions = None if profiled is None else profiled.instructions
        if instructions is not None:
            self._refuse_padding(instructions)
        self._refuse_unchecked()
        missing = "" if profiled is None else profiled.missing
        message = f"values not compared: {reason}" + (f"; {missing}" if missing else "")
        self.work.record(SizeCheck(size="full", status="skipped", message=message[:500]))

    def _profiled(self, draw: DrawHandle) -> FullSizeResult:
        """The profile, or why there is none: over its budget it is skipped, and that is no fault of the candidate.

        Raises:
            StageFailed: a launch faulted, or the kernel is far too slow for the task.
        """
        session = self.runs.on_device(self.artifact)
        seed = int(content_hash(self.work.seed, self.runs.task.name, "sample"), 16) >> 1
        bound = PADDING * (self.facts.flops + self.facts.moved_bytes)
        most = max(bound, PROFILE_INSTRUCTIONS) if bound <= DECIDING_INSTRUCTIONS else PROFILE_INSTRUCTIONS
        request = replace(self.request(draw, POISONS[0]), sample_seed=seed, max_thread_instructions=most)
        try:
            with self.work.clock("profile"):
                return FullSizeResult(*session.profile(request, self.facts))
        except RunFailed as faulted:
            if faulted.fault.kind == "timeout":
                self._refuse_padding(most + 1)  # what was counted is over it
                few = f"a few blocks take over {most:.2g} thread instructions, the budget of a profile"
                return FullSizeResult(missing=f"no profile: {few} ({bound:.2g} would be TIMEOUT)")
            self.runs.fault(faulted.fault, self.size, self.family)

    def _disbelieved(self, profiled: FullSizeResult) -> str:
        """The reason that a profile contradicts the complete run that was checked; empty if it does not."""
        if self.plan.libraries:
            operators = ", ".join(dict.fromkeys(call.operator for call in self.plan.libraries))
            return f"torch operators ({operators}) have no counters and no modelled time"
        less = _counted_less(profiled, self.work)
        if less:
            return f"it counted fewer {less} than the kernel needs when checked"
        return below_least(profiled.profile, self.facts)

    def _refuse_padding(self, instructions: float) -> None:
        """A full size may go unchecked because the task is large, not because the candidate makes it so."""
        facts = self.facts
        if instructions > PADDING * (facts.flops + facts.moved_bytes):
            message = (
                f"about {instructions:.2g} thread instructions for a reference of {facts.flops:.2g} flop and "
                f"{facts.moved_bytes:.2g} bytes, over {PADDING} for each: it does not end, or is too slow for its "
                "values to be checked"
            )
            self.work.fail(Verdict.TIMEOUT, self.size, self.family, message)

    def _refuse_unchecked(self) -> None:
        """A plan that refuses every hidden size was compared at a size that it knows, and at no other."""
        hidden = [check for check in self.work.checks if check.size.startswith("hidden")]
        if hidden and all(check.status == "guarded" for check in hidden):
            message = (
                "the plan's asserts refuse every hidden size, and this size cannot be compared; "
                "support other sizes, so that values can be checked"
            )
            self.work.fail(Verdict.POLICY, self.size, self.family, message)


def below_least(profile: Profile | None, facts: SizeFacts) -> str:
    """The reason that a profile cannot be right: right values take at least the compulsory bytes, and those of host
    memory; else empty."""
    moved = None if profile is None else profile.value("dram__bytes.sum")
    if profile is None or moved is None:
        return ""
    share = LEAST_SHARE if all(kernel.sampled == 1 for kernel in profile.kernels) else LEAST_SHARE_SAMPLED
    from_host = SECTOR_BYTES * (profile.value(HOST_SECTORS) or 0.0)
    for nbytes, least, what in (
        (moved, facts.compulsory_bytes, "DRAM traffic"),
        (from_host, facts.host_bytes, "host memory"),
    ):
        if nbytes < share * least:
            return f"it counted {nbytes:.3g} bytes of {what}, and no kernel can do with less than {least:.3g}"
    return ""


def _affordable(profiled: FullSizeResult | None) -> bool:
    """Whether a run is short enough to be made whole, as far as a profile tells; without one it is not known to be."""
    work = None if profiled is None else profiled.work
    return work is not None and work <= FULL_SIZE_INSTRUCTIONS


def _same(first: PartResult, second: PartResult) -> bool:
    """Whether two runs of some blocks gave the same."""
    return len(first.parts) == len(second.parts) and all(
        same_bytes(left_part.elements, right_part.elements) and same_bytes(left_part.data, right_part.data)
        for left_part, right_part in zip(first.parts, second.parts, strict=True)
    )


def _full_poisons(seed: int, instructions: float | None) -> tuple[int, ...]:
    """Bytes that memory holds before runs at the full size on one family of inputs, the profile's byte among them.
    Where two runs are too dear, the secret seed chooses."""
    if instructions is None:
        return POISONS[:1]
    both = (POISONS[0], PROFILE_POISON)
    return both if instructions <= SMALL_SIZE_INSTRUCTIONS else (both[seed & 1],)


def _counted_less(profiled: FullSizeResult, work: EvaluationState) -> str:
    """Of what a checked run did more than its profile counted; empty where the profile saw it all."""
    profile = profiled.profile
    if profile is None:
        return ""
    exact = all(kernel.sampled == 1 for kernel in profile.kernels)
    slack = _EXACT_SLACK if exact else _SAMPLED_SLACK
    instructions, sectors = profiled.instructions, [profile.value(name) for name in _SECTORS]
    if instructions is not None and work.forward > slack * instructions:
        return "instructions"
    sectors.append(profile.value(_BULK_SECTORS) or 0.0)
    if None not in sectors and work.sectors > slack * sum(value or 0.0 for value in sectors):
        return "sectors of global memory"
    return ""
