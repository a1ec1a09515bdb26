"""A plan armed for timing: K sets of tensors, one CUDA graph over them, and one of nothing but the flushes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from kernelforge.candidate.resolved import Launch, ResolvedPlan
from kernelforge.devices.base import RunFault
from kernelforge.devices.cuda.driver import Driver, DriverError, Graph
from kernelforge.devices.cuda.faults import PlanFaulted, faulted
from kernelforge.devices.cuda.runner import Runner, Work
from kernelforge.devices.cuda.steps import Bound
from kernelforge.devices.cuda.tensors import Tensors

FLUSH_BYTE = 0


class ArmedPlan:
    """K executions on disjoint tensors, replayed as one sample.

    Add the sets, then :meth:`start`; after that only what is timed runs. Nothing waits between launches, so a fault has
    no launch to its name.

    Args:
        runner: Its build.
        plan: What one execution does.
        mutable: Inputs that it may write.
        poison: Byte that outputs and workspace hold beforehand.
        flush_bytes: Written before each execution; 0 for nothing.
    """

    def __init__(
        self, runner: Runner, plan: ResolvedPlan, *, mutable: frozenset[int], poison: int, flush_bytes: int
    ) -> None:
        self._runner = runner
        self._driver: Driver = runner.driver
        self._plan = plan
        self._mutable = mutable
        self._poison = poison
        self._flush_bytes = flush_bytes
        self._flush_at = 0
        self._sets: list[Tensors] = []
        self._bound: list[list[Bound]] = []
        self._graph: Graph | None = None
        self._flush_graph: Graph | None = None
        self.setup_us: float | None = None

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a graph."""
        return self._graph is not None

    def add(self, tensors: Mapping[int, bytes]) -> None:
        """One more set.

        Raises:
            PlanFaulted: it does not fit, or CUDA would refuse the plan.
        """
        work = Work(self._plan, tensors, self._poison, self._mutable)
        self._sets.append(self._runner.tensors(work))

    def start(self) -> None:
        """Run setup and one execution on every set, waiting after each launch; then capture the graphs.

        Raises:
            PlanFaulted: an execution faulted, or its writes cannot be watched.
        """
        hidden = self._runner.variables.hidden
        if hidden:
            text = (
                f"module variable {hidden[0]!r} cannot be found in the loaded build, so nobody could tell whether it "
                "is written between samples; remove it"
            )
            raise PlanFaulted(RunFault("unsupported", text))
        self._runner.fresh_variables()
        try:
            if self._flush_bytes:
                self._flush_at = self._driver.allocate(self._flush_bytes)
        except DriverError as error:
            raise faulted(error, f"allocating {self._flush_bytes} bytes to flush the L2 with") from error
        for tensors in self._sets:
            self._runner.stepwise(self._plan, tensors)
            self._runner.prove(tensors)
            tensors.renew()
        self._bound = [self._runner.binder.bind(self._plan.steps, tensors) for tensors in self._sets]
        self._setup()
        self._capture()
        self._runner.wait()

    def _setup(self) -> None:
        """Poison all and run ``setup`` on every set, timed."""
        for tensors in self._sets:
            tensors.poison(self._poison)
        times = [self._timed(self._runner.binder.bind(self._plan.setup, tensors)) for tensors in self._sets]
        if self._plan.setup:
            self.setup_us = sum(times) / len(times)
        for tensors in self._sets:
            tensors.keep_prepared()

    def _timed(self, work: Sequence[Bound]) -> float:
        if not work:
            return 0.0
        start = self._driver.event()
        for bound in work:
            bound.run()
        end = self._driver.event()
        self._runner.wait()
        return self._driver.elapsed_us(start, end)

    def _capture(self) -> None:
        """Both graphs; none where the driver has none or a step cannot be captured."""
        if "graphs" in self._driver.lacks:
            return
        try:
            with self._driver.capture() as held:
                self._sample()
            graph = held.graph
            if self._flush_bytes:
                with self._driver.capture() as held:
                    self._flushes()
                self._flush_graph = held.graph
            self._graph = graph
        except (DriverError, PlanFaulted):
            # Not everything can be captured. An error that took the context shows at the next wait.
            self._flush_graph = None

    def _sample(self) -> None:
        for bound in self._bound:
            self._flush()
            for step in bound:
                step.run()

    def _flushes(self) -> None:
        for _ in self._sets:
            self._flush()

    def _flush(self) -> None:
        if self._flush_bytes:
            self._driver.fill(self._flush_at, FLUSH_BYTE, self._flush_bytes)

    def block(self, samples: int, gaps_us: Sequence[float]) -> list[float]:
        """Time of each sample in µs.

        Raises:
            PlanFaulted: one faulted.
        """
        return self._block(self._sample if self._graph is None else self._graph.launch, samples, gaps_us)

    def flush_block(self, samples: int) -> list[float]:
        """The same with nothing but the flushes; zeros without any."""
        if not self._flush_bytes:
            return [0.0] * samples
        return self._block(self._flushes if self._flush_graph is None else self._flush_graph.launch, samples, ())

    def _block(self, sample: Callable[[], None], samples: int, gaps_us: Sequence[float]) -> list[float]:
        driver = self._driver
        times = []
        try:
            for number in range(samples):
                if gaps_us:
                    # The gap begins when the sample before has ended.
                    driver.synchronize()
                    _idle(gaps_us[number])
                start = driver.event()
                sample()
                times.append((start, driver.event()))
            driver.synchronize()
            return [driver.elapsed_us(start, end) for start, end in times]
        except DriverError as error:
            raise faulted(error, "while it was timed") from error

    def refresh(self, tensors: Sequence[Mapping[int, bytes]]) -> None:
        """New values in every set, all else as before the first sample.

        Raises:
            PlanFaulted: setup faulted.
        """
        try:
            self._runner.fresh_variables()
            for held, values in zip(self._sets, tensors, strict=True):
                held.put(values)
            self._setup()
        except DriverError as error:
            raise faulted(error, "putting new values into the tensors") from error

    def outputs(self, number: int) -> tuple[bytes, ...]:
        """What one set holds now: outputs, then mutated inputs.

        Raises:
            PlanFaulted: something was written that may not be.
        """
        self._runner.wait()
        self._runner.prove(self._sets[number])
        return self._sets[number].outputs()

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels, by events around every step of one execution."""
        steps = self._bound[0]
        if all(isinstance(bound.step, Launch) for bound in steps):
            return 1.0
        marks = [self._driver.event()]
        for bound in steps:
            bound.run()
            marks.append(self._driver.event())
        self._runner.wait()
        times = [self._driver.elapsed_us(start, end) for start, end in pairwise(marks)]
        own = sum(time for time, bound in zip(times, steps, strict=True) if isinstance(bound.step, Launch))
        total = sum(times)
        return own / total if total > 0 else 1.0

    def close(self) -> None:
        """Free all it holds; a lost context has nothing left to free."""
        if self._runner.lost:
            return
        for graph in (self._graph, self._flush_graph):
            if graph is not None:
                graph.close()
        for tensors in self._sets:
            tensors.close()
        if self._flush_at:
            self._driver.free(self._flush_at)
        self._sets, self._bound, self._flush_at = [], [], 0
        self._graph = self._flush_graph = None


def _idle(microseconds: float) -> None:
    """Wait on the host's clock; sleeping is not exact enough."""
    end = time.perf_counter() + microseconds / 1e6
    while time.perf_counter() < end:
        pass
