"""Returns of the turns of a conversation, from their rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelforge.errors import UsageError

KEVIN_DISCOUNT = 0.4


def discounted_returns(rewards: Sequence[float | None], discount: float = KEVIN_DISCOUNT) -> list[float | None]:
    """Return of each turn: ``R_t = S_t + discount * R_{t+1}``, the last turn's being its own reward.

    A turn without a score (None) makes its own return and that of every earlier turn None: they depend on a number
    that nobody knows. A discount of 0 depends on nothing later, so there each return is the turn's own reward.

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
