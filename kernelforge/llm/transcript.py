"""Transcripts: what agents were asked and what they answered, as JSON lines that people can read and ``replay`` plays.

The first line is a :class:`Header`, every other a :class:`Line`: one prompt with its reply. A prompt that asks for
another reply is a line of its own, behind the one it complains about, with ``turn`` one higher.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from kernelforge.errors import UsageError
from kernelforge.llm.base import COMPLAINT
from kernelforge.records import AgentName, Attempt, Message, Record, Usage, first_fault
from kernelforge.version import __version__

FORMAT = "kernelforge-transcript"
VERSION = 1


class Header(Record):
    """What a transcript is and where it comes from."""

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
    said: dict[str, list[Message]] = {}
    for attempt in attempts:
        said.setdefault(attempt.task, []).extend(attempt.messages)
    for task, messages in task_messages.items():
        said.setdefault(task, []).extend(messages)
    for task, messages in said.items():
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
