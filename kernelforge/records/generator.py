"""Input generators: further tests of a task that an agent proposed."""

from __future__ import annotations

from pydantic import Field, model_validator

from kernelforge.records.base import Record

MAX_GENERATOR_BYTES = 4096
"""Size of one generator's text."""

GENERATOR_NAME = r"^[a-z][a-z0-9_]{0,31}$"


class InputGenerator(Record):
    """One generator, and whether candidates are checked on it."""

    name: str = Field(pattern=GENERATOR_NAME)
    plan: str
    """Its text, in the language of ``docs/input-generators.md``."""
    provider: str
    """Who wrote it."""
    admitted: bool
    reason: str
    """Why it was not admitted, or not at every size; empty where nothing was refused."""
    sizes: tuple[str, ...] = ()
    """Sizes at which it is in force; never ``full``."""

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
