"""Interface between the reward server and a pool of workers.

An engine owns workers. Each is a process of ours that keeps warm what evaluations take, and starts the jailed children
that touch untrusted code. A *slot* is a place on a device where one candidate at a time is evaluated; *preparing* a
candidate takes no slot: its plan is resolved and its source compiled on CPU cores, into the cache that the slots read.

The gateway decides what runs where and what is tried again. An engine tries nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from kernelforge.errors import KernelForgeError
from kernelforge.records import Candidate, Evaluation, Fingerprint, Graph, Profile, Record, Task, TaskFacts


class WorkerDied(KernelForgeError):
    """The process that had the order ended. Nothing is known of the candidate; another worker may be given it."""


class Trouble(Record):
    """Why an order has no evaluation: ours, never the candidate's."""

    code: Literal["unsupported", "device", "oracle", "sandbox", "internal"]
    message: str
    retryable: bool
    """Whether another try may end otherwise."""


class EvaluationOrder(Record):
    """One candidate to be evaluated. It holds all that a worker needs: workers keep nothing that they must be told."""

    id: str
    task: Task
    candidate: Candidate
    profile: bool = False
    """Also profile a correct candidate at the full size."""
    prepared: dict[str, float] = {}
    """Seconds that preparing it took, by part of the work: they count among those of its evaluation."""


class Prepared(Record):
    """An order that may go to a slot."""

    order: str
    seconds: dict[str, float] = {}
    """Wall time by part of the work, as in an evaluation."""


class EvaluationReport(Record):
    """What became of an order: an evaluation, or trouble. An evaluation with verdict ``INFRA`` comes as trouble."""

    order: str
    evaluation: Evaluation | None = None
    profile: Profile | None = None
    trouble: Trouble | None = None
    worker_seconds: float = 0.0
    """From the order's arrival at the worker to the report."""


class BriefFacts(Record):
    """What agents may be told of a task, from a worker that has its oracle."""

    facts: TaskFacts
    """Of the sizes ``full`` and ``small`` only."""
    shared: dict[str, str]
    graph: Graph
    device: dict[str, str]
    spec: str
    """Key of the device's figures in :data:`kernelforge.hardware.specs.SPECS`."""


@dataclass(frozen=True)
class Slot:
    """A place on a device, as it is now."""

    name: str
    """Unique in the engine: ``emulated:h100#1``, ``cuda:0``, ``node-2/cuda:0``."""
    device: str
    state: Literal["starting", "idle", "busy", "aside"]
    """``aside``: in quarantine, or its worker does not start; ``why`` says more."""
    warm: frozenset[str] = frozenset()
    """Digests of the tasks whose oracles it keeps: an order for one of them begins at once."""
    why: str = ""


@dataclass(frozen=True)
class Health:
    """What operators are shown of an engine."""

    workers: int
    """Worker processes that are alive."""
    restarts: int
    """Workers that were replaced since the start."""
    notes: tuple[str, ...] = ()
    """What an operator should know, such as a GPU in quarantine."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Further gauges by name, such as warm tasks."""


class Engine(Protocol):
    """Runs orders. All of it is used from one event loop.

    Cancelling the task that awaits :meth:`prepare` or :meth:`evaluate` frees what it holds within about a second:
    jailed children are killed, and a worker that does not come back is replaced.
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
        """What makes the numbers on this engine's devices, which are all of one kind. Known once it has started."""
        ...

    def slots(self) -> Sequence[Slot]: ...

    def health(self) -> Health: ...

    @property
    def preparing(self) -> int:
        """How many :meth:`prepare` calls may usefully be in flight at a time."""
        ...

    async def changed(self) -> None:
        """Return when a slot may have become free, or have come or gone, since the last call."""
        ...

    async def prepare(self, order: EvaluationOrder) -> EvaluationReport | Prepared:
        """Resolve and compile, on CPU cores. A report: it ended here.

        Raises:
            WorkerDied: try again.
        """
        ...

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        """Evaluate on a slot that is idle.

        Raises:
            WorkerDied: try again, on any slot.
        """
        ...

    async def brief(self, task: Task) -> BriefFacts:
        """What agents may be told of a task; takes no slot.

        Raises:
            TaskError: its reference does not run, or it cannot be judged.
            WorkerDied: try again.
        """
        ...

    async def close(self) -> None:
        """End every worker and all that it started."""
        ...
