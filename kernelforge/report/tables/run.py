"""Tables of a run and of a suite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernelforge.records import SizeFacts, TensorSpec
from kernelforge.report.formatting import ABSENT, byte_count, duration, moment, number, percent, times
from kernelforge.report.phrases import dollar_words
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.views.anytime import AnytimePoint, Spent
from kernelforge.report.views.cost import AgentCost
from kernelforge.report.views.curves import FastCurve
from kernelforge.report.views.integrity import IntegrityRow
from kernelforge.report.views.run import RunView
from kernelforge.report.views.statistics import FAST_P
from kernelforge.report.views.suite import SuitesView, SuiteView, TaskDetail, spec_text


def suites_table(view: SuitesView) -> Table:
    """Suites side by side."""
    columns = (
        Column("name", "suite"),
        Column("tasks", "tasks", number, "right"),
        Column("levels", "levels", lambda levels: _listed(tuple(map(str, levels))), "right"),
        Column("title", "title", wide=True),
        Column("description", "what it is", wide=True),
    )
    total = sum(suite.tasks for suite in view.suites)
    return Table.of(f"{len(view.suites)} suites, {total:,} tasks", columns, view.suites)


def suite_table(view: SuiteView) -> Table:
    """Tasks of a suite."""
    columns = (
        Column("name", "task"),
        Column("level", "level", number, "right"),
        Column("title", "title", wide=True),
        Column("tags", "tags", _listed, wide=True),
        Column("sizes", "sizes", lambda sizes: number(len(sizes)), "right"),
    )
    return Table.of(f"{view.title}: suite {view.name} ({view.digest}), {len(view.tasks)} tasks", columns, view.tasks)


def size_table(detail: TaskDetail) -> Table:
    """Sizes of a task with the module constants that make them, and the facts where they are known."""
    known = {one.size: one for one in detail.facts.sizes} if detail.facts else {}
    columns = [Column("size", "size"), Column("constants", "constants", wide=True)]
    if known:
        columns += [
            Column("inputs", "inputs", wide=True),
            Column("outputs", "outputs", wide=True),
            Column("compulsory_bytes", "least bytes", byte_count, "right"),
            Column("flops", "flops", number, "right"),
            Column("eager_launches", "eager launches", number, "right"),
        ]
    rows = []
    for size in detail.task.sizes:
        constants = ", ".join(f"{name} = {value}" for name, value in size.constants.items()) or "as in the file"
        row: list[object] = [size.name, constants]
        if known:
            row += _fact_cells(known.get(size.name))
        rows.append(tuple(row))
    return Table("Sizes", tuple(columns), tuple(rows))


def _fact_cells(facts: SizeFacts | None) -> list[object]:
    if facts is None:
        return [None] * 5
    inputs = ", ".join(spec_text(one) if isinstance(one, TensorSpec) else str(one) for one in facts.inputs)
    outputs = ", ".join(spec_text(one) for one in facts.outputs)
    return [inputs, outputs, facts.compulsory_bytes, facts.flops, facts.eager_launches]


def floor_table(detail: TaskDetail) -> Table:
    """Least times at the full size, by GPU."""
    columns = (
        Column("title", "GPU"),
        Column("dram_bandwidth_gbps", "peak GB/s", number, "right"),
        Column("floor_us", "floor us", number, "right"),
        Column("arithmetic_us", "FP32 us", number, "right"),
    )
    return Table.of("At size full: least bytes at peak bandwidth; operations at the FP32 peak", columns, detail.floors)


def weight_table(facts: SizeFacts) -> Table:
    """What a plan reaches as ``w[...]``, at one size."""
    columns = (
        Column("name", "weight", wide=True),
        Column("kind", "kind"),
        Column("spec", "shape and dtype", spec_text),
        Column("aliases", "also", _listed),
    )
    return Table.of(f"Weights at size {facts.size}: w[name]", columns, facts.weights)


def attribute_table(facts: SizeFacts) -> Table:
    """What a plan reaches as ``attrs[...]``, at one size."""
    columns = (Column("name", "attribute", wide=True), Column("value", "value", str))
    return Table(f"Attributes at size {facts.size}: attrs[name]", columns, tuple(facts.attrs.items()))


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or ABSENT


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
