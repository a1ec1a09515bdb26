"""Leaderboards. Results stand on one board only when they are comparable: equal device, task set, baseline, precision
rules, timing protocol and origin of the times. Modelled and measured results never share a board, and a board of
modelled results has no speedups: it shows correctness and counters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median

from kernelforge.records import Origin, Verdict
from kernelforge.report.board_key import BoardKey, board_key, settle
from kernelforge.report.source import RunRecords, ShownState
from kernelforge.report.summary import TaskSummary, View

FAST_P = (0.0, 1.0, 1.2, 2.0)
"""Thresholds of fast_p (KernelBench, arXiv:2502.10517): correct and more than p times as fast as the baseline."""


class FastP(View):
    """Share of all tasks that are correct and more than ``p`` times as fast as the baseline."""

    p: float
    value: float


class Entry(View):
    """One run on a board."""

    rank: int
    run: str
    started: str
    state: ShownState
    strategy: str
    coder: str
    judge: str
    confined: bool
    """False when untrusted code ran without a jail: shown, never rewarded."""
    tasks_ok: int
    tasks_total: int
    correct: float
    """Share of all tasks with something correct."""
    attempts: int
    infra: int
    """Attempts that ended in INFRA: ours, or unsupported here; no statement about the candidate."""
    median_dram_ratio: float | None
    """Median over correct tasks of DRAM bytes over compulsory bytes."""
    fast_p: tuple[FastP, ...] = ()
    """Measured boards only. The denominator is all tasks."""
    untimed: int = 0
    """Correct tasks without a measured speedup: they count for fast_0 alone."""
    quarantined: int = 0
    """Attempts whose time is not believed: they have no speedup."""
    median_speedup: float | None = None
    """Median over correct tasks, against the fastest baseline."""
    geomean_speedup: float | None = None
    """Geometric mean over all tasks of max(speedup, 1), a failure as 1: what deploying the better of both gains."""
    geomean_correct: float | None = None
    """Geometric mean over correct tasks only; flatters a run that fails the hard ones."""
    geomean_eager: float | None = None
    """The same against eager PyTorch, as others publish it."""
    tasks: tuple[TaskSummary, ...]


class Board(View):
    """Comparable results."""

    key: BoardKey
    entries: tuple[Entry, ...]
    """Best first."""
    records: tuple[TaskSummary, ...]
    """Per task, the best that any run on the board found."""


class Leaderboard(View):
    """All boards; results on different boards are not comparable."""

    boards: tuple[Board, ...]


def leaderboard(runs: Iterable[RunRecords]) -> Leaderboard:
    """Boards of runs, those with the newest run first."""
    keyed = [(board_key(records), records) for records in runs if records.attempts]
    known = [key for key, _ in keyed if key.protocol is not None]
    settled = [(settle(key, known), records) for key, records in keyed]
    settled.sort(key=lambda pair: pair[0].model_dump_json())
    boards = [
        _board(key, [records for _, records in group]) for key, group in groupby(settled, key=lambda pair: pair[0])
    ]
    boards.sort(key=lambda board: max(entry.started for entry in board.entries), reverse=True)
    return Leaderboard(boards=tuple(boards))


def _board(key: BoardKey, runs: Sequence[RunRecords]) -> Board:
    measured = key.origin is Origin.MEASURED
    entries = [_entry(records, measured) for records in runs]
    entries.sort(key=_standing)
    ranked = tuple(entry.model_copy(update={"rank": rank}) for rank, entry in enumerate(entries, 1))
    names = runs[0].run.config.tasks
    best = tuple(
        min((task for entry in ranked for task in entry.tasks if task.task == name), key=_merit) for name in names
    )
    return Board(key=key, entries=ranked, records=best)


def _standing(entry: Entry) -> tuple[float, ...]:
    """Sort key, best first: fast_1 and the deployable geomean when measured; else correctness and DRAM traffic."""
    fast_1 = next((one.value for one in entry.fast_p if one.p == 1.0), 0.0)
    ratio = math.inf if entry.median_dram_ratio is None else entry.median_dram_ratio
    return (-fast_1, -(entry.geomean_speedup or 0.0), -entry.correct, ratio, entry.attempts)


def _merit(task: TaskSummary) -> tuple[float, ...]:
    def least(value: float | None) -> float:
        return math.inf if value is None else value

    if task.origin is Origin.MEASURED:
        return (task.best is None, least(task.time_us), least(task.dram_ratio))
    return (task.best is None, least(task.dram_ratio), least(task.time_us))


def _entry(records: RunRecords, measured: bool) -> Entry:
    run, tasks = records.run, records.summaries()
    correct = [task for task in tasks if task.best is not None]
    ratios = [task.dram_ratio for task in correct if task.dram_ratio is not None]
    evaluations = [attempt.evaluation for attempt in records.attempts]
    speeds = _speeds(tasks) if measured else {}
    return Entry.model_validate(
        {
            "rank": 0,
            "run": run.id,
            "started": run.started,
            "state": records.state,
            "strategy": run.config.strategy,
            "coder": run.config.coder,
            "judge": run.config.judge,
            "confined": all(evaluation.fingerprint.jail != "none" for evaluation in evaluations),
            "tasks_ok": len(correct),
            "tasks_total": len(tasks),
            "correct": len(correct) / len(tasks),
            "attempts": len(evaluations),
            "infra": sum(evaluation.verdict is Verdict.INFRA for evaluation in evaluations),
            "quarantined": sum(bool(one.performance and one.performance.quarantined) for one in evaluations),
            "median_dram_ratio": median(ratios) if ratios else None,
            "tasks": tasks,
            **speeds,
        }
    )


def _speeds(tasks: Sequence[TaskSummary]) -> dict[str, object]:
    """Speed statistics of a measured run. Every denominator but the correct-only ones is all tasks."""
    correct = [task for task in tasks if task.best is not None]
    speedups = [task.speedup for task in correct if task.speedup is not None]
    eager = [task.speedup_eager for task in correct if task.speedup_eager is not None]
    above = {p: sum(speedup > p for speedup in speedups) for p in FAST_P} | {0.0: len(correct)}
    return {
        "fast_p": tuple(FastP(p=p, value=above[p] / len(tasks)) for p in FAST_P),
        "untimed": len(correct) - len(speedups),
        "median_speedup": median(speedups) if speedups else None,
        "geomean_speedup": geomean([max(speedup, 1.0) for speedup in speedups], count=len(tasks)),
        "geomean_correct": geomean(speedups),
        "geomean_eager": geomean(eager),
    }


def geomean(values: Sequence[float], *, count: int | None = None) -> float | None:
    """Geometric mean; ``count`` above ``len(values)`` adds ones. None of nothing."""
    count = len(values) if count is None else count
    return math.exp(sum(map(math.log, values)) / count) if count else None
