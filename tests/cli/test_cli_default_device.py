"""No device was named and the first GPU does not start: every command and every call from Python falls back and says
so once. A GPU that was named is never replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import kernelforge
import kernelforge.evaluation.api  # before anything in it is replaced
from kernelforge import devices
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.errors import DeviceError, UsageError
from kernelforge.hardware.wheels import InstalledCuda
from kernelforge.leaderboard.verify import device_for
from kernelforge.modelnew.evaluator import ModelNewEvaluators
from kernelforge.records import MeasureSettings

WHY = "CUDA_ERROR_SYSTEM_NOT_READY while starting CUDA"
NOTE = f"cuda:0 is there and not used: {WHY}"


class Gpus:
    """Number of GPUs, those that start, and those that were opened."""

    def __init__(self) -> None:
        self.count = 1
        self.start: set[str] = set()
        self.opened: list[str] = []


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    there = Gpus()
    make = devices.make_device

    def listed() -> tuple[GpuInfo, ...]:
        return tuple(GpuInfo(n, "NVIDIA H200", f"GPU-{n}", 150 << 30, "580.1", "13.0") for n in range(there.count))

    def open_gpu(name: str, **options: object) -> object:
        if name.startswith("emulated"):
            return make(name, **options)  # type: ignore[arg-type]
        there.opened.append(name)
        if name not in there.start:
            raise DeviceError(WHY)
        return SimpleNamespace(start=lambda: None, close=lambda: None)

    monkeypatch.setattr(discovery, "gpus", listed)
    monkeypatch.setattr(discovery, "_installed", lambda module: True)
    monkeypatch.setattr(discovery, "installed_cuda", lambda: InstalledCuda(13, 13, "cupy-cuda13x"))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    monkeypatch.setattr(devices, "make_device", open_gpu)
    monkeypatch.setattr("kernelforge.evaluation.pool.make_device", open_gpu)
    for remembered in (devices._start_failure, devices._warn_once):
        remembered.cache_clear()
    yield there
    for remembered in (devices._start_failure, devices._warn_once):
        remembered.cache_clear()


def test_the_first_gpu_that_starts_is_the_default_and_each_is_opened_once(gpus: Gpus) -> None:
    gpus.count, gpus.start = 3, {"cuda:1", "cuda:2"}
    for _ in range(2):
        assert devices.usable_device() == ("cuda:1", NOTE)
    assert gpus.opened == ["cuda:0", "cuda:1"]
    devices.usable_device(MeasureSettings(runtime="pycuda"))  # another way to open it
    assert gpus.opened == ["cuda:0", "cuda:1"] * 2


@pytest.mark.parametrize("caller", ["evaluate", "optimize", "modelnew", "verify"])
def test_a_call_from_python_falls_back_and_warns_once(
    caller: str, gpus: Gpus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def call() -> None:
        if caller == "evaluate":
            monkeypatch.setattr("kernelforge.evaluation.remote.machines.EvaluatorPool", opens(used))
            with pytest.raises(UsageError):
                kernelforge.evaluate("core/softmax", "no candidate")
        elif caller == "optimize":
            monkeypatch.setattr("kernelforge.api.configure", lambda device, **options: opens(used)(device))
            with pytest.raises(UsageError):
                kernelforge.optimize("softmax")
        elif caller == "modelnew":
            with ModelNewEvaluators() as bench:
                used.append(bench.device)
        else:
            fingerprint = SimpleNamespace(device="cuda:0", device_kind="cuda")
            run = SimpleNamespace(measure=MeasureSettings())
            used.append(device_for(SimpleNamespace(fingerprints=[fingerprint], run=run)))  # type: ignore[arg-type]

    with caplog.at_level(logging.WARNING, logger="kernelforge.devices"):
        call()
        call()
    assert used == ["cpu" if caller == "modelnew" else "emulated:h100"] * 2
    assert [record.getMessage() for record in caplog.records] == [NOTE]


def opens(used: list[str]) -> Callable[..., object]:
    """Stands for what opens a device: notes its name and ends the call."""

    def note(device: str, *rest: object, **options: object) -> object:
        used.append(device)
        raise UsageError("this is as far as the test goes")

    return note


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "mcp", "prompts", "eval", "eval --lane modelnew", "capture"])
def test_a_command_falls_back_and_says_so_once(
    command: str, gpus: Gpus, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    used: list[str] = []
    note = opens(used)
    monkeypatch.setattr("kernelforge.cli.serve._engine", lambda name, address, device, **options: note(device))
    monkeypatch.setattr("kernelforge.evaluation.remote.machines.EvaluatorPool", note)
    monkeypatch.setattr("kernelforge.modelnew.remote.ModelNewEvaluators", note)
    monkeypatch.setattr(
        "kernelforge.capture.client.capture_model", lambda source, inputs, spec, **_: note(f"emulated:{spec.key}")
    )
    monkeypatch.setattr("kernelforge.capture.client.capture_on_gpu", lambda source, inputs, gpu, **_: note(gpu))
    (tmp_path / "candidate.py").write_text("import torch\nclass ModelNew(torch.nn.Module):\n    pass\n")
    arguments = {
        "serve": ["serve", "--port", "0"],
        "mcp": ["mcp"],
        "prompts": ["prompts", "show", "repair", "--task", "softmax"],
        "eval": ["eval", "candidate.py", "--task", "softmax"],
        "eval --lane modelnew": ["eval", "candidate.py", "--task", "softmax", "--lane", "modelnew"],
        "capture": ["capture", "candidate.py:make_model", "--inputs", "candidate.py:make_inputs"],
    }[command]
    done = cli(*arguments)
    assert used == ["cpu" if "modelnew" in command else "emulated:h100"], done.err
    assert done.err.count(NOTE) == 1
    assert "Traceback" not in done.err
    opened = len(gpus.opened)
    cli(*arguments, "--device", "cuda:0")
    assert used[1:] == ["cuda:0"]
    assert len(gpus.opened) == opened, "the command that uses a named device opens it"


@pytest.mark.slow
def test_a_server_has_every_gpu_where_one_starts(gpus: Gpus, cli: Callable[..., Any], monkeypatch) -> None:
    used: list[str] = []
    monkeypatch.setattr("kernelforge.cli.serve._engine", lambda name, address, device, **options: opens(used)(device))
    gpus.count, gpus.start = 2, {"cuda:1"}
    done = cli("serve", "--port", "0")
    assert used == ["cuda"]
    assert done.err.count(NOTE) == 1


def test_a_named_gpu_is_never_replaced(gpus: Gpus, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeviceError, match=WHY):
        kernelforge.evaluate("core/softmax", "no candidate", device="cuda:0")
    assert not caplog.records
