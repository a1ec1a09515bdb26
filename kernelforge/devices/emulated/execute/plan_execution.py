"""One run of a plan on the emulated device: a loaded build, its buffers, steps in order, messages for faults."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.resolved import (
    Buffer,
    Fill,
    Launch,
    Library,
    ResolvedPlan,
    ScalarArg,
    Step,
    TensorArg,
    TensorMapArg,
    TensorView,
)
from kernelforge.devices.base import RunFailure, RunRequest
from kernelforge.devices.emulated.errors import EmulatorError, OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute.launch import cluster_ctas, cluster_of
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory, Sanitizer
from kernelforge.devices.emulated.profile.sampling import Budget, Chunk, choose_chunks
from kernelforge.devices.emulated.profile.traffic import Extent
from kernelforge.devices.emulated.ptx.kernel_entry import KernelEntry, check_cluster
from kernelforge.devices.emulated.report import LaunchFault, LaunchReport
from kernelforge.devices.emulated.runtime.cache import CacheModel
from kernelforge.devices.emulated.tensor_maps import tensor_map_bytes
from kernelforge.devices.wire import pack_scalar
from kernelforge.hardware.occupancy import occupancy
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.sandbox.policy import Deadline
from kernelforge.sandbox.shared_memory import Blob

MAX_REPORTED_FAULTS = 8
RACECHECK_BLOCKS = 64
"""Blocks of a launch that are checked for races on shared memory: a race does not depend on the block."""
WARP = 32
"""Thread instructions that an instruction of a warp counts as in a limit, for any number of active lanes."""
FIRST_WITH_CLUSTERS = (9, 0)
"""Compute capability from which on GPUs have thread block clusters and tensor maps."""
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_KINDS: Mapping[str, str] = {
    "timeout": "timeout",
    **dict.fromkeys(("trap", "assert", "stack_overflow", "bad_function_pointer"), "crash"),
}
"""Kind of run failure by kind of emulator fault; the others are the sanitizer's."""

CallOperator = Callable[[int, Sequence[bytes]], Sequence[Blob]]
"""Calls the torch operator of one of the plan's ``libraries``, by its position there: from the bytes of its operands to
those of its results. Raises :class:`LaunchFailed`."""


class LaunchFailed(Exception):
    """A launch, or a call of a torch operator, failed; the plan ends here."""

    def __init__(self, *faults: RunFailure) -> None:
        super().__init__(faults[0].message)
        self.faults = faults


def no_operators(number: int, operands: Sequence[bytes]) -> Sequence[Blob]:
    """Refuses every call of a torch operator: of a runner without a parent that answers."""
    raise LaunchFailed(RunFailure("unsupported", f"this runner calls no torch operators: call {number} of the plan"))


@dataclass(frozen=True)
class Kernel:
    """The build's facts on one kernel that the plan may launch."""

    symbol: str
    registers_per_thread: int


@dataclass(frozen=True)
class LoadedBuild:
    """One build on one emulated machine."""

    machine: LoadedModule
    memory: Memory
    kernels: Mapping[str, Kernel]
    """By the expression that plans launch."""
    spec: DeviceSpec
    """The GPU that is emulated."""
    call_operator: CallOperator

    def entry(self, expression: str) -> KernelEntry:
        """The PTX entry of a kernel."""
        return self.machine.entries[self.kernels[expression].symbol]

    def launch_error(self, step: Launch, where: str) -> RunFailure | None:
        """The reason why CUDA, or this device, would refuse a launch; ``where`` names the launch."""
        if step.expression not in self.kernels or self.kernels[step.expression].symbol not in self.machine.entries:
            return RunFailure("crash", f"the build has no kernel {where}")
        entry, kernel = self.entry(step.expression), self.kernels[step.expression]
        unsupported = self.machine.unsupported(kernel.symbol)
        if unsupported is not None:
            return RunFailure("unsupported", f"{unsupported}: {where}", unsupported.ptx_line)
        for name, extents, limits in (("grid", step.grid, _MAX_GRID), ("block", step.block, _MAX_BLOCK)):
            if any(not 1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
                return RunFailure("crash", f"{name} {extents} is outside 1 to {limits}: {where}")
        threads = math.prod(step.block)
        allowed = min(self.spec.threads_per_block, entry.max_threads or self.spec.threads_per_block)
        if threads > allowed:
            return RunFailure("crash", f"a block of {threads} threads, {allowed} are allowed: {where}")
        shared = entry.static_shared_bytes + step.dynamic_shared_bytes
        fit = occupancy(
            self.spec,
            threads_per_block=threads,
            registers_per_thread=kernel.registers_per_thread,
            shared_bytes=shared,
        )
        if fit.limit_shared_mem == 0:
            available = f"{self.spec.shared_bytes_per_block} are there"
            return RunFailure("crash", f"{shared} bytes of shared memory per block, {available}: {where}")
        if fit.limit_registers == 0:
            return RunFailure(
                "crash",
                f"too many registers: {kernel.registers_per_thread} for each of {threads} threads, "
                f"{self.spec.registers_per_block} are there per block: {where}",
            )
        try:
            check_cluster(entry, step.grid, step.cluster)
        except EmulatorError as error:
            return RunFailure("crash", f"{error}: {where}")
        blocks, at_once = math.prod(step.grid), fit.blocks_per_sm * self.spec.sm_count
        if step.cooperative and blocks > at_once:
            return RunFailure(
                "crash",
                f"the grid of a cooperative launch is larger than what the GPU holds at once: {blocks} blocks, "
                f"{at_once} fit ({fit.blocks_per_sm} on each of {self.spec.sm_count} SMs): {where}",
            )
        return None


class Execution:
    """Buffers of one run, and launches on them.

    Raises:
        LaunchFailed: the plan needs a feature that this device lacks, or more memory than is allowed.
    """

    def __init__(self, build: LoadedBuild, request: RunRequest) -> None:
        unsupported = unsupported_step(request.plan, build.spec)
        if unsupported is not None:
            raise LaunchFailed(unsupported)
        self.build = build
        self.request = request
        self.thread_instructions = 0
        self.work = 0
        """The same, but a matrix product counts what it computes."""
        self._warp_work = 0
        """That in instructions of warps, each for any number of active lanes: the request's limit is about this."""
        self.global_sectors = 0
        self._in_setup = False
        self._memory = build.memory
        self._deadline = Deadline(request.deadline_s)
        self._random = random.Random(request.sample_seed)
        self._address: dict[int, int] = {}
        needed, allowed = request.device_bytes, request.memory_bytes
        if allowed is not None and needed > allowed:
            text = f"the plan needs {needed} bytes of device memory, {allowed} are allowed"
            raise LaunchFailed(RunFailure("memory", text))
        build.machine.arrange(request.variation)
        try:
            for buffer in request.plan.buffers:
                self._allocate(buffer)
            self._sanitizer = self._sanitize() if request.sanitize else None
        except OutOfDeviceMemory as error:
            self.close()
            raise LaunchFailed(RunFailure("memory", f"out of device memory: {error}")) from error

    def _allocate(self, buffer: Buffer) -> None:
        label = f"{buffer.label} (prepared by setup)" if buffer.kind == "prepared" else buffer.label
        address = self._memory.allocate(
            buffer.nbytes, label, read_only=buffer.provided and buffer.id not in self.request.mutable
        )
        self._address[buffer.id] = address
        if not buffer.provided:
            self._memory.fill(address, buffer.nbytes, self.request.poison)
            return
        content = self.request.tensors.get(buffer.id)
        if content is not None and buffer.id in self.request.tiled:
            self._memory.repeat(address, buffer.nbytes, content)
            return
        if content is None or len(content) != buffer.nbytes:
            got = "nothing" if content is None else f"{len(content)} bytes"
            raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes, the request has {got}")
        self._memory.write(address, content)

    def _sanitize(self) -> Sanitizer:
        """Records in which all memory counts as written but that which the plan allocates."""
        sanitizer = Sanitizer(self._memory)
        for buffer in self.request.plan.buffers:
            if not buffer.provided:
                sanitizer.undefine(self._address[buffer.id], buffer.nbytes)
        return sanitizer

    def close(self) -> None:
        """Free the buffers."""
        for address in self._address.values():
            self._memory.free(address)
        self._address = {}

    def extents(self) -> list[Extent]:
        """The buffers' places in device memory."""
        return [Extent(b.id, self._address[b.id], b.nbytes) for b in self.request.plan.buffers]

    def set_up(self, budget: Budget | None = None) -> bool:
        """Run ``setup``; its prepared buffers are read-only afterwards.

        Args:
            budget: Thread instructions; of a grid that exceeds it only some blocks run. None for complete grids.

        Returns:
            Whether every grid ran completely.
        """
        self._in_setup = True
        complete = True
        for step in self.request.plan.setup:
            if isinstance(step, Library) and not complete:
                continue  # its operands may hold what no complete run would give it
            if budget is None or not isinstance(step, Launch):
                self.step(step)
            else:
                complete &= self._launch_within(step, budget)
        for buffer in self.request.plan.buffers:
            if buffer.kind == "prepared":
                self._memory.protect(self._address[buffer.id])
        self._in_setup = False
        return complete

    def _launch_within(self, step: Launch, budget: Budget) -> bool:
        """Run a grid, completely if the budget allows; return whether it ran completely."""
        self.check(step)
        units = self.units(step)
        spent = self.thread_instructions
        chunks: Sequence[Chunk] = (Chunk(0, units),)
        if units == 1 or self.waits(step):
            self.run_blocks(step, None)
        else:
            # The cost of one block, or cluster, predicts that of the grid; none may run twice.
            probe = self._random.randrange(units)
            per_unit = max(self.run_blocks(step, self.blocks(step, (probe,))).thread_instructions, 1)
            if budget.exceeded_by(per_unit * units):
                chunks = choose_chunks(units, budget.affordable_blocks(per_unit), self._random)
            for chunk in chunks:
                for part in (range(chunk.start, min(chunk.end, probe)), range(max(chunk.start, probe + 1), chunk.end)):
                    if part:
                        self.run_blocks(step, self.blocks(step, part))
        budget.spend(self.thread_instructions - spent)
        return len(chunks) == 1

    def step(self, step: Step) -> None:
        """Run one step of the plan completely."""
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, Fill):
            address = self._address[step.buffer] + step.offset_bytes
            self._memory.fill(address, step.nbytes, 0)
            if self._sanitizer is not None:
                self._sanitizer.mark(address, step.nbytes)
        else:
            self._call(step)

    def _call(self, step: Library) -> None:
        """Call a torch operator on copies of its operands, and write its results."""
        for view in step.operands:
            if self._sanitizer is not None:
                unwritten = self._sanitizer.unwritten(self._address_of(view), view.span_bytes)
                if unwritten:
                    text = f"reads {unwritten} bytes of {self._label(view)!r} that nothing wrote"
                    raise LaunchFailed(
                        RunFailure("sanitizer", f"library({step.operator!r}) {text}: {self._where(step)}")
                    )
        operands = [self._memory.read(self._address_of(view), view.span_bytes) for view in step.operands]
        number = next(at for at, call in enumerate(self.request.plan.libraries) if call is step)
        for view, content in zip(step.out, self.build.call_operator(number, operands), strict=True):
            address = self._address_of(view)
            self._memory.write(address, content)
            if self._sanitizer is not None:
                self._sanitizer.mark(address, view.span_bytes)

    def _address_of(self, view: TensorView) -> int:
        return self._address[view.buffer] + view.offset_bytes

    def _label(self, view: TensorView) -> str:
        """The view's buffer, as the plan names it."""
        return next(buffer.label for buffer in self.request.plan.buffers if buffer.id == view.buffer)

    def poison(self) -> None:
        """Fill workspace and outputs with the run's poison, as before the run."""
        for buffer in self.request.plan.buffers:
            if buffer.kind == "workspace":
                self._memory.fill(self._address[buffer.id], buffer.nbytes, self.request.poison)

    def clear(self, buffer: int, kept: npt.NDArray[np.int64] | None = None) -> None:
        """Fill a buffer with zeros, or some windows of it; what is written to the rest is lost then."""
        if kept is None:
            self._memory.fill(self._address[buffer], self.content(buffer).size, 0)
        else:
            self._memory.divert(self._address[buffer], self.content(buffer).size, kept)

    def content(self, buffer: int) -> npt.NDArray[np.uint8]:
        """A view of a buffer's bytes."""
        size = next(b.nbytes for b in self.request.plan.buffers if b.id == buffer)
        return self._memory.view(self._address[buffer], size)

    def outputs(self) -> tuple[Blob, ...]:
        """The plan's outputs, then the mutable inputs by ascending id."""
        plan = self.request.plan
        blobs = [self._memory.read(self._address[o.buffer] + o.offset_bytes, o.nbytes) for o in plan.outputs]
        sizes = {buffer.id: buffer.nbytes for buffer in plan.buffers}
        blobs += [self._memory.read(self._address[b], sizes[b]) for b in sorted(self.request.mutable)]
        return tuple(blobs)

    def check(self, step: Launch) -> None:
        """Raise :class:`LaunchFailed` where CUDA would refuse the launch."""
        error = self.build.launch_error(step, f"{step.expression!r}, launched in {self._where(step)}")
        if error is not None:
            raise LaunchFailed(error)

    def launch(self, step: Launch) -> None:
        """Run a complete grid; its first blocks are checked for races on shared memory."""
        self.check(step)
        if self._sanitizer is not None:
            self._sanitizer.launches += 1
        entry = self.build.entry(step.expression)
        blocks = math.prod(step.grid)
        # A grid whose blocks wait for one another can neither be cut in two nor run block by block.
        races = entry.static_shared_bytes + step.dynamic_shared_bytes > 0 and not self.waits(step, blocks)
        if not races or blocks <= RACECHECK_BLOCKS:
            self.run_blocks(step, None, racecheck=races)
        else:
            units = self.units(step)
            checked = RACECHECK_BLOCKS * units // blocks
            self.run_blocks(step, self.blocks(step, range(checked)), racecheck=True)
            self.run_blocks(step, self.blocks(step, range(checked, units)), racecheck=False)

    def cluster(self, step: Launch) -> tuple[int, int, int]:
        """Blocks of a cluster per axis."""
        return step.cluster or self.build.entry(step.expression).cluster or (1, 1, 1)

    def units(self, step: Launch) -> int:
        """Parts of a grid that can run by themselves: its clusters, or its blocks."""
        return math.prod(step.grid) // math.prod(self.cluster(step))

    def blocks(self, step: Launch, units: Sequence[int]) -> Sequence[int]:
        """Linear ids of the blocks of some of the grid's parts."""
        cluster = self.cluster(step)
        return units if cluster == (1, 1, 1) else cluster_ctas(units, step.grid, cluster).tolist()

    def units_of(self, step: Launch, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The grid's parts that some blocks belong to, ascending."""
        return np.unique(cluster_of(blocks, step.grid, self.cluster(step)))

    def waits(self, step: Launch, ctas: int = 0) -> bool:
        """Whether blocks of the kernel may wait for one another. Compiles it, for a launch of ``ctas`` blocks."""
        try:
            name = self.build.entry(step.expression).name
            return self.build.machine.program(name, step.block, ctas).flow.spins
        except UnsupportedInstruction as error:
            raise LaunchFailed(RunFailure("unsupported", str(error), error.ptx_line)) from error

    def run_blocks(
        self,
        step: Launch,
        ctas: Sequence[int] | None,
        *,
        racecheck: bool = False,
        cache: CacheModel | None = None,
        strict: bool = True,
        entry: str | None = None,
        limit: int | None = None,
        lanes: npt.NDArray[np.uint32] | None = None,
    ) -> LaunchReport:
        """Run some blocks of a launch.

        Args:
            step: The launch.
            ctas: Linear ids of the blocks; None for all.
            racecheck: Check shared memory for races.
            cache: Cache model that follows every access.
            strict: Every fault ends the plan; otherwise only a timeout does.
            entry: Kernel that runs in place of the launch's own.
            limit: Work, in place of the rest of the request's limit.
            lanes: Of each of ``ctas`` and each of its warps, the lanes to run, a bit each.

        Raises:
            LaunchFailed: a launch faulted, or this device cannot run it.
        """
        allowed = None if limit is None else -(-limit // WARP)
        if allowed is None and self.request.max_thread_instructions is not None:
            allowed = max(-(-self.request.max_thread_instructions // WARP) - self._warp_work, 1)
        try:
            report = self.build.machine.launch(
                entry or self.build.entry(step.expression).name,
                step.grid,
                step.block,
                step.dynamic_shared_bytes,
                self._parameters(step),
                ctas=ctas,
                lanes=lanes,
                max_warp_work=allowed,
                deadline=self._deadline,
                cache=cache,
                racecheck=racecheck,
                poison=self.request.poison,
                variation=self.request.variation,
                worst_errors=self.request.worst_errors,
                cooperative=step.cooperative,
                cluster=step.cluster,
                sanitizer=self._sanitizer,
            )
        except UnsupportedInstruction as error:
            raise LaunchFailed(RunFailure("unsupported", str(error), error.ptx_line)) from error
        except EmulatorError as error:
            text = f"{error}; {step.expression!r} is launched in {self._where(step)}"
            raise LaunchFailed(RunFailure("crash", text)) from error
        self.thread_instructions += report.thread_instructions
        self.work += report.work
        self._warp_work += report.warp_work if limit is None else 0
        self.global_sectors += sum(
            op.transactions for op in report.memory if op.space == "global" and op.access in ("load", "store")
        )
        faults = [fault for fault in report.faults if strict or fault.kind == "timeout"]
        launched = f"{step.expression!r} is launched in {self._where(step)}"
        # The sum over all threads of this process that shared the launch: the same however many they are.
        over = allowed is not None and report.warp_work > allowed
        if over and limit is None:
            most, counted = self.request.max_thread_instructions, WARP * self._warp_work
            launched += f"; the budget is {most:.2g} thread instructions, {counted:.3g} were counted"
        if over and not faults:
            raise LaunchFailed(RunFailure("timeout", launched))
        if faults and faults[0].kind == "timeout" and not over and not self.request.deadline_binds:
            counted = WARP * self._warp_work
            text = f"{self.request.deadline_s:g} s went by, in which {counted:.3g} thread instructions were counted"
            raise LaunchFailed(RunFailure("late", f"{text}; {launched}"))
        if faults:
            if self.build.entry(step.expression).meets and not step.cooperative:
                launched += " without cooperative=True, which grid.sync() needs"
            raise LaunchFailed(*_run_failures(faults, launched))
        return report

    def _parameters(self, step: Launch) -> bytes:
        """The kernel's parameter block."""
        entry = self.build.entry(step.expression)
        if len(entry.params) != len(step.args):
            text = (
                f"{step.expression!r} takes {len(entry.params)} arguments, {self._where(step)} gives {len(step.args)}"
            )
            raise LaunchFailed(RunFailure("crash", text))
        block = bytearray(max((param.offset + param.size for param in entry.params), default=0))
        for position, (param, arg) in enumerate(zip(entry.params, step.args, strict=True), start=1):
            packed = self._argument(arg)
            if len(packed) != param.size:
                text = (
                    f"argument {position} of {step.expression!r} has {param.size} bytes in the kernel and "
                    f"{len(packed)} in {self._where(step)}"
                )
                raise LaunchFailed(RunFailure("crash", text))
            block[param.offset : param.offset + param.size] = packed
        return bytes(block)

    def _argument(self, arg: TensorArg | ScalarArg | TensorMapArg) -> bytes:
        if isinstance(arg, TensorArg):
            return struct.pack("<Q", self._address[arg.buffer] + arg.offset_bytes)
        if isinstance(arg, TensorMapArg):
            return tensor_map_bytes(arg, self._address[arg.buffer] + arg.offset_bytes)
        return pack_scalar(arg)

    def _where(self, step: Launch | Library) -> str:
        """The step's position in the plan, for messages."""
        return f"plan line {step.line}" + (", in setup" if self._in_setup else "")


def unsupported_step(plan: ResolvedPlan, spec: DeviceSpec) -> RunFailure | None:
    """The first use of a feature that the emulated device does not have; found before anything runs."""
    for steps, where in ((plan.setup, ", in setup"), (plan.steps, "")):
        for step in steps:
            reason = _unsupported_feature(step, spec) if isinstance(step, Launch) else None
            if reason is not None:
                return RunFailure("unsupported", f"{reason} in plan line {step.line}{where}")
    return None


def _unsupported_feature(step: Launch, spec: DeviceSpec) -> str | None:
    launched = f"{step.expression!r}, launched"
    if step.cluster is not None and spec.compute_capability < FIRST_WITH_CLUSTERS:
        return f"a {spec.title} has no thread block clusters: {launched}"
    if spec.compute_capability < FIRST_WITH_CLUSTERS:
        for position, arg in enumerate(step.args, 1):
            if isinstance(arg, TensorMapArg):
                return (
                    f"a {spec.title} has no tensor maps, pass the tensor and load its tiles in the kernel: "
                    f"argument {position} of {launched}"
                )
    return None


def _run_failures(faults: Sequence[LaunchFault], launched: str) -> list[RunFailure]:
    """The first faults, in terms of the candidate's source."""
    if len(faults) > MAX_REPORTED_FAULTS:
        # Each kind in each line first: the same fault of many threads would hide the others.
        first = {(fault.kind, fault.ptx_line): fault for fault in reversed(faults)}
        faults = sorted(faults, key=lambda fault: fault is not first[fault.kind, fault.ptx_line])
    failures = []
    for fault in faults[:MAX_REPORTED_FAULTS]:
        # The compiler's folder means nothing to a Coder: the file's name is enough.
        text = replace(fault, source_file=PurePath(fault.source_file).name)
        failures.append(RunFailure(_kind(fault), f"{text}; {launched}"))
    if len(faults) > MAX_REPORTED_FAULTS:
        rest = len(faults) - MAX_REPORTED_FAULTS
        failures.append(RunFailure(_kind(faults[MAX_REPORTED_FAULTS]), f"and {rest} more faults"))
    return failures


def _kind(fault: LaunchFault) -> Any:
    return _KINDS.get(fault.kind, "sanitizer")
