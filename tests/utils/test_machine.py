"""Memory and processors are those that the system reports."""

from __future__ import annotations

import os
from pathlib import Path

from kernelforge.utils.machine import installed_memory_bytes, usable_cpus


def test_the_memory_is_what_the_kernel_says() -> None:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    assert abs(installed_memory_bytes() - 1024 * int(line.split()[1])) <= os.sysconf("SC_PAGE_SIZE")


def test_processors_that_the_process_may_not_use_do_not_count() -> None:
    every = os.sched_getaffinity(0)
    assert usable_cpus() == len(every)
    os.sched_setaffinity(0, {min(every)})
    try:
        assert usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, every)
