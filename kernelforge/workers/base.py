"""Interface between the reward server and a pool of workers.

An engine owns worker processes. Each keeps evaluators warm, and starts the jailed children that touch untrusted code. A
*slot* is a place on a device where one candidate at a time is evaluated. *Preparing* a candidate needs no slot: its
plan is resolved and its source compiled on CPU cores, into the cache that the slots read.

The server decides what runs where and what is retried. An engine retries nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import Field

from kernelforge.client.models import Fault
from kernelforge.errors import (
    ChildDied,
    ChildTimeout,
    DeviceError,
    KernelForgeError,
    SandboxError,
    TaskError,
    UnsupportedError,
)
from kernelforge.evaluation.audit.results import TestedMutant
from kernelforge.evaluation.stages.programs import Program
from kernelforge.records import (
    Build,
    Candidate,
    CheckedSizes,
    Evaluation,
    Fingerprint,
    Graph,
    InputGenerator,
    Profile,
    Record,
    Task,
    TaskFacts,
    Verdict,
)

_LOG = logging.getLogger(__name__)


class WorkerDied(KernelForgeError):
    """The worker process with the order ended. This says nothing about the candidate; another worker may try it."""


class EvaluationOrder(Record):
    """One candidate to evaluate, with all data that a worker needs."""

    id: str
    task: Task
    candidate: Candidate
    profile: bool = False
    """Also profile a correct candidate at the full size."""
    sizes: CheckedSizes | None = None
    """Sizes to check; None for the worker's."""
    prepared: dict[str, float] = {}
    """Seconds spent on its preparation, by part; they count towards its evaluation."""
    builds: dict[str, str] = Field(default={}, repr=False)
    """Builds that another machine made in its preparation, by their keys in the cache."""


class Prepared(Record):
    """An order that is ready for a slot."""

    order: str
    seconds: dict[str, float] = {}
    """Wall time by part of the preparation, as in an evaluation."""
    builds: dict[str, str] = Field(default={}, repr=False)
    """Its builds by their keys in the cache, where slots may be on machines that do not share it."""
    program: Program | None = None
    """By which equal candidates share an evaluation; None where the candidate runs itself."""
    build: Build | None = None
    """The record of its build."""


class EvaluationReport(Record):
    """Result of an order: an evaluation, or a fault. An evaluation with verdict ``INFRA`` becomes a fault."""

    order: str
    evaluation: Evaluation | None = None
    profile: Profile | None = None
    trouble: Fault | None = None
    worker_seconds: float = 0.0
    """From the order's arrival at the worker to the report."""


class TaskContextData(Record):
    """Facts of a task that agents may see, from a worker that has its oracle."""

    facts: TaskFacts
    """Only of the sizes ``full`` and ``small``."""
    shared: dict[str, str]
    graph: Graph
    device: dict[str, str]
    spec: str
    """Key of the device's figures: see :func:`kernelforge.hardware.specs.spec_by_key`."""


class ScoredTests(Record):
    """Tests of a Tester's reply, with the mutants that they were tried on."""

    fault: str = ""
    """Why the reply cannot be read; empty otherwise."""
    tests: tuple[InputGenerator, ...] = ()
    mutants: tuple[TestedMutant, ...] = ()


SlotState = Literal["starting", "idle", "busy", "quarantined", "drained"]
"""``quarantined``: the device is in quarantine, or the worker does not start. ``drained``: an operator took it out, and
it has no worker, or none any more once its request is answered."""


@dataclass(frozen=True)
class Slot:
    """State of a place on a device."""

    name: str
    """Unique in the engine: ``emulated:h100#1``, ``cuda:0``, ``node-2/cuda:0``."""
    device: str
    state: SlotState
    cached_tasks: frozenset[str] = frozenset()
    """Digests of the tasks whose oracles are warm: an order for one of them starts at once."""
    why: str = ""
    """Why it is quarantined, or its worker is replaced."""
    compiles: bool = False
    """Whether it is a compile worker, which has no device."""


@dataclass(frozen=True)
class Health:
    """State of an engine for operators."""

    workers: int
    """Worker processes that are alive."""
    restarts: int
    """Workers that were replaced since the start."""
    notes: tuple[str, ...] = ()
    """Messages for the operator, such as a GPU in quarantine."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Further gauges by name, such as warm tasks."""


class Engine(Protocol):
    """Runs orders. All of it is used from one event loop.

    Cancelling :meth:`prepare` or :meth:`evaluate` frees the worker within about a second: jailed children are killed,
    and a worker that does not react is replaced.
    """

    name: Literal["local", "ray"]

    async def start(self) -> None:
        """Start the workers and return when at least one slot can be used.

        Raises:
            KernelForgeError: no worker starts: no jail, no such device, no cluster.
        """
        ...

    @property
    def fingerprint(self) -> Fingerprint:
        """Device and toolchain of this engine's slots, which are all of one kind. Available after :meth:`start`."""
        ...

    @property
    def modelnew(self) -> Fingerprint | None:
        """Of the candidates of lane ``modelnew``, available after :meth:`start`; None where they are not run."""
        ...

    def slots(self) -> Sequence[Slot]: ...

    def health(self) -> Health: ...

    def worker_states(self) -> Sequence[Slot]:
        """Every slot, and every compile worker."""
        ...

    def drain(self, pattern: str) -> int:
        """Take the slots and compile workers of matching names out: what they are at is finished, and then they have no
        worker. Those that join later are taken out too. Returns how many there are.

        Args:
            pattern: a name, in which ``*`` stands for anything: ``gpu-3-*``.
        """
        ...

    def demand(self, jobs: int) -> None:
        """Say how many jobs wait or run, by which a cluster may grow and shrink."""
        ...

    def resume(self, pattern: str) -> int:
        """Bring back what :meth:`drain` took out. Returns how many there are of matching names."""
        ...

    @property
    def preparing(self) -> int:
        """Useful number of concurrent :meth:`prepare` calls."""
        ...

    async def changed(self) -> None:
        """Return when a slot may have become free, or was added or removed, since the last call. For one caller."""
        ...

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile a candidate on CPU cores. Returns a report if its evaluation ended here.

        Raises:
            WorkerDied: try again.
        """
        ...

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        """Evaluate on an idle slot.

        Raises:
            WorkerDied: try again, on any slot.
        """
        ...

    async def task_context(self, task: Task) -> TaskContextData:
        """Facts of a task that agents may see; needs no slot.

        Raises:
            TaskError: its reference does not run, or it cannot be evaluated.
            WorkerDied: try again.
        """
        ...

    async def score_tests(self, task: Task, reply: str, most: int) -> ScoredTests:
        """Score the input generators of a Tester's reply on at most ``most`` mutants of a task; needs no slot.

        Raises:
            TaskError: its reference does not run, or it cannot be evaluated.
            WorkerDied: try again.
        """
        ...

    async def close(self) -> None:
        """End every worker and its children."""
        ...


def classify(error: Exception) -> Fault:
    """The fault that an error stands for. An unexpected error is logged with its traceback."""
    message = str(error) or type(error).__name__
    match error:
        case UnsupportedError():
            return Fault(code="unsupported", message=message)
        case TaskError():
            return Fault(code="oracle", message=message)
        case DeviceError():
            return Fault(code="device", message=message, retryable=True)
        case ChildDied() | ChildTimeout() if "oracle child" in message:
            return Fault(code="oracle", message=message, retryable=True)
        case SandboxError():
            return Fault(code="sandbox", message=message, retryable=True)
        case KernelForgeError():
            return Fault(code="internal", message=message)
    _LOG.error("an order failed with an unexpected error", exc_info=error)
    # A full disk or too many open files may be temporary; a bug is not.
    message = f"{type(error).__name__}: {message}"
    return Fault(code="internal", message=message, retryable=isinstance(error, OSError))


def make_report(order: str, evaluation: Evaluation, profile: Profile | None, seconds: float) -> EvaluationReport:
    """The report of an evaluated order; verdict ``INFRA`` becomes a fault."""
    if evaluation.verdict is not Verdict.INFRA:
        return EvaluationReport(order=order, evaluation=evaluation, profile=profile, worker_seconds=seconds)
    # Impossible times are a fault of the device; all else is unsupported by it, now and later.
    timing = evaluation.stage == "timing"
    fault = Fault(code="device" if timing else "unsupported", message=evaluation.reason, retryable=timing)
    return EvaluationReport(order=order, trouble=fault, worker_seconds=seconds)
