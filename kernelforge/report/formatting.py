"""Untrusted text made safe to show, and readable numbers; used by every format.

Sources, plans, prompts, replies and compiler messages come from models and from task files: on a terminal they must
not move the cursor, in Markdown not become markup, in a spreadsheet not become a formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime

ABSENT = "–"
"""What a table shows where there is no value. Never a zero."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_PLAIN = bytes((0x09, 0x0A, *range(0x20, 0x7F)))
_MARKDOWN = re.compile(r"[\\`*_\[\]|!#~$]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of formulas; in East Asian locales the wide forms of the first four are some too."""
_LONG = 1e15
"""Numbers from here on are written with an exponent."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def printable(text: str) -> str:
    r"""``text`` with control, bidirectional and invisible characters written out (``\x1b``); newlines and tabs stay."""
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        return text  # most texts: told fifteen times as fast as by the pattern
    return _CONTROL.sub(_written_out, text.replace("\r\n", "\n"))


def json_printable(text: str) -> str:
    r"""JSON that means the same, with those characters as ``\u009b``: a terminal may be where it goes."""
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
    """``text`` as one line of Markdown that shows itself and nothing else, also within a table."""
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(lambda match: "\\" + match[0], line)


def csv_text(text: str) -> str:
    """``text`` as a CSV field that no spreadsheet takes for a formula."""
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


def percent(value: float | None) -> str:
    """A fraction as a whole percentage."""
    return ABSENT if value is None else f"{100 * value:.0f} %" if abs(value) < _LONG else f"{100 * value:.4g} %"


def fine_percent(value: float | None) -> str:
    """A fraction as a percentage with one digit behind the point: ``97.3 %``."""
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
    """An ISO 8601 time as people write it: ``2026-11-20 10:00:00 UTC``; what is none as it is."""
    try:
        at = datetime.fromisoformat(when)
    except ValueError:
        return when
    return when if at.tzinfo is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(seconds: float) -> str:
    """Time that is running, in whole seconds: ``12 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if not math.isfinite(seconds):
        return str(seconds)
    whole = int(max(seconds, 0))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
