"""Loads, stores and atomics."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.emit.emitter import (
    MOST_GROUPS,
    ORDERED,
    DeferredLoad,
    Emitter,
    Group,
    MemorySite,
    Value,
    vector_items,
)
from kernelforge.devices.emulated.codegen.ir_builder import int_type
from kernelforge.devices.emulated.codegen.memory_ir import CONVENTION, SIZES, load_lanes, match_indices, result_type
from kernelforge.devices.emulated.ptx.address_patterns import Pattern
from kernelforge.devices.emulated.ptx.inline import completes_at_barrier, state_space, unsupported
from kernelforge.devices.emulated.ptx.parser import TYPE_BITS, Addr, Imm, Instruction, Reg, Sym
from kernelforge.devices.emulated.runtime import ATOMIC_OPERATIONS, ATOMIC_TYPES


class _Target:
    """A decoded memory operand: base value, constant offset, space, and whether addresses are 32-bit."""

    def __init__(self, e: Emitter, i: Instruction, operand: object, space: int) -> None:
        if not isinstance(operand, Addr):
            raise unsupported(i, "address form")
        kernel = e.flow.kernel
        self.space = space
        self.hidden = False
        self.offset = operand.offset
        self.narrow = False
        self.fixed: int | None = None
        base = operand.base
        if isinstance(base, Sym):
            if base.name in kernel.frame:
                if space == lay.PARAM:
                    self.space = lay.LOCAL
                    self.hidden = base.name in kernel.call_params
                self.fixed = kernel.frame[base.name] + base.offset + operand.offset
                self.base = Value(str(self.fixed), False)
                self.offset = 0
                return
            self.base = e.symbol(i, base)
            if base.name not in e.shape.symbols:
                self.fixed = int(self.base.text) + operand.offset
                self.base = Value(str(self.fixed), False)
                self.offset = 0
        elif isinstance(base, Imm):
            self.base = Value(str((base.value + operand.offset) % (1 << 64)), False)
            self.offset = 0
        else:
            assert isinstance(base, Reg)
            bits = e.bits(base.name)
            if bits not in (32, 64):
                raise unsupported(i, "address register width")
            self.narrow = bits == 32
            self.base = e.read(base.name)
            if space == lay.SHARED:
                self.base = e.unranked(i, self.base, bits)

    def uniform_address(self, e: Emitter) -> str:
        """The effective address as a scalar i64."""
        assert not self.base.vec
        text = self.base.text
        if self.narrow:
            if self.offset:
                text = e.op(f"add i32 {text}, {self.offset % (1 << 32)}")
            return e.resize(Value(text, False), 32, 64).text
        return e.op(f"add i64 {text}, {self.offset}") if self.offset else text

    def lanes(self, e: Emitter) -> str:
        """Base addresses, one per lane, i32 when narrow."""
        return e.spread(self.base, 32 if self.narrow else 64)


def _call(e: Emitter, name: str, result: str, *arguments: tuple[str, str]) -> str:
    """Call a function of ``memory_ir``."""
    return e.call(name, result, *arguments, convention=CONVENTION)


def _shape(i: Instruction) -> tuple[int, int]:
    """(element bytes, element count); of 128 bits the halves."""
    bits = TYPE_BITS.get(i.type, 0)
    count = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    if bits == 128 and count == 1:
        return 8, 2
    if bits not in (8, 16, 32, 64):
        raise unsupported(i)
    if (bits // 8, count) not in SIZES:
        raise unsupported(i)
    return bits // 8, count


def _site(i: Instruction, target: _Target, width: int, access: int, vectored: bool, *, block: int = -1) -> MemorySite:
    offset = target.offset if vectored else 0
    space = target.space
    if space == lay.SHARED and "shared::cluster" in i.modifiers:
        space = lay.SHARED_CLUSTER
    return MemorySite(i, space, width, access, offset, target.narrow and vectored, target.hidden, block)


def _in_group(e: Emitter, i: Instruction, target: _Target) -> bool:
    """Whether an access with lane-dependent addresses is one of several with the same pattern, or has a cheap one."""
    if i.predicate is not None or target.base.vec is False:
        return False
    pattern = _address(e, target)[0]
    if id(i) not in e.repeated and (isinstance(pattern, str) or _shift(pattern) is None):
        return False
    return pattern in e.groups or len(e.groups) < MOST_GROUPS


def _shift(pattern: Pattern) -> int | None:
    """By how much the pattern's 32-bit values are shifted, where comparing these is enough; else None."""
    shift = pattern.factor.bit_length() - 1
    enough = pattern.factor == 1 << shift and (shift > 0 or pattern.extended == "u")
    return shift if pattern.extended and enough else None


def _address(e: Emitter, target: _Target) -> tuple[Pattern | str, str]:
    """The pattern of addresses, or their own name where they have 32 bits, and the scalar that is added to it."""
    text = target.base.text
    if target.narrow:
        return text, "0"
    address = e.address_of(text)
    return address.pattern, e.scalar_part(address)


def _of_group(e: Emitter, target: _Target, op: str) -> list[tuple[str, str]]:
    """Arguments of an access in a group, a store's values apart; the first of its accesses begins the group."""
    pattern, scalar = _address(e, target)
    if pattern not in e.groups:
        area = f"%group{len(e.groups)}"
        e.groups[pattern] = Group(_match(e, pattern, target, op, area), area)
        e.group_areas = max(e.group_areas, len(e.groups))
    group = e.groups[pattern]
    address = group.reference if scalar == "0" else e.op(f"add i64 {group.reference}, {scalar}")
    if target.offset:
        address = e.op(f"add i64 {address}, {target.offset}")
        if target.narrow:
            address = e.op(f"and i64 {address}, {0xFFFFFFFF}")
    return [("ptr", "%ctx"), ("ptr", op), ("ptr", group.area), ("i64", scalar), ("i64", address), ("i32", e.mask)]


def _match(e: Emitter, pattern: Pattern | str, target: _Target, op: str, area: str) -> str:
    """Compare the lanes' values with a record's pattern; returns that of the reference lane."""
    rest = [("i32", e.mask), ("ptr", area)]
    if isinstance(pattern, str):
        return _call(e, "kf_match_32", "i64", ("ptr", op), ("<32 x i32>", target.lanes(e)), *rest)
    shift = _shift(pattern)
    if shift is not None:
        return match_indices(e, op, e.pattern_value(pattern), e.mask, area, shift, pattern.extended == "u")
    return _call(e, "kf_match_64", "i64", ("ptr", op), ("<32 x i64>", e.pattern(pattern)), *rest)


def _goes_ahead(target: _Target) -> bool:
    """Whether an access in a group prefetches what comes next, as one to global memory does."""
    return target.space in (lay.GLOBAL, lay.GENERIC)


def _write_loaded(e: Emitter, i: Instruction, values: list[Value], width: int) -> None:
    if i.type == "b128":
        values, width = [_joined(e, *values)], 16
    for item, value in zip(vector_items(i.operands[0]), values, strict=True):
        e.write(i, item, value, 8 * width, signed=i.type[0] == "s")


def _joined(e: Emitter, low: Value, high: Value) -> Value:
    """128 bits of two halves."""
    kind = int_type(128, low.vec)
    shift = "splat (i128 64)" if low.vec else "64"
    upper = e.op(f"shl {kind} {e.resize(high, 64, 128).text}, {shift}")
    return Value(e.op(f"or {kind} {upper}, {e.resize(low, 64, 128).text}"), low.vec)


def _halves(e: Emitter, value: str) -> list[str]:
    """Both halves of a vector of 128 bits, the lower one first."""
    upper = e.op(f"lshr <32 x i128> {value}, splat (i128 64)")
    return [e.op(f"trunc <32 x i128> {half} to <32 x i64>") for half in (value, upper)]


def _private(e: Emitter, target: _Target) -> bool:
    """Whether every lane may have memory of its own at an address."""
    return target.space == lay.LOCAL or (target.space == lay.GENERIC and e.flow.kernel.frame_bytes > 0)


def _load(e: Emitter, i: Instruction) -> None:
    if any(m.startswith("multimem") or m == "async" for m in i.modifiers):
        raise unsupported(i)
    width, count = _shape(i)
    target = _Target(e, i, i.operands[1], state_space(i))
    bits = 8 * width
    if target.space == lay.PARAM and target.fixed is not None:
        _load_parameter(e, i, target.fixed, width, count)
        return
    mask = e.active(i)
    if target.space == lay.LOCAL and not target.base.vec and width >= 4:
        name, kind = f"kf_ldl_{width}_{count}", result_type(width, count)
        op = e.new_site(_site(i, target, width * count, lay.LOAD, vectored=False))
        address = target.uniform_address(e)
        result = _call(e, name, kind, ("ptr", "%ctx"), ("ptr", op), ("i64", address), ("i32", mask))
        _write_loaded(e, i, _unpack(e, result, kind, count, True), width)
        return
    if not target.base.vec and not _private(e, target):
        element = int_type(bits, False)
        kind = element if count == 1 else "{" + ", ".join([element] * count) + "}"
        op = e.new_site(_site(i, target, width * count, lay.LOAD, vectored=False))
        address = target.uniform_address(e)
        result = _call(
            e, f"kf_ldu_{width}_{count}", kind, ("ptr", "%ctx"), ("ptr", op), ("i64", address), ("i32", mask)
        )
        _write_loaded(e, i, _unpack(e, result, kind, count, False), width)
        return
    kind = result_type(width, count)
    grouped = _in_group(e, i, target)
    op = e.new_site(_site(i, target, width * count, lay.LOAD, vectored=True, block=e.block if grouped else -1))
    if grouped and _goes_ahead(target):
        area = e.area_to_load()
        address = _call(e, f"kf_lda_{width}_{count}", "ptr", *_of_group(e, target, op), ("ptr", area))

        def arrive() -> None:
            _write_loaded(e, i, [Value(v, True) for v in load_lanes(e, address, width, count)], width)

        load = DeferredLoad([r.name for r in vector_items(i.operands[0]) if isinstance(r, Reg)], area, arrive)
        e.defer(load)
        if ORDERED & set(i.modifiers):
            e.load_deferred()
        return
    if grouped:
        result = _call(e, f"kf_ldg_{width}_{count}", kind, *_of_group(e, target, op))
    else:
        name = f"kf_ld{'s' if target.narrow else ''}_{width}_{count}"
        address_type = int_type(32 if target.narrow else 64, True)
        result = _call(e, name, kind, ("ptr", "%ctx"), ("ptr", op), (address_type, target.lanes(e)), ("i32", mask))
    _write_loaded(e, i, _unpack(e, result, kind, count, True), width)


def _unpack(e: Emitter, result: str, kind: str, count: int, vec: bool) -> list[Value]:
    if count == 1:
        return [Value(result, vec)]
    return [Value(e.op(f"extractvalue {kind} {result}, {k}"), vec) for k in range(count)]


def _load_parameter(e: Emitter, i: Instruction, offset: int, width: int, count: int) -> None:
    """A kernel parameter at a constant offset; checked here, once."""
    if offset < 0 or offset + width * count > e.flow.kernel.param_bytes:
        raise unsupported(i, "reads outside the kernel's parameters")
    values = []
    for k in range(count):
        at = offset + k * width
        key = ("param", at, width)
        if key not in e.memo:
            pointer = e.load("ptr", "%ctx", lay.CTX_PARAMS)
            e.memo[key] = Value(e.load(f"i{8 * width}", pointer, at, align=1), False)
        values.append(e.memo[key])
    _write_loaded(e, i, values, width)


def _store(e: Emitter, i: Instruction) -> None:
    if any(m.startswith("multimem") for m in i.modifiers):
        raise unsupported(i)
    width, count = _shape(i)
    if completes_at_barrier(i):
        _store_async(e, i, width, count, -1)
        return
    target = _Target(e, i, i.operands[0], state_space(i))
    bits = 8 * width
    if i.type == "b128":
        values = _halves(e, e.spread(e.source(i, i.operands[1], 128), 128))
    else:
        sources = [e.source(i, op, bits) for op in vector_items(i.operands[1])]
        if (
            len(sources) == count
            and not any(v.vec for v in sources)
            and not target.base.vec
            and not _private(e, target)
        ):
            op = e.new_site(_site(i, target, width * count, lay.STORE, vectored=False))
            scalars = [(int_type(bits, False), v.text) for v in sources]
            arguments = [("ptr", "%ctx"), ("ptr", op), ("i64", target.uniform_address(e)), ("i32", e.active(i))]
            _call(e, f"kf_stu_{width}_{count}", "void", *arguments, *scalars)
            return
        values = [e.spread(v, bits) for v in sources]
    if len(values) != count:
        raise unsupported(i, "vector length")
    arguments = [(int_type(bits, True), v) for v in values]
    mask = e.active(i)
    if target.space == lay.LOCAL and not target.base.vec and width >= 4:
        op = e.new_site(_site(i, target, width * count, lay.STORE, vectored=False))
        address = target.uniform_address(e)
        _call(
            e,
            f"kf_stl_{width}_{count}",
            "void",
            ("ptr", "%ctx"),
            ("ptr", op),
            ("i64", address),
            ("i32", mask),
            *arguments,
        )
        return
    grouped = target.base.vec and _in_group(e, i, target)
    op = e.new_site(_site(i, target, width * count, lay.STORE, vectored=True, block=e.block if grouped else -1))
    if grouped:
        name = f"kf_st{'a' if _goes_ahead(target) else 'g'}_{width}_{count}"
        _call(e, name, "void", *_of_group(e, target, op), *arguments)
        return
    name = f"kf_st{'s' if target.narrow else ''}_{width}_{count}"
    address_type = int_type(32 if target.narrow else 64, True)
    _call(e, name, "void", ("ptr", "%ctx"), ("ptr", op), (address_type, target.lanes(e)), ("i32", mask), *arguments)


def _wide_lanes(e: Emitter, target: _Target) -> str:
    """Base addresses as <32 x i64>."""
    text = target.lanes(e)
    return e.resize(Value(text, True), 32, 64).text if target.narrow else text


def memory_operand(e: Emitter, i: Instruction, operand: object, space: int | None = None) -> tuple[_Target, str]:
    """A memory operand, by default in the instruction's state space, and its base addresses as <32 x i64>."""
    target = _Target(e, i, operand, state_space(i) if space is None else space)
    return target, _wide_lanes(e, target)


def _atomic(e: Emitter, i: Instruction) -> None:
    """``atom`` and ``red``: one read-modify-write per active lane and element, lowest lane first."""
    operation = next((m for m in i.modifiers if m in ATOMIC_OPERATIONS), None)
    kind = next((m for m in reversed(i.modifiers) if m in TYPE_BITS), "")
    kind = {"b16": "u16", "b32": "u32", "b64": "u64"}.get(kind, kind)
    count = next((int(m[1:]) for m in i.modifiers if m in ("v2", "v4", "v8")), 1)
    if operation is None or kind not in ATOMIC_TYPES:
        raise unsupported(i)
    allowed = {"f32": ("add", "exch"), "f64": ("add", "exch"), "u16": ("cas", "exch"), "b128": ("cas", "exch")}
    halves = ("add", "min", "max") if count > 1 else ("add",)
    if operation not in allowed.get(kind, halves if "f16" in kind else ATOMIC_OPERATIONS):
        raise unsupported(i)
    if (operation in ("inc", "dec") and kind != "u32") or (count > 1 and kind != "f32" and "f16" not in kind):
        raise unsupported(i)
    bits = TYPE_BITS[kind]
    if count * bits > 128:
        raise unsupported(i)
    if completes_at_barrier(i):
        if operation not in _ASYNC_REDUCTIONS.get(kind, ()) or count > 1:
            raise unsupported(i)
        code = ATOMIC_OPERATIONS.index(operation) * 16 + ATOMIC_TYPES.index(kind)
        _store_async(e, i, bits // 8, 1, code)
        return
    first = 0 if i.opcode == "red" else 1
    target = _Target(e, i, i.operands[first], state_space(i))
    op = e.new_site(_site(i, target, count * bits // 8, lay.ATOMIC, vectored=True))
    e.put(0, _wide_lanes(e, target), 64)
    for k, item in enumerate(vector_items(i.operands[first + 1])):
        e.put(1, e.spread(e.source(i, item, bits), bits), bits, k)
    third = "%area1"
    if operation == "cas":
        third = e.put(2, e.spread(e.source(i, i.operands[first + 2], bits), bits), bits)
    code = ATOMIC_OPERATIONS.index(operation) * 16 + ATOMIC_TYPES.index(kind)
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_atomic", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), ("i64", mask), ("ptr", "%area1"),
        ("ptr", third), ("ptr", "%area3"), ("i64", str(code)), ("i64", str(bits // 8)),
    )  # fmt: skip
    if i.opcode == "atom":
        items = vector_items(i.operands[0])
        for item, value in zip(items, [e.get(3, bits, k) for k in range(count)], strict=True):
            e.write(i, item, value, bits)


_ASYNC_REDUCTIONS = {
    "u32": ("inc", "dec", "min", "max", "and", "or", "xor", "add"), "s32": ("min", "max", "add"), "u64": ("add",),
    "s64": ("add",),
}  # fmt: skip


def _store_async(e: Emitter, i: Instruction, width: int, count: int, code: int) -> None:
    """``st.async``, and ``red.async`` where ``code`` is an operation and a type, to complete at an mbarrier."""
    address, value, barrier = i.operands
    target, addresses = memory_operand(e, i, address)
    if target.space not in (lay.SHARED, lay.GENERIC) or width < 4 or width * count > 16:
        raise unsupported(i)
    e.asynchronous = True
    space = lay.SHARED_CLUSTER if target.space == lay.SHARED else lay.GENERIC
    items = vector_items(value)
    if len(items) != count:
        raise unsupported(i, "vector length")
    access = lay.STORE if code < 0 else lay.ATOMIC
    op = e.new_site(MemorySite(i, space, width * count, access, target.offset, target.narrow))
    e.put(0, addresses, 64)
    for k, item in enumerate(items):
        e.put(1, e.spread(e.source(i, item, 8 * width), 8 * width), 8 * width, k)
    there, barriers = memory_operand(e, i, barrier)
    e.put(2, barriers, 64)
    e.new_site(MemorySite(i, space, 8, lay.ATOMIC, there.offset, there.narrow, hidden=True))
    mask = e.op(f"zext i32 {e.active(i)} to i64")
    e.call(
        "kf_store_async", "void", ("ptr", "%ctx"), ("ptr", op), ("ptr", "%area0"), ("i64", mask), ("ptr", "%area2"),
        ("ptr", "%area1"), ("i64", str(width)), ("i64", str(code)),
    )  # fmt: skip


def _policy(e: Emitter, i: Instruction) -> None:
    """``createpolicy``: caches are modelled without priorities, so that every policy is the same number."""
    e.write(i, i.operands[0], Value("1", False), 64)


def _nothing(e: Emitter, i: Instruction) -> None:
    """Ordering and hints: warps run one at a time on coherent memory."""


def _fence(e: Emitter, i: Instruction) -> None:
    """Memory is coherent; only what a fence between proxies covers is remembered."""
    proxies = i.modifiers[:2] in (("proxy", "async"), ("proxy", "async::generic"))
    if proxies and "global" not in i.modifiers:
        e.call("kf_proxy_fence", "void", ("ptr", "%ctx"), ("i64", e.op(f"zext i32 {e.active(i)} to i64")))


def _multimem(e: Emitter, i: Instruction) -> None:
    """``multimem``, a fault at any address: the memory of several GPUs behind one address is a multicast object, which
    the CUDA driver makes and no plan can."""
    operation = i.modifiers[:1]
    if operation not in (("ld_reduce",), ("st",), ("red",)) or state_space(i) not in (lay.GLOBAL, lay.GENERIC):
        raise unsupported(i)
    e.fault_in(i, lay.FAULT_MULTICAST, e.active(i))
    if operation == ("ld_reduce",):
        for item in vector_items(i.operands[0]):
            e.write(i, item, Value("0", False), e.bits(item.name) if isinstance(item, Reg) else 0)


HANDLERS: dict[str, Callable[[Emitter, Instruction], None]] = {
    "ld": _load,
    "ldu": _load,
    "multimem": _multimem,
    "st": _store,
    "atom": _atomic,
    "red": _atomic,
    "createpolicy": _policy,
    "membar": _nothing,
    "fence": _fence,
    "prefetch": _nothing,
    "prefetchu": _nothing,
    "discard": _nothing,
    "applypriority": _nothing,
    "nanosleep": _nothing,
    "pmevent": _nothing,
    "brkpt": _nothing,
    "griddepcontrol": _nothing,
}
