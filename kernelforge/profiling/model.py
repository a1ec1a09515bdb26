"""Modelled time of one launch: a few hardware limits, of which the slowest binds. It names the bound.

Each limit is an amount of work over a rate of :class:`~kernelforge.hardware.specs.DeviceSpec`. The time lies between
the largest and the sum, since work under one limit hides most of that under another, but not all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kernelforge.hardware.occupancy import Occupancy, occupancy
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, KernelCounts, MemoryCounts, PlanCounts, by_class

PROTOCOL = "emulated/4"
"""Version of the model; changes when a modelled time could."""

# Unmeasured assumptions on the overlap of a warp's own work when no other warp hides it.
LOADS_IN_FLIGHT = 4
CYCLES_PER_INSTRUCTION = 2.0
BARRIER_CYCLES = 30.0

# From launches on an H100 (results/reference/h100/ladder.jsonl).
EXPONENT = 3.0
"""Of the norm that adds the limits up: kernels under two equal limits take 1.2 to 1.3 times as long as under one."""
PARTIAL_SECTOR_COST = 6.5
"""Time of the L2 for a sector of which a request writes a part, over that for a complete one: it writes 40 to 50 per
nanosecond (ladders stride and transpose)."""
ATOMIC_SECTOR_COST = 3.0
"""The same for a sector that a request updates (ladder atomics: 95 per nanosecond, each of another line)."""


@dataclass(frozen=True)
class LaunchTime:
    """Modelled time of one launch, in microseconds, under each limit."""

    limits_us: Mapping[str, float]
    """By bound: ``dram l2 l1 shared fp32 issue latency blocks``, ``atomics`` where there are some in global memory, and
    ``tensor`` where there are matrix products."""
    overhead_us: float
    """Fixed cost of a launch."""

    @property
    def bound(self) -> str:
        return max(self.limits_us, key=lambda name: self.limits_us[name])

    @property
    def time_us(self) -> float:
        together = math.fsum(math.pow(limit, EXPONENT) for limit in self.limits_us.values())
        return math.pow(together, 1 / EXPONENT) + self.overhead_us


@dataclass(frozen=True)
class PlanTime:
    """Modelled time of a plan: its launches one after another."""

    time_us: float
    bound: str
    """The bound of most of the time: one of the limits, or ``launch``."""
    share: Mapping[str, float]
    """Share of the time under each bound; the sum is 1."""


def kernel_occupancy(spec: DeviceSpec, counts: KernelCounts, registers_per_thread: int) -> Occupancy:
    """Occupancy of a profiled kernel."""
    return occupancy(
        spec,
        threads_per_block=counts.threads_per_block,
        registers_per_thread=registers_per_thread,
        shared_bytes=counts.static_shared_bytes + counts.dynamic_shared_bytes,
    )


def launch_time(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> LaunchTime:
    """Modelled time of one of the ``counts.launches`` equal launches in ``counts``."""
    blocks = math.prod(counts.grid)
    busiest = math.ceil(blocks / spec.sm_count)
    to_us = 1e6 / spec.clock_hz
    # Work of the busiest SM, from sums over all launches and blocks.
    share = busiest / (blocks * counts.launches)
    l1_wavefronts, shared_wavefronts = _lsu_wavefronts(spec, counts)
    l2_bytes = (counts.l2_read_sectors + counts.l2_write_sectors) * SECTOR_BYTES
    partial_bytes = _partial_sectors(counts) * (PARTIAL_SECTOR_COST - 1) * SECTOR_BYTES
    lsu_us = (l1_wavefronts + shared_wavefronts) * share * to_us
    limits = {
        "dram": counts.dram_bytes / counts.launches / spec.dram_sustained_gbps * 1e-3,
        "l2": max(
            (l2_bytes + partial_bytes) / counts.launches / spec.l2_bandwidth_gbps * 1e-3,
            l2_bytes * share / spec.l2_to_sm_bytes_per_cycle * to_us,
        ),
        # One data path serves L1 and shared memory: its time counts for the larger user.
        "l1" if l1_wavefronts >= shared_wavefronts else "shared": lsu_us,
        "fp32": _arithmetic_cycles(spec, counts) * share * to_us,
        "issue": counts.warp_instructions / spec.schedulers_per_sm * share * to_us,
        "latency": _latency_cycles(spec, counts, occupied, blocks) * to_us,
        "blocks": busiest * (spec.block_cycles + spec.block_cycles_per_warp * occupied.warps_per_block) * to_us,
    }
    atomics_us = _atomics_us(spec, counts)
    if atomics_us:
        limits["atomics"] = atomics_us
    if counts.matrix:
        limits["tensor"] = _tensor_seconds(spec, counts) * spec.sm_count * share * 1e6
    return LaunchTime(limits, spec.launch_overhead_us)


def plan_time(spec: DeviceSpec, counts: PlanCounts, registers: Mapping[str, int]) -> PlanTime:
    """Modelled time of a whole plan.

    Args:
        spec: The device that is modelled.
        counts: Counters of one run of the plan.
        registers: Registers per thread by kernel expression.
    """
    spent: dict[str, float] = {"launch": 0.0}
    for kernel in counts.kernels:
        time = launch_time(spec, kernel, kernel_occupancy(spec, kernel, registers[kernel.expression]))
        spent["launch"] += time.overhead_us * kernel.launches
        spent[time.bound] = spent.get(time.bound, 0.0) + (time.time_us - time.overhead_us) * kernel.launches
    if counts.memsets:
        spent["launch"] += spec.launch_overhead_us * counts.memsets
        spent["dram"] = spent.get("dram", 0.0) + counts.memset_bytes / spec.dram_sustained_gbps * 1e-3
    total = sum(spent.values())
    if not total:  # a plan that launches nothing
        return PlanTime(spec.launch_overhead_us, "launch", {"launch": 1.0})
    return PlanTime(total, max(spent, key=lambda name: spent[name]), {n: t / total for n, t in spent.items()})


def _lsu_wavefronts(spec: DeviceSpec, counts: KernelCounts) -> tuple[float, float]:
    """Cycles of the SM's data path: (global and local, shared).

    A request takes as many as it touches lines, or as its sectors need; of an instruction the sums are compared.
    """
    sectors_per_wavefront = spec.l1_bytes_per_cycle // SECTOR_BYTES
    # The L1 looks one tag up in a cycle, that of a line; instructions without counted lines have one per request.
    cached = sum(
        max(op.requests, op.lines, op.transactions / sectors_per_wavefront)
        for space in ("global", "local")
        for op in counts.select(space)
    )
    operands = sum(read for _, read in counts.matrix.values()) / spec.l1_bytes_per_cycle
    return cached, counts.total("transactions", "shared") + operands


def _arithmetic_cycles(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Cycles of the busiest arithmetic pipe, with all work on one SM."""
    warps = by_class(counts.mix)
    return spec.warp_size * max(
        warps["fp32"] / spec.fp32_lanes_per_sm,
        warps["fp64"] / spec.fp64_lanes_per_sm,
        warps["special"] / spec.special_lanes_per_sm,
        warps["int"] / spec.int32_lanes_per_sm,
    )


def _tensor_seconds(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Time of all matrix products on all tensor cores of the GPU; those of types that it lacks take none."""
    peaks = {kind: spec.tensor_flops_per_s(*kind.split(".")) for kind in counts.matrix}
    return sum(operations / peaks[kind] for kind, (operations, _) in counts.matrix.items() if peaks[kind])


def _partial_sectors(counts: KernelCounts) -> float:
    """Sectors of which stores write a part, which the L2 has to merge with the rest."""
    partial = 0.0
    for op in counts.select("global", "store"):
        if op.threads * op.bytes_per_thread < 0.99 * op.transactions * SECTOR_BYTES:
            partial += op.transactions
    return partial


def _atomics_us(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Time of a launch's atomics on global memory: those on one word, those on one line, and all in the L2."""
    sectors = counts.total("transactions", "global", "atomic")
    if not sectors:
        return 0.0

    def apart(opcode: str) -> float:
        return spec.atomic_float_ns if ".f" in opcode or ".bf" in opcode else spec.atomic_ns

    word = max(updates * apart(opcode) for opcode, updates in counts.most_updated_words("global"))
    on_line = counts.total("line_updates", "global", "atomic")
    others = 1 - min(on_line / sectors, 1.0)
    line = on_line * (spec.atomic_sector_ns + others * spec.atomic_line_ns)
    everywhere = sectors * SECTOR_BYTES * ATOMIC_SECTOR_COST / spec.l2_bandwidth_gbps
    return max(word, line, everywhere) / counts.launches * 1e-3


def _latency_cycles(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy, blocks: int) -> float:
    """Cycles of one warp's dependent chain, times the waves of blocks: latency that low parallelism cannot hide."""
    waves = math.ceil(blocks / (max(occupied.blocks_per_sm, 1) * spec.sm_count))
    warps = blocks * counts.launches * occupied.warps_per_block
    waited = [op for space in ("global", "local") for op in counts.select(space, "load", "atomic")]
    chain = (
        _waits(waited) / warps * _load_latency(spec, counts)
        + _waits(counts.select("shared", "load", "atomic")) / warps * spec.shared_latency_cycles
        + counts.warp_instructions / warps * CYCLES_PER_INSTRUCTION
        + counts.barriers / (blocks * counts.launches) * BARRIER_CYCLES
    )
    return waves * chain


def _waits(ops: Iterable[MemoryCounts]) -> float:
    """Number of waits of warps for loads and atomics: those in flight together are one wait, ``red`` is none."""
    return sum(op.requests / min(op.in_flight, LOADS_IN_FLIGHT) for op in ops if not op.opcode.startswith("red"))


def _load_latency(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Mean latency of a load by the hit rates of its sectors."""
    if not counts.l1_read_sectors:
        return float(spec.l2_latency_cycles)
    in_l1 = min(counts.l1_read_hits / counts.l1_read_sectors, 1.0)
    in_l2 = min(counts.l2_read_hits / counts.l2_read_sectors, 1.0) if counts.l2_read_sectors else 1.0
    beyond = in_l2 * spec.l2_latency_cycles + (1 - in_l2) * spec.dram_latency_cycles
    return in_l1 * spec.l1_latency_cycles + (1 - in_l1) * beyond
