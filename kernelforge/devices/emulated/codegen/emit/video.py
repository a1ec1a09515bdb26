"""Scalar video instructions: arithmetic on 32-bit words, halves or bytes, and a second operation or a merge."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.integer import clamp_integer, constant
from kernelforge.devices.emulated.codegen.ir_builder import bool_type, int_type
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction

_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")
_SECOND = ("add", "min", "max")
_WIDE = 64
"""Bits in which operands of 33 bits are computed with; ``vmad`` takes twice as many."""


def _part(e: Emitter, text: str, vec: bool, selector: str, kind: str, bits: int) -> str:
    """The selected byte, half or word of an operand, extended by its type to ``bits`` bits."""
    size = {"b": 8, "h": 16}.get(selector[:1], 32)
    at = size * int(selector[1:] or 0)
    narrow, wide = int_type(32, vec), int_type(bits, vec)
    up = e.op(f"shl {narrow} {text}, {constant(32 - size - at, 32, vec)}")
    part = e.op(f"{'ashr' if kind[0] == 's' else 'lshr'} {narrow} {up}, {constant(32 - size, 32, vec)}")
    return e.op(f"{'sext' if kind[0] == 's' else 'zext'} {narrow} {part} to {wide}")


def _result(e: Emitter, i: Instruction, operation: str, x: str, y: str, vec: bool) -> str:
    """The first operation's result."""
    kind = int_type(_WIDE, vec)
    if operation in ("add", "sub"):
        return e.op(f"{operation} {kind} {x}, {y}")
    if operation == "absdiff":
        difference = e.op(f"sub {kind} {x}, {y}")
        return e.call(f"llvm.abs.{'v32' if vec else ''}i64", kind, (kind, difference), ("i1", "false"))
    if operation in ("min", "max"):
        return e.intrinsic("s" + operation, kind, x, y)
    if operation == "set":
        test = i.modifiers[2]
        flag = e.op(f"icmp {test if test in ('eq', 'ne') else 's' + test} {kind} {x}, {y}")
        return e.op(f"zext {bool_type(kind)} {flag} to {kind}")
    if "clamp" in i.modifiers:
        count = e.intrinsic("umin", kind, y, constant(32, _WIDE, vec))
    else:
        count = e.op(f"and {kind} {y}, {constant(31, _WIDE, vec)}")
    if operation == "shr":
        return e.op(f"ashr {kind} {x}, {count}")
    return e.intrinsic("sshl.sat", kind, x, count) if "sat" in i.modifiers else e.op(f"shl {kind} {x}, {count}")


def _video(e: Emitter, i: Instruction) -> None:
    """``vadd.dtype.atype.btype{.sat}{.op2} d, a, b, c`` and its kin."""
    operation = i.opcode[1:]
    selectors = i.selectors or ("",) * len(i.operands)
    types = [m for m in i.modifiers if m in ("u32", "s32")]
    flags = [m for m in i.modifiers if m not in types]
    if operation == "set":
        types.insert(0, "u32")
    second = flags.pop() if flags and flags[-1] in _SECOND else ""
    allowed: list[tuple[str, ...]] = [(), ("sat",)]
    if operation == "set":
        allowed = [(test,) for test in _TESTS]
    elif operation in ("shl", "shr"):
        allowed = [(*saturation, mode) for saturation in allowed for mode in ("clamp", "wrap")]
    part = selectors[0]
    third = bool(second or part)
    if (
        len(types) != 3 or tuple(flags) not in allowed or len(i.operands) != 3 + third or (second and part)
        or any("-" in s for s in selectors) or (third and selectors[3])
        or (operation in ("shl", "shr") and types[2] != "u32")
    ):  # fmt: skip
        raise unsupported(i)
    texts, vec = e.sources(i, i.operands[1:], 32)
    kind = int_type(32, vec)
    x, y = (_part(e, texts[k], vec, selectors[k + 1], types[k + 1], _WIDE) for k in range(2))
    result = Value(_result(e, i, operation, x, y, vec), vec)
    size = {"b": 8, "h": 16}.get(part[:1], 32)
    if "sat" in flags:
        result = clamp_integer(e, result, _WIDE, "s64", types[0][0], size)
    text = e.resize(result, _WIDE, 32).text
    if second == "add":
        text = e.op(f"add {kind} {text}, {texts[2]}")
    elif second:
        text = e.intrinsic(types[0][0] + second, kind, text, texts[2])
    elif part:
        at, ones = size * int(part[1:]), (1 << size) - 1
        low = e.op(f"and {kind} {text}, {constant(ones, 32, vec)}")
        kept = e.op(f"and {kind} {texts[2]}, {constant(~(ones << at) & 0xFFFFFFFF, 32, vec)}")
        text = e.op(f"or {kind} {kept}, {e.op(f'shl {kind} {low}, {constant(at, 32, vec)}')}")
    e.write(i, i.operands[0], Value(text, vec), 32)


def _vmad(e: Emitter, i: Instruction) -> None:
    """``vmad``: a product and a sum of 128 bits, which may be shifted and saturated."""
    selectors = i.selectors or ("",) * len(i.operands)
    types, flags = i.modifiers[:3], i.modifiers[3:]
    negated = [s.startswith("-") for s in selectors]
    shift = next((int(m[3:]) for m in flags if m in ("shr7", "shr15")), 0)
    negative = negated[1:2] != negated[2:3]
    if (
        len(types) != 3 or any(t not in ("u32", "s32") for t in types) or len(i.operands) != 4
        or set(flags) - {"po", "sat", "shr7", "shr15"} or selectors[0] or selectors[3].strip("-")
        or ("po" in flags and any(negated)) or (negative and negated[3])
    ):  # fmt: skip
        raise unsupported(i)
    texts, vec = e.sources(i, i.operands[1:], 32)
    bits = 2 * _WIDE
    kind = int_type(bits, vec)
    x, y = (_part(e, texts[k], vec, selectors[k + 1].strip("-"), types[k + 1], bits) for k in range(2))
    signed = "s32" in types[1:] or negative or negated[3]
    z = _part(e, texts[2], vec, "", "s32" if signed else "u32", bits)
    product = e.op(f"mul {kind} {x}, {y}")
    if negative:
        total = e.op(f"sub {kind} {z}, {product}")
    else:
        total = e.op(f"{'sub' if negated[3] else 'add'} {kind} {product}, {z}")
    if "po" in flags:
        total = e.op(f"add {kind} {total}, {constant(1, bits, vec)}")
    if shift:
        total = e.op(f"{'ashr' if signed else 'lshr'} {kind} {total}, {constant(shift, bits, vec)}")
    result = Value(total, vec)
    if "sat" in flags:
        result = clamp_integer(e, result, bits, "s128", "s" if signed else "u", 32)
    e.write(i, i.operands[0], e.resize(result, bits, 32), 32)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    **dict.fromkeys(("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr"), _video),
    "vmad": _vmad,
}
