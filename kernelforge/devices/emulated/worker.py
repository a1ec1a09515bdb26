"""The runner: executes resolved plans on the emulated machine. Runs in a confined child, or in tests without a jail.

A session has one build; its kernels are compiled once. Every run gets buffers of its own.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

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
from kernelforge.devices.arguments import pack_scalar
from kernelforge.devices.base import RunFault
from kernelforge.devices.emulated import machine as emulator
from kernelforge.devices.emulated.errors import EmulatorError, OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.machine import Entry, Machine
from kernelforge.devices.emulated.memory import CacheModel, Memory
from kernelforge.devices.emulated.profile.collect import Collector, rehearse
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.profile.traffic import Extent
from kernelforge.devices.emulated.ptx import PtxSyntaxError
from kernelforge.devices.emulated.report import Fault, LaunchReport
from kernelforge.errors import ChildDied
from kernelforge.hardware.occupancy import occupancy
from kernelforge.hardware.specs import SPECS, DeviceSpec
from kernelforge.profiling.counts import PlanCounts
from kernelforge.sandbox.channel import Channel

FAULTS_TOLD = 8
RACECHECK_BLOCKS = 64
"""Blocks of a launch in which races on shared memory are looked for: a race does not depend on the block."""
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_KINDS: Mapping[str, str] = {"timeout": "timeout", "trap": "crash", "assert": "crash"}
"""Run fault of each emulator fault; the rest are the sanitizer's."""


class LaunchFaulted(Exception):
    """A launch went wrong; the plan ends here."""

    def __init__(self, faults: Sequence[RunFault]) -> None:
        super().__init__(faults[0].message)
        self.faults = tuple(faults)


@dataclass(frozen=True)
class Kernel:
    """What the build says of one kernel that the plan may launch."""

    symbol: str
    registers_per_thread: int


@dataclass(frozen=True)
class Work:
    """One run of a plan, as :class:`~kernelforge.devices.base.RunRequest` describes it."""

    plan: ResolvedPlan
    tensors: Mapping[int, bytes]
    poison: int
    mutable: frozenset[int]
    deadline_s: float
    memory_bytes: int
    max_thread_instructions: int | None


@dataclass(frozen=True)
class Ran:
    """What one run gave: outputs and mutated inputs, or faults."""

    outputs: tuple[bytes, ...]
    faults: tuple[RunFault, ...]
    thread_instructions: int
    seconds: float


class Runner:
    """One build on one emulated machine.

    Args:
        ptx: The build's PTX.
        kernels: By the expression that plans launch.
        spec: The device that is stood in for.
        memory_bytes: Device memory; host pages are taken as they are used.
        threads: Threads that one launch may use.

    Raises:
        UnsupportedInstruction: A kernel needs an instruction that the emulator lacks.
    """

    def __init__(
        self, ptx: str, kernels: Mapping[str, Kernel], spec: DeviceSpec, *, memory_bytes: int, threads: int = 1
    ) -> None:
        self.memory = Memory(memory_bytes)
        self.machine = Machine(ptx, self.memory, threads)
        self._kernels = kernels
        self._spec = spec

    def run(self, work: Work) -> Ran:
        """Run every step in order. After a fault nothing more runs and there are no outputs."""
        start = time.perf_counter()
        execution: _Execution | None = None
        outputs: tuple[bytes, ...] = ()
        faults: tuple[RunFault, ...] = ()
        try:
            execution = _Execution(self, work)
            for step in work.plan.steps:
                execution.step(step)
            outputs = execution.outputs()
        except LaunchFaulted as faulted:
            faults = faulted.faults
        finally:
            if execution is not None:
                execution.close()
        executed = 0 if execution is None else execution.thread_instructions
        return Ran(outputs, faults, executed, time.perf_counter() - start)

    def profile(self, work: Work, budget: Budget | None = None) -> PlanCounts:
        """Counters of the plan, on sampled blocks where whole grids exceed ``budget``.

        Workspace should start as zeros: what blocks that are left out would have written reads as such.

        Raises:
            LaunchFaulted: a launch faulted while every grid so far had run whole, or nothing could be run.
        """
        execution = _Execution(self, work)
        try:
            collector: Collector = Collector(
                self._spec,
                {name: kernel.registers_per_thread for name, kernel in self._kernels.items()},
                lambda expression: self.entry(expression).static_shared_bytes,
                execution.extents(),
                len(work.plan.launches),
                execution.waits,
                lambda step, ctas, cache: execution.profiled(step, ctas, cache, strict=collector.exact),
                budget,
            )
            for step in work.plan.steps:
                if isinstance(step, Launch):
                    execution.check(step)
                    collector.launch(step)
                elif isinstance(step, Fill):
                    execution.step(step)
                    collector.memset(step)
                else:
                    raise LaunchFaulted([_no_library(step)])
            return collector.finish()
        finally:
            execution.close()

    def entry(self, expression: str) -> Entry:
        """The machine's view of a kernel."""
        return self.machine.entries[self._kernels[expression].symbol]

    def refusal(self, step: Launch) -> RunFault | None:
        """Why CUDA, or this device, would refuse a launch."""
        where = f"{step.expression!r}, launched in plan line {step.line}"
        if step.expression not in self._kernels or self._kernels[step.expression].symbol not in self.machine.entries:
            return RunFault("crash", f"the build has no kernel {where}")
        if step.cluster is not None or step.cooperative:
            option = "a cooperative launch" if step.cooperative else "thread block clusters"
            return RunFault("unsupported", f"this device does not emulate {option}: {where}")
        entry, kernel = self.entry(step.expression), self._kernels[step.expression]
        lacking = self.machine.unsupported(kernel.symbol)
        if lacking is not None:
            return RunFault("unsupported", f"{lacking}: {where}")
        for name, extents, limits in (("grid", step.grid, _MAX_GRID), ("block", step.block, _MAX_BLOCK)):
            if any(not 1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
                return RunFault("crash", f"{name} {extents} is outside 1 to {limits}: {where}")
        threads = step.block[0] * step.block[1] * step.block[2]
        allowed = min(self._spec.threads_per_block, entry.max_threads or self._spec.threads_per_block)
        if threads > allowed:
            return RunFault("crash", f"a block of {threads} threads, {allowed} are allowed: {where}")
        shared = entry.static_shared_bytes + step.dynamic_shared_bytes
        fits = occupancy(
            self._spec,
            threads_per_block=threads,
            registers_per_thread=kernel.registers_per_thread,
            shared_bytes=shared,
        )
        if fits.limit_shared_mem == 0:
            return RunFault(
                "crash",
                f"{shared} bytes of shared memory per block, {self._spec.shared_bytes_per_block} are there: {where}",
            )
        if fits.limit_registers == 0:
            return RunFault(
                "crash",
                f"too many registers: {kernel.registers_per_thread} for each of {threads} threads, "
                f"{self._spec.registers_per_block} are there per block: {where}",
            )
        return None


class _Execution:
    """Buffers of one run, and launches on them."""

    def __init__(self, runner: Runner, work: Work) -> None:
        self._runner = runner
        self._work = work
        self._memory = runner.memory
        self._end = time.monotonic() + work.deadline_s
        self._address: dict[int, int] = {}
        self.thread_instructions = 0
        needed = sum(buffer.nbytes for buffer in work.plan.buffers)
        if needed > work.memory_bytes:
            raise LaunchFaulted(
                [RunFault("memory", f"the plan needs {needed} bytes of device memory, {work.memory_bytes} are allowed")]
            )
        try:
            for buffer in work.plan.buffers:
                self._allocate(buffer)
        except OutOfDeviceMemory as error:
            self.close()
            raise LaunchFaulted([RunFault("memory", f"out of device memory: {error}")]) from error

    def _allocate(self, buffer: Buffer) -> None:
        given = buffer.kind != "workspace"
        address = self._memory.allocate(
            buffer.nbytes, buffer.label, read_only=given and buffer.id not in self._work.mutable
        )
        self._address[buffer.id] = address
        if not given:
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

    def step(self, step: Step) -> None:
        """Run one step of the plan whole."""
        if isinstance(step, Launch):
            self.launch(step)
        elif isinstance(step, Fill):
            self._memory.fill(self._address[step.buffer] + step.offset_bytes, step.nbytes, bytes(1))
        else:
            raise LaunchFaulted([_no_library(step)])

    def outputs(self) -> tuple[bytes, ...]:
        """The plan's outputs, then the mutable inputs by ascending id."""
        found = [self._memory.read(self._address[o.buffer] + o.offset_bytes, o.nbytes) for o in self._work.plan.outputs]
        sizes = {buffer.id: buffer.nbytes for buffer in self._work.plan.buffers}
        found += [self._memory.read(self._address[b], sizes[b]) for b in sorted(self._work.mutable)]
        return tuple(found)

    def check(self, step: Launch) -> None:
        """Raise :class:`LaunchFaulted` where CUDA would refuse the launch."""
        refused = self._runner.refusal(step)
        if refused is not None:
            raise LaunchFaulted([refused])

    def launch(self, step: Launch) -> None:
        """Run a whole grid, looking for races on shared memory in its first blocks."""
        self.check(step)
        entry = self._runner.entry(step.expression)
        blocks = step.grid[0] * step.grid[1] * step.grid[2]
        # A grid whose blocks wait for one another can neither be cut in two nor run block by block.
        races = entry.static_shared_bytes + step.dynamic_shared_bytes > 0 and not self.waits(step)
        if not races or blocks <= RACECHECK_BLOCKS:
            self._go(step, None, racecheck=races)
        else:
            self._go(step, range(RACECHECK_BLOCKS), racecheck=True)
            self._go(step, range(RACECHECK_BLOCKS, blocks), racecheck=False)

    def waits(self, step: Launch) -> bool:
        """Whether blocks of the kernel may wait for one another."""
        try:
            name = self._runner.entry(step.expression).name
            return self._runner.machine.program(name, step.block).flow.spins
        except UnsupportedInstruction as error:
            raise LaunchFaulted([RunFault("unsupported", str(error))]) from error

    def profiled(self, step: Launch, ctas: Sequence[int] | None, cache: CacheModel, *, strict: bool) -> LaunchReport:
        """Run some blocks through a cache model. Faults count only where no block was left out before."""
        return self._go(step, ctas, cache=cache, strict=strict)

    def _go(
        self,
        step: Launch,
        ctas: Sequence[int] | None,
        *,
        racecheck: bool = False,
        cache: CacheModel | None = None,
        strict: bool = True,
    ) -> LaunchReport:
        limit = self._work.max_thread_instructions
        left = None if limit is None else max(limit - self.thread_instructions, 1)
        try:
            report = self._runner.machine.launch(
                self._runner.entry(step.expression).name,
                step.grid,
                step.block,
                step.dynamic_shared_bytes,
                self._parameters(step),
                ctas=ctas,
                # A warp instruction is up to 32 thread instructions.
                max_warp_instructions=None if left is None else -(-left // 32),
                deadline_s=max(self._end - time.monotonic(), 0.001),
                cache=cache,
                racecheck=racecheck,
                poison=self._work.poison,
            )
        except UnsupportedInstruction as error:
            raise LaunchFaulted([RunFault("unsupported", str(error))]) from error
        except EmulatorError as error:
            text = f"{error}; {step.expression!r} is launched in plan line {step.line}"
            raise LaunchFaulted([RunFault("crash", text)]) from error
        self.thread_instructions += report.thread_instructions
        told = [fault for fault in report.faults if strict or fault.kind == "timeout"]
        if told:
            raise LaunchFaulted(_explain(told, step))
        return report

    def _parameters(self, step: Launch) -> bytes:
        """The kernel's parameter block."""
        entry = self._runner.entry(step.expression)
        if len(entry.params) != len(step.args):
            text = (
                f"{step.expression!r} takes {len(entry.params)} arguments, plan line {step.line} gives {len(step.args)}"
            )
            raise LaunchFaulted([RunFault("crash", text)])
        block = bytearray(max((param.offset + param.size for param in entry.params), default=0))
        for position, (param, arg) in enumerate(zip(entry.params, step.args, strict=True), start=1):
            packed = self._argument(arg)
            if len(packed) != param.size:
                text = (
                    f"argument {position} of {step.expression!r} has {param.size} bytes in the kernel and "
                    f"{len(packed)} in plan line {step.line}"
                )
                raise LaunchFaulted([RunFault("crash", text)])
            block[param.offset : param.offset + param.size] = packed
        return bytes(block)

    def _argument(self, arg: TensorArg | ScalarArg | TensorMapArg) -> bytes:
        if isinstance(arg, TensorArg):
            return struct.pack("<Q", self._address[arg.buffer] + arg.offset_bytes)
        if isinstance(arg, TensorMapArg):
            raise LaunchFaulted([RunFault("unsupported", "this device does not emulate tensor maps")])
        return pack_scalar(arg)


def _no_library(step: Library) -> RunFault:
    text = f"this device does not call torch operators: library({step.operator!r}) in plan line {step.line}"
    return RunFault("unsupported", text)


def _explain(faults: Sequence[Fault], step: Launch) -> list[RunFault]:
    """The first faults, each in the Coder's terms."""
    told = [
        RunFault(_kind(fault), f"{_told(fault)}; {step.expression!r} is launched in plan line {step.line}")
        for fault in faults[:FAULTS_TOLD]
    ]
    if len(faults) > FAULTS_TOLD:
        told.append(RunFault(_kind(faults[FAULTS_TOLD]), f"and {len(faults) - FAULTS_TOLD} more faults"))
    return told


def _told(fault: Fault) -> str:
    """The fault with its file's name alone: where the compiler kept it says nothing to a Coder."""
    return str(replace(fault, source_file=PurePath(fault.source_file).name))


def _kind(fault: Fault) -> Any:
    return _KINDS.get(fault.kind, "sanitizer")


def warm_up(options: dict[str, Any]) -> None:
    """Load and compile everything once, before children are forked: they can load nothing themselves."""
    emulator.warm_up()
    rehearse()


def serve(channel: Channel) -> None:
    """Answer ``load``, then any number of ``run`` and ``profile`` requests, until the parent goes away."""
    runner: Runner | RunFault | None = None
    while True:
        try:
            frame = channel.receive()
        except ChildDied:
            return
        request = frame.data
        if request["op"] == "load":
            runner = _load(request, frame.blobs[0])
            channel.send({"loaded": True})
            continue
        if runner is None:
            raise RuntimeError("a run before a build was loaded")
        work = _work(request, frame.blobs)
        del frame
        if isinstance(runner, RunFault):
            channel.send(_faulted([runner]))
        elif request["op"] == "run":
            ran = runner.run(work)
            reply = _faulted(ran.faults) | {"thread_instructions": ran.thread_instructions, "seconds": ran.seconds}
            channel.send(reply, ran.outputs)
        else:
            try:
                budget = Budget.share(len(work.plan.launches), request["effort"])
                channel.send({"faults": [], "counts": runner.profile(work, budget).to_wire()})
            except LaunchFaulted as faulted:
                channel.send(_faulted(faulted.faults))


def _load(request: dict[str, Any], ptx: bytes) -> Runner | RunFault:
    kernels = {name: Kernel(symbol, registers) for name, (symbol, registers) in request["kernels"].items()}
    try:
        return Runner(
            ptx.decode(),
            kernels,
            SPECS[request["spec"]],
            memory_bytes=request["memory_bytes"],
            threads=request["threads"],
        )
    except (UnsupportedInstruction, PtxSyntaxError) as error:
        return RunFault("unsupported", str(error))
    except OutOfDeviceMemory as error:
        return RunFault("memory", f"the module's variables do not fit: {error}")


def _work(request: dict[str, Any], blobs: Sequence[bytes]) -> Work:
    return Work(
        plan=ResolvedPlan.from_wire(request["plan"]),
        tensors=dict(zip(request["tensors"], blobs, strict=True)),
        poison=request["poison"],
        mutable=frozenset(request["mutable"]),
        deadline_s=request["deadline_s"],
        memory_bytes=request["memory_bytes"],
        max_thread_instructions=request["max_thread_instructions"],
    )


def _faulted(faults: Sequence[RunFault]) -> dict[str, Any]:
    return {"faults": [[fault.kind, fault.message] for fault in faults]}
