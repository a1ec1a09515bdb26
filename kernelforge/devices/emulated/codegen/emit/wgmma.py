"""Matrix products of a warpgroup (``wgmma``), each warp its sixteen rows, and ``setmaxnreg``."""

from __future__ import annotations

import re
from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value, vector_items
from kernelforge.devices.emulated.codegen.emit.matrix import metadata_of
from kernelforge.devices.emulated.codegen.emit.mbarrier import stop_if_negative
from kernelforge.devices.emulated.codegen.ir_builder import lane_vector
from kernelforge.devices.emulated.codegen.matrix_ir import Product
from kernelforge.devices.emulated.codegen.wgmma_ir import ROW_BYTES, group_product_name
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Operand, Vec
from kernelforge.devices.emulated.ptx.product_hazards import is_product_fence

ACCUMULATOR_BYTES = 128 * 128
A_BYTES = 16 * ROW_BYTES
B_BYTES = 256 * 2 * ROW_BYTES
"""Columns of a sparse A's B are twice as long."""

_DEPTHS = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32, "s8": 32, "u8": 32, "b1": 256}
_RESULTS = {
    "f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "e4m3": ("f16", "f32"), "e5m2": ("f16", "f32"),
    "s8": ("s32",), "u8": ("s32",), "b1": ("s32",),
}  # fmt: skip
_GROUPS = {"e4m3": "fp8", "e5m2": "fp8", "s8": "int", "u8": "int"}
_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_MEMBERS = Imm(0xFFFFFFFF)


def _product(i: Instruction) -> tuple[Product, int]:
    """The product of a warp, and its columns."""
    shape = next((match for m in i.modifiers if (match := _SHAPE.match(m))), None)
    types = [m for m in i.modifiers if m in _DEPTHS or m in ("f32", "s32")]
    rest = set(i.modifiers) - {"mma_async", "sp", "sync", "aligned", "satfinite", "and", "popc", *types}
    if shape is None or len(types) != 3 or rest != {shape[0]}:
        raise unsupported(i)
    total, a_type, b_type = types
    columns, depth = int(shape[1]), int(shape[2])
    sparse = "sp" in i.modifiers
    integer = total == "s32"
    option = "and" if a_type == "b1" else "satfinite" if "satfinite" in i.modifiers else ""
    if (
        total not in _RESULTS.get(a_type, ())
        or _GROUPS.get(a_type, a_type) != _GROUPS.get(b_type, b_type)
        or depth != _DEPTHS[a_type] * (1 + sparse)
        or (sparse and a_type == "b1")
        or columns % 8
        or not 8 <= columns <= 256
        or (integer and columns > 32 and columns % 16)
        or (option == "satfinite" and not integer)
        or ({"and", "popc"} <= set(i.modifiers)) != (a_type == "b1")
    ):
        raise unsupported(i)
    return Product(16, depth, a_type, b_type, total, option, sparse), columns


def _wgmma(e: Emitter, i: Instruction) -> None:
    verb = i.modifiers[0]
    e.asynchronous = True
    if verb != "wait_group":
        e.check_members(i, _MEMBERS)
    if verb == "mma_async":
        _mma_async(e, i)
    elif verb == "commit_group":
        e.call("kf_product_commit", "void", ("ptr", "%ctx"))
    elif verb == "wait_group":
        pending = e.constant(i.operands[0])
        if pending is None or pending < 0:
            raise unsupported(i, "the number of groups must be a constant")
        stop_if_negative(e, e.call("kf_product_wait", "i64", ("ptr", "%ctx"), ("i64", str(pending))))
    elif verb != "fence":
        raise unsupported(i)


def _flags(e: Emitter, i: Instruction, product: Product, operands: list[Operand]) -> tuple[float, bool, bool]:
    """The sign of the product, and whether A and B are transposed."""
    values = [e.constant(operand) for operand in operands]
    floats = product.c_type != "s32"
    from_memory = not isinstance(i.operands[1], Vec)
    transposes = (1 + from_memory) if product.a_type in ("f16", "bf16") else 0
    if None in values or len(values) != 2 * floats + transposes:
        raise unsupported(i)
    signs = values[:2] if floats else [1, 1]
    flips = [*([0] * (2 - transposes)), *values[2:]]
    if any(sign not in (1, -1) for sign in signs) or any(flip not in (0, 1) for flip in flips):
        raise unsupported(i)
    sign = 1.0 if signs[0] == signs[1] else -1.0
    return sign, bool(flips[0]), bool(flips[1])


def _mma_async(e: Emitter, i: Instruction) -> None:
    product, columns = _product(i)
    d, a, b, *rest = i.operands
    metadata = [rest.pop(0), rest.pop(0)] if product.sparse and len(rest) > 2 else []
    if len(metadata) != 2 * product.sparse or not rest:
        raise unsupported(i)
    scale_d = rest.pop(0)
    accumulators = vector_items(d)
    per_block = 2 if product.c_type == "f16" else 4
    if len(accumulators) != columns // 8 * per_block:
        raise unsupported(i)
    sign, a_transposed, b_transposed = _flags(e, i, product, rest)
    e.group_products.add(product)
    keep = e.predicate(scale_d)
    for r, register in enumerate(accumulators):
        value = e.spread(e.source(i, register, 32), 32)
        if keep.text != "true":
            condition, many = e.condition(keep)
            chooser = "<32 x i1>" if many else "i1"
            value = e.op(f"select {chooser} {condition}, <32 x i32> {value}, <32 x i32> zeroinitializer")
        e.store("<32 x i32>", value, "%accumulators", 4 * lay.LANES * r, align=64)
    warp = e.op(f"zext i32 {e.special(i, '%warpid').text} to i64")
    first = e.op(f"shl i64 {e.op(f'and i64 {warp}, 3')}, 4")
    if isinstance(a, Vec):
        _registers_of_a(e, i, a)
    else:
        _operand(e, i, a, "%rows", first, 16, ROW_BYTES, a_transposed)
    _operand(e, i, b, "%columns", "0", columns, ROW_BYTES * (1 + product.sparse), b_transposed)
    selection = [("ptr", metadata_of(e, i, product, metadata[0], metadata[1], ordered=False))] if metadata else []
    e.call(
        group_product_name(product), "void", ("ptr", "%rows"), ("ptr", "%columns"), ("ptr", "%accumulators"),
        ("i64", str(columns // 8)), ("float", str(sign)), *selection,
    )  # fmt: skip
    for r, register in enumerate(accumulators):
        loaded = e.load("<32 x i32>", "%accumulators", 4 * lay.LANES * r, align=64)
        e.write(i, register, Value(loaded, True), 32)


def _registers_of_a(e: Emitter, i: Instruction, a: Vec) -> None:
    """Put the fragment of A into rows: a register holds 16 bytes of eight rows, four bytes in each lane."""
    if len(a.items) != 4:
        raise unsupported(i)
    for r, register in enumerate(a.items):
        words = e.spread(e.source(i, register, 32), 32)
        for row in range(8):
            lanes = lane_vector([4 * row + k for k in range(4)])
            part = e.op(f"shufflevector <32 x i32> {words}, <32 x i32> poison, <4 x i32> {lanes}")
            at = ROW_BYTES * (row + 8 * (r & 1)) + 16 * (r >> 1)
            e.store("<4 x i32>", part, "%rows", at, align=16)


def _operand(
    e: Emitter, i: Instruction, operand: Operand, out: str, first: str, lines: int, size: int, transposed: bool
) -> None:
    """Gather rows of A or columns of B, of ``size`` bytes, that a descriptor names."""
    value = e.source(i, operand, 64)
    descriptor = e.first_lane(value.text, 64) if value.vec else value.text
    op = e.new_site(MemorySite(i, lay.SHARED, 16, lay.LOAD, 0, narrow=False, hidden=True))
    e.call(
        "kf_product_operand", "void", ("ptr", "%ctx"), ("ptr", op), ("i64", descriptor), ("ptr", out), ("i64", first),
        ("i64", str(lines)), ("i64", str(size)), ("i64", str(int(transposed))),
    )  # fmt: skip


def check_product_registers(e: Emitter, i: Instruction) -> None:
    """Record a fault where an instruction uses registers that a product owns, or has accessed without a fence."""
    for kind, hazards in ((lay.FAULT_ACCUMULATOR, e.hazards.early), (lay.FAULT_FRAGMENT, e.hazards.fragments)):
        if id(i) in hazards:
            complete = e.load("i32", "%state", lay.W_PRODUCTS_COMPLETE)
            for product in sorted(hazards[id(i)]):
                group = e.load("i32", "%state", e.watched["product", product])
                _fault_if(e, i, kind, e.op(f"icmp sgt i32 {group}, {complete}"))
    if id(i) in e.hazards.unfenced:
        touched = e.load("i32", "%state", e.watched["unfenced", id(i)])
        _fault_if(e, i, lay.FAULT_PRODUCT_FENCE, e.op(f"icmp ne i32 {touched}, 0"))
    if id(i) in e.hazards.first:
        fences = e.load("i32", "%state", e.watched["fence", 0])
        _fault_if(e, i, lay.FAULT_PRODUCT_FENCE, e.op(f"icmp eq i32 {fences}, 0"))


def _fault_if(e: Emitter, i: Instruction, kind: int, condition: str) -> None:
    e.fault_in(i, kind, e.op(f"select i1 {condition}, i32 {e.active(i)}, i32 0"))


def watch_product_registers(e: Emitter, i: Instruction) -> None:
    """Remember what the checks need: groups of products, accesses to registers, and fences."""
    if ("product", id(i)) in e.watched:
        group = e.op(f"add i32 {e.load('i32', '%state', lay.W_PRODUCTS_COMMITTED)}, 1")
        e.store("i32", group, "%state", e.watched["product", id(i)])
    if is_product_fence(i):
        for key, at in e.watched.items():
            if key[0] != "product":
                e.store("i32", "1" if key[0] == "fence" else "0", "%state", at)
    for product, touches in e.hazards.unfenced.items():
        if id(i) in touches:
            at = e.watched["unfenced", product]
            e.store("i32", e.op(f"or i32 {e.load('i32', '%state', at)}, {e.active(i)}"), "%state", at)


def _setmaxnreg(e: Emitter, i: Instruction) -> None:
    """Registers are no resource here: checked, and without effect."""
    count = e.constant(i.operands[0])
    if i.modifiers not in (("inc", "sync", "aligned", "u32"), ("dec", "sync", "aligned", "u32")):
        raise unsupported(i)
    if count is None or not 24 <= count <= 256 or count % 8:
        raise unsupported(i, "a multiple of 8 from 24 to 256")


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"wgmma": _wgmma, "setmaxnreg": _setmaxnreg}
