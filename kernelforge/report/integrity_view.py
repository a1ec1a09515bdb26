"""What stands between a number and belief: times that are quarantined or vary, gates that were hit, missing jails."""

from __future__ import annotations

from typing import Literal

from kernelforge.report.summary import View

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
]
"""``quarantined``: a time that is not believed (below the floor, or the clocks disagree), unscored. ``unsettled``: the
interval of the ratio did not become as narrow as asked for. ``high-variance``: relative interval above
:data:`HIGH_VARIANCE`. ``policy``: the candidate did what no candidate may. ``untimed``: correct, on a device that
measures, and without a speedup."""

HIGH_VARIANCE = 0.05
"""Width of a time's interval, relative to the time, above which it is listed."""


class IntegrityRow(View):
    """One attempt that gives cause for concern."""

    attempt: str
    task: str
    concern: Concern
    detail: str
    scored: bool
    """Whether it still counts for a speedup or a reward."""


class IntegrityView(View):
    """Integrity of one run."""

    run: str
    origin: Literal["measured", "modelled", "mixed", "none"]
    counts: dict[Concern, int]
    """Every concern, zero included."""
    rows: tuple[IntegrityRow, ...]
