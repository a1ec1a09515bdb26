"""Launches of Triton kernels in a launch plan: ``name[grid](arguments, BLOCK=1024, num_warps=4)``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kernelforge.candidate.plan_language.interpreter import Machine, PendingLaunch
from kernelforge.candidate.plan_language.launches import checked_grid, parameter_bytes
from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    Fault,
    KernelName,
    Tensor,
    TensorMap,
    TypedScalar,
    as_int,
    bytes_text,
    kind_of,
    show,
)
from kernelforge.candidate.resolved import Constant, ScalarArg, Specialisation
from kernelforge.records.task import DType

THREADS_PER_WARP = 32
NUM_WARPS, NUM_STAGES = 4, 3
"""Triton's own defaults."""
MAX_STAGES = 10
MAX_CONSTANT_CHARS = 64
DIVISOR = 16
"""Triton compiles pointers and integers that are multiples of this differently: it can vectorise."""
TYPES: Mapping[DType, str] = {
    DType.FLOAT64: "fp64", DType.FLOAT32: "fp32", DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16", DType.INT64: "i64",
    DType.INT32: "i32", DType.INT16: "i16", DType.INT8: "i8", DType.UINT8: "u8", DType.BOOL: "i1",
}  # fmt: skip
_SCALARS: Mapping[str, str] = {"f32": "fp32", "f64": "fp64", "f16": "fp16"}


def launch_triton(
    machine: Machine, kernel: KernelName, extents: tuple[Any, ...], args: list[Any], keywords: Mapping[str, Any]
) -> None:
    """Check one launch and append it.

    Args:
        machine: The resolution it belongs to.
        kernel: Its name.
        extents: The grid, in programs.
        args: Values for the parameters that are not ``tl.constexpr``, in order.
        keywords: Values of the others by name, and the options ``num_warps`` and ``num_stages``.
    """
    name, limits = kernel.expression, machine.limits
    machine.recording("kernels are launched")
    if not name.isidentifier():
        raise Fault(f"{name!r} is not the name of a Triton function; pass constants by name: k[n](x, BLOCK=256)")
    grid = checked_grid(extents[0] if len(extents) == 1 else extents, name, limits)
    options = dict(keywords)
    warps = as_int(options.pop("num_warps", NUM_WARPS), f"num_warps of {name}")
    if warps not in (1, 2, 4, 8, 16, 32):
        raise Fault(f"num_warps of {name} is {warps}; it is 1, 2, 4, 8, 16 or 32")
    stages = as_int(options.pop("num_stages", NUM_STAGES), f"num_stages of {name}")
    if not 1 <= stages <= MAX_STAGES:
        raise Fault(f"num_stages of {name} is {stages}; it is 1 to {MAX_STAGES}")
    constants = tuple((key, _constant(options[key], f"{key} of {name}")) for key in sorted(options))
    typed = [_argument(value, position, name) for position, value in enumerate(args, 1)]
    passed = tuple(value for _, value in typed if value is not None)
    if (size := parameter_bytes(passed)) > limits.parameter_bytes:
        raise Fault(
            f"the arguments of {name} take {bytes_text(size)}; the limit is {bytes_text(limits.parameter_bytes)}"
        )
    specialisation = Specialisation(name, tuple(text for text, _ in typed), constants, warps, stages)
    block = (warps * THREADS_PER_WARP, 1, 1)
    machine.add(PendingLaunch(str(specialisation), grid, block, 0, passed, machine.line, None, False, specialisation))


def _argument(value: Any, position: int, name: str) -> tuple[str, Tensor | ScalarArg | None]:
    """Triton's type of an argument, and what is passed for it."""
    label = f"argument {position} of {name}"
    if value is None:
        return "None", None
    if type(value) is Tensor:
        return f"*{TYPES[value.dtype]}" + (f":{DIVISOR}" if value.offset_bytes % DIVISOR == 0 else ""), value
    if type(value) is TypedScalar:
        passed = ScalarArg(value.type, value.value)
        if value.type not in ("i32", "i64"):
            return _SCALARS.get(value.type, value.type), passed
        if value.value == 1:
            return "1", None
        return value.type + (f":{DIVISOR}" if value.value % DIVISOR == 0 else ""), passed
    if type(value) is TensorMap:
        raise Fault(f"{label} is a tensor map; pass the tensor, a kernel uses tl.make_tensor_descriptor")
    hint = ""
    if type(value) in (int, float, bool):
        scalar = "f32" if type(value) is float else "i32"
        hint = f"; say its type, {scalar}({value!r}), or pass a tl.constexpr by its name"
    raise Fault(f"{label} is {kind_of(value)}{hint or '; a kernel takes tensors, typed scalars and None'}")


def _constant(value: Any, label: str) -> Constant:
    if value is None or type(value) is bool or isinstance(value, DType):
        return value
    if type(value) is int and -INT_BOUND <= value < INT_BOUND:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if type(value) is str and len(value) <= MAX_CONSTANT_CHARS and value.isascii() and value.isprintable():
        return value
    if type(value) in (Tensor, TypedScalar):
        raise Fault(f"{label} is {kind_of(value)}: arguments go by position, only tl.constexpr values by name")
    raise Fault(f"{label} is {show(value)}; a tl.constexpr is an int, a finite float, a bool, a word or a dtype")
