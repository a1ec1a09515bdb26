"""Tables of an attempt: gates, sizes, times, tuning, metrics, kernels and its place on the roofline."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.records import KernelFacts, Origin, SizeCheck
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import byte_count, change, choices, number, times
from kernelforge.report.views.attempt import SideRow, TrialRow
from kernelforge.report.views.gates import Gate
from kernelforge.report.views.roofs import RooflinePlace
from kernelforge.report.views.task import MetricChange


def check_table(checks: Iterable[SizeCheck], *, title: str = "Is it right") -> Table:
    """Correctness by size."""
    columns = (
        Column("size", "size"),
        Column("status", "status"),
        Column("error", "error / tolerance", number, "right"),
        Column("launches", "launches", number, "right"),
        Column("families", "inputs", lambda families: ", ".join(families) or "–"),
        Column("message", "message", wide=True),
    )
    return Table.of(title, columns, checks)


def timing_table(sides: Iterable[SideRow]) -> Table:
    """The candidate and its baselines, and the speedup against each that took turns with it."""
    columns = (
        Column("name", "side"),
        Column("fastest", "fastest", lambda fastest: "yes" if fastest else ""),
        Column("median_us", "median µs", number, "right"),
        Column("low_us", "from", number, "right"),
        Column("high_us", "to", number, "right"),
        Column("samples", "samples", number, "right"),
        Column("captured", "timed as", lambda captured: "graph" if captured else "launches"),
        Column("node_gap_us", "empty kernel µs", number, "right"),
        Column("speedup", "speedup", times, "right"),
        Column("low", "at least", times, "right"),
        Column("high", "at most", times, "right"),
    )
    return Table.of("Timing", columns, sides)


def trial_table(trials: Iterable[TrialRow], *, origin: Origin) -> Table:
    """Combinations of ``# tune:`` values, as far as they came."""
    columns = (
        Column("choices", "values", choices),
        Column("rung", "rung", number, "right"),
        Column("time_us", f"{origin.value} µs", number, "right"),
        Column("own", "own", lambda own: "own" if own else ""),
        Column("problem", "problem", wide=True),
    )
    return Table.of("Tuning", columns, trials)


def metric_table(changes: Iterable[MetricChange], *, title: str = "Why", compared: bool = True) -> Table:
    """Metrics of a profile, beside those of the parent when ``compared``."""
    metrics = tuple(changes)
    named = compared and any(one.named for one in metrics)
    columns = [Column("name", "metric", wide=True)]
    if named:
        columns += [Column("named", "*", lambda named: "*" if named else "")]
    if compared:
        columns += [Column("before", "parent", number, "right")]
    columns += [Column("after", "this" if compared else "value", number, "right")]
    if compared:
        columns += [Column("change", "change", change, "right")]
    columns += [Column("unit", "unit"), Column("origin", "origin")]
    return Table.of(f"{title} (* named by the Judge)" if named else title, columns, metrics)


def gate_table(gates: Iterable[Gate]) -> Table:
    """The cascade's gates as a checklist."""
    columns = (
        Column("name", "gate"),
        Column("status", "status"),
        Column("error", "error / tolerance", number, "right"),
        Column("detail", "detail", wide=True),
    )
    return Table.of("Gates", columns, gates)


def kernel_table(kernels: Iterable[KernelFacts]) -> Table:
    """What ptxas reports of each entry point."""
    columns = (
        Column("expression", "kernel", wide=True),
        Column("registers_per_thread", "registers", number, "right"),
        Column("static_shared_bytes", "shared B", number, "right"),
        Column("spill_store_bytes", "spill stores B", number, "right"),
        Column("spill_load_bytes", "spill loads B", number, "right"),
        Column("stack_frame_bytes", "stack B", number, "right"),
        Column("max_threads_per_block", "most threads", number, "right"),
    )
    return Table.of("Kernels as compiled", columns, kernels)


def place_table(places: Iterable[RooflinePlace]) -> Table:
    """Where attempts stand under the roofs of their device."""
    columns = (
        Column("attempt", "attempt"),
        Column("flops", "flop", number, "right"),
        Column("dram_bytes", "DRAM", byte_count, "right"),
        Column("compulsory_bytes", "least", byte_count, "right"),
        Column("arithmetic_intensity", "flop/byte", number, "right"),
        Column("flops_per_s", "flop/s", number, "right"),
        Column("time_us", "µs", number, "right"),
        Column("time_origin", "time is", lambda origin: origin.value),
        Column("ceiling_us", "ceiling µs", number, "right"),
        Column("bound", "bound"),
    )
    return Table.of("Roofline", columns, places)
