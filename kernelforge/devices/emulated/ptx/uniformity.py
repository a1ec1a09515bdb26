"""Uniformity: which registers may differ between the lanes of a warp, and where its lanes part."""

from __future__ import annotations

from collections.abc import Iterator

from kernelforge.devices.emulated.ptx.blocks import Block, begins_with_wait, post_dominators
from kernelforge.devices.emulated.ptx.inline import FlatKernel
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of, specials
from kernelforge.devices.emulated.ptx.parser import Addr, Imm, Instruction, Operand, Reg, Special, Sym
from kernelforge.devices.emulated.ptx.warp_reductions import warp_reductions

_OF_THE_MOMENT = frozenset({
    "vote", "redux", "activemask", "match", "addc", "subc", "madc", "bar", "barrier", "mbarrier", "wgmma", "tcgen05",
    "shfl",
})  # fmt: skip
"""Instructions whose results depend on which lanes run, or on other threads."""


class Uniformity:
    """Finds which registers may differ between lanes that run together."""

    def __init__(
        self, kernel: FlatKernel, blocks: list[Block], block_shape: tuple[int, int, int], live_in: list[int],
        live_out: list[int], ids: dict[str, int], rotates: bool,
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
        self.reductions = warp_reductions(blocks, self.definitions, live_out, ids)
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
        return any(s in self.varying_specials for op in i.operands[1:] for s in specials(op))

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
                if any(s.startswith(("%clock", "%globaltimer")) for op in i.operands for s in specials(op)):
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
                if (i.opcode == "shfl" and self.broadcasts(i)) or self.aligned(i) or id(i) in self.reductions:
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
