"""The CSV of ``ncu --csv --page raw``: one row per launch, a row of units under the head."""

from __future__ import annotations

import csv
import io
import re

from kernelforge.errors import DeviceError
from kernelforge.profiling.ncu.rows import MAX_METRICS, MAX_ROWS, LaunchRow, Triple
from kernelforge.profiling.ncu.units import Value, normalise, number

_FIXED = frozenset(
    {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
     "Device", "CC", "Section Name"}
)  # fmt: skip
_NEEDED = ("ID", "Kernel Name", "Block Size", "Grid Size")
_MAX_FIELD = 1 << 20


def parse_table(text: str) -> list[LaunchRow]:
    """The launches in ncu's CSV. Lines before the table, which ncu and the program print, are passed over.

    A cell that is no number (``n/a``, an empty one, a device's name) gives no metric.

    Raises:
        DeviceError: there is no table, it has no row of units, or it breaks off within a row.
    """
    start = re.search(r'^"?ID"?,', text, re.MULTILINE)
    if start is None:
        raise DeviceError(f"ncu printed no table of metrics; it said: {text.strip()[:300] or 'nothing'}")
    if csv.field_size_limit() < _MAX_FIELD:
        csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(text[start.start() :]), strict=True)
    try:
        head = next(reader)
        units = next(reader, [])
        rows = [row for row in reader if row and not row[0].startswith("==")]
    except csv.Error as error:
        raise DeviceError(f"ncu's table of metrics breaks off: {error}") from error
    missing = [name for name in _NEEDED if name not in head]
    if missing or len(head) > MAX_METRICS or len(rows) > MAX_ROWS:
        raise DeviceError(f"ncu's table is not one of metrics by launch ({len(head)} columns, without {missing})")
    if len(units) != len(head) or units[0].strip():
        raise DeviceError("ncu's table has no row of units; was it printed with --page raw?")
    return [_row(head, units, row) for row in rows]


def _row(head: list[str], units: list[str], row: list[str]) -> LaunchRow:
    if len(row) != len(head):
        raise DeviceError(f"ncu's table breaks off: a launch has {len(row)} of {len(head)} columns")
    cells = dict(zip(head, row, strict=True))
    metrics: dict[str, Value] = {}
    for name, unit, cell in zip(head, units, row, strict=True):
        value = None if name in _FIXED else number(cell)
        if value is not None:
            metrics[name] = normalise(name, value, unit)
    return LaunchRow(cells["Kernel Name"], _triple(cells["Grid Size"]), _triple(cells["Block Size"]), metrics)


def _triple(text: str) -> Triple:
    numbers = re.fullmatch(r"\(\s*(\d{1,10}),\s*(\d{1,10}),\s*(\d{1,10})\s*\)", text.strip())
    if numbers is None:
        raise DeviceError(f"ncu's table has {text!r} for a grid or a block")
    return int(numbers[1]), int(numbers[2]), int(numbers[3])
