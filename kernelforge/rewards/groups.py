"""What learners make of the rewards of a group. Pure; a None is no score, and stays out of every mean.

The server gives rewards and leaves this to the trainer; it is here so that a recomputed group can be compared with a
published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

SMOOTHING_LIMIT = 1.5


def smoothed(rewards: Sequence[float | None], limit: float = SMOOTHING_LIMIT) -> list[float | None]:
    """``clip((r - mean) / sd, -limit, limit)`` over a group; 0 where all are alike.

    Source: CUDA-L1 (arXiv 2507.14111), smoothing of rewards with a limit of 1.5. Which standard deviation is not
    published: the population's here.
    """
    known = [reward for reward in rewards if reward is not None]
    centre, spread = (fmean(known), pstdev(known)) if known else (0.0, 0.0)

    def one(reward: float) -> float:
        return 0.0 if spread == 0 else min(max((reward - centre) / spread, -limit), limit)

    return [None if reward is None else one(reward) for reward in rewards]


def leave_one_out(returns: Sequence[float | None]) -> list[float | None]:
    """``N / (N - 1) * (G - mean(G))``: each return less the mean of the others; 0 where it is alone.

    Source: Dr. Kernel (arXiv 2602.05885), turn-level REINFORCE leave-one-out: give it the returns of one turn over the
    samples of one prompt.
    """
    known = [one for one in returns if one is not None]
    count = len(known)
    centre = fmean(known) if known else 0.0
    scale = count / (count - 1) if count > 1 else 0.0
    return [None if one is None else scale * (one - centre) for one in returns]
