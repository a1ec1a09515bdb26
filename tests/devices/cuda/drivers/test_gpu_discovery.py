"""Discovery of GPUs: by NVML, by the driver's library, or none."""

import os
import re
import sys
import textwrap
from dataclasses import replace
from importlib import metadata

import pytest

from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.errors import DeviceError
from kernelforge.utils.shell_hints import install_hint

GPUS = tuple(
    GpuInfo(number, f"GPU of kind {number}", f"GPU-{number}{number}aa-bb", 1 << 30, "580.1", "13.0")
    for number in range(3)
)

LIST = """
from dataclasses import asdict
from pathlib import Path
import sys
from kernelforge.devices.cuda import discovery
discovery.CONTROL = (Path("/"), Path("/dev/dxg"))
answer = [asdict(gpu) for gpu in discovery.gpus()]
"""


def test_no_driver_means_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(discovery, "CONTROL", (tmp_path / "nvidiactl", tmp_path / "dxg"))
    monkeypatch.setattr(discovery.nvml, "gpus", lambda: GPUS)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert discovery.gpus() == ()
    # The one node of a GPU under WSL 2.
    (tmp_path / "dxg").touch()
    assert discovery.gpus() == GPUS


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (None, (0, 1, 2)), ("0,1,2", (0, 1, 2)), ("2,0", (2, 0)), (" 1 ", (1,)), ("", ()), ("-1", ()), ("0,-1,2", (0,)),
        ("1,7,0", (1,)), ("GPU-22aa", (2,)), ("GPU-11aa-bb,0", (1, 0)), ("GPU-", ()), ("0,GPU-9", (0,)), ("1,1", ()),
    ],
)  # fmt: skip
def test_visible_devices_are_chosen_as_cuda_does(setting, numbers):
    selected = discovery.visible(GPUS, setting)
    assert [gpu.name for gpu in selected] == [f"GPU of kind {number}" for number in numbers]
    assert [gpu.ordinal for gpu in selected] == list(range(len(numbers)))


@pytest.mark.parametrize(
    "setting", ["MIG-1234", "0,MIG-GPU-00aa-bb/1/0", "gpu-00aa", "GPU-00AA", "NoDevFiles", "x", "0x1", "+1", "\u0661"]
)
def test_only_cuda_can_choose_by_names_of_other_forms(setting):
    assert discovery.visible(GPUS, setting) is None


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


@pytest.mark.slow
def test_without_nvml_the_drivers_library_is_asked_in_another_process(machine_with_cuda):
    script = LIST.replace(
        "discovery.gpus()]", "discovery.gpus()], 'cupy' in sys.modules, open('/proc/self/maps').read()"
    )
    gpus, cupy, maps = machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + script)
    assert len(gpus) == 1
    assert gpus[0]["name"] == "Software GPU"
    assert gpus[0]["uuid"] == "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    assert (gpus[0]["ordinal"], gpus[0]["memory_bytes"], gpus[0]["cuda"]) == (0, 1 << 37, "13.0")
    assert (gpus[0]["compute_capability"], gpus[0]["compute_mode"]) == ([9, 0], "default")
    assert not cupy
    assert "libcuda" not in maps


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_driver_without_a_gpu_is_no_gpus(machine_with_cuda):
    assert machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + LIST, CUINIT="100") == []


@pytest.mark.slow
def test_nvml_lists_gpus_with_the_drivers_release(machine_with_nvml):
    gpus = machine_with_nvml(LIST)
    assert [gpu["ordinal"] for gpu in gpus] == [0, 1]
    assert {gpu["name"] for gpu in gpus} == {"NVML GPU"}
    assert gpus[1] == {
        "ordinal": 1, "name": "NVML GPU", "uuid": "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf",
        "memory_bytes": 1 << 37, "driver": "580.159.03", "cuda": "13.0", "compute_capability": [9, 0],
        "compute_mode": "default",
    }  # fmt: skip


@pytest.mark.slow
def test_nvml_is_filtered_by_visible_devices(machine_with_nvml):
    gpus = machine_with_nvml(LIST, CUDA_VISIBLE_DEVICES="1")
    assert [(gpu["ordinal"], gpu["uuid"][:12]) for gpu in gpus] == [(0, "GPU-b0b1b2b3")]


@pytest.mark.slow
def test_cuda_is_asked_where_nvml_numbers_gpus_otherwise(machine_with_nvml):
    names = {
        "DIFFERENT=": "Software GPU",
        "DIFFERENT= CUDA_DEVICE_ORDER=PCI_BUS_ID": "NVML GPU",
        "SPLIT=": "Software GPU",
        "NO_MIG=": "NVML GPU",
        "NO_DRIVER=": "Software GPU",
        "CUDA_VISIBLE_DEVICES=MIG-1": "Software GPU",
        # NVML counts a GPU that this user may not open, and one whose memory is the host's; CUDA has its own list.
        "NO_PERMISSION=": "Software GPU",
        "NO_MEMORY=": "Software GPU",
        "CUDA_VISIBLE_DEVICES=gpu-a0a1": "Software GPU",
    }
    assert machine_with_nvml(EACH.format(settings=list(names), script="found = discovery.gpus()[0].name")) == names


EACH = """
import ctypes, os
from pathlib import Path
from kernelforge.devices.cuda import discovery, nvml
from kernelforge.errors import DeviceError
discovery.CONTROL = (Path("/"), Path("/dev/dxg"))
answer = {{}}
for setting in {settings}:
    nvml.close()
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
        found = clocks and clocks.model_dump(mode="json")
"""
UUID = "GPU-b0b1b2b3-b4b5-b6b7-b8b9-babbbcbdbebf"


@pytest.mark.slow
def test_clocks_come_with_their_reasons_but_for_idleness(machine_with_nvml):
    nothing = ("NO_DRIVER=", "NO_POWER=", "GPU=GPU-0", "GPU=MIG-0")
    instance = "GPU=MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    script = EACH.format(settings=["", *nothing, instance, "LOST="], script=CLOCKS.strip().format(uuid=UUID))
    clocks = machine_with_nvml(script)
    assert clocks[""] == {
        "sm_mhz": [1755, 1755], "memory_mhz": [3201, 3201], "temperature_c": [41, 41], "power_w": [123.456, 123.456],
        "throttled": ["SwPowerCap", "SwThermalSlowdown"],
    }  # fmt: skip
    # A MIG instance has the clocks of its GPU.
    assert clocks[instance] == clocks[""]
    # What cannot be said is no clocks; a GPU that is lost is an error.
    assert [clocks[setting] for setting in nothing] == [None] * len(nothing)
    assert "GPU is lost" in clocks["LOST="]


ENERGY = """
found = nvml.read_energy(os.environ.get("GPU", {uuid!r}))
"""


@pytest.mark.slow
def test_energy_is_in_joules_since_the_driver_was_loaded(machine_with_nvml):
    nothing = ("NO_DRIVER=", "NO_POWER=", "GPU=GPU-0", "GPU=MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf")
    script = EACH.format(settings=["", *nothing, "LOST="], script=ENERGY.strip().format(uuid=UUID))
    energy = machine_with_nvml(script)
    assert energy[""] == 987654.321
    assert [energy[setting] for setting in nothing] == [None] * len(nothing)
    assert "GPU is lost" in energy["LOST="]


STARTS = f"""
import ctypes, os
from kernelforge.devices.cuda import nvml
from kernelforge.errors import DeviceError
library = ctypes.CDLL("libnvidia-ml.so.1")
def state():
    return library.software_starts(), library.software_started()
for _ in range(3):
    nvml.read_clocks({UUID!r})
nvml.gpus()
answer = {{"questions": state()}}
os.environ["LOST"] = ""
try:
    nvml.read_clocks({UUID!r})
except DeviceError:
    answer["error"] = state()
del os.environ["LOST"]
nvml.read_clocks({UUID!r})
answer["after"] = state()
back, forth = os.pipe()
if os.fork() == 0:
    nvml.read_clocks({UUID!r})
    os.write(forth, str(state()[0]).encode())
    os._exit(0)
os.wait()
answer["child"] = int(os.read(back, 9))
"""


@pytest.mark.slow
def test_nvml_is_started_once_and_again_after_an_error_or_a_fork(machine_with_nvml):
    assert machine_with_nvml(STARTS) == {"questions": [1, 1], "error": [1, 0], "after": [2, 1], "child": 3}


INSTANCE = "MIG-c0c1c2c3-c4c5-c6c7-c8c9-cacbcccdcecf"


@pytest.mark.slow
def test_a_mig_instance_is_named_as_visible_devices_takes_it(machine_with_nvml):
    gpus = machine_with_nvml(LIST, SPLIT="", MIG="")
    assert [gpu["uuid"] for gpu in gpus] == [INSTANCE]
    only = LIST.replace(
        "[asdict(gpu) for gpu in discovery.gpus()]",
        "CudaDevice(0).environment, CudaDevice(0).driver_options['ordinal']",
    )
    only = "from kernelforge.devices.cuda.device import CudaDevice\n" + only
    assert machine_with_nvml(only, SPLIT="", MIG="") == [{"CUDA_VISIBLE_DEVICES": INSTANCE}, 0]


@pytest.mark.slow
def test_a_driver_whose_two_uuids_agree_still_names_an_instance(machine_with_cuda):
    [gpu] = machine_with_cuda("import sys\nsys.modules['pynvml'] = None\n" + LIST, MIG_NAME="")
    assert gpu["uuid"] == "MIG-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"


@pytest.mark.slow
def test_a_library_newer_than_its_driver_counts(machine_with_nvml):
    """Forward compatibility: NVML tells the version of the driver, CUDA that of the library which starts."""
    script = LIST.replace("asdict(gpu)", "(gpu.name, gpu.driver, gpu.cuda)")
    uuids = "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf"
    old = {"NVML_CUDA": "12020", "CUDA_VISIBLE_DEVICES": uuids}
    assert machine_with_nvml(script, **old) == [["NVML GPU", "580.159.03", "13.0"]]
    assert machine_with_nvml(script, **old, CUDA_VERSION="12020") == [["NVML GPU", "580.159.03", "12.2"]]
    # It is no use where it does not start: such a package is for data centre GPUs alone.
    assert machine_with_nvml(script, **old, CUINIT="804") == [["NVML GPU", "580.159.03", "12.2"]]


@pytest.mark.slow
def test_both_libraries_tell_the_compute_mode(machine_with_nvml):
    modes = {"0": "default", "1": "exclusive process", "2": "prohibited", "3": "exclusive process"}
    script = "discovery._listed_by_cuda.cache_clear(); found = discovery.gpus()[0].compute_mode"
    for library in ("", "SPLIT= "):
        settings = [f"{library}COMPUTE_MODE={number}" for number in modes]
        mode = machine_with_nvml(EACH.format(settings=settings, script=script))
        assert list(mode.values()) == list(modes.values())


STARTS_THAT_FAIL = {
    304: ("CUDA_ERROR_OPERATING_SYSTEM", "nvidia-smi"),
    802: ("CUDA_ERROR_802", "nvidia-fabricmanager"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "restart the machine"),
    999: ("CUDA_ERROR_UNKNOWN", "nvidia-modprobe -u -c 0"),
}


@pytest.mark.slow
def test_a_start_that_fails_is_told_with_what_helps(machine_with_cuda):
    settings = [f"CUINIT={number}" for number in STARTS_THAT_FAIL]
    script = "import sys\nsys.modules['pynvml'] = None\n" + EACH.format(
        settings=settings, script="found = discovery.gpus()"
    )
    for text, (name, cure) in zip(machine_with_cuda(script).values(), STARTS_THAT_FAIL.values(), strict=True):
        assert text.startswith(f"CUDA cannot list the GPUs: {name} while starting CUDA.")
        assert cure in text


H200 = GpuInfo(0, "NVIDIA H200", "GPU-0a", 150 << 30, "580.159.03", "13.0", (9, 0))
SENTENCES = {
    "driver": (
        replace(H200, driver="570.124.06", cuda="12.8"),
        r"driver \(570\.124\.06, CUDA 12\.8\) is older than 580",
    ),
    "unknown release": (replace(H200, driver="", cuda="12.8"), r"driver \(CUDA 12\.8\) is older than 580"),
    "architecture": (replace(H200, compute_capability=(7, 0)), r"compute capability 7\.0 is below 7\.5"),
    "exclusive": (replace(H200, compute_mode="exclusive process"), r"one process use it.*nvidia-smi -c 0 -i GPU-0a"),
    "prohibited": (replace(H200, compute_mode="prohibited"), r"no process use it.*nvidia-smi -c 0"),
}


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Sets which of the packages that run candidates is installed: that of CUDA 13 at first. No MPS, no driver."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "none"))
    monkeypatch.setattr(discovery, "CONTROL", (tmp_path / "nvidiactl", tmp_path / "dxg"))

    def install(*packages):
        def version(name):
            if name not in packages:
                raise metadata.PackageNotFoundError(name)
            return "14.2.0"

        monkeypatch.setattr(metadata, "version", version)

    install("cupy-cuda13x")
    return install


@pytest.mark.parametrize("what", SENTENCES)
def test_a_gpu_that_cannot_be_used_is_refused_in_one_sentence_with_the_cure(installed, what):
    gpu, pattern = SENTENCES[what]
    assert discovery.unusable(H200) is None
    message = discovery.unusable(gpu)
    assert re.search(pattern, message), message
    assert "\n" not in message


def test_what_a_gpu_must_have_depends_on_the_packages(installed):
    old = replace(H200, driver="550.54", cuda="12.4", compute_capability=(7, 0))
    assert "cupy-cuda13x" in discovery.unusable(old)
    installed("cupy-cuda12x")
    assert discovery.unusable(old) is None
    message = discovery.unusable(replace(old, driver="470.1", cuda="11.4"))
    assert "older than 525" in message
    assert "gpu12" not in message  # that is what is installed
    installed()
    assert "580" in discovery.unusable(old)
    # A GPU of which nothing is known but its driver is tried.
    assert discovery.unusable(replace(H200, compute_capability=None)) is None


def test_an_mps_daemon_is_refused(installed, monkeypatch, tmp_path):
    os.mkfifo(tmp_path / "control")
    assert discovery.unusable(H200) is None
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert discovery.unusable(H200) is None, "a pipe that a daemon left behind"
    daemon = os.open(tmp_path / "control", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert re.search(r"MPS daemon.*nvidia-cuda-mps-control", discovery.unusable(H200))
    finally:
        os.close(daemon)


UVM = """
from dataclasses import replace
from pathlib import Path
import os, sys
from kernelforge.devices.cuda import discovery
folder = Path(os.environ["FOLDER"])
discovery.CONTROL, discovery.UVM = (Path("/"), Path("/dev/dxg")), folder / "nvidia-uvm"
[gpu] = discovery.gpus()[:1]
discovery.UVM.unlink(missing_ok=True)
answer = discovery.unusable(gpu), discovery.UVM.exists()
"""


@pytest.mark.slow
def test_the_node_of_unified_memory_is_made_or_its_lack_told(machine_with_nvml, tmp_path):
    where = {"FOLDER": str(tmp_path), "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "none"), "PATH": str(tmp_path)}
    assert machine_with_nvml(UVM, **where, MAKES_NODE=str(tmp_path / "nvidia-uvm")) == [None, True]
    message, there = machine_with_nvml(UVM, **where)
    assert not there
    assert "nvidia-uvm is missing" in message
    assert "nvidia-modprobe -u -c 0" in message
    # Where starting CUDA does not make it, the driver's helper is run.
    helper = tmp_path / "nvidia-modprobe"
    helper.write_text(f'#!/bin/sh\n[ "$*" = "-u -c 0" ] && : > {tmp_path}/nvidia-uvm\n')
    helper.chmod(0o755)
    assert machine_with_nvml(UVM, **where) == [None, True]
