"""Strategies: what to try next. Pure, seeded, resumable by telling them their past again."""

from kernelforge.search.base import Proposal, Strategy, make_strategy
from kernelforge.search.refine import Refine

__all__ = ["Proposal", "Refine", "Strategy", "make_strategy"]
