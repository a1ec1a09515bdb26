"""Interface between agents and providers: a request, a reply with its messages.

An :class:`Answerer` is what an agent talks to: it asks, checks, asks again, and keeps every message. A
:class:`ChatModel` is one model behind one protocol: it makes a single call and reports what that cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from kernelforge.records import AgentName, Message, Usage

ASKS = 3
"""Replies that one question may get before the last one is taken as it is."""

COMPLAINT = "# The reply cannot be used"
"""First line of every prompt that asks for another reply in the same conversation."""


@dataclass(frozen=True)
class Prompt:
    """A prompt. Its first ``stable`` characters are the same for every call that an agent makes on a task."""

    text: str
    stable: int = 0


@dataclass(frozen=True)
class Question:
    """A question of an agent: the prompt, and the check of its reply."""

    agent: AgentName
    task: str
    prompt: Prompt
    check: Callable[[str], None]
    """Raises :class:`~kernelforge.errors.CandidateError` on an unusable reply; the message goes to its author."""
    schema: type[BaseModel] | None = None
    """The form of a reply that is one JSON object."""
    sample: int = 0
    """Position among questions that are otherwise the same."""


@dataclass(frozen=True)
class Answer:
    """The last reply, whether or not ``check`` took it, and every message on the way to it."""

    text: str
    messages: tuple[Message, ...]


class Answerer(Protocol):
    """Something that answers prompts: a model, a person, a transcript."""

    name: str
    """As the CLI spells it."""

    def ask(self, question: Question) -> Answer:
        """Ask, at most :data:`ASKS` times, each time with what was wrong with the reply before.

        Raises:
            BudgetExhausted: a budget is spent, or the run is to stop.
            ProviderError: no reply can be had.
            UsageError: the provider's files cannot be read or written.
        """
        ...


class Meter(Protocol):
    """The budget that calls are charged to, one for each task of a run.

    A protocol, because the budget belongs to the package ``run``, which is built on this one.
    """

    def check(self) -> None:
        """Called before each call.

        Raises:
            BudgetExhausted: no further call may start.
        """
        ...

    def spent(self, usage: Usage) -> None:
        """Called once after each call that succeeded."""
        ...


@dataclass(frozen=True)
class Turn:
    role: Literal["user", "assistant"]
    text: str
    blocks: tuple[Mapping[str, Any], ...] = ()
    """Of an assistant's turn: its reply's ``blocks``."""


@dataclass(frozen=True)
class ChatRequest:
    """One call. The first turn's first ``stable`` characters may be cached by the provider under ``cache_key``."""

    turns: tuple[Turn, ...]
    stable: int = 0
    cache_key: str = ""
    schema: type[BaseModel] | None = None


Ended = Literal["complete", "length", "refused"]
"""How a reply ended. ``length``: cut at the output limit. ``refused``: the model or a filter declined."""


@dataclass(frozen=True)
class ChatReply:
    """A provider reply. ``usage.dollars`` is set later, by :func:`~kernelforge.llm.prices.dollars_of`."""

    text: str
    usage: Usage
    ended: Ended = "complete"
    """When ``refused``, ``text`` may be the reason."""
    reasoning: str = ""
    """What the model showed of its reasoning, or a summary of it; no part of ``text``."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """Parts of the reply, as the protocol spells them, that the provider expects back unchanged in a longer
    conversation: Anthropic's signed thinking."""


class ChatModel(Protocol):
    """One model behind one protocol. Safe to share between threads."""

    name: str
    """``provider:model``."""

    def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call, without retries.

        Raises:
            ProviderError: it failed; ``passing`` says whether trying again may help.
        """
        ...

    def close(self) -> None: ...
