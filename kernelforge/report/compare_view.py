"""Two runs side by side, task by task: only tasks that both have are compared, and the others are named."""

from __future__ import annotations

from typing import Literal

from kernelforge.records import Verdict
from kernelforge.report.statistics import Estimate
from kernelforge.report.summary import View

Outcome = Literal["win", "loss", "tie", "both-failed"]
"""For the second run, ``b``: by whether the interval of the ratio of the two times excludes 1, and by correctness."""


class PairRow(View):
    """One task that both runs have."""

    task: str
    outcome: Outcome
    why: str
    """In words: ``correct, where a failed``; ``1.31x as fast [1.27, 1.35]``; ``the interval holds 1``."""
    a_best: str | None
    b_best: str | None
    a_verdict: Verdict | None
    b_verdict: Verdict | None
    a_value: float | None
    """What is compared (see ``CompareView.quantity``); None where there is none."""
    b_value: float | None
    ratio: float | None
    """How much better b is: above 1 is better."""
    low: float | None
    """95 % interval of the ratio; None where the quantity has no noise."""
    high: float | None


class CompareView(View):
    """Two runs. Times are compared only where board keys are equal and measured; else correctness and counters."""

    a: str
    b: str
    comparable: bool
    """Whether both stand on one board."""
    differences: tuple[str, ...]
    """What keeps them off one board: ``device: NVIDIA H200 and emulated:h100``."""
    quantity: Literal["time_us", "dram_bytes", "none"]
    wins: int
    losses: int
    ties: int
    both_failed: int
    geomean_ratio: Estimate | None
    """Over tasks with a ratio."""
    pairs: tuple[PairRow, ...]
    """Regressions first."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
