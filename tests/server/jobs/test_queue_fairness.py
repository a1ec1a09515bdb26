"""Shares between runs follow their weights, and no run starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelforge.server.jobs.scheduler import FairQueue
from kernelforge.server.jobs.state import OwnedRun

WEIGHTS = st.lists(st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.0, 100.0]), min_size=2, max_size=6)


def of(run: str, caller: str = "local") -> OwnedRun:
    return OwnedRun(caller, run)


def fill(queue: FairQueue[str], run: str, count: int, *, cost: float = 1.0, caller: str = "local") -> None:
    for index in range(count):
        queue.push(f"{run}/{index}", {of(run, caller): (0, index)}, cost=cost)


def take(queue: FairQueue[str]) -> str:
    item, _ = queue.pop()
    return item


@pytest.mark.slow
@given(weights=WEIGHTS, turns=st.integers(1, 120))
def test_runs_that_all_have_work_are_served_in_proportion_to_their_weights(weights: list[float], turns: int) -> None:
    queue: FairQueue[str] = FairQueue()
    for index, weight in enumerate(weights):
        queue.set_weight(f"r{index}", weight)
        fill(queue, f"r{index}", turns)
    served = Counter(take(queue).split("/")[0] for _ in range(turns))
    for a, weight in enumerate(weights):
        for b, other in enumerate(weights):
            apart = served[f"r{a}"] / weight - served[f"r{b}"] / other
            assert apart <= 1 / weight + 1 / other + 1e-9


@pytest.mark.slow
@given(
    costs=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    weights=st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)),
    turns=st.integers(1, 100),
)
def test_shares_are_of_cost_and_not_of_works(
    costs: tuple[float, float], weights: tuple[float, float], turns: int
) -> None:
    queue: FairQueue[str] = FairQueue()
    for index in range(2):
        queue.set_weight(f"r{index}", weights[index])
        fill(queue, f"r{index}", turns, cost=costs[index])
    served = Counter(take(queue).split("/")[0] for _ in range(turns))
    spent = [served[f"r{index}"] * costs[index] / weights[index] for index in range(2)]
    assert abs(spent[0] - spent[1]) <= sum(costs[index] / weights[index] for index in range(2)) + 1e-6


@pytest.mark.slow
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-10, 10), st.booleans()), min_size=1, max_size=80
    )
)
def test_everything_that_is_queued_comes_out_once_and_in_order_within_its_run(
    arrivals: list[tuple[str, int, bool]],
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, int]] = {}
    taken: list[int] = []

    def pop() -> None:
        item, _ = queue.pop()
        run, priority = waiting.pop(item)
        better = [(-p, age) for age, (other, p) in waiting.items() if other == run]
        assert all((-priority, item) < rank for rank in better)
        taken.append(item)

    for age, (run, priority, then_pop) in enumerate(arrivals):
        queue.push(age, {of(run): (priority, age)})
        waiting[age] = (run, priority)
        if then_pop:
            pop()
    while waiting:
        pop()
    assert queue.pop() is None
    assert sorted(taken) == list(range(len(arrivals)))


def test_a_run_that_was_idle_saves_up_no_turns() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "busy", 300)
    for _ in range(100):
        take(queue)
    fill(queue, "late", 100)
    first = Counter(take(queue).split("/")[0] for _ in range(40))
    assert first == {"busy": 20, "late": 20}


def test_a_run_is_not_made_to_wait_for_turns_that_it_had_while_alone() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "alone", 100)
    for _ in range(100):
        take(queue)
    fill(queue, "other", 10)
    queue.push("again", {of("alone"): (0, 0)})
    assert "again" in [take(queue) for _ in range(2)]


@given(weight=st.sampled_from([0.01, 0.1]))
def test_a_run_with_the_least_weight_gets_its_turn_beside_one_with_the_most(weight: float) -> None:
    queue: FairQueue[int] = FairQueue()
    queue.set_weight("small", weight)
    queue.set_weight("large", 100.0)
    number = 0
    for _ in range(2):
        queue.push(-1 - number, {of("small"): (0, number)})
        seen = False
        for _ in range(int(100 / weight) + 2):
            number += 1
            queue.push(number, {of("large"): (10, number)})
            item, _ = queue.pop()
            if item < 0:
                seen = True
                break
        assert seen


def test_a_work_of_several_runs_goes_with_the_first_and_is_paid_by_all() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "a", 4)
    fill(queue, "b", 4)
    queue.push("shared", {of("a"): (5, 0), of("b"): (5, 1)}, cost=2.0)
    item, charge = queue.pop()
    assert item == "shared"
    assert set(charge.runs) == {of("a"), of("b")}
    assert charge.share == 1.0
    assert Counter(take(queue).split("/")[0] for _ in range(8)) == {"a": 4, "b": 4}


def test_a_work_that_cost_more_than_was_thought_is_paid_for_afterwards() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "a", 20)
    fill(queue, "b", 20)
    _, estimate = queue.pop()
    run = estimate.runs[0].run
    charge = queue.settle(estimate, 6.0)
    other = "b" if run == "a" else "a"
    assert [take(queue).split("/")[0] for _ in range(6)] == [other] * 6
    queue.settle(charge, 1.0)
    assert take(queue).split("/")[0] == run


def test_places_can_change_while_a_work_waits() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("first", {of("a"): (0, 1)})
    queue.push("second", {of("a"): (0, 2)})
    queue.move("second", {of("a"): (3, 2), of("b"): (0, 3)})
    assert take(queue) == "second"
    queue.push("second", {of("b"): (0, 4)})
    queue.move("second", {})
    assert "second" not in queue
    queue.discard("second")
    assert take(queue) == "first"
    assert len(queue) == 0


def test_an_item_is_queued_once_and_a_weight_is_positive() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("one", {of("a"): (0, 0)})
    with pytest.raises(ValueError, match="queued already"):
        queue.push("one", {of("a"): (0, 0)})
    with pytest.raises(ValueError, match="positive"):
        queue.set_weight("a", 0.0)


def test_more_runs_give_a_caller_no_more_turns_and_its_runs_share_them_by_weight() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.set_weight("run 0", 2.0)
    for number in range(10):
        fill(queue, f"run {number}", 40, caller="many")
    fill(queue, "alone", 40, caller="one")
    served = Counter(take(queue).split("/")[0] for _ in range(44))
    assert served["alone"] == 22
    assert [served[f"run {number}"] for number in range(10)] == [4, *[2] * 9]


@pytest.mark.slow
@given(shares=WEIGHTS, runs=st.lists(st.integers(1, 5), min_size=6, max_size=6), turns=st.integers(1, 120))
def test_callers_are_served_in_proportion_to_their_shares(shares: list[float], runs: list[int], turns: int) -> None:
    queue: FairQueue[str] = FairQueue()
    for index, share in enumerate(shares):
        queue.set_share(f"c{index}", share)
        for run in range(runs[index]):
            fill(queue, f"c{index} {run}", turns, caller=f"c{index}")
    served = Counter(take(queue).split(" ")[0] for _ in range(turns))
    for a, share in enumerate(shares):
        for b, other in enumerate(shares):
            assert served[f"c{a}"] / share - served[f"c{b}"] / other <= 1 / share + 1 / other + 1e-9
