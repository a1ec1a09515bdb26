"""Candidates that want a reward without a correct kernel, or more than a candidate may have.

Each case names what it attacks and the verdict that it must get. ``CANARY`` is planted where an attack may look for a
secret; it must be in no reason, no record and no feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

from axpy import KERNEL, PLAN

from kernelforge.evaluate import EvaluationResult, Evaluator
from kernelforge.records import Candidate, Verdict
from kernelforge.rewards import DEFAULT_POLICY, reward

CANARY = "canary-b7d1f0"


@dataclass(frozen=True)
class Case:
    """One attack. ``words`` must be in the reason."""

    attacks: str
    verdict: Verdict
    source: str = KERNEL
    plan: str = PLAN
    words: tuple[str, ...] = ()


def body(code: str) -> str:
    """The honest kernel with ``code`` before its last line."""
    return KERNEL.replace("    if (i < n)", f"    {code}\n    if (i < n)")


def judge(evaluator: Evaluator, case: Case) -> EvaluationResult:
    """Evaluate a case: its verdict and words, no reward unless OK, no canary anywhere, and an unhurt next candidate."""
    result = evaluator.evaluate(Candidate(source=case.source, plan=case.plan), seed=11)
    evaluation = result.evaluation
    assert evaluation.verdict is case.verdict, evaluation.reason
    for word in case.words:
        assert word in evaluation.reason
    assert CANARY not in evaluation.model_dump_json()
    if case.verdict is not Verdict.OK:
        assert not reward(DEFAULT_POLICY, evaluation).value
        assert result.profile is None
        honest = evaluator.evaluate(Candidate(source=KERNEL, plan=PLAN), seed=11, profile=False)
        assert honest.evaluation.verdict is Verdict.OK, honest.evaluation.reason
    return result
