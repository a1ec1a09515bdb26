"""Search strategies: what to try next. Pure, seeded, and resumable by replaying the attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kernelforge.errors import UsageError
from kernelforge.records import first_fault
from kernelforge.search.base import ProfileVisibility, Proposal, Strategy, score
from kernelforge.search.beam import Beam
from kernelforge.search.best_of_n import BestOfN, pass_at_k
from kernelforge.search.contrast import Contrast
from kernelforge.search.evolve import Evolve
from kernelforge.search.fsr import Fsr
from kernelforge.search.portfolio import Portfolio
from kernelforge.search.refine import Refine

STRATEGIES: dict[str, type[Strategy[Any]]] = {
    strategy.name: strategy for strategy in (Refine, BestOfN, Contrast, Fsr, Beam, Evolve, Portfolio)
}
"""Every strategy by name."""

__all__ = [
    "STRATEGIES",
    "Beam",
    "BestOfN",
    "Contrast",
    "Evolve",
    "Fsr",
    "Portfolio",
    "ProfileVisibility",
    "Proposal",
    "Refine",
    "Strategy",
    "make_strategy",
    "pass_at_k",
    "score",
    "strategy_options",
]


def strategy_class(name: str) -> type[Strategy[Any]]:
    """
    Raises:
        UsageError: there is no such strategy.
    """
    if name not in STRATEGIES:
        raise UsageError(f"there is no strategy {name!r}; choose one of: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def strategy_options(name: str, values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """All options of a strategy: those given, the others at their defaults.

    Raises:
        UsageError: an unknown strategy or option, or a value that the option cannot have.
    """
    strategy = strategy_class(name)
    options = strategy.Options.model_fields
    for option in values:
        if option not in options:
            what = f"its options are {', '.join(options)}" if options else "it has no options"
            raise UsageError(f"strategy {name!r} has no option {option!r}; {what}")
    try:
        return strategy.Options.model_validate(dict(values), strict=False).model_dump()
    except ValidationError as error:
        raise UsageError(f"strategy {name!r}, option {first_fault(error, show_input=True)}") from error


def make_strategy(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    stop_after: int | None = None,
    coders: int = 1,
) -> Strategy[Any]:
    """Build a strategy by name. ``rounds`` None: the published number; ``stop_after`` None: never.

    Raises:
        UsageError: as :func:`strategy_options`.
    """
    strategy = strategy_class(name)
    settled = strategy.Options.model_validate(strategy_options(name, options or {}))
    return strategy(settled, rounds=rounds, stop_after=stop_after, coders=coders)
