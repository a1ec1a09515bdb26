"""Metrics and modelled time from counters that are known."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import SandboxError
from kernelforge.hardware.specs import A100, H100, SPECS
from kernelforge.profiling.counts import CLASSES, KernelCounts, MemoryCounts, PlanCounts, by_class, instruction_class
from kernelforge.profiling.demand import DIVISION_OF_FLOATS, DIVISION_OF_INTEGERS, machine_instructions
from kernelforge.profiling.floor import attainable_us
from kernelforge.profiling.metrics import build_profile
from kernelforge.profiling.model import kernel_occupancy, launch_time, plan_time
from kernelforge.records import Origin, Performance, Profile
from tests.support.factories import sum_facts

REGISTERS = {"add": 16, "naive": 32, "tiled": 32}


def streaming(elements: int, *, sectors_per_request: float = 4.0, block: int = 256, name: str = "add") -> KernelCounts:
    """Counters of ``out[i] = a[i] + b[i]``, one thread per element."""
    warps = elements / 32
    blocks = elements // block
    loads = [
        MemoryCounts(
            10 + k, 3, "ld.global.f32", "global", "load", 4, warps, elements, warps * sectors_per_request, warps * 4
        )
        for k in range(2)
    ]
    store = MemoryCounts(20, 4, "st.global.f32", "global", "store", 4, warps, elements, warps * 4, warps * 4)
    return KernelCounts(
        name,
        (blocks, 1, 1),
        (block, 1, 1),
        0,
        0,
        launches=1,
        blocks=blocks,
        blocks_run=blocks,
        thread_instructions=23.0 * elements,
        warp_instructions=23.0 * warps,
        branches=warps,
        divergent_branches=0,
        l1_read_sectors=2 * warps * sectors_per_request,
        l2_read_sectors=2 * warps * sectors_per_request,
        l2_write_sectors=4 * warps,
        dram_read_bytes=8.0 * elements,
        dram_write_bytes=4.0 * elements,
        mix={"add.f32": (warps, elements), "ld.global": (2 * warps, 2 * elements), "st.global": (warps, elements)},
        memory=[*loads, store],
    )


def profiled(*kernels: KernelCounts, elements: int = 1 << 20) -> tuple[Profile, Performance]:
    return build_profile(H100, "emulated:h100", PlanCounts(list(kernels)), REGISTERS, sum_facts(elements))


def test_a_streaming_kernel_moves_its_compulsory_bytes() -> None:
    profile, _ = profiled(streaming(1 << 20))
    assert profile.value("dram__bytes.sum") == 12 << 20
    assert profile.value("dram__bytes_read.sum") == 8 << 20
    assert profile.value("dram__bytes_write.sum") == 4 << 20
    assert profile.roofline.dram_bytes == profile.roofline.compulsory_bytes


def test_every_origin_is_what_it_says() -> None:
    profile, _ = profiled(streaming(1 << 20))
    origins = {metric.name: metric.origin for metric in profile.metrics}
    assert origins["dram__bytes.sum"] is Origin.MODELLED
    assert origins["lts__t_sectors.sum"] is Origin.MODELLED
    assert origins["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] is Origin.COUNTED
    assert origins["ptx__thread_inst_executed.sum"] is Origin.COUNTED
    assert origins["launch__registers_per_thread"] is Origin.COMPILER


def test_sectors_per_request_is_a_ratio_of_sums() -> None:
    profile, _ = profiled(streaming(1 << 20), streaming(1 << 20, sectors_per_request=32.0, name="naive"))
    assert profile.value("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio") == 18.0
    assert profile.value("l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio") == 4.0
    assert profile.value("kernelforge__launches") == 2
    assert profile.value("kernelforge__global_bytes_requested") == 2 * (12 << 20)


def test_sectors_beyond_the_ideal_are_counted_by_access() -> None:
    profile, _ = profiled(streaming(1 << 20, sectors_per_request=32.0, name="naive"))
    assert profile.value("kernelforge__global_sectors_excess_op_ld.sum") == 2 * 28 * (1 << 15)
    assert profile.value("kernelforge__global_sectors_excess_op_st.sum") == 0
    assert profile.value("kernelforge__global_load_bytes_requested") == 8 << 20
    assert profile.value("kernelforge__global_store_bytes_requested") == 4 << 20


def test_bulk_copies_are_not_accesses_of_the_load_and_store_unit() -> None:
    kernel = streaming(1 << 20)
    opcode = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    kernel.memory.append(MemoryCounts(30, 5, opcode, "global", "load", 1024, 8, 8, 256, 256))
    profile, plain = profiled(kernel)[0], profiled(streaming(1 << 20))[0]
    for name in ("sectors", "requests"):
        metric = f"l1tex__t_{name}_pipe_lsu_mem_global_op_ld.sum"
        assert profile.value(metric) == plain.value(metric)
    assert (plain.value("ptx__bulk_copy_sectors.sum"), profile.value("ptx__bulk_copy_sectors.sum")) == (None, 256)


def test_atomics_on_one_word_are_summed_over_the_instructions_that_share_it() -> None:
    kernel = streaming(1 << 20)
    requests, threads = 1 << 15, 1 << 20
    for line in (30, 31):
        op = MemoryCounts(line, 5, "red.global.add.f32", "global", "atomic", 4, requests, threads, addresses=4.0)
        op.word_updates = threads / 4
        kernel.memory.append(op)
    shared = MemoryCounts(32, 6, "atom.shared.add.u32", "shared", "atomic", 4, requests, threads, addresses=2.0)
    shared.word_updates = threads / 2
    kernel.memory.append(shared)
    profile, _ = profiled(kernel)
    assert profile.value("ptx__global_atomics.sum") == 2 << 20
    assert profile.value("ptx__global_atomics_per_address.max") == 2 * (1 << 18)
    assert profile.value("ptx__shared_atomics_per_address.max") == 256 / 2
    assert profile.metric("ptx__shared_atomics_per_address.max").origin is Origin.MODELLED  # type: ignore[union-attr]


def test_barriers_divisions_lanes_and_matrix_instructions_are_counted() -> None:
    kernel = streaming(1 << 20)
    kernel.barriers = 24.0
    kernel.mix |= {"div.s32": (5.0, 160.0), "rem.u64": (7.0, 224.0), "div.f32": (9.0, 9.0), "mma.f32": (2.0, 64.0)}
    profile, _ = profiled(kernel)
    assert profile.value("ptx__block_barriers.sum") == 24
    assert profile.value("ptx__inst_int_division_32.sum") == 5
    assert profile.value("ptx__inst_int_division_64.sum") == 7
    assert profile.value("ptx__inst_matrix.sum") == 2
    assert profile.value("ptx__thread_inst_executed_per_inst_executed.ratio") == 32


def limit_us(profile: Profile, name: str) -> float:
    return profile.kernels[0].limits_us[name]


def test_matrix_products_take_the_time_of_the_tensor_cores_and_of_their_operands() -> None:
    """10^12 operations at 989.4 x 10^12 per second take 1011 us, twice that in TF32, half in FP8."""
    times = {}
    for kind in ("f16.f32", "tf32.f32", "e4m3.f32"):
        kernel = streaming(132 * 256)
        kernel.matrix = {kind: (1e12, 0.0)}
        profile, performance = profiled(kernel)
        assert performance.bound == "tensor"
        assert profile.value("ptx__matrix_operations.sum") == 1e12
        times[kind] = limit_us(profile, "tensor")
    assert times["f16.f32"] == pytest.approx(1e6 / 989.4)
    assert times["tf32.f32"] == pytest.approx(2 * times["f16.f32"])
    assert times["e4m3.f32"] == pytest.approx(times["f16.f32"] / 2)
    kernel.matrix = {"f16.f32": (1.0, 1e12)}
    profile, performance = profiled(kernel)
    assert performance.bound == "shared"
    # 128 bytes per cycle and SM.
    assert limit_us(profile, "shared") == pytest.approx(1e12 / 128 / 132 / H100.clock_hz * 1e6, rel=0.01)


def test_a_kernels_time_under_each_limit_is_on_its_profile() -> None:
    kernel = streaming(1 << 26)
    profile, _ = profiled(kernel, elements=1 << 26)
    time = launch_time(H100, kernel, kernel_occupancy(H100, kernel, 16))
    limits = time.limits_us
    assert profile.kernels[0].limits_us == {**limits, "launch": time.overhead_us * kernel.launches}
    assert profile.kernels[0].modelled_us == pytest.approx(time.time_us * kernel.launches)
    names = {metric.name for metric in profile.kernels[0].metrics}
    assert {"kernelforge__time_us", "kernelforge__limit_launch_us"} <= names
    assert profile.metric("kernelforge__limit_dram_us") is None


def test_launch_metrics_are_those_of_the_kernel_that_takes_most_time() -> None:
    profile, _ = profiled(streaming(1 << 16), streaming(1 << 22, block=128, name="naive"))
    assert profile.value("launch__block_size") == 128
    assert profile.value("launch__grid_size") == (1 << 22) / 128
    assert profile.value("launch__registers_per_thread") == 32
    assert [kernel.kernel for kernel in profile.kernels] == ["add", "naive"]


def test_hot_spots_start_with_the_most_wasteful_instruction() -> None:
    profile, _ = profiled(streaming(1 << 20, sectors_per_request=32.0, name="naive"))
    first, *_, last = profile.kernels[0].hot_spots
    assert (first.source_line, first.opcode) == (3, "ld.global.f32")
    assert first.transactions == 2 * 32 * (1 << 15)
    assert first.ideal_transactions == 2 * 4 * (1 << 15)
    assert last.access == "store"


def test_a_large_streaming_kernel_is_bound_by_dram() -> None:
    _, performance = profiled(streaming(1 << 26), elements=1 << 26)
    assert performance.origin is Origin.MODELLED
    assert performance.protocol == "emulated/7"
    assert performance.bound == "dram"
    floor_us = 12 * (1 << 26) / H100.dram_bandwidth_gbps * 1e-3
    assert floor_us < performance.time_us < 1.5 * floor_us


def test_a_tiny_kernel_is_bound_by_its_launch() -> None:
    _, performance = profiled(streaming(1024), elements=1024)
    assert performance.bound == "launch"
    assert performance.time_us > H100.launch_overhead_us


def test_two_launches_cost_two_overheads() -> None:
    single, double = profiled(streaming(1024))[1], profiled(streaming(1024), streaming(1024, name="naive"))[1]
    assert double.time_us > single.time_us + H100.launch_overhead_us


def test_scattered_loads_are_bound_by_the_caches() -> None:
    kernel = streaming(1 << 24, sectors_per_request=32.0, name="naive")
    kernel.l1_read_hits = kernel.l1_read_sectors
    kernel.l2_read_sectors = 0.0
    modelled = launch_time(H100, kernel, kernel_occupancy(H100, kernel, 32))
    assert modelled.limits_us["l1"] > modelled.limits_us["fp32"]
    assert modelled.limits_us["l1"] == pytest.approx(
        (2 * 8 + 1) * (1 << 24) / 32 / H100.sm_count / H100.clock_hz * 1e6, rel=0.01
    )


def test_a_request_takes_a_cycle_for_each_line() -> None:
    kernel = streaming(1 << 24, sectors_per_request=32.0, name="naive")
    for op in kernel.memory:
        op.lines = op.requests * (32 if op.access == "load" else 1)
    modelled = launch_time(H100, kernel, kernel_occupancy(H100, kernel, 32))
    assert modelled.limits_us["l1"] == pytest.approx(
        (2 * 32 + 1) * (1 << 24) / 32 / H100.sm_count / H100.clock_hz * 1e6, rel=0.01
    )


def test_one_thread_doing_all_the_work_is_bound_by_latency() -> None:
    kernel = streaming(1 << 15, block=32, name="naive")
    kernel.grid = (1, 1, 1)
    kernel.blocks = kernel.blocks_run = 1
    modelled = launch_time(H100, kernel, kernel_occupancy(H100, kernel, 32))
    assert modelled.bound == "latency"


def test_arithmetic_binds_where_there_is_much_of_it() -> None:
    kernel = streaming(1 << 20, name="tiled")
    warps = (1 << 20) / 32
    kernel.mix = {"fma.f32": (4000 * warps, 4000.0 * (1 << 20))}
    kernel.warp_instructions = 4100 * warps
    for spec, bound in ((H100, "issue"), (A100, "fp32")):
        modelled = launch_time(spec, kernel, kernel_occupancy(spec, kernel, 32))
        assert modelled.bound == bound
    # An H100 issues as many multiply-adds as it has lanes for: the rest of the instructions tips the scale.
    assert modelled.limits_us["fp32"] > modelled.limits_us["dram"]


def test_shares_of_the_time_add_up() -> None:
    modelled = plan_time(H100, PlanCounts([streaming(1 << 20)], memsets=2, memset_bytes=1 << 20), REGISTERS)
    assert math.fsum(modelled.share.values()) == pytest.approx(1.0)
    assert modelled.share["launch"] == pytest.approx(3 * H100.launch_overhead_us / modelled.time_us)


def test_memsets_are_counted_as_writes() -> None:
    counts = PlanCounts([streaming(1 << 20)], memsets=1, memset_bytes=4 << 20)
    profile, _ = build_profile(H100, "emulated:h100", counts, REGISTERS, sum_facts(1 << 20))
    assert profile.value("dram__bytes_write.sum") == 8 << 20
    assert profile.value("kernelforge__memsets") == 1
    assert profile.roofline.dram_bytes == 16 << 20


def test_a_plan_without_launches_has_a_time_and_no_ratios() -> None:
    profile, performance = build_profile(H100, "emulated:h100", PlanCounts([]), {}, sum_facts(1))
    assert performance.time_us > 0
    assert profile.value("kernelforge__launches") == 0
    assert profile.metric("lts__t_sector_hit_rate.pct") is None


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("fma.f32", "fp32"),
        ("fma.rn.ftz.f32", "fp32"),
        ("add.f64", "fp64"),
        ("fma.f16x2", "fp16"),
        ("mad.s32", "int"),
        ("mul.wide.u32", "int"),
        ("setp.f32", "fp32"),
        ("setp.s32", "int"),
        ("div.f32", "special"),
        ("div.s32", "int"),
        ("ex2.f32", "special"),
        ("cvt.f32.s32", "convert"),
        ("ld.global", "memory"),
        ("ld.shared.f32", "memory"),
        ("atom.global.f32", "memory"),
        ("shfl.b32", "warp"),
        ("bar.sync", "barrier"),
        ("bra", "control"),
        ("mov.u32", "move"),
        ("surprise", "other"),
    ],
)
def test_operations_have_one_class(operation: str, expected: str) -> None:
    assert instruction_class(operation) == expected
    assert sum(by_class({operation: (3.0, 96.0)}).values()) == 3.0
    assert expected in CLASSES


def test_counts_survive_the_wire() -> None:
    counts = PlanCounts([streaming(1 << 20)], memsets=1, memset_bytes=5)
    assert PlanCounts.from_wire(json.loads(json.dumps(counts.to_wire()))) == counts


def spoil(path: list[Any], value: Any) -> dict[str, Any]:
    wire: Any = json.loads(json.dumps(PlanCounts([streaming(1024)]).to_wire()))
    target = wire
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return wire  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["kernels"], None),
        (["memsets"], -1),
        (["memsets"], 1.5),
        (["kernels", 0, "grid"], [0, 1, 1]),
        (["kernels", 0, "grid"], [1, 1]),
        (["kernels", 0, "launches"], 0),
        (["kernels", 0, "blocks_run"], 10**9),
        (["kernels", 0, "dram_read_bytes"], float("nan")),
        (["kernels", 0, "dram_read_bytes"], "many"),
        (["kernels", 0, "mix"], [1]),
        (["kernels", 0, "memory"], [{}]),
        (["kernels", 0, "memory", 0, "opcode"], "x" * 5000),
        (["kernels", 0, "memory", 0, "in_flight"], 0),
    ],
)
def test_counts_from_a_runner_are_not_believed_unchecked(path: list[Any], value: Any) -> None:
    with pytest.raises(SandboxError, match="profile that cannot be read"):
        PlanCounts.from_wire(spoil(path, value))


def limits_of(kernel: KernelCounts) -> dict[str, float]:
    return dict(launch_time(H100, kernel, kernel_occupancy(H100, kernel, 32)).limits_us)


def adding(opcode: str, *, words: float, lines: float, sectors: float) -> dict[str, float]:
    """Limits of 2**21 atomics of which ``words`` are on one word and ``lines`` sectors on one line, of ``sectors``."""
    kernel = streaming(1 << 21)
    kernel.memory.append(
        MemoryCounts(
            30, 5, opcode, "global", "atomic", 4, 1 << 16, 1 << 21, sectors, word_updates=words, line_updates=lines
        )
    )
    return limits_of(kernel)


def test_atomics_on_one_word_follow_one_another() -> None:
    """An H100 took 1,537 us for 2**21 integers, and 3,685 us for floats (results/reference/h100, ladder atomics)."""
    integers = adding("red.global.add.u32", words=1 << 21, lines=1 << 16, sectors=1 << 16)
    assert integers["atomics"] == pytest.approx(1537, rel=0.01)
    floats = adding("red.global.add.f32", words=1 << 21, lines=1 << 16, sectors=1 << 16)
    assert floats["atomics"] == pytest.approx(3685, rel=0.01)
    assert "atomics" not in limits_of(streaming(1 << 21))


def test_atomics_on_a_few_lines_wait_for_those() -> None:
    """512 neighbouring counters took 40 us, 32 that all warps share 157 us, counters of their own 22 us."""
    few = adding("red.global.add.u32", words=1 << 12, lines=1 << 14, sectors=1 << 18)
    assert few["atomics"] == pytest.approx(40, rel=0.1)
    shared = adding("red.global.add.u32", words=1 << 16, lines=1 << 18, sectors=1 << 18)
    assert shared["atomics"] == pytest.approx(157, rel=0.05)
    own = adding("red.global.add.u32", words=29, lines=117, sectors=1 << 21)
    assert own["atomics"] == pytest.approx(22, rel=0.05)


def test_host_memory_takes_the_link_its_bytes_headers_and_round_trips() -> None:
    def link_us(key: str, requests: float) -> float:
        spec, kernel = SPECS[key], streaming(1 << 20)
        kernel.host_read_sectors, kernel.host_read_requests = 4e6, requests
        return launch_time(spec, kernel, kernel_occupancy(spec, kernel, 16)).limits_us["host"]

    # 128 MB in lines of 128 bytes at 35.19 and 25.1 GB/s; in halves of lines, twice as many headers of 20 bytes.
    assert (link_us("h100", 1e6), link_us("a100", 1e6)) == (pytest.approx(128e3 / 35.19), pytest.approx(128e3 / 25.1))
    assert link_us("a100", 2e6) == pytest.approx(128e3 / 25.1 * (128 + 40) / 148)
    assert link_us("h100", 4e6) == pytest.approx(4e6 * 1.3 / 768)  # sectors one by one: round trips
    assert link_us("gh200", 1e6) == pytest.approx(128e3 / 342)
    assert "host" not in limits_of(streaming(1 << 20))
    facts = sum_facts(1 << 20)
    least = attainable_us(H100, facts.model_copy(update={"host_bytes": 35_190_000}))
    assert least == pytest.approx(1000 + H100.launch_overhead_us)
    assert least > attainable_us(H100, facts)


def test_small_blocks_are_bound_by_their_turnover() -> None:
    """An H100 took 603 us for 10**6 blocks of a warp, 38 us for 50,000 of 1,024 threads without work."""
    for blocks, block, measured in ((1_000_000, 32, 602.5), (50_000, 1024, 38.3)):
        kernel = streaming(blocks * block, block=block)
        assert limits_of(kernel)["blocks"] == pytest.approx(measured, rel=0.06)


def test_stores_that_leave_sectors_incomplete_cost_the_l2_more() -> None:
    kernel = streaming(1 << 22)
    complete = limits_of(kernel)["l2"]
    kernel.memory[-1].transactions *= 8  # one word of each sector
    assert limits_of(kernel)["l2"] - complete == pytest.approx((1 << 22) * 4.3 * 32 / 7300 * 1e-3)


def test_the_time_lies_between_the_largest_limit_and_their_sum() -> None:
    kernel = streaming(1 << 26)
    time = launch_time(H100, kernel, kernel_occupancy(H100, kernel, 32))
    largest, total = max(time.limits_us.values()), sum(time.limits_us.values())
    assert largest < time.time_us - time.overhead_us < total
    assert time.limits_us[time.bound] == largest


def test_dependent_loads_wait_for_one_another() -> None:
    kernel = streaming(132 * 32)
    together = limits_of(kernel)["latency"]
    for op in kernel.memory:
        op.in_flight = 4.0
    assert limits_of(kernel)["latency"] < together
    loads = [op for op in kernel.memory if op.access == "load"]
    for op in loads:
        op.opcode = "red.global.add.f32"  # nothing waits for its result
        op.access = "atomic"
    without = limits_of(kernel)["latency"]
    assert without < 0.5 * together


def test_an_l1_of_half_the_width_takes_twice_as_long_for_the_bytes_of_a_warp() -> None:
    """GeForce cards return 64 bytes per cycle to the registers of an SM, even where all threads read one word."""
    kernel = streaming(1 << 22)
    wide, narrow = (
        launch_time(spec, kernel, kernel_occupancy(spec, kernel, 32)).limits_us["l1"] * spec.clock_hz * spec.sm_count
        for spec in (H100, SPECS["rtx-3080"])
    )
    loads, stores = 2, 1
    assert narrow / wide == pytest.approx((2 * loads + stores) / (loads + stores), rel=0.01)


def test_stores_that_complete_each_others_sectors_are_none_that_write_in_part() -> None:
    """Four words of each thread, one after the other: every store writes a quarter of 16 sectors."""
    kernel = streaming(1 << 22)
    elements = 1 << 22
    words = [
        MemoryCounts(20 + k, 4, "st.global.f32", "global", "store", 4, elements / 128, elements / 4, elements / 8)
        for k in range(4)
    ]
    kernel.memory[-1:] = words
    merged = limits_of(kernel)["l2"]
    kernel.dram_write_bytes *= 4  # the stores are of four arrays
    assert merged < 0.3 * limits_of(kernel)["l2"]
    assert merged == pytest.approx(limits_of(streaming(1 << 22))["l2"])


@pytest.mark.parametrize(
    ("name", "operation", "further"), [("loop_div_int", "div.s32", 2), ("loop_div32", "div.f32", 0)]
)
def test_a_division_is_as_many_instructions_as_an_h100_executes(name: str, operation: str, further: int) -> None:
    """Of loops that divide 2,048 times; with each division of integers they have a sum and an ``or``."""
    ladder = Path(__file__).parents[2] / "results" / "reference" / "h100" / "ladder.jsonl"
    (row,) = (row for row in map(json.loads, ladder.read_text().splitlines()) if row["name"] == name)
    executed, divisions = row["metrics"], 4224 * 2048
    kernel = streaming(1 << 22)
    warps = (1 << 22) / 32
    before = machine_instructions(kernel, warps)
    kernel.mix = {**kernel.mix, operation: (warps, warps * 32), "mov.u32": (warps, warps * 32)}
    each = (machine_instructions(kernel, warps) - before) / warps
    assert each == pytest.approx(executed["smsp__inst_executed.sum"] / divisions - further, rel=0.02)
    division = DIVISION_OF_FLOATS if operation == "div.f32" else DIVISION_OF_INTEGERS[32]
    for pipe, others in (("alu", further / 2), ("fma", further / 2), ("xu", 0)):
        counted = executed[f"smsp__inst_executed_pipe_{pipe}.sum"] / divisions - others
        assert getattr(division, pipe) == pytest.approx(counted, rel=0.05), pipe


def test_the_address_of_an_element_is_one_instruction() -> None:
    kernel = streaming(1 << 22)
    warps = (1 << 22) / 32
    before = machine_instructions(kernel, warps)
    kernel.mix = {**kernel.mix, "mul.wide.s32": (warps, warps * 32), "add.s64": (warps, warps * 32)}
    assert machine_instructions(kernel, warps) - before == pytest.approx(warps)


def time_of(kernel: KernelCounts) -> tuple[float, float]:
    """Time of the work of a kernel on an RTX 3080, and the sum of its limits inside and outside of an SM."""
    spec = SPECS["rtx-3080"]
    time = launch_time(spec, kernel, kernel_occupancy(spec, kernel, 32))
    return time.work_us, time.limits_us["dram"] + time.limits_us["fp32"]


def test_a_block_that_has_the_sm_alone_overlaps_nothing() -> None:
    """Of 1,024 threads an RTX 3080 takes one block per SM, of 512 three."""
    alone, others = streaming(1 << 24, block=1024), streaming(1 << 24, block=512)
    for kernel in (alone, others):
        kernel.mix = {"fma.f32": (1e8, 3.2e9)}
        kernel.barriers = float(kernel.blocks)
    (long, total), (short, same) = time_of(alone), time_of(others)
    assert total == pytest.approx(same, rel=0.01)
    assert long > total > short


def test_at_a_barrier_a_block_waits_for_its_busiest_warp() -> None:
    kernel = streaming(1 << 20)
    warps = (1 << 20) / 32
    kernel.memory.append(MemoryCounts(30, 5, "ld.shared.f32", "shared", "load", 4, warps / 8, warps * 4))
    one_of_eight = limits_of(kernel)["latency"]
    kernel.barriers = float(kernel.blocks)
    waves = math.ceil(kernel.blocks / (8 * 132))
    more = 17 + 7 / 8 * H100.shared_latency_cycles
    assert (limits_of(kernel)["latency"] - one_of_eight) * H100.clock_hz * 1e-6 == pytest.approx(waves * more)
