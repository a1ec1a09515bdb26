"""Multi-fidelity Bayesian optimisation, on tables of times that need no device."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from kernelforge.evaluation.stages.multi_fidelity import (
    BUDGET,
    BUILD_COST,
    EFFORTS,
    FINALISTS,
    FIRST_POINTS,
    MOST_BUILT,
    RATING_COST,
    UNBUILT,
    MultiFidelitySearch,
    Step,
    encode,
)

ROOT = Path(__file__).resolve().parents[2]
COMBINATIONS = [
    {"TILE": tile, "STEP": step, "STAGES": stages, "WIDTH": width}
    for tile, step, stages, width in itertools.product((16, 32, 64, 128), (4, 8, 16, 32), (1, 2, 3, 4), (1, 2, 4, 8))
]
"""256 of them."""


def bowl(choices: dict[str, int]) -> float:
    """A time with its least value, 10, at one combination inside the space, and an interaction."""
    tile, step, width = (math.log2(choices[name]) for name in ("TILE", "STEP", "WIDTH"))
    return 10.0 * math.exp(
        0.2 * (tile - 6) ** 2
        + 0.1 * (step - 3) ** 2
        + 0.05 * (choices["STAGES"] - 3) ** 2
        + 0.2 * (width - 2) ** 2
        + 0.1 * abs((tile - 6) * (width - 2))
    )


TIMES = [bowl(choices) for choices in COMBINATIONS]


def searched(
    times: Sequence[float | None], seed: int, *, budget: float = BUDGET, bias: float = 0.05, settled: bool = False
) -> tuple[list[Step], dict[int, float], MultiFidelitySearch]:
    """Steps of a search over a table, and what it rated completely. A cheap rating is off by up to ``bias``."""
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, seed, budget)
    steps: list[Step] = []
    complete: dict[int, float] = {}
    while (step := search.next()) is not None:
        steps.append(step)
        time = times[step.point]
        if time is not None and (step.fidelity == "complete" or settled):
            complete[step.point] = time
        elif time is not None:
            time *= math.exp(Random(step.point).uniform(-bias, bias))
        search.record(step, time, settled=settled)
    return steps, complete, search


@pytest.mark.parametrize("seed", range(5))
def test_the_best_of_256_is_within_five_percent_for_the_cost_of_16(seed: int) -> None:
    steps, complete, search = searched(TIMES, seed)
    assert min(complete.values()) < 1.05 * min(TIMES)
    assert search.spent <= BUDGET
    assert len(steps) == len(set(steps))
    assert len({step.point for step in steps}) <= BUDGET / (BUILD_COST + RATING_COST * EFFORTS["cheap"])


@pytest.mark.slow
def test_it_beats_random_search_at_equal_cost() -> None:
    searches = [min(searched(TIMES, seed)[1].values()) for seed in range(5, 15)]
    drawn = [min(Random(seed).sample(TIMES, int(BUDGET))) for seed in range(5, 15)]
    assert fmean(map(math.log, searches)) < fmean(map(math.log, drawn)) - 0.1


@pytest.mark.slow
def test_what_seems_best_is_rated_completely_however_misleading_cheap_ratings_are() -> None:
    for seed in range(5):
        _, complete, search = searched(TIMES, seed, bias=0.5)
        assert len(complete) >= FINALISTS
        assert min(complete.values()) < 1.3 * min(TIMES)  # cheap ratings are off by up to 1.65 times
        assert search.spent <= BUDGET


def test_a_settled_rating_is_not_repeated() -> None:
    steps, _, search = searched(TIMES, 1, settled=True)
    assert {step.fidelity for step in steps} == {"cheap"}
    assert len(steps) == len({step.point for step in steps})
    assert search.spent <= BUDGET


@pytest.mark.slow
def test_where_points_fail_few_more_are_tried() -> None:
    times = [None if choices["TILE"] >= 64 and choices["STAGES"] >= 3 else bowl(choices) for choices in COMBINATIONS]
    failing = sum(time is None for time in times) / len(times)
    best = min(time for time in times if time is not None)
    for seed in range(5):
        steps, complete, search = searched(times, seed)
        points = {step.point for step in steps}
        # The least time would be in that quarter of the space, if it had one: what lies next to it is worth a try.
        assert sum(times[point] is None for point in points) <= 2 * failing * len(points)
        assert min(complete.values()) < 1.2 * best
        assert search.spent <= BUDGET


@pytest.mark.parametrize("seed", range(3))
def test_points_that_fail_only_completely_are_tried_once(seed: int) -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, seed)
    steps = []
    while (step := search.next()) is not None:
        steps.append(step)
        fails = step.fidelity == "complete" and COMBINATIONS[step.point]["STAGES"] >= 3
        search.record(step, None if fails else TIMES[step.point])
    assert any(COMBINATIONS[step.point]["STAGES"] >= 3 for step in steps if step.fidelity == "complete")
    assert len(steps) == len(set(steps))


def test_points_that_do_the_same_as_others_take_one_step_and_no_rating() -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    steps: dict[int, list[Step]] = {}
    completely: set[int] = set()
    while (step := search.next()) is not None:
        time = TIMES[step.point - step.point % 2]
        twin = step.point % 2 == 1 and step.point - 1 in steps
        rated = not twin or (step.fidelity == "complete" and step.point - 1 not in completely)
        if step.fidelity == "complete":
            completely.add(step.point - twin)
        before = search.spent
        search.record(step, time, rated=rated, twin=twin)
        steps.setdefault(step.point, []).append(step)
        if twin:
            assert search.spent == before + BUILD_COST + RATING_COST * rated
    twins = [point for point in steps if point % 2 == 1 and point - 1 in steps]
    assert twins
    assert all(len(steps[point]) == 1 for point in twins if list(steps).index(point) > list(steps).index(point - 1))


def test_a_first_point_that_fails_ends_the_search() -> None:
    assert searched([None, *TIMES[1:]], 1)[0] == [Step(0, "cheap")]


@pytest.mark.slow
def test_refused_points_cost_nothing_and_are_bounded() -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    refused = 0
    while (step := search.next()) is not None:
        search.record(step, TIMES[0] if step.point == 0 else None, built=step.point == 0)
        refused += step.point != 0
    assert refused == UNBUILT
    assert search.spent == BUILD_COST + RATING_COST * sum(EFFORTS.values())


@pytest.mark.slow
def test_after_the_most_refused_points_the_best_of_those_rated_are_rated_completely() -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    steps: list[Step] = []
    refused = 0
    while (step := search.next()) is not None:
        built = step.point in {each.point for each in steps} or len(steps) < FIRST_POINTS
        if built:
            steps.append(step)
        refused += not built
        search.record(step, TIMES[step.point] if built else None, built=built)
    assert refused == UNBUILT
    rated = sorted({step.point for step in steps}, key=lambda point: TIMES[point])
    assert len(rated) > FINALISTS
    assert {step.point for step in steps if step.fidelity == "complete"} >= set(rated[:FINALISTS])


@pytest.mark.parametrize("after", [1, 2, 4, 6, 12])
def test_a_closed_search_tries_nothing_new_and_rates_the_best_completely(after: int) -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    steps: list[Step] = []
    while (step := search.next()) is not None:
        steps.append(step)
        search.record(step, TIMES[step.point])
        if len(steps) == after:
            search.close()
    before, since = steps[:after], steps[after:]
    assert {step.point for step in since} <= {step.point for step in before}
    assert {step.fidelity for step in since} <= {"complete"}
    complete = {step.point for step in steps if step.fidelity == "complete"}
    best = min({step.point for step in before}, key=lambda point: TIMES[point])
    assert (best in complete) == (after > 1)  # after one there is nothing to compare it with
    assert len(since) <= FINALISTS + 1
    assert search.spent <= BUDGET


def test_a_closed_search_without_a_rating_ends() -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    search.close()
    assert search.next() is None


def test_where_no_other_point_takes_a_rating_as_many_are_built_as_the_page_says() -> None:
    search = MultiFidelitySearch(encode(COMBINATIONS), 0, 1)
    steps: list[Step] = []
    while (step := search.next()) is not None:
        search.record(step, TIMES[0], rated=not steps, settled=True, twin=bool(steps))
        steps.append(step)
    assert len(steps) == len({step.point for step in steps}) == MOST_BUILT
    rated = int(BUDGET / (BUILD_COST + RATING_COST * EFFORTS["cheap"]))
    page = " ".join((ROOT / "docs" / "strategies.md").read_text().split())
    assert f"at most {MOST_BUILT} combinations are built, {rated} where each takes a rating" in page


@pytest.mark.slow
def test_the_seed_decides_where_it_begins_and_nothing_else_does() -> None:
    assert searched(TIMES, 3)[0] == searched(TIMES, 3)[0]
    begins = {tuple(searched(TIMES, seed, budget=4.0)[0][2 : 2 + FIRST_POINTS]) for seed in range(4)}
    assert len(begins) == 4


def test_values_that_double_are_encoded_by_their_logarithm() -> None:
    points = encode([{"A": 8, "B": 1, "C": 5}, {"A": 16, "B": 2, "C": 5}, {"A": 32, "B": 3, "C": 5}])
    assert points.tolist() == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    assert encode([{"A": 0}, {"A": 1}, {"A": 4}])[:, 0].tolist() == [0.0, 0.25, 1.0]
