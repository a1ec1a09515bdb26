"""Demand of a launch on an SM: instructions, pipes, shared memory, and the chain of one warp alone.

Two sources give it. Machine code says what the GPU executes (:func:`machine_demand`); where there is none, PTX is
translated roughly (:func:`ptx_demand`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from kernelforge.hardware.occupancy import Occupancy
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import (
    KernelCounts,
    MemoryCounts,
    by_class,
    instruction_class,
    integer_divisions,
    matrix_instructions,
)
from kernelforge.profiling.sass import MachineWork
from kernelforge.profiling.sass_schedule import Latencies

LOADS_IN_FLIGHT = 4
"""Loads of a warp that wait together at most, where no machine code says how many do."""
CYCLES_PER_INSTRUCTION = 2.0
"""Of a warp alone, of PTX: a result is ready after 4 (Jia et al., 2018), and half of the instructions wait for one."""

# From launches on an H100 (results/reference/h100/ladder.jsonl).
BARRIER_CYCLES = 17.0
"""Of one warp alone, of PTX (ladder barrier)."""
BARRIER_WAIT_CYCLES = 6.0
"""The same beyond the stall counts of the instructions around it (ladder barrier)."""
PRODUCT_CYCLES = 6.5
"""What a matrix product takes a warp alone, more than the cycles of any instruction of the PTX (ladder units:
``loop_mma_1``)."""
DRAM_WAIT = 1.2
"""Latency of the DRAM over that of a chain of single loads, where all SMs load (ladders occupancy and latency)."""
LOAD_INTERVAL_CYCLES = 30.0
"""From one load of a warp to the next that is in flight with it (ladder occupancy)."""

SPECIAL_CYCLES = 20.0
"""Latency of the special functions, and of other units of variable latency: 18 to 23 (Abdelkhalik et al., 2022)."""
CONSTANT_CYCLES = 30.0
"""Latency of constants and special registers that an instruction reads to a register. An estimate that is fitted to
nothing: an RTX 3070 takes 14 cycles for a hit and 78 for a miss (github.com/mushihao/cuda, nv_study), an RTX 2070 62
from the second level (github.com/sjfeng1999/gpu-arch-microbenchmark). With 15 or 60 no error of the published times
changes by 1 %."""
BYTES_PER_SHARED_CYCLE = 8
"""Of each thread: an access of 16 bytes takes two cycles even where all threads read one address (ladder matmul:
``matmul_column`` and ``matmul_vectors``)."""

PROLOGUE = 7.0
"""Machine instructions of a warp that no PTX instruction stands for: it reads its indices and its arguments."""

SHARED_BYTES_PER_CYCLE = 128
"""Width of shared memory: 32 banks of 4 bytes."""


class Division(NamedTuple):
    """Machine instructions of one division of PTX, all and by pipe; the others are branches."""

    instructions: float
    alu: float
    fma: float
    xu: float


DIVISION_OF_FLOATS = Division(11, 1, 5, 2)
DIVISION_OF_INTEGERS = {32: Division(23, 10, 10, 3), 64: Division(70, 32, 32, 3)}
"""By width in bits. Floats, and 32 bits with a sign, are what that H100 executed for each division of
``results/reference/h100/ladder.jsonl`` (ladder units: ``loop_div32``, and ``loop_div_int`` less its sum and its logic);
64 bits are the call, and the subroutine, that ptxas makes of ``div.u64`` for compute capability 9."""


@dataclass(frozen=True)
class Demand:
    """Work of all launches in some counts, as if one SM did it, and the time that one warp alone would take."""

    instructions: float
    """Warp instructions that are issued."""
    arithmetic_cycles: float
    """Of the busiest arithmetic pipe."""
    shared_wavefronts: float
    """Cycles of the data path for shared memory and exchanges between lanes."""
    memory_wait_cycles: float
    """Of one warp, for global and local memory."""
    chain_cycles: float
    """Of one warp, for everything else: its instructions, shared memory, barriers."""


def machine_demand(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy, work: MachineWork) -> Demand:
    """The demand of a kernel's machine code."""
    pipes = work.pipes
    arithmetic = max(
        pipes.get("fma", 0.0) / spec.fp32_lanes_per_sm,
        work.integers_of_fma / spec.int32_lanes_per_sm,
        pipes.get("alu", 0.0) / spec.int32_lanes_per_sm,
        pipes.get("fp64", 0.0) / spec.fp64_lanes_per_sm,
        pipes.get("xu", 0.0) / spec.special_lanes_per_sm,
    )
    latencies = Latencies(
        memory=_load_latency(spec, counts),
        shared=spec.shared_latency_cycles,
        special=SPECIAL_CYCLES,
        constant=CONSTANT_CYCLES,
        memory_interval=LOAD_INTERVAL_CYCLES * (1 - _share_in_l1(counts)),
    )
    # Warps that leave early make room for the next block; in one wave the time is that of those that stay.
    one_wave = math.prod(counts.grid) <= occupied.blocks_per_sm * spec.sm_count
    chain = work.schedule.chain(latencies, last=one_wave)
    barriers = counts.barriers / (math.prod(counts.grid) * counts.launches)
    # At each barrier a block waits for the warp that has most to do, if only one reads.
    shared = max(chain.shared, min(barriers * spec.shared_latency_cycles, chain.shared * occupied.warps_per_block))
    return Demand(
        instructions=work.instructions,
        arithmetic_cycles=spec.warp_size * arithmetic,
        shared_wavefronts=shared_wavefronts(counts, work)
        + _without_threads(counts, work)
        + work.exchanges
        + _operand_wavefronts(counts),
        memory_wait_cycles=chain.memory,
        chain_cycles=chain.issue + shared + chain.special + chain.constant + barriers * BARRIER_WAIT_CYCLES,
    )


def shared_wavefronts(counts: KernelCounts, work: MachineWork) -> float:
    """Wavefronts of shared memory as the machine accesses it.

    An access takes as many as the PTX's at its line. One that ptxas made of several at neighbouring addresses takes one
    for each 8 bytes of a thread, or as many as there were: threads at different addresses had conflicts before, which
    are those. Those that it took out of a loop are fewer.
    """
    accesses = _accesses_by_line(work)
    total = 0.0
    for op in counts.select("shared"):
        if not _is_plain(op):
            total += op.transactions
        elif op.requests and op.ptx_line in accesses:
            executed, width = accesses[op.ptx_line]
            each = op.transactions / op.requests
            if width > op.bytes_per_thread:
                total += executed * max(width / BYTES_PER_SHARED_CYCLE, each)
            else:
                total += min(executed, op.requests) * each
    return total


def _without_threads(counts: KernelCounts, work: MachineWork) -> float:
    """Accesses to shared memory that no thread of a warp makes: each takes a cycle of the data path."""
    counted = {op.ptx_line: op for op in counts.select("shared") if _is_plain(op) and op.requests}
    total = 0.0
    for line, (executed, width) in _accesses_by_line(work).items():
        op = counted.get(line)
        if op is None:
            total += executed
        elif width <= op.bytes_per_thread:
            total += max(executed - op.requests, 0.0)
    return total


def _accesses_by_line(work: MachineWork) -> dict[int, tuple[float, int]]:
    """By line of the PTX: executions of the machine's accesses to shared memory, and the most bytes of a thread."""
    by_line: dict[int, tuple[float, int]] = {}
    for access in work.shared:
        if not access.is_matrix:
            executed, width = by_line.get(access.ptx_line, (0.0, 0))
            by_line[access.ptx_line] = executed + access.executions, max(width, access.bytes_per_thread)
    return by_line


def _is_plain(op: MemoryCounts) -> bool:
    """Whether an access is an ``LDS`` or an ``STS`` of the machine."""
    return op.opcode.startswith(("ld.", "ldu.", "st.")) and ".shared" in op.opcode


def _operand_wavefronts(counts: KernelCounts) -> float:
    """Cycles of shared memory for operands that matrix products read themselves."""
    return sum(read for _, read in counts.matrix.values()) / SHARED_BYTES_PER_CYCLE


def ptx_demand(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> Demand:
    """The demand of a kernel of which there is only PTX."""
    warps = math.prod(counts.grid) * counts.launches * occupied.warps_per_block
    issued = machine_instructions(counts, warps)
    waits, chain = _latency_cycles(spec, counts, occupied, issued / warps)
    return Demand(
        instructions=issued,
        arithmetic_cycles=_arithmetic_cycles(spec, counts),
        shared_wavefronts=counts.total("transactions", "shared") + _operand_wavefronts(counts),
        memory_wait_cycles=waits,
        chain_cycles=chain,
    )


def machine_instructions(counts: KernelCounts, warps: float) -> float:
    """Warp instructions of the machine that ptxas makes of those counted in PTX, for so many warps.

    Moves, conversions of addresses and reads of parameters become operands of other instructions, logic of predicates
    becomes part of comparisons, and the address of an element is one instruction; divisions become tens.
    """
    wide = longs = 0.0
    total = min(PROLOGUE * warps, counts.warp_instructions)
    for operation, (count, _) in counts.mix.items():
        head, *qualifiers = operation.split(".")
        if head in ("mov", "cvta") or qualifiers[-1:] == ["pred"] or operation.startswith("ld.param"):
            continue
        if head in ("mul", "mad") and qualifiers[0] == "wide":
            wide += count
        elif head == "add" and qualifiers[-1] in ("s64", "u64"):
            longs += count
        else:
            total += count
    for division, count in _divisions(counts):
        total += count * (division.instructions - 1)
    return total + max(wide, longs)


def _divisions(counts: KernelCounts) -> list[tuple[Division, float]]:
    """Divisions in PTX, and how often warps execute them; remainders among those of integers."""
    floats, _ = counts.mix.get("div.f32", (0.0, 0.0))
    of_integers = [(DIVISION_OF_INTEGERS[width], count) for width, count in integer_divisions(counts.mix).items()]
    return [(DIVISION_OF_FLOATS, floats), *of_integers]


def _arithmetic_cycles(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Cycles of the busiest arithmetic pipe, with all work on one SM.

    Products of integers run where floats are multiplied, at the rate of integers; additions to 64-bit addresses become
    part of such products, and logic of predicates part of comparisons.
    """
    warps = by_class(counts.mix)
    products = wide = longs = predicates = 0.0
    for operation, (count, _) in counts.mix.items():
        head, *qualifiers = operation.split(".")
        if instruction_class(operation) != "int":
            continue
        if head in ("mul", "mad"):
            products += count
            wide += count * (qualifiers[0] == "wide")
        elif head == "add" and qualifiers[-1] in ("s64", "u64"):
            longs += count
        elif qualifiers[-1:] == ["pred"] and head != "setp":
            predicates += count
    # What stands for a division itself is among the integers, or among the special functions.
    (_, floats), *of_integers = divisions = _divisions(counts)
    integers = warps["int"] - products - predicates - min(wide, longs) - sum(count for _, count in of_integers)
    integers += sum(count * division.alu for division, count in divisions)
    multiplied = warps["fp32"] + warps["fp16"] + products + sum(count * division.fma for division, count in divisions)
    special = warps["special"] - floats + sum(count * division.xu for division, count in divisions)
    return spec.warp_size * max(
        multiplied / spec.fp32_lanes_per_sm,
        products / spec.int32_lanes_per_sm,
        warps["fp64"] / spec.fp64_lanes_per_sm,
        special / spec.special_lanes_per_sm,
        integers / spec.int32_lanes_per_sm,
    )


def _latency_cycles(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy, issued: float) -> tuple[float, float]:
    """Cycles of one warp's dependent chain.

    The first are those in which it waits for global and local memory, the second those of its instructions, shared
    memory and barriers. ``issued`` are machine instructions per warp.
    """
    blocks = math.prod(counts.grid)
    warps = blocks * counts.launches * occupied.warps_per_block
    waited = [op for space in ("global", "local") for op in counts.select(space, "load", "atomic")]
    shared = _waits(counts.select("shared", "load", "atomic")) / warps
    barriers = counts.barriers / (blocks * counts.launches)
    shuffles = by_class(counts.mix)["warp"] / warps
    # At each barrier a block waits for the warp that has most to do, if only one reads.
    exchanged = max(shared, min(barriers, shared * occupied.warps_per_block)) + shuffles
    chain = (
        exchanged * spec.shared_latency_cycles
        + issued * CYCLES_PER_INSTRUCTION
        + barriers * BARRIER_CYCLES
        + matrix_instructions(counts.mix) / warps * PRODUCT_CYCLES
    )
    loads = sum(op.requests for op in waited if not op.opcode.startswith("red")) / warps
    waits = _waits(waited) / warps
    return waits * _load_latency(spec, counts) + (loads - waits) * LOAD_INTERVAL_CYCLES, chain


def _waits(ops: Iterable[MemoryCounts]) -> float:
    """Number of waits of warps for loads and atomics: those in flight together are one wait, ``red`` is none."""
    return sum(op.requests / min(op.in_flight, LOADS_IN_FLIGHT) for op in ops if not op.opcode.startswith("red"))


def _load_latency(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Mean latency of a load by the hit rates of its sectors."""
    if not counts.l1_read_sectors:
        return float(spec.l2_latency_cycles)
    in_l1 = _share_in_l1(counts)
    in_l2 = min(counts.l2_read_hits / counts.l2_read_sectors, 1.0) if counts.l2_read_sectors else 1.0
    wait = DRAM_WAIT if math.prod(counts.grid) >= spec.sm_count else 1.0
    beyond = in_l2 * spec.l2_latency_cycles + (1 - in_l2) * wait * spec.dram_latency_cycles
    if counts.host_read_sectors:
        host = counts.host_read_sectors / (counts.host_read_sectors + counts.l2_read_sectors)
        beyond = host * spec.host_latency_ns * 1e-9 * spec.clock_hz + (1 - host) * beyond
    return in_l1 * spec.l1_latency_cycles + (1 - in_l1) * beyond


def _share_in_l1(counts: KernelCounts) -> float:
    """Share of the sectors of loads that the L1 has."""
    return min(counts.l1_read_hits / counts.l1_read_sectors, 1.0) if counts.l1_read_sectors else 0.0
