"""Measured times: what was timed against what, how often, and whether the numbers are plausible."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from kernelforge.records.base import Record

Interval = tuple[float, float]
"""Lower and upper end of a confidence interval."""


UNRANKED = frozenset({"eager-synchronised"})
"""Baselines that are timed for the reader alone: a speedup is never against one of them."""

COMPILED = "compile"
"""The baseline without which the fastest of the others may be far from the fastest that PyTorch has."""


class SideTimes(Record):
    """Times of one side: the candidate, or one baseline."""

    name: str
    """``candidate``, or the baseline's: ``eager``, ``eager-graph``, ``compile``, ``compile-max-autotune``, ``cublas``,
    ``cublaslt-heuristic``, ``cublaslt-autotuned``; ``eager-synchronised``, which the speedup is never against."""
    samples_us: tuple[float, ...] = Field(min_length=1)
    """Time of one execution, one number per sample, in the order they were taken; of very many, some at even steps."""
    median_us: float = Field(gt=0, allow_inf_nan=False)
    interval_us: Interval
    """95 % bootstrap interval of the median."""
    captured: bool
    """Replayed from a CUDA graph. If not, launches from the host are part of the time."""
    node_gap_us: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Time of one execution that is an empty kernel, found in the same shape of sample: the gap between two kernels on
    the GPU, and the least that any kernel takes. It is a part of every time, once per kernel, and is not subtracted.
    None where it was not found."""

    @model_validator(mode="after")
    def _a_time(self) -> SideTimes:
        if not all(0 < sample < math.inf for sample in self.samples_us):
            raise ValueError(f"{self.name}: a sample is a positive, finite time")
        if not 0 < self.interval_us[0] <= self.interval_us[1] < math.inf:
            raise ValueError(f"{self.name}: {self.interval_us} is not an interval of times")
        return self


class Ratio(Record):
    """How much faster the candidate is than one baseline, from samples that alternated."""

    baseline: str
    speedup: float = Field(gt=0, allow_inf_nan=False)
    """How often the candidate runs in the time of the baseline: a mean over rounds in which the two took turns, so that
    what disturbed both cancels. It may differ a little from the ratio of the two medians."""
    interval: Interval
    """95 % bootstrap interval over rounds."""
    blocks: int = Field(ge=1)
    """Pairs of blocks that the two took turns in."""

    @model_validator(mode="after")
    def _inside(self) -> Ratio:
        if not 0 < self.interval[0] <= self.interval[1] < math.inf:
            raise ValueError(f"{self.interval} is not an interval of speedups")
        return self


class Clocks(Record):
    """What the GPU said of itself while it was timed. Nothing is set by us."""

    sm_mhz: tuple[int, int]
    """Lowest and highest reading."""
    memory_mhz: tuple[int, int]
    temperature_c: tuple[int, int]
    power_w: tuple[float, float]
    throttled: tuple[str, ...] = ()
    """Reasons other than idleness for which clocks were held back, by NVML's names."""


class HostClock(Record):
    """The parent's own clock beside the device's events: N replays against 2N, so that fixed costs cancel."""

    events_us: float
    """Time of one execution by the events of the process that ran it."""
    slope_us: float
    """Time of one execution by the parent's clock."""
    agrees: bool


class Timing(Record):
    """One candidate timed against its baselines at the full size, under one protocol."""

    protocol: str
    """``graph/1``, ``launch/1`` or ``kernelbench/1``; with ``+server`` behind it where gaps lie between requests."""
    mode: Literal["offline", "server"] = "offline"
    sets: int = Field(ge=1)
    """Disjoint sets of inputs, weights and outputs that one sample goes through."""
    set_bytes: int = Field(ge=0)
    """Bytes of one set."""
    flush_bytes: int = Field(ge=0)
    """Bytes read in every sample to empty the L2, in time that is subtracted; 0 where it stays warm."""
    flush_each: bool = False
    """Before each execution, where the sets do not exceed twice the L2; else once per sample."""
    candidate: SideTimes
    baselines: tuple[SideTimes, ...]
    ratios: tuple[Ratio, ...]
    fastest: str | None
    """The baseline that the speedup is against; None where there is no baseline."""
    absent: dict[str, str] = {}
    """Baselines that were tried and could not be had, or failed while they were timed, each with the reason."""
    settled: bool
    """Whether the interval of the ratio became as narrow as asked for."""
    budget_s: float = Field(gt=0)
    host: HostClock | None = None
    clocks: Clocks | None = None
    setup_us: float | None = Field(default=None, ge=0)
    """Time of the plan's ``setup``, which is not part of the candidate's time."""
    coverage: float | None = Field(default=None, ge=0, le=1)
    """Share of device time in the candidate's own kernels; the rest is in ``library`` calls and memsets."""
    notes: tuple[str, ...] = ()
    """What a reader must know of the times."""

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

    def ratio(self, baseline: str) -> Ratio | None:
        """The ratio against the baseline of that name, if it was compared."""
        return next((ratio for ratio in self.ratios if ratio.baseline == baseline), None)
