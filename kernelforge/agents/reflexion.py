"""Reflexion: after a task ends, a few lessons for later tasks of the same operator family.

The method is Reflexion's (Shinn et al., arXiv 2303.11366): words instead of weights carry what was learned. What is
asked is KernelAgent's: was the diagnosis right, was the fix effective, what to try and to avoid. Lessons are advice
to a Coder and a Judge; no verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from kernelforge.agents.acceptance import Outcome, accept
from kernelforge.agents.base import BUILTIN, TaskContext
from kernelforge.agents.prompts import reflexion_prompt
from kernelforge.agents.reply_forms import read_form
from kernelforge.errors import CandidateError
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import Attempt, Lesson, Message, Operator, Verdict
from kernelforge.records.run import MAX_LESSON_CHARS

LESSONS = 3
"""Lessons that one task may leave."""


class ReflexionResult(NamedTuple):
    lessons: tuple[Lesson, ...]
    messages: tuple[Message, ...]


class Reflexion(Protocol):
    """Agent that draws lessons from a finished task."""

    name: str

    def reflect(self, brief: TaskContext, history: Sequence[Attempt]) -> ReflexionResult:
        """Return the lessons of the attempts at a task, if there are any."""
        ...


class _Lesson(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    text: str = Field(min_length=1, max_length=MAX_LESSON_CHARS)
    applies_to: str = Field(max_length=40)


class LessonsReply(BaseModel):
    """The form of a reflexion's reply."""

    model_config = ConfigDict(extra="forbid")

    lessons: tuple[_Lesson, ...] = Field(max_length=LESSONS)


class LLMReflexion:
    """Reflexion by a provider: a model, a person or a transcript."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def reflect(self, brief: TaskContext, history: Sequence[Attempt]) -> ReflexionResult:
        families = brief.graph.families

        def check(text: str) -> None:
            _parse(text, families)

        question = Question(
            "reflexion", brief.task.name, reflexion_prompt(brief, history, families), check, LessonsReply
        )
        answer = self._answerer.ask(question)
        try:
            reply = _parse(answer.text, families)
        except CandidateError:
            # A reflexion that cannot be read teaches nothing; its words are journalled all the same.
            return ReflexionResult((), answer.messages)
        return ReflexionResult(
            tuple(_lesson(lesson.applies_to, lesson.text, brief, history, self.name) for lesson in reply.lessons),
            answer.messages,
        )


class BuiltinReflexion:
    """Writes down which of the Judge's proposals paid and which did not, with the numbers."""

    name = BUILTIN

    def reflect(self, brief: TaskContext, history: Sequence[Attempt]) -> ReflexionResult:
        family = brief.graph.families[0]
        answered = [
            attempt for attempt in history if attempt.operator is Operator.OPTIMISE and attempt.finding is not None
        ]
        paid = [attempt for attempt in answered if attempt.accepted]
        correct = [attempt for attempt in answered if attempt.evaluation.verdict is Verdict.OK]
        failed = [past for past in correct if accept(past, history[: past.number]).outcome is Outcome.REFUSED]
        texts = [f"Pays: {_summary(attempt)}" for attempt in paid[:2]] + [
            f"Did not pay: {_summary(attempt)}" for attempt in failed[:1]
        ]
        lessons = tuple(_lesson(family, text, brief, history, self.name) for text in texts[:LESSONS])
        return ReflexionResult(lessons, ())


def _summary(attempt: Attempt) -> str:
    assert attempt.finding is not None
    note = attempt.note.partition(": ")[2] or attempt.note
    return f"{attempt.finding.action} ({note})"


def _lesson(family: str, text: str, brief: TaskContext, history: Sequence[Attempt], provider: str) -> Lesson:
    line = " ".join(text.split())
    return Lesson(
        family=family,
        text=line if len(line) <= MAX_LESSON_CHARS else line[: MAX_LESSON_CHARS - 1] + "…",
        task=brief.task.name,
        provider=provider,
        gain=_gain(history),
        written=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _gain(history: Sequence[Attempt]) -> float | None:
    """Speedup of the last accepted attempt over the first with a time."""
    accepted = [attempt.evaluation.performance for attempt in history if attempt.accepted]
    times = [performance.time_us for performance in accepted if performance is not None]
    return round(times[0] / times[-1], 4) if times else None


def _parse(text: str, families: Sequence[str]) -> LessonsReply:
    """
    Raises:
        CandidateError: the reply is not the JSON object that was asked for.
    """
    reply = read_form(LessonsReply, text, 'of the form {"lessons": [{"text": "...", "applies_to": "..."}]}')
    for lesson in reply.lessons:
        if lesson.applies_to not in families:
            raise CandidateError(f'"applies_to" is {lesson.applies_to!r}; choose one of {", ".join(families)}')
    return reply
