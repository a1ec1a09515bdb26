"""A kernel that never ends is stopped by the launch's budgets, for every kind of loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelforge.sandbox.policy import Deadline
from tests.devices.emulated.harness import Device, cuda, ptx_module

BUDGETS: dict[str, Callable[[], dict[str, Any]]] = {
    "instructions": lambda: {"max_warp_work": 100_000},
    "deadline": lambda: {"deadline": Deadline(0.2)},
}

LOOPS = {
    "plain": "LOOP: add.u32 %r2, %r2, 1; bra LOOP;",
    "every edge of the loop splits the warp": """
        mov.u32 %r1, %tid.x;
        setp.ne.u32 %p1, %r1, 0;
        bra TAIL;
        HEAD: @%p1 bra HEAD;
        TAIL: bra HEAD;
    """,
    "barrier": "LOOP: bar.sync 0; bra LOOP;",
    "arrival that no warp waits for": "LOOP: bar.arrive 1, 64; bra LOOP;",
    "barrier reduction": "LOOP: setp.eq.u32 %p2, %r1, %r1; bar.red.popc.u32 %r2, 0, %p2; bra LOOP;",
    "branch table": """
        mov.u32 %r1, %tid.x;
        and.b32 %r1, %r1, 1;
        bra TAIL;
        TABLE: .branchtargets HEAD, TAIL;
        HEAD: brx.idx %r1, TABLE;
        TAIL: bra HEAD;
    """,
    "lanes take turns": """
        mov.u32 %r1, %tid.x;
        LOOP: and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; add.u32 %r1, %r1, 1;
        @%p1 bra LOOP;
        bra LOOP;
    """,
    "lock that is never released": """
        ld.param.u64 %d1, [out];
        LOOP: atom.global.cas.b32 %r1, [%d1], 7, 8; setp.ne.u32 %p1, %r1, 7; @%p1 bra LOOP;
    """,
    "flag that no block sets": """
        ld.param.u64 %d1, [out];
        LOOP: ld.volatile.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; bar.sync 0; @%p1 bra LOOP;
    """,
}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("loop", LOOPS)
def test_an_endless_loop_times_out(loop: str, budget: str) -> None:
    device = Device(ptx_module(LOOPS[loop]))
    report = device.run(3, 64, np.zeros(1, np.uint32), clean=False, **BUDGETS[budget]())
    assert [f.kind for f in report.faults] == ["timeout"]


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_endless_row_of_tiny_blocks_times_out(budget: str) -> None:
    device = Device(ptx_module("mov.u32 %r1, 1;"))
    report = device.run(2**31 - 1, 1, np.zeros(1, np.uint32), clean=False, **BUDGETS[budget]())
    assert [f.kind for f in report.faults] == ["timeout"]


def test_the_instruction_budget_stops_at_the_same_place_every_time() -> None:
    source = """
    extern "C" __global__ void k(volatile int* y) {
      for (int i = 0; ; i++) { y[threadIdx.x] = i; __syncthreads(); }
    }"""
    seen = set()
    for _ in range(2):
        y = np.zeros(64, np.int32)
        report = cuda(source).run(1, 64, y, clean=False, max_warp_work=50_000)
        seen.add((y.tobytes(), report.warp_instructions))
    assert len(seen) == 1
