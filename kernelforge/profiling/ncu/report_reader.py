"""Reports (``.ncu-rep``) through NVIDIA's ``ncu_report`` module, from PyPI or from Nsight Compute's ``extras/python``.

Run as a program (``python -m kernelforge.profiling.ncu.report_reader FILE [FOLDER OF ncu_report]``) it prints the
launches as JSON, so that native code that reads a file need not run in the caller's process.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from kernelforge.profiling.ncu.parse import MAX_ROWS, Instruction, LaunchRow, Triple, Value, normalise

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
        module: ``ncu_report``; imported where None.

    Raises:
        ImportError: there is no ``ncu_report``.
        RuntimeError: it cannot read the file.
    """
    if module is None:
        module = import_module("ncu_report")
    context = module.load_report(path)
    actions = []
    for at in range(context.num_ranges()):
        one = context.range_by_idx(at)
        actions += [one.action_by_idx(index) for index in range(one.num_actions())]
    return [_row(action, module) for action in actions[:MAX_ROWS]]


def _row(action: Any, module: Any) -> LaunchRow:
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
        grid=_shape(metrics, "grid"),
        block=_shape(metrics, "block"),
        metrics=metrics,
        instructions=tuple(_instructions(action)),
    )


def _shape(metrics: Mapping[str, Value], of: str) -> Triple:
    x, y, z = (int(metrics[f"launch__{of}_dim_{axis}"].value) for axis in "xyz")
    return x, y, z


def _instructions(action: Any) -> list[Instruction]:
    """Memory instructions. Their metrics have different numbers of instances, so they are joined by address."""
    by_name: dict[str, dict[int, float]] = {}
    for field, name in _BY_INSTRUCTION.items():
        metric = action.metric_by_name(name)
        values: dict[int, float] = {}
        if metric is not None and metric.has_correlation_ids():
            addresses = metric.correlation_ids()
            for at in range(metric.num_instances()):
                values[addresses.as_uint64(at)] = float(metric.as_uint64(at))
        by_name[field] = values
    found = []
    for address in sorted(by_name["sectors"].keys() | by_name["wavefronts"].keys()):
        counts = {field: values.get(address, 0.0) for field, values in by_name.items()}
        if not counts["sectors"] and not counts["wavefronts"]:
            continue
        source = action.source_info(address)
        line, file = (source.line(), source.file_name()) if source is not None else (0, "")
        if not 0 < line < 1 << 24:
            line = 0
        found.append(Instruction(line, file[-1024:], action.sass_by_pc(address).strip(), **counts))
    return found


def main(arguments: list[str]) -> int:
    """Print the launches of a report as one line of JSON."""
    path, *folders = arguments
    sys.path[:0] = folders
    json.dump([row.to_wire() for row in read_report(path)], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
