"""A baseline timed as a candidate is: tensor sets, resets, flushes, captures, events."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernelforge.errors import BaselineError
from kernelforge.evaluation.oracle.worker.torch_device import synchronize
from kernelforge.prediction.launch_queue import measured_launch_queue
from kernelforge.records import LaunchQueue
from kernelforge.utils.garbage import collection_paused

if TYPE_CHECKING:
    from kernelforge.devices.base import SampleWork


class BufferSets(Protocol):
    """The work of one baseline on every set."""

    note: str
    """What a reader should know of it."""

    def execute(self, position: int) -> None:
        """Once on one set, asynchronously."""
        ...

    def restore(self, position: int) -> None:
        """Give inputs that the work changes their drawn values again."""
        ...

    def outputs(self, position: int) -> Sequence[torch.Tensor]:
        """Outputs of the last execution on a set, then its mutated inputs."""
        ...


@dataclass(frozen=True)
class Timestamp:
    """A moment on the device: an event, or the host's clock where there are none."""

    event: torch.cuda.Event | None
    host_ns: int = 0

    @staticmethod
    def now(device: torch.device, reuse: Timestamp | None = None) -> Timestamp:
        """This moment; ``reuse`` is a finished mark whose event is recorded again."""
        if device.type != "cuda":
            return Timestamp(None, time.perf_counter_ns())
        mark = reuse or Timestamp(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        assert mark.event is not None
        mark.event.record(torch.cuda.current_stream(device))
        return mark

    def until(self, later: Timestamp) -> float:
        """Time to a later moment in µs; both must have passed."""
        if self.event is None or later.event is None:
            return (later.host_ns - self.host_ns) / 1e3
        return float(self.event.elapsed_time(later.event)) * 1e3


@dataclass(frozen=True)
class Shape:
    """Plan of one sample, apart from the work: as for a candidate (:class:`~kernelforge.devices.base.Timeable`)."""

    sets: int
    flush_bytes: int = 0
    """Read in every sample, to empty the L2; 0 for nothing."""
    flush_each: bool = False
    """Before each execution, and not only once."""
    synchronised: bool = False
    """The host waits for each flush before it goes on, so that no launch is hidden behind one."""


class TimedBaseline:
    """One baseline on its sets, ready to be timed."""

    def __init__(self, name: str, sets: BufferSets, shape: Shape, device: torch.device) -> None:
        self.name = name
        self.sets = sets
        self.notes = [sets.note] if sets.note else []
        self._shape = shape
        self._device = device
        # Read and never written, so that the lines it leaves in the L2 are clean.
        self._flush = torch.zeros(shape.flush_bytes // 4, dtype=torch.float32, device=device)
        self._sink = torch.zeros((), dtype=torch.float32, device=device)
        self._nothing = torch.zeros((), dtype=torch.float32, device=device)
        self._marks: list[Timestamp | None] = []
        self._taken: list[tuple[Timestamp, Timestamp]] | None = None
        """Start and end of each sample of the last block; None where there was nothing to run."""
        self._samples = 0
        self._graphs: dict[SampleWork, torch.cuda.CUDAGraph] = {}

    @property
    def captured(self) -> bool:
        return bool(self._graphs)

    @property
    def note(self) -> str:
        return "; ".join(self.notes)

    def capture(self) -> None:
        """Put a sample into a CUDA graph, and where something is flushed one without its executions, and one with empty
        kernels in their place.

        Raises:
            RuntimeError: something in the work cannot be captured.
        """
        # A kernel's first launch may load it, which a capture cannot hold.
        works: tuple[SampleWork, ...] = ("sample",)
        if self._shape.flush_bytes:
            works = ("sample", "overhead", "empty")
            self._pass("empty")
        synchronize(self._device)
        self._graphs = {work: _captured(partial(self._pass, work), self._device) for work in works}

    def sample(self) -> None:
        """Every set once, asynchronously."""
        self._work("sample")()

    def run(self, samples: int, work: SampleWork = "sample", gaps_us: Sequence[float] = ()) -> None:
        """Run a block of samples and wait for them: see :class:`~kernelforge.devices.base.Timeable`."""
        self._samples = samples
        runs = work == "sample" or self._shape.flush_bytes > 0
        self._taken = self._timed(self._work(work), samples, gaps_us) if runs else None

    def times(self) -> list[float]:
        """Time of each sample of the last block in µs, resets and flushes included; idle time before each is not. Zeros
        for a block without executions where nothing is flushed."""
        if self._taken is None:
            return [0.0] * self._samples
        return [start.until(end) for start, end in self._taken]

    def launches(self) -> LaunchQueue:
        """Waits of the kernels that one execution on the first set launches, by the profiler of PyTorch.

        Raises:
            BaselineError: there is no such trace, for it is captured in a graph or runs on no GPU.
        """
        if self._graphs or self._device.type != "cuda":
            raise BaselineError("launches are traced of what a host launches on a GPU")
        try:
            with torch.no_grad():
                events = kernel_trace(
                    partial(self.sets.execute, 0), self._device, prepare=partial(self.sets.restore, 0)
                )
            return measured_launch_queue(events)
        except (ValueError, KeyError, TypeError) as error:
            raise BaselineError(f"its trace cannot be read: {error}") from error

    def _work(self, work: SampleWork) -> Callable[[], None]:
        """A sample: a replay of its graph, or its launches."""
        return self._graphs[work].replay if self._graphs else partial(self._pass, work)

    def _pass(self, work: SampleWork) -> None:
        """One sample. Where nothing is flushed it is the executions alone."""
        flushed, each = self._shape.flush_bytes > 0, self._shape.flush_each
        if flushed and not each:
            self._restore()
            self._flush_once()
        for position in range(self._shape.sets):
            if flushed and each:
                self.sets.restore(position)
                self._flush_once()
            if work == "sample":
                self.sets.execute(position)
            elif work == "empty":
                self._execute_nothing()

    def _restore(self) -> None:
        for position in range(self._shape.sets):
            self.sets.restore(position)

    def _flush_once(self) -> None:
        torch.sum(self._flush, dim=0, out=self._sink)
        if self._shape.synchronised:
            synchronize(self._device)

    def _execute_nothing(self) -> None:
        """The least that torch launches: one number written by one thread."""
        self._nothing.fill_(1.0)

    def _timed(
        self, work: Callable[[], None], samples: int, gaps_us: Sequence[float]
    ) -> list[tuple[Timestamp, Timestamp]]:
        """Run samples, and wait; start and end of each."""
        marks = self._marks
        marks.extend([None] * (2 * samples - len(marks)))
        taken: list[tuple[Timestamp, Timestamp]] = []
        with torch.no_grad(), collection_paused():
            synchronize(self._device)
            for position in range(samples):
                if not self._shape.flush_bytes:
                    # Nothing is subtracted then: what is restored ends before the first mark.
                    self._restore()
                if gaps_us:
                    synchronize(self._device)
                    _idle(gaps_us[position])
                start = marks[2 * position] = Timestamp.now(self._device, marks[2 * position])
                work()
                end = marks[2 * position + 1] = Timestamp.now(self._device, marks[2 * position + 1])
                taken.append((start, end))
            synchronize(self._device)
        return taken


def kernel_trace(
    run: Callable[[], object], device: torch.device, *, prepare: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Events of the profiler of PyTorch: ``traceEvents`` of its Chrome trace.

    Args:
        run: What is traced; it begins on an idle device. It runs twice, and is traced the second time.
        device: What it runs on.
        prepare: Called before each run.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    for _ in range(2):  # the first trace loads the profiler's library, which its launches wait for
        prepare()
        synchronize(device)
        with profile(activities=activities) as profiler:
            run()
            synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    return events


def _captured(work: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream(device)
    try:
        with torch.cuda.graph(graph):
            work()
    finally:
        torch.cuda.set_stream(stream)  # a capture that fails leaves its own in place
    return graph


def _idle(gap_us: float) -> None:
    """Wait on the host; the last part in a loop, for sleeping is not that exact."""
    end = time.perf_counter() + gap_us * 1e-6
    time.sleep(max(gap_us * 1e-6 - 2e-3, 0.0))
    while time.perf_counter() < end:
        pass
