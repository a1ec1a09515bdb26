"""LLVM IR of matrix products of one warp: ``mma.sync`` of every type and shape whose result has eight columns.

A fragment's registers are rows of 32 lanes in memory. With ``e`` elements in a register, lane ``4g + t`` holds row
``g`` and columns ``e*t`` to ``e*t + e - 1`` of an 8-row block (PTX ISA, fragments of ``mma``): in the order of lanes, a
register of A is such a block by rows, and a register of B is one by columns. Registers of A run over the halves of the
rows first, then over blocks of columns.

Products are exact. Floating-point sums are formed in f64, in the order of k, and rounded once to the type of the
accumulator, to nearest even. Tensor cores add the products of one instruction in an order and with a truncation that
NVIDIA does not document, so their last bits may differ.
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from kernelforge.devices.emulated.codegen.ir_builder import IRBuilder, float_constant, lane_vector
from kernelforge.devices.emulated.codegen.llvm_jit import host_features
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES

ELEMENT_BITS: Final = {
    "f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
"""Bits of an element of A or B by its PTX type."""

CANONICAL_NAN: Final = 0x7FFFFFFF


class Product(NamedTuple):
    """A matrix product ``D = A B + C`` of one warp, with ``D`` of ``rows`` x 8 elements."""

    rows: int
    depth: int
    """Columns of A, in elements."""
    a_type: str
    """PTX type of A's elements."""
    b_type: str
    """PTX type of B's elements."""
    c_type: str
    """PTX type of C and D: f16, f32, f64 or s32."""
    option: str = ""
    """``satfinite`` for integers; ``and`` or ``xor`` for single bits."""
    sparse: bool = False
    """A holds half of its elements; metadata say which."""

    @property
    def name(self) -> str:
        """Name of the function: ``void name(ptr a, ptr b, ptr c)``, which replaces C by D; metadata come last."""
        kind = "_sparse" if self.sparse else ""
        return f"kf_mma_{self.rows}x8x{self.depth}_{self.a_type}_{self.b_type}_{self.c_type}{self.option}{kind}"

    @property
    def packed(self) -> int:
        """Elements per register of A and B; single bits are taken 32 at a time."""
        bits = ELEMENT_BITS[self.a_type]
        return 1 if bits in (1, 64) else 32 // bits

    @property
    def columns(self) -> int:
        """Columns of A as they are multiplied: elements, or words of 32 single bits."""
        return self.depth // 32 if self.a_type == "b1" else self.depth

    @property
    def stored(self) -> int:
        """Columns of A that its registers hold."""
        return self.columns // 2 if self.sparse else self.columns

    @property
    def metadata_bits(self) -> int:
        """Bits of metadata for the elements in one register of every lane of a group."""
        return 16 if ELEMENT_BITS[self.a_type] >= 16 else 32

    def registers(self) -> tuple[int, int, int]:
        """Registers of A, B and C."""
        wide = 4 * self.packed
        halves = self.rows // 8
        return halves * self.stored // wide, self.columns // wide, halves if self.c_type == "f16" else 2 * halves

    def metadata_lanes(self) -> int:
        """Lanes of a group of four that hold metadata."""
        return self.rows // 8 * self.stored // (4 * self.packed) * self.metadata_bits // 32


class MatrixWriter(IRBuilder):
    """Writes the parts of a product's function, each from and to memory."""

    def __init__(self, product: Product) -> None:
        super().__init__()
        self.p = product
        self.word = 64 if product.a_type == "f64" else 32
        self.total = "i32" if product.c_type == "s32" else "double"
        if product.option == "satfinite":
            self.total = "i64"
        self.size = 4 if self.total == "i32" else 8

    def kind(self, count: int) -> str:
        return f"<{count} x {self.total}>"

    def shuffle(self, kind: str, first: str, second: str, indices: list[int]) -> str:
        mask = lane_vector(indices)
        return self.op(f"shufflevector {kind} {first}, {kind} {second}, <{len(indices)} x i32> {mask}")

    def elements(self, words: str, element: str, order: list[int] | None) -> str:
        """A register as numbers in which products are formed, in ``order`` or in that of lanes."""
        p = self.p
        if element == "f64":
            value = self.op(f"bitcast <32 x i64> {words} to <32 x double>")
            return value if order is None else self.shuffle("<32 x double>", value, "poison", order)
        if element == "b1":
            return words if order is None else self.shuffle("<32 x i32>", words, "poison", order)
        bits, count = ELEMENT_BITS[element], 32 * p.packed
        if bits == 4:
            value = self.nibbles(words)
        else:
            value = self.op(f"bitcast <32 x i32> {words} to <{count} x i{bits}>")
        bits = max(bits, 8)
        if order is not None:
            value = self.shuffle(f"<{count} x i{bits}>", value, "poison", order)
        return self.number(value, element, count)

    def nibbles(self, words: str) -> str:
        """Elements of four bits as bytes."""
        pairs = self.op(f"bitcast <32 x i32> {words} to <128 x i8>")
        low = self.op(f"and <128 x i8> {pairs}, splat (i8 15)")
        high = self.op(f"lshr <128 x i8> {pairs}, splat (i8 4)")
        return self.shuffle("<128 x i8>", low, high, [k // 2 + 128 * (k % 2) for k in range(256)])

    def number(self, value: str, element: str, count: int) -> str:
        """Elements as integers or as f64, exactly."""
        bits = max(ELEMENT_BITS[element], 8)
        source, words, floats = f"<{count} x i{bits}>", f"<{count} x i32>", f"<{count} x float>"
        if element in ("s4", "s8", "u4", "u8"):
            if element == "s4":
                value = self.op(f"sub {source} {self.op(f'xor {source} {value}, splat (i8 8)')}, splat (i8 8)")
            return self.op(f"{'sext' if element[0] == 's' else 'zext'} {source} {value} to {self.kind(count)}")
        if element == "bf16":
            wide = self.op(f"shl {words} {self.op(f'zext {source} {value} to {words}')}, splat (i32 16)")
            single = self.op(f"bitcast {words} {wide} to {floats}")
        elif element == "tf32":
            wide = self.op(f"and {words} {value}, splat (i32 {-0x2000})")  # tensor cores ignore the low 13 bits
            single = self.op(f"bitcast {words} {wide} to {floats}")
        else:
            half = value
            shorts = f"<{count} x i16>"
            if element == "e5m2":
                half = self.op(f"shl {shorts} {self.op(f'zext {source} {value} to {shorts}')}, splat (i16 8)")
            elif element == "e4m3":
                half = self.e4m3(value, count)
            single = self.from_half(half, count)
            if element == "e4m3":
                # Exponents of f16 are eight greater.
                single = self.op(f"fmul {floats} {single}, {float_constant(256.0, floats)}")
        return self.op(f"fpext {floats} {single} to {self.kind(count)}")

    def e4m3(self, value: str, count: int) -> str:
        """Elements of type e4m3 in the bits of f16, without the factor of 256."""
        shorts = f"<{count} x i16>"
        wide = self.op(f"zext <{count} x i8> {value} to {shorts}")
        magnitude = self.op(f"and {shorts} {wide}, splat (i16 127)")
        sign = self.op(f"shl {shorts} {self.op(f'and {shorts} {wide}, splat (i16 128)')}, splat (i16 8)")
        nan = self.op(f"icmp eq {shorts} {magnitude}, splat (i16 127)")
        moved = self.op(f"shl {shorts} {magnitude}, splat (i16 7)")
        finite = self.select(nan, shorts, f"splat (i16 {0x7E00})", moved)
        return self.op(f"or {shorts} {finite}, {sign}")

    def from_half(self, value: str, count: int) -> str:
        """f16 as f32. Without an instruction for it, scaling by 2**112 rebiases the exponent exactly."""
        words, floats = f"<{count} x i32>", f"<{count} x float>"
        if host_features().get("f16c"):
            half = self.op(f"bitcast <{count} x i16> {value} to <{count} x half>")
            return self.op(f"fpext <{count} x half> {half} to {floats}")
        wide = self.op(f"zext <{count} x i16> {value} to {words}")
        moved = self.op(f"shl {words} {self.op(f'and {words} {wide}, splat (i32 32767)')}, splat (i32 13)")
        scaled = self.op(f"fmul {floats} {self.op(f'bitcast {words} {moved} to {floats}')}, "
                         f"{float_constant(2.0**112, floats)}")  # fmt: skip
        special = self.op(f"icmp uge {words} {moved}, splat (i32 {0x7C00 << 13})")
        high = self.op(f"or {words} {moved}, splat (i32 {0x7F800000})")
        magnitude = self.select(special, words, high, self.op(f"bitcast {floats} {scaled} to {words}"))
        sign = self.op(f"shl {words} {self.op(f'and {words} {wide}, splat (i32 32768)')}, splat (i32 16)")
        return self.op(f"bitcast {words} {self.op(f'or {words} {magnitude}, {sign}')} to {floats}")

    def write_a(self) -> None:
        """A in memory, its registers one after another."""
        count = 32 * self.p.packed
        for r in range(self.p.registers()[0]):
            words = self.load(f"<32 x i{self.word}>", "%a", 4 * self.word * r, align=64)
            numbers = self.elements(words, self.p.a_type, None)
            self.store(self.kind(count), numbers, "%left", self.size * count * r, align=64)

    def rows_of_b(self) -> list[str]:
        """Rows of B, eight elements each."""
        rows = []
        wide = 4 * self.p.packed
        order = [n * wide + k for k in range(wide) for n in range(8)]
        for r in range(self.p.registers()[1]):
            words = self.load(f"<32 x i{self.word}>", "%b", 4 * self.word * r, align=64)
            block = self.elements(words, self.p.b_type, order)
            for k in range(wide):
                indices = [8 * k + n for n in range(8)]
                rows.append(self.shuffle(self.kind(8 * wide), block, "poison", indices))
        return rows

    def write_c(self) -> None:
        """C in memory by rows."""
        p = self.p
        for half in range(p.rows // 8):
            if p.c_type == "f16":
                words = self.load("<32 x i32>", "%c", 128 * half, align=64)
                halves = self.op(f"bitcast <32 x i32> {words} to <64 x i16>")
                singles = self.from_half(halves, 64)
                block = self.op(f"fpext <64 x float> {singles} to <64 x double>")
            else:
                element = {"f32": "float", "f64": "double", "s32": "i32"}[p.c_type]
                step = 256 if p.c_type == "f64" else 128
                pair = [self.load(f"<32 x {element}>", "%c", step * (2 * half + k), align=64) for k in range(2)]
                block = self.shuffle(f"<32 x {element}>", pair[0], pair[1], [k // 2 + 32 * (k % 2) for k in range(64)])
                if p.c_type == "f32":
                    block = self.op(f"fpext <64 x float> {block} to <64 x double>")
                elif p.option == "satfinite":
                    block = self.op(f"sext <64 x i32> {block} to <64 x i64>")
            self.store(self.kind(64), block, "%total", 64 * self.size * half, align=64)

    def multiply(self, rows: list[str]) -> None:
        """Add the products to every row, in the order of k."""
        wide, halves = 4 * self.p.packed, self.p.rows // 8
        eight = self.kind(8)
        self.emit("br label %row\nrow:\n%r = phi i64 [0, %entry], [%next, %row]")
        half = self.op("lshr i64 %r, 3")
        within = self.op(f"mul i64 {self.op('and i64 %r, 7')}, {self.size * wide}")
        start = self.op(f"add i64 {self.op(f'mul i64 {half}, {32 * self.p.packed * self.size}')}, {within}")
        base = self.gep("%left", start)
        at = self.gep("%total", self.op(f"mul i64 %r, {8 * self.size}"))
        total = self.load(eight, at, align=8 * self.size)
        for k, row in enumerate(rows):
            offset = (k // wide) * halves * 32 * self.p.packed * self.size + (k % wide) * self.size
            factor = self.load(self.total, base, offset, align=self.size)
            first = self.op(f"insertelement {eight} poison, {self.total} {factor}, i64 0")
            spread = self.op(f"shufflevector {eight} {first}, {eight} poison, <8 x i32> zeroinitializer")
            total = self.accumulate(total, spread, row)
        self.store(eight, total, at, align=8 * self.size)
        self.emit(f"%next = add i64 %r, 1\n%more = icmp ult i64 %next, {self.p.rows}")
        self.emit("br i1 %more, label %row, label %done\ndone:")

    def multiply_selected(self, before: str, row_step: int, block_step: int) -> None:
        """Add the products of a sparse A to every row: each of its elements meets the row of B that metadata select.

        ``%left`` has A with these distances in elements, ``%right`` the rows of B, ``%e`` the words of metadata from
        the first lane of a group that holds some. Comes after the block ``before``, and ends in ``chosen``.
        """
        p, size, eight = self.p, self.size, self.kind(8)
        wide, bits = 4 * p.packed, ELEMENT_BITS[p.a_type]
        self.emit(f"br label %select\nselect:\n%s = phi i64 [0, %{before}], [%after, %select]")
        half = self.op("lshr i64 %s, 3")
        group = self.op("and i64 %s, 7")
        base = self.gep("%left", self.op(f"mul i64 %s, {row_step * size}"))
        at = self.gep("%total", self.op(f"mul i64 %s, {8 * size}"))
        total = self.load(eight, at, align=8 * size)
        words = self.gep("%e", self.op(f"shl i64 {group}, 4"))
        if p.metadata_bits == 32:
            words = self.gep(words, self.op(f"shl i64 {half}, 2"))
        for block in range(p.stored // wide):
            word = self.load("i32", words, 4 * block * p.metadata_bits // 16)
            if p.metadata_bits == 16:
                shift = self.op(f"trunc i64 {self.op(f'shl i64 {half}, 4')} to i32")
                word = self.op(f"lshr i32 {word}, {shift}")
            for c in range(wide):
                # Two indices for each chunk of four: of elements, of pairs of four bits, of the halves of 32.
                index = {4: c // 2, 32: 2 * c}.get(bits, c)
                position = self.op(f"and i32 {self.op(f'lshr i32 {word}, {2 * index}')}, 3")
                if bits == 32:
                    position = self.op(f"lshr i32 {position}, 1")
                unit = 2 if bits == 4 else 1
                first = {4: 8 * (index // 2) + c % 2, 32: 2 * c}.get(bits, 4 * (c // 2))
                offset = self.op(f"mul i64 {self.op(f'zext i32 {position} to i64')}, {unit * 8 * size}")
                row = self.load(
                    eight, self.gep("%right", offset), 8 * size * (2 * wide * block + first), align=8 * size
                )
                factor = self.load(self.total, base, size * (block * block_step + c), align=size)
                single = self.op(f"insertelement {eight} poison, {self.total} {factor}, i64 0")
                spread = self.op(f"shufflevector {eight} {single}, {eight} poison, <8 x i32> zeroinitializer")
                total = self.accumulate(total, spread, row)
        self.store(eight, total, at, align=8 * size)
        self.emit(f"%after = add i64 %s, 1\n%again = icmp ult i64 %after, {p.rows}")
        self.emit("br i1 %again, label %select, label %chosen\nchosen:")

    def accumulate(self, total: str, factor: str, row: str) -> str:
        """Eight sums after the product of an element of A, repeated, and a row of B."""
        eight = self.kind(8)
        if self.total == "double":
            return self.intrinsic("fma", eight, factor, row, total)
        if self.p.a_type == "b1":
            common = self.op(f"{self.p.option} {eight} {factor}, {row}")
            return self.op(f"add {eight} {total}, {self.intrinsic('ctpop', eight, common)}")
        return self.op(f"add {eight} {total}, {self.op(f'mul {eight} {factor}, {row}')}")

    def write_d(self) -> None:
        """D in the registers of C."""
        p = self.p
        for half in range(p.rows // 8):
            block = self.load(self.kind(64), "%total", 64 * self.size * half, align=64)
            if p.c_type == "f16":
                words = self.op(f"bitcast <64 x i16> {self.to_half(block)} to <32 x i32>")
                self.store("<32 x i32>", words, "%c", 128 * half, align=64)
                continue
            step = 256 if p.c_type == "f64" else 128
            if p.c_type == "f32":
                nan = self.op(f"fcmp uno <64 x double> {block}, zeroinitializer")
                single = self.op(f"fptrunc <64 x double> {block} to <64 x float>")
                words = self.op(f"bitcast <64 x float> {single} to <64 x i32>")
                block = self.select(nan, "<64 x i32>", f"splat (i32 {CANONICAL_NAN})", words)
            elif p.option == "satfinite":
                low = self.intrinsic("smax", "<64 x i64>", block, f"splat (i64 {-(1 << 31)})")
                block = self.intrinsic("smin", "<64 x i64>", low, f"splat (i64 {(1 << 31) - 1})")
                block = self.op(f"trunc <64 x i64> {block} to <64 x i32>")
            element = "double" if p.c_type == "f64" else "i32"
            for k in range(2):
                column = self.shuffle(f"<64 x {element}>", block, "poison", [2 * n + k for n in range(32)])
                self.store(f"<32 x {element}>", column, "%c", step * (2 * half + k), align=64)

    def to_half(self, block: str) -> str:
        """f64 to f16, rounded once, to nearest even."""
        wide = "<64 x i64>"
        bits = self.op(f"bitcast <64 x double> {block} to {wide}")
        nan = self.op(f"fcmp uno <64 x double> {block}, zeroinitializer")
        # Bits that f32 does not have are gathered in the last one that it has: rounded to odd.
        rest = self.op(f"and {wide} {bits}, splat (i64 {(1 << 29) - 1})")
        odd = self.op(f"zext <64 x i1> {self.op(f'icmp ne {wide} {rest}, zeroinitializer')} to {wide}")
        kept = self.op(f"and {wide} {bits}, splat (i64 {-(1 << 29)})")
        kept = self.op(f"or {wide} {kept}, {self.op(f'shl {wide} {odd}, splat (i64 29)')}")
        single = self.op(f"fptrunc <64 x double> {self.op(f'bitcast {wide} {kept} to <64 x double>')} to <64 x float>")
        if host_features().get("f16c"):
            half = self.op(f"fptrunc <64 x float> {single} to <64 x half>")
            result = self.op(f"bitcast <64 x half> {half} to <64 x i16>")
        else:
            result = self.to_half_by_integers(single)
        return self.select(nan, "<64 x i16>", "splat (i16 32767)", result)

    def to_half_by_integers(self, single: str) -> str:
        """f32 to f16, to nearest even, where the processor has no instruction for it; NaN is left to the caller."""
        words, floats = "<64 x i32>", "<64 x float>"
        bits = self.op(f"bitcast {floats} {single} to {words}")
        magnitude = self.op(f"and {words} {bits}, splat (i32 {0x7FFFFFFF})")
        last = self.op(f"and {words} {self.op(f'lshr {words} {magnitude}, splat (i32 13)')}, splat (i32 1)")
        normal = self.op(f"add {words} {self.op(f'add {words} {magnitude}, {last}')}, splat (i32 {0xFFF - 0x38000000})")
        normal = self.op(f"lshr {words} {normal}, splat (i32 13)")
        # The last bit of a sum near 1/2 is 2**-24, the smallest half.
        small = self.op(f"fadd {floats} {self.op(f'bitcast {words} {magnitude} to {floats}')}, "
                        f"{float_constant(0.5, floats)}")  # fmt: skip
        small = self.op(f"sub {words} {self.op(f'bitcast {floats} {small} to {words}')}, splat (i32 {0x3F000000})")
        tiny = self.op(f"icmp ult {words} {magnitude}, splat (i32 {0x38800000})")
        huge = self.op(f"icmp uge {words} {magnitude}, splat (i32 {0x477FF000})")
        value = self.select(huge, words, f"splat (i32 {0x7C00})", self.select(tiny, words, small, normal))
        sign = self.op(f"lshr {words} {self.op(f'and {words} {bits}, splat (i32 {-(1 << 31)})')}, splat (i32 16)")
        return self.op(f"trunc {words} {self.op(f'or {words} {value}, {sign}')} to <64 x i16>")


@functools.cache
def product_function(product: Product) -> str:
    """The IR of one product's function."""
    w = MatrixWriter(product)
    elements = product.rows * product.columns
    metadata = ", ptr %e" if product.sparse else ""
    w.emit(f"define void @{product.name}(ptr %a, ptr %b, ptr %c{metadata}) {ATTRIBUTES} {{\nentry:")
    w.emit(f"%left = alloca [{elements} x {w.total}], align 64")
    w.emit(f"%total = alloca [{8 * product.rows} x {w.total}], align 64")
    w.write_a()
    rows = w.rows_of_b()
    w.write_c()
    if product.sparse:
        w.emit(f"%right = alloca [{8 * product.columns} x {w.total}], align 64")
        for k, row in enumerate(rows):
            w.store(w.kind(8), row, "%right", 8 * w.size * k, align=8 * w.size)
        w.multiply_selected("entry", 4 * product.packed, 4 * product.packed * product.rows)
    else:
        w.multiply(rows)
    w.write_d()
    w.emit("ret void\n}")
    return "\n".join([*sorted(w.declarations), *w.lines])
