"""Timer of a calibration: builds kernels of this package and times plans of them, on any device, as candidates are.

A time is that of :meth:`kernelforge.devices.base.Session.rate`: measured on a GPU, with a cold L2 before each sample,
modelled on an emulated device.
"""

from __future__ import annotations

import inspect
import math
import re
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.candidate import parse_plan
from kernelforge.devices import make_device
from kernelforge.devices.base import Device, RunFailed, RunRequest, Session
from kernelforge.errors import DeviceError, TimingError
from kernelforge.evaluation.pool import device_lock, make_compiler
from kernelforge.hardware.specs import GENERATIONS, MULTIPROCESSORS, Multiprocessor
from kernelforge.records import Build
from kernelforge.utils.closing import Closing

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 60.0
"""Of one run of a plan; on a GPU each takes milliseconds."""
EFFORT = 0.25
"""Of a rating on an emulated device: blocks of a grid are alike, a few tell of all."""
LONGER_ON_A_GPU = 16
"""Rounds of a kernel on a GPU, over those on an emulated device: events there resolve half a microsecond."""


@dataclass(frozen=True)
class CardFacts:
    """Facts of a GPU that no measurement is needed for: its driver reports them."""

    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    max_clock_mhz: int
    clock_share: float
    """Assumed clock under load over the highest one."""
    dram_bytes: int
    dram_bandwidth_gbps: float
    dram_ecc_share: float
    """Assumed bytes of ECC that are moved with a byte of data."""
    l2_bytes: int
    driver: str
    """Empty for an emulated device."""
    sm: Multiprocessor

    @property
    def warps(self) -> int:
        """Most warps of the whole GPU at a time."""
        return self.sm_count * self.sm.warps

    def cycles(self, time_us: float) -> float:
        """A time in cycles of the clock under load, in which the figures are."""
        return time_us * self.max_clock_mhz * self.clock_share


class PlanTimer(Closing):
    """One device, held for a calibration, with the builds that it was given.

    Args:
        name: Name of the device.
        allow_unconfined: Run without a jail where none works.
        tell: Called with a line when another process has the GPU.

    Raises:
        DeviceError: there is no such device, it cannot be used, or nothing is known of its compute capability.
    """

    def __init__(
        self,
        name: str,
        *,
        cache: Path | None = None,
        allow_unconfined: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._stack = ExitStack()
        with ExitStack() as opening:
            self.device = make_device(name, allow_unconfined=allow_unconfined)
            opening.callback(self.device.close)
            opening.enter_context(device_lock(self.device, "calibrate", tell))
            self._compiler = make_compiler(cache, allow_unconfined=allow_unconfined, limit_s=None)
            opening.callback(self._compiler.close)
            self.facts = card_facts(self.device)
            self._stack = opening.pop_all()
        self._file = ""
        self._session: Session | None = None

    @property
    def measures(self) -> bool:
        """Whether times are measured; else they are modelled."""
        return self.device.capabilities.measures_time

    def rounds(self, number: int) -> int:
        """Rounds of a kernel's loop: more where they are measured."""
        return number * LONGER_ON_A_GPU if self.measures else number

    def time_us(self, file: str, forward: str, setup: str = "") -> float:
        """Time of the launches of a plan.

        Args:
            file: Name of a file of kernels, without its ending.
            forward: Lines of ``forward``; it may use ``out``, 32 words that the plan returns.
            setup: Lines of ``setup``, which end with ``return``; the L2 may have none of what it wrote.

        Raises:
            DeviceError: the kernels cannot be built or run on this device.
            TimingError: the device gave what cannot be a time.
        """
        text = f"def forward():\n    out = empty((32,), dtype=int32)\n{_indented(forward)}    return out\n"
        if setup:
            text = f"def setup(w):\n{_indented(setup)}\n{text}"
        plan = parse_plan(text, "cuda").resolve([], {}, {})
        if file != self._file:
            self._open(file)
        assert self._session is not None
        request = RunRequest(plan.bound_to(self._build), {}, deadline_s=DEADLINE_S)
        try:
            time = self._session.rate(request, 1.0 if self.measures else EFFORT).time_us
        except RunFailed as error:
            raise DeviceError(f"a kernel of {file}.cu does not run on {self.device.name}: {error}") from error
        if not 0 < time < math.inf:
            raise TimingError(f"{self.device.name} gave {time} us for a plan of {file}.cu, which is no time")
        return time

    def _open(self, file: str) -> None:
        """Open a session for all kernels of a file, in place of the one before."""
        self._close_session()
        source = files("kernelforge.calibration").joinpath(f"kernels/{file}.cu").read_text(encoding="utf-8")
        kernels = re.findall(r"__global__ void (\w+)\(", source)
        artifact = self._compiler.build(source, kernels, arch=self.device.arch, scored=False)
        if isinstance(artifact, Build):
            problem = artifact.refused or "; ".join(map(str, artifact.errors)) or "the compiler hit a limit"
            raise DeviceError(f"{file}.cu is not built for {self.device.arch}: {problem}")
        self._session, self._build, self._file = self.device.open(artifact), artifact.build, file

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session, self._file = None, ""

    def close(self) -> None:
        """End the device's processes, and let others have the GPU."""
        self._close_session()
        self._stack.close()


def _indented(lines: str) -> str:
    return textwrap.indent(inspect.cleandoc(lines), "    ") + "\n"


def card_facts(device: Device) -> CardFacts:
    """Facts of a device's GPU.

    Raises:
        DeviceError: nothing is known of multiprocessors of its compute capability.
    """
    facts = getattr(device, "facts", None) or device.spec
    capability = facts.compute_capability
    sm = MULTIPROCESSORS.get(capability)
    if sm is None or capability not in GENERATIONS:
        raise DeviceError(
            f"{device.name} has compute capability {capability[0]}.{capability[1]}, which is unknown here"
        )
    identity = device.identity()
    return CardFacts(
        name=identity.get("gpu") or device.spec.title,
        compute_capability=capability,
        sm_count=facts.sm_count,
        max_clock_mhz=facts.max_clock_mhz,
        clock_share=device.spec.sustained_clock_share,
        dram_bytes=getattr(facts, "memory_bytes", 0) or device.spec.dram_bytes,
        dram_bandwidth_gbps=device.memory_bandwidth_gbps or device.spec.dram_bandwidth_gbps,
        dram_ecc_share=device.spec.dram_ecc_share,
        l2_bytes=device.l2_bytes,
        driver=identity.get("driver", ""),
        sm=sm,
    )
