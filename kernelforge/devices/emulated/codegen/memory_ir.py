"""LLVM IR of the memory fast paths, compiled once per process.

Each memory instruction owns a record (see :mod:`.layout`). When the active lanes and their distances repeat the
record's pattern and the reference address lies in the allowed range, bounds, alignment and transaction counts are
already known: one vector compare and a few scalar tests replace 32 checks. Other requests go to the runtime.

Addresses of a basic block's accesses that were computed from one value differ by scalars. The first of such a *group*
compares the vectors; the others only check that their records hold the same pattern, and the block counts their hits.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.ir_builder import IRBuilder, lane_vector

ATTRIBUTES = 'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512"'

CONVENTION = "x86_regcallcc " if platform.machine() in ("x86_64", "AMD64") else ""
"""How the functions of this module take their arguments and return results: as many as possible in registers."""

SIZES = tuple((width, count) for width in (1, 2, 4, 8) for count in (1, 2, 4) if width * count <= 16)
"""Element sizes in bytes and vector lengths that PTX loads and stores have."""

DECLARATIONS = """
declare void @kf_slow_load(ptr, ptr, ptr, i64, ptr, i64)
declare void @kf_slow_store(ptr, ptr, ptr, i64, ptr, i64)
declare void @kf_ldmatrix(ptr, ptr, ptr, i64, ptr, i64, i64)
declare i32 @llvm.ctpop.i32(i32)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i4 @llvm.ctpop.i4(i4)
"""


def vector(element: str, lanes: int = lay.LANES) -> str:
    """LLVM vector type."""
    return f"<{lanes} x {element}>"


def result_type(width: int, count: int) -> str:
    """LLVM type of a load of ``count`` elements of ``width`` bytes: a vector, or a struct of vectors."""
    lanes = vector(f"i{8 * width}")
    return lanes if count == 1 else "{" + ", ".join([lanes] * count) + "}"


def _field(name: str, offset: int, kind: str) -> str:
    return f"%{name}_p = getelementptr i8, ptr %op, i64 {offset}\n%{name} = load {kind}, ptr %{name}_p"


def _compare(bits: int, stack: bool = True) -> str:
    """Compare the request with the record: ``%c0`` tells whether they agree, ``%a0`` is the reference address.

    Without ``stack`` the reference lane can only be the first one; for another the code continues at ``slow``.
    """
    a = vector(f"i{bits}")
    other = f"""other:
store {a} %a, ptr %spill, align 64
%an_p = getelementptr i{bits}, ptr %spill, i32 %first
%an = load i{bits}, ptr %an_p
br label %compare
"""
    expected, deltas = "", "%deltas"
    if bits == 64:
        expected, deltas = "%wide = sext <32 x i32> %deltas to <32 x i64>", "%wide"
    return f"""
{_field("pm", lay.OP_MASK, "i32")}
%same = icmp eq i32 %pm, %m
br i1 %same, label %check, label %slow
check:
{_field("first", lay.OP_FIRST, "i32")}
%lane0 = icmp eq i32 %first, 0
%a00 = extractelement {a} %a, i64 0
br i1 %lane0, label %compare, label %{"other" if stack else "slow"}
{other if stack else ""}compare:
%a0 = phi i{bits} [%a00, %check]{", [%an, %other]" if stack else ""}
%deltas_p = getelementptr i8, ptr %op, i64 {lay.OP_DELTAS}
%deltas = load <32 x i32>, ptr %deltas_p, align 64
{expected}
%s0 = insertelement {a} poison, i{bits} %a0, i64 0
%sp = shufflevector {a} %s0, {a} poison, <32 x i32> zeroinitializer
%ex = add {a} %sp, {deltas}
%ne = icmp ne {a} %ex, %a
%nem = bitcast <32 x i1> %ne to i32
%bad = and i32 %nem, %m
%c0 = icmp eq i32 %bad, 0
"""


_IN_RANGE = f"""
{_field("low", lay.OP_LOW, "i64")}
{_field("span", lay.OP_SPAN, "i64")}
%rel = sub i64 %e0, %low
%c1 = icmp ult i64 %rel, %span
{_field("alignments", lay.OP_ALIGNMENTS, "i32")}
%e0t = trunc i64 %e0 to i32
%slot = and i32 %e0t, %alignments
%c01 = and i1 %c0, %c1
"""
"""Whether the pattern, which ``%c0`` vouches for, may be at the reference address ``%e0``; the slot of its cost."""

_SLOT = f"""
%slot64 = zext i32 %slot to i64
%slots_p = getelementptr i8, ptr %op, i64 {lay.OP_SLOTS}
%hits_p = getelementptr i64, ptr %slots_p, i64 %slot64
%hits = load i64, ptr %hits_p
%c2 = icmp slt i64 %hits, 0
%c012 = and i1 %c01, %c2
"""
"""Whether the cost is known."""

_KIND = f"""
{_field("kind", lay.OP_KIND, "i32")}
%iscont = icmp eq i32 %kind, {lay.KIND_CONTIGUOUS}
%full = icmp eq i32 %m, -1
"""


def _check(bits: int, stack: bool = True) -> str:
    """Compare the request with the record; continue at ``fast`` or ``slow``. ``stack``: as for ``_compare``."""
    reference = "%off = load i64, ptr %off_p\n%e0 = add i64 %a0, %off"
    if bits == 32:
        reference = "%off = load i32, ptr %off_p\n%e032 = add i32 %a0, %off\n%e0 = zext i32 %e032 to i64"
    offset = f"%off_p = getelementptr i8, ptr %op, i64 {lay.OP_OFFSET}"
    return f"{_compare(bits, stack)}{offset}\n{reference}{_IN_RANGE}{_SLOT}{_KIND}"


GROUP_BYTES = 320
_GROUP_HEAD, _GROUP_SERIAL, _GROUP_SHIFT, _GROUP_UNSIGNED = 256, 264, 268, 272
"""What a group keeps on the stack: the values of all lanes, record of its first access, serial of the pattern there.

Values are i64, or i32 to be extended, without sign where ``_GROUP_UNSIGNED`` is -1, and shifted by ``_GROUP_SHIFT``.
"""
_WIDE_VALUES = 255
"""In place of a shift: the values are i64."""

LOAD_BYTES = 32 * 16
"""What a load of all lanes can give."""

_GROUP_PARAMETERS = "ptr %ctx, ptr %op, ptr %area, i64 %scalar, i64 %e0, i32 %m"
_RANGE_OF_GROUP = f"""
{_field("group", lay.OP_GROUP, "i32")}
%serial_p = getelementptr i8, ptr %area, i64 {_GROUP_SERIAL}
%serial = load i32, ptr %serial_p
%c0 = icmp eq i32 %group, %serial
{_IN_RANGE}"""

_CHECK_OF_GROUP = f"""{_RANGE_OF_GROUP}
{_field("last", lay.OP_SLOT, "i32")}
%c2 = icmp eq i32 %slot, %last
%c012 = and i1 %c01, %c2
{_KIND}"""

_PATTERN_OF_GROUP = f"""
{_field("first", lay.OP_FIRST, "i32")}
%deltas_p = getelementptr i8, ptr %op, i64 {lay.OP_DELTAS}
%deltas = load <32 x i32>, ptr %deltas_p, align 64"""


_KEEP_HEAD = f"""
%head_p = getelementptr i8, ptr %spill, i64 {_GROUP_HEAD}
store ptr %op, ptr %head_p
%kept_p = getelementptr i8, ptr %spill, i64 {_GROUP_SERIAL}
%shift_p = getelementptr i8, ptr %spill, i64 {_GROUP_SHIFT}"""

_KEEP_SERIAL = f"""
{_field("serial", lay.OP_SERIAL, "i32")}
%some = icmp ne i32 %m, 0
%agree = and i1 %c0, %some
%number = select i1 %agree, i32 %serial, i32 -1
store i32 %number, ptr %kept_p"""

_NO_PATTERN = "slow:\nstore i32 -1, ptr %kept_p\nret i64 0\n}"


def match_function(bits: int) -> str:
    """Compare the request of a group with the record of its first access, and fill the group's area.

    Returns the address of the reference lane, where the record has the request's pattern.
    """
    parameters = f"ptr %op, {vector(f'i{bits}')} %a, i32 %m, ptr %spill"
    return f"""define {CONVENTION}i64 @kf_match_{bits}({parameters}) noinline {ATTRIBUTES} {{
{_spill_wide(bits)}
{_KEEP_HEAD}
store i32 {_WIDE_VALUES}, ptr %shift_p
{_compare(bits)}
{_KEEP_SERIAL}
%reference = {"zext i32 %a0 to i64" if bits == 32 else "add i64 %a0, 0"}
ret i64 %reference
{_NO_PATTERN}"""


def match_indices(c: IRBuilder, op: str, values: str, mask: str, area: str, shift: int, unsigned: bool) -> str:
    """As ``match_function``, for addresses that are i32 indices, extended and shifted; with a sign by at least 1.

    Comparing 32 bits is enough where the reference lane's index is from -2**30 to 2**30. After a shift, distances of
    indices are below 2**30 too, so that no sum overflows. Without a sign the least index must be at least 0: then no
    sum reaches 2**32, and one that agrees modulo 2**32 is the index.
    """
    wide = "<32 x i32>"
    c.store(wide, values, area, align=64)
    c.store("ptr", op, area, _GROUP_HEAD)
    c.store("i32", str(shift), area, _GROUP_SHIFT)
    c.store("i32", "-1" if unsigned else "0", area, _GROUP_UNSIGNED)
    first = c.load("i32", op, lay.OP_FIRST)
    lowest, other, either = c.label("lowest"), c.label("other"), c.label("reference")
    c.emit(f"br i1 {c.op(f'icmp eq i32 {first}, 0')}, label %{lowest}, label %{other}\n{other}:")
    later = c.load("i32", c.op(f"getelementptr i32, ptr {area}, i32 {first}"))
    c.emit(f"br label %{either}\n{lowest}:")
    lane0 = c.op(f"extractelement {wide} {values}, i64 0")
    c.emit(f"br label %{either}\n{either}:")
    reference = c.op(f"phi i32 [{later}, %{other}], [{lane0}, %{lowest}]")
    steps = c.load(wide, op, lay.OP_DELTAS, align=64)
    if shift:
        steps = c.op(f"ashr {wide} {steps}, splat (i32 {shift})")
    expected = c.op(f"add {wide} {c.splat(reference, 'i32')}, {steps}")
    differs = c.op(f"bitcast <32 x i1> {c.op(f'icmp ne {wide} {expected}, {values}')} to i32")
    checks = [
        c.op(f"icmp eq i32 {c.load('i32', op, lay.OP_MASK)}, {mask}"),
        c.op(f"icmp eq i32 {c.op(f'and i32 {differs}, {mask}')}, 0"),
        c.op(f"icmp sge i32 {c.op(f'add i32 {reference}, {1 << 30}')}, 0"),
    ]
    index = c.op(f"sext i32 {reference} to i64")
    if unsigned:
        least = c.op(f"ashr i32 {c.load('i32', op, lay.OP_WINDOW)}, {shift}")
        checks.append(c.op(f"icmp sge i64 {c.op(f'add i64 {index}, ' + c.op(f'sext i32 {least} to i64'))}, 0"))
    agree = checks[0]
    for check in checks[1:]:
        agree = c.op(f"and i1 {agree}, {check}")
    serial = c.select(agree, "i32", c.load("i32", op, lay.OP_SERIAL), "-1")
    c.store("i32", serial, area, _GROUP_SERIAL)
    return c.op(f"shl i64 {index}, {shift}") if shift else index


_BASES = f"""define internal void @kf_bases(ptr %area, i64 %scalar, ptr %to) noinline {ATTRIBUTES} {{
%shift_p = getelementptr i8, ptr %area, i64 {_GROUP_SHIFT}
%shift = load i32, ptr %shift_p
%t0 = insertelement <32 x i64> poison, i64 %scalar, i64 0
%ts = shufflevector <32 x i64> %t0, <32 x i64> poison, <32 x i32> zeroinitializer
%is_wide = icmp eq i32 %shift, {_WIDE_VALUES}
br i1 %is_wide, label %wide, label %narrow
wide:
%values = load <32 x i64>, ptr %area, align 64
br label %sum
narrow:
%indices = load <32 x i32>, ptr %area, align 64
%unsigned_p = getelementptr i8, ptr %area, i64 {_GROUP_UNSIGNED}
%unsigned = load i32, ptr %unsigned_p
%is_unsigned = icmp ne i32 %unsigned, 0
%zero = zext <32 x i32> %indices to <32 x i64>
%sign = sext <32 x i32> %indices to <32 x i64>
%extended = select i1 %is_unsigned, <32 x i64> %zero, <32 x i64> %sign
%sw = zext i32 %shift to i64
%h0 = insertelement <32 x i64> poison, i64 %sw, i64 0
%hv = shufflevector <32 x i64> %h0, <32 x i64> poison, <32 x i32> zeroinitializer
%shifted = shl <32 x i64> %extended, %hv
br label %sum
sum:
%pattern = phi <32 x i64> [%values, %wide], [%shifted, %narrow]
%bases = add <32 x i64> %pattern, %ts
store <32 x i64> %bases, ptr %to, align 64
ret void
}}"""
"""Addresses in all lanes of an access in a group."""


_REGROUP = f"""define internal void @kf_regroup(ptr %op, ptr %area) noinline {ATTRIBUTES} {{
%head_p = getelementptr i8, ptr %area, i64 {_GROUP_HEAD}
%head = load ptr, ptr %head_p
{_field("mask", lay.OP_MASK, "i32")}
%pm_p = getelementptr i8, ptr %head, i64 {lay.OP_MASK}
%pm = load i32, ptr %pm_p
%deltas_p = getelementptr i8, ptr %op, i64 {lay.OP_DELTAS}
%deltas = load <32 x i32>, ptr %deltas_p, align 64
%others_p = getelementptr i8, ptr %head, i64 {lay.OP_DELTAS}
%others = load <32 x i32>, ptr %others_p, align 64
%ne = icmp ne <32 x i32> %deltas, %others
%nem = bitcast <32 x i1> %ne to i32
%bad = and i32 %nem, %mask
%c0 = icmp eq i32 %bad, 0
%c1 = icmp eq i32 %mask, %pm
%c2 = icmp ne i32 %mask, 0
%c01 = and i1 %c0, %c1
%c012 = and i1 %c01, %c2
%serial_p = getelementptr i8, ptr %head, i64 {lay.OP_SERIAL}
%serial = load i32, ptr %serial_p
%group = select i1 %c012, i32 %serial, i32 -2
%group_p = getelementptr i8, ptr %op, i64 {lay.OP_GROUP}
store i32 %group, ptr %group_p
ret void
}}"""
"""Note after an access by the runtime whether its record has the pattern of the group's first access."""


_COUNT_HIT = "\n%hits1 = add i64 %hits, 1\nstore i64 %hits1, ptr %hits_p"

_ADDRESS = f"""
{_field("delta", lay.OP_DELTA, "i64")}
%host = add i64 %e0, %delta
%p = inttoptr i64 %host to ptr
"""


def _fits(width: int, count: int) -> str:
    """Whether the fast path can take a request whose pattern and cost are known, as ``%fits``."""
    if width >= 4:
        return "%fits = and i1 %c012, true"
    # There is no gather or scatter of narrow elements.
    return f"%single = and i1 %iscont, {'true' if count == 1 else '%full'}\n%fits = and i1 %c012, %single"


def _enter_fast_path(width: int, count: int, counts: bool) -> list[str]:
    """Go to ``slow``, ``cont`` (contiguous in all lanes) or ``notplain``; ``counts``: the hit is counted."""
    lines = [_fits(width, count)]
    lines.append(f"br i1 %fits, label %fast, label %slow\nfast:{_COUNT_HIT if counts else ''}{_ADDRESS}")
    lines.append("%plain = and i1 %iscont, %full\nbr i1 %plain, label %cont, label %notplain\ncont:")
    return lines


_MASKED = """br i1 %iscont, label %masked, label %scattered
masked:
%fw = mul i32 %first, -{width}
%mp = getelementptr i8, ptr %p, i32 %fw"""

_SPILL_UNIFORM = """%s0 = insertelement <32 x i64> poison, i64 %a, i64 0
%sp = shufflevector <32 x i64> %s0, <32 x i64> poison, <32 x i32> zeroinitializer
store <32 x i64> %sp, ptr %spill, align 64
%m64 = zext i32 %m to i64"""


_SPILL = "%spill = alloca <32 x i64>, align 64"


def _area(count: int, lanes: str) -> str:
    return f"%out = alloca [{count} x {lanes}], align 64"


def _areas(count: int, lanes: str) -> str:
    return f"{_SPILL}\n{_area(count, lanes)}"


Give = Callable[[int, list[str]], list[str]]
"""Code that ends a load: from the bytes of an element, and the vectors of elements."""


def _return_vectors(width: int, values: list[str]) -> list[str]:
    """Return what was loaded in registers."""
    lanes, kind = vector(f"i{8 * width}"), result_type(width, len(values))
    if len(values) == 1:
        return [f"ret {kind} {values[0]}"]
    # Names that begin with a value's own do not meet another one's.
    lines, previous = [], "poison"
    for k, value in enumerate(values):
        lines.append(f"{value}_all = insertvalue {kind} {previous}, {lanes} {value}, {k}")
        previous = f"{value}_all"
    return [*lines, f"ret {kind} {previous}"]


def _return_address(width: int, values: list[str]) -> list[str]:
    """Put what was loaded where the caller expects it, lane after lane, and return that address."""
    return [*_store_lanes(width, values, "%out", 64), "ret ptr %out"]


def _slow(result: str) -> str:
    """Start of the slow path; without active lanes it returns ``result``."""
    return f"slow:\n%none = icmp eq i32 %m, 0\nbr i1 %none, label %empty, label %call\nempty:\nret {result}"


def _spill_wide(bits: int) -> str:
    if bits == 64:
        return "store <32 x i64> %a, ptr %spill, align 64"
    return "%az = zext <32 x i32> %a to <32 x i64>\nstore <32 x i64> %az, ptr %spill, align 64"


def _slow_load(
    width: int, count: int, addresses: str = "%spill", after: str = "", give: Give = _return_vectors
) -> list[str]:
    """Call the runtime and return the ``count`` vectors that it loaded: the end of a function."""
    lanes = vector(f"i{8 * width}")
    lines = [f"call void @kf_slow_load(ptr %ctx, ptr %op, ptr {addresses}, i64 %m64, ptr %out, i64 {width})", after]
    for k in range(count):
        lines.append(f"%op{k} = getelementptr {lanes}, ptr %out, i64 {k}")
        lines.append(f"%ov{k} = load {lanes}, ptr %op{k}, align {min(64, 32 * width)}")
    return [*lines, *give(width, [f"%ov{k}" for k in range(count)]), "}"]


def _slow_store(width: int, count: int, addresses: str = "%spill", after: str = "") -> list[str]:
    """Hand the ``count`` vectors to the runtime: the end of a function."""
    lanes, align = vector(f"i{8 * width}"), min(64, 32 * width)
    lines = []
    for k in range(count):
        lines.append(f"%op{k} = getelementptr {lanes}, ptr %out, i64 {k}")
        lines.append(f"store {lanes} %v{k}, ptr %op{k}, align {align}")
    lines.append(f"call void @kf_slow_store(ptr %ctx, ptr %op, ptr {addresses}, i64 %m64, ptr %out, i64 {width})")
    lines += [after, "ret void\n}"]
    return lines


_TAKE_COUNT = f"""
{_field("block", lay.OP_BLOCK, "i32")}
%counts_p = getelementptr i8, ptr %ctx, i64 {lay.CTX_COUNTS}
%counts = load ptr, ptr %counts_p
%pairs = zext i32 %block to i64
%count_p = getelementptr [2 x i64], ptr %counts, i64 %pairs
%count = load i64, ptr %count_p
%before = sub i64 %count, 1
{_field("last", lay.OP_SLOT, "i32")}
{_field("since", lay.OP_SINCE, "i64")}
%any = icmp sge i32 %last, 0
%elapsed = sub i64 %before, %since
%earned = select i1 %any, i64 %elapsed, i64 0
%last64 = zext i32 %last to i64
%index = select i1 %any, i64 %last64, i64 0
%table_p = getelementptr i8, ptr %op, i64 {lay.OP_SLOTS}
%entry_p = getelementptr i64, ptr %table_p, i64 %index
%entry = load i64, ptr %entry_p
%credited = add i64 %entry, %earned
store i64 %credited, ptr %entry_p
"""
"""Credit the last slot with its hits: one for each time that the block has run since, without this one."""


def _turn_to(name: str, kind: str, parameters: str) -> str:
    """Return what another function with the same parameters returns."""
    if kind == "void":
        return f"tail call {CONVENTION}void @{name}({parameters})\nret void"
    return f"%result = tail call {CONVENTION}{kind} @{name}({parameters})\nret {kind} %result"


def _in_two_parts(
    name: str, kind: str, parameters: str, bits: int, work: list[str], areas: str, slow: list[str]
) -> str:
    """An access by itself: a function that needs no stack does what most accesses ask for, another one the rest."""
    return "\n".join(
        [
            f"define {CONVENTION}{kind} @{name}({parameters}) noinline {ATTRIBUTES} {{",
            _check(bits, stack=False),
            *work,
            f"slow:\n{_turn_to(f'{name}_rest', kind, parameters)}\n}}",
            f"define internal {CONVENTION}{kind} @{name}_rest({parameters}) noinline {ATTRIBUTES} {{",
            _SPILL,
            areas,
            _check(bits),
            *work,
            *slow,
        ]
    )


def _leave_group(name: str, kind: str, parameters: str, fits: str, work: list[str]) -> str:
    """End of an access in a group by another function, so that the fast one needs no stack: where the request
    ``fits``, it turns to another slot whose cost is known and comes back; else it calls the runtime."""

    empty = {"void": "ret void", "ptr": "ret ptr %out"}.get(kind, f"ret {kind} zeroinitializer")
    return "\n".join(
        [
            f"slow:\n{_turn_to(f'{name}_slow', kind, parameters)}\n}}",
            f"define internal {CONVENTION}{kind} @{name}_slow({parameters}) noinline {ATTRIBUTES} {{",
            f"{_TAKE_COUNT}{_RANGE_OF_GROUP}{_SLOT}{_KIND}{fits}\nbr i1 %fits, label %again, label %other",
            f"again:\nstore i64 %before, ptr %since_p\nstore i32 %slot, ptr %last_p\n"
            f"{_turn_to(name, kind, parameters)}",
            "other:\nstore i64 %count, ptr %since_p\nstore i32 -1, ptr %last_p",
            f"%none = icmp eq i32 %m, 0\nbr i1 %none, label %empty, label %call\nempty:\n{empty}\ncall:",
            "%m64 = zext i32 %m to i64",
            *work,
        ]
    )


_BASES_OF_GROUP = "call void @kf_bases(ptr %area, i64 %scalar, ptr %spill)"
_AFTER_ACCESS = "call void @kf_regroup(ptr %op, ptr %area)"


def _parameters(bits: int | None) -> str:
    """Parameters of an access with addresses of ``bits`` bits, or in a group."""
    return _GROUP_PARAMETERS if bits is None else f"ptr %ctx, ptr %op, {vector(f'i{bits}')} %a, i32 %m"


_LINE = 64


def _ask_for_next(size: int, writes: bool) -> list[str]:
    """Prefetch what the next warp will probably access, ``size`` bytes on."""
    lines = []
    for at in range(size, 2 * size, _LINE):
        lines.append(f"%next{at} = getelementptr i8, ptr %p, i64 {at}")
        lines.append(f"call void @llvm.prefetch.p0(ptr %next{at}, i32 {int(writes)}, i32 3, i32 1)")
    return lines


_HALF = "<16 x i32>"


def load_lanes(c: IRBuilder, address: str, width: int, count: int) -> list[str]:
    """Load ``count`` elements of ``width`` bytes per lane, which lie lane after lane, as one vector of each."""
    if (width, count) == (4, 4):
        return _load_fours(c, address)
    total = vector(f"i{8 * width}", 32 * count)
    every = c.op(f"load {total}, ptr {address}, align {width}")
    if count == 1:
        return [every]
    indices = [lane_vector([lane_id * count + k for lane_id in range(32)]) for k in range(count)]
    return [c.op(f"shufflevector {total} {every}, {total} poison, <32 x i32> {at}") for at in indices]


def _shuffle(c: IRBuilder, a: str, b: str, indices: list[int]) -> str:
    return c.op(f"shufflevector {_HALF} {a}, {_HALF} {b}, <{len(indices)} x i32> {lane_vector(indices)}")


def _load_fours(c: IRBuilder, address: str) -> list[str]:
    """Load four words per lane, in two steps that need 16 shuffles of registers of 64 bytes."""
    words: list[list[str]] = [[], [], [], []]
    for half in range(2):
        quarters = [c.load(_HALF, address, 64 * (4 * half + k), align=4) for k in range(4)]
        # Words 2w of eight lanes, then words 2w + 1 of these.
        orders = [[4 * lane_id + 2 * pair + w for w in range(2) for lane_id in range(8)] for pair in range(2)]
        low, high = ([_shuffle(c, quarters[k], quarters[k + 1], order) for order in orders] for k in (0, 2))
        for word in range(4):
            at = 8 * (word % 2)
            indices = [*range(at, at + 8), *range(16 + at, 24 + at)]
            words[word].append(_shuffle(c, low[word // 2], high[word // 2], indices))
    return [_shuffle(c, low, high, list(range(32))) for low, high in words]


def _store_lanes(width: int, values: list[str], address: str, align: int) -> list[str]:
    """Store vectors of elements as :func:`load_lanes` loads them."""
    element, count = f"i{8 * width}", len(values)
    if (width, count) == (4, 4):
        return _store_fours(values, address)
    lines, pairs, lanes, serial = [], values, 32, 0
    while len(pairs) > 1:
        merged = []
        for k in range(0, len(pairs), 2):
            serial += 1
            kind = vector(element, lanes)
            indices = lane_vector(list(range(2 * lanes)))
            both = f"{kind} {pairs[k]}, {kind} {pairs[k + 1]}"
            lines.append(f"%j{serial} = shufflevector {both}, <{2 * lanes} x i32> {indices}")
            merged.append(f"%j{serial}")
        pairs, lanes = merged, 2 * lanes
    total, joined = vector(element, lanes), pairs[0]
    if count > 1:
        order = lane_vector([lane_id + 32 * k for lane_id in range(32) for k in range(count)])
        lines.append(f"%jv = shufflevector {total} {joined}, {total} poison, <{lanes} x i32> {order}")
        joined = "%jv"
    return [*lines, f"store {total} {joined}, ptr {address}, align {align}"]


def _store_fours(values: list[str], address: str) -> list[str]:
    """Store four words per lane, as ``_load_fours`` loads them."""
    c = IRBuilder()
    for half in range(2):
        order = lane_vector(list(range(16 * half, 16 * half + 16)))
        own = [c.op(f"shufflevector <32 x i32> {v}, <32 x i32> poison, <16 x i32> {order}") for v in values]
        for eight in range(2):
            indices = [8 * eight + lane_id + 16 * w for lane_id in range(8) for w in range(2)]
            low, high = (_shuffle(c, own[k], own[k + 1], indices) for k in (0, 2))
            for four in range(2):
                pairs = [8 * four + 2 * lane_id + 16 * words for lane_id in range(4) for words in range(2)]
                quarter = _shuffle(c, low, high, [at + w for at in pairs for w in range(2)])
                c.store(_HALF, quarter, address, 64 * (4 * half + 2 * eight + four), align=4)
    return c.lines


def load_function(width: int, count: int, bits: int | None, permute: bool, ahead: bool = False) -> str:
    """Load with lane-dependent addresses of ``bits`` bits, or in a group.

    Args:
        width: Bytes of an element.
        count: Elements of a lane.
        bits: Bits of an address; None in a group.
        permute: AVX-512 table lookups are available.
        ahead: Prefetch what the next warp probably loads.

    In a group and ahead it returns the address of the data, which lie lane after lane: in the emulated memory if all
    lanes read what lies there so, else where ``%out`` says.
    """
    by_address = bits is None and ahead
    name = {64: "kf_ld", 32: "kf_lds", None: "kf_lda" if ahead else "kf_ldg"}[bits]
    element, lanes, kind = f"i{8 * width}", vector(f"i{8 * width}"), result_type(width, count)
    name, parameters = f"{name}_{width}_{count}", _parameters(bits)
    give: Give = _return_vectors
    if by_address:
        kind, give, parameters = "ptr", _return_address, f"{parameters}, ptr %out"
    out = _enter_fast_path(width, count, bits is not None)
    out += _ask_for_next(32 * width * count, writes=False) if ahead else []
    if by_address:
        out.append("ret ptr %p")
    else:
        c = IRBuilder()
        loaded = load_lanes(c, "%p", width, count)
        out += [*c.lines, *give(width, loaded)]
    out.append(f"notplain:\n%mv = bitcast i32 %m to <32 x i1>{'' if bits else _PATTERN_OF_GROUP}")
    if count == 1:
        out.append(_MASKED.format(width=width))
        out.append(
            f"%mld = call {lanes} @llvm.masked.load.v32{element}.p0(ptr %mp, i32 {width}, <32 x i1> %mv, "
            f"{lanes} zeroinitializer)"
        )
        out += [*give(width, ["%mld"]), "scattered:"]
    if width >= 4:
        if permute and width == 4 and count == 1:
            out += [_window_load(), *give(width, ["%rw"]), "gather:"]
        for k in range(count):
            out.append(f"%gb{k} = getelementptr i8, ptr %p, i64 {k * width}")
            out.append(f"%gp{k} = getelementptr i8, ptr %gb{k}, <32 x i32> %deltas")
            out.append(
                f"%g{k} = call {lanes} @llvm.masked.gather.v32{element}.v32p0(<32 x ptr> %gp{k}, i32 {width}, "
                f"<32 x i1> %mv, {lanes} zeroinitializer)"
            )
        out += give(width, [f"%g{k}" for k in range(count)])
    else:
        out.append("unreachable")
    if bits is None:
        work = [_SPILL if by_address else _areas(count, lanes), _BASES_OF_GROUP]
        work += _slow_load(width, count, after=_AFTER_ACCESS, give=give)
        end = _leave_group(name, kind, parameters, _fits(width, count), work)
        head = f"define {CONVENTION}{kind} @{name}({parameters}) noinline {ATTRIBUTES} {{{_CHECK_OF_GROUP}"
        return "\n".join([head, *out, end])
    slow = [_slow(f"{kind} zeroinitializer"), f"call:\n{_spill_wide(bits)}\n%m64 = zext i32 %m to i64"]
    slow += _slow_load(width, count)
    return _in_two_parts(name, kind, parameters, bits, out, _area(count, lanes), slow)


def _window_load() -> str:
    """All lanes within 128 bytes: two vector loads and a table lookup instead of a gather."""
    low, high = lane_vector(list(range(16))), lane_vector(list(range(16, 32)))
    both = lane_vector(list(range(32)))
    t = "<16 x i32>"
    return f"""
%isw = icmp eq i32 %kind, {lay.KIND_WINDOW}
br i1 %isw, label %window, label %gather
window:
{_field("wmin", lay.OP_WINDOW, "i32")}
%wp = getelementptr i8, ptr %p, i32 %wmin
%w0 = load {t}, ptr %wp, align 4
%wq = getelementptr i8, ptr %wp, i64 64
%w1 = load {t}, ptr %wq, align 4
%wm0 = insertelement <32 x i32> poison, i32 %wmin, i64 0
%wm = shufflevector <32 x i32> %wm0, <32 x i32> poison, <32 x i32> zeroinitializer
%wi0 = sub <32 x i32> %deltas, %wm
%wi = lshr <32 x i32> %wi0, splat (i32 2)
%wl = shufflevector <32 x i32> %wi, <32 x i32> poison, <16 x i32> {low}
%wh = shufflevector <32 x i32> %wi, <32 x i32> poison, <16 x i32> {high}
%rl = call {t} @llvm.x86.avx512.vpermi2var.d.512({t} %w0, {t} %wl, {t} %w1)
%rh = call {t} @llvm.x86.avx512.vpermi2var.d.512({t} %w0, {t} %wh, {t} %w1)
%rw = shufflevector {t} %rl, {t} %rh, <32 x i32> {both}"""


def store_function(width: int, count: int, bits: int | None, ahead: bool = False) -> str:
    """Store with lane-dependent addresses, as ``load_function`` loads."""
    name = {64: "kf_st", 32: "kf_sts", None: "kf_sta" if ahead else "kf_stg"}[bits]
    element, full = f"i{8 * width}", vector(f"i{8 * width}")
    values = ", ".join(f"{full} %v{k}" for k in range(count))
    name, parameters = f"{name}_{width}_{count}", f"{_parameters(bits)}, {values}"
    out = _enter_fast_path(width, count, bits is not None)
    out += _ask_for_next(32 * width * count, writes=True) if ahead else []
    out += [*_store_lanes(width, [f"%v{k}" for k in range(count)], "%p", width), "ret void"]
    out.append(f"notplain:\n%mv = bitcast i32 %m to <32 x i1>{'' if bits else _PATTERN_OF_GROUP}")
    if count == 1:
        out.append(_MASKED.format(width=width))
        out.append(f"call void @llvm.masked.store.v32{element}.p0({full} %v0, ptr %mp, i32 {width}, <32 x i1> %mv)")
        out.append("ret void\nscattered:")
    if width >= 4:
        for k in range(count):
            out.append(f"%gb{k} = getelementptr i8, ptr %p, i64 {k * width}")
            out.append(f"%gp{k} = getelementptr i8, ptr %gb{k}, <32 x i32> %deltas")
            out.append(
                f"call void @llvm.masked.scatter.v32{element}.v32p0({full} %v{k}, <32 x ptr> %gp{k}, i32 {width}, "
                f"<32 x i1> %mv)"
            )
        out.append("ret void")
    else:
        out.append("unreachable")
    if bits is None:
        work = [_areas(count, full), _BASES_OF_GROUP, *_slow_store(width, count, after=_AFTER_ACCESS)]
        end = _leave_group(name, "void", parameters, _fits(width, count), work)
        head = f"define {CONVENTION}void @{name}({parameters}) noinline {ATTRIBUTES} {{{_CHECK_OF_GROUP}"
        return "\n".join([head, *out, end])
    slow = [_slow("void"), f"call:\n{_spill_wide(bits)}\n%m64 = zext i32 %m to i64", *_slow_store(width, count)]
    return _in_two_parts(name, "void", parameters, bits, out, _area(count, full), slow)


_COUNT_UNIFORM = f"""
%n_p = getelementptr i8, ptr %op, i64 {lay.OP_UNIFORM}
%n = load i64, ptr %n_p
%n1 = add i64 %n, 1
store i64 %n1, ptr %n_p
%pc = call i32 @llvm.ctpop.i32(i32 %m)
%pcz = zext i32 %pc to i64
%l_p = getelementptr i8, ptr %op, i64 {lay.OP_UNIFORM_LANES}
%l = load i64, ptr %l_p
%l1 = add i64 %l, %pcz
store i64 %l1, ptr %l_p
"""


_UNIFORM_IN_RANGE = f"""
{_field("low", lay.OP_LOW, "i64")}
{_field("span", lay.OP_SPAN, "i64")}
%rel = sub i64 %a, %low
%c0 = icmp ult i64 %rel, %span
%al = and i64 %a, {{last}}
%c1 = icmp eq i64 %al, 0
%ok = and i1 %c0, %c1
"""

_UNIFORM_ADDRESS = f"""
{_field("delta", lay.OP_DELTA, "i64")}
%host = add i64 %a, %delta
%p = inttoptr i64 %host to ptr
"""


def uniform_load_function(width: int, count: int) -> str:
    """Load from one address for the whole warp; returns a scalar or a struct of scalars."""
    element = f"i{8 * width}"
    kind = element if count == 1 else "{" + ", ".join([element] * count) + "}"
    name, parameters = f"kf_ldu_{width}_{count}", "ptr %ctx, ptr %op, i64 %a, i32 %m"
    out = [
        f"define {CONVENTION}{kind} @{name}({parameters}) noinline {ATTRIBUTES} {{",
        _UNIFORM_IN_RANGE.format(last=width * count - 1),
        "br i1 %ok, label %fast, label %slow\nfast:",
        _COUNT_UNIFORM,
        _UNIFORM_ADDRESS,
    ]
    previous = "poison"
    for k in range(count):
        out.append(
            f"%p{k} = getelementptr {element}, ptr %p, i64 {k}\n%v{k} = load {element}, ptr %p{k}, align {width}"
        )
        if count > 1:
            out.append(f"%r{k} = insertvalue {kind} {previous}, {element} %v{k}, {k}")
            previous = f"%r{k}"
    out.append(f"ret {kind} " + ("%v0" if count == 1 else previous))
    lanes = vector(element)
    out.append(f"slow:\n{_turn_to(f'{name}_rest', kind, parameters)}\n}}")
    out.append(f"define internal {CONVENTION}{kind} @{name}_rest({parameters}) noinline {ATTRIBUTES} {{")
    out.append(f"br label %slow\n{_slow(f'{kind} zeroinitializer')}")
    out.append(f"call:\n{_areas(count, lanes)}\n{_SPILL_UNIFORM}")
    out.append(f"call void @kf_slow_load(ptr %ctx, ptr %op, ptr %spill, i64 %m64, ptr %out, i64 {width})")
    out.append("%fl = call i32 @llvm.cttz.i32(i32 %m, i1 true)")
    previous = "poison"
    for k in range(count):
        out.append(
            f"%q{k} = getelementptr {lanes}, ptr %out, i64 {k}\n%e{k}_p = getelementptr {element}, ptr %q{k}, i32 %fl"
        )
        out.append(f"%e{k} = load {element}, ptr %e{k}_p")
        if count > 1:
            out.append(f"%i{k} = insertvalue {kind} {previous}, {element} %e{k}, {k}")
            previous = f"%i{k}"
    out.append(f"ret {kind} " + ("%e0" if count == 1 else previous) + "\n}")
    return "\n".join(out)


def uniform_store_function(width: int, count: int) -> str:
    """Store scalars to one address for the whole warp."""
    element, lanes = f"i{8 * width}", vector(f"i{8 * width}")
    values = ", ".join(f"{element} %v{k}" for k in range(count))
    name, parameters = f"kf_stu_{width}_{count}", f"ptr %ctx, ptr %op, i64 %a, i32 %m, {values}"
    out = [
        f"define {CONVENTION}void @{name}({parameters}) noinline {ATTRIBUTES} {{",
        _UNIFORM_IN_RANGE.format(last=width * count - 1),
        "%some = icmp ne i32 %m, 0\n%write = and i1 %ok, %some\nbr i1 %write, label %fast, label %slow\nfast:",
        _COUNT_UNIFORM,
        _UNIFORM_ADDRESS,
    ]
    for k in range(count):
        out.append(f"%p{k} = getelementptr {element}, ptr %p, i64 {k}")
        out.append(f"store {element} %v{k}, ptr %p{k}, align {width}")
    out.append(f"ret void\nslow:\n{_turn_to(f'{name}_rest', 'void', parameters)}\n}}")
    out.append(f"define internal {CONVENTION}void @{name}_rest({parameters}) noinline {ATTRIBUTES} {{")
    out.append(f"br label %slow\n{_slow('void')}")
    out.append(f"call:\n{_areas(count, lanes)}\n{_SPILL_UNIFORM}")
    for k in range(count):
        out.append(f"%f{k} = insertelement {lanes} poison, {element} %v{k}, i64 0")
        out.append(f"%w{k} = shufflevector {lanes} %f{k}, {lanes} poison, <32 x i32> zeroinitializer")
        out.append(f"%q{k} = getelementptr {lanes}, ptr %out, i64 {k}")
        out.append(f"store {lanes} %w{k}, ptr %q{k}, align {min(64, 32 * width)}")
    out.append(
        f"call void @kf_slow_store(ptr %ctx, ptr %op, ptr %spill, i64 %m64, ptr %out, i64 {width})\nret void\n}}"
    )
    return "\n".join(out)


def _local_prologue(words: int) -> str:
    """Bounds test of a frame offset equal in all lanes, and the counting of its sectors."""
    size = 4 * words
    return f"""
{_field("span", lay.OP_SPAN, "i64")}
%c0 = icmp ult i64 %a, %span
%al = and i64 %a, {size - 1}
%c1 = icmp eq i64 %al, 0
%some = icmp ne i32 %m, 0
%c2 = and i1 %c0, %c1
%ok = and i1 %c2, %some
br i1 %ok, label %fast, label %slow
fast:
{_COUNT_UNIFORM}
%groups = bitcast i32 %m to <4 x i8>
%active = icmp ne <4 x i8> %groups, zeroinitializer
%bits = bitcast <4 x i1> %active to i4
%pop = call i4 @llvm.ctpop.i4(i4 %bits)
%popz = zext i4 %pop to i64
%sect = mul i64 %popz, {words}
%t_p = getelementptr i8, ptr %op, i64 {lay.OP_TRANSACTIONS}
%t = load i64, ptr %t_p
%t1 = add i64 %t, %sect
store i64 %t1, ptr %t_p
%bytes = mul i64 %pcz, {size}
%up = add i64 %bytes, 31
%best = lshr i64 %up, 5
%i_p = getelementptr i8, ptr %op, i64 {lay.OP_IDEAL_TOTAL}
%it = load i64, ptr %i_p
%it1 = add i64 %it, %best
store i64 %it1, ptr %i_p
%lb_p = getelementptr i8, ptr %ctx, i64 {lay.CTX_LOCAL}
%lb = load i64, ptr %lb_p
%row = shl i64 %a, 5
%host = add i64 %lb, %row
%p = inttoptr i64 %host to ptr
"""


def local_load_function(width: int, count: int) -> str:
    """Load from a frame offset that all lanes share; the frame is interleaved by words, so lanes are contiguous."""
    words = width * count // 4
    lanes, kind = vector(f"i{8 * width}"), result_type(width, count)
    out = [
        f"define {CONVENTION}{kind} @kf_ldl_{width}_{count}(ptr %ctx, ptr %op, i64 %a, i32 %m)",
        f"noinline {ATTRIBUTES} {{",
        _areas(count, lanes),
        _local_prologue(words),
    ]
    for w in range(words):
        out.append(f"%w{w}_p = getelementptr i8, ptr %p, i64 {128 * w}\n%w{w} = load <32 x i32>, ptr %w{w}_p, align 4")
    previous = "poison"
    for k in range(count):
        if width == 4:
            value = f"%w{k}"
        else:
            out.append(
                f"%lo{k} = zext <32 x i32> %w{2 * k} to <32 x i64>\n"
                f"%hi{k} = zext <32 x i32> %w{2 * k + 1} to <32 x i64>"
            )
            out.append(f"%sh{k} = shl <32 x i64> %hi{k}, splat (i64 32)\n%v{k} = or <32 x i64> %lo{k}, %sh{k}")
            value = f"%v{k}"
        if count == 1:
            out.append(f"ret {lanes} {value}")
        else:
            out.append(f"%r{k} = insertvalue {kind} {previous}, {lanes} {value}, {k}")
            previous = f"%r{k}"
    if count > 1:
        out.append(f"ret {kind} {previous}")
    out.append(_slow(f"{kind} zeroinitializer"))
    out.append(f"call:\n{_SPILL_UNIFORM}")
    out += _slow_load(width, count)
    return "\n".join(out)


def local_store_function(width: int, count: int) -> str:
    """Store to a frame offset that all lanes share."""
    words = width * count // 4
    lanes = vector(f"i{8 * width}")
    values = ", ".join(f"{lanes} %v{k}" for k in range(count))
    out = [
        f"define {CONVENTION}void @kf_stl_{width}_{count}(ptr %ctx, ptr %op, i64 %a, i32 %m, {values})",
        f"noinline {ATTRIBUTES} {{",
        _areas(count, lanes),
        _local_prologue(words),
        "%mv = bitcast i32 %m to <32 x i1>",
    ]
    for w in range(words):
        value = f"%v{w}"
        if width == 8:
            value = f"%x{w}"
            source = f"%v{w // 2}"
            if w % 2:
                out.append(f"%y{w} = lshr <32 x i64> {source}, splat (i64 32)")
                source = f"%y{w}"
            out.append(f"%x{w} = trunc <32 x i64> {source} to <32 x i32>")
        out.append(f"%w{w}_p = getelementptr i8, ptr %p, i64 {128 * w}")
        out.append(f"call void @llvm.masked.store.v32i32.p0(<32 x i32> {value}, ptr %w{w}_p, i32 4, <32 x i1> %mv)")
    out += ["ret void", _slow("void")]
    out.append(f"call:\n{_SPILL_UNIFORM}")
    out += _slow_store(width, count)
    return "\n".join(out)


def matrices_function(count: int, transposed: bool) -> str:
    """``ldmatrix``: lane 8m + r points at row r, of 16 bytes, of matrix m; ``%out`` gets each matrix by lanes."""
    rows = 8 * count
    mask = (1 << rows) - 1
    out = [
        f"define {CONVENTION}void @{matrices_name(count, transposed)}(ptr %ctx, ptr %op, <32 x i64> %a, i32 %all,",
        f"ptr %out) noinline {ATTRIBUTES} {{",
        _SPILL,
        f"%m = and i32 %all, {mask}",
        _check(64),
        f"%rows = icmp eq i32 %m, {mask if count < 4 else -1}\n%c0123 = and i1 %c012, %rows",
        f"br i1 %c0123, label %fast, label %slow\nfast:{_COUNT_HIT}{_ADDRESS}",
    ]
    for k in range(count):
        parts = []
        for r in range(8 * k, 8 * k + 8):
            out.append(
                f"%d{r} = extractelement <32 x i32> %deltas, i64 {r}\n%r{r}_p = getelementptr i8, ptr %p, i32 %d{r}"
            )
            out.append(f"%r{r} = load <8 x i16>, ptr %r{r}_p, align 2")
            parts.append(f"%r{r}")
        lanes, serial = 8, 0
        while len(parts) > 1:
            pairs = []
            for first, second in zip(parts[::2], parts[1::2], strict=True):
                kind, order = vector("i16", lanes), lane_vector(list(range(2 * lanes)))
                out.append(
                    f"%j{k}_{serial} = shufflevector {kind} {first}, {kind} {second}, <{2 * lanes} x i32> {order}"
                )
                pairs.append(f"%j{k}_{serial}")
                serial += 1
            parts, lanes = pairs, 2 * lanes
        matrix = parts[0]
        if transposed:
            order = lane_vector([8 * (i % 8) + i // 8 for i in range(64)])
            out.append(f"%x{k} = shufflevector <64 x i16> {matrix}, <64 x i16> poison, <64 x i32> {order}")
            matrix = f"%x{k}"
        out.append(
            f"%o{k}_p = getelementptr i8, ptr %out, i64 {128 * k}\nstore <64 x i16> {matrix}, ptr %o{k}_p, align 64"
        )
    out.append("ret void\nslow:\nstore <32 x i64> %a, ptr %spill, align 64\n%m64 = zext i32 %all to i64")
    out.append(
        f"call void @kf_ldmatrix(ptr %ctx, ptr %op, ptr %spill, i64 %m64, ptr %out, i64 {count}, i64 {int(transposed)})"
    )
    out.append("ret void\n}")
    return "\n".join(out)


def matrices_name(count: int, transposed: bool) -> str:
    """Name of the function that loads ``count`` matrices of 8x8 elements of 16 bits."""
    return f"kf_ldm_{count}{'_t' if transposed else ''}"


def library(permute: bool) -> tuple[str, list[str]]:
    """Return the IR of every memory function and the functions' names."""
    parts = [DECLARATIONS, "declare i32 @llvm.cttz.i32(i32, i1)"]
    names: list[str] = []
    for element in ("i8", "i16", "i32", "i64"):
        v = vector(element)
        parts.append(f"declare {v} @llvm.masked.load.v32{element}.p0(ptr, i32, <32 x i1>, {v})")
        parts.append(f"declare void @llvm.masked.store.v32{element}.p0({v}, ptr, i32, <32 x i1>)")
        parts.append(f"declare {v} @llvm.masked.gather.v32{element}.v32p0(<32 x ptr>, i32, <32 x i1>, {v})")
        parts.append(f"declare void @llvm.masked.scatter.v32{element}.v32p0({v}, <32 x ptr>, i32, <32 x i1>)")
    if permute:
        parts.append("declare <16 x i32> @llvm.x86.avx512.vpermi2var.d.512(<16 x i32>, <16 x i32>, <16 x i32>)")
    parts += [_REGROUP, _BASES, match_function(64), match_function(32)]
    names += ["kf_match_64", "kf_match_32"]
    for width, count in SIZES:
        for bits, ahead in ((64, True), (32, False), (None, False), (None, True)):
            parts += [load_function(width, count, bits, permute, ahead), store_function(width, count, bits, ahead)]
        parts += [uniform_load_function(width, count), uniform_store_function(width, count)]
        stems = ("kf_ld", "kf_lds", "kf_ldg", "kf_lda", "kf_st", "kf_sts", "kf_stg", "kf_sta", "kf_ldu", "kf_stu")
        names += [f"{stem}_{width}_{count}" for stem in stems]
        if width >= 4:
            parts += [local_load_function(width, count), local_store_function(width, count)]
            names += [f"{stem}_{width}_{count}" for stem in ("kf_ldl", "kf_stl")]
    for count in (1, 2, 4):
        for transposed in (False, True):
            parts.append(matrices_function(count, transposed))
            names.append(matrices_name(count, transposed))
    return "\n".join(parts), names
