"""``# tune:`` values of a candidate: all combinations, and the plan with one of them fixed."""

from __future__ import annotations

from functools import lru_cache

from kernelforge.candidate.plan import parse_plan
from kernelforge.candidate.plan_language.lexer import chosen_first, normalise
from kernelforge.errors import CandidateError
from kernelforge.records import Candidate


def chosen_values(candidate: Candidate) -> dict[str, int]:
    """The value of every ``# tune:`` name, the first one where the candidate chooses none.

    Of a plan that cannot be read, what the candidate chooses.
    """
    return {**_first_values(candidate.plan), **candidate.choices}


@lru_cache(maxsize=256)  # reports ask of every attempt as itself, as a parent and as the best
def _first_values(plan: str) -> dict[str, int]:
    """The first value of every ``# tune:`` name; none of a plan that cannot be read."""
    try:
        return {name: values[0] for name, values in parse_plan(plan).tunables.items()}
    except CandidateError:
        return {}


def plan_as_chosen(candidate: Candidate) -> str:
    """The plan with the chosen value first on each ``# tune:`` line: without any choice it does the same.

    Where all first values are chosen, and where the plan cannot be read, it is the plan as it is.
    """
    return chosen_first(normalise(candidate.plan), candidate.choices) if candidate.choices else candidate.plan
