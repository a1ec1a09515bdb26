"""Software GPUs for runs: real jailed processes, PTX on the software driver, an oracle on the CPU, made-up times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelforge.compile import Artifact
from kernelforge.devices.base import Device, RunRequest
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.evaluation.oracle.client import Oracle, OracleFacts
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.records import Origin, Profile, Roofline, SizeFacts, Task
from kernelforge.sandbox import Zygote
from tests.devices.cuda.software import with_ptx


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
