"""Output of a kernel generator: the text of one kernel, and its launch in the plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernelforge.agents.builtin.ir.iteration_space import MOST_ELEMENTS, Coordinate, LoopGroup, Signature
from kernelforge.agents.builtin.ir.nodes import (
    Dim,
    Extent,
    Iota,
    Program,
    Reshape,
    Scalar,
    StoredTensor,
    Value,
    View,
    product,
)

THREADS = 256
MULTIPROCESSORS = 132
"""Blocks from which a large GPU is busy: the multiprocessors of an H100."""
DEFAULT_SHARED_BYTES = 48 * 1024
"""Shared memory of a block that does not ask for more."""


@dataclass(frozen=True)
class Options:
    """Options that the moves of a design switch on; each generator uses those that apply to it."""

    vectorise: bool = False
    block_shape: bool = False
    warp_reduce: bool = False
    stage: bool = False
    tile: bool = False
    register_tile: bool = False
    tensor_cores: bool = False
    stream_k: bool = False
    warpgroups: bool = False
    """Whether the GPU multiplies by ``wgmma``: an option of the device, not of a move."""
    clusters: bool = False
    """Whether the GPU runs clusters of blocks: the same."""
    shared_bytes: int = DEFAULT_SHARED_BYTES
    """Shared memory that the device gives a block."""


@dataclass(frozen=True)
class KernelText:
    """One kernel that computes one value. ``setup`` are plan lines that the launch needs."""

    name: str
    source: str
    signature: Signature
    root: Value
    grid: str
    block: str
    shared: str | None = None
    setup: tuple[str, ...] = ()
    template: tuple[str, ...] = ()
    """Plan names of the template arguments."""
    narrow: bool = False
    """Whether all its variables fit 32 bits at any size of its tensors, so that offsets alone may need more."""
    cluster: int = 1
    """Blocks of a cluster, along the grid's first axis."""
    condition: str = ""
    """What the plan has to find for this kernel, where there is an alternative."""
    alternative: KernelText | None = None
    """The kernel of the same value for all other sizes."""

    @property
    def callee(self) -> str:
        """Name of the kernel as the plan launches it: the text before the launch brackets."""
        if not self.template:
            return self.name
        arguments = ", ".join(f"{{{name}}}" for name in self.template)
        return f'kernel(f"{self.name}<{arguments}>")'

    def launch(self, names: dict[Value, str], out: str) -> str:
        """The plan's line that launches the kernel."""
        shape = f"{self.grid}, {self.block}" + (f", {self.shared}" if self.shared else "")
        cluster = f", cluster=({self.cluster}, 1, 1)" if self.cluster > 1 else ""
        return f"{self.callee}[{shape}]({self.signature.arguments(names, out)}{cluster})"

    def steps(self, names: dict[Value, str], out: str) -> list[str]:
        """The plan's lines that launch the kernel, or its alternative."""
        lines = [*self.setup, self.launch(names, out)]
        if self.alternative is None:
            return lines
        other = self.alternative.steps(names, out)
        return [
            f"if {self.condition}:",
            *(f"    {line}" for line in lines),
            "else:",
            *(f"    {line}" for line in other),
        ]

    @property
    def sources(self) -> list[str]:
        """Text of the kernel, and of its alternative."""
        return [self.source, *(self.alternative.sources if self.alternative else ())]

    def called(self, other: KernelText) -> KernelText:
        """This kernel and its alternative, by the names of another one and its."""
        below = self.alternative
        if below is not None and other.alternative is not None:
            below = below.called(other.alternative)
        return replace(self, name=other.name, alternative=below)


def templated(
    name: str, signature: Signature, root: Value, widths: dict[str, str], bounds: str, core: list[str]
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """A kernel's source, and the plan's lines and names for the arguments of its template.

    Args:
        name, signature, root: of the kernel.
        widths: The plan's text of further arguments, by what the kernel calls them.
        bounds: What stands between the type and the name of the kernel.
        core: Statements of its body.
    """
    setup = [f"{name}_{variable} = {text}" for text, variable in signature.template_extents.items()]
    setup += [f"{name}_{width.lower()} = {text}" for width, text in widths.items()]
    words = [*widths, *signature.template_extents.values()]
    template = f"template <{', '.join(f'int {word}' for word in words)}> " if words else ""
    source = [
        f"{template}__global__ void {bounds}{name}({signature.parameters(root)}) {{",
        *(f"    {line}" for line in core), "}",
    ]  # fmt: skip
    return "\n".join(source), tuple(setup), tuple(f"{name}_{word.lower()}" for word in words)


def plan_int(dim: Dim) -> str:
    """An extent as an operand in the plan."""
    return dim.atom if "*" not in dim.text else f"({dim.text})"


def cone(root: Value, stored: frozenset[Value]) -> list[Value]:
    """The values that are computed when ``root`` is, operands before users; stored ones are left out."""
    order: dict[Value, None] = {}

    def visit(value: Value, top: bool) -> None:
        if value in order or (
            not top and (value in stored or isinstance(value, StoredTensor | Scalar | Extent | Iota))
        ):
            return
        for operand in value.operands:
            visit(operand, False)
        order[value] = None

    visit(root, True)
    return list(order)


def in_order(program: Program) -> list[Value]:
    """The values that the outputs of a program are computed from, operands before users."""
    order: dict[Value, None] = {}
    for output in program.outputs:
        order.update(dict.fromkeys(cone(output, frozenset(order))))
    return list(order)


def put(program: Program, others: dict[Value, Value]) -> None:
    """Put other values in place of some, also where others are computed from them."""
    for user in (*in_order(program), *others.values()):
        user.replace(others)
    program.outputs = tuple(others.get(value, value) for value in program.outputs)
    program.ends = tuple(others.get(value, value) for value in program.ends)


def leaves(root: Value, stored: frozenset[Value]) -> list[Value]:
    """The values in memory that computing ``root`` reads, in order of first use."""
    reached: dict[Value, None] = {}
    for value in cone(root, stored):
        for operand in value.operands:
            if operand in stored or isinstance(operand, StoredTensor):
                reached[operand] = None
    return list(reached)


class Adjacent(NamedTuple):
    """Elements that are adjacent in memory where a value is read."""

    group: LoopGroup | None = None
    """The group whose steps are; None where no single one's are."""
    extent: Dim | None = None
    """Elements of a line of memory, of which the group may walk a part."""


def adjacent(value: Value, coords: tuple[Coordinate, ...], stored: frozenset[Value]) -> Adjacent:
    """Elements that are adjacent in memory where ``value`` is read at ``coords``."""
    while isinstance(value, View) and value not in stored:
        moved = []
        for template in value.index:
            single_axis = re.fullmatch(r"\{(\d+)\}", template)
            moved.append(coords[int(single_axis[1])] if single_axis else Coordinate(template))
        value, coords = value.base, tuple(moved)
    if not coords or not (isinstance(value, StoredTensor | Reshape) or value in stored):
        return Adjacent()
    shape = value.shape
    while len(shape) > 1 and shape[-1].text == "1":
        shape, coords = shape[:-1], coords[:-1]
    last = coords[-1]
    if last.group is None or last.position != len(last.group.dims) - 1 or shape[-1].value == 1:
        return Adjacent()
    return Adjacent(last.group, shape[-1] if len(last.group.dims) == 1 else last.group.extent)


def with_wide_indices(kernel: KernelText, stored: frozenset[Value]) -> KernelText:
    """The kernel with indices of 64 bits, where a tensor has more elements at the full size than 32 bits count."""
    tensors = (kernel.root, *leaves(kernel.root, stored))
    if max(product(tensor.shape).value for tensor in tensors) < MOST_ELEMENTS or kernel.narrow:
        return kernel
    if kernel.alternative is not None:
        kernel = replace(kernel, alternative=with_wide_indices(kernel.alternative, stored))
    source = re.sub(r"\bint (?!(?:T|V|STAGE)\b)", "long long ", kernel.source)
    source = source.replace("blockIdx.x * ", "(long long)blockIdx.x * ")
    return replace(kernel, source=source, signature=replace(kernel.signature, wide=True))


def same_shape(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether two shapes agree at the full size."""
    return [dim.value for dim in a] == [dim.value for dim in b]
