"""Which GPUs there are: by NVML, by the driver's library, or none."""

import re
import sys
import textwrap

import pytest

from kernelforge.commands import install_hint
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.gpu import GpuInfo
from kernelforge.errors import DeviceError

GPUS = tuple(
    GpuInfo(number, f"GPU of kind {number}", f"GPU-{number}{number}aa-bb", 1 << 30, "580.1", "13.0")
    for number in range(3)
)

LIST = """
from dataclasses import asdict
from pathlib import Path
import sys
from kernelforge.devices.cuda import discovery
discovery.CONTROL = Path("/")
answer = [asdict(gpu) for gpu in discovery.gpus()]
"""


@pytest.mark.skipif(discovery.CONTROL.exists(), reason="an NVIDIA driver is here")
def test_no_driver_means_no_gpus():
    assert discovery.gpus() == ()


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (None, (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("2,0", (2, 0)), (" 1 ", (1,)), ("", ()), ("-1", ()), ("0,-1,2", (0,)),
        ("1,7,0", (1,)), ("GPU-22aa", (2,)), ("GPU-11aa-bb,0", (1, 0)), ("GPU-", ()), ("0,GPU-9", (0,)), ("1,1", ()),
        ("x", ()),
    ],
)  # fmt: skip
def test_visible_devices_are_chosen_as_cuda_does(setting, numbers):
    chosen = discovery.visible(GPUS, setting)
    assert [gpu.name for gpu in chosen] == [f"GPU of kind {number}" for number in numbers]
    assert [gpu.ordinal for gpu in chosen] == list(range(len(numbers)))


def test_only_cuda_can_choose_among_mig_instances():
    assert discovery.visible(GPUS, "MIG-1234") is None


@pytest.mark.parametrize("name", ["cupy", "cuda.bindings"])
def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch, name):
    for module in ("cupy", "cuda.bindings", "pynvml"):
        monkeypatch.setitem(sys.modules, module, sys)
    assert discovery.missing_packages("cupy") == ()
    monkeypatch.setitem(sys.modules, name, None)
    package = {"cupy": "cupy-cuda13x", "cuda.bindings": "cuda-bindings"}[name]
    assert discovery.missing_packages("cupy") == (package,)
    with pytest.raises(DeviceError, match=re.escape(f"cupy needs {package}: {install_hint('gpu')}")):
        discovery.require_packages("cupy")


def test_clocks_are_worth_no_refusal(monkeypatch):
    for module in ("cupy", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, module, sys)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert discovery.missing_packages("cupy") == ("nvidia-ml-py",)
    discovery.require_packages("cupy")


def test_without_nvml_the_drivers_library_is_asked_in_another_process(machine_with_cuda):
    script = LIST.replace(
        "discovery.gpus()]", "discovery.gpus()], 'cupy' in sys.modules, open('/proc/self/maps').read()"
    )
    gpus, cupy, maps = machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + script)
    assert len(gpus) == 1
    assert gpus[0]["name"] == "Software GPU"
    assert gpus[0]["uuid"] == "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    assert (gpus[0]["ordinal"], gpus[0]["memory_bytes"], gpus[0]["cuda"]) == (0, 1 << 37, "13.0")
    assert not cupy
    assert "libcuda" not in maps


def test_a_driver_that_fails_is_named(machine_with_cuda):
    script = f"""
try:
{textwrap.indent(LIST, "    ")}
except Exception as error:
    answer = type(error).__name__, str(error)
"""
    kind, text = machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + script, CUINIT="101")
    assert kind == "DeviceError"
    assert text.startswith("CUDA cannot list the GPUs: CUDA_ERROR_INVALID_DEVICE while starting CUDA.")


def test_a_driver_without_a_gpu_is_no_gpus(machine_with_cuda):
    assert machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + LIST, CUINIT="100") == []


def test_nvml_lists_gpus_with_the_drivers_release(machine_with_nvml):
    gpus = machine_with_nvml(LIST)
    assert [gpu["ordinal"] for gpu in gpus] == [0, 1]
    assert {gpu["name"] for gpu in gpus} == {"NVML GPU"}
    assert gpus[1] == {
        "ordinal": 1, "name": "NVML GPU", "uuid": "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf",
        "memory_bytes": 1 << 37, "driver": "580.159.03", "cuda": "13.0",
    }  # fmt: skip


def test_nvml_is_filtered_by_visible_devices(machine_with_nvml):
    gpus = machine_with_nvml(LIST, CUDA_VISIBLE_DEVICES="1")
    assert [(gpu["ordinal"], gpu["uuid"][:12]) for gpu in gpus] == [(0, "GPU-b0b1b2b3")]


def test_cuda_is_asked_where_nvml_numbers_gpus_otherwise(machine_with_nvml):
    names = {
        "DIFFERENT=": "Software GPU",
        "DIFFERENT= CUDA_DEVICE_ORDER=PCI_BUS_ID": "NVML GPU",
        "SPLIT=": "Software GPU",
        "NO_MIG=": "NVML GPU",
        "NO_DRIVER=": "Software GPU",
        "CUDA_VISIBLE_DEVICES=MIG-1": "Software GPU",
    }
    assert machine_with_nvml(EACH.format(settings=list(names), script="found = discovery.gpus()[0].name")) == names


EACH = """
import ctypes, os
from pathlib import Path
from kernelforge.devices.cuda import discovery, nvml
from kernelforge.errors import DeviceError
discovery.CONTROL = Path("/")
answer = {{}}
for setting in {settings}:
    added = dict(part.split("=") for part in setting.split())
    os.environ.update(added)
    try:
        {script}
    except DeviceError as error:
        found = str(error)
    answer[setting] = found
    for name in added:
        del os.environ[name]
"""
CLOCKS = """
clocks = nvml.read_clocks(os.environ.get("GPU", {uuid!r}))
        found = clocks and clocks.model_dump(mode="json"), ctypes.CDLL("libnvidia-ml.so.1").software_started()
"""
UUID = "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf"


def test_clocks_come_with_their_reasons_but_for_idleness(machine_with_nvml):
    nothing = ("NO_DRIVER=", "NO_POWER=", "GPU=GPU-0", "GPU=MIG-0")
    script = EACH.format(settings=["", *nothing, "LOST="], script=CLOCKS.strip().format(uuid=UUID))
    found = machine_with_nvml(script)
    clocks, started = found[""]
    assert clocks == {
        "sm_mhz": [1755, 1755], "memory_mhz": [3201, 3201], "temperature_c": [41, 41], "power_w": [123.456, 123.456],
        "throttled": ["SwPowerCap", "SwThermalSlowdown"],
    }  # fmt: skip
    assert started == 0
    # What cannot be said is no clocks; a GPU that is lost is an error.
    assert [found[setting] for setting in nothing] == [[None, 0]] * len(nothing)
    assert "GPU is lost" in found["LOST="]
