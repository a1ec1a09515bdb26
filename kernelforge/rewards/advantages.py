"""Rewards of several samples and turns: advantages within a group, discounted returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev

from kernelforge.errors import UsageError

SMOOTHING_LIMIT = 1.5


def smoothed(rewards: Sequence[float | None], limit: float = SMOOTHING_LIMIT) -> list[float | None]:
    """``clip((r - mean) / sd, -limit, limit)`` over a group; 0 where all are alike.

    Source: CUDA-L1 (arXiv 2507.14111), smoothing of rewards with a limit of 1.5. Which standard deviation is not
    published: the population's here.
    """
    known_rewards = [reward for reward in rewards if reward is not None]
    centre, spread = (fmean(known_rewards), pstdev(known_rewards)) if known_rewards else (0.0, 0.0)

    def normalised(reward: float) -> float:
        return 0.0 if spread == 0 else min(max((reward - centre) / spread, -limit), limit)

    return [None if reward is None else normalised(reward) for reward in rewards]


def leave_one_out(returns: Sequence[float | None]) -> list[float | None]:
    """``N / (N - 1) * (G - mean(G))``: each return less the mean of the others; 0 where it is alone.

    Source: Dr. Kernel (arXiv 2602.05885), turn-level REINFORCE leave-one-out: give it the returns of one turn over the
    samples of one prompt.
    """
    known_returns = [value for value in returns if value is not None]
    count = len(known_returns)
    centre = fmean(known_returns) if known_returns else 0.0
    scale = count / (count - 1) if count > 1 else 0.0
    return [None if value is None else scale * (value - centre) for value in returns]


KEVIN_DISCOUNT = 0.4


def discounted_returns(rewards: Sequence[float | None], discount: float = KEVIN_DISCOUNT) -> list[float | None]:
    """Return of each turn: ``R_t = S_t + discount * R_{t+1}``, the last turn's being its own reward.

    A turn without a score (None) makes its own return and that of every earlier turn None: they depend on an unknown
    number. A discount of 0 depends on nothing later, so there each return is the turn's own reward.

    Source: Kevin (arXiv 2507.11948), the sum of discounted scores with a discount of 0.4.

    Raises:
        UsageError: the discount is not between 0 and 1, or a reward is not a finite number.
    """
    if not 0 <= discount <= 1:
        raise UsageError(f"a discount lies between 0 and 1, not {discount}")
    returns: list[float | None] = []
    later: float | None = 0.0
    for number, own in reversed(list(enumerate(rewards, 1))):
        if own is not None and not math.isfinite(own):
            raise UsageError(f"the reward of turn {number} is {own}, which is no score")
        if discount == 0:
            later = own
        else:
            later = None if own is None or later is None else own + discount * later
        returns.append(later)
    return returns[::-1]
