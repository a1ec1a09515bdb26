"""Lowering of a traced graph of ATen operators; the modules here register the operators that are not elementwise."""

from kernelforge.agents.builtin.ir.lowering import Attributes, Lowering
from kernelforge.agents.builtin.ir.nodes import Program
from kernelforge.agents.builtin.ir.operators import (  # noqa: F401  (fill the registry)
    creation,
    indexing,
    losses,
    norms,
    pooling_and_convolution,
    products,
    recurrent,
    reductions,
    views,
)
from kernelforge.agents.builtin.ir.rolling import rolled
from kernelforge.records import Graph

__all__ = ["lower"]


def lower(graph: Graph, attributes: Attributes | None = None, small: Graph | None = None) -> Program:
    """Lower a graph.

    Args:
        graph: the reference at the full size.
        attributes: scalar attributes of the reference that change with the size, by their value at the full size; a
            number of the graph that equals one is read from it.
        small: the reference at the small size. Where two extents are equal at one of them, the other
            shows which is meant.

    Raises:
        UnsupportedError: an operator that the built-in Coder does not know; the message names it.
    """
    if small is not None:
        graph, small = rolled(graph, small)
    return Lowering(attributes or {}).run(graph, small)
