"""Optimisation notes: short, sourced advice by bottleneck, kept as data in ``prompts/notes.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kernelforge.agents.diagnosis.bottlenecks import Bottleneck
from kernelforge.tasks.suites import data_path

NOTES_SHOWN = 6
"""Notes in one prompt."""
NOTES_EACH = 2
"""Of those, how many may be about one bottleneck before the next has its turn."""


class Note(BaseModel):
    """One piece of advice, with where the fact behind it can be checked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str = Field(min_length=1, max_length=80)
    text: str = Field(min_length=1)
    bottlenecks: tuple[Bottleneck, ...] = Field(min_length=1)
    """What it is about, the most telling first."""
    families: tuple[str, ...] = ()
    """Operator families that it is about; empty: any."""
    source: str = Field(min_length=1)
    """Document and section, or paper."""


@lru_cache(maxsize=1)
def all_notes() -> tuple[Note, ...]:
    """Every note, in the file's order.

    Raises:
        UsageError: the installation lacks the folder of prompts.
    """
    with (data_path("prompts") / "notes.toml").open("rb") as file:
        return TypeAdapter(tuple[Note, ...]).validate_python(tomllib.load(file)["note"])


def notes_for(bottlenecks: Sequence[Bottleneck], families: Sequence[str], limit: int = NOTES_SHOWN) -> tuple[Note, ...]:
    """At most ``limit`` notes about ``bottlenecks``, which are ranked: at most two for each, the first's first.

    A note whose own first bottleneck is the one at hand comes before one that names it in passing. Notes about other
    operators than those of ``families`` are left out.
    """
    selected: list[Note] = []
    for bottleneck in bottlenecks:
        about = [note for note in all_notes() if bottleneck in note.bottlenecks and note not in selected]
        about = [note for note in about if not note.families or not set(note.families).isdisjoint(families)]
        about.sort(key=lambda note: note.bottlenecks.index(bottleneck))
        selected += about[:NOTES_EACH]
    return tuple(selected[:limit])
