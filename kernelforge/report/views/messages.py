"""Messages of agents: their cost by agent and provider, and search in their text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernelforge.records import AgentName, Attempt, Message, Usage
from kernelforge.report.formatting import duration, format_dollars
from kernelforge.report.views import View


class Cost(View):
    """Model calls. A sum is None when one of its parts is unknown."""

    calls: int
    input_tokens: int | None
    cached_tokens: int | None
    """Part of the input from a provider's prompt cache."""
    output_tokens: int | None
    reasoning_tokens: int | None
    """Part of the output that was reasoning."""
    dollars: float | None
    seconds: float
    """Sum of the wall times of the calls."""

    @property
    def text(self) -> str:
        """Calls, tokens, dollars and time in one line."""
        cached = "" if not self.cached_tokens else f" ({self.cached_tokens:,} cached)"
        tokens = "tokens unknown"
        if self.input_tokens is not None and self.output_tokens is not None:
            tokens = f"{self.input_tokens:,} tokens in{cached}, {self.output_tokens:,} out"
        dollars = "dollars unknown" if self.dollars is None else format_dollars(self.dollars)
        return f"{self.calls} calls, {tokens}, {dollars}, {duration(self.seconds)}"


class AgentCost(Cost):
    """One agent's part through one provider."""

    agent: AgentName
    provider: str


def total_cost(messages: Iterable[Message]) -> Cost:
    """Cost of all replies with usage."""
    return Cost(**_sums([message.usage for message in messages if message.usage is not None]))


def paid(messages: Iterable[Message]) -> float | None:
    """Dollars of all replies: None where a price is unknown, 0 without model calls."""
    return _sum([message.usage for message in messages if message.usage is not None], "dollars")


def agent_costs(messages: Iterable[Message]) -> tuple[AgentCost, ...]:
    """Cost by agent and provider, in order of their first reply."""
    parts: dict[tuple[AgentName, str], list[Usage]] = {}
    for message in messages:
        if message.usage is not None:
            parts.setdefault((message.agent, message.provider), []).append(message.usage)
    return tuple(AgentCost(agent=agent, provider=provider, **_sums(used)) for (agent, provider), used in parts.items())


def _sums(used: list[Usage]) -> dict[str, int | float | None]:
    return {
        "calls": len(used),
        **{name: _sum(used, name) for name in _SUMMED},
        "seconds": round(sum(usage.seconds for usage in used), 3),
    }


def _sum(used: list[Usage], name: str) -> float | None:
    values = [getattr(usage, name) for usage in used]
    return None if None in values else sum(values)


_SUMMED = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "dollars")


_AROUND = 60
"""Characters of context around a match."""


class SearchMatch(View):
    """One matching line of a message."""

    task: str
    attempt: str | None
    """Id of its attempt; None for a message about the task."""
    agent: str
    role: str
    """``prompt``, ``reply`` or ``reasoning``."""
    line: int
    """From 1, within its prompt, reply or reasoning."""
    text: str
    """The line; of a long one, the part around the first match."""


class SearchResults(View):
    """All matching lines."""

    run: str
    sought: str
    lines: tuple[SearchMatch, ...]


def search(
    sought: str, task: str, attempts: Iterable[Attempt], messages: Iterable[Message] = ()
) -> Iterator[SearchMatch]:
    """Lines of one task's prompts, replies and reasoning that contain a text, ignoring case: those of its attempts,
    then those about the task."""
    pattern = re.compile(re.escape(sought), re.IGNORECASE)
    labelled = [(attempt.id, message) for attempt in attempts for message in attempt.messages]
    for attempt, message in [*labelled, *((None, message) for message in messages)]:
        for role, content in (("reasoning", message.reasoning or ""), (message.role, message.content)):
            for number, line in enumerate(content.split("\n"), 1):
                if match := pattern.search(line):
                    begin, end = max(match.start() - _AROUND, 0), match.end() + _AROUND
                    text = ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")
                    yield SearchMatch(
                        task=task, attempt=attempt, agent=message.agent, role=role, line=number, text=text
                    )
