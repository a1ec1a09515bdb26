"""Candidates and input generators with their digests, and builds with their diagnostics."""

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


class Diagnostic(Record):
    """One compiler message."""

    file: str
    line: int | None = Field(default=None, ge=0)
    severity: Literal["error", "warning", "note", "remark"]
    message: str

    def __str__(self) -> str:
        position = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{position}: {self.severity}: {self.message}"


class KernelFacts(Record):
    """Report of ptxas about one entry point on the real architecture."""

    expression: str
    """The name the plan launches: ``softmax`` or ``softmax<float, 256>``."""
    symbol: str
    """Lowered (mangled) name in the PTX and the cubin."""
    registers_per_thread: int = Field(ge=0)
    static_shared_bytes: int = Field(ge=0)
    spill_store_bytes: int = Field(ge=0)
    spill_load_bytes: int = Field(ge=0)
    stack_frame_bytes: int = Field(ge=0)
    max_threads_per_block: int | None = None


class Build(Record):
    """Result of one compilation. One that is ``ok`` has no errors; any other has an error, a refusal or a limit."""

    key: str
    """Content address: source, options, toolchain version, architecture."""
    ok: bool
    refused: str | None = None
    """Reason why the policy gate refused an otherwise good build (verdict ``POLICY``)."""
    limit: Literal["time", "memory", "output"] | None = None
    """Limit that the compiler process exceeded, if any (verdict ``LIMIT`` or ``TIMEOUT``)."""
    arch: str
    toolchain: str
    """For instance ``nvrtc 13.0.88``."""
    ptx_hash: str | None = None
    """Hash of the PTX without names: equal for sources that differ only in names and layout. None without PTX."""
    kernels: tuple[KernelFacts, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """Wall time of the compilation; 0 when it came from the cache."""
    cached: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Build:
        if self.ok and (self.refused or self.limit):
            raise ValueError("a build that is ok cannot be refused or have hit a limit")
        if self.ok and self.errors:
            raise ValueError("a build that is ok cannot carry errors")
        if not self.ok and not self.refused and not self.limit and not self.errors:
            raise ValueError("a failed build needs an error, a refusal or a limit")
        return self

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(d for d in self.diagnostics if d.severity == "error")
