"""Steps of a resolved plan as calls of a driver, bound to one set of tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from kernelforge.candidate.resolved import Fill, Library, ScalarArg, Step, TensorArg, TensorMapArg, TensorView
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, LaunchShape, Pointer, TensorMapSpec
from kernelforge.devices.cuda.worker.errors import PlanFailed, describe_step, plan_failure
from kernelforge.devices.cuda.worker.launch_checks import KernelLimits
from kernelforge.devices.library_calls import LibraryCallFailed, call
from kernelforge.devices.wire import pack_scalar


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
    return TensorMapSpec(pointer, arg.dtype.value, extents, tuple(strides), tuple(reversed(arg.box)), swizzle)
