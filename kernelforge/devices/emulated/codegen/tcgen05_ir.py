"""LLVM IR of products of tensor memory (``tcgen05.mma``): operands as numbers, and sixteen rows of D.

The types of a product are known when it runs, so that a function expands the operands of one type, and another adds
products: rows of D are adjacent in tensor memory, :data:`~kernelforge.devices.emulated.layout.TENSOR_ROW` bytes apart.
Sums are formed as by ``mma``, see :mod:`.matrix_ir`, but those of FP8 keep all bits (Xie and others, *MMA-Sim*, 2025).
"""

from __future__ import annotations

import functools
from typing import Final

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.ir_builder import lane_vector
from kernelforge.devices.emulated.codegen.matrix_ir import CANONICAL_NAN, ELEMENT_BITS, Product
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES
from kernelforge.devices.emulated.codegen.tensor_core_ir import Arithmetic, Term
from kernelforge.devices.emulated.codegen.wgmma_ir import ROW_BYTES, GroupWriter

ADDS: Final = 1
SATURATES: Final = 2
"""Flags of sums: D is added, and integers saturate."""

_INTEGERS = ("s8", "u8")


def expand_name(element: str, right: bool) -> str:
    """Name of ``void name(ptr bytes, ptr numbers, ptr exponents, i64 count, i64 negative)``: rows of A, columns of B.

    ``count`` is of four rows, or of eight columns, which become rows of eight numbers.
    """
    return f"kf_tensor_{'right' if right else 'left'}_{element}"


def sums_name(element: str, result: str) -> str:
    """Name of ``void name(ptr left, ptr powers, ptr right, ptr powers, ptr d, i64 blocks, i64 flags, i64 scale)``.

    ``powers`` are exponents; ``element`` stands for all types of its size; ``blocks`` are of eight columns; D is
    multiplied by 2 to the power of minus ``scale`` before.
    """
    return f"kf_tensor_sums_{ROW_BYTES * 8 // ELEMENT_BITS[element]}_{result}"


def _writer(element: str, result: str) -> GroupWriter:
    depth = ROW_BYTES * 8 // ELEMENT_BITS[element]
    writer = GroupWriter(Product(16, depth, element, element, result))
    writer.arithmetic = Arithmetic(25, 23, result, False)
    return writer


@functools.cache
def expand_function(element: str, right: bool) -> str:
    """The IR of a function that expands operands of one type."""
    w = _writer(element, "s32" if element in _INTEGERS else "f32")
    lines, width = 8 if right else 4, w.p.columns
    count = lines * width
    w.emit(
        f"define void @{expand_name(element, right)}(ptr %bytes, ptr %numbers, ptr %exponents, i64 %count, "
        f"i64 %negative) {ATTRIBUTES} {{\nentry:\n%minus = icmp ne i64 %negative, 0\nbr label %some\n"
        "some:\n%i = phi i64 [0, %entry], [%next, %some]"
    )
    order = [n * width + k for k in range(width) for n in range(8)] if right else None
    source = w.gep("%bytes", w.op(f"mul i64 %i, {lines * ROW_BYTES}"))
    numbers, exponents = w.raw(source, lines, ROW_BYTES, element, order)
    target = w.gep("%numbers", w.op(f"mul i64 %i, {count * w.size}"))
    if w.floats:
        kind = w.kind(count)
        signs = w.op("select i1 %minus, float -1.0, float 1.0")
        first = w.op(f"insertelement {kind} poison, float {signs}, i64 0")
        signs = w.op(f"shufflevector {kind} {first}, {kind} poison, <{count} x i32> {lane_vector([0] * count)}")
        numbers = w.op(f"fmul {kind} {numbers}, {signs}")
        powers = w.gep("%exponents", w.op(f"mul i64 %i, {count * 2}"))
        w.store(f"<{count} x i16>", exponents, powers, align=2)
    w.store(w.kind(count), numbers, target, align=w.size)
    w.emit("%next = add i64 %i, 1\n%more = icmp ult i64 %next, %count")
    w.emit("br i1 %more, label %some, label %done\ndone:\nret void\n}")
    return "\n".join([*sorted(w.declarations), *w.lines])


class _SumsWriter(GroupWriter):
    """Adds products to rows of tensor memory."""

    scale = adds = saturates = ""
    """Repeated eight times: the factor of D, and whether each flag is set."""

    def add(self, r: str, terms: list[Term], largest: str | None = None) -> None:
        at = self.gep("%d_block", self.op(f"mul i64 {r}, {lay.TENSOR_ROW}"))
        eight, words = self.kind(8), "<8 x i32>"
        if self.p.c_type == "f16":
            halves = self.op(f"trunc {words} {self.load(words, at, align=4)} to <8 x i16>")
            start = self.from_half(halves, 8)
        else:
            start = self.load(eight, at, align=4)
        if not self.floats:
            self.store(words, self.integer_sums(self.select(self.adds, eight, start, "zeroinitializer"), terms), at,
                       align=4)  # fmt: skip
            return
        start = self.op(f"fmul {eight} {start}, {self.scale}")
        start = self.select(self.adds, eight, start, "zeroinitializer")
        sums = self.float_sums(start, terms, largest)
        if self.p.c_type == "f16":
            bits = self.op(f"zext <8 x i16> {self.to_half(sums, 8)} to {words}")
        else:
            nan = self.op(f"fcmp uno {eight} {sums}, zeroinitializer")
            bits = self.select(
                nan, words, f"splat (i32 {CANONICAL_NAN})", self.op(f"bitcast {eight} {sums} to {words}")
            )
        self.store(words, bits, at, align=4)

    def integer_sums(self, start: str, terms: list[Term]) -> str:
        """Eight sums of integers, modulo 2**32 or saturated: those of the products alone do not overflow."""
        eight = self.kind(8)
        total = "zeroinitializer"
        for term in terms:
            total = self.accumulate(total, self.repeat(term.factor, self.total), term.row)
        saturated = self.intrinsic("sadd.sat", eight, start, total)
        return self.select(self.saturates, eight, saturated, self.op(f"add {eight} {start}, {total}"))

    def rows(self) -> None:
        """Every row of eight columns; floats have their largest exponents found first."""
        if self.floats:
            self.float_rows()
            return
        width = self.p.columns
        self.emit("br label %row\nrow:\n%r = phi i64 [0, %block], [%following, %row]")
        start = self.op(f"mul i64 %r, {width}")
        rows = [self.load(self.kind(8), "%right", 32 * k, align=4) for k in range(width)]
        self.add("%r", [self.term(start, k, row, "") for k, row in enumerate(rows)])
        self.emit("%following = add i64 %r, 1\n%rest = icmp ult i64 %following, 16")
        self.emit("br i1 %rest, label %row, label %chosen\nchosen:")


@functools.cache
def sums_function(element: str, result: str) -> str:
    """The IR of the function of that name."""
    p = _writer(element, result).p
    w = _SumsWriter(p)
    w.arithmetic = Arithmetic(25, 23, result, False)
    width = p.columns
    w.emit(
        f"define void @{sums_name(element, result)}(ptr %left, ptr %left_exponents, ptr %rights, ptr %powers, ptr %d, "
        f"i64 %blocks, i64 %flags, i64 %scale) {ATTRIBUTES} {{\nentry:"
    )
    if w.floats:
        w.scratch(width)
        field = w.op(f"shl i64 {w.op('sub i64 127, %scale')}, 23")
        single = w.op(f"bitcast i32 {w.op(f'trunc i64 {field} to i32')} to float")
        w.scale = w.repeat(single, "float")
    w.adds, w.saturates = (
        w.repeat(w.op(f"icmp ne i64 {w.op(f'and i64 %flags, {flag}')}, 0"), "i1") for flag in (ADDS, SATURATES)
    )
    w.emit("br label %block\nblock:\n%j = phi i64 [0, %entry], [%next, %chosen]")
    w.emit(f"%right = getelementptr i8, ptr %rights, i64 {w.op(f'mul i64 %j, {32 * width}')}")
    w.emit(f"%right_exponents = getelementptr i8, ptr %powers, i64 {w.op(f'mul i64 %j, {16 * width}')}")
    w.emit(f"%d_block = getelementptr i8, ptr %d, i64 {w.op('shl i64 %j, 5')}")
    w.rows()
    w.emit("%next = add i64 %j, 1\n%more = icmp ult i64 %next, %blocks")
    w.emit("br i1 %more, label %block, label %done\ndone:\nret void\n}")
    return w.module()
