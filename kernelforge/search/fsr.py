"""``fsr``: rounds of samples, each round written from the fastest kernel of the rounds before.

CUDA-LLM's Feature Search and Reinforcement. A round draws N samples of one prompt. The first is a round of seeds. After
a round in which nothing was valid, the next one is written from a failed kernel, its errors and the history; otherwise
from the fastest valid kernel so far, its profile and the history. It ends at depth D.

Which failed kernel the paper leaves open: here, of the last round, the one that got furthest in the cascade.

With ``features``, each sample that starts from a valid kernel is asked to use one optimisation technique. A bandit
(UCB1) selects them by the outcome of each so far: whether it compiled, whether it was correct, and how much faster than
its parent it was. That is a community port's reading of the method's name; in the paper, features are the three checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, get_args

from pydantic import Field

from kernelforge.records import Attempt, Operator, Stage, Verdict
from kernelforge.search.base import (
    GenerationalStrategy,
    Proposal,
    StrategyOptions,
    best_per_step,
    best_scoring,
    gain,
    is_correct,
    is_repairable,
    parent_number,
)

CASCADE: tuple[str, ...] = get_args(Stage)
"""Stages of an evaluation, in order."""
TECHNIQUES = ("tiling", "shared-memory", "vectorisation", "warp-primitives", "occupancy", "loop-unrolling")
"""Arms of the bandit: those of the community port, but loop unrolling for fast-math, whose results our tolerance does
not take."""


class FsrOptions(StrategyOptions):
    """Options of ``fsr``."""

    samples: int = Field(default=5, ge=1)
    """Samples of a round (N). Not published, ours."""
    depth: int = Field(default=4, ge=1)
    """Rounds (D). Not published, ours."""
    features: bool = False
    """Deal out optimisation techniques by a bandit."""


@dataclass
class Arm:
    """Outcomes of one technique."""

    pulls: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.pulls if self.pulls else 0.0


class Fsr(GenerationalStrategy[FsrOptions]):
    """One task's rounds of samples."""

    name: ClassVar[str] = "fsr"
    source: ClassVar[str] = "CUDA-LLM (arXiv 2506.09092)"
    open_ended: ClassVar[bool] = False
    Options = FsrOptions

    def __init__(
        self, options: FsrOptions, *, rounds: int | None = None, stop_after: int | None = None, coders: int = 1
    ) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self._parent: Attempt | None = None
        self._arms = {technique: Arm() for technique in TECHNIQUES}

    @classmethod
    def default_rounds(cls, options: FsrOptions) -> int:
        return options.samples * options.depth

    def _stop_reason(self) -> str | None:
        done = len(self.steps) >= self.options.samples * self.options.depth
        return f"all {self.options.depth} rounds of {self.options.samples} samples are done" if done else None

    def _size(self) -> int:
        return self.options.samples

    def _learn(self, attempts: Sequence[Attempt]) -> None:
        self._parent = self._next_parent()
        for attempt in attempts:
            arm = self._arms.get(attempt.technique)
            if arm is not None and attempt.evaluation.verdict is not Verdict.INFRA:
                arm.pulls += 1
                arm.total += self._worth(attempt)

    def _member(self, slot: int, rng: Random) -> Proposal:
        step = self._index * self.options.samples + slot
        coder = self.turn(step)
        if self._parent is None:
            return Proposal(Operator.SEED, coder=coder, sample=step)
        improving = self.options.features and is_correct(self._parent)
        technique = pick_techniques_ucb1(self._arms, self.options.samples)[slot] if improving else None
        return Proposal(Operator.FSR, parent=self._parent.number, technique=technique, coder=coder, sample=slot)

    def _next_parent(self) -> Attempt | None:
        """The attempt that the next round starts from; None makes it a round of seeds."""
        rounds = best_per_step(self.known)
        last = rounds[-self.options.samples :]
        failed = deepest_failure(last)
        if failed is not None and not any(is_correct(attempt) for attempt in last):
            return failed
        return best_scoring(self.known) or deepest_failure(rounds)

    def _worth(self, attempt: Attempt) -> float:
        """Reward of a sample for its technique, 0 to 1: thirds for compiling, for being correct, and for speed.

        The third of speed grows with the logarithm of the gain over the parent, and is whole at twice the speed. Ours.
        """
        built = CASCADE.index(attempt.evaluation.stage) > CASCADE.index("compile")
        number = parent_number(attempt)
        gained = None if number is None else gain(self.attempts[number], attempt)
        speed = 0.0 if gained is None else min(max(gained / math.log(2), 0.0), 1.0)
        return (built + is_correct(attempt) + speed) / 3

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "round": self.generation,
            "parent": None if self._parent is None else self._parent.number,
        }
        if self.options.features:
            state["arms"] = {name: {"pulls": arm.pulls, "mean": arm.mean} for name, arm in self._arms.items()}
        return state


def deepest_failure(attempts: Sequence[Attempt]) -> Attempt | None:
    """The failed kernel that got furthest in the cascade, the latest of equals; one whose failure was not its own
    (verdict ``INFRA``) only where there is no other."""
    return max(
        filter(is_repairable, attempts),
        key=lambda attempt: (
            attempt.evaluation.verdict is not Verdict.INFRA,
            CASCADE.index(attempt.evaluation.stage),
            attempt.number,
        ),
        default=None,
    )


def pick_techniques_ucb1(arms: dict[str, Arm], samples: int) -> list[str]:
    """Techniques for all samples of a round, chosen before any of them is known.

    UCB1 (Auer, Cesa-Bianchi, Fischer 2002): untried arms first, then the highest mean + sqrt(2 ln(all pulls) / pulls).
    What is dealt counts as a pull for the samples after it, and leaves the mean as it is, so that a round spreads. Ties
    go by the order of the arms: a generator is seeded again for every step, so it cannot break them alike for a round.
    """
    pulls = {name: arm.pulls for name, arm in arms.items()}
    dealt = []
    for _ in range(samples):
        untried = [name for name, count in pulls.items() if not count]
        if untried:
            technique = untried[0]
        else:
            logarithm = math.log(sum(pulls.values()))
            bounds = {name: arms[name].mean + math.sqrt(2 * logarithm / count) for name, count in pulls.items()}
            technique = max(bounds, key=bounds.__getitem__)
        pulls[technique] += 1
        dealt.append(technique)
    return dealt
