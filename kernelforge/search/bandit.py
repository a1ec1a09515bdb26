"""A bandit over arms that differ in what they gain and in what they cost.

ShinkaEvolve's ``AsymmetricUCB`` (its ``llm/prioritization.py``): UCB1 on gains that are never negative, scaled by the
largest gain and forgotten with time; blended with how cheap an arm is; a share of the draws goes to the other arms.
Gains are differences of log speedups, so an arm's mean is that of ``exp(gain) - 1``: the relative gain in speed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from typing import Any, Generic, NamedTuple, TypeVar

from kernelforge.records import Attempt

_FLOOR = 1e-7
_COST_EXPLORATION = 0.1
_LARGEST_GAIN = 20.0

Arm = TypeVar("Arm", bound=Hashable)


class Cost(NamedTuple):
    """Cost of an attempt in each unit; None is unknown."""

    dollars: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def cost_of(attempt: Attempt) -> Cost:
    """The cost of all replies that an attempt took. A unit is unknown when it is for one of them."""
    usages = [message.usage for message in attempt.messages if message.usage is not None]
    if not usages:
        return Cost()
    return Cost(
        dollars=_total([usage.dollars for usage in usages]),
        tokens=_total([usage.tokens for usage in usages]),
        seconds=_total([usage.seconds for usage in usages]),
    )


def _total(values: Sequence[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return float(sum(known_values)) if len(known_values) == len(values) else None


@dataclass
class _Record:
    """Statistics of one arm."""

    pulls: int = 0
    gain: float = 0.0
    """Decayed sum of gains."""
    weight: float = 0.0
    """Decayed number of gains."""
    costs: list[Cost] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return self.gain / max(self.weight, _FLOOR)


class CostAwareUCB(Generic[Arm]):
    """The bandit.

    Args:
        exploration: factor of the UCB bonus.
        epsilon: share of draws that go to an arm that is not the best.
        decay: factor that earlier gains are multiplied by at each new one.
        cost_weight: 0 looks at gains alone, 1 at costs alone.
    """

    def __init__(self, *, exploration: float, epsilon: float, decay: float, cost_weight: float) -> None:
        self._exploration = exploration
        self._epsilon = epsilon
        self._decay = decay
        self._cost_weight = cost_weight
        self._arms: dict[Arm, _Record] = {}
        self._largest = 0.0

    def update(self, arm: Arm, gain: float, cost: Cost) -> None:
        """One pull of ``arm`` came to this. A negative ``gain`` counts as none, one above 20 as 20."""
        record = self._arms.setdefault(arm, _Record())
        worth = math.expm1(min(max(0.0, gain), _LARGEST_GAIN))
        record.pulls += 1
        record.gain += worth
        record.weight += 1.0
        record.costs.append(cost)
        self._largest = max(self._largest, worth)
        for other in self._arms.values():
            other.gain = self._faded(other.gain)
            other.weight *= self._decay
        self._largest = max(self._faded(self._largest), *(other.mean for other in self._arms.values()))

    def _faded(self, gain: float) -> float:
        return self._decay * gain / (1.0 + (1.0 - self._decay) * gain)

    def choose(self, arms: Sequence[Arm], slot: int, rng: Random) -> Arm:
        """The arm for the 0-based ``slot`` of a batch whose results are all still to come.

        As in Shinka, a pull that is under way counts as a pull: the slots before this one are played through first, by
        the best arm each, so that what a slot gets does not depend on which others were asked for.
        """
        pulls = {arm: self._pulls(arm) for arm in arms}
        for _ in range(slot):
            pulls[self._best(pulls)] += 1
        best = self._best(pulls)
        others = [arm for arm in arms if arm != best]
        if not others or not pulls[best] or rng.random() >= self._epsilon:
            return best
        return rng.choice(others)

    def _pulls(self, arm: Arm) -> int:
        return self._arms[arm].pulls if arm in self._arms else 0

    def _best(self, pulls: dict[Arm, int]) -> Arm:
        """The arm of the highest score, the first of equals; an arm that was never pulled comes before all others."""
        unseen = [arm for arm, count in pulls.items() if count == 0]
        if unseen:
            return unseen[0]
        bonus = 2.0 * math.log(max(sum(pulls.values()), 2))
        cheapness = self._cheapness(list(pulls), bonus)
        weight = self._cost_weight if cheapness else 0.0

        def score(arm: Arm) -> float:
            gained = self._arms[arm].mean / self._largest if self._largest and arm in self._arms else 0.0
            upper = gained + self._exploration * math.sqrt(bonus / pulls[arm])
            return (1.0 - weight) * upper + weight * cheapness.get(arm, 1.0)

        return max(pulls, key=score)

    def _cheapness(self, arms: Sequence[Arm], bonus: float) -> dict[Arm, float]:
        """The lowest cost of an arm over each arm's, by lower bounds of their means; empty where costs are unknown."""
        pulled = [arm for arm in arms if arm in self._arms]
        unit = self.cost_unit()
        if unit is None or not pulled:
            return {}
        costs = {arm: [float(getattr(cost, unit)) for cost in self._arms[arm].costs] for arm in pulled}
        every = [cost for of_arm in costs.values() for cost in of_arm]
        spread = _COST_EXPLORATION * (max(every) - min(every))
        bounds = {
            arm: max(mean(of_arm) - spread * math.sqrt(bonus / len(of_arm)), _FLOOR) for arm, of_arm in costs.items()
        }
        lowest = min(bounds.values())
        return {arm: lowest / bound for arm, bound in bounds.items()}

    def cost_unit(self) -> str | None:
        """The first of dollars, tokens and seconds that is known of every pull, or None."""
        costs = [cost for record in self._arms.values() for cost in record.costs]
        units = (unit for unit in Cost._fields if costs and all(getattr(cost, unit) is not None for cost in costs))
        return next(units, None)

    def state(self) -> list[dict[str, Any]]:
        """Statistics of each arm, as plain JSON."""
        return [
            {
                "arm": list(arm) if isinstance(arm, tuple) else arm,
                "pulls": record.pulls,
                "mean_gain": round(record.mean, 9),
            }
            for arm, record in self._arms.items()
        ]
