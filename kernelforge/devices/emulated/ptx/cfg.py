"""Control flow of a flat kernel: basic blocks, their order, liveness and uniformity.

Blocks are numbered in a weak topological order (Bourdoncle 1993): every join follows its predecessors and a loop's
blocks are contiguous, so running the lowest waiting block first reconverges a warp where the source does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kernelforge.devices.emulated.ptx.inline import FlatKernel, unsupported
from kernelforge.devices.emulated.ptx.parser import (
    Addr,
    Imm,
    Instruction,
    Label,
    NotReg,
    Operand,
    Pair,
    Reg,
    Special,
    Sym,
    Vec,
)

_NO_DESTINATION = {
    "st", "red", "bra", "brx", "ret", "exit", "membar", "fence", "trap", "brkpt", "nanosleep", "prefetch",
    "prefetchu", "cp", "pmevent", "griddepcontrol", "discard", "applypriority", "setmaxnreg", "stmatrix",
}  # fmt: skip
_TENSOR_MOVES = frozenset({"alloc", "dealloc", "relinquish_alloc_permit", "ld", "st", "wait::ld", "wait::st"})
_SPIN_SOURCES = {"volatile", "relaxed", "acquire", "mmio"}


def is_barrier(instruction: Instruction) -> bool:
    """True for a CTA barrier (not ``bar.warp.sync``, not ``barrier.cluster``)."""
    return instruction.opcode in ("bar", "barrier") and not {"warp", "cluster"} & set(instruction.modifiers)


def is_memory_wait(instruction: Instruction) -> bool:
    """True for ``mbarrier.test_wait`` and ``mbarrier.try_wait``."""
    return instruction.opcode == "mbarrier" and instruction.modifiers[:1] in (("test_wait",), ("try_wait",))


def stops_warp(instruction: Instruction) -> bool:
    """True for instructions that begin a basic block, because a warp may stop at them and come back."""
    return is_memory_wait(instruction) or (
        (instruction.opcode, *instruction.modifiers[:1]) in (("wgmma", "wait_group"), ("tcgen05", "alloc"))
    )


def moves_tensor(instruction: Instruction) -> bool:
    """True for instructions of a whole warp on its tensor memory."""
    return instruction.opcode == "tcgen05" and not _TENSOR_MOVES.isdisjoint(instruction.modifiers[:1])


def begins_with_wait(block: Block) -> bool:
    """Whether a block begins with a wait at an mbarrier."""
    return bool(block.instructions) and is_memory_wait(block.instructions[0])


def is_cluster_wait(instruction: Instruction) -> bool:
    """True for ``barrier.cluster.wait``."""
    return instruction.opcode == "barrier" and {"cluster", "wait"} <= set(instruction.modifiers)


def registers_of(operand: Operand) -> Iterator[str]:
    """Yield the registers that an operand names."""
    if isinstance(operand, Reg | NotReg):
        yield operand.name
    elif isinstance(operand, Addr):
        yield from registers_of(operand.base)
        for item in operand.coordinates:
            yield from registers_of(item)
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from registers_of(item)
    elif isinstance(operand, Pair):
        yield from registers_of(operand.first)
        yield from registers_of(operand.second)


def _specials(operand: Operand) -> Iterator[str]:
    if isinstance(operand, Special):
        yield operand.name
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from _specials(item)


def has_destination(instruction: Instruction) -> bool:
    """True when the first operand is written."""
    if not instruction.operands:
        return False
    if instruction.opcode in ("bar", "barrier"):
        return "red" in instruction.modifiers
    if instruction.opcode == "wgmma":
        return instruction.modifiers[:1] == ("mma_async",)
    if instruction.opcode == "tcgen05":
        return instruction.modifiers[:1] == ("ld",)
    if instruction.opcode == "clusterlaunchcontrol":
        return instruction.modifiers[:1] == ("query_cancel",)
    if instruction.opcode == "multimem":
        return instruction.modifiers[:1] == ("ld_reduce",)
    if instruction.opcode == "mbarrier":
        return instruction.modifiers[:1] not in (("init",), ("inval",), ("expect_tx",), ("complete_tx",))
    return instruction.opcode not in _NO_DESTINATION


def sources(instruction: Instruction) -> tuple[Operand, ...]:
    """The operands that are read: an accumulator of ``wgmma`` is read and written."""
    accumulates = instruction.opcode == "wgmma"
    return instruction.operands[1:] if has_destination(instruction) and not accumulates else instruction.operands


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
    spins: bool
    """A loop's exit depends on memory that another thread may write: lanes and CTAs must take turns."""
    rotates: bool
    """Lanes of one warp may have to take turns."""
    phases_only: bool
    """CTAs of a cluster have no means to wait for one another but the cluster's barrier."""
    polls: set[int]
    """Blocks of loops that only read memory, and keep nothing from one turn to the next, until another thread writes
    it."""


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


def _reorder(blocks: list[Block], order: list[int]) -> list[Block]:
    position = {old: new for new, old in enumerate(order)}
    result = [blocks[old] for old in order]
    for new, block in enumerate(result):
        block.index = new
        block.successors = [position[s] for s in block.successors]
    return result


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
                     for s in _specials(op))  # fmt: skip
        if (
            not clocks
            and not written & entered
            and all(i.opcode in _POLLING or is_memory_wait(i) for i in instructions)
        ):
            polling |= loop
    return polling


def liveness(blocks: list[Block], ids: dict[str, int]) -> tuple[list[int], list[int]]:
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


_OF_THE_MOMENT = frozenset({
    "vote", "redux", "activemask", "match", "addc", "subc", "madc", "bar", "barrier", "mbarrier", "wgmma", "tcgen05",
    "shfl",
})  # fmt: skip
"""Instructions whose results depend on which lanes run, or on other threads."""


class _Uniformity:
    """Finds which registers may differ between lanes that run together."""

    def __init__(
        self, kernel: FlatKernel, blocks: list[Block], block_shape: tuple[int, int, int], live_in: list[int],
        ids: dict[str, int], rotates: bool,
    ) -> None:  # fmt: skip
        self.kernel, self.blocks, self.live_in, self.ids = kernel, blocks, live_in, ids
        x, y, _ = block_shape
        self.block_x = x
        self.varying_specials = {"%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt",
                                 "%lanemask_ge", "%tid.x"}  # fmt: skip
        if x % 32:
            self.varying_specials.add("%tid.y")
            if (x * y) % 32:
                self.varying_specials.add("%tid.z")
        self.has_frame = kernel.frame_bytes > 0
        self.varying: set[str] = set()
        self.definitions: dict[str, list[Instruction]] = {}
        self.masks: list[int] = []
        for block in blocks:
            mask = 0
            for i in block.all():
                if has_destination(i):
                    for r in registers_of(i.operands[0]):
                        self.definitions.setdefault(r, []).append(i)
                        mask |= 1 << ids[r]
            self.masks.append(mask)
        self.names = {v: k for k, v in ids.items()}
        self.rotates = rotates
        self.split: set[int] = set()
        self.divergent: set[int] = set()

    def varies(self, i: Instruction) -> bool:
        """True when the instruction gives lanes different values even from equal register sources."""
        if i.opcode in ("atom", "mma", "ldmatrix", "elect", "movmatrix", "wgmma", "tcgen05"):
            return True
        if i.opcode == "mbarrier" and i.modifiers[:1] in (("arrive",), ("arrive_drop",)):
            return True
        if i.opcode == "shfl" and not self.broadcasts(i):
            return True
        if i.opcode in ("addc", "subc", "madc") or "cc" in i.modifiers:
            return True  # the carry flag is not tracked as a register
        if i.opcode == "match" and "any" in i.modifiers:
            return True
        if i.opcode in ("ld", "ldu"):
            space = next((m for m in i.modifiers if m in ("global", "shared", "local", "const", "param")), "")
            if not space and any(m.startswith("shared") for m in i.modifiers):
                space = "shared"
            address = i.operands[1]
            in_frame = (
                isinstance(address, Addr) and isinstance(address.base, Sym) and address.base.name in self.kernel.frame
            )
            if space == "local" or in_frame or (not space and self.has_frame):
                return True
        return any(s in self.varying_specials for op in i.operands[1:] for s in _specials(op))

    def broadcasts(self, i: Instruction) -> bool:
        """Whether a shuffle gives all lanes the value of one: ``shfl.sync.idx`` with constant operands."""
        constants = (Imm(0x1F), Imm(0xFFFFFFFF), Imm(-1))
        return (
            i.predicate is None
            and "idx" in i.modifiers
            and isinstance(i.operands[0], Reg)
            and isinstance(i.operands[2], Imm)
            and i.operands[3] in constants[:1]
            and i.operands[4] in constants[1:]
        )

    def aligned(self, i: Instruction) -> bool:
        """Whether an instruction asks of ``%tid.x`` only what the lanes of a warp agree on: its warp."""
        x = self.block_x
        if x % 32 or i.opcode not in ("shr", "setp") or i.predicate is not None or len(i.operands) != 3:
            return False
        _, value, bound = i.operands
        if not isinstance(bound, Imm) or not self.is_thread_index(value):
            return False
        if i.opcode == "shr":
            return 5 <= bound.value < 32
        last = {"lt": 0, "ge": 0, "lo": 0, "hs": 0, "gt": 31, "le": 31, "hi": 31, "ls": 31}
        compare = i.modifiers[0]
        return len(i.modifiers) == 2 and compare in last and bound.value >= 0 and bound.value % 32 == last[compare]

    def is_thread_index(self, operand: Operand) -> bool:
        for _ in range(8):
            if operand == Special("%tid.x"):
                return True
            definitions = self.definitions.get(operand.name, []) if isinstance(operand, Reg) else []
            if len(definitions) != 1 or definitions[0].opcode != "mov" or definitions[0].predicate is not None:
                return False
            operand = definitions[0].operands[1]
        return False

    def invariant(self) -> set[str]:
        """Registers with one definition from parameters and launch constants: equal whenever they are computed."""
        result: set[str] = set()
        changed = True
        while changed:
            changed = False
            for r, definitions in self.definitions.items():
                if r in result or len(definitions) != 1:
                    continue
                i = definitions[0]
                if i.predicate is not None or self.varies(i):
                    continue
                if i.opcode in ("ld", "ldu") and "param" not in i.modifiers:
                    continue
                if i.opcode in _OF_THE_MOMENT:
                    continue
                if any(s.startswith(("%clock", "%globaltimer")) for op in i.operands for s in _specials(op)):
                    continue
                if all(s in result for op in i.operands[1:] for s in registers_of(op)):
                    result.add(r)
                    changed = True
        return result

    def reach(self, start: int, stop: int) -> int:
        seen = 0
        work = [start]
        while work:
            node = work.pop()
            if node == stop or seen >> node & 1:
                continue
            seen |= 1 << node
            work.extend(self.blocks[node].successors)
        return seen

    def run(self) -> None:
        if self.rotates:
            fixed = self.invariant()
            self.varying = {r for r in self.definitions if r not in fixed}
        inherent = {r for r, d in self.definitions.items() if any(self.varies(i) for i in d)}
        self.varying |= inherent
        users: dict[str, set[str]] = {}
        for r, definitions in self.definitions.items():
            for i in definitions:
                if (i.opcode == "shfl" and self.broadcasts(i)) or self.aligned(i):
                    continue
                for op in i.operands[1:]:
                    for s in registers_of(op):
                        users.setdefault(s, set()).add(r)
                if i.predicate is not None:
                    users.setdefault(i.predicate.name, set()).add(r)
        post = post_dominators(self.blocks)
        pending = list(self.varying)
        while True:
            while pending:
                for r in users.get(pending.pop(), ()):
                    if r not in self.varying:
                        self.varying.add(r)
                        pending.append(r)
            new = self.diverge(post)
            if not new:
                break
            self.varying |= new
            pending = list(new)
        if self.rotates and self.divergent:
            self.split = set(range(len(self.blocks)))

    def lanes_wait_for_lanes(self) -> bool:
        """Whether lanes that wait at an mbarrier may need lanes of their warp that a branch sent elsewhere."""
        post = post_dominators(self.blocks)
        waits = arrivals = 0
        for block in self.blocks:
            waits |= begins_with_wait(block) << block.index
            arrivals |= any(map(_arrives, block.instructions)) << block.index
        for b in self.divergent:
            starts = list(dict.fromkeys(self.blocks[b].successors))
            for s in starts:
                if self.reach(s, post[b]) & waits and any(
                    self.reach(other, -1) & arrivals for other in starts if other != s
                ):
                    return True
        return False

    def diverge(self, post: list[int]) -> set[str]:
        """Add the branches that became divergent; return registers that differ because of them."""
        registers = 0
        for block in self.blocks:
            term = block.terminator
            if block.index in self.divergent or term is None or len(set(block.successors)) < 2:
                continue
            key = next(registers_of(term.operands[0]), None) if term.opcode == "brx" else None
            if term.predicate is not None:
                key = term.predicate.name
            if key is None or key not in self.varying:
                continue
            self.divergent.add(block.index)
            stop = post[block.index]
            sides = [self.reach(s, stop) for s in dict.fromkeys(block.successors)]
            joined = 1 << stop if stop < len(self.blocks) else 0
            region = seen = 0
            for side in sides:
                joined |= seen & side
                seen |= side
                region |= side
            self.split |= set(_bits(region))
            live_joined = self.union(self.live_in, joined)
            defined = [self.union(self.masks, side) for side in sides]
            for k, _side in enumerate(sides):
                live = live_joined
                for other, other_side in enumerate(sides):
                    if other != k:
                        live |= self.union(self.live_in, other_side)
                registers |= defined[k] & live
        return {self.names[b] for b in _bits(registers)} - self.varying

    def union(self, sets: list[int], nodes: int) -> int:
        result = 0
        for node in _bits(nodes):
            result |= sets[node]
        return result


def _arrives(i: Instruction) -> bool:
    """Whether an instruction may complete the phase of an mbarrier, now or later."""
    if i.opcode == "mbarrier":
        return i.modifiers[:1] in (("arrive",), ("arrive_drop",), ("complete_tx",))
    if i.opcode == "tcgen05":
        return i.modifiers[:1] == ("commit",)
    return i.opcode in ("cp", "st", "red") and any(m.startswith("mbarrier") for m in i.modifiers)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


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
    blocks = _reorder(blocks, order)
    position = {old: new for new, old in enumerate(order)}
    spinning = [{position[b] for b in loop} for loop in spinning]
    ids = {name: k for k, name in enumerate(kernel.registers)}
    live_in, live_out = liveness(blocks, ids)
    uniformity = _Uniformity(kernel, blocks, block_shape, live_in, ids, spins)
    uniformity.run()
    rotates = spins or uniformity.lanes_wait_for_lanes()
    if rotates and not spins:
        uniformity = _Uniformity(kernel, blocks, block_shape, live_in, ids, True)
        uniformity.run()
    return ControlFlowGraph(
        kernel, blocks, ids, live_in, live_out, uniformity.varying, uniformity.split, uniformity.divergent,
        uniformity.definitions, spins, rotates, _phases_only(blocks, spins),
        _polling_blocks(blocks, spinning, live_in, ids),
    )  # fmt: skip


def constant_value(flow: ControlFlowGraph, operand: Operand) -> int | None:
    """Return the integer an operand always has, following single-definition ``mov`` chains; None if unknown."""
    for _ in range(8):
        if isinstance(operand, Imm):
            return operand.value
        if not isinstance(operand, Reg):
            return None
        definitions = flow.definitions.get(operand.name, [])
        if len(definitions) != 1 or definitions[0].opcode != "mov" or definitions[0].predicate is not None:
            return None
        operand = definitions[0].operands[1]
    return None


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
