"""Published launches that hold the emulated device to what GPUs measured: kernels are right, cases complete."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelforge.hardware.specs import SPECS
from tests.devices.emulated.harness import Device
from tests.support.benchmark_scripts import benchmark_script

SCRIPT = benchmark_script("fidelity")
LAUNCHES = benchmark_script("fidelity_parts.launches")
SCORES = benchmark_script("fidelity_parts.scores")
PUBLISHED = SCRIPT.launches_of(SCRIPT.FOLDER)
ENTRIES = {source: {p.case["entry"] for p in PUBLISHED if p.case["source"] == source} for source in
           {p.case["source"] for p in PUBLISHED}}  # fmt: skip


@functools.cache
def built(source: str) -> tuple[Any, Device]:
    """A source with all kernels that cases name, for the RTX 30 series."""
    made = LAUNCHES.build(SCRIPT.FOLDER / source, "sm_86", tuple(sorted(ENTRIES[source])))
    return made, Device(made.ptx)


def launch(source: str, entry: str, grid: Any, block: Any, *arguments: Any, shared: int = 0) -> None:
    made, device = built(source)
    device.run(grid, block, *arguments, kernel=made.names[entry], shared=shared)


def test_every_published_launch_has_a_gpu_a_kernel_and_a_provenance() -> None:
    assert len(ENTRIES) == 4
    assert sum(map(len, ENTRIES.values())) >= 40
    for published in PUBLISHED:
        assert SCRIPT.spec_of(published.gpu).key in SPECS
        assert published.case["provenance"]
        assert published.measured_us or published.case["expected"]
        for argument in published.case["args"]:
            assert argument.get("ptr") or argument["scalar"] in LAUNCHES.SCALARS
    assert len({published.key for published in PUBLISHED}) == len(PUBLISHED)


SQUARES = {  # entry → blocks along x and y, threads, for 256 x 256 elements
    "product_down": ((8, 8), (32, 32)),
    "product_along<32>": ((8, 8), 1024),
    "product_tile<32>": ((8, 8), 1024),
    "product_column<64, 64, 8, 8>": ((4, 4), 512),
    "product_square_of_thread<128, 128, 8, 8>": ((2, 2), 256),
    "product_by_fours<128, 128, 8, 8, ROWS>": ((2, 2), 256),
    "product_by_fours<128, 128, 8, 8, INTERLEAVED>": ((2, 2), 256),
    "product_by_fours<128, 128, 8, 8, PADDED>": ((2, 2), 256),
    "product_squares_apart<128, 128, 16, 8>": ((2, 2), 256),
    "product_warp_tile<128, 128, 16, 64, 64, 4, 8, 4, 128>": ((2, 2), 128),
    "product_two_buffers<128, 256, 16, 128, 32, 1, 8, 8, 256>": ((1, 2), 256),
}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("entry", SQUARES)
def test_products_are_those_of_numpy(entry: str) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.random((256, 256), np.float32) for _ in range(3))
    want = 0.5 * (a.astype(np.float64) @ b) + 3.0 * c
    grid, block = SQUARES[entry]
    launch("products.cu", entry, grid, block, 256, 256, 256, 0.5, a, b, 3.0, c)
    np.testing.assert_allclose(c, want, rtol=1e-5)


SUMS = {"sum_modulo": 1, "sum_strided": 1, "sum_halves": 1, "sum_two_first": 2, "sum_last_warp": 2,
        "sum_unrolled<256>": 2, "sum_many<256, 128>": 128, "sum_shuffles<256, 128>": 128}  # fmt: skip


@pytest.mark.parametrize("entry", SUMS)
def test_sums_of_blocks_are_those_of_numpy(entry: str) -> None:
    x = np.random.default_rng(4).random(2 * 256 * SUMS[entry], np.float32)
    out = np.zeros(2, np.float32)
    launch("reductions.cu", entry, 2, 256, x, out, *([x.size] if "shuffles" in entry else []))
    np.testing.assert_allclose(out, x.reshape(2, -1).sum(1), rtol=1e-5)


PARTS = {"part_modulo": 1, "part_strided": 1, "part_halves": 1, "part_two_first": 2, "part_last_warp": 2,
         "part_unrolled": 2, "part_many": 2}  # fmt: skip


@pytest.mark.parametrize("entry", PARTS)
def test_sums_of_parts_are_those_of_numpy(entry: str) -> None:
    x = np.random.default_rng(5).integers(0, 1000, 3 * 512 * PARTS[entry]).astype(np.uint32)
    out = np.zeros(3, np.uint32)
    launch("reductions.cu", entry, 3, 512, x, x.size, out, shared=2048)
    assert np.array_equal(out, x.reshape(3, -1).sum(1))


TOTALS = {"total_by_tree<512, 20>": (512, 1, 20), "total_by_shuffles<1024, 16>": (1024, 4, 16),
          "total_by_shared_atomics<1024, 16, false>": (1024, 4, 16),
          "total_by_shared_atomics<1024, 16, true>": (1024, 4, 16)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("entry", TOTALS)
def test_totals_are_those_of_numpy(entry: str) -> None:
    threads, width, each = TOTALS[entry]
    x = np.random.default_rng(6).integers(0, 100, threads * width * each).astype(np.int32)
    out = np.zeros(1, np.int32)
    launch("reductions.cu", entry, 1, threads, x, out, x.size // width)
    assert out[0] == x.sum()


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["image_global", "image_constant", "image_tile"])
def test_images_keep_their_size_and_are_limited(entry: str) -> None:
    """Weights in constant memory are zero here."""
    image = np.random.default_rng(7).random((40, 40), np.float32)
    out = np.full((40, 40), 7, np.float32)
    mask = np.full((5, 5), 0.1, np.float32)
    grid, shared = ((4, 4), 1024) if entry == "image_tile" else ((3, 3), 0)
    masks = (mask,) if entry == "image_global" else ()
    launch("convolutions.cu", entry, grid, (16, 16), image, *masks, out, 5, 5, 40, 40, 1, shared=shared)
    padded = np.pad(image.astype(np.float64), 2)
    full = sum(padded[i : i + 40, j : j + 40] for i in range(5) for j in range(5)) * np.float32(0.1)
    np.testing.assert_allclose(out, np.clip(full, 0, 1) if masks else np.zeros((40, 40)), rtol=1e-5)


@pytest.mark.parametrize(("entry", "grid", "block"), [
    ("transpose_direct", (2, 4), (32, 16)), ("transpose_tile", (2, 4), (32, 16)),
    ("transpose_two_tiles", (1, 4), (32, 16)),
])  # fmt: skip
def test_transposes_are_those_of_numpy(entry: str, grid: Any, block: Any) -> None:
    x = np.random.default_rng(8).random((64, 64), np.float32)
    out = np.zeros_like(x)
    launch("elements.cu", entry, grid, block, x, out, 64, 64)
    assert np.array_equal(out, x.T)


@pytest.mark.parametrize(("entry", "block"), [("transpose_eight_rows", (32, 8)), ("transpose_fours", (8, 32))])
def test_transposes_that_write_first_are_those_of_numpy(entry: str, block: Any) -> None:
    x = np.random.default_rng(9).random((64, 64), np.float32)
    out = np.zeros_like(x)
    launch("elements.cu", entry, (2, 2), block, out, x, 64, 64)
    assert np.array_equal(out, x.T)


@pytest.mark.parametrize("entry", ["rms_norm_rows", "rms_norm_fours"])
def test_rows_are_normalised_by_their_mean_square(entry: str) -> None:
    x = np.random.default_rng(10).random((2, 1024), np.float32)
    weight = np.random.default_rng(11).random(1024, np.float32)
    out = np.zeros_like(x)
    launch("elements.cu", entry, 2, 256, x, weight, out, 2, 1024, 1e-5, shared=1024)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, x / root * weight, rtol=1e-5)


@pytest.mark.slow
def test_a_launch_is_profiled_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    n = 1 << 14
    case = {
        "id": "add", "group": "ladder", "source": "elements.cu", "entry": "add_vectors", "grid": [n // 256, 1, 1],
        "block": [256, 1, 1], "dynamic_shared_bytes": 0,
        "args": [*({"ptr": "float32", "shape": [n]} for _ in range(2)), {"ptr": "float32", "shape": [n], "out": True},
                 {"scalar": "int32", "value": n}],
        "gpu": "Tesla T4", "cc": "7.5", "clock_mhz": 585, "time_us": 5.0, "provenance": "this test",
        "expected": {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": n / 4},
    }  # fmt: skip
    slow = {**case, "id": "down", "entry": "add_down", "grid": [8, 8, 1], "block": [16, 16, 1], "time_us": 50.0}
    slow["args"] = [*case["args"][:3], *({"scalar": "int32", "value": 128} for _ in range(2))]  # type: ignore[index]
    (tmp_path / "cases.json").write_text(json.dumps({"note": "", "cases": [case, slow]}))
    (tmp_path / "elements.cu").write_text((SCRIPT.FOLDER / "elements.cu").read_text())
    out = tmp_path / "out"
    out.mkdir()
    keys = tuple(published.key for published in SCRIPT.launches_of(tmp_path))
    assert SCRIPT.emulate_part((tmp_path, out, "elements.cu", "Tesla T4", keys)) == 0
    picture = tmp_path / "times.svg"
    assert SCRIPT.compare(tmp_path, out, True, picture) == 0
    printed = capsys.readouterr().out
    assert "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum: equal 1 of 2" in printed
    assert "ladder on Tesla T4: tau 1.00, 1 of 1 pairs in order" in printed
    assert picture.read_text().count("<circle") == 3


def test_times_are_ordered_and_met() -> None:
    times = [(1.0, 2.0), (2.2, 1.0), (2.3, 5.0)]
    order = SCORES.order_of(times)
    assert (order.pairs, order.right, order.inverted) == (2, 1.0, 1)
    assert order.tau == 0
    assert SCORES.mean_error([(2.0, 1.0), (2.0, 3.0)]) == 0.5
    assert SCORES.scale_of([(2.0, 1.0), (8.0, 4.0)]) == pytest.approx(2)
    agreement = SCORES.agreement_of([(10.0, 10.0), (10.0, 11.0), (0.0, 0.0)])
    assert (agreement.launches, agreement.exact, agreement.median) == (3, 2, 0.0)
    assert (agreement.at_most(0.05), agreement.at_most(0.11)) == (2, 3)


def test_falls_of_the_modelled_time_are_counted_within_a_problem() -> None:
    times = [(100.0, 100.0), (90.0, 50.0), (95.0, 49.0)]
    falls = SCORES.falls_of([times, [(1.0, 1.0)]], 0.05)
    assert falls.real == (2, 2)
    assert falls.smaller == (0, 1)
    assert falls.text == "real 2 of 2 (100%); of the smaller ones 0 of 1 (0%)"


def test_a_slower_clock_slows_the_l2_but_not_the_dram() -> None:
    spec = SPECS["rtx-3080"]
    slow = SCRIPT.at_clock(spec, 928)
    assert slow.clock_hz == 928e6
    assert slow.l2_bandwidth_gbps == pytest.approx(spec.l2_bandwidth_gbps * 928e6 / spec.clock_hz)
    assert slow.dram_sustained_gbps == spec.dram_sustained_gbps
