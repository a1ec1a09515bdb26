"""fast_p against each baseline, and the headline numbers of a run with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.records import Attempt
from kernelforge.report.views.base import View
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
from kernelforge.report.views.summary import TaskSummary

FASTEST = "fastest"
"""Stands for the fastest of all baselines, task by task."""

_STEP = 20
"""Points of a curve per unit of p: 1.2 and 1.5 are among them."""
_LEAST, _MOST = 2, 4
"""A curve goes to the largest speedup, but at least and at most this far."""


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
    """Correct tasks without a speedup against this baseline: they count at p = 0 alone."""
    uncompiled: int = 0
    """Against the fastest: tasks with a speedup that torch.compile was not among the baselines of."""
    points: tuple[FastPoint, ...]
    """At p = 0, 0.05, 0.1 ... as far as there are speedups; to 2 at least and to 4 at most. Bands are pointwise."""


class Headline(View):
    """What a run achieved, each over all tasks with a 95 % interval by task bootstrap; measured runs but for
    ``correct``."""

    correct: Estimate | None
    """Share of tasks with something correct."""
    fast_1: Estimate | None = None
    """Share of tasks that are correct and faster than the fastest baseline."""
    win_rate: Estimate | None = None
    """Share of tasks that are faster beyond the noise of their times."""
    geomean_speedup: Estimate | None = None
    """Geometric mean of max(speedup, 1), a failure as 1."""
    geomean_correct: Estimate | None = None
    """Geometric mean over tasks with a speedup alone."""
    floor_share: Estimate | None = None
    """Mean of floor / time, a task without a time as 0; None where no task has a floor."""


def headline(tasks: Sequence[TaskSummary], *, measured: bool) -> Headline:
    """The numbers that stand for a run."""
    correct = [task.correct for task in tasks]
    if not measured:
        return Headline(correct=correct_share(correct))
    speedups = [_or_nan(task.speedup if task.correct else None) for task in tasks]
    floors = [_or_nan(task.floor_share if task.correct else None) for task in tasks]
    return Headline(
        correct=correct_share(correct),
        fast_1=fast_p(speedups, 1.0),
        win_rate=win_rate([_or_nan(task.speedup_lower if task.correct else None) for task in tasks]),
        geomean_speedup=geomean_deployable(speedups),
        geomean_correct=geomean_correct(speedups),
        floor_share=None if all(map(math.isnan, floors)) else share_of_floor(floors),
    )


def fast_curves(bests: Sequence[Attempt | None]) -> tuple[FastCurve, ...]:
    """A curve against the fastest baseline, and one against each that any of the bests was compared with.

    Args:
        bests: The best attempt of every task of a measured run; None where nothing was accepted. One whose values
            were not compared at the full size counts as none.
    """
    bests = [None if best is None or best.evaluation.uncompared else best for best in bests]
    timings = [best.evaluation.performance.timing for best in bests if best and best.evaluation.performance]
    named = [ratio.baseline for timing in timings if timing is not None for ratio in timing.ratios]
    baselines = dict.fromkeys((FASTEST, *named))
    return tuple(_curve(baseline, bests) for baseline in baselines)


def speedup_over(baseline: str, best: Attempt | None) -> float:
    """Speedup of an attempt over a baseline, NaN where there is none to be believed."""
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
    grid = [place / _STEP for place in range(end + 1)]
    return FastCurve(
        baseline=baseline,
        tasks=len(bests),
        untimed=sum(one and math.isnan(speedup) for one, speedup in zip(correct, speedups, strict=True)),
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
