"""The solver of small linear programs, against optima known by other means."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.profiling import linear_program
from kernelforge.profiling.linear_program import Reduced, solve


def test_the_cheapest_of_two_ways_carries_the_flow() -> None:
    answer = solve(np.array([1.0, 3.0]), np.array([[1.0, 1.0]]), np.array([5.0]))
    assert answer is not None
    assert answer == pytest.approx([5.0, 0.0], abs=1e-4)


def test_the_least_absolute_deviation_is_the_median() -> None:
    """min sum |x - value| is the median: x, then u and v with x + u - v = value."""
    values = np.array([1.0, 2.0, 7.0, 100.0, 1000.0])
    count = len(values)
    rows = np.hstack([np.ones((count, 1)), np.eye(count), -np.eye(count)])
    cost = np.concatenate([[0.0], np.ones(2 * count)])
    answer = solve(cost, rows, values)
    assert answer is not None
    assert answer[0] == pytest.approx(7.0, rel=1e-3)


def test_rows_may_repeat_each_other() -> None:
    rows = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, -1.0]])
    answer = solve(np.array([2.0, 1.0, 1.0]), rows, np.array([4.0, 4.0, 1.0]))
    assert answer is not None
    assert rows @ answer == pytest.approx([4.0, 4.0, 1.0], abs=1e-3)
    assert float(np.array([2.0, 1.0, 1.0]) @ answer) == pytest.approx(7.0, rel=1e-3)


def test_without_an_answer_there_is_none() -> None:
    assert solve(np.array([1.0]), np.array([[1.0], [1.0]]), np.array([1.0, 2.0])) is None


@pytest.mark.parametrize("seed", range(5))
def test_no_feasible_point_is_cheaper(seed: int) -> None:
    """Duality: with prices y such that rows.T @ y <= cost, no answer is below values @ y."""
    random = np.random.default_rng(seed)
    rows = random.integers(-1, 3, (8, 24)).astype(float)
    point, prices = random.random(24) * (random.random(24) < 0.3), random.random(8)
    # Complementary by construction: the point is optimal.
    cost = rows.T @ prices + np.where(point > 0, 0.0, random.random(24))
    answer = solve(cost, rows, rows @ point)
    assert answer is not None
    assert float(cost @ answer) == pytest.approx(float(cost @ point), rel=1e-3, abs=1e-3)


def test_a_reduced_program_has_the_same_optimum() -> None:
    """A chain of blocks: what leaves each is what enters it, of which a count is missed by a cost."""
    count = 12
    rows = np.zeros((count + 1, count + 2))
    for block in range(count - 1):
        rows[block, block], rows[block, block + 1] = 1.0, -1.0
    rows[count - 1, [0, count, count + 1]] = 1.0, 1.0, -1.0  # the count of the first block
    rows[count, [1, 2]] = 1.0, 1.0
    values = np.zeros(count + 1)
    values[count - 1], values[count] = 7.0, 10.0
    cost = np.zeros(count + 2)
    cost[count - 1 :] = 0.1, 2.0, 3.0
    reduced = Reduced.of(cost, rows, values)
    assert len(reduced.values) < len(values) / 2
    short = solve(reduced.cost, reduced.rows, reduced.values)
    answer = solve(cost, rows, values)
    assert short is not None
    assert answer is not None
    assert reduced.expanded(short) == pytest.approx(answer, abs=1e-3)
    assert rows @ reduced.expanded(short) == pytest.approx(values, abs=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_out_of_a_program_is_at_least_zero(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = np.hstack([random.integers(-1, 1, (8, 16)).astype(float), np.eye(8)])
    values, cost = random.random(8), random.random(24)
    reduced = Reduced.of(cost, rows, values)
    assert len(reduced.values) < len(values)
    short, answer = solve(reduced.cost, reduced.rows, reduced.values), solve(cost, rows, values)
    assert short is not None
    assert answer is not None
    expanded = reduced.expanded(short)
    assert expanded.min() >= 0
    assert float(cost @ expanded) == pytest.approx(float(cost @ answer), rel=1e-3, abs=1e-3)


def test_no_constraint_is_eliminated_where_that_loses_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few flows and many measures, with weights over nine orders of magnitude."""
    random = np.random.default_rng(290)
    shared = (random.random((14, 8)) < 0.3).astype(float)
    rows = np.hstack([shared, np.kron(np.eye(14), [1.0, -1.0])])
    cost = np.concatenate([np.full(8, 1e-4), 10.0 ** random.uniform(-6, 3, 28)])
    values = 10.0 ** random.uniform(-3, 7, 14)
    expected = solve(cost, rows, values)
    assert expected is not None
    monkeypatch.setattr(linear_program, "_OWN", 0.0)
    program = linear_program._Program.of(rows)
    with np.errstate(all="ignore"):
        assert linear_program._solved(program, cost, values, eliminate=True)[0] > linear_program.ACCEPTED
        answer = solve(cost, rows, values)
    assert answer is not None
    assert float(cost @ answer) == pytest.approx(float(cost @ expected), rel=1e-5)
