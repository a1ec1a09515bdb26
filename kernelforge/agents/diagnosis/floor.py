"""Whether a candidate is near enough to the floor under its task's time for a search to stop."""

from __future__ import annotations

from kernelforge.agents.base import TaskContext
from kernelforge.profiling.floor import attainable_us
from kernelforge.records import Attempt

NEAR = 1.1
"""A Judge's ``stop`` counts where the time is at most this multiple of the floor."""


def reason_to_go_on(context: TaskContext, attempt: Attempt) -> str:
    """Reason why a search does not end at an attempt, for a Judge that says ``stop``; empty where it may end."""
    performance, profile = attempt.evaluation.performance, attempt.profile
    if performance is not None and performance.quarantined is None:
        time_us = performance.time_us
    elif profile is not None:
        time_us = profile.roofline.time_us
    else:
        return "the candidate has no time that is believed, so nothing shows that it is near the floor"
    floor_us = attainable_us(context.spec, context.facts.at("full"))
    if time_us <= NEAR * floor_us:
        return ""
    return (
        f"the candidate takes {time_us:,.4g} us, {time_us / floor_us:.2f}x the {floor_us:,.4g} us that its bytes or "
        f"operations and a launch take at least, and a search stops at {NEAR:.2g}x"
    )
