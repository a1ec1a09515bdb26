"""Attempts made from evaluations, and the rule that decides whether one becomes the best of its task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from kernelforge.hardware.specs import nearest_spec
from kernelforge.prediction import idle_share, modelled_interval_us
from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    Finding,
    Operator,
    Origin,
    Performance,
    Reward,
    Verdict,
)
from kernelforge.rewards import Context
from kernelforge.rewards import reward as score
from kernelforge.search.base import best_attempt

APART = 0.05
"""Least relative fall of the modelled time that tells two versions of a kernel apart. Where hardware answered, 94 % of
the falls by 5 % or more were real, and half of the smaller ones (``benchmarks/fidelity.py compare``)."""
TUNED_APART = 0.02
"""The same for a tuned child, whose text is its parent's: 94 % of the falls by 2 % or more were real."""
COUNTER_CHANGE = 0.10
"""Least relative change of the first counter of a finding where the modelled time does not tell."""


class Outcome(StrEnum):
    """Result of the comparison of an attempt with the best before it."""

    ACCEPTED = "accepted"
    """It becomes the best."""
    REFUSED = "not accepted"
    """It is no better, or wrong."""
    UNDECIDED = "undecided"
    """Neither the model nor a counter tells the two apart: the best stays."""
    NOT_COMPARED = "not compared"
    """It lacks what the best has, such as a time: the best stays, which says nothing against the change."""


class Decision(NamedTuple):
    """Whether an attempt becomes the best of its task, and why."""

    outcome: Outcome
    reason: str
    """In one line."""

    @property
    def accepted(self) -> bool:
        return self.outcome is Outcome.ACCEPTED

    @property
    def note(self) -> str:
        return f"{self.outcome}: {self.reason}"


def make_attempt(
    earlier: Sequence[Attempt],
    candidate: Candidate | None,
    evaluation: Evaluation,
    *,
    run: str,
    task: str,
    operator: Operator,
    parent: Attempt | str | None,
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
        parent: the attempt it was derived from, or its id.
        reward: name of the policy that scores it, or a reward that is known already.
        started: start of the work on it, UTC.
        seconds: wall time of that work.
        series: what its id begins with; ``RUN/TASK`` by default.
        details: further fields of :class:`~kernelforge.records.Attempt`, such as ``profile`` and ``finding``.
    """
    if isinstance(reward, str):
        source = None if candidate is None else candidate.source
        before = tuple(attempt.evaluation for attempt in earlier)
        reward = score(reward, evaluation, Context(source, before, details.get("profile")))
    attempt = Attempt(
        id=f"{series or f'{run}/{task}'}/{len(earlier):02d}",
        run=run,
        task=task,
        number=len(earlier),
        operator=operator,
        parent=parent.id if isinstance(parent, Attempt) else parent,
        candidate=candidate,
        evaluation=evaluation,
        reward=reward,
        accepted=False,
        started=started if isinstance(started, str) else started.isoformat(timespec="milliseconds"),
        seconds=round(seconds, 6),
        **details,
    )
    decision = accept(attempt, earlier)
    return attempt.model_copy(update={"accepted": decision.accepted, "note": decision.note})


def accept(attempt: Attempt, earlier: Sequence[Attempt]) -> Decision:
    """Decide whether an attempt becomes the best of its task.

    Args:
        attempt: the new attempt.
        earlier: all earlier attempts of the task, by number.
    """
    evaluation = attempt.evaluation
    if evaluation.verdict is not Verdict.OK:
        return _failed(evaluation.verdict)
    if evaluation.passed_over:
        return Decision(Outcome.NOT_COMPARED, "predicted, and not measured")
    best = best_attempt(earlier)
    if best is None:
        lacking = ", at its full size not compared" if evaluation.uncompared else ""
        return Decision(Outcome.ACCEPTED, f"first correct attempt{lacking}")
    origin = _repaired(attempt, earlier)
    # A finding is about the kernel that the Judge read; against any other kernel, time alone decides.
    finding = origin.finding if origin is not None and origin.parent == best.id else None
    return improves(best, attempt, finding)


def _repaired(attempt: Attempt, earlier: Sequence[Attempt]) -> Attempt | None:
    """The attempt at the start of a chain of repairs: the one that answered a finding."""
    current: Attempt | None = attempt
    by_id = {past.id: past for past in earlier}
    while current is not None and current.operator is Operator.REPAIR:
        current = by_id.get(current.parent or "")
    return current


def improves(parent: Attempt, child: Attempt, finding: Finding | None) -> Decision:
    """Whether ``child`` is better than ``parent``, and why.

    Only a child with verdict OK can be better. Where both times were measured, the lower bound of its speedup must be
    higher; where there is no baseline, the interval of its time must lie below its parent's; a quarantined time never
    is. A measured time replaces a modelled one, and is never replaced by one. Of two modelled times, the child's must
    be lower by at least 5 %, or by 2 % for a tuned child of ``parent``, and may not be higher. Between the two the
    model does not tell them apart; the first metric of ``finding`` that both profiles have then decides: it must fall
    (with a leading ``+``: rise) by at least 10 %. Where one time is of machine code and the other of PTX, the child's
    decides outside the 90 % interval of its parent's, and that metric within.
    """
    if child.evaluation.verdict is not Verdict.OK:
        return _failed(child.evaluation.verdict)
    if parent.evaluation.verdict is not Verdict.OK:
        return Decision(Outcome.ACCEPTED, "correct, and its parent was not")
    if child.evaluation.uncompared and not parent.evaluation.uncompared:
        return Decision(Outcome.NOT_COMPARED, "no value of its full size was, and the best's were")
    if parent.evaluation.uncompared and not child.evaluation.uncompared:
        return Decision(Outcome.ACCEPTED, "compared at its full size, as its parent was not")
    before, after = parent.evaluation.performance, child.evaluation.performance
    if after is None:
        return Decision(Outcome.NOT_COMPARED, "it has no time")
    if before is None:
        return Decision(Outcome.ACCEPTED, "it has a time, and its parent has none")
    if Origin.MEASURED in (before.origin, after.origin):
        return _by_measured_time(before, after)
    counter = _counter(parent, child, finding)
    if _lacks_machine_code(parent) is not _lacks_machine_code(child):
        return _by_unlike_times(parent, before, after, counter)
    own_constants = child.operator is Operator.TUNE and child.parent == parent.id
    return _by_modelled_time(before, after, TUNED_APART if own_constants else APART, counter)


def _failed(verdict: Verdict) -> Decision:
    return Decision(Outcome.NOT_COMPARED if verdict is Verdict.INFRA else Outcome.REFUSED, verdict)


def _by_measured_time(parent: Performance, child: Performance) -> Decision:
    """The decision where one of the times was measured, or both."""
    if child.quarantined is not None:
        return Decision(Outcome.REFUSED, f"its time is quarantined, {child.quarantined}")
    if child.origin is not Origin.MEASURED:
        return Decision(Outcome.NOT_COMPARED, "its time is modelled, and the best's was measured")
    if parent.origin is not Origin.MEASURED:
        return Decision(Outcome.ACCEPTED, "its time was measured, and its parent's is modelled")
    if parent.quarantined is not None:
        return Decision(Outcome.ACCEPTED, "its parent's time is quarantined")
    before, after = parent.speedup_lower, child.speedup_lower
    if before is not None and after is not None:
        outcome = Outcome.ACCEPTED if after > before else Outcome.REFUSED
        return Decision(outcome, f"lower bound of the speedup {before:.3f}x -> {after:.3f}x")
    assert parent.interval_us is not None
    assert child.interval_us is not None
    outcome = Outcome.ACCEPTED if child.interval_us[1] < parent.interval_us[0] else Outcome.REFUSED
    return Decision(outcome, f"time {parent.time_us:,.4g} -> {child.time_us:,.4g} us, with no baseline")


class _Moved(NamedTuple):
    """Change of the first metric of a finding."""

    enough: bool
    text: str
    """Empty where there is no such metric."""


def _by_modelled_time(parent: Performance, child: Performance, apart: float, counter: _Moved) -> Decision:
    """The decision between two modelled times, of which falls by ``apart`` or more count."""
    before, after = parent.time_us, child.time_us
    time = f"modelled time {before:,.4g} -> {after:,.4g} us ({_change(before, after):+.1%})"
    reason = f"{time}; {counter.text}" if counter.text else time
    if after <= (1 - apart) * before:
        return Decision(Outcome.ACCEPTED, reason)
    if after > before:
        return Decision(Outcome.REFUSED, reason)
    reason = f"{reason}; the model does not tell falls below {apart:.0%}"
    return Decision(Outcome.ACCEPTED if counter.enough else Outcome.UNDECIDED, reason)


def _by_unlike_times(parent: Attempt, before: Performance, after: Performance, counter: _Moved) -> Decision:
    """The decision where one modelled time is of machine code and the other of PTX.

    The model guesses where there is none, and is off by more than two versions of a kernel are apart.
    """
    profile = parent.profile
    idle = 0.0 if profile is None else idle_share(nearest_spec(profile.device).spec, profile.kernels)
    low, high = modelled_interval_us(before.time_us, idle)
    unlike = "one modelled time is of machine code, the other of PTX"
    if not low <= after.time_us <= high:
        outcome = Outcome.ACCEPTED if after.time_us < low else Outcome.REFUSED
        return Decision(outcome, f"modelled time {before.time_us:,.4g} -> {after.time_us:,.4g} us, though {unlike}")
    reason = "; ".join(filter(None, (unlike, counter.text)))
    return Decision(Outcome.ACCEPTED if counter.enough else Outcome.NOT_COMPARED, reason)


def _counter(parent: Attempt, child: Attempt, finding: Finding | None) -> _Moved:
    """Change of the first metric of the finding that both profiles have."""
    for name in () if finding is None else finding.metrics:
        rises, key = name.startswith("+"), name.removeprefix("+")
        before, after = (None if a.profile is None else a.profile.metric(key) for a in (parent, child))
        if before is None or after is None:
            continue
        change = _change(before.value, after.value)
        enough = change >= COUNTER_CHANGE if rises else change <= -COUNTER_CHANGE
        return _Moved(enough, f"{key} {before.value:,.6g} -> {after.value:,.6g} {after.unit} ({change:+.1%})")
    return _Moved(False, "")


def _lacks_machine_code(attempt: Attempt) -> bool:
    """Whether a kernel's time was modelled from its PTX, for its machine code is too large to be estimated."""
    return attempt.profile is not None and any(kernel.sass is None for kernel in attempt.profile.kernels)


def _change(before: float, after: float) -> float:
    """Relative change; from zero, any rise is without bound."""
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return (after - before) / before
