"""``library("matmul", x, weight, out=y)``: a torch operator that the harness calls between launches.

The operator is a name and stays one here: what it stands for is looked up where it is called.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelforge.candidate.language.machine import LibraryArgument, Machine, PendingLibrary
from kernelforge.candidate.language.values import INT_BOUND, Fault, Tensor, kind_of, show

MAX_ARGUMENTS = 64
"""Arguments of one call, items of one tuple among them, and results."""
_OPERATOR = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def library(machine: Machine, given: list[Any], named: Mapping[str, Any], out: Any) -> None:
    """Check one call and append it.

    Args:
        machine: The resolution it belongs to.
        given: The operator's name, then its arguments.
        named: Its keyword arguments.
        out: The tensor or tensors that its results are put into.
    """
    machine.recording("library is called")
    operator = _operator(machine, given[0] if given else None)
    if len(given) + len(named) > MAX_ARGUMENTS:
        raise Fault(f"library takes at most {MAX_ARGUMENTS} arguments, got {len(given) + len(named)}")
    step = PendingLibrary(
        operator,
        tuple(_value(value, f"argument {position} of {operator}") for position, value in enumerate(given[1:], 1)),
        {name: _value(value, f"{name} of {operator}") for name, value in named.items()},
        _results(operator, out),
        machine.line,
    )
    # A tuple of results costs one step to name, and each of them is held against every other tensor.
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
        told = f"it allows {allowed}" if allowed else "it allows none; write a kernel"
        raise Fault(f"this task does not allow library({operator!r}): {told}")
    return operator


def _value(value: Any, place: str) -> LibraryArgument:
    if type(value) is Tensor or value is None or type(value) in (float, bool, str):
        return value  # type: ignore[no-any-return]
    if type(value) is int:
        return _within_64_bits(value, place)
    if type(value) in (tuple, range):
        if len(value) > MAX_ARGUMENTS:
            raise Fault(f"{place} has {len(value):,} items; the limit is {MAX_ARGUMENTS}")
        if all(type(item) is int for item in value):
            return tuple(_within_64_bits(item, place) for item in value)
        raise Fault(f"{place} is {show(value)}; a sequence for library holds ints only")
    raise Fault(
        f"{place} is {kind_of(value)}; library takes tensors, numbers, bools, strings, None and sequences of ints"
    )


def _within_64_bits(value: int, place: str) -> int:
    if -INT_BOUND <= value < INT_BOUND:
        return value
    raise Fault(f"{place} does not fit 64 bits")


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
    """Results that lie where another result or an argument lies. Only workspace can, and that is contiguous."""
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
