"""Matrix instructions of a warp: ``mma``, ``ldmatrix``, ``stmatrix`` and ``movmatrix``."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value, vector_items
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.codegen.ir_builder import lane_vector
from kernelforge.devices.emulated.codegen.matrix_ir import ELEMENT_BITS, Product
from kernelforge.devices.emulated.codegen.memory_ir import CONVENTION, matrices_name
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Operand

_EVERY_LANE = Imm(0xFFFFFFFF)
_LEFT, _RIGHT, _TOTAL = 0, 2048, 3072
"""Offsets of the fragments of A, B and C in the memory of a product."""
FRAGMENT_BYTES = 4096

_SHAPES = {
    ("f16", "f32"): ("m16n8k8", "m16n8k16"), ("f16", "f16"): ("m16n8k8", "m16n8k16"),
    ("bf16", "f32"): ("m16n8k8", "m16n8k16"), ("tf32", "f32"): ("m16n8k4", "m16n8k8"),
    ("f64", "f64"): ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    ("8-bit", "s32"): ("m8n8k16", "m16n8k16", "m16n8k32"), ("4-bit", "s32"): ("m8n8k32", "m16n8k32", "m16n8k64"),
    ("b1", "s32"): ("m8n8k128", "m16n8k128", "m16n8k256"),
    ("fp8", "f32"): ("m16n8k16", "m16n8k32"), ("fp8", "f16"): ("m16n8k16", "m16n8k32"),
}  # fmt: skip
_SPARSE_SHAPES = {
    ("f16", "f32"): ("m16n8k16", "m16n8k32"), ("f16", "f16"): ("m16n8k16", "m16n8k32"),
    ("bf16", "f32"): ("m16n8k16", "m16n8k32"), ("tf32", "f32"): ("m16n8k8", "m16n8k16"),
    ("8-bit", "s32"): ("m16n8k32", "m16n8k64"), ("4-bit", "s32"): ("m16n8k64", "m16n8k128"),
    ("fp8", "f32"): ("m16n8k64",), ("fp8", "f16"): ("m16n8k64",),
}  # fmt: skip
_SPARSE = {"sp", "sp::ordered_metadata"}
_GROUPS = {"s8": "8-bit", "u8": "8-bit", "s4": "4-bit", "u4": "4-bit", "e4m3": "fp8", "e5m2": "fp8"}
"""Types of A that may be multiplied by another type of the same group."""
_SHAPE = re.compile(r"m(\d+)n8k(\d+)$")
_FLAGS = {"sync", "aligned", "row", "col", "satfinite", "xor", "and", "popc", "rn", "kind::f8f6f4", *_SPARSE}


def _product(i: Instruction) -> Product:
    """The product that an ``mma`` instruction computes."""
    shape = next((m for m in i.modifiers if _SHAPE.match(m)), "")
    types = [m for m in i.modifiers if m in ELEMENT_BITS or m in ("f32", "s32")]
    if len(types) != 4 or set(i.modifiers) - _FLAGS - {shape, *types} or "sync" not in i.modifiers:
        raise unsupported(i)
    result, a_type, b_type, total = types
    group = _GROUPS.get(a_type, a_type)
    integer = total == "s32"
    if shape == "m8n8k4" and a_type == "f16":
        layouts = [m for m in i.modifiers if m in ("row", "col")]
        others = set(i.modifiers) - {"sync", "aligned", "row", "col", shape, *types}
        if len(layouts) != 2 or others or types not in (["f16"] * 4, ["f32", "f16", "f16", "f32"]):
            raise unsupported(i)
        return Product(8, 4, a_type, b_type, total, "".join(layouts))
    option = next((m for m in ("satfinite", "xor", "and") if m in i.modifiers), "")
    sparse = bool(_SPARSE & set(i.modifiers))
    if (
        result != total
        or group != _GROUPS.get(b_type, b_type)
        or shape not in (_SPARSE_SHAPES if sparse else _SHAPES).get((group, total), ())
        or [m for m in i.modifiers if m in ("row", "col")] != ["row", "col"]
        or ("rn" in i.modifiers and a_type != "f64")
        or (option == "satfinite" and (not integer or a_type == "b1"))
        or (a_type == "b1") != (option in ("xor", "and"))
    ):
        raise unsupported(i)
    match = _SHAPE.match(shape)
    assert match is not None
    return Product(int(match[1]), int(match[2]), a_type, b_type, total, option, sparse)


def metadata_of(e: Emitter, i: Instruction, product: Product, words: Operand, selector: Operand, ordered: bool) -> str:
    """Put a sparse A's metadata into memory, from the first lane of a group that holds some; what is undefined faults.

    Groups of four lanes hold the metadata of two rows, in the order of their registers of A.
    """
    lanes = product.metadata_lanes()
    number = e.constant(selector)
    if number is None or not 0 <= number < 4 // lanes:
        raise unsupported(i, f"the sparsity selector must be a constant from 0 to {4 // lanes - 1}")
    kind = "<32 x i32>"
    text = e.spread(e.source(i, words, 32), 32)
    ones = f"splat (i32 {0x11111111})"
    third = e.op(f"lshr {kind} {text}, splat (i32 2)")
    if product.a_type == "tf32":
        # 0b0100 and 0b1110 are the halves of a pair.
        apart = e.op(f"xor {kind} {text}, {third}")
        apart = e.op(f"lshr {kind} {apart}, splat (i32 1)")
        other = e.op(f"xor {kind} {e.op(f'or {kind} {apart}, {text}')}, splat (i32 -1)")
        good = e.op(f"and {kind} {third}, {other}")
    else:
        low, high = (e.op(f"and {kind} {v}, splat (i32 {0x33333333})") for v in (text, third))
        if ordered:
            # Four more than the difference: above four where the second index is greater.
            apart = e.op(f"sub {kind} {e.op(f'or {kind} {high}, splat (i32 {0x44444444})')}, {low}")
        else:
            apart = e.op(f"or {kind} {e.op(f'xor {kind} {high}, {low}')}, splat (i32 {0x44444444})")
        some = e.op(f"or {kind} {apart}, {e.op(f'lshr {kind} {apart}, splat (i32 1)')}")
        good = e.op(f"and {kind} {some}, {e.op(f'lshr {kind} {apart}, splat (i32 2)')}")
    bad = e.op(f"icmp ne {kind} {e.op(f'and {kind} {good}, {ones}')}, {ones}")
    first = number * lanes
    holders = sum(1 << k for k in range(32) if first <= k % 4 < first + lanes)
    wrong = e.op(f"and i32 {e.op(f'bitcast <32 x i1> {bad} to i32')}, {holders}")
    e.fault_in(i, lay.FAULT_SPARSE_METADATA, e.op(f"and i32 {wrong}, {e.active(i)}"))
    return e.gep(e.put(0, text, 32), 4 * first)


def _mma(e: Emitter, i: Instruction) -> None:
    product = _product(i)
    counts = product.registers()
    if len(i.operands) != (6 if product.sparse else 4):
        raise unsupported(i)
    fragments = [vector_items(operand) for operand in i.operands[:4]]
    if [len(fragment) for fragment in fragments] != [counts[2], *counts]:
        raise unsupported(i)
    e.check_members(i, _EVERY_LANE)
    e.products.add(product)
    bits = (64, 64, 64) if product.a_type == "f64" else (32, 32, 32)
    memory = [e.gep("%matrix", offset) for offset in (_LEFT, _RIGHT, _TOTAL)]
    for base, fragment, width in zip(memory, fragments[1:], bits, strict=True):
        for r, register in enumerate(fragment):
            value = e.spread(e.source(i, register, width), width)
            e.store(f"<32 x i{width}>", value, base, 4 * width * r, align=64)
    arguments = list(memory)
    if product.sparse:
        arguments.append(metadata_of(e, i, product, i.operands[4], i.operands[5], "sp" not in i.modifiers))
    e.call(product.name, "void", *(("ptr", base) for base in arguments))
    for r, register in enumerate(fragments[0]):
        loaded = e.load(f"<32 x i{bits[2]}>", memory[2], 4 * bits[2] * r, align=64)
        e.write(i, register, Value(loaded, True), bits[2])


def _matrices(i: Instruction, registers: Operand) -> int:
    """Number of 8x8 matrices of 16-bit elements that an instruction moves."""
    count = next((int(m[1:]) for m in i.modifiers if m in ("x1", "x2", "x4")), 0)
    if "m8n8" not in i.modifiers or i.type != "b16" or len(vector_items(registers)) != count:
        raise unsupported(i)
    return count


def _ldmatrix(e: Emitter, i: Instruction) -> None:
    count = _matrices(i, i.operands[0])
    e.check_members(i, _EVERY_LANE)
    target, addresses = memory_operand(e, i, i.operands[1])
    op = e.new_site(MemorySite(i, target.space, 16, lay.LOAD, target.offset, target.narrow))
    e.call(
        matrices_name(count, "trans" in i.modifiers), "void", ("ptr", "%ctx"), ("ptr", op), ("<32 x i64>", addresses),
        ("i32", e.active(i)), ("ptr", "%area1"), convention=CONVENTION,
    )  # fmt: skip
    # Every lane has its elements before any of them continues.
    e.synchronise()
    for k, register in enumerate(vector_items(i.operands[0])):
        e.write(i, register, Value(e.load("<32 x i32>", "%area1", 4 * lay.LANES * k, align=64), True), 32)


def _stmatrix(e: Emitter, i: Instruction) -> None:
    count = _matrices(i, i.operands[1])
    e.check_members(i, _EVERY_LANE)
    for k, register in enumerate(vector_items(i.operands[1])):
        e.store("<32 x i32>", e.spread(e.source(i, register, 32), 32), "%area1", 4 * lay.LANES * k, align=64)
    target, addresses = memory_operand(e, i, i.operands[0])
    op = e.new_site(MemorySite(i, target.space, 16, lay.STORE, target.offset, target.narrow))
    e.put(0, addresses, 64)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_stmatrix", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), ("i64", mask), ("ptr", "%area1"),
        ("i64", str(count)), ("i64", str(int("trans" in i.modifiers))),
    )  # fmt: skip


def _movmatrix(e: Emitter, i: Instruction) -> None:
    """Transpose an 8x8 matrix of 16-bit elements, held as a fragment of B or A."""
    if "trans" not in i.modifiers or "m8n8" not in i.modifiers or i.type != "b16":
        raise unsupported(i)
    e.check_members(i, _EVERY_LANE)
    words = e.spread(e.source(i, i.operands[1], 32), 32)
    halves = e.op(f"bitcast <32 x i32> {words} to <64 x i16>")
    order = lane_vector([8 * (k % 8) + k // 8 for k in range(64)])
    moved = e.op(f"shufflevector <64 x i16> {halves}, <64 x i16> poison, <64 x i32> {order}")
    e.write(i, i.operands[0], Value(e.op(f"bitcast <64 x i16> {moved} to <32 x i32>"), True), 32)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "mma": _mma,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "movmatrix": _movmatrix,
}
