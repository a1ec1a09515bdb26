"""Builds: the compiler's output for a candidate's source, and its diagnostics."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kernelforge.records.base import Record


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
