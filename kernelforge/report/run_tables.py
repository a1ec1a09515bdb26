"""Tables of whole runs: what was spent, where attempts ended, what is doubted, how two runs compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelforge.records import KernelFacts
from kernelforge.report.anytime import AnytimePoint, Spent
from kernelforge.report.cost import AgentCost
from kernelforge.report.curves import FastCurve
from kernelforge.report.integrity_view import IntegrityRow
from kernelforge.report.phrases import dollar_words
from kernelforge.report.roofs import RooflinePlace
from kernelforge.report.run_view import RunView
from kernelforge.report.statistics import FAST_P
from kernelforge.report.table import Column, Table
from kernelforge.report.task_view import GeneratorView
from kernelforge.report.text import ABSENT, byte_count, duration, number, percent, times


def runs_table(views: Iterable[RunView]) -> Table:
    """Runs, one a row; speedups where they are measured."""
    columns = (
        Column("id", "run"),
        Column("origin", "times", lambda origin: ABSENT if origin is None else origin.value),
        Column("tasks_ok", "correct", number, "right"),
        Column("tasks_total", "of", number, "right"),
        Column("fast_1", "fast 1", percent, "right"),
        Column("geomean", "geomean", times, "right"),
        Column("median_dram_ratio", "DRAM vs least", times, "right"),
        Column("attempts", "attempts", number, "right"),
        Column("dollars", "dollars", dollar_words, "right"),
        Column("seconds", "time", duration, "right"),
        Column("state", "state"),
        Column("strategy", "strategy"),
        Column("device", "device"),
        Column("coder", "coder", wide=True),
        Column("started", "started"),
    )
    return Table.of("Runs", columns, map(_RunRow, views))


class _RunRow:
    """A run with its headline numbers beside the rest."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.fast_1 = view.headline.fast_1.value if view.headline.fast_1 else None
        self.geomean = view.headline.geomean_speedup.value if view.headline.geomean_speedup else None
        self.dollars = view.cost.dollars if view.cost.calls else None

    def __getattr__(self, name: str) -> object:
        return getattr(self._view, name)


def spent_table(spent: Iterable[Spent]) -> Table:
    """Where time and money went."""
    columns = (
        Column("what", "part"),
        Column("kind", "of"),
        Column("seconds", "time", duration, "right"),
        Column("dollars", "dollars", dollar_words, "right"),
    )
    return Table.of("Where time and money went", columns, spent)


def cost_table(costs: Iterable[AgentCost]) -> Table:
    """What each agent was paid."""
    columns = (
        Column("agent", "agent"),
        Column("provider", "provider"),
        Column("calls", "calls", number, "right"),
        Column("input_tokens", "tokens in", number, "right"),
        Column("cached_tokens", "cached", number, "right"),
        Column("output_tokens", "tokens out", number, "right"),
        Column("reasoning_tokens", "reasoning", number, "right"),
        Column("dollars", "dollars", dollar_words, "right"),
        Column("seconds", "time", duration, "right"),
    )
    return Table.of("What models were paid", columns, costs, keys=2)


class _FastRow(NamedTuple):
    baseline: str
    p: float
    value: float
    low: float
    high: float
    tasks: int
    untimed: int


def fast_table(curves: Iterable[FastCurve]) -> Table:
    """fast_p at the thresholds that others publish, against each baseline."""
    columns = (
        Column("baseline", "baseline"),
        Column("p", "p", number, "right"),
        Column("value", "fast p", percent, "right"),
        Column("low", "from", percent, "right"),
        Column("high", "to", percent, "right"),
        Column("tasks", "tasks", number, "right"),
        Column("untimed", "untimed", number, "right"),
    )
    rows = [
        _FastRow(curve.baseline, point.p, point.value, point.low, point.high, curve.tasks, curve.untimed)
        for curve in curves
        for point in curve.points
        if any(abs(point.p - p) < 1e-9 for p in FAST_P)
    ]
    return Table.of("fast p: share of all tasks that are correct and more than p times as fast", columns, rows, keys=2)


def anytime_table(points: Sequence[AnytimePoint]) -> Table:
    """Where the run stood whenever its best changed, and at its end."""
    columns = (
        Column("evaluations", "evaluations", number, "right"),
        Column("seconds", "after", duration, "right"),
        Column("dollars", "dollars", dollar_words, "right"),
        Column("tasks_ok", "correct", number, "right"),
        Column("geomean_speedup", "geomean", times, "right"),
        Column("median_dram_ratio", "DRAM vs least", times, "right"),
        Column("attempt", "attempt"),
    )
    best = [(point.tasks_ok, point.geomean_speedup, point.median_dram_ratio) for point in points]
    last = len(points) - 1
    rows = [point for at, point in enumerate(points) if at in (0, last) or best[at] != best[at - 1]]
    return Table.of("The best so far, whenever it changed", columns, rows)


def integrity_table(title: str, rows: Iterable[IntegrityRow]) -> Table:
    """Attempts that give cause for concern."""
    columns = (
        Column("attempt", "attempt"),
        Column("detail", "what was seen", wide=True),
        Column("scored", "counts", lambda scored: "still counts" if scored else "unscored"),
    )
    return Table.of(title, columns, rows)


def generator_table(tests: Iterable[GeneratorView]) -> Table:
    """Inputs that a Tester added."""
    columns = (
        Column("name", "test input"),
        Column("provider", "by"),
        Column("admitted", "state", lambda admitted: "in force" if admitted else "refused"),
        Column("caught", "caught attempts", lambda caught: ", ".join(f"{one:02d}" for one in caught) or ABSENT),
        Column("reason", "reason", wide=True),
    )
    return Table.of("Tests added", columns, tests)


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
