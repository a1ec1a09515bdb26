"""Table of reward policies, and scoring of a stored evaluation.

A policy sees nothing but stored records, so old runs can be scored again with no device at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kernelforge.errors import UsageError
from kernelforge.records import Evaluation, Reward, Verdict
from kernelforge.rewards.base import Context, RewardPolicy
from kernelforge.rewards.cuda_l import CudaL1, CudaL2
from kernelforge.rewards.gated_speedup import DrKernel, KernelBenchTinker, KernelForge1, Kevin
from kernelforge.rewards.tiers import AutoTriton, CudaAgent, DrKernelTiers

DEFAULT_POLICY = KernelForge1.name

_ALL: tuple[RewardPolicy, ...] = (
    KernelForge1(),
    CudaL1(),
    CudaL2(),
    Kevin(),
    CudaAgent(),
    DrKernel(),
    DrKernelTiers(),
    KernelBenchTinker(),
    AutoTriton(),
)
POLICIES: Mapping[str, RewardPolicy] = MappingProxyType({policy.name: policy for policy in _ALL})
"""Every policy by its name, the default first."""

NO_CONTEXT = Context()


def find_policy(name: str) -> RewardPolicy:
    """
    Raises:
        UsageError: there is no such policy.
    """
    if name not in POLICIES:
        raise UsageError(f"there is no reward policy {name!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[name]


def reward(policy: str, evaluation: Evaluation, context: Context = NO_CONTEXT) -> Reward:
    """Score ``evaluation`` under the policy of that name.

    Three rules stand above every policy: ``INFRA`` is not a score, and neither what ran without a jail nor a
    ``ModelNew`` class, whose host code could have done anything to its own times, is ever rewarded. The value and every
    component are None then; :func:`unscored` says why. And what was not compared at its full size earns what a wrong
    answer earns: a plan can be written so that no part of it can be run by itself.

    Raises:
        UsageError: there is no such policy.
    """
    found_policy = find_policy(policy)
    if _never_scored(evaluation):
        return Reward(policy=found_policy.name, value=None, components=dict.fromkeys(found_policy.parts))
    return found_policy.score(
        _as_scored(evaluation), Context(context.source, [_as_scored(past) for past in context.earlier])
    )


def _as_scored(evaluation: Evaluation) -> Evaluation:
    """The evaluation as policies see it: wrong, where values were not compared at the full size."""
    if not evaluation.uncompared:
        return evaluation
    wrong = {"verdict": Verdict.WRONG, "stage": "full", "reason": evaluation.outcome, "performance": None}
    return evaluation.model_copy(update=wrong)


def rescore(
    evaluation: Evaluation, source: str | None, earlier: Iterable[Evaluation], policies: Iterable[str]
) -> dict[str, Reward]:
    """Score a stored evaluation under several policies, by their names. Needs nothing but records.

    Args:
        source: the candidate's, if there was one.
        earlier: evaluations of the same task before it, oldest first.

    Raises:
        UsageError: there is no such policy.
    """
    context = Context(source=source, earlier=tuple(earlier))
    return {name: reward(name, evaluation, context) for name in policies}


def unscored(evaluation: Evaluation, scored: Reward) -> str:
    """Reason why a reward has no value, in a line; empty if it has one."""
    if scored.value is not None:
        return ""
    return _never_scored(evaluation) or (
        f"its times vary too much for {scored.policy}, which drops such an evaluation; another measurement may not"
    )


def _never_scored(evaluation: Evaluation) -> str:
    """The rule above every policy that forbids a score; empty if none does."""
    if evaluation.verdict is Verdict.INFRA:
        return f"it could not be evaluated: {evaluation.reason}"
    if evaluation.lane == "modelnew":
        return "a ModelNew holds host code, which is never rewarded"
    return "it ran without a jail, which is never rewarded" if evaluation.fingerprint.jail == "none" else ""
