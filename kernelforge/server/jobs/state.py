"""State of the job service: active jobs with their evaluation tasks, recovery, watchers, deadlines and settings."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter

from kernelforge.client.models import Job, JobStatus, RewardResult, TrainingStage
from kernelforge.evaluation.oracle.client import REPLY_S
from kernelforge.evaluation.stages.programs import Program
from kernelforge.records import Build, Candidate, CheckedSizes, Fingerprint, Record, evaluation_key
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.jobs.exemplars import CAPACITY, ExemplarKey, exemplar_of
from kernelforge.server.jobs.job_store import Batch, JobEnd, JobStore, RunRow, TaskEnd, TaskProgress
from kernelforge.server.jobs.requests import Registered, Registry
from kernelforge.server.jobs.results import (
    AS_SENT,
    READING,
    CompletedJobs,
    EvaluationCache,
    Reading,
    Stored,
    failed,
    marked,
)
from kernelforge.server.jobs.suspects import RewardChecks
from kernelforge.store.database import readable
from kernelforge.workers.base import Engine, EvaluationOrder

_LOG = logging.getLogger(__name__)


class OwnedRun(NamedTuple):
    """A run of one caller: two callers that use the same name have two."""

    caller: str
    run: str


class Charge(NamedTuple):
    """Runs that were charged for a task, and how much each."""

    runs: tuple[OwnedRun, ...]
    share: float


Phase = Literal["queued", "preparing", "ready", "evaluating", "over"]


@dataclass(slots=True, eq=False, repr=False)
class ActiveJob:
    """An accepted job that has not ended."""

    accepted: Job
    """As it was when it was accepted."""
    seq: int
    """Order of acceptance."""
    caller: str
    key: str | None
    policy: str
    deadline_at: float | None
    profile: bool
    evaluation_task: EvaluationTask
    ending: bool = False
    """True once its end is being committed. Set exactly once, by the caller that ends the job."""
    end: asyncio.Task[list[ActiveJob]] | None = None
    """Commits its end."""
    holders: int = 0
    """Open requests that wait for it; it is cancelled when the last of them is closed."""
    kept: bool = False
    """Whether a caller has its id to poll: then it is not cancelled when open requests are closed."""
    forgotten: bool = False
    """Whether its idempotency key was released."""
    reading: Reading = AS_SENT
    """How its candidate was read out of the completion."""
    training_stage: TrainingStage | None = None
    """Stage of its run when it was accepted."""

    @property
    def id(self) -> str:
        return self.accepted.id

    def snapshot(self) -> Job:
        """The job as callers see it now."""
        if self.evaluation_task.phase == "queued":
            return self.accepted.model_copy(update={"tries": self.evaluation_task.tries})
        return self._after_start(status=JobStatus.RUNNING)

    def ended(self, status: JobStatus, result: RewardResult, now: float) -> Job:
        """The job as callers see it after its end."""
        return self._after_start(status=status, result=self.marked(result), finished_at=now)

    def marked(self, result: RewardResult) -> RewardResult:
        """A result of its evaluation, with what is this job's own."""
        return marked(result, self.reading, self.training_stage)

    def _after_start(self, **changes: Any) -> Job:
        """It started when a worker got its task; a job that joined later, when it joined."""
        task = self.evaluation_task
        started_at = None if task.started_at is None else max(task.started_at, self.accepted.submitted_at)
        return self.accepted.model_copy(update={"started_at": started_at, "tries": task.tries, **changes})


@dataclass(slots=True, eq=False, repr=False)
class EvaluationTask:
    """One evaluation, shared by all jobs that wait for it."""

    id: int
    key: str
    registered: Registered
    candidate: Candidate
    candidate_hash: str
    profile: bool
    fingerprint: Fingerprint
    """Of the evaluation that was asked for."""
    jobs: dict[str, ActiveJob] = field(default_factory=dict)
    phase: Phase = "queued"
    tries: int = 0
    """How often it was given to a worker."""
    deaths: int = 0
    """Workers that died while they had it."""
    failures: int = 0
    """Tries that ended in a retryable failure."""
    started_at: float | None = None
    seconds: float = 0.0
    """Worker time used so far."""
    prepared: dict[str, float] = field(default_factory=dict)
    """Seconds spent on its preparation, by part."""
    builds: dict[str, str] = field(default_factory=dict, repr=False)
    """Its builds, where machines have a cache each."""
    program: Program | None = None
    """By which equal candidates share an evaluation; None until it is prepared."""
    build: Build | None = None
    max_age_s: float | None = None
    """Oldest measured time of an equal candidate that may answer; None where it has to run itself."""
    charge: Charge | None = None
    """What its runs paid for it."""
    call: asyncio.Task[None] | None = None
    """The engine's call in progress."""
    passed_over: int = 0
    """How often a later task got a slot first, because its oracle was warm there."""

    @property
    def shared_key(self) -> str | None:
        """Key that it has in common with equal candidates; None until it is prepared."""
        if self.program is None:
            return None
        return evaluation_key(self.program.digest, self.registered.digest, self.fingerprint)

    @property
    def size(self) -> int:
        """Characters of its candidate, an estimate of its memory."""
        return len(self.candidate.source) + len(self.candidate.plan)

    def order(self) -> EvaluationOrder:
        return EvaluationOrder(
            id=f"w{self.id}.{self.tries}",
            task=self.registered.task,
            candidate=self.candidate,
            profile=self.profile,
            sizes=self.fingerprint.sizes,
            prepared=self.prepared,
            builds=self.builds,
        )

    def positions(self) -> dict[OwnedRun, tuple[int, int]]:
        """Priority and age by run, for the fair queue."""
        positions: dict[OwnedRun, tuple[int, int]] = {}
        for job in self.jobs.values():
            run, priority = OwnedRun(job.caller, job.accepted.run_id), job.accepted.priority
            old = positions.get(run)
            if old is None or (-priority, job.seq) < (-old[0], old[1]):
                positions[run] = (priority, job.seq)
        return positions


CORRECTNESS_POLICY = "autotriton/1"
"""Reward policy of the stage ``correctness``: 1 for a right candidate, else 0, as in CUDA-L1's stage before speed."""
ADVANCE_WINDOW = 256
"""Jobs of the stage ``correctness`` that decide whether the next stage begins. Ours."""


class TrainingSettings(Record):
    """Settings of a run for the trainer's method, stored as one JSON object."""

    exemplars: int = CAPACITY
    """Right candidates that are kept for each task; 0 for none."""
    stage: TrainingStage | None = None
    advance_at: float | None = None
    advance_window: int = ADVANCE_WINDOW
    jump_factor: float | None = None
    sizes: CheckedSizes | None = None
    """None for the server's."""

    def changed(self, changes: Mapping[str, Any]) -> TrainingSettings:
        """With those changes that are changes of it."""
        own = {name: value for name, value in changes.items() if name in self.__class__.model_fields}
        return self.model_copy(update=own)

    def stored(self) -> str | None:
        """As JSON; None where all are the defaults."""
        return None if self == DEFAULT_TRAINING else self.model_dump_json()


DEFAULT_TRAINING = TrainingSettings()


@cache
def training_settings(text: str | None) -> TrainingSettings:
    """The settings of a run's row.

    Raises:
        ValueError: they cannot be read.
    """
    return DEFAULT_TRAINING if text is None else TrainingSettings.model_validate_json(text)


_MOST_RUNS = 10_000
"""Runs in memory above which those without settings and jobs are forgotten."""


@dataclass(slots=True)
class RunState:
    """A run: its settings, and its active jobs."""

    weight: float = 1.0
    min_policy_version: int | None = None
    policy_version: int | None = None
    max_staleness: int | None = None
    batch_size: int | None = None
    training: str | None = None
    """Settings of the trainer's method, as JSON; :attr:`methods` has them."""
    owner: str | None = None
    """The token without the scope ``admin`` that set it: no other's jobs are admitted."""
    ended: int = 0
    """Number of jobs that ended."""
    with_result: int = 0
    """Number of trajectories that ended with a result."""
    in_flight: int = 0
    """Number of trajectories that have not ended."""
    jobs: dict[str, ActiveJob] = field(default_factory=dict)
    lags: Counter[int] = field(default_factory=Counter)
    """Admitted jobs since the start of the server, by how many versions they were behind the run's."""
    correct: deque[bool] = field(default_factory=lambda: deque(maxlen=ADVANCE_WINDOW))
    """Whether the latest jobs of the stage ``correctness`` were right."""
    refused: Counter[str] = field(default_factory=Counter)
    """Jobs that were not admitted since the start of the server, by reason."""

    @property
    def forgettable(self) -> bool:
        return not self.jobs and self.settings("") == RunState().settings("")

    def settings(self, run: str) -> RunRow:
        """The row of its settings."""
        return RunRow(
            run, self.weight, self.min_policy_version, self.policy_version, self.max_staleness, self.batch_size,
            self.training, self.owner,
        )  # fmt: skip

    @property
    def methods(self) -> TrainingSettings:
        return training_settings(self.training)

    @property
    def capacity(self) -> int | None:
        """Trajectories that may be admitted in all by now, of AReaL's formula (arXiv:2505.24298, equation 3):
        ``(max_staleness + policy_version + 1) * batch_size``. None: any number."""
        if self.max_staleness is None or self.batch_size is None:
            return None
        return (self.max_staleness + (self.policy_version or 0) + 1) * self.batch_size

    def require_owner(self, run: str, caller: Caller) -> None:
        """Check that a run is not another token's.

        Raises:
            RequestRejected: 403: it is.
        """
        if self.owner is not None and not caller.may_act_for(self.owner):
            raise RequestRejected(403, "not_yours", f"run {run} belongs to another token; choose another run_id")

    def require_fresh(self, policy_version: int | None) -> None:
        """Check that a job is within the bound of staleness.

        Raises:
            RequestRejected: 409: it is not, or does not say its version.
        """
        if self.max_staleness is None:
            return
        if policy_version is None:
            message = "the run bounds staleness: give each job the policy_version that wrote it"
        elif (self.policy_version or 0) - policy_version > self.max_staleness:
            message = (
                f"policy_version {policy_version} is more than {self.max_staleness} behind the run's "
                f"{self.policy_version}"
            )
        else:
            return
        self.refused["stale"] += 1
        raise RequestRejected(409, "stale", message)

    def require_capacity(self, retry_after_s: float) -> None:
        """Check that a trajectory may be admitted before the trainer has used more of those before it.

        Raises:
            RequestRejected: 429: it may not.
        """
        capacity = self.capacity
        if capacity is None or self.with_result + self.in_flight < capacity:
            return
        self.refused["ahead"] += 1
        message = (
            f"{capacity:,} trajectories of the run are admitted, which is all until its policy_version rises above "
            f"{self.policy_version or 0}"
        )
        raise RequestRejected(429, "ahead_of_trainer", message, retry_after_s=retry_after_s)

    def admitted(self, policy_version: int | None) -> None:
        """Count the lag of an admitted job; one of a version to come has none."""
        if policy_version is not None and self.policy_version is not None:
            self.lags[max(self.policy_version - policy_version, 0)] += 1


_LATER_TURN = re.compile(r"session/[0-9a-f]{24}/(?!1$)\d+")


def is_turn(tag: str) -> bool:
    """Whether a tag is that of a session's turn, which the stream of experiences has with its session."""
    return tag.startswith("session/") and tag.count("/") > 1


def is_trajectory(tag: str) -> bool:
    """Whether a job counts as a trajectory, by its tag: all but the later turns of a session do."""
    return _LATER_TURN.fullmatch(tag) is None


def is_older(policy_version: int | None, oldest: int | None) -> bool:
    """Whether a policy version is below the oldest one that is accepted."""
    return policy_version is not None and oldest is not None and policy_version < oldest


def has_result(job: Job) -> bool:
    """Whether an ended job is a trajectory that a trainer may use."""
    return job.result is not None and job.result.outcome != "infra_error" and is_trajectory(job.tag)


class ActiveJobs:
    """Index of the active jobs and their evaluation tasks."""

    def __init__(self) -> None:
        self.jobs: dict[str, ActiveJob] = {}
        self.tasks: dict[int, EvaluationTask] = {}
        self.runs: dict[str, RunState] = {}
        self.of_callers: Counter[str] = Counter()
        """Number of active jobs by caller."""
        self.chars = 0
        """Characters of the candidates of open tasks."""
        self._by_key: dict[str, list[EvaluationTask]] = {}
        self._forget_at = _MOST_RUNS

    def run(self, name: str) -> RunState:
        state = self.runs.get(name)
        if state is None:
            if len(self.runs) >= self._forget_at:
                for idle in [run for run, state in self.runs.items() if state.forgettable][: _MOST_RUNS // 10]:
                    del self.runs[idle]
                # If none is idle, do not scan all runs again for every new one.
                self._forget_at = max(len(self.runs) + _MOST_RUNS // 10, _MOST_RUNS)
            state = self.runs[name] = RunState()
        return state

    def add(self, job: ActiveJob) -> None:
        """Enter an accepted job, and its task if that is new."""
        self.jobs[job.id] = job
        self.of_callers[job.caller] += 1
        run = self.run(job.accepted.run_id)
        run.jobs[job.id] = job
        run.in_flight += is_trajectory(job.accepted.tag)
        task = job.evaluation_task
        task.jobs[job.id] = job
        if task.id not in self.tasks:
            self.tasks[task.id] = task
            self.chars += task.size
            self._by_key.setdefault(task.key, []).append(task)

    def remove(self, job: ActiveJob) -> None:
        """Remove a job that has ended."""
        if self.jobs.pop(job.id, None) is not None:
            self.of_callers[job.caller] -= 1
            if not self.of_callers[job.caller]:
                del self.of_callers[job.caller]
        run = self.run(job.accepted.run_id)
        if run.jobs.pop(job.id, None) is not None:
            run.in_flight -= is_trajectory(job.accepted.tag)

    def close(self, task: EvaluationTask) -> None:
        """Remove a task, so that no further job joins it."""
        if self.tasks.pop(task.id, None) is None:
            return
        self.chars -= task.size
        same_key = self._by_key[task.key]
        same_key.remove(task)
        if not same_key:
            del self._by_key[task.key]

    def joinable_task(self, key: str, *, profile: bool) -> EvaluationTask | None:
        """A task that a job with this key may join. A task that is still queued can be given a profile."""
        for task in self._by_key.get(key, ()):
            if task.profile or not profile or (task.phase == "queued" and not task.tries):
                return task
        return None


class _TaskRow(NamedTuple):
    id: int
    task: str
    task_digest: str
    candidate: str
    source: str
    plan: str
    choices: str
    profiled: bool
    tries: NonNegativeInt
    deaths: NonNegativeInt
    started_at: FiniteFloat | None
    sizes: CheckedSizes | None


class _JobRow(NamedTuple):
    seq: int
    caller: str
    evaluation_task: int | None
    policy: str
    deadline_at: FiniteFloat | None
    profile: bool
    key: str | None
    id: str
    task: str
    run_id: str
    policy_version: int | None
    priority: int
    tag: str
    submitted_at: FiniteFloat
    training_stage: TrainingStage | None
    reading: str | None


class _SettingsRow(NamedTuple):
    run: str
    weight: Annotated[FiniteFloat, Field(gt=0)]
    min_policy_version: int | None
    policy_version: int | None
    max_staleness: int | None
    batch_size: int | None
    ended: NonNegativeInt
    with_result: NonNegativeInt
    training: str | None
    owner: str | None


_TASKS = (
    "SELECT id, task, task_digest, candidate, source, plan, choices, profiled, tries, deaths, started_at, sizes "
    "FROM works WHERE state = 'open' ORDER BY id"
)
_JOBS = (
    "SELECT seq, caller, work, policy, deadline_at, profile, (SELECT key FROM keys WHERE keys.job = jobs.id), "
    "id, task, run, policy_version, priority, tag, submitted_at, training_stage, reading "
    "FROM jobs WHERE status = 'queued' ORDER BY seq"
)
_SETTINGS = (
    "SELECT run, weight, min_policy_version, policy_version, max_staleness, batch_size, ended, trajectories, training, "
    "owner FROM runs"
)


@dataclass
class Restored:
    """Next free numbers, and corrections of the database, after a restart."""

    next_seq: int
    next_task: int
    batch: Batch = field(default_factory=Batch)


def restore(store: JobStore, registry: Registry, engine: Engine, active: ActiveJobs) -> Restored:
    """Load open tasks with their jobs, and the settings of runs, into an empty ``active``.

    Evaluation keys are computed again: the device, its driver or the toolchain may have changed.

    Raises:
        StoreError: a row cannot be read; the database has not changed then.
    """
    for run in _rows(store, _SETTINGS, _SettingsRow, "the settings of run"):
        state = active.run(run.run)
        for name, value in run._asdict().items():
            if name != "run":
                setattr(state, name, value)
        with readable(store.path, f"the settings of run {run.run}"):
            training_settings(run.training)
    [(last_seq,)] = store.read("SELECT coalesce(max(seq), 0) FROM jobs")
    [(last_task,)] = store.read("SELECT coalesce(max(id), 0) FROM works")
    restored = Restored(last_seq + 1, last_task + 1)
    tasks: dict[int, EvaluationTask] = {}
    for row in _rows(store, _TASKS, _TaskRow, "open task"):
        registered = registry.of_digest(row.task_digest)
        if registered is None:
            restored.batch.ended_tasks.append(TaskEnd(row.id, "failed", utc_seconds()))
            continue
        with readable(store.path, f"open task {row.id}"):
            task = tasks[row.id] = _task(row, registered, engine)
        restored.batch.progress.append(
            TaskProgress(task.id, task.key, task.profile, task.tries, task.deaths, task.started_at)
        )
    for waiting in _rows(store, _JOBS, _JobRow, "open job"):
        if waiting.evaluation_task in tasks:
            with readable(store.path, f"open job {waiting.id}"):
                fields = waiting._asdict() | {"evaluation_task": tasks[waiting.evaluation_task]}
                fields["reading"] = AS_SENT if waiting.reading is None else READING.validate_json(waiting.reading)
                accepted = {name: fields.pop(name) for name in Job.model_fields if name in fields}
                job = ActiveJob(Job(status=JobStatus.QUEUED, **accepted), **fields)
            job.evaluation_task.profile = job.evaluation_task.profile or job.profile
            active.add(job)
        else:
            restored.batch.ended_jobs.append(_not_offered(waiting))
    for task in tasks.values():
        if not task.jobs:
            restored.batch.ended_tasks.append(TaskEnd(task.id, "dropped", utc_seconds()))
    return restored


Row = TypeVar("Row", bound=NamedTuple)


def _rows(store: JobStore, sql: str, kind: type[Row], label: str) -> Iterator[Row]:
    """Rows of a query with validated types, which SQLite does not enforce."""
    adapter = TypeAdapter(kind)
    for row in store.read(sql):
        with readable(store.path, f"{label} {row[0]}"):
            validated = adapter.validate_python(row)
        yield validated


def _task(row: _TaskRow, registered: Registered, engine: Engine) -> EvaluationTask:
    fingerprint = engine.fingerprint.at_sizes(row.sizes)
    if row.plan:
        candidate = Candidate(source=row.source, plan=row.plan, choices=json.loads(row.choices))
    else:
        candidate = Candidate(source=row.source, plan="", lane="modelnew")
        fingerprint = engine.modelnew or fingerprint  # where none is run any more, a worker says so
    return EvaluationTask(
        id=row.id,
        key=evaluation_key(row.candidate, row.task_digest, fingerprint),
        registered=registered,
        candidate=candidate,
        candidate_hash=row.candidate,
        profile=row.profiled,
        fingerprint=fingerprint,
        tries=row.tries,
        deaths=row.deaths,
        started_at=row.started_at,
    )


def _not_offered(row: _JobRow) -> JobEnd:
    message = f"task {row.task} is no longer offered by this server; offer its suite and submit the job again"
    result = failed("oracle", message, policy=row.policy)
    return JobEnd(row.id, JobStatus.FINISHED.value, None, utc_seconds(), 0, result.model_dump_json())


_FIRST_COMPACTION = 1_000


class JobWatchers:
    """Queues that receive each job they follow whenever its status changes."""

    def __init__(self) -> None:
        self._queues: dict[str, set[asyncio.Queue[Job]]] = {}
        self._listeners: list[Callable[[Job], None]] = []

    @contextlib.contextmanager
    def follow(self, ids: Sequence[str]) -> Iterator[asyncio.Queue[Job]]:
        """A queue of the changes of some jobs from now on."""
        queue: asyncio.Queue[Job] = asyncio.Queue()
        for job_id in ids:
            self._queues.setdefault(job_id, set()).add(queue)
        try:
            yield queue
        finally:
            for job_id in ids:
                queues = self._queues.get(job_id, set())
                queues.discard(queue)
                if not queues:
                    self._queues.pop(job_id, None)

    def followed(self, job_id: str) -> bool:
        return job_id in self._queues

    def changed(self, job: Job) -> None:
        """Send a job to the queues that follow it."""
        for queue in self._queues.get(job.id, ()):
            queue.put_nowait(job)

    def on_ended(self, listener: Callable[[Job], None]) -> None:
        self._listeners.append(listener)

    def ended(self, job: Job) -> None:
        """Send a completed job to the queues that follow it, and to every listener."""
        self.changed(job)
        for listener in self._listeners:
            try:
                listener(job)
            except Exception:
                _LOG.exception("a listener failed for job %s", job.id)


class Deadlines:
    """Calls back when jobs reach their deadlines. One timer serves all jobs.

    Args:
        expire: gets the ids of the jobs that are due; some may have ended already.
        is_active: whether a job has not ended.
    """

    def __init__(self, expire: Callable[[list[str]], None], is_active: Callable[[str], bool]) -> None:
        self._expire = expire
        self._is_active = is_active
        self._compact_at = _FIRST_COMPACTION
        self._heap: list[tuple[float, str]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def add(self, at: float, job_id: str) -> None:
        """Watch a job's deadline ``at``, in UTC seconds since 1970."""
        heapq.heappush(self._heap, (at, job_id))
        if len(self._heap) >= self._compact_at:  # most jobs end long before their deadline
            self._heap = [entry for entry in self._heap if self._is_active(entry[1])]
            heapq.heapify(self._heap)
            self._compact_at = max(2 * len(self._heap), _FIRST_COMPACTION)
        if self._timer is None or at < self._due_at:
            self._set()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._due_at = self._heap[0][0]
            delay = max(self._due_at - utc_seconds(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        now = utc_seconds()
        due = []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[1])
        self._set()
        if due:
            self._expire(due)


@dataclass(frozen=True)
class JobServiceSettings:
    """Limits set by the operator."""

    policy: str = DEFAULT_POLICY
    """Reward policy of requests that name none."""
    train_on_request: bool = False
    """Whether a job or a run may ask for the sizes ``train`` where they are not the server's own."""
    max_jobs: int = 20_000
    """Jobs that may be queued or running; more are refused with 503."""
    max_jobs_per_run: int = 10_000
    """Jobs of one run that may be queued or running; more are refused with 429."""
    max_queued_chars: int = 1 << 30
    """Characters of candidates in memory, queued or running; more are refused with 503."""
    max_measured_age_s: float = 86_400.0
    """Oldest measured time that is answered from the cache, in seconds. Modelled times do not age."""
    worker_limit_s: float = REPLY_S + 60.0
    """Longest time a worker may hold one evaluation task, in seconds; then it counts as dead. An oracle that hangs ends
    before that, by the limit of its answer, and the worker lives."""
    keep_jobs: int = 200_000
    """Completed jobs that are kept, with their completions and idempotency keys; the oldest are deleted."""
    keep_evaluations: int = 200_000
    """Evaluations that are kept once no kept job refers to them; the oldest are deleted."""
    keep_exemplars: int = 100_000
    """Exemplars of all runs that are kept, with their evaluations; the oldest are deleted."""
    keep_bytes: int = 16 << 30
    """Size of ``server.db`` above which the oldest completed jobs and evaluations are deleted first."""
    evaluations_in_memory: int = 1_000
    jobs_in_memory: int = 10_000
    """Completed jobs whose answers are cached in memory."""
    readings_in_memory: int = 20_000
    """Parsed completions that are cached, by their hash."""


@dataclass(frozen=True)
class ServiceState:
    """State that the parts of the job service share."""

    settings: JobServiceSettings
    store: JobStore
    active: ActiveJobs
    """Jobs that have not ended, and their evaluation tasks."""
    watchers: JobWatchers
    counters: Counter[str]
    completed: CompletedJobs
    cache: EvaluationCache
    checks: RewardChecks

    def screened(self, caller: str, run: str, stored: Stored, result: RewardResult, into: Batch) -> RewardResult:
        """The result of a job, its reward withheld where the candidate is a suspect. Adds the rows to ``into``: of a
        suspect, or of an exemplar of the run."""
        state = self.active.runs.get(run)
        methods = DEFAULT_TRAINING if state is None else state.methods
        key = ExemplarKey(caller, run, stored.evaluation.task)
        result, suspect = self.checks.screened(key, methods.jump_factor, stored, result)
        if suspect is not None:
            into.suspects.append(suspect)
        elif result.outcome == "scored" and methods.exemplars:
            row = exemplar_of(key, stored.task, stored.evaluation)
            into.exemplars.extend(() if row is None else (row,))
        return result
