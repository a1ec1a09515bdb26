"""Results of jobs: made from an evaluation or a failure, and those that are known already.

Known are completed jobs, idempotency keys, and evaluations by content; the recent ones are cached in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter

from kernelforge.agents.tester import TesterScore
from kernelforge.client.models import (
    Fault,
    FaultCode,
    GeneratorScore,
    InputTestsAnswer,
    Job,
    RewardResult,
    TrainingStage,
)
from kernelforge.errors import StoreError, UsageError
from kernelforge.evaluation.stages.programs import Original, Program, shared
from kernelforge.records import Build, Evaluation, Fingerprint, Lane, Origin, Profile, Task, Verdict
from kernelforge.records.evaluation import without_prediction
from kernelforge.rewards import POLICIES, Context, components, reward, unscored
from kernelforge.server.base import DATABASE_NAME, LRUCache
from kernelforge.server.jobs.job_store import SERVER, JobStore
from kernelforge.store.database import Database, as_text, readable
from kernelforge.workers.base import ScoredTests

_LOG = logging.getLogger(__name__)

MAX_FEEDBACK_CHARS = 8_000
_NOT_RUN = "this device cannot run it: "


_MOST_NOTES, _NOTE_CHARS = 32, 500


class Reading(NamedTuple):
    """The way in which a candidate was read out of a completion."""

    lane: Literal["plan", "modelnew"] = "plan"
    converted: bool = False
    notes: tuple[str, ...] = ()
    """What the conversion of a ``ModelNew`` left out or assumed, or why there was none."""

    @classmethod
    def of(cls, lane: Literal["plan", "modelnew"], notes: Sequence[str]) -> Reading:
        """Of a ``ModelNew``: converted for the lane of plans, or as it is."""
        short = tuple(note[:_NOTE_CHARS] for note in notes[:_MOST_NOTES])
        return cls(lane, lane == "plan", short)

    def stored(self) -> str | None:
        """As JSON; None for device code and a plan that were sent as such."""
        return None if self == AS_SENT else json.dumps(self._asdict())


AS_SENT = Reading()
"""Device code and a plan."""
READING = TypeAdapter(Reading)

OWN_FIELDS = ("cached", "age_s", "lane", "converted", "notes", "training_stage")
"""What a result has of its job, and not of its evaluation."""


def with_own(result: RewardResult, other: RewardResult) -> RewardResult:
    """A result of an evaluation with what another result has of its job."""
    return result.model_copy(update={name: getattr(other, name) for name in OWN_FIELDS})


def marked(result: RewardResult, reading: Reading, stage: TrainingStage | None) -> RewardResult:
    """A result that says how its candidate was read, and which stage of training it is of."""
    if reading == AS_SENT and stage is None:
        return result
    own = {"lane": reading.lane, "converted": reading.converted, "notes": list(reading.notes)}
    return result.model_copy(update={**own, "training_stage": stage})


def scored(policy: str, evaluation: Evaluation, context: Context) -> RewardResult:
    """The result of an evaluation under a reward policy.

    If the policy gives no value the result is an ``infra_error``: a candidate that ran without a jail is never rewarded
    (``sandbox``), while a time that varies too much for the policy, or that was taken without its baseline's, may be
    better in another try (``device``).

    Args:
        context: source and profile of the candidate, if any; earlier evaluations of a session, none for a job.
    """
    try:
        score = reward(policy, evaluation, context)
        if score.value is not None:
            return _result(policy, evaluation, context.profile, outcome="scored", reward=score.value)
        why = unscored(evaluation, score)
    except Exception as error:  # a bug in a policy, or a policy that was removed: the job must end nevertheless
        _LOG.exception("policy %s failed on evaluation %s", policy, evaluation.key)
        fault = Fault(code="internal", message=f"policy {policy} failed: {error}")
        return _result(policy, evaluation, context.profile, outcome="infra_error", error=fault)
    jailed = evaluation.fingerprint.jail != "none"
    noisy = jailed and evaluation.verdict is Verdict.OK and evaluation.lane == "plan"
    code: FaultCode = "sandbox" if not jailed else "device" if noisy else "internal"
    fault = Fault(code=code, message=f"there is no score: {why}", retryable=noisy)
    return _result(policy, evaluation, context.profile, outcome="infra_error", error=fault)


def failed(code: FaultCode, message: str, *, policy: str, retryable: bool = False) -> RewardResult:
    """The result of a job that has no evaluation."""
    fault = Fault(code=code, message=message[:MAX_FEEDBACK_CHARS], retryable=retryable)
    if code != "unsupported" or policy not in POLICIES:  # a policy may have been removed since the job was accepted
        return RewardResult(outcome="infra_error", policy=policy, error=fault)
    return RewardResult(
        outcome="unsupported",
        policy=policy,
        error=fault,
        failure_reward=failure_reward(policy),
        feedback=_bounded(_NOT_RUN + message),
    )


def not_run(
    candidate: str,
    task: str,
    fingerprint: Fingerprint,
    reason: str,
    lane: Lane = "plan",
) -> Evaluation:
    """The evaluation of a candidate that the device cannot run, for its author: as if it had failed there.

    Args:
        candidate: its hash.
        task: digest of the task.
        lane: of the candidate.
    """
    return Evaluation(
        candidate=candidate,
        task=task,
        fingerprint=fingerprint,
        verdict=Verdict.LIMIT,
        stage="small",
        lane=lane,
        reason=_bounded(_NOT_RUN + reason),
    )


_NOWHERE = Fingerprint(
    device="cpu", device_kind="cpu", arch="", toolchain="", kernelforge="", evaluator="", torch="", python="",
    host="", jail="namespaces",
)  # fmt: skip


@cache
def failure_reward(policy: str) -> float:
    """Reward of a candidate that built and did not run, by a policy.

    Raises:
        UsageError: there is no such policy.
    """
    value = reward(policy, not_run("", "", _NOWHERE, "an instruction")).value
    assert value is not None  # every policy scores what is wrong
    return value


def without_candidate(candidate: str, task: str, fingerprint: Fingerprint, fault: str) -> Evaluation:
    """The evaluation of a completion that holds no candidate, as the cascade would make it.

    Args:
        candidate: hash of the completion.
        task: digest of the task.
    """
    return Evaluation(
        candidate=candidate,
        task=task,
        fingerprint=fingerprint,
        verdict=Verdict.POLICY,
        stage="parse",
        reason=fault,
    )


def feedback(evaluation: Evaluation) -> str:
    """Feedback for a Coder, at most :data:`MAX_FEEDBACK_CHARS` characters.

    For a failure it is the reason only, which the cascade writes without naming a hidden size.
    """
    if evaluation.verdict is not Verdict.OK:
        return _bounded(evaluation.reason)
    parts = [_correctness_text(evaluation)]
    if evaluation.fingerprint.sizes == "train":
        parts.append("checked less than otherwise, for training")
    performance = evaluation.performance
    if performance is not None:
        parts.append(
            f"{performance.time_us:.4g} us {performance.origin} at the full size, bound by {performance.bound}"
        )
        if performance.speedup is not None:
            parts.append(f"{performance.speedup:.3g} times as fast as the fastest baseline")
        if performance.quarantined is not None:
            parts.append(f"the time is not believed: {performance.quarantined}")
    if evaluation.correctness is not None:
        guarded = [check for check in evaluation.correctness.sizes if check.status == "guarded"]
        if guarded:
            parts.append(f"the plan refused {len(guarded)} of {len(evaluation.correctness.sizes)} sizes")
    return _bounded("; ".join(parts))


def _correctness_text(evaluation: Evaluation) -> str:
    """The sizes at which a candidate was correct, as text."""
    full = None if evaluation.correctness is None else evaluation.correctness.at("full")
    if full is None or not full.message:
        return "right at every size"
    if evaluation.uncompared:
        return f"right at the smaller sizes; full size not compared, so it counts as not correct: {full.message}"
    return f"right at every size; the full size: {full.message}"


def _result(policy: str, evaluation: Evaluation, profile: Profile | None, **outcome: Any) -> RewardResult:
    performance = evaluation.performance
    return RewardResult.model_validate(
        {
            "policy": policy,
            "components": components(evaluation, profile),
            "verdict": evaluation.verdict.value,
            "uncompared": evaluation.uncompared,
            "sizes": evaluation.fingerprint.sizes,
            "stage": evaluation.stage,
            "feedback": feedback(evaluation),
            "device": evaluation.fingerprint.device,
            "origin": None if performance is None else performance.origin.value,
            "candidate": evaluation.candidate,
            "evaluation": evaluation.key,
            "equals": evaluation.equals,
            **outcome,
        }
    )


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_FEEDBACK_CHARS else text[: MAX_FEEDBACK_CHARS - 1] + "…"


class IdempotencyRecord(NamedTuple):
    """The job that an idempotency key was used for."""

    job: str
    request: str
    """Hash of the request that the key came with."""


class CompletedJobs:
    """Jobs that have ended, the recent ones cached in memory."""

    def __init__(self, store: JobStore, max_in_memory: int) -> None:
        self._store = store
        self._jobs: LRUCache[str, Job] = LRUCache(max_in_memory)
        self.key_filter = KeyFilter("SELECT caller, key FROM keys", store)

    def put(self, job: Job) -> None:
        """Cache a job whose end is committed."""
        self._jobs.put(job.id, job)

    def get(self, job_id: str) -> Job | None:
        """A completed job; None if it is unknown, has not ended, or is no longer kept.

        Raises:
            StoreError: the database cannot be read.
        """
        job = self._jobs.get(job_id)
        if job is None:
            rows = self._store.read(
                f"SELECT {COMPLETED_COLUMNS} FROM jobs WHERE id = ? AND result IS NOT NULL", (job_id,)
            )
            if not rows:
                return None
            with readable(self._store.path, f"job {job_id}"):
                job = job_of(rows[0])
            self._jobs.put(job_id, job)
        return job

    def drop(self, job_id: str) -> None:
        self._jobs.drop(job_id)

    def keyed(self, caller: str, key: str) -> IdempotencyRecord | None:
        if not self.key_filter.may_have(caller, key):
            return None
        rows = self._store.read("SELECT job, request FROM keys WHERE caller = ? AND key = ?", (caller, key))
        return IdempotencyRecord(*rows[0]) if rows else None

    def task_of(self, job_id: str) -> int | None:
        """Number of the evaluation task that answered a job."""
        rows = self._store.read("SELECT work FROM jobs WHERE id = ?", (job_id,))
        return rows[0][0] if rows else None


def with_cache_age(result: RewardResult, evaluated_at: float | None, now: float) -> RewardResult:
    """Return ``result`` with its cache age, or unchanged when it was not served from the cache."""
    if evaluated_at is None:
        return result
    return result.model_copy(update={"cached": True, "age_s": round(max(now - evaluated_at, 0.0), 3)})


_FIELDS = (
    "id", "status", "task", "run_id", "policy_version", "priority", "tag", "submitted_at", "started_at", "finished_at",
    "tries",
)  # fmt: skip
COMPLETED_COLUMNS = f"{', '.join(_FIELDS).replace('run_id', 'run')}, evaluated_at, result"


def job_of(row: tuple[Any, ...]) -> Job:
    """The completed job of a row of :data:`COMPLETED_COLUMNS`."""
    *values, evaluated_at, text = row
    fields = dict(zip(_FIELDS, values, strict=True))
    result = with_cache_age(RewardResult.model_validate_json(text), evaluated_at, fields["finished_at"])
    return Job(**fields, result=result)


class KeyFilter:
    """Tells which keys may be in the database. Most requested keys are new, and a query for each would cost the event
    loop more than all else, because it releases the GIL and has to wait for it.

    Args:
        sql: query for all keys.
    """

    def __init__(self, sql: str, store: JobStore) -> None:
        self._sql = sql
        self._store = store
        self._hashes = _hashes(store.read(sql))
        self._added: set[int] | None = None
        """Keys added during a refresh."""

    def __len__(self) -> int:
        return len(self._hashes)

    def may_have(self, *key: str) -> bool:
        return hash(key) in self._hashes

    def add(self, *key: str) -> None:
        self._hashes.add(hash(key))
        if self._added is not None:
            self._added.add(hash(key))

    async def refresh(self, reader: Database) -> None:
        """Read all keys from the database, to drop those of deleted rows.

        Raises:
            StoreError: the database cannot be used; the keys stay as they are.
        """
        self._added = set()
        try:
            await self._store.written()  # keys that were added before, and are being committed
            hashes = await asyncio.to_thread(lambda: _hashes(reader.tuples(self._sql)))
            self._hashes = hashes | self._added
        finally:
            self._added = None


def _hashes(keys: Iterable[tuple[str, ...]]) -> set[int]:
    return {hash(key) for key in keys}


@dataclass(slots=True)
class Scored:
    """The result of one policy for an evaluation, and its JSON."""

    result: RewardResult
    text: str


@dataclass(frozen=True)
class Evaluated:
    """A stored evaluation."""

    evaluation: Evaluation
    profile: Profile | None
    source: str | None
    """Source of the candidate; None if the completion held none."""
    finished_at: float
    """UTC seconds since 1970."""


@dataclass(frozen=True)
class Stored(Evaluated):
    """A finished evaluation, with the results of the policies that were asked for."""

    task: int
    """Number of its evaluation task."""
    profiled: bool
    """Whether a profile was requested."""
    program: Program | None = None
    """Of an evaluation that answers for equal candidates."""
    results: dict[tuple[str, bool], Scored] = field(default_factory=dict, compare=False)

    def answers(self, *, profile: bool, max_age_s: float, now: float) -> bool:
        """Whether it may answer a request: it has a profile if one is requested, and a measured time is no older than
        ``max_age_s``."""
        if profile and not self.profiled and self.evaluation.verdict is Verdict.OK:
            return False
        performance = self.evaluation.performance
        measured = performance is not None and performance.origin is Origin.MEASURED
        return not measured or now - self.finished_at <= max_age_s

    def shared_with(
        self, candidate: str, build: Build | None, seconds: Mapping[str, float], program: Program | None
    ) -> tuple[Evaluation, Profile | None] | None:
        """The evaluation and profile of an equal candidate; None if this one cannot answer for it."""
        if self.program is None or program is None:
            return None
        return shared(Original(self.evaluation, self.profile, self.program), candidate, build, seconds, program)

    def scored_by(self, policy: str, *, profile: bool) -> Scored:
        """The result of a policy, computed once.

        Without a profile it has no predicted speedup: a reward depends on what this job asked for, not on what another
        asked for before it.
        """
        answer = self.results.get((policy, profile))
        if answer is None:
            evaluation = self.evaluation if profile else _without_profile(self.evaluation)
            result = scored(policy, evaluation, Context(self.source, profile=self.profile if profile else None))
            answer = self.results[policy, profile] = Scored(result, result.model_dump_json())
        return answer


def _without_profile(evaluation: Evaluation) -> Evaluation:
    """An evaluation without what follows from its profile, for a job that asked for none."""
    return evaluation.model_copy(update={"performance": without_prediction(evaluation.performance)})


_EVALUATION_COLUMNS = "id, key, evaluation, profile, profiled, source, finished_at, program"


class EvaluationCache:
    """Evaluations by key."""

    def __init__(self, store: JobStore, max_in_memory: int) -> None:
        self._store = store
        self._by_key: LRUCache[str, Stored] = LRUCache(max_in_memory)
        self.key_filter = KeyFilter("SELECT key FROM works WHERE state = 'done'", store)
        self._shared: LRUCache[str, str] = LRUCache(max_in_memory)
        """Keys of evaluations by those that they share with equal candidates."""
        self.shared_filter = KeyFilter("SELECT shared_key FROM works WHERE shared_key IS NOT NULL", store)
        self._deleting: set[int] = set()
        """Tasks that are being deleted; no new job may refer to them."""

    def newest(self, key: str) -> Stored | None:
        stored = self._by_key.get(key)
        if stored is None and self.key_filter.may_have(key):
            stored = self._load("key = ? AND state = 'done' ORDER BY finished_at DESC LIMIT 1", key)
        return stored

    def shared(self, shared_key: str) -> Stored | None:
        """The newest evaluation that answers for equal candidates."""
        key = self._shared.get(shared_key)
        stored = None if key is None else self._by_key.get(key)
        if (stored is None or stored.program is None) and self.shared_filter.may_have(shared_key):
            stored = self._load("shared_key = ? ORDER BY finished_at DESC LIMIT 1", shared_key)
        return stored

    def of_task(self, task: int, key: str | None) -> Stored | None:
        """The evaluation of a task; ``key`` is where it may be in memory."""
        cached = None if key is None else self._by_key.get(key)
        return cached if cached is not None and cached.task == task else self._load("id = ? AND state = 'done'", task)

    def put(self, key: str, stored: Stored, shared_key: str | None = None) -> None:
        """Cache an evaluation that is, or will be, in the database.

        Args:
            shared_key: by which it answers for equal candidates.
        """
        self._by_key.put(key, stored)
        self.key_filter.add(key)
        if shared_key is not None:
            self._shared.put(shared_key, key)
            self.shared_filter.add(shared_key)

    def forget(self, tasks: dict[int, str]) -> None:
        """Drop tasks, given with their keys, from memory."""
        for task, key in tasks.items():
            cached = self._by_key.get(key)
            if cached is not None and cached.task == task:
                self._by_key.drop(key)

    @contextlib.contextmanager
    def deleting(self, tasks: dict[int, str]) -> Iterator[None]:
        """Answer nothing from these tasks, given with their keys, while they are deleted from the database."""
        self._deleting.update(tasks)
        self.forget(tasks)
        try:
            yield
        finally:
            self._deleting.difference_update(tasks)

    def _load(self, where: str, parameter: str | int) -> Stored | None:
        rows = self._store.read(f"SELECT {_EVALUATION_COLUMNS} FROM works WHERE {where}", (parameter,))
        if not rows or rows[0][0] in self._deleting:
            return None
        task, key, evaluation, profile, profiled, source, finished_at, program = rows[0]
        try:
            with readable(self._store.path, f"evaluation {task}"):
                stored = Stored(
                    task=task,
                    evaluation=Evaluation.model_validate_json(evaluation),
                    profile=None if profile is None else Profile.model_validate_json(profile),
                    profiled=bool(profiled),
                    source=None if source is None else as_text(source),
                    finished_at=float(finished_at),
                    program=None if program is None else Program.model_validate_json(program),
                )
        except StoreError as error:
            _LOG.warning("a stored evaluation cannot be used and is repeated: %s", error)
            return None
        if where.startswith("key"):
            self._by_key.put(key, stored)
        return stored


_PAGE = 500
"""Jobs that are read at a time; a database may hold very many."""


class EvaluatedJob(NamedTuple):
    """A completed job with its evaluation, from which rewards can be recomputed."""

    id: str
    task: str
    """``suite/name``."""
    policy: str
    reward: float | None
    """As it was answered; None after an infrastructure failure."""
    source: str | None
    evaluation: Evaluation
    profile: Profile | None
    run: str
    policy_version: int | None
    group_id: str | None
    prompt: str | None
    """As the request had it."""
    completion: str | None
    """None if the request had a candidate in parts."""


def stored_tasks(folder: Path) -> dict[str, Task]:
    """Tasks that jobs were evaluated for, by digest.

    Raises:
        StoreError: there is no ``server.db``, or it cannot be read.
    """
    with contextlib.closing(Database(folder / DATABASE_NAME, SERVER, create=False, read_only=True)) as database:
        rows = database.tuples("SELECT digest, task FROM tasks")
        with readable(database.path, "tasks"):
            return {as_text(digest): Task.model_validate_json(task) for digest, task in rows}


def completed_jobs(folder: Path, run_id: str | None = None) -> Iterator[EvaluatedJob]:
    """Jobs that an evaluation answered, in the order of submission; only those of ``run_id`` if given. Suspects, whose
    reward is withheld, are left out.

    Raises:
        StoreError: ``server.db`` cannot be read.
        UsageError: there is no database, or it holds no job of that run.
    """
    if not (folder / DATABASE_NAME).is_file():
        raise UsageError(
            f"no reward server has kept jobs in {folder}: start one with 'kernelforge serve', or name another folder "
            "with --results"
        )
    with contextlib.closing(Database(folder / DATABASE_NAME, SERVER, create=False, read_only=True)) as database:
        rows = database.tuples("SELECT DISTINCT run FROM jobs ORDER BY run")
        with readable(database.path, "names of runs"):
            runs = [as_text(run) for (run,) in rows]
        if run_id is not None and run_id not in runs:
            raise UsageError(f"{database.path} has no job of run '{run_id}'; it has: {', '.join(runs) or 'none'}")
        after = -1
        while True:
            rows = database.tuples(
                "SELECT jobs.seq, jobs.id, jobs.task, jobs.policy, jobs.result, works.source, works.evaluation, "
                "jobs.profile, iif(jobs.profile, works.profile, NULL), jobs.run, jobs.policy_version, jobs.group_id, "
                "(SELECT content FROM texts WHERE sha256 = jobs.prompt), "
                "(SELECT content FROM texts WHERE sha256 = jobs.completion) "
                "FROM jobs JOIN works ON works.id = jobs.work "
                "WHERE jobs.seq > ? AND (? IS NULL OR jobs.run = ?) "
                "AND json_extract(jobs.result, '$.verdict') IS NOT NULL AND works.evaluation IS NOT NULL "
                "AND json_extract(jobs.result, '$.outcome') != 'withheld' "
                "ORDER BY jobs.seq LIMIT ?",
                (after, run_id, run_id, _PAGE),
            )
            for _, name, task, policy, result, source, text, profiled, profile, *request in rows:
                with readable(database.path, f"job {name}"):
                    evaluation = Evaluation.model_validate_json(text)
                    job = EvaluatedJob(
                        as_text(name),
                        as_text(task),
                        as_text(policy),
                        RewardResult.model_validate_json(result).reward,
                        source,
                        evaluation if profiled else _without_profile(evaluation),
                        None if profile is None else Profile.model_validate_json(profile),
                        *request,
                    )
                yield job
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]


def tests_answer(task: str, scored: ScoredTests) -> InputTestsAnswer:
    """Score of a Tester's reply, without the names of hidden sizes and of faults."""
    score = TesterScore(scored.tests, scored.mutants)
    reward = 0.0 if scored.fault else score.score
    outcome: Literal["scored", "unreadable", "no_faults"] = "no_faults" if reward is None else "scored"
    tests = [
        GeneratorScore(
            name=test.name,
            admitted=test.admitted,
            reason=test.reason,
            sizes=len(test.sizes),
            rejected=score.rejected_by(test.name),
        )
        for test in score.tests
    ]
    return InputTestsAnswer(
        task=task,
        outcome="unreadable" if scored.fault else outcome,
        reward=reward,
        fault=scored.fault or None,
        tests=tests,
        mutants=len(score.mutants),
        counted=len(score.counted),
        rejected=len(score.rejected),
    )
