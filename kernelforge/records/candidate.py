"""Candidates and input generators: what agents write, with their digests."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from kernelforge.records.base import Record, content_hash

MAX_GENERATOR_BYTES = 4096
"""Largest text of one generator."""

GENERATOR_NAME = r"^[a-z][a-z0-9_]{0,31}$"


class InputGenerator(Record):
    """One input generator, and whether candidates are checked on its inputs."""

    name: str = Field(pattern=GENERATOR_NAME)
    plan: str
    """Its text, in the language of ``docs/input-generators.md``."""
    provider: str
    """Its author's specification."""
    admitted: bool
    reason: str
    """Reason why it was not admitted, or not at every size; empty if admitted at all."""
    sizes: tuple[str, ...] = ()
    """Sizes at which it is used; never ``full``."""

    @model_validator(mode="after")
    def _consistent(self) -> InputGenerator:
        if self.admitted != bool(self.sizes):
            raise ValueError("a generator is admitted where there are sizes at which it is in force")
        if not self.admitted and not self.reason:
            raise ValueError("a generator that was refused needs a reason")
        if "full" in self.sizes or len(set(self.sizes)) != len(self.sizes):
            raise ValueError(f"a generator is not in force at the sizes {', '.join(self.sizes)}")
        if len(self.plan.encode(errors="surrogatepass")) > MAX_GENERATOR_BYTES and self.admitted:
            raise ValueError(f"an admitted generator has at most {MAX_GENERATOR_BYTES} bytes")
        return self


MAX_SOURCE_BYTES = 256 * 1024
MAX_PLAN_BYTES = 64 * 1024


class Candidate(Record):
    """CUDA C++ device source and its launch plan, named by the hash of both.

    A candidate of kind ``modelnew`` is a Python file with a class ``ModelNew``; it has no plan.
    """

    source: str = Field(min_length=1)
    plan: str
    choices: dict[str, int] = {}
    """Values of the plan's ``# tune:`` names; a name left out takes its first value."""
    lane: Literal["plan", "modelnew"] = "plan"

    @field_validator("source")
    @classmethod
    def _bounded_source(cls, value: str) -> str:
        if len(value.encode()) > MAX_SOURCE_BYTES:
            raise ValueError(f"source is larger than {MAX_SOURCE_BYTES} bytes")
        return value

    @field_validator("plan")
    @classmethod
    def _bounded_plan(cls, value: str) -> str:
        if len(value.encode()) > MAX_PLAN_BYTES:
            raise ValueError(f"plan is larger than {MAX_PLAN_BYTES} bytes")
        return value

    @model_validator(mode="after")
    def _a_plan_or_none(self) -> Candidate:
        if (self.lane == "plan") != bool(self.plan):
            raise ValueError("a candidate has a launch plan, one of lane 'modelnew' has none")
        if self.lane == "modelnew" and self.choices:
            raise ValueError("a candidate of lane 'modelnew' has no choices: it has no plan to make them in")
        return self

    @property
    def hash(self) -> str:
        return content_hash("candidate", self.source, self.plan, self.choices, self.lane)
