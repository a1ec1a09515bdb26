"""Formatting for all outputs: safe display of untrusted text, readable numbers, one-line descriptions.

Sources, plans, prompts, replies and compiler messages come from models and task files. They must not move a terminal's
cursor, become markup in Markdown, or become a formula in a spreadsheet.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from kernelforge.records import (
    UNCOMPARED,
    Budget,
    Build,
    EnergyEstimate,
    Fingerprint,
    Forecast,
    LaunchQueue,
    Limits,
    PredictedSpeedup,
    Screening,
)

if TYPE_CHECKING:
    from kernelforge.prediction.correction import CardError

ABSENT = "–"
"""Cell of a table without a value. Never a zero."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_PLAIN = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
_MARKDOWN = re.compile(r"[\\`*_\[\]|!#~$]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of formulas; East Asian locales also accept the wide forms of the first four."""
_LONG = 1e15
"""Numbers from this value on are written with an exponent."""
_ENERGY_PARTS = 3
"""Parts of an energy that are named."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(text: str) -> str:
    r"""``text`` with control, bidirectional and invisible characters escaped (``\x1b``); newlines and tabs stay."""
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        return text  # most texts; fifteen times as fast as the pattern
    return _CONTROL.sub(_written_out, text.replace("\r\n", "\n"))


def json_printable(text: str) -> str:
    r"""Equivalent JSON with those characters as ``\u009b``, because it may be printed on a terminal."""
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def one_line(text: str, limit: int | None = None) -> str:
    """:func:`printable` on one line; cut at ``limit`` characters with an ellipsis."""
    line = " ".join(printable(text).split())
    return line if limit is None or len(line) <= limit else line[: limit - 1] + "…"


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def markdown(text: str) -> str:
    """``text`` as one line of Markdown without any markup, also within a table."""
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(lambda match: "\\" + match[0], line)


def csv_text(text: str) -> str:
    """``text`` as a CSV field that spreadsheets do not read as a formula."""
    safe = printable(text)
    return "'" + safe if safe.startswith(_FORMULA) else safe


def number(value: float | int | None) -> str:
    """Four significant digits; whole numbers, and those above ten thousand, in full with grouping."""
    if value is None:
        return ABSENT
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < _LONG):
        return f"{int(value):,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4g}" if abs(value) < 9_999.5 or abs(value) >= _LONG else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio: ``1.25x``."""
    if value is None:
        return ABSENT
    return f"{value:.2f}x" if value < 100 else f"{value:,.0f}x" if value < _LONG else f"{value:.4g}x"


def times_between(value: float, low: float, high: float) -> str:
    """A ratio with its interval: ``3.10x (2.40x to 4.00x)``."""
    return f"{times(value)} ({times(low)} to {times(high)})"


def predicted_speedup(value: PredictedSpeedup | None) -> str:
    """A predicted speedup with its 90 % interval."""
    return ABSENT if value is None else times_between(value.speedup, value.low, value.high)


def format_screening(screening: Screening) -> str:
    """Outcome on the emulated device in front of a GPU, in words."""
    if screening.outcome == "failed":
        return f"failed on {screening.device}; no GPU was used"
    if screening.outcome == "unsupported":
        return f"{screening.device} could not run it, so the GPU alone decided: {screening.message}"
    if screening.outcome == "infra":
        return f"{screening.device} was in trouble, so the GPU alone decided: {screening.message}"
    rank = screening.rank
    if rank is not None and screening.passed_over:
        return f"passed on {screening.device}; not measured: number {rank.position} of {rank.of} by predicted time"
    missing = f"; no time was predicted: {screening.message}" if screening.message else ""
    return f"passed on {screening.device}, before the GPU was used{missing}"


def format_energy(energy: EnergyEstimate) -> str:
    """An estimated energy with its range, its largest parts, and what it leaves out."""
    low, high = energy.interval_mj
    total = energy.millijoules
    largest = sorted((part for part in energy.parts if part.millijoules), key=lambda part: -part.millijoules)
    parts = ", ".join(f"{part.name} {percent(part.millijoules / total)}" for part in largest[:_ENERGY_PARTS])
    without = ", ".join(("instructions", "leakage", "clocks", *energy.omitted))
    return (
        f"{number(total)} mJ estimated, not measured, {number(low)} to {number(high)} by the published extremes"
        f"{f': {parts}' if parts else ''}; without {without}"
    )


def format_launches(queue: LaunchQueue) -> str:
    """Launch and queue time of a call of eager PyTorch, with what it is bound by."""
    kernels = "1 kernel waits" if queue.kernels == 1 else f"{queue.kernels:,} kernels wait"
    return (
        f"{queue.bound}-bound: {kernels} {number(queue.tklqt_us)} µs for launches and queue (TKLQT, {queue.origin}), "
        f"{number(queue.queue_us)} µs of it in the queue"
    )


def format_forecast(forecast: Forecast, measured_us: float | None = None) -> str:
    """A time that was predicted before the measurement, with its interval and its origin, and the error if known."""
    model = forecast.gpu if forecast.exact else f"{forecast.gpu}, the nearest known GPU"
    basis = f"{forecast.protocol} on {model}"
    if forecast.measured:
        basis += f", {number(forecast.modelled_us)} µs, times {forecast.factor:.2f} after {forecast.measured} measured"
    error = "" if measured_us is None else f"; measured is {times(measured_us / forecast.expected_us)} that"
    ends = f"{number(forecast.low_us)} to {number(forecast.high_us)}"
    return f"{number(forecast.expected_us)} µs ({ends}) by {basis}{error}"


def format_card_error(error: CardError) -> str:
    """Error of the time model on a GPU, and what follows from it, in words."""
    model = "" if error.exact else f", the nearest known GPU to {error.gpu}"
    of = f"{error.measured} measured at {error.tasks} task{'' if error.tasks == 1 else 's'}"
    return (
        f"on {error.gpu} measured is {times(error.median)} modelled (median of {of}; {times(error.low)} to "
        f"{times(error.high)}; {error.protocol} on {error.model}{model}); later predictions are multiplied by "
        f"{error.factor:.2f}"
    )


def percent(value: float | None) -> str:
    """A fraction as a whole percentage."""
    return ABSENT if value is None else f"{100 * value:.0f} %" if abs(value) < _LONG else f"{100 * value:.4g} %"


def fine_percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal: ``97.3 %``."""
    return ABSENT if value is None else f"{100 * value:.1f} %"


def change(value: float | None) -> str:
    """A relative change with its sign: ``-12.3 %``."""
    if value is None:
        return ABSENT
    return f"{100 * value:+.1f} %" if math.isfinite(value) else f"{value:+}"


def choices(values: Mapping[str, int]) -> str:
    """Values of ``# tune:`` names: ``BLOCK = 256, WIDTH = 4``."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def byte_count(value: float | None) -> str:
    """Bytes in decimal units: ``8.39 MB``."""
    if value is None:
        return ABSENT
    if not math.isfinite(value):
        return str(value)
    unit = 0
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def duration(seconds: float | None) -> str:
    """Wall time: ``0.84 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if seconds is None:
        return ABSENT
    if seconds < 60 or not math.isfinite(seconds):
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(when: str) -> str:
    """An ISO 8601 time as ``2026-11-20 10:00:00 UTC``; any other text unchanged."""
    try:
        at = datetime.fromisoformat(when)
    except ValueError:
        return when
    return when if at.tzinfo is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(seconds: float) -> str:
    """A running duration in whole seconds: ``12 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if not math.isfinite(seconds):
        return str(seconds)
    total = int(max(seconds, 0))
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


UNCOMPARED_MARK = "OK*"
"""Short form of :data:`~kernelforge.records.UNCOMPARED` for narrow columns; :data:`UNCOMPARED_NOTE` explains it.
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


def format_interval(interval: Interval, show: Callable[[float], str]) -> str:
    """``[12 %, 40 %]``."""
    return f"[{show(interval.low)}, {show(interval.high)}]"


EXCESSIVE = (
    "so many attempts without a score are a fault of this machine, or a Coder that writes what the device lacks; "
    "read the reasons, fix their causes, and do not train on this run before"
)
"""Advice where :attr:`~kernelforge.report.views.integrity.Unscored.excessive` is set."""


def format_budget(budget: Budget) -> str:
    """The limits that are set."""
    rounds = [] if budget.rounds is None else [f"{budget.rounds} rounds a task"]
    each = format_limits(budget.per_task)
    return (", ".join(rounds + format_limits(budget)) or "no limit for the run") + (
        f"; for each task {', '.join(each)}" if each else ""
    )


def format_limits(limits: Limits) -> list[str]:
    """One part per limit that is set."""
    return [
        *([] if limits.evaluations is None else [f"{limits.evaluations} evaluations"]),
        *([] if limits.tokens is None else [f"{limits.tokens:,} tokens"]),
        *([] if limits.dollars is None else [f"${limits.dollars:g}"]),
        *([] if limits.wall_seconds is None else [f"{duration(limits.wall_seconds)} wall time"]),
    ]


def format_dollars(dollars: float | None) -> str:
    """``$0.0312``, to the hundredth of a cent."""
    return ABSENT if dollars is None else f"${dollars:,.4f}" if dollars < 100 else f"${dollars:,.2f}"


def format_fingerprint(fingerprint: Fingerprint, build: Build | None = None) -> str:
    """Device, toolchain and jail. A build names the toolchain that made it, which of a Triton candidate is Triton."""
    hardware = (
        "" if fingerprint.gpu is None else f" ({fingerprint.gpu}, driver {fingerprint.driver}, {fingerprint.runtime})"
    )
    toolchain = fingerprint.toolchain if build is None else build.toolchain
    return f"{fingerprint.device}{hardware}, {toolchain}, jail {fingerprint.jail}"


def format_note(note: str) -> str:
    """Reason for accepting or rejecting an attempt, without the redundant first words."""
    return _EXPONENT.sub(_in_words, note.removeprefix("not accepted: ").removeprefix("accepted: "))


def _in_words(match: re.Match[str]) -> str:
    """``1.25829e+07``, as notes hold large counters, as ``12.58 M``."""
    value = float(match[0])
    scale, unit = next(((scale, unit) for scale, unit in _SCALES if value >= scale), (1.0, ""))
    return f"{value / scale:.4g} {unit}".rstrip()


def format_timings(timings: Mapping[str, float]) -> str:
    """Duration of each part of an evaluation."""
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in timings.items())
