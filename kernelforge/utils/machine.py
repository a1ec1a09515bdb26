"""Memory and processors of this machine."""

from __future__ import annotations

import os


def installed_memory_bytes() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))
