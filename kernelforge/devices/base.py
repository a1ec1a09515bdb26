"""Interface of devices and sessions, and the records that they exchange.

A device never sees expected outputs. It opens *sessions*: each is one disposable, confined runner that holds one build,
runs resolved plans on given inputs, and returns bytes and counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Protocol, runtime_checkable

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile.cache import Artifact
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.records import Clocks, Performance, Profile, SizeFacts
from kernelforge.sandbox.shared_memory import Blob


@dataclass(frozen=True)
class Capabilities:
    """Features of a device; the harness uses no others."""

    measures_time: bool
    checks_accesses: bool
    """Bounds, alignment and races are checked on every access."""
    clusters: bool
    cooperative: bool
    tensor_maps: bool = False
    library: bool = False
    """Torch operators called between a plan's launches."""


FaultKind = Literal["sanitizer", "timeout", "late", "crash", "memory", "unsupported"]
"""``late``: an emulated device's run that took this machine too long, though it did no more work than it may."""


@dataclass(frozen=True)
class RunFailure:
    """A fault in a run of a plan. ``kind`` decides the verdict, ``message`` is for the Coder."""

    kind: FaultKind
    message: str
    ptx_line: int | None = None
    """Line of an unsupported instruction in the build's PTX, from 1, or 0 if unknown. None for other faults."""


class RunFailed(Exception):
    """A run faulted, so that there is no profile or time."""

    def __init__(self, fault: RunFailure) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True)
class RunResult:
    """Outputs of one run of a plan, or its faults."""

    outputs: tuple[Blob, ...]
    """Raw elements, C order: one per plan output, then one per requested mutated input."""
    faults: tuple[RunFailure, ...] = ()
    thread_instructions: int | None = None
    seconds: float = 0.0
    """Wall time inside the runner."""
    forward_instructions: int | None = None
    """Thread instructions of ``forward`` alone, without ``setup``: what a profile counts."""
    global_sectors: int | None = None
    """Sectors of 32 bytes that loads and stores of ``forward`` requested of global memory."""


@dataclass(frozen=True)
class OutputPart:
    """Some elements of one output of a plan."""

    elements: Blob
    """Flat indices, int64, ascending."""
    data: Blob
    """The elements' bytes, in that order."""
    unwritten: int
    """Elements that the plan does not write, of those that were looked at: of a small output all."""


@dataclass(frozen=True)
class PartResult:
    """Some elements of a plan's outputs, computed by the blocks that write them."""

    parts: tuple[OutputPart, ...]
    """One per plan output; empty if there is a ``reason`` or there are ``faults``."""
    reason: str = ""
    """Reason why single blocks of the plan cannot be run."""
    faults: tuple[RunFailure, ...] = ()
    thread_instructions: int | None = None


RUN_LIMIT_S = 20.0
"""Default deadline of one run of a plan on a GPU."""

EMULATED_RUN_LIMIT_S = 600.0
"""The same on an emulated device, where it is no limit on the candidate: those are of work, which is counted and the
same on every machine. A run that takes this long within them is ``late``, by a fault of ours or a slow machine."""


OPERATIONS_PER_INSTRUCTION: Final = 2
"""Operations of a matrix product that are as much work as an instruction of a thread: a multiply and an add."""


@dataclass(frozen=True)
class RunRequest:
    """One run of a plan. ``tensors`` holds the bytes of every input and weight buffer, by buffer id."""

    plan: ResolvedPlan
    tensors: Mapping[int, Blob]
    poison: int = 0xA5
    """Byte that fills workspace, outputs and shared memory before the run."""
    mutable: frozenset[int] = frozenset()
    """Buffers of inputs that the candidate may write; returned after the plan's outputs, in ascending id."""
    mapped: frozenset[int] = frozenset()
    """Buffers of inputs in pinned host memory that is mapped into the device's address space; only read."""
    deadline_s: float = RUN_LIMIT_S
    memory_bytes: int | None = None
    """Device memory for the plan's buffers; None for all that one run may use."""
    deadline_binds: bool = True
    """Whether a run that reaches its deadline is too slow, kind ``timeout``; else this machine is, kind ``late``."""
    max_thread_instructions: int | None = None
    """Most work on an emulated device, a run of more is of kind ``timeout``. An instruction of a warp counts as 32, and
    a matrix product what it computes, by :data:`OPERATIONS_PER_INSTRUCTION`."""
    sample_seed: int = 0
    """Seed of the choice of sampled blocks and launches; secret from candidates."""
    sanitize: bool = False
    """On an emulated device: also report reads of memory that nothing wrote, and races on global memory."""
    variation: int = 0
    """Chooses, on an emulated device, among results that hardware may give: 0 the middle of the documented range,
    others up to 2**32 - 2 by a hash. Equal numbers give equal results."""
    worst_errors: bool = False
    """On an emulated device: approximate instructions are as far off as their documented error surely allows."""
    nearby: bool = False
    """On an emulated device, of a run in part: blocks that lie near the elements are enough where they write all that
    is around these. Another block that writes there too goes unseen."""
    tiled: Mapping[int, int] = field(default_factory=dict)
    """Bytes of the buffers whose tensor is longer than its content in ``tensors``, which stands there again and again:
    a whole number of pages. Only for an emulated device."""

    @property
    def device_bytes(self) -> int:
        """Bytes of the plan's buffers in device memory."""
        return sum(buffer.nbytes for buffer in self.plan.buffers if buffer.id not in self.mapped)

    @property
    def host_bytes(self) -> int:
        """Bytes of the plan's buffers in pinned host memory."""
        return sum(buffer.nbytes for buffer in self.plan.buffers if buffer.id in self.mapped)


@dataclass(frozen=True)
class TuningTime:
    """A plan's time, for comparison with others of the same effort. Never recorded as a result."""

    time_us: float
    settled: bool
    """Whether more effort is unlikely to change the time."""


SampleWork = Literal["sample", "overhead", "empty"]
"""Content of a timed sample: everything, all but the executions, or an empty kernel in place of each execution."""


class Timeable(Protocol):
    """A process that repeats the same work and measures its time: a candidate's or a baseline's.

    A *sample* is one execution on each of K disjoint sets of tensors. Before it every set is reset, so that no
    execution finds results of another; then the L2 is flushed, before each execution if the sets are too small to flush
    it themselves. Without a flush, sets are reset before the sample and outside its time.

    Running and reading are two calls: reading the events of many samples takes milliseconds, which a clock outside must
    not count as time of the samples.
    """

    name: str

    @property
    def captured(self) -> bool:
        """Whether samples are replays of a CUDA graph; valid once it is ready."""
        ...

    def run(self, samples: int, work: SampleWork = "sample", *, gaps_us: Sequence[float] = ()) -> None:
        """Run ``samples`` samples, one after the other, and wait for them.

        Args:
            samples: Number of samples, at least 1.
            work: Content of each. Without a flush, only ``sample`` runs.
            gaps_us: Idle time before each, in µs, which is not part of any sample; empty for back to back.

        Raises:
            RunFailed: a candidate faulted, or did not end in time.
            BaselineError: a baseline failed.
        """
        ...

    def times(self) -> tuple[float, ...]:
        """GPU time in µs of each sample of the last :meth:`run`, by the device's own events, including resets and
        flushes. Zeros for ``overhead`` and ``empty`` without a flush.

        Raises:
            RunFailed: a candidate's process was lost.
            BaselineError: a baseline failed.
        """
        ...

    def ready(self) -> None:
        """Allocate what :meth:`rest` freed; may take long.

        Raises:
            BaselineError: it cannot be allocated.
        """
        return

    def rest(self) -> None:
        """Free memory that can be allocated again, while this side is not timed."""
        return

    def block(self, samples: int, *, gaps_us: Sequence[float] = ()) -> tuple[float, ...]:
        """:meth:`run` and :meth:`times` in one."""
        self.run(samples, gaps_us=gaps_us)
        return self.times()

    def flush_block(self, samples: int) -> tuple[float, ...]:
        """Times without the executions: the overhead to subtract. Zeros without a flush."""
        self.run(samples, "overhead")
        return self.times()


class TimedPlan(Timeable, Protocol):
    """A candidate's plan, ready to be timed on K sets of tensors. It occupies the session, which runs nothing else."""

    setup_us: float | None
    """Time of the plan's ``setup``; None for a plan without one."""

    def refresh(self, requests: Sequence[RunRequest]) -> None:
        """Put new values into every set, untimed, and run its ``setup`` again."""
        ...

    def outputs(self) -> tuple[tuple[Blob, ...], ...]:
        """Outputs of an execution on each set, then mutated inputs, as in :class:`RunResult`."""
        ...

    def coverage(self) -> float:
        """Share of device time in the candidate's own kernels, from 0 to 1."""
        ...

    def close(self) -> None: ...


class Session(Protocol):
    """One disposable runner with one build loaded."""

    def run(self, request: RunRequest) -> RunResult: ...

    def profile(self, request: RunRequest, facts: SizeFacts) -> tuple[Profile, Performance | None]:
        """Counters at the size of ``facts``, on sampled blocks if the device samples; and the performance from a device
        that models time, None from one that measures it.

        Raises:
            RunFailed: a launch faulted.
        """
        ...

    def rate(self, request: RunRequest, effort: float) -> TuningTime:
        """A time of the plan, with a share of the effort for a full measurement.

        Args:
            request: The run; exceeding its deadline is a fault of kind ``timeout``.
            effort: The share, above 0 and at most 1: of the samples on a device that measures, of the profiled thread
                instructions on one that models.

        Raises:
            RunFailed: a launch faulted.
        """
        ...

    def arm(self, requests: Sequence[RunRequest], *, flush_bytes: int = 0, flush_each: bool = False) -> TimedPlan:
        """Prepare a plan for timing; one request per set, all of the same plan.

        Args:
            requests: Tensors of each set.
            flush_bytes: Bytes read in every sample, to empty the L2; 0 for none.
            flush_each: Flush before each execution rather than once after the resets.

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

    def run_part(self, request: RunRequest, elements: Mapping[int, Sequence[int]]) -> PartResult:
        """Run only the blocks that compute some elements of the outputs.

        Args:
            request: The run, on the tensors of the full size.
            elements: Flat indices of elements by output, the most important first; costly ones may be left out.
        """
        ...


class Device(Protocol):
    """A device that runs candidates: ``emulated:h100`` or ``cuda:0``."""

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
        """Public figures of its GPU, or of the nearest known one."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment of another process that is to use the same hardware and no other."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Device memory that one run may use."""
        ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak of the device's memory; 0 if unknown."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for a Coder: name, SMs, shared memory per block, registers, bandwidth; each with its unit."""
        ...

    def identity(self) -> Mapping[str, str]:
        """Hardware in a fingerprint: ``gpu gpu_uuid driver runtime``; empty for an emulated device."""
        ...

    def clocks(self) -> Clocks | None:
        """Current clocks, temperature and throttle reasons; None if the device does not report them."""
        ...

    def energy_j(self) -> float | None:
        """Joules that the device took since its driver was loaded; None if it does not report them."""
        ...

    def start(self) -> None:
        """Start the helper processes of runs now rather than at the first run.

        Raises:
            DeviceError: the device cannot be used.
            SandboxError: its helper process does not start.
        """
        ...

    def open(self, artifact: Artifact) -> Session: ...

    def sanitize(self, artifact: Artifact, request: RunRequest) -> tuple[RunFailure, ...]:
        """Reports of the device's sanitizer on one run; empty from a device that checks every access anyway.

        Raises:
            UnsupportedError: the sanitizer is missing or has no result, which never counts as a clean run.
        """
        ...

    def interrupt(self) -> None:
        """End the run that another thread waits for; its result is lost, the device stays usable."""
        ...

    def close(self) -> None: ...
