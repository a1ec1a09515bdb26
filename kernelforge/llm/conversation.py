"""Ask a model, check the reply, and ask again in the same conversation."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.errors import CandidateError, KernelForgeError
from kernelforge.llm.base import (
    ASKS,
    COMPLAINT,
    Answer,
    ChatModel,
    ChatReply,
    ChatRequest,
    Meter,
    Prompt,
    Question,
    Turn,
)
from kernelforge.llm.rate_limits import CallLimits, pause, with_retries
from kernelforge.records import AgentName, Message, Usage, content_hash

SILENCE = "(an empty reply)"
"""Stands for an empty reply in the conversation: servers refuse turns without text."""
MAX_TURN_CHARS = 300_000
"""How much of a reply that cannot be used is sent back with the complaint: a model that repeats itself without end
would else fill its own context, and no further call could recover from that."""


class Conversation:
    """A model as an :class:`~kernelforge.llm.base.Answerer`. Safe to share between threads.

    Args:
        name: as the CLI spells it; every message is kept under it.
        model: what is called.
        meter: the budget that calls are charged to.
        limits: shared by everyone who calls this model.
        retries: calls that may fail for passing reasons before a call is given up.
        price: dollars of a usage, or None where they are unknown.
        stopped: looked at while waiting.
        sleep: waits between tries; None polls ``stopped`` while waiting.
    """

    def __init__(
        self,
        name: str,
        model: ChatModel,
        meter: Meter,
        *,
        limits: CallLimits,
        retries: int,
        price: Callable[[Usage], float | None],
        stopped: Callable[[], bool] = lambda: False,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self.name = name
        self._model = model
        self._meter = meter
        self._limits = limits
        self._retries = retries
        self._price = price
        self._stopped = stopped
        self._sleep = sleep or self._pause

    def ask(self, question: Question) -> Answer:
        """Ask, at most :data:`~kernelforge.llm.base.ASKS` times in one conversation.

        A reply that cannot be used is answered by what is wrong with it. A refusal is not asked again; what the model
        said stands for its reply.

        Raises:
            BudgetExhausted: the meter lets no further call start, or the run is to stop.
            ProviderError: the model cannot be asked.

        Either holds the messages of a conversation that it cut short, up to the last reply.
        """
        prompt = question.prompt
        turns = [Turn("user", prompt.text)]
        messages = [self._prompt(question, prompt.text)]
        for tries_left in reversed(range(ASKS)):
            request = ChatRequest(tuple(turns), prompt.stable, cache_key(question.agent, prompt), question.schema)
            try:
                reply, usage = self._call(request)
            except KernelForgeError as error:
                # The replies before this call were paid for.
                error.messages = tuple(messages[:-1]) if len(messages) > 1 else ()
                raise
            messages.append(self._reply(question, reply, usage))
            problem = _problem(reply, question.check)
            if problem is None or reply.ended == "refused" or tries_left == 0:
                break
            complaint = complain(problem, tries_left)
            last_reply = reply.text[:MAX_TURN_CHARS]
            last_turn = Turn("assistant", last_reply if last_reply.strip() else SILENCE, reply.blocks)
            turns += [last_turn, Turn("user", complaint)]
            messages.append(self._prompt(question, complaint))
        text = reply.text
        if reply.ended == "refused" and not text.strip():
            text = "The model refused to answer and gave no reason."
        return Answer(text, tuple(messages))

    def _call(self, request: ChatRequest) -> tuple[ChatReply, Usage]:
        """One reply, and what it cost."""

        def once(failed: int) -> tuple[ChatReply, Usage]:
            with self._limits.slot(turn.text for turn in request.turns) as slot:
                # Checked last, and charged before the slot is free: the next call sees what this one cost. So a
                # budget is exceeded by less than one call for each that was in flight.
                self._meter.check()
                reply = self._model.complete(request)
                usage = reply.usage.model_copy(update={"dollars": self._price(reply.usage), "retries": failed})
                self._meter.spent(usage)
                slot.tokens, slot.output_tokens = usage.tokens, usage.output_tokens
            return reply, usage

        return with_retries(once, name=self.name, retries=self._retries, sleep=self._sleep)

    def _pause(self, seconds: float) -> None:
        pause(seconds, self._stopped, f"to ask {self.name} again")

    def _prompt(self, question: Question, content: str) -> Message:
        return Message(agent=question.agent, role="prompt", provider=self.name, content=content)

    def _reply(self, question: Question, reply: ChatReply, usage: Usage) -> Message:
        return Message(
            agent=question.agent,
            role="reply",
            provider=self.name,
            content=reply.text,
            usage=usage,
            reasoning=reply.reasoning or None,
        )


def cache_key(agent: AgentName, prompt: Prompt) -> str:
    """Key under which the provider may cache the stable part of a prompt; empty when there is none."""
    return content_hash(agent, prompt.text[: prompt.stable]) if prompt.stable else ""


def complain(problem: str, tries_left: int) -> str:
    """The prompt that asks for another reply."""
    tries = "This is the last try." if tries_left == 1 else f"{tries_left} tries are left."
    return f"{COMPLAINT}\n\n{problem}\n\nGive the whole reply again, in the form that was asked for. {tries}\n"


def _problem(reply: ChatReply, check: Callable[[str], None]) -> str | None:
    """Reason why a reply cannot be used, in words for its author, or None."""
    if reply.ended == "length":
        took = "" if reply.usage.output_tokens is None else f" after {reply.usage.output_tokens} tokens"
        return f"It was cut at the output limit{took}, before its end. Give a shorter one: only what was asked."
    if not reply.text.strip():
        return "It was empty." if not reply.reasoning else "It held reasoning alone, and no answer after it."
    try:
        check(reply.text)
    except CandidateError as error:
        return str(error)
    return None
