"""What a reward policy is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kernelforge.records import Evaluation, Reward


@dataclass(frozen=True)
class Context:
    """What some published formulas look at beside the evaluation. All of it is stored with it."""

    source: str | None = None
    """The candidate's source, for terms in its length; None where it was not kept or there was none."""
    earlier: Sequence[Evaluation] = ()
    """Evaluations of the same task that came before it in its run or session, oldest first."""


class RewardPolicy(Protocol):
    """A pure function from a stored evaluation to a number. A change of the number is another version."""

    name: str
    """With its version: ``kernelforge/1``."""
    title: str
    """One line for people."""
    source: str
    """Paper or document with section, and what of it is not published and was decided here."""
    bounds: tuple[float, float]
    """No reward lies outside."""
    parts: tuple[str, ...]
    """Names of the components. Every reward of the policy has all of them; None is not known or does not apply."""

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        """``INFRA`` never comes here, nor what may not be rewarded."""
        ...
