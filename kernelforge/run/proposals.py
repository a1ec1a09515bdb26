"""The agents of one task, and proposals sent to them in parallel; replies are draft until they are evaluated.

A model's reply takes minutes and money, an evaluation a second. So the steps that a strategy can name now are all asked
for at once, each reply is journalled when it comes, and a kill between a reply and its evaluation costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import TypeAdapter

from kernelforge.agents import BUILTIN, Coder, CoderRequest, Judge, JudgeRequest, TaskContext, Tester
from kernelforge.agents.builtin import BuiltinCoder, BuiltinJudge, BuiltinTester
from kernelforge.agents.diagnosis.floor import reason_to_go_on
from kernelforge.agents.llm_agents import LLMCoder, LLMJudge
from kernelforge.agents.reflexion import BuiltinReflexion, LLMReflexion, Reflexion
from kernelforge.agents.tester import LLMTester
from kernelforge.errors import KernelForgeError
from kernelforge.llm.base import Meter
from kernelforge.llm.providers import Providers
from kernelforge.records import Attempt, Finding, Message, Record, RunConfig
from kernelforge.run.budget import TaskBudget
from kernelforge.search import Proposal
from kernelforge.search.base import best_attempt
from kernelforge.store import Draft, Store

_PROPOSAL = TypeAdapter(Proposal)


class AgentReply(Record):
    """An agent reply for one proposal: text to evaluate, or the Judge's decision to stop."""

    whole: bool = True
    """False while the Judge alone has answered: draft, so that a kill while the Coder is asked does not lose it."""
    text: str | None
    """The Coder's reply; None when the Judge ended the task instead."""
    finding: Finding | None
    coder: str
    """Specification of the Coder that was asked, or would have been."""
    messages: tuple[Message, ...]
    started: str
    """UTC, ISO 8601."""
    seconds: float
    """Wall time of the agents."""


class ProposalExecutor:
    """Makes the drafts of one task. Agents are called from threads of its own; everything else from one thread.

    Args:
        attempts: the task's attempts, by number; grows as the loop goes on.
        ends_on_stop: whether a Judge's ``stop`` near the floor ends the task; else, and where it comes earlier, the
            Coder is asked without a finding. Where both agents are built in it ends the task wherever it comes: then
            the Coder has no move left that the Judge knows.
        report: receives each stage: the step, and ``judge`` or ``coder``.
        warn: receives what a user should know, in words.
    """

    def __init__(
        self,
        run: str,
        brief: TaskContext,
        coders: Sequence[Coder],
        judge: Judge,
        budget: TaskBudget,
        store: Store,
        attempts: list[Attempt],
        *,
        ends_on_stop: bool,
        concurrency: int,
        report: Callable[[int, str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._run = run
        self._brief = brief
        self._coders = coders
        self._judge = judge
        self._budget = budget
        self._store = store
        self._attempts = attempts
        self._ends_on_stop = ends_on_stop
        self._rules_alone = judge.name == BUILTIN and all(coder.name == BUILTIN for coder in coders)
        self._report = report
        self._warn = warn
        self._pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="draft")
        self._open: dict[int, tuple[Proposal, Future[AgentReply]]] = {}
        self._journalled = {draft.step: draft for draft in store.drafts(run, brief.task.name)}

    def submit(self, step: int, proposal: Proposal, visible: int) -> None:
        """Begin a draft, unless it was previous or is journalled. Claims its evaluation.

        Args:
            known: how many of the task's attempts the agents are shown.

        Raises:
            BudgetExhausted: no evaluation is left for it.
        """
        pending = self._open.get(step)
        if pending is not None and pending[0] == proposal:
            return
        draft = self._journalled.get(step)
        fits = draft is not None and _PROPOSAL.validate_json(draft.proposal) == proposal
        previous = AgentReply.model_validate_json(draft.content) if draft is not None and fits else None
        if previous is None or not previous.whole:
            self._budget.check()
        self._budget.take_evaluation()
        self._journalled.pop(step, None)
        if previous is not None and previous.whole:
            done: Future[AgentReply] = Future()
            done.set_result(previous)
            self._open[step] = (proposal, done)
            return
        # A snapshot, so that what an agent sees does not depend on which of its siblings came first.
        history = tuple(self._attempts[:visible])
        best = best_attempt(history)
        self._open[step] = (proposal, self._pool.submit(self._write, step, proposal, history, best, previous))

    def result(self, step: int) -> tuple[Proposal, AgentReply]:
        """Wait for a draft that was ordered; gives back its proposal too.

        Raises:
            BudgetExhausted, ProviderError, UsageError: what ended the agents' work on it.
        """
        proposal, future = self._open.pop(step)
        try:
            return proposal, future.result()
        except BaseException:
            self._budget.give_back_evaluation()
            raise

    def peek(self, step: int) -> AgentReply | None:
        """Wait for a draft that was ordered, and stays ordered; None where :meth:`result` would raise an error."""
        _, future = self._open[step]
        return None if future.exception() is not None else future.result()

    def close(self) -> None:
        """Wait for calls in flight. Drafts that came to no attempt stay in the journal."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for _ in self._open:
            self._budget.give_back_evaluation()
        self._open.clear()

    def _write(
        self,
        step: int,
        proposal: Proposal,
        history: tuple[Attempt, ...],
        best: Attempt | None,
        previous: AgentReply | None,
    ) -> AgentReply:
        now, clock = datetime.now(UTC).isoformat(timespec="milliseconds"), time.perf_counter()
        started, before = (now, 0.0) if previous is None else (previous.started, previous.seconds)

        def record(text: str | None, *, complete: bool = True) -> AgentReply:
            return self._journal(
                step,
                proposal,
                AgentReply(
                    whole=complete,
                    text=text,
                    finding=finding,
                    coder=coder.name,
                    messages=messages,
                    started=started,
                    seconds=round(before + time.perf_counter() - clock, 6),
                ),
            )

        parent = None if proposal.parent is None else history[proposal.parent]
        coder = self._coders[proposal.coder % len(self._coders)]
        finding: Finding | None = None
        messages: tuple[Message, ...] = ()
        if previous is not None:
            finding, messages = previous.finding, previous.messages
        elif proposal.judge and parent is not None:
            self._budget.check()
            self._report(step, "judge")
            judged = JudgeRequest(self._brief, parent, history, best, proposal.rank, proposal.sight)
            try:
                reply = self._judge.assess(judged)
            except KernelForgeError as error:
                self._journal_messages(error.messages)
                raise
            finding, messages = reply.finding, reply.messages
            if finding is not None and finding.kind == "stop":
                if self._ends_on_stop:
                    early = "" if self._rules_alone else reason_to_go_on(self._brief, best or parent)
                    if not early:
                        return record(None)
                    self._warn(f"the Judge's stop ({finding.headline}) is not taken: {early}")
                finding = None
            if self._judge.name != BUILTIN:
                record(None, complete=False)
        self._budget.check()
        self._report(step, "coder")
        request = CoderRequest(
            self._brief,
            proposal.operator,
            parent,
            finding,
            history,
            best,
            tuple(history[number] for number in proposal.inspirations),
            proposal.technique,
            proposal.sample,
            proposal.sight,
        )
        try:
            answer = coder.propose(request)
        except KernelForgeError as error:
            self._journal_messages(error.messages)
            raise
        messages += answer.messages
        return record(answer.text)

    def _journal(self, step: int, proposal: Proposal, reply: AgentReply) -> AgentReply:
        """Journal a draft, in the place of what there was of it."""
        draft = Draft(step, _PROPOSAL.dump_json(proposal).decode(), reply.model_dump_json())
        self._store.put_draft(self._run, self._brief.task.name, draft)
        return reply

    def _journal_messages(self, messages: Sequence[Message]) -> None:
        """Journal what was paid for and came to no draft."""
        self._store.add_task_messages(self._run, self._brief.task.name, messages)


def messages_of(draft: Draft) -> tuple[Message, ...]:
    """Messages of a draft."""
    return AgentReply.model_validate_json(draft.content).messages


@dataclass(frozen=True)
class TaskAgents:
    """The agents of one task; their calls are charged to that task."""

    coders: tuple[Coder, ...]
    judge: Judge
    tester: Tester | None
    reflexion: Reflexion | None

    @classmethod
    def of(cls, config: RunConfig, providers: Providers, meter: Meter) -> TaskAgents:
        """
        Raises:
            UsageError: an agent lacks what it needs, such as a key.
        """
        return cls(
            coders=tuple(make_coder(spec, providers, meter) for spec in config.coders),
            judge=make_judge(config.judge, providers, meter),
            tester=None if config.tester is None else make_tester(config.tester, providers, meter),
            reflexion=make_reflexion(config.judge, providers, meter) if config.writes_lessons else None,
        )


def make_coder(spec: str, providers: Providers, meter: Meter) -> Coder:
    """A Coder by its specification, such as ``builtin`` or ``openai:MODEL``."""
    return BuiltinCoder() if spec == BUILTIN else LLMCoder(spec, providers.answerer(spec, meter))


def make_judge(spec: str, providers: Providers, meter: Meter) -> Judge:
    """A Judge by its specification."""
    return BuiltinJudge() if spec == BUILTIN else LLMJudge(spec, providers.answerer(spec, meter))


def make_tester(spec: str, providers: Providers, meter: Meter) -> Tester:
    """A Tester by its specification."""
    return BuiltinTester() if spec == BUILTIN else LLMTester(spec, providers.answerer(spec, meter))


def make_reflexion(spec: str, providers: Providers, meter: Meter) -> Reflexion:
    """The writer of lessons by its specification."""
    return BuiltinReflexion() if spec == BUILTIN else LLMReflexion(spec, providers.answerer(spec, meter))
