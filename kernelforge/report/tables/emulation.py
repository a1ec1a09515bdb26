"""Tables of a user's own kernel on the emulated device."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.report.formatting import number, percent
from kernelforge.report.tables.base import Column, Table, listed
from kernelforge.report.views.emulation import LineRow, TensorRow


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


def line_table(lines: Iterable[LineRow]) -> Table:
    """Work per line."""
    columns = (
        Column("line", "line", number, "right"),
        Column("warp_instructions", "warp inst", number, "right"),
        Column("share", "share", percent, "right"),
        Column("sectors", "sectors", number, "right"),
        Column("excess_sectors", "excess", number, "right"),
        Column("wavefronts", "wavefronts", number, "right"),
        Column("excess_wavefronts", "conflicts", number, "right"),
        Column("text", "source", wide=True),
    )
    return Table.of("Counts per line", columns, lines)
