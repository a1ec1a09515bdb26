"""A CUDA GPU in the parent: opens sessions, each a confined, disposable runner with its own context.

The parent itself never touches CUDA.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from kernelforge.compile import Artifact, installed_toolchain
from kernelforge.devices.base import Capabilities, RunFailure, RunRequest
from kernelforge.devices.cuda.health import last_line, probe_error
from kernelforge.devices.cuda.runner_pool import RunnerPool
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.devices.cuda.target import description, facts_from_wire, nearest_figures
from kernelforge.devices.cuda.worker.driver import GpuFacts
from kernelforge.errors import ChildDied, ChildTimeout, DeviceError
from kernelforge.hardware.specs import GIB, DeviceSpec
from kernelforge.records import Clocks
from kernelforge.sandbox import Child, Limits, Zygote

Runtime = Literal["cupy", "pycuda"]
DRIVERS: Mapping[Runtime, str] = {
    "cupy": "kernelforge.devices.cuda.worker.cupy_driver:make",
    "pycuda": "kernelforge.devices.cuda.worker.pycuda_driver:make",
}
"""Where the driver of each runtime is made: called with the GPU's ordinal."""

USABLE_SHARE = 0.9
"""Of the GPU's memory; contexts, modules and the fellow processes of an evaluation take the rest."""
GRACE_S = 5.0
"""How long after its deadline a child may still answer: allocating, loading, comparing."""
_OPEN_S = 120.0
_LIMITS = Limits(
    wall_s=60.0,
    cpu_s=24 * 3600.0,
    memory_bytes=64 * GIB,
    processes=16,
    reply_bytes=64 * GIB,
)


@dataclass(frozen=True)
class _Known:
    """What is known of a GPU once its first child has a context."""

    facts: GpuFacts
    lacks: frozenset[str]
    """Features that its driver lacks, of :data:`kernelforge.devices.cuda.worker.driver.Feature`."""
    arch: str
    """Real architecture to compile for."""


class CudaDevice:
    """A GPU of this machine.

    Its facts are asked of the driver by the first child, when they are first needed.

    Args:
        ordinal: Which one, as :func:`kernelforge.devices.cuda.discovery.gpus` counts.
        runtime: What talks to CUDA.
        driver: Another driver, as ``package.module:factory``; it is called with the ordinal.
        counters: Which metrics a profile collects.
        allow_unconfined: Run children without a jail where none works.
        grace_s: How long after its deadline a child may still answer.
    """

    kind: Literal["cuda", "emulated"] = "cuda"

    def __init__(
        self,
        ordinal: int,
        *,
        runtime: Runtime = "cupy",
        driver: str | None = None,
        counters: Literal["default", "full"] = "default",
        allow_unconfined: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        self.ordinal = ordinal
        self.name = f"cuda:{ordinal}"
        self.runtime: Runtime = runtime
        self.counters: Literal["default", "full"] = counters
        self.grace_s = grace_s
        self.allow_unconfined = allow_unconfined
        self._unhealthy: str | None = None
        self._lock = threading.Lock()
        self._known: _Known | None = None
        self.environment: Mapping[str, str] = {} if driver is not None else _only(ordinal)
        """What a process needs in its environment to see this GPU alone."""
        # A process that sees one GPU alone counts it as the first.
        self.driver_options = {
            "driver": driver or DRIVERS[runtime],
            "ordinal": 0 if self.environment else ordinal,
        }
        """How a process opens the GPU: see :func:`kernelforge.devices.cuda.worker.main.open_driver`."""
        self._zygote = Zygote(
            "gpu-runner",
            options=self.driver_options,
            environment=self.environment,
            allow_unconfined=allow_unconfined,
        )
        self.spares = RunnerPool(self._make)
        self._sessions: weakref.WeakSet[CudaSession] = weakref.WeakSet()

    @property
    def facts(self) -> GpuFacts:
        """What the driver says of the GPU.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        return self._asked.facts

    @property
    def _asked(self) -> _Known:
        if self._known is None:
            self.spares.give_back(self._make())
        assert self._known is not None
        return self._known

    @property
    def arch(self) -> str:
        """Real architecture to compile for: see :meth:`kernelforge.compile.Toolchain.architecture`."""
        return self._asked.arch

    @property
    def memory_bytes(self) -> int:
        """What one run may use."""
        return int(USABLE_SHARE * self.facts.memory_bytes)

    @property
    def l2_bytes(self) -> int:
        return self.facts.l2_bytes

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak, from memory clock and bus width."""
        return self.facts.memory_bandwidth_gbps

    @property
    def capabilities(self) -> Capabilities:
        """What the GPU and its driver can do."""
        facts, lacks = self._asked.facts, self._asked.lacks
        hopper = facts.compute_capability >= (9, 0)
        return Capabilities(
            measures_time=True,
            checks_accesses=False,
            counts_ptx=False,
            clusters=hopper and "clusters" not in lacks,
            cooperative="cooperative" not in lacks,
            tensor_maps=hopper and "tensor_maps" not in lacks,
            library="torch" not in lacks,
        )

    @property
    def spec(self) -> DeviceSpec:
        """Public figures of the GPU, or of the nearest that is known."""
        return nearest_figures(self.facts).spec

    def describe(self) -> Mapping[str, str]:
        """Facts for a Coder."""
        return description(self.name, self.facts, self.memory_bytes, self.capabilities)

    def identity(self) -> Mapping[str, str]:
        """Which GPU and which driver."""
        facts = self.facts
        return {"gpu": facts.name, "gpu_uuid": facts.uuid, "driver": facts.driver, "runtime": facts.runtime}

    def clocks(self) -> Clocks | None:
        """Clocks, temperature, power and throttle reasons now; None where NVML cannot say."""
        from kernelforge.devices.cuda.nvml import read_clocks

        return read_clocks(self.facts.uuid)

    def start(self) -> None:
        """Make the first runner, with its context.

        Raises:
            DeviceError: the GPU cannot be used.
        """
        _ = self._asked

    def open(self, artifact: Artifact) -> CudaSession:
        """A session for one build; its runner is taken at the first run.

        Raises:
            DeviceError: the GPU is unhealthy.
        """
        self.refuse_unhealthy()
        session = CudaSession(self, artifact)
        with self._lock:
            self._sessions.add(session)
        return session

    def sanitize(self, artifact: Artifact, request: RunRequest) -> tuple[RunFailure, ...]:
        """What compute-sanitizer reports of one run."""
        from kernelforge.devices.cuda.tools.sanitizer import sanitize

        return sanitize(self, artifact, request)

    def refuse_unhealthy(self) -> None:
        """Raise :class:`DeviceError` where the GPU failed its probe."""
        if self._unhealthy is not None:
            raise DeviceError(
                f"{self.name} is unhealthy and no longer used: {self._unhealthy}. Nothing after that is scored; "
                "look at `nvidia-smi -q`, reset the GPU or restart the machine"
            )

    def recover(self) -> None:
        """Probe the GPU in a process that ran no candidate, after one that did was lost.

        Raises:
            DeviceError: the probe failed: the GPU is quarantined.
        """
        wrong = self._examined()
        if wrong is not None:
            self._unhealthy = wrong
            self.refuse_unhealthy()

    def probe(self) -> str | None:
        """Probe a GPU that was set aside: what is wrong with it, or None, and then it may be used again."""
        self._unhealthy = self._examined()
        return self._unhealthy

    def _examined(self) -> str | None:
        """What is wrong with the GPU, seen from a process that ran no candidate."""
        try:
            child = self.spares.take(refill=False)
        except DeviceError as error:
            return last_line(error)
        wrong = probe_error(child)
        if wrong is None:
            self.spares.give_back(child)
        else:
            child.close()
        return wrong

    def interrupt(self) -> None:
        """End every run that another thread waits for. A probe is left alone: its end would blame the GPU."""
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.interrupt()

    def close(self) -> None:
        """End the spare runners and the helper process, and every session's child with it."""
        self.spares.close()
        self._zygote.close()

    def __enter__(self) -> CudaDevice:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> Child:
        """A child with its context.

        Raises:
            DeviceError: CUDA does not start in it, or nothing can be compiled for the GPU.
        """
        child = self._zygote.spawn(_LIMITS)
        try:
            reply: dict[str, Any] = child.call({"op": "open"}, timeout_s=_OPEN_S).data
            if self._known is None:
                facts = facts_from_wire(reply["facts"])
                arch = installed_toolchain().architecture(facts.compute_capability)
                with self._lock:
                    self._known = _Known(facts, frozenset(reply["lacks"]), arch)
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


def _only(ordinal: int) -> dict[str, str]:
    """Environment in which one GPU alone is visible; empty where it cannot be named."""
    from kernelforge.devices.cuda.discovery import gpus

    found = gpus()
    return {"CUDA_VISIBLE_DEVICES": found[ordinal].uuid} if ordinal < len(found) else {}
