"""Machine code of a cubin (SASS), read from what ``nvdisasm -c -gp -hex`` prints: instructions and basic blocks.

An instruction has 128 bits, of which bits 105 to 125 control how it is issued (Jia et al., *Dissecting the NVIDIA Volta
GPU Architecture via Microbenchmarking*, section 2.1). Line tables of ``-lineinfo`` say which line of the PTX each comes
from. ``nvdisasm`` itself runs in :mod:`kernelforge.compile.sass_worker`, confined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

INSTRUCTION_BYTES = 16
MAX_INSTRUCTIONS = 200_000
_NONE = 7
"""A scoreboard that is not set."""

_SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$.]+)")
_LINE = re.compile(r'\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
_LABEL = re.compile(r"(?P<name>[\w$.]+):")
_INSTRUCTION = re.compile(
    r"\s*/\*(?P<address>[0-9a-f]{4,8})\*/\s+(?:@(?P<predicate>!?U?P[T\d]+)\s+)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<operands>[^;]*);\s*/\* 0x(?P<low>[0-9a-f]{16}) \*/"
)
_HIGH = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\(([\w$.]+)\)")
_TABLE = re.compile(r"\(\*\"BRANCH_TARGETS ([^\"]*)\"\*\)")
_BARRIER = re.compile(r"\bB(\d+)\b")
_ALWAYS = frozenset({"", "PT", "UPT"})
_BRANCHES = frozenset({"BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"})
_ENDS = frozenset({"EXIT", "RET", "BSYNC", "CALL", "KILL"})


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
    """With its modifiers: ``LDG.E.128``."""
    operands: str
    predicate: str
    """``P0``, ``!P0`` or ``UP0``; empty where it always executes."""
    ptx_line: int
    """Line of the PTX that it comes from, from 1; 0 if unknown."""
    control: Control

    @property
    def name(self) -> str:
        """The opcode without modifiers: ``LDG``."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> frozenset[str]:
        return frozenset(self.opcode.split(".")[1:])


EdgeKind = Literal["next", "taken", "divergent", "joined"]
"""``next``: the block that follows. ``taken``: the target of a branch. ``divergent``: the target of a branch for warps
whose lanes are apart (``BRA.DIV``). ``joined``: from a ``BSSY`` to where the lanes that part after it meet again."""


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


NO_MACHINE_CODE = "no machine code"
"""How notes begin that say why there is none."""


@dataclass(frozen=True)
class MachineCode:
    """The machine code of one cubin."""

    functions: Mapping[str, SassFunction]
    """Kernels by their symbols; empty where there are none to be had."""
    problem: str = ""
    """Why there are none, and what to do."""


def parse_sass(text: str) -> dict[str, SassFunction]:
    """Functions of a cubin by name, from the output of ``nvdisasm -c -gp -hex``.

    Raises:
        ValueError: it is not such an output.
    """
    functions: dict[str, SassFunction] = {}
    total = 0
    name = ""
    instructions: list[SassInstruction] = []
    labels: dict[str, int] = {}
    line = 0
    pending: re.Match[str] | None = None
    for row in text.splitlines():
        if pending is not None:
            high = _HIGH.match(row)
            if high is None:
                raise ValueError(f"instruction {pending['address']} of {name} has no upper half")
            instructions.append(_instruction(pending, line, int(high[1], 16)))
            total += 1
            if total > MAX_INSTRUCTIONS:
                raise ValueError(f"there are more than {MAX_INSTRUCTIONS} instructions")
            pending = None
        elif match := _INSTRUCTION.match(row):
            pending = match
        elif match := _LINE.match(row):
            line = int(match[1])
        elif match := _SECTION.match(row):
            if instructions:
                functions[name] = _function(name, instructions, labels)
            name, instructions, labels, line = match[1], [], {}, 0
        elif match := _LABEL.match(row):
            labels.setdefault(match["name"], len(instructions))
    if instructions:
        functions[name] = _function(name, instructions, labels)
    return functions


def _instruction(match: re.Match[str], line: int, high: int) -> SassInstruction:
    predicate = match["predicate"] or ""
    return SassInstruction(
        address=int(match["address"], 16),
        opcode=match["opcode"],
        operands=match["operands"].strip(),
        predicate="" if predicate in _ALWAYS else predicate,
        ptx_line=line,
        control=Control.of(high),
    )


def _function(name: str, instructions: Sequence[SassInstruction], labels: Mapping[str, int]) -> SassFunction:
    """Cut a function into basic blocks."""
    starts = {0}
    for index, instruction in enumerate(instructions):
        if instruction.name in _BRANCHES or instruction.name in _ENDS:
            starts.add(index + 1)
        if instruction.name in ("BSSY", "BRA", "CALL", "JMP", "BRX", "BRXU", "JMX", "JMXU"):
            starts.update(labels[target] for target in _targets(instruction) if target in labels)
    cuts = sorted(start for start in starts if start < len(instructions))
    number = {start: index for index, start in enumerate(cuts)}
    blocks = []
    for first, end in pairwise([*cuts, len(instructions)]):
        blocks.append(_block(instructions, labels, number, first, end))
    return SassFunction(name, tuple(instructions), tuple(_without_needless_parting(instructions, blocks)))


def _block(
    instructions: Sequence[SassInstruction], labels: Mapping[str, int], number: Mapping[int, int], first: int, end: int
) -> SassBlock:
    last = instructions[end - 1]

    def blocks_at(instruction: SassInstruction) -> Iterator[int]:
        for target in _targets(instruction):
            if labels.get(target) in number:
                yield number[labels[target]]

    edges = [
        Edge(target, "joined")
        for instruction in instructions[first:end]
        if instruction.name == "BSSY"
        for target in blocks_at(instruction)
    ]
    following = [Edge(number[end], "next")] if end in number else []
    conditional = bool(last.predicate)
    if last.name in _BRANCHES:
        divergent = "DIV" in last.modifiers or "CONV" in last.modifiers
        edges += [Edge(target, "divergent" if divergent else "taken") for target in dict.fromkeys(blocks_at(last))]
        # A branch with a predicate as an operand (BRA P0, ...) is conditional too.
        conditional = conditional or divergent or bool(re.match(r"!?U?P[0-6]\b", last.operands))
        edges += following if conditional else []
        uniform = "U" in last.modifiers or last.predicate.lstrip("!").startswith("UP")
        parts = (conditional or len(edges) > 1) and not uniform and not divergent
        return SassBlock(first, end, tuple(edges), may_part=parts)
    if last.name == "CALL":
        call = next(blocks_at(last), None)
        return SassBlock(first, end, (*edges, *following), call=call, may_part=conditional)
    if last.name in _ENDS:
        edges += following if conditional else []
        return SassBlock(first, end, tuple(edges), may_part=conditional, leaves=True)
    return SassBlock(first, end, (*edges, *following))


def _targets(instruction: SassInstruction) -> list[str]:
    """Labels that an instruction names, those of a table of branches among them."""
    names = _TARGET.findall(instruction.operands)
    for table in _TABLE.findall(instruction.operands):
        names += [name.strip() for name in table.split(",")]
    return names


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
    seen: set[tuple[int, frozenset[str]]] = set()
    work: list[tuple[int, frozenset[str]]] = [(0, frozenset())]
    work += [(block.call, frozenset()) for block in blocks if block.call is not None]
    while work and len(seen) < 16 * len(blocks) + 64:
        state = work.pop()
        if state in seen:
            continue
        seen.add(state)
        index, before = state
        block, opened = blocks[index], set(before)
        for instruction in instructions[block.first : block.end]:
            barrier = _BARRIER.search(instruction.operands)
            if barrier is not None and instruction.name == "BSSY":
                opened.add(barrier[0])
            elif barrier is not None and instruction.name in ("BSYNC", "BREAK"):
                opened.discard(barrier[0])
        if opened:
            inside.add(index)
        for edge in block.edges:
            work.append((edge.target, before if edge.kind == "joined" else frozenset(opened)))
    return inside


def reachable(function: SassFunction, starts: Sequence[int]) -> set[int]:
    """Blocks that are reached from some, without those of subroutines that they call."""
    seen = set(starts)
    work = list(starts)
    while work:
        for target in function.blocks[work.pop()].successors:
            if target not in seen:
                seen.add(target)
                work.append(target)
    return seen
