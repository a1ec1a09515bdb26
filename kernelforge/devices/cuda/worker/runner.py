"""Executes resolved plans through a driver, in a confined child that ends with its build.

Correctness runs wait after every launch, so that a fault has a name; what is timed runs as
:mod:`kernelforge.devices.cuda.worker.graph_timed_plan` has it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kernelforge.candidate.resolved import ResolvedPlan, Step
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Driver, DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed, faulted, placed
from kernelforge.devices.cuda.worker.launch_binding import BoundStep, StepBinder, Wrap
from kernelforge.devices.cuda.worker.launch_checks import KernelLimits, launch_error
from kernelforge.devices.cuda.worker.module_globals import ModuleGlobals
from kernelforge.devices.cuda.worker.tensors import Tensors
from kernelforge.sandbox.shared_memory import Blob

FAULTS_TOLD = 8


@dataclass(frozen=True)
class PlanRun:
    """One run of a plan, as :class:`~kernelforge.devices.base.RunRequest` describes it."""

    plan: ResolvedPlan
    tensors: Mapping[int, Blob]
    poison: int
    mutable: frozenset[int]


@dataclass(frozen=True)
class RunOutput:
    """What one run gave: outputs and mutated inputs, or faults."""

    outputs: tuple[Blob, ...]
    faults: tuple[RunFailure, ...]
    seconds: float


class Runner:
    """One build on one GPU.

    Args:
        driver: What talks to the GPU.
        cubin: The build.
        kernels: By the expression that plans launch.
        wrap: Makes torch tensors of device memory.
        unwritten: Module variables that it cannot write, as
            :func:`~kernelforge.devices.cuda.worker.module_globals.unwritten_variables` finds them.

    Raises:
        PlanFailed: the build cannot be loaded.
    """

    def __init__(
        self,
        driver: Driver,
        cubin: bytes,
        kernels: Mapping[str, KernelLimits],
        wrap: Wrap,
        unwritten: Collection[str] = (),
    ) -> None:
        self.driver = driver
        self.lost = False
        """Whether an error took the context with it."""
        self._cubin = cubin
        self.kernels = kernels
        self._wrap = wrap
        self._unwritten = frozenset(unwritten)
        self._module: Any = None
        try:
            self._load()
        except DriverError as error:
            raise faulted(error, "loading the build") from error

    def _load(self) -> None:
        if self._module is not None:
            self.driver.unload(self._module)
        self._module = self.driver.load(self._cubin)
        self.variables = ModuleGlobals(self.driver, self._module, self._cubin, self._unwritten)
        self.binder = StepBinder(self.driver, self._module, self.kernels, self._wrap)

    def fresh_variables(self) -> None:
        """Give module variables their first values; a build with one that cannot be found is loaded anew."""
        if self.variables.hidden:
            self._load()
        else:
            self.variables.restore()

    def run(self, work: PlanRun) -> RunOutput:
        """Run every step in order. After a fault nothing more runs and there are no outputs."""
        start = time.perf_counter()
        outputs: tuple[Blob, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        tensors: Tensors | None = None
        try:
            tensors = self.tensors(work)
            self.fresh_variables()
            self.stepwise(work.plan, tensors)
            self.prove(tensors)
            outputs = tensors.outputs()
        except PlanFailed as plan:
            faults, self.lost = plan.faults[:FAULTS_TOLD], self.lost or plan.lost
        finally:
            if tensors is not None and not self.lost:
                tensors.close()
        return RunOutput(outputs, faults, time.perf_counter() - start)

    def tensors(self, work: PlanRun) -> Tensors:
        """Buffers with what the request puts into them, all else poisoned.

        Raises:
            PlanFailed: CUDA would refuse the plan, or they do not fit.
        """
        fault = launch_error(work.plan, self.kernels, self.driver.facts, self.driver.lacks)
        if fault is not None:
            raise PlanFailed(fault)
        try:
            tensors = Tensors(self.driver, work.plan, work.mutable)
            tensors.put(work.tensors)
            tensors.poison(work.poison)
        except DriverError as error:
            needed = sum(buffer.nbytes for buffer in work.plan.buffers)
            raise faulted(error, f"allocating {needed} bytes for the plan's tensors") from error
        return tensors

    def stepwise(self, plan: ResolvedPlan, tensors: Tensors) -> None:
        """Setup, then every step, waiting after each.

        Raises:
            PlanFailed: one faulted; the message names it.
        """
        for bound in self.binder.bind(plan.setup, tensors):
            self._one(bound)
        tensors.keep_prepared()
        for bound in self.binder.bind(plan.steps, tensors):
            self._one(bound)

    def _one(self, bound: BoundStep) -> None:
        bound.run()
        self.wait(bound.step)

    def wait(self, step: Step | None = None) -> None:
        """Wait for the stream.

        Raises:
            PlanFailed: what ran faulted; ``step`` is what it is put down to.
        """
        try:
            self.driver.synchronize()
        except DriverError as error:
            raise faulted(error, "while it was timed" if step is None else placed(step)) from error

    def prove(self, tensors: Tensors) -> None:
        """Check that nothing was written but what may be.

        Raises:
            PlanFailed: something was.
        """
        try:
            found = [*tensors.faults(), *self.variables.faults()]
        except DriverError as error:
            raise faulted(error, "reading the tensors back") from error
        if found:
            raise PlanFailed(*found)
