"""Read a cubin: entry points, undefined symbols, registers, module variables.

The bytes come from a confined child and are read as hostile: any defect is a ValueError.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

SYMBOL = struct.Struct("<IBBHQQ")
_STO_CUDA_ENTRY = 0x10
_STT_OBJECT, _STT_FUNC = 1, 2
_VARIABLES = (".nv.global", ".nv.constant3")
"""Sections of ``__device__`` and ``__constant__`` variables; the other constant banks are the compiler's own."""
_EIFMT_SVAL, _EIATTR_REGCOUNT = 4, 0x2F


@dataclass(frozen=True)
class CubinFacts:
    """Facts of one ELF for a real architecture."""

    entries: frozenset[str]
    undefined: frozenset[str]
    """Undefined symbols other than the driver's own ``.nv.reservedSmem.*``."""
    registers: dict[str, int]
    """Registers per thread by function, as the driver will read them."""
    variables: frozenset[str] = frozenset()
    """Module variables, those of the libraries and static ones included."""


@lru_cache(maxsize=16)
def read_cubin(cubin: bytes) -> CubinFacts:
    """Read the symbol table and ``.nv.info``; kept, for a build is judged when it is made and at each size after that.

    Raises:
        ValueError: not an ELF file that can be read.
    """
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(io.BytesIO(cubin))
        table, info = elf.get_section_by_name(".symtab"), elf.get_section_by_name(".nv.info")
        if table is None:
            raise ValueError("the cubin has no symbol table")
        symbols, names = table.data(), elf.get_section(table["sh_link"]).data()
        attributes = b"" if info is None else info.data()
        sections = [section.name for section in elf.iter_sections()]
    except (ELFError, ConstructError, KeyError, AttributeError, IndexError, OverflowError, OSError) as error:
        raise ValueError(f"the cubin is not an ELF file that can be read ({type(error).__name__})") from error
    entries: set[str] = set()
    undefined: set[str] = set()
    variables: set[str] = set()
    by_index: list[str] = []
    # Read here rather than by pyelftools, which drops the bit of st_other that marks an entry point.
    table_bytes = len(symbols) - len(symbols) % SYMBOL.size
    for offset, kind, other, section, _, _ in SYMBOL.iter_unpack(symbols[:table_bytes]):
        name = name_at(names, offset)
        by_index.append(name)
        if not name:
            continue
        if section == 0:
            if not name.startswith(".nv.reservedSmem."):
                undefined.add(name)
        elif kind & 0xF == _STT_FUNC and other & _STO_CUDA_ENTRY:
            entries.add(name)
        elif kind & 0xF == _STT_OBJECT and section < len(sections) and sections[section].startswith(_VARIABLES):
            variables.add(name)
    return CubinFacts(frozenset(entries), frozenset(undefined), _registers(attributes, by_index), frozenset(variables))


def name_at(names: bytes, offset: int) -> str:
    """The name at an offset of a table of names."""
    return names[offset : names.find(b"\0", offset)].decode("ascii", "replace")


def _registers(attributes: bytes, names: list[str]) -> dict[str, int]:
    """Registers per thread by function: REGCOUNT holds a symbol index and a count."""
    registers: dict[str, int] = {}
    for value in attribute_values(attributes, _EIATTR_REGCOUNT):
        if len(value) >= 8:
            index, count = struct.unpack_from("<II", value)
            if index < len(names):
                registers[names[index]] = count
    return registers


def attribute_values(info: bytes, number: int) -> Iterator[bytes]:
    """Values of an attribute in a section ``.nv.info``: format, attribute, size or value."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form != _EIFMT_SVAL:
            continue
        if attribute == number:
            yield info[at : at + size]
        at += size
