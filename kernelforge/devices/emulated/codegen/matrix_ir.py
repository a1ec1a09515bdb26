"""LLVM IR of matrix products of one warp: ``mma.sync`` of every type and shape.

A fragment's registers are rows of 32 lanes in memory. With ``e`` elements in a register, lane ``4g + t`` holds row
``g`` and columns ``e*t`` to ``e*t + e - 1`` of an 8-row block (PTX ISA, fragments of ``mma``): in the order of lanes, a
register of A is such a block by rows, and a register of B is one by columns. Registers of A run over the halves of the
rows first, then over blocks of columns.

``mma.m8n8k4`` on f16, Volta's, is four products of 8 x 8 x 4: one of each *quad pair*, four lanes and the four that are
sixteen further. Each is computed as a part of an ``m16n8k8``, whose other operands are zeros.

Products are exact. Sums of f64 are formed in the order of k, those of other floats as in :mod:`.tensor_core_ir`.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

from kernelforge.devices.base import OPERATIONS_PER_INSTRUCTION
from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.ir_builder import IRBuilder, float_constant, lane_vector
from kernelforge.devices.emulated.codegen.llvm_jit import host_features
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES
from kernelforge.devices.emulated.codegen.tensor_core_ir import (
    BRANCH_WEIGHTS,
    FORMATS,
    SMALL_FLOATS,
    TensorCoreWriter,
    Term,
    arithmetic,
    wide_sums,
)
from kernelforge.devices.emulated.ptx.parser import Instruction, Vec

ELEMENT_BITS: Final = {
    "f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 8, "s8": 8,
    "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
"""Bits of an element of A or B by its PTX type; of floats of 4 and 6 bits, those of their container."""

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
    """``satfinite`` for integers; ``and`` or ``xor`` for single bits; layouts of A and B, ``rowcol``, of quad pairs."""
    sparse: bool = False
    """A holds half of its elements; metadata say which."""

    @property
    def name(self) -> str:
        """Name of the function: ``void name(ptr a, ptr b, ptr c)``, which replaces C by D; metadata come last."""
        kind = "_sparse" if self.sparse else ""
        return f"kf_mma_{self.rows}x8x{self.depth}_{self.a_type}_{self.b_type}_{self.c_type}{self.option}{kind}"

    @property
    def quad_pairs(self) -> bool:
        """Whether this is four products, one of each quad pair: ``mma.m8n8k4`` on f16."""
        return self.rows == 8 and self.a_type == "f16"

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
        if self.quad_pairs:
            return 2, 2, 4 if self.c_type == "f16" else 8
        wide = 4 * self.packed
        halves = self.rows // 8
        return halves * self.stored // wide, self.columns // wide, halves if self.c_type == "f16" else 2 * halves

    def metadata_lanes(self) -> int:
        """Lanes of a group of four that hold metadata."""
        return self.rows // 8 * self.stored // (4 * self.packed) * self.metadata_bits // 32


class MatrixWriter(TensorCoreWriter):
    """Writes the parts of a product's function, each from and to memory."""

    def __init__(self, product: Product, group: bool = False) -> None:
        super().__init__()
        self.p = product
        self.arithmetic = arithmetic(group, product.a_type, product.c_type)
        self.floats = product.c_type in ("f16", "f32")
        self.word = 64 if product.a_type == "f64" else 32
        self.total = {"s32": "i32", "f64": "double"}.get(product.c_type, "float")
        if product.option == "satfinite":
            self.total = "i64"
        self.size = 8 if self.total in ("i64", "double") else 4

    def kind(self, count: int) -> str:
        return f"<{count} x {self.total}>"

    def shuffle(self, kind: str, first: str, second: str, indices: list[int]) -> str:
        mask = lane_vector(indices)
        return self.op(f"shufflevector {kind} {first}, {kind} {second}, <{len(indices)} x i32> {mask}")

    def elements(self, words: str, element: str, order: list[int] | None) -> tuple[str, str]:
        """A register as numbers in which products are formed, in ``order`` or in that of lanes, and exponents."""
        p = self.p
        if element == "f64":
            value = self.op(f"bitcast <32 x i64> {words} to <32 x double>")
            return (value if order is None else self.shuffle("<32 x double>", value, "poison", order)), ""
        if element == "b1":
            return (words if order is None else self.shuffle("<32 x i32>", words, "poison", order)), ""
        bits, count = ELEMENT_BITS[element], 32 * p.packed
        if bits == 4:
            value = self.nibbles(words)
        else:
            value = self.op(f"bitcast <32 x i32> {words} to <{count} x i{bits}>")
        bits = max(bits, 8)
        if order is not None:
            value = self.shuffle(f"<{count} x i{bits}>", value, "poison", order)
        return self.number(value, element, count), self.exponents_of(value, element, count)

    def exponents_of(self, value: str, element: str, count: int) -> str:
        """Exponents of floats as i16; nothing for integers."""
        if not self.floats:
            return ""
        if element == "tf32":
            value = self.op(f"and <{count} x i32> {value}, splat (i32 {-0x2000})")
        return self.exponents(value, element, count)

    def nibbles(self, words: str) -> str:
        """Elements of four bits as bytes."""
        pairs = self.op(f"bitcast <32 x i32> {words} to <128 x i8>")
        low = self.op(f"and <128 x i8> {pairs}, splat (i8 15)")
        high = self.op(f"lshr <128 x i8> {pairs}, splat (i8 4)")
        return self.shuffle("<128 x i8>", low, high, [k // 2 + 128 * (k % 2) for k in range(256)])

    def number(self, value: str, element: str, count: int) -> str:
        """Elements as integers or as f32, exactly."""
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
            elif element in SMALL_FLOATS:
                half = self.small_float(value, element, count)
            single = self.from_half(half, count)
            # Exponents of f16 are eight greater than those of e4m3, for example.
            factor = {"e4m3": 2.0**8, "e2m3": 2.0**14, "e3m2": 2.0**12, "e2m1": 2.0**14}.get(element, 1.0)
            if factor != 1.0:
                single = self.op(f"fmul {floats} {single}, {float_constant(factor, floats)}")
        return single

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

    def small_float(self, value: str, element: str, count: int) -> str:
        """Elements of 4 or 6 bits, in bytes, in the bits of f16, whose exponents are greater."""
        shorts = f"<{count} x i16>"
        significand, width = FORMATS[element]
        size = significand + width
        wide = self.op(f"zext <{count} x i8> {value} to {shorts}")
        magnitude = self.op(f"and {shorts} {wide}, splat (i16 {(1 << size) - 1})")
        moved = self.op(f"shl {shorts} {magnitude}, splat (i16 {10 - significand})")
        sign = self.op(
            f"and {shorts} {self.op(f'shl {shorts} {wide}, splat (i16 {15 - size})')}, splat (i16 {-0x8000})"
        )
        return self.op(f"or {shorts} {moved}, {sign}")

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
            numbers, exponents = self.elements(words, self.p.a_type, None)
            self.store(self.kind(count), numbers, "%left", self.size * count * r, align=64)
            if self.floats:
                self.store(f"<{count} x i16>", exponents, "%left_exponents", 2 * count * r, align=64)

    def rows_of_b(self) -> list[tuple[str, str]]:
        """Rows of B, eight elements each, and the exponents of floats."""
        rows = []
        wide = 4 * self.p.packed
        order = [n * wide + k for k in range(wide) for n in range(8)]
        for r in range(self.p.registers()[1]):
            words = self.load(f"<32 x i{self.word}>", "%b", 4 * self.word * r, align=64)
            block, powers = self.elements(words, self.p.b_type, order)
            for k in range(wide):
                indices = [8 * k + n for n in range(8)]
                row = self.shuffle(self.kind(8 * wide), block, "poison", indices)
                rows.append((row, powers and self.shuffle(f"<{8 * wide} x i16>", powers, "poison", indices)))
        return rows

    def write_c(self) -> None:
        """C in memory by rows."""
        p = self.p
        for half in range(p.rows // 8):
            if p.c_type == "f16":
                words = self.load("<32 x i32>", "%c", 128 * half, align=64)
                halves = self.op(f"bitcast <32 x i32> {words} to <64 x i16>")
                block = self.from_half(halves, 64)
            else:
                element = {"f32": "float", "f64": "double", "s32": "i32"}[p.c_type]
                step = 256 if p.c_type == "f64" else 128
                pair = [self.load(f"<32 x {element}>", "%c", step * (2 * half + k), align=64) for k in range(2)]
                block = self.shuffle(f"<32 x {element}>", pair[0], pair[1], [k // 2 + 32 * (k % 2) for k in range(64)])
                if p.option == "satfinite":
                    block = self.op(f"sext <64 x i32> {block} to <64 x i64>")
            self.store(self.kind(64), block, "%total", 64 * self.size * half, align=64)

    def multiply(self, rows: list[tuple[str, str]]) -> None:
        """Add the products to every row."""
        wide, halves = 4 * self.p.packed, self.p.rows // 8
        if self.floats:
            for group in range(self.p.rows // 4):
                first = group // 2 * 32 * self.p.packed + group % 2 * 4 * wide
                places = [(k // wide * halves * 32 * self.p.packed + first, k % wide) for k in range(len(rows))]
                self.largest_of_group(group, places, wide, [powers for _, powers in rows])
        self.emit("br label %row\nrow:\n%r = phi i64 [0, %entry], [%next, %multiplied]")
        half = self.op("lshr i64 %r, 3")
        within = self.op(f"mul i64 {self.op('and i64 %r, 7')}, {wide}")
        start = self.op(f"add i64 {self.op(f'mul i64 {half}, {32 * self.p.packed}')}, {within}")
        terms = []
        for k, (row, powers) in enumerate(rows):
            offset = (k // wide) * halves * 32 * self.p.packed + k % wide
            terms.append(self.term(start, offset, row, powers))
        self.add("%r", terms, "%r")
        self.emit("br label %multiplied\nmultiplied:\n%next = add i64 %r, 1")
        self.emit(f"%more = icmp ult i64 %next, {self.p.rows}\nbr i1 %more, label %row, label %done\ndone:")

    def term(self, start: str, offset: int, row: str, powers: str) -> Term:
        """An element of A, by its index in memory, and the row of B that it meets."""
        at = self.gep("%left", self.op(f"mul i64 {start}, {self.size}"))
        factor = self.load(self.total, at, self.size * offset, align=self.size)
        power = ""
        if self.floats:
            power = self.load("i16", self.gep("%left_exponents", self.op(f"shl i64 {start}, 1")), 2 * offset, align=2)
        return Term(factor, power, row, powers)

    def parts(self, count: int) -> list[list[int]]:
        """Products, by their numbers, that are added at once."""
        if not self.arithmetic.pairs or count <= 16:
            return [list(range(count))]
        return [[k for k in range(count) if k // 2 % 2 == pair] for pair in (0, 1)]

    def largest_of_group(self, group: int, places: list[tuple[int, int]], width: int, powers: list[str]) -> None:
        """Largest exponents among the products of four rows; see :meth:`largest_exponents`."""
        for number, part in enumerate(self.parts(len(places))):
            out = 16 * (self.p.rows * number + 4 * group)
            self.largest_exponents([places[k] for k in part], width, [powers[k] for k in part], out)

    def add(self, r: str, terms: list[Term], largest: str | None = None) -> None:
        """Add products to the row ``r`` of sums; ``largest`` is the row of known largest exponents."""
        at = self.gep("%total", self.op(f"mul i64 {r}, {8 * self.size}"))
        total = self.load(self.kind(8), at, align=8 * self.size)
        if self.floats:
            total = self.float_sums(total, terms, largest)
        else:
            for term in terms:
                total = self.accumulate(total, self.repeat(term.factor, self.total), term.row)
        self.store(self.kind(8), total, at, align=8 * self.size)

    def float_sums(self, start: str, terms: list[Term], row: str | None) -> str:
        """Eight sums of a tensor core, in f32."""
        total = "zeroinitializer" if self.arithmetic.pairs else start
        for number, part in enumerate(self.parts(len(terms))):
            exponents = None
            if row is not None:
                at = self.gep("%largest", self.op(f"shl i64 {row}, 4"))
                exponents = self.load("<8 x i16>", at, 16 * self.p.rows * number, align=16)
            total = self.aligned_sums(total, [terms[k] for k in part], self.arithmetic, exponents)
            if self.arithmetic.pairs and self.p.c_type == "f16":
                total = self.from_half(self.to_half(total, 8), 8)
        return self.op(f"fadd <8 x float> {total}, {start}") if self.arithmetic.pairs else total

    def multiply_selected(self, before: str, row_step: int, block_step: int) -> None:
        """Add the products of a sparse A to every row: each of its elements meets the row of B that metadata select.

        ``%left`` has A with these distances in elements, ``%right`` the rows of B, ``%e`` the words of metadata from
        the first lane of a group that holds some. Comes after the block ``before``, and ends in ``chosen``.
        """
        p, size, eight = self.p, self.size, self.kind(8)
        wide, bits = 4 * p.packed, ELEMENT_BITS[p.a_type]
        self.emit(f"br label %select\nselect:\n%s = phi i64 [0, %{before}], [%after, %selected]")
        half = self.op("lshr i64 %s, 3")
        group = self.op("and i64 %s, 7")
        start = self.op(f"mul i64 %s, {row_step}")
        words = self.gep("%e", self.op(f"shl i64 {group}, 4"))
        if p.metadata_bits == 32:
            words = self.gep(words, self.op(f"shl i64 {half}, 2"))
        terms = []
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
                row_offset = self.op(f"mul i64 {self.op(f'zext i32 {position} to i64')}, {unit * 8}")
                fixed = 8 * (2 * wide * block + first)
                at = self.gep("%right", self.op(f"mul i64 {row_offset}, {size}"))
                row, powers = self.load(eight, at, size * fixed, align=8 * size), ""
                if self.floats:
                    at = self.gep("%right_exponents", self.op(f"shl i64 {row_offset}, 1"))
                    powers = self.load("<8 x i16>", at, 2 * fixed, align=16)
                terms.append(self.term(start, block * block_step + c, row, powers))
        self.add("%s", terms)
        self.emit(f"br label %selected\nselected:\n%after = add i64 %s, 1\n%again = icmp ult i64 %after, {p.rows}")
        self.emit("br i1 %again, label %select, label %chosen\nchosen:")

    def accumulate(self, total: str, factor: str, row: str) -> str:
        """Eight sums of f64 or integers after the product of an element of A, repeated, and a row of B."""
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
                words = self.op(f"bitcast <64 x i16> {self.to_half(block, 64)} to <32 x i32>")
                self.store("<32 x i32>", words, "%c", 128 * half, align=64)
                continue
            step = 256 if p.c_type == "f64" else 128
            if p.c_type == "f32":
                nan = self.op(f"fcmp uno <64 x float> {block}, zeroinitializer")
                words = self.op(f"bitcast <64 x float> {block} to <64 x i32>")
                block = self.select(nan, "<64 x i32>", f"splat (i32 {CANONICAL_NAN})", words)
            elif p.option == "satfinite":
                low = self.intrinsic("smax", "<64 x i64>", block, f"splat (i64 {-(1 << 31)})")
                block = self.intrinsic("smin", "<64 x i64>", low, f"splat (i64 {(1 << 31) - 1})")
                block = self.op(f"trunc <64 x i64> {block} to <64 x i32>")
            element = "double" if p.c_type == "f64" else "i32"
            for k in range(2):
                column = self.shuffle(f"<64 x {element}>", block, "poison", [2 * n + k for n in range(32)])
                self.store(f"<32 x {element}>", column, "%c", step * (2 * half + k), align=64)

    def to_half(self, single: str, count: int) -> str:
        """f32 to f16, to nearest even."""
        nan = self.op(f"fcmp uno <{count} x float> {single}, zeroinitializer")
        if host_features().get("f16c"):
            half = self.op(f"fptrunc <{count} x float> {single} to <{count} x half>")
            result = self.op(f"bitcast <{count} x half> {half} to <{count} x i16>")
        else:
            result = self.to_half_by_integers(single, count)
        return self.select(nan, f"<{count} x i16>", "splat (i16 32767)", result)

    def to_half_by_integers(self, single: str, count: int) -> str:
        """f32 to f16, to nearest even, where the processor has no instruction for it; NaN is left to the caller."""
        words, floats = f"<{count} x i32>", f"<{count} x float>"
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
        return self.op(f"trunc {words} {self.op(f'or {words} {value}, {sign}')} to <{count} x i16>")

    def module(self) -> str:
        """The text of the function and of what it needs."""
        if self.floats:
            self.emit(wide_sums(self.arithmetic.aligned, self.declarations))
            self.emit(BRANCH_WEIGHTS)
        return "\n".join([*sorted(self.declarations), *self.lines])


@functools.cache
def product_function(product: Product) -> str:
    """The IR of one product's function."""
    if product.quad_pairs:
        return _quad_pairs_function(product)
    w = MatrixWriter(product)
    elements = product.rows * product.columns
    metadata = ", ptr %e" if product.sparse else ""
    w.emit(f"define void @{product.name}(ptr %a, ptr %b, ptr %c{metadata}) {ATTRIBUTES} {{\nentry:")
    w.emit(f"%left = alloca [{elements} x {w.total}], align 64")
    w.emit(f"%total = alloca [{8 * product.rows} x {w.total}], align 64")
    if w.floats:
        w.emit(f"%left_exponents = alloca [{elements} x i16], align 64")
        w.scratch(product.stored)
    w.write_a()
    rows = w.rows_of_b()
    w.write_c()
    if product.sparse:
        w.emit(f"%right = alloca [{8 * product.columns} x {w.total}], align 64")
        if w.floats:
            w.emit(f"%right_exponents = alloca [{8 * product.columns} x i16], align 64")
        for k, (row, powers) in enumerate(rows):
            w.store(w.kind(8), row, "%right", 8 * w.size * k, align=8 * w.size)
            if w.floats:
                w.store("<8 x i16>", powers, "%right_exponents", 16 * k, align=16)
        w.multiply_selected("entry", 4 * product.packed, 4 * product.packed * product.rows)
    else:
        w.multiply(rows)
    w.write_d()
    w.emit("ret void\n}")
    return w.module()


def _quad_pairs_function(product: Product) -> str:
    """The IR of the four products of ``mma.m8n8k4`` on f16, with the function of an ``m16n8k8`` for each.

    Elements lie as in the PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type".
    """
    inner, w = Product(16, 8, "f16", "f16", product.c_type), IRBuilder()
    total = "i16" if product.c_type == "f16" else "i32"
    a_by_rows, b_by_columns = product.option.startswith("row"), product.option.endswith("col")
    eight, four = range(8), range(4)

    def thread(pair: int, number: int) -> int:
        return 4 * pair + number % 4 + 16 * (number // 4)

    def half(element: int, of_thread: int) -> int:
        return 64 * (element // 2) + 2 * of_thread + element % 2

    def a_index(pair: int, row: int, k: int) -> int:
        return half(k, thread(pair, row)) if a_by_rows else half(row % 4, thread(pair, k) + 16 * (row // 4))

    def b_index(pair: int, k: int, n: int) -> int:
        return half(k, thread(pair, n)) if b_by_columns else half(n % 4, thread(pair, k) + 16 * (n // 4))

    def c_index(pair: int, row: int, n: int) -> int:
        if product.c_type == "f16":
            return half(n, thread(pair, row))
        return 32 * (n & 4 | row & 2 | n & 1) + 4 * pair + (row & 1) + (n & 2) + 16 * (row // 4)

    def shuffle(kind: str, first: str, second: str, order: list[int]) -> str:
        indices = lane_vector(order)
        return w.op(f"shufflevector {kind} {first}, {kind} {second}, <{len(order)} x i32> {indices}")

    w.emit(f"define void @{product.name}(ptr %a, ptr %b, ptr %c) {ATTRIBUTES} {{\nentry:")
    for name, size in (("left", 256), ("right", 128), ("total", 512)):
        w.emit(f"%{name} = alloca [{size} x i8], align 64\nstore [{size} x i8] zeroinitializer, ptr %{name}, align 64")
    a, b = (w.load("<128 x i16>", operand, align=64) for operand in ("%a", "%b"))
    c = w.load(f"<256 x {total}>", "%c", align=64)
    # Of D's fragment the first 64 numbers are rows 0 to 7: by rows in f16, by even and odd columns in f32.
    places = [(row, n) for row in eight for n in eight]
    if product.c_type == "f32":
        places = [(row, n) for odd in (0, 1) for row in eight for n in range(odd, 8, 2)]
    results = []
    for pair in four:
        rows = [a_index(pair, row, k) if k < 4 else 128 for row in eight for k in eight]
        columns = [b_index(pair, k, n) if k < 4 else 128 for n in eight for k in eight]
        w.store("<64 x i16>", shuffle("<128 x i16>", a, "zeroinitializer", rows), "%left", align=64)
        w.store("<64 x i16>", shuffle("<128 x i16>", b, "zeroinitializer", columns), "%right", align=64)
        start = shuffle(f"<256 x {total}>", c, "poison", [c_index(pair, row, n) for row, n in places])
        w.store(f"<64 x {total}>", start, "%total", align=64)
        w.emit(f"call void @{inner.name}(ptr %left, ptr %right, ptr %total)")
        results.append(w.load(f"<64 x {total}>", "%total", align=64))
    joined = list(range(128))
    first = shuffle(f"<64 x {total}>", results[0], results[1], joined)
    last = shuffle(f"<64 x {total}>", results[2], results[3], joined)
    order = [0] * 256
    for pair in four:
        for number, (row, n) in enumerate(places):
            order[c_index(pair, row, n)] = 64 * pair + number
    w.store(f"<256 x {total}>", shuffle(f"<128 x {total}>", first, last, order), "%c", align=64)
    w.emit("ret void\n}")
    text = product_function(inner).replace(f"define void @{inner.name}", f"define internal void @{inner.name}")
    return "\n".join([text, *w.lines])


_PRODUCT_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


def matrix_work(i: Instruction) -> tuple[str, int, int] | None:
    """Kind and operations of a matrix instruction of one warp, and bytes that it reads from shared memory.

    A sparse product counts the half that is computed, ``mma.m8n8k4`` on f16 the products of four quad pairs. The four
    warps of a ``wgmma`` share its columns of B: each counts a quarter of them.
    """
    shape = next((match for m in i.modifiers if (match := _PRODUCT_SHAPE.match(m))), None)
    types = [m for m in i.modifiers if m in ELEMENT_BITS or m in ("f32", "s32")]
    if i.opcode not in ("mma", "wgmma") or shape is None or len(types) < 3:
        return None
    rows, columns, depth = (int(extent) for extent in shape.groups())
    total, a_type = types[:2]
    kept = 2 if any(m.startswith("sp") for m in i.modifiers) else 1
    read = 0
    if i.opcode == "wgmma":
        rows //= 4
        lines = columns // 4 + (0 if isinstance(i.operands[1], Vec) else rows // kept)
        read = ELEMENT_BITS[a_type] * depth * lines // 8
    products = 4 if (rows, columns, depth, a_type) == (8, 8, 4, "f16") else 1
    return f"{a_type}.{total}", 2 * products * rows * columns * depth // kept, read


def warp_work(i: Instruction) -> int:
    """The work of an instruction of one warp, in instructions of one warp: a product counts what it computes."""
    product = matrix_work(i)
    return 1 if product is None else 1 + product[1] // (OPERATIONS_PER_INSTRUCTION * lay.LANES)
