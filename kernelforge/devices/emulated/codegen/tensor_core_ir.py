"""LLVM IR of the sums that tensor cores form of floats, bit for bit those of a Hopper GPU.

A tensor core adds the products of one block of k and the accumulator at once. Products are exact and keep the sum of
their factors' exponents, also where their significand is two or more. Each term is cut off, toward zero, at a distance
of ``aligned`` bits below the largest exponent among the terms; the integers that remain are added exactly, and the sum
is cut off again to the significand of the result. The sign of a zero is positive. A sum with an infinity or NaN among
its terms is what IEEE 754 makes of it.

Measured on an H100: results/reference/h100/README.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kernelforge.devices.emulated.codegen.ir_builder import IRBuilder, lane_vector
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES

FORMATS: Final = {
    "f16": (10, 5), "bf16": (7, 8), "tf32": (23, 8), "f32": (23, 8), "e4m3": (3, 4), "e5m2": (2, 5), "e2m3": (3, 2),
    "e3m2": (2, 3), "e2m1": (1, 2),
}  # fmt: skip
"""Bits of a type's significand, after the leading one, and of its exponent."""
SMALL_FLOATS: Final = ("e2m3", "e3m2", "e2m1")
"""Types without infinities and NaN, each element in the low bits of a byte."""

_ZERO, _SPECIAL = -8192, 12288
"""Exponents of a zero, which is no term, and of an infinity or NaN; plus any other they are still such."""
_SPECIAL_SUM = 4000
_BIAS = 127
_EIGHT = "<8 x double>"
_WIDE: Final = "wide_sums"


BRANCH_WEIGHTS: Final = '!0 = !{!"branch_weights", i32 1000, i32 1}'
"""Metadata of a module with these sums."""


class Arithmetic(NamedTuple):
    """Properties of the sums of a family of instructions."""

    aligned: int
    """Bits below the largest exponent that terms keep."""
    kept: int
    """Bits after the leading one in a sum."""
    result: str
    """Type of C and D: f16 or f32. A sum that becomes f16 keeps in its last bit whether anything was cut off."""
    pairs: bool
    """Elements are converted to f16, and their even and odd pairs are two products; C is added last."""


def arithmetic(group: bool, a_type: str, result: str) -> Arithmetic:
    """The arithmetic of ``wgmma``, if ``group``, or of ``mma`` with these types of A and D."""
    narrow = a_type in ("e4m3", "e5m2")
    aligned = 13 if group and narrow else 25
    return Arithmetic(aligned, 13 if aligned == 13 and result == "f32" else 23, result, narrow and not group)


class Term(NamedTuple):
    """Eight products of an element of A with a row of B, by the names of their values."""

    factor: str
    """``float``"""
    factor_exponent: str
    """``i16``"""
    row: str
    """``<8 x float>``"""
    row_exponents: str
    """``<8 x i16>``"""


class TensorCoreWriter(IRBuilder):
    """Writes aligned sums of eight columns."""

    def exponents(self, value: str, element: str, count: int) -> str:
        """Exponents of floats, from their bits as integers, as i16; subnormal numbers are not normalised."""
        significand, width = FORMATS[element]
        bits = 32 if significand == 23 else 1 + significand + width
        kind, shorts = f"<{count} x i{max(bits, 16)}>", f"<{count} x i16>"
        if bits <= 8:
            value = self.op(f"zext <{count} x i8> {value} to {kind}")
        number = f"splat (i{max(bits, 16)} {{}})".format
        field = self.op(f"and {kind} {self.op(f'lshr {kind} {value}, {number(significand)}')}, "
                        f"{number((1 << width) - 1)}")  # fmt: skip
        magnitude = self.op(f"and {kind} {value}, {number((1 << bits - 1) - 1)}")
        zero = self.op(f"icmp eq {kind} {magnitude}, zeroinitializer")
        if element == "e4m3":
            special = self.op(f"icmp eq {kind} {magnitude}, {number(127)}")
        else:
            special = self.op(f"icmp eq {kind} {field}, {number((1 << width) - 1)}")
        field = self.intrinsic("umax", kind, field, number(1))
        if width < 8:
            field = self.op(f"add {kind} {field}, {number(128 - (1 << width - 1))}")
        if element not in SMALL_FLOATS:
            field = self.select(special, kind, number(_SPECIAL), field)
        field = self.select(zero, kind, number(_ZERO), field)
        return field if kind == shorts else self.op(f"trunc {kind} {field} to {shorts}")

    def repeat(self, value: str, element: str) -> str:
        """A scalar eight times."""
        kind = f"<8 x {element}>"
        first = self.op(f"insertelement {kind} poison, {element} {value}, i64 0")
        return self.op(f"shufflevector {kind} {first}, {kind} poison, <8 x i32> zeroinitializer")

    def largest_exponents(self, fours: list[tuple[int, int]], width: int, rows: list[str], out: int) -> None:
        """Largest exponents among the products of four rows of A, into ``%largest`` from the byte ``out`` on.

        ``fours`` has, for each row of B, where the exponents of the four rows begin, ``width`` elements each, and the
        element that meets it.
        """
        many, largest = "<32 x i16>", ""
        loaded: dict[int, str] = {}
        for (start, element), row in zip(fours, rows, strict=True):
            source = f"<{4 * width} x i16>"
            if start not in loaded:
                loaded[start] = self.load(source, "%left_exponents", 2 * start, align=2)
            picked = lane_vector([width * (k // 8) + element for k in range(32)])
            own = self.op(f"shufflevector {source} {loaded[start]}, {source} poison, <32 x i32> {picked}")
            order = lane_vector([k % 8 for k in range(32)])
            other = self.op(f"shufflevector <8 x i16> {row}, <8 x i16> poison, <32 x i32> {order}")
            exponents = self.op(f"add {many} {own}, {other}")
            largest = self.intrinsic("smax", many, largest, exponents) if largest else exponents
        self.store(many, largest, "%largest", out, align=16)

    def aligned_sums(self, start: str, terms: list[Term], arithmetic: Arithmetic, products: str | None = None) -> str:
        """Eight sums, in f32, of an accumulator and products.

        Most sums are formed in f32 and i32. Those whose exponents f32 cannot hold, or with an infinity or NaN, are not.
        ``products`` are the largest exponents among the products, where they are known.
        """
        shorts, words, floats = "<8 x i16>", "<8 x i32>", "<8 x float>"
        own = self.op(f"bitcast {floats} {start} to {words}")
        # An f16 has less than 2**-14 only where it is subnormal.
        largest = self.op(f"add {shorts} {self.exponents(own, 'f32', 8)}, splat (i16 {_BIAS})")
        if arithmetic.result == "f16":
            low = self.intrinsic("smax", shorts, largest, f"splat (i16 {2 * _BIAS - 14})")
            some = self.op(f"icmp sgt {shorts} {largest}, zeroinitializer")
            largest = self.select(some, shorts, low, largest)
        factors = []
        for term in terms:
            if products is None:
                exponents = self.op(f"add {shorts} {self.repeat(term.factor_exponent, 'i16')}, {term.row_exponents}")
                largest = self.intrinsic("smax", shorts, largest, exponents)
            factors.append(self.repeat(term.factor, "float"))
        if products is not None:
            largest = self.intrinsic("smax", shorts, largest, products)
        # Exponents from -80 to 100, or a sum of zeros.
        low, high = str(2 * _BIAS - 80), 180
        inside = self.op(f"icmp ule {shorts} {self.op(f'sub {shorts} {largest}, splat (i16 {low})')}, "
                         f"splat (i16 {high})")  # fmt: skip
        empty = self.op(f"icmp slt {shorts} {largest}, splat (i16 {-_SPECIAL_SUM})")
        easy = self.op(f"bitcast <8 x i1> {self.op(f'or <8 x i1> {inside}, {empty}')} to i8")
        fast, slow, done = (self.label(stem) for stem in ("near", "far", "summed"))
        self.emit(f"br i1 {self.op(f'icmp eq i8 {easy}, -1')}, label %{fast}, label %{slow}, !prof !0\n{fast}:")
        near = self.near_sums(start, factors, terms, arithmetic, largest)
        self.emit(f"br label %{done}\n{slow}:")
        for k, (factor, term) in enumerate(zip(factors, terms, strict=True)):
            self.store(floats, factor, "%factors", 32 * k, align=32)
            self.store(floats, term.row, "%rows", 32 * k, align=32)
        wide = self.op(f"fpext {floats} {start} to {_EIGHT}")
        wide = self.op(f"call {_EIGHT} @{_WIDE}(ptr %factors, ptr %rows, i64 {len(terms)}, {_EIGHT} {wide}, "
                       f"{shorts} {largest})")  # fmt: skip
        far = self.single(self.cut(wide, arithmetic))
        self.emit(f"br label %{done}\n{done}:")
        return self.op(f"phi {floats} [{near}, %{fast}], [{far}, %{slow}]")

    def near_sums(self, start: str, factors: list[str], terms: list[Term], arithmetic: Arithmetic, largest: str) -> str:
        """Sums whose terms, results and units are normal numbers of f32, or zero."""
        shorts, words, floats = "<8 x i16>", "<8 x i32>", "<8 x float>"
        least = self.intrinsic("smax", shorts, largest, f"splat (i16 {2 * _BIAS - 80})")
        power = self.op(f"sext {shorts} {least} to {words}")
        field = self.op(f"sub {words} splat (i32 {3 * _BIAS + arithmetic.aligned}), {power}")
        field = self.op(f"shl {words} {field}, splat (i32 23)")
        scale = self.op(f"bitcast {words} {field} to {floats}")
        # Sixteen products below 2**27 may exceed 31 bits together.
        parts = [self.op(f"fptosi {floats} {self.op(f'fmul {floats} {start}, {scale}')} to {words}"), ""]
        for k, (factor, term) in enumerate(zip(factors, terms, strict=True)):
            product = self.op(f"fmul {floats} {self.op(f'fmul {floats} {factor}, {term.row}')}, {scale}")
            cut = self.op(f"fptosi {floats} {product} to {words}")
            half = 2 * k // len(terms)
            parts[half] = self.op(f"add {words} {parts[half]}, {cut}") if parts[half] else cut
        first, second = (self.op(f"sitofp {words} {part} to {_EIGHT}") for part in parts)
        total = self.cut(self.op(f"fadd {_EIGHT} {first}, {second}"), arithmetic)
        back = self.op(f"sub {words} splat (i32 {2 * _BIAS << 23}), {field}")
        unit = self.op(f"bitcast {words} {back} to {floats}")
        return self.op(f"fmul {floats} {self.op(f'fptrunc {_EIGHT} {total} to {floats}')}, {unit}")

    def cut(self, value: str, arithmetic: Arithmetic) -> str:
        """f64 toward zero to the bits that a sum keeps, or to odd for f16, which is rounded later."""
        words, drop = "<8 x i64>", 52 - arithmetic.kept
        bits = self.op(f"bitcast {_EIGHT} {value} to {words}")
        kept = self.op(f"and {words} {bits}, splat (i64 {-(1 << drop)})")
        if arithmetic.result == "f16":
            rest = self.op(f"and {words} {bits}, splat (i64 {(1 << drop) - 1})")
            odd = self.op(f"zext <8 x i1> {self.op(f'icmp ne {words} {rest}, zeroinitializer')} to {words}")
            kept = self.op(f"or {words} {kept}, {self.op(f'shl {words} {odd}, splat (i64 {drop})')}")
        return self.op(f"bitcast {words} {kept} to {_EIGHT}")

    def single(self, value: str) -> str:
        """f64 of at most 24 bits to f32, toward zero where it is subnormal."""
        floats, words = "<8 x float>", "<8 x i32>"
        near = self.op(f"fptrunc {_EIGHT} {value} to {floats}")
        size = self.intrinsic("fabs", _EIGHT, self.op(f"fpext {floats} {near} to {_EIGHT}"))
        above = self.op(f"fcmp ogt {_EIGHT} {size}, {self.intrinsic('fabs', _EIGHT, value)}")
        finite = self.op(f"fcmp one {_EIGHT} {size}, splat (double 0x7FF0000000000000)")
        step = self.op(f"zext <8 x i1> {self.op(f'and <8 x i1> {above}, {finite}')} to {words}")
        bits = self.op(f"sub {words} {self.op(f'bitcast {floats} {near} to {words}')}, {step}")
        return self.op(f"bitcast {words} {bits} to {floats}")

    def scratch(self, terms: int) -> None:
        """Memory in which :meth:`aligned_sums` passes its terms."""
        for name in ("factors", "rows"):
            self.emit(f"%{name} = alloca [{8 * terms} x float], align 32")
        self.emit("%largest = alloca [256 x i16], align 16")


def wide_sums(aligned: int, declarations: set[str]) -> str:
    """The function that forms sums in f64: of any exponents, and what IEEE 754 makes of infinities and NaN."""
    w = IRBuilder()
    doubles, words = _EIGHT, "<8 x i64>"
    w.emit(f"define internal {doubles} @{_WIDE}(ptr %a, ptr %b, i64 %count, {doubles} %start, <8 x i16> %largest) "
           f"noinline {ATTRIBUTES} {{\nentry:")  # fmt: skip
    least = w.intrinsic("smax", "<8 x i16>", "%largest", f"splat (i16 {2 * _BIAS - 300})")
    power = w.op(f"sext <8 x i16> {least} to {words}")
    field = w.op(f"sub {words} splat (i64 {1023 + 2 * _BIAS + aligned}), {power}")
    scale = w.op(f"bitcast {words} {w.op(f'shl {words} {field}, splat (i64 52)')} to {doubles}")

    def integer(value: str) -> str:
        cut = w.op(f"fptosi {doubles} {w.op(f'fmul {doubles} {value}, {scale}')} to <8 x i32>")
        return w.op(f"sitofp <8 x i32> {cut} to {doubles}")

    own = integer("%start")
    w.emit(f"br label %add\nadd:\n%k = phi i64 [0, %entry], [%next, %add]\n%sum = phi {doubles} [{own}, %entry], "
           f"[%more, %add]\n%plain = phi {doubles} [%start, %entry], [%other, %add]")  # fmt: skip
    at = w.op("shl i64 %k, 5")
    pair = [w.op(f"fpext <8 x float> {w.load('<8 x float>', w.gep(p, at), align=32)} to {doubles}")
            for p in ("%a", "%b")]  # fmt: skip
    product = w.op(f"fmul {doubles} {pair[0]}, {pair[1]}")
    w.emit(f"%more = fadd {doubles} %sum, {integer(product)}\n%other = fadd {doubles} %plain, {product}")
    w.emit("%next = add i64 %k, 1\n%again = icmp ult i64 %next, %count\nbr i1 %again, label %add, label %done\ndone:")
    back = w.op(f"shl {words} {w.op(f'sub {words} {power}, splat (i64 {2 * _BIAS + aligned - 1023})')}, splat (i64 52)")
    total = w.op(f"fmul {doubles} %more, {w.op(f'bitcast {words} {back} to {doubles}')}")
    special = w.op(f"icmp sgt <8 x i16> %largest, splat (i16 {_SPECIAL_SUM})")
    w.emit(f"ret {doubles} {w.select(special, doubles, '%other', total)}\n}}")
    declarations |= w.declarations
    return "\n".join(w.lines)
