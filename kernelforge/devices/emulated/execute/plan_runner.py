"""Runs resolved plans on the emulated device: whole for outputs, sampled for profiles.

A runner has one build; its kernels are compiled once. Every run gets buffers of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelforge.candidate.resolved import Fill, Launch
from kernelforge.devices.base import RunFailure
from kernelforge.devices.emulated.execute.loaded_module import KernelEntry, LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.execute.partial_execution import NotPartial, Part, PartialRun
from kernelforge.devices.emulated.execute.plan_execution import Execution, LaunchFailed, PlanRun
from kernelforge.devices.emulated.profile.collector import Collector
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.hardware.occupancy import occupancy
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import PlanCounts
from kernelforge.sandbox.shared_memory import Blob

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)


@dataclass(frozen=True)
class Kernel:
    """What the build says of one kernel that the plan may launch."""

    symbol: str
    registers_per_thread: int


@dataclass(frozen=True)
class RunOutput:
    """What one run gave: outputs and mutated inputs, or faults."""

    outputs: tuple[Blob, ...]
    faults: tuple[RunFailure, ...]
    thread_instructions: int
    global_sectors: int
    seconds: float


@dataclass(frozen=True)
class RanPart:
    """Some elements of each output; or why none could be had; or faults."""

    parts: tuple[Part, ...]
    reason: str
    faults: tuple[RunFailure, ...]
    thread_instructions: int


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
        self.machine = LoadedModule(ptx, self.memory, threads)
        self._kernels = kernels
        self._spec = spec

    def run(self, work: PlanRun) -> RunOutput:
        """Run ``setup``, then every step of ``forward``, in order. After a fault nothing more runs: no outputs.

        A step that this device lacks is a fault before anything runs.
        """
        start = time.perf_counter()
        execution: Execution | None = None
        outputs: tuple[Blob, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        try:
            execution = Execution(self, work)
            execution.set_up()
            for step in work.plan.steps:
                execution.step(step)
            outputs = execution.outputs()
        except LaunchFailed as faulted:
            faults = faulted.faults
        finally:
            if execution is not None:
                execution.close()
        executed = 0 if execution is None else execution.thread_instructions
        sectors = 0 if execution is None else execution.global_sectors
        return RunOutput(outputs, faults, executed, sectors, time.perf_counter() - start)

    def run_part(self, work: PlanRun, wanted: Mapping[int, Sequence[int]]) -> RanPart:
        """Run only the blocks that some elements of the outputs need; ``wanted`` has their flat indices by output."""
        part = PartialRun(self, work, wanted)
        parts: tuple[Part, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        reason = ""
        try:
            parts = part.run()
        except NotPartial as error:
            reason = str(error)
        except LaunchFailed as faulted:
            faults = faulted.faults
        return RanPart(parts, reason, faults, part.thread_instructions)

    def profile(self, work: PlanRun, effort: float = 1.0, budget: Budget | None = None) -> PlanCounts:
        """Counters of ``forward``, on sampled blocks where whole grids exceed the budget.

        Workspace should start as zeros: what blocks that are left out would have written reads as such. ``setup`` is
        run first, on some of its blocks where it would take long, and is not counted.

        Args:
            work: The run.
            effort: Share of the usual budgets, above 0 and at most 1.
            budget: Thread instructions for ``forward``, in place of a share of the usual ones.

        Raises:
            LaunchFailed: a launch faulted while every grid so far had run whole, or nothing could be run.
        """
        execution = Execution(self, work)
        try:
            launches = [step for step in work.plan.setup if isinstance(step, Launch)]
            complete = execution.set_up(Budget.of_setup(len(launches), effort))
            collector: Collector = Collector(
                self._spec,
                {name: kernel.registers_per_thread for name, kernel in self._kernels.items()},
                lambda expression: self.entry(expression).static_shared_bytes,
                execution.extents(),
                work.plan.launches,
                execution.waits,
                lambda step, ctas, cache: execution.profiled(step, ctas, cache, strict=complete and collector.exact),
                work.sample_seed,
                budget or Budget.share(len(work.plan.launches), effort),
            )
            for step in work.plan.steps:
                if isinstance(step, Launch):
                    execution.check(step)
                    collector.launch(step)
                elif isinstance(step, Fill):
                    execution.step(step)
                    collector.memset(step)
            return collector.finish()
        finally:
            execution.close()

    def entry(self, expression: str) -> KernelEntry:
        """The machine's view of a kernel."""
        return self.machine.entries[self._kernels[expression].symbol]

    def refusal(self, step: Launch, where: str) -> RunFailure | None:
        """Why CUDA, or this device, would refuse a launch; ``where`` names it."""
        if step.expression not in self._kernels or self._kernels[step.expression].symbol not in self.machine.entries:
            return RunFailure("crash", f"the build has no kernel {where}")
        entry, kernel = self.entry(step.expression), self._kernels[step.expression]
        lacking = self.machine.unsupported(kernel.symbol)
        if lacking is not None:
            return RunFailure("unsupported", f"{lacking}: {where}", lacking.ptx_line)
        for name, extents, limits in (("grid", step.grid, _MAX_GRID), ("block", step.block, _MAX_BLOCK)):
            if any(not 1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
                return RunFailure("crash", f"{name} {extents} is outside 1 to {limits}: {where}")
        threads = step.block[0] * step.block[1] * step.block[2]
        allowed = min(self._spec.threads_per_block, entry.max_threads or self._spec.threads_per_block)
        if threads > allowed:
            return RunFailure("crash", f"a block of {threads} threads, {allowed} are allowed: {where}")
        shared = entry.static_shared_bytes + step.dynamic_shared_bytes
        fits = occupancy(
            self._spec,
            threads_per_block=threads,
            registers_per_thread=kernel.registers_per_thread,
            shared_bytes=shared,
        )
        if fits.limit_shared_mem == 0:
            return RunFailure(
                "crash",
                f"{shared} bytes of shared memory per block, {self._spec.shared_bytes_per_block} are there: {where}",
            )
        if fits.limit_registers == 0:
            return RunFailure(
                "crash",
                f"too many registers: {kernel.registers_per_thread} for each of {threads} threads, "
                f"{self._spec.registers_per_block} are there per block: {where}",
            )
        return None
