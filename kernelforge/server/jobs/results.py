"""Build a job's result from an evaluation or from an infrastructure failure."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from kernelforge.client.models import Fault, RewardResult
from kernelforge.records import Evaluation, Fingerprint, Origin, Verdict
from kernelforge.rewards import Context, components, reward, unscored

_LOG = logging.getLogger(__name__)

MAX_FEEDBACK_CHARS = 8_000

FaultCode = Literal[
    "cancelled", "deadline", "stale", "worker_died", "unsupported", "device", "oracle", "sandbox", "internal"
]


def scored(policy: str, evaluation: Evaluation, source: str | None, earlier: Sequence[Evaluation] = ()) -> RewardResult:
    """The result of an evaluation under a reward policy.

    If the policy gives no value the result is an ``infra_error``: a candidate that ran without a jail is never rewarded
    (``sandbox``), and a time that varies too much for the policy (``device``) may vary less in another try.

    Args:
        source: source of the candidate, if there was one.
        earlier: earlier evaluations of a session, oldest first; none for a job.
    """
    try:
        score = reward(policy, evaluation, Context(source, earlier))
        if score.value is not None:
            fields = {"outcome": "scored", "reward": score.value, "error": None}
            return RewardResult(**{**dict(_without_outcome(policy, evaluation)), **fields})
        why = unscored(evaluation, score)
    except Exception as error:  # a bug in a policy, or a policy that was removed: the job must end nevertheless
        _LOG.exception("policy %s failed on evaluation %s", policy, evaluation.key)
        return _faulty(policy, evaluation, Fault(code="internal", message=f"policy {policy} failed: {error}"))
    jailed = evaluation.fingerprint.jail != "none"
    noisy = jailed and evaluation.verdict is Verdict.OK and evaluation.lane == "plan"
    code: FaultCode = "sandbox" if not jailed else "device" if noisy else "unsupported"
    return _faulty(policy, evaluation, Fault(code=code, message=f"there is no score: {why}", retryable=noisy))


def failed(code: FaultCode, message: str, *, policy: str, retryable: bool = False) -> RewardResult:
    """The result of a job that has no evaluation."""
    fault = Fault(code=code, message=message[:MAX_FEEDBACK_CHARS], retryable=retryable)
    return RewardResult(outcome="infra_error", policy=policy, error=fault)


def without_candidate(candidate: str, task: str, fingerprint: Fingerprint, fault: str) -> Evaluation:
    """The evaluation of a completion that holds no candidate, as the cascade would make it.

    Args:
        candidate: hash of the completion.
        task: digest of the task.
    """
    return Evaluation(
        candidate=candidate,
        task=task,
        fingerprint=fingerprint,
        verdict=Verdict.POLICY,
        stage="parse",
        reason=fault,
    )


def feedback(evaluation: Evaluation) -> str:
    """Feedback for a Coder, at most :data:`MAX_FEEDBACK_CHARS` characters.

    For a failure it is the reason only, which the cascade writes without naming a hidden size.
    """
    if evaluation.verdict is not Verdict.OK:
        return _bounded(evaluation.reason)
    parts = [_correctness_text(evaluation)]
    performance = evaluation.performance
    if performance is not None:
        how = "measured" if performance.origin is Origin.MEASURED else "modelled"
        parts.append(f"{performance.time_us:.4g} us {how} at the full size, bound by {performance.bound}")
        if performance.speedup is not None:
            parts.append(f"{performance.speedup:.3g} times as fast as the fastest baseline")
        if performance.quarantined is not None:
            parts.append(f"the time is not believed: {performance.quarantined}")
    if evaluation.correctness is not None:
        guarded = [check for check in evaluation.correctness.sizes if check.status == "guarded"]
        if guarded:
            parts.append(f"the plan refused {len(guarded)} of {len(evaluation.correctness.sizes)} sizes")
    return _bounded("; ".join(parts))


def _correctness_text(evaluation: Evaluation) -> str:
    """The sizes at which a candidate was correct, as text."""
    checks = evaluation.correctness.sizes if evaluation.correctness is not None else ()
    full = next((check for check in checks if check.size == "full"), None)
    if full is None or not full.message:
        return "right at every size"
    if evaluation.uncompared:
        return f"right at the smaller sizes; full size not compared, so it counts as not correct: {full.message}"
    return f"right at every size; the full size: {full.message}"


def _without_outcome(policy: str, evaluation: Evaluation) -> RewardResult:
    """A result with a placeholder as its outcome."""
    performance = evaluation.performance
    origin: Literal["measured", "modelled"] | None = None
    if performance is not None:
        origin = "measured" if performance.origin is Origin.MEASURED else "modelled"
    return RewardResult(
        outcome="infra_error",
        policy=policy,
        components=components(evaluation),
        verdict=evaluation.verdict.value,
        uncompared=evaluation.uncompared,
        stage=evaluation.stage,
        feedback=feedback(evaluation),
        device=evaluation.fingerprint.device,
        origin=origin,
        candidate=evaluation.candidate,
        evaluation=evaluation.key,
        error=Fault(code="internal", message="no outcome yet"),
    )


def _faulty(policy: str, evaluation: Evaluation, fault: Fault) -> RewardResult:
    return _without_outcome(policy, evaluation).model_copy(update={"error": fault})


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_FEEDBACK_CHARS else text[: MAX_FEEDBACK_CHARS - 1] + "…"
