"""Asynchronous copies: ``cp.async``, its groups and its waits."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value
from kernelforge.devices.emulated.codegen.emit.mbarrier import copies_arrive
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction, Reg


def _copy(e: Emitter, i: Instruction) -> None:
    """``cp.async``, its groups and its waits."""
    m = i.modifiers
    if m[:1] != ("async",):
        raise unsupported(i)
    if m[1:2] == ("mbarrier",):
        copies_arrive(e, i)
        return
    if m[1:] in (("commit_group",), ("wait_group",), ("wait_all",)):
        mask = e.op(f"zext i32 {e.active(i)} to i64")
        if m[1] != "wait_group":
            e.call("kf_copy_commit", "void", ("ptr", "%ctx"), ("i64", mask))
        if m[1] != "commit_group":
            pending = e.constant(i.operands[0]) if m[1] == "wait_group" else 0
            if pending is None or pending < 0:
                raise unsupported(i, "the number of groups must be a constant")
            e.call("kf_copy_wait", "void", ("ptr", "%ctx"), ("i64", mask), ("i64", str(pending)))
        return
    if len(m) < 4 or m[1] not in ("ca", "cg") or not m[2].startswith("shared") or m[3] != "global":
        raise unsupported(i)
    size = e.constant(i.operands[2])
    if size not in (4, 8, 16):
        raise unsupported(i)
    to, targets = memory_operand(e, i, i.operands[0], lay.SHARED)
    source, sources = memory_operand(e, i, i.operands[1], lay.GLOBAL)
    e.copies = True
    read = e.new_site(MemorySite(i, lay.GLOBAL, size, lay.LOAD, source.offset, source.narrow))
    write = e.new_site(MemorySite(i, lay.SHARED, size, lay.STORE, to.offset, to.narrow))
    e.put(0, targets, 64)
    e.put(1, sources, 64)
    amount = Value(str(size), False)
    if len(i.operands) > 3:
        operand = i.operands[3]
        if isinstance(operand, Reg) and e.bits(operand.name) == 1:
            raise unsupported(i, "ignore-src predicate")
        amount = e.source(i, operand, 32)
    e.put(2, e.spread(amount, 32), 32)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_copy_async", "void", ("ptr", "%ctx"), ("ptr", read), ("ptr", write), ("ptr", "%area0"), ("ptr", "%area1"),
        ("i64", mask), ("ptr", "%area2"),
    )  # fmt: skip


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"cp": _copy}
