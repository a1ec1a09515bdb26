"""The bandit follows ShinkaEvolve's cost-aware UCB."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest

from kernelforge.records import Message, Usage
from kernelforge.search.bandit import Cost, CostAwareUCB, cost_of
from tests.support.factories import make_attempt

ARMS = ("a", "b", "c")


def bandit(**changes: Any) -> CostAwareUCB[str]:
    provided: dict[str, Any] = {"exploration": 1.0, "epsilon": 0.0, "decay": 1.0, "cost_weight": 0.0}
    return CostAwareUCB(**(provided | changes))


def pick(of: CostAwareUCB[str], slot: int = 0, seed: int = 0) -> str:
    return of.choose(ARMS, slot, Random(seed))


def test_arms_that_were_never_pulled_come_first_in_order() -> None:
    ucb = bandit(epsilon=1.0)
    assert [pick(ucb, slot) for slot in range(3)] == ["a", "b", "c"]
    ucb.update("a", 9.0, Cost())
    assert pick(ucb) == "b"


def test_a_batch_counts_its_own_pulls() -> None:
    """UCB1 with equal gains deals the arms out in turn."""
    ucb = bandit()
    for arm in ARMS:
        ucb.update(arm, 1.0, Cost())
    assert Counter(pick(ucb, slot) for slot in range(6)) == {"a": 2, "b": 2, "c": 2}


def test_a_slot_gets_the_same_whoever_else_is_asked() -> None:
    ucb = bandit(epsilon=0.5)
    for arm, gain in zip(ARMS, (0.1, 0.5, 0.2), strict=True):
        ucb.update(arm, gain, Cost())
    forwards = [pick(ucb, slot, seed=slot) for slot in range(5)]
    assert [pick(ucb, slot, seed=slot) for slot in reversed(range(5))] == forwards[::-1]


@pytest.mark.parametrize(("exploration", "best"), [(1.0, "b"), (0.0, "a")])
def test_the_score_is_the_mean_over_the_largest_gain_and_the_bonus(exploration: float, best: str) -> None:
    ucb = bandit(exploration=exploration)
    gains = {"a": [1.0, 0.9], "b": [0.6], "c": [0.1, 0.1]}
    for arm in ARMS:
        for gain in gains[arm]:
            ucb.update(arm, gain, Cost())

    def score(arm: str) -> float:
        mean = sum(map(math.expm1, gains[arm])) / len(gains[arm])
        return mean / math.expm1(1.0) + exploration * math.sqrt(2 * math.log(5) / len(gains[arm]))

    assert pick(ucb) == max(ARMS, key=score) == best


def test_a_loss_counts_as_no_gain() -> None:
    ucb, other = bandit(), bandit()
    ucb.update("a", -5.0, Cost())
    other.update("a", 0.0, Cost())
    assert ucb.state() == other.state()


def test_a_gain_beyond_all_measure_does_no_harm() -> None:
    ucb = bandit()
    ucb.update("a", 1e300, Cost())
    assert math.isfinite(ucb.state()[0]["mean_gain"])


@pytest.mark.parametrize("decay", [0.95, 0.5])
def test_earlier_gains_are_forgotten(decay: float) -> None:
    ucb = bandit(decay=decay)
    ucb.update("a", math.log(3), Cost())
    faded = decay * 2 / (1 + (1 - decay) * 2)
    assert ucb.state()[0]["mean_gain"] == pytest.approx(faded / decay)
    for _ in range(200):
        ucb.update("a", 0.0, Cost())
    assert ucb.state()[0]["mean_gain"] < 1e-3


def test_epsilon_of_the_draws_go_to_other_arms() -> None:
    ucb = bandit(epsilon=0.2)
    for arm, gain in zip(ARMS, (3.0, 0.0, 0.0), strict=True):
        ucb.update(arm, gain, Cost())
    drawn = Counter(pick(ucb, seed=seed) for seed in range(2000))
    assert drawn["a"] / 2000 == pytest.approx(0.8, abs=0.03)
    assert drawn["b"] / 2000 == pytest.approx(0.1, abs=0.03)


def test_of_equal_gains_the_cheaper_arm_is_chosen() -> None:
    ucb = bandit(cost_weight=0.5)
    for arm, dollars in zip(ARMS, (3.0, 1.0, 2.0), strict=True):
        ucb.update(arm, 1.0, Cost(dollars=dollars))
    assert pick(ucb) == "b"
    assert ucb.cost_unit() == "dollars"


def test_cost_weight_says_how_much_a_cheap_arm_counts_beside_a_good_one() -> None:
    def preferred_arm(cost_weight: float) -> str:
        ucb = bandit(exploration=0.0, cost_weight=cost_weight)
        for arm, gain, dollars in (("a", 1.0, 10.0), ("b", 0.5, 1.0), ("c", 0.0, 9.0)):
            ucb.update(arm, gain, Cost(dollars=dollars))
        return pick(ucb)

    assert preferred_arm(0.0) == "a"
    assert preferred_arm(1.0) == "b"


def test_an_unknown_price_is_never_zero() -> None:
    """With one unknown price, all arms are compared by their tokens; without those, by time."""
    ucb = bandit(exploration=0.0, cost_weight=1.0)
    ucb.update("a", 1.0, Cost(dollars=1.0, tokens=100.0, seconds=5.0))
    ucb.update("b", 1.0, Cost(dollars=None, tokens=300.0, seconds=4.0))
    ucb.update("c", 1.0, Cost(dollars=2.0, tokens=200.0, seconds=3.0))
    assert ucb.cost_unit() == "tokens"
    assert pick(ucb) == "a"
    ucb.update("b", 1.0, Cost(dollars=1.0, tokens=None, seconds=4.0))
    assert ucb.cost_unit() == "seconds"
    assert pick(ucb) == "c"


def test_without_any_cost_gains_decide_alone() -> None:
    ucb = bandit(exploration=0.0, cost_weight=1.0)
    for arm, gain in zip(ARMS, (0.1, 0.2, 0.9), strict=True):
        ucb.update(arm, gain, Cost())
    assert ucb.cost_unit() is None
    assert pick(ucb) == "c"


def reply(**usage: Any) -> Message:
    provided = {"model": "m", "seconds": 2.0} | usage
    return Message(agent="coder", role="reply", provider="p", content="", usage=Usage(**provided))


def test_an_attempt_costs_what_its_replies_cost_together() -> None:
    messages = (
        Message(agent="judge", role="prompt", provider="p", content=""),
        reply(dollars=0.5, input_tokens=10, output_tokens=1),
        reply(dollars=0.25, input_tokens=20, output_tokens=2),
    )
    assert cost_of(make_attempt(0, messages=messages)) == Cost(dollars=0.75, tokens=33.0, seconds=4.0)
    assert cost_of(make_attempt(0, messages=(*messages, reply()))) == Cost(dollars=None, tokens=None, seconds=6.0)
    assert cost_of(make_attempt(0)) == Cost()
