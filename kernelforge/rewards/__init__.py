"""Reward policies: pure, versioned functions from an evaluation record to a number with components."""

from kernelforge.rewards.base import Context, RewardPolicy
from kernelforge.rewards.components import components
from kernelforge.rewards.policy import DEFAULT_POLICY, POLICIES, find_policy, rescore, reward, unscored
from kernelforge.rewards.returns import discounted_returns

__all__ = [
    "DEFAULT_POLICY",
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
