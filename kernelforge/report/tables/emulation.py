"""Tables of a user's own kernel on the emulated device."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.report.formatting import number, percent
from kernelforge.report.tables.base import Column, Table, listed
from kernelforge.report.views.emulation import LineRow, OpcodeRow, TensorRow


def tensor_table(tensors: Iterable[TensorRow]) -> Table:
    """Tensors after the run."""
    columns = (
        Column("name", "tensor"),
        Column("dtype", "dtype"),
        Column("shape", "shape", lambda shape: " x ".join(map(str, shape)) or "scalar"),
        Column("minimum", "min", number, "right"),
        Column("mean", "mean", number, "right"),
        Column("maximum", "max", number, "right"),
        Column("not_finite", "not finite", number, "right"),
        Column("first", "first elements", lambda first: listed([number(value) for value in first]), wide=True),
    )
    return Table.of("Tensors after the run", columns, tensors)


def opcode_table(opcodes: Iterable[OpcodeRow]) -> Table:
    """Machine code by opcode."""
    columns = (
        Column("kernel", "kernel", wide=True),
        Column("opcode", "opcode"),
        Column("warp_instructions", "warp inst", number, "right"),
        Column("share", "share", percent, "right"),
    )
    return Table.of("Machine code (estimated)", columns, opcodes, keys=2)


def line_table(lines: Iterable[LineRow]) -> Table:
    """Work per line, with estimated machine instructions where there are some."""
    lines = tuple(lines)
    estimated = any(line.machine_instructions is not None for line in lines)
    columns = (
        Column("line", "line", number, "right"),
        Column("warp_instructions", "warp inst", number, "right"),
        Column("share", "share", percent, "right"),
        *([Column("machine_instructions", "SASS (est.)", number, "right")] if estimated else []),
        Column("sectors", "sectors", number, "right"),
        Column("excess_sectors", "excess", number, "right"),
        Column("wavefronts", "wavefronts", number, "right"),
        Column("excess_wavefronts", "conflicts", number, "right"),
        Column("text", "source", wide=True),
    )
    return Table.of("Counts per line", columns, lines)
