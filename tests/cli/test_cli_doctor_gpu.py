"""``doctor`` on GPUs: what it says of each part, fed with what a driver would say, and with what is really here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernelforge.cli.doctor import gpu
from kernelforge.cli.doctor.checks import ProbeResult
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.hardware.wheels import InstalledCuda
from kernelforge.utils.shell_hints import install_hint

H200 = GpuInfo(
    ordinal=0, name="NVIDIA H200", uuid="GPU-0a", memory_bytes=150754820096, driver="580.159.03", cuda="13.0"
)
PAIR = (H200, replace(H200, ordinal=1, uuid="GPU-0b"))


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    """A machine's root with one GPU, one of NVIDIA's sound devices and another's network card on the bus."""
    for name, vendor, kind in (
        ("0000:17:00.0", "0x10de", "0x030200"),
        ("0000:17:00.1", "0x10de", "0x040300"),
        ("0000:01:00.0", "0x15b3", "0x020000"),
    ):
        folder = tmp_path / "sys/bus/pci/devices" / name
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
    return tmp_path


def test_no_gpu_is_a_note_of_one_line(tmp_path: Path) -> None:
    check = gpu.none_found(str(tmp_path))
    assert (check.status, check.detail) == ("note", "none found")
    assert "emulated" in check.advice
    assert "\n" not in check.detail + check.advice


def test_a_gpu_that_no_driver_serves_is_told_with_what_to_do(bus: Path) -> None:
    check = gpu.none_found(str(bus))
    assert "1 on the PCI bus (0000:17:00.0)" in check.detail
    assert "--gpus all" in check.advice
    (bus / "dev").mkdir()
    (bus / "dev/nvidiactl").touch()
    assert "CUDA_VISIBLE_DEVICES" in gpu.none_found(str(bus)).advice


def test_wsl_without_a_gpu_is_told_where_the_driver_belongs(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    check = gpu.none_found(str(tmp_path))
    assert check.status == "note"
    assert "WSL" in check.detail
    assert "on Windows" in check.advice


def test_a_driver_that_fails_is_a_note_and_nothing_else_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    output = ProbeResult(False, "kernelforge.errors.DeviceError: CUDA cannot list the GPUs: version mismatch")
    monkeypatch.setattr(gpu, "probe_python", lambda script, **_: output)
    [check] = gpu.check_gpus()
    assert check.status == "note"
    assert "version mismatch" in check.detail
    assert "nvidia-smi" in check.advice


def test_every_gpu_is_named_with_memory_driver_and_cuda() -> None:
    check = gpu.check_driver(PAIR)
    assert check.status == "ok"
    assert "cuda:0 NVIDIA H200, 151 GB; cuda:1 NVIDIA H200, 151 GB" in check.detail
    assert "driver 580.159.03, CUDA 13.0" in check.detail


@pytest.mark.parametrize(("cuda", "status"), [("12.8", "note"), ("13.0", "ok"), ("13.10", "ok"), ("14.0", "ok")])
def test_a_driver_that_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch, cuda: str, status: str) -> None:
    from kernelforge.devices.cuda import discovery

    monkeypatch.setattr(discovery, "installed_cuda", lambda: InstalledCuda(13, 13, "cupy-cuda13x"))
    check = gpu.check_driver([replace(H200, cuda=cuda)])
    assert check.status == status
    assert ("580" in check.advice) == (status == "note")


def test_a_gpu_for_one_process_alone_is_told_with_the_cure() -> None:
    check = gpu.check_driver([H200, replace(PAIR[1], compute_mode="exclusive process")])
    assert check.status == "note"
    assert "cuda:1 is not used: its compute mode is 'exclusive process'" in check.advice
    assert "cuda:0" not in check.advice
    assert "nvidia-smi -c 0" in check.advice


def test_packages_are_named_with_versions_and_lacks_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelforge.devices.cuda import discovery

    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ())
    assert gpu.check_packages([H200]).status == "ok"
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ("cupy-cuda13x", "cuda-bindings"))
    check = gpu.check_packages([H200])
    assert check.status == "problem"
    assert "missing: cupy-cuda13x, cuda-bindings" in check.detail
    assert install_hint("gpu") in check.advice
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ("nvidia-ml-py",))
    assert gpu.check_packages([H200]).status == "note"


def test_tools_that_are_missing_are_notes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    for check in (gpu.check_profiler([H200]), gpu.check_sanitizer([H200])):
        assert check.status == "ok" or check.advice, check


def test_all_parts_are_told_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ProbeResult(
        True,
        '[{"ordinal": 0, "name": "NVIDIA H200", "uuid": "GPU-0a", "memory_bytes": 1, "driver": "", "cuda": "13.0", '
        '"compute_capability": [9, 0], "compute_mode": "default"}]',
    )
    monkeypatch.setattr(gpu, "probe_python", lambda script, **_: listed)
    checks = gpu.check_gpus()
    assert [check.name for check in checks] == ["gpu", "gpu packages", "ncu", "compute-sanitizer"]
    assert all(check.status == "ok" or check.advice for check in checks)
