"""Runs over CUDA-L2's grid: what counts as faster, what is missing, and what kernels sum in."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from kernelforge.datasets.cuda_l2 import GRID, REGIONS, Shape, accumulator_of, read_release, regions
from kernelforge.errors import UsageError
from kernelforge.hardware.specs import SPECS
from kernelforge.prediction import predict_baseline
from kernelforge.prediction.operators import product_trace
from kernelforge.records import Attempt, PredictedSpeedup, SideTimes, Verdict
from kernelforge.report.terminal.cuda_l2 import grid_csv, grid_lines, grid_markdown
from kernelforge.report.views.grid import grid_report
from kernelforge.report.views.run_records import RunRecords
from kernelforge.tasks import load_suite
from tests.support.factories import (
    make_attempt,
    make_candidate,
    make_evaluation,
    make_fingerprint,
    make_timing,
    measured,
    modelled,
    not_compared,
)
from tests.support.recorded_run import make_run
from tests.support.terminal import drawn

SINGLE = 'asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {};");'
HALF = 'asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {};");'


def task_of(shape: Shape) -> str:
    return "m{}_n{}_k{}".format(*shape)


def attempt_at(shape: Shape, text: str, verdict: Verdict = Verdict.OK, **evaluation: Any) -> Attempt:
    candidate = make_candidate(source=text)
    return make_attempt(
        0,
        verdict,
        id=f"r1/{task_of(shape)}/00",
        run="r1",
        task=task_of(shape),
        candidate=candidate,
        evaluation=make_evaluation(verdict, candidate=candidate.hash, **evaluation),
        accepted=verdict is Verdict.OK,
    )


def timed(shape: Shape, speedup: float, text: str = SINGLE, **timing: Any) -> Attempt:
    """A right attempt on a GPU, with a baseline 3 times as slow that was not compared in turns."""
    times = make_timing(10.0, speedup)
    slow = SideTimes(name="cublas", samples_us=(30.0,), median_us=30.0, interval_us=(29.0, 31.0), captured=True)
    times = times.model_copy(update={"baselines": (*times.baselines, slow), **timing})
    ratios = {"speedup": speedup, "speedup_lower": 0.99 * speedup}
    return attempt_at(
        shape,
        text,
        fingerprint=make_fingerprint(device="cuda:0", device_kind="cuda"),
        performance=measured(10.0, timing=times, protocol=times.protocol, **ratios),
    )


def records_of(*attempts: Attempt, suite: str = "hgemm", started: str = "r1") -> RunRecords:
    tasks = tuple(dict.fromkeys(attempt.task for attempt in attempts))
    run = make_run(started, device=attempts[0].evaluation.fingerprint.device, suite=suite, tasks=tasks)
    return RunRecords(run, attempts)


def test_the_grid_is_that_of_the_suite_and_its_regions_divide_it() -> None:
    assert [task.name for task in load_suite("hgemm")] == [task_of(shape) for shape in GRID]
    sizes = Counter(region for shape in GRID for region in regions(shape))
    assert tuple(region for region in REGIONS if region in sizes) == REGIONS
    for axis in ("M ", "N ", "K ", "MNK "):
        assert sum(size for region, size in sizes.items() if region.startswith(axis)) == len(GRID) == sizes["all"]


def test_shapes_without_a_right_timed_kernel_are_missing_and_no_wins() -> None:
    quarantined = timed((64, 64, 512), 9.0)
    speed = quarantined.evaluation.performance
    assert speed is not None
    speed = speed.model_copy(update={"speedup": None, "speedup_lower": None, "quarantined": "too fast"})
    evaluation = quarantined.evaluation.model_copy(update={"performance": speed})
    wrong = attempt_at(
        (64, 64, 256), HALF, Verdict.WRONG, fingerprint=make_fingerprint(device="cuda:0", device_kind="cuda")
    )
    report = grid_report(
        [
            records_of(
                timed((64, 64, 64), 4.0),
                timed((64, 64, 128), 1.0),
                timed((8192, 64, 64), 0.5, HALF),
                wrong,
                quarantined.model_copy(update={"evaluation": evaluation}),
                not_compared(timed((64, 64, 1024), 8.0)),
            )
        ]
    )
    by_baseline = {result.baseline: result for result in report.results if result.region == "all"}
    assert list(by_baseline) == ["fastest", "eager", "cublas"]
    fastest, eager, cublas = by_baseline.values()
    assert (fastest.gpu, fastest.origin, fastest.mode, fastest.protocol) == (
        "NVIDIA H200", "measured", "offline", "graph/1",
    )  # fmt: skip
    assert (fastest.shapes, fastest.missing, fastest.wins) == (3, 997, 1)
    assert fastest.win_rate == pytest.approx(1 / 3)
    assert fastest.grid_win_rate == pytest.approx(1 / 1000)
    assert fastest.geomean == pytest.approx(2 ** (1 / 3))
    assert (fastest.clear_wins, fastest.clear_losses) == (1, 1)
    assert fastest.geomean_low == pytest.approx(0.99 * 2 ** (1 / 3))
    assert fastest.faithful == 2
    assert fastest.faithful_geomean == pytest.approx(2.0)
    assert eager.geomean == fastest.geomean
    assert cublas.geomean == pytest.approx(3.0)
    assert cublas.geomean_low == pytest.approx(29.0 / 10.1)
    large = next(result for result in report.results if result.region == "M 4096 to 16384")
    assert (large.grid, large.shapes, large.wins, large.geomean) == (400, 1, 0, 0.5)
    empty = next(result for result in report.results if result.region == "MNK from 2^36")
    assert (empty.shapes, empty.win_rate, empty.geomean, empty.grid_win_rate) == (0, None, None, 0)
    [counts] = report.coverage
    assert (counts.tried, counts.right, counts.timed, counts.refused) == (6, 4, 3, 1)
    assert (counts.float32, counts.float16, counts.narrower) == (3, 1, 1)
    text = drawn(grid_lines(report), width=200)
    assert "33.3%" in text
    assert "1 of 3" in text
    assert "predicted" not in text
    assert "By region: NVIDIA H200, sums in float32, offline, measured" in grid_markdown(report)


def test_a_float16_task_keeps_its_kernels_apart_from_those_with_float32_sums() -> None:
    report = grid_report(
        [
            records_of(timed((64, 64, 64), 2.0)),
            records_of(timed((64, 64, 64), 3.0, HALF), suite="hgemm-f16", started="r2"),
            records_of(timed((64, 64, 64), 1.5, mode="server", protocol="graph/1+server"), started="r3"),
        ]
    )
    fastest = [result for result in report.results if (result.baseline, result.region) == ("fastest", "all")]
    assert [(result.accumulator, result.mode, result.least) for result in fastest] == [
        ("float32", "offline", 2.0),
        ("float16", "offline", 3.0),
        ("float32", "server", 1.5),
    ]
    assert [(counts.float16, counts.narrower) for counts in report.coverage] == [(0, 0), (1, 0), (0, 0)]


def test_of_several_runs_a_shape_has_its_fastest_right_kernel() -> None:
    slower = timed((64, 64, 64), 1.0)
    speed = slower.evaluation.performance
    assert speed is not None
    slower = slower.model_copy(
        update={
            "evaluation": slower.evaluation.model_copy(
                update={"performance": speed.model_copy(update={"time_us": 20.0})}
            )
        }
    )
    gpu = make_fingerprint(device="cuda:0", device_kind="cuda")
    runs = [
        records_of(slower),
        records_of(timed((64, 64, 64), 2.0), started="r2"),
        records_of(attempt_at((64, 64, 64), SINGLE, Verdict.WRONG, fingerprint=gpu), started="r3"),
    ]
    for order in (runs, runs[::-1]):
        [result] = [item for item in grid_report(order, baseline="fastest").results if item.region == "all"]
        assert (result.shapes, result.geomean) == (1, 2.0)


def predicted_at(shape: Shape, time_us: float) -> Attempt:
    eager_us = predict_baseline(product_trace(*shape, "float16", 2), SPECS["h100"]).time_us
    speedup = eager_us / time_us
    predicted = PredictedSpeedup(
        gpu="NVIDIA H100 SXM5 80 GB", speedup=speedup, low=speedup / 2, high=speedup * 2, eager_us=eager_us,
        eager_origin="predicted", eager_source="test",
    )  # fmt: skip
    return attempt_at(shape, SINGLE, performance=modelled(time_us, predicted=predicted))


def test_modelled_runs_have_predicted_speedups_with_their_intervals() -> None:
    shapes = {(64, 64, 64): 3.0, (4096, 4096, 4096): 200.0}
    report = grid_report([records_of(*(predicted_at(shape, time_us) for shape, time_us in shapes.items()))])
    eager, graph = [result for result in report.results if result.region == "all"]
    assert (eager.baseline, graph.baseline) == ("eager", "eager-graph")
    for result in (eager, graph):
        kind = "eager" if result is eager else "graph"
        expected = geometric_mean(
            predict_baseline(product_trace(*shape, "float16", 2), SPECS["h100"], kind).time_us / time_us  # type: ignore[arg-type]
            for shape, time_us in shapes.items()
        )
        assert (result.origin, result.mode, result.protocol) == ("predicted", "offline", "emulated/7")
        assert result.geomean == pytest.approx(expected)
        assert result.geomean_low == pytest.approx(expected / 2)
        assert result.geomean_high == pytest.approx(expected * 2)
    assert graph.geomean is not None
    assert eager.geomean is not None
    assert graph.geomean < eager.geomean
    assert "server mode is not modelled" in drawn(grid_lines(report), width=200)


def test_published_results_are_of_the_shapes_accumulator_and_mode_of_the_runs(tmp_path: Path) -> None:
    folder = tmp_path / "eval_results"
    folder.mkdir()
    rows = "mnk,torch.matmul,cuBLAS-nn,cuBLAS-max\n64_64_64,2.0,9,1.5\n64_64_128,0.5,9,3.0\n"
    for name in (
        "h100_F32F16F16F32_speedup_offline",
        "h100_F32F16F16F32_speedup_server",
        "a100_F16F16F16F16_speedup_offline",
    ):
        (folder / f"cuda_l2_{name}.csv").write_text(rows)
    runs = [records_of(predicted_at((64, 64, 64), 3.0))]
    published = [result for result in grid_report(runs, read_release(tmp_path)).results if result.origin == "published"]
    assert {(result.gpu, result.accumulator, result.mode) for result in published} == {("h100", "float32", "offline")}
    assert [(result.baseline, result.grid, result.geomean) for result in published if result.region == "all"] == [
        ("torch.matmul", 1, 2.0),
        ("cuBLAS-max", 1, 1.5),
    ]
    of_one = grid_report(runs, read_release(tmp_path), baseline="eager")
    assert {result.baseline for result in of_one.results} == {"eager", "torch.matmul"}
    [first, *_] = csv.DictReader(io.StringIO(grid_csv(of_one)))
    assert (first["baseline"], first["region"], first["missing"], first["clear_losses"]) == ("eager", "all", "999", "0")


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(UsageError, match="no attempt at a product of the grid yet"):
        grid_report([])
    with pytest.raises(UsageError, match="there is: fastest, eager, cublas"):
        grid_report([records_of(timed((64, 64, 64), 2.0))], baseline="cutlass")


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "piece",
    [
        "wmma::accumulator,",
        "mma.sync",
        "wgmma.mma_async.",
        "using ElemAcc =",
        "/*",
        "SM80_1x1x",
        "mma_sync(",
        "fragment<accumulator,",
        "fragment<accumulator,half>c,",
        "a::",
    ],
)
def test_no_candidate_takes_long_to_be_searched_for_its_sums(piece: str) -> None:
    assert accumulator_of(piece * (262_144 // len(piece))) == "not seen"
