"""Intervals hold the truth about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.errors import TimingError
from kernelforge.evaluation.timing.statistics import (
    bootstrap,
    half_width,
    median_of_clusters,
    ratio_of_rounds,
    serial_correlation,
    student,
    trimmed_mean,
)

REPEATS = 400


def correlated(rng: np.random.Generator, count: int, rho: float) -> np.ndarray:
    values = rng.standard_normal(count)
    for index in range(1, count):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return values


def coverage(rounds: int, *, rho: float = 0.0, tails: int | None = None) -> float:
    """Share of intervals of a ratio of 1.25 that hold it."""
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(REPEATS):
        noise = rng.standard_t(tails, rounds) if tails else correlated(rng, rounds, rho)
        shared = np.exp(rng.normal(0, 0.2, rounds))
        _, (low, high) = ratio_of_rounds(1.25 * shared * np.exp(0.01 * noise), shared, rng)
        covered += low <= 1.25 <= high
    return covered / REPEATS


@pytest.mark.parametrize("rounds", [2, 3, 6, 10, 30])
def test_the_interval_of_a_ratio_holds_it_as_often_as_it_says(rounds: int) -> None:
    assert 0.92 <= coverage(rounds) <= 0.995


def test_it_does_so_with_long_tails() -> None:
    assert coverage(8, tails=3) >= 0.93


def test_rounds_that_are_alike_count_for_less() -> None:
    assert coverage(40, rho=0.4) >= 0.9


@pytest.mark.slow
def test_an_interval_of_a_median_holds_it_when_samples_of_a_cluster_are_alike() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        clusters = [100 * np.exp(rng.normal(0, 0.02) + 0.005 * rng.standard_normal(20)) for _ in range(12)]
        median, (low, high) = median_of_clusters(clusters, rng)
        assert low < median < high
        covered += low <= 100 <= high
    assert covered / 200 >= 0.9
    # As if all samples were independent, the same data would give a fraction of that width.
    naive = 1.96 * 1.2533 * np.concatenate(clusters).std() / np.sqrt(240)
    assert high - low > 4 * naive


@pytest.mark.parametrize("count", [5, 6])
def test_the_median_of_clusters_is_the_median_of_their_samples(count: int) -> None:
    rng = np.random.default_rng(count)
    clusters = [rng.uniform(1, 2, count) for _ in range(3)]
    median, _ = median_of_clusters(clusters, rng)
    assert median == pytest.approx(np.median(np.concatenate(clusters)), rel=1e-12)


def test_a_ratio_and_its_inverse_have_the_same_interval() -> None:
    rng = np.random.default_rng(5)
    over, under = rng.uniform(2, 2.1, 9), rng.uniform(1, 1.1, 9)
    ratio, (low, high) = ratio_of_rounds(over, under, np.random.default_rng(1))
    inverse, (inverse_low, inverse_high) = ratio_of_rounds(under, over, np.random.default_rng(1))
    assert (1 / inverse, 1 / inverse_high, 1 / inverse_low) == pytest.approx((ratio, low, high))


def test_one_disturbed_round_of_six_moves_the_ratio_little() -> None:
    calm = np.array([1.0, 1.01, 0.99, 1.0, 1.02, 0.98])
    disturbed = np.where(np.arange(6) == 3, 5.0, calm)
    assert trimmed_mean(disturbed) == pytest.approx(trimmed_mean(calm), rel=0.01)


def test_students_quantiles_are_those_of_the_tables() -> None:
    assert [student(1), student(5), student(12), student(30), student(120)] == pytest.approx(
        [12.706, 2.571, 2.179, 2.042, 1.980], abs=1e-3
    )


def test_serial_correlation_is_found_and_never_negative() -> None:
    rng = np.random.default_rng(2)
    assert serial_correlation(correlated(rng, 2000, 0.6)) == pytest.approx(0.6, abs=0.06)
    assert serial_correlation(np.tile([1.0, -1.0], 20)) == 0
    assert serial_correlation(np.arange(100.0)) <= 0.9
    assert serial_correlation(np.ones(10)) == 0
    assert serial_correlation(np.array([1.0, 2.0, 3.0])) == 0


def test_equal_rounds_have_an_interval_without_width() -> None:
    ratio, interval = ratio_of_rounds(np.full(4, 3.0), np.full(4, 2.0), np.random.default_rng(0))
    assert ratio == pytest.approx(1.5)
    assert half_width(ratio, interval) == pytest.approx(0, abs=1e-12)


def test_one_round_has_no_interval() -> None:
    with pytest.raises(TimingError, match="at least 2 rounds"):
        bootstrap(lambda drawn: np.ones(len(drawn)), 1, np.random.default_rng(0))


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_rounds_that_are_no_times_have_no_ratio(wrong: float) -> None:
    times = np.array([1.0, 2.0, wrong])
    with pytest.raises(TimingError, match="not a positive number"):
        ratio_of_rounds(times, np.ones(3), np.random.default_rng(0))
    with pytest.raises(TimingError, match="not a positive number"):
        ratio_of_rounds(np.ones(3), times, np.random.default_rng(0))


def test_an_estimate_that_is_not_positive_has_no_interval() -> None:
    with pytest.raises(TimingError, match="not positive"):
        bootstrap(lambda drawn: np.zeros(len(drawn)), 5, np.random.default_rng(0))
