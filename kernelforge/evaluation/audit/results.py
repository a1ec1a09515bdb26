"""Results of an audit, as they cross from the child to the parent. No torch here."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from kernelforge.records.base import Record

MOST_MUTANTS: Final = 60
"""Mutants of one task that are run, by an audit or for a Tester's score, unless another number is given."""


class MutantOutcome(Record):
    """One mutant: the reference with one fault in it."""

    mutant: str = Field(max_length=300)
    """Its stable name, ``fault:detail@place``."""
    fault: str = Field(max_length=80)
    outcome: Literal["killed", "survived", "invalid"]
    """``invalid``: at no size that is checked does the fault give an answer of the right shape, or exist at all."""
    size: str = Field(default="", max_length=80)
    """Where it was first rejected."""
    family: str = Field(default="", max_length=80)
    bitwise_equal: bool = False
    """It gave the reference's very bits on every draw."""
    kernelbench_killed: bool = False
    """KernelBench's rule rejects it."""

    @model_validator(mode="after")
    def _killed_somewhere(self) -> MutantOutcome:
        if (self.outcome == "killed") != bool(self.size and self.family):
            raise ValueError("a mutant has a place where it was killed exactly when it was killed")
        if self.outcome != "survived" and self.bitwise_equal:
            raise ValueError("only a survivor can be bitwise equal")
        return self


class TestedMutant(Record):
    """One mutant, and which inputs reject it: the task's own, a Tester's, any that a candidate is checked on."""

    mutant: str = Field(max_length=300)
    fault: str = Field(max_length=80)
    by_first: bool
    """The task's own inputs reject it, at one of the sizes that are checked. The others are not tried then."""
    by_tests: tuple[str, ...] = ()
    """Names of the generators whose inputs reject it, where the task's own do not."""
    by_check: bool
    """The check rejects it without a generator: on the task's own inputs, or on another family."""

    @model_validator(mode="after")
    def _first_inputs_are_of_the_check(self) -> TestedMutant:
        if self.by_first and (self.by_tests or not self.by_check):
            raise ValueError("what the task's own inputs reject is rejected by the check, and tried on no generator")
        return self


class TaskAudit(Record):
    """Every mutant of one task that was run."""

    task: str
    mutants: tuple[MutantOutcome, ...] = ()
    made: int = Field(default=0, ge=0, lt=2**63)
    """How many mutants could be made, those beyond the cap too."""
    same_as: str = ""
    """The task on which this was found, where another is checked on the very same things; empty otherwise."""
    error: str = ""
    """Why there are none; empty otherwise."""
