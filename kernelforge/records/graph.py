"""The reference as a flat graph of operators, for agents that reason about it without running it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from kernelforge.records.base import Record, restore_non_finite
from kernelforge.records.task import TensorSpec


class Node(Record):
    """One operator call. Arguments are JSON: ``{"ref": "name"}`` for a node, else a plain value or a list."""

    name: str
    kind: Literal["input", "weight", "op", "output"]
    op: str
    """ATen overload packet (``aten.softmax``), the weight's dotted name, or the input's position."""
    args: Annotated[tuple[Any, ...], BeforeValidator(restore_non_finite)] = ()
    kwargs: Annotated[dict[str, Any], BeforeValidator(restore_non_finite)] = {}
    spec: TensorSpec | None = None
    """The value's shape and dtype where it is one tensor."""


class Graph(Record):
    """Nodes in execution order; the last one is the output node whose ``args`` lists the results."""

    size: str
    nodes: tuple[Node, ...]
