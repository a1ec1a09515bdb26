"""The fifth generation of tensor cores (``tcgen05``): tensor memory, products, copies and their ends."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value, vector_items
from kernelforge.devices.emulated.codegen.emit.mbarrier import barrier_operand, stop_if_negative
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.codegen.tcgen05_ir import expand_name, sums_name
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Addr, Imm, Instruction, Operand, Vec
from kernelforge.devices.emulated.runtime import tensor_memory, tensor_products

REGISTER_BYTES = 128 * 128
"""Of a load or store: up to 128 registers of 32 lanes."""

_MEMBERS = Imm(0xFFFFFFFF)
_PAIRS = {"cta_group::1": False, "cta_group::2": True}
_TYPES = {
    "f16": {0: "f16", 1: "bf16"}, "tf32": {2: "tf32"}, "i8": {0: "u8", 1: "s8"},
    "f8f6f4": {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"},
}  # fmt: skip
"""Types of A and B by their code in an instruction descriptor."""
_RESULTS = {"f16": {0: "f16", 1: "f32"}, "tf32": {1: "f32"}, "f8f6f4": {0: "f16", 1: "f32"}, "i8": {2: "s32"}}
_VECTORS = {
    "mxf8f6f4": {"scale_vec::1X": 1, "block32": 1, "": 1}, "mxf4": {"scale_vec::2X": 2, "block32": 2, "": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}  # fmt: skip
"""Scales of a row of A by their qualifier."""
_COLLECTORS = {f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")} | {
    f"collector::b{k}::{use}" for k in range(4) for use in ("fill", "use", "lastuse", "discard")
}
_UNBUILT = {
    "sp": "sparse products of tensor memory", "ashift": "rows of A that are shifted", "red": "loads that reduce",
}  # fmt: skip
"""Qualifiers that this device does not know, and what they ask for."""


def _mask(e: Emitter, i: Instruction) -> tuple[str, str]:
    return "i64", e.op(f"zext i32 {e.active(i)} to i64")


def _pair(e: Emitter, i: Instruction) -> bool:
    """Whether two CTAs take part, which all instructions of a kernel agree on."""
    groups = [m for m in i.modifiers if m in _PAIRS]
    if len(groups) != 1:
        raise unsupported(i)
    if e.cta_group not in ("", groups[0]):
        raise unsupported(i, "all tcgen05 instructions of a kernel must have the same .cta_group")
    e.cta_group = groups[0]
    return _PAIRS[groups[0]]


def _allow(i: Instruction, *modifiers: str) -> None:
    """Refuse other modifiers than these."""
    for modifier in i.modifiers[1:]:
        if modifier in _UNBUILT:
            raise unsupported(i, _UNBUILT[modifier])
    if set(i.modifiers[1:]) - set(modifiers) - _PAIRS.keys():
        raise unsupported(i)


def _site(e: Emitter, i: Instruction, access: int) -> str:
    """A memory record of tensor memory, which no counter reports."""
    return e.new_site(MemorySite(i, lay.TENSOR, 4, access, 0, narrow=False, hidden=True))


def _first_lane(e: Emitter, i: Instruction) -> tuple[str, str]:
    """Number of the lowest active lane, as an argument."""
    lowest = e.op(f"call i32 @llvm.cttz.i32(i32 {e.active(i)}, i1 true)")
    return "i64", e.op(f"zext i32 {e.op(f'and i32 {lowest}, 31')} to i64")


def _uniform(e: Emitter, i: Instruction, value: Value) -> tuple[str, str]:
    """The value of 32 bits that all lanes of a warp must share, as an argument."""
    text = e.shared_value(i, value, e.active(i), lay.FAULT_TENSOR_ADDRESS)
    return "i64", e.op(f"zext i32 {text} to i64")


def _address(e: Emitter, i: Instruction, operand: Operand) -> Value:
    """An address of tensor memory, in brackets."""
    if not isinstance(operand, Addr) or operand.coordinates:
        raise unsupported(i, "an address of tensor memory must be in brackets")
    value = e.source(i, operand.base, 32)
    if not operand.offset:
        return value
    offset = operand.offset % (1 << 32)
    if value.vec:
        return Value(e.op(f"add <32 x i32> {value.text}, splat (i32 {offset})"), True)
    return Value(e.op(f"add i32 {value.text}, {offset}"), False)


def _alloc(e: Emitter, i: Instruction) -> None:
    """It begins its block, so that the warp can stop at it while too few columns are free."""
    _allow(i, "sync", "aligned", "shared::cta", "b32")
    _pair(e, i)
    e.check_members(i, _MEMBERS)
    target, addresses = memory_operand(e, i, i.operands[0], lay.SHARED if "shared::cta" in i.modifiers else lay.GENERIC)
    op = e.new_site(MemorySite(i, target.space, 4, lay.STORE, target.offset, target.narrow))
    columns = _uniform(e, i, e.source(i, i.operands[1], 32))
    e.put(0, addresses, 64)
    arguments = (("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _first_lane(e, i), columns)
    stop_if_negative(e, e.call("kf_tensor_alloc", "i64", *arguments))


def _dealloc(e: Emitter, i: Instruction) -> None:
    _allow(i, "sync", "aligned", "b32")
    _pair(e, i)
    e.check_members(i, _MEMBERS)
    address, columns = (_uniform(e, i, e.source(i, operand, 32)) for operand in i.operands)
    arguments = (("ptr", "%ctx"), ("ptr", _site(e, i, lay.STORE)), _first_lane(e, i), address, columns)
    e.call("kf_tensor_dealloc", "void", *arguments)


def _relinquish(e: Emitter, i: Instruction) -> None:
    _allow(i, "sync", "aligned")
    _pair(e, i)
    e.check_members(i, _MEMBERS)
    e.call("kf_tensor_relinquish", "void", ("ptr", "%ctx"))


def _shape(i: Instruction, registers: Operand, packing: str, split: Operand | None) -> int:
    """The code of a load or store."""
    shapes = [m for m in i.modifiers if m in tensor_memory.SHAPES]
    numbers = [m for m in i.modifiers if m[:1] == "x" and m[1:].isdecimal()]
    _allow(i, "sync", "aligned", "b32", packing, *shapes, *numbers)
    if len(shapes) != 1 or len(numbers) != 1:
        raise unsupported(i)
    number = int(numbers[0][1:])
    each = {"16x128b": 2, "16x256b": 4}.get(shapes[0], 1)
    if number & (number - 1) or each * number > 128 or len(vector_items(registers)) != each * number:
        raise unsupported(i)
    if (split is not None) != (shapes[0] == "16x32bx2") or (split is not None and not isinstance(split, Imm)):
        raise unsupported(i)
    code = tensor_memory.SHAPES.index(shapes[0]) | (number.bit_length() - 1) << tensor_memory.NUMBER
    code |= (packing in i.modifiers) << tensor_memory.PACKED
    distance = split.value if isinstance(split, Imm) else 0
    if not 0 <= distance < lay.TENSOR_COLUMNS:
        raise unsupported(i)
    return code | distance << tensor_memory.SPLIT


def _load(e: Emitter, i: Instruction) -> None:
    registers, address, *rest = i.operands
    code = _shape(i, registers, "pack::16b", rest[0] if rest else None)
    e.check_members(i, _MEMBERS)
    e.tensor_registers = True
    where = _uniform(e, i, _address(e, i, address))
    e.call(
        "kf_tensor_load", "void", ("ptr", "%ctx"), ("ptr", _site(e, i, lay.LOAD)), _first_lane(e, i), where,
        ("ptr", "%tensor_registers"), ("i64", str(code)),
    )  # fmt: skip
    for k, register in enumerate(vector_items(registers)):
        loaded = e.load("<32 x i32>", "%tensor_registers", 4 * lay.LANES * k, align=64)
        e.write(i, register, Value(loaded, True), 32)


def _store(e: Emitter, i: Instruction) -> None:
    address, *rest = i.operands
    registers = rest.pop()
    code = _shape(i, registers, "unpack::16b", rest[0] if rest else None)
    e.check_members(i, _MEMBERS)
    e.tensor_registers = True
    for k, register in enumerate(vector_items(registers)):
        words = e.spread(e.source(i, register, 32), 32)
        e.store("<32 x i32>", words, "%tensor_registers", 4 * lay.LANES * k, align=64)
    where = _uniform(e, i, _address(e, i, address))
    e.call(
        "kf_tensor_store", "void", ("ptr", "%ctx"), ("ptr", _site(e, i, lay.STORE)), _first_lane(e, i), where,
        ("ptr", "%tensor_registers"), ("i64", str(code)),
    )  # fmt: skip


def _wait(e: Emitter, i: Instruction) -> None:
    _allow(i, "sync", "aligned")
    e.check_members(i, _MEMBERS)
    e.call("kf_tensor_wait", "void", ("ptr", "%ctx"), ("i64", str(int(i.modifiers[0] == "wait::st"))))


def _fence(e: Emitter, i: Instruction) -> None:
    _allow(i)


def _copy(e: Emitter, i: Instruction) -> None:
    if any(m.startswith("b8x16") for m in i.modifiers):
        raise unsupported(i, "decompression, of which the PTX ISA shows only in pictures where the bits go")
    shape = ".".join(m for m in i.modifiers[1:] if m not in _PAIRS)
    if shape not in tensor_products.COPIES:
        raise unsupported(i)
    code = tensor_products.COPIES.index(shape) | (tensor_products.PAIR if _pair(e, i) else 0)
    e.put(0, e.spread(e.resize(_address(e, i, i.operands[0]), 32, 64), 64), 64)
    e.put(1, e.spread(e.source(i, i.operands[1], 64), 64), 64)
    arguments = (("ptr", "%ctx"), ("ptr", _site(e, i, lay.STORE)), ("ptr", "%area0"), _mask(e, i), ("i64", str(code)))
    e.call("kf_tensor_copy", "void", *arguments)


def _commit(e: Emitter, i: Instruction) -> None:
    _allow(i, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64")
    _pair(e, i)
    if "mbarrier::arrive::one" not in i.modifiers or i.type != "b64":
        raise unsupported(i)
    many = "multicast::cluster" in i.modifiers
    if len(i.operands) != 1 + many:
        raise unsupported(i)
    op = barrier_operand(e, i, i.operands[0])
    ctas = ("i64", "0")
    if many:
        peers = e.spread(e.resize(e.source(i, i.operands[1], 16), 16, 32), 32)
        ctas = ("i64", e.op(f"ptrtoint ptr {e.put(1, peers, 32)} to i64"))
    e.call("kf_tensor_commit", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), _mask(e, i), ctas)


def _multiply(e: Emitter, i: Instruction) -> None:
    kind = next((m[6:] for m in i.modifiers if m.startswith("kind::")), "")
    vectors = _VECTORS.get(kind, {})
    _allow(i, "ws", f"kind::{kind}", *_COLLECTORS, *(["block_scale", *filter(None, vectors)] if vectors else []))
    if kind not in tensor_products.KINDS or bool(vectors) != ("block_scale" in i.modifiers):
        raise unsupported(i)
    weights = "ws" in i.modifiers
    d, a, b, descriptor, *rest = i.operands
    code = tensor_products.KINDS.index(kind) | (tensor_products.PAIR if _pair(e, i) else 0)
    code |= tensor_products.WEIGHTS if weights else 0
    if weights and (code & tensor_products.PAIR or len(rest) > 1):
        raise unsupported(i, "masks of columns that are zero")
    if vectors:
        named = [m for m in i.modifiers if m in vectors]
        if weights or len(rest) != 3 or len(named) > 1 or (not named and "" not in vectors):
            raise unsupported(i)
        code |= vectors[named[0] if named else ""] << tensor_products.SCALE
        for k in range(2):
            scales = e.resize(_address(e, i, rest.pop(0)), 32, 64)
            e.store("<32 x i64>", e.spread(scales, 64), "%area4", 8 * lay.LANES * k, align=64)
    if rest and isinstance(rest[0], Vec):
        lanes = vector_items(rest.pop(0))
        if weights or len(lanes) != (8 if code & tensor_products.PAIR else 4):
            raise unsupported(i)
        code |= tensor_products.MASKED
        for k, word in enumerate(lanes):
            e.store("<32 x i32>", e.spread(e.source(i, word, 32), 32), "%area5", 4 * lay.LANES * k, align=64)
    adds = e.op(f"zext i32 {e.spread(e.predicate(rest.pop(0)), 1)} to i64")
    if rest:
        scale = e.constant(rest.pop(0))
        if scale is None or not 0 <= scale <= 15 or kind not in ("f16", "tf32") or rest:
            raise unsupported(i)
        code |= scale << tensor_products.SCALE
    e.put(0, e.spread(e.resize(_address(e, i, d), 32, 64), 64), 64)
    if isinstance(a, Addr):
        code |= tensor_products.A_IN_TENSOR
        if weights:
            raise unsupported(i, "A in tensor memory, with .ws")
        e.put(1, e.spread(e.resize(_address(e, i, a), 32, 64), 64), 64)
    else:
        e.put(1, e.spread(e.source(i, a, 64), 64), 64)
    e.put(2, e.spread(e.source(i, b, 64), 64), 64)
    e.put(3, e.spread(e.resize(e.source(i, descriptor, 32), 32, 64), 64), 64)
    _functions(e, kind, 0 if vectors else e.constant(descriptor))
    e.call(
        "kf_tensor_multiply", "void", ("ptr", "%ctx"), ("ptr", _site(e, i, lay.STORE)), ("ptr", "%area0"), _mask(e, i),
        ("i64", adds), ("i64", str(code)), ("ptr", "%tensor_functions"),
    )  # fmt: skip


def _functions(e: Emitter, kind: str, descriptor: int | None) -> None:
    """Write the table of functions for products of one kind; for those of a descriptor where it is known."""
    types, results = _TYPES.get(kind, {}), _RESULTS.get(kind, {})
    names: dict[int, str] = {}
    for code, element in types.items():
        for right, at in ((False, tensor_products.LEFT), (True, tensor_products.RIGHT)):
            if descriptor is None or descriptor >> (10 if right else 7) & 7 == code:
                names[at + 8 * code] = expand_name(element, right)
                e.tensor_functions.add((element, right))
    for code, result in results.items():
        if descriptor is None or descriptor >> 4 & 3 == code:
            names[tensor_products.SUMS + 8 * code] = sums_name(next(iter(types.values())), result)
            e.tensor_sums.add((next(iter(types.values())), result))
    for at in range(0, tensor_products.TABLE_BYTES, 8):
        name = names.get(at)
        if name is not None:
            e.declarations.add(f"declare void @{name}()")
        e.store("ptr", f"@{name}" if name else "null", "%tensor_functions", at)


_VERBS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "alloc": _alloc, "dealloc": _dealloc, "relinquish_alloc_permit": _relinquish, "ld": _load, "st": _store,
    "wait::ld": _wait, "wait::st": _wait, "fence::before_thread_sync": _fence, "fence::after_thread_sync": _fence,
    "cp": _copy, "commit": _commit, "mma": _multiply,
}  # fmt: skip


def _tcgen05(e: Emitter, i: Instruction) -> None:
    verb = i.modifiers[0] if i.modifiers else ""
    if verb == "shift":
        raise unsupported(i, "shifts of rows, of which the PTX ISA does not say in words which way they go")
    if verb not in _VERBS:
        raise unsupported(i)
    e.asynchronous = e.tensor = True
    _VERBS[verb](e, i)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"tcgen05": _tcgen05}
