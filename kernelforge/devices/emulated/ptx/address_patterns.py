"""Addresses of a warp as a pattern of its lanes plus a scalar: which accesses of a basic block share their pattern."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from kernelforge.devices.emulated.ptx.cfg import ControlFlowGraph
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of
from kernelforge.devices.emulated.ptx.parser import TYPE_BITS, Addr, Imm, Instruction, Operand, Reg


class Pattern(NamedTuple):
    """A value that differs between lanes, times a constant."""

    value: Hashable
    """Name of a value of 64 bits, or of 32 that are extended; for ``Masked`` some of its bits."""
    extended: str
    """``s`` or ``u``: the value has 32 bits and is extended with its sign or with zeros."""
    factor: int


class Masked(NamedTuple):
    """A value of 32 bits of which only those of a mask are kept."""

    value: Hashable
    mask: int


class Address(NamedTuple):
    """The sum of a pattern and of scalars, each times a constant."""

    pattern: Pattern
    terms: tuple[tuple[Hashable, int], ...] = ()
    """Names of 64-bit values, or integers, and their factors."""

    def times(self, factor: int) -> Address:
        value, extended, own = self.pattern
        return Address(Pattern(value, extended, own * factor), tuple((term, k * factor) for term, k in self.terms))


def plain(value: Hashable) -> Address:
    """The address that is a 64-bit value alone."""
    return Address(Pattern(value, "", 1))


class Operands(Protocol):
    """Values of the operands of an instruction."""

    def varies(self, operand: Operand) -> bool:
        """Whether it differs between lanes."""

    def name(self, operand: Operand) -> Hashable:
        """Its value: a name, or a constant."""

    def address(self, operand: Operand) -> Address:
        """A 64-bit register that varies."""

    def bits(self, register: str) -> int:
        """Width of a register."""


def derive(i: Instruction, values: Operands) -> Address | None:
    """The address that an instruction computes from others; None if it is a value of its own."""
    if i.predicate is not None or len(i.operands) < 2 or not isinstance(i.operands[0], Reg):
        return None
    operands = i.operands[1:]
    first = operands[0]
    constant = operands[1].value if len(operands) > 1 and isinstance(operands[1], Imm) else None
    form = (i.opcode, *i.modifiers)
    narrow = isinstance(first, Reg) and values.bits(first.name) == 32
    if form in _SUMS and len(operands) == 2 and values.varies(first) != values.varies(operands[1]):
        sign = 1 if i.opcode == "add" else -1
        pattern, scalar = (first, operands[1]) if values.varies(first) else (operands[1], first)
        if not isinstance(scalar, Reg | Imm) or (sign < 0 and scalar is first):
            return None
        return _plus(values.address(pattern), values.name(scalar), sign)
    if form in _COPIES and values.varies(first):
        return values.address(first)
    if form == ("shl", "b64") and constant is not None and 0 <= constant < 64 and values.varies(first):
        return values.address(first).times(1 << constant)
    if form == ("and", "b64") and constant is not None and 0 <= constant < 1 << 31 and values.varies(first):
        source = values.address(first)
        value = source.pattern.value
        if source != Address(Pattern(value, "u", 1)):
            return None
        kept = Masked(value.value, value.mask & constant) if isinstance(value, Masked) else Masked(value, constant)
        return Address(Pattern(kept, "u", 1))
    if form in _PRODUCTS and constant is not None and values.varies(first):
        return values.address(first).times(constant)
    if form in _EXTENSIONS and narrow and values.varies(first):
        return Address(Pattern(values.name(first), i.modifiers[1][0], 1))
    if form in _WIDE_PRODUCTS and constant is not None and narrow and values.varies(first):
        factor = constant % (1 << 32)
        if i.modifiers[1] == "s32" and factor >> 31:
            factor -= 1 << 32
        extended = Address(Pattern(values.name(first), i.modifiers[1][0], factor))
        if i.opcode == "mul":
            return extended
        if len(operands) == 3 and isinstance(operands[2], Reg | Imm) and not values.varies(operands[2]):
            return _plus(extended, values.name(operands[2]), 1)
    return None


_SUMS = {(verb, kind) for verb in ("add", "sub") for kind in ("s64", "u64")}
_COPIES = {
    ("mov", "b64"), ("mov", "s64"), ("mov", "u64"), ("cvta", "to", "global", "u64"), ("cvta", "global", "u64"),
}  # fmt: skip
_PRODUCTS = {("mul", "lo", kind) for kind in ("s64", "u64")}
_EXTENSIONS = {("cvt", "s64", "s32"), ("cvt", "u64", "u32")}
_WIDE_PRODUCTS = {(verb, "wide", kind) for verb in ("mul", "mad") for kind in ("s32", "u32")}


def _plus(address: Address, term: Hashable, factor: int) -> Address:
    return address if term == 0 else Address(address.pattern, (*address.terms, (term, factor)))


class _Versions:
    """Registers by where they were written last in a basic block."""

    def __init__(self, flow: ControlFlowGraph) -> None:
        self.varying, self.types = flow.varying, flow.kernel.registers
        self.written: dict[str, Hashable] = {}
        self.addresses: dict[str, Address] = {}

    def varies(self, operand: Operand) -> bool:
        return isinstance(operand, Reg) and operand.name in self.varying

    def name(self, operand: Operand) -> Hashable:
        if isinstance(operand, Reg):
            return self.written.get(operand.name, operand.name)
        return operand.value if isinstance(operand, Imm) else operand

    def address(self, operand: Operand) -> Address:
        assert isinstance(operand, Reg)
        return self.addresses.get(operand.name) or plain(self.name(operand))

    def bits(self, register: str) -> int:
        return TYPE_BITS[self.types[register]]

    def write(self, i: Instruction) -> None:
        derived = derive(i, self)
        for register in registers_of(i.operands[0]):
            self.written[register] = id(i), register
            self.addresses.pop(register, None)
            if derived is not None:
                self.addresses[register] = derived


def repeated_patterns(flow: ControlFlowGraph) -> set[int]:
    """Ids of the loads and stores whose addresses another one of the basic block has too, but for a scalar."""
    repeated: set[int] = set()
    for block in flow.blocks:
        versions = _Versions(flow)
        first: dict[Hashable, Instruction] = {}
        for i in block.instructions:
            if i.opcode in ("ld", "st") and i.predicate is None:
                for operand in i.operands:
                    if isinstance(operand, Addr) and isinstance(operand.base, Reg) and versions.varies(operand.base):
                        narrow = versions.bits(operand.base.name) == 32
                        key = versions.name(operand.base) if narrow else versions.address(operand.base).pattern
                        if key in first:
                            repeated |= {id(first[key]), id(i)}
                        first[key] = i
            if has_destination(i):
                versions.write(i)
    return repeated
