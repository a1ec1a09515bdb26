"""Reward policies: what one computes from an evaluation, and the components and speedups that several share.

A modelled or implausible time has no speedup.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from kernelforge.client.models import Components
from kernelforge.records import Evaluation, Origin, Performance, Reward, SideTimes, Stage, Timing, Verdict

MOST_SPEEDUP = 1e6
"""Ratios above this count as this: no kernel is a million times faster, and sums of rewards stay finite."""


def believed(evaluation: Evaluation) -> Performance | None:
    """The measured time of an evaluation; None if it is modelled, in quarantine, or not there."""
    performance = evaluation.performance
    if performance is None or performance.origin is not Origin.MEASURED or performance.quarantined is not None:
        return None
    return performance


def quarantined(evaluation: Evaluation) -> bool:
    """Whether a time was measured that is not believed."""
    return evaluation.performance is not None and evaluation.performance.quarantined is not None


def over_eager(evaluation: Evaluation) -> float | None:
    """Speedup over eager PyTorch, as KernelBench and what trains on it publish it."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup_eager)


def over_fastest(evaluation: Evaluation) -> float | None:
    """Speedup over the fastest baseline."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup)


def over(evaluation: Evaluation, baseline: str) -> float | None:
    """Speedup over one baseline: the ratio of samples that alternated, or else of the two medians."""
    performance = believed(evaluation)
    if performance is None or performance.timing is None:
        return None
    timing = performance.timing
    ratio = timing.ratio(baseline)
    if ratio is not None:
        return capped(ratio.speedup)
    side = side_of(timing, baseline)
    return None if side is None else divided(side.median_us, timing.candidate.median_us)


def side_of(timing: Timing, baseline: str) -> SideTimes | None:
    """The times of a baseline, if it was timed."""
    return next((side for side in timing.baselines if side.name == baseline), None)


def coverage_of(evaluation: Evaluation) -> float | None:
    """Share of device time in the candidate's own kernels; None where it was not measured, or is not believed."""
    performance = believed(evaluation)
    return None if performance is None or performance.timing is None else performance.timing.coverage


def capped(speedup: float | None) -> float | None:
    return None if speedup is None else min(speedup, MOST_SPEEDUP)


def divided(over_us: float, under_us: float) -> float:
    """Ratio of two times, at most :data:`MOST_SPEEDUP`."""
    return MOST_SPEEDUP if over_us >= MOST_SPEEDUP * under_us else over_us / under_us


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


class RewardPolicy(ABC):
    """A pure function from a stored evaluation to a number. A change of the number is another version."""

    name: ClassVar[str]
    """With its version: ``kernelforge/1``."""
    title: ClassVar[str]
    """One line for people."""
    source: ClassVar[str]
    """Paper or document with section, and what of it is not published and was decided here."""
    bounds: ClassVar[tuple[float, float]]
    """No reward lies outside."""
    parts: ClassVar[tuple[str, ...]]
    """Names of the components. Every reward of the policy has all of them; None is not known or does not apply."""

    @abstractmethod
    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        """``INFRA`` never comes here, nor what may not be rewarded."""

    def reward(self, value: float | None, **components: float | None) -> Reward:
        """A reward of this policy; components that are left out are None."""
        return Reward(policy=self.name, value=value, components=dict.fromkeys(self.parts) | components)
