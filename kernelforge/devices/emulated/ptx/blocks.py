"""Basic blocks of a flat kernel: their order, liveness and post-dominators.

Blocks are numbered in a weak topological order (Bourdoncle 1993): every join follows its predecessors and a loop's
blocks are contiguous, so running the lowest waiting block first reconverges a warp where the source does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kernelforge.devices.emulated.ptx.inline import FlatKernel, unsupported
from kernelforge.devices.emulated.ptx.instruction_facts import (
    has_destination,
    is_barrier,
    is_cluster_wait,
    is_memory_wait,
    moves_tensor,
    registers_of,
    sources,
    stops_warp,
)
from kernelforge.devices.emulated.ptx.parser import Instruction, Label, Sym


@dataclass(slots=True)
class Block:
    """A basic block: straight-line instructions and a terminator (None: fall through to ``successors[0]``)."""

    index: int
    instructions: list[Instruction] = field(default_factory=list)
    terminator: Instruction | None = None
    successors: list[int] = field(default_factory=list)

    def all(self) -> list[Instruction]:
        """Every instruction of the block in order."""
        return [*self.instructions, self.terminator] if self.terminator else self.instructions


def begins_with_wait(block: Block) -> bool:
    """Whether a block begins with a wait at an mbarrier."""
    return bool(block.instructions) and is_memory_wait(block.instructions[0])


def build_blocks(kernel: FlatKernel) -> list[Block]:
    """Cut the body into blocks. Predicated barriers, waits, traps and moves of tensor memory become branches around."""
    body: list[Instruction | Label] = []
    serial = 0
    for item in kernel.body:
        special = isinstance(item, Instruction) and (
            is_barrier(item) or is_cluster_wait(item) or stops_warp(item) or moves_tensor(item) or item.opcode == "trap"
        )
        if isinstance(item, Instruction) and special and item.predicate is not None:
            serial += 1
            label = Label(f"@around{serial}")
            body.append(
                replace(item, opcode="bra", modifiers=(), operands=(Sym(label.name),), negated=not item.negated)
            )
            body.append(replace(item, predicate=None))
            body.append(label)
        else:
            body.append(item)
    blocks = [Block(0)]
    labels: dict[str, int] = {}
    for item in body:
        current = blocks[-1]
        if isinstance(item, Label):
            if current.instructions or current.terminator:
                current = Block(len(blocks))
                blocks.append(current)
            labels[item.name] = current.index
            continue
        if current.terminator or (stops_warp(item) and current.instructions):
            after_barrier = current.terminator is not None and is_barrier(current.terminator)
            current = Block(len(blocks))
            blocks.append(current)
            if after_barrier and stops_warp(item):
                # The first block after a barrier reads its result; the wait's block may be entered several times.
                current = Block(len(blocks))
                blocks.append(current)
        if item.opcode in ("bra", "brx", "ret", "exit", "trap") or is_barrier(item) or is_cluster_wait(item):
            current.terminator = item
        else:
            current.instructions.append(item)
    last = blocks[-1].terminator
    ends = [block.terminator for block in blocks if block.terminator and block.terminator.opcode in ("ret", "exit")]
    early = any(term.predicate is not None for term in ends)
    # Lanes that return early go to the last block, so that nothing else may happen there.
    if last is None or last.opcode != "ret" or last.predicate is not None or (early and blocks[-1].instructions):
        blocks.append(Block(len(blocks), terminator=Instruction("ret", (), ())))
    end = len(blocks) - 1
    for block in blocks:
        term = block.terminator
        follow = block.index + 1
        if term is None:
            block.successors = [follow]
        elif term.opcode == "bra":
            target = term.operands[0]
            if not isinstance(target, Sym) or target.name not in labels:
                raise unsupported(term, "unknown branch target")
            taken = labels[target.name]
            block.successors = [taken] if term.predicate is None else [taken, follow]
        elif term.opcode == "brx":
            table = term.operands[1]
            if not isinstance(table, Sym) or table.name not in kernel.branch_targets or term.predicate is not None:
                raise unsupported(term, "unknown branch table")
            block.successors = [labels[name] for name in kernel.branch_targets[table.name]]
        elif term.opcode in ("ret", "exit"):
            block.successors = [] if term.predicate is None else [end, follow]
        elif term.opcode == "trap":
            block.successors = []
        else:
            block.successors = [follow]
    return blocks


def _components(nodes: set[int], starts: list[int], blocks: list[Block]) -> list[list[int]]:
    """Strongly connected components reachable from ``starts`` inside ``nodes``, in topological order (Tarjan)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    result: list[list[int]] = []
    work: list[tuple[int, Iterator[int]]] = []

    def open_node(node: int) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        work.append((node, iter(blocks[node].successors)))

    for start in starts:
        if start not in index:
            open_node(start)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in nodes:
                    continue
                if successor not in index:
                    open_node(successor)
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    result.append(component)
    result.reverse()
    return result


def weak_topological_order(blocks: list[Block]) -> tuple[list[int], list[set[int]]]:
    """Return the reachable blocks in order, and the loops (non-trivial components, outer before inner)."""
    order: list[int] = []
    loops: list[set[int]] = []

    def visit(nodes: set[int], starts: list[int]) -> None:
        for component in _components(nodes, starts, blocks):
            head = component[-1]  # the first node that the search entered
            order.append(head)
            members = set(component)
            if len(component) > 1 or head in blocks[head].successors:
                loops.append(members)
                inner = members - {head}
                if inner:
                    # Every node of the component is reachable from its head, so these starts reach all of ``inner``.
                    visit(inner, [k for k in blocks[head].successors if k in inner])

    visit(set(range(len(blocks))), [0])
    return order, loops


def reorder(blocks: list[Block], order: list[int]) -> list[Block]:
    """Number the blocks that ``order`` lists in that order, and drop the others."""
    position = {old: new for new, old in enumerate(order)}
    result = [blocks[old] for old in order]
    for new, block in enumerate(result):
        block.index = new
        block.successors = [position[s] for s in block.successors]
    return result


def liveness(blocks: list[Block], ids: dict[str, int]) -> tuple[list[int], list[int]]:
    """Registers that live at the start and at the end of each block, as bitsets over ``ids``."""
    count = len(blocks)
    uses, kills = [0] * count, [0] * count
    for block in blocks:
        use = kill = 0
        for i in block.all():
            writes = has_destination(i)
            for op in sources(i):
                for r in registers_of(op):
                    use |= (1 << ids[r]) & ~kill
            if i.predicate is not None:
                use |= (1 << ids[i.predicate.name]) & ~kill
            if writes:
                for r in registers_of(i.operands[0]):
                    if i.predicate is not None:
                        use |= (1 << ids[r]) & ~kill  # a predicated write keeps the old value
                    kill |= 1 << ids[r]
        uses[block.index], kills[block.index] = use, kill
    live_in, live_out = [0] * count, [0] * count
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = 0
            for s in block.successors:
                out |= live_in[s]
            inside = uses[block.index] | (out & ~kills[block.index])
            if out != live_out[block.index] or inside != live_in[block.index]:
                live_out[block.index], live_in[block.index] = out, inside
                changed = True
    return live_in, live_out


def post_dominators(blocks: list[Block]) -> list[int]:
    """Immediate post-dominator of every block; ``len(blocks)`` stands for the exit."""
    count = len(blocks)
    everything = (1 << (count + 1)) - 1
    sets = [everything] * count + [1 << count]
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            meet = everything
            for s in block.successors or [count]:
                meet &= sets[s]
            meet |= 1 << block.index
            if meet != sets[block.index]:
                sets[block.index] = meet
                changed = True
    sizes = [s.bit_count() for s in sets]
    result = []
    for b in range(count):
        rest = sets[b] & ~(1 << b)
        best, best_size = count, -1
        while rest:
            node = (rest & -rest).bit_length() - 1
            rest &= rest - 1
            if sizes[node] > best_size and sets[node] != everything:
                best, best_size = node, sizes[node]
        result.append(best)
    return result


def short_sides(blocks: list[Block]) -> dict[int, tuple[list[int], int]]:
    """By branch in two: its sides that are one block, which only it leads to, and the later block where both end.

    One side, if the other leads there directly, or both. No lane stops or leaves in a side.
    """
    sources: dict[int, set[int]] = {}
    for block in blocks:
        for successor in block.successors:
            sources.setdefault(successor, set()).add(block.index)
    result: dict[int, tuple[list[int], int]] = {}
    for block in blocks:
        term = block.terminator
        if term is None or term.opcode != "bra" or len(set(block.successors)) < 2:
            continue
        ends: dict[int, int] = {}
        for k in block.successors:
            side = blocks[k]
            goes_on = side.terminator is None or (side.terminator.opcode == "bra" and side.terminator.predicate is None)
            waits = bool(side.instructions) and stops_warp(side.instructions[0])
            if sources[k] == {block.index} and goes_on and not waits and block.index < k < side.successors[0]:
                ends[k] = side.successors[0]
        for k, other in (block.successors, block.successors[::-1]):
            if ends.get(k) == other:
                result[block.index] = [k], other
        if len(ends) == 2 and len(set(ends.values())) == 1:
            result[block.index] = list(ends), ends[block.successors[0]]
    return result
