"""Diagnosis rules over the metrics of one kernel.

A rule gives the time that its fault costs, as a share of the modelled limits it weighs on; the thresholds keep what
every good kernel has from being called a fault. Where no source is named, a threshold is this project's own judgement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from kernelforge.agents.diagnosis import metrics as ev
from kernelforge.agents.diagnosis.metrics import KernelMetrics, PlanMetrics
from kernelforge.profiling.counts import SECTOR_BYTES
from kernelforge.profiling.demand import BARRIER_CYCLES, CYCLES_PER_INSTRUCTION
from kernelforge.profiling.floor import host_link_us
from kernelforge.profiling.metrics import HOST_PER_REQUEST, HOST_REQUESTS, HOST_SECTORS, MATRIX_INSTRUCTIONS
from kernelforge.profiling.model import BARRIER_CYCLES_PER_WARP
from kernelforge.records import DType


class Bottleneck(StrEnum):
    """A cause that limits a correct kernel. A diagnosis ranks these; each note names those it is about."""

    UNCOALESCED = "uncoalesced"
    """Neighbouring threads touch addresses far apart: more sectors per request than the data needs."""
    UNVECTORISED = "unvectorised"
    """Contiguous data moved a word at a time: more load and store instructions than the bytes need."""
    REDUNDANT_LOADS = "redundant-loads"
    """The same data is loaded from global memory again and again instead of being kept on chip."""
    INTERMEDIATE_TRAFFIC = "intermediate-traffic"
    """Kernels that could be one pass intermediate results through memory."""
    BANK_CONFLICT = "bank-conflict"
    """Threads of a warp meet in one bank of shared memory."""
    SPILLS = "spills"
    """Registers spilled to local memory, or an array indexed at run time that lives there."""
    LOW_OCCUPANCY_REGISTERS = "low-occupancy-registers"
    """Registers per thread limit the resident warps."""
    LOW_OCCUPANCY_SHARED = "low-occupancy-shared"
    """Shared memory per block limits the resident warps."""
    LOW_OCCUPANCY_BLOCK = "low-occupancy-block"
    """The block's shape limits the resident warps: too few threads, or no whole number of warps."""
    TINY_GRID = "tiny-grid"
    """Fewer blocks than multiprocessors, or a last wave that is nearly empty."""
    DIVERGENCE = "divergence"
    """Threads of a warp take different paths, or some have ended."""
    ATOMICS_CONTENTION = "atomics-contention"
    """Many threads update the same address."""
    SYNCHRONISATION = "synchronisation"
    """Warps wait for each other at barriers."""
    LAUNCH_BOUND = "launch-bound"
    """Many launches of little work each: the time between them weighs more than the work."""
    DRAM_BOUND = "dram-bound"
    """Device memory's bandwidth is the limit."""
    HOST_BOUND = "host-bound"
    """The host link is the limit; or warps read parts of lines of host memory, in more requests than the bytes need."""
    L2_BOUND = "l2-bound"
    """Traffic between L2 and the multiprocessors is the limit."""
    SHARED_BOUND = "shared-bound"
    """Bandwidth of shared memory is the limit, without conflicts."""
    FP32_BOUND = "fp32-bound"
    """Ordinary floating-point arithmetic is the limit."""
    DOUBLE_PRECISION = "double-precision"
    """Arithmetic in float64 that the task does not ask for, often by a literal without an ``f``."""
    REDUNDANT_WORK = "redundant-work"
    """Threads compute again what is known, or what another thread has computed."""
    SFU_BOUND = "sfu-bound"
    """Divisions, roots and transcendental functions are the limit."""
    TENSOR_CORES_UNUSED = "tensor-cores-unused"
    """Matrix products on ordinary cores, where the precision policy would let tensor cores do them."""
    TENSOR_BOUND = "tensor-bound"
    """Tensor cores are busy or starved: the product's own pipeline is the limit."""
    ISSUE_BOUND = "issue-bound"
    """Instructions that compute nothing (addresses, index divisions, loop control) fill the issue slots."""
    LATENCY_BOUND = "latency-bound"
    """No unit is busy: too few independent operations in flight to hide latency."""


@dataclass(frozen=True)
class RuleHit:
    """One fault of one kernel."""

    bottleneck: Bottleneck
    cost_us: float
    """Modelled time that a cure may save, under all limits together."""
    evidence: str
    """Values and thresholds, in words."""
    metrics: tuple[str, ...]
    """What a cure lowers, or with a leading ``+`` raises; the telling one first."""


Rule = Callable[[KernelMetrics, PlanMetrics], RuleHit | None]


def uncoalesced(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Coalesced Access to Global Memory": a warp's accesses become as many 32-byte transactions
    as they touch."""
    if k.scattered < 0.3:
        return None
    beyond = _share_beyond(k.value(ev.L2_SECTORS), k.sectors * (1 - k.scattered))
    over_read = _share_beyond(k.value(ev.DRAM), plan.compulsory_bytes) if len(plan.kernels) == 1 else 0.0
    limits = k.limits
    cost = k.scattered * (k.data_path("global") + limits["latency"] * k.memory_share("global"))
    cost += min(beyond, k.scattered) * limits["l2"] + min(over_read, k.scattered) * limits["dram"]
    loads, stores = k.excess(True), k.excess(False)
    telling = (ev.SECTORS, ev.PER_REQUEST) if loads >= stores else (ev.SECTORS_STORED, ev.PER_REQUEST_STORED)
    other = ev.SECTORS_STORED if loads >= stores else ev.SECTORS
    evidence = (
        f"{k.value(ev.SECTORS):,.0f} sector loaded in {k.value(ev.REQUESTS):,.0f} request and "
        f"{k.value(ev.SECTORS_STORED):,.0f} stored in {k.value(ev.REQUESTS_STORED):,.0f}; {k.scattered:.0%} of them "
        f"would not be needed if neighbouring threads touched neighbouring words (threshold 30 %)"
    )
    return RuleHit(Bottleneck.UNCOALESCED, cost, evidence, (*telling, other))


def bank_conflict(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Shared Memory and Memory Banks": an access takes one pass per word in its fullest bank."""
    waves, conflicts = k.value(ev.WAVEFRONTS), k.value(ev.CONFLICTS)
    share = conflicts / waves if waves else 0.0
    if share < 0.25:
        return None
    cost = share * (k.data_path("shared") + k.limits["latency"] * k.memory_share("shared"))
    evidence = (
        f"{ev.CONFLICTS} is {conflicts:,.0f} of {waves:,.0f} wavefronts ({share:.0%}, threshold 25 %): "
        f"an access takes {1 / (1 - share) if share < 1 else waves:.1f} passes on average"
    )
    return RuleHit(Bottleneck.BANK_CONFLICT, cost, evidence, (ev.CONFLICTS, ev.WAVEFRONTS))


def redundant_loads(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Shared Memory in Matrix Multiplication": what threads share is to be fetched once."""
    requested = k.value(ev.LOAD_BYTES, 32 * k.value(ev.SECTORS) * (1 - k.scattered)) / max(k.kernel.launches, 1)
    times = requested / plan.loadable_bytes
    if times < 2.5:
        return None
    saved = 1 - 1 / times
    limits, tidy = k.limits, 1 - k.scattered
    fetched = k.value(ev.DRAM) / max(k.kernel.launches, 1)
    cost = saved * tidy * (k.data_path("global") + limits["l2"] + limits["latency"] * k.memory_share("global"))
    cost += saved * limits["issue"] * min(k.value(ev.REQUESTS) / max(k.instructions, 1), 1.0)
    cost += tidy * limits["dram"] * _share_beyond(fetched, plan.compulsory_bytes)
    evidence = (
        f"threads ask for {requested:,.0f} byte in each launch, {times:.1f}x the {plan.loadable_bytes:,.0f} byte there "
        f"are to load (threshold 2.5x); {ev.DRAM} is {fetched / plan.compulsory_bytes:.2f}x the compulsory bytes"
    )
    return RuleHit(Bottleneck.REDUNDANT_LOADS, cost, evidence, (ev.LOAD_BYTES, ev.REQUESTS, ev.SECTORS))


SPILL_RUNS = 2.0
"""An assumption where there is no machine code: how often each instruction runs that ptxas added to spill a register.
"""


def spills(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Local Memory": it is off chip, as slow as global memory."""
    sectors = k.value(ev.LOCAL_SECTORS)
    spilled = 0 if k.compiled is None else k.compiled.spill_load_bytes + k.compiled.spill_store_bytes
    if not sectors and spilled < 16:
        return None
    cost = k.data_path("local") + k.limits["latency"] * k.memory_share("local")
    rate = 1e6 / k.spec.clock_hz / k.spec.sm_count
    # What ptxas spills is not in the PTX. How often a spill in a loop runs, the machine code tells.
    if k.kernel.sass is not None:
        passes = max(k.local_accesses - sectors / ev.COALESCED, 0.0)
        share = passes / max(k.kernel.sass.warp_instructions, 1)
        cost += min(passes * rate, k.busy_us) + share * (k.limits["issue"] + k.limits["latency"])
    else:
        passes = SPILL_RUNS * k.threads * k.kernel.launches / 32 * spilled / 4
        cost += min(passes * rate, k.busy_us)
        cost = cost if sectors else max(cost, 0.15 * k.busy_us)
    evidence = (
        f"{ev.LOCAL_SECTORS} is {sectors:,.0f} sector; ptxas spills {spilled:,} byte per thread at "
        f"{k.value(ev.REGISTERS):.0f} registers (any is a fault); {passes:,.0f} accesses of warps to what is spilled"
    )
    return RuleHit(Bottleneck.SPILLS, cost, evidence, (ev.LOCAL_SECTORS,) if sectors else ())


_LIMITERS = MappingProxyType(
    {
        "registers": Bottleneck.LOW_OCCUPANCY_REGISTERS,
        "shared_mem": Bottleneck.LOW_OCCUPANCY_SHARED,
        "blocks": Bottleneck.LOW_OCCUPANCY_BLOCK,
        "warps": Bottleneck.LOW_OCCUPANCY_BLOCK,
    }
)


def low_occupancy(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Occupancy": too few resident warps cannot hide latency."""
    percent = k.value(ev.OCCUPANCY, 100.0)
    limits = {name: k.value(f"launch__occupancy_limit_{name}", math.inf) for name in _LIMITERS}
    limiter = min(limits, key=lambda name: limits[name])
    by_block = _LIMITERS[limiter] is Bottleneck.LOW_OCCUPANCY_BLOCK
    waves = k.value(ev.WAVES, math.inf)
    if percent > (50.0 if by_block else 45.0) or waves < 1:
        return None  # where more blocks fit than there are, none waits for another's place
    # Fewer waves wait one after another. With fewer warps there is less in flight under every limit but the one that
    # all share, DRAM's.
    saved = 1 - percent / 75
    fewer_waves = saved if math.isinf(waves) else 1 - math.ceil(waves * percent / 75) / math.ceil(waves)
    cost = fewer_waves * k.limits["latency"] + 0.25 * saved * (k.busy_us - k.limits["latency"]) + _turnover_saved(k)
    evidence = (
        f"{ev.OCCUPANCY} is {percent:.1f} %, limited by {limiter} to {limits[limiter]:.0f} blocks of "
        f"{k.threads_per_block} threads ({k.value(ev.REGISTERS):.0f} registers each); threshold "
        f"{50 if by_block else 45} %"
    )
    raised = f"+launch__occupancy_limit_{limiter}"
    return RuleHit(_LIMITERS[limiter], cost, evidence, ("+" + ev.OCCUPANCY, raised))


FULL_BLOCK_WARPS = 8
"""Warps of a block of 256 threads, which is what the remedy of small blocks asks for."""


def _turnover_saved(k: KernelMetrics) -> float:
    """Modelled time that starting and ending blocks would take less if the same warps were in blocks of 256 threads."""
    warps = math.ceil(k.threads_per_block / 32)

    def each_warp(of_block: int) -> float:
        return k.spec.block_cycles / of_block + k.spec.block_cycles_per_warp

    blocks_us = k.kernel.limits_us.get("blocks", 0.0)
    if not blocks_us or warps >= FULL_BLOCK_WARPS:
        return 0.0
    return (1 - each_warp(FULL_BLOCK_WARPS) / each_warp(warps)) * blocks_us


def ragged_block(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Thread and Block Heuristics": threads per block are to be a multiple of the warp size."""
    if k.fill > 0.8:
        return None
    # In a single wave no block waits for the place that empty lanes take, so the chain of a warp is what it was.
    chain = k.limits["latency"] if k.value(ev.WAVES, math.inf) <= 1 else 0.0
    cost = (1 - k.fill) * (k.busy_us - k.limits["dram"] - chain)
    evidence = (
        f"blocks of {k.threads_per_block} threads leave {1 - k.fill:.0%} of their warps' lanes empty (threshold 20 %)"
    )
    return RuleHit(Bottleneck.LOW_OCCUPANCY_BLOCK, cost, evidence, ("+" + ev.LANES, "+" + ev.BLOCK))


def divergence(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Branching and Divergence": paths of one warp run one after another."""
    lost = 1 - k.value(ev.LANES, 32.0) / 32 / k.fill
    uniform = k.value(ev.UNIFORM, 100.0)
    if lost < 0.12 or uniform > 99.95:
        return None
    limits = k.limits
    cost = lost * (limits["issue"] + limits["arithmetic"] + limits["latency"])
    evidence = (
        f"{ev.LANES} is {k.value(ev.LANES, 32.0):.1f} of {32 * k.fill:.0f} ({lost:.0%} lost, threshold 12 %); "
        f"{100 - uniform:.1f} % of branches diverge"
    )
    return RuleHit(Bottleneck.DIVERGENCE, cost, evidence, ("+" + ev.LANES, ev.INSTRUCTIONS))


def tiny_grid(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Thread and Block Heuristics": more blocks than multiprocessors; and the tail of the last
    wave (Nsight Compute's tail effect rule)."""
    sms, blocks = k.spec.sm_count, k.blocks
    idle = 1 - blocks / (sms * math.ceil(blocks / sms))
    spread = plan.elements / max(k.threads * k.kernel.launches, 1)
    waves = k.value(ev.WAVES)
    if waves > 1 and blocks / waves <= 2 * sms:
        return _last_wave(k, waves)
    if idle < 0.3 or blocks >= 2 * sms:
        return None
    # A grid that reaches some of the multiprocessors is often a symptom: a thread per row, say. So few idle ones weigh
    # less than their share, and an eighth of the device or less is the fault itself.
    weight = idle**4 if blocks < sms else 0.5 * idle
    if spread < 2:
        # As many threads as there are elements: the problem is small, not the grid wrong.
        weight *= 0.2
    cost = weight * (k.busy_us - k.limits["dram"])
    evidence = (
        f"{blocks:.0f} blocks on {sms} multiprocessors leave {idle:.0%} of them idle (threshold 30 %); "
        f"each thread has {spread:,.1f} elements of the largest tensor"
    )
    return RuleHit(Bottleneck.TINY_GRID, cost, evidence, ("+" + ev.GRID, "+" + ev.WAVES))


def _last_wave(k: KernelMetrics, waves: float) -> RuleHit | None:
    """Few blocks fit at a time, so a last wave of few leaves most multiprocessors idle."""
    idle = 1 - waves / math.ceil(waves)
    if idle < 0.25:
        return None
    cost = 0.5 * idle * (k.busy_us - k.limits["dram"])
    evidence = f"{ev.WAVES} is {waves:.2f}: the last wave leaves {idle:.0%} of all block slots idle (threshold 25 %)"
    return RuleHit(Bottleneck.TINY_GRID, cost, evidence, ("+" + ev.GRID, ev.BLOCK))


SHARED_ATOMIC_CYCLES = 4.0
"""An assumption: cycles of one lane's update where lanes of a warp meet in one word of shared memory."""


def atomics_contention(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """The L2 updates one address once per clock (NVIDIA's GK110 whitepaper, "Faster Atomic Operations"), or less often,
    as modelled; shared memory serves the lanes that meet in one word one by one."""
    to_us = 1e6 / k.spec.clock_hz
    per_word, inside = (k.value(f"ptx__{space}_atomics_per_address.max") for space in ("global", "shared"))
    at_l2 = max(per_word * to_us * k.kernel.launches, k.atomics_us)
    at_sm = inside * math.ceil(k.blocks / k.spec.sm_count) * SHARED_ATOMIC_CYCLES * to_us * k.kernel.launches
    # What the rest of the kernel takes hides as much of it.
    hidden = max(k.limits.values())
    cost = max(at_l2, at_sm) - 0.5 * hidden
    if cost <= 0.1 * hidden or (per_word < 64 and inside < k.threads_per_block / 8):
        return None
    space = "global" if at_l2 >= at_sm else "shared"
    evidence = (
        f"{k.value(f'ptx__{space}_atomics.sum'):,.0f} atomics on {space} memory, up to "
        f"{per_word if space == 'global' else inside:,.0f} on one address{'' if space == 'global' else ' of a block'}: "
        f"{max(at_l2, at_sm):,.3g} us one after another, where the rest takes {hidden:,.3g} us"
    )
    return RuleHit(
        Bottleneck.ATOMICS_CONTENTION, cost, evidence,
        (f"ptx__{space}_atomics_per_address.max", f"ptx__{space}_atomics.sum"),
    )  # fmt: skip


def synchronisation(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Best Practices Guide, "Synchronization Instruction": a barrier stalls the warps that come first."""
    per_block = k.value(ev.BARRIERS) / max(k.blocks * k.kernel.launches, 1)
    to_us = 1e6 / k.spec.clock_hz
    waited = per_block * BARRIER_CYCLES * math.ceil(k.value(ev.WAVES, 1.0)) * k.kernel.launches * to_us
    share = min(waited / max(k.limits["latency"], 1e-9), 1.0)
    per_instruction = k.share("barrier")
    # Each warp that arrives takes the SM some cycles; where those are more than its instructions take, they bind.
    busiest = math.ceil(k.blocks / k.spec.sm_count) / max(k.blocks, 1) * to_us
    warps = math.ceil(k.threads_per_block / 32)
    arrivals = k.value(ev.BARRIERS) * warps * BARRIER_CYCLES_PER_WARP * busiest
    few = share < 0.2 and arrivals < 0.5 * max(k.limits.values())
    if per_block < 8 or few or per_instruction < 0.03:
        return None
    issued = k.limits["issue"]
    if arrivals > 0.98 * issued:
        issued = min(k.value(ev.MACHINE_INSTRUCTIONS, k.instructions) / k.spec.schedulers_per_sm * busiest, issued)
    cost = share * k.limits["latency"] + k.limits["issue"] - (1 - per_instruction) * issued
    evidence = (
        f"{per_block:,.0f} barriers per block, one for every {1 / per_instruction:.0f} warp instructions (threshold "
        f"33); about {share:.0%} of the latency chain, and {arrivals:,.3g} us for the warps that arrive"
    )
    return RuleHit(Bottleneck.SYNCHRONISATION, cost, evidence, (ev.BARRIERS, "ptx__inst_barrier.sum"))


def tensor_cores_unused(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """A product of half-precision matrices (Best Practices Guide has no rule; the ratio is that of a 32-cubed tile)."""
    facts = plan.facts
    if facts is None or not plan.uses(DType.FLOAT16, DType.BFLOAT16) or k.value(MATRIX_INSTRUCTIONS):
        return None
    intensity = facts.flops / plan.compulsory_bytes
    if intensity < 16 or k.share("fp32", "fp16") < 0.05:
        return None
    share = 0.9 * k.busy_us / plan.busy_us
    limits = k.limits
    cost = share * (limits["issue"] + limits["arithmetic"] + limits["latency"] + k.data_path("shared"))
    evidence = (
        f"{facts.flops:,} flop on half-precision operands, {intensity:.0f} per compulsory byte (threshold 16), and no "
        f"matrix instruction among {k.instructions:,.0f}"
    )
    return RuleHit(Bottleneck.TENSOR_CORES_UNUSED, cost, evidence, (ev.INSTRUCTIONS, "ptx__inst_fp32.sum"))


def double_precision(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Programming Guide, "Throughput of Native Arithmetic Instructions": half the rate of float32 or less."""
    share = k.share("fp64")
    if share < 0.02 or plan.uses(DType.FLOAT64):
        return None
    limits = k.limits
    conversions = share + k.share("convert")
    cost = min(conversions, 1.0) * (limits["issue"] + limits["latency"]) + limits["arithmetic"]
    evidence = (
        f"{k.value('ptx__inst_fp64.sum'):,.0f} warp instructions in float64 ({share:.0%}, threshold 2 %), "
        f"in a task without float64 tensors"
    )
    return RuleHit(Bottleneck.DOUBLE_PRECISION, cost, evidence, ("ptx__inst_fp64.sum", "ptx__inst_convert.sum"))


DIVISION_COST = MappingProxyType({32: 20.0, 64: 70.0})
"""Machine instructions of an integer division: some tens (Programming Guide, "Arithmetic Instructions": "up to 20" of
32 bits); the 64-bit figure is an assumption."""


def issue_bound(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Programming Guide, "Arithmetic Instructions", Integer Arithmetic: division and modulo are costly."""
    divisions = {width: k.value(f"ptx__inst_int_division_{width}.sum") for width in DIVISION_COST}
    hidden = sum(count * DIVISION_COST[width] for width, count in divisions.items())
    idle = k.share("int", "control", "move", "convert")
    per_instruction = k.limits["issue"] / max(k.instructions, 1)
    by_division = hidden / max(hidden + k.instructions, 1)
    # A division waits for itself too: its instructions are one dependent chain of each warp.
    warps = k.blocks * math.ceil(k.threads_per_block / 32)
    chain = hidden / warps * CYCLES_PER_INSTRUCTION * math.ceil(k.value(ev.WAVES, 1.0)) * 1e6 / k.spec.clock_hz
    cost = hidden * per_instruction + chain
    if by_division < 0.4:
        useful = k.share("fp32", "fp64", "fp16", "special", "memory", "warp", "barrier")
        if idle < 0.7 or useful > 0.28 or k.limits["issue"] < 0.3 * k.busy_us:
            return None
        cost = max(cost, 0.5 * idle * k.limits["issue"])
    evidence = (
        f"{sum(divisions.values()):,.0f} integer divisions stand for some {hidden:,.0f} instructions, "
        f"{by_division:.0%} of all (threshold 40 %); {idle:.0%} of the others are integer, control and moves"
    )
    metrics = tuple(f"ptx__inst_int_division_{width}.sum" for width, count in divisions.items() if count)
    return RuleHit(Bottleneck.ISSUE_BOUND, cost, evidence, (*metrics, ev.INSTRUCTIONS, "ptx__inst_int.sum"))


def redundant_work(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """Arithmetic beyond what the reference does; a pointwise function may take some tens of instructions."""
    if plan.facts is None:
        return None
    done = 32 * sum(k.value(f"ptx__inst_{name}.sum") for name in ("fp32", "fp64", "special"))
    done *= k.value(ev.LANES, 32.0) / 32
    needed = max(plan.facts.flops, 24 * plan.all_elements * max(plan.facts.eager_launches, 1))
    times = done / needed
    if times < 4 or k.value(MATRIX_INSTRUCTIONS):
        return None
    cost = (1 - 2 / times) * (k.limits["issue"] + k.limits["arithmetic"])
    evidence = (
        f"{done:,.0f} floating-point instructions of threads, {times:.1f}x the {needed:,.0f} that the reference would "
        f"take at 24 per element and operator (threshold 4x)"
    )
    return RuleHit(Bottleneck.REDUNDANT_WORK, cost, evidence, (ev.INSTRUCTIONS, "ptx__inst_fp32.sum"))


def unvectorised(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """NVIDIA's "Increase Performance with Vectorized Memory Access": up to 16 bytes per thread and instruction."""
    requests, sectors = k.requests, k.sectors
    requested = k.value(ev.LOAD_BYTES) + k.value(ev.STORE_BYTES, 32 * sectors if not k.has(ev.LOAD_BYTES) else 0.0)
    width = requested / max(requests, 1) / 32
    memory = requests / max(k.instructions, 1)
    if k.scattered > 0.2 or not 0 < width <= 4.2 or memory < 0.04 or k.share("special", "fp32") > 0.5:
        return None
    if requested / max(k.kernel.launches, 1) > 2.5 * plan.compulsory_bytes or k.threads * 1.5 < plan.elements:
        return None  # other faults, and loops that reload
    if k.threads < 256 * k.spec.sm_count:
        return None  # fewer threads would not fill the device
    lanes = 1 - width / 16
    cost = 0.3 * lanes * (k.limits["issue"] + k.limits["latency"]) + 0.2 * (1 - min(width, 4) / 4) * k.data_path(
        "global"
    )
    evidence = (
        f"{width:.1f} byte per thread and request of at most 16, over {requests:,.0f} requests (threshold 4 byte)"
    )
    return RuleHit(Bottleneck.UNVECTORISED, cost, evidence, (ev.REQUESTS, ev.INSTRUCTIONS))


def partial_host_reads(k: KernelMetrics, plan: PlanMetrics) -> RuleHit | None:
    """PyTorch-Direct (arXiv 2101.07956), section on alignment: a warp that reads host memory across the ends of lines
    makes a request for each part. A gather of rows that are no longer than three sectors cannot do otherwise."""
    sectors, requests = k.value(HOST_SECTORS), k.value(HOST_REQUESTS)
    if not requests or sectors / requests > 3.0 or plan.host_row_bytes <= 3 * SECTOR_BYTES:
        return None
    aligned_us = host_link_us(k.spec, SECTOR_BYTES * sectors, sectors / ev.COALESCED)
    evidence = (
        f"{sectors:,.0f} sector of host memory in {requests:,.0f} request on the host link, {sectors / requests:.1f} "
        f"each (threshold 3.0); in complete lines of {ev.COALESCED:.0f} they would take {aligned_us:,.3g} us, not "
        f"{k.limits['host']:,.3g} us"
    )
    cost = max(k.limits["host"] - aligned_us, 0.0)
    return RuleHit(Bottleneck.HOST_BOUND, cost, evidence, (HOST_REQUESTS, f"+{HOST_PER_REQUEST}"))


RULES: tuple[Rule, ...] = (
    uncoalesced, bank_conflict, redundant_loads, spills, low_occupancy, ragged_block, divergence, tiny_grid,
    atomics_contention, synchronisation, tensor_cores_unused, double_precision, issue_bound, redundant_work,
    unvectorised, partial_host_reads,
)  # fmt: skip


def intermediate_traffic(plan: PlanMetrics) -> RuleHit | None:
    """Kernels that hand tensors to one another through memory."""
    written, outputs = plan.profile.value(ev.STORE_BYTES), plan.output_bytes
    if len(plan.kernels) < 2 or written is None or outputs is None:
        return None
    between = max(written - outputs, 0.0)
    share = min(2 * between / max(plan.profile.value(ev.REQUESTED) or 0.0, 1.0), 1.0)
    if share < 0.2 or between < 0.25 * outputs:
        return None
    moved = sum(k.limits["dram"] + k.limits["l2"] + (1 - k.scattered) * k.data_path("global") for k in plan.kernels)
    cost = share * moved + (len(plan.kernels) - 1) * plan.spec.launch_overhead_us
    ratio = plan.profile.roofline.dram_bytes / plan.compulsory_bytes
    evidence = (
        f"{len(plan.kernels)} kernels store {written:,.0f} byte, {between:,.0f} more than the outputs hold: "
        f"{share:.0%} of the bytes asked for (threshold 20 %); DRAM traffic is {ratio:.2f}x the compulsory bytes"
    )
    metrics = (ev.DRAM, ev.REQUESTED, ev.LAUNCHES) if ratio > 1.25 else (ev.REQUESTED, ev.LAUNCHES, ev.DRAM)
    return RuleHit(Bottleneck.INTERMEDIATE_TRAFFIC, cost, evidence, metrics)


def launch_bound(plan: PlanMetrics) -> RuleHit | None:
    """Launches whose overhead outweighs their work."""
    launches, overhead = plan.launches, plan.overhead_us
    work = sum(max(kernel.limits.values()) for kernel in plan.kernels)
    if launches < 4 or overhead < work:
        return None
    cost = (launches - 1) / launches * overhead * min((launches - 1) / 8, 1.0)
    evidence = (
        f"{launches:.0f} launches cost {overhead:,.3g} us at {plan.spec.launch_overhead_us} us each, their work "
        f"{work:,.3g} us (threshold: as much){_eager_launches(plan)}"
    )
    return RuleHit(Bottleneck.LAUNCH_BOUND, cost, evidence, (ev.LAUNCHES,))


def _eager_launches(plan: PlanMetrics) -> str:
    """Launch and queue time of eager PyTorch, to compare with; empty where it is not known."""
    eager = plan.eager
    if eager is None:
        return ""
    kernels = "1 kernel waits" if eager.kernels == 1 else f"{eager.kernels} kernels wait"
    waits = f"{kernels} {eager.tklqt_us:,.3g} us for launches and queue (TKLQT, {eager.origin})"
    return f"; eager PyTorch is {eager.bound}-bound, its {waits}"


PLAN_RULES: tuple[Callable[[PlanMetrics], RuleHit | None], ...] = (intermediate_traffic, launch_bound)


def _share_beyond(value: float, needed: float) -> float:
    """The part of ``value`` that goes beyond ``needed``, 0 to 1."""
    return max(value - needed, 0.0) / value if value else 0.0


BOUNDS: Mapping[str, Bottleneck] = MappingProxyType(
    {
        "dram": Bottleneck.DRAM_BOUND,
        "l2": Bottleneck.L2_BOUND,
        "host": Bottleneck.HOST_BOUND,
        "arithmetic": Bottleneck.FP32_BOUND,
        "issue": Bottleneck.ISSUE_BOUND,
        "latency": Bottleneck.LATENCY_BOUND,
    }
)
"""What to call a limit that no fault explains."""
