"""Untrusted text in a prompt: cleaned, shortened and fenced."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, zip_longest
from typing import Any

from kernelforge.records import TensorSpec

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_FENCES = re.compile(r"`{3,}")


def clean(text: str) -> str:
    """``text`` without terminal sequences, control, bidirectional and invisible characters, and lone surrogates."""
    return _UNSEEN.sub("", _ANSI.sub("", text.replace("\r\n", "\n")))


def clipped(text: str, limit: int) -> str:
    """``text`` within ``limit`` characters or so: two thirds from its start, one from its end, whole lines if possible.

    A line in the middle says how much was left out.
    """
    if len(text) <= limit:
        return text
    head, tail = text[: 2 * limit // 3], text[len(text) - limit // 3 :]
    head = head[: head.rfind("\n") + 1] or head
    tail = tail[tail.find("\n") + 1 :] or tail
    left_out = len(text) - len(head) - len(tail)
    return f"{head.rstrip()}\n[... {left_out:,} characters are left out here ...]\n{tail}"


def fenced(text: str, language: str, limit: int | None = None) -> str:
    """``text``, cleaned and cut to ``limit`` characters, as a fenced block that nothing inside it can close."""
    inside = clean(text).rstrip()
    if limit is not None:
        inside = clipped(inside, limit)
    longest = max((len(run) for run in _FENCES.findall(inside)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{inside}\n{fence}"


def inline(value: Any, limit: int = 120) -> str:
    """A name or a value that others wrote, within a line of ours: no line break, no backtick, not long."""
    text = " ".join(clean(str(value)).split()).replace("`", "'")
    return text if len(text) <= limit else text[: limit - 1] + "…"


def scaled(number: int, unit: str) -> str:
    """``number`` to four digits with a decimal prefix: ``6.31 MB``."""
    value, prefixes = float(number), iter("kMGTP")
    prefix = ""
    while value >= 999.95:
        value, prefix = value / 1000, next(prefixes)
    return f"{value:.4g} {prefix}{unit}"


def tensors(
    specs: Sequence[TensorSpec | int | float | bool | None],
    like: Sequence[TensorSpec | int | float | bool | None] = (),
) -> str:
    """Shapes and dtypes in one line: ``float32[64, 1024]``; strides where a tensor is not contiguous.

    Equal ones, one after another, are counted: ``2 x float32[64, 1024]``. One that has the dtype of its counterpart in
    ``like`` is its shape alone.
    """
    parts = []
    for spec, other in zip_longest(specs, like[: len(specs)]):
        if not isinstance(spec, TensorSpec):
            parts.append(str(spec))
            continue
        strides = "" if spec.is_contiguous else f" (strides {', '.join(map(str, spec.stride))})"
        dtype = "" if isinstance(other, TensorSpec) and other.dtype == spec.dtype else spec.dtype
        parts.append(f"{dtype}[{', '.join(map(str, spec.shape))}]{strides}")
    runs = [(text, len(list(equal))) for text, equal in groupby(parts)]
    return "; ".join(text if count == 1 else f"{count} x {text}" for text, count in runs) or "none"
