"""What ncu says when it cannot do what it is asked: denied counters, a missing driver, nothing profiled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Problem = Literal["denied", "no driver", "nothing profiled", "metric", "other"]

DENIED = (
    "the driver denies performance counters to this user (ERR_NVGPUCTRPERM); as administrator, load the driver with "
    "NVreg_RestrictProfilingToAdminUsers=0 (a line 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' under "
    "/etc/modprobe.d, then reboot), or run as root or with CAP_SYS_ADMIN; in a container the host decides"
)

_KNOWN: tuple[tuple[str, Problem], ...] = (
    (r"ERR_NVGPUCTRPERM", "denied"),
    (r"failed to connect to the CUDA driver|LibraryNotLoaded|Failed to initialize the profiler", "no driver"),
    (r"(Failed to find|invalid|not supported|could not be collected).*\bmetric|metric.*\b(not|in)valid", "metric"),
    (r"No kernels were profiled", "nothing profiled"),
)
_MAX_LINE = 1000
_LINE = re.compile(r"^==(ERROR|WARNING)== *(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Trouble:
    """Why there is no profile."""

    problem: Problem
    message: str
    """For people: what happened and what to do."""


def trouble(log: str) -> Trouble | None:
    """What went wrong, from ncu's log; None where it reports no error."""
    lines = [line[:_MAX_LINE] for line in log.splitlines()]
    for pattern, problem in _KNOWN:
        if any(re.search(pattern, line, re.IGNORECASE) for line in lines):
            return Trouble(problem, DENIED if problem == "denied" else _said(log))
    return Trouble("other", _said(log)) if "==ERROR==" in log else None


def _said(log: str, limit: int = 400) -> str:
    lines = [match[2].strip() for match in _LINE.finditer(log)]
    return "; ".join(dict.fromkeys(lines))[:limit] or log.strip()[:limit]
