"""Tables of a leaderboard and of a mutation audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelforge.records import Origin
from kernelforge.report.formatting import fine_percent, number, percent, times
from kernelforge.report.tables.base import Column, Table
from kernelforge.report.tables.task import task_table
from kernelforge.report.views.audit import AuditView
from kernelforge.report.views.board import FASTEST_UNCOMPILED, Board, BoardKey, Entry
from kernelforge.report.views.run import FastPoint
from kernelforge.report.views.statistics import Estimate

DIFFERS = "DIFFERS"
"""How what was checked ends where it did not come out as the entry says."""


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
        *(_MEASURED if origin is Origin.MEASURED else _MODELLED),
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
        "modelled: no speedups" if key.origin is Origin.MODELLED else f"speedup against the {_words(key.baseline)}"
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
    """What a reader of a board's speedups must know; nothing of a modelled one."""
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
    """The runs of a board, and the best known result per task."""
    many = len(board.entries) > 1
    return (
        entry_table("Runs", board.entries, origin=board.key.origin),
        task_table("Best per task", board.records, origin=board.key.origin, with_run=many),
    )


def fault_table(view: AuditView) -> Table:
    """Kinds of faults with how many mutants each rule rejects."""
    columns = (
        Column("fault", "fault"),
        Column("judged", "mutants", number, "right"),
        Column("killed", "rejected", number, "right"),
        Column("kernelbench_killed", "by KernelBench's rule", number, "right"),
    )
    return Table.of("Faults", columns, view.faults)


def suite_table(view: AuditView) -> Table:
    """Suites with how many mutants each rule rejects, and how many could not be judged at all."""
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
