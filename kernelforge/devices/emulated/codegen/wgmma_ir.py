"""LLVM IR of a warp's share of ``wgmma.mma_async``: sixteen rows of the product of 64 rows by N columns.

Rows of A and columns of B of every type come as 32 bytes each, the accumulator as registers of 32 lanes, four of
them (two for f16) for eight columns. Sums are formed and rounded as those of ``mma``: see :mod:`.matrix_ir`.
"""

from __future__ import annotations

import functools

from kernelforge.devices.emulated.codegen.ir_builder import lane_vector
from kernelforge.devices.emulated.codegen.matrix_ir import ELEMENT_BITS, MatrixWriter, Product
from kernelforge.devices.emulated.codegen.memory_ir import ATTRIBUTES

ROW_BYTES = 32
"""Of a row of A or a column of B in one instruction; a sparse A has columns of B of twice as many."""


def group_product_name(product: Product) -> str:
    """Name of the function: ``void name(ptr a, ptr b, ptr c, i64 blocks, float sign)``; C becomes D.

    Metadata come last.
    """
    return product.name.replace("kf_mma", "kf_wgmma")


class GroupWriter(MatrixWriter):
    """Writes the parts of a product of sixteen rows, whose operands are in memory by rows and columns."""

    def raw(self, pointer: str, rows: int, size: int, element: str, order: list[int] | None) -> tuple[str, str]:
        """Some rows of ``size`` bytes in memory as numbers in which products are formed, and exponents."""
        bits = max(ELEMENT_BITS[element], 8)
        bits = 32 if element == "b1" else bits
        count = rows * size * 8 // bits
        value = self.load(f"<{count} x i{bits}>", pointer, align=1)
        if order is not None:
            value = self.shuffle(f"<{count} x i{bits}>", value, "poison", order)
        if element == "b1":
            return value, ""
        return self.number(value, element, count), self.exponents_of(value, element, count)

    def rows_of_a(self) -> None:
        """A in memory by rows."""
        width = self.p.stored
        for r in range(0, 16, 4):
            numbers, exponents = self.raw(self.gep("%a", ROW_BYTES * r), 4, ROW_BYTES, self.p.a_type, None)
            if self.floats:
                numbers = self.op(f"fmul {self.kind(4 * width)} {numbers}, %signs{4 * width}")
                self.store(f"<{4 * width} x i16>", exponents, "%left_exponents", 2 * width * r, align=2)
            self.store(self.kind(4 * width), numbers, "%left", self.size * width * r, align=self.size)

    def block(self) -> None:
        """Eight columns: B by rows in memory, then every product."""
        width = self.p.columns
        order = [n * width + k for k in range(width) for n in range(8)]
        size = ROW_BYTES * (1 + self.p.sparse)
        numbers, exponents = self.raw(self.gep("%b", self.op(f"mul i64 %j, {8 * size}")), 8, size, self.p.b_type, order)
        self.store(self.kind(8 * width), numbers, "%right", align=64)
        if self.floats:
            self.store(f"<{8 * width} x i16>", exponents, "%right_exponents", align=64)
        self.write_c()
        if self.p.sparse:
            self.multiply_selected("block", self.p.stored, 4 * self.p.packed)
            self.write_d()
            return
        if self.floats:
            self.float_rows()
        else:
            self.integer_rows()
        self.write_d()

    def float_rows(self) -> None:
        """Add the products to one row after another."""
        width = self.p.columns
        powers = [self.load("<8 x i16>", "%right_exponents", 16 * k, align=16) for k in range(width)]
        for group in range(4):
            self.largest_of_group(group, [(4 * group * width, k) for k in range(width)], width, powers)
        self.emit("br label %row\nrow:\n%r = phi i64 [0, %block], [%following, %multiplied]")
        start = self.op(f"mul i64 %r, {width}")
        terms = []
        for k in range(width):
            row = self.load("<8 x float>", "%right", 32 * k, align=32)
            terms.append(self.term(start, k, row, self.load("<8 x i16>", "%right_exponents", 16 * k, align=16)))
        self.add("%r", terms, "%r")
        self.emit("br label %multiplied\nmultiplied:\n%following = add i64 %r, 1\n%rest = icmp ult i64 %following, 16")
        self.emit("br i1 %rest, label %row, label %chosen\nchosen:")

    def integer_rows(self) -> None:
        """Add the products to all rows together."""
        width, eight = self.p.columns, self.kind(8)
        totals = [self.load(eight, "%total", 8 * self.size * r, align=8 * self.size) for r in range(16)]
        for k in range(width):
            row = self.load(eight, "%right", 8 * self.size * k, align=8 * self.size)
            for r in range(16):
                factor = self.load(self.total, "%left", self.size * (r * width + k), align=self.size)
                totals[r] = self.accumulate(totals[r], self.repeat(factor, self.total), row)
        for r, total in enumerate(totals):
            self.store(eight, total, "%total", 8 * self.size * r, align=8 * self.size)
        self.emit("br label %chosen\nchosen:")


@functools.cache
def group_product_function(product: Product) -> str:
    """The IR of one product's function."""
    w = GroupWriter(product, group=True)
    registers = 2 if product.c_type == "f16" else 4
    width = product.stored
    metadata = ", ptr %e" if product.sparse else ""
    w.emit(
        f"define void @{group_product_name(product)}(ptr %a, ptr %b, ptr %registers, i64 %blocks, float %sign"
        f"{metadata}) {ATTRIBUTES} {{\nentry:"
    )
    w.emit(f"%left = alloca [{16 * width} x {w.total}], align 64")
    w.emit(f"%right = alloca [{8 * product.columns} x {w.total}], align 64")
    w.emit(f"%total = alloca [128 x {w.total}], align 64")
    if w.floats:
        w.emit(f"%left_exponents = alloca [{16 * width} x i16], align 64")
        w.emit(f"%right_exponents = alloca [{8 * product.columns} x i16], align 64")
        w.scratch(width)
        kind = w.kind(4 * width)
        first = w.op(f"insertelement {kind} poison, float %sign, i64 0")
        w.emit(f"%signs{4 * width} = shufflevector {kind} {first}, {kind} poison, "
               f"<{4 * width} x i32> {lane_vector([0] * 4 * width)}")  # fmt: skip
    w.rows_of_a()
    w.emit("br label %block\nblock:\n%j = phi i64 [0, %entry], [%next, %chosen]")
    w.emit(f"%c = getelementptr i8, ptr %registers, i64 {w.op(f'mul i64 %j, {128 * registers}')}")
    w.block()
    w.emit("%next = add i64 %j, 1\n%more = icmp ult i64 %next, %blocks")
    w.emit("br i1 %more, label %block, label %done\ndone:\nret void\n}")
    return w.module()
