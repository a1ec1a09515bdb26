"""Interface of devices and sessions, and the records that they exchange.

A device never sees expected outputs. It gives out *sessions*: each is one disposable, confined runner that holds
one build, runs resolved plans on inputs it is handed, and gives back bytes and counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, runtime_checkable

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile.cache import Artifact
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.records import Clocks, Performance, Profile, SizeFacts
from kernelforge.sandbox.shared_memory import Blob


@dataclass(frozen=True)
class Capabilities:
    """What a device declares; the harness asks for nothing else."""

    measures_time: bool
    checks_accesses: bool
    """Bounds, alignment and races are checked on every access."""
    counts_ptx: bool
    clusters: bool
    cooperative: bool
    tensor_maps: bool = False
    library: bool = False
    """Torch operators called between a plan's launches."""


@dataclass(frozen=True)
class RunFailure:
    """A fault the device saw while a plan ran. ``kind`` decides the verdict, ``message`` is for the Coder."""

    kind: Literal["sanitizer", "timeout", "crash", "memory", "unsupported"]
    message: str
    ptx_line: int | None = None
    """Of what is unsupported in the build's PTX: its line, from 1, or 0 where that is not known. None where it is
    something else that is unsupported."""


class RunFailed(Exception):
    """A profile could not be taken because the run faulted."""

    def __init__(self, fault: RunFailure) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True)
class RunResult:
    """Outputs of one run of a plan, or the faults that spoiled it."""

    outputs: tuple[Blob, ...]
    """Raw elements, C order, one per plan output, then one per mutated input asked for."""
    faults: tuple[RunFailure, ...] = ()
    thread_instructions: int | None = None
    seconds: float = 0.0
    """Wall time inside the runner."""
    global_sectors: int | None = None
    """Sectors of 32 bytes that loads and stores asked of global memory."""


@dataclass(frozen=True)
class OutputPart:
    """Some elements of one output of a plan."""

    elements: Blob
    """Flat indices, int64, ascending."""
    data: Blob
    """The elements' bytes, in that order."""
    unwritten: int
    """Elements of the output that nothing in the plan writes."""


@dataclass(frozen=True)
class PartResult:
    """What the blocks behind some elements of a plan's outputs computed."""

    parts: tuple[OutputPart, ...]
    """One per plan output; none where ``reason`` or ``faults`` say why."""
    reason: str = ""
    """Why blocks of the plan cannot be run by themselves."""
    faults: tuple[RunFailure, ...] = ()
    thread_instructions: int | None = None


RUN_LIMIT_S = 20.0
"""Longest that one run of a plan may take, unless something else was said."""


@dataclass(frozen=True)
class RunRequest:
    """One run of a plan. ``tensors`` holds the bytes of every input and weight buffer, by buffer id."""

    plan: ResolvedPlan
    tensors: Mapping[int, Blob]
    poison: int = 0xA5
    """Byte that fills workspace, outputs and shared memory beforehand."""
    mutable: frozenset[int] = frozenset()
    """Buffers of inputs that the candidate may write; returned after the plan's outputs, in ascending id."""
    deadline_s: float = RUN_LIMIT_S
    memory_bytes: int | None = None
    """Device memory that the plan's buffers may take; None for all that the device gives one run."""
    max_thread_instructions: int | None = None
    """Stop (kind ``timeout``) after about this many."""
    sample_seed: int = 0
    """Decides which blocks and launches a profile samples; not for a candidate to know."""
    variation: int = 0
    """Chooses, on an emulated device, among what hardware may do: 0 the middle of what is documented, others, up to
    2**32 - 1, by a hash. The same one gives the same results."""


@dataclass(frozen=True)
class TuningTime:
    """A plan's time for comparing it with others that were rated with the same effort. Never recorded as a result."""

    time_us: float
    settled: bool
    """Whether more effort would give the same time."""


SampleWork = Literal["sample", "overhead", "empty"]
"""What a timed sample holds: everything, all but the executions, or an empty kernel in place of each execution."""


class Timeable(Protocol):
    """One process that runs the same work again when asked, and says how long it took: a candidate's or a baseline's.

    What it runs per *sample* was fixed when it was armed: one execution on each of K disjoint sets of tensors. Before
    it every set is reset, so that no execution finds what another left behind; then the L2 is flushed, before each
    execution where the sets are too small to do that themselves. Where it is armed without a flush, sets are reset
    before the sample and outside its time.

    Running and reading are two calls: reading the events of many samples takes the process milliseconds, which must not
    look like time of the samples to a clock outside.
    """

    name: str

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a CUDA graph; known once it is ready."""
        ...

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        """Run ``samples`` samples, one after the other, and wait for them.

        Args:
            samples: How many, at least 1.
            work: What each holds. Where nothing is flushed, only ``sample`` runs.
            gaps_us: Idle time before each, in µs, which is not part of any sample; none means back to back.

        Raises:
            RunFailed: a candidate faulted, or did not end in time.
            BaselineError: a baseline failed.
        """
        ...

    def times(self) -> tuple[float, ...]:
        """GPU time in µs of each sample of the last :meth:`run`, by the device's own events, resets and flushes
        included. Zeros for ``overhead`` and ``empty`` where nothing is flushed.

        Raises:
            RunFailed: a candidate's process was lost.
            BaselineError: a baseline failed.
        """
        ...

    def ready(self) -> None:
        """Make again what :meth:`rest` freed; takes as long as it takes.

        Raises:
            BaselineError: it cannot be had.
        """
        return

    def rest(self) -> None:
        """Free the memory that can be made again: this side is not timed for a while."""
        return

    def block(self, samples: int, *, gaps_us: Sequence[float] = ()) -> tuple[float, ...]:
        """:meth:`run` and :meth:`times` in one."""
        self.run(samples, gaps_us=gaps_us)
        return self.times()

    def flush_block(self, samples: int) -> tuple[float, ...]:
        """The same without the executions: the overhead to subtract. Zeros where nothing is flushed."""
        self.run(samples, "overhead")
        return self.times()


class TimedPlan(Timeable, Protocol):
    """A candidate's plan, ready to be timed on K sets of tensors. It holds the session: nothing else runs there now."""

    setup_us: float | None
    """Time of the plan's ``setup``; None where it has none."""

    def refresh(self, requests: Sequence[RunRequest]) -> None:
        """Put new values into every set, outside what is timed, and run its ``setup`` again."""
        ...

    def outputs(self) -> tuple[tuple[Blob, ...], ...]:
        """What an execution left in each set: outputs, then mutated inputs, as in :class:`RunResult`."""
        ...

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels, from 0 to 1."""
        ...

    def close(self) -> None: ...


class Session(Protocol):
    """One disposable runner with one build loaded."""

    def run(self, request: RunRequest) -> RunResult: ...

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, Performance | None]:
        """Counters at the size of ``facts``, on sampled blocks where the device samples.

        The performance is what a device that models time makes of them; None from one that measures it.

        Raises:
            RunFailed: a launch faulted.
        """
        ...

    def rate(self, request: RunRequest, effort: float) -> TuningTime:
        """A time of the plan, found with a share of what the device spends on a full one.

        Args:
            request: The run; one that ends late is a fault of kind ``timeout``.
            effort: That share, above 0 and at most 1: of the samples of a device that measures, of the thread
                instructions that are profiled on one that models.

        Raises:
            RunFailed: a launch faulted.
        """
        ...

    def arm(self, requests: Sequence[RunRequest], *, flush_bytes: int = 0, flush_each: bool = False) -> TimedPlan:
        """Make ready to time a plan; one request per set, all of the same plan.

        Args:
            requests: Tensors of each set.
            flush_bytes: Read in every sample, to empty the L2; 0 for nothing.
            flush_each: Before each execution, and not only once, when all sets were reset.

        Raises:
            RunFailed: the sets do not fit into memory, or the first execution faulted.
            UnsupportedError: this device does not measure time.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Session: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class PartialSession(Protocol):
    """A session that can run some blocks of a plan."""

    def run_part(self, request: RunRequest, wanted: Mapping[int, Sequence[int]]) -> PartResult:
        """Run only the blocks that some elements of the outputs need.

        Args:
            request: The run, on the tensors of the whole size.
            wanted: Flat indices of elements by output, the most important first; fewer are had where they are dear.
        """
        ...


class Device(Protocol):
    """Where candidates run: ``emulated:h100`` or ``cuda:0``."""

    name: str
    kind: Literal["cuda", "emulated"]

    @property
    def arch(self) -> str:
        """Real architecture to compile for: ``sm_90a``."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def spec(self) -> DeviceSpec:
        """Public figures of its GPU, or of the nearest that is known."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process beside it needs in its environment to work on the same hardware and no other."""
        ...

    @property
    def memory_bytes(self) -> int:
        """What one run may use."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak of the device's memory; 0 where it is unknown."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts a Coder may use: name, SMs, shared memory per block, registers, bandwidth; each with unit."""
        ...

    def identity(self) -> Mapping[str, str]:
        """What a fingerprint says of the hardware: ``gpu gpu_uuid driver runtime``; empty for an emulated device."""
        ...

    def clocks(self) -> Clocks | None:
        """Clocks, temperature and throttle reasons now; None where the device cannot say."""
        ...

    def start(self) -> None:
        """Start what runs take now, rather than at the first one.

        Raises:
            DeviceError: the device cannot be used.
            SandboxError: its helper process does not start.
        """
        ...

    def open(self, artifact: Artifact) -> Session: ...

    def sanitize(self, artifact: Artifact, request: RunRequest) -> tuple[RunFailure, ...]:
        """What the device's sanitizer reports of one run; nothing from a device that checks every access anyway.

        Raises:
            UnsupportedError: the sanitizer is missing or came to no result, which is never taken for a clean run.
        """
        ...

    def interrupt(self) -> None:
        """End the run that another thread waits for: what it was about is lost, the device is not."""
        ...

    def close(self) -> None: ...
