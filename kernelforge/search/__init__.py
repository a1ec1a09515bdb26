"""Search strategies: what to try next. Pure, seeded, and resumable by replaying the attempts."""

from kernelforge.search.base import ProfileVisibility, Proposal, Strategy, StrategyTable, score
from kernelforge.search.beam import Beam
from kernelforge.search.best_of_n import BestOfN, pass_at_k
from kernelforge.search.contrast import Contrast
from kernelforge.search.evolve import Evolve
from kernelforge.search.fsr import Fsr
from kernelforge.search.mcts import Mcts
from kernelforge.search.portfolio import Portfolio
from kernelforge.search.refine import Refine

STRATEGIES = StrategyTable(
    {strategy.name: strategy for strategy in (Refine, BestOfN, Contrast, Fsr, Beam, Mcts, Evolve, Portfolio)}
)
"""Every strategy by name."""

__all__ = [
    "STRATEGIES",
    "Beam",
    "BestOfN",
    "Contrast",
    "Evolve",
    "Fsr",
    "Mcts",
    "Portfolio",
    "ProfileVisibility",
    "Proposal",
    "Refine",
    "Strategy",
    "pass_at_k",
    "score",
]
