"""Tables of a task, and of tasks of several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.records import Origin
from kernelforge.report.formatting import ABSENT, byte_count, change, duration, number, times
from kernelforge.report.phrases import short_outcome
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.summary import TaskSummary
from kernelforge.report.views.task import BaselineTime, GeneratorView, LineageNode, TaskSize


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
