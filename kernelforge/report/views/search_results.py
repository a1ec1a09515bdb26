"""Search results: lines of prompts and replies that contain a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernelforge.records import Attempt, Message
from kernelforge.report.views.base import View

_AROUND = 60
"""Characters of a line that are shown before and after what was found in it."""


class FoundLine(View):
    """One line of what was said."""

    task: str
    attempt: str | None
    """Id of the attempt that it was said for; None for what was said about the task."""
    agent: str
    role: str
    line: int
    """From 1, within its prompt or reply."""
    text: str
    """The line, or of a long one what is around the first place where it holds the text."""


class FoundView(View):
    """All that was found."""

    run: str
    sought: str
    lines: tuple[FoundLine, ...]


def search(
    sought: str, task: str, attempts: Iterable[Attempt], messages: Iterable[Message] = ()
) -> Iterator[FoundLine]:
    """Lines of one task's prompts and replies that hold a text, whatever its case: of its attempts, then of what was
    said about the task."""
    pattern = re.compile(re.escape(sought), re.IGNORECASE)
    said = [(attempt.id, message) for attempt in attempts for message in attempt.messages]
    for attempt, message in [*said, *((None, message) for message in messages)]:
        for number, line in enumerate(message.content.split("\n"), 1):
            if found := pattern.search(line):
                begin, end = max(found.start() - _AROUND, 0), found.end() + _AROUND
                text = ("…" if begin else "") + line[begin:end] + ("…" if end < len(line) else "")
                yield FoundLine(
                    task=task, attempt=attempt, agent=message.agent, role=message.role, line=number, text=text
                )
