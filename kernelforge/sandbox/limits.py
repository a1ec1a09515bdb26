"""Resource limits of a confined child, its exit report, and the deadline of a run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from signal import SIGKILL
from typing import Literal


@dataclass(frozen=True)
class Limits:
    """Limits of one child. Memory counts beyond that of its warm zygote."""

    wall_s: float = 60.0
    """Longest wait for one reply (:meth:`Child.call`); then the parent kills the child."""
    cpu_s: float = 60.0
    """CPU time of the child, all threads together; rounded up to seconds."""
    memory_bytes: int = 2 << 30
    tmp_bytes: int = 64 << 20
    """Size of the private ``/tmp``."""
    processes: int = 1
    """Threads of the child; a role may add some. Roles with ``programs`` may have processes as well.

    Not enforced for an unprivileged user without namespaces, whose other processes would count as well.
    """
    file_bytes: int = 64 << 20
    """Largest file; at least ``reply_bytes`` in roles with a GPU, whose replies are memory files."""
    reply_bytes: int = 8 << 30
    """Largest sum of blobs in one reply."""


@dataclass(frozen=True)
class ExitReport:
    """Cause of a child's end. ``killed`` means by its parent; ``memory`` is certain or, for SIGKILL, most likely."""

    cause: Literal["exit", "signal", "memory", "cpu", "disk", "killed"]
    exit_code: int | None = None
    signal: int | None = None
    max_rss_bytes: int | None = None
    cpu_s: float | None = None

    @property
    def may_be_foreign(self) -> bool:
        """Whether another process may have ended the child, such as the kernel when memory runs out."""
        return self.signal == SIGKILL and self.cause in ("signal", "memory")

    def __str__(self) -> str:
        match self.cause:
            case "exit":
                return f"exit code {self.exit_code}"
            case "signal":
                return f"signal {self.signal}"
            case "memory":
                return "out of memory"
            case "cpu":
                return "out of CPU time"
            case "disk":
                return "out of temporary space"
            case "killed":
                return "killed by its parent"


PATIENCE = 5.0
"""Largest wall-clock time of a run that does not get the CPU, as a multiple of its limit."""


class Deadline:
    """The end of a run: ``seconds`` from now by the wall clock and by this process's CPU time, the later of both.

    On a busy machine a limit by the wall clock alone would end runs that are not slow.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    def remaining(self) -> float:
        """Guaranteed seconds until the end of the run; 0 at its end."""
        wall, cpu = time.monotonic() - self._wall, time.process_time() - self._cpu
        return max(min(self._seconds - min(wall, cpu), PATIENCE * self._seconds - wall), 0.0)
