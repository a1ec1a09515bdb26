"""Who answers: one table from a specification such as ``openai:MODEL`` to something that can be asked."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.errors import UsageError
from kernelforge.llm.base import Answerer, Meter
from kernelforge.llm.exchange import Exchange
from kernelforge.records import LLMSettings

PROVIDERS: dict[str, str] = {
    "exchange:FOLDER": "prompts out to a folder, replies read back: a person or any coding agent as the model",
}
"""What may answer prompts, and what it is."""


class Providers:
    """The providers of one run. Clients, limits and transcripts are shared by all of its tasks.

    Args:
        settings: how models are called.
        stopped: looked at while waiting; true ends the wait with
            :class:`~kernelforge.errors.BudgetExhausted`.
    """

    def __init__(self, settings: LLMSettings, *, stopped: Callable[[], bool] = lambda: False) -> None:
        self.settings = settings
        self._stopped = stopped

    def check(self, spec: str) -> None:
        """See that ``spec`` could be asked: it exists, its key is there, its file can be read. Calls nothing.

        Raises:
            UsageError: it could not; the message says what to do.
        """
        provider, _, rest = spec.partition(":")
        if provider != "exchange" or not rest:
            known = "; ".join(f"'{name}' ({what})" for name, what in PROVIDERS.items())
            raise UsageError(f"there is no provider {spec!r}; choose one of: {known}")

    def answerer(self, spec: str, meter: Meter) -> Answerer:
        """What answers for ``spec``, at the expense of ``meter``.

        Raises:
            UsageError: as :meth:`check`.
        """
        self.check(spec)
        return Exchange(spec.partition(":")[2], stopped=self._stopped)

    def close(self) -> None:
        """End clients and whatever waits in them."""
