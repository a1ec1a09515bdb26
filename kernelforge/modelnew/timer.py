"""Timing of a correct ``ModelNew`` at the full size of a GPU: tensor sets, baselines, plausibility."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from kernelforge.devices.base import Timeable
from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.timing import (
    SamplePlan,
    cache_resident,
    implausible_reason,
    physical_floor_us,
    plan_sets,
    tensor_bytes,
)
from kernelforge.evaluation.timing.candidate_timer import OutputChangedWhileTimed, performance
from kernelforge.modelnew.client import Init, ModelNewChild, unchanged, with_mutated
from kernelforge.modelnew.timing import time_from_outside
from kernelforge.records import Clocks, MeasureSettings, Performance, SizeFacts, content_hash

MEMORY_SHARE = 0.25
"""Part of the GPU's memory that the sets may take."""


class Gpu(Protocol):
    """What is asked of the device: :class:`~kernelforge.devices.base.Device` is one."""

    @property
    def l2_bytes(self) -> int: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def memory_bandwidth_gbps(self) -> float: ...

    def clocks(self) -> Clocks | None: ...


@dataclass(kw_only=True)
class ModelNewTimer:
    """Times one candidate, which is loaded already, at one size.

    Args:
        seed: Secret; every draw is derived from it.
        mutates: Inputs that the task changes in place.
    """

    child: ModelNewChild
    oracle: Oracle
    facts: SizeFacts
    gpu: Gpu
    settings: MeasureSettings
    seed: int
    mutates: Sequence[int] = ()
    host_clock: Callable[[], float] = time.perf_counter
    _draws: int = field(default=0, init=False)
    _rounds: int = field(default=0, init=False)
    _now: list[DrawHandle] = field(default_factory=list, init=False)

    def time(self, init: Init) -> Performance:
        """Make a ModelNew for each set, and time them against the baselines that can be built.

        Raises:
            LaneFault: the candidate failed.
            OutputChangedWhileTimed: it computed something else than when it was checked.
            TimingError: nothing can be timed, or not one set fits.
        """
        sets = plan_sets(self.set_bytes, self.gpu.l2_bytes, int(MEMORY_SHARE * self.gpu.memory_bytes)).sets
        self.child.construct(init, self.facts, copies=sets)
        with ExitStack() as stack:
            stack.callback(self._release)
            self._refresh(sets)
            baselines, notes = self._baselines(stack)
            timing = time_from_outside(
                self.child,
                sets,
                self.settings,
                set_bytes=self.set_bytes,
                host_clock=self.host_clock,
                between=lambda: self._between(sets),
                rng=random.Random(int(content_hash(self.seed, "order"), 16)),
                baselines=baselines,
                clocks=self.gpu.clocks,
            )
            self._check()
        timing = timing.model_copy(update={"notes": (*timing.notes, *notes)})
        held = cache_resident(SamplePlan(sets=sets, flush_bytes=0), self.gpu.l2_bytes)
        least = physical_floor_us(self.facts.compulsory_bytes, self.gpu.memory_bandwidth_gbps, resident_bytes=held)
        return performance(timing, implausible_reason(timing, least), None)

    @property
    def set_bytes(self) -> int:
        """Bytes of inputs, weights and outputs of one set."""
        return max(1, tensor_bytes(self.facts))

    def _between(self, sets: int) -> None:
        """Check and refresh before the rounds 2, 4, 8..., when nothing is timed."""
        self._rounds += 1
        if self._rounds < 2 or self._rounds & (self._rounds - 1):
            return
        self._check()
        self._release()
        self._refresh(sets)

    def _refresh(self, sets: int) -> None:
        family = self.oracle.families(self.facts.size)[0]
        for _ in range(sets):
            self._draws += 1
            seed = int(content_hash(self.seed, "timing", self._draws), 16)
            self._now.append(self.oracle.draw(self.facts.size, family, seed))
        for number, draw in enumerate(self._now):
            self.child.give(draw, self.facts, number)
        self.child.place(self._now, self.facts)

    def _check(self) -> None:
        for number, draw in enumerate(self._now):
            got = self.child.outputs(number, self.mutates)
            problem = unchanged(draw, got, self.facts, self.mutates)
            if problem:
                raise OutputChangedWhileTimed(problem)
            comparison = self.oracle.check(draw.handle, *with_mutated(got, self.facts, self.mutates))
            if not comparison.ok:
                raise OutputChangedWhileTimed(comparison.message, comparison.error)

    def _release(self) -> None:
        for draw in self._now:
            self.oracle.release(draw.handle)
        self._now = []

    def _baselines(self, stack: ExitStack) -> tuple[list[Timeable], list[str]]:
        sides: list[Timeable] = []
        notes: list[str] = []
        for name in self.oracle.baselines():
            try:
                side = self.oracle.arm(name, [draw.handle for draw in self._now], flush_bytes=0)
            except BaselineError as error:
                notes.append(f"no baseline {name}: {error}")
                continue
            stack.callback(side.close)
            sides.append(side)
        return sides, notes
