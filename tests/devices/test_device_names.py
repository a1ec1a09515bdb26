"""Naming a device: what exists, what does not, and what is said of it."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge import devices
from kernelforge.devices import (
    best_device,
    check_device,
    device_list,
    device_names,
    make_device,
    screen_for,
    unused_gpu,
)
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.device import DRIVERS, CudaDevice
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.devices.gpu_locks import parse_devices
from kernelforge.errors import DeviceError
from kernelforge.hardware.specs import SPECS
from kernelforge.hardware.wheels import InstalledCuda
from kernelforge.records import MeasureSettings
from kernelforge.utils.shell_hints import install_hint
from tests.hardware.test_specs import CARD


def test_without_a_gpu_the_best_device_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch)
    assert best_device() == "emulated:h100"
    names = device_names()
    assert names[:3] == ("emulated:h100", "emulated:h200", "emulated:a100")
    assert {"emulated:t4", "emulated:a10g", "emulated:rtx-4090", "emulated:gb200"} <= set(names)
    assert len(set(names)) == len(names)


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


def machine(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int = 0,
    wrong: str | None = None,
    *,
    driver: str = "580.159.03",
    cuda: str = "13.0",
) -> None:
    """A machine with so many GPUs and the packages for them, or with a driver that fails."""

    def listed() -> tuple[GpuInfo, ...]:
        if wrong is not None:
            raise DeviceError(wrong)
        return tuple(GpuInfo(n, "NVIDIA H200", f"GPU-{n}", 150 << 30, driver, cuda) for n in range(gpus))

    monkeypatch.setattr(discovery, "gpus", listed)
    monkeypatch.setattr(discovery, "_installed", lambda module: True)
    monkeypatch.setattr(discovery, "installed_cuda", lambda: InstalledCuda(13, 13, "cupy-cuda13x"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")


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
    message = unused_gpu()
    assert message is not None
    assert "cuda:0 is there and not used: cupy needs cupy-cuda13x" in message
    assert "pip install" in message
    assert check_device("cuda:0") == "cuda:0"  # named, it is asked for


def test_a_driver_that_fails_hides_its_gpus_and_says_why_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, wrong="NVML does not start")
    assert best_device() == "emulated:h100"
    assert unused_gpu() == "no GPU is used, for its driver fails: NVML does not start"
    with pytest.raises(DeviceError, match="NVML does not start"):
        check_device("cuda:0")


def test_a_gpu_whose_driver_is_too_old_gives_way_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1, driver="570.124.06", cuda="12.8")
    assert best_device() == "emulated:h100"
    assert device_names()[0] == "emulated:h100"
    message = unused_gpu()
    assert message is not None
    assert message.startswith("cuda:0 is there and not used: its driver (570.124.06, CUDA 12.8) is older than 580")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(DeviceError, match=r"cuda:0 cannot be used: its driver.*Choose one of: emulated:h100"):
            check_device(name)


def test_a_gpu_that_cannot_be_used_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 3)
    gpus = discovery.gpus()
    busy = replace(gpus[0], compute_mode="exclusive process")
    monkeypatch.setattr(discovery, "gpus", lambda: (busy, *gpus[1:]))
    assert best_device() == check_device("cuda") == "cuda:1"
    assert parse_devices("cuda") == ("cuda:1", "cuda:2")
    assert "compute mode is 'exclusive process'" in str(unused_gpu())
    with pytest.raises(DeviceError, match="compute mode"):
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


@pytest.mark.parametrize("name", ["emulated:b20000", "", "h100"])
def test_an_unknown_device_is_refused_with_what_exists(name: str) -> None:
    with pytest.raises(DeviceError, match=r"no device.*emulated:h100"):
        check_device(name)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("emulated:rtx4090", "emulated:rtx-4090"),
        ("emulated:a100-40", "emulated:a100-40gb"),
        ("b200", "emulated:b200"),
    ],
)
def test_a_device_that_is_misspelt_is_refused_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(DeviceError, match=rf"there is no device '{name}'\. Did you mean .*{meant}\b.*\?"):
        check_device(name)


def test_a_refusal_stays_short_however_many_devices_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 1)
    with pytest.raises(DeviceError) as caught:
        check_device("emulated:nothing-like-it")
    message = str(caught.value)
    assert "cuda:0, emulated:h100, emulated:h200, emulated:a100 and " in message
    assert f"{len(device_names()) - 4} more" in message
    assert len(message) < 200
    assert set(re.findall(r"[\w:-]+", device_list())) >= {"cuda:0", "emulated:NAME", "h100", "rtx-4070-ti-super"}


def test_a_gpu_that_the_compiler_does_not_build_for_is_refused_with_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "emulated:v100" not in device_names()
    with pytest.raises(DeviceError, match=r"emulated:v100 is not available: nvrtc 13\.0\.\d+ does not build for sm_70"):
        check_device("emulated:v100")
    monkeypatch.setattr(devices, "_known_architectures", lambda: frozenset({70, 75, 90}))
    assert check_device("emulated:v100") == "emulated:v100"
    with pytest.raises(DeviceError, match="does not build for sm_80"):
        check_device("emulated:a100")


def test_a_device_describes_itself_with_units() -> None:
    with make_device("emulated:h200") as device:
        facts = device.describe()
        assert device.name == "emulated:h200"
        assert device.arch == "sm_90a"
        assert facts["memory bandwidth"] == "4800 GB/s"
        assert facts["shared memory per block"] == "227 KiB"
        assert facts["tensor cores"].startswith("FP16 989, BF16 989, ")
        assert not device.capabilities.measures_time


def test_the_a100_is_compiled_for_its_own_architecture() -> None:
    with make_device("emulated:a100") as device:
        assert device.arch == "sm_80"


@pytest.mark.parametrize(
    ("arch", "gpu", "key", "exact"),
    [
        ("sm_90a", "", "h100", False),
        ("sm_90a", "NVIDIA H100 PCIe", "h100-pcie", True),
        ("sm_80", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "a100", False),
        ("sm_86", "NVIDIA RTX A1000", "rtx-a6000", False),
        ("sm_100a", "NVIDIA B200", "b200", True),
        ("sm_70", "Tesla V100-SXM2-16GB", "t4", False),  # nothing builds for it
    ],
)
def test_a_gpu_is_screened_by_the_emulated_device_of_its_architecture(
    arch: str, gpu: str, key: str, exact: bool
) -> None:
    nearest = screen_for(arch, gpu)
    assert (nearest.spec.key, nearest.exact) == (key, exact)
    assert f"emulated:{key}" in device_names()


@pytest.mark.slow
def test_the_parent_side_of_a_gpu_loads_nothing_of_cuda() -> None:
    code = (
        "import sys\nfrom kernelforge.devices.cuda.device import CudaDevice\nCudaDevice(0).close()\n"
        "print([m for m in ('cupy', 'pycuda', 'cuda', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_parent_side_never_loads_the_emulator() -> None:
    code = (
        "import sys\nfrom kernelforge.devices import make_device\nmake_device('emulated:h100').close()\n"
        "print([m for m in ('llvmlite', 'numba', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_page_on_emulated_devices_names_each_of_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "emulated-device.md").read_text()
    rows = re.findall(r"^\| (`[a-z].*?) \| .* \| `(sm_\w+)` \|$", page.partition("## What may be claimed")[0], re.M)
    named = {key: arch for keys, arch in rows for key in re.findall(r"`([\w-]+)`", keys)}
    assert named == {spec.key: spec.arch for spec in SPECS.values()}


def test_the_path_of_a_parameter_file_names_an_emulated_device(tmp_path: Path) -> None:
    path = tmp_path / "My_Card.toml"
    path.write_text(CARD)
    name = f"emulated:{path}"
    assert check_device(f" {name}") == name
    assert parse_devices(name) == (name,)
    device = make_device(name)
    assert isinstance(device, EmulatedDevice)
    with device:
        assert (device.name, device.arch, device.spec.sm_count) == (name, "sm_90a", 100)
    assert name not in device_names()


def test_a_parameter_file_of_a_card_that_nothing_is_built_for_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text(CARD.replace("[9, 0]", "[7, 0]"))
    with pytest.raises(DeviceError, match=r"old\.toml is not available: nvrtc .* does not build for sm_70"):
        check_device(f"emulated:{path}")
