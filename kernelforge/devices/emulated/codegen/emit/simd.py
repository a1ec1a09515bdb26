"""Integer operations on the halves and bytes of a 32-bit word, as DPX and the intrinsics ``__v*`` use them."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.integer import clamp_integer, constant
from kernelforge.devices.emulated.codegen.ir_builder import bool_type, int_type
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Instruction

_PAIRS = ("s16x2", "u16x2")


def is_packed(i: Instruction) -> bool:
    """True for operations on pairs of 16-bit integers, and for ``.relu`` on integers."""
    return any(m in _PAIRS for m in i.modifiers) or ("relu" in i.modifiers and "s32" in i.modifiers)


def _packed(e: Emitter, i: Instruction) -> None:
    """``add``, ``min`` and ``max`` of pairs, and of one integer with ``.relu``."""
    name = next((m for m in i.modifiers if m in (*_PAIRS, "s32")), "")
    if set(i.modifiers) - {name, "relu"} or (i.opcode == "add" and "relu" in i.modifiers):
        raise unsupported(i)
    (a, b), vec = e.sources(i, i.operands[1:3], 32)
    word = int_type(32, vec)
    kind = word if name == "s32" else f"<{64 if vec else 2} x i16>"
    x, y = (e.op(f"bitcast {word} {v} to {kind}") for v in (a, b))
    result = e.op(f"add {kind} {x}, {y}") if i.opcode == "add" else e.intrinsic(name[0] + i.opcode, kind, x, y)
    if "relu" in i.modifiers:
        if name[0] != "s":
            raise unsupported(i)
        result = e.intrinsic("smax", kind, result, "zeroinitializer" if kind[0] == "<" else "0")
    e.write(i, i.operands[0], Value(e.op(f"bitcast {kind} {result} to {word}"), vec), 32)


_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


def _video(e: Emitter, i: Instruction) -> None:
    """``vadd2``, ``vabsdiff4`` and so on: one result for each half or byte, or with ``.add`` their sum and ``c``."""
    verb, count = i.opcode[:-1], int(i.opcode[-1])
    rest = [m for m in i.modifiers if m not in ("sat", "add")]
    if verb == "vset":
        test = rest.pop() if rest[-1] in _TESTS else ""
        rest.insert(0, "u32")
        if not test:
            raise unsupported(i)
    if len(rest) != 3 or any(t not in ("u32", "s32") for t in rest) or len(i.operands) != 4:
        raise unsupported(i)
    to, first, second = rest
    (a, b, c), vec = e.sources(i, i.operands[1:4], 32)
    kind, size = int_type(32, vec), 32 // count

    def element(value: str, k: int, signed: bool) -> str:
        up = e.op(f"shl {kind} {value}, {constant(32 - size * (k + 1), 32, vec)}")
        return e.op(f"{'ashr' if signed else 'lshr'} {kind} {up}, {constant(32 - size, 32, vec)}")

    def select(flag: str, yes: str, no: str) -> str:
        return e.op(f"select {bool_type(kind)} {flag}, {kind} {yes}, {kind} {no}")

    total = c if "add" in i.modifiers else constant(0, 32, vec)
    for k in range(count):
        x, y = element(a, k, first[0] == "s"), element(b, k, second[0] == "s")
        if verb in ("vadd", "vsub"):
            value = e.op(f"{verb[1:]} {kind} {x}, {y}")
        elif verb == "vabsdiff":
            value = e.op(f"sub {kind} {x}, {y}")
            value = e.call(f"llvm.abs.{'v32' if vec else ''}i32", kind, (kind, value), ("i1", "false"))
        elif verb in ("vmin", "vmax"):
            value = e.intrinsic("s" + verb[1:], kind, x, y)
        elif verb == "vavrg":
            plain = e.op(f"add {kind} {x}, {y}")
            positive = e.op(f"icmp sge {kind} {plain}, {constant(0, 32, vec)}")
            value = e.op(f"add {kind} {plain}, {e.op(f'zext {bool_type(kind)} {positive} to {kind}')}")
            value = e.op(f"ashr {kind} {value}, {constant(1, 32, vec)}")
        else:
            flag = e.op(f"icmp {test if test in ('eq', 'ne') else 's' + test} {kind} {x}, {y}")
            value = select(flag, constant(1, 32, vec), constant(0, 32, vec))
        if "sat" in i.modifiers:
            value = clamp_integer(e, Value(value, vec), 32, "s32", to[0], size).text
        if "add" in i.modifiers:
            total = e.op(f"add {kind} {total}, {value}")
        else:
            low = e.op(f"and {kind} {value}, {constant((1 << size) - 1, 32, vec)}")
            total = e.op(f"or {kind} {total}, {e.op(f'shl {kind} {low}, {constant(size * k, 32, vec)}')}")
    e.write(i, i.operands[0], Value(total, vec), 32)


def _find_set(e: Emitter, i: Instruction) -> None:
    """``fns``: position of the n-th set bit from a base."""
    for area, operand in zip((4, 5, 6), i.operands[1:4], strict=True):
        e.put(area, e.spread(e.source(i, operand, 32), 32), 32)
    e.call("kf_find_set", "void", ("ptr", "%area4"), ("ptr", "%area5"), ("ptr", "%area6"))
    e.write(i, i.operands[0], e.get(4, 32), 32)


PACKED: dict[str, Callable[[Emitter, Instruction], None]] = {"add": _packed, "min": _packed, "max": _packed}
HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    **{f"{verb}{n}": _video for verb in ("vadd", "vsub", "vabsdiff", "vavrg", "vmin", "vmax", "vset") for n in (2, 4)},
    "fns": _find_set,
}
