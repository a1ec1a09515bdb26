"""Values that the Python of a candidate has in a plan, and what the functions of one plan share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kernelforge.modelnew.convert.constructors import UNKNOWN
from kernelforge.modelnew.convert.cpp_expressions import INTEGERS
from kernelforge.modelnew.convert.cpp_tokens import Problem
from kernelforge.modelnew.convert.cpp_units import Parameter, Unit
from kernelforge.modelnew.convert.python_side import PythonFile
from kernelforge.modelnew.convert.torch_operators import Argument

Kind = Literal["tensor", "tensors", "number", "sequence", "string", "none", "dtype", "pair", "object", "device"]


@dataclass(frozen=True)
class Item:
    """An expression of ``forward`` in the plan."""

    text: str
    kind: Kind
    strided: bool = False
    """Whether torch would have a tensor here that is not contiguous."""
    from_task: bool = False
    """Whether it is an input of the task, which need not be contiguous."""
    memory: frozenset[int] = frozenset()
    """Tensors whose memory it may share."""
    content: Any = None
    """Of an object: what it is; of a sequence: its items, where they are known."""
    path: str = ""
    """Of an object: its dotted name in the model."""


@dataclass
class Shared:
    """State that the functions of one plan share."""

    file: PythonFile
    unit: Unit
    problems: list[Problem]
    hosts_used: list[str] = field(default_factory=list)
    launches: bool = False
    """Whether Python itself launches a kernel, of cupy."""
    operators: dict[str, None] = field(default_factory=dict)
    """Operators of torch that are called."""
    functions: dict[str, str] = field(default_factory=dict)
    """Functions of the plan made of modules and Python functions, by name."""
    results: dict[str, Item] = field(default_factory=dict)
    writing: set[str] = field(default_factory=set)
    """Functions of Python that write to an argument, where the plan makes a new tensor."""
    memories: itertools.count[int] = field(default_factory=lambda: itertools.count(1))


def sequence_of(items: Sequence[Item]) -> Item:
    """A tuple or list of these."""
    inner = ", ".join(item.text for item in items)
    text = f"({inner},)" if len(items) == 1 else f"({inner})"
    tensors = bool(items) and all(item.kind == "tensor" for item in items)
    memory = frozenset[int]().union(*(item.memory for item in items))
    strided = any(item.strided for item in items)
    return Item(text, "tensors" if tensors else "sequence", strided, memory=memory, content=tuple(items))


def merged_items(a: Item, b: Item | None) -> Item:
    """A value that comes from one of two branches."""
    if b is None:
        return a
    kind = a.kind if a.kind != "none" else b.kind
    return replace(
        a, kind=kind, strided=a.strided or b.strided, from_task=a.from_task or b.from_task, memory=a.memory | b.memory
    )


def spread(item: Item, parameter: Parameter) -> Item:
    """An attribute that a function takes as a tuple: the plan has its items by number."""
    count = sum(word in INTEGERS for word in parameter.type)
    if item.content != UNKNOWN or "tuple" not in parameter.type or count < 2:
        return item
    texts = [f'attrs["{item.path}.{axis}"]' for axis in range(count)]
    return replace(item, text=f"({', '.join(texts)})")


def as_argument(item: Item) -> Argument:
    """The value as an argument of an operator of torch."""
    if item.kind in ("tensor", "tensors", "number", "sequence", "string", "none"):
        return Argument(item.text, item.kind)
    return Argument(item.text, "other")
