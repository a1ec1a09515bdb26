"""``contrast`` follows its rule: distinct buckets by score, drawn by temperature, the fastest as the parent."""

from __future__ import annotations

import math
from collections import Counter
from random import Random
from typing import Any

import pytest

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import Contrast, ProfileVisibility, Proposal
from kernelforge.search.contrast import SpeedBucket, bucketed, sample_bucket
from tests.support.factories import (
    make_attempt,
    make_candidate,
    make_evaluation,
    make_passed_over,
    measured_evaluation,
    modelled,
)

SIGHT = ProfileVisibility(metrics="none", latency=True)


def correct(number: int, time_us: float | None, **changes: Any) -> Attempt:
    performance = None if time_us is None else modelled(time_us)
    attempt = make_attempt(number, **changes)
    evaluation = make_evaluation(candidate=attempt.evaluation.candidate, performance=performance)
    return attempt.model_copy(update={"evaluation": evaluation})


def failed(number: int) -> Attempt:
    return make_attempt(number, Verdict.WRONG)


def contrast(*attempts: Attempt, rounds: int | None = 50, coders: int = 1, **options: Any) -> Contrast:
    strategy = Contrast(Contrast.Options(**({"samples": 1} | options)), rounds=rounds, coders=coders)
    for attempt in attempts:
        strategy.tell(attempt)
    return strategy


def exemplars(proposal: Proposal | None) -> tuple[int | None, ...]:
    assert proposal is not None
    assert proposal.operator is Operator.CONTRAST
    return proposal.parent, *proposal.inspirations


# Buckets.


def test_buckets_are_half_open_steps_of_log_speed_from_the_first_correct_kernel() -> None:
    times = [10.0, 10.0 / 1.09, 10.0 / 1.11, 10.0 / 1.25, 10.5]
    buckets = bucketed([correct(number, time) for number, time in enumerate(times)], 0.1)
    assert [[attempt.number for attempt in item.attempts] for item in buckets] == [[4], [0, 1], [2], [3]]
    assert [item.low for item in buckets] == pytest.approx([-0.1, 0.0, 0.1, 0.2])


def test_a_bucket_knows_the_mean_of_its_scores() -> None:
    buckets = bucketed([correct(0, 10.0), correct(1, 10.0 / 1.2)], 1.0)
    assert buckets[0].mean == pytest.approx(math.log(1.2) / 2)


def test_near_copies_in_a_bucket_are_left_out_where_alike_says_so() -> None:
    def kernel(number: int, time_us: float, last: int) -> Attempt:
        body = "  out[threadIdx.x] += 1.0f;\n" * 30
        source = f"__global__ void k(float* out) {{\n{body}  out[0] = {last};\n}}"
        candidate = make_candidate(source=source)
        return correct(number, time_us, candidate=candidate, evaluation=make_evaluation(candidate=candidate.hash))

    attempts = [kernel(0, 10.0, 1), kernel(1, 9.99, 2), kernel(2, 5.0, 3), correct(3, 10.0)]
    for alike, buckets in ((1.0, [[0, 1, 3], [2]]), (0.9, [[0, 3], [2]])):
        strategy = contrast(*attempts, alike=alike)
        assert [item["attempts"] for item in strategy.state()["buckets"]] == buckets


def test_failures_and_kernels_without_a_time_are_in_no_bucket() -> None:
    buckets = bucketed([failed(0), correct(1, None), correct(2, 10.0)], 0.1)
    assert [[attempt.number for attempt in item.attempts] for item in buckets] == [[2]]


def test_measured_kernels_are_bucketed_by_the_lower_bound_of_their_speedup() -> None:
    attempts = []
    for number, speedup in enumerate([0.5, 1.0, 1.02]):
        attempt = make_attempt(number)
        evaluation = measured_evaluation(speedup, candidate=attempt.evaluation.candidate)
        attempts.append(attempt.model_copy(update={"evaluation": evaluation}))
    buckets = bucketed(attempts, math.log(2) / 4)
    assert [[attempt.number for attempt in item.attempts] for item in buckets] == [[0], [1, 2]]


def test_what_was_passed_over_is_in_no_bucket() -> None:
    """Its time alone is modelled, among kernels that were measured."""
    attempts = [make_attempt(number) for number in range(3)]
    hashes = [attempt.evaluation.candidate for attempt in attempts]
    evaluations = (
        make_passed_over(candidate=hashes[0]),
        measured_evaluation(0.5, candidate=hashes[1]),
        make_passed_over(candidate=hashes[2]),
    )
    buckets = bucketed(
        [a.model_copy(update={"evaluation": item}) for a, item in zip(attempts, evaluations, strict=True)], 0.1
    )
    assert [[attempt.number for attempt in item.attempts] for item in buckets] == [[1]]
    assert buckets[0].mean == 0.0


def test_of_equal_candidates_the_first_counts() -> None:
    first = correct(0, 10.0)
    repeated = first.model_copy(update={"id": first.id + "x", "number": 1, "evaluation": make_evaluation(
        candidate=first.evaluation.candidate, performance=modelled(5.0))})  # fmt: skip
    (bucket,) = bucketed([first, repeated], 0.1)
    assert bucket.attempts == (first,)


def test_a_faster_tuned_child_stands_for_its_parent() -> None:
    child = correct(1, 5.0, operator=Operator.TUNE, parent=0)
    slower = correct(2, 20.0, operator=Operator.TUNE, parent=0)
    (bucket,) = bucketed([correct(0, 10.0), child, slower], 0.1)
    assert bucket.attempts == (child,)


# Drawing.


def shares(temperature: float, count: int, means: tuple[float, ...], draws: int = 4000) -> Counter[tuple[int, ...]]:
    buckets = [SpeedBucket(low=mean, mean=mean, attempts=(correct(i, 10.0),)) for i, mean in enumerate(means)]
    rng = Random(0)
    return Counter(
        tuple(attempt.number for attempt in sample_bucket(buckets, count, temperature, rng)) for _ in range(draws)
    )


def test_a_bucket_is_drawn_in_proportion_to_the_exponential_of_its_mean_score() -> None:
    drawn = shares(0.5, 1, (0.0, math.log(2)))
    assert drawn[(1,)] / 4000 == pytest.approx(4 / 5, abs=0.03)


def test_the_second_bucket_is_drawn_among_the_others_by_the_same_rule() -> None:
    weights = [math.exp(mean) for mean in (0.0, 1.0, 2.0)]
    drawn = shares(1.0, 2, (0.0, 1.0, 2.0))
    chance: Counter[tuple[int, ...]] = Counter()
    for first in range(3):
        for second in set(range(3)) - {first}:
            pair = (max(first, second), min(first, second))
            chance[pair] += weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
    for pair, expected in chance.items():
        assert drawn[pair] / 4000 == pytest.approx(expected, abs=0.03)


def test_a_low_temperature_always_takes_the_fastest_buckets() -> None:
    assert set(shares(1e-6, 2, (0.0, 5.0, 1.0), draws=50)) == {(1, 2)}


def test_a_high_temperature_takes_all_buckets_alike() -> None:
    drawn = shares(1e6, 1, (0.0, 5.0, 1.0))
    assert all(drawn[(number,)] / 4000 == pytest.approx(1 / 3, abs=0.03) for number in range(3))


def test_within_a_bucket_all_kernels_are_equally_likely() -> None:
    bucket = SpeedBucket(low=0.0, mean=0.0, attempts=(correct(0, 10.0), correct(1, 9.9), correct(2, 9.8)))
    rng = Random(0)
    drawn = Counter(sample_bucket([bucket], 2, 0.5, rng)[0].number for _ in range(3000))
    assert all(drawn[number] / 3000 == pytest.approx(1 / 3, abs=0.04) for number in range(3))


# Proposals.


def test_while_nothing_is_correct_every_proposal_is_a_numbered_seed() -> None:
    strategy = contrast()
    for number in range(8):
        assert strategy.ask(Random(0)) == Proposal(Operator.SEED, sample=number, sight=SIGHT)
        strategy.tell(failed(number))


def test_with_one_bucket_one_example_is_shown() -> None:
    requested = {exemplars(contrast(correct(0, 10.0), correct(1, 10.0)).ask(Random(seed))) for seed in range(20)}
    assert requested == {(0,), (1,)}


def test_with_two_buckets_the_faster_kernel_is_the_parent_and_the_other_is_shown_too() -> None:
    strategy = contrast(correct(0, 10.0), correct(1, 5.0), failed(2))
    assert {exemplars(strategy.ask(Random(seed))) for seed in range(20)} == {(1, 0)}


def test_examples_come_from_distinct_buckets() -> None:
    strategy = contrast(correct(0, 10.0), correct(1, 10.0), correct(2, 5.0), correct(3, 5.0), temperature=1e6)
    requested = {exemplars(strategy.ask(Random(seed))) for seed in range(60)}
    assert requested == {(2, 0), (2, 1), (3, 0), (3, 1)}


def test_more_examples_can_be_shown_from_the_fastest_to_the_slowest() -> None:
    strategy = contrast(correct(0, 10.0), correct(1, 2.0), correct(2, 5.0), correct(3, 20.0), exemplars=3)
    for seed in range(20):
        parent, *others = exemplars(strategy.ask(Random(seed)))
        order = [1, 2, 0, 3]
        assert len(others) == 2
        assert [order.index(item) for item in others] == sorted(order.index(item) for item in others)
        assert order.index(parent) < order.index(others[0])


def test_a_correct_kernel_without_a_time_is_an_example_where_there_is_no_other() -> None:
    assert exemplars(contrast(correct(0, None, accepted=True)).ask(Random(0))) == (0,)


def test_steps_of_one_generation_draw_from_the_same_past() -> None:
    strategy = contrast(samples=3)
    for number, time in enumerate([10.0, 5.0]):
        strategy.tell(correct(number, time))
    assert strategy.ask(Random(0)) == Proposal(Operator.SEED, sample=2, sight=SIGHT)
    assert strategy.ask(Random(0), 1) is None
    strategy.tell(failed(2))
    requested = [strategy.ask(Random(0), ahead) for ahead in range(4)]
    assert [exemplars(proposal) for proposal in requested[:3]] == [(1, 0)] * 3
    assert requested[3] is None
    strategy.tell(correct(3, 1.0))
    assert exemplars(strategy.ask(Random(0))) == (1, 0)


@pytest.mark.parametrize(("options", "metrics"), [({}, "none"), ({"metrics": "subset"}, "subset")])
def test_scores_are_always_shown_and_the_profile_only_where_asked_for(options: Any, metrics: Any) -> None:
    for attempts in ([], [correct(0, 10.0)]):
        proposal = contrast(*attempts, **options).ask(Random(0))
        assert proposal is not None
        assert proposal.sight == ProfileVisibility(metrics=metrics, latency=True)
        assert not proposal.judge


def test_mixed_coders_take_turns_across_generations() -> None:
    strategy = contrast(samples=2, coders=3)
    seen = []
    for number in range(6):
        proposal = strategy.ask(Random(0))
        assert proposal is not None
        seen.append(proposal.coder)
        strategy.tell(correct(number, 10.0))
    assert seen == [0, 1, 2, 0, 1, 2]


def test_by_default_two_examples_are_shown_and_twenty_steps_taken() -> None:
    options = Contrast.Options()
    assert options.exemplars == 2
    assert Contrast(options).rounds == 20


def test_its_state_names_the_buckets() -> None:
    state = contrast(correct(0, 10.0), correct(1, 5.0)).state()
    assert [bucket["attempts"] for bucket in state["buckets"]] == [[0], [1]]
