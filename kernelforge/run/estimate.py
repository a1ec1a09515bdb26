"""Estimate of a run before it starts: calls, tokens, dollars, evaluations. Nothing is asked or stored.

The numbers are an upper bound of calls (every round is used, every prompt gets one reply) times sizes of real prompts:
the first prompt of each task is rendered as the run would. What a reply and an evaluation take is read from earlier
runs in the results folder where the same model is in them, else assumed; the estimate says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from statistics import mean
from typing import NamedTuple

from kernelforge.agents.base import CoderRequest, TaskContext
from kernelforge.agents.prompts import coder_prompt
from kernelforge.llm.providers import Providers
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.llm.spec import is_hosted
from kernelforge.records import Attempt, Operator, RunConfig, Usage
from kernelforge.search import strategy_class

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
    evaluations: int
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
        contexts: one per task of the run.
        earlier: attempts of earlier runs.
    """
    first = [
        estimate_tokens(coder_prompt(CoderRequest(context, Operator.SEED, None, None, ())).text) for context in contexts
    ]
    seen = list(earlier)
    strategy = strategy_class(config.strategy)
    rounds = config.budget.rounds or strategy.default_rounds(strategy.Options.model_validate(config.options))
    agents: list[AgentEstimate] = []
    coders = config.coders
    for position, spec in enumerate(coders):
        own_rounds = len(range(position, rounds, len(coders)))
        later = own_rounds - (1 if position == 0 else 0)
        tokens = sum(own_rounds * size + later * ASSUMED_CANDIDATE for size in first)
        agents.append(_agent(config, "coder", spec, own_rounds * len(first), tokens, ASSUMED_CODER_REPLY, seen))
    if strategy.uses_judge:
        calls = rounds - 1
        tokens = sum(calls * (size + ASSUMED_CANDIDATE) for size in first)
        agents.append(_agent(config, "judge", config.judge, calls * len(first), tokens, ASSUMED_JUDGE_REPLY, seen))
    if config.tester is not None:
        agents.append(_agent(config, "tester", config.tester, len(first), sum(first), ASSUMED_JUDGE_REPLY, seen))
    if config.memory != "off":
        tokens = sum(size + ASSUMED_CANDIDATE for size in first)
        agents.append(_agent(config, "reflexion", config.judge, len(first), tokens, ASSUMED_JUDGE_REPLY, seen))
    devices = config.device.split(",")
    assumed = ASSUMED_EVALUATION_SECONDS
    if devices[0].startswith("cuda"):
        assumed += config.measure.seconds + ASSUMED_PROFILE_SECONDS
    times = [
        sum(attempt.evaluation.seconds.values()) for attempt in seen if attempt.evaluation.fingerprint.device in devices
    ]
    evaluations = rounds * len(first)
    total = Estimate(
        tuple(agents),
        evaluations,
        evaluations * (mean(times) if times else assumed),
        f"earlier runs ({len(times)} evaluations)" if times else "assumed",
        (),
    )
    return total._replace(binding=tuple(_binding(config, total)))


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
