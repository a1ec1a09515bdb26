"""One-line descriptions of parts of views, shared by all outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import ABSENT, duration, percent

if TYPE_CHECKING:
    from kernelforge.records import Budget, Fingerprint, Limits
    from kernelforge.report.views.board import Verified
    from kernelforge.report.views.cost import Cost
    from kernelforge.report.views.integrity import Unscored


UNCOMPARED_MARK = "OK*"
"""Stands for :data:`~kernelforge.records.UNCOMPARED` where there is little room; :data:`UNCOMPARED_NOTE` goes with it.
"""
UNCOMPARED_NOTE = "* full size not compared: not counted as correct, no reward"

_EXPONENT = re.compile(r"\b\d\.\d+e\+(?:0\d|1[0-4])\b")
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


class Interval(Protocol):
    """Anything with the ends of an interval."""

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


def short_outcome(outcome: str | None) -> str:
    """An outcome for a narrow column."""
    return ABSENT if outcome is None else UNCOMPARED_MARK if outcome == UNCOMPARED else outcome


def interval_words(interval: Interval, show: Callable[[float], str]) -> str:
    """``[12 %, 40 %]``."""
    return f"[{show(interval.low)}, {show(interval.high)}]"


def unscored_words(unscored: Unscored) -> str:
    """``3 of 20 attempts (15 %) have no score: 2 the device is gone, 1 it is full``."""
    reasons = "; ".join(f"{count} × {reason}" for reason, count in unscored.reasons)
    return f"{unscored.count} of {unscored.attempts} attempts ({percent(unscored.share)}) ended as INFRA: {reasons}"


EXCESSIVE = (
    "so many attempts without a score are a fault of this machine, or a Coder that writes what the device lacks; "
    "read the reasons, mend what they name, and do not train on this run before"
)
"""What to do where :attr:`~kernelforge.report.views.integrity.Unscored.excessive` is set."""


def budget_words(budget: Budget) -> str:
    """The limits that are set."""
    rounds = [] if budget.rounds is None else [f"{budget.rounds} rounds a task"]
    each = limit_words(budget.per_task)
    return (", ".join(rounds + limit_words(budget)) or "no limit for the run") + (
        f"; for each task {', '.join(each)}" if each else ""
    )


def limit_words(limits: Limits) -> list[str]:
    """One part per limit that is set."""
    return [
        *([] if limits.evaluations is None else [f"{limits.evaluations} evaluations"]),
        *([] if limits.tokens is None else [f"{limits.tokens:,} tokens"]),
        *([] if limits.dollars is None else [f"${limits.dollars:g}"]),
        *([] if limits.wall_seconds is None else [f"{duration(limits.wall_seconds)} wall time"]),
    ]


def dollar_words(dollars: float | None) -> str:
    """``$0.0312``, to the hundredth of a cent."""
    return ABSENT if dollars is None else f"${dollars:,.4f}" if dollars < 100 else f"${dollars:,.2f}"


def cost_words(cost: Cost) -> str:
    """Calls, tokens and dollars."""
    cached = "" if not cost.cached_tokens else f" ({cost.cached_tokens:,} cached)"
    tokens = (
        "tokens unknown"
        if cost.input_tokens is None or cost.output_tokens is None
        else f"{cost.input_tokens:,} tokens in{cached}, {cost.output_tokens:,} out"
    )
    dollars = "dollars unknown" if cost.dollars is None else dollar_words(cost.dollars)
    return f"{cost.calls} calls, {tokens}, {dollars}, {duration(cost.seconds)}"


def where_words(fingerprint: Fingerprint) -> str:
    """Device, toolchain and jail."""
    hardware = (
        "" if fingerprint.gpu is None else f" ({fingerprint.gpu}, driver {fingerprint.driver}, {fingerprint.runtime})"
    )
    return f"{fingerprint.device}{hardware}, {fingerprint.toolchain}, jail {fingerprint.jail}"


def note_words(note: str) -> str:
    """Why an attempt was or was not accepted, without the word that is shown before it anyway."""
    return _EXPONENT.sub(_in_words, note.removeprefix("not accepted: ").removeprefix("accepted: "))


def _in_words(match: re.Match[str]) -> str:
    """``1.25829e+07``, as notes hold large counters, as ``12.58 M``."""
    value = float(match[0])
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if value >= scale), (1.0, ""))
    return f"{value / scale:.4g} {unit}".rstrip()


def timing_words(timings: Mapping[str, float]) -> str:
    """How long each part of an evaluation took."""
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in timings.items())


def verified_words(found: Verified | None) -> str:
    """What a verification of a submitted result came to."""
    if found is None:
        return "not verified"
    agrees = "everything that was checked agrees" if found.agree else "something DIFFERS"
    return f"{found.rerun} of {found.tasks} tasks evaluated again, {agrees}; {found.by}, {found.when}"
