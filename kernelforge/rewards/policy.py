"""The default reward, and how a policy is looked up.

A policy sees nothing but a stored :class:`~kernelforge.records.Evaluation`, so old runs can be scored again with no
device at hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from kernelforge.errors import UsageError
from kernelforge.records import Evaluation, Origin, Reward, Verdict

RewardPolicy = Callable[[Evaluation], Reward]

DEFAULT_POLICY = "kernelforge/1"
CORRECT_GATE = 0.3
SPEEDUP_CAP = 8.0
"""Speedups above this earn no more: a figure that large is looked at, not rewarded."""


def kernelforge_1(evaluation: Evaluation) -> Reward:
    """Our own default, version 1.

    0 unless the verdict is OK; then a gate of 0.3 for being correct plus the natural logarithm of the lower
    confidence bound of the speedup against the fastest baseline, clipped to [1, 8] times. Slower than the baseline
    earns the gate alone. On an emulated device there is no measured speedup: the component is None, and the reward
    is the gate. ``INFRA`` is not a score: the value is None.
    """
    if evaluation.verdict is Verdict.INFRA:
        return Reward(policy=DEFAULT_POLICY, value=None, components={"correct": None, "log_speedup": None})
    if evaluation.verdict is not Verdict.OK:
        return Reward(policy=DEFAULT_POLICY, value=0.0, components={"correct": 0.0, "log_speedup": None})
    performance = evaluation.performance
    speed: float | None = None
    if performance is not None and performance.origin is Origin.MEASURED and performance.speedup_lower is not None:
        speed = math.log(min(max(performance.speedup_lower, 1.0), SPEEDUP_CAP))
    return Reward(
        policy=DEFAULT_POLICY,
        value=CORRECT_GATE + (speed or 0.0),
        components={"correct": CORRECT_GATE, "log_speedup": speed},
    )


POLICIES: Mapping[str, RewardPolicy] = {DEFAULT_POLICY: kernelforge_1}


def reward(policy: str, evaluation: Evaluation) -> Reward:
    """Score ``evaluation`` under the policy of that name.

    Three rules stand above every policy: ``INFRA`` is not a score, and neither what ran without a jail nor a
    ``ModelNew`` class, whose host code could have done anything to its own times, is ever rewarded.

    Raises:
        UsageError: there is no such policy.
    """
    if policy not in POLICIES:
        raise UsageError(f"there is no reward policy {policy!r}; choose one of {', '.join(sorted(POLICIES))}")
    scored = POLICIES[policy](evaluation)
    unrewarded = evaluation.fingerprint.jail == "none" or evaluation.lane == "modelnew"
    if evaluation.verdict is Verdict.INFRA or unrewarded:
        return scored.model_copy(update={"value": None})
    return scored
