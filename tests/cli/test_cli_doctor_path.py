"""``doctor`` takes a kernel through every stage: real processes, a software GPU, and a fault in each stage in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelforge import devices
from kernelforge.cli.doctor import host, path
from kernelforge.cli.doctor.path import Stage, summary, try_device, try_stages
from kernelforge.devices.base import Device
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.errors import BaselineError, SandboxError, TaskError
from kernelforge.evaluation.oracle.client import Oracle, OracleFacts
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.hardware.wheels import InstalledCuda
from kernelforge.records import Task
from kernelforge.sandbox import Zygote, select_tier
from tests.devices.cuda.software import SoftwareDevice

pytestmark = [
    pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine"),
    pytest.mark.usefixtures("warm_zygotes", "own_leases"),
]

GPU_STAGES = ["runner", "oracle", "build", "check", "graph", "eager graph", "compile", "replay", "counters"]


class CpuOracle(Oracle):
    """Torch on the CPU captures no graph and is spared the compiler: a baseline is eager torch, or missing."""

    lacking: Sequence[str] = ("compile",)

    def arm(self, baseline: str, handles: Sequence[int], *, flush_bytes: int = 0, flush_each: bool = False) -> Any:
        if baseline in self.lacking:
            raise BaselineError(f"no {baseline} here")
        side = super().arm("eager", handles, flush_bytes=flush_bytes, flush_each=flush_each)
        side.in_graph = True
        return side


class GpuWorkshop(EvaluatorPool):
    """A software GPU with an oracle on the CPU."""

    oracle_kind: type[Oracle] = CpuOracle

    def __init__(self, zygote: Zygote, cache: Path, factory: str = "create") -> None:
        super().__init__("cuda:0", cache=cache, opened=[SoftwareDevice(factory)])
        self._cpu = zygote

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        return self.oracle_kind(self._cpu, task, cached=cached)


@pytest.fixture
def tried(kept_zygotes: Callable[..., Zygote], tmp_path: Path) -> Callable[..., dict[str, Stage]]:
    """The stages on a software GPU, by name, after a workshop was changed by ``spoil``."""

    def call(factory: str = "create", spoil: Callable[[GpuWorkshop], None] | None = None) -> dict[str, Stage]:
        def opened() -> GpuWorkshop:
            workshop = GpuWorkshop(kept_zygotes("oracle"), tmp_path, factory)
            if spoil is not None:
                spoil(workshop)
            return workshop

        stages = try_stages(opened, measures=True)
        assert [stage.name for stage in stages] == GPU_STAGES
        return {stage.name: stage for stage in stages}

    return call


def statuses(stages: dict[str, Stage]) -> list[str]:
    return [stage.status for stage in stages.values()]


@pytest.mark.slow
def test_a_gpu_passes_every_stage_and_lacks_what_runs_can_do_without(tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")  # without ncu
    stages = tried()
    assert statuses(stages) == ["ok"] * 6 + ["note", "ok", "note"]
    assert stages["compile"].detail == "no compile here"
    assert "ncu was not found" in stages["counters"].detail
    assert all(stage.advice for stage in stages.values() if stage.status == "note")
    check = summary("cuda:0", list(stages.values()))
    assert (check.name, check.status) == ("path cuda:0", "note")
    assert "runner, oracle, build, check, graph, eager graph, replay: ok in" in check.detail


def without_values(workshop: GpuWorkshop) -> None:
    class Mute(CpuOracle):
        def families(self, size: str) -> tuple[str, ...]:
            raise TaskError("torch cannot use 'cuda:0' in the oracle's process")

    workshop.oracle_kind = Mute


def without_compiler(workshop: GpuWorkshop) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise SandboxError("the compile child died")

    workshop.compiler.build = refuse  # type: ignore[method-assign]


def without_graph_of_eager(workshop: GpuWorkshop) -> None:
    class Uncapturable(CpuOracle):
        lacking = ("eager-graph",)

    workshop.oracle_kind = Uncapturable


def unloadable(workshop: GpuWorkshop) -> None:
    def bare(artifact: Any) -> Any:
        return super(SoftwareDevice, workshop.device).open(artifact)  # without the PTX that its driver runs

    workshop.device.open = bare  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "spoil", "fails", "why"),
    [
        ("create_nothing", None, "runner", "CUDA_ERROR_NO_DEVICE"),
        ("create_ailing", None, "runner", "unhealthy"),
        ("create", without_values, "oracle", "torch cannot use"),
        ("create", without_compiler, "build", "the compile child died"),
        ("create", unloadable, "check", "CUDA_ERROR_INVALID_IMAGE"),
        ("create_without_graphs", None, "graph", "cannot be captured"),
        ("create", without_graph_of_eager, "eager graph", "no eager-graph here"),
    ],
)
def test_the_first_stage_that_fails_is_named_and_no_later_one_is_tried(tried, factory, spoil, fails, why) -> None:
    stages = tried(factory, spoil)
    at = GPU_STAGES.index(fails)
    assert statuses(stages) == ["ok"] * at + ["problem"] + ["not tried"] * (len(GPU_STAGES) - at - 1)
    assert why in stages[fails].detail
    assert stages[fails].advice
    check = summary("cuda:0", list(stages.values()))
    assert check.status == "problem"
    assert check.detail.startswith(f"{fails} fails: ")
    assert f"not tried: {', '.join(GPU_STAGES[at + 1 :])}" in check.detail
    assert check.advice == stages[fails].advice
    assert "\n" not in check.detail


@pytest.mark.slow
@pytest.mark.usefixtures("warm_zygotes")
def test_the_emulated_device_passes_its_stages() -> None:
    stages = try_device("emulated:h100")
    assert [(stage.name, stage.status) for stage in stages] == [
        (name, "ok") for name in ("runner", "oracle", "build", "check", "profile")
    ]
    check = summary("emulated:h100", stages)
    assert check.status == "ok"
    assert check.advice == ""


def test_gpus_that_would_be_used_are_tried_and_else_the_emulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def note(name: str) -> list[Stage]:
        tried.append(name)
        return [Stage("runner", "ok")]

    monkeypatch.setattr(path, "try_device", note)
    monkeypatch.setattr(discovery, "gpus", lambda: ())
    assert [check.name for check in host.check_paths()] == ["path emulated:h100"]
    pair = [GpuInfo(n, "NVIDIA H200", f"GPU-{n}", 150 << 30, "580.159.03", "13.0", (9, 0)) for n in range(2)]
    monkeypatch.setattr(discovery, "gpus", lambda: tuple(pair))
    monkeypatch.setattr(discovery, "installed_cuda", lambda: InstalledCuda(13, 13, "cupy-cuda13x"))
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ())
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")
    assert [check.name for check in host.check_paths()] == ["path cuda:0", "path cuda:1"]
    monkeypatch.setattr(discovery, "missing_packages", lambda runtime: ("cuda-bindings",))
    assert [check.name for check in host.check_paths()] == ["path emulated:h100"]
    assert sorted(tried) == ["cuda:0", "cuda:1", "emulated:h100", "emulated:h100"]
    assert devices.best_device() == "emulated:h100"
