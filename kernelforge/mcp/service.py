"""The tools' implementation, independent of the protocol. Not thread-safe: an evaluator serves one thread."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TypeVar

from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompting.render import launch_plan_page, page_sections
from kernelforge.agents.prompts import coder_prompt
from kernelforge.devices.remote.address import split_host
from kernelforge.errors import (
    BudgetExhausted,
    DeviceError,
    EvaluationCancelled,
    KernelForgeError,
    SandboxError,
    TaskError,
    UnsupportedError,
    UsageError,
)
from kernelforge.evaluation.evaluator import CandidateEvaluator, EvaluationResult
from kernelforge.evaluation.pool import RunPool
from kernelforge.evaluation.stages.compile_stage import Part, redact_hidden_failures
from kernelforge.evaluation.stages.tuning import winner
from kernelforge.evaluation.visible_sizes import Reproduction, VisibleBuild
from kernelforge.mcp.answers import build_answer, changed, evaluation_answer, profile_answer
from kernelforge.mcp.candidates import MAX_NOTE_CHARS, has_choices, messages_of, read_candidate
from kernelforge.mcp.pages import code_page, note_page, task_page
from kernelforge.mcp.schemas import (
    AttemptList,
    AttemptPage,
    AttemptRow,
    BatchAnswer,
    BuildAnswer,
    CodeAnswer,
    DiffAnswer,
    EvaluationAnswer,
    FindingRow,
    NoteList,
    PlanPage,
    ProfileAnswer,
    SessionAnswer,
    ShortEvaluation,
    SubmitAnswer,
    TaskList,
    TaskPage,
    TrialRow,
    TuneAnswer,
)
from kernelforge.mcp.sessions import Session, run_to_go_on_with
from kernelforge.profiling.ncu.catalogue import CUDAFORGE
from kernelforge.records import (
    Attempt,
    Budget,
    Candidate,
    Evaluation,
    Finding,
    Operator,
    RunConfig,
    Task,
    TuneTrial,
    Verdict,
)
from kernelforge.report import attempt_view
from kernelforge.rewards import DEFAULT_POLICY, reward
from kernelforge.run.budget import RunBudget, StopSignal
from kernelforge.run.runner import check_starts
from kernelforge.run.starts import fitted_start, start_from_attempt, start_from_text
from kernelforge.run.submissions import Submission, SubmissionRun, earlier_runs, external_config
from kernelforge.run.task_loop import infrastructure_failure, make_task_context
from kernelforge.store import Store
from kernelforge.tasks import Suite
from kernelforge.tasks.suites import Catalogue

MAX_BATCH = 16
MAX_SESSIONS = 32
"""Clients of different names that one server journals runs of."""

_TROUBLE = (SandboxError, TaskError, UnsupportedError, DeviceError)
"""Errors that say nothing about a candidate."""

HOW_TO_ANSWER = (
    "Where the text asks for a reply with two fenced blocks, pass the text of the cuda block as `source` and that of "
    "the python block as `plan` instead."
)


T = TypeVar("T")

PARTS: dict[Part, str] = {
    "compile": "compiling",
    "check": "checking small and hidden sizes",
    "full size": "running the full size",
}
"""Parts of an evaluation, in their order, in words for a client."""


@dataclass(eq=False)
class Watch:
    """One call's ear and off switch."""

    tell: Callable[[float, int | None, str], None] = lambda done, total, what: None
    """Called with the number of parts done, that of all if it is clear, and what is done now; from the thread that does
    the call."""
    at_work: bool = False
    cancelled: bool = False


class _Judged(NamedTuple):
    """An evaluation as its author may see it."""

    result: EvaluationResult
    reproduction: Reproduction | None


class Service:
    """The tools of one server. Close it when done.

    Args:
        pool: evaluates the candidates; the caller closes it.
        store: for submissions.
        budget: limits on evaluations and wall time of all clients together.
        jobs: candidates of a batch that are evaluated at a time.
    """

    def __init__(self, catalogue: Catalogue, pool: RunPool, store: Store, budget: Budget, jobs: int = 2) -> None:
        self._catalogue = catalogue
        self._pool = pool
        self._contexts: dict[str, TaskContext] = {}
        """By digest of the task."""
        self._store = store
        self._budget = budget
        self._jobs = jobs
        self._watch = Watch()
        """Of the call at work."""
        self._task_budget = RunBudget(budget, stop=StopSignal()).task()
        self._evaluations = 0
        self._judge = BuiltinJudge()
        self._sessions: dict[str, Session] = {}
        self._hidden_failures: dict[str, list[Evaluation]] = {}
        """Failures at hidden sizes, of all clients together, by digest of the task."""

    def work(self, call: Callable[[], T], watch: Watch) -> T:
        """Do one call, and tell ``watch`` how far it is.

        Raises:
            EvaluationCancelled: it was cancelled; an evaluation that had begun is counted.
        """
        self._watch, watch.at_work = watch, True
        try:
            self._go_on()
            return call()
        finally:
            self._watch, watch.at_work = Watch(), False

    def cancel(self, watch: Watch) -> None:
        """End a call before the next part of its work; from another thread than that of the call."""
        watch.cancelled = True
        if watch.at_work:
            self._pool.interrupt(oracles=False)

    def _go_on(self) -> None:
        """
        Raises:
            EvaluationCancelled: the call at work was cancelled.
        """
        if self._watch.cancelled:
            raise EvaluationCancelled("the call was cancelled")

    def list_tasks(
        self,
        suite: str | None = None,
        select: Sequence[str] = (),
        level: int | None = None,
        tag: str | None = None,
        offset: int = 0,
        limit: int = 50,
    ) -> TaskList:
        return task_page(self._catalogue, suite, select, level, tag, offset, limit)

    def show_task(self, client: str, reference: str) -> TaskPage:
        suite, task = self._catalogue.task(reference)
        context = self._context(task)
        prompt = coder_prompt(CoderRequest(context, Operator.SEED, None, None, ()), asks=False).text
        self._session(client).prompts[task.digest] = prompt
        return TaskPage(
            task=f"{suite.name}/{task.name}",
            digest=task.digest,
            device=split_host(self._pool.name)[1],
            prompt=prompt,
            plan_sections=tuple(page_sections(context)),
            how_to_answer=HOW_TO_ANSWER,
        )

    def plan_language(self, reference: str, section: str | None) -> PlanPage:
        context = self._context(self._catalogue.task(reference)[1])
        sections = page_sections(context)
        if section is not None and section not in sections:
            raise UsageError(f"there is no section {section[:80]!r}; sections: {', '.join(sections)}")
        text = launch_plan_page(context) if section is None else sections[section]
        return PlanPage(sections=tuple(sections), text=text)

    def notes(self, reference: str | None, bottleneck: str | None, offset: int = 0, limit: int = 10) -> NoteList:
        context = None if reference is None else self._context(self._catalogue.task(reference)[1])
        return note_page(context, bottleneck, offset, limit)

    def compile(self, reference: str, source: str, plan: str, choices: Mapping[str, int] | None) -> BuildAnswer:
        suite, task = self._catalogue.task(reference)
        candidate = read_candidate(source, plan, choices)
        build, _, refused = self._built(task, candidate)
        failure = None if refused is None else (refused.verdict, str(refused.stage), refused.reason)
        return build_answer(f"{suite.name}/{task.name}", candidate.hash, build, failure)

    def show_code(
        self,
        reference: str,
        source: str,
        plan: str,
        choices: Mapping[str, int] | None,
        *,
        kind: Literal["ptx", "sass"],
        kernel: str | None = None,
        offset: int = 0,
        limit: int = 150,
    ) -> CodeAnswer:
        _, task = self._catalogue.task(reference)
        _, artifact, refused = self._built(task, read_candidate(source, plan, choices))
        if refused is not None:
            raise UsageError(f"there is no code: {refused.verdict} at stage {refused.stage}: {refused.reason}")
        assert artifact is not None
        return code_page(artifact, kind, kernel, offset, limit)

    def evaluate(self, reference: str, source: str, plan: str, choices: Mapping[str, int] | None) -> EvaluationAnswer:
        suite, task = self._catalogue.task(reference)
        return self._evaluation_answer(suite, task, self._evaluated(task, read_candidate(source, plan, choices)))

    def evaluate_batch(
        self, reference: str, candidates: Sequence[tuple[str, str, Mapping[str, int] | None]]
    ) -> BatchAnswer:
        suite, task = self._catalogue.task(reference)
        if not 0 < len(candidates) <= MAX_BATCH:
            raise UsageError(f"{len(candidates)} candidates; a batch has 1 to {MAX_BATCH}")
        self._evaluator(task)
        read: dict[int, Candidate] = {}
        claimed: dict[int, Candidate] = {}
        failed: dict[int, KernelForgeError] = {}
        for position, texts in enumerate(candidates):
            try:
                read[position] = read_candidate(*texts)
                self._task_budget.take_evaluation()
                claimed[position] = read[position]
            except (UsageError, BudgetExhausted) as error:
                failed[position] = error
        results = self._side_by_side(task, claimed)
        rows: list[ShortEvaluation] = []
        for position in range(len(candidates)):
            result = results.get(position)
            if isinstance(result, EvaluationResult):
                judged = self._judged(task, claimed[position], result)
                rows.append(ShortEvaluation.of(self._evaluation_answer(suite, task, judged)))
                continue
            if result is not None:
                failed[position] = result
            name = read[position].hash if position in read else None
            rows.append(ShortEvaluation.of(candidate=name, outcome="not evaluated", reason=str(failed[position])))
        if len(failed) == len(candidates):
            raise failed[0]
        correct = [
            (row.time.time_us, position)
            for position, row in enumerate(rows)
            if row.time is not None and row.outcome == Verdict.OK
        ]
        fastest = min(correct)[1] if correct else None
        name = f"{suite.name}/{task.name}"
        return BatchAnswer(task=name, results=tuple(rows), fastest=fastest, evaluations_left=self._evaluations_left)

    def tune(self, reference: str, source: str, plan: str, choices: Mapping[str, int] | None) -> TuneAnswer:
        suite, task = self._catalogue.task(reference)
        candidate = read_candidate(source, plan, choices)
        if not has_choices(candidate):
            raise UsageError("the plan offers no choice: give a '# tune:' line two values or more")
        judged = self._evaluated(task, candidate)
        trials: tuple[TuneTrial, ...] = ()
        if judged.result.evaluation.verdict is Verdict.OK:
            self._watch.tell(len(PARTS) + 1, len(PARTS) + 2, "timing the tuning values")
            with self._pool.evaluators.using(task) as evaluator:
                trials = evaluator.tune(
                    candidate,
                    seed=secrets.randbits(63),
                    stopped=lambda: self._stopped() or self._task_budget.stopped(),
                    hidden=False,
                )
            self._go_on()
        return TuneAnswer(
            evaluation=ShortEvaluation.of(self._evaluation_answer(suite, task, judged)),
            trials=tuple(map(TrialRow.of, trials)),
            winner=winner(trials, candidate.choices),
            evaluations_left=self._evaluations_left,
        )

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
        judged = self._evaluated(task, candidate)
        result = judged.result
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
        return profile_answer(self._evaluation_answer(suite, task, judged), result.profile, names, finding)

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
        before = session.parent(suite, task, parent)
        judged = self._evaluated(task, candidate)
        words = session.prompts.get(task.digest if before is None else before.id)
        submission = Submission(
            task=task,
            candidate=candidate,
            result=judged.result,
            parent=before,
            finding=session.findings.get(before.id) if before is not None and follows_finding else None,
            messages=messages_of(client, words, candidate, note),
            started=started,
            seconds=time.perf_counter() - clock,
        )
        run, journalled = self._journal(client, suite, submission)
        return self._answer(session, suite, task, run, journalled, judged)

    def start(self, client: str, reference: str, text: str | None, attempt: str | None) -> SessionAnswer:
        """Journal a kernel that is there as the first attempt at a task; takes no evaluation of the budget.

        Args:
            text: what ``kernelforge run --from`` reads of a file.
            attempt: instead, ``RUN/TASK/NUMBER`` of any run in the results folder.
        """
        started, clock = datetime.now(UTC), time.perf_counter()
        suite, task = self._catalogue.task(reference)
        current = self._session(client).runs.get(suite.name)
        if current is not None and current.attempts(task.name):
            raise UsageError(f"this session has attempts at {task.name} already: submit the candidate")
        if text is not None and attempt is None:
            start = start_from_text(task.name, text)
        elif attempt is not None and text is None:
            start = start_from_attempt(task.name, attempt, self._store)
        else:
            raise UsageError("give either the text of a kernel to start from, or an attempt")
        check_starts([start], "any")
        fitted = fitted_start(start, task, self._evaluator(task).facts.at("full"))
        candidate = read_candidate(fitted.source, fitted.plan, fitted.choices)
        judged = self._evaluated(task, candidate, charged=False)
        submission = Submission(
            task=task,
            candidate=candidate,
            result=judged.result,
            parent=None,
            finding=None,
            messages=(),
            started=started,
            seconds=time.perf_counter() - clock,
            start=start.origin,
        )
        run, _ = self._journal(client, suite, submission)
        progress = self._session(client).progress((suite.name, task.name))
        return SessionAnswer(run=run.run.id, suite=suite.name, progress=tuple(progress))

    def _journal(self, client: str, suite: Suite, submission: Submission) -> tuple[SubmissionRun, Attempt]:
        session, task = self._session(client), submission.task
        run = session.runs.get(suite.name) or self._start(session, client, suite)
        run.put_task(task, self._evaluator(task).facts, self._context(task).graph)
        attempt = run.submit(submission)
        session.submitted[attempt.id] = (suite.name, attempt)
        return run, attempt

    def attempts(self, client: str, reference: str | None, offset: int = 0, limit: int = 50) -> AttemptList:
        only = None
        if reference is not None:
            suite, task = self._catalogue.task(reference)
            only = suite.name, task.name
        return self._session(client).attempts(only, offset, limit)

    def show_attempt(self, client: str, attempt_id: str) -> AttemptPage:
        session = self._session(client)
        attempt = session.attempt(attempt_id)
        row = AttemptRow.of_attempt(session.submitted[attempt.id][0], attempt)
        suite, task = self._catalogue.task(row.task)
        run = session.runs[suite.name]
        if attempt.id not in session.findings:
            finding = self._assess(task, attempt, run.attempts(task.name), run.best(task.name))
            session.findings[attempt.id] = finding
        page = AttemptPage.of(
            attempt.candidate,
            attempt=row,
            evaluation=ShortEvaluation.of(evaluation_answer(row.task, attempt.evaluation, self._evaluations_left)),
            note=attempt.note,
            finding=FindingRow.of(session.findings[attempt.id]),
        )
        session.prompts.setdefault(attempt.id, page.model_dump_json(indent=1))
        return page

    def go_on(self, client: str, suite: str | None, run: str | None) -> SessionAnswer:
        """Go on with the run of an earlier session of the client; its attempts count as this session's.

        Raises:
            UsageError: there is none, this session has submitted to the suite, or another evaluator judged it.
            StoreError: another process works on the run.
        """
        selected = self._catalogue.suite(suite or self._catalogue.default)
        session = self._session(client)
        if selected.name in session.runs:
            raise UsageError(f"this session has a run of {selected.name} already: {session.runs[selected.name].run.id}")
        config = self._config(client, selected)
        earlier = run_to_go_on_with(earlier_runs(config, self._store), run)
        versions = {a.evaluation.fingerprint.evaluator for a in self._store.attempts(earlier.id, texts=False)}
        if not versions <= {self._pool.fingerprint.evaluator}:
            raise UsageError(
                f"run {earlier.id} was judged by evaluator {', '.join(sorted(versions))}, and this is "
                f"{self._pool.fingerprint.evaluator}: results would not be comparable, so start a new session"
            )
        continued = SubmissionRun(config, self._store, earlier)
        session.go_on(selected.name, continued)
        for task in self._catalogue.tasks(selected.name):
            judged = (attempt.evaluation for attempt in continued.attempts(task.name))
            failed = [evaluation for evaluation in judged if evaluation.failed_at_hidden]
            self._hidden_failures.setdefault(task.digest, []).extend(failed)
        return SessionAnswer(run=earlier.id, suite=selected.name, progress=tuple(session.progress()))

    def diff(self, client: str, before: str, after: str) -> DiffAnswer:
        session = self._session(client)
        first, second = session.attempt(before), session.attempt(after)
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
        session: Session,
        suite: Suite,
        task: Task,
        run: SubmissionRun,
        attempt: Attempt,
        judged: _Judged,
    ) -> SubmitAnswer:
        best, following = run.best(task.name), run.next_parent(task.name)
        finding: Finding | None = None
        if following is not None:
            finding = self._assess(task, following, run.attempts(task.name), best)
            session.findings[following.id] = finding
        answer = SubmitAnswer.of(
            attempt,
            attempt=attempt.id,
            evaluation=self._evaluation_answer(suite, task, judged),
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

    def _built(self, task: Task, candidate: Candidate) -> VisibleBuild:
        built = self._evaluator(task).build(candidate, stopped=self._stopped)
        if built.failure is not None:
            self._go_on()
        return built

    def _evaluated(self, task: Task, candidate: Candidate, *, charged: bool = True) -> _Judged:
        """Evaluate within the budget; an evaluation that cannot start is not counted, nor one that is not charged."""
        self._evaluator(task)
        if charged:
            self._task_budget.take_evaluation()
        try:
            result = self._evaluate(task, candidate)
        except EvaluationCancelled:
            self._evaluations += charged
            raise
        except KernelForgeError:
            if charged:
                self._task_budget.give_back_evaluation()
            raise
        self._evaluations += charged
        return self._judged(task, candidate, result)

    def _side_by_side(
        self, task: Task, candidates: Mapping[int, Candidate]
    ) -> dict[int, EvaluationResult | KernelForgeError]:
        """Results, or why there is none, of candidates whose evaluations are claimed; several at a time.

        Raises:
            EvaluationCancelled: the call was cancelled.
        """
        idle: list[CandidateEvaluator] = []

        def evaluate_one(candidate: Candidate) -> EvaluationResult:
            self._go_on()
            try:
                evaluator = idle.pop()
            except IndexError:
                evaluator = self._pool.evaluator(task)
            with ExitStack() as stack:
                stack.callback(evaluator.close)
                try:
                    result = evaluator.evaluate(candidate, seed=secrets.randbits(63), stopped=self._stopped)
                except _TROUBLE as error:
                    return self._infrastructure_failure(evaluator, candidate, error)
                self._go_on()
                stack.pop_all()
            idle.append(evaluator)
            return result

        futures: dict[Future[EvaluationResult], int] = {}
        try:
            with ThreadPoolExecutor(self._jobs, thread_name_prefix="batch") as threads:
                futures = {threads.submit(evaluate_one, item): position for position, item in candidates.items()}
                for done, _ in enumerate(as_completed(futures), start=1):
                    self._watch.tell(done, len(futures), f"{done} of {len(futures)} evaluated")
        finally:
            for evaluator in idle:
                evaluator.close()
        results: dict[int, EvaluationResult | KernelForgeError] = {}
        for future, position in futures.items():
            try:
                results[position] = future.result()
            except EvaluationCancelled:
                self._evaluations += len(candidates)
                raise
            except KernelForgeError as error:
                self._task_budget.give_back_evaluation()
                results[position] = error
        self._evaluations += sum(isinstance(result, EvaluationResult) for result in results.values())
        return results

    def _judged(self, task: Task, candidate: Candidate, result: EvaluationResult) -> _Judged:
        """An evaluation as its author may see it."""
        earlier = self._hidden_failures.setdefault(task.digest, [])
        evaluation = redact_hidden_failures(result.evaluation, earlier)
        reproduction = None
        if evaluation.failed_at_hidden:
            earlier.append(evaluation)
            # Where its author may not know how it fails, any failure is shown.
            verdict = evaluation.verdict if evaluation is result.evaluation else None
            reproduction = self._reproduced(task, candidate, verdict)
        return _Judged(result._replace(evaluation=evaluation), reproduction)

    def _reproduced(self, task: Task, candidate: Candidate, verdict: Verdict | None) -> Reproduction | None:
        try:
            with self._pool.evaluators.using(task) as evaluator:
                return evaluator.reproduce(candidate, verdict, seed=secrets.randbits(63))
        except (SandboxError, TaskError, UnsupportedError, DeviceError):
            return None  # the verdict stands without it

    def _evaluate(self, task: Task, candidate: Candidate) -> EvaluationResult:
        """Evaluate on inputs from a new random seed. Infrastructure failures have the verdict ``INFRA``.

        Raises:
            DeviceError: the only device failed.
            EvaluationCancelled: the call was cancelled.
        """
        evaluator = self._evaluator(task)
        parts = list(PARTS)

        def on_part(part: Part) -> None:
            self._watch.tell(parts.index(part) + 1, len(parts) + 1, PARTS[part])

        try:
            with self._pool.evaluators.using(task):
                seed = secrets.randbits(63)
                result = evaluator.evaluate(candidate, seed=seed, stopped=self._stopped, on_part=on_part)
        except _TROUBLE as error:
            return self._infrastructure_failure(evaluator, candidate, error)
        self._go_on()
        return result

    def _infrastructure_failure(
        self, evaluator: CandidateEvaluator, candidate: Candidate, error: KernelForgeError
    ) -> EvaluationResult:
        """The evaluation of a candidate that could not be judged.

        Raises:
            EvaluationCancelled: since the call was cancelled.
            DeviceError: the only device failed.
        """
        self._go_on()
        if isinstance(error, DeviceError):
            self._pool.quarantine(evaluator.device, error)
        return EvaluationResult(infrastructure_failure(evaluator, candidate, str(error)), None)

    def _stopped(self) -> bool:
        return self._watch.cancelled

    def _evaluator(self, task: Task) -> CandidateEvaluator:
        """The warm evaluator of a task.

        Raises:
            TaskError: its reference does not run or cannot be traced, or wrong answers to it could earn a reward.
        """
        if task.digest not in self._pool.evaluators.digests:
            self._watch.tell(0.5, None, "starting the task's reference")
        evaluator = self._pool.evaluators.of(task)
        if task.digest not in self._contexts:
            self._contexts[task.digest] = make_task_context(evaluator)
        return evaluator

    def _context(self, task: Task) -> TaskContext:
        """Everything agents may know of a task; raises like :meth:`_evaluator`."""
        if task.digest not in self._contexts:
            self._evaluator(task)
        return self._contexts[task.digest]

    @property
    def _evaluations_left(self) -> int | None:
        limit = self._budget.evaluations
        return None if limit is None else max(limit - self._evaluations, 0)

    def _evaluation_answer(self, suite: Suite, task: Task, judged: _Judged) -> EvaluationAnswer:
        name = f"{suite.name}/{task.name}"
        return evaluation_answer(name, judged.result.evaluation, self._evaluations_left, judged.reproduction)

    def _session(self, client: str) -> Session:
        if client not in self._sessions and len(self._sessions) >= MAX_SESSIONS:
            raise UsageError(f"this server has served {MAX_SESSIONS} clients of different names; start another one")
        return self._sessions.setdefault(client, Session())

    def _start(self, session: Session, client: str, suite: Suite) -> SubmissionRun:
        session.runs[suite.name] = SubmissionRun(self._config(client, suite), self._store)
        return session.runs[suite.name]

    def _config(self, client: str, suite: Suite) -> RunConfig:
        return external_config(
            self._catalogue.reference(suite.name),
            suite.digest,
            [task.name for task in self._catalogue.tasks(suite.name)],
            device=self._pool.name,
            coder=client,
            budget=self._budget,
            allow_unconfined=self._pool.allow_unconfined,
        )
