"""``evolve``: parents from an archive by kind of kernel, and a bandit that learns who writes the better children."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from kernelforge.records import Attempt, Message, Operator, Usage, Verdict
from kernelforge.search import Proposal
from kernelforge.search.evolve import Evolve, EvolveOptions, parent_weights
from tests.search.attempt_records import NO_CODE, WRONG, Outcome, Search, ok
from tests.support.factories import make_attempt, make_candidate, make_passed_over, measured_evaluation

SHARED = "__global__ void k(float* x) { __shared__ float t[32]; t[0] = x[%d]; x[0] = t[0]; }"
TENSOR = "__global__ void k(float* x) { wmma::mma_sync(c, a, b, c); x[0] = %d; }"


def evolve(*, rounds: int | None = 500, stop_after: int | None = None, coders: int = 1, **options: Any) -> Search:
    return Search(Evolve(EvolveOptions(**options), rounds=rounds, stop_after=stop_after, coders=coders))


def strategy(search: Search) -> Evolve:
    assert isinstance(search.strategy, Evolve)
    return search.strategy


def archived(search: Search) -> list[set[int]]:
    return [{item.number for item in grid.values()} for grid in strategy(search).archives]


def members(*times: float) -> list[Attempt]:
    search = evolve(seeds=len(times))
    return [search.attempts[-1] for time in times if search.step(ok(time))]


def test_its_defaults_are_shinkas() -> None:
    options = EvolveOptions()
    assert (options.islands, options.migration_interval, options.migration_rate) == (2, 10, 0.0)
    assert (options.exploration, options.epsilon, options.decay, options.cost_weight) == (1.0, 0.2, 0.95, 0.5)
    assert (options.sharpness, options.batch) == (10.0, 6)
    assert Evolve.default_rounds(options) == 50


def test_it_begins_with_seeds_and_goes_on_in_batches() -> None:
    search = evolve(seeds=2, batch=6)
    assert search.generation() == [Proposal(Operator.SEED, sample=number) for number in range(2)]
    search.steps(ok(10), WRONG)
    batch = search.generation()
    assert [(item.operator, item.parent, item.judge) for item in batch] == [(Operator.OPTIMISE, 0, True)] * 6
    assert [item.sample for item in batch] == list(range(6))


def test_while_nothing_is_correct_failures_are_mended_and_given_up_after_three_repairs() -> None:
    search = evolve(seeds=2)
    search.steps(WRONG, NO_CODE)
    for failing in (0, 2, 4):
        mend, seed = search.generation()
        assert (mend.operator, mend.parent, mend.judge) == (Operator.REPAIR, failing, True)
        assert seed.operator is Operator.SEED
        search.steps(WRONG, NO_CODE)
    assert [item.operator for item in search.generation()] == [Operator.SEED, Operator.SEED]


def test_a_correct_repair_is_a_parent() -> None:
    search = evolve(seeds=1)
    search.steps(WRONG, ok(10))
    assert {item.parent for item in search.generation()} == {1}


def test_failed_children_are_no_parents_and_are_not_mended() -> None:
    search = evolve(seeds=1, batch=2)
    search.steps(ok(10), WRONG, WRONG)
    assert {(item.operator, item.parent) for item in search.generation()} == {(Operator.OPTIMISE, 0)}


def test_the_archive_keeps_the_best_of_each_kind() -> None:
    search = evolve(seeds=6)
    search.steps(
        ok(10), ok(50, bound="fp32"), ok(20), ok(90, code=SHARED % 1), ok(80, code=SHARED % 2), ok(99, code=TENSOR % 1)
    )
    assert archived(search) == [{0, 1, 4, 5}]


def test_parents_come_from_the_archive_alone() -> None:
    search = evolve(seeds=3, batch=30)
    search.steps(ok(10), ok(50, bound="fp32"), ok(20))
    assert {item.parent for item in search.generation()} <= {0, 1}


def test_a_copy_gets_no_place_and_earns_nothing() -> None:
    source = make_candidate("same").source
    copy = source.replace("out", "result") + "// a comment"
    search = evolve(seeds=1, batch=1)
    search.steps(ok(20, code=source), ok(10, code=copy, bound="fp32"))
    assert archived(search) == [{0}]
    assert strategy(search).state()["bandit"] == [{"arm": [0, "optimise"], "pulls": 1, "mean_gain": 0.0}]
    assert strategy(search).novelty_rate == 0.5


def near(number: int) -> str:
    """Kernels that differ by one number among many tokens."""
    return "__global__ void k(float* out) {\n" + "  out[threadIdx.x] += 1.0f;\n" * 30 + f"  out[0] = {number};\n}}"


def test_a_near_copy_that_is_no_better_is_one_where_alike_says_so() -> None:
    results = (ok(20, code=near(1)), ok(21, code=near(2), bound="fp32"), ok(10, code=near(3), bound="l2"))
    for alike, places, rate in ((1.0, {0, 1, 2}, 1.0), (0.9, {0, 2}, 2 / 3)):
        search = evolve(seeds=1, batch=2, alike=alike)
        search.steps(*results)
        assert archived(search) == [places]
        assert strategy(search).novelty_rate == pytest.approx(rate, abs=1e-6)


def test_near_copies_are_not_crossed_where_another_is_there() -> None:
    results = (ok(20, code=near(1)), ok(10, code=near(2), bound="fp32"), ok(30, code=SHARED % 1))
    crossed = {}
    for alike in (1.0, 0.9):
        search = evolve(seeds=3, batch=60, alike=alike)
        search.steps(*results)
        pairs = [(item.parent, *item.inspirations) for item in search.generation() if item.inspirations]
        crossed[alike] = {frozenset(pair) for pair in pairs}
    assert frozenset({0, 1}) in crossed[1.0]
    assert crossed[0.9] == crossed[1.0] - {frozenset({0, 1})}


def test_the_same_ptx_is_a_copy() -> None:
    search = evolve(seeds=1, batch=2)
    search.steps(ok(20, ptx="a"), ok(10, ptx="a"), ok(15, ptx="b"))
    assert archived(search) == [{2}]
    assert strategy(search).novelty_rate == pytest.approx(2 / 3, abs=1e-6)


def test_a_kernel_that_failed_for_passing_reasons_gets_its_place_when_it_runs() -> None:
    source = make_candidate("same").source
    search = evolve(seeds=2)
    search.steps(Outcome(Verdict.INFRA, code=source), ok(10, code=source))
    assert archived(search) == [{1}]


def test_replies_without_a_candidate_do_not_count_for_novelty() -> None:
    search = evolve(seeds=2)
    assert strategy(search).novelty_rate is None
    search.steps(NO_CODE, ok(10))
    assert strategy(search).novelty_rate == 1.0


def test_a_tuned_child_takes_its_parents_place_if_it_is_better() -> None:
    search = evolve(seeds=1, batch=1)
    search.step(ok(20))
    search.tuned(ok(30, bound="fp32", code=SHARED % 1))
    assert archived(search) == [{0}]
    search.tuned(ok(10, bound="fp32", code=SHARED % 2), parent=0)
    assert archived(search) == [{2}]


def test_a_bandit_arm_earns_the_gain_over_the_parent_and_the_first_kernel() -> None:
    """Score is minus the log of a modelled time, so half the time is a gain of ln 2: 100 % more speed."""
    search = evolve(seeds=1, batch=1, decay=1.0)
    search.steps(ok(20), ok(40, bound="fp32"))
    assert strategy(search).bandit.state()[0]["mean_gain"] == 0.0
    search.step(ok(10))
    state = strategy(search).bandit.state()
    assert sum(item["mean_gain"] * item["pulls"] for item in state) == pytest.approx(1.0)


def test_crossover_joins_a_parent_with_a_kernel_of_another_kind() -> None:
    search = evolve(seeds=2, batch=12)
    search.steps(ok(10), ok(12, bound="fp32"))
    crossed = [item for item in search.generation() if item.operator is Operator.CROSSOVER]
    assert crossed
    for item in crossed:
        assert not item.judge
        assert {item.parent, *item.inspirations} == {0, 1}


def test_without_a_second_kind_there_is_no_crossover() -> None:
    search = evolve(seeds=2, batch=12, epsilon=0.9)
    search.steps(ok(10), ok(12))
    assert {item.operator for item in search.generation()} == {Operator.OPTIMISE}


@pytest.mark.slow
def test_the_coder_that_gains_more_is_asked_more() -> None:
    search = evolve(seeds=2, coders=2, batch=6)
    times = iter(range(1, 1000))

    def outcome(proposal: Proposal, rng: Random) -> Outcome:
        if proposal.operator is Operator.SEED:
            return ok(1e6)
        assert proposal.parent is not None
        before = search.attempts[proposal.parent].evaluation.performance
        assert before is not None
        gain = 0.9 if proposal.coder == 1 else 1.0 - 1e-6 * next(times)
        return ok(before.time_us * gain)

    search.play(outcome, steps=300)
    requested = Counter(attempt.coder for attempt in search.attempts[100:])
    assert requested["test:1"] > 1.5 * requested["test:0"]


def priced(dollars: float | None) -> dict[str, Any]:
    usage = Usage(model="m", dollars=dollars, seconds=1.0)
    return {"messages": (Message(agent="coder", role="reply", provider="p", content="", usage=usage),)}


@pytest.mark.slow
def test_of_coders_that_gain_alike_the_cheaper_is_asked_more() -> None:
    search = evolve(seeds=2, coders=2, batch=6)
    search.play(lambda proposal, rng: ok(10, changes=priced((5.0, 0.05)[proposal.coder])), steps=200)
    requested = Counter(attempt.coder for attempt in search.attempts[50:])
    assert requested["test:1"] > 1.5 * requested["test:0"]


def test_a_coder_that_the_run_has_twice_is_one_arm() -> None:
    search = evolve(seeds=2, coders=2, batch=6, epsilon=0.0)
    search.play(lambda proposal, rng: ok(10, changes={"coder": "the same"}), steps=40)
    assert {item["arm"][0] for item in strategy(search).bandit.state()} == {0}
    assert {item.coder for item in search.generation()} == {0}


def test_coders_take_turns_until_each_is_known_by_name() -> None:
    search = evolve(seeds=1, coders=3, batch=4)
    search.step(ok(10))
    assert [item.coder for item in search.generation()] == [1, 2, 0, 1]


def test_parents_are_drawn_by_score_over_the_median_and_by_children() -> None:
    best, middle, worst = members(10.0, 20.0, 40.0)
    weights = parent_weights([best, middle, worst], Counter(), 10.0)
    assert weights == pytest.approx([1 / (1 + 2.718281828**-10), 0.5, 1 / (1 + 2.718281828**10)], rel=1e-3)
    assert parent_weights([best, middle, worst], Counter({best.number: 3}), 10.0)[0] == pytest.approx(0.25, rel=1e-3)


def test_equal_parents_are_drawn_alike_and_one_without_a_time_last() -> None:
    item, two = members(10.0, 10.0)
    untimed = make_attempt(5)
    untimed = untimed.model_copy(update={"evaluation": untimed.evaluation.model_copy(update={"performance": None})})
    assert parent_weights([item, two], Counter(), 10.0) == [0.5, 0.5]
    assert parent_weights([item, untimed], Counter(), 10.0) == [0.5, 0.0]
    assert parent_weights([untimed], Counter(), 10.0) == [1.0]


def test_a_parent_that_was_passed_over_is_drawn_after_measured_ones() -> None:
    soft, others = make_attempt(0, evaluation=make_passed_over()), members(10.0, 20.0)
    real = [
        other.model_copy(update={"evaluation": measured_evaluation(speedup, candidate=other.evaluation.candidate)})
        for other, speedup in zip(others, (2.0, 1.0), strict=True)
    ]
    weights = parent_weights([soft, *real], Counter(), 10.0)
    assert weights[0] == 0.0
    assert weights[1:] == parent_weights(real, Counter(), 10.0)


def kinds(count: int) -> list[Outcome]:
    """Correct kernels of so many kinds, the best first."""
    return [ok(10.0 + number, bound=f"bound {number}") for number in range(count)]


def test_islands_part_after_so_many_attempts_and_get_kernels_by_rank() -> None:
    search = evolve(seeds=4, islands_after=4)
    search.steps(*kinds(3))
    assert archived(search) == []
    search.step(kinds(4)[3])
    assert archived(search) == [{0, 2}, {1, 3}]


def test_before_that_there_is_one_island() -> None:
    search = evolve(seeds=4, islands_after=5)
    search.steps(*kinds(4))
    assert archived(search) == [{0, 1, 2, 3}]


def test_children_stay_on_their_parents_island_and_crossover_does_too() -> None:
    search = evolve(seeds=4, islands_after=4, batch=20)
    search.steps(*kinds(4))
    complete = search.generation()
    for item in complete:
        assert len({number % 2 for number in (item.parent, *item.inspirations) if number is not None}) == 1
    search.steps(*[ok(1, bound=f"child of {item.parent}") for item in complete])
    for island, numbers in enumerate(archived(search)):
        parents = {complete[number - 4].parent for number in numbers if number >= 4}
        assert {number % 2 for number in parents if number is not None} <= {island}


def test_nothing_migrates_by_default() -> None:
    search = evolve(seeds=4, islands_after=4, batch=10)
    search.steps(*kinds(4), *[WRONG] * 20)
    assert archived(search) == [{0, 2}, {1, 3}]


def test_every_ten_steps_the_next_best_of_an_island_moves_on_and_the_best_stays() -> None:
    search = evolve(seeds=6, islands_after=6, batch=5, migration_rate=0.1)
    search.steps(*kinds(6))
    assert archived(search) == [{0, 2, 4}, {1, 3, 5}]
    search.steps(*[WRONG] * 5)
    assert archived(search) == [{0, 2, 4}, {1, 3, 5}]
    search.steps(*[WRONG] * 5)
    assert archived(search) == [{0, 3, 4}, {1, 2, 5}]


@pytest.mark.parametrize("recorded", range(1, 6))
def test_a_batch_is_the_same_however_much_of_it_was_told(recorded: int) -> None:
    search = evolve(seeds=3, coders=2)
    search.steps(*kinds(3))
    search.steps(*[ok(5, bound=f"b{number}") for number in range(6)])
    complete = search.generation()
    search.steps(*[ok(1)] * recorded)
    assert search.generation() == complete[recorded:]


def test_another_generator_gives_another_search() -> None:
    search = evolve(seeds=4, batch=20)
    search.steps(*kinds(4))
    item, other = (
        [search.strategy.ask(Random(f"{seed}/{ahead}"), ahead) for ahead in range(20)] for seed in ("a", "b")
    )
    assert item != other
