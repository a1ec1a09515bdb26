"""Calibrations: on an emulated device they give back the figures that its modelled times were made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelforge.calibration import Calibration, calibrate, measurements, parameter_file
from kernelforge.calibration.figures import rounded, unit_of
from kernelforge.calibration.measurements import GROUPS, Group, per_round_us
from kernelforge.calibration.plan_timer import PlanTimer, card_facts
from kernelforge.devices import make_device
from kernelforge.devices.cuda.session import RATE_SAMPLES
from kernelforge.errors import DeviceError, TimingError, UsageError
from kernelforge.hardware.specs import SPECS, spec_by_key
from tests.devices.cuda.software import FACTS, SoftwareDevice

TOLERANCES = {
    "dram_sustained_gbps": 0.03,
    "l2_bandwidth_gbps": 0.03,
    "atomic_line_ns": 0.03,
    "l2_to_sm_bytes_per_cycle": 0.3,
}
TOLERANCE = 0.02
"""Of every other figure; docs/gpus.md states both."""

MADE_UP = """
[[card]]
key = "made-up"
title = "A card that does not exist"
names = ["None"]
compute_capability = [8, 6]
sm_count = 60
max_clock_mhz = 1300
dram_gb = 10
dram_bandwidth_gbps = 400
l2_mib = 20
fp16_tensor_tflops = 61
tf32_tensor_tflops = 23
dram_sustained_gbps = { value = 345, source = "made up" }
l2_bandwidth_gbps = { value = 1234, source = "made up" }
source = "made up"
[card.figures]
fp64_lanes_per_sm = { value = 8, source = "made up" }
int32_lanes_per_sm = { value = 32, source = "made up" }
special_lanes_per_sm = { value = 8, source = "made up" }
l1_latency_cycles = { value = 51, source = "made up" }
shared_latency_cycles = { value = 37, source = "made up" }
l2_latency_cycles = { value = 333, source = "made up" }
dram_latency_cycles = { value = 777, source = "made up" }
l2_fetch_bytes = { value = 32, source = "made up" }
l2_to_sm_bytes_per_cycle = { value = 24, source = "made up" }
l1_bytes_per_cycle = { value = 64, source = "made up" }
atomic_ns = { value = 0.9, source = "made up" }
atomic_float_ns = { value = 2.5, source = "made up" }
atomic_sector_ns = { value = 0.8, source = "made up" }
atomic_line_ns = { value = 1.1, source = "made up" }
block_cycles = { value = 212, source = "made up" }
block_cycles_per_warp = { value = 4.5, source = "made up" }
launch_overhead_us = { value = 3.7, source = "made up" }
"""


def wrong(calibration: Calibration) -> dict[str, tuple[float, float | None]]:
    """Figures that differ from the previous ones by more than their tolerance: value, previous value."""
    return {
        figure.name: (figure.value, figure.previous)
        for figure in calibration.figures
        if figure.difference is not None and abs(figure.difference) > TOLERANCES.get(figure.name, TOLERANCE)
    }


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_figures_that_are_made_up_are_found(tmp_path: Path) -> None:
    path = tmp_path / "made_up.toml"
    path.write_text(MADE_UP)
    calibration, facts, spec = calibrate(f"emulated:{path}")
    assert wrong(calibration) == {}
    assert calibration.origin == "modelled"
    names = {figure.name for figure in calibration.figures if figure.in_file and figure.previous is not None}
    assert names >= {line.split(" =")[0] for line in MADE_UP.partition("[card.figures]")[2].split("\n") if line}
    assert names >= {"dram_sustained_gbps", "l2_bandwidth_gbps", "fp16_tensor_tflops", "tf32_tensor_tflops"}

    written = tmp_path / "again.toml"
    written.write_text(parameter_file(calibration, facts, spec))
    recovered = spec_by_key(str(written))
    assert recovered.sources["l1_latency_cycles"].startswith("modelled by kernelforge calibrate on emulated:")
    for figure in calibration.figures:
        if figure.in_file:
            assert getattr(recovered, figure.name) == figure.value, figure.name
    assert (recovered.sm_count, recovered.l2_bytes, recovered.dram_bytes) == (
        spec.sm_count,
        spec.l2_bytes,
        spec.dram_bytes,
    )


@pytest.mark.slow
@pytest.mark.parametrize("key", ["h100", "a100", "rtx-4090", "t4"])
@pytest.mark.usefixtures("warm_zygotes")
def test_figures_of_known_cards_are_found(key: str) -> None:
    calibration, _, _ = calibrate(f"emulated:{key}")
    assert wrong(calibration) == {}
    (shared,) = (figure for figure in calibration.figures if figure.name == "shared_bytes_per_cycle")
    assert 64 < shared.value <= 128, "32 banks of 4 bytes; more is a loop without its loads"


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("fp64_lanes_per_sm", 61.4, 64), ("fp64_lanes_per_sm", 1.97, 2), ("l2_fetch_bytes", 63.6, 64),
        ("l1_bytes_per_cycle", 121.3, 128), ("l1_bytes_per_cycle", 61, 64), ("l1_bytes_per_cycle", 3, 32),
        ("l2_to_sm_bytes_per_cycle", 60.3, 64), ("l2_to_sm_bytes_per_cycle", 41, 40),
        ("l2_to_sm_bytes_per_cycle", 1, 8), ("l1_latency_cycles", 33.6, 34), ("l1_latency_cycles", 0.2, 1),
        ("dram_sustained_gbps", 2818.83, 2819), ("atomic_ns", 0.72996, 0.73), ("block_cycles_per_warp", -0.1, 0),
    ],
)  # fmt: skip
def test_raw_values_become_what_their_fields_take(name: str, raw: float, value: float) -> None:
    assert rounded(name, raw) == value


def test_every_figure_has_a_unit() -> None:
    spec = SPECS["h100"]
    for name in ("l1_latency_cycles", "block_cycles", "block_cycles_per_warp", "atomic_ns", "launch_overhead_us"):
        assert unit_of(name)
        assert hasattr(spec, name)


class Slower:
    """A timer where more takes less."""

    device = SPECS["h100"]

    def __init__(self) -> None:
        self.times = iter((3.0, 2.0))

    def time_us(self, file: str, forward: str, setup: str) -> float:
        assert "ROUNDS" not in forward
        return next(self.times)


def test_more_rounds_that_take_no_longer_are_an_error() -> None:
    timer: Any = Slower()
    timer.device = type("Named", (), {"name": "cuda:0"})
    with pytest.raises(TimingError, match="8 rounds took 2 us and 4 took 3"):
        per_round_us(timer, "latency", "lone_warp[1, 32](out, i32(ROUNDS), f32(1.0), f32(0.5))", 4)


def test_a_card_of_unknown_compute_capability_is_refused() -> None:
    class Odd:
        name = "cuda:0"
        facts = type("Facts", (), {"compute_capability": (8, 7)})

    device: Any = Odd()
    with pytest.raises(DeviceError, match=r"compute capability 8\.7, which is unknown"):
        card_facts(device)


@pytest.mark.parametrize("runs", [0, -1])
def test_no_runs_are_refused(runs: int) -> None:
    with pytest.raises(UsageError, match="give a positive number"):
        calibrate("emulated:h100", runs=runs)


@pytest.mark.slow
def test_a_measured_calibration_has_intervals_and_keeps_published_peaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The whole way of a GPU, but for its measurements."""
    values = iter([(2700.0, 100.0, 33.2), (2900.0, 600.0, 34.4), (2800.0, 300.0, 33.6)])

    def made_up(timer: PlanTimer) -> dict[str, float]:
        assert timer.measures
        names = ("dram_sustained_gbps", "fp16_tensor_tflops", "l1_latency_cycles")
        return dict(zip(names, next(values), strict=True))

    monkeypatch.setattr("kernelforge.calibration.figures.GROUPS", (Group("made up", made_up),))
    monkeypatch.setattr("kernelforge.calibration.plan_timer.make_device", lambda name, **options: SoftwareDevice())
    monkeypatch.setattr(SoftwareDevice, "clocks", lambda self: None)
    calibration, facts, spec = calibrate("cuda:0", runs=3)
    assert (calibration.origin, calibration.gpu, calibration.driver) == ("measured", FACTS.name, FACTS.driver)
    assert calibration.previous_of.startswith("nearest known: ")
    bandwidth, peak, latency = calibration.figures
    assert (bandwidth.value, bandwidth.lowest, bandwidth.highest) == (2800, 2700, 2900)
    assert (peak.in_file, latency.value) == (False, 34)
    path = tmp_path / "mine.toml"
    path.write_text(parameter_file(calibration, facts, spec))
    recovered = spec_by_key(str(path))
    assert recovered.dram_sustained_gbps == 2800
    assert "2700 to 2900 GB/s" in recovered.sources["dram_sustained_gbps"]
    assert f"driver {FACTS.driver}, 3 runs" in recovered.sources["dram_sustained_gbps"]
    published = spec.fp16_tensor_tflops * 4 * 1000 / (spec.sm_count * spec.max_clock_mhz)
    assert recovered.fp16_tensor_tflops == pytest.approx(published, rel=1e-3)
    assert recovered.sources["fp16_tensor_tflops"].startswith("not measured, as of NVIDIA H100")
    assert recovered.sm_count == 4


@pytest.fixture
def software_timer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The timer of a GPU whose driver emulates the launches, and makes their times up; each is one sample."""
    monkeypatch.setattr("kernelforge.calibration.plan_timer.make_device", lambda name, **options: SoftwareDevice())
    monkeypatch.setattr("kernelforge.devices.cuda.session.RATE_SAMPLES", 4)
    with PlanTimer("cuda:0") as timer:
        yield timer


@pytest.mark.slow
def test_kernels_run_and_are_timed_in_the_runner_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, software_timer: PlanTimer
) -> None:
    """Every kernel with every plan, on grids and loops that a driver without a GPU can run."""
    assert RATE_SAMPLES == 40
    assert software_timer.measures
    assert software_timer.rounds(16) == 256
    monkeypatch.setattr(measurements, "MIB", 1 << 12)
    monkeypatch.setattr(PlanTimer, "rounds", lambda self, number: max(number // 16, 1))
    real, seen = software_timer.time_us, set()

    def time_us(file: str, forward: str, setup: str = "") -> float:
        seen.add(file)
        return real(file, forward.replace("i32(256)", "i32(4)").replace("i32(512)", "i32(8)"), setup)

    monkeypatch.setattr(software_timer, "time_us", time_us)
    for group in GROUPS:
        for name, value in group.measure(software_timer).items():
            assert value == value, name  # made up: some differences are negative
    assert seen == {"latency", "bandwidth", "throughput", "tensor", "atomics", "launches"}


def test_a_device_is_closed_when_the_lane_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    device = make_device("emulated:h100")
    closed: list[bool] = []
    monkeypatch.setattr(device, "close", lambda: closed.append(True))
    monkeypatch.setattr("kernelforge.calibration.plan_timer.make_device", lambda name, **options: device)
    monkeypatch.setattr("kernelforge.calibration.plan_timer.GENERATIONS", {})
    with pytest.raises(DeviceError, match=r"compute capability 9\.0"):
        PlanTimer("emulated:h100")
    assert closed == [True]
