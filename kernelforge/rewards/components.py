"""What a reward is made of, under fixed keys: the same for every policy, verdict and stage."""

from __future__ import annotations

from typing import Final

from kernelforge.client.wire import Components
from kernelforge.records import Evaluation, Stage, Verdict
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
