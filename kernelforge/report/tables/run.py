"""Tables of whole runs: what was spent, where attempts ended, what is doubted, how two runs compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelforge.report.phrases import dollar_words
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import ABSENT, duration, moment, number, percent, times
from kernelforge.report.views.anytime import AnytimePoint, Spent
from kernelforge.report.views.cost import AgentCost
from kernelforge.report.views.curves import FastCurve
from kernelforge.report.views.integrity import IntegrityRow
from kernelforge.report.views.run import RunView
from kernelforge.report.views.statistics import FAST_P


def runs_table(views: Iterable[RunView]) -> Table:
    """Runs, one a row; speedups where they are measured."""
    columns = (
        Column("id", "run"),
        Column("strategy", "strategy"),
        Column("coder", "coder", wide=True),
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
        Column("device", "device"),
        Column("started", "started", moment),
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
    uncompiled: int


def fast_table(curves: Iterable[FastCurve]) -> Table:
    """fast_p at the thresholds that others publish, against each baseline."""
    columns = (
        Column("baseline", "baseline"),
        Column("p", "p", number, "right"),
        Column("value", "fast_p", percent, "right"),
        Column("low", "from", percent, "right"),
        Column("high", "to", percent, "right"),
        Column("tasks", "tasks", number, "right"),
        Column("untimed", "untimed", number, "right"),
        Column("uncompiled", "without compile", number, "right"),
    )
    rows = [
        _FastRow(
            curve.baseline, point.p, point.value, point.low, point.high, curve.tasks, curve.untimed, curve.uncompiled
        )
        for curve in curves
        for point in curve.points
        if any(abs(point.p - p) < 1e-9 for p in FAST_P)
    ]
    return Table.of("fast_p: share of all tasks that are correct and more than p times as fast", columns, rows, keys=2)


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
        Column("scored", "has a speedup or a reward", lambda scored: "yes" if scored else "no"),
    )
    return Table.of(title, columns, rows)
