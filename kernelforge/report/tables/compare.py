"""The table of two runs side by side."""

from __future__ import annotations

from kernelforge.report.phrases import short_outcome
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.tables.task import TASK
from kernelforge.report.text import ABSENT, byte_count, number, times
from kernelforge.report.views.compare import CompareView


def compare_table(view: CompareView) -> Table:
    """Pairs of two runs. A ratio above 1 is better for b; ``from`` and ``to`` are its 95 % interval."""
    show, what = {
        "time_us": (number, "µs"),
        "dram_bytes": (byte_count, "DRAM"),
        "none": (number, "value"),
    }[view.quantity]
    values = (
        Column("a_value", f"a {what}", show, "right"),
        Column("b_value", f"b {what}", show, "right"),
        Column("ratio", "b is", times, "right"),
        Column("low", "from", times, "right"),
        Column("high", "to", times, "right"),
    )
    columns = (
        TASK,
        Column("outcome", "b's outcome"),
        Column("a_verdict", "a", short_outcome, attribute="a_outcome"),
        Column("b_verdict", "b", short_outcome, attribute="b_outcome"),
        *(values if view.quantity != "none" else ()),
        Column("why", "why", wide=True),
        Column("a_best", "a's best", _number),
        Column("b_best", "b's best", _number),
    )
    return Table.of("Tasks", columns, view.pairs)


def _number(attempt: str | None) -> str:
    """An attempt's number: run and task are told beside it."""
    return ABSENT if attempt is None else attempt.rpartition("/")[2]
