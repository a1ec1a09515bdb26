"""Output of Nsight Compute, parsed: its messages, its CSV tables, its report files, and one row per launch.

Report files (``.ncu-rep``) are read with NVIDIA's ``ncu_report`` module, from PyPI or from Nsight Compute's
``extras/python``. :func:`main` does so in its own process, because the module is native code.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

from kernelforge.errors import DeviceError


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

# Units of metrics for which ncu names none.
_UNITS_BY_METRIC = {
    "launch__grid_size": "block",
    "launch__block_size": "thread",
    "launch__waves_per_multiprocessor": "wave",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "wavefront",
    "memory_l1_wavefronts_shared": "wavefront",
    "memory_l1_wavefronts_shared_ideal": "wavefront",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "request",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "request",
    "smsp__thread_inst_executed_per_inst_executed.ratio": "thread/inst",
}


def normalise(name: str, value: float, unit: str) -> Value:
    """A metric's value in its base unit; times in ``ns``. A number without a unit has the unit ``1``.

    The report file has ``ns`` and the CSV ``nsecond``, and with ``--print-units auto`` a number has a unit such as
    ``Mbyte`` or ``usecond``; scales are powers of 1000.
    """
    unit = unit.strip()
    if not unit:
        return Value(value, _UNITS_BY_METRIC.get(name, "1"))
    scaled = _SCALED.match(unit)
    if scaled:
        value *= _SCALES[scaled[1]]
        unit = unit[1:]
    base, slash, per = unit.partition("/")
    if base in _TIMES and not slash:
        return Value(value * _TIMES[base], "ns")
    unit = _SAME.get(base, base) + (f"/{_SAME.get(per, per)}" if slash else "")
    return Value(value, unit)


_GROUPED = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?\Z")
_PLAIN = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\Z")


def number(text: str) -> float | None:
    """A number as ncu prints it; None for other text: an empty cell, ``n/a``.

    Commas may group thousands. A decimal comma is refused: ncu is always started with the C locale.
    """
    text = text.strip()
    if _GROUPED.match(text):
        text = text.replace(",", "")
    elif not _PLAIN.match(text):
        return None
    value = float(text)
    return value if abs(value) < float("inf") else None


Problem = Literal["denied", "no driver", "nothing profiled", "metric", "other"]

DENIED = (
    "the driver denies performance counters to this user (ERR_NVGPUCTRPERM); as administrator, load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (a line 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' under "
    "/etc/modprobe.d, then reboot), or run as root or with CAP_SYS_ADMIN; in a container the host decides"
)

_PROBLEM_PATTERNS: tuple[tuple[str, Problem], ...] = (
    (r"ERR_NVGPUCTRPERM", "denied"),
    (r"failed to connect to the CUDA driver|LibraryNotLoaded|Failed to initialize the profiler", "no driver"),
    (r"(Failed to find|invalid|not supported|could not be collected).*\bmetric|metric.*\b(not|in)valid", "metric"),
    (r"No kernels were profiled", "nothing profiled"),
)
_MAX_LINE = 1000
_LINE = re.compile(r"^==(ERROR|WARNING)== *(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Trouble:
    """Reason for a missing profile."""

    problem: Problem
    message: str
    """The problem and the next step."""


def trouble(log: str) -> Trouble | None:
    """The problem in ncu's log; None if it reports no error."""
    lines = [line[:_MAX_LINE] for line in log.splitlines()]
    for pattern, problem in _PROBLEM_PATTERNS:
        if any(re.search(pattern, line, re.IGNORECASE) for line in lines):
            return Trouble(problem, DENIED if problem == "denied" else _messages(log))
    return Trouble("other", _messages(log)) if "==ERROR==" in log else None


def _messages(log: str, limit: int = 400) -> str:
    lines = [match[2].strip() for match in _LINE.finditer(log)]
    return "; ".join(dict.fromkeys(lines))[:limit] or log.strip()[:limit]


_FIXED = frozenset(
    {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
     "Device", "CC", "Section Name"}
)  # fmt: skip
_NEEDED = ("ID", "Kernel Name", "Block Size", "Grid Size")
_MAX_FIELD = 1 << 20


def parse_table(text: str) -> list[LaunchRow]:
    """The launches in ncu's CSV. Lines of ncu and the program before the table are skipped.

    A cell without a number (``n/a``, an empty one, a device's name) gives no metric.

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
    return [_table_row(head, units, row) for row in rows]


def _table_row(head: list[str], units: list[str], row: list[str]) -> LaunchRow:
    if len(row) != len(head):
        raise DeviceError(f"ncu's table breaks off: a launch has {len(row)} of {len(head)} columns")
    cells = dict(zip(head, row, strict=True))
    metrics: dict[str, Value] = {}
    for name, unit, cell in zip(head, units, row, strict=True):
        value = None if name in _FIXED else number(cell)
        if value is not None:
            metrics[name] = normalise(name, value, unit)
    return LaunchRow(
        cells["Kernel Name"], _parse_triple(cells["Grid Size"]), _parse_triple(cells["Block Size"]), metrics
    )


def _parse_triple(text: str) -> Triple:
    numbers = re.fullmatch(r"\(\s*(\d{1,10}),\s*(\d{1,10}),\s*(\d{1,10})\s*\)", text.strip())
    if numbers is None:
        raise DeviceError(f"ncu's table has {text!r} for a grid or a block")
    return int(numbers[1]), int(numbers[2]), int(numbers[3])


Triple = tuple[int, int, int]
Shape = tuple[str, Triple, Triple]
"""Mangled name of a kernel, grid and block."""
MAX_ROWS = 20_000
MAX_METRICS = 5_000
MAX_INSTRUCTIONS = 100_000


@dataclass(frozen=True)
class Instruction:
    """Counters of one memory instruction of the machine code in one launch."""

    line: int
    """Line of the source, 1-based; 0 if unknown."""
    file: str
    """File of the source; empty if unknown."""
    sass: str
    executed: float
    """Warps that executed it."""
    sectors: float = 0.0
    """32-byte sectors of global memory that it requested of the L2, by its addresses."""
    ideal_sectors: float = 0.0
    wavefronts: float = 0.0
    """Passes through shared memory."""
    ideal_wavefronts: float = 0.0


@dataclass(frozen=True)
class LaunchRow:
    """One launch: exact kernel, shape, metrics in base units, memory instructions."""

    symbol: str
    """Mangled name."""
    grid: Triple
    block: Triple
    metrics: Mapping[str, Value]
    instructions: tuple[Instruction, ...] = field(default=())

    @property
    def shape(self) -> Shape:
        """Kernel, grid and block, which launches of equal cost share."""
        return self.symbol, self.grid, self.block

    def value(self, name: str) -> float | None:
        metric = self.metrics.get(name)
        return None if metric is None else metric.value

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "symbol": self.symbol,
            "grid": list(self.grid),
            "block": list(self.block),
            "metrics": {name: [item.value, item.unit] for name, item in self.metrics.items()},
            "instructions": [
                [item.line, item.file, item.sass, item.executed, item.sectors, item.ideal_sectors, item.wavefronts,
                 item.ideal_wavefronts]
                for item in self.instructions
            ],
        }  # fmt: skip


def rows_from_wire(wire: Any) -> list[LaunchRow]:
    """Inverse of :meth:`LaunchRow.to_wire`, for a list of them.

    Raises:
        DeviceError: the data are malformed.
    """
    try:
        if not isinstance(wire, list) or len(wire) > MAX_ROWS:
            raise ValueError("not a list of launches")
        return [_reply_row(raw) for raw in wire]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DeviceError(f"a profile's report was read into something else: {error}") from error


def rows_from_output(text: str) -> list[LaunchRow]:
    """The launches in the last line that :func:`main` printed.

    Raises:
        DeviceError: the line is malformed or cut short.
    """
    lines = text.splitlines()
    try:
        wire = json.loads(lines[-1] if lines else "")
    except (ValueError, RecursionError) as error:
        raise DeviceError(f"a profile's report was read into no JSON: {error}") from error
    return rows_from_wire(wire)


def _reply_row(raw: Any) -> LaunchRow:
    metrics, instructions = raw["metrics"], raw["instructions"]
    if len(metrics) > MAX_METRICS or len(instructions) > MAX_INSTRUCTIONS:
        raise ValueError("more metrics than ncu has")
    return LaunchRow(
        symbol=_text(raw["symbol"]),
        grid=_checked_triple(raw["grid"]),
        block=_checked_triple(raw["block"]),
        metrics={_text(name): Value(_number(value), _text(unit)) for name, (value, unit) in metrics.items()},
        instructions=tuple(
            Instruction(int(_number(line)), _text(file), _text(sass), *(max(_number(count), 0.0) for count in counts))
            for line, file, sass, *counts in instructions
        ),
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError("text expected")
    return value


def _checked_triple(value: Any) -> Triple:
    x, y, z = (int(_number(extent)) for extent in value)
    if min(x, y, z) < 1:
        raise ValueError(f"{value!r} is not a grid or a block")
    return x, y, z


_BY_INSTRUCTION = {
    "executed": "inst_executed",
    "sectors": "memory_l2_theoretical_sectors_global",
    "ideal_sectors": "memory_l2_theoretical_sectors_global_ideal",
    "wavefronts": "memory_l1_wavefronts_shared",
    "ideal_wavefronts": "memory_l1_wavefronts_shared_ideal",
}
"""Metrics with one value per instruction ("Source Metrics" in Nsight Compute's Kernel Profiling Guide)."""


def read_report(path: str, module: Any = None) -> list[LaunchRow]:
    """The launches in a report file, in the order they ran.

    Args:
        path: The file.
        module: ``ncu_report``; imported if None.

    Raises:
        ImportError: ``ncu_report`` is not installed.
        RuntimeError: it cannot read the file.
    """
    if module is None:
        module = import_module("ncu_report")
    context = module.load_report(path)
    actions = []
    for at in range(context.num_ranges()):
        launch_range = context.range_by_idx(at)
        actions += [launch_range.action_by_idx(index) for index in range(launch_range.num_actions())]
    return [_report_row(action, module) for action in actions[:MAX_ROWS]]


def _report_row(action: Any, module: Any) -> LaunchRow:
    metrics: dict[str, Value] = {}
    kinds = module.IMetric
    numeric = {kinds.ValueKind_DOUBLE, kinds.ValueKind_FLOAT, kinds.ValueKind_UINT32, kinds.ValueKind_UINT64}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        if metric is None or not metric.has_value() or metric.kind() not in numeric:
            continue
        value = float(metric.as_double())
        if math.isfinite(value):
            metrics[name] = normalise(name, value, metric.unit() or "")
    return LaunchRow(
        symbol=action.name(module.IAction.NameBase_MANGLED),
        grid=_launch_dimensions(metrics, "grid"),
        block=_launch_dimensions(metrics, "block"),
        metrics=metrics,
        instructions=tuple(_report_instructions(action)),
    )


def _launch_dimensions(metrics: Mapping[str, Value], of: str) -> Triple:
    x, y, z = (int(metrics[f"launch__{of}_dim_{axis}"].value) for axis in "xyz")
    return x, y, z


def _report_instructions(action: Any) -> list[Instruction]:
    """Memory instructions. Their metrics have different numbers of instances, so they are joined by address."""
    by_name: dict[str, dict[int, float]] = {}
    for column, name in _BY_INSTRUCTION.items():
        metric = action.metric_by_name(name)
        values: dict[int, float] = {}
        if metric is not None and metric.has_correlation_ids():
            addresses = metric.correlation_ids()
            for at in range(metric.num_instances()):
                values[addresses.as_uint64(at)] = float(metric.as_uint64(at))
        by_name[column] = values
    instructions = []
    for address in sorted(by_name["sectors"].keys() | by_name["wavefronts"].keys()):
        counts = {column: values.get(address, 0.0) for column, values in by_name.items()}
        if not counts["sectors"] and not counts["wavefronts"]:
            continue
        source = action.source_info(address)
        line, file = (source.line(), source.file_name()) if source is not None else (0, "")
        if not 0 < line < 1 << 24:
            line = 0
        instructions.append(Instruction(line, file[-1024:], action.sass_by_pc(address).strip(), **counts))
    return instructions


def main(arguments: list[str]) -> int:
    """Print the launches of a report as one line of JSON."""
    path, *folders = arguments
    sys.path[:0] = folders
    json.dump([row.to_wire() for row in read_report(path)], sys.stdout)
    return 0
