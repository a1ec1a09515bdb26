"""The model's error on a user's own GPU, from forecasts next to measured times, and the factor that corrects it.

The factor is the median of measured over modelled time, on a scale of logarithms drawn towards 1 while it rests on few
candidates, as if :data:`PRIOR` more had agreed with the model.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from kernelforge.prediction.speedup import kernel_spread
from kernelforge.records import ForecastOutcome
from kernelforge.records.base import Record

PRIOR = 4
"""Weight of the uncorrected model, in measured candidates: candidates scatter by 41 % (:func:`kernel_spread`), factors
of GPUs are taken to scatter by 20 % around 1 (modelled over published times are 0.74, 0.95 and 0.98 on three), and the
ratio of the variances is 4.2."""


class CardKey(NamedTuple):
    """Card and model that one factor is for."""

    gpu: str
    """The GPU that measured."""
    figures: str
    """Hash of the figures that the model used."""
    protocol: str
    """Version of the model."""


class CardError(Record):
    """Error of the time model on one GPU."""

    gpu: str
    """The GPU that measured."""
    model: str
    """The GPU whose figures the model used."""
    exact: bool
    """Whether they are the same."""
    protocol: str
    measured: int
    """Candidates that were predicted and measured, each once."""
    tasks: int
    median: float
    """Median of measured over modelled time; between two, their geometric mean."""
    low: float
    high: float
    """Smallest and largest of these ratios."""
    scatter: float
    """Standard deviation of the logarithms of measured times around the corrected ones, each over that of published
    kernels (:func:`kernel_spread`), with the prior's part: 1 where the model errs here as it does there."""
    factor: float
    """What later forecasts are multiplied by."""


def key_of(outcome: ForecastOutcome) -> CardKey:
    """The key of the factor that an outcome counts for."""
    return CardKey(outcome.gpu, outcome.forecast.figures, outcome.forecast.protocol)


def card_error(outcomes: Iterable[ForecastOutcome]) -> CardError | None:
    """Error on one GPU; None without outcomes.

    Args:
        outcomes: of equal keys. A candidate that was measured more than once counts as the last time.
    """
    latest = {(outcome.task, outcome.candidate): outcome for outcome in outcomes}
    if not latest:
        return None
    logs = [math.log(outcome.measured_us / outcome.forecast.modelled_us) for outcome in latest.values()]
    count, middle = len(logs), median(logs)
    shrunk = middle * count / (count + PRIOR)
    usual = [kernel_spread(outcome.forecast.idle) for outcome in latest.values()]
    squares = math.fsum(((log - shrunk) / spread) ** 2 for log, spread in zip(logs, usual, strict=True))
    last = next(reversed(latest.values()))
    return CardError(
        gpu=last.gpu,
        model=last.forecast.gpu,
        exact=last.forecast.exact,
        protocol=last.forecast.protocol,
        measured=count,
        tasks=len({task for task, _ in latest}),
        median=math.exp(middle),
        low=math.exp(min(logs)),
        high=math.exp(max(logs)),
        scatter=math.sqrt((squares + PRIOR) / (count + PRIOR)),
        factor=math.exp(shrunk),
    )


def card_errors(outcomes: Iterable[ForecastOutcome]) -> tuple[CardError, ...]:
    """Errors by GPU, figures and model, in the order of the first outcome of each."""
    groups: dict[CardKey, list[ForecastOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key_of(outcome), []).append(outcome)
    return tuple(error for group in groups.values() if (error := card_error(group)) is not None)


class ModelErrors:
    """Outcomes of the forecasts in one results folder. Safe to use from several threads."""

    def __init__(self, outcomes: Iterable[ForecastOutcome] = ()) -> None:
        self._lock = threading.Lock()
        self._outcomes: dict[CardKey, list[ForecastOutcome]] = {}
        self._added: list[ForecastOutcome] = []
        for outcome in outcomes:
            self.add(outcome)

    def add(self, outcome: ForecastOutcome) -> None:
        with self._lock:
            self._outcomes.setdefault(key_of(outcome), []).append(outcome)
            self._added.append(outcome)

    def since(self, count: int) -> tuple[ForecastOutcome, ...]:
        """All outcomes but the first ``count``, in the order in which they were added."""
        with self._lock:
            return tuple(self._added[count:])

    def of(self, key: CardKey) -> CardError | None:
        """The error so far; None where nothing was measured."""
        with self._lock:
            return card_error(self._outcomes.get(key, ()))
