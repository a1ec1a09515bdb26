"""Reward policies: pure, versioned functions from an evaluation record to a number with components."""

from kernelforge.rewards.policy import DEFAULT_POLICY, POLICIES, RewardPolicy, reward

__all__ = ["DEFAULT_POLICY", "POLICIES", "RewardPolicy", "reward"]
