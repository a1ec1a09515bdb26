"""Tables of a task, of its attempts, and of tasks of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from kernelforge.records import KernelFacts, Origin, SizeCheck
from kernelforge.report.formatting import ABSENT, byte_count, change, choices, duration, number, short_outcome, times
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.views.attempt import Gate, SideRow, TrialRow
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.recomputed_rewards import RescoredView
from kernelforge.report.views.roofline import RooflinePoint
from kernelforge.report.views.summary import TaskSummary
from kernelforge.report.views.task import BaselineTime, GeneratorView, LineageNode, MetricChange, TaskSize


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


TASK = Column("task", "task", wide=True)


_VERDICT = Column("verdict", "verdict", short_outcome, attribute="outcome")


_ROUNDS = Column("rounds", "rounds", number, "right")


_MOVES = Column("moves", "best came by", wide=True)


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


def task_table(title: str, tasks: Iterable[TaskSummary], *, origin: Origin, with_run: bool = False) -> Table:
    """Tasks of one origin: counters and the modelled bound, or measured times and speedups."""
    run = (Column("run", "run"),) if with_run else ()
    middle: tuple[Column, ...]
    if origin is Origin.MEASURED:
        middle = (*_SPEEDS, Column("bound", "bound"), *_COUNTERS[1:2])
    else:
        middle = (*_COUNTERS, Column("bound", "modelled bound"))
    return Table.of(title, (TASK, _VERDICT, _ROUNDS, *middle, _MOVES, *run), tasks)


def lineage_table(nodes: Iterable[LineageNode], *, origin: Origin) -> Table:
    """Attempts at one task: times and speedups where they are measured, else DRAM traffic."""
    middle: tuple[Column, ...]
    if origin is Origin.MEASURED:
        middle = (
            Column("time_us", "time µs", number, "right"),
            Column("speedup", "speedup", times, "right"),
            Column("low", "from", times, "right"),
            Column("high", "to", times, "right"),
            Column("dram_ratio", "DRAM vs least", times, "right"),
        )
    else:
        middle = (
            Column("dram_bytes", "DRAM", byte_count, "right"),
            Column("dram_ratio", "vs least", times, "right"),
            Column("time_us", "modelled µs", number, "right"),
        )
    columns = (
        Column("number", "#", number, "right"),
        Column("step", "step", wide=True),
        Column("parent", "of", number, "right"),
        _VERDICT,
        Column("stage", "stage"),
        *middle,
        Column("delta", "vs parent", change, "right"),
        Column("delta_of", "of what", lambda of: _DELTAS.get(of, ABSENT)),
        Column("accepted", "accepted", lambda accepted: "yes" if accepted else ""),
        Column("best", "best", lambda best: "yes" if best else ""),
        Column("dollars", "dollars", number, "right"),
        Column("seconds", "took", duration, "right"),
    )
    return Table.of("Attempts", columns, nodes)


_DELTAS = {"time_us": "time", "dram_bytes": "DRAM"}


def size_table(sizes: Iterable[TaskSize]) -> Table:
    """Sizes of a task with what the oracle found."""
    columns = (
        Column("size", "size"),
        Column("constants", "constants", lambda values: ", ".join(f"{k} = {v}" for k, v in values.items()), wide=True),
        Column("inputs", "inputs", ", ".join, wide=True),
        Column("outputs", "outputs", ", ".join, wide=True),
        Column("compulsory_bytes", "least bytes", byte_count, "right"),
        Column("flops", "flops", number, "right"),
        Column("eager_launches", "eager launches", number, "right"),
    )
    return Table.of("Sizes", columns, sizes)


def baseline_table(baselines: Iterable[BaselineTime]) -> Table:
    """Baselines with the best time that the run measured of each."""
    columns = (
        Column("name", "baseline"),
        Column("median_us", "median µs", number, "right"),
        Column("low_us", "from", number, "right"),
        Column("high_us", "to", number, "right"),
        Column("samples", "samples", number, "right"),
        Column("captured", "timed as", lambda captured: "graph" if captured else "launches"),
        Column("attempt", "beside attempt", lambda attempt: attempt.rpartition("/")[2]),
    )
    return Table.of("Baselines", columns, baselines)


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


def rescored_table(view: RescoredView) -> Table:
    """For people: columns that would be empty in every row are left out."""
    columns = [one for one in _COLUMNS if any(getattr(row, one.key) or one in _ALWAYS for row in view.rows)]
    return Table.of(_TITLE, columns or _COLUMNS, view.rows, keys=2)


def rescored_csv(view: RescoredView) -> str:
    """One line per row; components are an object of JSON."""
    table = Table.of(_TITLE, _COLUMNS, view.rows)
    rows = tuple(tuple(json.dumps(one) if isinstance(one, dict) else one for one in row) for row in table.rows)
    return replace(table, rows=rows).to_csv()


def _short(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4g}"


def _parts(components: dict[str, float | None]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in components.items())


_TITLE = "Rewards from stored evaluations"
_ALWAYS = (
    Column("id", "evaluation of"),
    Column("policy", "policy"),
    Column("value", "value", _short, "right"),
    Column("stored", "stored", _short, "right"),
    Column("stored_policy", "stored policy"),
)
_COLUMNS = (
    *_ALWAYS,
    Column("differs", "differs", lambda differs: "differs" if differs else ABSENT),
    Column("verdict", "verdict", short_outcome, attribute="outcome"),
    Column("stage", "stage"),
    Column("origin", "origin"),
    Column("speedup", "speedup", number, "right"),
    Column("components", "components", _parts, wide=True),
    Column("why", "why no value", wide=True),
)


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


def place_table(places: Iterable[RooflinePoint]) -> Table:
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
