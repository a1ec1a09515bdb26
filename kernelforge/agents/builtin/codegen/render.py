"""Render a design of a program as CUDA source and launch plan.

First the program is partitioned into kernels. Everything that takes a loop or arithmetic starts as a kernel of its own;
then values are folded into the kernel that uses them wherever one generator can write both. Unfused designs fold only
what belongs to one operator of the reference; the move ``fuse`` folds across operators.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from kernelforge.agents.builtin.codegen.attention import attention_kernel, fuse_attention
from kernelforge.agents.builtin.codegen.columnwise import column_kernel, split_columns
from kernelforge.agents.builtin.codegen.cpp_emitter import helpers_for
from kernelforge.agents.builtin.codegen.elementwise import element_kernel
from kernelforge.agents.builtin.codegen.kernel import KernelText, Options, cone, in_order, leaves, with_wide_indices
from kernelforge.agents.builtin.codegen.product_axes import arrange_weights
from kernelforge.agents.builtin.codegen.recurrence import recurrence_kernel
from kernelforge.agents.builtin.codegen.rowwise import join_rows, keep_groups, row_kernel, spread_in_one_pass
from kernelforge.agents.builtin.codegen.scan import scan_kernel
from kernelforge.agents.builtin.codegen.tensor_cores import split_sums
from kernelforge.agents.builtin.codegen.tiled import contraction_tile, transpose_tile
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.ir.lowering import Attributes
from kernelforge.agents.builtin.ir.nodes import (
    ANCHORS,
    Attention,
    Contraction,
    Convolution,
    Loop,
    LoopResult,
    Pointwise,
    Program,
    Recurrence,
    Reduce,
    Scan,
    StoredTensor,
    Value,
    Window,
    computes,
    is_of_round,
    product,
    strip_views,
    unshaped,
)
from kernelforge.agents.builtin.ir.operators import lower
from kernelforge.candidate.plan_language.interpreter import PlanLimits
from kernelforge.errors import UnsupportedError
from kernelforge.records import Graph
from kernelforge.records.task import MAX_PLAN_BYTES


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
        tiled = transpose_tile(name, root, stored, options) if options.tile else None
        return tiled or element_kernel(name, root, stored, options)
    if kinds == {Reduce}:
        if options.warp_reduce:
            try:
                return column_kernel(name, root, stored, options)
            except UnsupportedError:
                pass  # by rows, below
        (first, *rest) = [anchor for anchor in anchors if isinstance(anchor, Reduce)]
        columns = any(dim.value != 1 for dim in first.arg.shape[first.last + 1 :])
        if columns and not rest and _as_large(root, first):
            return element_kernel(name, root, stored, options)
        return row_kernel(name, root, stored, options)
    if len(anchors) > 1 or not _as_large(root, anchors[0]) or not _reads_memory(anchors[0], stored):
        raise UnsupportedError("one kernel would do the same work many times")
    if kinds == {Scan}:
        return scan_kernel(name, root, stored, options)
    if kinds == {Recurrence}:
        return recurrence_kernel(name, root, stored)
    if isinstance(anchors[0], Attention):
        return attention_kernel(name, root, anchors[0], stored)
    if kinds <= {Contraction, Convolution}:
        tiles = options.tile or options.tensor_cores
        tiled = contraction_tile(name, root, stored, options) if tiles else None
        if tiled is None and tiles and anchors[0] is not root and contraction_tile(name, anchors[0], stored, options):
            raise UnsupportedError("the product by itself is written by tiles")
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
    return all(base in stored or not computes(base) for base in bases)


def partition(program: Program, options: Options, *, fuse: bool) -> list[Value]:
    """The values to store, in an order in which they can be computed."""
    everything = in_order(program)
    outputs = set(program.outputs)
    ends = {strip_views(end) for end in program.ends}
    stored = {value for value in everything if computes(value) or value in outputs or _is_of_loop(value)}
    loops = _loops(everything)
    users: dict[Value, list[Value]] = {value: [] for value in everything}
    for value in everything:
        for operand in value.operands:
            users.setdefault(operand, []).append(value)
    # Reductions first: the arithmetic on a row's sum belongs to the kernel that makes the sum, not to its reader.
    for kinds in ((Reduce,), (Pointwise, *ANCHORS)):
        for value in reversed(everything):
            if not isinstance(value, kinds) or value not in stored or value in outputs or (value in ends and not fuse):
                continue
            readers = stored_readers(value, users, stored)
            if len(readers) != 1:
                continue
            reader = readers.pop()
            # A loop takes values from memory, and what is the same in all of its rounds is computed before it.
            if _is_of_loop(reader) or loops.get(reader) is not loops.get(value):
                continue
            if _possible(reader, frozenset(stored - {value}), options):
                stored.discard(value)
    return [value for value in everything if value in stored]


def _is_of_loop(value: Value) -> bool:
    return isinstance(value, Loop | LoopResult)


def _loops(values: Sequence[Value]) -> dict[Value, Loop]:
    """The loop in whose rounds each value is computed, for those that are in one."""
    return {value: loop for loop in values if isinstance(loop, Loop) for value in loop.varying()}


def stored_readers(value: Value, users: Mapping[Value, Sequence[Value]], stored: Collection[Value]) -> set[Value]:
    """The stored values whose kernels would compute ``value``, were it not stored."""
    readers: set[Value] = set()
    ahead = list(users[value])
    while ahead:
        user = ahead.pop()
        if user in stored:
            readers.add(user)
        else:
            ahead += users[user]
    return readers


def workspace_bytes(order: Sequence[Value], outputs: Sequence[Value]) -> int:
    """Bytes that a plan needs at the full size: tensors of equal size share memory, as far as they are not in use at
    the same time; results share none."""
    last = {leaf: step for step, root in enumerate(order) for leaf in leaves(root, frozenset(order))}
    last |= dict.fromkeys(outputs, len(order))
    needed: Counter[tuple[int, bool]] = Counter()
    for step in range(len(order)):
        live = [value for value in order[: step + 1] if last.get(value, step) >= step]
        needed |= Counter((product(value.shape).value * value.dtype.itemsize, value in outputs) for value in live)
    return sum(size * count for (size, _), count in needed.items())


def _possible(root: Value, stored: frozenset[Value], options: Options) -> bool:
    try:
        write_kernel("k", root, stored, options)
    except UnsupportedError:
        return False
    return True


_PLAN_WORDS = {
    "min", "max", "sum", "prod", "abs", "ceil_div", "next_pow2", "sqrt", "log2", "int", "float", "bool", "len", "range",
    "enumerate", "zip", "reversed", "tuple", "list", "inf", "kernel", "empty", "zeros", "empty_like", "zeros_like",
    "w", "attrs", "i32", "i64", "f32", "f64", "f16", "bf16",
}  # fmt: skip
_SUFFIX = {
    Reduce: "rows",
    Scan: "scan",
    Contraction: "product",
    Convolution: "conv",
    Window: "window",
    Attention: "attention",
    Recurrence: "recurrence",
}


LONG_PLAN = 64 * 1024
"""Characters of a plan from which products of extents that repeat get names: those of networks of a hundred layers."""
_PRODUCT = re.compile(r"(?<=\()(\w+(?: \* \w+)+)(?=\))")
"""A product of names alone in its brackets."""

LONG_LINE = 1500
"""Characters of a line of the plan, which may have 2000, from which its terms get lines of their own."""
_BRACKETED = re.compile(r"\(((?:[^(),\[\]\"]|attrs\[\"[^\"]*\"\])+)\)")
"""Arithmetic without further brackets, in brackets."""
SHORT_TERM = 8
"""Characters of a term from which a name is shorter."""
_ALONE = re.compile(r"(?<![\w\]])\((\w+|attrs\[\"[^\"]*\"\])\)")
"""A name in brackets that are no call's."""

_NAME_OR_STRING = re.compile(r"\"[^\"]*\"|\b([A-Za-z_]\w*)")
"""What a plan calls something, apart from what stands in quotes."""
_ASSIGNED = re.compile(r"^ *(\w+) = ", re.MULTILINE)

LONG_TEXT = 12
"""Characters of an extent from which the plan gives it a name."""


@dataclass(frozen=True)
class Rendered:
    """A candidate as text, and the kernels it is made of."""

    source: str
    plan: str
    kernels: tuple[str, ...]


def render(
    graph: Graph,
    design: Design,
    attributes: Attributes | None = None,
    small: Graph | None = None,
    *,
    warpgroups: bool = False,
    clusters: bool = False,
    shared_bytes: int = Options.shared_bytes,
) -> Rendered:
    """Write a design of a reference.

    Args:
        graph, attributes, small: as for :func:`~kernelforge.agents.builtin.ir.operators.lower`.
        design: what to write.
        warpgroups: whether the GPU multiplies by ``wgmma``.
        clusters: whether it runs clusters of blocks.
        shared_bytes: shared memory that the GPU gives a block.

    Raises:
        UnsupportedError: the reference uses an operator that the built-in Coder does not know.
    """
    program = lower(graph, attributes, small)
    options = replace(design.options, warpgroups=warpgroups, clusters=clusters, shared_bytes=shared_bytes)
    if options.tile or options.tensor_cores:
        arrange_weights(program)
    if options.tensor_cores:
        if design.fuse:
            fuse_attention(program)
        split_sums(program, options)
    if options.warp_reduce:
        if design.fuse:
            join_rows(program)
            spread_in_one_pass(program)
            keep_groups(program)
        split_columns(program, options)
    order = partition(program, options, fuse=design.fuse)
    needs = workspace_bytes(order, program.outputs)
    rendered = _rendered(program, design, options, order) if needs <= PlanLimits().workspace_bytes else None
    if rendered is None or (len(rendered.plan) > MAX_PLAN_BYTES and not design.fuse):
        rendered = _rendered(program, design, options, partition(program, options, fuse=True))
    return replace(rendered, plan=_with_short_names(rendered.plan, MAX_PLAN_BYTES))


def _rendered(program: Program, design: Design, options: Options, order: list[Value]) -> Rendered:
    stored = frozenset(order)
    kernels: list[KernelText] = []
    written: dict[str, KernelText] = {}
    taken: set[str] = set()
    for value in order:
        if _is_of_loop(value):
            continue
        name = _name(value, stored, taken)
        kernel = with_wide_indices(write_kernel(name, value, stored, options), stored - {value})
        # The layers of a network are often the same kernel on other tensors, which is then written once.
        first = written.setdefault(_nameless(kernel), kernel)
        kernels.append(kernel.called(first))
        if first is kernel:
            taken.add(name)
    bodies = "\n\n".join(source for kernel in written.values() for source in kernel.sources)
    helpers = helpers_for(bodies)
    source = "\n\n".join(part for part in (design.comment(), helpers, bodies) if part) + "\n"
    names = tuple(kernel.name for kernel in written.values())
    return Rendered(source, _plan(program, kernels, order), names)


def _nameless(kernel: KernelText) -> str:
    """The kernel's source with numbers for its name and for those of its tensors and scalars."""
    names = [kernel.name, *kernel.signature.tensors.values(), *kernel.signature.scalars.values()]
    numbers = {name: f"@{number}" for number, name in enumerate(names)}
    text = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda match: numbers.get(match[0], match[0]), kernel.source)
    return text + (_nameless(kernel.alternative) if kernel.alternative is not None else "")


def _name(value: Value, stored: frozenset[Value], taken: set[str]) -> str:
    kinds = [type(member) for member in cone(value, stored - {value}) if isinstance(member, ANCHORS)]
    base = f"{value.origin or 'copy'}_{_SUFFIX[kinds[0]] if kinds else 'map'}"
    name, suffix = base, 2
    while name in taken:
        name, suffix = f"{base}{suffix}", suffix + 1
    return name


class _PlanBody:
    """The lines of a plan that allocate tensors and launch kernels."""

    def __init__(self, program: Program, kernels: list[KernelText], order: list[Value]) -> None:
        self.kernels = {kernel.root: kernel for kernel in kernels}
        self.returned = dict(zip(program.outputs, program.shapes, strict=True))
        self.order = order
        self.loops = _loops(order)
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self._long: dict[str, str] = {}
        """Names of long extents."""
        leaves = {leaf.name for leaf in program.leaves if isinstance(leaf, StoredTensor)}
        used = set(program.parameters) | leaves | _PLAN_WORDS
        for loop in dict.fromkeys(self.loops.values()):
            used |= {loop.number, *(state.text for state in loop.states)}
        for value in order:
            name, suffix = (value.origin or "copy"), 2
            while name in used:
                name, suffix = f"{value.origin or 'copy'}_{suffix}", suffix + 1
            used.add(name)
            self.names[value] = name
        for value in order:
            if isinstance(value, LoopResult) and not value.of_all_rounds:
                # What its last round computed still has its name after a loop.
                self.names[value] = self.names[unshaped(value.loop.lasts[value.position])]

    def write(self) -> list[str]:
        for value in self.order:
            if isinstance(value, Loop):
                self._write_loop(value)
            elif not isinstance(value, LoopResult) and value not in self.loops:
                self._name_extents(value)
                self._add(self._allocation(value), *self.kernels[value].steps(self.names, self.names[value]))
        return self.lines

    def _add(self, *lines: str) -> None:
        self.lines += [_named(line, self._long) for line in lines]

    def _name_extents(self, value: Value) -> None:
        """Name what is long: extents of extents grow without bound."""
        for axis, dim in enumerate(value.shape):
            if len(extent := _named(dim.text, self._long)) > LONG_TEXT and not extent.isidentifier():
                self._long[extent] = f"{self.names[value]}_n{axis}"
                self.lines.append(f"{self._long[extent]} = {extent}")

    def _allocation(self, value: Value) -> str:
        dims = self.returned.get(value, value.shape)
        shape = ", ".join(dim.text for dim in dims) + ("," if len(dims) == 1 else "")
        return f"{self.names[value]} = empty(({shape}), {value.dtype})"

    def _tensor(self, value: Value) -> str:
        """Text of the plan for the tensor that has a value's elements."""
        base = unshaped(value)
        return base.text if isinstance(base, StoredTensor) else self.names[base]

    def _write_loop(self, loop: Loop) -> None:
        of_all: dict[Value, str] = {}
        for result in self.order:
            if isinstance(result, LoopResult) and result.loop is loop and result.of_all_rounds:
                self._name_extents(result)
                self._add(self._allocation(result))
                shape = ", ".join(dim.text for dim in result.shape)
                same = self.returned.get(result, result.shape) == result.shape
                tensor = self.names[result] if same else f"{self.names[result]}.view({shape})"
                of_all[unshaped(loop.collected[result.position])] = f"{tensor}[{loop.number}]"
        lines: list[str] = []
        for value in self.order:
            if self.loops.get(value) is not loop:
                continue
            self._name_extents(value)
            kernel, name = self.kernels[value], self.names[value]
            lines.append(f"{name} = {of_all[value]}" if value in of_all else self._allocation(value))
            if kernel.alternative is None and not any(map(is_of_round, kernel.setup)):
                self._add(*kernel.setup)  # once, before the loop
                kernel = replace(kernel, setup=())
            lines += kernel.steps(self.names, name)
        if loop.states:
            states = ", ".join(state.text for state in loop.states)
            self._add(f"{states} = {', '.join(map(self._tensor, loop.starts))}")
            lines.append(f"{states} = {', '.join(map(self._tensor, loop.ends))}")
        self._add(f"for {loop.number} in range({loop.rounds.text}):", *(f"    {line}" for line in lines))


def _plan(program: Program, kernels: list[KernelText], order: list[Value]) -> str:
    body = _PlanBody(program, kernels, order)
    results = ", ".join(body.names[output] for output in program.outputs)
    text = "\n".join([*body.write(), f"return {results}"])
    head: list[str] = []
    words = set(re.findall(r"\w+", text))
    for leaf in program.leaves:
        if isinstance(leaf, StoredTensor):
            for axis in range(len(leaf.shape)):
                if f"{leaf.name}_{axis}" in words:
                    head.append(f"{leaf.name}_{axis} = {leaf.text}.shape[{axis}]")
    lines = [*head, *text.split("\n")]
    if len(text) > LONG_PLAN:
        lines = _with_named_products(lines)
    lines = _with_short_lines(lines)
    return "\n".join([f"def forward({', '.join(program.parameters)}):", *(f"    {line}" for line in lines)]) + "\n"


def _with_named_products(lines: list[str]) -> list[str]:
    """The lines with a name for each product of extents that several arguments repeat."""
    products = Counter(match for line in lines for match in _PRODUCT.findall(line))
    names: dict[str, str] = {}
    named: list[str] = []
    before = 0
    for line in lines:
        if not line.startswith((" ", "else:")):
            before = len(named)
        for text in dict.fromkeys(_PRODUCT.findall(line)):
            if products[text] > 1 and text not in names and not is_of_round(text):
                names[text] = f"count_{len(names) + 1}"
                # Both branches of a condition may use it.
                named.insert(before, f"{names[text]} = {text}")
                before += 1
        line = _PRODUCT.sub(lambda match: names.get(match[1], match[1]), line)
        named.append(re.sub(r"ceil_div\(\((count_\d+)\)", r"ceil_div(\1", line))
    return named


def _with_short_lines(lines: list[str]) -> list[str]:
    """The lines with names for what stands in brackets in those that are too long, on lines before them."""
    short: list[str] = []
    number = 0
    for line in lines:
        if len(line) > LONG_LINE:
            line = _ALONE.sub(r"\1", line)
        while len(line) > LONG_LINE:
            terms = Counter(text for text in _BRACKETED.findall(line) if len(text) >= SHORT_TERM)
            if not terms:
                break
            term = max(terms, key=lambda text: terms[text] * len(text))
            number += 1
            name = f"part_{number}"
            indentation = line[: len(line) - len(line.lstrip())]
            short.append(f"{indentation}{name} = {term}")
            line = re.sub(rf"(?<![\w\]])\({re.escape(term)}\)", name, line)
            line = _ALONE.sub(r"\1", line.replace(f"({term})", f"({name})"))
        short.append(line)
    return short


def _with_short_names(plan: str, most: int) -> str:
    """A plan of more than ``most`` characters with short names for what it assigns: first for those that take the most
    of it, and no more than it needs."""
    excess = len(plan) - most
    if excess <= 0:
        return plan
    names = Counter(match[1] for match in _NAME_OR_STRING.finditer(plan) if match[1])
    assigned = sorted(set(_ASSIGNED.findall(plan)), key=lambda name: -len(name) * names[name])
    short: dict[str, str] = {}
    numbers = (name for number in itertools.count(1) if (name := f"v{number}") not in names)
    for name, other in zip(assigned, numbers, strict=False):
        if excess <= 0:
            break
        if len(other) < len(name):
            short[name] = other
            excess -= (len(name) - len(other)) * names[name]
    return _NAME_OR_STRING.sub(lambda match: short.get(match[1], match[0]), plan)


def _named(text: str, long: dict[str, str]) -> str:
    """Plan text with the names of long extents where these stand alone, in brackets or between commas, or begin a sum
    that stands so."""
    for extent, name in long.items():
        if extent in text:
            text, times = re.subn(rf"(^|[(\[]|, |= ){re.escape(extent)}(?=$|[)\],]| \+ )", rf"\1{name}", text)
            text = re.sub(rf"(?<![\w\]])\({name}\)", name, text) if times else text
    return text
