"""Number of loads of a basic block that can be in flight at once: no address needs the result of another."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.ptx.blocks import Block
from kernelforge.devices.emulated.ptx.inline import state_space
from kernelforge.devices.emulated.ptx.instruction_facts import has_destination, registers_of, sources
from kernelforge.devices.emulated.ptx.parser import Instruction

_WAITED = (lay.GLOBAL, lay.LOCAL, lay.GENERIC, lay.SHARED)


def loads_in_flight(blocks: Iterable[Block]) -> dict[int, float]:
    """By the id of each load and atomic that waits for memory: the loads of its block over the longest chain of them.

    A chain is loads each of which needs the result of the one before for its address. Copies to shared memory are loads
    whose results no address needs.
    """
    overlap: dict[int, float] = {}
    for block in blocks:
        depth: dict[str, int] = {}
        loads: list[Instruction] = []
        longest = 0
        for i in block.instructions:
            before = max((depth.get(name, 0) for operand in sources(i) for name in registers_of(operand)), default=0)
            if i.predicate is not None:
                before = max(before, depth.get(i.predicate.name, 0))
            waits = _waits(i)
            if waits:
                loads.append(i)
                longest = max(longest, before + 1)
            if has_destination(i):
                for name in registers_of(i.operands[0]):
                    depth[name] = before + waits
        overlap |= {id(i): len(loads) / longest for i in loads}
    return overlap


def _waits(i: Instruction) -> bool:
    if i.opcode == "cp":
        spaces = [m.partition("::")[0] for m in i.modifiers if m.partition("::")[0] in ("global", "shared")]
        return spaces == ["shared", "global"]
    return i.opcode in ("ld", "ldu", "atom", "ldmatrix") and state_space(i) in _WAITED
