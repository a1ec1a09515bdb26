"""Units of Nsight Compute, in the words of our records and without a scale."""

from __future__ import annotations

import re
from typing import NamedTuple


class Value(NamedTuple):
    """A number in a base unit: ``byte``, ``ns``, ``cycle``, ``%``, ``1``..."""

    value: float
    unit: str


_TIMES = {
    "ns": 1.0, "nsecond": 1.0,
    "us": 1e3, "usecond": 1e3,
    "ms": 1e6, "msecond": 1e6,
    "s": 1e9, "second": 1e9,
}  # fmt: skip
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SAME = {
    "sectors": "sector", "requests": "request", "instructions": "inst", "cycles": "cycle",
    "hz": "Hz", "second": "s", "nsecond": "ns",
}  # fmt: skip
_SCALED = re.compile(r"([KMGT])(byte|hz|Hz|bit)\b")

# Where ncu names no unit although the metric has one.
_KNOWN = {
    "launch__grid_size": "block",
    "launch__block_size": "thread",
    "launch__waves_per_multiprocessor": "wave",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "wavefront",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": "wavefront",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "request",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "request",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "thread/inst",
}


def normalise(name: str, value: float, unit: str) -> Value:
    """A metric's value in its base unit; times in ``ns``. A number without a unit has the unit ``1``.

    The report file says ``ns`` where the CSV says ``nsecond``, and with ``--print-units auto`` a number comes in
    ``Mbyte`` or ``usecond``; scales are powers of 1000.
    """
    unit = unit.strip()
    if not unit:
        return Value(value, _KNOWN.get(name, "1"))
    scaled = _SCALED.match(unit)
    if scaled:
        value *= _SCALES[scaled[1]]
        unit = unit[1:]
    whole, slash, per = unit.partition("/")
    if whole in _TIMES and not slash:
        return Value(value * _TIMES[whole], "ns")
    unit = _SAME.get(whole, whole) + (f"/{_SAME.get(per, per)}" if slash else "")
    return Value(value, unit)


_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\Z")
_PLAIN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


def number(text: str) -> float | None:
    """A number as ncu prints it; None for what is none: an empty cell, ``n/a``, text.

    Thousands may be grouped by commas. A decimal comma is refused rather than read as a thousands separator: ncu is
    always started with the C locale.
    """
    text = text.strip()
    if _GROUPED.match(text):
        text = text.replace(",", "")
    elif not _PLAIN.match(text):
        return None
    value = float(text)
    return value if abs(value) < float("inf") else None
