"""Shared by the sandbox tests: the hostile role, its limits, and a wait for the end of a process."""

import time
from pathlib import Path

from kernelforge.sandbox import Limits, RolePolicy

HOSTILE = RolePolicy(
    role="hostile",
    module="tests.sandbox.jail_worker",
    mounts=(),
    devices=(),
    headroom_bytes=128 << 20,
    environment={"DECLARED": "1"},
)
LIMITS = Limits(
    wall_s=120,
    cpu_s=60,
    memory_bytes=128 << 20,
    tmp_bytes=4 << 20,
    processes=8,
    file_bytes=2 << 20,
    reply_bytes=8 << 20,
)


def gone(pid, within_s=120.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def reachable_by_others(path: Path) -> bool:
    """Whether every folder above ``path`` lets another user through: a checkout may lie in a private one."""
    return all(outer.stat().st_mode & 0o001 for outer in path.resolve().parents)
