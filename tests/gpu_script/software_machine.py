"""A place for the GPU script's parts with no GPU: ``cuda:0`` on the software driver, torch on the CPU, tiny sizes.

The clock counts instructions: a kernel that leaves work out is faster for certain. The parent's clock says otherwise,
so every time is quarantined.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_parts.machine import CORPUS, ROOT, Machine
from kernelforge.compile import Artifact
from kernelforge.devices.base import Device
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.evaluation.oracle.client import Oracle, OracleFacts
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.modelnew.evaluator import ModelNewEvaluators
from kernelforge.records import MeasureSettings, Task
from kernelforge.sandbox import Zygote
from tests.devices.cuda.fake_timer import FakeBaseline, FakeClock
from tests.devices.cuda.software import with_ptx

CORE_SIZES = {"swish": "ROWS = 16, COLS = 256", "softmax": "ROWS = 16, COLS = 256", "transpose": "ROWS = 32, COLS = 64"}
CHEAT_SIZES = {"axpy": "ROWS = 16, COLS = 96", "cosines": "ROWS = 16, COLS = 96, STEPS = 16"}
"""Sixteen cosines for each element are enough for the clock to tell them from one product."""


class TimedDevice(CudaDevice):
    """``cuda:0`` whose clock counts instructions, for builds as the compiler makes them."""

    def __init__(self) -> None:
        super().__init__(0, driver="tests.gpu_script.counting_driver:create", grace_s=5.0)

    def open(self, artifact: Artifact) -> CudaSession:
        return super().open(with_ptx(artifact))

    def clocks(self) -> None:
        return None


class EagerOracle(Oracle):
    """Runs eager torch alone: what torch.compile takes to compile is no part of these tests. What it takes is made up:
    on a busy machine, a flush may well take longer than a flush and so little work."""

    def baselines(self, size: str = "full") -> tuple[str, ...]:
        return ("eager",)

    def arm(self, baseline: str, handles: Sequence[int], *, flush_bytes: int = 0, flush_each: bool = False) -> Any:
        side = super().arm(baseline, handles, flush_bytes=flush_bytes, flush_each=flush_each)
        return FakeBaseline(side, FakeClock(), len(handles), flush_bytes > 0)


class SoftwareWorkshop(EvaluatorPool):
    """Its oracle is on the CPU: torch finds no GPU here."""

    def __init__(self, zygote: Zygote, cache: Path, measure: MeasureSettings) -> None:
        super().__init__("cuda:0", cache=cache, measure=measure, opened=[TimedDevice()])
        self._cpu = zygote

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        return EagerOracle(self._cpu, task, cached=cached)


@dataclass(frozen=True)
class SoftwareMachine(Machine):
    """See the module."""

    cache: Path = Path()
    helper: Callable[..., Zygote] = Zygote
    """Makes, or keeps, helper processes by their role."""

    def workshop(self, measure: MeasureSettings | None = None) -> EvaluatorPool:
        return SoftwareWorkshop(self.helper("oracle"), self.cache, measure or self.measure)

    def modelnew(self) -> ModelNewEvaluators:
        return ModelNewEvaluators("cpu")


def make_place(folder: Path, helper: Callable[..., Zygote]) -> SoftwareMachine:
    """A place whose suites are copies of the real ones at tiny full sizes."""
    return SoftwareMachine(
        torch_device="cpu",
        emulated="emulated:h100",
        suite=_tiny(ROOT / "tasks" / "core", folder / "big", CORE_SIZES),
        emulator_suite=_tiny(ROOT / "tasks" / "core", folder / "small", CORE_SIZES),
        cheats=_tiny(CORPUS / "tasks", folder / "cheats", CHEAT_SIZES),
        threads=1,
        measure=MeasureSettings(precision=0.5, seconds=0.3),
        cache=folder / "builds",
        helper=helper,
    )


def _tiny(suite: Path, folder: Path, sizes: dict[str, str]) -> Path:
    shutil.copytree(suite, folder / suite.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tiny").mkdir()
    entries = "".join(f'[[task]]\nname = "{name}"\nfull = {{ {text} }}\n' for name, text in sizes.items())
    (folder / "tiny" / "suite.toml").write_text(f'title = "Tiny"\nbase = "{suite.name}"\n{entries}')
    return folder / "tiny"
