"""Naming a device: what exists, what does not, and what is said of it."""

import re
import subprocess
import sys

import pytest

from kernelforge.commands import install_hint
from kernelforge.devices import best_device, check_device, device_names, make_device, screen_for, unused_gpu
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.device import DRIVERS, CudaDevice
from kernelforge.devices.cuda.gpu import GpuInfo
from kernelforge.errors import DeviceError
from kernelforge.records import MeasureSettings


def test_without_a_gpu_the_best_device_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert best_device() == "emulated:h100"
    assert device_names() == ("emulated:h100", "emulated:h200", "emulated:a100")


@pytest.mark.parametrize("name", ["emulated:a100", "EMULATED:A100", " emulated:a100 "])
def test_names_are_read_generously(name: str) -> None:
    assert check_device(name) == "emulated:a100"


def test_emulated_alone_is_the_default() -> None:
    assert check_device("emulated") == "emulated:h100"


@pytest.mark.parametrize("name", ["cuda:0", "cuda", "gpu", "CUDA:1"])
def test_a_gpu_that_is_not_there_is_refused_with_why_and_with_what_exists(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    machine(monkeypatch)
    with pytest.raises(DeviceError, match=r"no NVIDIA driver.*emulated:h100, emulated:h200, emulated:a100"):
        make_device(name)


def test_pycuda_is_no_device() -> None:
    with pytest.raises(DeviceError, match="--device cuda:0 --runtime pycuda"):
        check_device("pycuda:0")


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int = 0, wrong: str | None = None) -> None:
    """A machine with so many GPUs, or with a driver that fails."""

    def found() -> tuple[GpuInfo, ...]:
        if wrong is not None:
            raise DeviceError(wrong)
        return tuple(GpuInfo(n, "NVIDIA H200", f"GPU-{n}", 150 << 30, "580.159.03", "13.0") for n in range(gpus))

    monkeypatch.setattr(discovery, "gpus", found)


def test_gpus_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    assert device_names()[:3] == ("cuda:0", "cuda:1", "emulated:h100")
    assert best_device() == "cuda:0"
    assert check_device("cuda") == "cuda:0"
    assert check_device(" CUDA:1") == "cuda:1"
    assert check_device("emulated") == "emulated:h100"
    with pytest.raises(DeviceError, match=r"this machine has cuda:0, cuda:1\."):
        check_device("cuda:2")


def test_a_gpu_is_passed_over_with_a_word_where_its_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1)
    assert unused_gpu() is None
    monkeypatch.setattr(discovery, "_installed", lambda module: "cupy" not in module)
    assert best_device() == "emulated:h100"
    said = unused_gpu()
    assert said is not None
    assert "cuda:0 is there and not used: cupy needs cupy-cuda13x" in said
    assert "pip install" in said
    assert check_device("cuda:0") == "cuda:0"  # named, it is asked for


def test_a_driver_that_fails_hides_its_gpus_and_says_why_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, wrong="NVML does not start")
    assert best_device() == "emulated:h100"
    with pytest.raises(DeviceError, match="NVML does not start"):
        check_device("cuda:0")


def test_a_runtime_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1)
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: (runtime,))
    with pytest.raises(DeviceError, match=re.escape(install_hint("gpu", "pycuda"))):
        make_device("cuda:0", measure=MeasureSettings(runtime="pycuda"))


def test_a_gpu_is_used_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2)
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ())
    with make_device("cuda:1", measure=MeasureSettings(runtime="pycuda", counters="full")) as device:
        assert isinstance(device, CudaDevice)
        assert device.name == "cuda:1"
        assert device.runtime == "pycuda"
        assert device.counters == "full"
        # One GPU alone is visible to its children, and the first that they count.
        assert device.environment == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
        assert device.driver_options == {"driver": DRIVERS["pycuda"], "ordinal": 0}


@pytest.mark.parametrize("name", ["emulated:b200", "", "h100"])
def test_an_unknown_device_is_refused_with_what_exists(name: str) -> None:
    with pytest.raises(DeviceError, match=r"no device.*emulated:h100"):
        check_device(name)


def test_a_device_describes_itself_with_units() -> None:
    with make_device("emulated:h200") as device:
        facts = device.describe()
        assert device.name == "emulated:h200"
        assert device.arch == "sm_90a"
        assert facts["memory bandwidth"] == "4800 GB/s"
        assert facts["shared memory per block"] == "227 KiB"
        assert not device.capabilities.measures_time


def test_the_a100_is_compiled_for_its_own_architecture() -> None:
    with make_device("emulated:a100") as device:
        assert device.arch == "sm_80"


@pytest.mark.parametrize(
    ("arch", "name"), [("sm_90a", "emulated:h100"), ("sm_80", "emulated:a100"), ("sm_100a", "emulated:h100")]
)
def test_a_gpu_is_screened_by_the_emulated_device_of_its_architecture(arch: str, name: str) -> None:
    assert screen_for(arch) == name


def test_the_parent_side_of_a_gpu_loads_nothing_of_cuda() -> None:
    code = (
        "import sys\nfrom kernelforge.devices.cuda.device import CudaDevice\nCudaDevice(0).close()\n"
        "print([m for m in ('cupy', 'pycuda', 'cuda', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_parent_side_never_loads_the_emulator() -> None:
    code = (
        "import sys\nfrom kernelforge.devices import make_device\nmake_device('emulated:h100').close()\n"
        "print([m for m in ('llvmlite', 'numba', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
