"""Processes that share one simulated GPU: their true times are known, and so is everything that disturbs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelforge.devices.base import RunFailed, RunFailure, SampleWork, Timeable
from kernelforge.errors import BaselineError
from kernelforge.records import Clocks


@dataclass
class World:
    """One GPU and one host. Time passes only when something runs."""

    seed: int = 0
    drift: Callable[[float], float] = lambda seconds: 1.0
    """Slow-down that all work shares, by the time since the start."""
    seconds: float = 0.0
    log: list[tuple[str, str, int]] = field(default_factory=list)
    """(who, what, samples) in order: ``block``, ``gaps``, ``flush``, ``empty`` or ``between``."""
    in_memory: list[set[str]] = field(default_factory=list)
    """Which baselines held memory, whenever one more did."""
    running: str | None = None
    gaps_us: list[float] = field(default_factory=list)
    """Every gap that was asked for."""
    idle_w: float = 70.0
    busy_j: float = 0.0
    """Energy above idle power so far."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def clock(self) -> float:
        return self.seconds

    def clocks(self) -> Clocks | None:
        assert self.running is None, "read while a block ran"
        return Clocks(sm_mhz=(1980, 1980), memory_mhz=(3201, 3201), temperature_c=(40, 41), power_w=(300.0, 400.0))

    def energy_j(self) -> float | None:
        assert self.running is None, "read while a block ran"
        return self.idle_w * self.seconds + self.busy_j

    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    def between(self) -> None:
        assert self.running is None, "called while a block ran"
        self.log.append(("caller", "between", 0))
        self.seconds += 0.002


@dataclass
class SimulatedSide(Timeable):
    """A process with a true time per execution, noise of three kinds, and a clock that may lie."""

    world: World
    name: str
    execution_us: float
    sets: int = 4
    flush_us: float = 0.0
    """True time of one flush; 0 for none."""
    flush_each: bool = True
    """Before each execution, or once per sample."""
    reset_us: float = 0.0
    """True time of resetting one set; only where something is flushed."""
    noise: float = 0.005
    """Independent noise of a sample, as a part of it."""
    slow_noise: float = 0.003
    """Spread of noise that lasts, on this side alone: what makes samples of a block alike."""
    memory_s: float = 0.03
    """How long it lasts."""
    outliers: float = 0.01
    """Share of samples that take half as long again."""
    captured: bool = True  # type: ignore[misc]  # a property in the protocol, since others learn it when they are ready
    node_gap_us: float = 0.0
    """True gap before each kernel of an execution, which an empty kernel has too."""
    nodes: int = 1
    """Kernels of one execution."""
    watts: float = 0.0
    """Power of an execution above idle power."""
    overhead_watts: float = 0.0
    """The same of flushes and resets."""
    read_us: float = 0.0
    """What reading the events of one sample takes."""
    put_off: float = 0.0
    """Part of a block's work that is done when its times are asked for, and not before."""
    unbuildable: str = ""
    """Why it cannot be had, if it cannot."""
    build_s: float = 0.0
    """How long building it takes."""
    overhead_us: float = 300.0
    """Cost of a block besides its samples."""
    gap_us: float = 2.0
    """Cost of a sample besides its events."""
    claims: float = 1.0
    """What its events say, as a part of the truth."""
    flush_claims: float = 1.0
    hold_us: Callable[[int], float] = lambda samples: 0.0
    """How long it holds back the answer to a block of so many samples."""
    _times: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _put_off_s: float = 0.0
    _slow: float = 0.0
    _seen: float = 0.0

    def ready(self) -> None:
        if self.unbuildable:
            raise BaselineError(self.unbuildable)
        self.world.seconds += self.build_s
        loaded = set(self.world.in_memory[-1]) if self.world.in_memory else set()
        self.world.in_memory.append(loaded | {self.name})

    def rest(self) -> None:
        if self.world.in_memory:
            self.world.in_memory.append(self.world.in_memory[-1] - {self.name})

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        assert len(gaps_us) in (0, samples)
        what = {"sample": "gaps" if gaps_us else "block", "overhead": "flush", "empty": "empty"}[work]
        self.world.log.append((self.name, what, samples))
        self.world.gaps_us.extend(gaps_us)
        self._put_off_s = self.read_us * samples * 1e-6
        if work != "sample":
            if not self.flush_us:
                self._times = np.zeros(samples)
                return
            each = self.node_gap_us if work == "empty" else 0.0
            self._times = self._run(self._overhead_us + self.sets * each, samples, ()) * self.flush_claims
            self.world.busy_j += self.overhead_watts * samples * self._overhead_us * 1e-6
            return
        execution_us = self.execution_us + self.nodes * self.node_gap_us
        truth = self._run(self.sets * execution_us + self._overhead_us, samples, gaps_us)
        self.world.busy_j += self.watts * samples * self.sets * execution_us * 1e-6
        self.world.busy_j += self.overhead_watts * samples * self._overhead_us * 1e-6
        late_s = self.put_off * float(truth.sum()) * 1e-6
        self.world.seconds += self.hold_us(samples) * 1e-6 - late_s
        self._put_off_s += late_s
        self._times = truth * self.claims

    def times(self) -> tuple[float, ...]:
        self.world.seconds += self._put_off_s
        return tuple(self._times.tolist())

    @property
    def _overhead_us(self) -> float:
        return (self.sets if self.flush_each else 1) * self.flush_us + self.sets * self.reset_us

    def _run(self, ideal_us: float, samples: int, gaps_us: Sequence[float]) -> np.ndarray:
        world = self.world
        assert world.running is None
        world.running = self.name
        world.seconds += self.overhead_us * 1e-6
        self._age(world.seconds - self._seen)
        quick = 1 + self.noise * world.rng.standard_normal(samples)
        spikes = np.where(world.rng.random(samples) < self.outliers, 1.5, 1.0)
        times = ideal_us * world.drift(world.seconds) * (1 + self._slow) * np.abs(quick) * spikes
        world.seconds += float(times.sum() + self.gap_us * samples + sum(gaps_us)) * 1e-6
        self._seen = world.seconds
        world.running = None
        return times

    def _age(self, seconds: float) -> None:
        """Let the lasting noise forget (an Ornstein-Uhlenbeck process)."""
        kept = float(np.exp(-seconds / self.memory_s))
        self._slow = kept * self._slow + self.slow_noise * np.sqrt(1 - kept**2) * self.world.rng.standard_normal()


@dataclass
class FaultySide(SimulatedSide):
    """A process that breaks after so many blocks: it faults, answers with a sample too few, or its overhead grows until
    it hides the work."""

    faults_after: int | None = None
    short_after: int | None = None
    hidden_after: int | None = None
    _blocks: int = 0

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        if self.faults_after is not None and self._blocks >= self.faults_after:
            raise RunFailed(RunFailure("crash", "illegal address"))
        super().run(samples, work, gaps_us=gaps_us)
        if self.short_after is not None and self._blocks >= self.short_after:
            self._times = self._times[1:]
        if self.hidden_after is not None and self._blocks >= self.hidden_after and work == "overhead":
            self._times = self._times * 100
        self._blocks += work == "sample"
