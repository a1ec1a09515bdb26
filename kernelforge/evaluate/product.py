"""Child side: whether a reference is one matrix product, and of which operands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from kernelforge.evaluate.reference import Value
from kernelforge.records import Graph, Node

_PRODUCTS: Final = frozenset({"aten.mm", "aten.bmm", "aten.matmul", "aten.linear"})

_VIEWS: Final = frozenset({
    "aten.t", "aten.numpy_T", "aten.mT", "aten.transpose.int", "aten.permute", "aten.view", "aten.reshape",
    "aten.unsqueeze", "aten.squeeze.dim", "aten.expand", "aten.contiguous", "aten.detach",
})  # fmt: skip
"""Operators that only say how a tensor is looked at."""

_BATCHED_DIM: Final = 3


@dataclass(frozen=True)
class Operands:
    """``left @ right``: matrices, or batches of as many matrices. ``shape`` is that of the reference's output."""

    left: torch.Tensor
    right: torch.Tensor
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """A traced reference that is one matrix product of views of its inputs and weights."""

    nodes: Mapping[str, Node]
    product: Node

    def operands(self, inputs: Sequence[Value], weights: Mapping[str, torch.Tensor]) -> Operands | None:
        """The operands of one draw; None where they are not two matrices or two equal batches of them."""
        left, right = (self._value(argument, inputs, weights) for argument in self.product.args[:2])
        if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
            return None
        right = right.t() if self.product.op == "aten.linear" else right
        return _as_matrices(left, right)

    def _value(self, argument: Any, inputs: Sequence[Value], weights: Mapping[str, torch.Tensor]) -> Any:
        if isinstance(argument, tuple | list):
            return [self._value(one, inputs, weights) for one in argument]
        if not isinstance(argument, dict):
            return argument
        node = self.nodes[argument["ref"]]
        if node.kind == "input":
            return inputs[int(node.op)]
        if node.kind == "weight":
            return weights[node.op].detach()
        _, name, *overload = node.op.split(".")
        operator = getattr(getattr(torch.ops.aten, name), overload[0] if overload else "default")
        return operator(
            *(self._value(one, inputs, weights) for one in node.args),
            **{key: self._value(one, inputs, weights) for key, one in node.kwargs.items()},
        )


def product_of(graph: Graph) -> Product | None:
    """The one matrix product that a graph is; None where it is anything else."""
    nodes = {node.name: node for node in graph.nodes}
    work = [node for node in graph.nodes if node.kind == "op" and node.op not in _VIEWS]
    if len(work) != 1 or work[0].op not in _PRODUCTS:
        return None
    (product,) = work
    if product.op == "aten.linear" and any(bias is not None for bias in product.args[2:]):
        return None
    outputs = next((node.args for node in graph.nodes if node.kind == "output"), ())
    if len(outputs) != 1 or outputs[0] != {"ref": product.name} or product.spec is None:
        return None
    return Product(nodes, product)


def _as_matrices(left: torch.Tensor, right: torch.Tensor) -> Operands | None:
    if left.dtype != right.dtype or left.numel() == 0 or right.numel() == 0:
        return None
    if right.dim() == 2 and left.dim() >= 2:
        shape = (*left.shape[:-1], right.shape[1])
        return Operands(left.reshape(-1, left.shape[-1]) if left.dim() > 2 else left, right, shape)
    if left.dim() == right.dim() >= _BATCHED_DIM and left.shape[:-2] == right.shape[:-2]:
        batch = math.prod(left.shape[:-2])
        matrices = (left.reshape(batch, *left.shape[-2:]), right.reshape(batch, *right.shape[-2:]))
        return Operands(*matrices, (*left.shape[:-1], right.shape[-1]))
    return None
