"""One run of a plan on the emulated device: buffers, steps in order, messages for faults."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

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
)
from kernelforge.devices.base import RunFailure
from kernelforge.devices.emulated.errors import EmulatorError, OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute.memory import CacheModel
from kernelforge.devices.emulated.profile.sampling import Budget, Chunk, choose_chunks
from kernelforge.devices.emulated.profile.traffic import Extent
from kernelforge.devices.emulated.report import LaunchFault, LaunchReport
from kernelforge.devices.kernel_arguments import pack_scalar
from kernelforge.sandbox.limits import Deadline
from kernelforge.sandbox.shared_memory import Blob

if TYPE_CHECKING:
    from kernelforge.devices.emulated.execute.plan_runner import Runner

FAULTS_TOLD = 8
RACECHECK_BLOCKS = 64
"""Blocks of a launch in which races on shared memory are looked for: a race does not depend on the block."""
_KINDS: Mapping[str, str] = {"timeout": "timeout", "trap": "crash", "assert": "crash"}
"""Run fault of each emulator fault; the rest are the sanitizer's."""


class LaunchFailed(Exception):
    """A launch went wrong; the plan ends here."""

    def __init__(self, faults: Sequence[RunFailure]) -> None:
        super().__init__(faults[0].message)
        self.faults = tuple(faults)


@dataclass(frozen=True)
class PlanRun:
    """One run of a plan, as :class:`~kernelforge.devices.base.RunRequest` describes it."""

    plan: ResolvedPlan
    tensors: Mapping[int, Blob]
    poison: int
    mutable: frozenset[int]
    deadline_s: float
    memory_bytes: int
    max_thread_instructions: int | None
    sample_seed: int = 0
    variation: int = 0


class Execution:
    """Buffers of one run, and launches on them.

    Raises:
        LaunchFailed: the plan needs what this device lacks, or more memory than is allowed.
    """

    def __init__(self, runner: Runner, work: PlanRun) -> None:
        lacking = beyond_this_device(work.plan)
        if lacking is not None:
            raise LaunchFailed([lacking])
        self._in_setup = False
        self._runner = runner
        self._work = work
        self._memory = runner.memory
        self._deadline = Deadline(work.deadline_s)
        self._draws = random.Random(work.sample_seed)
        self._address: dict[int, int] = {}
        self.thread_instructions = 0
        self.global_sectors = 0
        needed = sum(buffer.nbytes for buffer in work.plan.buffers)
        if needed > work.memory_bytes:
            raise LaunchFailed(
                [
                    RunFailure(
                        "memory", f"the plan needs {needed} bytes of device memory, {work.memory_bytes} are allowed"
                    )
                ]
            )
        runner.machine.arrange(work.variation)
        try:
            for buffer in work.plan.buffers:
                self._allocate(buffer)
        except OutOfDeviceMemory as error:
            self.close()
            raise LaunchFailed([RunFailure("memory", f"out of device memory: {error}")]) from error

    def _allocate(self, buffer: Buffer) -> None:
        label = f"{buffer.label} (prepared by setup)" if buffer.kind == "prepared" else buffer.label
        address = self._memory.allocate(
            buffer.nbytes, label, read_only=buffer.given and buffer.id not in self._work.mutable
        )
        self._address[buffer.id] = address
        if not buffer.given:
            self._memory.fill(address, buffer.nbytes, bytes([self._work.poison]))
            return
        content = self._work.tensors.get(buffer.id)
        if content is None or len(content) != buffer.nbytes:
            got = "nothing" if content is None else f"{len(content)} bytes"
            raise ValueError(f"buffer {buffer.label!r} takes {buffer.nbytes} bytes, the request has {got}")
        self._memory.write(address, content)

    def close(self) -> None:
        """Free the buffers."""
        for address in self._address.values():
            self._memory.free(address)
        self._address = {}

    def extents(self) -> list[Extent]:
        """Where the buffers are."""
        return [Extent(b.id, self._address[b.id], b.nbytes) for b in self._work.plan.buffers]

    def set_up(self, budget: Budget | None = None) -> bool:
        """Run ``setup``; what it prepared can only be read from then on.

        Args:
            budget: Thread instructions; grids over it run some of their blocks. Whole without one.

        Returns:
            Whether every grid ran whole.
        """
        self._in_setup = True
        complete = True
        for step in self._work.plan.setup:
            if budget is None or not isinstance(step, Launch):
                self.step(step)
            else:
                complete &= self._launch_within(step, budget)
        for buffer in self._work.plan.buffers:
            if buffer.kind == "prepared":
                self._memory.protect(self._address[buffer.id])
        self._in_setup = False
        return complete

    def _launch_within(self, step: Launch, budget: Budget) -> bool:
        """Run a grid, whole if the budget allows it; answer whether it did."""
        self.check(step)
        blocks = math.prod(step.grid)
        spent = self.thread_instructions
        chunks: Sequence[Chunk] = (Chunk(0, blocks),)
        if blocks == 1 or self.waits(step):
            self._go(step, None)
        else:
            # One block tells what the grid would cost; it must not run twice.
            probe = self._draws.randrange(blocks)
            per_block = max(self._go(step, (probe,)).thread_instructions, 1)
            if budget.exceeded_by(per_block * blocks):
                chunks = choose_chunks(blocks, budget.affordable_blocks(per_block), self._draws)
            for chunk in chunks:
                for part in (range(chunk.start, min(chunk.end, probe)), range(max(chunk.start, probe + 1), chunk.end)):
                    if part:
                        self._go(step, part)
        budget.spend(self.thread_instructions - spent)
        return len(chunks) == 1

    def step(self, step: Step) -> None:
        """Run one step of the plan whole."""
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, Fill):
            self._memory.fill(self._address[step.buffer] + step.offset_bytes, step.nbytes, bytes(1))

    def poison(self) -> None:
        """Put workspace and outputs back to what they held before the run."""
        for buffer in self._work.plan.buffers:
            if buffer.kind == "workspace":
                self._memory.fill(self._address[buffer.id], buffer.nbytes, bytes([self._work.poison]))

    def clear(self, buffer: int) -> None:
        """Fill a buffer with zeros."""
        self.content(buffer)[:] = 0

    def content(self, buffer: int) -> npt.NDArray[np.uint8]:
        """A buffer's bytes, not copied."""
        size = next(b.nbytes for b in self._work.plan.buffers if b.id == buffer)
        return self._memory.view(self._address[buffer], size)

    def outputs(self) -> tuple[Blob, ...]:
        """The plan's outputs, then the mutable inputs by ascending id."""
        found = [self._memory.read(self._address[o.buffer] + o.offset_bytes, o.nbytes) for o in self._work.plan.outputs]
        sizes = {buffer.id: buffer.nbytes for buffer in self._work.plan.buffers}
        found += [self._memory.read(self._address[b], sizes[b]) for b in sorted(self._work.mutable)]
        return tuple(found)

    def check(self, step: Launch) -> None:
        """Raise :class:`LaunchFailed` where CUDA would refuse the launch."""
        refused = self._runner.refusal(step, f"{step.expression!r}, launched in {self._place(step)}")
        if refused is not None:
            raise LaunchFailed([refused])

    def launch(self, step: Launch) -> None:
        """Run a whole grid, looking for races on shared memory in its first blocks."""
        self.check(step)
        entry = self._runner.entry(step.expression)
        blocks = step.grid[0] * step.grid[1] * step.grid[2]
        # A grid whose blocks wait for one another can neither be cut in two nor run block by block.
        races = entry.static_shared_bytes + step.dynamic_shared_bytes > 0 and not self.waits(step, blocks)
        if not races or blocks <= RACECHECK_BLOCKS:
            self._go(step, None, racecheck=races)
        else:
            self._go(step, range(RACECHECK_BLOCKS), racecheck=True)
            self._go(step, range(RACECHECK_BLOCKS, blocks), racecheck=False)

    def waits(self, step: Launch, ctas: int = 0) -> bool:
        """Whether blocks of the kernel may wait for one another. It is compiled here: for ``ctas`` that will run."""
        try:
            name = self._runner.entry(step.expression).name
            return self._runner.machine.program(name, step.block, ctas).flow.spins
        except UnsupportedInstruction as error:
            raise LaunchFailed([RunFailure("unsupported", str(error), error.ptx_line)]) from error

    def profiled(self, step: Launch, ctas: Sequence[int] | None, cache: CacheModel, *, strict: bool) -> LaunchReport:
        """Run some blocks through a cache model. Faults count only where no block was left out before."""
        return self._go(step, ctas, cache=cache, strict=strict)

    def some_blocks(self, step: Launch, ctas: Sequence[int] | None, *, strict: bool = True) -> LaunchReport:
        """Run some blocks of a grid, or all. Unless ``strict`` only a timeout counts as a fault."""
        return self._go(step, ctas, strict=strict)

    def writers(self, step: Launch, entry: str, ctas: Sequence[int] | None, limit: int) -> int:
        """Run the slice of a launch's kernel that computes its store addresses, in place of the kernel.

        Args:
            limit: stop after about this many thread instructions.

        Returns:
            The number of thread instructions executed. Source: :mod:`kernelforge.devices.emulated.ptx.store_slice`.
        """
        return self._go(step, ctas, entry=entry, limit=limit).thread_instructions

    def _go(
        self,
        step: Launch,
        ctas: Sequence[int] | None,
        *,
        racecheck: bool = False,
        cache: CacheModel | None = None,
        strict: bool = True,
        entry: str | None = None,
        limit: int | None = None,
    ) -> LaunchReport:
        most = self._work.max_thread_instructions
        left = limit if limit is not None or most is None else max(most - self.thread_instructions, 1)
        try:
            report = self._runner.machine.launch(
                entry or self._runner.entry(step.expression).name,
                step.grid,
                step.block,
                step.dynamic_shared_bytes,
                self._parameters(step),
                ctas=ctas,
                # A warp instruction is up to 32 thread instructions.
                max_warp_instructions=None if left is None else -(-left // 32),
                deadline=self._deadline,
                cache=cache,
                racecheck=racecheck,
                poison=self._work.poison,
                variation=self._work.variation,
            )
        except UnsupportedInstruction as error:
            raise LaunchFailed([RunFailure("unsupported", str(error), error.ptx_line)]) from error
        except EmulatorError as error:
            text = f"{error}; {step.expression!r} is launched in {self._place(step)}"
            raise LaunchFailed([RunFailure("crash", text)]) from error
        self.thread_instructions += report.thread_instructions
        self.global_sectors += sum(
            op.transactions for op in report.memory if op.space == "global" and op.access in ("load", "store")
        )
        told = [fault for fault in report.faults if strict or fault.kind == "timeout"]
        if told:
            raise LaunchFailed(_explain(told, f"{step.expression!r} is launched in {self._place(step)}"))
        return report

    def _parameters(self, step: Launch) -> bytes:
        """The kernel's parameter block."""
        entry = self._runner.entry(step.expression)
        if len(entry.params) != len(step.args):
            text = (
                f"{step.expression!r} takes {len(entry.params)} arguments, {self._place(step)} gives {len(step.args)}"
            )
            raise LaunchFailed([RunFailure("crash", text)])
        block = bytearray(max((param.offset + param.size for param in entry.params), default=0))
        for position, (param, arg) in enumerate(zip(entry.params, step.args, strict=True), start=1):
            packed = self._argument(arg)
            if len(packed) != param.size:
                text = (
                    f"argument {position} of {step.expression!r} has {param.size} bytes in the kernel and "
                    f"{len(packed)} in {self._place(step)}"
                )
                raise LaunchFailed([RunFailure("crash", text)])
            block[param.offset : param.offset + param.size] = packed
        return bytes(block)

    def _argument(self, arg: TensorArg | ScalarArg | TensorMapArg) -> bytes:
        if isinstance(arg, TensorArg):
            return struct.pack("<Q", self._address[arg.buffer] + arg.offset_bytes)
        assert isinstance(arg, ScalarArg)
        return pack_scalar(arg)

    def _place(self, step: Launch) -> str:
        """What messages call the step's place in the plan."""
        return f"plan line {step.line}" + (", in setup" if self._in_setup else "")


def beyond_this_device(plan: ResolvedPlan) -> RunFailure | None:
    """The first thing in a plan that no emulated device does; known before anything runs."""
    for steps, where in ((plan.setup, ", in setup"), (plan.steps, "")):
        for step in steps:
            if isinstance(step, Fill):
                continue
            lacking = _lacking(step)
            if lacking is not None:
                return RunFailure("unsupported", f"{lacking} in plan line {step.line}{where}")
    return None


def _lacking(step: Launch | Library) -> str | None:
    if isinstance(step, Library):
        return f"this device calls no torch operators, write a kernel: library({step.operator!r})"
    launched = f"{step.expression!r}, launched"
    if step.cooperative:
        return f"this device does not emulate a cooperative launch: {launched}"
    if step.cluster is not None:
        return f"this device does not emulate thread block clusters: {launched}"
    for position, arg in enumerate(step.args, 1):
        if isinstance(arg, TensorMapArg):
            return (
                "this device does not emulate tensor maps, pass the tensor and load its tiles in the kernel: "
                f"argument {position} of {launched}"
            )
    return None


def _explain(faults: Sequence[LaunchFault], launched: str) -> list[RunFailure]:
    """The first faults, each in the Coder's terms."""
    told = [RunFailure(_kind(fault), f"{_told(fault)}; {launched}") for fault in faults[:FAULTS_TOLD]]
    if len(faults) > FAULTS_TOLD:
        told.append(RunFailure(_kind(faults[FAULTS_TOLD]), f"and {len(faults) - FAULTS_TOLD} more faults"))
    return told


def _told(fault: LaunchFault) -> str:
    """The fault with its file's name alone: where the compiler kept it says nothing to a Coder."""
    return str(replace(fault, source_file=PurePath(fault.source_file).name))


def _kind(fault: LaunchFault) -> Any:
    return _KINDS.get(fault.kind, "sanitizer")
