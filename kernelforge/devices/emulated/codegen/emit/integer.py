"""Integer arithmetic, logic, bit fields, selection, and data movement between registers."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.ir_builder import int_type
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import TYPE_BITS, Imm, Instruction, Operand, Pair, Vec


def _bits(i: Instruction) -> int:
    bits = TYPE_BITS.get(i.type, 0)
    if bits not in (16, 32, 64) or i.type[0] not in "bus" or i.type.startswith("bf"):
        raise unsupported(i)
    return bits


def _signed(i: Instruction) -> bool:
    return i.type[0] == "s"


def constant(value: int, bits: int, vec: bool) -> str:
    """An integer constant of either shape."""
    return f"splat (i{bits} {value})" if vec else str(value)


def clamp_integer(e: Emitter, value: Value, bits: int, source: str, sign: str, size: int) -> Value:
    """Saturate an integer to ``size`` bits of that ``sign``, staying ``bits`` wide (at least as wide as both types)."""
    signed_source, signed_target = source[0] == "s", sign == "s"
    kind = int_type(bits, value.vec)
    low, high = (-(1 << (size - 1)), (1 << (size - 1)) - 1) if signed_target else (0, (1 << size) - 1)
    text = value.text
    if signed_source:
        text = e.intrinsic("smax", kind, text, constant(low, bits, value.vec))
        if high < 1 << (bits - 1):
            text = e.intrinsic("smin", kind, text, constant(high, bits, value.vec))
    elif high < 1 << bits:
        text = e.intrinsic("umin", kind, text, constant(high, bits, value.vec))
    return Value(text, value.vec)


def bool_kind(vec: bool) -> str:
    """Type of a comparison's result."""
    return "<32 x i1>" if vec else "i1"


def _binary(verb: str) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        if i.type == "pred":
            _predicate_logic(e, i, verb)
            return
        bits = _bits(i)
        (a, b), vec = e.sources(i, i.operands[1:3], bits)
        e.write(i, i.operands[0], Value(e.op(f"{verb} {int_type(bits, vec)} {a}, {b}"), vec), bits)

    return handle


def _predicate_logic(e: Emitter, i: Instruction, verb: str) -> None:
    values = [e.predicate(op) for op in i.operands[1:]]
    vec = any(v.vec for v in values)
    texts = [e.spread(v, 1) if vec else v.text for v in values]
    if verb == "not":
        e.write(i, i.operands[0], e.invert(Value(texts[0], vec)), 1)
    else:
        e.write(i, i.operands[0], Value(e.op(f"{verb} {'i32' if vec else 'i1'} {texts[0]}, {texts[1]}"), vec), 1)


def _add_sub(verb: str) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        bits = _bits(i)
        (a, b), vec = e.sources(i, i.operands[1:3], bits)
        if "cc" in i.modifiers:
            _carry(e, i, verb, a, b, vec, bits, carry_in=False)
            return
        if "sat" in i.modifiers:
            result = e.intrinsic(f"s{verb}.sat", int_type(bits, vec), a, b)
        else:
            result = e.op(f"{verb} {int_type(bits, vec)} {a}, {b}")
        e.write(i, i.operands[0], Value(result, vec), bits)

    return handle


def _carry(e: Emitter, i: Instruction, verb: str, a: str, b: str, vec: bool, bits: int, carry_in: bool) -> None:
    """Add or subtract through a type twice as wide; bit ``bits`` of the result is the carry or borrow."""
    if i.predicate is not None:
        raise unsupported(i, "predicated carry arithmetic")
    if not vec:
        a, b, vec = e.spread(Value(a, False), bits), e.spread(Value(b, False), bits), True
    wide = int_type(2 * bits, True)
    narrow = int_type(bits, True)
    x, y = (e.op(f"zext {narrow} {v} to {wide}") for v in (a, b))
    total = e.op(f"{verb} {wide} {x}, {y}")
    if carry_in:
        if e.carry is None:
            raise unsupported(i, "the carry flag comes from another basic block")
        extra = e.op(f"zext <32 x i1> {e.carry.text} to {wide}")
        total = e.op(f"{verb} {wide} {total}, {extra}")
    if "cc" in i.modifiers:
        high = e.op(f"lshr {wide} {total}, splat (i{2 * bits} {bits})")
        e.carry = Value(e.op(f"trunc {wide} {high} to <32 x i1>"), True)
    e.write(i, i.operands[0], Value(e.op(f"trunc {wide} {total} to {narrow}"), True), bits)


def _carry_in(verb: str) -> Callable[[Emitter, Instruction], None]:
    def handle(e: Emitter, i: Instruction) -> None:
        bits = _bits(i)
        (a, b), vec = e.sources(i, i.operands[1:3], bits)
        _carry(e, i, verb, a, b, vec, bits, carry_in=True)

    return handle


def _product(e: Emitter, i: Instruction, bits: int) -> tuple[str, bool, int]:
    """The selected half, or all, of ``a * b``: (value, vec, bits)."""
    (a, b), vec = e.sources(i, i.operands[1:3], bits)
    kind, wide = int_type(bits, vec), int_type(2 * bits, vec)
    if "lo" in i.modifiers:
        return e.op(f"mul {kind} {a}, {b}"), vec, bits
    if "hi" not in i.modifiers and "wide" not in i.modifiers:
        raise unsupported(i)
    extend = "sext" if _signed(i) else "zext"
    x, y = (e.op(f"{extend} {kind} {v} to {wide}") for v in (a, b))
    full = e.op(f"mul {wide} {x}, {y}")
    if "wide" in i.modifiers:
        return full, vec, 2 * bits
    high = e.op(f"lshr {wide} {full}, {constant(bits, 2 * bits, vec)}")
    return e.op(f"trunc {wide} {high} to {kind}"), vec, bits


def _mul(e: Emitter, i: Instruction) -> None:
    text, vec, bits = _product(e, i, _bits(i))
    e.write(i, i.operands[0], Value(text, vec), bits)


def _mad(e: Emitter, i: Instruction) -> None:
    text, vec, bits = _product(e, i, _bits(i))
    c = e.source(i, i.operands[3], bits)
    both = vec or c.vec
    a = e.spread(Value(text, vec), bits) if both else text
    b = e.spread(c, bits) if both else c.text
    if i.opcode == "madc" or "cc" in i.modifiers:
        _carry(e, i, "add", a, b, both, bits, carry_in=i.opcode == "madc")
        return
    kind = int_type(bits, both)
    total = e.intrinsic("sadd.sat", kind, a, b) if "sat" in i.modifiers else e.op(f"add {kind} {a}, {b}")
    e.write(i, i.operands[0], Value(total, both), bits)


def _mul24(e: Emitter, i: Instruction) -> None:
    if TYPE_BITS.get(i.type) != 32:
        raise unsupported(i)
    (a, b), vec = e.sources(i, i.operands[1:3], 32)
    kind, wide = int_type(32, vec), int_type(64, vec)
    shift = "ashr" if _signed(i) else "lshr"
    eight = constant(8, 32, vec)
    parts = []
    for v in (a, b):
        low = e.op(f"{shift} {kind} {e.op(f'shl {kind} {v}, {eight}')}, {eight}")
        parts.append(e.op(f"{'sext' if _signed(i) else 'zext'} {kind} {low} to {wide}"))
    full = e.op(f"mul {wide} {parts[0]}, {parts[1]}")
    if "hi" in i.modifiers:
        full = e.op(f"lshr {wide} {full}, {constant(16, 64, vec)}")
    result = Value(e.op(f"trunc {wide} {full} to {kind}"), vec)
    if i.opcode == "mad24":
        c = e.source(i, i.operands[3], 32)
        both = vec or c.vec
        x = e.spread(result, 32) if both else result.text
        y = e.spread(c, 32) if both else c.text
        kind = int_type(32, both)
        total = e.intrinsic("sadd.sat", kind, x, y) if "sat" in i.modifiers else e.op(f"add {kind} {x}, {y}")
        result = Value(total, both)
    e.write(i, i.operands[0], result, 32)


def _divide(e: Emitter, i: Instruction) -> None:
    """Quotient or remainder; MIN / -1 gives MIN. Division by zero is a fault: PTX leaves its result to the machine."""
    bits = _bits(i)
    (a, b), vec = e.sources(i, i.operands[1:3], bits)
    kind = int_type(bits, vec)
    zero = e.op(f"icmp eq {kind} {b}, {constant(0, bits, vec)}")
    if not e.constant(i.operands[2]):
        lanes = e.op(f"bitcast <32 x i1> {zero} to i32") if vec else e.op(f"sext i1 {zero} to i32")
        e.fault_in(i, lay.FAULT_DIVISION, e.op(f"and i32 {lanes}, {e.active(i)}"))
    sign = "s" if _signed(i) else "u"
    if vec and bits <= 32:
        # A double quotient of 32-bit integers truncates to the exact one; that by zero is not used.
        wide = "<32 x double>"
        x, y = (e.op(f"{sign}itofp {kind} {v} to {wide}") for v in (a, b))
        q = e.op(f"fdiv {wide} {x}, {y}")
        q64 = e.op(f"fptosi {wide} {q} to <32 x i64>")
        quotient = e.op(f"trunc <32 x i64> {q64} to {kind}")
    else:
        safe = e.select(zero, kind, constant(1, bits, vec), b)
        if sign == "s":
            minus = e.op(f"icmp eq {kind} {safe}, {constant(-1, bits, vec)}")
            safe = e.select(minus, kind, constant(1, bits, vec), safe)
            plain = e.op(f"sdiv {kind} {a}, {safe}")
            negated = e.op(f"sub {kind} {constant(0, bits, vec)}, {a}")
            quotient = e.select(minus, kind, negated, plain)
        else:
            quotient = e.op(f"udiv {kind} {a}, {safe}")
    if i.opcode == "rem":
        back = e.op(f"mul {kind} {quotient}, {b}")
        result = e.select(zero, kind, a, e.op(f"sub {kind} {a}, {back}"))
    else:
        result = e.select(zero, kind, constant(-1, bits, vec), quotient)
    e.write(i, i.operands[0], Value(result, vec), bits)


def _shift(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    verb = "shl" if i.opcode == "shl" else ("ashr" if _signed(i) else "lshr")
    a = e.source(i, i.operands[1], bits)
    amount = i.operands[2]
    if isinstance(amount, Imm):
        count = amount.value % (1 << 32)
        if count >= bits:
            if verb != "ashr":
                e.write(i, i.operands[0], Value("0", False), bits)
                return
            count = bits - 1
        text = e.op(f"{verb} {int_type(bits, a.vec)} {a.text}, {constant(count, bits, a.vec)}")
        e.write(i, i.operands[0], Value(text, a.vec), bits)
        return
    b = e.source(i, amount, 32)
    vec = a.vec or b.vec
    kind = int_type(bits, vec)
    x = e.spread(a, bits) if vec else a.text
    y = e.spread(b, 32) if vec else b.text
    large = e.op(f"icmp ugt {int_type(32, vec)} {y}, {constant(bits - 1, 32, vec)}")
    z = e.resize(Value(y, vec), 32, bits).text
    clipped = e.select(large, kind, constant(bits - 1, bits, vec), z)
    result = e.op(f"{verb} {kind} {x}, {clipped}")
    if verb != "ashr":
        result = e.select(large, kind, constant(0, bits, vec), result)
    e.write(i, i.operands[0], Value(result, vec), bits)


def _funnel(e: Emitter, i: Instruction) -> None:
    (low, high, count), vec = e.sources(i, i.operands[1:4], 32)
    kind, wide = int_type(32, vec), int_type(64, vec)
    if "clamp" in i.modifiers:
        count = e.intrinsic("umin", kind, count, constant(32, 32, vec))
    else:
        count = e.op(f"and {kind} {count}, {constant(31, 32, vec)}")
    shift = e.op(f"zext {kind} {count} to {wide}")
    top = e.op(f"shl {wide} {e.op(f'zext {kind} {high} to {wide}')}, {constant(32, 64, vec)}")
    both = e.op(f"or {wide} {top}, {e.op(f'zext {kind} {low} to {wide}')}")
    if "l" in i.modifiers:
        moved = e.op(f"lshr {wide} {e.op(f'shl {wide} {both}, {shift}')}, {constant(32, 64, vec)}")
    else:
        moved = e.op(f"lshr {wide} {both}, {shift}")
    e.write(i, i.operands[0], Value(e.op(f"trunc {wide} {moved} to {kind}"), vec), 32)


def _not(e: Emitter, i: Instruction) -> None:
    if i.type == "pred":
        _predicate_logic(e, i, "not")
        return
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    text = e.op(f"xor {int_type(bits, a.vec)} {a.text}, {constant(-1, bits, a.vec)}")
    e.write(i, i.operands[0], Value(text, a.vec), bits)


def _cnot(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    kind = int_type(bits, a.vec)
    zero = e.op(f"icmp eq {kind} {a.text}, {constant(0, bits, a.vec)}")
    e.write(i, i.operands[0], Value(e.op(f"zext {bool_kind(a.vec)} {zero} to {kind}"), a.vec), bits)


def _neg(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    text = e.op(f"sub {int_type(bits, a.vec)} {constant(0, bits, a.vec)}, {a.text}")
    e.write(i, i.operands[0], Value(text, a.vec), bits)


def _abs(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    kind = int_type(bits, a.vec)
    minus = e.op(f"sub {kind} {constant(0, bits, a.vec)}, {a.text}")
    below = e.op(f"icmp slt {kind} {a.text}, {constant(0, bits, a.vec)}")
    e.write(i, i.operands[0], Value(e.select(below, kind, minus, a.text), a.vec), bits)


def _min_max(e: Emitter, i: Instruction) -> None:
    if "relu" in i.modifiers or TYPE_BITS.get(i.type) not in (16, 32, 64):
        raise unsupported(i)
    bits = _bits(i)
    (a, b), vec = e.sources(i, i.operands[1:3], bits)
    name = ("s" if _signed(i) else "u") + i.opcode
    e.write(i, i.operands[0], Value(e.intrinsic(name, int_type(bits, vec), a, b), vec), bits)


def _sad(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    (a, b, c), vec = e.sources(i, i.operands[1:4], bits)
    kind = int_type(bits, vec)
    less = e.op(f"icmp {'slt' if _signed(i) else 'ult'} {kind} {a}, {b}")
    up, down = e.op(f"sub {kind} {b}, {a}"), e.op(f"sub {kind} {a}, {b}")
    e.write(i, i.operands[0], Value(e.op(f"add {kind} {e.select(less, kind, up, down)}, {c}"), vec), bits)


def _count(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    kind = int_type(bits, a.vec)
    if i.opcode == "clz":
        name = f"llvm.ctlz.{'v32' if a.vec else ''}i{bits}"
        text = e.call(name, kind, (kind, a.text), ("i1", "false"))
    else:
        text = e.intrinsic({"popc": "ctpop", "brev": "bitreverse"}[i.opcode], kind, a.text)
    result = Value(text, a.vec)
    if i.opcode != "brev":
        result = e.resize(result, bits, 32)
        bits = 32
    e.write(i, i.operands[0], result, bits)


def _bfind(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    a = e.source(i, i.operands[1], bits)
    kind = int_type(bits, a.vec)
    text = a.text
    if _signed(i):
        sign = e.op(f"ashr {kind} {text}, {constant(bits - 1, bits, a.vec)}")
        text = e.op(f"xor {kind} {text}, {sign}")
    zeros = e.call(f"llvm.ctlz.{'v32' if a.vec else ''}i{bits}", kind, (kind, text), ("i1", "false"))
    none = e.op(f"icmp eq {kind} {text}, {constant(0, bits, a.vec)}")
    if "shiftamt" not in i.modifiers:
        zeros = e.op(f"sub {kind} {constant(bits - 1, bits, a.vec)}, {zeros}")
    result = e.select(none, kind, constant(-1, bits, a.vec), zeros)
    e.write(i, i.operands[0], e.resize(Value(result, a.vec), bits, 32), 32)


def _field(e: Emitter, i: Instruction, position: Operand, length: Operand, vec: bool, bits: int) -> tuple[str, str]:
    """Position and length of a bit field, each taken modulo 256 and widened."""
    out = []
    for op in (position, length):
        v = e.source(i, op, 32)
        text = e.spread(v, 32) if vec else v.text
        text = e.op(f"and {int_type(32, vec)} {text}, {constant(255, 32, vec)}")
        out.append(e.resize(Value(text, vec), 32, bits).text)
    return out[0], out[1]


def _shifted(e: Emitter, verb: str, value: str, count: str, bits: int, vec: bool) -> str:
    """Shift where counts of ``bits`` or more give 0."""
    kind = int_type(bits, vec)
    large = e.op(f"icmp ugt {kind} {count}, {constant(bits - 1, bits, vec)}")
    safe = e.select(large, kind, constant(0, bits, vec), count)
    return e.select(large, kind, constant(0, bits, vec), e.op(f"{verb} {kind} {value}, {safe}"))


def _low_mask(e: Emitter, length: str, bits: int, vec: bool) -> str:
    """``length`` ones, all ones from ``bits`` up."""
    kind = int_type(bits, vec)
    power = _shifted(e, "shl", constant(1, bits, vec), length, bits, vec)
    return e.op(f"sub {kind} {power}, {constant(1, bits, vec)}")


def _bfe(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    vec = any(e.source(i, op, 32).vec for op in i.operands[2:4]) or e.source(i, i.operands[1], bits).vec
    v = e.source(i, i.operands[1], bits)
    a = e.spread(v, bits) if vec else v.text
    position, length = _field(e, i, i.operands[2], i.operands[3], vec, bits)
    kind = int_type(bits, vec)
    part = e.op(f"and {kind} {_shifted(e, 'lshr', a, position, bits, vec)}, {_low_mask(e, length, bits, vec)}")
    if _signed(i):
        # The sign is bit min(position + length - 1, bits - 1) of a; a zero length gives 0.
        last = e.op(f"sub {kind} {e.op(f'add {kind} {position}, {length}')}, {constant(1, bits, vec)}")
        last = e.intrinsic("umin", kind, last, constant(bits - 1, bits, vec))
        sign = e.op(f"and {kind} {e.op(f'lshr {kind} {a}, {last}')}, {constant(1, bits, vec)}")
        fill = e.op(f"sub {kind} {constant(0, bits, vec)}, {sign}")
        above = e.op(f"xor {kind} {_low_mask(e, length, bits, vec)}, {constant(-1, bits, vec)}")
        # Bits beyond the top of ``a`` are sign bits too.
        rest = e.op(f"sub {kind} {constant(bits, bits, vec)}, {position}")
        small = e.op(f"icmp ult {kind} {position}, {constant(bits, bits, vec)}")
        room = e.select(small, kind, rest, constant(0, bits, vec))
        beyond = e.op(f"xor {kind} {_low_mask(e, room, bits, vec)}, {constant(-1, bits, vec)}")
        extra = e.op(f"and {kind} {fill}, {e.op(f'or {kind} {above}, {beyond}')}")
        full = e.op(f"or {kind} {part}, {extra}")
        empty = e.op(f"icmp eq {kind} {length}, {constant(0, bits, vec)}")
        part = e.select(empty, kind, constant(0, bits, vec), full)
    e.write(i, i.operands[0], Value(part, vec), bits)


def _bfi(e: Emitter, i: Instruction) -> None:
    bits = _bits(i)
    values = [e.source(i, op, bits) for op in i.operands[1:3]]
    vec = any(v.vec for v in values) or any(e.source(i, op, 32).vec for op in i.operands[3:5])
    a, b = (e.spread(v, bits) if vec else v.text for v in values)
    position, length = _field(e, i, i.operands[3], i.operands[4], vec, bits)
    kind = int_type(bits, vec)
    mask = _shifted(e, "shl", _low_mask(e, length, bits, vec), position, bits, vec)
    new = e.op(f"and {kind} {_shifted(e, 'shl', a, position, bits, vec)}, {mask}")
    old = e.op(f"and {kind} {b}, {e.op(f'xor {kind} {mask}, {constant(-1, bits, vec)}')}")
    e.write(i, i.operands[0], Value(e.op(f"or {kind} {new}, {old}"), vec), bits)


def _bmsk(e: Emitter, i: Instruction) -> None:
    (a, b), vec = e.sources(i, i.operands[1:3], 32)
    kind = int_type(32, vec)
    if "wrap" in i.modifiers:
        a, b = (e.op(f"and {kind} {v}, {constant(31, 32, vec)}") for v in (a, b))
    mask = _shifted(e, "shl", _low_mask(e, b, 32, vec), a, 32, vec)
    e.write(i, i.operands[0], Value(mask, vec), 32)


def _szext(e: Emitter, i: Instruction) -> None:
    """Extend the low bits, as many as the second operand says: with the sign of the highest one, or with zeros."""
    (a, b), vec = e.sources(i, i.operands[1:3], 32)
    kind = int_type(32, vec)
    count = e.op(f"and {kind} {b}, {constant(31, 32, vec)}")
    mask = _low_mask(e, count, 32, vec)
    result = e.op(f"and {kind} {a}, {mask}")
    if _signed(i):
        last = e.op(f"and {kind} {e.op(f'sub {kind} {count}, {constant(1, 32, vec)}')}, {constant(31, 32, vec)}")
        sign = e.op(f"and {kind} {e.op(f'lshr {kind} {a}, {last}')}, {constant(1, 32, vec)}")
        fill = e.op(f"sub {kind} {constant(0, 32, vec)}, {sign}")
        above = e.op(f"xor {kind} {mask}, {constant(-1, 32, vec)}")
        some = e.op(f"icmp ne {kind} {count}, {constant(0, 32, vec)}")
        fill = e.select(some, kind, e.op(f"and {kind} {fill}, {above}"), constant(0, 32, vec))
        result = e.op(f"or {kind} {result}, {fill}")
    if "clamp" in i.modifiers:
        large = e.op(f"icmp ugt {kind} {b}, {constant(31, 32, vec)}")
        result = e.select(large, kind, a, result)
    e.write(i, i.operands[0], Value(result, vec), 32)


def _lop3(e: Emitter, i: Instruction) -> None:
    table = e.constant(i.operands[4])
    if table is None:
        raise unsupported(i)
    (a, b, c), vec = e.sources(i, i.operands[1:4], 32)
    kind = int_type(32, vec)
    ones = constant(-1, 32, vec)
    inverted = {v: e.op(f"xor {kind} {v}, {ones}") for v in dict.fromkeys((a, b, c))}
    terms = []
    for k in range(8):
        if table >> k & 1:
            x, y, z = (v if k >> bit & 1 else inverted[v] for v, bit in ((a, 2), (b, 1), (c, 0)))
            terms.append(e.op(f"and {kind} {e.op(f'and {kind} {x}, {y}')}, {z}"))
    result = terms[0] if terms else constant(0, 32, vec)
    for term in terms[1:]:
        result = e.op(f"or {kind} {result}, {term}")
    target = i.operands[0]
    if isinstance(target, Pair):
        verb = next(m for m in i.modifiers if m in ("and", "or"))
        flag = e.flag(e.op(f"icmp ne {kind} {result}, {constant(0, 32, vec)}"), vec)
        other = e.predicate(i.operands[5])
        many = flag.vec or other.vec
        x, y = (e.spread(v, 1) if many else v.text for v in (flag, other))
        e.write(i, target.second, Value(e.op(f"{verb} {'i32' if many else 'i1'} {x}, {y}"), many), 1)
        target = target.first
    e.write(i, target, Value(result, vec), 32)


_SELECTORS = {
    "f4e": 0x6543_5432_4321_3210, "b4e": 0x0123_7012_6701_5670, "rc8": 0x3333_2222_1111_0000,
    "ecl": 0x3333_3222_3211_3210, "ecr": 0x3210_2210_1110_0000, "rc16": 0x3232_1010_3232_1010,
}  # fmt: skip
"""The selectors of ``prmt``'s modes for the control values 0 to 3, 16 bits each."""


def _prmt(e: Emitter, i: Instruction) -> None:
    mode = next((m for m in i.modifiers if m in _SELECTORS), "")
    selector = None if mode else e.constant(i.operands[3])
    if mode:
        (a, b, s), vec = e.sources(i, i.operands[1:4], 32)
        kind, wide = int_type(32, vec), int_type(64, vec)
        at = e.op(f"shl {kind} {e.op(f'and {kind} {s}, {constant(3, 32, vec)}')}, {constant(4, 32, vec)}")
        at = e.op(f"zext {kind} {at} to {wide}")
        s = e.op(f"trunc {wide} {e.op(f'lshr {wide} {constant(_SELECTORS[mode], 64, vec)}, {at}')} to {kind}")
    elif selector is None:
        (a, b, s), vec = e.sources(i, i.operands[1:4], 32)
    else:
        (a, b), vec = e.sources(i, i.operands[1:3], 32)
        s = constant(selector & 0xFFFF, 32, vec)
    kind, wide = int_type(32, vec), int_type(64, vec)
    high = e.op(f"shl {wide} {e.op(f'zext {kind} {b} to {wide}')}, {constant(32, 64, vec)}")
    both = e.op(f"or {wide} {high}, {e.op(f'zext {kind} {a} to {wide}')}")
    result = constant(0, 32, vec)
    for k in range(4):
        nibble = e.op(f"lshr {kind} {s}, {constant(4 * k, 32, vec)}")
        index = e.op(f"shl {kind} {e.op(f'and {kind} {nibble}, {constant(7, 32, vec)}')}, {constant(3, 32, vec)}")
        byte = e.op(f"lshr {wide} {both}, {e.op(f'zext {kind} {index} to {wide}')}")
        byte = e.op(f"and {kind} {e.op(f'trunc {wide} {byte} to {kind}')}, {constant(255, 32, vec)}")
        negative = e.op(f"lshr {kind} {byte}, {constant(7, 32, vec)}")
        signs = e.op(f"mul {kind} {negative}, {constant(255, 32, vec)}")
        replicate = e.op(f"and {kind} {nibble}, {constant(8, 32, vec)}")
        replicated = e.op(f"icmp ne {kind} {replicate}, {constant(0, 32, vec)}")
        byte = e.select(replicated, kind, signs, byte)
        result = e.op(f"or {kind} {result}, {e.op(f'shl {kind} {byte}, {constant(8 * k, 32, vec)}')}")
    e.write(i, i.operands[0], Value(result, vec), 32)


def _dot(e: Emitter, i: Instruction) -> None:
    """dp4a: four bytes by four bytes; dp2a: two halves by the low or high two bytes."""
    first, second = i.modifiers[-2], i.modifiers[-1]
    (a, b, c), vec = e.sources(i, i.operands[1:4], 32)
    kind = int_type(32, vec)

    def part(value: str, at: int, width: int, signed: bool) -> str:
        up = e.op(f"shl {kind} {value}, {constant(32 - width - at, 32, vec)}")
        return e.op(f"{'ashr' if signed else 'lshr'} {kind} {up}, {constant(32 - width, 32, vec)}")

    result = c
    count = 4 if i.opcode == "dp4a" else 2
    shift = 16 if i.opcode == "dp2a" and "hi" in i.modifiers else 0
    for k in range(count):
        x = part(a, k * (8 if count == 4 else 16), 8 if count == 4 else 16, first[0] == "s")
        y = part(b, 8 * k + shift, 8, second[0] == "s")
        result = e.op(f"add {kind} {result}, {e.op(f'mul {kind} {x}, {y}')}")
    e.write(i, i.operands[0], Value(result, vec), 32)


def _mov(e: Emitter, i: Instruction) -> None:
    target, source = i.operands[0], i.operands[1]
    if i.type == "pred":
        e.write(i, target, e.predicate(source), 1)
        return
    bits = TYPE_BITS.get(i.type, 0)
    if bits not in (8, 16, 32, 64, 128):
        raise unsupported(i)
    if isinstance(target, Vec):
        value = e.source(i, source, bits)
        part = bits // len(target.items)
        for k, item in enumerate(target.items):
            text = value.text
            if k:
                text = e.op(f"lshr {int_type(bits, value.vec)} {text}, {constant(k * part, bits, value.vec)}")
            e.write(i, item, e.resize(Value(text, value.vec), bits, part), part)
        return
    if isinstance(source, Vec):
        part = bits // len(source.items)
        texts, vec = e.sources(i, source.items, part)
        result = ""
        for k, text in enumerate(texts):
            wide = e.resize(Value(text, vec), part, bits).text
            if k:
                wide = e.op(f"shl {int_type(bits, vec)} {wide}, {constant(k * part, bits, vec)}")
            result = wide if k == 0 else e.op(f"or {int_type(bits, vec)} {result}, {wide}")
        e.write(i, target, Value(result, vec), bits)
        return
    e.write(i, target, e.source(i, source, bits), bits)


def select(e: Emitter, i: Instruction, p: Value, values: tuple[Operand, Operand], bits: int) -> Value:
    """``p ? first : second``."""
    a, b = (e.source(i, op, bits) for op in values)
    vec = p.vec or a.vec or b.vec
    x, y = (e.spread(v, bits) if vec else v.text for v in (a, b))
    condition, many = e.condition(p)
    kind = int_type(bits, vec)
    return Value(e.op(f"select {'<32 x i1>' if many else 'i1'} {condition}, {kind} {x}, {kind} {y}"), vec)


def _selp(e: Emitter, i: Instruction) -> None:
    bits = TYPE_BITS.get(i.type, 0)
    if bits not in (16, 32, 64):
        raise unsupported(i)
    p = e.predicate(i.operands[3])
    e.write(i, i.operands[0], select(e, i, p, (i.operands[1], i.operands[2]), bits), bits)


def _slct(e: Emitter, i: Instruction) -> None:
    kind, test = i.modifiers[-2], i.modifiers[-1]
    bits = TYPE_BITS[kind]
    c = e.source(i, i.operands[3], 32)
    if test == "s32":
        flag = e.op(f"icmp sge {int_type(32, c.vec)} {c.text}, {constant(0, 32, c.vec)}")
    elif test == "f32":
        x = e.as_float(c.text, 32, c.vec)
        flag = e.op(f"fcmp oge {'<32 x float>' if c.vec else 'float'} {x}, {'zeroinitializer' if c.vec else '0.0'}")
    else:
        raise unsupported(i)
    p = e.flag(flag, c.vec)
    e.write(i, i.operands[0], select(e, i, p, (i.operands[1], i.operands[2]), bits), bits)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "add": _add_sub("add"),
    "sub": _add_sub("sub"),
    "addc": _carry_in("add"),
    "subc": _carry_in("sub"),
    "mul": _mul,
    "mad": _mad,
    "madc": _mad,
    "mul24": _mul24,
    "mad24": _mul24,
    "div": _divide,
    "rem": _divide,
    "and": _binary("and"),
    "or": _binary("or"),
    "xor": _binary("xor"),
    "not": _not,
    "cnot": _cnot,
    "neg": _neg,
    "abs": _abs,
    "min": _min_max,
    "max": _min_max,
    "sad": _sad,
    "shl": _shift,
    "shr": _shift,
    "shf": _funnel,
    "popc": _count,
    "clz": _count,
    "brev": _count,
    "bfind": _bfind,
    "bfe": _bfe,
    "bfi": _bfi,
    "bmsk": _bmsk,
    "szext": _szext,
    "lop3": _lop3,
    "prmt": _prmt,
    "dp4a": _dot,
    "dp2a": _dot,
    "mov": _mov,
    "selp": _selp,
    "slct": _slct,
}
