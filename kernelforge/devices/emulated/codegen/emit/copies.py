"""Asynchronous copies: ``cp.async``, its groups and its waits, and bulk copies, of bytes and of boxes.

Bulk copies hand the runtime their operands in areas; see :mod:`kernelforge.devices.emulated.runtime.bulk_copies`.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import Emitter, MemorySite, Value, vector_items
from kernelforge.devices.emulated.codegen.emit.mbarrier import copies_arrive
from kernelforge.devices.emulated.codegen.emit.memory import memory_operand
from kernelforge.devices.emulated.ptx.inline import unsupported
from kernelforge.devices.emulated.ptx.parser import Addr, Imm, Instruction, Operand, Reg
from kernelforge.devices.emulated.runtime import ATOMIC_OPERATIONS, ATOMIC_TYPES
from kernelforge.devices.emulated.runtime.bulk_copies import IM2COL, MULTICAST, PAIRED, REDUCES, ROWS, WIDE, WIDE_128


def _copy(e: Emitter, i: Instruction) -> None:
    """``cp.async``, its groups and its waits."""
    m = i.modifiers
    if "bulk" in m:
        _bulk(e, i)
        return
    if m[:1] != ("async",):
        raise unsupported(i)
    if m[1:2] == ("mbarrier",):
        copies_arrive(e, i)
        return
    if m[1:] in (("commit_group",), ("wait_group",), ("wait_all",)):
        mask = e.op(f"zext i32 {e.active(i)} to i64")
        if m[1] != "wait_group":
            e.call("kf_copy_commit", "void", ("ptr", "%ctx"), ("i64", mask))
        if m[1] != "commit_group":
            pending = e.constant(i.operands[0]) if m[1] == "wait_group" else 0
            if pending is None or pending < 0:
                raise unsupported(i, "the number of groups must be a constant")
            e.call("kf_copy_wait", "void", ("ptr", "%ctx"), ("i64", mask), ("i64", str(pending)))
        return
    if len(m) < 4 or m[1] not in ("ca", "cg") or not m[2].startswith("shared") or m[3] != "global":
        raise unsupported(i)
    size = e.constant(i.operands[2])
    if size not in (4, 8, 16):
        raise unsupported(i)
    to, targets = memory_operand(e, i, i.operands[0], lay.SHARED)
    source, sources = memory_operand(e, i, i.operands[1], lay.GLOBAL)
    e.copies = True
    read = e.new_site(MemorySite(i, lay.GLOBAL, size, lay.LOAD, source.offset, source.narrow))
    write = e.new_site(MemorySite(i, lay.SHARED, size, lay.STORE, to.offset, to.narrow))
    e.put(0, targets, 64)
    e.put(1, sources, 64)
    amount = Value(str(size), False)
    if len(i.operands) > 3:
        operand = i.operands[3]
        if isinstance(operand, Reg) and e.bits(operand.name) == 1:
            raise unsupported(i, "ignore-src predicate")
        amount = e.source(i, operand, 32)
    e.put(2, e.spread(amount, 32), 32)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_copy_async", "void", ("ptr", "%ctx"), ("ptr", read), ("ptr", write), ("ptr", "%area0"), ("ptr", "%area1"),
        ("i64", mask), ("ptr", "%area2"),
    )  # fmt: skip


_SPACES = {"global": lay.GLOBAL, "shared": lay.SHARED, "shared::cta": lay.SHARED, "shared::cluster": lay.SHARED_CLUSTER}
_MECHANISM = "mbarrier::complete_tx::bytes"
_HINT = "L2::cache_hint"
_BULK = {
    "async", "bulk", "reduce", "tensor", "noftz", _MECHANISM, "bulk_group",
    "multicast::cluster", "cta_group::1", "cta_group::2", _HINT,
}  # fmt: skip
_LOAD_MODES = {
    "tile": 0, "im2col": IM2COL, "im2col::w": IM2COL | WIDE, "im2col::w::128": IM2COL | WIDE_128,
    "tile::gather4": ROWS,
}  # fmt: skip
_STORE_MODES = {"tile": 0, "im2col_no_offs": IM2COL, "tile::scatter4": ROWS}
_REDUCE_MODES = {"tile": 0, "im2col_no_offs": IM2COL}
"""Modes of a box by what is done with it, as flags; one without a mode is a tile."""
_DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")
_REDUCTIONS = {
    **dict.fromkeys(("and", "or", "xor"), ("u32", "u64")), "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "inc": ("u32",), "dec": ("u32",),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64", "f16", "bf16")),
}  # fmt: skip
"""Types of elements by the operation that reduces them."""


def _bulk(e: Emitter, i: Instruction) -> None:
    """``cp.async.bulk`` in all its forms."""
    m = [modifier for modifier in i.modifiers if modifier not in ("async", "bulk")]
    mask = ("i64", e.op(f"zext i32 {e.active(i)} to i64"))
    e.asynchronous = True
    if m == ["commit_group"]:
        e.call("kf_bulk_commit", "void", ("ptr", "%ctx"), mask)
    elif m[:1] == ["wait_group"] and m[1:] in ([], ["read"]):
        pending = e.constant(i.operands[0])
        if pending is None or pending < 0:
            raise unsupported(i, "the number of groups must be a constant")
        e.call("kf_bulk_wait", "void", ("ptr", "%ctx"), mask, ("i64", str(pending)))
    elif m[:1] == ["prefetch"]:
        _prefetch(e, i, mask)
    else:
        _bulk_copy(e, i, mask)


def _bulk_copy(e: Emitter, i: Instruction, mask: tuple[str, str]) -> None:
    m = i.modifiers
    spaces = [_SPACES[modifier] for modifier in m if modifier in _SPACES]
    box, reduces = "tensor" in m, "reduce" in m
    operation = next((modifier for modifier in m if modifier in _REDUCTIONS), "")
    rank = next((number for number, name in enumerate(_DIMENSIONS, 1) if name in m), 0)
    to_global = spaces[:1] == [lay.GLOBAL]
    modes = _REDUCE_MODES if reduces else _STORE_MODES if to_global else _LOAD_MODES
    modifiers = _BULK | _SPACES.keys() | {operation, _DIMENSIONS[rank - 1]} | set(ATOMIC_TYPES) | {"b32", "b64"}
    rest = set(m) - modifiers - (modes.keys() if box else set())
    right = spaces in ([lay.GLOBAL, lay.SHARED], [lay.SHARED_CLUSTER, lay.SHARED]) or spaces[1:] == [lay.GLOBAL]
    if (
        rest
        or len(spaces) != 2
        or not right
        or to_global != ("bulk_group" in m)
        or to_global == (_MECHANISM in m)
        or box != (rank > 0)
        or reduces != bool(operation)
        or (box and lay.GLOBAL not in spaces)
    ):
        raise unsupported(i)
    operands = list(i.operands)
    target, source = operands.pop(0), operands.pop(0)
    code = (REDUCES if reduces else 0) | (_mode(i, modes, rank) if box else 0)
    if reduces:
        code |= ATOMIC_OPERATIONS.index(operation) << 8
    if not box:
        e.put(3, e.spread(e.source(i, operands.pop(0), 32), 32), 32)
        if reduces:
            kind = {"b32": "u32", "b64": "u64"}.get(i.type, i.type)
            if kind not in _REDUCTIONS[operation]:
                raise unsupported(i)
            code = REDUCES | (ATOMIC_OPERATIONS.index(operation) << 4 | ATOMIC_TYPES.index(kind)) << 8
    access = lay.ATOMIC if reduces else lay.STORE
    coordinates = target if to_global else source
    read = _bulk_site(e, i, source, spaces[1] if to_global or not box else lay.GENERIC, lay.LOAD, 1, False)
    _bulk_site(e, i, target, lay.GENERIC if to_global and box else spaces[0], access, 0, False)
    if not to_global:
        _bulk_site(e, i, operands.pop(0), spaces[0], lay.ATOMIC, 2, True)
    if code & IM2COL:
        _column(e, i, None if to_global else operands.pop(0), rank, code)
    groups = {"cta_group::1", "cta_group::2"} & set(m)
    if groups and (not box or to_global or len(groups) > 1):
        raise unsupported(i)
    if "cta_group::2" in m:
        code |= PAIRED
    if "multicast::cluster" in m:
        code |= MULTICAST
        ctas = e.resize(e.source(i, operands.pop(0), 16), 16, 32)
        e.store("<32 x i32>", e.spread(ctas, 32), "%area3", 4 * lay.LANES, align=64)
    if len(operands) != int(_HINT in m):
        raise unsupported(i)
    if box:
        _coordinates(e, i, coordinates, 5 if code & ROWS else rank)
    name = "kf_bulk_copy" if not box else "kf_box_store" if to_global else "kf_box_load"
    e.call(name, "void", ("ptr", "%ctx"), ("ptr", read), ("ptr", "%area0"), mask, ("i64", str(code)))


def _prefetch(e: Emitter, i: Instruction, mask: tuple[str, str]) -> None:
    box = "tensor" in i.modifiers
    rank = next((number for number, name in enumerate(_DIMENSIONS, 1) if name in i.modifiers), 0)
    rest = set(i.modifiers) - {"async", "bulk", "prefetch", "L2", "global", "tensor", _HINT}
    if rest - set(_DIMENSIONS) - (_LOAD_MODES.keys() if box else set()) or box != (rank > 0):
        raise unsupported(i)
    code = 1 | _mode(i, _LOAD_MODES, rank) if box else 0
    read = _bulk_site(e, i, i.operands[0], lay.GENERIC if box else lay.GLOBAL, lay.LOAD, 1, True)
    if box:
        _coordinates(e, i, i.operands[0], 5 if code & ROWS else rank)
        if code & IM2COL:
            _column(e, i, i.operands[1], rank, code)
    else:
        e.put(3, e.spread(e.source(i, i.operands[1], 32), 32), 32)
    e.call("kf_prefetch", "void", ("ptr", "%ctx"), ("ptr", read), ("ptr", "%area0"), mask, ("i64", str(code)))


def _cancel(e: Emitter, i: Instruction) -> None:
    """``clusterlaunchcontrol``: no cluster is ever cancelled, as on a GPU that has started all of them."""
    m = i.modifiers
    if m[:2] == ("try_cancel", "async"):
        if set(m[2:]) - {"shared::cta", _MECHANISM, "multicast::cluster::all", "b128"} or _MECHANISM not in m:
            raise unsupported(i)
        e.asynchronous = True
        space = lay.SHARED if "shared::cta" in m else lay.GENERIC
        answer = _bulk_site(e, i, i.operands[0], space, lay.STORE, 0, True)
        _bulk_site(e, i, i.operands[1], space, lay.ATOMIC, 2, True)
        mask = ("i64", e.op(f"zext i32 {e.active(i)} to i64"))
        code = MULTICAST if "multicast::cluster::all" in m else 0
        e.call("kf_try_cancel", "void", ("ptr", "%ctx"), ("ptr", answer), ("ptr", "%area0"), mask, ("i64", str(code)))
    elif m == ("query_cancel", "is_canceled", "pred", "b128"):
        e.write(i, i.operands[0], Value("false", False), 1)
    elif m[:1] == ("query_cancel",) and m[1].startswith("get_first_ctaid"):
        for item in vector_items(i.operands[0]):
            e.write(i, item, Value("0", False), 32)
    else:
        raise unsupported(i)


def _bulk_site(e: Emitter, i: Instruction, operand: Operand, space: int, access: int, area: int, hidden: bool) -> str:
    """Put the addresses of an operand into an area; returns its memory record, of which global memory is reported."""
    declared = lay.SHARED if space == lay.SHARED_CLUSTER else space
    target, addresses = memory_operand(e, i, operand, declared)
    e.put(area, addresses, 64)
    hidden = hidden or declared == lay.SHARED
    return e.new_site(MemorySite(i, space, 16, access, target.offset, target.narrow, hidden))


def _mode(i: Instruction, modes: dict[str, int], rank: int) -> int:
    """Flags of a box's mode; one is refused that has not the dimensions for it."""
    named = [modes[modifier] for modifier in i.modifiers if modifier in modes]
    flags = named[0] if named else 0
    if len(named) > 1 or (flags & IM2COL and rank < 3) or (flags & ROWS and rank != 2):
        raise unsupported(i)
    return flags


def _coordinates(e: Emitter, i: Instruction, operand: Operand, count: int) -> None:
    """Put the coordinates of a box into area 4 and the next: one for each dimension, or a column and four rows."""
    if not isinstance(operand, Addr) or len(operand.coordinates) != count:
        raise unsupported(i, f"a box of this kind needs {count} coordinates")
    for axis, coordinate in enumerate(operand.coordinates):
        value = e.spread(e.source(i, coordinate, 32), 32)
        e.store("<32 x i32>", value, "%area4", 4 * lay.LANES * axis, align=64)


def _column(e: Emitter, i: Instruction, operand: Operand | None, rank: int, code: int) -> None:
    """Put the offsets of a column in im2col mode behind the coordinates: 16 bits each, 0 where there are none.

    In a wide mode the operand is the halo, which goes to the sizes, and the offset along the width.
    """
    items = (Imm(0),) * (rank - 2) if operand is None else vector_items(operand)
    wide = code & (WIDE | WIDE_128) != 0
    if len(items) != (2 if wide else rank - 2):
        raise unsupported(i, "im2col mode needs an offset for each dimension of an image, im2col::w a halo and one")
    if wide:
        halo, offset = items
        e.put(3, e.spread(e.resize(e.source(i, halo, 16), 16, 32), 32), 32)
        items = (offset, *(Imm(0) for _ in range(rank - 3)))
    for axis, item in enumerate(items):
        value = e.resize(e.source(i, item, 16), 16, 32)
        e.store("<32 x i32>", e.spread(value, 32), "%area4", 4 * lay.LANES * (5 + axis), align=64)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {"cp": _copy, "clusterlaunchcontrol": _cancel}
