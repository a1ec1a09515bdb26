"""Measured times of a candidate and its baselines, with samples, intervals and plausibility."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from kernelforge.records.base import Record

Interval = tuple[float, float]
"""Lower and upper end of a confidence interval."""


UNRANKED = frozenset({"eager-synchronised"})
"""Baselines that are timed for information; no speedup is against one of them."""

COMPILED = "compile"
"""The baseline of ``torch.compile``, usually the fastest of PyTorch."""


class SideTimes(Record):
    """Times of one side: the candidate, or one baseline."""

    name: str
    """``candidate``, or a baseline: ``eager``, ``eager-graph``, ``compile``, ``compile-max-autotune``, ``cublas``,
    ``cublaslt-heuristic``, ``cublaslt-autotuned``; ``eager-synchronised``, which the speedup is never against; ``c``,
    the suite's C function."""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Time of one execution, per sample in order; if there are very many, at even steps."""
    median_us: float = Field(gt=0, allow_inf_nan=False)
    interval_us: Interval
    """95 % bootstrap interval of the median."""
    captured: bool
    """Replayed from a CUDA graph. Otherwise launches from the host are part of the time."""
    node_gap_us: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Time of an empty kernel in the same kind of sample: the gap between two kernels on the GPU, and the least time of
    any kernel. Every time includes it once per kernel; it is not subtracted. None if it was not measured."""

    @model_validator(mode="after")
    def _a_time(self) -> SideTimes:
        if not all(0 < sample < math.inf for sample in self.samples_us):
            raise ValueError(f"{self.name}: a sample is a positive, finite time")
        if not 0 < self.interval_us[0] <= self.interval_us[1] < math.inf:
            raise ValueError(f"{self.name}: {self.interval_us} is not an interval of times")
        return self


class Ratio(Record):
    """Speedup of the candidate over one baseline, from alternating samples."""

    baseline: str
    speedup: float = Field(gt=0, allow_inf_nan=False)
    """Time of the baseline over time of the candidate: a mean over rounds in which the two alternate, so that common
    disturbances cancel. It may differ a little from the ratio of the two medians."""
    interval: Interval
    """95 % bootstrap interval over rounds."""
    blocks: int = Field(ge=1)
    """Pairs of alternating blocks."""

    @model_validator(mode="after")
    def _inside(self) -> Ratio:
        if not 0 < self.interval[0] <= self.interval[1] < math.inf:
            raise ValueError(f"{self.interval} is not an interval of speedups")
        return self


class Clocks(Record):
    """Clocks, temperature and power reported by the GPU during timing; they are not set."""

    sm_mhz: tuple[int, int]
    """Lowest and highest reading."""
    memory_mhz: tuple[int, int]
    temperature_c: tuple[int, int]
    power_w: tuple[float, float]
    throttled: tuple[str, ...] = ()
    """Reasons for reduced clocks, other than idleness, by NVML's names."""


class HostClock(Record):
    """Comparison of the parent's clock with the device's events: N replays against 2N, so that fixed costs cancel."""

    events_us: float
    """Time of one execution by the events of the process that ran it."""
    slope_us: float
    """Time of one execution by the parent's clock."""
    agrees: bool


class SideEnergy(Record):
    """Energy of one execution of one side, above idle power, without resets and flushes; by the GPU's counter."""

    name: str
    """As of :class:`SideTimes`."""
    joules: float = Field(gt=0, allow_inf_nan=False)
    """Mean over windows."""
    interval: Interval
    """95 % bootstrap interval over windows."""
    idle_w: float = Field(ge=0, allow_inf_nan=False)
    """Power between the windows, which is subtracted."""
    windows: int = Field(ge=2)
    """Windows of at least a second."""


class LaunchQueue(Record):
    """Waits of the kernels that one call of eager PyTorch launches, on a GPU that is idle when the call begins.

    ``tklqt_us`` is the total kernel launch and queuing time of SKIP (arXiv 2504.11750): summed over kernels, the time
    from the beginning of the call that launches it to its start.
    """

    origin: Literal["measured", "predicted"]
    """From a trace of PyTorch's profiler, or from the predicted times of the operators."""
    kernels: int = Field(ge=1)
    tklqt_us: float = Field(ge=0, allow_inf_nan=False)
    launch_us: float = Field(ge=0, allow_inf_nan=False)
    """Part of it that the kernels would wait without a queue."""
    host_us: float = Field(ge=0, allow_inf_nan=False)
    """Time in which the host makes all launches."""
    gpu_us: float = Field(ge=0, allow_inf_nan=False)
    """Time of all kernels, and in a prediction of the gaps between them."""

    @model_validator(mode="after")
    def _launches_are_a_part(self) -> LaunchQueue:
        if self.launch_us > self.tklqt_us * (1 + 1e-9):
            raise ValueError(f"launches take {self.launch_us} us, more than launches and queue, {self.tklqt_us} us")
        return self

    @property
    def bound(self) -> Literal["GPU", "CPU"]:
        """The slower side: the kernels, which queue up then, or the host that launches them."""
        return "GPU" if self.gpu_us > self.host_us else "CPU"

    @property
    def queue_us(self) -> float:
        """Part of ``tklqt_us`` for which kernels wait behind earlier ones."""
        return max(self.tklqt_us - self.launch_us, 0.0)


class CpuConditions(Record):
    """Processor, threads and compiler of timed C functions."""

    name: str
    """Of the processor."""
    cpus: int = Field(ge=1)
    """Processors that both sides may use."""
    threads: int = Field(ge=1)
    """Of OpenMP, and of PyTorch; a function may start others."""
    command: str
    """Compiler and flags of the candidate; the suite's function is compiled alike, by the compiler of its language."""
    overhead_us: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Time of a call of an empty function, taken the same way. It is part of every time, and is not subtracted."""


class Timing(Record):
    """One candidate timed against its baselines at the full size, under one protocol."""

    protocol: str
    """``graph/1``, ``launch/1`` or ``kernelbench/1``, with the suffix ``+server`` for gaps between requests;
    ``cpu/1`` for a C function."""
    mode: Literal["offline", "server"] = "offline"
    sets: int = Field(ge=1)
    """Disjoint sets of inputs, weights and outputs in one sample."""
    set_bytes: int = Field(ge=0)
    """Bytes of one set."""
    flush_bytes: int = Field(ge=0)
    """Bytes read in every sample to flush the L2, whose time is subtracted; 0 for a warm L2."""
    flush_each: bool = False
    """Whether the L2 is flushed before each execution (sets of at most twice the L2), or once per sample."""
    candidate: SideTimes
    baselines: tuple[SideTimes, ...]
    ratios: tuple[Ratio, ...]
    fastest: str | None
    """The baseline of the speedup; None without baselines."""
    absent: dict[str, str] = {}
    """Baselines that could not be built, or failed while they were timed, with the reason."""
    settled: bool
    """Whether the interval of the ratio became as narrow as requested."""
    budget_s: float = Field(gt=0)
    host: HostClock | None = None
    clocks: Clocks | None = None
    cpu: CpuConditions | None = None
    """Of a C function; its times are of calls on this machine's CPU."""
    energy: tuple[SideEnergy, ...] = ()
    """Of the candidate, then of the fastest baseline; empty unless it was requested and could be measured."""
    eager_launches: LaunchQueue | None = None
    """Of eager PyTorch, traced; None unless it was requested and could be traced."""
    setup_us: float | None = Field(default=None, ge=0)
    """Time of the plan's ``setup``, which is not part of the candidate's time."""
    coverage: float | None = Field(default=None, ge=0, le=1)
    """Share of device time in the candidate's own kernels; the rest is in ``library`` calls and memsets."""
    notes: tuple[str, ...] = ()
    """Remarks for readers of the times."""

    @model_validator(mode="after")
    def _consistent(self) -> Timing:
        names = [side.name for side in self.baselines]
        if len(set(names)) != len(names):
            raise ValueError(f"baselines repeat: {', '.join(names)}")
        compared = [ratio.baseline for ratio in self.ratios]
        if len(set(compared)) != len(compared) or not set(compared) <= set(names):
            raise ValueError(f"ratios against {compared} need one baseline each, of {names}")
        if self.fastest is not None and self.fastest not in compared:
            raise ValueError(f"the fastest baseline {self.fastest!r} was not compared with")
        return self

    @property
    def compiled(self) -> bool:
        """Whether ``torch.compile`` was among the baselines."""
        return any(side.name == COMPILED for side in self.baselines)

    @property
    def energy_ratio(self) -> float | None:
        """Energy of the fastest baseline over that of the candidate; None unless both were measured."""
        return None if len(self.energy) < 2 else self.energy[1].joules / self.energy[0].joules

    def ratio(self, baseline: str) -> Ratio | None:
        """The ratio against the baseline of that name, or None."""
        return next((ratio for ratio in self.ratios if ratio.baseline == baseline), None)
