"""Output of a kernel generator: the text of one kernel, and its launch in the plan."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from kernelforge.agents.builtin.ir.iteration_space import Signature
from kernelforge.agents.builtin.ir.nodes import Dim, Extent, Iota, Scalar, StoredTensor, Value, product

THREADS = 256


@dataclass(frozen=True)
class Options:
    """Options that the moves of a design switch on; each generator uses those that apply to it."""

    vectorise: bool = False
    block_shape: bool = False
    warp_reduce: bool = False
    stage: bool = False
    tile: bool = False
    register_tile: bool = False


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
        return f"{self.callee}[{shape}]({self.signature.arguments(names, out)})"


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


def leaves(root: Value, stored: frozenset[Value]) -> list[Value]:
    """The values in memory that computing ``root`` reads, in order of first use."""
    reached: dict[Value, None] = {}
    for value in cone(root, stored):
        for operand in value.operands:
            if operand in stored or isinstance(operand, StoredTensor):
                reached[operand] = None
    return list(reached)


def with_wide_indices(kernel: KernelText, stored: frozenset[Value]) -> KernelText:
    """The kernel with indices of 64 bits, where a tensor has more elements at the full size than 32 bits count."""
    tensors = (kernel.root, *leaves(kernel.root, stored))
    if max(product(tensor.shape).value for tensor in tensors) < 2**31:
        return kernel
    source = re.sub(r"\bint (?!(?:T|V|STAGE)\b)", "long long ", kernel.source)
    source = source.replace("blockIdx.x * ", "(long long)blockIdx.x * ")
    return replace(kernel, source=source, signature=replace(kernel.signature, wide=True))


def same_shape(a: tuple[Dim, ...], b: tuple[Dim, ...]) -> bool:
    """Whether two shapes agree at the full size."""
    return [dim.value for dim in a] == [dim.value for dim in b]
