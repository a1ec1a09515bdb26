"""Results of ``kernelforge doctor``'s checks, and probes in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

_PROBE_S = 120.0


@dataclass(frozen=True)
class Stage:
    """Result of one stage. Runs work without a stage that is a ``note``; after a problem no stage is tried."""

    name: str
    status: Literal["ok", "note", "problem", "not tried"]
    detail: str = ""
    advice: str = ""
    """What to do about it; empty when nothing needs doing."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Check:
    """Result of one check. A ``problem`` prevents runs on this machine; a ``note`` does not."""

    name: str
    status: Literal["ok", "note", "problem"]
    detail: str
    advice: str = ""
    """What to do about it; empty when nothing needs doing."""
    stages: tuple[Stage, ...] = ()
    """Stages of a check that tries a device."""


@dataclass(frozen=True)
class ProbeResult:
    """Output of a probe, or the last line of its error."""

    ok: bool
    text: str
    late: bool = False
    """No answer in time: the probed package may be fine."""

    def advice(self, remedy: str) -> str:
        """``remedy``, or other advice when the probe was only too slow."""
        return LATE if self.late else remedy


LATE = (
    "possibly nothing is missing: try again when the machine has less load, and without libfaketime or similar tools, "
    "which shorten time limits"
)


def probe_python(script: str, *, timeout_s: float = _PROBE_S) -> ProbeResult:
    """Run a line of Python in another process of this environment."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(False, f"no answer in {timeout_s:g} s", late=True)
    if done.returncode == 0:
        return ProbeResult(True, done.stdout.strip())
    lines = done.stderr.strip().splitlines()
    return ProbeResult(False, lines[-1] if lines else f"it ended with code {done.returncode}")
