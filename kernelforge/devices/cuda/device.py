"""A CUDA GPU in the parent: opens sessions, each a confined, disposable runner with its own context.

The parent itself never calls CUDA.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from kernelforge.compile import Artifact, installed_toolchain
from kernelforge.devices.base import Capabilities, RunFailure, RunRequest
from kernelforge.devices.cuda.runner_pool import RunnerPool, last_line
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.devices.cuda.target import GpuTarget, description, facts_from_wire, nearest_figures
from kernelforge.devices.cuda.worker.driver import GpuFacts
from kernelforge.errors import ChildDied, ChildTimeout, DeviceError
from kernelforge.hardware.specs import GIB, DeviceSpec
from kernelforge.profiling.ncu.catalogue import MetricSet
from kernelforge.records import Clocks
from kernelforge.sandbox import Child, Limits, Zygote
from kernelforge.utils.closing import Closing

Runtime = Literal["cupy", "pycuda"]
DRIVERS: Mapping[Runtime, str] = {
    "cupy": "kernelforge.devices.cuda.worker.cupy_driver:make",
    "pycuda": "kernelforge.devices.cuda.worker.pycuda_driver:make",
}
"""Factory of each runtime's driver; called with the GPU's ordinal."""

GRACE_S = 5.0
_OPEN_S = 120.0
_LIMITS = Limits(
    wall_s=60.0,
    cpu_s=24 * 3600.0,
    memory_bytes=64 * GIB,
    processes=16,
    reply_bytes=64 * GIB,
)


class CudaDevice(Closing):
    """A GPU of this machine.

    The first child reads its facts from the driver, when they are first needed.

    Args:
        ordinal: Number of the GPU, as :func:`kernelforge.devices.cuda.discovery.gpus` counts.
        runtime: Package that calls CUDA.
        driver: Another driver, as ``package.module:factory``; it is called with the ordinal.
        counters: Metrics that a profile collects.
        allow_unconfined: Run children without a jail where none works.
        grace_s: Time after its deadline in which a child may still answer: allocating, loading, comparing.
    """

    kind: Literal["cuda", "emulated"] = "cuda"

    def __init__(
        self,
        ordinal: int,
        *,
        runtime: Runtime = "cupy",
        driver: str | None = None,
        counters: MetricSet = "default",
        allow_unconfined: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.runtime: Runtime = runtime
        self.environment: Mapping[str, str] = {} if driver is not None else _visible_alone(ordinal)
        """Environment in which a process sees this GPU alone."""
        # A process that sees one GPU alone counts it as the first.
        self.driver_options = {
            "driver": driver or DRIVERS[runtime],
            "ordinal": 0 if self.environment else ordinal,
        }
        """How a process opens the GPU: see :func:`kernelforge.devices.cuda.worker.main.open_driver`."""
        self.counters: MetricSet = counters
        self.allow_unconfined = allow_unconfined
        self.grace_s = grace_s
        self._lock = threading.Lock()
        self._target: GpuTarget | None = None
        self._zygote = Zygote(
            "gpu-runner",
            options=self.driver_options,
            environment=self.environment,
            allow_unconfined=allow_unconfined,
        )
        self.runners = RunnerPool(self.name, self._make_runner)
        self._sessions: weakref.WeakSet[CudaSession] = weakref.WeakSet()

    @property
    def target(self) -> GpuTarget:
        """The GPU as sessions and tools use it.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        if self._target is None:
            self.runners.give_back(self._make_runner())
        assert self._target is not None
        return self._target

    @property
    def facts(self) -> GpuFacts:
        """Facts of the GPU, from its driver.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        return self.target.facts

    @property
    def arch(self) -> str:
        """Real architecture to compile for: see :meth:`kernelforge.compile.Toolchain.architecture`."""
        return self.target.arch

    @property
    def memory_bytes(self) -> int:
        """Device memory that one run may use."""
        return self.target.memory_bytes

    @property
    def l2_bytes(self) -> int:
        return self.facts.l2_bytes

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak, from memory clock and bus width."""
        return self.facts.memory_bandwidth_gbps

    @property
    def capabilities(self) -> Capabilities:
        """Features of the GPU and its driver."""
        facts, lacks = self.facts, self.target.lacks
        hopper = facts.compute_capability >= (9, 0)
        return Capabilities(
            measures_time=True,
            checks_accesses=False,
            clusters=hopper and "clusters" not in lacks,
            cooperative="cooperative" not in lacks,
            tensor_maps=hopper and "tensor_maps" not in lacks,
            library="torch" not in lacks,
        )

    @property
    def spec(self) -> DeviceSpec:
        """Public figures of the GPU, or of the nearest known one."""
        return nearest_figures(self.facts).spec

    def describe(self) -> Mapping[str, str]:
        """Facts for a Coder."""
        return description(self.name, self.facts, self.memory_bytes, self.capabilities)

    def identity(self) -> Mapping[str, str]:
        """The GPU, its driver and the runtime, for fingerprints."""
        facts = self.facts
        return {"gpu": facts.name, "gpu_uuid": facts.uuid, "driver": facts.driver, "runtime": facts.runtime}

    def clocks(self) -> Clocks | None:
        """Current clocks, temperature, power and throttle reasons; None if NVML does not report them."""
        from kernelforge.devices.cuda.nvml import read_clocks

        return read_clocks(self.facts.uuid)

    def energy_j(self) -> float | None:
        """Joules that the GPU took since its driver was loaded; None if NVML does not report them."""
        from kernelforge.devices.cuda.nvml import read_energy

        return read_energy(self.facts.uuid)

    def start(self) -> None:
        """Make the first runner, with its context.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        _ = self.target

    def open(self, artifact: Artifact) -> CudaSession:
        """Open a session for one build; it takes its runner at the first run.

        Raises:
            DeviceError: the GPU is unhealthy, or cannot be used.
        """
        self.runners.require_healthy()
        session = CudaSession(self.target, self.runners, artifact)
        with self._lock:
            self._sessions.add(session)
        return session

    def sanitize(self, artifact: Artifact, request: RunRequest) -> tuple[RunFailure, ...]:
        """Reports of compute-sanitizer on one run."""
        from kernelforge.devices.cuda.tools.sanitizer import sanitize

        return sanitize(self.target, self.runners, artifact, request)

    def interrupt(self) -> None:
        """End every run that another thread waits for. A health probe goes on: its end would be blamed on the GPU."""
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.interrupt()

    def close(self) -> None:
        """End the spare runners and the helper process, and every session's child with it."""
        self.runners.close()
        self._zygote.close()

    def _make_runner(self) -> Child:
        """A child with its context.

        Raises:
            DeviceError: CUDA does not start in it, or nothing can be compiled for the GPU.
        """
        child = self._zygote.spawn(_LIMITS)
        try:
            reply: dict[str, Any] = child.call({"op": "open"}, timeout_s=_OPEN_S).data
            if self._target is None:
                facts = facts_from_wire(reply["facts"])
                target = GpuTarget(
                    name=self.name,
                    facts=facts,
                    lacks=frozenset(reply["lacks"]),
                    arch=installed_toolchain().architecture(facts.compute_capability),
                    driver_options=self.driver_options,
                    environment=self.environment,
                    counters=self.counters,
                    grace_s=self.grace_s,
                    allow_unconfined=self.allow_unconfined,
                )
                with self._lock:
                    self._target = target
        except (ChildDied, ChildTimeout, DeviceError) as error:
            child.close()
            raise DeviceError(
                f"{self.name} cannot be used: {last_line(error)}. `kernelforge doctor` says more; "
                "`--device emulated` needs no GPU"
            ) from error
        except BaseException:
            child.close()
            raise
        return child


def _visible_alone(ordinal: int) -> dict[str, str]:
    """Environment in which one GPU alone is visible; empty if the GPU has no UUID."""
    from kernelforge.devices.cuda.discovery import gpus

    listed = gpus()
    return {"CUDA_VISIBLE_DEVICES": listed[ordinal].uuid} if ordinal < len(listed) else {}
