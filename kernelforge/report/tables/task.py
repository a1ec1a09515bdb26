"""Tables of a task, of its attempts, and of tasks of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kernelforge.records import KernelFacts, Origin, SizeCheck
from kernelforge.report.formatting import (
    ABSENT,
    byte_count,
    change,
    choices,
    duration,
    number,
    percent,
    predicted_speedup,
    short_outcome,
    times,
)
from kernelforge.report.tables.base import Column, Table, listed
from kernelforge.report.views.attempt import Gate, SideRow, TrialRow
from kernelforge.report.views.bounds import KernelBounds
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.metric_selection import MetricCorrelation, TaskSample
from kernelforge.report.views.recomputed_rewards import RescoredView
from kernelforge.report.views.roofline import RooflinePoint
from kernelforge.report.views.run_records import TaskSummary
from kernelforge.report.views.task import BaselineTime, GeneratorView, LineageNode, MetricChange, TaskSize

TASK = Column("task", "task", wide=True)
_VERDICT = Column("verdict", "verdict", short_outcome, attribute="outcome")
_COUNTERS = (
    Column("dram_bytes", "DRAM", byte_count, "right"),
    Column("dram_ratio", "vs least", times, "right"),
    Column("sectors_per_request", "sect/req", number, "right"),
    Column("launches", "launches", number, "right"),
)
_SPEEDS = (
    Column("time_us", "time µs", number, "right"),
    Column("speedup", "speedup", times, "right"),
    Column("speedup_lower", "at least", times, "right"),
    Column("speedup_eager", "vs eager", times, "right"),
)
_EXPECTED = Column("expected_us", "predicted µs", number, "right")
_PREDICTED = Column("predicted", "predicted vs eager", predicted_speedup, "right")
_MEDIAN = (
    Column("median_us", "median µs", number, "right"),
    Column("low_us", "from", number, "right"),
    Column("high_us", "to", number, "right"),
    Column("samples", "samples", number, "right"),
    Column("captured", "timed as", lambda captured: "graph" if captured else "launches"),
)
_DELTAS = {"time_us": "time", "dram_bytes": "DRAM"}


def compare_table(view: CompareView) -> Table:
    """Pairs of two runs. A ratio above 1 is better for b; ``from`` and ``to`` are its 95 % interval."""
    unit = "modelled µs" if view.quantity == "modelled_us" else "µs"
    values = (
        Column("a_value", f"a {unit}", number, "right"),
        Column("b_value", f"b {unit}", number, "right"),
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
        Column("a_best", "a's best", _attempt_number),
        Column("b_best", "b's best", _attempt_number),
    )
    return Table.of("Tasks", columns, view.pairs)


def _attempt_number(attempt: str | None) -> str:
    """Number of an attempt by its id; the table names run and task elsewhere."""
    return ABSENT if attempt is None else attempt.rpartition("/")[2]


def task_table(
    title: str, tasks: Iterable[TaskSummary], *, origin: Origin, with_run: bool = False, of_board: bool = False
) -> Table:
    """Tasks of one origin: counters, predicted speedups and the modelled bound, or measured times and speedups.

    Times that were predicted before the measurement stand in a run's table, and not in a board's (``of_board``).
    """
    tasks = list(tasks)
    predicted = (_PREDICTED,) if any(task.predicted for task in tasks) else ()
    # Next to a predicted speedup the bound is modelled too, and the table just as wide as a screen.
    middle: tuple[Column, ...] = (*_COUNTERS, *predicted, Column("bound", "bound" if predicted else "modelled bound"))
    if origin is Origin.MEASURED:
        expected = (_EXPECTED,) if not of_board and any(task.expected_us for task in tasks) else ()
        middle = (_SPEEDS[0], *expected, *_SPEEDS[1:], Column("bound", "bound"), *_COUNTERS[1:2])
    columns = (
        TASK,
        _VERDICT,
        Column("rounds", "rounds", number, "right"),
        *middle,
        Column("moves", "best came by", wide=True),
        *((Column("run", "run"),) if with_run else ()),
    )
    return Table.of(title, columns, tasks)


def lineage_table(nodes: Iterable[LineageNode], *, origin: Origin) -> Table:
    """Attempts at one task: times and speedups where they are measured, else DRAM traffic."""
    nodes = list(nodes)
    shared: tuple[Column, ...] = (
        (Column("equal_to", "equal to", number, "right"),) if any(node.equals for node in nodes) else ()
    )
    if any(node.alike for node in nodes):
        shared = (*shared, Column("alike", "alike", percent, "right"), Column("alike_to", "to", number, "right"))
    middle: tuple[Column, ...] = (*_COUNTERS[:2], Column("time_us", "modelled µs", number, "right"))
    if origin is Origin.MEASURED:
        middle = (
            *_SPEEDS[:2],
            Column("low", "from", times, "right"),
            Column("high", "to", times, "right"),
            Column("dram_ratio", "DRAM vs least", times, "right"),
        )
    columns = (
        Column("number", "#", number, "right"),
        Column("step", "step", wide=True),
        Column("parent", "of", number, "right"),
        _VERDICT,
        Column("stage", "stage"),
        *shared,
        *middle,
        Column("delta", "vs parent", change, "right"),
        Column("delta_of", "of what", lambda of: _DELTAS.get(of, ABSENT)),
        Column("accepted", "accepted", lambda accepted: "yes" if accepted else ""),
        Column("best", "best", lambda best: "yes" if best else ""),
        Column("dollars", "dollars", number, "right"),
        Column("seconds", "took", duration, "right"),
    )
    return Table.of("Attempts", columns, nodes)


def size_table(sizes: Iterable[TaskSize]) -> Table:
    """Sizes of a task with their module constants, and the facts where the reference was run."""
    rows = tuple(sizes)
    facts = (
        Column("inputs", "inputs", listed, wide=True),
        Column("outputs", "outputs", listed, wide=True),
        Column("compulsory_bytes", "least bytes", byte_count, "right"),
        Column("flops", "flops", number, "right"),
        Column("eager_launches", "eager launches", number, "right"),
    )
    columns = (
        Column("size", "size"),
        Column("constants", "constants", lambda values: choices(values) or "as in the file", wide=True),
        *(facts if any(row.compulsory_bytes is not None for row in rows) else ()),
    )
    return Table.of("Sizes", columns, rows)


def baseline_table(baselines: Iterable[BaselineTime]) -> Table:
    """Baselines with the best time that the run measured of each."""
    columns = (Column("name", "baseline"), *_MEDIAN, Column("attempt", "timed with attempt", _attempt_number))
    return Table.of("Baselines", columns, baselines)


def sample_table(samples: Iterable[TaskSample]) -> Table:
    """Tasks whose candidates were correlated, and those that were left out."""
    columns = (
        TASK,
        Column("candidates", "correct", number, "right"),
        Column("counted", "counted", number, "right"),
        Column("why", "left out", wide=True),
    )
    return Table.of("Candidates", columns, samples)


def correlation_table(metrics: Iterable[MetricCorrelation]) -> Table:
    """Metrics with their correlation with the time, and the tasks in which each is among the strongest."""
    columns = (
        Column("name", "metric", wide=True),
        Column("selected", "chosen", lambda selected: "yes" if selected else ""),
        Column("mean", "mean |r|", _short, "right"),
        Column("sign", "more is"),
        Column("top", "tasks", number, "right"),
        Column("in_cudaforge", "of the 24", lambda own: "yes" if own else ""),
    )
    return Table.of("Correlation with the time", columns, metrics)


def generator_table(tests: Iterable[GeneratorView]) -> Table:
    """Input generators of a Tester."""
    columns = (
        Column("name", "test input"),
        Column("provider", "by"),
        Column("admitted", "state", lambda admitted: "in force" if admitted else "refused"),
        Column("caught", "caught attempts", lambda numbers: listed(tuple(f"{caught:02d}" for caught in numbers))),
        Column("reason", "reason", wide=True),
    )
    return Table.of("Tests added", columns, tests)


def gate_table(gates: Iterable[Gate]) -> Table:
    """Gates of the cascade as a checklist."""
    columns = (
        Column("name", "gate"),
        Column("status", "status"),
        Column("error", "error / tolerance", number, "right"),
        Column("detail", "detail", wide=True),
    )
    return Table.of("Gates", columns, gates)


def check_table(checks: Iterable[SizeCheck], *, title: str = "Is it right") -> Table:
    columns = (
        Column("size", "size"),
        Column("status", "status"),
        Column("error", "error / tolerance", number, "right"),
        Column("launches", "launches", number, "right"),
        Column("families", "inputs", listed),
        Column("message", "message", wide=True),
    )
    return Table.of(title, columns, checks)


def timing_table(sides: Iterable[SideRow]) -> Table:
    """The candidate and its baselines, and the speedup against each that was timed in turns with it."""
    name, fastest = Column("name", "side"), Column("fastest", "fastest", lambda fastest: "yes" if fastest else "")
    columns = (
        name,
        fastest,
        *_MEDIAN,
        Column("node_gap_us", "empty kernel µs", number, "right"),
        Column("speedup", "speedup", times, "right"),
        Column("low", "at least", times, "right"),
        Column("high", "at most", times, "right"),
    )
    return Table.of("Timing", columns, sides)


def trial_table(trials: Sequence[TrialRow], combinations: int, *, origin: Origin) -> Table:
    """The tried ones of ``combinations`` of ``# tune:`` values, with the rung that each reached."""
    columns = (
        Column("choices", "values", choices),
        Column("rung", "rung", number, "right"),
        Column("time_us", f"{origin.value} µs", number, "right"),
        Column("own", "own", lambda own: "own" if own else ""),
        Column("problem", "problem", wide=True),
    )
    title = "Tuning" if len(trials) >= combinations else f"Tuning: {len(trials)} of {combinations:,} combinations"
    return Table.of(title, columns, trials)


def metric_table(changes: Iterable[MetricChange], *, title: str = "Why", compared: bool = True) -> Table:
    """Metrics of a profile; with those of the parent when ``compared``."""
    metrics = tuple(changes)
    named = compared and any(metric.named for metric in metrics)
    columns = (
        Column("name", "metric", wide=True),
        *((Column("named", "*", lambda named: "*" if named else ""),) if named else ()),
        *((Column("before", "parent", number, "right"),) if compared else ()),
        Column("after", "this" if compared else "value", number, "right"),
        *((Column("change", "change", change, "right"),) if compared else ()),
        Column("unit", "unit"),
        Column("origin", "origin"),
    )
    return Table.of(f"{title} (* named by the Judge)" if named else title, columns, metrics)


def kernel_table(kernels: Iterable[KernelFacts]) -> Table:
    """Report of ptxas on each entry point."""
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


class _KernelBound(NamedTuple):
    """A limit of a kernel as a row."""

    kernel: str
    launches: int
    bound: str
    time_us: float
    share: float | None


def bound_table(kernels: Iterable[KernelBounds]) -> Table:
    """Modelled time of each kernel under each limit alone."""
    columns = (
        Column("kernel", "kernel", wide=True),
        Column("launches", "launches", number, "right"),
        Column("bound", "limit"),
        Column("time_us", "µs (modelled)", number, "right"),
        Column("share", "of its time", percent, "right"),
    )
    rows = [
        _KernelBound(kernel.kernel, kernel.launches, bound.title, bound.time_us, bound.share)
        for kernel in kernels
        for bound in kernel.bounds
    ]
    return Table.of("Where the time goes", columns, rows)


def roofline_table(points: Iterable[RooflinePoint]) -> Table:
    """Attempts under the roofs of their device."""
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
    return Table.of("Roofline", columns, points)


def _short(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _components(components: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in components.items())


_REWARDS = "Rewards from stored evaluations"
_ALWAYS = (
    Column("id", "evaluation of"),
    Column("policy", "policy"),
    Column("value", "value", _short, "right"),
    Column("stored", "stored", _short, "right"),
    Column("stored_policy", "stored policy"),
)
_RESCORED = (
    *_ALWAYS,
    Column("differs", "differs", lambda differs: "differs" if differs else ABSENT),
    _VERDICT,
    Column("stage", "stage"),
    Column("origin", "origin"),
    Column("speedup", "speedup", number, "right"),
    Column("components", "components", _components, wide=True),
    Column("why", "why no value", wide=True),
)


def rescored_table(view: RescoredView) -> Table:
    """Rewards for readers: columns that are empty in every row are left out."""
    columns = [
        column for column in _RESCORED if column in _ALWAYS or any(getattr(row, column.key) for row in view.rows)
    ]
    return Table.of(_REWARDS, columns or _RESCORED, view.rows, keys=2)


def rescored_csv(view: RescoredView) -> str:
    """One line per reward; components are a JSON object."""
    table = Table.of(_REWARDS, _RESCORED, view.rows)
    rows = tuple(tuple(json.dumps(cell) if isinstance(cell, dict) else cell for cell in row) for row in table.rows)
    return replace(table, rows=rows).to_csv()
