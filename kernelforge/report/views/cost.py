"""Model usage of a run: calls, tokens and dollars, by agent and provider. Unknown is None, never zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kernelforge.records import AgentName, Message, Usage
from kernelforge.report.views.base import View


class Cost(View):
    """Calls that were paid for. A sum is None when one of its parts is unknown."""

    calls: int
    input_tokens: int | None
    cached_tokens: int | None
    """Part of the input that came from a provider's prompt cache."""
    output_tokens: int | None
    reasoning_tokens: int | None
    """Part of the output that was reasoning."""
    dollars: float | None
    seconds: float
    """Wall time of the calls, one after another."""


class AgentCost(Cost):
    """One agent's part through one provider."""

    agent: AgentName
    provider: str


def total_cost(messages: Iterable[Message]) -> Cost:
    """Over all replies that were paid for."""
    return Cost(**_sums([message.usage for message in messages if message.usage is not None]))


def paid(messages: Iterable[Message]) -> float | None:
    """Dollars of all replies alone: None once a price is unknown, 0 where nothing was bought."""
    return _sum([message.usage for message in messages if message.usage is not None], _dollars)


def agent_costs(messages: Iterable[Message]) -> tuple[AgentCost, ...]:
    """By agent and provider, in order of their first reply."""
    parts: dict[tuple[AgentName, str], list[Usage]] = {}
    for message in messages:
        if message.usage is not None:
            parts.setdefault((message.agent, message.provider), []).append(message.usage)
    return tuple(AgentCost(agent=agent, provider=provider, **_sums(used)) for (agent, provider), used in parts.items())


def _sums(used: list[Usage]) -> dict[str, int | float | None]:
    return {
        "calls": len(used),
        "input_tokens": _sum(used, _input),
        "cached_tokens": _sum(used, _cached),
        "output_tokens": _sum(used, _output),
        "reasoning_tokens": _sum(used, _reasoning),
        "dollars": _sum(used, _dollars),
        "seconds": round(sum(usage.seconds for usage in used), 3),
    }


def _sum(used: list[Usage], part: Callable[[Usage], float | None]) -> float | None:
    values = [part(usage) for usage in used]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _input(usage: Usage) -> int | None:
    return usage.input_tokens


def _cached(usage: Usage) -> int | None:
    return usage.cached_tokens


def _output(usage: Usage) -> int | None:
    return usage.output_tokens


def _reasoning(usage: Usage) -> int | None:
    return usage.reasoning_tokens


def _dollars(usage: Usage) -> float | None:
    return usage.dollars
