"""One task of a run: ask the strategy, the Judge and the Coder; evaluate; journal; tell the strategy."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random

from kernelforge.agents.acceptance import improves
from kernelforge.agents.base import Brief, Coder, CoderRequest, Judge, JudgeRequest
from kernelforge.candidate import parse_reply
from kernelforge.errors import BudgetExhausted, CandidateError, SandboxError, TaskError, UnsupportedError
from kernelforge.evaluate.evaluator import EvaluationResult, Evaluator
from kernelforge.evaluate.oracle import shared_facts
from kernelforge.evaluate.workshop import Workshop
from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    Finding,
    Message,
    Operator,
    Run,
    Task,
    TaskFacts,
    Verdict,
    content_hash,
)
from kernelforge.rewards import reward
from kernelforge.run.events import Event
from kernelforge.run.spending import Spending
from kernelforge.search import Proposal, make_strategy
from kernelforge.store import Store


class TaskLoop:
    """Works on one task until its strategy ends or the run's budget does. Lives in one thread."""

    def __init__(
        self,
        run: Run,
        task: Task,
        past: list[Attempt],
        workshop: Workshop,
        store: Store,
        coder: Coder,
        judge: Judge,
        spending: Spending,
        report: Callable[[Event], None],
    ) -> None:
        self.run = run
        self.task = task
        self.attempts: list[Attempt] = []
        self.workshop = workshop
        self.store = store
        self.coder = coder
        self.judge = judge
        self.spending = spending
        self.report = report
        config = run.config
        self.strategy = make_strategy(
            config.strategy,
            config.options,
            rounds=config.budget.rounds,
            stop_after=config.stop_after,
            coders=len(config.coders),
        )
        for attempt in past:
            self._remember(attempt)

    def work(self) -> bool:
        """Work until nothing is left to do.

        Returns:
            True when the task is finished, False when the run's budget or a stop ended it early.
        """
        if self.spending.refusal() is not None:
            return False
        self.report(Event("task_started", task=self.task.name))
        self.store.put_task(self.run.id, self.task)
        try:
            return self._search()
        except BudgetExhausted as spent:
            self.report(Event("task_finished", task=self.task.name, message=f"stopped: {spent}"))
            return False
        except TaskError as error:
            # The task's own fault, and the same at every try: it ends here, and the run goes on.
            self.report(Event("warning", task=self.task.name, message=str(error)))
            return self._finish(f"cannot be worked on: {error}", ())

    def _search(self) -> bool:
        self._stage("describe")
        self._evaluator = self.workshop.evaluator(self.task)
        try:
            brief = self._brief()
            while True:
                proposal = self.strategy.ask(Random(content_hash(self.run.config.seed, self.task.name, self._next)))
                if proposal is None:
                    return self._finish(self.strategy.stopped or "the strategy has nothing more to try", ())
                finding, messages = self._judge(brief, proposal)
                if finding is not None and finding.kind == "stop":
                    return self._finish(f"judge: {finding.headline}", messages)
                self._attempt(brief, proposal, finding, messages)
        finally:
            self._evaluator.oracle.close()

    @property
    def _next(self) -> int:
        return len(self.attempts)

    @property
    def _best(self) -> Attempt | None:
        return None if self.strategy.best is None else self.attempts[self.strategy.best]

    def _remember(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self.strategy.tell(attempt)

    def _stage(self, stage: str) -> None:
        self.report(Event("stage", task=self.task.name, round=self._next, stage=stage))

    def _brief(self) -> Brief:
        admission = self._evaluator.oracle.admit(("small",))
        if not admission.ok:
            trouble = admission.error or "; ".join(one.text for one in admission.findings if not one.ok)
            raise TaskError(
                f"task {self.task.name!r} is not admitted, for wrong answers could earn a reward: {trouble}. "
                f"`kernelforge tasks check` shows every finding"
            )
        graph = self._evaluator.oracle.trace("full")
        facts = self._evaluator.facts
        self.store.put_task(self.run.id, self.task, facts, graph)
        visible = tuple(one for one in facts.sizes if one.size in ("full", "small"))
        return Brief(
            task=self.task,
            facts=TaskFacts(task_digest=facts.task_digest, sizes=visible),
            shared=shared_facts(self.task, facts),
            graph=graph,
            device=self.workshop.device.describe(),
        )

    def _judge(self, brief: Brief, proposal: Proposal) -> tuple[Finding | None, tuple[Message, ...]]:
        if not proposal.judge or proposal.parent is None:
            return None, ()
        refusal = self.spending.refusal()
        if refusal is not None:
            raise BudgetExhausted(refusal)
        self._stage("judge")
        reply = self.judge.assess(JudgeRequest(brief, self.attempts[proposal.parent], tuple(self.attempts)))
        return reply.finding, reply.messages

    def _attempt(
        self, brief: Brief, proposal: Proposal, finding: Finding | None, messages: tuple[Message, ...]
    ) -> None:
        """Make, evaluate and journal one attempt."""
        started, clock = datetime.now(UTC), time.perf_counter()
        parent = None if proposal.parent is None else self.attempts[proposal.parent]
        self.spending.take_evaluation()
        try:
            self._stage("coder")
            reply = self.coder.propose(CoderRequest(brief, proposal.operator, parent, finding, tuple(self.attempts)))
        except BaseException:
            self.spending.give_back_evaluation()
            raise
        self._stage("evaluate")
        candidate, result = self._evaluate(reply.text)
        attempt = Attempt(
            id=f"{self.run.id}/{self.task.name}/{self._next:02d}",
            run=self.run.id,
            task=self.task.name,
            number=self._next,
            operator=proposal.operator,
            parent=None if parent is None else parent.id,
            finding=finding,
            messages=messages + reply.messages,
            candidate=candidate,
            evaluation=result.evaluation,
            profile=result.profile,
            reward=reward(self.run.config.reward, result.evaluation),
            accepted=False,
            started=started.isoformat(timespec="milliseconds"),
            seconds=round(time.perf_counter() - clock, 6),
        )
        accepted, note = self._accept(attempt)
        attempt = attempt.model_copy(update={"accepted": accepted, "note": note})
        self.store.add_attempt(attempt)
        self._remember(attempt)
        self.report(Event("attempt", task=self.task.name, round=attempt.number, attempt=attempt))

    def _evaluate(self, text: str) -> tuple[Candidate | None, EvaluationResult]:
        """The candidate in a reply, where there is one, and what it came to. Trouble of ours is verdict ``INFRA``."""
        evaluator = self._evaluator
        try:
            candidate = parse_reply(text)
        except CandidateError as error:
            return None, EvaluationResult(evaluator.rejected(error, text), None)
        seed = int(content_hash(self.run.config.seed, self.task.name, self._next), 16)
        try:
            return candidate, evaluator.evaluate(candidate, seed=seed)
        except (SandboxError, TaskError, UnsupportedError) as error:
            evaluator.oracle.close()
            self._evaluator = self.workshop.evaluator(self.task)
            return candidate, EvaluationResult(_infra(evaluator, candidate, str(error)), None)

    def _accept(self, attempt: Attempt) -> tuple[bool, str]:
        verdict = attempt.evaluation.verdict
        if verdict is not Verdict.OK:
            return False, f"not accepted: {verdict}"
        best = self._best
        if best is None:
            return True, "first correct attempt"
        finding = self._optimisation(attempt)
        if finding is None:
            return False, "correct, but it answers no finding"
        return improves(best, attempt, finding)

    def _optimisation(self, attempt: Attempt) -> Finding | None:
        """The finding that a chain of repairs set out to answer."""
        current: Attempt | None = attempt
        by_id = {one.id: one for one in self.attempts}
        while current is not None and current.operator is Operator.REPAIR:
            current = by_id.get(current.parent or "")
        return None if current is None else current.finding

    def _finish(self, reason: str, messages: tuple[Message, ...]) -> bool:
        self.store.finish_task(self.run.id, self.task.name, reason, messages)
        self.report(Event("task_finished", task=self.task.name, message=reason))
        return True


def _infra(evaluator: Evaluator, candidate: Candidate, reason: str) -> Evaluation:
    return Evaluation(
        candidate=candidate.hash,
        task=evaluator.task.digest,
        fingerprint=evaluator.fingerprint,
        verdict=Verdict.INFRA,
        stage="compile",
        reason=reason,
    )
