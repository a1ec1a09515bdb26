"""Lessons: what one task taught about a family of operators, for the tasks after it."""

from __future__ import annotations

from pydantic import Field

from kernelforge.records.base import Record

MAX_LESSON_CHARS = 320


class Lesson(Record):
    """One short sentence of advice, with where it comes from."""

    family: str
    """Operator family: ``matmul``, ``softmax``..."""
    text: str = Field(min_length=1, max_length=MAX_LESSON_CHARS)
    task: str
    """The task that taught it."""
    provider: str
    """Who wrote it."""
    gain: float | None = None
    """By which factor that task's time fell from its first correct attempt to its best; None when it is unknown."""
    written: str
    """UTC, ISO 8601."""
