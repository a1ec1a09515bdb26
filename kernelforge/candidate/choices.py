"""A candidate's ``# tune:`` values: all of them, and a plan that takes them by itself."""

from __future__ import annotations

from kernelforge.candidate.language.text import chosen_first, normalise
from kernelforge.candidate.plan import parse_plan
from kernelforge.errors import CandidateError
from kernelforge.records import Candidate


def chosen_values(candidate: Candidate) -> dict[str, int]:
    """The value of every ``# tune:`` name, the first one where the candidate chooses none.

    Of a plan that cannot be read, what the candidate chooses.
    """
    try:
        tunables = parse_plan(candidate.plan).tunables
    except CandidateError:
        return dict(candidate.choices)
    return {name: values[0] for name, values in tunables.items()} | candidate.choices


def plan_as_chosen(candidate: Candidate) -> str:
    """The plan with the chosen value first on each ``# tune:`` line: without any choice it does the same.

    Where all first values are chosen, and where the plan cannot be read, it is the plan as it is.
    """
    return chosen_first(normalise(candidate.plan), candidate.choices) if candidate.choices else candidate.plan
