"""Registers of ``wgmma.mma_async`` that are used too early, or without a ``wgmma.fence``.

From its issue to a ``wgmma.wait_group`` that covers it a product owns its accumulators and the fragment of A. Before
it, accesses to those registers need a ``wgmma.fence``, but for accumulators of one product after another (PTX ISA,
*wgmma.fence* and *wgmma.wait_group*). What may go wrong on some path is listed here; generated code tells whether it
does. A compiler is free to move what only registers order. So none of these is an access:

- a copy by ``mov``, which ptxas merges with its source: it stands for the source's accesses;
- arithmetic, a constant or a read between a ``wgmma.fence`` and the next ``wgmma.wait_group``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelforge.devices.emulated.ptx.cfg import ControlFlowGraph
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of, sources
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Reg, Vec

_MEMORY = {"ld", "ldu", "ldmatrix", "atom", "shfl", "mma", "movmatrix"}
"""What a compiler leaves on its side of a ``wgmma.fence``."""

Ages = dict[str, dict[int, int]]
"""Of a register the products, by ``id``, that may own it, with the fewest groups committed since."""


@dataclass
class ProductHazards:
    """The misuses of registers that are possible, by the ``id`` of the instruction that commits each."""

    early: dict[int, set[int]] = field(default_factory=dict)
    """Uses of results: the products that may not be complete."""
    fragments: dict[int, set[int]] = field(default_factory=dict)
    """Loads into a fragment of A: the products that may still read it."""
    unfenced: dict[int, set[int]] = field(default_factory=dict)
    """Products: the accesses to their registers that no fence may follow."""
    first: set[int] = field(default_factory=set)
    """Products that no fence may precede."""

    def slots(self) -> dict[tuple[str, int], int]:
        """Words of a warp's state that generated code needs: for products, for unfenced ones, and for fences."""
        products = sorted(set().union(*self.early.values(), *self.fragments.values()))
        keys = [("product", k) for k in products] + [("unfenced", k) for k in sorted(self.unfenced)]
        return {key: number for number, key in enumerate(keys + [("fence", 0)] * bool(self.first))}


@dataclass
class _State:
    """The facts that may hold before an instruction."""

    results: Ages = field(default_factory=dict)
    fragments: Ages = field(default_factory=dict)
    touched: dict[str, set[int]] = field(default_factory=dict)
    """Accesses to registers since the last fence."""
    fenced: bool = False
    """There was a fence since the last wait, on every path."""
    begun: bool = False
    """No fence at all came before."""

    def copy(self) -> _State:
        return _State(
            {r: dict(ages) for r, ages in self.results.items()}, {r: dict(ages) for r, ages in self.fragments.items()},
            {r: set(where) for r, where in self.touched.items()}, self.fenced, self.begun,
        )  # fmt: skip

    def join(self, other: _State) -> bool:
        """Take in what may be true on another path; whether that is new."""
        changed = (self.fenced and not other.fenced) or (other.begun and not self.begun)
        self.fenced &= other.fenced
        self.begun |= other.begun
        for owners, others in ((self.results, other.results), (self.fragments, other.fragments)):
            for r, ages in others.items():
                least = owners.setdefault(r, {})
                for product, age in ages.items():
                    if age < least.get(product, age + 1):
                        least[product] = age
                        changed = True
        for r, where in other.touched.items():
            touches = self.touched.setdefault(r, set())
            changed |= not where <= touches
            touches |= where
        return changed


def is_product(i: Instruction) -> bool:
    """True for ``wgmma.mma_async``."""
    return i.opcode == "wgmma" and i.modifiers[:1] == ("mma_async",)


def is_product_fence(i: Instruction) -> bool:
    """True for ``wgmma.fence``."""
    return i.opcode == "wgmma" and i.modifiers[:1] == ("fence",)


def product_hazards(flow: ControlFlowGraph) -> ProductHazards:
    """Find the possible misuses of the registers of a kernel's products."""
    hazards = ProductHazards()
    owned = _registers(flow)
    if not owned:
        return hazards
    entering: dict[int, _State] = {0: _State(begun=True)}
    work = [0]
    while work:
        index = work.pop()
        state = entering[index].copy()
        for i in flow.blocks[index].all():
            _follow(i, state, owned, ProductHazards())
        for successor in flow.blocks[index].successors:
            if successor not in entering:
                entering[successor] = state.copy()
                work.append(successor)
            elif entering[successor].join(state):
                work.append(successor)
    for index, state in entering.items():
        for i in flow.blocks[index].all():
            _follow(i, state, owned, hazards)
    return hazards


def _registers(flow: ControlFlowGraph) -> set[str]:
    """Registers of products, and those that copies connect with them."""
    instructions = [i for block in flow.blocks for i in block.instructions]
    owned = {r for i in instructions if is_product(i) for r in _owned(i)}
    neighbours: dict[str, set[str]] = {}
    for i in instructions:
        if i.opcode == "mov" and owned:
            names = {r for operand in i.operands for r in registers_of(operand)}
            for r in names:
                neighbours.setdefault(r, set()).update(names)
    pending = list(owned)
    while pending:
        new = neighbours.get(pending.pop(), set()) - owned
        owned |= new
        pending += new
    return owned


def _owned(i: Instruction) -> set[str]:
    """Accumulators of a product, and the registers of A."""
    return {r for operand in i.operands[:2] if isinstance(operand, Vec) for r in registers_of(operand)}


def _follow(i: Instruction, s: _State, owned: set[str], hazards: ProductHazards) -> None:
    """Follow one instruction, and note what may go wrong at it."""
    verb = i.modifiers[:1] if i.opcode == "wgmma" else ()
    if verb == ("commit_group",):
        for ages in (*s.results.values(), *s.fragments.values()):
            ages.update({product: age + 1 for product, age in ages.items()})
    elif verb == ("wait_group",):
        pending = i.operands[0].value if isinstance(i.operands[0], Imm) else 0
        for owners in (s.results, s.fragments):
            for r, ages in list(owners.items()):
                owners[r] = {product: age for product, age in ages.items() if age <= pending}
        s.fenced = False
    elif verb == ("fence",):
        s.touched.clear()
        s.fenced = True
        s.begun = False
    elif is_product(i):
        _follow_product(i, s, hazards)
    else:
        _follow_access(i, s, owned, hazards)


def _follow_product(i: Instruction, s: _State, hazards: ProductHazards) -> None:
    early = {product for operand in i.operands[1:] for r in registers_of(operand) for product in s.results.get(r, ())}
    if early:
        hazards.early[id(i)] = early
    touches = {where for r in _owned(i) for where in s.touched.pop(r, ())}
    if touches:
        hazards.unfenced[id(i)] = touches
    if s.begun:
        hazards.first.add(id(i))
    if isinstance(i.operands[1], Vec):
        for r in registers_of(i.operands[1]):
            s.fragments.setdefault(r, {})[id(i)] = 0
    for r in registers_of(i.operands[0]):
        s.results[r] = {id(i): 0}


def _follow_access(i: Instruction, s: _State, owned: set[str], hazards: ProductHazards) -> None:
    written = {r for r in registers_of(i.operands[0]) if r in owned} if has_destination(i) else set()
    read = {r for operand in sources(i) for r in registers_of(operand) if r in owned}
    if not written and not read:
        return
    owners = {product: age for r in sorted(read) for product, age in s.results.get(r, {}).items()}
    copied = i.opcode == "mov" and isinstance(i.operands[1], Reg)
    if i.opcode != "mov" and owners:
        hazards.early[id(i)] = set(owners)
    counts = i.opcode in _MEMORY
    readers = {product for r in written for product in s.fragments.get(r, ())} if counts else set()
    if readers:
        hazards.fragments[id(i)] = readers
    touches = {where for r in read for where in s.touched.get(r, ())} if copied else set()
    if not s.fenced and not copied:
        for r in read:
            s.touched.setdefault(r, set()).add(id(i))
    for r in written:
        if i.predicate is None:
            s.results.pop(r, None)
            s.fragments.pop(r, None)
            s.touched.pop(r, None)
        if i.opcode == "mov" and owners:
            s.results.setdefault(r, {}).update(owners)
        if not copied and (counts or not s.fenced):
            touches = {id(i)}
        if touches:
            s.touched.setdefault(r, set()).update(touches)
