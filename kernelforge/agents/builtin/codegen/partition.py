"""Partition of a program into kernels: which values are stored in memory.

Everything that takes a loop or arithmetic starts as a kernel of its own; then values are folded into the kernel that
uses them wherever one generator can write both. Unfused designs fold only what belongs to one operator of the
reference; the fusing move folds across operators.
"""

from __future__ import annotations

from kernelforge.agents.builtin.codegen.elementwise import element_kernel
from kernelforge.agents.builtin.codegen.kernel import KernelText, Options, cone
from kernelforge.agents.builtin.codegen.rowwise import row_kernel
from kernelforge.agents.builtin.codegen.scan import scan_kernel
from kernelforge.agents.builtin.codegen.tiled import contraction_tile, transpose_tile
from kernelforge.agents.builtin.ir.nodes import (
    ANCHORS,
    Contraction,
    Convolution,
    Pointwise,
    Program,
    Reduce,
    Scan,
    Value,
    product,
    strip_views,
)
from kernelforge.errors import UnsupportedError


def write_kernel(name: str, root: Value, stored: frozenset[Value], options: Options) -> KernelText:
    """One kernel for ``root``, by the generator that its loops call for.

    Raises:
        UnsupportedError: no generator can write it in one kernel at a reasonable cost.
    """
    stored = stored - {root}
    values = cone(root, stored)
    anchors = [value for value in values if isinstance(value, ANCHORS)]
    kinds = {type(anchor) for anchor in anchors}
    if not anchors:
        tiled = transpose_tile(name, root, stored) if options.tile else None
        return tiled or element_kernel(name, root, stored, options)
    if kinds == {Reduce}:
        (first, *rest) = [anchor for anchor in anchors if isinstance(anchor, Reduce)]
        columns = any(dim.value != 1 for dim in first.arg.shape[first.last + 1 :])
        if columns and not rest and _as_large(root, first):
            return element_kernel(name, root, stored, options)
        return row_kernel(name, root, stored, options)
    if len(anchors) > 1 or not _as_large(root, anchors[0]) or not _reads_memory(anchors[0], stored):
        raise UnsupportedError("one kernel would do the same work many times")
    if kinds == {Scan}:
        return scan_kernel(name, root, stored, options)
    if kinds <= {Contraction, Convolution}:
        tiled = contraction_tile(name, root, stored, options) if options.tile else None
        return tiled or element_kernel(name, root, stored, options)
    return element_kernel(name, root, stored, options)


def _as_large(root: Value, anchor: Value) -> bool:
    """Whether each element of the anchor is used by one element of the root."""
    return product(root.shape).value == product(anchor.shape).value


def _reads_memory(anchor: Value, stored: frozenset[Value]) -> bool:
    """Whether a loop's operands are in memory (a scan reads each of them once, so it may compute them)."""
    if isinstance(anchor, Scan):
        return True
    bases = [strip_views(operand) for operand in anchor.operands]
    return all(base in stored or not _computes(base) for base in bases)


def partition(program: Program, options: Options, *, fuse: bool) -> list[Value]:
    """The values to store, in an order in which they can be computed."""
    everything = _in_order(program)
    outputs = set(program.outputs)
    ends = {strip_views(end) for end in program.ends}
    stored = {value for value in everything if _computes(value) or value in outputs}
    # Reductions first: the arithmetic on a row's sum belongs to the kernel that makes the sum, not to its reader.
    for kinds in ((Reduce,), (Pointwise, *ANCHORS)):
        for value in reversed(everything):
            if not isinstance(value, kinds) or value not in stored or value in outputs or (value in ends and not fuse):
                continue
            rest = frozenset(stored - {value})
            users = [root for root in rest if value in cone(root, rest - {root})]
            if len(users) == 1 and _possible(users[0], rest, options):
                stored.discard(value)
    return [value for value in everything if value in stored]


def _computes(value: Value) -> bool:
    """Whether a value takes work: constants and views are written out where they are read."""
    return isinstance(value, ANCHORS) or (isinstance(value, Pointwise) and bool(value.args))


def _possible(root: Value, stored: frozenset[Value], options: Options) -> bool:
    try:
        write_kernel("k", root, stored, options)
    except UnsupportedError:
        return False
    return True


def _in_order(program: Program) -> list[Value]:
    order: dict[Value, None] = {}
    for output in program.outputs:
        order.update(dict.fromkeys(cone(output, frozenset(order))))
    return list(order)
