"""What a call to a model cost."""

from __future__ import annotations

from pydantic import Field

from kernelforge.records.base import Record


class Price(Record):
    """Dollars per million tokens."""

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Input read from the provider's prompt cache; None: as ``input``."""
    cache_write: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Input written to the provider's prompt cache; None: as ``input``."""


class Usage(Record):
    """Tokens, dollars and time of one call, as the provider counted them. None is unknown, never zero."""

    model: str
    """The model that answered, as the provider names it."""
    input_tokens: int | None = Field(default=None, ge=0)
    """All tokens of the prompt, cached ones included."""
    cached_tokens: int | None = Field(default=None, ge=0)
    """Part of ``input_tokens`` that was read from the provider's prompt cache."""
    cache_write_tokens: int | None = Field(default=None, ge=0)
    """Part of ``input_tokens`` that was written to the provider's prompt cache."""
    output_tokens: int | None = Field(default=None, ge=0)
    """All tokens of the reply, reasoning included."""
    reasoning_tokens: int | None = Field(default=None, ge=0)
    """Part of ``output_tokens`` that was reasoning."""
    dollars: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """None: the price is unknown."""
    seconds: float = Field(ge=0, allow_inf_nan=False)
    """Wall time of the call that succeeded, waiting for limits and retries excluded."""
    batch: bool = False
    """Whether it went through the provider's batch interface, which sells at half price."""
    retries: int = Field(default=0, ge=0)
    """Calls that failed before this one succeeded."""

    @property
    def tokens(self) -> int | None:
        """Input and output together, or None when either is unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return None
        return self.input_tokens + self.output_tokens
