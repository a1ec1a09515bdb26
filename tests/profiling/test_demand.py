"""Demand of a launch on an SM: by machine code, and by PTX where there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelforge.hardware.specs import H100, spec_by_key
from kernelforge.profiling.counts import KernelCounts, MemoryCounts
from kernelforge.profiling.demand import (
    BARRIER_WAIT_CYCLES,
    CONSTANT_CYCLES,
    Demand,
    machine_demand,
    ptx_demand,
    shared_wavefronts,
)
from kernelforge.profiling.model import kernel_occupancy, launch_time
from kernelforge.profiling.sass import MachineWork, SharedAccess
from kernelforge.profiling.sass_code import Control, SassInstruction, cut_into_blocks
from kernelforge.profiling.sass_schedule import Schedule

BLOCKS, THREADS = 132, 256
WARPS = BLOCKS * THREADS // 32


def counts(*memory: MemoryCounts, **changes: Any) -> KernelCounts:
    """Counts of one launch of a block for each SM."""
    kernel = KernelCounts("k", (BLOCKS, 1, 1), (THREADS, 1, 1), 0, 0, launches=1, blocks=BLOCKS, blocks_run=BLOCKS)
    return replace(kernel, memory=list(memory), warp_instructions=100.0 * WARPS, **changes)


def shared(line: int, requests: float, transactions: float, opcode: str = "ld.shared.f32") -> MemoryCounts:
    """An access of 4 bytes a thread to shared memory at a line of the PTX."""
    return MemoryCounts(line, 1, opcode, "shared", "load", 4, requests=requests, transactions=transactions)


def schedule(*instructions: tuple[str, Control], warps: float = WARPS) -> Schedule:
    """The schedule of warps that execute some instructions once."""
    code = [
        SassInstruction(16 * k, opcode, 0, predicated=False, conditional=False, ptx_line=1, control=control)
        for k, (opcode, control) in enumerate(instructions)
    ]
    return Schedule.of(cut_into_blocks("k", code), [warps], warps)


def control(stall: int, sets: int | None = None, waits: tuple[int, ...] = ()) -> Control:
    return Control(stall, yields=False, write_scoreboard=sets, read_scoreboard=None, waits=waits, reuse=0)


def work(*accesses: SharedAccess, **changes: Any) -> MachineWork:
    """Work of machine code with some accesses to shared memory."""
    base = MachineWork(
        instructions=10.0 * WARPS, opcodes={}, pipes={}, lines={}, integers_of_fma=0.0, exchanges=0.0,
        schedule=schedule(("EXIT", control(1))), shared=accesses,
    )  # fmt: skip
    return replace(base, **changes)


def demand(kernel: KernelCounts, code: MachineWork) -> Demand:
    return machine_demand(H100, kernel, kernel_occupancy(H100, kernel, 32), code)


def test_accesses_to_shared_memory_take_the_wavefronts_that_were_counted() -> None:
    kernel = counts(shared(5, 100, 3200))
    assert demand(kernel, work(SharedAccess(5, "LDS", 4, 100.0))).shared_wavefronts == 3200
    assert demand(kernel, work(SharedAccess(5, "LDS", 4, 25.0))).shared_wavefronts == 800


def test_an_access_that_no_thread_of_a_warp_makes_takes_a_wavefront() -> None:
    """An H100 counts them: a reduction whose short branches ptxas predicates executes each load in all warps."""
    kernel = counts(shared(5, 100, 200))
    assert demand(kernel, work(SharedAccess(5, "LDS", 4, 160.0))).shared_wavefronts == 200 + 60
    assert demand(kernel, work(SharedAccess(9, "LDS", 4, 40.0))).shared_wavefronts == 40


@pytest.mark.parametrize(("conflicts", "each"), [(1, 2), (4, 4)])
def test_an_access_that_ptxas_joined_takes_two_cycles_or_what_conflicts_took(conflicts: int, each: int) -> None:
    lines = [shared(line, 100, 100 * conflicts) for line in (5, 6, 7, 8)]
    assert demand(counts(*lines), work(SharedAccess(5, "LDS.128", 16, 100.0))).shared_wavefronts == 100 * each


def test_wavefronts_of_shared_memory_are_those_of_accesses_that_threads_make() -> None:
    """As Nsight Compute's ``memory_l1_wavefronts_shared``: without exchanges, and executions without a thread."""
    kernel = counts(shared(5, 100, 200), shared(6, 100, 100), shared(7, 10, 30, "atom.shared.add.u32"))
    code = work(SharedAccess(5, "LDS", 4, 160.0), SharedAccess(6, "LDS", 4, 50.0), exchanges=9.0)
    assert shared_wavefronts(kernel, code) == 200 + 50 + 30
    # ptxas joined the second with the first.
    assert shared_wavefronts(kernel, work(SharedAccess(5, "LDS.64", 8, 100.0))) == 200 + 30


def test_what_is_no_plain_access_counts_as_in_the_ptx() -> None:
    kernel = counts(
        shared(5, 10, 40, "ldmatrix.sync.aligned.m8n8.x4.shared.b16"), shared(6, 10, 20, "ld.f32"),
        shared(7, 10, 30, "atom.shared.add.u32"),
    )  # fmt: skip
    assert demand(kernel, work(SharedAccess(5, "LDSM.4", 16, 10.0), exchanges=7.0)).shared_wavefronts == 97


def test_the_busiest_pipe_counts_by_its_lanes() -> None:
    assert demand(counts(), work(pipes={"fma": 128.0, "alu": 32.0})).arithmetic_cycles == 32 * 128 / 128
    assert demand(counts(), work(pipes={"fma": 128.0}, integers_of_fma=128.0)).arithmetic_cycles == 32 * 128 / 64
    assert demand(counts(), work(pipes={"fma": 1.0, "xu": 16.0})).arithmetic_cycles == 32.0
    kernel = counts()
    slow = machine_demand(
        spec_by_key("rtx-3080"), kernel, kernel_occupancy(H100, kernel, 32), work(pipes={"fp64": 8.0})
    )
    assert slow.arithmetic_cycles == 32 * 8 / 2


def test_a_warp_waits_for_results_and_at_barriers() -> None:
    code = work(
        schedule=schedule(
            ("S2R", control(2, sets=0)),
            ("LDG", control(4, sets=1, waits=(0,))),
            ("FADD", control(5, waits=(1,))),
            ("EXIT", control(5)),
        )
    )
    kernel = counts(barriers=3.0 * BLOCKS, l1_read_sectors=10.0, l1_read_hits=10.0)
    alone = demand(kernel, code)
    assert alone.memory_wait_cycles == H100.l1_latency_cycles - 4
    assert alone.chain_cycles == 2 + 4 + 5 + 5 + CONSTANT_CYCLES - 2 + 3 * BARRIER_WAIT_CYCLES


def test_without_machine_code_the_ptx_is_translated() -> None:
    kernel = counts(shared(5, 100, 3200), mix={"fma.f32": (64.0 * WARPS, 2048.0 * WARPS)})
    occupied = kernel_occupancy(H100, kernel, 32)
    guessed = ptx_demand(H100, kernel, occupied)
    assert guessed.shared_wavefronts == 3200
    assert guessed.instructions == 71 * WARPS
    assert launch_time(H100, kernel, occupied).limits_us["issue"] == pytest.approx(
        guessed.instructions / 4 / 132 / H100.clock_hz * 1e6
    )


def test_units_inside_an_sm_hide_less_of_each_other_where_one_block_waits_at_barriers() -> None:
    code = work(pipes={"fma": 4e5}, instructions=4e5, exchanges=1e5)
    free, bound = counts(), counts(barriers=1e-6)
    occupied = kernel_occupancy(H100, free, 32)
    times = [launch_time(H100, kernel, occupied, code) for kernel in (free, bound)]
    assert times[0].limits_us == pytest.approx(times[1].limits_us)
    assert times[0].work_us < times[1].work_us < sum(times[0].limits_us.values())
