"""Tables of a run, of leaderboards, of a suite and of a mutation audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kernelforge.prediction import BaselineTime
from kernelforge.records import Origin, SizeFacts
from kernelforge.report.formatting import (
    ABSENT,
    duration,
    fine_percent,
    format_dollars,
    moment,
    number,
    percent,
    times,
)
from kernelforge.report.tables.base import Column, Table, listed
from kernelforge.report.tables.task import task_table
from kernelforge.report.views.audit import AuditView
from kernelforge.report.views.board import FASTEST_UNCOMPILED, Board, BoardKey, Entry
from kernelforge.report.views.curves import AnytimePoint, FastCurve, FastPoint, Spent
from kernelforge.report.views.integrity import IntegrityRow
from kernelforge.report.views.messages import AgentCost
from kernelforge.report.views.run import RunView
from kernelforge.report.views.statistics import FAST_P, Estimate
from kernelforge.report.views.suite import SuitesView, SuiteView, TaskDetail, spec_text


def suites_table(view: SuitesView) -> Table:
    """Suites side by side."""
    columns = (
        Column("name", "suite"),
        Column("tasks", "tasks", number, "right"),
        Column("levels", "levels", listed, "right"),
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
        Column("tags", "tags", listed, wide=True),
        Column("sizes", "sizes", lambda sizes: number(len(sizes)), "right"),
    )
    return Table.of(f"{view.title}: suite {view.name} ({view.digest}), {len(view.tasks)} tasks", columns, view.tasks)


def floor_table(detail: TaskDetail) -> Table:
    """Least times at the full size by GPU."""
    columns = (
        Column("title", "GPU"),
        Column("dram_bandwidth_gbps", "peak GB/s", number, "right"),
        Column("floor_us", "floor us", number, "right"),
        Column("arithmetic_us", "FP32 us", number, "right"),
    )
    return Table.of("At size full: least bytes at peak bandwidth; operations at the FP32 peak", columns, detail.floors)


def baseline_table(detail: TaskDetail) -> Table:
    """Times of PyTorch at the full size by GPU."""
    columns = (
        Column("title", "GPU"),
        Column("eager", "eager us", baseline_text, "right"),
        Column("graph", "CUDA graph us", baseline_text, "right"),
        Column("compile", "torch.compile us", baseline_text, "right"),
    )
    return Table.of(
        "PyTorch at size full: published times, or predicted ones with 90 % of them", columns, detail.baselines
    )


def launch_table(detail: TaskDetail) -> Table:
    """Launch and queue time of eager PyTorch at the full size by GPU."""
    columns = (
        Column("title", "GPU"),
        Column("kernels", "kernels", align="right"),
        Column("tklqt_us", "TKLQT us", align="right"),
        Column("bound", "bound"),
        Column("batch", "GPU-bound from", align="right"),
    )
    rows = tuple(
        (
            row.title,
            row.queue.kernels,
            f"{number(row.queue.tklqt_us)} {row.queue.origin}",
            row.queue.bound,
            row.batch_text,
        )
        for row in detail.launches
    )
    return Table("Eager PyTorch at size full: launch and queue time of its kernels (TKLQT)", columns, rows)


def baseline_text(time: BaselineTime) -> str:
    """A published time, or a predicted one with its interval."""
    ends = "published" if time.origin == "published" else f"{number(time.low_us)} to {number(time.high_us)}"
    return f"{number(time.time_us)} ({ends})"


def weight_table(facts: SizeFacts) -> Table:
    """Weights that a plan accesses as ``w[...]``, at one size."""
    columns = (
        Column("name", "weight", wide=True),
        Column("kind", "kind"),
        Column("spec", "shape and dtype", spec_text),
        Column("aliases", "also", listed),
    )
    return Table.of(f"Weights at size {facts.size}: w[name]", columns, facts.weights)


def attribute_table(facts: SizeFacts) -> Table:
    """Attributes that a plan accesses as ``attrs[...]``, at one size."""
    columns = (Column("name", "attribute", wide=True), Column("value", "value", str))
    return Table(f"Attributes at size {facts.size}: attrs[name]", columns, tuple(facts.attrs.items()))


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
        Column("dollars", "dollars", format_dollars, "right"),
        Column("seconds", "time", duration, "right"),
        Column("state", "state"),
        Column("device", "device"),
        Column("started", "started", moment),
    )
    return Table.of("Runs", columns, map(_RunRow, views))


class _RunRow:
    """A run with its headline numbers as attributes."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self.fast_1 = view.headline.fast_1.value if view.headline.fast_1 else None
        self.geomean = view.headline.geomean_speedup.value if view.headline.geomean_speedup else None
        self.dollars = view.cost.dollars if view.cost.calls else None

    def __getattr__(self, name: str) -> object:
        return getattr(self._view, name)


def spent_table(spent: Iterable[Spent]) -> Table:
    """Time and money by part."""
    columns = (
        Column("what", "part"),
        Column("kind", "of"),
        Column("seconds", "time", duration, "right"),
        Column("dollars", "dollars", format_dollars, "right"),
    )
    return Table.of("Where time and money went", columns, spent)


def cost_table(costs: Iterable[AgentCost]) -> Table:
    """Price of model calls by agent."""
    columns = (
        Column("agent", "agent"),
        Column("provider", "provider"),
        Column("calls", "calls", number, "right"),
        Column("input_tokens", "tokens in", number, "right"),
        Column("cached_tokens", "cached", number, "right"),
        Column("output_tokens", "tokens out", number, "right"),
        Column("reasoning_tokens", "reasoning", number, "right"),
        Column("dollars", "dollars", format_dollars, "right"),
        Column("seconds", "time", duration, "right"),
    )
    return Table.of("What models were paid", columns, costs, keys=2)


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
    rows = tuple(
        (curve.baseline, point.p, point.value, point.low, point.high, curve.tasks, curve.untimed, curve.uncompiled)
        for curve in curves
        for point in curve.points
        if any(abs(point.p - p) < 1e-9 for p in FAST_P)
    )
    return Table("fast_p: share of all tasks that are correct and more than p times as fast", columns, rows, keys=2)


def anytime_table(points: Sequence[AnytimePoint]) -> Table:
    """Results of the run at each change of its best, and at its end."""
    columns = (
        Column("evaluations", "evaluations", number, "right"),
        Column("seconds", "after", duration, "right"),
        Column("dollars", "dollars", format_dollars, "right"),
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
    """Attempts with a concern."""
    columns = (
        Column("attempt", "attempt"),
        Column("detail", "what was seen", wide=True),
        Column("scored", "has a speedup or a reward", lambda scored: "yes" if scored else "no"),
    )
    return Table.of(title, columns, rows)


DIFFERS = "DIFFERS"
"""Last word of a verification that disagrees with the entry."""


def entry_table(title: str, entries: Sequence[Entry], *, origin: Origin) -> Table:
    """Results on one board. Each ``from`` and ``to`` is the 95 % interval of the column before."""
    submitted = any(entry.by for entry in entries)
    columns = (
        Column("rank", "#", number, "right"),
        Column("run", "run"),
        *((Column("by", "by", beneath="run", lead="by "),) if submitted else ()),
        Column("coder", "coder"),
        Column("tasks_ok", "OK", number, "right"),
        Column("tasks_total", "of", number, "right", beneath="tasks_ok", lead="of "),
        *(_MEASURED if origin is Origin.MEASURED else _with_interval("correct", "correct", percent)),
        *(_ENERGY if any(entry.geomean_energy for entry in entries) else ()),
        *(_PREDICTED if any(entry.predicted_fast_1 for entry in entries) else ()),
        *(() if origin is Origin.MEASURED else _with_interval("median_dram_ratio", "DRAM vs least", times)),
        *(_TRANSLATION if any(entry.compile_rate is not None for entry in entries) else ()),
        *((Column("checked", "verified", beneath="run", lead="verified: "),) if submitted else ()),
        Column("tokens_per_task", "tokens/task", number, "right"),
        Column("dollars_per_task", "$/task", number, "right"),
        Column("attempts", "attempts", number, "right"),
        Column("strategy", "strategy", beneath="coder"),
        Column("judge", "judge", beneath="coder", lead="judge "),
        Column("caveats", "note", wide=True, beneath="run"),
    )
    return Table.of(title, columns, [EntryRow(entry) for entry in entries], keys=2)


def _with_interval(key: str, label: str, show: Callable[[float | None], str]) -> tuple[Column, ...]:
    return (
        Column(key, label, show, "right"),
        Column(f"{key}_low", "from", show, "right", beneath=key),
        Column(f"{key}_high", "to", show, "right", beneath=key, lead="–"),
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


_ENERGY = (Column("geomean_energy", "less energy", times, "right"),)


_PREDICTED = (
    Column("predicted_geomean", "vs eager (predicted)", times, "right"),
    *_with_interval("predicted_fast_1", "fast 1 (predicted)", percent),
)


_TRANSLATION = (
    Column("compile_rate", "compile rate", percent, "right"),
    Column("pass_at_1", "pass@1", percent, "right"),
    Column("pass_at_5", "pass@5", percent, "right"),
    Column("pass_at_10", "pass@10", percent, "right"),
    Column("bleu", "BLEU", fine_percent, "right"),
    Column("codebleu", "CodeBLEU", fine_percent, "right"),
)


class EntryRow:
    """An entry as flat numbers: an estimate as ``NAME``, ``NAME_low`` and ``NAME_high``, and its caveats in words."""

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
        rerun = "" if done is None else f"{done.rerun} of {done.tasks} re-run"
        self.checked = rerun if agrees or not rerun else f"{rerun}: {DIFFERS}"

    def _spread(self, name: str, value: Estimate | FastPoint) -> None:
        self._flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}

    def _caveats(self) -> tuple[str, ...]:
        entry = self._entry
        return (
            "" if entry.confined else "no jail",
            f"{entry.uncompared} with full size not compared" if entry.uncompared else "",
            f"{entry.infra} of {entry.attempts} INFRA" if entry.infra else "",
            f"{entry.uncompiled} without compile" if entry.uncompiled else "",
            f"{entry.untimed} untimed" if entry.untimed else "",
            f"{entry.quarantined} quarantined" if entry.quarantined else "",
            "further tests" if entry.further_tests else "",
            f"{entry.starts} started from a kernel" if entry.starts else "",
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
    """Key of a board in one line."""
    times_are = (
        "modelled: speedups predicted"
        if key.origin is Origin.MODELLED
        else f"speedup against the {_words(key.baseline)}"
    )
    return (
        f"{key.device} · suite {key.suite} ({key.suite_digest}), {key.task_count} tasks · {times_are} · "
        f"{key.precision} · evaluator {key.evaluator}, lane {key.lane} · timing {key.protocol or 'none'}"
    )


def _words(baseline: str) -> str:
    if baseline == FASTEST_UNCOMPILED:
        return "fastest baseline that was there, and torch.compile was not"
    return f"{baseline} baseline"


def board_notes(board: Board) -> tuple[str, ...]:
    """Caveats of a board's speedups; empty for a modelled board."""
    if board.key.origin is Origin.MODELLED:
        return ()
    notes = [
        "TF32 is off for every baseline, in convolutions too, where PyTorch has it on by default: numbers that others "
        "publish are against faster convolutions."
    ]
    if any(entry.uncompiled for entry in board.entries):
        notes.append(
            "'N without compile': at so many tasks torch.compile could not be had, so that fast p, geomean and the "
            "others are against a weaker baseline there."
        )
    return tuple(notes)


def board_tables(board: Board) -> tuple[Table, Table]:
    """The runs of a board, and the best result per task."""
    many = len(board.entries) > 1
    return (
        entry_table("Runs", board.entries, origin=board.key.origin),
        task_table("Best per task", board.records, origin=board.key.origin, with_run=many, of_board=True),
    )


def fault_table(view: AuditView) -> Table:
    """Kinds of faults with the number of mutants that each rule rejects."""
    columns = (
        Column("fault", "fault"),
        Column("judged", "mutants", number, "right"),
        Column("killed", "rejected", number, "right"),
        Column("kernelbench_killed", "by KernelBench's rule", number, "right"),
    )
    return Table.of("Faults", columns, view.faults)


def audit_suite_table(view: AuditView) -> Table:
    """Suites with the number of mutants that each rule rejects, and of those that could not be judged."""
    columns = (
        Column("suite", "suite"),
        Column("tasks", "tasks", number, "right"),
        Column("judged", "mutants", number, "right"),
        Column("killed", "rejected", number, "right"),
        Column("equivalent", "equivalent", number, "right"),
        Column("invalid", "invalid", number, "right"),
        Column("kill_rate", "rate", fine_percent, "right"),
        Column("kernelbench_kill_rate", "KernelBench's", fine_percent, "right"),
    )
    return Table.of("Suites", columns, view.suites)
