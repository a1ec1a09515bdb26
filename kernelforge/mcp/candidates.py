"""Candidates as clients send them, and as the journal keeps them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from kernelforge.agents.prompting.text import inline
from kernelforge.candidate import combinations_of, format_reply
from kernelforge.errors import UsageError
from kernelforge.records import Candidate, Message
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES

MAX_CHOICES = 32
MAX_NAME_CHARS = 120
MAX_NOTE_CHARS = 2_000


def read_candidate(source: str, plan: str, choices: Mapping[str, int] | None) -> Candidate:
    """A candidate as a client sent it.

    Raises:
        UsageError: a text is empty, too long, holds NUL or half of a surrogate pair, or there are too many choices.
    """
    for name, text, limit in (("source", source, MAX_SOURCE_BYTES), ("plan", plan, MAX_PLAN_BYTES)):
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(f"the {name} holds half of a surrogate pair") from error
        if size > limit:
            raise UsageError(f"the {name} has {size:,} bytes; the limit is {limit:,}")
        if not text.strip():
            raise UsageError(f"the {name} is empty")
        if "\0" in text:
            raise UsageError(f"the {name} holds a NUL character")
    if choices and len(choices) > MAX_CHOICES:
        raise UsageError(f"{len(choices)} choices are too many; the limit is {MAX_CHOICES}")
    for name, value in (choices or {}).items():
        if not name.isidentifier() or len(name) > MAX_NAME_CHARS or abs(value) >= 2**63:
            raise UsageError(f"choice {name[:80]!r} is not a '# tune:' name with a 64-bit integer")
    try:
        return Candidate(source=source, plan=plan, choices=dict(choices or {}))
    except ValidationError as error:
        raise UsageError(f"this is not a candidate: {error.errors()[0]['msg']}") from error


def has_choices(candidate: Candidate) -> bool:
    """Whether its plan has a `# tune:` line to choose from. One with an error counts: its evaluation names that."""
    return combinations_of(candidate) != 1


def messages_of(coder: str, prompt: str | None, candidate: Candidate, note: str) -> tuple[Message, ...]:
    """The prompt verbatim, if there was one, and the reply of a submission."""
    reply = format_reply(candidate, inline(note, MAX_NOTE_CHARS))
    messages = [Message(agent="coder", role="reply", provider=coder, content=reply)]
    if prompt is not None:
        messages.insert(0, Message(agent="coder", role="prompt", provider=coder, content=prompt))
    return tuple(messages)
