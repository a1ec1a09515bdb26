"""A strategy that begins where another search stands builds on what that one found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import BestOfN, Contrast, Fsr, Proposal, Refine
from tests.support.factories import make_attempt, make_evaluation, modelled


def past() -> list[Attempt]:
    made = []
    for number, time in enumerate([20.0, 10.0]):
        attempt = make_attempt(number, accepted=True)
        evaluation = make_evaluation(candidate=attempt.evaluation.candidate, performance=modelled(time))
        made.append(attempt.model_copy(update={"evaluation": evaluation}))
    return [*made, make_attempt(2, Verdict.WRONG)]


def first_proposal(strategy: Any) -> Proposal:
    strategy.start_from(past())
    proposal = strategy.ask(Random(0))
    assert isinstance(proposal, Proposal)
    assert strategy.state()["steps"] == 0
    return proposal


def test_refine_optimises_the_best_and_repairs_no_failure_of_others() -> None:
    proposal = first_proposal(Refine(Refine.Options()))
    assert (proposal.operator, proposal.parent) == (Operator.OPTIMISE, 1)


def test_refine_without_rollback_goes_on_from_the_latest_kernel() -> None:
    proposal = first_proposal(Refine(Refine.Options(rollback=False)))
    assert (proposal.operator, proposal.parent) == (Operator.REPAIR, 2)


def test_contrast_shows_what_was_found() -> None:
    proposal = first_proposal(Contrast(Contrast.Options()))
    assert (proposal.operator, proposal.parent, proposal.inspirations) == (Operator.CONTRAST, 1, (0,))


@pytest.mark.parametrize(("samples", "parent"), [(2, 1), (1, 2)])
def test_fsr_takes_the_latest_attempts_as_its_last_round(samples: int, parent: int) -> None:
    proposal = first_proposal(Fsr(Fsr.Options(samples=samples)))
    assert (proposal.operator, proposal.parent) == (Operator.FSR, parent)


def test_best_of_n_still_draws_all_its_samples() -> None:
    strategy = BestOfN(BestOfN.Options(samples=3), rounds=None, stop_after=None)
    assert first_proposal(strategy).operator is Operator.SEED
    assert [strategy.ask(Random(0), ahead) is None for ahead in range(4)] == [False, False, False, True]
