"""A run while it goes on: what was spent of which budget, what every worker is at, and what was gained lately."""

from __future__ import annotations

from typing import Literal

from kernelforge.report.summary import View


class BudgetBar(View):
    """One limit of the run with what was spent of it."""

    name: Literal["tasks", "evaluations", "seconds", "tokens", "dollars"]
    spent: float
    limit: float | None
    """None: no limit is set."""


class Lane(View):
    """One worker of a device: the task that it is at."""

    device: str
    slot: int
    """Position among the device's lanes, from 0."""
    task: str | None
    """None: idle."""
    round: int
    stage: str
    since: str
    """UTC, ISO 8601: when the stage began."""
    stalled_after_s: float
    """After how long in this stage a reader should say that it stalls."""


class Gain(View):
    """An attempt that became its task's best."""

    attempt: str
    task: str
    step: str
    standing: str
    """How good it is, in a few words."""
    at: str


class ProgressView(View):
    """State of a live run. Times are points in time, so that a reader can let clocks run on."""

    run: str
    state: Literal["running", "stopping", "finished", "stopped", "failed"]
    started: str
    updated: str
    pid: int
    bars: tuple[BudgetBar, ...]
    lanes: tuple[Lane, ...]
    funnel: dict[str, int]
    """Attempts that came through each step, in order."""
    gains: tuple[Gain, ...]
    """The latest five, newest first."""
    error: str
    """The last warning, on one line; empty for none."""
