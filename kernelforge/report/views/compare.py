"""Two runs compared task by task; tasks in only one of them are listed.

Correctness comes first: correct beats failed, regardless of times. Where both are correct, the measured times of the
two best attempts are compared; on a device that models time, the modelled ones, which decide where they are far enough
apart to be real (:data:`~kernelforge.agents.acceptance.APART`).

The two candidates were timed in different runs and not in turns, as a candidate and its baselines are, so a disturbance
of only one of them (clocks, temperature, other load) does not cancel. The interval of their ratio is wider than that of
a speedup, and does not cover a disturbance that lasted for all of a run. It is computed from the intervals of the two
medians by MOVER, on the logarithmic scale (Zou & Donner, "Construction of confidence limits about effect measures: a
general approach", Statistics in Medicine 2008): with log times a and b and their limits, ``a - b - sqrt((a - a_low)^2 +
(b_high - b)^2)`` is the lower limit, the upper one its mirror image. The samples are not resampled: samples of one
block are not independent, and the blocks are not journalled.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Literal, NamedTuple

from kernelforge.agents.acceptance import APART
from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Operator, Origin, Verdict
from kernelforge.report.formatting import number, times
from kernelforge.report.views import View
from kernelforge.report.views.board import board_key, key_differences
from kernelforge.report.views.run_records import RunRecords, best_of
from kernelforge.report.views.statistics import Estimate, geomean_correct
from kernelforge.report.views.task import plausible_time_us

_ABOUT_TASKS = {"suite", "suite_digest", "task_set", "task_count"}
"""Parts of a board's key that are ignored here: each task is compared only with the same task."""

Quantity = Literal["time_us", "modelled_us", "none"]
"""What decides where both are correct: a measured time, a modelled one, or nothing."""
Outcome = Literal["win", "loss", "tie", "both-failed"]
"""Outcome for the second run, ``b``: by correctness, and by whether the interval of the ratio excludes 1, or two
modelled times are far enough apart."""


class PairRow(View):
    """One task that both runs have."""

    task: str
    outcome: Outcome
    why: str
    """Explanation: ``b is correct, a is not: WRONG``; ``1.31x as fast [1.27, 1.35]``."""
    a_best: str | None
    b_best: str | None
    a_verdict: Verdict | None
    b_verdict: Verdict | None
    a_value: float | None
    """Compared quantity (see ``CompareView.quantity``); None where it is missing."""
    b_value: float | None
    ratio: float | None
    """Ratio of a's value to b's: above 1 is better for b."""
    low: float | None
    """95 % interval of the ratio; None for modelled times."""
    high: float | None
    a_outcome: str | None
    """The verdict in words; ``OK, full size not compared`` is not correct. None without an attempt."""
    b_outcome: str | None


class CompareView(View):
    """Two runs. Times are compared only where the runs would share a board, except for the choice of
    tasks; otherwise only correctness is."""

    a: str
    b: str
    comparable: bool
    """Whether both belong on one board."""
    differences: tuple[str, ...]
    """Reasons why they do not: ``device: NVIDIA H200 and emulated:h100``."""
    quantity: Quantity
    """Quantity that is compared where both are correct."""
    wins: int
    losses: int
    ties: int
    both_failed: int
    geomean_ratio: Estimate | None
    """Over tasks with a ratio."""
    pairs: tuple[PairRow, ...]
    """Regressions first, the worst at the top; then wins, ties, and tasks that both failed."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    changed: tuple[str, ...]
    """Tasks with equal names and other sources, sizes or policies: they are not compared."""


def compare_view(a: RunRecords, b: RunRecords) -> CompareView:
    """Compare run ``b`` with run ``a``."""
    keys = board_key(a), board_key(b)
    differences = key_differences(*keys)
    plain = [key.model_copy(update={name: keys[0].__dict__[name] for name in _ABOUT_TASKS}) for key in keys]
    quantity: Quantity = "none"
    if not key_differences(*plain):
        quantity = "time_us" if keys[0].origin is Origin.MEASURED else "modelled_us"
    a_tasks, b_tasks = a.run.config.tasks, set(b.run.config.tasks)
    shared = [task for task in a_tasks if task in b_tasks]
    changed = tuple(task for task in shared if not _same(a, b, task))
    pairs = [_pair(task, a, b, quantity) for task in shared if task not in changed]
    outcomes = Counter(pair.outcome for pair in pairs)
    return CompareView(
        a=a.run.id,
        b=b.run.id,
        comparable=not differences,
        differences=differences,
        quantity=quantity,
        wins=outcomes["win"],
        losses=outcomes["loss"],
        ties=outcomes["tie"],
        both_failed=outcomes["both-failed"],
        geomean_ratio=geomean_correct([pair.ratio for pair in pairs if pair.ratio is not None]),
        pairs=tuple(sorted(pairs, key=_standing)),
        only_a=tuple(task for task in a_tasks if task not in b_tasks),
        only_b=tuple(task for task in b.run.config.tasks if task not in set(a_tasks)),
        changed=changed,
    )


def start_view(records: RunRecords) -> CompareView:
    """Compare the bests of a run with the kernels that their tasks were started from: ``a`` is the start.

    Raises:
        UsageError: no task of the run was started from a kernel that is evaluated.
    """
    run = records.run
    starts = [attempt for attempt in records.attempts if attempt.operator is Operator.START]
    if not starts:
        raise UsageError(
            f"no task of run {run.id} was started from a kernel (--from): name another run to compare with"
        )
    started = {attempt.task for attempt in starts}
    tasks = tuple(task for task in run.config.tasks if task in started)
    run = run.model_copy(update={"config": run.config.model_copy(update={"tasks": tasks})})
    first = replace(records, run=run, attempts=tuple(starts))
    both = compare_view(first, replace(records, run=run))
    return both.model_copy(update={"a": f"{run.id}, start", "b": f"{run.id}, best"})


def _same(a: RunRecords, b: RunRecords, task: str) -> bool:
    """Whether a name means the same task in both. A run that did not start the task is judged by its suite alone."""
    digests = {_digest(a, task), _digest(b, task)}
    return a.run.config.suite_digest == b.run.config.suite_digest if None in digests else len(digests) == 1


def _digest(records: RunRecords, task: str) -> str | None:
    if task in records.tasks:
        return records.tasks[task].digest
    return next((attempt.evaluation.task for attempt in records.of_task(task)), None)


class _Judged(NamedTuple):
    """Outcome at one task, with the reason and the values."""

    outcome: Outcome
    why: str
    values: tuple[float | None, float | None] = (None, None)
    ratio: float | None = None
    interval: tuple[float, float] | None = None


def _pair(task: str, a: RunRecords, b: RunRecords, quantity: Quantity) -> PairRow:
    attempts = a.of_task(task), b.of_task(task)
    best = best_of(attempts[0]), best_of(attempts[1])
    latest = [attempt or (tried[-1] if tried else None) for attempt, tried in zip(best, attempts, strict=True)]
    outcomes = [attempt.evaluation.outcome if attempt else None for attempt in latest]
    verdicts = [attempt.evaluation.verdict if attempt else None for attempt in latest]
    correct = [None if attempt is None or attempt.evaluation.uncompared else attempt for attempt in best]
    if correct[0] is None or correct[1] is None:
        judged = _by_correctness(correct[0], correct[1], outcomes)
    elif quantity == "time_us":
        judged = _by_time(correct[0], correct[1])
    elif quantity == "modelled_us":
        judged = _by_modelled_time(correct[0], correct[1])
    else:
        judged = _Judged("tie", "both are correct; their times are not comparable")
    return PairRow.of(
        judged,
        task=task,
        a_best=best[0].id if best[0] else None,
        b_best=best[1].id if best[1] else None,
        a_verdict=verdicts[0],
        b_verdict=verdicts[1],
        a_value=judged.values[0],
        b_value=judged.values[1],
        low=judged.interval[0] if judged.interval else None,
        high=judged.interval[1] if judged.interval else None,
        a_outcome=outcomes[0],
        b_outcome=outcomes[1],
    )


def _by_correctness(a: Attempt | None, b: Attempt | None, outcomes: list[str | None]) -> _Judged:
    ended = [outcome or "no attempt" for outcome in outcomes]
    if a is not None:
        return _Judged("loss", f"a is correct, b is not: {ended[1]}")
    if b is not None:
        return _Judged("win", f"b is correct, a is not: {ended[0]}")
    return _Judged("both-failed", f"a: {ended[0]}; b: {ended[1]}")


def _by_time(a: Attempt, b: Attempt) -> _Judged:
    before, after = plausible_time_us(a), plausible_time_us(b)
    values = before, after
    if before is None or after is None:
        which = " and ".join(name for name, value in (("a", before), ("b", after)) if value is None)
        return _Judged("tie", f"both are correct; {which} has no time that is believed", values)
    ratio, interval = before / after, _interval(a, b)
    if interval is None:
        return _Judged("tie", "both are correct; a time has no interval", values, ratio)
    low, high = interval
    text = f"{times(ratio)} as fast [{times(low)}, {times(high)}]"
    if low > 1:
        return _Judged("win", text, values, ratio, interval)
    if high < 1:
        return _Judged("loss", text, values, ratio, interval)
    return _Judged("tie", f"{text}: the interval holds 1", values, ratio, interval)


def _interval(a: Attempt, b: Attempt) -> tuple[float, float] | None:
    """95 % interval of a's time over b's, by MOVER on the logarithmic scale."""
    speeds = a.evaluation.performance, b.evaluation.performance
    ends = [speed.interval_us if speed else None for speed in speeds]
    if speeds[0] is None or speeds[1] is None or ends[0] is None or ends[1] is None:
        return None
    (a_down, a_up), (b_down, b_up) = (
        (max(math.log(speed.time_us / end[0]), 0.0), max(math.log(end[1] / speed.time_us), 0.0))
        for speed, end in zip(speeds, ends, strict=True)
        if speed is not None and end is not None
    )
    ratio = speeds[0].time_us / speeds[1].time_us
    return ratio * math.exp(-math.hypot(a_down, b_up)), ratio * math.exp(math.hypot(a_up, b_down))


def _by_modelled_time(a: Attempt, b: Attempt) -> _Judged:
    speeds = a.evaluation.performance, b.evaluation.performance
    before, after = (None if speed is None else speed.time_us for speed in speeds)
    if before is None or after is None:
        return _Judged("tie", "both are correct; one has no modelled time", (before, after))
    text = f"modelled {number(after)} µs, a's {number(before)} µs"
    if min(before, after) > (1 - APART) * max(before, after):
        return _Judged("tie", f"{text}: less than {APART:.0%} apart", (before, after), before / after)
    return _Judged("win" if after < before else "loss", text, (before, after), before / after)


def _standing(pair: PairRow) -> tuple[int, float, str]:
    """Sort key: losses first, led by those that are no longer correct; then wins, the clearest first."""
    rank = {"loss": 0, "win": 1, "tie": 2, "both-failed": 3}[pair.outcome]
    ratio = pair.ratio if pair.ratio is not None else 0.0 if pair.outcome == "loss" else math.inf
    return rank, -ratio if pair.outcome == "win" else ratio, pair.task
