"""Strategies: what to try next. Pure, seeded, resumable by telling them their past again."""

from kernelforge.errors import UsageError
from kernelforge.search.base import Proposal, Strategy
from kernelforge.search.refine import Refine

__all__ = ["Proposal", "Refine", "Strategy", "make_strategy"]


def make_strategy(name: str, *, rounds: int, stop_after: int) -> Strategy:
    """Build a strategy by name.

    Raises:
        UsageError: there is no such strategy.
    """
    if name != "refine":
        raise UsageError(f"there is no strategy {name!r}; choose 'refine'")
    return Refine(rounds=rounds, stop_after=stop_after)
