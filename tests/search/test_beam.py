"""``beam`` follows KernelAgent: seeds, then each member at each bottleneck, without one kernel twice in the beam."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.records import Operator
from kernelforge.search import Proposal
from kernelforge.search.beam import Beam, BeamOptions, beam_of
from tests.search.attempt_records import NO_CODE, WRONG, Search, ok
from tests.support.factories import make_attempt, make_candidate, measured_evaluation


def beam(*, rounds: int | None = 100, stop_after: int | None = None, coders: int = 1, **options: Any) -> Search:
    return Search(Beam(BeamOptions(**options), rounds=rounds, stop_after=stop_after, coders=coders))


def members(search: Search) -> list[int]:
    assert isinstance(search.strategy, Beam)
    return search.strategy.members


def optimise(parent: int, rank: int = 1) -> Proposal:
    return Proposal(Operator.OPTIMISE, parent=parent, judge=True, rank=rank)


def repair(parent: int) -> Proposal:
    return Proposal(Operator.REPAIR, parent=parent, judge=True)


def test_its_defaults_are_kernelagents() -> None:
    options = BeamOptions()
    assert (options.width, options.bottlenecks, options.seeds, options.repairs, options.patience) == (2, 2, 4, 3, 0)
    assert Beam.default_rounds(options) == 4 + 10 * 4
    assert Beam.default_stop_after is None


def test_four_seeds_can_be_asked_for_at_once() -> None:
    assert beam().generation() == [Proposal(Operator.SEED, sample=number) for number in range(4)]


def test_a_round_is_each_member_at_each_bottleneck() -> None:
    search = beam()
    search.steps(ok(30), ok(10), ok(40), ok(20))
    assert members(search) == [1, 3]
    assert search.generation() == [optimise(1, 1), optimise(1, 2), optimise(3, 1), optimise(3, 2)]


def test_width_and_bottlenecks_make_the_round() -> None:
    search = beam(width=3, bottlenecks=1, seeds=3)
    search.steps(ok(30), ok(10), ok(20))
    assert search.generation() == [optimise(1), optimise(2), optimise(0)]


def test_a_short_beam_is_not_filled_with_copies() -> None:
    search = beam()
    search.steps(ok(30), NO_CODE, NO_CODE, NO_CODE)
    assert search.generation() == [optimise(0, 1), optimise(0, 2)]


def test_the_beam_is_the_best_of_old_and_new() -> None:
    search = beam()
    search.steps(ok(10), ok(20), ok(30), ok(40))
    search.steps(ok(15), ok(50), ok(60), ok(5))
    assert members(search) == [7, 0]


def test_a_regression_never_enters_a_full_beam() -> None:
    search = beam()
    search.steps(ok(10), ok(20), ok(30), ok(40), ok(21), ok(22), ok(23), ok(24))
    assert members(search) == [0, 1]


def test_measured_kernels_are_ahead_of_modelled_ones_in_the_beam() -> None:
    attempts = [make_attempt(number) for number in range(3)]
    evaluation = measured_evaluation(0.1, candidate=attempts[1].evaluation.candidate)
    attempts[1] = attempts[1].model_copy(update={"evaluation": evaluation})
    assert beam_of(attempts, 2) == [1, 0]


def test_attempts_with_one_ptx_are_one_member_and_the_better_stands_for_it() -> None:
    search = beam(seeds=5)
    search.steps(ok(30, ptx="a"), ok(10, ptx="a"), ok(20, ptx="a"), ok(50, ptx="b"), ok(40, ptx="c"))
    assert members(search) == [1, 4]


def test_of_equal_kernels_the_oldest_stands() -> None:
    search = beam(seeds=3)
    search.steps(ok(10, ptx="a"), ok(10, ptx="a"), ok(10, ptx="b"))
    assert members(search) == [0, 2]


def test_without_a_ptx_the_text_counts() -> None:
    same = make_candidate("same").source
    search = beam(seeds=3)
    search.steps(ok(10, code=same), ok(10, code=same), ok(20))
    assert members(search) == [0, 2]


def test_two_rounds_that_only_return_the_parent_leave_the_beam_as_it_was() -> None:
    """KernelAgent's beam filled with copies of its best kernel."""
    search = beam()
    search.steps(ok(10, ptx="a"), ok(20, ptx="b"), ok(30, ptx="c"), ok(40, ptx="d"))
    for _ in range(2):
        search.steps(*[ok(10, ptx="a")] * 4)
        assert members(search) == [0, 1]


def test_a_tuned_child_replaces_its_parent_if_it_is_better() -> None:
    search = beam(seeds=3)
    search.steps(ok(10, ptx="a"), ok(20, ptx="b"))
    search.tuned(ok(15, ptx="b2"), parent=1)
    search.step(ok(30, ptx="c"))
    assert members(search) == [0, 2]
    search.tuned(ok(12, ptx="c2"))
    assert members(search) == [0, 4]
    assert search.generation()[2] == optimise(4, 1)


def test_a_worse_tuned_child_takes_no_place_beside_its_parent() -> None:
    search = beam(seeds=2)
    search.step(ok(10, ptx="a"))
    search.tuned(ok(11, ptx="a2"))
    search.step(ok(20, ptx="b"))
    assert members(search) == [0, 2]


def test_what_failed_is_mended_thrice_before_the_round_ends() -> None:
    search = beam()
    search.steps(ok(10), ok(20), NO_CODE, NO_CODE)
    search.steps(ok(15), WRONG, NO_CODE, WRONG)
    assert search.generation() == [repair(5), repair(7)]
    search.steps(ok(5), WRONG)
    assert members(search) == [8, 0], "a repaired child is a member of the beam"
    assert search.generation() == [repair(9)]
    search.step(WRONG)
    assert search.generation() == [repair(10)]
    search.step(WRONG)
    assert search.generation() == [optimise(8, 1), optimise(8, 2), optimise(0, 1), optimise(0, 2)]


def test_without_repairs_a_failed_child_is_let_go() -> None:
    search = beam(repairs=0)
    search.steps(ok(10), ok(20), ok(30), ok(40), WRONG, WRONG, WRONG, WRONG)
    assert search.generation()[0] == optimise(0)


def test_seeds_are_mended_only_while_none_is_correct() -> None:
    search = beam()
    search.steps(WRONG, WRONG, NO_CODE, WRONG)
    assert search.generation() == [repair(0), repair(1), repair(3)]
    search.steps(WRONG, ok(10), WRONG)
    assert search.generation() == [optimise(5, 1), optimise(5, 2)]


def test_seeds_that_cannot_be_mended_end_the_search() -> None:
    search = beam()
    search.play(lambda proposal, rng: WRONG)
    assert len(search.attempts) == 4 * (1 + 3)
    assert search.strategy.stopped == "4 seeds and their repairs gave nothing correct"


def test_greedy_is_a_beam_of_one_that_stops_after_five_rounds_without_gain() -> None:
    search = beam(width=1, bottlenecks=1, patience=5, seeds=1)
    search.steps(ok(10), *[ok(11)] * 4)
    assert search.generation() == [optimise(0)]
    search.steps(ok(9), *[ok(10)] * 4)
    assert search.generation() == [optimise(5)]
    search.step(ok(9))
    assert search.generation() == []
    assert search.strategy.stopped == "5 rounds without a better kernel"


def test_rounds_in_which_nothing_ran_right_do_not_count_against_patience() -> None:
    search = beam(width=1, bottlenecks=1, patience=2, seeds=1, repairs=0)
    search.steps(ok(10), ok(11), WRONG, WRONG, WRONG)
    assert search.generation() == [optimise(0)]
    search.step(ok(11))
    assert search.generation() == []


def test_a_tuned_child_that_is_better_counts_as_gain() -> None:
    search = beam(width=1, bottlenecks=1, patience=2, seeds=1)
    search.steps(ok(10), ok(11))
    search.tuned(ok(9))
    search.step(ok(12))
    assert search.strategy.stopped is None


def test_coders_take_turns_at_each_bottleneck() -> None:
    search = beam(coders=2)
    seen = set()
    search.steps(*[ok(10)] * 4)
    for _ in range(2):
        seen |= {(proposal.rank, proposal.coder) for proposal in search.generation()}
        search.steps(*[ok(11)] * 4)
    assert seen == {(1, 0), (1, 1), (2, 0), (2, 1)}


@pytest.mark.parametrize("recorded", range(1, 4))
def test_a_round_is_the_same_however_much_of_it_was_told(recorded: int) -> None:
    search = beam()
    search.steps(ok(10), ok(20), ok(30), ok(40))
    complete = search.generation()
    search.steps(*[ok(1)] * recorded)
    assert search.generation() == complete[recorded:]


def test_its_state_says_where_it_stands() -> None:
    search = beam()
    search.steps(ok(10), ok(20), ok(30), ok(40), WRONG, ok(5), ok(6), ok(7))
    assert search.strategy.state() == {
        "strategy": "beam",
        "steps": 8,
        "best": 5,
        "generation": 2,
        "next": "repair",
        "beam": [5, 6],
        "failing": [4],
        "rounds_without_gain": 0,
    }


def test_the_tasks_best_leads_the_beam_even_where_modelled_times_tell_nothing_apart() -> None:
    search = beam(seeds=3)
    search.steps(ok(10, ptx="a"), ok(10, ptx="b"), ok(11, ptx="c", changes={"accepted": True}))
    assert members(search) == [2, 0]
