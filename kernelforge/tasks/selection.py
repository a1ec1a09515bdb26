"""Selection of tasks by the words of KernelBench's users: a name, ``1/23``, ``level1``, ``D*``, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from kernelforge.errors import UsageError

CUDAFORGE_SUBSET: dict[int, tuple[int, ...]] = {
    1: (7, 10, 13, 16, 29, 34, 35, 72, 89, 93),
    2: (3, 13, 17, 19, 21, 26, 28, 34, 38, 40),
    3: (5, 18, 21, 32, 41),
}
"""D*, the 25 tasks of KernelBench that CudaForge (arXiv 2511.01884) is measured on: problems by level."""

_PROBLEM = re.compile(r"(\d{1,3})/(\d{1,4})")
_LEVEL = re.compile(r"level_?(\d{1,3})")
_NUMBERED = re.compile(r"level(\d{1,3})_(\d{1,4})(?:_|$)")
_MOST_NAMES = 100


def selected_names(patterns: Sequence[str], names: Sequence[str], where: str) -> tuple[str, ...]:
    """Names that some pattern selects, each once: in the order of the patterns, and within one in that of ``names``.

    A pattern is a name, ``LEVEL/PROBLEM`` (``1/23``), ``levelN``, ``D*`` for CudaForge's 25 tasks, or has ``*``, ``?``
    or ``[...]`` for parts of names, as in a shell.

    Args:
        where: what has the names, for messages, such as ``suite 'core'``.

    Raises:
        UsageError: a pattern selects nothing.
    """
    selected: dict[str, None] = {}
    for pattern in patterns:
        matching = _matching(pattern, names)
        if not matching:
            raise no_such_task(pattern, names, where)
        selected.update(dict.fromkeys(matching))
    return tuple(selected)


def selected_in_suites(patterns: Sequence[str], names: Sequence[str], where: str) -> tuple[str, ...]:
    """Names of tasks of several suites, as ``core/softmax``, that some pattern selects, as :func:`selected_names`.

    A pattern that fits no such name is one of the part behind the suite; a bare name must then be that of one task.

    Args:
        where: what has the names, for messages.

    Raises:
        UsageError: a pattern selects nothing, or a bare name several tasks.
    """
    bare: dict[str, list[str]] = {}
    for name in names:
        bare.setdefault(name.partition("/")[2], []).append(name)
    selected: dict[str, None] = {}
    for pattern in patterns:
        if len(same := bare.get(pattern, ())) > 1:
            raise UsageError(f"{where} has several tasks '{pattern}'; name one: {', '.join(same)}")
        matching = _matching(pattern, names) or [name for part in _matching(pattern, list(bare)) for name in bare[part]]
        if not matching:
            raise no_such_task(pattern, names, where)
        selected.update(dict.fromkeys(matching))
    return tuple(selected)


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name == pattern] or [name for name in names if _matches(pattern, name)]


def _matches(pattern: str, name: str) -> bool:
    numbered = _NUMBERED.match(name)
    level, problem = (int(numbered[1]), int(numbered[2])) if numbered else (None, None)
    if pattern == "D*":
        return level is not None and problem in CUDAFORGE_SUBSET.get(level, ())
    if pair := _PROBLEM.fullmatch(pattern):
        return (level, problem) == (int(pair[1]), int(pair[2]))
    if whole_level := _LEVEL.fullmatch(pattern.lower()):
        return level == int(whole_level[1])
    return any(sign in pattern for sign in "*?[") and fnmatchcase(name, pattern)


def no_such_task(pattern: str, names: Sequence[str], where: str) -> UsageError:
    """The error that no name fits: the nearest names, and which there are."""
    close = get_close_matches(pattern.lower(), names, 3, 0.75)
    if not close:
        # A part of the name, such as `softmax` for level1_23_softmax.
        close = [name for name in names if len(pattern) > 2 and pattern.lower() in name][:3]
    listed = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    advice = f"; did you mean {' or '.join(close)}?" if close else ""
    return UsageError(f"{where} has no task '{pattern}'; it has: {listed}{more}{advice}")
