"""Software GPUs for runs: real jailed processes, PTX on the software driver, an oracle on the CPU, made-up times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernelforge.compile import Artifact
from kernelforge.devices.base import Device, RunRequest
from kernelforge.devices.cuda import discovery
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.devices.cuda.target import GpuInfo
from kernelforge.evaluation.oracle.client import Oracle, OracleFacts
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.remote import machines
from kernelforge.records import Origin, Profile, Roofline, SizeFacts, Task
from kernelforge.sandbox import Zygote
from tests.devices.cuda.fake_timer import FakeTimer
from tests.devices.cuda.software import with_ptx
from tests.support.axpy import PLAN, REFERENCE
from tests.support.llm_server import Call, Say


class Unprofiled(CudaSession):
    """Leaves out what a profile takes, where nothing is asked of it."""

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, None]:
        roofline = Roofline(
            flops=0, dram_bytes=0, compulsory_bytes=1, arithmetic_intensity=0, ridge=1, bound="dram", time_us=1,
            time_origin=Origin.MEASURED,
        )  # fmt: skip
        return Profile(size=facts.size, device=self._target.name, kernels=(), metrics=(), roofline=roofline), None


class Gpu(CudaDevice):
    """``cuda:0``, ``cuda:1``... on the software driver."""

    def __init__(self, ordinal: int, factory: str, profiled: bool) -> None:
        super().__init__(ordinal, driver=f"tests.devices.cuda.several_gpus:{factory}", grace_s=5.0)
        self.profiled = profiled

    def open(self, artifact: Artifact) -> CudaSession:
        self.runners.require_healthy()
        return (CudaSession if self.profiled else Unprofiled)(self.target, self.runners, with_ptx(artifact))

    def clocks(self) -> None:
        return None


class Uncompiled(Oracle):
    """Leaves out the baseline that takes seconds for each candidate, where nothing is asked of it."""

    def baselines(self, size: str = "full") -> tuple[str, ...]:
        return tuple(name for name in super().baselines(size) if name != "compile")


class SoftwareWorkshop(EvaluatorPool):
    """Its oracles run on the CPU, for there is no GPU for torch, and share one helper process."""

    oracles: Zygote
    compiled: tuple[str, ...] = ()
    """Tasks that are tried with ``torch.compile`` too."""
    leases: list[str]
    """Name of the GPU for each time that one was taken."""

    @contextmanager
    def hold_gpu(self, device: Device, task: Task) -> Iterator[None]:
        self.leases = [*getattr(self, "leases", []), device.name]
        with super().hold_gpu(device, task):
            yield

    def oracle(self, task: Task, device: Device | None = None, cached: OracleFacts | None = None) -> Oracle:
        return (Oracle if task.name in self.compiled else Uncompiled)(self.oracles, task, device="cpu", cached=cached)


SUITE = """
title = "One"
description = "One task that takes no time."
level = 1

[[task]]
name = "axpy"
title = "2x + y"
small = { ROWS = 8, COLS = 32 }
hidden.odd = { ROWS = 7, COLS = 33 }
"""
OPENING = 2
"""Times that the GPU is taken before a task's first candidate: for its oracle, and for its admission."""


def reply(work: int, value: str = "2.0f * x[i] + y[i]", mark: int = 0) -> str:
    source = f"""// {mark}
__global__ void axpy(const float* x, const float* y, float* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float waste = 0.0f;
    for (int k = 0; k < {work}; k++) waste += sinf(x[i] + k);
    out[i] = waste == -123456.0f ? 0.0f : {value};
}}
"""
    return f"```cuda\n{source}```\n\n```python\n{PLAN}```\n"


REPLIES = (
    reply(200, mark=0),
    reply(4, "2.5f * x[i] + y[i]", mark=1),
    reply(2000, mark=2),
    reply(4, "0.0f * x[n] + 2.0f * x[i] + y[i]", mark=3),
    reply(4, mark=4),
    reply(4, "nothing[i]", mark=5),
)
"""Right, wrong, right and slow, a bad access, right and fast, no C++."""
WRONG, FAST, SLOWER, SLOWEST = (1, 3), 4, 0, 2


def in_turn(call: Call) -> Say:
    """A model that gives the replies in their order, one for each call, and begins again."""
    return Say(REPLIES[call.number % len(REPLIES)], input_tokens=100, output_tokens=10)


def write_suite(folder: Path) -> Path:
    """Write the suite of one task, ``axpy``."""
    (folder / "suite.toml").write_text(SUITE)
    (folder / "axpy.py").write_text(REFERENCE)
    return folder


def use_software_gpu(patch: pytest.MonkeyPatch) -> list[SoftwareWorkshop]:
    """Make ``cuda:0`` a software GPU for runs; gives the pools that they open."""
    opened: list[SoftwareWorkshop] = []

    def workshop(device: str, **how: Any) -> EvaluatorPool:
        opened.append(SoftwareWorkshop(device, opened=[Gpu(0, "create", True)], **how))
        return opened[-1]

    gpu = GpuInfo(0, "Software GPU", "GPU-0", 1 << 30, "580.159.03", "13.0")
    patch.setattr(discovery, "gpus", lambda: (gpu,))
    patch.setattr(discovery, "unusable", lambda gpu, runtime=None: None)
    patch.setattr(machines, "EvaluatorPool", workshop)
    patch.setattr("kernelforge.evaluation.stages.full_size_measured.CandidateTimer", FakeTimer)
    return opened
