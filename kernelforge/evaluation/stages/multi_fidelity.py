"""Multi-fidelity Bayesian optimisation over a finite set of points: which one to evaluate next, and how precisely.

A point has a *cheap* rating and a *complete* one. Logarithms of complete times are a Gaussian process (Rasmussen &
Williams, *Gaussian Processes for Machine Learning*, 2006, chapters 2 and 5) over the encoded values, with a Matérn 5/2
kernel and a length scale per dimension; those of cheap times are the same process plus an independent discrepancy
(Kennedy & O'Hagan, *Predicting the output from a complex computer code*, Biometrika 87, 2000). The next step has the
largest expected improvement of the complete time, times the correlation of its fidelity with the complete one, per
cost (Huang et al., *Sequential kriging optimization using multiple-fidelity evaluations*, 2006), times the chance that
the point can be evaluated at all (Gardner et al., *Bayesian optimization with inequality constraints*, ICML 2014).

It is written out here, on numpy: scikit-learn has the process alone and would bring scipy into every installation;
Optuna's sampler neither weighs a cost nor has two fidelities in one model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Fidelity = Literal["cheap", "complete"]

EFFORTS: Mapping[Fidelity, float] = {"cheap": 1 / 8, "complete": 1.0}
"""Share of a complete rating's work."""
BUILD_COST = 0.5
"""A build, and a complete rating, as parts of an evaluation with both. On an emulated device they take about the same
time; on a GPU the build takes more."""
RATING_COST = 1.0 - BUILD_COST
BUDGET = 16.0
"""Cost of a search by default: what 16 builds with complete ratings cost."""
MOST_BUILT = 1 + int((BUDGET - BUILD_COST - RATING_COST * EFFORTS["cheap"]) / BUILD_COST)
"""Points that a search with that budget builds at most: the first one is rated, and no other, for what fails to build
or does the same as an earlier one takes no rating."""
UNBUILT = 64
"""Points that may be refused before they are built, which costs nothing; then the search is closed."""
FIRST_POINTS = 5
"""Points that are rated, after the first, before the process decides."""
FINALISTS = 3
"""Points whose complete ratings the budget is kept for."""

LENGTHS = (0.1, 3.2)
"""Bounds of the length scales, for values encoded in [0, 1]."""
TYPICAL_LENGTH = 0.8
DISCREPANCIES = (1e-4, 1.0)
"""Bounds of the variance of the discrepancy, over that of the process."""
NUGGET = 1e-3
"""Variance of a time's own over that of the process: what no neighbour tells of it."""


@dataclass(frozen=True)
class Step:
    """One rating that the search asks for."""

    point: int
    fidelity: Fidelity


@dataclass
class _Process:
    """A Gaussian process conditioned on observed values."""

    lengths: Vector
    discrepancy: float
    mean: float
    variance: float
    points: Vector
    factor: Vector
    weights: Vector

    def predict(self, points: Vector) -> tuple[Vector, Vector]:
        """Mean and standard deviation of the complete value at each of ``points``, of shape (n, d)."""
        across = _matern(points, self.points, self.lengths)
        mean = self.mean + across @ self.weights
        solved = np.linalg.solve(self.factor, across.T)
        return mean, np.sqrt(self.variance * np.maximum(1.0 - (solved**2).sum(axis=0), 1e-12))

    @property
    def correlation(self) -> float:
        """Correlation of cheap values with complete ones."""
        return 1.0 / math.sqrt(1.0 + self.discrepancy)


@dataclass
class MultiFidelitySearch:
    """A search for the point with the least complete time.

    Args:
        points: encoded values, of shape (n, d), each in [0, 1]; see :func:`encode`.
        first: the point that is rated first, and completely.
        seed: all choices are drawn from it; the same ratings then give the same steps.
        budget: cost that it may spend, in evaluations of a build and a complete rating.
    """

    points: Vector
    first: int
    seed: int
    budget: float = BUDGET
    spent: float = 0.0
    _times: dict[Fidelity, dict[int, float]] = field(default_factory=lambda: {"cheap": {}, "complete": {}})
    """Logarithms of times, by point."""
    _failed: set[int] = field(default_factory=set)
    _twins: set[int] = field(default_factory=set)
    """Points that do the same as others."""
    _unbuilt: int = 0
    _closed: bool = False
    _design: list[int] = field(default_factory=list)
    _fits: dict[str, _Process] = field(default_factory=dict)
    """The last process of times, and of the chance."""

    def __post_init__(self) -> None:
        self._design = _spread(self.points, self.first, Random(self.seed), FIRST_POINTS)

    def next(self) -> Step | None:
        """The rating to do now, or None at the end. :meth:`record` its result before the next call."""
        cheap, complete = self._times["cheap"], self._times["complete"]
        if self.first in self._failed:
            return None
        if self.first not in complete:  # and so no other point was rated
            return None if self._closed else Step(self.first, "complete" if self.first in cheap else "cheap")
        while self._design:
            if self._affordable(self._cost(self._design[0], "cheap") + RATING_COST):
                return Step(self._design.pop(0), "cheap")
            self._design.clear()
        process = self._fitted("time", cheap, complete)
        mean, deviation = process.predict(self.points)
        rated = sorted(cheap.keys() | complete.keys())
        fastest = sorted(set(rated) - self._twins, key=lambda point: (mean[point], point))[:FINALISTS]
        finalists = [point for point in fastest if point not in complete]
        if not self._closed:
            best = min(mean[rated])
            improvement = _expected_improvement(best - mean, deviation) * self._chance()
            step = self._most_promising(improvement, process.correlation, finalists)
            if step is not None:
                return step
        return next((Step(point, "complete") for point in finalists if self._affordable(RATING_COST)), None)

    def close(self) -> None:
        """Try no further point. Only complete ratings of those that seem best are still asked for, as the budget
        allows, so that no cheap rating was in vain."""
        self._closed = True
        self._design.clear()

    def _most_promising(self, improvement: Vector, correlation: float, finalists: Sequence[int]) -> Step | None:
        """The step of the largest gain per cost that leaves the finalists' complete ratings affordable."""
        cheap, complete = self._times["cheap"], self._times["complete"]
        kept = RATING_COST * len(finalists)
        steps: list[tuple[float, Step]] = []
        for point in range(len(self.points)):
            if point in self._failed or point in self._twins or point in complete:
                continue
            costs = {fidelity: self._cost(point, fidelity) for fidelity in EFFORTS}
            if point not in cheap and self._affordable(costs["cheap"] + kept):
                gain = improvement[point] * correlation / costs["cheap"]
                steps.append((gain, Step(point, "cheap")))
            if self._affordable(costs["complete"] + (kept if point not in finalists else kept - RATING_COST)):
                steps.append((improvement[point] / costs["complete"], Step(point, "complete")))
        return max(steps, key=lambda step: step[0])[1] if steps else None

    def record(
        self,
        step: Step,
        time: float | None,
        *,
        built: bool = True,
        rated: bool = True,
        settled: bool = False,
        twin: bool = False,
    ) -> None:
        """Add the result of a step.

        Args:
            step: what was asked for.
            time: above 0; None where the point cannot be rated.
            built: whether the point was built, which a refused plan was not.
            rated: whether the step took a rating; not where the build failed, or another point's rating holds for it.
            settled: whether a complete rating would give the same time.
            twin: whether it does the same as a point that was built before. It is not asked for again.
        """
        if built:
            self.spent += self._cost(step.point, step.fidelity if rated else None)
        else:
            self._unbuilt += 1
            if self._unbuilt >= UNBUILT:
                self.close()
        if time is None:
            self._failed.add(step.point)
            for times in self._times.values():
                times.pop(step.point, None)  # with a cheap one, what fails completely would stay a finalist
            return
        if twin:
            self._twins.add(step.point)
        self._times[step.fidelity][step.point] = math.log(time)
        if settled:
            self._times["complete"][step.point] = math.log(time)

    def _cost(self, point: int, fidelity: Fidelity | None) -> float:
        """Of a rating, or of none, with the build where the point has none."""
        built = any(point in times for times in self._times.values())
        return (0.0 if built else BUILD_COST) + (0.0 if fidelity is None else RATING_COST * EFFORTS[fidelity])

    def _affordable(self, cost: float) -> bool:
        return self.spent + cost <= self.budget

    def _fitted(self, role: str, cheap: Mapping[int, float], complete: Mapping[int, float]) -> _Process:
        last = self._fits.get(role)
        start = None if last is None else (last.lengths, last.discrepancy)
        self._fits[role] = _fit(self.points, cheap, complete, start)
        return self._fits[role]

    def _chance(self) -> Vector:
        """Chance that each point can be rated: that a process through 1 for those that could, -1 for others is above
        0."""
        rated = self._times["cheap"].keys() | self._times["complete"].keys()
        if not self._failed:
            return np.ones(len(self.points))
        labels = {point: 1.0 if point in rated else -1.0 for point in sorted(rated | self._failed)}
        mean, deviation = self._fitted("chance", {}, labels).predict(self.points)
        return _normal(mean / deviation)


def encode(combinations: Sequence[Mapping[str, int]]) -> Vector:
    """Combinations as points of the unit cube, of shape (n, d): one column per name that has several values.

    Positive values that span a factor of 4 are encoded by their logarithm, for extents mostly double; others linearly.
    """
    columns = []
    for name in combinations[0]:
        values = np.array([float(choices[name]) for choices in combinations])
        if values.min() > 0 and values.max() >= 4 * values.min():
            values = np.log2(values)
        if values.max() > values.min():
            columns.append((values - values.min()) / (values.max() - values.min()))
    return np.stack(columns, axis=1)


def _spread(points: Vector, first: int, rng: Random, count: int) -> list[int]:
    """Points far from each other and from ``first``: of 32 drawn ones, each time the one farthest from the others."""
    taken: list[int] = [first]
    while len(taken) <= count and len(taken) < len(points):
        drawn = rng.sample(
            [point for point in range(len(points)) if point not in taken], min(32, len(points) - len(taken))
        )
        distances = np.abs(points[drawn][:, None] - points[taken][None]).sum(axis=2).min(axis=1)
        taken.append(drawn[int(distances.argmax())])
    return taken[1:]


def _matern(rows: Vector, columns: Vector, lengths: Vector) -> Vector:
    """Matérn 5/2 correlations of two sets of points, of shape (n, m)."""
    squares = np.zeros((len(rows), len(columns)))
    for dimension, length in enumerate(lengths):
        squares += ((rows[:, None, dimension] - columns[None, :, dimension]) / length) ** 2
    distance = np.sqrt(5.0 * squares)
    correlations: Vector = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return correlations


def _fit(
    points: Vector,
    cheap: Mapping[int, float],
    complete: Mapping[int, float],
    start: tuple[Vector, float] | None = None,
) -> _Process:
    """The process with the most probable length scales and discrepancy near ``start``, by coordinate ascent.

    Length scales have a log-normal prior around :data:`TYPICAL_LENGTH`: without one, few observations make some of
    them vanish.
    """
    observed = [*((point, 1.0, value) for point, value in cheap.items() if point not in complete)]
    observed += [(point, 0.0, value) for point, value in complete.items()]
    observed += [(point, 1.0, value) for point, value in cheap.items() if complete.get(point, value) != value]
    where = points[[point for point, _, _ in observed]]
    is_cheap = np.array([flag for _, flag, _ in observed])
    values = np.array([value for _, _, value in observed])

    def conditioned(lengths: Vector, discrepancy: float) -> tuple[float, _Process]:
        count = len(values)
        base = _matern(where, where, lengths)
        covariance = base * (1.0 + discrepancy * np.outer(is_cheap, is_cheap)) + NUGGET * np.eye(count)
        factor = np.linalg.cholesky(covariance).astype(np.float64, copy=False)
        ones, scaled = np.linalg.solve(factor, np.stack([np.ones(count), values], axis=1)).T
        mean = float(ones @ scaled / (ones @ ones))
        residual = scaled - mean * ones
        variance = max(float(residual @ residual) / count, 1e-8)
        prior = float((np.log(lengths / TYPICAL_LENGTH) ** 2).sum()) / 2
        density = -0.5 * count * math.log(variance) - float(np.log(np.diag(factor)).sum()) - prior
        weights = np.linalg.solve(factor.T, residual)
        return density, _Process(lengths, discrepancy, mean, variance, where, factor, weights)

    best = conditioned(*(start or (np.full(points.shape[1], TYPICAL_LENGTH), 1e-3)))
    density = -math.inf
    while best[0] > density + 0.01:
        density = best[0]
        for dimension in range(points.shape[1]):
            for factor in (0.5, 2.0):
                lengths = best[1].lengths.copy()
                lengths[dimension] = min(max(lengths[dimension] * factor, LENGTHS[0]), LENGTHS[1])
                best = max(best, conditioned(lengths, best[1].discrepancy), key=lambda fit: fit[0])
        for factor in (0.1, 10.0):
            ratio = min(max(best[1].discrepancy * factor, DISCREPANCIES[0]), DISCREPANCIES[1])
            best = max(best, conditioned(best[1].lengths, ratio), key=lambda fit: fit[0])
    return best[1]


def _expected_improvement(gain: Vector, deviation: Vector) -> Vector:
    """Expectation of the positive part of a normal variable."""
    z = gain / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    improvement: Vector = gain * _normal(z) + deviation * density
    return improvement


def _normal(z: Vector) -> Vector:
    """Distribution function of the standard normal distribution."""
    return np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z])
