"""Text of LLVM IR: temporaries, constants and the operations that the emitters share."""

from __future__ import annotations

import struct

CURRENT_ROUNDING = 4
"""Operand of AVX-512's instructions that may name a rounding mode."""
FLOAT_TYPES = {16: "half", 32: "float", 64: "double"}


def int_type(bits: int, vec: bool) -> str:
    """LLVM type of a register value of ``bits`` bits: scalar, or one element per lane."""
    return f"<32 x i{bits}>" if vec else f"i{bits}"


def float_type(bits: int, vec: bool) -> str:
    """LLVM type of a floating-point value."""
    return f"<32 x {FLOAT_TYPES[bits]}>" if vec else FLOAT_TYPES[bits]


def suffix(kind: str) -> str:
    """Name mangling of an LLVM type in intrinsic names."""
    short = {"half": "f16", "float": "f32", "double": "f64"}
    if kind.startswith("<"):
        count, element = kind[1:-1].split(" x ")
        return f"v{count}{short.get(element, element)}"
    return short.get(kind, kind)


def lane_vector(values: list[int], element: str = "i32") -> str:
    """Constant vector."""
    return "<" + ", ".join(f"{element} {v}" for v in values) + ">"


def float_constant(value: float, kind: str) -> str:
    """A constant of LLVM floating-point type ``kind`` (``float``, ``double`` or a vector of them)."""
    element = kind[1:-1].split(" x ")[1] if kind.startswith("<") else kind
    if element == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    elif element == "half":
        value = struct.unpack("<e", struct.pack("<e", value))[0]
    bits = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if element == "half":
        bits = f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return f"splat ({element} {bits})" if kind.startswith("<") else bits


def nan_constant(kind: str) -> str:
    """The NaN that an H100 gives where an f32 operation has none: every bit but the sign."""
    bits = "0x7FFFFFFFE0000000"
    return f"splat (float {bits})" if kind.startswith("<") else bits


class IRBuilder:
    """Collects instructions of one function and the intrinsics they need.

    Args:
        avx512: The processor has AVX-512 (F and DQ), so that ``register_call`` may be used.
    """

    def __init__(self, avx512: bool = False) -> None:
        self.avx512 = avx512
        self.lines: list[str] = []
        self.serial = 0
        self.declarations: set[str] = set()

    def emit(self, line: str) -> None:
        """Append a line."""
        self.lines.append(line)

    def temp(self) -> str:
        """A fresh value name."""
        self.serial += 1
        return f"%t{self.serial}"

    def label(self, stem: str) -> str:
        """A fresh label name."""
        self.serial += 1
        return f"{stem}{self.serial}"

    def op(self, text: str) -> str:
        """Append ``%t = text`` and return the name."""
        name = self.temp()
        self.lines.append(f"{name} = {text}")
        return name

    def call(self, name: str, result: str, *arguments: tuple[str, str], convention: str = "") -> str:
        """Call a function or intrinsic, declaring it; returns the value (empty for void)."""
        self.declarations.add(f"declare {convention}{result} @{name}({', '.join(kind for kind, _ in arguments)})")
        text = f"call {convention}{result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.emit(text)
            return ""
        return self.op(text)

    def intrinsic(self, name: str, kind: str, *values: str) -> str:
        """Call ``llvm.<name>`` with operands and result of one type."""
        return self.call(f"llvm.{name}.{suffix(kind)}", kind, *((kind, v) for v in values))

    def register_call(
        self, name: str, lanes: int, operands: list[tuple[str, str]], result: str, *more: tuple[str, str]
    ) -> str:
        """Call an intrinsic of AVX-512 on each ``lanes`` lanes of 32, which fill a register.

        Args:
            name: The intrinsic, without its prefix.
            lanes: Lanes of a register.
            operands: Types and values of the vectors.
            result: Type of the result of all lanes.
            more: Types and values of further operands; a vector's type is that of a register.
        """

        def part(kind: str) -> str:
            return f"<{lanes} x {kind.rpartition(' ')[2][:-1]}>"

        joined = "poison"
        for at in range(0, 32, lanes):
            taken = []
            for kind, value in operands:
                extract = f"llvm.vector.extract.{suffix(part(kind))}.{suffix(kind)}"
                taken.append((part(kind), self.call(extract, part(kind), (kind, value), ("i64", str(at)))))
            value = self.call(f"llvm.x86.avx512.{name}.512", part(result), *taken, *more)
            insert = f"llvm.vector.insert.{suffix(result)}.{suffix(part(result))}"
            joined = self.call(insert, result, (result, joined), (part(result), value), ("i64", str(at)))
        return joined

    def select(self, condition: str, kind: str, yes: str, no: str) -> str:
        """Lane-wise or scalar select; the condition's shape follows ``kind``."""
        return self.op(f"select {bool_type(kind)} {condition}, {kind} {yes}, {kind} {no}")

    def to_integer(self, value: str, kind: str, integer: str, *, signed: bool = True) -> str:
        """A floating-point value as an integer: truncated and saturated; 0 for NaN.

        LLVM's own intrinsic takes a vector apart, and then costs ten times as much.
        """
        bits = int(integer.rstrip(">").rpartition("i")[2])
        verb = "fptosi" if signed else "fptoui"
        if not kind.startswith("<"):
            return self.call(f"llvm.{verb}.sat.{integer}.{suffix(kind)}", integer, (kind, value))
        limit, least = (2.0 ** (bits - 1), -(2.0 ** (bits - 1))) if signed else (2.0**bits, 0.0)
        below = float_constant(least - 1, kind)
        # Where the number below the least is no floating-point number, the comparison is with the least.
        exact = below != float_constant(least, kind)
        flags = bool_type(kind)
        low = self.op(f"fcmp {'ogt' if exact else 'oge'} {kind} {value}, {below}")
        high = self.op(f"fcmp olt {kind} {value}, {float_constant(limit, kind)}")
        inside = self.select(self.op(f"and {flags} {low}, {high}"), kind, value, "zeroinitializer")
        result = self.op(f"{verb} {kind} {inside} to {integer}")
        most = (1 << (bits - 1)) - 1 if signed else -1
        above = self.op(f"fcmp oge {kind} {value}, {float_constant(limit, kind)}")
        result = self.select(above, integer, f"splat (i{bits} {most})", result)
        if not signed:
            return result
        under = self.op(f"fcmp ole {kind} {value}, {below}")
        return self.select(under, integer, f"splat (i{bits} {-(1 << (bits - 1))})", result)

    def gep(self, base: str, offset: int | str) -> str:
        """Address ``offset`` bytes after ``base``."""
        return self.op(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, kind: str, base: str, offset: int = 0, align: int | None = None) -> str:
        """Load from ``base + offset`` bytes."""
        pointer = self.gep(base, offset) if offset else base
        return self.op(f"load {kind}, ptr {pointer}" + (f", align {align}" if align else ""))

    def store(self, kind: str, value: str, base: str, offset: int = 0, align: int | None = None) -> None:
        """Store to ``base + offset`` bytes."""
        pointer = self.gep(base, offset) if offset else base
        self.emit(f"store {kind} {value}, ptr {pointer}" + (f", align {align}" if align else ""))

    def splat(self, value: str, element: str) -> str:
        """Repeat a scalar over 32 lanes."""
        if not value.startswith("%"):
            return f"splat ({element} {value})"
        first = self.op(f"insertelement <32 x {element}> poison, {element} {value}, i64 0")
        return self.op(f"shufflevector <32 x {element}> {first}, <32 x {element}> poison, <32 x i32> zeroinitializer")


def bool_type(kind: str) -> str:
    """The condition type that selects between values of ``kind``."""
    return f"<{kind[1:-1].split(' x ')[0]} x i1>" if kind.startswith("<") else "i1"
