"""Control flow of a flat kernel: its analysed blocks, and the loops that wait for other threads."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.devices.emulated.ptx.blocks import (
    Block,
    begins_with_wait,
    build_blocks,
    liveness,
    reorder,
    weak_topological_order,
)
from kernelforge.devices.emulated.ptx.inline import FlatKernel
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, is_memory_wait, registers_of, specials
from kernelforge.devices.emulated.ptx.parser import Instruction
from kernelforge.devices.emulated.ptx.uniformity import Uniformity
from kernelforge.devices.emulated.ptx.warp_reductions import WarpReduction

_SPIN_SOURCES = {"volatile", "relaxed", "acquire", "mmio"}


@dataclass
class ControlFlowGraph:
    """The analysed kernel. Bitsets over registers use the index from ``ids``."""

    kernel: FlatKernel
    blocks: list[Block]
    ids: dict[str, int]
    live_in: list[int]
    live_out: list[int]
    varying: set[str]
    """Registers whose lanes may differ; the others are scalars."""
    split: set[int]
    """Blocks that may run while other lanes of the warp wait elsewhere."""
    divergent_branches: set[int]
    definitions: dict[str, list[Instruction]]
    reductions: dict[int, WarpReduction]
    """Reductions over a warp, by the ``id`` of the instruction that gives their result."""
    spins: bool
    """A loop's exit depends on memory that another thread may write: lanes and CTAs must take turns."""
    rotates: bool
    """Lanes of one warp may have to take turns."""
    phases_only: bool
    """CTAs of a cluster have no means to wait for one another but the cluster's barrier."""
    polls: set[int]
    """Blocks of loops that only read memory, and keep nothing from one turn to the next, until another thread writes
    it."""


def analyse(kernel: FlatKernel, block_shape: tuple[int, int, int]) -> ControlFlowGraph:
    """Build and analyse the control flow of ``kernel`` for a CTA of ``block_shape`` threads.

    Raises:
        UnsupportedInstruction: A branch has no known target.
    """
    blocks = build_blocks(kernel)
    order, loops = weak_topological_order(blocks)
    spinning = _spins(blocks, loops)
    spins = bool(spinning)
    spinning += _waiting_loops(blocks, loops)
    blocks = reorder(blocks, order)
    position = {old: new for new, old in enumerate(order)}
    spinning = [{position[b] for b in loop} for loop in spinning]
    ids = {name: k for k, name in enumerate(kernel.registers)}
    live_in, live_out = liveness(blocks, ids)
    uniformity = Uniformity(kernel, blocks, block_shape, live_in, live_out, ids, spins)
    uniformity.run()
    rotates = spins or uniformity.lanes_wait_for_lanes()
    if rotates and not spins:
        uniformity = Uniformity(kernel, blocks, block_shape, live_in, live_out, ids, True)
        uniformity.run()
    return ControlFlowGraph(
        kernel, blocks, ids, live_in, live_out, uniformity.varying, uniformity.split, uniformity.divergent,
        uniformity.definitions, uniformity.reductions, spins, rotates, _phases_only(blocks, spins),
        _polling_blocks(blocks, spinning, live_in, ids),
    )  # fmt: skip


def _spins(blocks: list[Block], loops: list[set[int]]) -> list[set[int]]:
    """The loops that leave on a value that an atomic or a re-read of memory produced inside them."""
    spinning: list[set[int]] = []
    for loop in loops:
        instructions = [i for b in loop for i in blocks[b].instructions]
        fenced = any(i.opcode in ("membar", "fence", "nanosleep", "bar") for b in loop for i in blocks[b].all())
        tainted: set[str] = set()
        for i in instructions:
            reads_memory = i.opcode == "ld" and not {"param", "const", "nc", "local"} & set(i.modifiers)
            if i.opcode == "atom" or (reads_memory and (fenced or _SPIN_SOURCES & set(i.modifiers))):
                tainted |= set(registers_of(i.operands[0]))
        if tainted and _leaves_on(blocks, loop, tainted):
            spinning.append(loop)
    return spinning


def _waiting_loops(blocks: list[Block], loops: list[set[int]]) -> list[set[int]]:
    """The loops that leave when a wait at an mbarrier tells that a phase is complete."""
    waiting: list[set[int]] = []
    for loop in loops:
        waits = [blocks[b].instructions[0] for b in loop if begins_with_wait(blocks[b])]
        tainted = {r for i in waits for r in registers_of(i.operands[0])}
        if tainted and _leaves_on(blocks, loop, tainted):
            waiting.append(loop)
    return waiting


def _leaves_on(blocks: list[Block], loop: set[int], registers: set[str]) -> bool:
    """Whether a branch out of a loop depends on some registers, or on what the loop computes of them."""
    tainted = set(registers)
    instructions = [i for b in loop for i in blocks[b].instructions]
    size = -1
    while size != len(tainted):
        size = len(tainted)
        for i in instructions:
            if has_destination(i):
                used = {r for op in i.operands[1:] for r in registers_of(op)}
                if used & tainted:
                    tainted |= set(registers_of(i.operands[0]))
    for b in loop:
        term = blocks[b].terminator
        leaves = any(s not in loop for s in blocks[b].successors)
        if leaves and term is not None and term.predicate is not None and term.predicate.name in tainted:
            return True
    return False


def _phases_only(blocks: list[Block], spins: bool) -> bool:
    """True without loops that wait for memory, barriers in memory (``mbarrier``) and copies that arrive at one."""
    return not spins and not any(
        i.opcode == "mbarrier" or (i.opcode in ("st", "red", "cp") and {"async", "bulk"} & set(i.modifiers)
                                   and any(m.startswith("mbarrier") for m in i.modifiers))
        for block in blocks for i in block.all()
    )  # fmt: skip


_POLLING = frozenset({
    "ld", "setp", "set", "selp", "and", "or", "xor", "not", "shl", "shr", "add", "sub", "mov", "cvt", "cvta", "bra",
    "fence", "membar", "nanosleep",
})  # fmt: skip


def _polling_blocks(blocks: list[Block], loops: list[set[int]], live_in: list[int], ids: dict[str, int]) -> set[int]:
    """The blocks of those ``loops`` that change nothing: neither memory, nor a register that their next turn reads."""
    polling: set[int] = set()
    _, all_loops = weak_topological_order(blocks)
    for loop in loops:
        if any(inner < loop for inner in all_loops):
            continue
        instructions = [i for b in loop for i in blocks[b].all()]
        written = 0
        for i in instructions:
            if has_destination(i):
                for r in registers_of(i.operands[0]):
                    written |= 1 << ids[r]
        entered = 0
        for b in range(len(blocks)):
            for s in blocks[b].successors:
                if s in loop and b not in loop:
                    entered |= live_in[s]
        clocks = any(s.startswith(("%clock", "%globaltimer")) for i in instructions for op in i.operands
                     for s in specials(op))  # fmt: skip
        if (
            not clocks
            and not written & entered
            and all(i.opcode in _POLLING or is_memory_wait(i) for i in instructions)
        ):
            polling |= loop
    return polling


_NEEDS_ITS_SOURCES = {
    "setp", "set", "atom", "shfl", "vote", "match", "redux", "mma", "ldmatrix", "elect", "activemask", "ld", "ldu",
}  # fmt: skip


def speculative_loads(flow: ControlFlowGraph) -> set[int]:
    """Plain loads, by ``id``, whose value only reaches choices of ``selp``, through arithmetic of their block.

    A compiler that turns a branch into a choice lets all lanes execute the loads of one side of the branch.
    """
    loads: set[int] = set()
    for block in flow.blocks:
        if not any(i.opcode == "selp" for i in block.instructions):
            continue
        needed = flow.live_out[block.index]
        term = block.terminator
        if term is not None:
            names = [r for op in term.operands for r in registers_of(op)]
            names += [] if term.predicate is None else [term.predicate.name]
            for name in names:
                needed |= 1 << flow.ids[name]
        for i in reversed(block.instructions):
            written = list(registers_of(i.operands[0])) if has_destination(i) else []
            read = [r for op in (i.operands[1:] if written else i.operands) for r in registers_of(op)]
            is_needed = any(needed >> flow.ids[r] & 1 for r in written)
            if i.opcode == "ld" and i.predicate is None and "volatile" not in i.modifiers and not is_needed:
                loads.add(id(i))
            if not written or i.opcode in _NEEDS_ITS_SOURCES or i.predicate is not None or is_needed:
                if i.opcode == "selp":
                    read = [r for op in i.operands[3:] for r in registers_of(op)]
                for r in read + ([] if i.predicate is None else [i.predicate.name]):
                    needed |= 1 << flow.ids[r]
    return loads
