"""Statistics of boards and runs: fast_p, geometric means, and what a draw of other tasks would have made of them.

An interval is a percentile bootstrap over tasks: tasks are drawn with replacement, as many as there are, and the
statistic is computed on each draw. It says how far the number depends on which tasks the suite happens to hold; it says
nothing of the noise within one task's time, which :class:`~kernelforge.records.Ratio` has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelforge.report.summary import View

RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 20_261_121
"""Fixed, so that the same records give the same interval everywhere."""

Values = NDArray[np.float64]
Statistic = Callable[[Values], Values]
"""From values of shape (draws, tasks) to one number per draw, shape (draws,)."""


class Estimate(View):
    """A statistic over tasks with its 95 % interval by task bootstrap."""

    value: float
    low: float
    high: float


def estimate(values: Sequence[float], statistic: Statistic) -> Estimate | None:
    """The statistic of ``values`` (one per task) with its interval; None of nothing."""
    if not len(values):
        return None
    data = np.asarray(values, dtype=np.float64)
    value = float(statistic(data[np.newaxis, :])[0])
    drawn = statistic(data[_draws(len(data))])
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(value=value, low=min(float(low), value), high=max(float(high), value))


def _draws(tasks: int) -> NDArray[np.intp]:
    """Which tasks each draw holds, shape (draws, tasks); the same for every statistic of a run."""
    return np.random.default_rng(SEED).integers(0, tasks, size=(RESAMPLES, tasks))
