"""Reward policies: pure, versioned functions from an evaluation record to a number with components."""

from kernelforge.rewards.advantages import discounted_returns
from kernelforge.rewards.base import Context, RewardPolicy, components
from kernelforge.rewards.policies import (
    DEFAULT_POLICY,
    MODELNEW_POLICY,
    POLICIES,
    find_policy,
    rescore,
    reward,
    unscored,
)

__all__ = [
    "DEFAULT_POLICY",
    "MODELNEW_POLICY",
    "POLICIES",
    "Context",
    "RewardPolicy",
    "components",
    "discounted_returns",
    "find_policy",
    "rescore",
    "reward",
    "unscored",
]
