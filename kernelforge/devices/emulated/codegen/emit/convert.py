"""``cvt`` between integer and floating-point types, and address-space conversions."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit import half
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.floating import flush, relu, rounded, saturate
from kernelforge.devices.emulated.codegen.emit.integer import clamp_integer, constant
from kernelforge.devices.emulated.codegen.emit.small_floats import (
    SCALES,
    SMALL_FLOATS,
    from_small_floats,
    pack_integers,
    to_small_floats,
)
from kernelforge.devices.emulated.codegen.emit.stochastic import round_stochastically
from kernelforge.devices.emulated.codegen.ir_builder import bool_type, float_constant, float_type, int_type
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import TYPE_BITS, Instruction

_INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "b8", "b16", "b32", "b64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTED = ("rz", "rm", "rp")


def _integer_to_integer(e: Emitter, i: Instruction, target: str, source: str) -> None:
    bits, size = TYPE_BITS[source], TYPE_BITS[target]
    value = e.source(i, i.operands[1], bits)
    if "sat" in i.modifiers:
        wide = max(bits, size)
        value = e.resize(value, bits, wide, source[0] == "s")
        value = clamp_integer(e, value, wide, source, target[0], size)
        bits = wide
    value = e.resize(value, bits, size, source[0] == "s")
    e.write(i, i.operands[0], value, size, signed=target[0] == "s")


def _load_float(e: Emitter, i: Instruction, source: str) -> tuple[str, bool, int]:
    """The source as f32 or f64: (value, vec, bits). Halves are widened exactly and are always vectors."""
    bits = TYPE_BITS[source]
    if bits == 16:
        text = e.spread(e.source(i, i.operands[1], 16), 16)
        return half.widen(e, text, source == "bf16"), True, 32
    (text,), vec = e.float_sources(i, i.operands[1:2], bits)
    if "ftz" in i.modifiers and bits == 32:
        text = flush(e, text, float_type(32, vec), 32)
    return text, vec, bits


def _float_to_integer(e: Emitter, i: Instruction, target: str, source: str) -> None:
    """Round, then saturate. NaN gives 0, or the top bit alone from f64 or to 64 bits (PTX ISA, section on cvt)."""
    text, vec, bits = _load_float(e, i, source)
    kind = float_type(bits, vec)
    mode = next((m for m in i.modifiers if m in _TO_INTEGRAL), None)
    if mode is None:
        raise unsupported(i)
    rounded = e.intrinsic(_TO_INTEGRAL[mode], kind, text) if mode != "rzi" else text
    size = TYPE_BITS[target]
    integer = int_type(size, vec)
    result = e.to_integer(rounded, kind, integer, signed=target[0] == "s")
    if source == "f64" or size == 64:
        nan = e.op(f"fcmp uno {kind} {text}, {text}")
        result = e.select(nan, integer, constant(-1 << (size - 1), size, vec), result)
    e.write(i, i.operands[0], Value(result, vec), size, signed=target[0] == "s")


def _narrow(e: Emitter, i: Instruction, text: str, brain: bool) -> str:
    """f32 lanes as halves, in the instruction's rounding mode; ``.satfinite`` keeps large values finite."""
    mode = next((m for m in i.modifiers if m in _DIRECTED), None)
    bits = half.narrow_directed(e, text, brain, mode) if mode else half.narrow(e, text, brain)
    return half.finite(e, bits, brain) if "satfinite" in i.modifiers else bits


def _store_float(e: Emitter, i: Instruction, text: str, vec: bool, bits: int, target: str) -> None:
    """Round an f32 or f64 to the target type and write it."""
    size = TYPE_BITS[target]
    kind = float_type(bits, vec)
    directed = next((m for m in i.modifiers if m in _DIRECTED), None)
    if size == 16:
        if bits == 64:
            if not vec:
                text, vec = e.splat(text, "double"), True
            text = half.round_to_odd(e, text)
        elif not vec:
            text = e.splat(text, "float")
        if "relu" in i.modifiers:
            text = relu(e, text)
        if "sat" in i.modifiers:
            text = saturate(e, text, "<32 x float>")
        e.write(i, i.operands[0], Value(_narrow(e, i, text, target == "bf16"), True), 16)
        return
    if size < bits:
        if directed:
            text = rounded(e, "fptrunc", directed, [text], vec, 32, 64)
        else:
            text = e.op(f"fptrunc {kind} {text} to {float_type(size, vec)}")
    elif size > bits:
        text = e.op(f"fpext {kind} {text} to {float_type(size, vec)}")
    kind = float_type(size, vec)
    if "sat" in i.modifiers:
        text = saturate(e, text, kind)
    if "ftz" in i.modifiers and size == 32:
        text = flush(e, text, kind, 32)
    e.write_float(i, i.operands[0], text, vec, size)


def _float_to_float(e: Emitter, i: Instruction, target: str, source: str) -> None:
    text, vec, bits = _load_float(e, i, source)
    mode = next((m for m in i.modifiers if m in _TO_INTEGRAL), None)
    if mode:
        text = e.intrinsic(_TO_INTEGRAL[mode], float_type(bits, vec), text)
    _store_float(e, i, text, vec, bits, target)


def _integer_to_float(e: Emitter, i: Instruction, target: str, source: str) -> None:
    bits = TYPE_BITS[source]
    value = e.source(i, i.operands[1], bits)
    verb = "sitofp" if source[0] == "s" else "uitofp"
    directed = next((m for m in i.modifiers if m in _DIRECTED), None)
    if target in ("f64", "f32") and not directed:
        size = TYPE_BITS[target]
        text = e.op(f"{verb} {int_type(bits, value.vec)} {value.text} to {float_type(size, value.vec)}")
        _store_float(e, i, text, value.vec, size, target)
        return
    # Every 32-bit integer is exact in f64, so one rounding remains.
    if bits < 64:
        text = e.op(f"{verb} {int_type(bits, value.vec)} {value.text} to {float_type(64, value.vec)}")
    elif target == "f64":
        text = _halves_added(e, value, verb, directed or "")
    else:
        text = _round_integer_to_odd(e, value, source[0] == "s")
    _store_float(e, i, text, value.vec, 64, target)


def _halves_added(e: Emitter, value: Value, verb: str, mode: str) -> str:
    """A 64-bit integer as f64: both halves are exact, and their sum rounds once."""
    kind, wide = int_type(64, value.vec), float_type(64, value.vec)
    shift = "ashr" if verb == "sitofp" else "lshr"
    high = e.op(f"{shift} {kind} {value.text}, {constant(32, 64, value.vec)}")
    low = e.op(f"and {kind} {value.text}, {constant(0xFFFFFFFF, 64, value.vec)}")
    upper = e.op(f"fmul {wide} {e.op(f'{verb} {kind} {high} to {wide}')}, {float_constant(2.0**32, wide)}")
    lower = e.op(f"uitofp {kind} {low} to {wide}")
    return rounded(e, "add", mode, [upper, lower], value.vec, 64)


def _round_integer_to_odd(e: Emitter, value: Value, signed: bool) -> str:
    """A 64-bit integer as f64, so that rounding to fewer bits is as good as rounding once."""
    vec, kind, wide = value.vec, int_type(64, value.vec), float_type(64, value.vec)
    magnitude = e.call(f"llvm.abs.{'v32' if vec else ''}i64", kind, (kind, value.text), ("i1", "false"))
    magnitude = magnitude if signed else value.text
    rest = e.op(f"and {kind} {magnitude}, {constant(0x7FF, 64, vec)}")
    sticky = e.op(f"icmp ne {kind} {rest}, {constant(0, 64, vec)}")
    upper = e.op(f"lshr {kind} {magnitude}, {constant(11, 64, vec)}")
    upper = e.op(f"or {kind} {upper}, {e.op(f'zext {bool_type(kind)} {sticky} to {kind}')}")
    large = e.op(f"fmul {wide} {e.op(f'uitofp {kind} {upper} to {wide}')}, {float_constant(2.0**11, wide)}")
    small = e.op(f"uitofp {kind} {magnitude} to {wide}")
    fits = e.op(f"icmp ult {kind} {magnitude}, {constant(1 << 53, 64, vec)}")
    result = e.select(fits, wide, small, large)
    if not signed:
        return result
    negative = e.op(f"icmp slt {kind} {value.text}, {constant(0, 64, vec)}")
    return e.select(negative, wide, e.op(f"fneg {wide} {result}"), result)


def _pack_halves(e: Emitter, i: Instruction, target: str) -> None:
    """``cvt.rn.f16x2.f32 d, a, b``: a goes to the upper half."""
    parts = []
    for operand in (i.operands[2], i.operands[1]):
        (text,), vec = e.float_sources(i, (operand,), 32)
        if not vec:
            text = e.splat(text, "float")
        if "relu" in i.modifiers:
            text = relu(e, text)
        parts.append(_narrow(e, i, text, target == "bf16x2"))
    half.write_pair(e, i, [parts[0], parts[1]])


def _cvt(e: Emitter, i: Instruction) -> None:
    if "pack" in i.modifiers:
        pack_integers(e, i)
        return
    if len(i.modifiers) < 2 or "scaled::n2::ue8m0" in i.modifiers:
        raise unsupported(i)
    target, source = i.modifiers[-2], i.modifiers[-1]
    if "rs" in i.modifiers:
        round_stochastically(e, i, target)
        return
    halves = ("f16", "bf16", "f16x2", "bf16x2")
    if target in SMALL_FLOATS or target == SCALES:
        to_small_floats(e, i, target, source)
    elif source in SMALL_FLOATS or source == SCALES:
        from_small_floats(e, i, target, source)
    elif target == "tf32" and source == "f32":
        _round_tf32(e, i)
    elif target in ("f16x2", "bf16x2") and source == "f32" and {"rn", "rz"} & set(i.modifiers):
        _pack_halves(e, i, target)
    elif "satfinite" in i.modifiers and (target not in halves or source != "f32"):
        raise unsupported(i)
    elif target in _INTEGERS and source in _INTEGERS:
        _integer_to_integer(e, i, target, source)
    elif target in _INTEGERS and source in _FLOATS:
        _float_to_integer(e, i, target, source)
    elif target in _FLOATS and source in _INTEGERS:
        _integer_to_float(e, i, target, source)
    elif target in _FLOATS and source in _FLOATS:
        _float_to_float(e, i, target, source)
    else:
        raise unsupported(i)


def _round_tf32(e: Emitter, i: Instruction) -> None:
    """Round the mantissa to 10 bits: to nearest, ties away from zero (``.rna``) or to even, or towards zero.

    ``.rna`` cuts the bits of a NaN as well, as an H100 does: one whose payload is in the low bits becomes an infinity.
    """
    value = e.source(i, i.operands[1], 32)
    vec, kind = value.vec, int_type(32, value.vec)
    bits = value.text
    if "relu" in i.modifiers:
        below = e.op(
            f"fcmp olt {float_type(32, vec)} {e.as_float(bits, 32, vec)}, {'zeroinitializer' if vec else '0.0'}"
        )
        bits = e.select(below, kind, constant(0, 32, vec), bits)
    rounded = bits
    if "rna" in i.modifiers:
        rounded = e.op(f"add {kind} {bits}, {constant(0x1000, 32, vec)}")
    elif "rn" in i.modifiers:
        odd = e.op(f"and {kind} {e.op(f'lshr {kind} {bits}, {constant(13, 32, vec)}')}, {constant(1, 32, vec)}")
        rounded = e.op(f"add {kind} {e.op(f'add {kind} {bits}, {constant(0xFFF, 32, vec)}')}, {odd}")
    elif "rz" not in i.modifiers:
        raise unsupported(i)
    rounded = e.op(f"and {kind} {rounded}, {constant(-0x2000, 32, vec)}")
    magnitude = e.op(f"and {kind} {bits}, {constant(0x7FFFFFFF, 32, vec)}")
    special = e.op(f"icmp uge {kind} {magnitude}, {constant(0x7F800000, 32, vec)}")
    kept = e.op(f"and {kind} {bits}, {constant(-0x2000, 32, vec)}") if "rna" in i.modifiers else bits
    result = e.select(special, kind, kept, rounded)
    if "satfinite" in i.modifiers:
        last = e.op(f"and {kind} {result}, {constant(0x7FFFFFFF, 32, vec)}")
        above = e.op(f"icmp ugt {kind} {last}, {constant(0x7F7FE000, 32, vec)}")
        number = e.op(f"icmp ule {kind} {magnitude}, {constant(0x7F800000, 32, vec)}")
        sign = e.op(f"and {kind} {bits}, {constant(-1 << 31, 32, vec)}")
        largest = e.op(f"or {kind} {sign}, {constant(0x7F7FE000, 32, vec)}")
        result = e.select(e.op(f"and {bool_type(kind)} {above}, {number}"), kind, largest, result)
    e.write(i, i.operands[0], Value(result, vec), 32)


_WINDOWS = {"shared": lay.CTX_SHARED_WINDOW, "local": lay.CTX_LOCAL_WINDOW, "param": lay.CTX_PARAM_WINDOW}


def _window(e: Emitter, space: str, vec: bool) -> str:
    """Start of the generic addresses of a state space."""
    key = ("window", space)
    if key not in e.memo:
        e.memo[key] = Value(e.load("i64", "%ctx", _WINDOWS[space]), False)
    return e.spread(e.memo[key], 64) if vec else e.memo[key].text


def _space(i: Instruction) -> str:
    for m in i.modifiers:
        stem = m.split("::")[0]
        if stem in ("shared", "local", "param", "global", "const"):
            if m == "shared::cluster":
                return "shared"
            return stem
    raise unsupported(i)


def _cvta(e: Emitter, i: Instruction) -> None:
    value = e.source(i, i.operands[1], 64)
    space = _space(i)
    if space in _WINDOWS:
        to = "to" in i.modifiers
        if space == "shared" and not to:
            value = e.unranked(i, value, 64)
        window = _window(e, space, value.vec)
        text = e.op(f"{'sub' if to else 'add'} {int_type(64, value.vec)} {value.text}, {window}")
        value = Value(text, value.vec)
        if space == "shared" and to:
            value = e.ranked(i, value, 64)
    e.write(i, i.operands[0], value, 64)


def _isspacep(e: Emitter, i: Instruction) -> None:
    value = e.source(i, i.operands[1], 64)
    kind = int_type(64, value.vec)
    space = _space(i)
    if space == "const":
        raise unsupported(i)
    if space == "shared":
        limit = Value(str(1 << lay.PEER_SHIFT), False)
        if "shared::cluster" in i.modifiers:
            blocks = e.resize(e.special(i, "%cluster_nctarank"), 32, 64)
            limit = Value(e.op(f"shl i64 {e.op(f'add i64 {blocks.text}, 1')}, {lay.PEER_SHIFT}"), False)
        offset = e.op(f"sub {kind} {value.text}, {_window(e, space, value.vec)}")
        inside = e.op(f"icmp ult {kind} {offset}, {e.spread(limit, 64) if value.vec else limit.text}")
        e.write(i, i.operands[0], e.flag(inside, value.vec), 1)
        return
    if space in _WINDOWS:
        base, size = _window(e, space, value.vec), lay.WINDOW_BYTES
    else:
        base, size = constant(lay.GLOBAL_BASE, 64, value.vec), 1 << 44
    offset = e.op(f"sub {kind} {value.text}, {base}")
    inside = e.op(f"icmp ult {kind} {offset}, {constant(size, 64, value.vec)}")
    e.write(i, i.operands[0], e.flag(inside, value.vec), 1)


def _shared_offset(e: Emitter, i: Instruction) -> tuple[Value, bool]:
    """The address operand of ``mapa`` or ``getctarank`` as an i64 in the cluster's shared memory; whether generic."""
    if i.type not in ("u32", "u64") or set(i.modifiers) - {"shared::cluster", i.type}:
        raise unsupported(i)
    value = e.resize(e.source(i, i.operands[1], TYPE_BITS[i.type]), TYPE_BITS[i.type], 64)
    if "shared::cluster" in i.modifiers:
        return e.unranked(i, value, 64), False
    if i.type != "u64":
        raise unsupported(i, "a generic address has 64 bits")
    window = _window(e, "shared", value.vec)
    return Value(e.op(f"sub {int_type(64, value.vec)} {value.text}, {window}"), value.vec), True


def _mapa(e: Emitter, i: Instruction) -> None:
    """``mapa``: the address of the same offset in the shared memory of another CTA of the cluster."""
    value, generic = _shared_offset(e, i)
    rank = e.source(i, i.operands[2], 32)
    vec = value.vec or rank.vec
    kind, narrow = int_type(64, vec), int_type(32, vec)
    offset = e.spread(value, 64) if vec else value.text
    number = e.spread(rank, 32) if vec else rank.text
    # Ranks beyond every cluster keep an address that no CTA has.
    number = e.intrinsic("umin", narrow, number, constant(254, 32, vec))
    high = e.resize(Value(e.op(f"add {narrow} {number}, {constant(1, 32, vec)}"), vec), 32, 64).text
    high = e.op(f"shl {kind} {high}, {constant(lay.PEER_SHIFT, 64, vec)}")
    mapped = e.op(f"or {kind} {high}, {e.op(f'and {kind} {offset}, {constant((1 << lay.PEER_SHIFT) - 1, 64, vec)}')}")
    if generic:
        inside = e.op(f"icmp ult {kind} {offset}, {constant(lay.WINDOW_BYTES, 64, vec)}")
        mapped = e.op(f"add {kind} {e.select(inside, kind, mapped, offset)}, {_window(e, 'shared', vec)}")
    result = Value(mapped, vec) if generic else e.ranked(i, Value(mapped, vec), 64)
    e.write(i, i.operands[0], e.resize(result, 64, TYPE_BITS[i.type]), TYPE_BITS[i.type])


def _getctarank(e: Emitter, i: Instruction) -> None:
    """``getctarank``: the rank in the cluster of the CTA whose shared memory has an address."""
    value, _ = _shared_offset(e, i)
    vec, kind = value.vec, int_type(32, value.vec)
    high = e.op(f"lshr {int_type(64, vec)} {value.text}, {constant(lay.PEER_SHIFT, 64, vec)}")
    high = e.resize(Value(high, vec), 64, 32).text
    own = e.special(i, "%cluster_ctarank")
    own_block = e.op(f"icmp eq {kind} {high}, {constant(0, 32, vec)}")
    other = e.op(f"sub {kind} {high}, {constant(1, 32, vec)}")
    rank = e.select(own_block, kind, e.spread(own, 32) if vec else own.text, other)
    e.write(i, i.operands[0], Value(rank, vec), 32)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "cvt": _cvt,
    "cvta": _cvta,
    "isspacep": _isspacep,
    "mapa": _mapa,
    "getctarank": _getctarank,
}
