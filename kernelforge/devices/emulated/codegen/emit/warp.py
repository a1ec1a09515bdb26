"""Operations across the lanes of a warp."""

from __future__ import annotations

import math
from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, Value
from kernelforge.devices.emulated.codegen.emit.floating import extremum
from kernelforge.devices.emulated.codegen.ir_builder import float_constant, lane_vector
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Imm, Instruction, Operand, Pair
from kernelforge.devices.emulated.ptx.warp_reductions import WarpReduction
from kernelforge.devices.emulated.runtime import GROUP_OPERATIONS

_MODES = ("up", "down", "bfly", "idx")


def _pair(operand: Operand) -> tuple[Operand, Operand | None]:
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, None)


def _shuffle(e: Emitter, i: Instruction) -> None:
    mode = next((m for m in i.modifiers if m in _MODES), None)
    if mode is None or i.type != "b32" or "sync" not in i.modifiers:
        raise unsupported(i)
    e.check_members(i, i.operands[4])
    target, flag = _pair(i.operands[0])
    value = _shuffled(e, i)
    b, c = e.constant(i.operands[2]), e.constant(i.operands[3])
    if b is not None and c is not None:
        indices, valid = shuffle_indices(mode, b, c)
        text = e.op(f"shufflevector <32 x i32> {value}, <32 x i32> poison, <32 x i32> {lane_vector(indices)}")
        flags = str(valid - (1 << 32) if valid >> 31 else valid)
    else:
        e.put(4, value, 32)
        e.put(5, e.spread(e.source(i, i.operands[2], 32), 32), 32)
        e.put(6, e.spread(e.source(i, i.operands[3], 32), 32), 32)
        wide = e.call(
            "kf_shuffle", "i64", ("ptr", "%ctx"), ("ptr", "%area4"), ("i64", "0"), ("i64", str(_MODES.index(mode)))
        )
        text = e.get(4, 32).text
        flags = e.op(f"trunc i64 {wide} to i32")
    e.write(i, target, Value(text, True), 32)
    if flag is not None:
        e.write(i, flag, Value(flags, True), 1)


def _shuffled(e: Emitter, i: Instruction) -> str:
    """Values that lanes may read of each other; that of an inactive lane is undefined."""
    value = e.spread(e.source(i, i.operands[1], 32), 32)
    undefined = e.spread(Value(e.load("i32", "%ctx", lay.CTX_UNDEFINED), False), 32)
    return e.select(e.lanes(e.mask), "<32 x i32>", value, undefined)


def shuffle_indices(mode: str, b: int, c: int) -> tuple[list[int], int]:
    """Source lane of every lane, and the lanes whose source is in range, for constant operands."""
    indices, valid = [], 0
    segment, clamp = c >> 8 & 31, c & 31
    delta = b & 31
    for lane_id in range(32):
        bound = (lane_id & segment) | (clamp & ~segment)
        first = lane_id & segment
        index = first | (delta & ~segment)
        source = {"up": lane_id - delta, "down": lane_id + delta, "bfly": lane_id ^ delta, "idx": index}[mode]
        if (source >= bound) if mode == "up" else (source <= bound):
            valid |= 1 << lane_id
        else:
            source = lane_id
        indices.append(source)
    return indices, valid


def _by_group(e: Emitter, operation: str, values: str, members: str) -> Value:
    """Reduce over each lane's own member mask."""
    e.put(4, values, 32)
    e.put(5, members, 32)
    mask = e.op(f"zext i32 {e.mask} to i64")
    e.call(
        "kf_group_reduce", "void", ("ptr", "%area4"), ("ptr", "%area5"), ("ptr", "%area6"), ("i64", mask),
        ("i64", str(GROUP_OPERATIONS.index(operation))),
    )  # fmt: skip
    return e.get(6, 32)


def _vote(e: Emitter, i: Instruction) -> None:
    if "sync" not in i.modifiers:
        raise unsupported(i)
    members = e.check_members(i, i.operands[2])
    flags = e.spread(e.predicate(i.operands[1]), 1)
    if members.vec:
        verb = next(m for m in ("ballot", "all", "any", "uni") if m in i.modifiers)
        reduced = _by_group(e, verb, e.op(f"zext <32 x i1> {e.lanes(flags)} to <32 x i32>"), members.text)
        if verb == "ballot":
            e.write(i, i.operands[0], reduced, 32)
        else:
            some = e.op(f"icmp ne <32 x i32> {reduced.text}, zeroinitializer")
            e.write(i, i.operands[0], e.flag(some, True), 1)
        return
    among = e.op(f"and i32 {members.text}, {e.mask}")
    yes = e.op(f"and i32 {flags}, {among}")
    if "ballot" in i.modifiers:
        e.write(i, i.operands[0], Value(yes, False), 32)
        return
    every = e.op(f"icmp eq i32 {yes}, {among}")
    some = e.op(f"icmp ne i32 {yes}, 0")
    if "all" in i.modifiers:
        result = every
    elif "any" in i.modifiers:
        result = some
    else:
        result = e.op(f"or i1 {every}, {e.op(f'xor i1 {some}, true')}")
    e.write(i, i.operands[0], Value(result, False), 1)


def _activemask(e: Emitter, i: Instruction) -> None:
    e.write(i, i.operands[0], Value(e.mask, False), 32)


_REDUCTIONS = {
    ("add", "u32"): ("add", 0), ("add", "s32"): ("add", 0),
    ("min", "u32"): ("umin", -1), ("max", "u32"): ("umax", 0),
    ("min", "s32"): ("smin", 0x7FFFFFFF), ("max", "s32"): ("smax", -0x80000000),
    ("and", "b32"): ("and", -1), ("or", "b32"): ("or", 0), ("xor", "b32"): ("xor", 0),
}  # fmt: skip


def _redux_floats(e: Emitter, i: Instruction, verb: str) -> None:
    """Minimum or maximum of f32: in five steps, between lanes 16, 8, 4, 2 and 1 apart."""
    members = e.check_members(i, i.operands[2])
    if members.vec or verb not in ("min", "max"):
        raise unsupported(i)
    nan = "NaN" in i.modifiers
    value = e.as_float(e.spread(e.source(i, i.operands[1], 32), 32), 32, True)
    if "abs" in i.modifiers:
        value = e.intrinsic("fabs", "<32 x float>", value)
    # Values that do not change the result: NaN, which loses, or the infinity that every number beats.
    neutral = float_constant((math.inf if verb == "min" else -math.inf) if nan else math.nan, "<32 x float>")
    among = e.lanes(e.op(f"and i32 {members.text}, {e.mask}"))
    value = e.select(among, "<32 x float>", value, neutral)
    for distance in (16, 8, 4, 2, 1):
        other = lane_vector([k ^ distance for k in range(32)])
        moved = e.op(f"shufflevector <32 x float> {value}, <32 x float> poison, <32 x i32> {other}")
        value = extremum(e, verb, "<32 x float>", value, moved, nan, False)
    is_nan = e.op(f"fcmp uno <32 x float> {value}, {value}")
    bits = e.op(f"bitcast <32 x float> {value} to <32 x i32>")
    bits = e.select(is_nan, "<32 x i32>", "splat (i32 2147483647)", bits)
    e.write(i, i.operands[0], Value(e.op(f"extractelement <32 x i32> {bits}, i64 0"), False), 32)


def _redux(e: Emitter, i: Instruction) -> None:
    verb = next((m for m in i.modifiers if m in ("add", "min", "max", "and", "or", "xor")), "")
    if i.type == "f32":
        _redux_floats(e, i, verb)
        return
    if (verb, i.type) not in _REDUCTIONS:
        raise unsupported(i)
    members = e.check_members(i, i.operands[2])
    name, neutral = _REDUCTIONS[verb, i.type]
    value = e.spread(e.source(i, i.operands[1], 32), 32)
    if members.vec:
        e.write(i, i.operands[0], _by_group(e, name, value, members.text), 32)
        return
    among = e.lanes(e.op(f"and i32 {members.text}, {e.mask}"))
    values = e.select(among, "<32 x i32>", value, f"splat (i32 {neutral})")
    result = e.call(f"llvm.vector.reduce.{name}.v32i32", "i32", ("<32 x i32>", values))
    e.write(i, i.operands[0], Value(result, False), 32)


def reduction_source(e: Emitter, i: Instruction) -> str:
    """Values that a reduction starts from: those that its first shuffle moves."""
    e.check_members(i, i.operands[4])
    return _shuffled(e, i)


def reduce_warp(e: Emitter, i: Instruction, reduction: WarpReduction, values: str) -> None:
    """Write the result of a reduction, a scalar, by a tree: one lane of each pair that a step makes equal is enough."""
    if reduction.operation == ("add", "f32"):
        result = _sum(e, values, reduction.distances)
    elif i.type == "f32":
        result = _extremum(e, i.opcode, values)
    else:
        name, _ = _REDUCTIONS[reduction.operation]
        result = e.call(f"llvm.vector.reduce.{name}.v32i32", "i32", ("<32 x i32>", values))
    e.write(i, i.operands[0], Value(result, False), 32)


def _sum(e: Emitter, values: str, distances: tuple[int, ...]) -> str:
    """The sum that every lane gets by adding those at such distances in order, as i32."""
    text, lanes = e.as_float(values, 32, True), list(range(32))
    for distance in distances:
        lower = [k for k, number in enumerate(lanes) if not number & distance]
        upper = [lanes.index(lanes[k] | distance) for k in lower]
        kind = f"<{len(lanes)} x float>"
        parts = [e.op(f"shufflevector {kind} {text}, {kind} poison, <{len(side)} x i32> {lane_vector(side)}")
                 for side in (lower, upper)]  # fmt: skip
        text = e.op(f"fadd <{len(lower)} x float> {parts[0]}, {parts[1]}")
        lanes = [lanes[k] for k in lower]
    return e.op(f"bitcast float {e.op(f'extractelement <1 x float> {text}, i64 0')} to i32")


def _extremum(e: Emitter, verb: str, values: str) -> str:
    """The minimum or maximum of f32, as i32; a NaN loses, and -0 is below +0.

    Numbers are compared as integers in the same order. A NaN becomes one that lies beyond all numbers.
    """
    kind = "<32 x i32>"
    floats = e.as_float(values, 32, True)
    last = -(1 << 31) if verb == "max" else (1 << 31) - 1
    ordered = _in_order(e, values, kind)
    is_nan = e.op(f"fcmp uno <32 x float> {floats}, {floats}")
    ordered = e.select(is_nan, kind, f"splat (i32 {last})", ordered)
    best = e.call(f"llvm.vector.reduce.s{verb}.v32i32", "i32", (kind, ordered))
    nothing = e.op(f"icmp eq i32 {best}, {last}")
    return e.select(nothing, "i32", str((1 << 31) - 1), _in_order(e, best, "i32"))


def _in_order(e: Emitter, text: str, kind: str) -> str:
    """Bits of f32 as integers that are ordered as the numbers are, and back."""
    places, bits = ("splat (i32 31)", f"splat (i32 {(1 << 31) - 1})") if kind[0] == "<" else ("31", str((1 << 31) - 1))
    flip = e.op(f"and {kind} {e.op(f'ashr {kind} {text}, {places}')}, {bits}")
    return e.op(f"xor {kind} {text}, {flip}")


def _match(e: Emitter, i: Instruction) -> None:
    bits = {"b32": 32, "b64": 64}.get(i.type, 0)
    if not bits:
        raise unsupported(i)
    members = e.check_members(i, i.operands[2])
    target, flag = _pair(i.operands[0])
    e.put(4, e.spread(e.source(i, i.operands[1], bits), bits), bits)
    e.put(5, e.spread(members, 32), 32)
    mask = e.op(f"zext i32 {e.mask} to i64")
    code = bits // 8 + (0 if "any" in i.modifiers else 16)
    e.call(
        "kf_match", "void", ("ptr", "%area4"), ("ptr", "%area5"), ("ptr", "%area6"), ("i64", mask), ("i64", str(code))
    )
    peers = e.get(6, 32)
    e.write(i, target, peers, 32)
    if flag is not None:
        some = e.op(f"icmp ne <32 x i32> {peers.text}, zeroinitializer")
        e.write(i, flag, e.flag(some, True), 1)


def _elect(e: Emitter, i: Instruction) -> None:
    target, flag = _pair(i.operands[0])
    members = e.check_members(i, i.operands[1])
    if members.vec:
        raise unsupported(i, "member mask that differs between lanes")
    among = e.op(f"and i32 {members.text}, {e.mask}")
    leader = e.call("llvm.cttz.i32", "i32", ("i32", among), ("i1", "false"))
    e.write(i, target, Value(leader, False), 32)
    if flag is not None:
        lowest = e.op(f"and i32 {among}, {e.op(f'sub i32 0, {among}')}")
        e.write(i, flag, Value(lowest, True), 1)


def _warp_barrier(e: Emitter, i: Instruction) -> None:
    """``bar.warp.sync``: lanes that run together are in step; absent members are a fault."""
    e.check_members(i, i.operands[0] if i.operands else Imm(0xFFFFFFFF))


def _cluster_arrive(e: Emitter, i: Instruction) -> None:
    """``barrier.cluster.arrive``; the wait ends a basic block."""
    if not {"cluster", "arrive"} <= set(i.modifiers) or i.operands:
        raise unsupported(i)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    point = ("i64", str(e.point(i)))
    e.call("kf_cluster_arrive", "void", ("ptr", "%ctx"), ("ptr", "%state"), point, ("i64", mask))


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "shfl": _shuffle,
    "vote": _vote,
    "activemask": _activemask,
    "redux": _redux,
    "match": _match,
    "elect": _elect,
    "bar": _warp_barrier,
    "barrier": _cluster_arrive,
}
