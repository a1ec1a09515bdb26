"""Launches together: sums add, shares are averaged over what they are shares of, and every metric was measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelforge.errors import DeviceError
from kernelforge.profiling.counts import hot_spots
from kernelforge.profiling.ncu.parse import Instruction, LaunchRow, Value, parse_table, rows_from_wire
from kernelforge.profiling.ncu.profile import (
    PlannedLaunch,
    Roof,
    Subject,
    Weighted,
    bound,
    build_measured_profile,
    memory_counts,
    roll_up,
)
from kernelforge.records import DType, Origin, Profile, SizeFacts, TensorSpec

CAPTURES = Path(__file__).parent / "captures"
NS, BYTE, PERCENT = "ns", "byte", "%"


def row(symbol: str = "f", grid: int = 4, time_ns: float = 1000.0, **metrics: tuple[float, str]) -> LaunchRow:
    """By hand; ``a__b`` in a name is ``a__b``, ``_DOT_`` a dot."""
    named = {name.replace("_DOT_", "."): Value(*value) for name, value in metrics.items()}
    named["gpu__time_duration.sum"] = Value(time_ns, NS)
    return LaunchRow(symbol, (grid, 1, 1), (128, 1, 1), named)


def facts() -> SizeFacts:
    spec = TensorSpec.contiguous((1024,), DType.FLOAT32)
    return SizeFacts(
        size="full", inputs=(spec,), outputs=(spec,), weights=(), attrs={}, compulsory_bytes=8192, flops=2048,
        eager_launches=1,
    )  # fmt: skip


def subject(*launches: tuple[str, int], **changes: object) -> Subject:
    planned = [PlannedLaunch(name.upper(), name, (grid, 1, 1), (128, 1, 1)) for name, grid in launches]
    settings: dict[str, object] = {"device": "cuda:0", "launches": planned, "facts": facts(), "roof": Roof(14.0, 3.5)}
    return Subject(**(settings | {"launch_overhead_us": 0.1} | changes))  # type: ignore[arg-type]


def built(*rows: LaunchRow, launches: list[tuple[str, int]], **changes: object) -> Profile:
    return build_measured_profile(subject(*launches, **changes), rows)


def test_sums_add_up_and_a_counters_mean_over_units_does_too() -> None:
    rows = [
        row(dram__bytes_DOT_sum=(100, BYTE), sm__cycles_active_DOT_avg=(7, "cycle")),
        row(dram__bytes_DOT_sum=(50, BYTE), sm__cycles_active_DOT_avg=(3, "cycle")),
    ]
    rolled = roll_up([Weighted(rows[0], 2.0), Weighted(rows[1])])
    assert rolled["dram__bytes.sum"] == Value(250, BYTE)
    assert rolled["sm__cycles_active.avg"] == Value(17, "cycle")
    assert rolled["gpu__time_duration.sum"] == Value(3000, NS)


def test_shares_are_weighted_by_time_and_never_summed() -> None:
    name = "dram__throughput_DOT_avg_DOT_pct_of_peak_sustained_elapsed"
    rolled = roll_up([Weighted(row(time_ns=3000, **{name: (80, PERCENT)})), Weighted(row(**{name: (40, PERCENT)}))])
    assert rolled[name.replace("_DOT_", ".")].value == pytest.approx(70)


def test_a_rate_of_all_launches_is_their_sum_over_their_time() -> None:
    rows = [
        row(time_ns=1000, dram__bytes_DOT_sum=(4000, BYTE), dram__bytes_DOT_sum_DOT_per_second=(4e9, "byte/s")),
        row(time_ns=3000, dram__bytes_DOT_sum=(3000, BYTE), dram__bytes_DOT_sum_DOT_per_second=(1e9, "byte/s")),
    ]
    rolled = roll_up([Weighted(launch) for launch in rows])
    assert rolled["dram__bytes.sum.per_second"].value == pytest.approx(7000 / 4000e-9)


def test_a_hit_rate_is_weighted_by_sectors_rather_than_time() -> None:
    rows = [
        row(time_ns=9000, lts__t_sector_hit_rate_DOT_pct=(100, PERCENT), lts__t_sectors_DOT_sum=(10, "sector")),
        row(time_ns=1, lts__t_sector_hit_rate_DOT_pct=(0, PERCENT), lts__t_sectors_DOT_sum=(30, "sector")),
    ]
    assert roll_up([Weighted(launch) for launch in rows])["lts__t_sector_hit_rate.pct"].value == pytest.approx(25)


def test_launch_figures_are_those_of_the_shape_that_takes_most_time() -> None:
    short = [Weighted(row(grid=4, time_ns=100, launch__grid_size=(4, "block"))) for _ in range(5)]
    long = Weighted(row(grid=9, time_ns=400, launch__grid_size=(9, "block")))
    assert roll_up([long, *short])["launch__grid_size"].value == 4


def test_metrics_with_other_units_or_in_some_launches_only_are_left_out() -> None:
    rolled = roll_up([Weighted(row(a_DOT_sum=(1, BYTE), b_DOT_sum=(1, BYTE))), Weighted(row(a_DOT_sum=(1, "inst")))])
    assert set(rolled) == {"gpu__time_duration.sum"}


def test_two_shapes_of_one_kernel_stand_for_their_own_launches() -> None:
    profile = built(
        row(grid=4, dram__bytes_DOT_sum=(10, BYTE)),
        row(grid=8, dram__bytes_DOT_sum=(100, BYTE)),
        launches=[("f", 4)] * 3 + [("f", 8)],
    )
    (kernel,) = profile.kernels
    assert profile.value("dram__bytes.sum") == 130
    assert (kernel.launches, kernel.grid) == (4, (4, 1, 1))
    assert kernel.sampled == pytest.approx(12 / 20)
    assert profile.notes == ()


def test_launches_that_were_not_profiled_are_told() -> None:
    profile = built(row(grid=4), launches=[("f", 4), ("f", 8), ("g", 4), ("g", 4)])
    assert profile.notes == (
        "1 launches of F with other grids were not profiled.",
        "2 launches of G were not profiled.",
    )
    assert [kernel.kernel for kernel in profile.kernels] == ["F"]


def test_kernels_of_other_names_are_not_the_plans() -> None:
    profile = built(row("f"), row("f_too", time_ns=1e9), launches=[("f", 4)])
    assert profile.value("gpu__time_duration.sum") == 1000
    with pytest.raises(ValueError, match="none of the plan's kernels"):
        built(row("f_too"), launches=[("f", 4)])


def test_floating_point_operations_are_counted_by_precision() -> None:
    ops = {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on_DOT_sum": (10.0, "inst") for op in ("fadd", "fmul", "ffma")
    }
    ops |= {
        f"smsp__sass_thread_inst_executed_op_{op}_pred_on_DOT_sum": (1.0, "inst") for op in ("hadd", "hmul", "hfma")
    }
    profile = built(row(**ops), launches=[("f", 4)])
    assert profile.value("kernelforge__flops_fp32.sum") == 40
    assert profile.value("kernelforge__flops_fp16.sum") == 8
    assert profile.value("kernelforge__flops_fp64.sum") is None


def test_the_bound_is_the_busiest_unit_or_latency() -> None:
    dram = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
    l1 = "l1tex__throughput.avg.pct_of_peak_sustained_active"
    assert bound({dram: Value(80, "%"), l1: Value(70, "%")}) == "dram"
    assert bound({dram: Value(30, "%"), l1: Value(59, "%")}) == "latency"
    memory = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    l2 = "lts__throughput.avg.pct_of_peak_sustained_active"
    # As an H100 counts a softmax of 32 MB, and one that moves more.
    assert bound({dram: Value(40.3, "%"), l2: Value(75.5, "%"), memory: Value(40.3, "%")}) == "latency"
    assert bound({dram: Value(78.0, "%"), l2: Value(91.0, "%"), memory: Value(78.0, "%")}) == "dram"
    assert bound({dram: Value(20.0, "%"), l2: Value(91.0, "%"), memory: Value(85.0, "%")}) == "l2"
    shared = {"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": Value(100, "wavefront")}
    assert bound({l1: Value(90, "%"), **shared, "l1tex__t_sectors.sum": Value(40, "sector")}) == "shared"
    assert bound({l1: Value(90, "%"), **shared, "l1tex__t_sectors.sum": Value(4000, "sector")}) == "l1"


def test_kernels_shorter_than_a_launch_are_bound_by_launches() -> None:
    assert built(row(time_ns=1000), launches=[("f", 4)], launch_overhead_us=2.3).roofline.bound == "launch"


def spot(sass: str, line: int = 3, file: str = "candidate.cu", **counts: float) -> Instruction:
    return Instruction(line, file, sass, executed=10.0, **counts)


def test_hot_spots_are_the_candidates_lines_by_what_could_be_saved() -> None:
    instructions = (
        spot("LDG.E R2, [R2.64]", 3, sectors=40, ideal_sectors=40),
        spot("@!P3 LDG.E.64 R2, [R2.64]", 5, sectors=320, ideal_sectors=40),
        spot("STS [R1], R2", 7, wavefronts=320, ideal_wavefronts=10),
        spot("ATOMG.ADD R2, [R2.64]", 900, "/x/cub/block.cuh", sectors=20, ideal_sectors=20),
    )
    launch = LaunchRow("f", (1, 1, 1), (32, 1, 1), {"gpu__time_duration.sum": Value(1, NS)}, instructions)
    spots = hot_spots(memory_counts([Weighted(launch, 2.0)], "candidate.cu"))
    assert [(s.source_line, s.opcode, s.space, s.access) for s in spots] == [
        (7, "STS", "shared", "store"),
        (5, "LDG.E.64", "global", "load"),
        (3, "LDG.E", "global", "load"),
        (0, "ATOMG.ADD", "global", "atomic"),
    ]
    assert (spots[1].requests, spots[1].transactions, spots[1].ideal_transactions) == (20, 640, 80)


def test_a_captured_launch_makes_a_whole_profile() -> None:
    (captured,) = parse_table((CAPTURES / "transposeCoalesced_ncu2024.1_rtx_a4500.csv").read_text())
    launch = PlannedLaunch("transposeCoalesced", captured.symbol, captured.grid, captured.block)
    profile = build_measured_profile(subject(launches=[launch]), [captured])
    assert profile.roofline.time_us == pytest.approx(1420.832)
    assert profile.roofline.floor_us == 3.5
    assert profile.roofline.bound == "shared"  # the sample is about bank conflicts
    assert profile.kernels[0].block == (32, 8, 1)
    assert profile.value("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") == 8388608
    assert profile.value("launch__registers_per_thread") == 24
    assert {metric.origin for metric in profile.metrics} == {Origin.MEASURED}
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_rows_survive_the_wire_and_nothing_else_does() -> None:
    original = LaunchRow("f", (1, 2, 3), (4, 1, 1), {"a.sum": Value(1.5, BYTE)}, (spot("LDG R1", sectors=4.0),))
    assert rows_from_wire([original.to_wire()]) == [original]
    for broken in (
        3,
        [3],
        [{}],
        [original.to_wire() | {"grid": [0, 1, 1]}],
        [original.to_wire() | {"metrics": {"a": ["x", ""]}}],
    ):
        with pytest.raises(DeviceError):
            rows_from_wire(broken)


def samples() -> Path | None:
    """Folder of the sample reports of Nsight Compute's documentation."""
    places = [os.environ.get("NSIGHT_COMPUTE_SAMPLES", ""), "/usr/share/doc/nsight-compute/examples"]
    places += [str(path) for path in Path("/opt/nvidia/nsight-compute").glob("*/extras/samples")]
    return next((Path(folder) for folder in places if folder and list(Path(folder).glob("*/*.ncu-rep"))), None)


@pytest.mark.skipif(samples() is None, reason="no sample reports of Nsight Compute (NSIGHT_COMPUTE_SAMPLES)")
def test_a_report_reads_as_its_csv_does_with_every_instruction_at_its_address() -> None:
    module = pytest.importorskip("ncu_report")
    from kernelforge.profiling.ncu.parse import read_report

    folder = samples()
    assert folder is not None
    (read,) = read_report(str(folder / "sharedBankConflicts" / "transposeCoalesced.ncu-rep"), module)
    (captured,) = parse_table((CAPTURES / "transposeCoalesced_ncu2024.1_rtx_a4500.csv").read_text())
    assert (read.symbol, read.grid, read.block) == (captured.symbol, captured.grid, captured.block)
    for name, value in captured.metrics.items():
        assert read.metrics[name].unit == value.unit, name
        assert read.metrics[name].value == pytest.approx(value.value, abs=0.006), name
    spots = hot_spots(memory_counts([Weighted(read)]))
    # 32 threads of a warp read one bank: the sample is about that.
    assert [(spots[0].space, spots[0].access), spots[0].transactions // spots[0].ideal_transactions] == [
        ("shared", "load"), 32,
    ]  # fmt: skip
    assert all(hot_spot.transactions == hot_spot.ideal_transactions for hot_spot in spots if hot_spot.space == "global")
