"""The C function of a translation task: its parameters, and which of them are inputs, extents and outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kernelforge.errors import TaskError
from kernelforge.records import Task
from kernelforge.records.task import C_ELEMENTS
from kernelforge.tasks import parse_task_file

_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_PARAMETER: Final = re.compile(r"(const\s+)?([a-z][a-z ]*?)\s*(\*)?\s*\b(\w+)")


class Parameter(NamedTuple):
    """A parameter of a C function."""

    type: str
    """Type of the number, or of the array's elements."""
    name: str
    array: bool
    source: Literal["input", "extent", "output"]
    """Where its value comes from: an argument of the reference's ``forward``; a constant of its file, named in capitals
    there; or nowhere, for it is an array that the function writes."""

    def __str__(self) -> str:
        return f"{'const ' if self.array and self.source == 'input' else ''}{self.type} {'*' * self.array}{self.name}"


class Signature(NamedTuple):
    """Name and parameters of a function that returns nothing."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def outputs(self) -> tuple[Parameter, ...]:
        """Arrays that the function writes, in the order of the reference's outputs."""
        return tuple(item for item in self.parameters if item.source == "output")

    def __str__(self) -> str:
        """The declaration in C."""
        return f"void {self.name}({', '.join(map(str, self.parameters))})"


def read_signature(task: Task) -> Signature:
    """The C function that has the task's name, in the text that its Coder is shown.

    Raises:
        TaskError: the task shows no such function, or one that this lane cannot call.
    """
    if not task.c_source:
        raise TaskError(f"task {task.name!r} has no C function, so nothing says how a C candidate is called")
    if task.c_language != "c":
        raise TaskError(f"task {task.name!r} of {task.suite} shows no C; translate the CUDA of a suite that does")
    match = re.search(rf"^void\s+{re.escape(task.name)}\s*\(([^)]*)\)", _COMMENT.sub("", task.c_source), re.MULTILINE)
    if match is None:
        raise TaskError(f"task {task.name!r}: its C source defines no `void {task.name}(...)`")
    parsed = parse_task_file(task.source, task.name)
    taken, extents = set(parsed.parameters), {name.lower() for name in parsed.constants}
    parameters = tuple(_parameter(part, taken, extents, task.name) for part in match[1].split(","))
    missing = taken - {item.name for item in parameters}
    if missing:
        raise TaskError(
            f"task {task.name!r}: its C function has no parameter {sorted(missing)[0]!r}, which forward has"
        )
    if task.policy.mutates:
        raise TaskError(f"task {task.name!r} changes an input in place, which no C candidate is called for")
    if task.policy.host_inputs:
        raise TaskError(f"task {task.name!r} has inputs in the host memory of a GPU, which a C candidate has none of")
    return Signature(task.name, parameters)


def _parameter(text: str, taken: set[str], extents: set[str], task: str) -> Parameter:
    match = _PARAMETER.fullmatch(text.strip())
    if match is None or match[2] not in C_ELEMENTS:
        raise TaskError(f"task {task!r}: cannot read the C parameter {text.strip()[:80]!r}")
    const, kind, pointer, name = match.groups()
    array = bool(pointer)
    if name in taken:
        source: Literal["input", "extent", "output"] = "input"
    elif array:
        source = "output"
    elif name in extents:
        source = "extent"
    else:
        raise TaskError(f"task {task!r}: the C parameter {name!r} is no input, no constant of the file and no array")
    if array and bool(const) != (source == "input"):
        raise TaskError(f"task {task!r}: the C array {name!r} is const exactly where forward takes it")
    return Parameter(kind, name, array, source)


def numbers(
    signature: Signature, order: Sequence[str], scalars: Mapping[int, object], constants: Mapping[str, object]
) -> dict[str, int | float]:
    """Values of the parameters that are no arrays, by name.

    Args:
        signature: of the function.
        order: names of the arguments of ``forward``.
        scalars: numbers among them, by position.
        constants: of the task file at the size.

    Raises:
        TaskError: a value is no number.
    """
    values: dict[str, int | float] = {}
    for item in signature.parameters:
        if item.array:
            continue
        value = scalars.get(order.index(item.name)) if item.source == "input" else constants[item.name.upper()]
        if not isinstance(value, int | float):
            raise TaskError(f"the C parameter {item.name!r} takes a number, and there is {value!r}")
        values[item.name] = float(value) if item.type in ("float", "double") else int(value)
    return values
