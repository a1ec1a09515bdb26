"""The agents: a Coder proposes candidates, a Judge names one thing to fix or to improve, a Tester proposes inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.llm.base import Answer
from kernelforge.records import Attempt, Finding, Graph, LanguageChoice, Message, Operator, Task, TaskFacts
from kernelforge.records.task import GENERATOR_NAME, MAX_GENERATOR_BYTES
from kernelforge.search.base import DEFAULT_VISIBILITY, ProfileVisibility

BUILTIN = "builtin"
"""The agents that need no model, no key and no network: they write and judge by rules."""


@dataclass(frozen=True)
class TaskContext:
    """Task context shown to agents; contains no hidden sizes, seeds or expected outputs."""

    task: Task
    facts: TaskFacts
    """Facts of the sizes ``full`` and ``small`` only."""
    shared: Mapping[str, str]
    """What all sizes, hidden ones included, have in common: ``{"x.shape[1]": "1..4096"}``-like statements."""
    graph: Graph
    """The reference at the full size."""
    device: Mapping[str, str]
    """What the device says of itself, for people and models to read."""
    spec: DeviceSpec
    """Public figures of the device's GPU, or of the nearest that is known."""
    lessons: tuple[str, ...] = ()
    """What earlier tasks of the same operator family taught, most useful first."""
    language: LanguageChoice = "cuda"
    """Language that candidates are to be written in."""
    small_graph: Graph | None = None
    """The reference at the small size, where it was traced there too."""


@dataclass(frozen=True)
class CoderRequest:
    """Request for one candidate. ``parent`` is the attempt to repair or to improve, with its evaluation and profile."""

    brief: TaskContext
    operator: Operator
    parent: Attempt | None
    finding: Finding | None
    history: Sequence[Attempt]
    """All earlier attempts at the task, oldest first."""
    best: Attempt | None = None
    """The best attempt so far."""
    inspirations: Sequence[Attempt] = ()
    """Further attempts shown as examples."""
    technique: str | None = None
    """An optimisation feature that the Coder is asked to use."""
    sample: int = 0
    """Position among requests that are otherwise the same."""
    sight: ProfileVisibility = DEFAULT_VISIBILITY


@dataclass(frozen=True)
class JudgeRequest:
    """One finding asked for."""

    brief: TaskContext
    parent: Attempt
    history: Sequence[Attempt]
    best: Attempt | None = None
    rank: int = 1
    """Which bottleneck to name: the most important is 1."""
    sight: ProfileVisibility = DEFAULT_VISIBILITY


@dataclass(frozen=True)
class JudgeReply:
    finding: Finding | None
    """None: the Judge said nothing that can be used; the Coder is then asked without a finding."""
    messages: tuple[Message, ...]


class Coder(Protocol):
    """``name`` is ``provider:model`` as the CLI spells it."""

    name: str

    def propose(self, request: CoderRequest) -> Answer:
        """Write a candidate, as a model would: two fenced blocks."""
        ...


class Judge(Protocol):
    name: str

    def assess(self, request: JudgeRequest) -> JudgeReply:
        """Name exactly one thing. The Judge is advisory: it cannot change a verdict."""
        ...


class GeneratorForm(BaseModel):
    """One proposed generator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=GENERATOR_NAME)
    why: str = Field(min_length=1, max_length=400)
    """Which fault it would show."""
    plan: str = Field(min_length=1, max_length=MAX_GENERATOR_BYTES)


@dataclass(frozen=True)
class TesterReply:
    generators: tuple[GeneratorForm, ...]
    messages: tuple[Message, ...]


class Tester(Protocol):
    name: str

    def propose(self, brief: TaskContext) -> TesterReply:
        """Propose further test inputs. They add tests where torch passes them, and can relax none."""
        ...
