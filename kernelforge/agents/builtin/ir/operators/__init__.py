"""Lowerings of the operators that are not elementwise, by kind; importing this package registers them all."""

from kernelforge.agents.builtin.ir.operators import (
    creation,
    indexing,
    losses,
    norms,
    pooling_and_convolution,
    products,
    reductions,
    views,
)

__all__ = ["creation", "indexing", "losses", "norms", "pooling_and_convolution", "products", "reductions", "views"]
