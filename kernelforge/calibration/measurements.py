"""The measurements of a calibration: each times loops of one kernel that are bound by one limit of a GPU.

A figure comes from the difference of two lengths of a loop (or of two grids), so that what does not grow with it (the
launch, the first pass through cold caches) cancels. No measurement knows how times are modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelforge.calibration.plan_timer import PlanTimer
from kernelforge.errors import TimingError
from kernelforge.hardware.specs import MIB

ROUNDS = "ROUNDS"
"""In a plan's text: the number that is varied."""

STEPS = 64
"""Loads of one round of a chain, and instructions of one round of ``lone_warp``: ``STEPS`` in ``latency.cu``."""
LOOP_INSTRUCTIONS = 3
"""Of each round: counter, comparison, branch."""
VECTORS = 8
"""Loads of 16 bytes of a thread in one batch: ``BATCH`` in ``bandwidth.cu``."""
BATCHES = 8
"""Batches of a block of 1,024 threads in a round of ``read_l2``: 1 MiB, more than any L1 holds."""
OF_A_ROUND = 64
"""Instructions of a thread in one round of the kernels in ``throughput.cu``."""
PRODUCTS = 16
"""Matrix products of a warp in one round of the kernels in ``tensor.cu``."""
LINES = 8
"""Lines that are updated in turns."""

Values = Mapping[str, float]
"""Values by name: a field of :class:`~kernelforge.hardware.specs.DeviceSpec`, or one of :data:`CHECKS`."""

CHECKS: Mapping[str, str] = {
    "dram_copy_gbps": "GB/s",
    "shared_bytes_per_cycle": "bytes per cycle and SM",
    "fp32_lanes_per_sm": "lanes",
    "atomic_apart_ns": "ns per sector",
    "partial_sector_cost": "times a complete sector's",
    "lone_warp_cycles": "cycles per instruction",
}
"""Values that no parameter file holds, with their units: published, kept by generation, or not in the model."""


def per_round_us(timer: PlanTimer, file: str, forward: str, rounds: int, setup: str = "") -> float:
    """Time that one more round takes: that of twice as many rounds, less that of ``rounds``, over ``rounds``.

    Raises:
        TimingError: twice as many took no longer.
    """
    short, long = (
        timer.time_us(file, forward.replace(ROUNDS, str(count)), setup.replace(ROUNDS, str(count)))
        for count in (rounds, 2 * rounds)
    )
    if long <= short:
        raise TimingError(
            f"{file}.cu on {timer.device.name}: {2 * rounds} rounds took {long:g} us and {rounds} took {short:g}; "
            "nothing can be said of the rate. Let nothing else use the GPU"
        )
    return (long - short) / rounds


def latencies(timer: PlanTimer) -> Values:
    """Cycles from a load to the next that needs its result, and those of a lone warp per independent instruction."""

    def step_cycles(forward: str, rounds: int, setup: str = "") -> float:
        return timer.facts.cycles(per_round_us(timer, "latency", forward, rounds, setup)) / STEPS

    overhead = 1 + LOOP_INSTRUCTIONS / STEPS
    issue = step_cycles("lone_warp[1, 32](out, i32(ROUNDS), f32(1.0), f32(0.5))", timer.rounds(64)) / overhead
    chase = "follow_ring[1, 1](prepared, out, i32(ROUNDS))"
    totals = {
        # 8 KiB; 1 MiB, twice and four times around; 16 MiB, of which no line is visited twice.
        "l1_latency_cycles": step_cycles(chase, timer.rounds(16), _ring(128, 64)),
        "l2_latency_cycles": step_cycles(chase, 256, _ring(8192, 128)),
        "dram_latency_cycles": step_cycles(chase, 64, _ring(65536, 256)),
        "shared_latency_cycles": step_cycles("follow_shared_ring[1, 32](out, i32(ROUNDS))", timer.rounds(16)),
    }
    return totals | {"lone_warp_cycles": issue}


def _ring(slots: int, step: int) -> str:
    """Setup of a chain through ``slots`` words that are ``step`` bytes apart."""
    return f"""ring = empty(({slots * step},), dtype=uint8)
        make_ring[ceil_div({slots}, 256), 256](ring, i64({slots}), i64({step}))
        return ring"""


def bandwidths(timer: PlanTimer) -> Values:
    """Bandwidths of DRAM, L2, L1 and shared memory."""
    facts = timer.facts
    least = max(4 * facts.l2_bytes, (256 if timer.measures else 32) * MIB)

    def data(nbytes_per_block: int) -> str:
        return f"""data = empty((ROUNDS * {nbytes_per_block // 4},), dtype=int32)
            touch[1, 32](data)
            return data"""

    def per_block_ns(forward: str, nbytes: int) -> float:
        return 1e3 * per_round_us(timer, "bandwidth", forward, -(-least // nbytes), data(nbytes))

    block = VECTORS * 16 * 256
    read_gbps = block / per_block_ns("read_once[ROUNDS, 256](prepared, out)", block)
    copied = "copied = empty_like(prepared)\ncopy_once[ROUNDS, 256](prepared, copied)\ntouch[1, 32](out)"
    sectors, apart = VECTORS * 256, 256
    sector_ns = per_block_ns(f"read_sectors[ROUNDS, 256](prepared, out, i32({apart // 4}))", sectors * apart) / sectors

    sms = facts.sm_count
    shared_data = f"""data = empty(({BATCHES * VECTORS * 4096},), dtype=int32)
        touch[1, 32](data)
        return data"""
    passed = BATCHES * VECTORS * 16 * 1024

    def again_us(forward: str, rounds: int) -> float:
        return per_round_us(timer, "bandwidth", forward, rounds, shared_data if "prepared" in forward else "")

    l2_us = again_us(f"read_l2[{sms}, 1024](prepared, out, i32(ROUNDS), i32({BATCHES}))", timer.rounds(2))
    port_us = again_us(f"read_l2[1, 1024](prepared, out, i32(ROUNDS), i32({BATCHES}))", timer.rounds(2))
    l1_us = again_us(f"read_l1[{sms}, 1024](prepared, out, i32(ROUNDS))", timer.rounds(16))
    shared_us = again_us(f"read_shared[{sms}, 1024](out, i32(ROUNDS))", timer.rounds(16))

    def stores_us(kernel: str) -> float:
        forward = f"""words = empty(({sms * 1024 * 8},), dtype=int32)
            touch[1, 32](out)
            {kernel}[{sms}, 1024](words, out, i32(ROUNDS))"""
        return again_us(forward, timer.rounds(16))

    part_us, full_us = stores_us("store_words"), stores_us("store_sectors")
    return {
        "dram_sustained_gbps": read_gbps * (1 + facts.dram_ecc_share),
        "dram_copy_gbps": 2 * block / per_block_ns(copied, block),
        "l2_fetch_bytes": sector_ns * read_gbps,
        "l2_bandwidth_gbps": passed * sms / l2_us * 1e-3,
        "l2_to_sm_bytes_per_cycle": passed / facts.cycles(port_us),
        "l1_bytes_per_cycle": VECTORS * 16 * 1024 / facts.cycles(l1_us),
        "shared_bytes_per_cycle": VECTORS * 16 * 1024 / facts.cycles(shared_us),
        "partial_sector_cost": part_us / (2 * full_us),
    }


def throughputs(timer: PlanTimer) -> Values:
    """Results per cycle and SM of each kind of arithmetic, with as many warps as the GPU takes."""
    facts = timer.facts
    warps = facts.sm.warps
    grid = f"{facts.sm_count * warps // 8}, 256"

    def lanes(kernel: str, more: str = "") -> float:
        forward = f"{kernel}[{grid}](out, i32(ROUNDS){more})"
        cycles = facts.cycles(per_round_us(timer, "throughput", forward, timer.rounds(16)))
        return warps * 32 * OF_A_ROUND / cycles

    return {
        "fp32_lanes_per_sm": lanes("fma_fp32", ", f32(3), f32(1)"),
        "fp64_lanes_per_sm": lanes("fma_fp64", ", f64(3), f64(1)"),
        "int32_lanes_per_sm": lanes("mad_int", ", i32(3), i32(1)"),
        "special_lanes_per_sm": lanes("special"),
    }


def tensor_peaks(timer: PlanTimer) -> Values:
    """Rates of the tensor cores by ``mma``, in 10^12 operations per second; empty where there is none."""
    facts = timer.facts
    if facts.compute_capability < (7, 5):
        return {}
    warps = facts.sm_count * facts.sm.warps

    def tflops(kernel: str, operations: int) -> float:
        forward = f"{kernel}[{warps // 8}, 256](out, i32(ROUNDS))"
        return warps * PRODUCTS * operations / per_round_us(timer, "tensor", forward, timer.rounds(8)) * 1e-6

    if facts.compute_capability < (8, 0):
        return {"fp16_tensor_tflops": tflops("products_fp16", 2 * 16 * 8 * 8)}
    return {
        "fp16_tensor_tflops": tflops("products_fp16", 2 * 16 * 8 * 16),
        "tf32_tensor_tflops": tflops("products_tf32", 2 * 16 * 8 * 8),
    }


def atomics(timer: PlanTimer) -> Values:
    """Times between updates of one word, of one line, of some lines in turns, and of sectors all apart."""
    threads = 256

    def request_ns(kernel: str, step: int, lines: int, blocks: int = 32) -> float:
        setup = f"spread = empty((32,), dtype=int32)\nset_spread[1, 32](spread, i32({step}))\nreturn spread"
        kind = "int32" if kernel == "add_ints" else "float32"
        forward = f"""words = empty(({32 * lines},), dtype={kind})
            {kernel}[{blocks}, {threads}](words, prepared, i32(ROUNDS), i32({lines}))
            set_spread[1, 32](out, i32(0))"""
        requests = blocks * threads // 32
        return 1e3 * per_round_us(timer, "atomics", forward, timer.rounds(16), setup) / requests

    sector_ns = request_ns("add_ints", 1, 1) / 4
    in_turns_ns = request_ns("add_ints", 1, LINES) / 4 * LINES
    return {
        "atomic_ns": request_ns("add_ints", 0, 1) / 32,
        "atomic_float_ns": request_ns("add_floats", 0, 1) / 32,
        "atomic_sector_ns": sector_ns,
        # The other lines are all but one of LINES.
        "atomic_line_ns": (in_turns_ns - sector_ns) / (1 - 1 / LINES),
        "atomic_apart_ns": request_ns("add_ints", 1, timer.facts.warps, timer.facts.warps * 32 // threads) / 4,
    }


def launches(timer: PlanTimer) -> Values:
    """Cost of blocks that do nothing, of 1 and of 32 warps; and of a launch in a graph, less that of its block."""
    facts = timer.facts

    def block_cycles(warps: int) -> float:
        forward = f"nothing[{facts.sm_count} * ROUNDS, {32 * warps}]()\ntouch[1, 32](out)"
        return facts.cycles(per_round_us(timer, "launches", forward, timer.rounds(256)))

    smallest, largest = block_cycles(1), block_cycles(32)
    per_warp = (largest - smallest) / 31
    launch_us = per_round_us(timer, "launches", "for i in range(ROUNDS):\n    nothing[1, 32]()\ntouch[1, 32](out)", 32)
    return {
        "block_cycles": smallest - per_warp,
        "block_cycles_per_warp": per_warp,
        "launch_overhead_us": launch_us - smallest / facts.cycles(1.0),
    }


@dataclass(frozen=True)
class Group:
    """Measurements that share their kernels."""

    title: str
    measure: Callable[[PlanTimer], Values]


GROUPS = (
    Group("latencies", latencies),
    Group("bandwidths", bandwidths),
    Group("arithmetic", throughputs),
    Group("tensor cores", tensor_peaks),
    Group("atomics", atomics),
    Group("blocks and launches", launches),
)
