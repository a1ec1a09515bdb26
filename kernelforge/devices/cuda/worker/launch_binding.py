"""Steps of a resolved plan as calls of a driver, bound to one set of tensors, with checks of what CUDA would refuse."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from kernelforge.candidate.resolved import (
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
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import (
    Driver,
    DriverError,
    Feature,
    GpuFacts,
    LaunchShape,
    PixelBoxSpec,
    Pointer,
    TensorMapSpec,
)
from kernelforge.devices.cuda.worker.errors import PlanFailed, describe_step, plan_failure
from kernelforge.devices.library_calls import LibraryCallFailed, call
from kernelforge.devices.wire import pack_scalar

MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS_PER_BLOCK = 1024
_WARP, _SCHEDULERS, _REGISTER_ALLOCATION, _MAX_REGISTERS = 32, 4, 256, 255
"""CUDA C++ Programming Guide, technical specifications per compute capability; ``cuda_occupancy.h``."""


@dataclass(frozen=True)
class KernelLimits:
    """Figures of the build for one kernel that a plan may launch."""

    symbol: str
    registers_per_thread: int
    static_shared_bytes: int
    max_threads_per_block: int | None
    """From ``__launch_bounds__``."""


def launch_error(
    plan: ResolvedPlan, kernels: Mapping[str, KernelLimits], facts: GpuFacts, lacks: frozenset[Feature]
) -> RunFailure | None:
    """The failure of a plan that cannot run on this GPU; None if no check refuses it."""
    for step in (*plan.setup, *plan.steps):
        fault: RunFailure | None = None
        if isinstance(step, Launch):
            fault = _unsupported(step, lacks) or _refused(step, kernels.get(step.expression), facts)
        elif isinstance(step, Library) and "torch" in lacks:
            text = f"this device does not call torch operators: library({step.operator!r}) in {describe_step(step)}"
            fault = RunFailure("unsupported", text)
        else:
            assert isinstance(step, Fill | Library)
        if fault is not None:
            return fault
    return None


def _unsupported(step: Launch, lacks: frozenset[Feature]) -> RunFailure | None:
    uses: list[tuple[Feature, bool, str]] = [
        ("cooperative", step.cooperative, "a cooperative launch"),
        ("clusters", step.cluster is not None, "thread block clusters"),
        ("tensor_maps", any(isinstance(arg, TensorMapArg) for arg in step.args), "tensor maps"),
    ]
    for feature, used, name in uses:
        if used and feature in lacks:
            return RunFailure("unsupported", f"this device does not have {name}: {describe_step(step)}")
    return None


def _refused(step: Launch, kernel: KernelLimits | None, facts: GpuFacts) -> RunFailure | None:
    where = describe_step(step)
    if kernel is None:
        return RunFailure("crash", f"the build has no kernel {where}")
    for name, extents, limits in (("grid", step.grid, MAX_GRID), ("block", step.block, MAX_BLOCK)):
        if any(not 1 <= extent <= limit for extent, limit in zip(extents, limits, strict=True)):
            return RunFailure("crash", f"{name} {extents} is outside 1 to {limits}: {where}")
    threads = step.block[0] * step.block[1] * step.block[2]
    allowed = min(MAX_THREADS_PER_BLOCK, kernel.max_threads_per_block or MAX_THREADS_PER_BLOCK)
    if threads > allowed:
        return RunFailure("crash", f"a block of {threads} threads, {allowed} are allowed: {where}")
    shared = kernel.static_shared_bytes + step.dynamic_shared_bytes
    if shared > facts.shared_bytes_per_block:
        text = f"{shared} bytes of shared memory per block, {facts.shared_bytes_per_block} are there: {where}"
        return RunFailure("crash", text)
    if not _registers_fit(kernel.registers_per_thread, threads, facts):
        return RunFailure(
            "crash",
            f"too many registers: {kernel.registers_per_thread} for each of {threads} threads, "
            f"{facts.registers_per_sm} are there per block: {where}",
        )
    if step.cluster is not None:
        size = step.cluster[0] * step.cluster[1] * step.cluster[2]
        if size < 1 or any(extent % part for extent, part in zip(step.grid, step.cluster, strict=True)):
            return RunFailure("crash", f"grid {step.grid} is not a multiple of cluster {step.cluster}: {where}")
    return None


def _registers_fit(per_thread: int, threads: int, facts: GpuFacts) -> bool:
    """Whether one block's registers fit, by the rule of :func:`kernelforge.hardware.occupancy.occupancy`."""
    warps = -(-threads // _WARP)
    per_warp = -(-per_thread * _WARP // _REGISTER_ALLOCATION) * _REGISTER_ALLOCATION
    assumed = per_warp * (-(-warps // _SCHEDULERS) * _SCHEDULERS)
    return per_thread <= _MAX_REGISTERS and assumed <= facts.registers_per_sm


class AddressTable(Protocol):
    """Device addresses of a plan's buffers."""

    def address(self, buffer: int, offset_bytes: int = 0) -> Pointer:
        """Device address of a byte of a buffer."""
        ...


Wrap = Callable[[Pointer, TensorView], Any]
"""A torch tensor over device memory."""


@dataclass(frozen=True)
class BoundStep:
    """One step, ready to be enqueued repeatedly."""

    step: Step
    go: Callable[[], None]

    def run(self) -> None:
        """Enqueue the step on the stream.

        Raises:
            PlanFailed: CUDA, or the operator, refused it.
        """
        try:
            self.go()
        except DriverError as error:
            raise plan_failure(error, describe_step(self.step)) from error
        except LibraryCallFailed as error:
            raise PlanFailed(error.fault, lost=error.lost) from error


class StepBinder:
    """Binds steps to tensors.

    Args:
        driver: Calls CUDA.
        module: The loaded build.
        kernels: Limits of its kernels, by the expression that plans launch.
        wrap: Makes torch tensors of device memory, for ``library`` steps.
    """

    def __init__(self, driver: Driver, module: Any, kernels: Mapping[str, KernelLimits], wrap: Wrap) -> None:
        self._driver = driver
        self._module = module
        self._kernels = kernels
        self._wrap = wrap
        self._functions: dict[str, Any] = {}

    def bind(self, steps: Sequence[Step], tensors: AddressTable) -> list[BoundStep]:
        """Bind steps to these tensors, in order.

        Raises:
            PlanFailed: a kernel is missing, or a tensor map is invalid.
        """
        bound: list[BoundStep] = []
        for step in steps:
            try:
                bound.append(BoundStep(step, self._work(step, tensors)))
            except DriverError as error:
                raise plan_failure(error, describe_step(step)) from error
        return bound

    def _work(self, step: Step, tensors: AddressTable) -> Callable[[], None]:
        driver = self._driver
        if isinstance(step, Fill):
            target = tensors.address(step.buffer, step.offset_bytes)
            return lambda: driver.fill(target, 0, step.nbytes)
        if isinstance(step, Library):
            return lambda: self._library(step, tensors)
        function = self._function(step.expression)
        shape = LaunchShape(step.grid, step.block, step.dynamic_shared_bytes, step.cluster, step.cooperative)
        arguments = [self._argument(arg, tensors) for arg in step.args]
        return lambda: driver.launch(function, shape, arguments)

    def _library(self, step: Library, tensors: AddressTable) -> None:
        with self._driver.torch_stream():
            call(step, lambda view: self._wrap(tensors.address(view.buffer, view.offset_bytes), view))

    def _function(self, expression: str) -> Any:
        if expression not in self._functions:
            self._functions[expression] = self._driver.function(self._module, self._kernels[expression].symbol)
        return self._functions[expression]

    def _argument(self, arg: TensorArg | ScalarArg | TensorMapArg, tensors: AddressTable) -> bytes:
        if isinstance(arg, ScalarArg):
            return pack_scalar(arg)
        pointer = tensors.address(arg.buffer, arg.offset_bytes)
        if isinstance(arg, TensorArg):
            return struct.pack("<Q", pointer)
        return self._driver.tensor_map(tensor_map_spec(arg, pointer))


def tensor_map_spec(arg: TensorMapArg, pointer: Pointer) -> TensorMapSpec:
    """Specification of a tensor map over a contiguous tensor; extents innermost first."""
    extents = tuple(reversed(arg.shape))
    strides: list[int] = []
    stride = arg.dtype.itemsize
    for extent in extents[:-1]:
        stride *= extent
        strides.append(stride)
    swizzle = cast("Literal[0, 32, 64, 128]", arg.swizzle_bytes)
    pixels = None
    if arg.pixels is not None:
        box = arg.pixels
        pixels = PixelBoxSpec(box.lower[::-1], box.upper[::-1], box.stride[::-1], box.mode)
    return TensorMapSpec(pointer, arg.dtype.value, extents, tuple(strides), tuple(reversed(arg.box)), swizzle, pixels)
