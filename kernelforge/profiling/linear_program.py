"""A small sparse linear program, solved by an interior-point method.

Nothing here calls a BLAS library: its threads would wait for cores that other work has, for matrices as small as these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_STEPS = 60
TOLERANCE = 1e-9
ACCEPTED = 1e-4
"""Tolerance of an answer where no step comes closer."""
_STEP = 0.995
"""Share of the way to the nearest bound that a step goes."""
_DEPENDENT = 1e-12
"""Share of a row's diagonal element that is left of a row that depends on others."""
_FILL = 64
"""Most entries that an elimination before the method may add."""
_OWN = 1e-2
"""Least share of variables in one constraint alone in that constraint's diagonal element, for it to be eliminated: it
is divided by them."""


def solve(cost: Array, rows: Array, values: Array) -> Array | None:
    """The ``x >= 0`` with ``rows @ x == values`` for which ``cost @ x`` is least; None if no step finds it.

    Mehrotra's predictor and corrector (Nocedal and Wright, *Numerical Optimization*, algorithm 14.3). Where several x
    are optimal it returns one between them. Rows may depend on each other, as long as they agree.

    Args:
        cost: One for each variable, at least 0, so that the program is bounded.
        rows: Constraints by variables.
        values: One for each constraint.
    """
    if not cost.size:
        return cost if not np.any(values) else None
    program = _Program.of(rows)
    best, answer = ACCEPTED, None
    # Where it costs too much precision to eliminate constraints, none is.
    for eliminate in (True, False):
        off, x = _solved(program, cost, values, eliminate=eliminate)
        if off < best:
            best, answer = off, x
        if off <= TOLERANCE:
            break
    return answer


@dataclass(frozen=True)
class Reduced:
    """A program without variables that an equation makes a sum of others, at least 0: these need no bound."""

    cost: Array
    rows: Array
    values: Array
    kept: npt.NDArray[np.intp]
    """Variables of the whole program that are left."""
    sums: list[tuple[int, Array, float]]
    """Variables that are not, in the order of elimination: a sum of all variables, and a constant."""

    @classmethod
    def of(cls, cost: Array, rows: Array, values: Array) -> Reduced:
        """The same program as :func:`solve` takes, with fewer constraints and variables."""
        cost, rows, values = cost.copy(), rows.copy(), values.copy()
        remaining, sums = np.ones(len(values), np.bool_), []
        changed = True
        while changed:
            changed = False
            for number in np.flatnonzero(remaining).tolist():
                variable = _sum_of_others(rows[number], values[number])
                if variable is None:
                    continue
                of_others, constant = -rows[number] / rows[number, variable], values[number] / rows[number, variable]
                of_others[variable] = 0.0
                remaining[number] = False
                others = np.flatnonzero(remaining & (rows[:, variable] != 0))
                terms = np.flatnonzero(of_others)
                if others.size * terms.size > _FILL:
                    remaining[number] = True
                    continue
                factors = rows[others, variable]
                rows[np.ix_(others, terms)] += np.multiply.outer(factors, of_others[terms])
                rows[others, variable] = 0.0
                values[others] -= factors * constant
                cost[terms] += cost[variable] * of_others[terms]
                sums.append((variable, of_others, constant))
                changed = True
        kept = np.ones(len(cost), np.bool_)
        kept[[variable for variable, _, _ in sums]] = False
        columns = np.flatnonzero(kept)
        return cls(cost[columns], rows[np.ix_(remaining, columns)], values[remaining], columns, sums)

    def expanded(self, x: Array) -> Array:
        """All variables of the program, of those of this one."""
        result = np.zeros(len(self.kept) + len(self.sums))
        result[self.kept] = x
        for variable, of_others, constant in reversed(self.sums):
            result[variable] = _dot(of_others, result) + constant
        return result


def _sum_of_others(row: Array, value: float) -> int | None:
    """A variable that a constraint makes a sum, with factors and a constant of at least 0, of its others."""
    for signed, constant in ((row, value), (-row, -value)):
        positive = np.flatnonzero(signed > 0)
        if positive.size == 1 and constant >= 0:
            return int(positive[0])
    return None


def _solved(program: _Program, cost: Array, values: Array, *, eliminate: bool) -> tuple[float, Array]:
    """The best x of the method, and by how much it misses the conditions of an optimum."""
    matrix = program.matrix
    count = len(cost)
    size = 1 + float(np.abs(values).max(initial=0.0))
    dearest = 1 + float(np.abs(cost).max(initial=0.0))
    x, slack = np.full(count, size), np.full(count, dearest)
    y = np.zeros(len(values))
    best, answer = math.inf, x
    for _ in range(MAX_STEPS):
        primal, dual = values - matrix.times(x), cost - slack - matrix.transposed_times(y)
        gap = _dot(x, slack) / count
        off = max(
            gap * count / (1 + abs(_dot(cost, x))),
            float(np.abs(primal).max(initial=0.0)) / size,
            float(np.abs(dual).max(initial=0.0)) / dearest,
        )
        if off < best:
            best, answer = off, x
        if off <= TOLERANCE:
            break
        newton = _Newton.at(program, x, slack, primal, dual, eliminate=eliminate)
        step_x, _, step_slack = newton.step(-x * slack)
        ahead = _dot(x + _reach(x, step_x) * step_x, slack + _reach(slack, step_slack) * step_slack) / count
        centre = gap * (ahead / gap) ** 3
        step_x, step_y, step_slack = newton.step(centre - x * slack - step_x * step_slack)
        if not (np.isfinite(step_x).all() and np.isfinite(step_slack).all()):
            break
        reach_x, reach_slack = _STEP * _reach(x, step_x), _STEP * _reach(slack, step_slack)
        x = x + reach_x * step_x
        y, slack = y + reach_slack * step_y, slack + reach_slack * step_slack
    return best, answer


@dataclass(frozen=True)
class _Sparse:
    """A matrix by its entries, and its products with vectors."""

    shape: tuple[int, int]
    row: npt.NDArray[np.intp]
    column: npt.NDArray[np.intp]
    value: Array

    @classmethod
    def of(cls, rows: Array) -> _Sparse:
        """The entries of a matrix that are not zero."""
        column, row = np.nonzero(rows.T)
        return cls((rows.shape[0], rows.shape[1]), row, column, rows[row, column])

    def times(self, vector: Array) -> Array:
        return _sums(self.row, self.value * vector[self.column], self.shape[0])

    def transposed_times(self, vector: Array) -> Array:
        return _sums(self.column, self.value * vector[self.row], self.shape[1])

    def normal(self, weights: Array) -> Array:
        """The product of the matrix, a diagonal of weights, and the transposed matrix."""
        size, (a, b) = self.shape[0], self._pairs
        values = self.value[a] * self.value[b] * weights[self.column[a]]
        return _sums(self.row[a] * size + self.row[b], values, size * size).reshape(size, size)

    @cached_property
    def _pairs(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Each entry with every one of its column, itself included."""
        sizes = np.bincount(self.column, minlength=self.shape[1])
        partners = sizes[self.column]
        first = np.repeat(np.arange(self.column.size), partners)
        number = np.arange(first.size) - np.repeat(np.cumsum(partners) - partners, partners)
        return first, np.repeat((np.cumsum(sizes) - sizes)[self.column], partners) + number


@dataclass(frozen=True)
class _Program:
    """The constraints, with the variables that are in several of them apart: there are far fewer of these."""

    matrix: _Sparse
    several: npt.NDArray[np.bool_]
    """By variable: whether it is in several constraints."""
    rows: Array
    """Constraints by variables in several."""
    squares: Array
    """Of those coefficients."""
    columns: _Sparse
    """The same, transposed."""
    own: _Sparse
    """Squares of the coefficients of the others."""

    @classmethod
    def of(cls, rows: Array) -> _Program:
        several = np.count_nonzero(rows, axis=0) > 1
        shared, own = rows[:, several], np.where(several, 0.0, rows**2)
        return cls(_Sparse.of(rows), several, shared, shared**2, _Sparse.of(shared.T), _Sparse.of(own))


@dataclass(frozen=True)
class _Newton:
    """The linear equations of one step: ``(own + rows @ shared @ rows.T) @ y == right``, of diagonal matrices.

    Constraints with enough variables of their own are eliminated, which leaves an equation for each variable in several
    constraints (``inner``), and then one for each of the other constraints (``outer``).
    """

    program: _Program
    slack: Array
    primal: Array
    dual: Array
    ratio: Array
    eliminated: npt.NDArray[np.bool_]
    """By constraint."""
    own: Array
    """Of those that are eliminated."""
    inner: Array
    across: Array
    outer: Array

    @classmethod
    def at(cls, program: _Program, x: Array, slack: Array, primal: Array, dual: Array, *, eliminate: bool) -> _Newton:
        ratio = x / slack
        own, shared = program.own.times(ratio), ratio[program.several]
        eliminated = (own > _OWN * _times(program.squares, shared)) & eliminate
        weights = np.divide(1.0, own, out=np.zeros_like(own), where=eliminated)
        rest = program.rows[~eliminated]
        inner = _inverse(program.columns.normal(weights) + np.diag(1 / shared))
        across = np.einsum("ij,jk->ik", rest, inner)
        outer = _inverse(np.einsum("ij,kj->ik", across, rest) + np.diag(own[~eliminated]))
        return cls(program, slack, primal, dual, ratio, eliminated, own[eliminated], inner, across, outer)

    def step(self, complement: Array) -> tuple[Array, Array, Array]:
        """Steps of x, y and slack towards equations whose products of x and slack change by ``complement``."""
        matrix = self.program.matrix
        right = self.primal + matrix.times(self.ratio * self.dual - complement / self.slack)
        step_y = self._solve(right)
        step_y += self._solve(right - matrix.times(self.ratio * matrix.transposed_times(step_y)))
        step_slack = self.dual - matrix.transposed_times(step_y)
        return complement / self.slack - self.ratio * step_slack, step_y, step_slack

    def _solve(self, right: Array) -> Array:
        rows, y = self.program.rows[self.eliminated], np.empty_like(right)
        part = _times(rows.T, right[self.eliminated] / self.own)
        others = _times(self.outer, right[~self.eliminated] - _times(self.across, part))
        shared = _times(self.inner, part) + _times(self.across.T, others)
        y[~self.eliminated] = others
        y[self.eliminated] = (right[self.eliminated] - _times(rows, shared)) / self.own
        return y


def _inverse(matrix: Array) -> Array:
    """The inverse of a symmetric positive definite matrix, by Gauss and Jordan without pivots.

    Rows that depend on earlier ones, and their columns, are zero in it.
    """
    result, product = matrix.copy(), np.empty_like(matrix)
    least = _DEPENDENT * np.diag(matrix)
    for k in range(len(result)):
        pivot = result[k, k]
        if pivot <= least[k]:
            result[k], result[:, k] = 0.0, 0.0
            continue
        row, column = result[k] / pivot, result[:, k].copy()
        row[k] = 1 / pivot
        column[k] = 0.0
        result[:, k] = 0.0
        result -= np.multiply.outer(column, row, out=product)
        result[k] = row
    return result


def _sums(places: npt.NDArray[np.intp], values: Array, size: int) -> Array:
    """Values added up by their places."""
    return np.bincount(places, weights=values, minlength=size).astype(np.float64)


def _times(matrix: Array, vector: Array) -> Array:
    product: Array = np.einsum("ij,j->i", matrix, vector)
    return product


def _dot(first: Array, second: Array) -> float:
    return float(np.sum(first * second))


def _reach(values: Array, step: Array) -> float:
    """The longest step, at most 1, after which no value is negative."""
    falling = step < 0
    with np.errstate(over="ignore"):
        return min(float((-values[falling] / step[falling]).min(initial=1.0)), 1.0)
