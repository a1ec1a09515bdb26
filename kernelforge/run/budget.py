"""Budgets of a run and of its tasks (evaluations, wall time, tokens, dollars), their estimate, and the stop signal.

Budgets are looked at before each call of a model and before each evaluation. A call in flight is not cut off, so what
is spent may pass a limit by less than one call for each call that was in flight.

The estimate asks and stores nothing. It is an upper bound of calls (every round is used, every prompt gets one reply)
times sizes of real prompts: the first prompt of each task is rendered as the run would. What a reply and an evaluation
take is read from earlier runs in the results folder where the same model is in them, else assumed; the estimate says
which.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import takewhile
from random import Random
from statistics import mean
from typing import NamedTuple

from kernelforge.agents.base import CoderRequest, TaskContext
from kernelforge.agents.prompts import coder_prompt
from kernelforge.errors import BudgetExhausted, TaskBudgetExhausted
from kernelforge.llm.providers import Providers
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.llm.spec import is_hosted
from kernelforge.records import Attempt, Budget, Limits, Message, Operator, RunConfig, Usage
from kernelforge.run.events import Totals
from kernelforge.search import STRATEGIES


class StopSignal:
    """Asks a run to end: ``drain`` after the attempts in flight, ``abort`` at once.

    Without a lock, so that a signal's handler may ask for it while the thread that it interrupts does so too.
    """

    def __init__(self) -> None:
        self._draining = self._aborting = False

    def drain(self) -> None:
        self._draining = True

    def abort(self) -> None:
        self._draining = True
        self._aborting = True

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def aborting(self) -> bool:
        return self._aborting


class UsageAccount:
    """Use under one set of limits. Not safe between threads by itself."""

    def __init__(self, limits: Limits, owner: str) -> None:
        self.limits = limits
        self.owner = owner
        """Whose limits they are, for messages: ``the run`` or ``the task``."""
        self.started: float | None = None
        """When the work began that the wall time is for; None before."""
        self.evaluations = 0
        self.tokens = 0
        self.dollars = 0.0
        self.uncounted = 0
        """Calls whose tokens are unknown."""
        self.unpriced = 0
        """Calls whose price is unknown."""

    def begin(self) -> None:
        """Start the clock; only the first call does."""
        if self.started is None:
            self.started = time.monotonic()

    def out_of_time(self) -> bool:
        """Whether the wall time is over."""
        limit = self.limits.wall_seconds
        return limit is not None and self.started is not None and time.monotonic() - self.started >= limit

    def add(self, usage: Usage) -> None:
        if usage.tokens is None:
            self.uncounted += 1
        else:
            self.tokens += usage.tokens
        if usage.dollars is None:
            self.unpriced += 1
        else:
            self.dollars += usage.dollars

    def exhausted_reason(self) -> str | None:
        """Reason why no further call of a model may start, or None."""
        limits = self.limits
        if self.out_of_time():
            return f"{self.owner}'s budget of {limits.wall_seconds:g} s wall time is spent"
        if limits.tokens is not None:
            if self.tokens >= limits.tokens:
                return f"{self.owner}'s budget of {limits.tokens:,} tokens is spent ({self.tokens:,})"
            if self.uncounted:
                return f"{self.owner}'s token budget cannot be held: a server did not say what a call took"
        if limits.dollars is not None:
            if self.dollars >= limits.dollars:
                return f"{self.owner}'s budget of ${limits.dollars:g} is spent (${self.dollars:.4f})"
            if self.unpriced:
                return f"{self.owner}'s dollar budget cannot be held: the price of a call is unknown (see --prices)"
        return None

    def evaluations_exhausted_reason(self) -> str | None:
        limit = self.limits.evaluations
        if limit is not None and self.evaluations >= limit:
            return f"{self.owner}'s budget of {limit} evaluations is spent"
        return None


class RunBudget:
    """Use of a run over all its tasks. Shared between threads."""

    def __init__(self, budget: Budget, *, stop: StopSignal) -> None:
        self._budget = budget
        self._stop = stop
        self._account = UsageAccount(budget, "the run")
        self._account.begin()
        self._lock = threading.Lock()

    def task(self, evaluations: int = 0, messages: Iterable[Message] = ()) -> TaskBudget:
        """The budget of one task; the use that its journal holds is charged at once."""
        return TaskBudget(self, UsageAccount(self._budget.per_task, "the task"), evaluations, messages)

    def exhausted_reason(self) -> str | None:
        """Reason why no further work may start in the run, or None."""
        if self._stop.draining:
            return "asked to stop"
        with self._lock:
            return self._account.exhausted_reason()

    def totals(self) -> Totals:
        """Use of the run so far."""
        with self._lock:
            account = self._account
            return Totals(account.evaluations, account.tokens, account.dollars, account.uncounted, account.unpriced)

    def out_of_time(self) -> bool:
        """Whether waiting calls should give up: the run is to stop, or its wall time is over."""
        return self._stop.draining or self._account.out_of_time()


class TaskBudget:
    """Budget of one task within that of the run: the meter of its agents. Shared between threads."""

    def __init__(self, run: RunBudget, account: UsageAccount, evaluations: int, messages: Iterable[Message]) -> None:
        self._run = run
        self._account = account
        self._add_evaluations(evaluations)
        for message in messages:
            if message.usage is not None:
                self.spent(message.usage)

    def begin(self) -> None:
        """Start the task's clock: waiting for its turn, and for its reference, take none of its wall time."""
        self._account.begin()

    def check(self) -> None:
        """
        Raises:
            BudgetExhausted: no further call may start in the run.
            TaskBudgetExhausted: none may start for this task.
        """
        reason = self._run.exhausted_reason()
        if reason is not None:
            raise BudgetExhausted(reason)
        with self._run._lock:
            reason = self._account.exhausted_reason()
        if reason is not None:
            raise TaskBudgetExhausted(reason)

    def check_time(self) -> None:
        """See that work may go on that needs no call of a model: evaluating a reply that was paid for.

        Raises:
            BudgetExhausted: the run is to stop, or its wall time is over.
        """
        if self.stopped():
            raise BudgetExhausted(self._run.exhausted_reason() or "asked to stop")

    def stopped(self) -> bool:
        """Whether waiting calls should give up."""
        return self._run.out_of_time()

    @property
    def aborted(self) -> bool:
        """Whether the run was aborted: helper processes are killed while they work, so results from now on say
        nothing about a candidate or a task."""
        return self._run._stop.aborting

    def check_abort(self) -> None:
        """
        Raises:
            BudgetExhausted: the run was aborted.
        """
        if self.aborted:
            raise BudgetExhausted("aborted")

    def spent(self, usage: Usage) -> None:
        with self._run._lock:
            self._account.add(usage)
            self._run._account.add(usage)

    def take_evaluation(self) -> None:
        """Claim one evaluation. It needs no call of a model, so a spent token or dollar budget does not refuse it.

        Raises:
            BudgetExhausted, TaskBudgetExhausted: there is none left, or the time is over.
        """
        self.check_time()
        with self._run._lock:
            for account, error in ((self._run._account, BudgetExhausted), (self._account, TaskBudgetExhausted)):
                reason = account.evaluations_exhausted_reason()
                if reason is not None:
                    raise error(reason)
            self._run._account.evaluations += 1
            self._account.evaluations += 1

    def give_back_evaluation(self) -> None:
        """Return a claim that came to nothing."""
        with self._run._lock:
            self._add_evaluations(-1)

    def _add_evaluations(self, count: int) -> None:
        self._account.evaluations += count
        self._run._account.evaluations += count


SAMPLED_PROMPTS = 32
"""Tasks whose prompts an estimate reads; each takes 0.1 s and up, and suites have up to a thousand."""
ASSUMED_CODER_REPLY = 6000
"""Output tokens of a Coder's reply, reasoning included, when no earlier run tells."""
ASSUMED_JUDGE_REPLY = 1500
ASSUMED_CANDIDATE = 3000
"""Tokens that a parent, its profile and a finding add to a first prompt."""
ASSUMED_EVALUATION_SECONDS = 2.0
"""Of what comes before timing, and of all where time is modelled."""
ASSUMED_PROFILE_SECONDS = 15.0
"""Of a profile by Nsight Compute, which starts two processes and replays every kernel."""


class AgentEstimate(NamedTuple):
    """One agent's part. Tokens and dollars are over the whole run."""

    agent: str
    spec: str
    calls: int
    input_tokens: int
    output_tokens: int
    dollars: float | None
    """None: the price is unknown. Zero for agents that buy nothing."""
    basis: str
    """Output tokens of a reply, and whether they were ``seen`` in earlier runs or are ``assumed``."""


class Estimate(NamedTuple):
    """A whole run's estimate."""

    agents: tuple[AgentEstimate, ...]
    sampled: int
    """Tasks whose prompts were measured: all of them, or a sample."""
    evaluations: int
    round: int
    """Evaluations of a task's first round."""
    measured: int
    """Evaluations that measure, if all rounds are as large as the first; all of them without ``measure_top``."""
    evaluation_seconds: float
    """Over all tasks, one after another; tasks side by side, or on several GPUs, take less."""
    evaluation_basis: str
    binding: tuple[str, ...]
    """Limits of the budget that would end the run before its rounds are used."""

    @property
    def tokens(self) -> int:
        return sum(agent.input_tokens + agent.output_tokens for agent in self.agents)

    @property
    def dollars(self) -> float | None:
        parts = [agent.dollars for agent in self.agents]
        return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


def estimate(config: RunConfig, contexts: Iterable[TaskContext], earlier: Iterable[Attempt]) -> Estimate:
    """Estimate a run.

    Args:
        contexts: those of the run's tasks, or of a sample of them, whose mean prompt then stands for every task.
        earlier: attempts of earlier runs.
    """
    first = [
        estimate_tokens(coder_prompt(CoderRequest(context, Operator.SEED, None, None, ())).text) for context in contexts
    ]
    tasks, prompt = len(config.tasks), mean(first)
    seen = list(earlier)
    strategy = STRATEGIES[config.strategy]
    rounds = config.budget.rounds or strategy.default_rounds(strategy.Options.model_validate(config.options))
    agents: list[AgentEstimate] = []
    coders = config.coders
    for position, spec in enumerate(coders):
        own_rounds = len(range(position, rounds, len(coders)))
        later = own_rounds - (1 if position == 0 else 0)
        tokens = round(tasks * (own_rounds * prompt + later * ASSUMED_CANDIDATE))
        agents.append(_agent(config, "coder", spec, own_rounds * tasks, tokens, ASSUMED_CODER_REPLY, seen))
    if strategy.uses_judge:
        calls = rounds - 1
        tokens = round(tasks * calls * (prompt + ASSUMED_CANDIDATE))
        agents.append(_agent(config, "judge", config.judge, calls * tasks, tokens, ASSUMED_JUDGE_REPLY, seen))
    if config.tester is not None:
        tokens = round(tasks * prompt)
        agents.append(_agent(config, "tester", config.tester, tasks, tokens, ASSUMED_JUDGE_REPLY, seen))
    if config.writes_lessons:
        tokens = round(tasks * (prompt + ASSUMED_CANDIDATE))
        agents.append(_agent(config, "reflexion", config.judge, tasks, tokens, ASSUMED_JUDGE_REPLY, seen))
    devices = config.device.split(",")
    assumed = ASSUMED_EVALUATION_SECONDS
    if devices[0].startswith("cuda"):
        assumed += config.measure.seconds + ASSUMED_PROFILE_SECONDS
    times = [
        sum(attempt.evaluation.seconds.values()) for attempt in seen if attempt.evaluation.fingerprint.device in devices
    ]
    size = _first_round(config, rounds)
    evaluations, measured = rounds * tasks, tasks * _measured(config, rounds, size)
    total = Estimate(
        tuple(agents),
        len(first),
        evaluations,
        size,
        measured,
        measured * (mean(times) if times else assumed) + (evaluations - measured) * ASSUMED_EVALUATION_SECONDS,
        f"earlier runs ({len(times)} evaluations)" if times else "assumed",
        (),
    )
    return total._replace(binding=tuple(_binding(config, total)))


def _first_round(config: RunConfig, rounds: int) -> int:
    """Steps that the strategy can name before it has seen a result."""
    search = STRATEGIES[config.strategy].make(config.options, rounds=rounds, coders=len(config.coders))
    named = (search.ask(Random(0), ahead) for ahead in range(rounds))
    return sum(1 for _ in takewhile(lambda proposal: proposal is not None, named))


def _measured(config: RunConfig, rounds: int, size: int) -> int:
    """Evaluations of a task that measure, in rounds of a size."""
    if config.measure_top is None:
        return rounds
    complete, rest = divmod(rounds, size)
    return complete * min(config.measure_top, size) + min(config.measure_top, rest)


def _agent(
    config: RunConfig, agent: str, spec: str, calls: int, input_tokens: int, assumed: int, seen: list[Attempt]
) -> AgentEstimate:
    if not is_hosted(spec):
        return AgentEstimate(agent, spec, calls, 0, 0, 0.0, "–")
    replies = [
        message.usage.output_tokens
        for attempt in seen
        for message in attempt.messages
        if message.agent == agent and message.provider == spec and message.usage is not None
        if message.usage.output_tokens is not None
    ]
    each = mean(replies) if replies else assumed
    output = round(each * calls)
    usage = Usage(model=spec, input_tokens=input_tokens, output_tokens=output, seconds=0.0, batch=config.llm.batch)
    with closing(Providers(config.llm)) as providers:
        dollars = providers.dollars(spec, usage)
    basis = f"{each:,.0f} seen" if replies else f"{assumed:,} assumed"
    return AgentEstimate(agent, spec, calls, input_tokens, output, dollars, basis)


def _binding(config: RunConfig, total: Estimate) -> Iterable[str]:
    budget, tasks = config.budget, max(len(config.tasks), 1)
    checks: tuple[tuple[str, float | None, float | None, Callable[[float], str]], ...] = (
        ("evaluations", budget.evaluations, total.evaluations, _count),
        ("tokens", budget.tokens, total.tokens, _count),
        ("dollars", budget.dollars, total.dollars, _money),
        ("evaluations per task", budget.per_task.evaluations, total.evaluations / tasks, _count),
        ("tokens per task", budget.per_task.tokens, total.tokens / tasks, _count),
        ("dollars per task", budget.per_task.dollars, None if total.dollars is None else total.dollars / tasks, _money),
    )
    for name, limit, expected, form in checks:
        if limit is not None and expected is not None and expected > limit:
            yield f"{name}: {form(expected)} would be used, {form(limit)} are allowed"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _money(value: float) -> str:
    return f"${value:,.2f}"
