"""``mcts`` follows MCTS-AHD: seeds, then one kernel at a time where UCT and progressive widening say."""

from __future__ import annotations

import math
from typing import Any

from kernelforge.records import Operator
from kernelforge.search import Proposal
from kernelforge.search.mcts import Mcts, MctsOptions
from tests.search.attempt_records import NO_CODE, WRONG, Search, name, ok


def mcts(*, rounds: int | None = 1000, coders: int = 1, **options: Any) -> Search:
    return Search(Mcts(MctsOptions(**options), rounds=rounds, stop_after=None, coders=coders))


def optimise(parent: int, rank: int = 1, sample: int = 0) -> Proposal:
    return Proposal(Operator.OPTIMISE, parent=parent, judge=True, rank=rank, sample=sample)


def seed(sample: int) -> Proposal:
    return Proposal(Operator.SEED, sample=sample)


def repair(parent: int) -> Proposal:
    return Proposal(Operator.REPAIR, parent=parent, judge=True)


def test_its_constants_are_those_of_mcts_ahd() -> None:
    options = MctsOptions()
    assert (options.seeds, options.exploration, options.widening, options.depth) == (4, 0.1, 0.5, 10)
    assert Mcts.default_rounds(options) == 44


def test_four_seeds_can_be_asked_for_at_once_then_one_kernel_at_a_time() -> None:
    search = mcts()
    assert search.generation() == [seed(sample) for sample in range(4)]
    search.steps(ok(30), ok(10), ok(40), ok(20))
    assert search.generation() == [optimise(1)]


def test_a_kernel_gets_as_many_children_as_the_root_of_its_visits_before_one_of_them_is_improved() -> None:
    """Visits 1, 2, 3, 4: with one child or none, one, two, two."""
    search = mcts(seeds=1, exploration=0.0, widening=0.5)
    search.step(ok(100))
    assert search.step(ok(90)) == seed(1), "the root has one visit, and one child"
    # The root has two visits and two children; attempt 1 is the better seed.
    assert search.step(ok(80)) == optimise(1, rank=1)
    # Three visits of the root bound its children by 1.7; attempt 1 has two visits, and may have a second child.
    assert search.step(ok(70)) == optimise(1, rank=2)
    # Four visits allow the root a third child.
    assert search.step(ok(95)) == seed(2)
    # Attempt 1 has three visits and two children: the better of them is improved.
    assert search.step(ok(60)) == optimise(3, rank=1)


def test_the_child_is_the_one_of_the_highest_uct() -> None:
    """One seed of 8 us that was visited thrice, against one of 16 us that was visited once, of which each is tried."""

    def next_parent(exploration: float) -> int | None:
        search = mcts(seeds=2, exploration=exploration, rounds=1000, widening=0.0)
        search.steps(ok(8), ok(16))
        for time in (32, 64):
            proposal = search.ask()
            assert proposal is not None
            search.step(ok(time))
        proposal = search.ask()
        assert proposal is not None
        return proposal.parent

    # Q of the seeds is -ln 8 and -ln 16, the lowest score -ln 64: normalised 1 and 2/3.
    gap = 1 / 3
    term = math.sqrt(math.log(5)) * (1 - math.sqrt(1 / 3))
    enough = gap / term
    assert next_parent(0.0) in {0, 2, 3}
    assert next_parent(1.3 * enough) == 1
    assert next_parent(0.1) in {0, 2, 3}


def test_exploration_ends_with_the_rounds() -> None:
    """The same tree: early, the seed that was visited least is next; near the end, the best."""

    def last(rounds: int) -> int | None:
        search = mcts(seeds=2, exploration=5.0, rounds=rounds, widening=0.0)
        search.steps(ok(8), ok(16), ok(32))
        proposal = search.ask()
        assert proposal is not None
        return proposal.parent

    assert last(1000) == 1
    assert last(4) in {0, 2}


def test_moves_go_through_the_bottlenecks_and_then_comes_a_rewrite_with_the_best_of_another_line() -> None:
    search = mcts(seeds=3, exploration=0.0, widening=0.6, moves=2)
    search.steps(ok(10), ok(30), ok(20))
    proposals = [search.step(ok(50)) for _ in range(60)]
    own = [proposal for proposal in proposals if proposal.parent == 0][:4]
    rewrite = Proposal(Operator.CROSSOVER, parent=0, inspirations=(2,))
    assert own == [optimise(0, 1), optimise(0, 2), rewrite, optimise(0, 1, sample=1)]


def test_without_another_line_a_rewrite_is_another_move() -> None:
    search = mcts(seeds=1, exploration=0.0, widening=0.6, moves=1, repairs=0)
    search.step(ok(10))
    search.play(lambda proposal, rng: WRONG if proposal.operator is Operator.SEED else ok(50), steps=30)
    of_the_seed = [attempt for attempt in search.attempts if attempt.parent == name(0)]
    assert len(of_the_seed) >= 3
    assert {attempt.operator for attempt in of_the_seed} == {Operator.OPTIMISE}


def test_a_failing_child_is_repaired_and_is_one_kernel_with_its_repairs() -> None:
    search = mcts(seeds=1)
    search.steps(ok(20), ok(10), WRONG)
    assert search.generation() == [repair(2)]
    search.step(ok(5))
    assert search.strategy.state()["tree"] == [
        [0, 1, round(-math.log(20), 9)],
        [1, 2, round(-math.log(5), 9)],
        [3, 1, round(-math.log(5), 9)],
    ]


def test_what_cannot_be_repaired_counts_as_a_visit_and_is_left() -> None:
    search = mcts(seeds=1, repairs=1)
    search.steps(ok(10), ok(20), WRONG, WRONG)
    parents = []
    for _ in range(6):
        proposal = search.step(ok(30))
        parents.append(proposal.parent)
    assert 2 not in parents
    assert 3 not in parents


def test_seeds_that_cannot_be_repaired_end_the_search() -> None:
    search = mcts()
    search.play(lambda proposal, rng: WRONG)
    assert len(search.attempts) == 4 * (1 + 3)
    assert search.strategy.stopped == "4 seeds and their repairs gave nothing correct"


def test_seeds_are_repaired_only_while_none_is_correct() -> None:
    search = mcts()
    search.steps(WRONG, ok(10), NO_CODE, WRONG)
    assert search.generation() == [optimise(1)]


def test_no_kernel_is_deeper_than_the_depth() -> None:
    search = mcts(seeds=1, depth=2, exploration=0.0)
    depths: dict[int | None, int] = {None: 0}
    for step in range(30):
        proposal = search.step(ok(100 - step))
        depths[step] = depths[proposal.parent] + 1
    assert set(depths.values()) == {0, 1, 2}


def test_members_of_a_batch_count_as_visits_of_each_other() -> None:
    search = mcts(batch=3, seeds=2, exploration=0.1, widening=0.5)
    search.steps(ok(10), ok(11))
    batch = search.generation()
    assert len(batch) == 3
    assert len(set(batch)) == 3
    assert batch[:2] == [optimise(0, 1), optimise(0, 2)]
    state = search.strategy.state()
    assert search.generation() == batch
    assert search.strategy.state() == state


def test_a_tuned_child_stands_for_its_kernel_where_it_is_better() -> None:
    search = mcts(seeds=1)
    search.step(ok(10))
    search.tuned(ok(5))
    search.step(ok(20))
    assert search.ask() == optimise(1)
