"""Default devices and suite of a run."""

from __future__ import annotations

import pytest

from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.errors import UsageError
from kernelforge.records import MeasureSettings
from kernelforge.run import configure


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that can be used, which are named and never opened."""
    pair = tuple(GpuInfo(n, "NVIDIA H200", f"GPU-{n}", 150 << 30, "580.159.03", "13.0") for n in range(2))
    monkeypatch.setattr(discovery, "gpus", lambda: pair)
    monkeypatch.setattr(discovery, "unusable", lambda gpu, runtime=None: None)


def test_without_a_gpu_a_run_is_about_core_on_an_emulated_device() -> None:
    config = configure(device="emulated")
    assert (config.suite, config.device) == ("core", "emulated:h100")


@pytest.mark.usefixtures("gpus")
def test_with_a_gpu_it_is_used_with_no_option_given_at_sizes_that_fill_it() -> None:
    config = configure()
    assert (config.suite, config.device) == ("core-large", "cuda:0")
    assert config.measure == MeasureSettings()


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("requested", "devices"),
    [("cuda", "cuda:0,cuda:1"), ("cuda:1", "cuda:1"), ("cuda:1,cuda:0", "cuda:1,cuda:0"), ("emulated:a100",) * 2],
)
def test_a_run_takes_the_devices_it_is_given(requested: str, devices: str) -> None:
    assert configure(device=requested).device == devices


@pytest.mark.usefixtures("gpus")
def test_a_suite_that_is_named_stays_as_it_is() -> None:
    assert configure(suite="core").suite == "core"


@pytest.mark.usefixtures("gpus")
def test_how_to_measure_is_recorded_with_the_run() -> None:
    settings = MeasureSettings(protocol="kernelbench", runtime="pycuda")
    assert configure(measure=settings).measure == settings
    with pytest.raises(UsageError, match="runtime=pycuda"):
        configure(measure=settings, device="emulated:h100")
