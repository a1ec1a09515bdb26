"""Orders for engines, and the processes that they leave."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from kernelforge.records import Candidate
from kernelforge.workers.base import Engine, EvaluationOrder, Slot
from tests.support.axpy import KERNEL, PLAN, REFERENCE, axpy_task

WRONG = KERNEL.replace("2.0f", "2.5f")
BROKEN = KERNEL.replace("const float* y", "const flot* y")
FORBIDDEN = KERNEL.replace("if (i < n)", 'printf("hello"); if (i < n)')

SLOW_BUILD = KERNEL.replace(
    "    if (i < n)",
    """    float s = 0.0f;
    #pragma unroll
    for (int k = 0; k < 400; ++k) s += sinf(x[i % n] * k + y[(i + k) % n]);
    if (s == 12.5f) out[0] = s;
    if (i < n)""",
)
"""Half a minute of compiling."""

SLOW_RUN = KERNEL.replace(
    "    if (i < n)",
    """    volatile float* kept = out;
    for (int k = 0; i < n && k < 300000; ++k) kept[i] = kept[i] * 0.999f + x[i];
    if (i < n)""",
)
"""At 1024 rows, half a minute of memory accesses; each of them is allowed."""

WAIT_S = 240.0
"""For what must happen; nothing is timed by it."""
_numbers = itertools.count(1)


def order(source: str = KERNEL, *, profile: bool = False, rows: int = 64) -> EvaluationOrder:
    candidate = Candidate(source=source, plan=PLAN)
    task = axpy_task(REFERENCE.replace("ROWS = 64", f"ROWS = {rows}"))
    return EvaluationOrder(id=f"order-{next(_numbers)}", task=task, candidate=candidate, profile=profile)


def slow_run(remark: str = "") -> EvaluationOrder:
    """One that holds its slot for long. Remarks tell such orders apart."""
    return order(f"{SLOW_RUN}// {remark}\n", rows=1024)


def slow_build(remark: str = "") -> EvaluationOrder:
    """One that holds its compiler for long."""
    return order(f"{SLOW_BUILD}// {remark}\n")


def host_code(forward: str = "return 2 * x + y") -> EvaluationOrder:
    """One of lane ``modelnew``: a class with these lines in ``forward``."""
    text = f"import torch\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, y):\n        {forward}\n"
    return order().model_copy(update={"candidate": Candidate(source=text, plan="", lane="modelnew")})


async def until(holds: Callable[[], bool], *, timeout_s: float = WAIT_S) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.02)


async def idle_slot(engine: Engine) -> Slot:
    """A slot that is idle, waited for as the job service does."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for slot in engine.slots():
                if slot.state == "idle":
                    return slot
            await engine.changed()


async def cancelled(call: Awaitable[object], after_s: float) -> None:
    """Start a call, and cancel it while it is under way."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(after_s)
    assert not task.done(), task.result()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


def family_of(*pids: int) -> set[int]:
    """These processes and all their descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    family = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def running(pids: set[int]) -> set[int]:
    """Processes that have not ended and are no zombies."""
    alive = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            alive.add(pid)
    return alive


def all_gone(pids: set[int], timeout_s: float = 120.0) -> bool:
    """Whether all of them end in time."""
    end = time.monotonic() + timeout_s
    while running(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def own_workers() -> set[int]:
    """This process's own children that are workers of an engine."""
    return _own_children(b"kernelforge.workers.worker_main")


def own_oracle_hosts() -> set[int]:
    """This process's own children whose oracles the workers of an engine share."""
    return _own_children(b"kernelforge.evaluation.oracle.host")


def _own_children(module: bytes) -> set[int]:
    """This process's own children whose command line names a module."""
    pids = set()
    for pid in family_of(os.getpid()):
        try:
            if module in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.add(pid)
        except OSError:
            continue
    return pids
