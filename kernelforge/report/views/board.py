"""Leaderboards. Results stand on one board only when they are comparable (:mod:`kernelforge.report.views.board_key`).

Modelled and measured results never share a board, and a board of modelled results has no speedups: it shows correctness
and counters. A result comes from a run's records or from a submitted file; every statistic is computed here, from its
rows per task, and every denominator is the number of all tasks but where a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from kernelforge.records import Message, Origin, Verdict
from kernelforge.report.views import statistics
from kernelforge.report.views.base import View
from kernelforge.report.views.board_key import BoardKey, board_key, settle, without_tests
from kernelforge.report.views.cost import total_cost
from kernelforge.report.views.run import FastPoint
from kernelforge.report.views.source import RunRecords, ShownState
from kernelforge.report.views.statistics import Estimate
from kernelforge.report.views.summary import TaskSummary, is_uncompiled

MONEY_DIGITS = 9
"""Sums of dollars are rounded to a billionth: the order of adding must not show."""

_NAN = math.nan


class Verified(View):
    """What somebody found who checked a submitted result."""

    by: str
    """Where: host, device and version of KernelForge."""
    when: str
    """UTC, ISO 8601."""
    rerun: int
    """Tasks whose best candidate was evaluated again."""
    tasks: int
    """Tasks of the result."""
    agree: bool
    """Whether everything that was checked agrees."""


class Result(View):
    """What a board is made from: one run, with a row per task."""

    key: BoardKey
    run: str
    by: str = ""
    """Who submitted it; empty for a run of this results folder."""
    note: str = ""
    """What they say of it."""
    digest: str | None = None
    """Names the submitted file by its content."""
    verified: Verified | None = None
    started: str
    state: ShownState
    strategy: str
    coder: str
    judge: str
    confined: bool
    """False when untrusted code ran without a jail: shown, never rewarded."""
    further_tests: bool = False
    """Whether it was also judged on tests that a Tester added: those can only cost it."""
    attempts: int
    infra: int
    """Attempts that ended in INFRA: ours, or unsupported here; no statement about the candidate."""
    quarantined: int = 0
    """Attempts whose time is not believed: they have no speedup."""
    tokens: int | None = None
    """Of all models, input and output; None where a part is unknown."""
    dollars: float | None = None
    """Paid for models; None where a part is unknown."""
    tasks: tuple[TaskSummary, ...]


class Entry(Result):
    """A result on a board, with its statistics. Intervals: :mod:`kernelforge.report.views.statistics`."""

    rank: int
    tasks_ok: int
    tasks_total: int
    uncompared: int = 0
    """Tasks whose best was compared at smaller sizes alone: they are not correct."""
    correct: Estimate
    """Share of all tasks with something correct."""
    median_dram_ratio: Estimate | None
    """Median over correct tasks of DRAM bytes over compulsory bytes."""
    fast_p: tuple[FastPoint, ...] = ()
    """Measured boards only, like all that follows. The denominator is all tasks."""
    uncompiled: int = 0
    """Tasks with a speedup that torch.compile was not among the baselines of: theirs is over a weaker baseline."""
    untimed: int = 0
    """Correct tasks without a measured speedup: they count for fast_0 alone, and as 1 in ``geomean_speedup``."""
    median_speedup: Estimate | None = None
    """Median over correct tasks, against the board's baseline."""
    geomean_speedup: Estimate | None = None
    """Geometric mean over all tasks of max(speedup, 1), a failure as 1: what deploying the better of both gains."""
    geomean_correct: Estimate | None = None
    """Geometric mean over correct tasks only; flatters a run that fails the hard ones."""
    geomean_eager: Estimate | None = None
    """The same against eager PyTorch, as others publish it."""
    win_rate: Estimate | None = None
    """Share of all tasks with a speedup above 1 beyond its noise: the lower end of its interval is."""
    floor_share: Estimate | None = None
    """Mean over all tasks of floor / time, a task without a time as 0. None where the GPU's bandwidth is unknown."""
    tokens_per_task: float | None
    """Over all tasks, solved or not."""
    dollars_per_task: float | None


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
    return boards_of(run_result(records) for records in runs if records.attempts)


def boards_of(results: Iterable[Result]) -> Leaderboard:
    """Boards of results, those with the newest result first."""
    found = list(results)
    known = [result.key for result in found if result.key.protocol is not None]
    settled = [(settle(result.key, known), result) for result in found]
    settled.sort(key=lambda pair: pair[0].model_dump_json())
    boards = [_board(key, [result for _, result in group]) for key, group in groupby(settled, key=lambda pair: pair[0])]
    boards.sort(key=lambda board: max(entry.started for entry in board.entries), reverse=True)
    return Leaderboard(boards=tuple(boards))


def run_result(records: RunRecords) -> Result:
    """What a run of this results folder brings to a board."""
    run = records.run
    evaluations = [attempt.evaluation for attempt in records.attempts]
    tokens, dollars = spent_on(list(records.said()), (*run.config.coders, run.config.judge))
    return Result(
        key=board_key(records),
        run=run.id,
        started=run.started,
        state=records.state,
        strategy=run.config.strategy,
        coder=run.config.coder,
        judge=run.config.judge,
        confined=all(evaluation.fingerprint.jail != "none" for evaluation in evaluations),
        further_tests=any(has_tests(evaluation.fingerprint.evaluator) for evaluation in evaluations),
        attempts=len(evaluations),
        infra=sum(evaluation.verdict is Verdict.INFRA for evaluation in evaluations),
        quarantined=sum(bool(one.performance and one.performance.quarantined) for one in evaluations),
        tokens=tokens,
        dollars=dollars,
        tasks=records.summaries(),
    )


def has_tests(evaluator: str) -> bool:
    """Whether further tests were in force."""
    return evaluator != without_tests(evaluator)


def spent_on(messages: Sequence[Message], agents: Sequence[str]) -> tuple[int | None, float | None]:
    """Tokens and dollars of what was said; None where a part is unknown.

    The built-in agents cost nothing. Whoever else answered without a price (an exchange folder, an agent that submits
    by itself) cost something that nobody here knows.
    """
    replies = [message for message in messages if message.role == "reply" and message.provider != "builtin"]
    if any(reply.usage is None for reply in replies) or (not replies and set(agents) - {"builtin", "none", ""}):
        return None, None
    cost = total_cost(replies)
    known = cost.input_tokens is not None and cost.output_tokens is not None
    dollars = None if cost.dollars is None else round(cost.dollars, MONEY_DIGITS)
    return (cost.input_tokens or 0) + (cost.output_tokens or 0) if known else None, dollars


def _board(key: BoardKey, results: Sequence[Result]) -> Board:
    entries = sorted((_entry(key, result) for result in results), key=_standing)
    ranked = tuple(entry.model_copy(update={"rank": rank}) for rank, entry in enumerate(entries, 1))
    names = [task.task for task in results[0].tasks]
    best = tuple(
        min((task for entry in ranked for task in entry.tasks if task.task == name), key=_merit) for name in names
    )
    return Board(key=key, entries=ranked, records=best)


def _standing(entry: Entry) -> tuple[float | str, ...]:
    """Sort key, best first: fast_1 and the deployable geomean when measured; else correctness and DRAM traffic."""
    fast_1 = next((one.value for one in entry.fast_p if one.p == 1.0), 0.0)
    gain = entry.geomean_speedup.value if entry.geomean_speedup else 0.0
    ratio = entry.median_dram_ratio.value if entry.median_dram_ratio else math.inf
    return (-fast_1, -gain, -entry.correct.value, ratio, entry.attempts, entry.started, entry.run, entry.digest or "")


def _merit(task: TaskSummary) -> tuple[float, ...]:
    def least(value: float | None) -> float:
        return math.inf if value is None else value

    if task.origin is Origin.MEASURED:
        # A time that is not believed, or was compared with nothing, beats none that was.
        return (not task.correct, task.best is None, task.speedup is None, least(task.time_us), least(task.dram_ratio))
    return (not task.correct, task.best is None, least(task.dram_ratio), least(task.time_us))


def _entry(key: BoardKey, result: Result) -> Entry:
    tasks = result.tasks
    count = len(tasks)
    solved = [task.correct for task in tasks]
    correct = statistics.correct_share(solved)
    assert correct is not None  # a run has tasks
    return Entry.model_validate(
        {
            **dict(result),
            "key": key,
            "rank": 0,
            "tasks_ok": sum(solved),
            "uncompared": sum(task.best is not None and task.uncompared for task in tasks),
            "tasks_total": count,
            "correct": correct,
            "median_dram_ratio": statistics.median_correct(_per_task(tasks, "dram_ratio")),
            "tokens_per_task": None if result.tokens is None else result.tokens / count,
            "dollars_per_task": None if result.dollars is None else result.dollars / count,
            **(_speeds(key, tasks, solved) if key.origin is Origin.MEASURED else {}),
        }
    )


def _speeds(key: BoardKey, tasks: Sequence[TaskSummary], solved: Sequence[bool]) -> dict[str, object]:
    """Speed statistics of a measured result."""
    speedups = _per_task(tasks, "speedup")
    points = [(p, statistics.fast_p(speedups, p, solved)) for p in statistics.FAST_P]
    shares = _per_task(tasks, "floor_share")
    return {
        "fast_p": tuple(FastPoint(p=p, **dict(share)) for p, share in points if share is not None),
        "uncompiled": 0 if key.baseline == "eager" else sum(map(is_uncompiled, tasks)),
        "untimed": sum(ok and math.isnan(speedup) for ok, speedup in zip(solved, speedups, strict=True)),
        "median_speedup": statistics.median_correct(speedups),
        "geomean_speedup": statistics.geomean_deployable(speedups),
        "geomean_correct": statistics.geomean_correct(speedups),
        "geomean_eager": statistics.geomean_correct(_per_task(tasks, "speedup_eager")),
        "win_rate": statistics.win_rate(_per_task(tasks, "speedup_lower")),
        "floor_share": None if all(map(math.isnan, shares)) else statistics.share_of_floor(shares),
    }


def _per_task(tasks: Sequence[TaskSummary], name: str) -> list[float]:
    """A number per task, NaN where nothing is correct or it has none."""
    values = [getattr(task, name) if task.correct else None for task in tasks]
    return [_NAN if value is None else float(value) for value in values]
