"""A calibration in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType

from kernelforge.calibration.figures import Calibration
from kernelforge.report.formatting import number
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.terminal.widgets import field


def calibration_lines(calibration: Calibration) -> Group:
    """Every figure, and the previous one."""
    return Group(*_parts(calibration))


def figure_table(calibration: Calibration) -> Table:
    """Table of the figures."""
    columns: tuple[Column, ...] = (
        Column("name", "figure"),
        Column("unit", "unit"),
        Column("previous", "previous", number, "right"),
        Column("value", calibration.origin, number, "right"),
        Column("difference", "difference", lambda share: "" if share is None else f"{share:+.1%}", "right"),
        Column("raw", "before rounding", number, "right"),
        Column("lowest", "lowest", number, "right"),
        Column("highest", "highest", number, "right"),
        Column("in_file", "in the file", lambda there: "yes" if there else "no"),
    )
    if calibration.runs == 1:
        columns = tuple(column for column in columns if column.key not in ("lowest", "highest"))
    return Table.of("Figures", columns, calibration.figures)


def _parts(calibration: Calibration) -> Iterator[RenderableType]:
    yield field("device", f"{calibration.device} ({calibration.gpu}); times are {calibration.origin}")
    yield field("previous", f"figures of {calibration.previous_of}")
    if calibration.sm_mhz is not None:
        low, high = calibration.sm_mhz
        yield field("SM clock", f"{low} to {high} MHz")
    if calibration.throttled:
        yield field("throttled", ", ".join(calibration.throttled), style="red")
    yield figure_table(calibration).to_rich()
