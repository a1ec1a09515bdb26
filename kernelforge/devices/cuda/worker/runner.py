"""Executes resolved plans through a driver, in a confined child that ends with its build.

Correctness runs wait after every launch, so that a fault can be attributed to it. Timed runs are those of
:mod:`kernelforge.devices.cuda.worker.graph_timed_plan`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from kernelforge.candidate.resolved import ResolvedPlan, Step
from kernelforge.devices.base import RunFailure, RunRequest, RunResult
from kernelforge.devices.cuda.worker.driver import Driver, DriverError
from kernelforge.devices.cuda.worker.errors import PlanFailed, describe_step, plan_failure
from kernelforge.devices.cuda.worker.launch_binding import BoundStep, KernelLimits, StepBinder, Wrap, launch_error
from kernelforge.devices.cuda.worker.module_globals import ModuleGlobals
from kernelforge.devices.cuda.worker.tensors import Tensors
from kernelforge.sandbox.shared_memory import Blob

MAX_FAULTS = 8


class Runner:
    """One build on one GPU.

    Args:
        driver: Calls CUDA.
        cubin: The build.
        kernels: Limits of its kernels, by the expression that plans launch.
        wrap: Makes torch tensors of device memory.
        unwritten: Module variables that the build cannot write, from
            :func:`~kernelforge.devices.cuda.worker.module_globals.unwritten_variables`.

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
        """Whether an error destroyed the context."""
        self._cubin = cubin
        self.kernels = kernels
        self._wrap = wrap
        self._unwritten = frozenset(unwritten)
        self._module: Any = None
        try:
            self._load()
        except DriverError as error:
            raise plan_failure(error, "loading the build") from error

    def _load(self) -> None:
        if self._module is not None:
            self.driver.unload(self._module)
        self._module = self.driver.load(self._cubin)
        self.variables = ModuleGlobals(self.driver, self._module, self._cubin, self._unwritten)
        self.binder = StepBinder(self.driver, self._module, self.kernels, self._wrap)

    def fresh_variables(self) -> None:
        """Restore the first values of module variables; reloads a build with one that cannot be found."""
        if self.variables.hidden:
            self._load()
        else:
            self.variables.restore()

    def run(self, request: RunRequest) -> RunResult:
        """Run every step in order. A fault ends the run without outputs."""
        start = time.perf_counter()
        outputs: tuple[Blob, ...] = ()
        faults: tuple[RunFailure, ...] = ()
        tensors: Tensors | None = None
        try:
            tensors = self.tensors(request)
            self.fresh_variables()
            self.stepwise(request.plan, tensors)
            self.check_writes(tensors)
            outputs = tensors.outputs()
        except PlanFailed as plan:
            faults, self.lost = plan.faults[:MAX_FAULTS], self.lost or plan.lost
        finally:
            if tensors is not None and not self.lost:
                tensors.close()
        return RunResult(outputs, faults, seconds=time.perf_counter() - start)

    def tensors(self, request: RunRequest) -> Tensors:
        """Allocate the plan's buffers, write the request's tensors, and poison the other buffers.

        Raises:
            PlanFailed: CUDA would refuse the plan, or the buffers do not fit.
        """
        fault = launch_error(request.plan, self.kernels, self.driver.facts, self.driver.lacks)
        if fault is not None:
            raise PlanFailed(fault)
        try:
            tensors = Tensors(self.driver, request.plan, request.mutable, request.mapped)
            tensors.put(request.tensors)
            tensors.poison(request.poison)
        except DriverError as error:
            raise plan_failure(error, f"allocating {request.device_bytes} bytes for the plan's tensors") from error
        return tensors

    def stepwise(self, plan: ResolvedPlan, tensors: Tensors) -> None:
        """Run setup, then every step, waiting after each.

        Raises:
            PlanFailed: a step faulted; the message names it.
        """
        for bound in self.binder.bind(plan.setup, tensors):
            self._run_step(bound)
        tensors.keep_prepared()
        for bound in self.binder.bind(plan.steps, tensors):
            self._run_step(bound)

    def _run_step(self, bound: BoundStep) -> None:
        bound.run()
        self.wait(bound.step)

    def wait(self, step: Step | None = None) -> None:
        """Wait for the stream.

        Raises:
            PlanFailed: the work faulted; the message names ``step``.
        """
        try:
            self.driver.synchronize()
        except DriverError as error:
            raise plan_failure(error, "while it was timed" if step is None else describe_step(step)) from error

    def check_writes(self, tensors: Tensors) -> None:
        """Check that guards, read-only buffers and module variables are unchanged.

        Raises:
            PlanFailed: one was written.
        """
        try:
            faults: list[RunFailure] = [*tensors.faults(), *self.variables.faults()]
        except DriverError as error:
            raise plan_failure(error, "reading the tensors back") from error
        if faults:
            raise PlanFailed(*faults)
