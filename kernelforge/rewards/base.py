"""Reward policies: what one computes from an evaluation, and the components that several share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kernelforge.client.models import Components
from kernelforge.records import Evaluation, Reward, Stage, Verdict
from kernelforge.rewards.speed import believed, coverage_of

BEFORE_BUILT: Final[frozenset[Stage]] = frozenset({"parse", "plan", "compile", "policy"})
"""Stages at which what is not OK has no build that may run."""
OVERHEAD: Final = "harness"
"""The part of an evaluation's seconds that is ours, and neither compiler nor oracle nor device."""


def components(evaluation: Evaluation) -> Components:
    """The components of an evaluation. ``INFRA`` says nothing about the candidate: all of them are None.

    Coverage is measured or None, also in the lane of plans: whether a plan called a library is not part of the record.
    """
    if evaluation.verdict is Verdict.INFRA:
        return Components()
    ok = evaluation.verdict is Verdict.OK
    parsed = evaluation.stage != "parse"
    performance = believed(evaluation)
    return Components(
        format=float(parsed),
        built=float(ok or evaluation.stage not in BEFORE_BUILT),
        correct=float(ok and not evaluation.uncompared),
        speedup=None if performance is None else performance.speedup,
        speedup_lower=None if performance is None else performance.speedup_lower,
        speedup_upper=_upper(evaluation),
        coverage=coverage_of(evaluation),
        policy=float(evaluation.verdict is not Verdict.POLICY or not parsed),
        cost=sum(seconds for part, seconds in evaluation.seconds.items() if part != OVERHEAD),
    )


def _upper(evaluation: Evaluation) -> float | None:
    """Upper end of the interval of the speedup over the fastest baseline; never below the speedup."""
    performance = believed(evaluation)
    if performance is None or performance.speedup is None:
        return None
    timing = performance.timing
    ratio = None if timing is None or timing.fastest is None else timing.ratio(timing.fastest)
    return None if ratio is None else max(ratio.interval[1], performance.speedup)


@dataclass(frozen=True)
class Context:
    """Inputs of some published formulas in addition to the evaluation; all of them are stored with it."""

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
