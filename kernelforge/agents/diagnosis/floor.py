"""Whether a candidate is near enough to the floor under its task's time for a search to stop."""

from __future__ import annotations

from kernelforge.agents.base import TaskContext
from kernelforge.profiling.floor import attainable_us
from kernelforge.records import Attempt

NEAR = 1.1
"""A Judge's ``stop`` counts where the time is at most this multiple of the floor."""


def headroom(attempt: Attempt | None, floor_us: float) -> float | None:
    """An attempt's time as a multiple of the floor; None where no time is believed, or the full size was not compared,
    where a kernel may do nothing."""
    if attempt is None or attempt.evaluation.uncompared:
        return None
    time_us = _believed_us(attempt)
    return None if time_us is None else time_us / floor_us


def reason_to_go_on(context: TaskContext, attempt: Attempt) -> str:
    """Reason why a search does not end at an attempt, for a Judge that says ``stop``; empty where it may end."""
    time_us = _believed_us(attempt)
    if time_us is None:
        return "the candidate has no time that is believed, so nothing shows that it is near the floor"
    floor_us = attainable_us(context.spec, context.facts.at("full"))
    if time_us <= NEAR * floor_us:
        return ""
    return (
        f"the candidate takes {time_us:,.4g} us, {time_us / floor_us:.2f}x the {floor_us:,.4g} us that its bytes or "
        f"operations and a launch take at least, and a search stops at {NEAR:.2g}x"
    )


def _believed_us(attempt: Attempt) -> float | None:
    """The time of an attempt, or that of its profile where the time is quarantined; None where there is neither."""
    performance, profile = attempt.evaluation.performance, attempt.profile
    if performance is not None and performance.quarantined is None:
        return performance.time_us
    return None if profile is None else profile.roofline.time_us
