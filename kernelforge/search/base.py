"""Interface of search strategies: ``ask`` returns the next proposal; ``tell`` records the finished attempt.

A strategy does no I/O, reads no clock and draws randomness only from the generator it is handed. Its whole state is
a function of what it was told, so ``resume`` needs no checkpoint: it tells the strategy the journalled attempts.

A *step* is one proposal; tuned children (``Operator.TUNE``) come between steps, are told like any attempt, and are not
steps. Strategies that work in generations let several steps be asked for at once: ``ask(rng, ahead)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Literal, Protocol

from kernelforge.records import Attempt, Operator


@dataclass(frozen=True)
class ProfileVisibility:
    """What the agents are shown of a profile."""

    metrics: Literal["none", "subset", "full"] = "subset"
    """``subset``: the 24 metrics that CudaForge found to tell most. ``full``: all of the profile, with hot spots."""
    latency: bool = True
    """Times and speedups."""


DEFAULT_VISIBILITY = ProfileVisibility()


@dataclass(frozen=True)
class Proposal:
    """What to do next. Attempts are named by their number within the task."""

    operator: Operator
    parent: int | None = None
    judge: bool = False
    """Ask the Judge for a finding on the parent first."""
    rank: int = 1
    """Which bottleneck the Judge is to name: the most important is 1."""
    inspirations: tuple[int, ...] = ()
    """Further attempts that the Coder is shown as examples."""
    technique: str | None = None
    """An optimisation feature that the Coder is asked to use."""
    coder: int = 0
    """Which of the run's Coders."""
    sample: int = 0
    """Position among proposals that are otherwise the same."""
    sight: ProfileVisibility = DEFAULT_VISIBILITY


class Strategy(Protocol):
    """One task's search."""

    name: ClassVar[str]
    source: ClassVar[str]
    """The system and paper whose method this is."""

    ends_on_stop: ClassVar[bool]
    """Whether a Judge's ``stop`` ends the search; else the Coder is then asked without a finding."""
    steps: list[int]
    """Numbers of the attempts told that were steps."""

    def ask(self, rng: Random, ahead: int = 0) -> Proposal | None:
        """The proposal ``ahead`` steps after the last one told, or None.

        Changes nothing: the same past, generator and ``ahead`` give the same proposal, whatever was asked before. The
        caller seeds ``rng`` by the step. None for ``ahead`` = 0 means that the search is over, and ``stopped`` says
        why; for a later step, that it depends on results that are still to be told.
        """
        ...

    def tell(self, attempt: Attempt) -> None:
        """Take in a finished attempt. Attempts come in order of their numbers."""
        ...

    @property
    def best(self) -> int | None:
        """Number of the best attempt so far."""
        ...

    @property
    def stopped(self) -> str | None: ...

    def state(self) -> dict[str, Any]:
        """Where the search stands, as plain JSON: for people, and for ``resume`` to see that it arrived at the same."""
        ...
