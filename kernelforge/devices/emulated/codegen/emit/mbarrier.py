"""Barriers in shared memory: ``mbarrier`` and the arrivals of ``cp.async``."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Operand
from kernelforge.devices.emulated.runtime.mbarrier import ARRIVE, COMPLETE_BYTES, DROP, EXPECT_BYTES, NO_COMPLETE

_WAITS = ("test_wait", "try_wait")
_ORDERS = {"release", "acquire", "relaxed", "cta", "cluster", "shared", "shared::cta", "shared::cluster", "b64"}


def barrier_operand(e: Emitter, i: Instruction, operand: Operand, space: int | None = None) -> str:
    """Put the addresses of an mbarrier into area 0; returns its memory record."""
    target, addresses = memory_operand(e, i, operand, space)
    if target.space not in (lay.SHARED, lay.GENERIC):
        raise unsupported(i, "an mbarrier is in shared memory")
    e.asynchronous = True
    peers = target.space == lay.SHARED and "shared::cluster" in i.modifiers
    where = lay.SHARED_CLUSTER if peers else target.space
    e.put(0, addresses, 64)
    return e.new_site(MemorySite(i, where, 8, lay.ATOMIC, target.offset, target.narrow, hidden=True))


def _mask(e: Emitter, i: Instruction) -> tuple[str, str]:
    return "i64", e.op(f"zext i32 {e.active(i)} to i64")


def _mbarrier(e: Emitter, i: Instruction) -> None:
    verb = i.modifiers[0] if i.modifiers else ""
    rest = set(i.modifiers[1:])
    if i.type != "b64":
        raise unsupported(i)
    if verb == "pending_count":
        _pending_count(e, i)
    elif verb in _WAITS and not rest - _ORDERS - {"parity"}:
        _wait(e, i)
    elif verb == "inval" and not rest - _ORDERS:
        op = barrier_operand(e, i, i.operands[0])
        e.call("kf_mbarrier_inval", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i))
    elif verb == "init" and not rest - _ORDERS:
        op = barrier_operand(e, i, i.operands[0])
        counts = e.put(1, e.spread(e.source(i, i.operands[1], 32), 32), 32)
        arguments = (("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i), ("ptr", counts))
        e.call("kf_mbarrier_init", "void", *arguments)
    elif verb in ("expect_tx", "complete_tx") and not rest - _ORDERS:
        _change(e, i, None, i.operands[0], Imm(0), i.operands[1], EXPECT_BYTES if verb[0] == "e" else COMPLETE_BYTES)
    elif verb in ("arrive", "arrive_drop") and not rest - _ORDERS - {"expect_tx", "noComplete"}:
        code = ARRIVE | (DROP if verb == "arrive_drop" else 0)
        last = i.operands[2] if len(i.operands) > 2 else Imm(1)
        if "expect_tx" in rest:
            _change(e, i, i.operands[0], i.operands[1], Imm(1), last, code | EXPECT_BYTES)
        else:
            code |= NO_COMPLETE if "noComplete" in rest else 0
            _change(e, i, i.operands[0], i.operands[1], last, Imm(0), code)
    else:
        raise unsupported(i)


def _change(
    e: Emitter, i: Instruction, state: Operand | None, address: Operand, count: Operand, nbytes: Operand, code: int
) -> None:
    """Change the counts of a barrier; ``state`` gets what it was before."""
    op = barrier_operand(e, i, address)
    counts = e.put(1, e.spread(e.source(i, count, 32), 32), 32)
    sizes = e.put(2, e.spread(e.source(i, nbytes, 32), 32), 32)
    e.call(
        "kf_mbarrier_change", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i), ("ptr", counts),
        ("ptr", sizes), ("ptr", "%area3"), ("i64", str(code)),
    )  # fmt: skip
    if state is not None:
        e.write(i, state, e.get(3, 64), 64)


def _wait(e: Emitter, i: Instruction) -> None:
    """A wait begins its block, so that the warp can stop at it and come back to it."""
    target, address, phase = i.operands[:3]
    if "parity" in i.modifiers:
        wide = e.spread(e.resize(e.source(i, phase, 32), 32, 64), 64)
    else:
        state = e.spread(e.source(i, phase, 64), 64)
        wide = e.op(f"lshr <32 x i64> {state}, splat (i64 {lay.MBARRIER_PHASE})")
    op = barrier_operand(e, i, address)
    phases = e.put(1, e.op(f"and <32 x i64> {wide}, splat (i64 1)"), 64)
    arguments = (("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i), ("ptr", phases))
    passed = e.call("kf_mbarrier_wait", "i64", *arguments)
    stop_if_negative(e, passed)
    e.write(i, target, Value(e.op(f"trunc i64 {passed} to i32"), True), 1)


def stop_if_negative(e: Emitter, answer: str) -> None:
    """Stop the warp, to come back to this block, where the runtime's answer is negative."""
    stop, go = e.label("stop"), e.label("passed")
    e.emit(f"br i1 {e.op(f'icmp slt i64 {answer}, 0')}, label %{stop}, label %{go}\n{stop}:")
    e.store("i32", str(e.block), "%state")
    e.store("i32", e.mask, "%mask_p")
    e.emit(f"ret i32 {lay.RETURN_WAIT}\n{go}:")


def _pending_count(e: Emitter, i: Instruction) -> None:
    state = e.source(i, i.operands[1], 64)
    kind = "<32 x i64>" if state.vec else "i64"
    most = f"splat (i64 {lay.MBARRIER_MOST})" if state.vec else str(lay.MBARRIER_MOST)
    e.write(i, i.operands[0], Value(e.op(f"and {kind} {state.text}, {most}"), state.vec), 64)


def copies_arrive(e: Emitter, i: Instruction) -> None:
    """``cp.async.mbarrier.arrive``."""
    if set(i.modifiers[1:]) - {"mbarrier", "arrive", "noinc", "shared", "shared::cta", "b64"}:
        raise unsupported(i)
    op = barrier_operand(e, i, i.operands[0])
    expected = ("i64", str(int("noinc" in i.modifiers)))
    e.call("kf_copy_arrive", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i), expected)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"mbarrier": _mbarrier}
