"""A plan prepared for timing: K tensor sets, one CUDA graph over them, and one without the executions.

Every execution starts from the same memory. Before it, outputs and workspace are poisoned again, mutated inputs are
restored, and the L2 is flushed. The second graph does only that; its time is subtracted. A third graph has an empty
kernel in place of each execution: its time beyond the second graph's is the overhead of any kernel in a graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from kernelforge.candidate.resolved import Launch, ResolvedPlan
from kernelforge.devices.base import RunFailure, RunRequest, SampleWork
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, Graph, LaunchShape
from kernelforge.devices.cuda.worker.errors import PlanFailed, plan_failure
from kernelforge.devices.cuda.worker.l2_flush import L2Flush
from kernelforge.devices.cuda.worker.launch_binding import BoundStep
from kernelforge.devices.cuda.worker.runner import Runner
from kernelforge.devices.cuda.worker.tensors import Tensors
from kernelforge.sandbox.shared_memory import Blob


class GraphTimedPlan:
    """K executions on disjoint tensors, replayed as one sample.

    Add the sets, then :meth:`start`; after that only timed work runs. Nothing waits between launches, so a fault cannot
    be attributed to one.

    Args:
        runner: Runner with the build.
        plan: Plan of one execution.
        mutable: Inputs that it may write.
        mapped: Inputs in pinned host memory.
        poison: Byte that outputs and workspace hold before each execution.
        flush_bytes: Bytes read to empty the L2; 0 for none.
        flush_each: Flush before each execution rather than once per sample.
    """

    def __init__(
        self,
        runner: Runner,
        plan: ResolvedPlan,
        *,
        mutable: frozenset[int],
        mapped: frozenset[int],
        poison: int,
        flush_bytes: int,
        flush_each: bool,
    ) -> None:
        self._runner = runner
        self._driver: Driver = runner.driver
        self._plan = plan
        self._mutable = mutable
        self._mapped = mapped
        self._poison = poison
        self._flush_bytes = flush_bytes
        self._flush_each = flush_each
        self._flush: L2Flush | None = None
        self._sets: list[Tensors] = []
        self._bound: list[list[BoundStep]] = []
        self._graphs: dict[str, Graph] = {}
        self._events: list[Any] = []
        self._samples = 0
        """Number of samples of the last block."""
        self._timed_events = True
        """Whether events were recorded for the last block; without a flush, some blocks run nothing."""
        self._overheads_last = False
        """Whether the sets were reset after their last execution."""
        self.setup_us: float | None = None

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a graph."""
        return bool(self._graphs)

    def add(self, tensors: Mapping[int, Blob]) -> None:
        """Add a set.

        Raises:
            PlanFailed: it does not fit, or CUDA would refuse the plan.
        """
        request = RunRequest(self._plan, tensors, self._poison, self._mutable, self._mapped)
        self._sets.append(self._runner.tensors(request))
        try:
            self._sets[-1].keep_pristine()
        except DriverError as error:
            raise plan_failure(error, "allocating copies of the inputs that are written") from error

    def start(self) -> None:
        """Run setup and one execution on every set, waiting after each launch; then capture the graphs.

        Raises:
            PlanFailed: an execution faulted, or its writes cannot be checked.
        """
        hidden = self._runner.variables.hidden
        if hidden:
            text = (
                f"module variable {hidden[0]!r} cannot be found in the loaded build, so writes to it between samples "
                "cannot be detected; remove it"
            )
            raise PlanFailed(RunFailure("unsupported", text))
        self._runner.fresh_variables()
        try:
            if self._flush_bytes:
                self._flush = L2Flush(self._driver, self._flush_bytes, self._poison)
                # The first launch may load the kernel, which cannot be captured.
                self._flush.run_empty(self._empty_shape)
        except DriverError as error:
            raise plan_failure(error, f"allocating {self._flush_bytes} bytes to flush the L2 with") from error
        for tensors in self._sets:
            self._runner.stepwise(self._plan, tensors)
            self._runner.check_writes(tensors)
            tensors.reset(self._poison)
        self._bound = [self._runner.binder.bind(self._plan.steps, tensors) for tensors in self._sets]
        self._setup()
        self._capture()
        self._runner.wait()

    def _setup(self) -> None:
        """Poison all sets, and run and time ``setup`` on each."""
        for tensors in self._sets:
            tensors.poison(self._poison)
        times = [self._timed(self._runner.binder.bind(self._plan.setup, tensors)) for tensors in self._sets]
        if self._plan.setup:
            self.setup_us = sum(times) / len(times)
        for tensors in self._sets:
            tensors.keep_prepared()

    def _timed(self, work: Sequence[BoundStep]) -> float:
        if not work:
            return 0.0
        start = self._driver.event()
        for bound in work:
            bound.run()
        end = self._driver.event()
        self._runner.wait()
        return self._driver.elapsed_us(start, end)

    def _capture(self) -> None:
        """Capture all graphs; none if the driver has no graphs or a step cannot be captured."""
        if "graphs" in self._driver.lacks:
            return
        works: dict[str, Callable[[], None]] = {"sample": partial(self._pass, "sample")}
        if self._flush is None:
            works["resets"] = self._resets
        else:
            works |= {"overhead": partial(self._pass, "overhead"), "empty": partial(self._pass, "empty")}
        graphs: dict[str, Graph] = {}
        try:
            for name, work in works.items():
                with self._driver.capture() as capture:
                    work()
                graphs[name] = capture.graph
        except (DriverError, PlanFailed):
            # Some steps cannot be captured. An error that destroyed the context shows at the next wait.
            return
        self._graphs = graphs

    @property
    def _empty_shape(self) -> LaunchShape:
        """Launch of the empty kernel: block and shared memory of the plan's first launch, and a block for each SM that
        this launch reaches. So the driver divides an SM's memory into L1 and shared memory as for the candidate, and
        the time includes the change after the flush."""
        launch = next((step for step in self._plan.steps if isinstance(step, Launch)), None)
        if launch is None:
            return LaunchShape((1, 1, 1), (1, 1, 1))
        shared = launch.dynamic_shared_bytes + self._runner.kernels[launch.expression].static_shared_bytes
        blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
        return LaunchShape((min(blocks, self._driver.facts.sm_count), 1, 1), launch.block, shared)

    def _pass(self, work: SampleWork) -> None:
        """Enqueue one sample; without a flush it is the executions alone."""
        if self._flush is not None and not self._flush_each:
            self._resets()
            self._flush.run()
        for tensors, bound in zip(self._sets, self._bound, strict=True):
            if self._flush is not None and self._flush_each:
                tensors.reset(self._poison)
                self._flush.run()
            if work == "sample":
                for step in bound:
                    step.run()
            elif work == "empty" and self._flush is not None:
                self._flush.run_empty(self._empty_shape)

    def _resets(self) -> None:
        for tensors in self._sets:
            tensors.reset(self._poison)

    def _runs(self, name: str, work: Callable[[], None]) -> Callable[[], None]:
        """Replay of the graph with that name, or the work itself without graphs."""
        return self._graphs[name].launch if self._graphs else work

    def run(self, samples: int, work: SampleWork, gaps_us: Sequence[float]) -> None:
        """Run a block of samples and wait for them: see :class:`~kernelforge.devices.base.Timeable`.

        Raises:
            PlanFailed: a sample faulted.
        """
        self._samples = samples
        self._timed_events = work == "sample" or self._flush is not None
        if not self._timed_events:
            return
        self._overheads_last = work != "sample"
        self._block(self._runs(work, partial(self._pass, work)), samples, gaps_us)

    def times(self) -> list[float]:
        """Time of each sample of the last block in µs: with resets and flushes, or the executions alone without a
        flush; zeros for a block that ran nothing.

        Raises:
            PlanFailed: the events cannot be read.
        """
        if not self._timed_events:
            return [0.0] * self._samples
        driver, events = self._driver, self._events
        try:
            return [driver.elapsed_us(events[2 * number], events[2 * number + 1]) for number in range(self._samples)]
        except DriverError as error:
            raise plan_failure(error, "while it was timed") from error

    def _block(self, sample: Callable[[], None], samples: int, gaps_us: Sequence[float]) -> None:
        driver = self._driver
        # Without a flush nothing is subtracted: resets end before the first event.
        before = self._runs("resets", self._resets) if self._flush is None else None
        events = self._events
        events.extend([None] * (2 * samples - len(events)))
        try:
            for number in range(samples):
                if before is not None:
                    before()
                if gaps_us or before is not None:
                    # The gap begins after the previous sample.
                    driver.synchronize()
                    _idle(gaps_us[number] if gaps_us else 0.0)
                events[2 * number] = driver.event(events[2 * number])
                sample()
                events[2 * number + 1] = driver.event(events[2 * number + 1])
            driver.synchronize()
        except DriverError as error:
            raise plan_failure(error, "while it was timed") from error

    def refresh(self, tensors: Sequence[Mapping[int, Blob]]) -> None:
        """Put new values into every set, and restore the state before the first sample.

        Raises:
            PlanFailed: setup faulted.
        """
        self._overheads_last = False
        try:
            self._runner.fresh_variables()
            for current, values in zip(self._sets, tensors, strict=True):
                current.put(values)
                current.keep_pristine()
            self._setup()
        except DriverError as error:
            raise plan_failure(error, "putting new values into the tensors") from error

    def outputs(self, number: int) -> tuple[Blob, ...]:
        """Outputs of an execution on one set, then its mutated inputs.

        Raises:
            PlanFailed: a guard, a read-only buffer or a module variable was written.
        """
        if self._overheads_last:
            # The set was reset after the last execution; another sample does the same work on the same memory.
            self.run(1, "sample", ())
        self._runner.wait()
        self._runner.check_writes(self._sets[number])
        faults = [] if self._flush is None else self._flush.faults()
        if faults:
            raise PlanFailed(*faults)
        return self._sets[number].outputs()

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels, by events around every step of one execution."""
        steps = self._bound[0]
        if all(isinstance(bound.step, Launch) for bound in steps):
            return 1.0
        self._sets[0].reset(self._poison)
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
        """Free sets, graphs and the flush buffer; a lost context has none."""
        if self._runner.lost:
            return
        for graph in self._graphs.values():
            graph.close()
        for tensors in self._sets:
            tensors.close()
        if self._flush is not None:
            self._flush.close()
        self._sets, self._bound, self._events, self._graphs, self._flush = [], [], [], {}, None


def _idle(microseconds: float) -> None:
    """Wait by the host's clock; sleeping is not exact enough."""
    end = time.perf_counter() + microseconds / 1e6
    while time.perf_counter() < end:
        pass
