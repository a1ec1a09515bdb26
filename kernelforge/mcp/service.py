"""The tools' implementation, independent of the protocol. Not thread-safe: an evaluator serves one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from pydantic import ValidationError

from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompting.text import inline
from kernelforge.agents.prompts import coder_prompt, launch_plan_page
from kernelforge.candidate import format_reply
from kernelforge.errors import DeviceError, KernelForgeError, SandboxError, TaskError, UnsupportedError, UsageError
from kernelforge.evaluation.evaluator import EvaluationResult, Evaluator
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed, redact_hidden_failures
from kernelforge.mcp.schemas import (
    BuildAnswer,
    DiffAnswer,
    EvaluationAnswer,
    FindingRow,
    ProfileAnswer,
    SubmitAnswer,
    TaskList,
    TaskPage,
    TaskRow,
    build_answer,
    changed,
    evaluation_answer,
    profile_answer,
)
from kernelforge.profiling.ncu.catalogue import CUDAFORGE
from kernelforge.records import Attempt, Budget, Candidate, Evaluation, Finding, Message, Operator, Task
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES
from kernelforge.report import attempt_view
from kernelforge.rewards import DEFAULT_POLICY, reward
from kernelforge.run.budget import RunBudget, StopSignal
from kernelforge.run.submissions import Submission, SubmissionRun, external_config
from kernelforge.run.task_loop import infrastructure_failure, make_task_context
from kernelforge.store import Store
from kernelforge.tasks import Suite
from kernelforge.tasks.suites import Catalogue

MAX_CHOICES = 32
MAX_NAME_CHARS = 120
MAX_NOTE_CHARS = 2_000
MAX_SESSIONS = 32
"""Clients of different names that one server journals runs of."""

HOW_TO_ANSWER = (
    "Where the text asks for a reply with two fenced blocks, pass the text of the cuda block as `source` and that of "
    "the python block as `plan` instead."
)


@dataclass
class _Session:
    """Prompts, findings and submissions of one client."""

    runs: dict[str, SubmissionRun] = field(default_factory=dict)
    """By suite."""
    attempts: dict[str, tuple[str, Attempt]] = field(default_factory=dict)
    """Every attempt with its suite, by id."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """The Judge's findings, by id of the attempt."""
    prompts: dict[str, str] = field(default_factory=dict)
    """Text that preceded a submission: by id of the parent, or by digest of the task before the first."""


class Service:
    """The tools of one server. Close it when done.

    Args:
        pool: evaluates the candidates; the caller closes it.
        store: for submissions.
        budget: limits on evaluations and wall time of all clients together.
    """

    def __init__(self, catalogue: Catalogue, pool: EvaluatorPool, store: Store, budget: Budget) -> None:
        self._catalogue = catalogue
        self._pool = pool
        self._contexts: dict[str, TaskContext] = {}
        """By digest of the task."""
        self._store = store
        self._budget = budget
        self._task_budget = RunBudget(budget, stop=StopSignal()).task()
        self._evaluations = 0
        self._judge = BuiltinJudge()
        self._sessions: dict[str, _Session] = {}
        self._hidden_failures: dict[str, list[Evaluation]] = {}
        """Failures at hidden sizes, of all clients together, by digest of the task."""

    def list_tasks(self, suite: str | None) -> TaskList:
        selected = self._catalogue.suite(suite or self._catalogue.default)
        rows = tuple(
            TaskRow.of(task, task=f"{selected.name}/{task.name}") for task in self._catalogue.tasks(selected.name)
        )
        return TaskList(suite=selected.name, title=selected.title, suites=self._catalogue.names, tasks=rows)

    def show_task(self, client: str, reference: str) -> TaskPage:
        suite, task = self._catalogue.task(reference)
        context = self._context(task)
        prompt = coder_prompt(CoderRequest(context, Operator.SEED, None, None, ()), asks=False).text
        self._session(client).prompts[task.digest] = prompt
        return TaskPage(
            task=f"{suite.name}/{task.name}",
            digest=task.digest,
            device=self._pool.name,
            prompt=prompt,
            plan_language=launch_plan_page(context),
            how_to_answer=HOW_TO_ANSWER,
        )

    def compile(self, reference: str, source: str, plan: str, choices: Mapping[str, int] | None) -> BuildAnswer:
        suite, task = self._catalogue.task(reference)
        candidate = read_candidate(source, plan, choices)
        state, refused = BuildState(), None
        try:
            self._evaluator(task).prepare(candidate, state)
        except StageFailed as failure:
            refused = failure.verdict, failure.stage, failure.reason
        return build_answer(f"{suite.name}/{task.name}", candidate.hash, state.build, refused)

    def evaluate(self, reference: str, source: str, plan: str, choices: Mapping[str, int] | None) -> EvaluationAnswer:
        suite, task = self._catalogue.task(reference)
        result = self._evaluated(task, read_candidate(source, plan, choices))
        return self._evaluation_answer(suite, task, result)

    def profile(
        self,
        reference: str,
        source: str,
        plan: str,
        choices: Mapping[str, int] | None,
        metrics: Literal["subset", "full"],
    ) -> ProfileAnswer:
        suite, task = self._catalogue.task(reference)
        candidate = read_candidate(source, plan, choices)
        result = self._evaluated(task, candidate)
        unjournalled = Attempt(
            id=f"none/{task.name}/00",
            run="none",
            task=task.name,
            number=0,
            operator=Operator.SEED,
            candidate=candidate,
            evaluation=result.evaluation,
            profile=result.profile,
            reward=reward(DEFAULT_POLICY, result.evaluation),
            accepted=False,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            seconds=0.0,
        )
        finding = self._assess(task, unjournalled, (unjournalled,), None)
        names = CUDAFORGE if metrics == "subset" else None
        return profile_answer(self._evaluation_answer(suite, task, result), result.profile, names, finding)

    def submit(
        self,
        client: str,
        reference: str,
        source: str,
        plan: str,
        choices: Mapping[str, int] | None,
        *,
        note: str = "",
        parent: str | None = None,
        follows_finding: bool = True,
    ) -> SubmitAnswer:
        started, clock = datetime.now(UTC), time.perf_counter()
        suite, task = self._catalogue.task(reference)
        candidate = read_candidate(source, plan, choices)
        if len(note) > MAX_NOTE_CHARS:
            raise UsageError(f"the note has {len(note):,} characters; the limit is {MAX_NOTE_CHARS:,}")
        session = self._session(client)
        current = session.runs.get(suite.name)
        before = self._parent(session, suite, task, parent)
        result = self._evaluated(task, candidate)
        run = current or self._start(session, client, suite)
        run.put_task(task, self._evaluator(task).facts, self._context(task).graph)
        words = session.prompts.get(task.digest if before is None else before.id)
        attempt = run.submit(
            Submission(
                task=task,
                candidate=candidate,
                result=result,
                parent=before,
                finding=session.findings.get(before.id) if before is not None and follows_finding else None,
                messages=_messages(run.run.config.coder, words, candidate, note),
                started=started,
                seconds=time.perf_counter() - clock,
            )
        )
        session.attempts[attempt.id] = (suite.name, attempt)
        return self._answer(session, suite, task, run, attempt, result)

    def diff(self, client: str, before: str, after: str) -> DiffAnswer:
        session = self._session(client)
        first, second = self._attempt(session, before), self._attempt(session, after)
        view = attempt_view(second, first)
        return DiffAnswer(
            before=first.id,
            after=second.id,
            verdict_before=first.evaluation.verdict,
            verdict_after=second.evaluation.verdict,
            outcome_before=first.evaluation.outcome,
            outcome_after=second.evaluation.outcome,
            source_diff=view.source_diff,
            plan_diff=view.plan_diff,
            metrics=changed(view.metrics),
        )

    def close(self) -> None:
        """End every run."""
        for session in self._sessions.values():
            for run in session.runs.values():
                run.close()
        self._sessions.clear()

    def _answer(
        self,
        session: _Session,
        suite: Suite,
        task: Task,
        run: SubmissionRun,
        attempt: Attempt,
        result: EvaluationResult,
    ) -> SubmitAnswer:
        best, following = run.best(task.name), run.next_parent(task.name)
        finding: Finding | None = None
        if following is not None:
            finding = self._assess(task, following, run.attempts(task.name), best)
            session.findings[following.id] = finding
        answer = SubmitAnswer.of(
            attempt,
            attempt=attempt.id,
            evaluation=self._evaluation_answer(suite, task, result),
            reward=attempt.reward.value,
            reward_policy=attempt.reward.policy,
            best=None if best is None else best.id,
            next_parent=None if following is None else following.id,
            finding=None if finding is None else FindingRow.of(finding),
        )
        if following is not None:
            session.prompts[following.id] = answer.model_dump_json(indent=1)
        return answer

    def _assess(self, task: Task, attempt: Attempt, history: tuple[Attempt, ...], best: Attempt | None) -> Finding:
        return self._judge.find(JudgeRequest(self._context(task), attempt, history, best))

    def _evaluated(self, task: Task, candidate: Candidate) -> EvaluationResult:
        """Evaluate within the budget; an evaluation that cannot start is not counted."""
        self._evaluator(task)
        self._task_budget.take_evaluation()
        try:
            result = self._evaluate(task, candidate)
        except KernelForgeError:
            self._task_budget.give_back_evaluation()
            raise
        self._evaluations += 1
        earlier = self._hidden_failures.setdefault(task.digest, [])
        evaluation = redact_hidden_failures(result.evaluation, earlier)
        if evaluation.failed_at_hidden:
            earlier.append(evaluation)
        return result._replace(evaluation=evaluation)

    def _evaluate(self, task: Task, candidate: Candidate) -> EvaluationResult:
        """Evaluate on inputs from a new random seed. Infrastructure failures have the verdict ``INFRA``.

        Raises:
            DeviceError: the only device failed.
        """
        evaluator = self._evaluator(task)
        try:
            with self._pool.evaluators.using(task):
                return evaluator.evaluate(candidate, seed=secrets.randbits(63))
        except (SandboxError, TaskError, UnsupportedError, DeviceError) as error:
            if isinstance(error, DeviceError):
                self._pool.quarantine(evaluator.device, error)
            return EvaluationResult(infrastructure_failure(evaluator, candidate, str(error)), None)

    def _evaluator(self, task: Task) -> Evaluator:
        """The warm evaluator of a task.

        Raises:
            TaskError: its reference does not run or cannot be traced, or wrong answers to it could earn a reward.
        """
        evaluator = self._pool.evaluators.of(task)
        if task.digest not in self._contexts:
            self._contexts[task.digest] = make_task_context(evaluator)
        return evaluator

    def _context(self, task: Task) -> TaskContext:
        """Everything agents may know of a task; raises like :meth:`_evaluator`."""
        if task.digest not in self._contexts:
            self._evaluator(task)
        return self._contexts[task.digest]

    def _evaluation_answer(self, suite: Suite, task: Task, result: EvaluationResult) -> EvaluationAnswer:
        limit = self._budget.evaluations
        remaining = None if limit is None else max(limit - self._evaluations, 0)
        return evaluation_answer(f"{suite.name}/{task.name}", result.evaluation, remaining)

    def _session(self, client: str) -> _Session:
        if client not in self._sessions and len(self._sessions) >= MAX_SESSIONS:
            raise UsageError(f"this server has served {MAX_SESSIONS} clients of different names; start another one")
        return self._sessions.setdefault(client, _Session())

    def _start(self, session: _Session, client: str, suite: Suite) -> SubmissionRun:
        config = external_config(
            self._catalogue.reference(suite.name),
            suite.digest,
            [task.name for task in self._catalogue.tasks(suite.name)],
            device=self._pool.name,
            coder=client,
            budget=self._budget,
            allow_unconfined=self._pool.allow_unconfined,
        )
        session.runs[suite.name] = SubmissionRun(config, self._store)
        return session.runs[suite.name]

    def _parent(self, session: _Session, suite: Suite, task: Task, attempt_id: str | None) -> Attempt | None:
        if attempt_id is None:
            run = session.runs.get(suite.name)
            return None if run is None else run.next_parent(task.name)
        parent = self._attempt(session, attempt_id)
        if session.attempts[parent.id][0] != suite.name or parent.task != task.name:
            raise UsageError(f"attempt {parent.id} is at another task than {task.name}")
        return parent

    def _attempt(self, session: _Session, attempt_id: str) -> Attempt:
        if attempt_id not in session.attempts:
            latest = ", ".join(list(session.attempts)[-4:]) or "none yet"
            raise UsageError(f"this session has submitted no attempt {attempt_id[:120]!r}; the latest: {latest}")
        return session.attempts[attempt_id][1]


def read_candidate(source: str, plan: str, choices: Mapping[str, int] | None) -> Candidate:
    """A candidate as a client sent it.

    Raises:
        UsageError: a text is empty, too long, holds NUL or half of a surrogate pair, or there are too many choices.
    """
    for name, text, limit in (("source", source, MAX_SOURCE_BYTES), ("plan", plan, MAX_PLAN_BYTES)):
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the {name} holds half of a surrogate pair") from error
        if size > limit:
            raise UsageError(f"the {name} has {size:,} bytes; the limit is {limit:,}")
        if not text.strip():
            raise UsageError(f"the {name} is empty")
        if "\0" in text:
            raise UsageError(f"the {name} holds a NUL character")
    if choices and len(choices) > MAX_CHOICES:
        raise UsageError(f"{len(choices)} choices are too many; the limit is {MAX_CHOICES}")
    for name, value in (choices or {}).items():
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS or abs(value) >= 2**63:
            raise UsageError(f"choice {name[:80]!r} is not a '# tune:' name with a 64-bit integer")
    try:
        return Candidate(source=source, plan=plan, choices=dict(choices or {}))
    except ValidationError as error:
        raise UsageError(f"this is not a candidate: {error.errors()[0]['msg']}") from error


def _messages(coder: str, prompt: str | None, candidate: Candidate, note: str) -> tuple[Message, ...]:
    """The prompt verbatim, if there was one, and the reply of a submission."""
    reply = format_reply(candidate, inline(note, MAX_NOTE_CHARS))
    messages = [Message(agent="coder", role="reply", provider=coder, content=reply)]
    if prompt is not None:
        messages.insert(0, Message(agent="coder", role="prompt", provider=coder, content=prompt))
    return tuple(messages)
