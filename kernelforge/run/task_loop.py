"""The loop of one task: ask the strategy, get replies, evaluate, tune, record, tell the strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

from kernelforge.agents.acceptance import make_attempt
from kernelforge.agents.base import TaskContext
from kernelforge.agents.diagnosis.floor import NEAR, headroom
from kernelforge.agents.tester import agree_on_tests
from kernelforge.candidate import parse_reply
from kernelforge.errors import (
    BudgetExhausted,
    CandidateError,
    DeviceError,
    KernelForgeError,
    ProviderError,
    SandboxError,
    TaskBudgetExhausted,
    TaskError,
    UnsupportedError,
)
from kernelforge.evaluation.evaluator import (
    BegunEvaluation,
    CandidateEvaluator,
    DeviceFacts,
    EvaluationResult,
    SharedEvaluations,
    TaskOracle,
)
from kernelforge.evaluation.oracle.task_context import public_facts, shape_invariants
from kernelforge.evaluation.pool import RunPool
from kernelforge.evaluation.stages.compile_stage import redact_hidden_failures
from kernelforge.evaluation.stages.tuning import winner
from kernelforge.prediction.correction import ModelErrors
from kernelforge.profiling.floor import attainable_us
from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    InputGenerator,
    LanguageChoice,
    Lesson,
    Message,
    Operator,
    Run,
    Task,
    TaskFacts,
    TuneTrial,
    Verdict,
    content_hash,
    forecast_outcome,
)
from kernelforge.run.budget import TaskBudget
from kernelforge.run.events import Event
from kernelforge.run.proposals import AgentReply, ProposalExecutor, TaskAgents, messages_of
from kernelforge.run.ranking import RoundRanking
from kernelforge.run.starts import fitted_start
from kernelforge.search import STRATEGIES, Proposal
from kernelforge.search.base import is_step
from kernelforge.store import Store

SHOWN = 6
"""Lessons that a prompt shows at most, over all of the task's families."""
PER_FAMILY = 3
"""Of these, about one family."""


OPENINGS = 3
"""Times that an evaluator of a task is opened before the task is given up for now."""


class TaskLoop:
    """Works on one task until its strategy ends or a budget does. Lives in one thread; agents have their own."""

    def __init__(
        self,
        run: Run,
        task: Task,
        past: list[Attempt],
        pool: RunPool,
        store: Store,
        agents: TaskAgents,
        budget: TaskBudget,
        report: Callable[[Event], None],
        errors: ModelErrors | None = None,
        *,
        allowance: int | None = None,
    ) -> None:
        """Args:
        errors: of earlier forecasts on GPUs; those of this task are added.
        allowance: steps after which the task ends, where that is not up to its strategy.
        """
        self.run = run
        self.task = task
        self.attempts: list[Attempt] = []
        self.pool = pool
        self.store = store
        self.agents = agents
        self.budget = budget
        self.report = report
        self.errors = errors or ModelErrors()
        self._device: str | None = None
        self._tests: tuple[InputGenerator, ...] = ()
        self._visible: dict[int, int] = {}
        """How many attempts were known when a step could first be named."""
        config = run.config
        self._ranking = None if config.measure_top is None else RoundRanking(config.measure_top)
        self._allowance = allowance
        rounds = config.budget.rounds
        self.strategy = STRATEGIES[config.strategy].make(
            config.options,
            rounds=rounds if allowance is None or rounds is None else rounds * len(config.tasks),
            stop_after=config.stop_after,
            coders=len(config.coders),
            cascade=config.cascade,
            stop_gain=config.stop_gain,
        )
        self._replay(past)
        self._shared = SharedEvaluations(
            (attempt.candidate, EvaluationResult(attempt.evaluation, attempt.profile))
            for attempt in past
            if attempt.candidate is not None
        )

    def work(self) -> bool:
        """Work until nothing is left to do.

        Returns:
            True when the task is finished, False when the run's budget, a stop or a provider ended it early.
        """
        try:
            self.budget.check_time()
            if not self.store.drafts(self.run.id, self.task.name):
                self.budget.check()
        except TaskBudgetExhausted as spent:
            self.store.put_task(self.run.id, self.task)
            return self._finish(str(spent))
        except BudgetExhausted:
            return False
        self.report(Event("task_started", task=self.task.name))
        self.store.put_task(self.run.id, self.task)
        try:
            return self._search()
        except TaskBudgetExhausted as spent:
            return self._finish(str(spent))
        except BudgetExhausted as spent:
            self.report(Event("task_finished", task=self.task.name, message=f"stopped: {spent}", unfinished=True))
            return False
        except ProviderError as error:
            self.report(Event("warning", task=self.task.name, message=str(error), failed=True))
            message = "stopped: a model could not be asked"
            self.report(Event("task_finished", task=self.task.name, message=message, unfinished=True))
            return False
        except TaskError as error:
            # The task's own fault, and the same at every try: it ends here, and the run goes on.
            self.report(Event("warning", task=self.task.name, message=str(error)))
            return self._finish(f"cannot be worked on: {error}")

    def _replay(self, past: list[Attempt]) -> None:
        """Tell the strategy what is journalled; it must arrive where it stood."""
        for attempt in past[:-1]:
            self._replay_attempt(attempt)
        journalled = self.store.search_state(self.run.id, self.task.name) if past else None
        if journalled is not None and journalled != self.strategy.state():
            message = (
                f"strategy {self.strategy.name!r} does not arrive at its journalled state, so this version decides "
                "otherwise than the one that began the run; what follows is its own decision"
            )
            self.report(Event("warning", task=self.task.name, message=message))
        for attempt in past[-1:]:
            self._replay_attempt(attempt)

    def _replay_attempt(self, attempt: Attempt) -> None:
        if is_step(attempt):
            self._next_proposals()
        self._remember(attempt)

    def _next_proposals(self) -> list[Proposal]:
        """The proposals that can be named now, from the next step on.

        What agents are shown for a step is what was known when it could first be named, so that it is the same whether
        the draft is made then or, after a kill, again.
        """
        config, step = self.run.config, len(self.strategy.steps)
        proposals: list[Proposal] = []
        most = config.llm.concurrency if self._ranking is None else self.strategy.rounds - step
        if self._allowance is not None:
            most = min(most, max(self._allowance - step, 0))
        for ahead in range(most):
            rng = Random(content_hash(config.seed, self.task.name, step + ahead))
            proposal = self.strategy.ask(rng, ahead)
            if proposal is None:
                break
            self._visible.setdefault(step + ahead, len(self.attempts))
            proposals.append(proposal)
        if self._ranking is not None:
            self._ranking.reach(step, len(proposals))
        return proposals

    def _search(self) -> bool:
        self._stage("describe")
        self._evaluator = self._open_evaluator()
        self._device = self._evaluator.device.name
        try:
            context = self._make_context()
            self.budget.begin()
            self._agree_on_tests(context)
            self._evaluate_start()
            config = self.run.config
            executor = ProposalExecutor(
                self.run.id,
                context,
                self.agents.coders,
                self.agents.judge,
                self.budget,
                self.store,
                self.attempts,
                ends_on_stop=self.strategy.ends_on_stop,
                concurrency=config.llm.concurrency,
                report=lambda step, stage: self._stage(stage),
                warn=lambda message: self.report(Event("warning", task=self.task.name, message=message)),
            )
            try:
                reason = self._rounds(executor, attainable_us(context.spec, context.facts.at("full")))
            finally:
                executor.close()
            return self._finish(reason, self._reflect(context))
        finally:
            self._evaluator.close()
            self.pool.done(self.task)

    def _rounds(self, executor: ProposalExecutor, floor_us: float) -> str:
        """Work until the strategy, the Judge or the allowance ends the search; gives back why."""
        while True:
            self.budget.check_time()
            self._tune_last()
            step = len(self.strategy.steps)
            if self._allowance is not None and (headroom(self._best, floor_us) or math.inf) <= NEAR:
                return f"the best kernel takes at most {NEAR:g}x the floor under the task's time"
            if self._allowance is not None and step >= self._allowance:
                return f"its {step} rounds are spent"
            submitted = self._submit(executor, step)
            if not submitted:
                return self.strategy.stopped or "the strategy has nothing more to try"
            if self._ranking is not None:
                self._rank(self._ranking, executor, range(step, step + submitted))
            proposal, reply = executor.result(step)
            if reply.text is None:
                assert reply.finding is not None
                return f"judge: {reply.finding.headline}"
            self._attempt(step, proposal, reply, reply.text)

    def _submit(self, executor: ProposalExecutor, step: int) -> int:
        """Have every draft begun that can be named now; gives back how many there are."""
        proposals = self._next_proposals()
        for ahead, proposal in enumerate(proposals):
            try:
                executor.submit(step + ahead, proposal, self._visible[step + ahead])
            except BudgetExhausted:
                if ahead == 0:
                    raise
                return ahead
        return len(proposals)

    def _rank(self, ranking: RoundRanking, executor: ProposalExecutor, submitted: range) -> None:
        """Run every new candidate of the round on the emulated device, and give each its rank."""
        waiting = [step for step in submitted if ranking.lacks(step)]
        for step in waiting:
            reply = executor.peek(step)
            self.budget.check_time()
            self._stage("evaluate")
            ranking.begin(step, None if reply is None or reply.text is None else self._begin(step, reply.text))
        if waiting:
            done = {step: self.strategy.steps[step] for step in ranking.steps if step < submitted.start}
            ranking.rank({step: self.attempts[number].evaluation for step, number in done.items()})

    def _begin(self, step: int, text: str) -> BegunEvaluation | None:
        """The part of a reply's evaluation that takes no GPU; None where the usual evaluation has to tell why not."""
        seed = int(content_hash(self.run.config.seed, self.task.name, "step", step), 16)
        try:
            return self._evaluator.begin(parse_reply(text, self.run.config.language), seed=seed)
        except (CandidateError, DeviceError, SandboxError, TaskError, UnsupportedError):
            return None

    @property
    def _best(self) -> Attempt | None:
        return None if self.strategy.best is None else self.attempts[self.strategy.best]

    def _remember(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.strategy.tell(attempt)

    def _stage(self, stage: str) -> None:
        self.report(Event("stage", task=self.task.name, round=len(self.attempts), stage=stage, device=self._device))

    def _make_context(self) -> TaskContext:
        with self._evaluator.gpu_lock():
            self._evaluator.oracle.require_admitted()
        context = make_task_context(self._evaluator, self.run.config.language)
        self.store.put_task(self.run.id, self.task, self._evaluator.facts, context.graph)
        families = context.graph.families
        memory = self.run.config.memory
        lessons = [] if memory == "off" else self.store.lessons(families, self.run.id if memory == "run" else None)
        return replace(context, lessons=select_lessons(lessons, families))

    def _agree_on_tests(self, context: TaskContext) -> None:
        """Have the Tester propose further inputs, once per task: in force from the first attempt on."""
        if self.agents.tester is None:
            return
        run, task = self.run.id, self.task.name
        self._tests = self.store.generators(run, task)
        if not self.store.was_tested(run, task):
            self.budget.check()
            self._stage("tester")
            try:
                self._tests, messages = agree_on_tests(context, self.agents.tester, self._evaluator.oracle)
            except KernelForgeError as error:
                self.store.add_task_messages(run, task, error.messages)
                raise
            self.budget.check_abort()
            self.store.put_generators(run, task, self._tests, messages)
        self._evaluator.use_generators(self._tests)

    def _attempt(self, step: int, proposal: Proposal, reply: AgentReply, text: str) -> None:
        """Evaluate a draft, search its ``# tune:`` space, and journal both."""
        started = time.perf_counter()
        parent = None if proposal.parent is None else self.attempts[proposal.parent]
        self._stage("evaluate")
        begun = None if self._ranking is None else self._ranking.take(step)
        candidate, result = self._evaluate_reply(text, begun)
        trials: tuple[TuneTrial, ...] = ()
        right = result.evaluation.verdict is Verdict.OK and not result.evaluation.passed_over
        if candidate is not None and right and self.run.config.tune:
            trials = self._tune(candidate)
        attempt = self._make_attempt(
            candidate,
            result,
            proposal.operator,
            parent,
            started=reply.started,
            seconds=reply.seconds + (0.0 if begun is None else begun.seconds) + time.perf_counter() - started,
            inspirations=tuple(self.attempts[number].id for number in proposal.inspirations),
            coder=reply.coder,
            technique=proposal.technique or "",
            finding=reply.finding,
            messages=reply.messages,
            trials=trials,
        )
        self._journal(attempt, step=step)

    def _evaluate_start(self) -> None:
        """Evaluate the kernel that the task is started from, as attempt 0: no round, no evaluation of the budget."""
        start = self.run.config.start_of(self.task.name)
        if start is None or self.attempts:
            return
        started, clock = datetime.now(UTC), time.perf_counter()
        self._stage("evaluate")
        candidate = fitted_start(start, self.task, self._evaluator.facts.at("full"))
        result = self._evaluate_candidate(candidate)
        right = result.evaluation.verdict is Verdict.OK
        trials = self._tune(candidate) if right and self.run.config.tune else ()
        attempt = self._make_attempt(
            candidate,
            result,
            Operator.START,
            None,
            started=started,
            seconds=time.perf_counter() - clock,
            start=start.origin,
            trials=trials,
        )
        self._journal(attempt, step=None)

    def _make_attempt(
        self,
        candidate: Candidate | None,
        result: EvaluationResult,
        operator: Operator,
        parent: Attempt | None,
        *,
        started: datetime | str,
        seconds: float,
        **details: Any,
    ) -> Attempt:
        return make_attempt(
            self.attempts,
            candidate,
            result.evaluation,
            run=self.run.id,
            task=self.task.name,
            operator=operator,
            parent=parent,
            reward=self.run.config.reward,
            started=started,
            seconds=seconds,
            profile=result.profile,
            **details,
        )

    def _journal(self, attempt: Attempt, step: int | None) -> None:
        self.budget.check_abort()
        self.store.add_attempt(attempt, step=step, search=self.strategy.state())
        self._remember(attempt)
        outcome = forecast_outcome(attempt.evaluation, self.task.name)
        if outcome is not None:
            self.errors.add(outcome)
        self.report(Event("attempt", task=self.task.name, round=attempt.number, attempt=attempt))

    def _tune(self, candidate: Candidate) -> tuple[TuneTrial, ...]:
        self._stage("tune")
        try:
            return self._evaluator.tune(candidate, seed=self._seed(), stopped=self.budget.stopped)
        except DeviceError as error:
            # The candidate itself was evaluated, and that stands.
            self.pool.quarantine(self._evaluator.device, error)
            self._switch_device()
            return ()

    def _tune_last(self) -> None:
        """Evaluate the winner of the last attempt's tuning in full, as a child of its own."""
        parent = self.attempts[-1] if self.attempts else None
        if parent is None or parent.candidate is None or not parent.trials:
            return
        choices = winner(parent.trials, parent.candidate.choices)
        if choices is None:
            return
        self.budget.take_evaluation()
        started, clock = datetime.now(UTC), time.perf_counter()
        self._stage("evaluate")
        candidate = parent.candidate.model_copy(update={"choices": choices})
        result = self._evaluate_candidate(candidate)
        seconds = time.perf_counter() - clock
        attempt = self._make_attempt(candidate, result, Operator.TUNE, parent, started=started, seconds=seconds)
        self._journal(attempt, step=None)

    def _evaluate_reply(
        self, text: str, begun: BegunEvaluation | None = None
    ) -> tuple[Candidate | None, EvaluationResult]:
        """The candidate in a reply, where there is one, and what it came to."""
        try:
            candidate = parse_reply(text, self.run.config.language)
        except CandidateError as error:
            return None, EvaluationResult(self._evaluator.rejected(error, text), None)
        same = begun is not None and begun.candidate == candidate
        return candidate, self._evaluate_candidate(candidate, begun if same else None)

    def _evaluate_candidate(self, candidate: Candidate, begun: BegunEvaluation | None = None) -> EvaluationResult:
        """Evaluate a candidate; the result reveals no more about hidden sizes than a run may.

        Args:
            candidate: the candidate.
            begun: the part of its evaluation that takes no GPU, if that is done.

        Raises:
            DeviceError: no device is left.
        """
        if begun is not None and begun.passed_over:
            result = self._evaluator.pass_over(begun)
        else:
            result = self._evaluate_with_retry(candidate, begun)
        before = (attempt.evaluation for attempt in self.attempts)
        return result._replace(evaluation=redact_hidden_failures(result.evaluation, before))

    def _evaluate_with_retry(self, candidate: Candidate, begun: BegunEvaluation | None = None) -> EvaluationResult:
        """Evaluate a candidate; an infrastructure failure becomes verdict ``INFRA``.

        A device that fails is not the candidate's doing, so it is evaluated once more on another. It is not where a
        second one fails under it: it must not take them all. So with a child that died, hung or sent nonsense: once may
        be the system's doing.

        Raises:
            DeviceError: no device is left.
        """
        evaluator = self._evaluator
        failure: Exception | None = None
        for _ in range(2):
            if self.pool.is_quarantined(evaluator.device):
                self._switch_device()  # it failed under another task's candidate
                begun = None  # built for that device
            evaluator = self._evaluator
            try:
                if begun is not None:
                    first, begun = begun, None
                    return evaluator.conclude(first)
                return evaluator.evaluate(candidate, seed=self._seed())
            except DeviceError as error:
                failure = error
                self.pool.quarantine(evaluator.device, error)
            except SandboxError as error:
                failure = error
                if self.budget.aborted:  # that is what ended it
                    break
            except (TaskError, UnsupportedError) as error:
                failure = error
                break
        self._switch_device()
        return EvaluationResult(infrastructure_failure(evaluator, candidate, str(failure)), None)

    def _open_evaluator(self) -> CandidateEvaluator:
        """An evaluator of the task, which runs equal candidates once. Where its helper process fails another is tried,
        since a busy machine may do so.

        Raises:
            SandboxError: several failed.
            TaskError: the task cannot be judged.
            DeviceError: no device is left.
        """
        for opening in range(1, OPENINGS + 1):
            try:
                evaluator = self.pool.evaluator(self.task, self._tests, self.errors)
                break
            except SandboxError:
                if self.budget.aborted or opening == OPENINGS:
                    raise
        evaluator.shared = self._shared
        return evaluator

    def _switch_device(self) -> None:
        """Go on with a new oracle, on a device that can be used."""
        self._evaluator.close()
        self._evaluator = self._open_evaluator()
        self._device = self._evaluator.device.name

    def _seed(self) -> int:
        """The secret from which the next attempt's inputs are drawn."""
        return int(content_hash(self.run.config.seed, self.task.name, len(self.attempts)), 16)

    def _reflect(self, context: TaskContext) -> tuple[tuple[Lesson, ...], tuple[Message, ...]]:
        """Lessons of this task for later ones. A task without any is finished all the same."""
        if self.agents.reflexion is None or self._best is None:
            return (), ()
        self._stage("reflect")
        try:
            reflection = self.agents.reflexion.reflect(context, tuple(self.attempts))
        except (BudgetExhausted, ProviderError) as error:
            self.report(Event("warning", task=self.task.name, message=f"no lessons were written: {error}"))
            return (), error.messages
        return reflection.lessons, reflection.messages

    def _finish(self, reason: str, reflection: tuple[tuple[Lesson, ...], tuple[Message, ...]] = ((), ())) -> bool:
        lessons, messages = reflection
        if self.budget.aborted:
            self.store.add_task_messages(self.run.id, self.task.name, messages)
            return False
        # Drafts without an evaluation were paid for as well; the Judge's decision to stop is one of them.
        drafts = self.store.drafts(self.run.id, self.task.name)
        draft_messages = tuple(message for draft in drafts for message in messages_of(draft))
        self.store.finish_task(self.run.id, self.task.name, reason, draft_messages + messages, lessons)
        self.report(Event("task_finished", task=self.task.name, message=reason))
        return True


def make_task_context(evaluator: CandidateEvaluator, language: LanguageChoice = "cuda") -> TaskContext:
    """Context of a task for agents, without lessons."""
    return make_oracle_context(evaluator.task, evaluator.facts, evaluator.oracle, evaluator.device, language)


def make_oracle_context(
    task: Task, facts: TaskFacts, oracle: TaskOracle, device: DeviceFacts, language: LanguageChoice = "cuda"
) -> TaskContext:
    """Context of a task for agents where nothing is evaluated, so that the device need not be started.

    Args:
        facts: of all sizes; agents see those of the public ones.
    """
    return TaskContext(
        task=task,
        facts=public_facts(facts),
        shared=shape_invariants(task, facts),
        graph=oracle.trace("full"),
        small_graph=oracle.trace("small"),
        device=device.describe(),
        spec=device.spec,
        language=language,
    )


def select_lessons(lessons: Sequence[Lesson], families: Sequence[str]) -> tuple[str, ...]:
    """The lessons that a task is shown: per family those of the largest gain, each text once.

    Args:
        lessons: newest first.
        families: of the task, the most telling first.
    """
    selected: list[str] = []
    for family in families:
        about = sorted((item for item in lessons if item.family == family), key=lambda item: -(item.gain or 0.0))
        for lesson in about[:PER_FAMILY]:
            line = f"{lesson.family}: {lesson.text}"
            if line not in selected:
                selected.append(line)
    return tuple(selected[:SHOWN])


def infrastructure_failure(evaluator: CandidateEvaluator, candidate: Candidate, reason: str) -> Evaluation:
    """The evaluation of a candidate that could not be judged, for a reason other than the candidate."""
    return Evaluation(
        candidate=candidate.hash,
        task=evaluator.task.digest,
        fingerprint=evaluator.fingerprint,
        verdict=Verdict.INFRA,
        stage="compile",
        reason=reason,
    )
