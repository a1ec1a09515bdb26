"""Reads the machine code of a cubin, with the line of the PTX that each instruction comes from.

The bytes come from a confined child and are read as hostile: what cannot be read is no error, but a reason why there is
no machine code.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from kernelforge.compile.cubin import SYMBOL, attribute_values, name_at
from kernelforge.profiling.sass_decoding import NO_MACHINE_CODE, MachineCode, Text

_TEXT = ".text."
_LINES = ".nv_debug_line_sass"
"""Line tables (DWARF 2) from machine instructions to lines of the PTX, of ``-lineinfo``."""
_INFO = ".nv.info."
_RELOCATIONS = {".rel": struct.Struct("<QQ"), ".rela": struct.Struct("<QQq")}
"""Kinds of tables of relocations: before compute capability 9, and from there on."""
_EIATTR_INDIRECT_BRANCH_TARGETS = 0x34
_ABI_OF_CUDA_13 = 8
_COMPRESSED = 0x800
"""SHF_COMPRESSED."""
MAX_BYTES = 32 << 20
MAX_ROWS = 1_000_000
"""Rows of all line tables of a cubin that are read."""


@lru_cache(maxsize=32)
def read_machine_code(cubin: bytes) -> MachineCode:
    """The machine code of a cubin; what prevents it from being read is its ``problem``."""
    if not cubin:
        return MachineCode(0, {}, f"{NO_MACHINE_CODE} is shown: nothing was assembled")
    try:
        return _read(cubin)
    except (ValueError, struct.error, IndexError) as error:
        return MachineCode(0, {}, f"{NO_MACHINE_CODE} is shown: the cubin cannot be read ({error})")


def _read(cubin: bytes) -> MachineCode:
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    if len(cubin) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        elf = ELFFile(io.BytesIO(cubin))
        # The second byte since CUDA 13, the first before: Triton's own assembler is of CUDA 12.
        capability = elf.header["e_flags"] >> (8 if elf.header["e_ident"]["EI_ABIVERSION"] >= _ABI_OF_CUDA_13 else 0)
        capability &= 0xFF
        sections = {section.name: section for section in elf.iter_sections() if _is_of_the_file(section.header)}
        needed = (_TEXT, _INFO, _LINES, ".symtab", *(kind + _LINES for kind in _RELOCATIONS))
        if sum(s["sh_size"] for name, s in sections.items() if name.startswith(needed)) > len(cubin):
            raise ValueError("its sections have more bytes than it has")
        codes = {name.removeprefix(_TEXT): s.data() for name, s in sections.items() if name.startswith(_TEXT)}
        tables = {name: _indirect(sections[_INFO + name].data()) for name in codes if _INFO + name in sections}
        lines: dict[str, list[tuple[int, int]]] = {}
        if _LINES in sections:
            table = sections[".symtab"].data()
            symbols = [symbol[0] for symbol in SYMBOL.iter_unpack(table[: len(table) - len(table) % SYMBOL.size])]
            names = elf.get_section(sections[".symtab"]["sh_link"]).data()
            at: dict[int, str] = {}
            for kind, entry in _RELOCATIONS.items():
                if kind + _LINES in sections:
                    at |= _relocated(sections[kind + _LINES].data(), entry, symbols, names)
            lines = _line_tables(sections[_LINES].data(), at)
    except (ELFError, ConstructError, KeyError, AttributeError, OverflowError, OSError, UnicodeError) as error:
        raise ValueError(f"it is no ELF file: {type(error).__name__}") from error
    texts = {
        name: Text(code, tuple(_rising(lines.get(name, []))), tables.get(name, {})) for name, code in codes.items()
    }
    return MachineCode(capability, texts, "" if texts else f"{NO_MACHINE_CODE} is shown: the cubin has none")


def _is_of_the_file(header: Mapping[str, Any]) -> bool:
    """Whether a section's bytes are those in the file."""
    return header["sh_type"] != "SHT_NOBITS" and not header["sh_flags"] & _COMPRESSED


def _relocated(relocations: bytes, entry: struct.Struct, symbols: list[int], names: bytes) -> dict[int, str]:
    """By offset in the line tables: the function whose address stands there."""
    functions: dict[int, str] = {}
    complete = relocations[: len(relocations) - len(relocations) % entry.size]
    for offset, info, *_ in entry.iter_unpack(complete):
        functions[offset] = name_at(names, symbols[info >> 32]).removeprefix(_TEXT)
    return functions


def _indirect(info: bytes) -> dict[int, tuple[int, ...]]:
    """Targets of indirect branches by their addresses, from a kernel's ``.nv.info``."""
    targets: dict[int, tuple[int, ...]] = {}
    for value in attribute_values(info, _EIATTR_INDIRECT_BRANCH_TARGETS):
        begin = 0
        while begin + 12 <= len(value):
            address, _, count = struct.unpack_from("<III", value, begin)
            begin += 12
            count = min(count, (len(value) - begin) // 4)
            targets[address] = struct.unpack_from(f"<{count}I", value, begin)
            begin += 4 * count
    return targets


def _rising(rows: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Rows in the order of their addresses; of several for one address the last."""
    yield from sorted(dict(rows).items())


def _line_tables(section: bytes, functions: Mapping[int, str]) -> dict[str, list[tuple[int, int]]]:
    """Rows of address and line by function, from all line number programs of a section (DWARF 2, section 6.2)."""
    tables: dict[str, list[tuple[int, int]]] = {}
    at = rows = 0
    while at + 4 <= len(section):
        (length,) = struct.unpack_from("<I", section, at)
        end = min(at + 4 + length, len(section))
        (header,) = struct.unpack_from("<I", section, at + 6)
        program = at + 10 + header
        step, _, base, span, first = struct.unpack_from("<BBbBB", section, at + 10)
        operands = section[at + 15 : at + 14 + first]
        if not span:
            raise ValueError("a line table advances by no lines")
        for function, address, line in _rows(section, program, end, (step, base, span, first), operands, functions):
            tables.setdefault(function, []).append((address, line))
            rows += 1
            if rows > MAX_ROWS:
                raise ValueError(f"its line tables have more than {MAX_ROWS} rows")
        at = end
    return tables


def _rows(
    section: bytes,
    at: int,
    end: int,
    header: tuple[int, int, int, int],
    operands: bytes,
    functions: Mapping[int, str],
) -> Iterator[tuple[str, int, int]]:
    """Rows of one line number program: function, address, line."""
    step, base, span, first = header
    function, address, line = "", 0, 1
    while at < end:
        opcode = section[at]
        at += 1
        if opcode >= first:
            address += (opcode - first) // span * step
            line += base + (opcode - first) % span
            yield function, address, line
        elif opcode == 0:
            size, at = _unsigned(section, at)
            kind = section[at] if size else 0
            if kind == 1:  # the end of a sequence
                function, address, line = "", 0, 1
            elif kind == 2:
                function = functions.get(at + 1, "")
                address = int.from_bytes(section[at + 1 : at + min(size, 9)], "little")
            at += size
        elif opcode == 1:
            yield function, address, line
        elif opcode == 2:
            advance, at = _unsigned(section, at)
            address += advance * step
        elif opcode == 3:
            value, next_at = _unsigned(section, at)
            bits = 7 * (next_at - at)
            line += value - (1 << bits) if value >> (bits - 1) else value
            at = next_at
        elif opcode == 8:
            address += (255 - first) // span * step
        elif opcode == 9:
            address += int.from_bytes(section[at : at + 2], "little")
            at += 2
        else:
            for _ in range(operands[opcode - 1]):
                _, at = _unsigned(section, at)


def _unsigned(section: bytes, at: int) -> tuple[int, int]:
    """An LEB128 number, and where it ends."""
    value = shift = 0
    while True:
        byte = section[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number in a line table is too long")
