"""Naming a device: what exists, what does not, and what is said of it."""

import subprocess
import sys

import pytest

from kernelforge.devices import best_device, check_device, device_names, make_device
from kernelforge.errors import DeviceError


def test_the_best_device_is_the_first() -> None:
    assert best_device() == "emulated:h100"
    assert device_names() == ("emulated:h100", "emulated:h200", "emulated:a100")


@pytest.mark.parametrize("name", ["emulated:a100", "EMULATED:A100", " emulated:a100 "])
def test_names_are_read_generously(name: str) -> None:
    assert check_device(name) == "emulated:a100"


def test_emulated_alone_is_the_default() -> None:
    assert check_device("emulated") == "emulated:h100"


@pytest.mark.parametrize("name", ["cuda:0", "cuda", "pycuda:1"])
def test_a_cuda_device_is_refused_with_what_exists(name: str) -> None:
    with pytest.raises(DeviceError, match=r"emulated devices only.*emulated:h100, emulated:h200, emulated:a100"):
        make_device(name)


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


def test_the_parent_side_never_loads_the_emulator() -> None:
    code = (
        "import sys\nfrom kernelforge.devices import make_device\nmake_device('emulated:h100').close()\n"
        "print([m for m in ('llvmlite', 'numba', 'numpy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
