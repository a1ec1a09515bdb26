"""``library`` steps: torch operators that the harness calls on device memory, where the task allows them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Literal

from kernelforge.candidate.resolved import Library, LibraryValue, TensorView
from kernelforge.devices.base import RunFailure
from kernelforge.records.task import DType

if TYPE_CHECKING:
    import torch

_MODULES = ("torch", "torch.nn.functional")
_HOMES = ("torch.functional", "torch.nn.functional", "torch._jit_internal")
"""Modules of operators written in Python; the last dispatches pooling. ``torch.load`` is in none of them."""

_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What operators raise for arguments that they cannot take; those written in Python check little of what they use."""


class LibraryCallFailed(Exception):
    """An operator could not be called, or its result differs from the plan's.

    ``lost``: CUDA itself failed, and nothing else may run in this process.
    """

    def __init__(self, fault: RunFailure, *, lost: bool = False) -> None:
        super().__init__(fault.message)
        self.fault = fault
        self.lost = lost


def operator(name: str) -> Callable[..., Any]:
    """A public operator of ``torch`` or ``torch.nn.functional``.

    Raises:
        KeyError: there is no operator of that name.
    """
    import torch

    if name.isidentifier() and not name.startswith("_"):
        for module in (torch, torch.nn.functional):
            attribute: Any = getattr(module, name, None)
            if isinstance(attribute, BuiltinFunctionType) or getattr(attribute, "__module__", None) in _HOMES:
                function: Callable[..., Any] = attribute
                return function
    raise KeyError(name)


def cpu_tensor(pointer: int, view: TensorView) -> torch.Tensor:
    """A tensor over host memory."""
    import torch

    nbytes = view.span_bytes
    if nbytes == 0:
        return torch.empty_strided(view.shape, view.stride, dtype=_torch_dtype(view.dtype))
    memory = (ctypes.c_byte * nbytes).from_address(pointer)
    flat = torch.frombuffer(memory, dtype=_torch_dtype(view.dtype))
    return flat.as_strided(view.shape, view.stride)


def cuda_tensor(pointer: int, view: TensorView) -> torch.Tensor:
    """A tensor over memory of the current CUDA device (version 3 of the CUDA Array Interface)."""
    import torch

    dtype, nbytes = _torch_dtype(view.dtype), view.span_bytes
    if nbytes == 0:
        return torch.empty_strided(view.shape, view.stride, dtype=dtype, device="cuda")
    # As bytes: the interface lacks bfloat16.
    flat = torch.as_tensor(_Bytes(pointer, nbytes), device="cuda")
    return flat.view(dtype).as_strided(view.shape, view.stride)


class _Bytes:
    """Device memory as the CUDA Array Interface shows it."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__: Mapping[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


def call(step: Library, tensor: Callable[[TensorView], torch.Tensor]) -> None:
    """Call a step's operator and copy its results into the step's outputs.

    Args:
        step: The call.
        tensor: Makes a tensor of a view of the plan's memory.

    Raises:
        LibraryCallFailed: there is no such operator, it refused its arguments, or its tensors differ from the plan's.
    """
    import torch

    try:
        function = operator(step.operator)
    except KeyError:
        raise _fault(step, "unsupported", f"{' and '.join(_MODULES)} have no function of that name") from None

    def value(argument: LibraryValue) -> Any:
        return tensor(argument) if isinstance(argument, TensorView) else argument

    args = [value(argument) for argument in step.args]
    kwargs = {name: value(argument) for name, argument in step.kwargs.items()}
    targets = [tensor(view) for view in step.out]
    with torch.no_grad():
        try:
            if _takes_out(function, step) and len(targets) == 1:
                returned: Any = function(*args, **kwargs, out=targets[0])
            else:
                returned = function(*args, **kwargs)
        except torch.cuda.OutOfMemoryError as error:
            raise _fault(step, "memory", f"out of device memory: {_first_line(error)}", lost=True) from error
        except _REFUSALS as error:
            lost = "CUDA error" in str(error)
            raise _fault(step, "crash", f"torch refuses it: {_first_line(error)}", lost=lost) from error
        _deliver(step, returned, targets)


def _deliver(step: Library, returned: Any, targets: list[torch.Tensor]) -> None:
    """Copy results into the plan's outputs, except those that torch wrote there itself."""
    import torch

    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    if not all(isinstance(result, torch.Tensor) for result in results):
        raise _fault(step, "crash", f"it returns {type(returned).__name__}, not tensors")
    if len(results) != len(targets):
        raise _fault(step, "crash", f"it returns {len(results)} tensors, the plan takes {len(targets)}")
    for position, (result, target, view) in enumerate(zip(results, targets, step.out, strict=True), start=1):
        if tuple(result.shape) != view.shape or result.dtype != target.dtype:
            got, expected = _describe(result), _describe(target)
            raise _fault(step, "crash", f"result {position} is {got}, the plan says {expected}")
        if result.data_ptr() != target.data_ptr() or result.stride() != target.stride():
            target.copy_(result)


def _takes_out(function: Callable[..., Any], step: Library) -> bool:
    """Whether the function writes into a tensor argument, so that its result needs no copy.

    Built-ins have no signature; the first line of their documentation says so.
    """
    import inspect

    if "out" in step.kwargs:
        return False
    try:
        return "out" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        text = (function.__doc__ or "").lstrip()
        return "out=None" in text.partition("->")[0]


def _torch_dtype(dtype: DType) -> torch.dtype:
    import torch

    torch_dtype = getattr(torch, dtype.value)
    assert isinstance(torch_dtype, torch.dtype)
    return torch_dtype


def _describe(tensor: torch.Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]


def _fault(
    step: Library, kind: Literal["crash", "memory", "unsupported"], text: str, *, lost: bool = False
) -> LibraryCallFailed:
    return LibraryCallFailed(
        RunFailure(kind, f"library({step.operator!r}) in plan line {step.line}: {text}"), lost=lost
    )
