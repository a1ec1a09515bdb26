"""Modelled time of one launch: a few hardware limits, of which the slowest binds. It names the bound.

Each limit is an amount of work over a rate of :class:`~kernelforge.hardware.specs.DeviceSpec`. The time lies between
the largest and the sum: work under one limit hides behind work under another as far as there is other work. Inside an
SM that is of other warps; between an SM and the memory beyond it, of other blocks, or of the same one where its warps
do not wait for each other. ``benchmarks/fidelity.py`` and ``benchmarks/hardware_ladder.py`` compare the times with
measured ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.hardware.occupancy import Occupancy, occupancy
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, KernelCounts, MemoryCounts, PlanCounts
from kernelforge.profiling.demand import LOADS_IN_FLIGHT, machine_demand, ptx_demand
from kernelforge.profiling.floor import host_link_us
from kernelforge.profiling.sass import NO_WORK, MachineWork, PlanWork

PROTOCOL = "emulated/7"
"""Version of the model; changes when a modelled time could."""

# From launches on an H100 (results/reference/h100/ladder.jsonl).
BARRIER_CYCLES_PER_WARP = 2.1
"""Time of an SM that each warp's arrival takes (ladder barrier: blocks of 8 and of 32 warps)."""
EXPONENT = 3.0
"""Of the norm that adds the limits up: kernels under two equal limits take 1.2 to 1.3 times as long as under one."""
EXPONENT_INSIDE = 4.0
"""The same of limits inside an SM, whose schedulers choose among warps in every cycle (ladder units: 1.0 to 1.2)."""
EXPONENT_ALONE = 1.5
"""The same for a block alone on its SM, all of whose warps do one thing between two barriers (ladder tensor)."""
BARRIER_POWER = 0.5
"""Of the number of blocks that hide each other's waits at barriers: those of random phases, as many as its root."""
ATOMIC_SECTOR_COST = 2.4
"""Time of the L2 for a sector that a request updates, over that for one that it reads (ladder atomics: 95 per
nanosecond, each of another line)."""

LINE_BYTES = 128


@dataclass(frozen=True)
class LaunchTime:
    """Modelled time of one launch, in microseconds, under each limit."""

    limits_us: Mapping[str, float]
    """By bound: ``dram l2 l1 shared fp32 issue latency blocks``, ``atomics`` where there are some in global memory,
    ``tensor`` where there are matrix products, and ``host`` where host memory is read."""
    overhead_us: float
    """Fixed cost of a launch."""
    work_us: float
    """What the limits make together: between the largest and the sum."""

    @property
    def bound(self) -> str:
        return max(self.limits_us, key=lambda name: self.limits_us[name])

    @property
    def time_us(self) -> float:
        return self.work_us + self.overhead_us


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


def launch_time(
    spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy, work: MachineWork | None = None
) -> LaunchTime:
    """Modelled time of one of the ``counts.launches`` equal launches in ``counts``.

    Args:
        spec: The device that is modelled.
        counts: Counters of the launches.
        occupied: Occupancy of the kernel.
        work: Of its machine code; without it that is guessed from the PTX.
    """
    demand = ptx_demand(spec, counts, occupied) if work is None else machine_demand(spec, counts, occupied, work)
    blocks = math.prod(counts.grid)
    busiest = math.ceil(blocks / spec.sm_count)
    waves = math.ceil(blocks / (max(occupied.blocks_per_sm, 1) * spec.sm_count))
    to_us = 1e6 / spec.clock_hz
    # Work of the busiest SM, from sums over all launches and blocks.
    share = busiest / (blocks * counts.launches)
    l1_wavefronts, shared_wavefronts = _l1_wavefronts(spec, counts), demand.shared_wavefronts
    # What is read of host memory passes the L2 on its way.
    l2_bytes = (counts.l2_read_sectors + counts.l2_write_sectors + counts.host_read_sectors) * SECTOR_BYTES
    waits_us, chain_us = (waves * cycles * to_us for cycles in (demand.memory_wait_cycles, demand.chain_cycles))
    arrivals = counts.barriers * occupied.warps_per_block
    issue_cycles = max(demand.instructions / spec.schedulers_per_sm, arrivals * BARRIER_CYCLES_PER_WARP)
    limits = {
        "dram": counts.dram_bytes / counts.launches / spec.dram_sustained_gbps * 1e-3,
        "l2": max(
            (l2_bytes + _partial_bytes(spec, counts)) / counts.launches / spec.l2_bandwidth_gbps * 1e-3,
            l2_bytes * share / spec.l2_to_sm_bytes_per_cycle * to_us,
        ),
        # One data path serves L1 and shared memory: its time counts for the larger user.
        "l1" if l1_wavefronts >= shared_wavefronts else "shared": (l1_wavefronts + shared_wavefronts) * share * to_us,
        "fp32": demand.arithmetic_cycles * share * to_us,
        "issue": issue_cycles * share * to_us,
        "latency": waits_us + chain_us,
        "blocks": busiest * (spec.block_cycles + spec.block_cycles_per_warp * occupied.warps_per_block) * to_us,
    }
    atomics_us = _atomics_us(spec, counts)
    if atomics_us:
        limits["atomics"] = atomics_us
    if counts.host_read_sectors:
        limits["host"] = _host_us(spec, counts)
    if counts.matrix:
        limits["tensor"] = _tensor_seconds(spec, counts) * spec.sm_count * share * 1e6
    beyond = ("dram", "l2", "atomics", "host")
    outside = [limits.get(name, 0.0) for name in beyond]
    inside = [limit for name, limit in limits.items() if name not in (*beyond, "latency")]
    parts = _norm(EXPONENT, *outside, waits_us), _norm(_exponent_inside(spec, counts, occupied), *inside, chain_us)
    work_us = _norm(_exponent(spec, counts, occupied), *parts)
    return LaunchTime(limits, spec.launch_overhead_us, max(work_us, *limits.values()))


def _norm(exponent: float, *limits_us: float) -> float:
    """Time of work under several limits, which hides in part behind each other."""
    return math.pow(math.fsum(math.pow(limit, exponent) for limit in limits_us), 1 / exponent)


def plan_time(spec: DeviceSpec, counts: PlanCounts, registers: Mapping[str, int], work: PlanWork = NO_WORK) -> PlanTime:
    """Modelled time of a whole plan.

    Args:
        spec: The device that is modelled.
        counts: Counters of one run of the plan.
        registers: Registers per thread by kernel expression.
        work: Of the machine code of its kernels, where there is any.
    """
    spent: dict[str, float] = {"launch": 0.0}
    for kernel in counts.kernels:
        occupied = kernel_occupancy(spec, kernel, registers[kernel.expression])
        time = launch_time(spec, kernel, occupied, work.kernel(kernel))
        spent["launch"] += time.overhead_us * kernel.launches
        spent[time.bound] = spent.get(time.bound, 0.0) + (time.time_us - time.overhead_us) * kernel.launches
    if counts.memsets:
        spent["launch"] += spec.launch_overhead_us * counts.memsets
        spent["dram"] = spent.get("dram", 0.0) + counts.memset_bytes / spec.dram_sustained_gbps * 1e-3
    total = sum(spent.values())
    if not total:  # a plan that launches nothing
        return PlanTime(spec.launch_overhead_us, "launch", {"launch": 1.0})
    return PlanTime(total, max(spent, key=lambda name: spent[name]), {n: t / total for n, t in spent.items()})


def _l1_wavefronts(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Cycles of the SM's data path for global and local memory.

    A request takes as many as it touches lines, or, if it loads, as the bytes of its threads take to their registers,
    even where all read one word; of an instruction the sums are compared.
    """
    # The L1 looks one tag up in a cycle, that of a line; where lines were not counted, as many as the sectors make.
    return sum(
        max(
            op.requests,
            op.lines or op.transactions * SECTOR_BYTES / LINE_BYTES,
            op.threads * max(op.bytes_per_thread, 4) / spec.l1_bytes_per_cycle if op.access == "load" else 0.0,
        )
        for space in ("global", "local")
        for op in counts.select(space)
    )


def _tensor_seconds(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Time of all matrix products on all tensor cores, or on the other lanes where there are none for a type."""
    of_warps = any(operation.startswith(("mma", "wmma")) for operation in counts.mix)
    share = spec.product_share if of_warps else 1.0
    # What has no tensor cores for a type multiplies it where it multiplies floats, two halves at a time.
    without = 2 * spec.fp32_flops_per_s
    peaks = {kind: share * spec.tensor_flops_per_s(*kind.split(".")) or without for kind in counts.matrix}
    return sum(operations / peaks[kind] for kind, (operations, _) in counts.matrix.items())


def _complete_bytes(op: MemoryCounts) -> float:
    """Bytes that a store has at least if it writes all of its sectors."""
    return 0.99 * op.transactions * SECTOR_BYTES


def _partial_bytes(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Bytes of complete sectors that take the L2 as long as what stores add to it by sectors that they write in part.

    Stores that follow each other in the PTX and complete the same sectors are one to the L2: the L1 merges them. The
    launch then leaves no more sectors than one of them writes.
    """
    partial = 0.0
    stores = [op for op in counts.select("global", "store") if op.threads * op.bytes_per_thread < _complete_bytes(op)]
    stores.sort(key=lambda op: op.ptx_line)
    for _, run in itertools.groupby(stores, lambda op: (op.requests, op.transactions)):
        group = list(run)
        written = sum(op.threads * op.bytes_per_thread for op in group)
        few = counts.dram_write_bytes < 1.5 * group[0].transactions * SECTOR_BYTES
        if not (len(group) > 1 and written >= _complete_bytes(group[0]) and few):
            partial += sum(op.transactions for op in group)
    return partial * (spec.partial_sector_cost - 1) * SECTOR_BYTES


def _host_us(spec: DeviceSpec, counts: KernelCounts) -> float:
    """Time of a launch's reads of host memory: of their bytes and headers on the link, and of the round trips of as
    many requests as may be under way. Few sectors in a request make both longer."""
    bytes_us = host_link_us(spec, counts.host_read_sectors * SECTOR_BYTES, counts.host_read_requests)
    trips_us = counts.host_read_requests * spec.host_latency_ns / spec.host_requests * 1e-3
    return max(bytes_us, trips_us) / counts.launches


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


def _exponent_inside(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> float:
    """Exponent of the norm that adds up the limits inside an SM.

    Between two barriers the warps of a block do the same: only other blocks keep other units busy.
    """
    if not counts.barriers:
        return EXPONENT_INSIDE
    blocks = _resident(spec, counts, occupied)
    return EXPONENT_INSIDE - (EXPONENT_INSIDE - EXPONENT_ALONE) / math.pow(blocks, BARRIER_POWER)


def _resident(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> int:
    """Blocks that the busiest SM has at a time."""
    return max(min(occupied.blocks_per_sm, math.ceil(math.prod(counts.grid) / spec.sm_count)), 1)


def _exponent(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> float:
    """Exponent of the norm that adds the limits up.

    Work under one limit hides behind work under another if there is other work: of other blocks, or of the same block
    where its warps access memory often between two waits for each other. A block alone that waits for its loads, then
    computes, overlaps nothing.
    """
    phases = math.prod(counts.grid) * counts.launches + counts.barriers
    accesses = sum(op.requests / min(op.in_flight, LOADS_IN_FLIGHT) for op in counts.select("global"))
    often = accesses / (phases * occupied.warps_per_block * LOADS_IN_FLIGHT)
    others = _resident(spec, counts, occupied) * max(often, 1.0)
    return EXPONENT - (EXPONENT - 1) / math.pow(others, BARRIER_POWER if counts.barriers else 1.0)
