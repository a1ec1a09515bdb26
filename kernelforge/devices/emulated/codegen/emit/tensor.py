"""Matrix instructions of a warp: ``ldmatrix``, and ``mma.sync`` on f16 and bf16 with f32 sums.

Products are exact, their sum with the accumulator is formed in f64 and then rounded to f32, to nearest. Tensor cores
sum in an order and with truncations that are not documented, so their last bits may differ.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value, unsupported, vector_items
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Operand

_VECTOR = "<32 x i32>"
_EVERY_LANE = Imm(0xFFFFFFFF)


def _put_registers(e: Emitter, i: Instruction, area: int, operand: Operand) -> None:
    for k, item in enumerate(vector_items(operand)):
        e.store(_VECTOR, e.spread(e.source(i, item, 32), 32), f"%area{area}", 4 * lay.LANES * k, align=64)


def _get_registers(e: Emitter, i: Instruction, area: int) -> None:
    for k, item in enumerate(vector_items(i.operands[0])):
        e.write(i, item, Value(e.load(_VECTOR, f"%area{area}", 4 * lay.LANES * k, align=64), True), 32)


def _mma(e: Emitter, i: Instruction) -> None:
    shape = next((m for m in ("m16n8k8", "m16n8k16") if m in i.modifiers), None)
    element = i.modifiers[-2]
    kinds = ("f32", element, element, "f32")
    if shape is None or element not in ("f16", "bf16") or i.modifiers[-6:] != ("row", "col", *kinds):
        raise unsupported(i)
    depth = int(shape[6:])
    if [len(vector_items(op)) for op in i.operands] != [4, depth // 4, depth // 8, 4]:
        raise unsupported(i)
    e.check_members(i, _EVERY_LANE)
    for area, operand in enumerate(i.operands[1:]):
        _put_registers(e, i, area, operand)
    e.call(
        "kf_mma", "void", ("ptr", "%ctx"), ("ptr", "%area0"), ("ptr", "%area1"), ("ptr", "%area2"), ("ptr", "%area3"),
        ("i64", str(depth)), ("i64", str(int(element == "bf16"))),
    )  # fmt: skip
    _get_registers(e, i, 3)


def _ldmatrix(e: Emitter, i: Instruction) -> None:
    count = next((int(m[1:]) for m in i.modifiers if m in ("x1", "x2", "x4")), 0)
    if "m8n8" not in i.modifiers or i.type != "b16" or len(vector_items(i.operands[0])) != count:
        raise unsupported(i)
    e.check_members(i, _EVERY_LANE)
    target, addresses = memory_operand(e, i, i.operands[1])
    site = MemorySite(i, target.space, 16, lay.LOAD, target.offset, target.narrow)
    e.put(0, addresses, 64)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_ldmatrix", "void", ("ptr", "%ctx"), ("ptr", e.new_site(site)), ("ptr", "%area0"), ("i64", mask),
        ("ptr", "%area1"), ("i64", str(count)), ("i64", str(int("trans" in i.modifiers))),
    )  # fmt: skip
    # Every lane has what the others pointed at once any of them goes on.
    e.synchronise()
    _get_registers(e, i, 1)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"mma": _mma, "ldmatrix": _ldmatrix}
