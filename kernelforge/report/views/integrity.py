"""Integrity concerns: quarantined or varying times, gates that were hit, missing confinement."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from kernelforge.records import Attempt, Origin, Performance, Verdict
from kernelforge.report.formatting import one_line, percent
from kernelforge.report.views import View
from kernelforge.report.views.run_records import RunRecords

Concern = Literal[
    "quarantined",
    "clocks-disagree",
    "throttled",
    "unsettled",
    "high-variance",
    "policy",
    "unconfined",
    "infra",
    "untimed",
    "uncompared",
]
"""``quarantined``: an implausible time (below the floor, or the clocks disagree); it is not scored. ``unsettled``: the
interval of the ratio did not become as narrow as requested. ``high-variance``: relative interval above
:data:`HIGH_VARIANCE`. ``policy``: the candidate broke a rule. ``untimed``: correct, on a device that measures, and
without a speedup. ``uncompared``: OK without a value compared at the full size; not correct."""

CONCERNS: tuple[Concern, ...] = get_args(Concern)
HIGH_VARIANCE = 0.05
"""Width of a time's interval, relative to the time, above which it is listed."""


UNSCORED_SHARE, UNSCORED_LEAST = 0.2, 10
"""A run warns at its end when more than this share of at least this number of attempts has no score."""
MOST_REASONS = 3
_PARTICULAR = re.compile(r"^at the \w+ size, \S+ inputs: |[;:(\n].*", re.S)
"""The particular part of a reason: the position in the cascade, and everything after the statement itself."""


class IntegrityRow(View):
    """One attempt with a concern."""

    attempt: str
    task: str
    concern: Concern
    detail: str
    scored: bool
    """Whether it still counts: it has a speedup, or a reward above 0."""


class Unscored(View):
    """Attempts that ended as ``INFRA``, with their reasons. A growing share means a fault of this machine, or a Coder
    that avoids being scored."""

    count: int
    attempts: int
    reasons: tuple[tuple[str, int], ...]
    """Reasons without their particular part, the most frequent first, at most :data:`MOST_REASONS`."""
    excessive: bool
    """Whether these are more than :data:`UNSCORED_SHARE` of at least :data:`UNSCORED_LEAST` attempts."""

    @property
    def share(self) -> float:
        """Share of all attempts, from 0 to 1."""
        return self.count / max(self.attempts, 1)

    @property
    def text(self) -> str:
        """``3 of 20 attempts (15 %) ended as INFRA: 2 × the device is gone; 1 × it is full``."""
        reasons = "; ".join(f"{count} × {reason}" for reason, count in self.reasons)
        return f"{self.count} of {self.attempts} attempts ({percent(self.share)}) ended as INFRA: {reasons}"


class IntegrityView(View):
    """Integrity of one run."""

    run: str
    origin: Literal["measured", "modelled", "mixed", "none"]
    unscored: Unscored
    failed_at_hidden: int
    """Attempts that failed at a hidden size. Many at one task suggest that a Coder relies on the visible sizes."""
    counts: dict[Concern, int]
    """Count of every concern, including zeros."""
    rows: tuple[IntegrityRow, ...]


Doubt = tuple[Concern, str]


def integrity_view(records: RunRecords) -> IntegrityView:
    """Every attempt of a run with a concern: by concern, then in the run's order."""
    by_concern: dict[Concern, list[IntegrityRow]] = {concern: [] for concern in CONCERNS}
    for task in records.run.config.tasks:
        for attempt in records.of_task(task):
            for concern, detail in _doubts(attempt):
                by_concern[concern].append(
                    IntegrityRow(
                        attempt=attempt.id, task=task, concern=concern, detail=detail, scored=_is_scored(attempt)
                    )
                )
    return IntegrityView(
        run=records.run.id,
        origin=_origin(records),
        unscored=unscored(records.attempts),
        failed_at_hidden=sum(attempt.evaluation.failed_at_hidden for attempt in records.attempts),
        counts={concern: len(rows) for concern, rows in by_concern.items()},
        rows=tuple(row for rows in by_concern.values() for row in rows),
    )


def unscored(attempts: Sequence[Attempt]) -> Unscored:
    """Summary of the attempts that ended as ``INFRA``."""
    reasons = [attempt.evaluation.reason for attempt in attempts if attempt.evaluation.verdict is Verdict.INFRA]
    counts = Counter(one_line(_PARTICULAR.sub("", reason).strip() or reason, 160) for reason in reasons)
    return Unscored(
        count=len(reasons),
        attempts=len(attempts),
        reasons=tuple(counts.most_common(MOST_REASONS)),
        excessive=len(attempts) >= UNSCORED_LEAST and len(reasons) > UNSCORED_SHARE * len(attempts),
    )


def _origin(records: RunRecords) -> Literal["measured", "modelled", "mixed", "none"]:
    speeds = [attempt.evaluation.performance for attempt in records.attempts if not attempt.evaluation.passed_over]
    origins = {speed.origin for speed in speeds if speed is not None}
    if len(origins) > 1:
        return "mixed"
    return "none" if not origins else "measured" if Origin.MEASURED in origins else "modelled"


def _is_scored(attempt: Attempt) -> bool:
    speed = attempt.evaluation.performance
    return (speed is not None and speed.speedup is not None) or (attempt.reward.value or 0.0) > 0


def _doubts(attempt: Attempt) -> Iterator[Doubt]:
    evaluation = attempt.evaluation
    if evaluation.performance is not None and evaluation.performance.origin is Origin.MEASURED:
        yield from _timing_doubts(evaluation.performance)
    if evaluation.verdict is Verdict.POLICY:
        yield "policy", evaluation.reason
    if evaluation.fingerprint.jail == "none":
        yield "unconfined", "untrusted code ran without a jail"
    if evaluation.verdict is Verdict.INFRA:
        yield "infra", evaluation.reason
    if evaluation.passed_over:
        return  # by the user's choice
    if evaluation.uncompared and evaluation.correctness is not None:
        yield "uncompared", next(check.message for check in evaluation.correctness.sizes if check.status == "skipped")
    elif evaluation.verdict is Verdict.OK and evaluation.fingerprint.device_kind == "cuda":
        speed = evaluation.performance
        if speed is None:
            yield "untimed", "correct, and not timed"
        elif speed.speedup is None and speed.quarantined is None:
            yield "untimed", "timed against no baseline"


def _timing_doubts(speed: Performance) -> Iterator[Doubt]:
    timing = speed.timing
    if speed.quarantined is not None:
        yield "quarantined", speed.quarantined
    if timing is not None and timing.host is not None and not timing.host.agrees:
        host = timing.host
        yield "clocks-disagree", f"{host.events_us:.4g} µs by events, {host.slope_us:.4g} µs by the parent's clock"
    if timing is not None and timing.clocks is not None and timing.clocks.throttled:
        yield "throttled", ", ".join(timing.clocks.throttled)
    if timing is not None and not timing.settled:
        yield "unsettled", f"not as narrow as asked for within {timing.budget_s:g} s"
    if speed.interval_us is not None:
        low, high = speed.interval_us
        width = (high - low) / speed.time_us
        if width > HIGH_VARIANCE:
            yield "high-variance", f"{low:.4g} to {high:.4g} µs: {width:.1%} of {speed.time_us:.4g} µs"
