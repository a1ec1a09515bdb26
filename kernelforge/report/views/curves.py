"""Curves of a run: fast_p against each baseline, headline numbers, best result over time, spending."""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Literal

from kernelforge.records import Attempt, Message
from kernelforge.report.views import View
from kernelforge.report.views.messages import paid, total_cost
from kernelforge.report.views.run_records import RunRecords, TaskSummary, dram_ratio
from kernelforge.report.views.statistics import (
    Estimate,
    correct_share,
    fast_p,
    fast_p_curve,
    geomean_correct,
    geomean_deployable,
    share_of_floor,
    win_rate,
)

FASTEST = "fastest"
"""Name for the fastest of all baselines, task by task."""

_STEP = 20
"""Points of a curve per unit of p: 1.2 and 1.5 are among them."""
_LEAST, _MOST = 2, 4
"""A curve extends to the largest speedup, within these limits."""


class FastPoint(View):
    """Share of all tasks that are correct and more than ``p`` times as fast as a baseline, with its interval."""

    p: float
    value: float
    low: float
    high: float


class FastCurve(View):
    """fast_p against one baseline; measured runs only. The denominator is all tasks."""

    baseline: str
    """``fastest``, or a baseline's own name: ``eager``, ``eager-graph``, ``compile``..."""
    tasks: int
    untimed: int
    """Correct tasks without a speedup over this baseline: they count at p = 0 only."""
    uncompiled: int = 0
    """For the fastest: tasks with a speedup without torch.compile among their baselines."""
    points: tuple[FastPoint, ...]
    """At p = 0, 0.05, 0.1 ... up to the largest speedup, to 2 at least and to 4 at most. Bands are pointwise."""


class Headline(View):
    """Results of a run over all tasks with 95 % intervals by task bootstrap.

    A modelled run has ``correct`` and what is predicted, a measured one everything else.
    """

    correct: Estimate | None
    """Share of tasks with a correct attempt."""
    fast_1: Estimate | None = None
    """Share of tasks that are correct and faster than the fastest baseline."""
    win_rate: Estimate | None = None
    """Share of tasks that are faster beyond the noise of their times."""
    geomean_speedup: Estimate | None = None
    """Geometric mean of max(speedup, 1), a failure as 1."""
    geomean_correct: Estimate | None = None
    """Geometric mean over tasks with a speedup only."""
    floor_share: Estimate | None = None
    """Mean of floor / time, a task without a time as 0; None where no task has a floor."""
    predicted_fast_1: Estimate | None = None
    """Share of tasks that are correct and, as predicted, faster than eager PyTorch."""
    predicted_geomean: Estimate | None = None
    """Geometric mean of max(predicted speedup over eager, 1), a failure as 1."""


def headline(tasks: Sequence[TaskSummary], *, measured: bool) -> Headline:
    """Headline numbers of a run."""
    correct = correct_share([task.correct for task in tasks])
    if not measured:
        predicted = [_or_nan(task.predicted.speedup if task.correct and task.predicted else None) for task in tasks]
        if all(map(math.isnan, predicted)):
            return Headline(correct=correct)
        return Headline(
            correct=correct,
            predicted_fast_1=fast_p(predicted, 1.0),
            predicted_geomean=geomean_deployable(predicted),
        )
    speedups, floors = per_task(tasks, "speedup"), per_task(tasks, "floor_share")
    return Headline(
        correct=correct,
        fast_1=fast_p(speedups, 1.0),
        win_rate=win_rate(per_task(tasks, "speedup_lower")),
        geomean_speedup=geomean_deployable(speedups),
        geomean_correct=geomean_correct(speedups),
        floor_share=None if all(map(math.isnan, floors)) else share_of_floor(floors),
    )


def per_task(tasks: Sequence[TaskSummary], name: str) -> list[float]:
    """A number per task; NaN where no attempt is correct or has it."""
    return [_or_nan(getattr(task, name) if task.correct else None) for task in tasks]


def fast_curves(bests: Sequence[Attempt | None]) -> tuple[FastCurve, ...]:
    """A curve against the fastest baseline, and one against each baseline of any best attempt.

    Args:
        bests: The best attempt of every task of a measured run; None where nothing was accepted. An attempt without a
            value compared at the full size counts as None.
    """
    bests = [None if best is None or best.evaluation.uncompared else best for best in bests]
    timings = [best.evaluation.performance.timing for best in bests if best and best.evaluation.performance]
    named = [ratio.baseline for timing in timings if timing is not None for ratio in timing.ratios]
    baselines = dict.fromkeys((FASTEST, *named))
    return tuple(_curve(baseline, bests) for baseline in baselines)


def speedup_over(baseline: str, best: Attempt | None) -> float:
    """Speedup of an attempt over a baseline; NaN without one, or where the time is quarantined."""
    speed = best.evaluation.performance if best else None
    if speed is None or speed.quarantined is not None:
        return math.nan
    if baseline == FASTEST:
        return _or_nan(speed.speedup)
    ratio = speed.timing.ratio(baseline) if speed.timing else None
    return math.nan if ratio is None else ratio.speedup


def _curve(baseline: str, bests: Sequence[Attempt | None]) -> FastCurve:
    speedups = [speedup_over(baseline, best) for best in bests]
    correct = [best is not None for best in bests]
    largest = max((speedup for speedup in speedups if not math.isnan(speedup)), default=0.0)
    end = max(math.ceil(min(largest, _MOST) * _STEP), _LEAST * _STEP)
    grid = [step / _STEP for step in range(end + 1)]
    return FastCurve(
        baseline=baseline,
        tasks=len(bests),
        untimed=sum(solved and math.isnan(speedup) for solved, speedup in zip(correct, speedups, strict=True)),
        uncompiled=sum(map(_uncompiled, bests)) if baseline == FASTEST else 0,
        points=tuple(
            FastPoint(p=p, value=at.value, low=at.low, high=at.high)
            for p, at in zip(grid, fast_p_curve(speedups, grid, correct), strict=True)
        ),
    )


def _uncompiled(best: Attempt | None) -> bool:
    speed = best.evaluation.performance if best else None
    if speed is None or speed.speedup is None or speed.protocol.startswith("kernelbench"):
        return False
    return speed.timing is None or not speed.timing.compiled


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class AnytimePoint(View):
    """Results of the run after one more attempt."""

    evaluations: int
    """Attempts that had ended, including this one."""
    seconds: float
    """Since the run began, including pauses before ``resume``."""
    dollars: float | None
    """Paid so far; None once a price is unknown. Messages about a task outside its attempts count with its first
    attempt (tests) or its last (last words, lessons)."""
    attempt: str
    tasks_ok: int
    geomean_speedup: float | None
    """Over all tasks, of max(speedup, 1), a failure as 1; None on a modelled run."""
    median_dram_ratio: float | None
    """DRAM bytes over compulsory bytes of the tasks' best so far."""


class Spent(View):
    """One part of the time and money spent."""

    what: str
    """An agent (``coder judge tester reflexion``), a part of evaluations (``build oracle emulation ...``), ``other`` or
    ``idle``."""
    kind: Literal["agent", "evaluation", "rest"]
    """``rest``: ``other`` is the time of attempts outside calls and evaluations: waiting for a device, for rate limits
    and retries, and agents without model calls. ``idle`` is the remaining wall time of the run's jobs."""
    seconds: float
    """Sum over workers, so it may exceed the run's wall time."""
    dollars: float | None
    """None without model calls, or where a price is unknown."""


def ended_after(records: RunRecords, attempt: Attempt) -> float:
    """Seconds from the start of the run to the end of the attempt; at least 0."""
    return max(seconds_between(records.run.started, attempt.started) or 0.0, 0.0) + attempt.seconds


def seconds_between(started: str, ended: str | None) -> float | None:
    """Seconds between two timestamps of records; None where one is missing or invalid."""
    if ended is None:
        return None
    try:
        return max((datetime.fromisoformat(ended) - datetime.fromisoformat(started)) / timedelta(seconds=1), 0.0)
    except (ValueError, TypeError):
        return None


def anytime(records: RunRecords, *, measured: bool) -> tuple[AnytimePoint, ...]:
    """One point per attempt, in the order of their ends."""
    ended = sorted((ended_after(records, attempt), index, attempt) for index, attempt in enumerate(records.attempts))
    messages = _messages_by_attempt(records, [attempt for _, _, attempt in ended])
    gains = dict.fromkeys(records.run.config.tasks, 0.0)
    ratios: dict[str, float] = {}
    ordered: list[float] = []
    bests: dict[str, int] = {}
    correct: set[str] = set()
    geomean = 1.0
    points: list[AnytimePoint] = []
    dollars: float | None = 0.0
    for number, (seconds, _, attempt) in enumerate(ended, 1):
        cost = paid(messages[attempt.id])
        dollars = None if dollars is None or cost is None else dollars + cost
        if attempt.accepted and attempt.number > bests.get(attempt.task, -1):
            bests[attempt.task] = attempt.number
            compared = None if attempt.evaluation.uncompared else attempt
            correct = correct | {attempt.task} if compared else correct - {attempt.task}
            speedup = speedup_over(FASTEST, compared)
            gains[attempt.task] = math.log(max(speedup, 1.0)) if speedup == speedup else 0.0
            geomean = math.exp(math.fsum(gains.values()) / len(gains))
            _replace(ordered, ratios, attempt.task, dram_ratio(compared) if compared else None)
        points.append(
            AnytimePoint(
                evaluations=number,
                seconds=round(seconds, 3),
                dollars=dollars,
                attempt=attempt.id,
                tasks_ok=len(correct),
                geomean_speedup=geomean if measured else None,
                median_dram_ratio=median(ordered) if ordered else None,
            )
        )
    return tuple(points)


def _replace(ordered: list[float], values: dict[str, float], task: str, value: float | None) -> None:
    """Replace a task's value in the sorted list of all of them."""
    if task in values:
        ordered.remove(values.pop(task))
    if value is not None:
        values[task] = value
        insort(ordered, value)


def _messages_by_attempt(records: RunRecords, ended: list[Attempt]) -> dict[str, list[Message]]:
    """Messages by the attempt with which they count; every message once, if there is any attempt."""
    by_attempt: dict[str, list[Message]] = defaultdict(list)
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for attempt in ended:
        by_attempt[attempt.id] += attempt.messages
        first.setdefault(attempt.task, attempt.id)
        last[attempt.task] = attempt.id
    for task, messages in records.messages.items() if ended else ():
        for message in messages:
            side = first if message.agent == "tester" else last
            by_attempt[side.get(task, ended[-1].id)].append(message)
    return by_attempt


def spent(records: RunRecords) -> tuple[Spent, ...]:
    """Agents by price, parts of evaluations by time, and the rest."""
    by_agent: dict[str, list[Message]] = defaultdict(list)
    for message in records.all_messages():
        if message.usage is not None:
            by_agent[message.agent].append(message)
    parts: dict[str, float] = defaultdict(float)
    for attempt in records.attempts:
        for part, seconds in attempt.evaluation.seconds.items():
            parts[part] += seconds
    costs = {agent: total_cost(messages) for agent, messages in by_agent.items()}
    rows = [Spent(what=agent, kind="agent", seconds=c.seconds, dollars=c.dollars) for agent, c in costs.items()]
    rows += [
        Spent(what=part, kind="evaluation", seconds=round(seconds, 3), dollars=None)
        for part, seconds in sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return (*rows, *_rest(records))


def _rest(records: RunRecords) -> Iterable[Spent]:
    other = sum(max(attempt.seconds - _accounted(attempt), 0.0) for attempt in records.attempts)
    if records.attempts:
        yield Spent(what="other", kind="rest", seconds=round(other, 3), dollars=None)
    wall = seconds_between(records.run.started, records.run.ended)
    if wall is not None:
        beside = total_cost(message for messages in records.messages.values() for message in messages).seconds
        busy = sum(attempt.seconds for attempt in records.attempts) + beside
        idle = max(records.run.config.jobs * wall - busy, 0.0)
        yield Spent(what="idle", kind="rest", seconds=round(idle, 3), dollars=None)


def _accounted(attempt: Attempt) -> float:
    calls = sum(message.usage.seconds for message in attempt.messages if message.usage is not None)
    return calls + sum(attempt.evaluation.seconds.values())
