"""Render a design of a program as CUDA source and launch plan."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelforge.agents.builtin.codegen.cpp_emitter import helpers_for
from kernelforge.agents.builtin.codegen.kernel import KernelText, cone
from kernelforge.agents.builtin.codegen.partition import partition, write_kernel
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.ir.nodes import (
    ANCHORS,
    Contraction,
    Convolution,
    Program,
    Reduce,
    Scan,
    StoredTensor,
    Value,
    Window,
)
from kernelforge.agents.builtin.ir.trace_to_ir import Attributes, lower
from kernelforge.records import Graph

_PLAN_WORDS = {
    "min", "max", "sum", "prod", "abs", "ceil_div", "next_pow2", "sqrt", "log2", "int", "float", "bool", "len", "range",
    "enumerate", "zip", "reversed", "tuple", "list", "inf", "kernel", "empty", "zeros", "empty_like", "zeros_like",
    "w", "attrs", "i32", "i64", "f32", "f64", "f16", "bf16",
}  # fmt: skip
_SUFFIX = {Reduce: "rows", Scan: "scan", Contraction: "product", Convolution: "conv", Window: "window"}


LONG_TEXT = 72
"""Characters of an extent from which the plan gives it a name."""


@dataclass(frozen=True)
class Rendered:
    """A candidate as text, and the kernels it is made of."""

    source: str
    plan: str
    kernels: tuple[str, ...]


def render(graph: Graph, design: Design, attributes: Attributes | None = None) -> Rendered:
    """Write a design of a reference.

    Args:
        attributes: as for :func:`~kernelforge.agents.builtin.ir.trace_to_ir.lower`.

    Raises:
        UnsupportedError: the reference uses an operator that the built-in Coder does not know.
    """
    program = lower(graph, attributes)
    options = design.options
    order = partition(program, options, fuse=design.fuse)
    stored = frozenset(order)
    kernels: list[KernelText] = []
    taken: set[str] = set()
    for value in order:
        kernels.append(write_kernel(_name(value, stored, taken), value, stored, options))
    bodies = "\n\n".join(kernel.source for kernel in kernels)
    helpers = helpers_for(bodies)
    source = "\n\n".join(part for part in (design.comment(), helpers, bodies) if part) + "\n"
    return Rendered(source, _plan(program, kernels, order), tuple(kernel.name for kernel in kernels))


def _name(value: Value, stored: frozenset[Value], taken: set[str]) -> str:
    kinds = [type(member) for member in cone(value, stored - {value}) if isinstance(member, ANCHORS)]
    base = f"{value.origin or 'copy'}_{_SUFFIX[kinds[0]] if kinds else 'map'}"
    name, suffix = base, 2
    while name in taken:
        name, suffix = f"{base}{suffix}", suffix + 1
    taken.add(name)
    return name


def _plan(program: Program, kernels: list[KernelText], order: list[Value]) -> str:
    names: dict[Value, str] = {}
    used = (
        set(program.parameters) | {leaf.name for leaf in program.leaves if isinstance(leaf, StoredTensor)} | _PLAN_WORDS
    )
    for value in order:
        name, suffix = (value.origin or "copy"), 2
        while name in used:
            name, suffix = f"{value.origin or 'copy'}_{suffix}", suffix + 1
        used.add(name)
        names[value] = name
    body: list[str] = []
    long: dict[str, str] = {}
    returned = dict(zip(program.outputs, program.shapes, strict=True))
    for kernel in kernels:
        root = kernel.root
        dims = returned.get(root, root.shape)
        for axis, dim in enumerate(root.shape):
            # Extents of extents grow without bound: the long ones get names of their own.
            if len(extent := _named(dim.text, long)) > LONG_TEXT:
                long[extent] = f"{names[root]}_n{axis}"
                body.append(f"{long[extent]} = {extent}")
        shape = ", ".join(dim.text for dim in dims) + ("," if len(dims) == 1 else "")
        added = (f"{names[root]} = empty(({shape}), {root.dtype})", *kernel.setup, kernel.launch(names, names[root]))
        body += [_named(line, long) for line in added]
    results = ", ".join(names[output] for output in program.outputs)
    text = "\n".join([*body, f"return {results}"])
    head: list[str] = []
    for leaf in program.leaves:
        if isinstance(leaf, StoredTensor):
            for axis in range(len(leaf.shape)):
                if re.search(rf"\b{leaf.name}_{axis}\b", text):
                    head.append(f"{leaf.name}_{axis} = {leaf.text}.shape[{axis}]")
    lines = [*head, *text.split("\n")]
    return "\n".join([f"def forward({', '.join(program.parameters)}):", *(f"    {line}" for line in lines)]) + "\n"


def _named(text: str, long: dict[str, str]) -> str:
    """Plan text with the names of long extents in place of them."""
    for extent, name in long.items():
        text = text.replace(extent, name)
    return text
