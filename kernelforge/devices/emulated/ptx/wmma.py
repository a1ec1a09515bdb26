"""Replace ``wmma`` instructions by loads, stores and ``mma`` instructions, as ptxas does.

The layout of a ``wmma`` fragment is not documented; here it is that of ``mma``. A matrix of 16 columns consists of two
tiles of eight, and f16 fragments, which PTX declares with registers for every element twice, repeat theirs. Where D has
eight rows and 32 columns, the transposed product is computed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kernelforge.devices.emulated.ptx.inline import FlatKernel, unsupported
from kernelforge.devices.emulated.ptx.parser import (
    Addr,
    Imm,
    Instruction,
    Label,
    Operand,
    Reg,
    Special,
    Sym,
    Vec,
)

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_BITS: Final = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s32": 32, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
_SHAPES: Final = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), ((16, 16, 16), (32, 8, 16), (8, 32, 16))),
    "tf32": ((16, 16, 8),), "f64": ((8, 8, 4),), "s4": ((8, 8, 32),), "u4": ((8, 8, 32),), "b1": ((8, 8, 128),),
}  # fmt: skip
_SPACES = ("global", "shared", "shared::cta", "shared::cluster")


class _Part(NamedTuple):
    """Elements in one register: row ``8 * band + lane / 4``, ``packed`` columns from ``column + step * (lane % 4)``."""

    band: int
    column: int
    packed: int
    step: int


def _operand(rows: int, depth: int, packed: int, by_columns: bool) -> list[_Part]:
    """Registers of A by tiles of 16 (or eight) rows; with ``by_columns`` those of B by tiles of eight columns."""
    bands = 1 if by_columns else min(rows, 16) // 8
    return [
        _Part(tile * bands + band, 4 * packed * block, packed, packed)
        for tile in range(rows // (8 * bands))
        for block in range(depth // (4 * packed))
        for band in range(bands)
    ]


def _accumulator(rows: int, columns: int, packed: int) -> list[_Part]:
    """Registers of C or D by tiles of 16 (or eight) rows and eight columns."""
    bands = min(rows, 16) // 8
    return [
        _Part(tile * bands + band, 8 * column + half, packed, 2)
        for tile in range(rows // (8 * bands))
        for column in range(columns // 8)
        for band in range(bands)
        for half in range(2 // packed)
    ]


class _Lowering:
    def __init__(self, kernel: FlatKernel) -> None:
        self.kernel = kernel
        self.body: list[Instruction | Label] = []
        self.serial = 0
        self.constants = _constants(kernel)

    def run(self) -> None:
        for item in self.kernel.body:
            if not isinstance(item, Instruction) or item.opcode != "wmma":
                self.body.append(item)
                continue
            self.source = item
            verb = item.modifiers[0]
            if verb in ("load", "store"):
                self.move(item)
            elif verb == "mma":
                self.multiply(item)
            else:
                raise unsupported(item)
        self.kernel.body = self.body

    # Building blocks

    def register(self, kind: str) -> Reg:
        name = f"%kf_wmma{self.serial}"
        self.serial += 1
        self.kernel.registers[name] = kind
        return Reg(name)

    def emit(self, name: str, *operands: Operand, predicated: bool = False) -> None:
        opcode, *modifiers = name.split(".")
        i = self.source
        self.body.append(
            Instruction(
                opcode, tuple(modifiers), operands, i.predicate if predicated else None, i.negated and predicated,
                i.ptx_line, i.location, i.text,
            )
        )  # fmt: skip

    def shape(self, i: Instruction, element: str) -> tuple[int, int, int]:
        match = next((m for m in map(_SHAPE.match, i.modifiers) if m), None)
        shape = (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)
        if element in _SHAPES and shape not in _SHAPES[element]:
            raise unsupported(i)
        if element not in _SHAPES and all(shape not in shapes for shapes in _SHAPES.values()):
            raise unsupported(i)
        return shape

    # Loads and stores

    def move(self, i: Instruction) -> None:
        verb, name, *rest = i.modifiers
        load = verb == "load"
        element = i.type
        layout = [m for m in rest if m in ("row", "col")]
        if name not in ("a", "b", "c", "d") or (name == "d") == load or len(layout) != 1 or element not in _BITS:
            raise unsupported(i)
        m, n, k = self.shape(i, element)
        bits = _BITS[element]
        packed = 1 if bits in (1, 64) else 32 // bits
        if name in ("c", "d"):
            if element not in ("f16", "f32", "s32", "f64"):
                raise unsupported(i)
            rows, columns = (n, m) if n == 32 else (m, n)
            parts = _accumulator(rows, columns, packed)
            natural = n if layout == ["row"] else m
            contiguous = (layout == ["row"]) != (n == 32)
            together = 2 // packed if contiguous else 1
        else:
            depth = k // 32 if element == "b1" else k
            parts = _operand(m if name == "a" else n, depth, packed, (name == "b") != (n == 32))
            natural = (k if name == "a" else n) if layout == ["row"] else (m if name == "a" else k)
            contiguous = (layout == ["row"]) == (name == "a")
            together = 1
            if bits < 8 and not contiguous:
                raise unsupported(i)
        memory, registers = (i.operands[1], i.operands[0]) if load else (i.operands[0], i.operands[1])
        items = self.items(registers)
        repeats = 512 // (64 * len(parts)) if element == "f16" and name in ("a", "b") else 1
        if len(items) != len(parts) * repeats or not all(isinstance(item, Reg) for item in items):
            raise unsupported(i, "registers of the fragment")
        stride = i.operands[2] if len(i.operands) > 2 else Imm(natural)
        access = _Access(self, i, memory, stride, bits, parts[0].step, contiguous)
        for position in range(0, len(parts), together):
            group = items[position : position + together]
            (access.load if load else access.store)(parts[position], group)
        if load:
            for copy in range(len(parts), len(items)):
                self.emit("mov.b32", items[copy], items[copy % len(parts)], predicated=True)

    # Products

    def multiply(self, i: Instruction) -> None:
        types = [m for m in i.modifiers if m in _BITS]
        if len(types) == 2:  # f16 inputs are not named
            types = [types[0], "f16", "f16", types[1]]
        if len(types) != 4 or types[0] != types[3] or len(i.operands) != 4:
            raise unsupported(i)
        result, a_type, b_type, total = types
        options = [m for m in i.modifiers if m in ("satfinite", "xor", "and")]
        flags = {"mma", "sync", "aligned", "row", "col", "popc", "rn", *types, *options}
        if any(m not in flags and not _SHAPE.match(m) for m in i.modifiers) or len(options) > 1:
            raise unsupported(i)
        m, n, k = self.shape(i, a_type)
        a, b = self.items(i.operands[1]), self.items(i.operands[2])
        d, c = self.items(i.operands[0]), self.items(i.operands[3])
        if n == 32:
            m, n, a, b, a_type, b_type = n, m, b, a, b_type, a_type
        bits = _BITS[a_type]
        packed = 1 if bits in (1, 64) else 32 // bits
        depth = k // 32 if a_type == "b1" else k
        bands, blocks = min(m, 16) // 8, depth // (4 * packed)
        height, width = m // (8 * bands), n // 8
        size = bands if total == "f16" else 2 * bands
        if (
            len(a) < height * bands * blocks
            or len(b) < width * blocks
            or len(c) != height * width * size
            or len(d) != len(c)
        ):
            raise unsupported(i, "registers of a fragment")
        if d != c and set(d) & {*a, *b, *c}:
            raise unsupported(i, "registers of D among those of another matrix")
        parts = ["mma.sync.aligned", f"m{8 * bands}n8k{k}", "row.col"]
        parts += ["satfinite"] if options == ["satfinite"] else []
        parts += [result, a_type, b_type, total]
        parts += [f"{options[0]}.popc"] if a_type == "b1" and options else []
        for row in range(height):
            for column in range(width):
                tile = slice((row * width + column) * size, (row * width + column + 1) * size)
                self.emit(
                    ".".join(parts),
                    Vec(d[tile]),
                    Vec(a[row * bands * blocks : (row + 1) * bands * blocks]),
                    Vec(b[column * blocks : (column + 1) * blocks]),
                    Vec(c[tile]),
                    predicated=True,
                )

    @staticmethod
    def items(operand: Operand) -> tuple[Operand, ...]:
        return operand.items if isinstance(operand, Vec) else (operand,)


class _Access:
    """Addresses of one fragment in memory, and the loads or stores of its registers.

    Args:
        contiguous: The elements of a register lie side by side in memory.
    """

    def __init__(
        self, lowering: _Lowering, i: Instruction, memory: Operand, stride: Operand, bits: int, step: int,
        contiguous: bool,
    ) -> None:  # fmt: skip
        if not isinstance(memory, Addr):
            raise unsupported(i, "address form")
        self.lowering, self.i, self.contiguous = lowering, i, contiguous
        self.bits = 32 if bits == 1 else bits
        self.word = 64 if bits == 64 else 32
        self.space = next((m for m in i.modifiers if m in _SPACES), "")
        self.offset = memory.offset
        base = memory.base
        if isinstance(base, Reg):
            self.wide = lowering.kernel.registers.get(base.name) in ("b64", "u64", "s64")
        elif isinstance(base, Sym):
            self.wide = not self.space.startswith("shared")
            symbol = lowering.register("b64" if self.wide else "b32")
            lowering.emit("mov.u64" if self.wide else "mov.u32", symbol, base)
            base = symbol
        else:
            raise unsupported(i, "address form")
        self.pitch = self._pitch(stride, bits)
        self.base = self._lane_base(base, step)

    def _pitch(self, stride: Operand, bits: int) -> Operand:
        """Bytes from one row (or column) of the matrix in memory to the next."""
        if isinstance(stride, Reg) and stride.name in self.lowering.constants:
            stride = Imm(self.lowering.constants[stride.name])
        if isinstance(stride, Imm):
            return Imm(stride.value * bits // 8)
        if not isinstance(stride, Reg):
            raise unsupported(self.i, "stride")
        pitch = self.lowering.register("b32")
        self.lowering.emit("mul.lo.u32", pitch, stride, Imm(bits))
        self.lowering.emit("shr.u32", pitch, pitch, Imm(3))
        return pitch

    def _lane_base(self, base: Operand, step: int) -> Reg:
        """Address of the lane's first element in the first register."""
        emit = self.lowering.emit
        lane_id, group, column = (self.lowering.register("b32") for _ in range(3))
        emit("mov.u32", lane_id, Special("%laneid"))
        emit("shr.u32", group, lane_id, Imm(2))
        emit("and.b32", column, lane_id, Imm(3))
        if self.contiguous:
            return self._add(self._add(base, group, self.pitch), column, Imm(step * self.bits // 8))
        if step > 1:
            emit("mul.lo.u32", column, column, Imm(step))
        return self._add(self._add(base, group, Imm(self.bits // 8)), column, self.pitch)

    def _add(self, address: Operand, factor: Operand, step: Operand) -> Reg:
        result = self.lowering.register("b64" if self.wide else "b32")
        self.lowering.emit("mad.wide.u32" if self.wide else "mad.lo.u32", result, factor, step, address)
        return result

    def _at(self, part: _Part, element: int) -> Addr:
        """Address of an element of a register."""
        rows, columns = 8 * part.band, part.column + element
        if not self.contiguous:
            rows, columns = columns, rows
        offset = self.offset + columns * self.bits // 8
        if isinstance(self.pitch, Imm):
            return Addr(self.base, offset + rows * self.pitch.value)
        return Addr(self._add(self.base, self.pitch, Imm(rows)) if rows else self.base, offset)

    def _name(self, opcode: str, kind: str, vector: str = "") -> str:
        return ".".join(filter(None, (opcode, self.space, vector, kind)))

    def load(self, part: _Part, registers: tuple[Operand, ...]) -> None:
        """Load one register, or two whose elements lie side by side."""
        emit = self.lowering.emit
        if self.contiguous or part.packed == 1:
            pair = len(registers) == 2
            name = self._name("ld", f"b{self.word}", "v2" if pair else "")
            emit(name, Vec(registers) if pair else registers[0], self._at(part, 0), predicated=True)
            return
        pieces: list[Operand] = []
        for element in range(part.packed):
            piece = self.lowering.register("b16" if self.bits == 16 else "b32")
            emit(self._name("ld", f"b{self.bits}"), piece, self._at(part, element), predicated=True)
            pieces.append(piece)
        if self.bits == 16:
            emit("mov.b32", registers[0], Vec(tuple(pieces)), predicated=True)
            return
        total: Operand = pieces[0]
        for element, addend in enumerate(pieces[1:], 1):
            result: Operand = registers[0] if element == part.packed - 1 else self.lowering.register("b32")
            emit("mad.lo.u32", result, addend, Imm(1 << 8 * element), total, predicated=element == part.packed - 1)
            total = result

    def store(self, part: _Part, registers: tuple[Operand, ...]) -> None:
        """Store one register, or two whose elements lie side by side."""
        emit = self.lowering.emit
        if self.contiguous or part.packed == 1:
            pair = len(registers) == 2
            name = self._name("st", f"b{self.word}", "v2" if pair else "")
            emit(name, self._at(part, 0), Vec(registers) if pair else registers[0], predicated=True)
            return
        halves = tuple(self.lowering.register("b16") for _ in range(2))
        emit("mov.b32", Vec(halves), registers[0])
        for element, half in enumerate(halves):
            emit(self._name("st", "b16"), self._at(part, element), half, predicated=True)


def _constants(kernel: FlatKernel) -> dict[str, int]:
    """Registers whose only definition is a constant."""
    values: dict[str, int | None] = {}
    for item in kernel.body:
        if not isinstance(item, Instruction) or not item.operands:
            continue
        first = item.operands[0]
        targets = first.items if isinstance(first, Vec) else (first,)
        constant = None
        if item.opcode == "mov" and item.predicate is None and isinstance(item.operands[1], Imm):
            constant = item.operands[1].value
        for target in targets:
            if isinstance(target, Reg):
                values[target.name] = constant if target.name not in values else None
    return {name: value for name, value in values.items() if value is not None}


def lower_wmma(kernel: FlatKernel) -> None:
    """Replace the ``wmma`` instructions of a kernel.

    Raises:
        UnsupportedInstruction: A shape, type or layout that PTX does not have.
    """
    if any(isinstance(item, Instruction) and item.opcode == "wmma" for item in kernel.body):
        _Lowering(kernel).run()
