"""Machine code of a cubin (SASS) as records: instructions and basic blocks.

:mod:`kernelforge.profiling.sass_decoding` makes them. Line tables of ``-lineinfo`` say which line of the PTX each
instruction comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

INSTRUCTION_BYTES = 16
_NONE = 7
"""A scoreboard that is not set."""
_BRANCHES = frozenset({"BRA", "BRX", "JMP", "JMX"})
_ENDS = frozenset({"EXIT", "RET", "BSYNC", "CALL"})


class NoEstimateError(Exception):
    """Executions of a kernel's machine code cannot be estimated; the message says why, after the kernel's name."""


@dataclass(frozen=True, slots=True)
class Control:
    """Control code of an instruction: how the scheduler issues it."""

    stall: int
    """Cycles before the warp issues its next instruction, at least."""
    yields: bool
    """Whether the scheduler prefers another warp next."""
    write_scoreboard: int | None
    """Scoreboard that is released when the result is written."""
    read_scoreboard: int | None
    """Scoreboard that is released when the operands have been read."""
    waits: tuple[int, ...]
    """Scoreboards that must be released before it issues."""
    reuse: int
    """Operands that stay in the cache of registers, one bit for each slot."""

    @classmethod
    def of(cls, high: int) -> Control:
        """Decode the upper 64 bits of an instruction."""
        bits = high >> 41
        write, read = bits >> 5 & 7, bits >> 8 & 7
        return cls(
            stall=bits & 15,
            yields=not bits >> 4 & 1,
            write_scoreboard=None if write == _NONE else write,
            read_scoreboard=None if read == _NONE else read,
            waits=tuple(number for number in range(6) if bits >> 11 + number & 1),
            reuse=bits >> 17 & 15,
        )


@dataclass(frozen=True, slots=True)
class SassInstruction:
    """A machine instruction."""

    address: int
    """In bytes, from the beginning of its function."""
    opcode: str
    """With the modifiers that matter here: widths of accesses (``LDS.128``), kinds of branches (``BRA.DIV``), ``HI`` of
    integers that are upper halves, ``TID`` of the special registers with the thread's index."""
    form: int
    """A number that tells kinds of integer instructions with one opcode apart."""
    predicated: bool
    """Whether a predicate decides if it executes."""
    conditional: bool
    """The same, or another condition of a branch."""
    ptx_line: int
    """Line of the PTX that it comes from, from 1; 0 if unknown."""
    control: Control
    targets: tuple[int, ...] = ()
    """Addresses that it may go to, or of a ``BSSY`` where the lanes join."""
    barrier: int | None = None
    """Number of the barrier that a ``BSSY`` opens, and a ``BSYNC`` or a ``BREAK`` leaves."""

    @property
    def name(self) -> str:
        """The opcode without modifiers: ``LDG``."""
        return self.opcode.partition(".")[0]

    @property
    def modifier(self) -> str:
        return self.opcode.partition(".")[2]


EdgeKind = Literal["next", "taken", "divergent", "joined"]
"""``next``: the block that follows. ``taken``: the target of a branch. ``divergent``: where warps go whose lanes are
apart, by ``BRA.DIV`` or past ``BRA.CONV``. ``joined``: from a ``BSSY`` to where lanes that part after it meet again."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from a block to another."""

    target: int
    kind: EdgeKind


@dataclass(frozen=True, slots=True)
class SassBlock:
    """A basic block: instructions ``first`` to ``end``, without ``end``, of its function."""

    first: int
    end: int
    edges: tuple[Edge, ...]
    call: int | None = None
    """The first block of the subroutine that its last instruction calls."""
    may_part: bool = False
    """Lanes of a warp may leave it by several edges, so that one execution is followed by two."""
    leaves: bool = False
    """Warps may end in it, return, or wait to be joined."""

    @property
    def successors(self) -> tuple[int, ...]:
        return tuple(edge.target for edge in self.edges)


@dataclass(frozen=True)
class SassFunction:
    """A kernel with the subroutines that ptxas put behind it."""

    name: str
    instructions: tuple[SassInstruction, ...]
    blocks: tuple[SassBlock, ...]
    """In order of address; the first is the entry."""

    def instructions_of(self, block: SassBlock) -> tuple[SassInstruction, ...]:
        return self.instructions[block.first : block.end]


def cut_into_blocks(name: str, instructions: Sequence[SassInstruction]) -> SassFunction:
    """A function of its instructions, which follow each other in memory."""
    starts = {0}
    for index, instruction in enumerate(instructions):
        if instruction.name in _BRANCHES or instruction.name in _ENDS:
            starts.add(index + 1)
        if instruction.targets:
            starts.update(target // INSTRUCTION_BYTES for target in instruction.targets)
    cuts = sorted(start for start in starts if 0 <= start < len(instructions))
    number = {start: index for index, start in enumerate(cuts)}
    blocks = [_block(instructions, number, first, end) for first, end in pairwise([*cuts, len(instructions)])]
    blocks = _with_calls_that_return(instructions, blocks)
    return SassFunction(name, tuple(instructions), tuple(_without_needless_parting(instructions, blocks)))


def _with_calls_that_return(instructions: Sequence[SassInstruction], blocks: list[SassBlock]) -> list[SassBlock]:
    """Blocks whose calls return; before compute capability 9 ptxas leaves some loops by a ``CALL`` that never does."""
    returning: dict[int, bool] = {}
    for block in blocks:
        if block.call is not None and block.call not in returning:
            called = _reachable(blocks, [block.call])
            returning[block.call] = any(instructions[blocks[k].end - 1].name == "RET" for k in called)
    if all(returning.values()):
        return blocks
    checked = []
    for block in blocks:
        if block.call is None or returning[block.call]:
            checked.append(block)
            continue
        stays = block.edges if instructions[block.end - 1].conditional else ()
        edges = (Edge(block.call, "taken"), *stays)
        checked.append(SassBlock(block.first, block.end, edges, may_part=block.may_part))
    return checked


def _block(instructions: Sequence[SassInstruction], number: Mapping[int, int], first: int, end: int) -> SassBlock:
    last = instructions[end - 1]

    def blocks_at(instruction: SassInstruction) -> list[int]:
        indices = (target // INSTRUCTION_BYTES for target in instruction.targets)
        return [number[index] for index in indices if index in number]

    edges = [
        Edge(target, "joined")
        for instruction in instructions[first:end]
        if instruction.name == "BSSY"
        for target in blocks_at(instruction)
    ]
    following = [Edge(number[end], "next")] if end in number else []
    conditional = last.conditional
    if last.name in _BRANCHES:
        together = last.modifier in ("DIV", "CONV")
        taken: EdgeKind = "divergent" if last.modifier == "DIV" else "taken"
        edges += [Edge(target, taken) for target in dict.fromkeys(blocks_at(last))]
        if conditional:
            edges += [Edge(edge.target, "divergent") for edge in following] if last.modifier == "CONV" else following
        parts = (conditional or len(edges) > 1) and last.modifier != "U" and not together
        return SassBlock(first, end, tuple(edges), may_part=parts)
    if last.name == "CALL":
        call = next(iter(blocks_at(last)), None)
        # No kernel calls its own first block: that is a call through a register.
        return SassBlock(first, end, (*edges, *following), call=call or None, may_part=conditional)
    if last.name in _ENDS:
        edges += following if conditional else []
        return SassBlock(first, end, tuple(edges), may_part=conditional, leaves=True)
    return SassBlock(first, end, (*edges, *following))


def _without_needless_parting(
    instructions: Sequence[SassInstruction], blocks: Sequence[SassBlock]
) -> Iterator[SassBlock]:
    """Blocks that let lanes part only between a ``BSSY`` and where they join, or where lanes end.

    Elsewhere ptxas knows that the lanes of a warp take the same branch.
    """
    inside = _blocks_inside(instructions, blocks)
    for index, block in enumerate(blocks):
        parts = block.may_part and (block.leaves or index in inside)
        yield block if parts == block.may_part else SassBlock(block.first, block.end, block.edges, block.call)


def _blocks_inside(instructions: Sequence[SassInstruction], blocks: Sequence[SassBlock]) -> set[int]:
    """Blocks that a warp may reach with a ``BSSY`` open."""
    inside: set[int] = set()
    seen: set[tuple[int, frozenset[int]]] = set()
    work: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
    work += [(block.call, frozenset()) for block in blocks if block.call is not None]
    while work and len(seen) < 16 * len(blocks) + 64:
        state = work.pop()
        if state in seen:
            continue
        seen.add(state)
        index, before = state
        block, opened = blocks[index], set(before)
        for instruction in instructions[block.first : block.end]:
            if instruction.barrier is None:
                continue
            if instruction.name == "BSSY":
                opened.add(instruction.barrier)
            else:
                opened.discard(instruction.barrier)
        if opened:
            inside.add(index)
        for edge in block.edges:
            work.append((edge.target, before if edge.kind == "joined" else frozenset(opened)))
    return inside


def reachable(function: SassFunction, starts: Sequence[int]) -> set[int]:
    """Blocks that are reached from some, without those of subroutines that they call."""
    return _reachable(function.blocks, starts)


def _reachable(blocks: Sequence[SassBlock], starts: Sequence[int]) -> set[int]:
    seen = set(starts)
    work = list(starts)
    while work:
        for target in blocks[work.pop()].successors:
            if target not in seen:
                seen.add(target)
                work.append(target)
    return seen
