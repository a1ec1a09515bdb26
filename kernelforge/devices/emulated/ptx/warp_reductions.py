"""Sums, extrema and the like over all lanes of a warp, by butterfly shuffles: all lanes get the same value."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from kernelforge.devices.emulated.ptx.blocks import Block
from kernelforge.devices.emulated.ptx.instruction_facts import constant_of, has_destination, registers_of
from kernelforge.devices.emulated.ptx.parser import Instruction, Operand, Pair, Reg

OPERATIONS = frozenset({
    ("add", "f32"), ("min", "f32"), ("max", "f32"), ("add", "s32"), ("add", "u32"), ("min", "s32"), ("min", "u32"),
    ("max", "s32"), ("max", "u32"), ("and", "b32"), ("or", "b32"), ("xor", "b32"),
})  # fmt: skip
"""Opcodes and types of 32 bits that give the same for both orders of their operands."""
_EVERY_LANE = (-1, 0xFFFFFFFF)
_STEPS = {16, 8, 4, 2, 1}
_FREE_MODIFIERS = {"rn"}


@dataclass(frozen=True)
class WarpReduction:
    """A value that five shuffles and five equal operations spread from all lanes to all lanes."""

    start: int
    """The first shuffle, by ``id``: its source is what is reduced."""
    operation: tuple[str, str]
    """Opcode and type."""
    distances: tuple[int, ...]
    """What each step adds to a lane's number, bit by bit, in order."""
    inner: frozenset[int] = frozenset()
    """Instructions, by ``id``, before the last one whose results nothing else uses; empty if any other is used."""


def warp_reductions(
    blocks: list[Block], definitions: Mapping[str, list[Instruction]], live_out: list[int], ids: Mapping[str, int]
) -> dict[int, WarpReduction]:
    """The reductions of a kernel, by the ``id`` of the instruction that gives their result."""
    result: dict[int, WarpReduction] = {}
    for block in blocks:
        if sum(i.opcode == "shfl" for i in block.instructions) >= len(_STEPS):
            search = _Search(block, definitions)
            result |= search.reductions({r for r in search.values if live_out[block.index] >> ids[r] & 1})
    return result


def agreed_lanes(definitions: Mapping[str, list[Instruction]], value: Operand) -> int:
    """Bits of the lane's number over which butterfly shuffles have reduced a value: lanes that differ in those alone
    have the same value, or sums of the same terms that are rounded in other places.

    The latter come from the first addition, where the compiler may contract the lane's own product:
    ``fma(a, b, moved)``, with ``moved`` the rounded product of the other lane.
    """
    bits = 0
    while isinstance(value, Reg):
        made = _only_definition(definitions, value)
        if made is None or made.opcode not in ("mov", "add", "min", "max", "fma"):
            break
        if made.opcode == "mov":
            value = made.operands[1]
            continue
        for moved in made.operands[1:]:
            shuffle = _only_definition(definitions, moved)
            if shuffle is not None and shuffle.opcode == "shfl":
                break
        else:
            break
        own, distance = shuffle.operands[1], _butterfly_distance(definitions, shuffle)
        others = [operand for operand in made.operands[1:] if operand != moved]
        product = _only_definition(definitions, own) if made.opcode == "fma" else None
        terms = [own] if product is None else list(product.operands[1:]) if product.opcode == "mul" else []
        if not distance or others != terms:
            break
        bits |= distance
        if product is not None:
            break
        value = own
    return bits


def _only_definition(definitions: Mapping[str, list[Instruction]], value: Operand) -> Instruction | None:
    """The instruction that gives a register its value, if it is one that always runs."""
    made = definitions.get(value.name, []) if isinstance(value, Reg) else []
    return made[0] if len(made) == 1 and made[0].predicate is None else None


def _butterfly_distance(definitions: Mapping[str, list[Instruction]], shuffle: Instruction) -> int:
    """Distance by which a shuffle moves values, if it is a butterfly of one bit over all of a warp; or else 0."""
    if "bfly" not in shuffle.modifiers or constant_of(definitions, shuffle.operands[3]) != 31:
        return 0
    distance = constant_of(definitions, shuffle.operands[2])
    return distance if distance in _STEPS else 0


@dataclass(frozen=True)
class _Partial:
    """The value of a reduction after some of its steps."""

    start: int
    operation: tuple[str, str]
    distances: tuple[int, ...]
    numbers: tuple[int, ...]
    """Instructions of those steps."""


class _Search:
    """Follows the values of one basic block."""

    def __init__(self, block: Block, definitions: Mapping[str, list[Instruction]]) -> None:
        self.block = block
        self.definitions = definitions
        self.values: dict[str, Hashable] = {}
        """What a register holds: its own name on entry, or the number of the instruction that computed it."""
        self.moved: dict[Hashable, tuple[Hashable, int]] = {}
        """Of a shuffle's result: the value that it moved, and by what distance."""
        self.partial: dict[Hashable, _Partial] = {}
        self.complete: list[tuple[int, _Partial]] = []
        self.moves: dict[int, Hashable] = {}
        """What a ``mov`` copied."""
        self.users: dict[Hashable, set[int]] = {}
        """Instructions that read a value; a ``mov`` that only copies it is none."""
        for number, i in enumerate([*block.instructions, *filter(None, [block.terminator])]):
            self.follow(number, i)

    def follow(self, number: int, i: Instruction) -> None:
        writes = has_destination(i)
        value = self.value_of(number, i) if writes else None
        if number not in self.moves:
            read = [r for op in (i.operands[1:] if writes else i.operands) for r in registers_of(op)]
            for r in read + ([] if i.predicate is None else [i.predicate.name]):
                self.users.setdefault(self.current(r), set()).add(number)
        if not writes:
            return
        for r in registers_of(i.operands[0]):
            if i.predicate is not None:
                self.users.setdefault(self.current(r), set()).add(number)  # it may keep what it holds
            self.values[r] = (number, r)
        target = i.operands[0].first if isinstance(i.operands[0], Pair) else i.operands[0]
        if isinstance(target, Reg) and value is not None:
            self.values[target.name] = value

    def value_of(self, number: int, i: Instruction) -> Hashable | None:
        """The value that an instruction gives its first destination; None where nothing is noted of it."""
        if i.predicate is not None or len(i.operands) < 2 or not isinstance(i.operands[1], Reg):
            return None
        source = self.current(i.operands[1].name)
        if i.opcode == "mov":
            if i.type not in ("b32", "f32", "u32", "s32"):
                return None
            self.moves[number] = source
            return source
        if i.opcode == "shfl":
            distance = self.distance(i)
            if not distance:
                return None
            self.moved[number] = source, distance
            return number
        if (i.opcode, i.type) not in OPERATIONS or not set(i.modifiers) <= {*_FREE_MODIFIERS, i.type}:
            return None
        step = self.step(number, i, source)
        if step is None:
            return None
        self.partial[number] = step
        if set(step.distances) == _STEPS:
            self.complete.append((number, step))
        return number

    def current(self, register: str) -> Hashable:
        return self.values.setdefault(register, register)

    def distance(self, i: Instruction) -> int:
        """Distance by which a shuffle of all lanes moves values, if it is a butterfly of one bit; or else 0."""
        distance = _butterfly_distance(self.definitions, i)
        return distance if distance and constant_of(self.definitions, i.operands[4]) in _EVERY_LANE else 0

    def step(self, number: int, i: Instruction, first: Hashable) -> _Partial | None:
        """The reduction that an operation goes on with, of a value and the same value moved."""
        if len(i.operands) != 3 or not isinstance(i.operands[2], Reg):
            return None
        second = self.current(i.operands[2].name)
        operation = (i.opcode, i.type)
        for own, other in ((first, second), (second, first)):
            if other not in self.moved or self.moved[other][0] != own or not isinstance(other, int):
                continue
            distance = self.moved[other][1]
            before = self.partial.get(own)
            if before is None or before.operation != operation or distance in before.distances:
                before = _Partial(other, operation, (), ())
            return _Partial(before.start, operation, (*before.distances, distance), (*before.numbers, other, number))
        return None

    def reductions(self, live: set[str]) -> dict[int, WarpReduction]:
        """The reductions; ``live`` are the registers that later blocks read."""
        lasting = {self.values[r] for r in live}
        instructions = self.block.instructions
        result = {}
        for last, p in self.complete:
            own, inner = set(p.numbers), set(p.numbers) - {last}
            flags = any(isinstance(v, tuple) and v[0] in own for v in (*self.users, *lasting))
            if flags or inner & lasting or any(not self.users.get(v, set()) <= own for v in inner):
                inner = set()
            inner |= {n for n, copied in self.moves.items() if copied in inner}
            result[id(instructions[last])] = WarpReduction(
                id(instructions[p.start]), p.operation, p.distances, frozenset(id(instructions[n]) for n in inner)
            )
        return result
