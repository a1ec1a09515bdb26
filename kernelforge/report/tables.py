"""Which attributes of which view make a table, under which heading: said once for every format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernelforge.records import Origin, SizeCheck
from kernelforge.report.attempt_view import SideRow, TrialRow
from kernelforge.report.board import Board, Entry
from kernelforge.report.board_key import BoardKey
from kernelforge.report.compare_view import CompareView
from kernelforge.report.gates import Gate
from kernelforge.report.run_view import FastPoint
from kernelforge.report.statistics import Estimate
from kernelforge.report.summary import TaskSummary
from kernelforge.report.table import Column, Table
from kernelforge.report.task_view import BaselineTime, LineageNode, MetricChange, TaskSize
from kernelforge.report.text import ABSENT, byte_count, change, choices, duration, number, percent, times

_TASK = Column("task", "task", wide=True)
_VERDICT = Column("verdict", "verdict")
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
    return Table.of(title, (_TASK, _VERDICT, _ROUNDS, *middle, _MOVES, *run), tasks)


def entry_table(title: str, entries: Sequence[Entry], *, origin: Origin) -> Table:
    """Results on one board. Each ``from`` and ``to`` is the 95 % interval of the column before."""
    submitted = any(entry.by for entry in entries)
    columns = (
        Column("rank", "#", number, "right"),
        Column("run", "run"),
        *((Column("by", "by"),) if submitted else ()),
        Column("coder", "coder"),
        Column("tasks_ok", "OK", number, "right"),
        Column("tasks_total", "of", number, "right"),
        *(_MEASURED if origin is Origin.MEASURED else _MODELLED),
        *((Column("checked", "verified"),) if submitted else ()),
        Column("tokens_per_task", "tokens/task", number, "right"),
        Column("dollars_per_task", "$/task", number, "right"),
        Column("attempts", "attempts", number, "right"),
        Column("strategy", "strategy"),
        Column("judge", "judge"),
        Column("caveats", "note", wide=True),
    )
    return Table.of(title, columns, [EntryRow(entry) for entry in entries], keys=2)


def _with_interval(key: str, label: str, show: Callable[[float | None], str]) -> tuple[Column, ...]:
    return (
        Column(key, label, show, "right"),
        Column(f"{key}_low", "from", show, "right"),
        Column(f"{key}_high", "to", show, "right"),
    )


_MEASURED = (
    Column("fast_0", "fast 0", percent, "right"),
    *_with_interval("fast_1", "fast 1", percent),
    Column("fast_1_2", "fast 1.2", percent, "right"),
    Column("fast_1_5", "fast 1.5", percent, "right"),
    Column("fast_2", "fast 2", percent, "right"),
    *_with_interval("geomean_speedup", "geomean", times),
    Column("geomean_correct", "correct only", times, "right"),
    Column("median_speedup", "median", times, "right"),
    Column("win_rate", "wins", percent, "right"),
    Column("geomean_eager", "vs eager", times, "right"),
    Column("floor_share", "of floor", percent, "right"),
)
_MODELLED = (
    *_with_interval("correct", "correct", percent),
    *_with_interval("median_dram_ratio", "DRAM vs least", times),
)


class EntryRow:
    """An entry as flat numbers, an estimate as ``NAME``, ``NAME_low`` and ``NAME_high``, with its caveats in words."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._flat: dict[str, object] = {}
        for point in entry.fast_p:
            self._spread(f"fast_{point.p:g}".replace(".", "_"), point)
        for name in type(entry).model_fields:
            value = getattr(entry, name)
            if isinstance(value, Estimate):
                self._spread(name, value)
        self.caveats = ", ".join(caveat for caveat in self._caveats() if caveat)
        done = entry.verified
        agrees = done is not None and done.agree
        self.checked = "" if done is None else f"{done.rerun} of {done.tasks} re-run" + ("" if agrees else ": DIFFERS")

    def _spread(self, name: str, value: Estimate | FastPoint) -> None:
        self._flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}

    def _caveats(self) -> tuple[str, ...]:
        entry = self._entry
        return (
            "" if entry.confined else "no jail",
            f"{entry.infra} INFRA" if entry.infra else "",
            f"{entry.untimed} untimed" if entry.untimed else "",
            f"{entry.quarantined} quarantined" if entry.quarantined else "",
            "further tests" if entry.further_tests else "",
            "" if entry.state == "finished" else entry.state,
            entry.note,
        )

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._flat:
            return self._flat[name]
        absent = name.startswith("fast_") or name.endswith(("_low", "_high"))
        return None if absent else getattr(self._entry, name)


def board_title(key: BoardKey) -> str:
    """What a board compares, in a line."""
    times_are = (
        "modelled: no speedups" if key.origin is Origin.MODELLED else f"speedup against the {key.baseline} baseline"
    )
    return (
        f"{key.device} · suite {key.suite} ({key.suite_digest}), {key.task_count} tasks · {times_are} · "
        f"{key.precision} · evaluator {key.evaluator}, lane {key.lane} · timing {key.protocol or 'none'}"
    )


def board_tables(board: Board) -> tuple[Table, Table]:
    """The runs of a board, and the best known result per task."""
    many = len(board.entries) > 1
    return (
        entry_table("Runs", board.entries, origin=board.key.origin),
        task_table("Best per task", board.records, origin=board.key.origin, with_run=many),
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
        _TASK,
        Column("outcome", "b's outcome"),
        Column("a_verdict", "a"),
        Column("b_verdict", "b"),
        *(values if view.quantity != "none" else ()),
        Column("why", "why", wide=True),
        Column("a_best", "a's best", wide=True),
        Column("b_best", "b's best", wide=True),
    )
    return Table.of("Tasks", columns, view.pairs)
