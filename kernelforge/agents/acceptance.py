"""Attempts made from evaluations, and the rule that decides whether one becomes the best of its task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    Finding,
    Metric,
    Operator,
    Origin,
    Performance,
    Profile,
    Reward,
    Verdict,
)
from kernelforge.rewards import Context
from kernelforge.rewards import reward as score
from kernelforge.search.base import best_attempt

GAIN = 0.10
"""Least relative change of the counter that the Judge named."""
TUNED_GAIN = 0.02
"""Least relative fall of the modelled time of a tuned child: the same kernel with other constants, whose model differs
by what the constants change alone."""
SLACK = 0.20
"""How much worse the modelled time of an accepted child may be: the model has one pair in ten in the wrong order."""


def make_attempt(
    earlier: Sequence[Attempt],
    candidate: Candidate | None,
    evaluation: Evaluation,
    *,
    run: str,
    task: str,
    operator: Operator,
    parent: Attempt | None,
    reward: str | Reward,
    started: datetime | str,
    seconds: float,
    series: str | None = None,
    **details: Any,
) -> Attempt:
    """Make the next attempt of a task, with its reward and the decision whether it becomes the best.

    Args:
        earlier: the attempts of the task so far, by number.
        candidate: the evaluated candidate; None where the reply had none.
        evaluation: its evaluation.
        run: id of the run.
        task: name of the task.
        operator: the operator that led to the attempt.
        parent: the attempt it was derived from.
        reward: name of the policy that scores it, or a reward that is known already.
        started: start of the work on it, UTC.
        seconds: wall time of that work.
        series: what its id begins with; ``RUN/TASK`` by default.
        details: further fields of :class:`~kernelforge.records.Attempt`, such as ``profile`` and ``finding``.
    """
    if isinstance(reward, str):
        source = None if candidate is None else candidate.source
        reward = score(reward, evaluation, Context(source, tuple(attempt.evaluation for attempt in earlier)))
    attempt = Attempt(
        id=f"{series or f'{run}/{task}'}/{len(earlier):02d}",
        run=run,
        task=task,
        number=len(earlier),
        operator=operator,
        parent=None if parent is None else parent.id,
        candidate=candidate,
        evaluation=evaluation,
        reward=reward,
        accepted=False,
        started=started if isinstance(started, str) else started.isoformat(timespec="milliseconds"),
        seconds=round(seconds, 6),
        **details,
    )
    accepted, note = accept(attempt, earlier)
    return attempt.model_copy(update={"accepted": accepted, "note": note})


def accept(attempt: Attempt, earlier: Sequence[Attempt]) -> tuple[bool, str]:
    """Decide whether an attempt becomes the best of its task.

    Args:
        attempt: the new attempt.
        earlier: all earlier attempts of the task, by number.

    Returns:
        The decision, and its reason in one line.
    """
    evaluation = attempt.evaluation
    if evaluation.verdict is not Verdict.OK:
        return False, f"not accepted: {evaluation.verdict}"
    if evaluation.passed_over:
        return False, "not accepted: predicted, and not measured"
    best = best_attempt(earlier)
    if best is None:
        return True, f"first correct attempt{', at its full size not compared' if evaluation.uncompared else ''}"
    origin = _repaired(attempt, earlier)
    # A finding is about the kernel that the Judge read; against any other kernel, time alone decides.
    finding = origin.finding if origin is not None and origin.parent == best.id else None
    better, note = improves(best, attempt, finding)
    drift = drift_reason(attempt, earlier) if better else None
    return (better, note) if drift is None else (False, drift)


def _repaired(attempt: Attempt, earlier: Sequence[Attempt]) -> Attempt | None:
    """The attempt at the start of a chain of repairs: the one that answered a finding."""
    current: Attempt | None = attempt
    by_id = {past.id: past for past in earlier}
    while current is not None and current.operator is Operator.REPAIR:
        current = by_id.get(current.parent or "")
    return current


def improves(parent: Attempt, child: Attempt, finding: Finding | None) -> tuple[bool, str]:
    """Whether ``child`` is better than ``parent`` at what ``finding`` set out to do, and why, in one line.

    Only a child with verdict OK can be better. On a device that measures time, the lower bound of its speedup must be
    higher; where there is no baseline, the interval of its time must lie below its parent's; a quarantined time never
    is. On an emulated one, the first metric that the finding names must fall (with a leading ``+``: rise) by at
    least 10 %, and the modelled time may grow by at most 20 %. Where no finding was answered, or it names no metric
    that the profile has, modelled time alone decides: it must fall by 10 %, or by 2 % for a tuned child.
    """
    if child.evaluation.verdict is not Verdict.OK:
        return False, f"not accepted: {child.evaluation.verdict}"
    if parent.evaluation.verdict is not Verdict.OK:
        return True, "accepted: correct, and its parent was not"
    if child.evaluation.uncompared != parent.evaluation.uncompared:
        if child.evaluation.uncompared:
            return False, "not accepted: not compared at its full size, as its parent was"
        return True, "accepted: compared at its full size, as its parent was not"
    before, after = _measured(parent.evaluation), _measured(child.evaluation)
    if before is not None and after is not None:
        return _by_speedup(before, after)
    return _by_counter(parent, child, finding)


def drift_reason(attempt: Attempt, earlier: Iterable[Attempt]) -> str | None:
    """Reason to reject an attempt whose modelled time is too far behind the fastest accepted before it, or None.

    Each accepted step may be slower by :data:`SLACK`; without this limit a task's best could get slower step by step.
    """
    speed = attempt.evaluation.performance
    if speed is None or speed.origin is Origin.MEASURED:
        return None
    checked = [past.evaluation for past in earlier if past.accepted and not past.evaluation.uncompared]
    times = [evaluation.performance.time_us for evaluation in checked if evaluation.performance]
    if not times or speed.time_us <= (1 + SLACK) * min(times):
        return None
    fastest = f"the fastest that was accepted before, {min(times):,.4g} us"
    return f"not accepted: the modelled time, {speed.time_us:,.4g} us, is more than {SLACK:.0%} behind {fastest}"


def _measured(evaluation: Evaluation) -> Performance | None:
    """The performance, if it was measured."""
    speed = evaluation.performance
    return speed if speed is not None and speed.origin is Origin.MEASURED else None


def _by_speedup(parent: Performance, child: Performance) -> tuple[bool, str]:
    if child.quarantined is not None:
        return False, f"not accepted: its time is quarantined, {child.quarantined}"
    if parent.quarantined is not None:
        return True, "accepted: its parent's time is quarantined"
    before, after = parent.speedup_lower, child.speedup_lower
    if before is not None and after is not None:
        return after > before, f"{_word(after > before)}: lower bound of the speedup {before:.3f}x -> {after:.3f}x"
    assert parent.interval_us is not None
    assert child.interval_us is not None
    faster = child.interval_us[1] < parent.interval_us[0]
    return faster, f"{_word(faster)}: time {parent.time_us:,.4g} -> {child.time_us:,.4g} us, with no baseline"


def _by_counter(parent: Attempt, child: Attempt, finding: Finding | None) -> tuple[bool, str]:
    slower, times = _slower(parent.evaluation, child.evaluation)
    for name in () if finding is None else finding.metrics:
        rises, key = name.startswith("+"), name.removeprefix("+")
        before, after = _value(parent.profile, key), _value(child.profile, key)
        if before is None or after is None:
            continue
        change = _change(before.value, after.value)
        enough = change >= GAIN if rises else change <= -GAIN
        change_text = f"{key} {before.value:,.6g} -> {after.value:,.6g} {after.unit} ({change:+.1%})"
        if enough and slower:
            return False, f"not accepted: {change_text}, but the modelled time grew, {times}"
        return enough, f"{_word(enough)}: {change_text}"
    before_time, after_time = (a.evaluation.performance for a in (parent, child))
    if before_time is None or after_time is None:
        return False, "not accepted: there is neither a named counter nor a time to compare"
    gain = TUNED_GAIN if child.operator is Operator.TUNE else GAIN
    better = after_time.time_us <= (1 - gain) * before_time.time_us
    return better, f"{_word(better)}: modelled time {times}, by which it must fall {gain:.0%} where no counter decides"


def _slower(parent: Evaluation, child: Evaluation) -> tuple[bool, str]:
    before, after = parent.performance, child.performance
    if before is None or after is None:
        return False, "unknown"
    return after.time_us > (1 + SLACK) * before.time_us, f"{before.time_us:,.4g} -> {after.time_us:,.4g} us"


def _value(profile: Profile | None, name: str) -> Metric | None:
    return None if profile is None else profile.metric(name)


def _change(before: float, after: float) -> float:
    """Relative change; from zero, any rise is without bound."""
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return (after - before) / before


def _word(accepted: bool) -> str:
    return "accepted" if accepted else "not accepted"
