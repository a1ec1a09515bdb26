"""Decodes the machine code (SASS) of a cubin: 128-bit instructions of compute capabilities 7.5 to 12.

Bits 0 to 8 are the opcode, 9 to 11 the form of the operands, 12 to 15 the predicate, and bits 105 to 125 control how
an instruction is issued (Jia et al., *Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking*, section
2.1). NVIDIA publishes no more: opcodes and other fields are those that ``nvdisasm`` prints
(``tests/compile/test_machine_code.py`` compares them). An opcode that is not here counts as an instruction that is
issued, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernelforge.profiling.sass_code import INSTRUCTION_BYTES, Control, SassFunction, SassInstruction, cut_into_blocks

MAX_INSTRUCTIONS = 200_000
"""Instructions of the largest function that is decoded."""
NO_MACHINE_CODE = "no machine code"
"""How notes begin that say why there is none."""

_OPCODES: Mapping[int, str] = {
    0x001: "PMTRIG", 0x002: "MOV", 0x003: "P2R", 0x004: "R2P", 0x005: "CS2R", 0x006: "VOTE", 0x007: "SEL",
    0x008: "FSEL", 0x009: "FMNMX", 0x00A: "FSET", 0x00B: "FSETP", 0x00C: "ISETP", 0x00F: "VIMNMX3", 0x010: "IADD3",
    0x011: "LEA", 0x012: "LOP3", 0x013: "IABS", 0x014: "VABSDIFF", 0x015: "VABSDIFF4", 0x016: "PRMT", 0x017: "IMNMX",
    0x019: "SHF", 0x01A: "SGXT", 0x01B: "BMSK", 0x01C: "PLOP3", 0x01F: "PLOP3", 0x020: "FMUL", 0x021: "FADD",
    0x023: "FFMA", 0x024: "IMAD", 0x025: "IMAD", 0x026: "IDP", 0x027: "IMAD", 0x028: "DMUL", 0x029: "DADD",
    0x02A: "DSETP", 0x02B: "DFMA", 0x02D: "PREEXIT", 0x02E: "ACQBULK", 0x02F: "ELECT", 0x030: "HADD2", 0x031: "HFMA2",
    0x032: "HMUL2", 0x033: "HSET2", 0x034: "HSETP2", 0x035: "HFMA2", 0x036: "VIADD", 0x037: "IMMA", 0x038: "I2I",
    0x039: "I2IP", 0x03A: "MOVM", 0x03B: "LDSM", 0x03C: "HMMA", 0x03D: "BMMA", 0x03E: "F2FP", 0x03F: "DMMA",
    0x040: "HMNMX2", 0x044: "STSM", 0x045: "I2FP", 0x046: "VIADDMNMX", 0x048: "VIMNMX", 0x049: "FFMA2", 0x04A: "FMUL2",
    0x04B: "FADD2", 0x04C: "UVIRTCOUNT", 0x056: "UFMUL", 0x05A: "UI2F", 0x05C: "UF2I", 0x05E: "UI2FP", 0x076: "FMNMX3",
    0x07A: "QMMA", 0x07F: "OMMA", 0x082: "UMOV", 0x083: "UP2UR", 0x084: "UR2UP", 0x085: "UIMNMX", 0x086: "VOTEU",
    0x087: "USEL", 0x08C: "UISETP", 0x090: "UIADD3", 0x091: "ULEA", 0x092: "ULOP3", 0x096: "UPRMT", 0x097: "UIADD3",
    0x099: "USHF", 0x09C: "UPLOP3", 0x0A4: "UIMAD", 0x0A5: "UIMAD", 0x0A6: "UIMAD", 0x0B9: "ULDC", 0x0BB: "ULDC",
    0x0BD: "UFLO", 0x0BE: "UBREV", 0x0BF: "UPOPC", 0x0CA: "R2UR", 0x0CB: "CS2UR", 0x0CC: "CREDUX", 0x100: "FLO",
    0x101: "BREV", 0x102: "FCHK", 0x104: "F2F", 0x105: "F2I", 0x106: "I2F", 0x107: "FRND", 0x108: "MUFU", 0x109: "POPC",
    0x110: "F2F", 0x111: "F2I", 0x112: "I2F", 0x113: "FRND", 0x118: "NOP", 0x119: "S2R", 0x11A: "DEPBAR",
    0x11B: "ENDCOLLECTIVE", 0x11C: "B2R", 0x11D: "BAR", 0x140: "CCTL", 0x141: "BSYNC", 0x142: "BREAK", 0x143: "CALL",
    0x144: "CALL", 0x145: "BSSY", 0x146: "YIELD", 0x147: "BRA", 0x148: "WARPSYNC", 0x149: "BRX", 0x14A: "JMP",
    0x14C: "JMX", 0x14D: "EXIT", 0x14E: "LEPC", 0x150: "RET", 0x152: "RPCMOV", 0x153: "RPCMOV", 0x155: "BMOV",
    0x156: "BMOV", 0x15C: "BPT", 0x15D: "NANOSLEEP", 0x17E: "LDG", 0x17F: "STG", 0x180: "LD", 0x181: "LDG",
    0x182: "LDC", 0x183: "LDL", 0x184: "LDS", 0x185: "ST", 0x186: "STG", 0x187: "STL", 0x188: "STS", 0x189: "SHFL",
    0x18A: "ATOM", 0x18B: "ATOM", 0x18C: "ATOMS", 0x18D: "ATOMS", 0x18E: "RED", 0x18F: "CCTL", 0x192: "MEMBAR",
    0x1A1: "MATCH", 0x1A3: "ATOMG", 0x1A5: "LDGMC", 0x1A6: "RED", 0x1A7: "SYNCS", 0x1A8: "ATOMG",
    0x1A9: "ATOMG", 0x1AA: "QSPC", 0x1AB: "ERRBAR", 0x1AC: "LDCU", 0x1AE: "LDGSTS", 0x1AF: "LDGDEPBAR",
    0x1B0: "ARRIVES", 0x1B1: "SYNCS", 0x1B2: "SYNCS", 0x1B4: "UTMALDG", 0x1B5: "UTMASTG", 0x1B6: "UTMAREDG",
    0x1B7: "UTMACMDFLUSH", 0x1B8: "UTMAPF", 0x1B9: "UTMACCTL", 0x1BA: "UBLKCP", 0x1BB: "UBLKRED", 0x1BC: "UBLKPF",
    0x1BD: "STAS", 0x1BE: "REDAS", 0x1C2: "R2UR", 0x1C3: "S2UR", 0x1C4: "REDUX", 0x1C5: "WARPGROUP", 0x1C6: "FENCE",
    0x1C7: "UCGABAR_ARV", 0x1CA: "UGETNEXTWORKID", 0x1E3: "UTCATOMSWS", 0x1E6: "UTCSHIFT", 0x1E7: "UTCCP",
    0x1E9: "UTCBAR", 0x1EA: "UTCHMMA", 0x1ED: "STTM", 0x1EE: "LDTM", 0x1F0: "HGMMA", 0x1F1: "IGMMA", 0x1F2: "BGMMA",
    0x1F3: "QGMMA",
}  # fmt: skip
_MATRIX_HALVES = 0x035
"""``HFMA2.MMA``, products of halves on the tensor cores' path; from compute capability 10 on a sum of integers."""
_PAIRS, _LEAST_OF_UNIFORM = 0x04A, 1 << 27
"""``FMUL2``; with bit 91, of the path for values that a warp's lanes share, ``UVIMNMX``."""
_OF_HALVES, _MIXED = 1 << 17, {0x021: "FHADD", 0x023: "FHFMA"}
"""Bit 81 of a sum or product of floats: operands are halves, from compute capability 10 on."""
_CLUSTER_BARRIER, _WAITING_FORM = 0x1C7, 6
_TENSOR_MEMORY, _FOUR_BITS = 0x1EA, 1 << 63
"""``UTC*MMA``: bits 72 and 73 are the kind of its elements, and bit 63 says that they have 4 bits, with scales."""
_KINDS_OF_ELEMENTS = "HIHQ"
_UPPER = frozenset({0x027, 0x0A6})
"""``IMAD.HI`` and ``UIMAD.HI``: the upper halves of products."""
_EXTENDS, _CARRIES, _HALVES = 1 << 8, 1 << 10, 1 << 16
"""Bits 72, 74 and 80: the second comparison (``ISETP.EX``) or sum (``.X``) of 64 bits, and the upper half (``.HI``)."""
_UPPER_BITS = {
    **dict.fromkeys(("SHF", "USHF"), _HALVES),
    **dict.fromkeys(("LEA", "ULEA"), _HALVES | _CARRIES),
    **dict.fromkeys(("ISETP", "UISETP"), _EXTENDS),
}
_INTEGERS = frozenset({"IADD3", "IMAD", "LEA", "SHF", "ISETP", "UIADD3", "UIMAD", "USHF", "ULEA", "UISETP"})
_WIDE = frozenset({"LD", "LDG", "LDL", "LDS", "ST", "STG", "STL", "STS", "LDGSTS", "LDC"})
_WIDEST = frozenset({0x17E, 0x17F})
"""``LDG`` and ``STG`` of 32 bytes."""
_WIDTHS = ("U8", "S8", "U16", "S16", "", "64", "128", "")
_BRANCHES = ("", "U", "DIV", "CONV")
"""Kinds of ``BRA`` by bits 32 and 33: for all lanes at once, for warps whose lanes are apart, where they meet."""
_ALWAYS = 7
"""The predicate that is true."""
_ZERO = 255
"""The register that is zero."""
_UNIFORM_FORM = 2
"""Operands' form of a ``BRA`` that takes a predicate of all lanes."""
_COUNTING_FORM = 7
"""That of an ``ATOMS.POPC.INC``."""
_NEW_BRANCHES, _NEW_ADDITIONS = 90, 100
"""Compute capabilities, times 10, from which branches have 8 more bits of offset, and :data:`_MATRIX_HALVES` adds."""


@dataclass(frozen=True)
class Text:
    """The machine code of one function as a cubin has it."""

    code: bytes
    lines: tuple[tuple[int, int], ...]
    """Addresses in it, rising, and the line of the PTX that instructions from there on come from."""
    tables: Mapping[int, tuple[int, ...]]
    """By address of an indirect branch: the addresses that it may go to."""


@dataclass(frozen=True)
class MachineCode:
    """The machine code of one cubin; a function is decoded when it is first asked for."""

    capability: int
    """Compute capability times 10."""
    texts: Mapping[str, Text]
    """By symbol; empty where there are none to be had."""
    problem: str = ""
    """Why there are none."""
    _decoded: dict[str, SassFunction] = field(default_factory=dict, compare=False, repr=False)

    def function(self, symbol: str) -> SassFunction | None:
        """A kernel with its subroutines; None where the cubin has none of that name, or one that is too large."""
        if symbol not in self._decoded and symbol in self.texts:
            text = self.texts[symbol]
            if len(text.code) > MAX_INSTRUCTIONS * INSTRUCTION_BYTES:
                return None
            self._decoded[symbol] = decode(symbol, text, self.capability)
        return self._decoded.get(symbol)


def decode(name: str, text: Text, capability: int) -> SassFunction:
    """A function from its machine code."""
    length = len(text.code) // INSTRUCTION_BYTES * INSTRUCTION_BYTES
    import numpy as np

    words = np.frombuffer(text.code[:length], "<u8").reshape(-1, 2)
    addresses = np.arange(len(words)) * INSTRUCTION_BYTES
    starts = np.array([address for address, _ in text.lines], dtype=np.int64)
    at = np.searchsorted(starts, addresses, side="right").tolist()
    lines = [0, *(line for _, line in text.lines)]
    controls: dict[int, Control] = {}
    instructions = []
    for index, (low, high) in enumerate(words.tolist()):
        bits = high >> 41
        control = controls.get(bits)
        if control is None:
            control = controls[bits] = Control.of(high)
        address = index * INSTRUCTION_BYTES
        line = lines[at[index]]
        instructions.append(_instruction(low, high, address, line, control, capability, text.tables))
    return cut_into_blocks(name, instructions)


def _instruction(
    low: int,
    high: int,
    address: int,
    line: int,
    control: Control,
    capability: int,
    tables: Mapping[int, tuple[int, ...]],
) -> SassInstruction:
    number, shape, name = low & 0x1FF, low >> 9 & 7, _name(low, high, capability)
    predicated = low >> 12 & 15 != _ALWAYS  # bit 15 negates it
    modifier, form = "", 0
    targets: tuple[int, ...] = ()
    barrier: int | None = None
    conditional = predicated
    if number == _MATRIX_HALVES:
        modifier = "" if capability >= _NEW_ADDITIONS else "MMA"
    elif number in _WIDEST:
        modifier = "256"
    elif name in _WIDE:
        modifier = _WIDTHS[high >> 9 & 7]
    elif name == "ATOMS":
        modifier = "POPC" if shape == _COUNTING_FORM else ""
    elif name in ("LDSM", "STSM"):
        modifier = str(1 << (high >> 8 & 3))
    elif name == "BRA":
        modifier = _BRANCHES[low >> 32 & 3]
        operand = low >> 24 & 7 if shape == _UNIFORM_FORM else high >> 23 & 7
        conditional = predicated or modifier in ("DIV", "CONV") or operand != _ALWAYS
        targets = (_target(low, high, address, capability),)
    elif name == "CALL":
        targets = (_target(low, high, address, capability),) if number & 1 == 0 else ()
    elif name == "BRX":
        targets = tables.get(address, ())
    elif name == "BSSY":
        targets = (address + INSTRUCTION_BYTES + _signed(low >> 32, 32),)
        barrier = low >> 16 & 15
    elif name in ("BSYNC", "BREAK"):
        barrier = low >> 16 & 15
    elif name == "S2R":
        modifier = "TID" if 0x20 <= (high >> 8 & 0xFF) <= 0x23 else ""
    if name in _INTEGERS:
        modifier, form = _of_integers(name, number, shape, low, high)
    return SassInstruction(
        address=address,
        opcode=f"{name}.{modifier}" if modifier else name,
        form=form,
        predicated=predicated,
        conditional=conditional,
        ptx_line=line,
        control=control,
        targets=targets,
        barrier=barrier,
    )


def _name(low: int, high: int, capability: int) -> str:
    """Name of an instruction, without modifiers."""
    number = low & 0x1FF
    if number == _MATRIX_HALVES and capability >= _NEW_ADDITIONS:
        return "IADD"
    if number in _MIXED and high & _OF_HALVES and capability >= _NEW_ADDITIONS:
        return _MIXED[number]
    if number == _PAIRS and high & _LEAST_OF_UNIFORM:
        return "UVIMNMX"
    if number == _CLUSTER_BARRIER and low >> 9 & 7 == _WAITING_FORM:
        return "UCGABAR_WAIT"
    if number == _TENSOR_MEMORY:
        return f"UTC{'O' if low & _FOUR_BITS else _KINDS_OF_ELEMENTS[high >> 8 & 3]}MMA"
    name = _OPCODES.get(number) or f"OP{number:03X}"
    return "REDG" if name == "RED" and capability >= _NEW_BRANCHES else name


def _of_integers(name: str, number: int, shape: int, low: int, high: int) -> tuple[str, int]:
    """Modifier of an integer instruction that works on upper halves, and a number that tells its kinds apart.

    Kinds are what one line of the PTX has one of: a product, a shift by a product, a move by a product with zero.
    """
    upper = number in _UPPER or bool(high & _UPPER_BITS.get(name, _CARRIES))
    moves = (low >> 24 & 0xFF) == _ZERO or (shape in (1, 5) and low >> 32 & 0xFF == _ZERO)
    factor = low >> 32 & 0xFFFFFFFF if shape == 4 and name == "IMAD" else 0
    shifts = factor > 1 and factor & factor - 1 == 0
    kind = high & (_HALVES | 0xFF00 if name in _UPPER_BITS else 0x700)
    return "HI" if upper else "", kind << 16 | number << 4 | moves << 2 | shifts << 1 | (factor == 1)


def _target(low: int, high: int, address: int, capability: int) -> int:
    """Target of a relative branch: its offset is from the next instruction, in words of 4 bytes."""
    offset = _signed((low >> 34 | high << 30) & (1 << 48) - 1, 48)
    if capability >= _NEW_BRANCHES:
        offset = offset << 8 | low >> 16 & 0xFF
    return address + INSTRUCTION_BYTES + 4 * offset


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
