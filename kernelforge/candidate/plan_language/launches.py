"""Launches of kernels and calls of library operators in a launch plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from kernelforge.candidate.plan_language.interpreter import (
    LibraryArgument,
    Machine,
    PendingLaunch,
    PendingLibrary,
    PlanLimits,
)
from kernelforge.candidate.plan_language.values import (
    INT_BOUND,
    Fault,
    KernelName,
    ScalarType,
    Tensor,
    TensorMap,
    TypedScalar,
    as_int,
    bytes_text,
    kind_of,
    number,
    show,
)
from kernelforge.candidate.resolved import ScalarArg

MAX_ARGUMENTS = 64
"""Arguments of one call, items of one tuple among them, and results."""
_OPERATOR = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def library(machine: Machine, args: list[Any], keywords: Mapping[str, Any], out: Any) -> None:
    """Check one call and append it.

    Args:
        machine: The resolution it belongs to.
        args: The operator's name, then its arguments.
        keywords: Its keyword arguments.
        out: The tensor or tensors that receive its results.
    """
    machine.recording("library is called")
    operator = _operator(machine, args[0] if args else None)
    if len(args) + len(keywords) > MAX_ARGUMENTS:
        raise Fault(f"library takes at most {MAX_ARGUMENTS} arguments, got {len(args) + len(keywords)}")
    step = PendingLibrary(
        operator,
        tuple(_value(value, f"argument {position} of {operator}") for position, value in enumerate(args[1:], 1)),
        {name: _value(value, f"{name} of {operator}") for name, value in keywords.items()},
        _results(operator, out),
        machine.line,
    )
    # A tuple of results costs one step to name, and each of them is compared with every other tensor.
    machine.spend(len(step.out) * (len(step.out) + len(step.read)))
    _refuse_overlap(step)
    machine.add(step)


def _operator(machine: Machine, operator: Any) -> str:
    if type(operator) is not str:
        raise Fault("library takes the operator's name first: library('matmul', x, y, out=z)")
    if not _OPERATOR.fullmatch(operator):
        raise Fault(f"{show(operator)} is not an operator's name such as 'matmul'")
    if operator not in machine.library:
        allowed = ", ".join(sorted(machine.library)[:24])
        offer = f"it allows {allowed}" if allowed else "it allows none; write a kernel"
        raise Fault(f"this task does not allow library({operator!r}): {offer}")
    return operator


def _value(value: Any, name: str) -> LibraryArgument:
    if type(value) is Tensor or value is None or type(value) in (float, bool, str):
        return value  # type: ignore[no-any-return]
    if type(value) is int:
        return _within_64_bits(value, name)
    if type(value) in (tuple, range):
        if len(value) > MAX_ARGUMENTS:
            raise Fault(f"{name} has {len(value):,} items; the limit is {MAX_ARGUMENTS}")
        if all(type(item) is int for item in value):
            return tuple(_within_64_bits(item, name) for item in value)
        raise Fault(f"{name} is {show(value)}; a sequence for library holds ints only")
    raise Fault(
        f"{name} is {kind_of(value)}; library takes tensors, numbers, bools, strings, None and sequences of ints"
    )


def _within_64_bits(value: int, name: str) -> int:
    if -INT_BOUND <= value < INT_BOUND:
        return value
    raise Fault(f"{name} does not fit 64 bits")


def _results(operator: str, out: Any) -> tuple[Tensor, ...]:
    tensors = out if type(out) is tuple else (out,)
    if not 1 <= len(tensors) <= MAX_ARGUMENTS:
        raise Fault(f"out of {operator} is 1 to {MAX_ARGUMENTS} tensors, not {len(tensors)}")
    for tensor in tensors:
        if type(tensor) is not Tensor:
            raise Fault(f"out of {operator} is a tensor or several, not {kind_of(tensor)}")
        if tensor.storage.kind != "workspace":
            owner = "setup returned" if tensor.storage.kind == "prepared" else "the plan was given"
            raise Fault(
                f"out of {operator} is {tensor.storage.label or 'a tensor'}, which {owner}; write to a new tensor"
            )
    return tensors


def _refuse_overlap(step: PendingLibrary) -> None:
    """Refuse results that overlap another result or an argument. Only workspace can, and it is contiguous."""
    for index, result in enumerate(step.out):
        for other in (*step.read, *step.out[:index]):
            if _overlap(result, other):
                raise Fault(
                    f"out of {step.operator} overlaps another of its tensors, in "
                    f"{result.storage.label or 'a tensor'}; write to a new tensor"
                )


def _overlap(a: Tensor, b: Tensor) -> bool:
    start, end = max(a.offset_bytes, b.offset_bytes), min(a.offset_bytes + a.nbytes, b.offset_bytes + b.nbytes)
    return a.storage is b.storage and start < end


MAX_EXPRESSION_CHARS = 256
_EXPRESSION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(::[A-Za-z_][A-Za-z0-9_]*)*(<[A-Za-z0-9_:<>, +\-*()]*>)?", re.ASCII)
_SCALAR_BYTES: dict[ScalarType, int] = {"i32": 4, "i64": 8, "f32": 4, "f64": 8, "f16": 2, "bf16": 2}
TENSOR_MAP_BYTES = 128
"""Size and alignment of ``CUtensorMap`` (cuda.h of CUDA 13)."""
_INT_BITS: dict[str, int] = {"i32": 32, "i64": 64}
# Finite values at or beyond these round to infinity: the largest finite value plus half a step.
_OVERFLOW: dict[str, float] = {"f32": 2.0**128 - 2.0**103, "f16": 65_520.0, "bf16": 2.0**128 - 2.0**119}
_AXES = "xyz"


def typed(type: ScalarType, value: Any) -> TypedScalar:
    """``i32(n)``, ``f32(x)`` and so on: a number that a kernel takes by value.

    Integers must fit; a finite float must not become infinite.
    """
    if isinstance(value, TypedScalar):
        raise Fault(f"{type}(...) of a value that is {value.type}(...) already")
    if type in _INT_BITS:
        integer = as_int(value, f"the value of {type}(...)")
        limit = 1 << (_INT_BITS[type] - 1)
        if not -limit <= integer < limit:
            raise Fault(f"{integer} does not fit {type}: {-limit} to {limit - 1}")
        return TypedScalar(type, integer)
    real = float(number(value, f"the value of {type}(...)"))
    if math.isfinite(real) and abs(real) >= _OVERFLOW.get(type, math.inf):
        raise Fault(f"{real} does not fit {type}")
    return TypedScalar(type, real)


def kernel(name: Any) -> KernelName:
    """``kernel("softmax<float, 256>")``: a kernel by its C++ name expression."""
    if type(name) is not str:
        raise Fault(f"kernel(...) takes the kernel's name as a string, not {kind_of(name)}")
    if len(name) > MAX_EXPRESSION_CHARS:
        raise Fault(f"the kernel's name has {len(name)} characters; the limit is {MAX_EXPRESSION_CHARS}")
    if not _EXPRESSION.fullmatch(name) or not _balanced(name):
        raise Fault(f"{name!r} is not a kernel's name such as 'softmax' or 'softmax<float, 256>'")
    return KernelName(name)


def _balanced(name: str) -> bool:
    depth = 0
    for character in name:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0 and name.count("<") == name.count(">")


def _extent3(value: Any, what: str) -> tuple[int, int, int]:
    parts = value if type(value) is tuple else (value,)
    if not 1 <= len(parts) <= 3:
        raise Fault(f"{what} has {len(parts)} dimensions; it takes 1 to 3")
    extents = [as_int(part, what) for part in parts] + [1] * (3 - len(parts))
    return extents[0], extents[1], extents[2]


def _check_extents(extents: tuple[int, int, int], limits: tuple[int, int, int], what: str, hint: str) -> None:
    for axis, extent, limit in zip(_AXES, extents, limits, strict=True):
        if extent < 1:
            raise Fault(f"{what} is {extents}: {axis} must be at least 1{hint}")
        if extent > limit:
            raise Fault(f"{what} is {extents}: {axis} must be at most {limit:,}")


def _cluster(value: Any, grid: tuple[int, int, int], name: str, limits: PlanLimits) -> tuple[int, int, int] | None:
    if value is None:
        return None
    what = f"the cluster of {name}"
    cluster = _extent3(value, what)
    _check_extents(cluster, limits.grid, what, "")
    if math.prod(cluster) > limits.cluster_blocks:
        raise Fault(f"{what} is {cluster}, {math.prod(cluster)} blocks; the limit is {limits.cluster_blocks}")
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise Fault(f"the grid {grid} of {name} is not a multiple of its cluster {cluster}")
    return cluster


def _argument(value: Any, position: int, name: str) -> Tensor | TensorMap | ScalarArg:
    if type(value) is Tensor or type(value) is TensorMap:
        return value
    if type(value) is TypedScalar:
        return ScalarArg(value.type, value.value)
    label = f"argument {position} of {name}"
    if type(value) is float:
        raise Fault(f"{label} is a bare float, {value!r}; say its type: f32({value!r})")
    if type(value) is int or type(value) is bool:
        raise Fault(f"{label} is a bare {type(value).__name__}, {value!r}; say its type: i32({int(value)})")
    raise Fault(
        f"{label} is {kind_of(value)}; a kernel takes tensors, tensor maps and i32() i64() f32() f64() f16() bf16()"
    )


def checked_grid(value: Any, name: str, limits: PlanLimits) -> tuple[int, int, int]:
    """The grid of a launch as three extents within the limits."""
    grid = _extent3(value, f"the grid of {name}")
    _check_extents(grid, limits.grid, f"the grid of {name}", "; guard the launch with if when there is nothing to do")
    return grid


def parameter_bytes(arguments: tuple[Tensor | TensorMap | ScalarArg, ...]) -> int:
    """Size of the kernel's parameters, each aligned to its own size."""
    end = 0
    for arg in arguments:
        if isinstance(arg, TensorMap):
            size = TENSOR_MAP_BYTES
        else:
            size = 8 if isinstance(arg, Tensor) else _SCALAR_BYTES[arg.type]
        end = -(-end // size) * size + size
    return end


def launch(
    machine: Machine, kernel: KernelName, options: tuple[Any, ...], args: list[Any], cluster: Any, cooperative: Any
) -> None:
    """Check one launch and append it.

    Args:
        machine: The resolution it belongs to.
        kernel: Its name expression.
        options: Grid, block and, when given, dynamic shared memory in bytes.
        args: Values for the kernel's parameters, in order.
        cluster: Blocks of a cluster, or None.
        cooperative: Whether the whole grid must be resident at once.
    """
    name, limits = kernel.expression, machine.limits
    machine.recording("kernels are launched")
    if not 2 <= len(options) <= 3:
        raise Fault(
            f"{name}[...] takes grid, block and optionally bytes of dynamic shared memory; it got {len(options)}"
        )
    grid = checked_grid(options[0], name, limits)
    block = _extent3(options[1], f"the block of {name}")
    _check_extents(block, limits.block, f"the block of {name}", "")
    if math.prod(block) > limits.threads_per_block:
        raise Fault(
            f"the block of {name} is {block}, {math.prod(block)} threads; the limit is {limits.threads_per_block}"
        )
    shared = as_int(options[2], f"the dynamic shared memory of {name}") if len(options) == 3 else 0
    if not 0 <= shared <= limits.dynamic_shared_bytes:
        raise Fault(
            f"{name} asks for {shared:,} bytes of dynamic shared memory; "
            f"a block can have 0 to {limits.dynamic_shared_bytes:,}"
        )
    if type(cooperative) is not bool:
        raise Fault(f"cooperative of {name} is True or False, not {show(cooperative)}")
    arguments = tuple(_argument(value, position, name) for position, value in enumerate(args, 1))
    size = parameter_bytes(arguments)
    if size > limits.parameter_bytes:
        raise Fault(
            f"the arguments of {name} take {bytes_text(size)}; the limit is {bytes_text(limits.parameter_bytes)}"
        )
    pending = PendingLaunch(
        name, grid, block, shared, arguments, machine.line, _cluster(cluster, grid, name, limits), cooperative
    )
    machine.add(pending)
