"""Transcripts of calls to models: recorded to a file, and replayed from it."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from kernelforge.errors import ProviderError, UsageError
from kernelforge.llm.base import COMPLAINT, Answer, Meter, Question
from kernelforge.records import AgentName, Attempt, Message, Record, Usage, first_fault
from kernelforge.version import __version__

FORMAT = "kernelforge-transcript"
VERSION = 1


class Header(Record):
    """Header of a transcript: its format, version and origin."""

    format: Literal["kernelforge-transcript"]
    version: int
    about: str
    written_by: str
    """Who wrote the replies: a model's full name, a person, a program."""
    kernelforge: str
    """Version that wrote the file."""


class Line(Record):
    """One prompt and its reply."""

    agent: AgentName
    task: str
    sample: int = Field(default=0, ge=0)
    """Position among conversations of the task that begin with the same prompt."""
    turn: int = Field(default=0, ge=0)
    """Position within its conversation; from 1 on, ``prompt`` says why the reply before it could not be used."""
    sha256: str
    """Of ``prompt`` in UTF-8, in hexadecimal."""
    prompt: str
    reply: str
    reasoning: str | None = None
    """What the model showed of its reasoning before the reply."""
    provider: str
    """Specification of the provider through which the reply came."""
    usage: Usage | None = None
    """What the reply cost when it was given."""
    written_by: str


@dataclass(frozen=True)
class Conversation:
    """A question with all its replies."""

    lines: tuple[Line, ...]
    number: int
    """Line of the file at which it begins, from 1."""

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def replies(self) -> tuple[str, ...]:
        return tuple(line.reply for line in self.lines)


def sha256_of(prompt: str) -> str:
    """The name of a prompt."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def conversations(messages: Iterable[Message]) -> Iterator[tuple[tuple[Message, Message], ...]]:
    """Messages in the order they were said, as conversations: pairs of prompt and reply, at least one each.

    A prompt whose first line is :data:`~kernelforge.llm.base.COMPLAINT` goes on with the conversation of its agent. A
    prompt without a reply is left out.
    """
    current: list[tuple[Message, Message]] = []
    prompt: Message | None = None
    for message in messages:
        if message.role == "prompt":
            goes_on = current and message.agent == current[-1][0].agent and message.content.startswith(COMPLAINT)
            if current and not goes_on:
                yield tuple(current)
                current = []
            prompt = message
        elif prompt is not None:
            current.append((prompt, message))
            prompt = None
    if current:
        yield tuple(current)


def transcript_lines(
    attempts: Iterable[Attempt],
    task_messages: Mapping[str, Sequence[Message]],
    *,
    written_by: str,
    about: str = "Prompts and replies of a run",
) -> Iterator[str]:
    """The lines of a transcript, each ending in a line feed.

    Args:
        attempts: journalled ones, of one run or of several; each task's in order.
        task_messages: by task, what was said outside attempts.
        written_by: who wrote the replies.
        about: what the transcript is of.
    """
    yield _json(Header(format=FORMAT, version=VERSION, about=about, written_by=written_by, kernelforge=__version__))
    messages_by_task: dict[str, list[Message]] = {}
    for attempt in attempts:
        messages_by_task.setdefault(attempt.task, []).extend(attempt.messages)
    for task, messages in task_messages.items():
        messages_by_task.setdefault(task, []).extend(messages)
    for task, messages in messages_by_task.items():
        seen: Counter[tuple[str, str]] = Counter()
        for talk in conversations(messages):
            begin = talk[0][0]
            sample = seen[begin.agent, begin.content]
            seen[begin.agent, begin.content] += 1
            for turn, (prompt, reply) in enumerate(talk):
                yield _json(
                    Line(
                        agent=reply.agent,
                        task=task,
                        sample=sample,
                        turn=turn,
                        sha256=sha256_of(prompt.content),
                        prompt=prompt.content,
                        reply=reply.content,
                        reasoning=reply.reasoning,
                        provider=reply.provider,
                        usage=reply.usage,
                        written_by=written_by,
                    )
                )


def read_transcript(path: str | Path) -> tuple[Header, tuple[Conversation, ...]]:
    """A transcript's header, and its conversations in order.

    Raises:
        UsageError: the file cannot be read, is no transcript or one of a later version, or is damaged.
    """
    try:
        rows = Path(path).expanduser().read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"the transcript {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"the transcript {path} is not UTF-8: {error}") from error
    try:
        header = Header.model_validate_json(rows[0] if rows else "")
    except ValidationError as error:
        raise UsageError(
            f"{path} is no transcript: its first line is not a header with format {FORMAT!r}; "
            f"`kernelforge export --format transcript` writes one"
        ) from error
    if header.version != VERSION:
        raise UsageError(
            f"the transcript {path} has version {header.version}, this KernelForge reads {VERSION}; "
            f"use the one that wrote it ({header.kernelforge})"
        )
    return header, tuple(_conversations(path, rows[1:]))


def _conversations(path: str | Path, rows: Sequence[str]) -> Iterator[Conversation]:
    current: list[Line] = []
    begin = 0
    for number, row in enumerate(rows, 2):
        if not row.strip():
            continue
        try:
            line = Line.model_validate_json(row)
        except ValidationError as error:
            raise UsageError(f"the transcript {path} is damaged in line {number}: {first_fault(error)}") from error
        if line.sha256 != sha256_of(line.prompt):
            raise UsageError(f"the transcript {path} is damaged in line {number}: sha256 is not that of its prompt")
        if line.turn == 0:
            if current:
                yield Conversation(tuple(current), begin)
            current, begin = [line], number
            continue
        before = current[-1] if current else None
        if before is None or (before.agent, before.task, before.turn + 1) != (line.agent, line.task, line.turn):
            raise UsageError(f"the transcript {path} is damaged in line {number}: turn {line.turn} follows on no line")
        current.append(line)
    if current:
        yield Conversation(tuple(current), begin)


def _json(record: Record) -> str:
    return record.model_dump_json(exclude_none=True) + "\n"


SHOWN_CHARS = 160
"""How much of a line an error shows."""


class Recording:
    """A transcript of which each conversation is played once. Shared between tasks and threads.

    Args:
        name: as the CLI spells it, ``match=order`` included.
        path: the transcript.
        in_order: give each agent's conversations on a task in the order they were recorded, without comparing prompts.

    Raises:
        UsageError: as :func:`~kernelforge.llm.recording.read_transcript`.
    """

    def __init__(self, name: str, path: str | Path, *, in_order: bool = False) -> None:
        self.name = name
        self.header, self._recorded = read_transcript(path)
        self._in_order = in_order
        self._used: set[int] = set()
        self._lock = threading.Lock()

    def recall(self, task: str, messages: Iterable[Message]) -> None:
        """Mark as used what this recording has answered before, in a run that is resumed.

        Args:
            messages: of the task's journal; those of other providers are passed over.
        """
        own_messages = [message for message in messages if message.provider == self.name]
        with self._lock:
            for talk in conversations(own_messages):
                prompt, replies = talk[0][0], tuple(reply.content for _, reply in talk)
                fitting = self._fitting(prompt.agent, task, prompt.content)
                used = next(
                    (candidate for candidate in fitting if self._free(candidate) and candidate.replies == replies), None
                )
                if used is not None:
                    self._used.add(used.number)

    def take(self, question: Question) -> Conversation:
        """The next conversation recorded for a question.

        Of several that begin with the same prompt it is the one with the question's ``sample``, so that questions asked
        side by side get the same replies in every process; else the first that is unused.

        Raises:
            ProviderError: there is none, or all are used.
        """
        prompt = question.prompt.text
        with self._lock:
            fitting = self._fitting(question.agent, question.task, prompt)
            free = [candidate for candidate in fitting if self._free(candidate)]
            if free:
                selected = next((candidate for candidate in free if candidate.first.sample == question.sample), free[0])
                self._used.add(selected.number)
                return selected
        raise ProviderError(self._miss(question, len(fitting)))

    def _free(self, conversation: Conversation) -> bool:
        return conversation.number not in self._used

    def _fitting(self, agent: str, task: str, prompt: str) -> list[Conversation]:
        """Conversations that answer a prompt, used or not, in recorded order."""
        if self._in_order:
            return self._of(agent, task)
        name = sha256_of(prompt)
        return [
            conversation
            for conversation in self._recorded
            if conversation.first.agent == agent and conversation.first.sha256 == name
        ]

    def _of(self, agent: str, task: str) -> list[Conversation]:
        return [
            conversation
            for conversation in self._recorded
            if conversation.first.agent == agent and conversation.first.task == task
        ]

    def _miss(self, question: Question, used: int) -> str:
        agent, task, prompt = question.agent, question.task, question.prompt.text
        which = f"{self.name} has no reply to this prompt of the {agent} on task {task!r} (sha256 {sha256_of(prompt)})"
        if used:
            what = f"the {agent} on that task" if self._in_order else "it"
            return (
                f"{which}: the {used} that it has for {what} {'is' if used == 1 else 'are'} used; record more of them"
            )
        same = self._of(agent, task)
        if not same:
            available = ", ".join(sorted({f"{talk.first.agent} on {talk.first.task!r}" for talk in self._recorded}))
            return f"{which}: it has nothing for that agent and task; it has {available or 'no reply at all'}"
        lines = prompt.splitlines()
        nearest = max(same, key=lambda conversation: _likeness(lines, conversation.first.prompt.splitlines()))
        number, recorded, requested_line = _first_difference(nearest.first.prompt, prompt)
        return (
            f"{which}. The nearest that it has, at line {nearest.number} of the file, first differs in line {number} "
            f"of the prompt:\n  recorded: {recorded}\n  asked:    {requested_line}\n"
            f"Record it again, or add ?match=order to take replies in recorded order without comparing prompts"
        )


class Replay:
    """Answers prompts from a recording. Nothing is bought: replies carry no usage and cost the meter nothing."""

    def __init__(self, recording: Recording, meter: Meter, *, keeps_reasoning: bool = True) -> None:
        self.name = recording.name
        self._keeps_reasoning = keeps_reasoning
        self._recording = recording
        self._meter = meter

    def ask(self, question: Question) -> Answer:
        """The recorded conversation, from its first reply to its last.

        Raises:
            BudgetExhausted: the run is to stop.
            ProviderError: the transcript has no reply to this prompt; the message says which and where it differs.
        """
        self._meter.check()
        recorded = self._recording.take(question).lines
        messages: list[Message] = []
        for line in recorded:
            prompt = question.prompt.text if line.turn == 0 else line.prompt
            messages.append(Message(agent=question.agent, role="prompt", provider=self.name, content=prompt))
            reasoning = line.reasoning if self._keeps_reasoning else None
            messages.append(
                Message(agent=question.agent, role="reply", provider=self.name, content=line.reply, reasoning=reasoning)
            )
        return Answer(recorded[-1].reply, tuple(messages))


def _likeness(lines: list[str], others: list[str]) -> float:
    return SequenceMatcher(None, lines, others, autojunk=False).ratio()


def _first_difference(recorded: str, prompt: str) -> tuple[int, str, str]:
    """Number of the first line in which two prompts differ, from 1, and both lines as they are shown."""
    pairs = zip_longest(recorded.splitlines(keepends=True), prompt.splitlines(keepends=True))
    for number, (recorded_line, prompt_line) in enumerate(pairs, 1):
        if recorded_line != prompt_line:
            return number, _excerpt(recorded_line), _excerpt(prompt_line)
    raise ValueError("the prompts are the same")


def _excerpt(line: str | None) -> str:
    return "(nothing)" if line is None else repr(line[:SHOWN_CHARS])
