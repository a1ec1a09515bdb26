"""Promises of every strategy, for all outcomes of its proposals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelforge.agents.acceptance import APART
from kernelforge.errors import UsageError
from kernelforge.records import Operator, Verdict
from kernelforge.records.base import field_docs
from kernelforge.search import STRATEGIES, Strategy
from kernelforge.search.base import current_best
from tests.search.strategy_harness import RESULT, STORY, Result, Story, Tuned, play, retell

VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "refine": ({"rollback": False, "latency": False, "metrics": "full"},),
    "best-of-n": ({"samples": 3},),
    "contrast": ({"samples": 1, "alike": 0.9}, {"exemplars": 3, "temperature": 0.01, "bucket": 1.0, "metrics": "full"}),
    "fsr": ({"samples": 2, "depth": 9}, {"samples": 8, "depth": 3, "features": True}),
    "beam": ({"width": 1, "bottlenecks": 1, "patience": 5}, {"width": 3, "seeds": 2, "repairs": 1}),
    "mcts": ({"batch": 3, "widening": 0.8}, {"seeds": 2, "repairs": 0, "depth": 2, "moves": 1}),
    "evolve": ({"batch": 1, "alike": 0.9}, {"batch": 4, "islands": 3, "islands_after": 6, "migration_rate": 0.1}),
    "portfolio": ({"plateau": 1}, {"members": "evolve,contrast,fsr,best-of-n,beam,refine", "plateau": 3}),
}
"""Options other than the defaults with which every promise is tried."""
CASES = [(name, options) for name in STRATEGIES for options in ({}, *VARIANTS.get(name, ()))]
EACH = pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{len(options)}" for name, options in CASES])


@pytest.mark.slow
@pytest.mark.one_in(3)
@EACH
@settings(max_examples=15, deadline=None)
@given(
    story=STORY, rounds=st.integers(1, 30), stop_after=st.none() | st.integers(1, 6), coders=st.integers(1, 3),
    cascade=st.none() | st.integers(1, 4), stop_gain=st.sampled_from([0.0, 0.05, 1.0]), data=st.data(),
)  # fmt: skip
def test_it_ends_in_time_and_a_resumed_search_goes_on_as_the_killed_one_would(
    name: str, options: dict[str, Any], story: Story, rounds: int, stop_after: int | None, coders: int,
    cascade: int | None, stop_gain: float, data: st.DataObject,
) -> None:  # fmt: skip
    def make() -> Strategy:
        return STRATEGIES[name].make(
            options,
            rounds=rounds,
            stop_after=stop_after,
            coders=coders,
            cascade=cascade if STRATEGIES[name].cascades else None,
            stop_gain=stop_gain,
        )

    played = play(make(), story, rounds=rounds, coders=coders)
    assert 1 <= len(played.proposals) <= rounds
    killed_at = data.draw(st.integers(0, len(played.attempts)))
    retell(make(), story, played, killed_at)


@EACH
@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.WRONG, Verdict.BUILD, Verdict.INFRA])
def test_the_kernel_that_a_search_is_started_from_is_the_first_parent(
    name: str, options: dict[str, Any], verdict: Verdict
) -> None:
    """Of all steps that do not know of another's result, where its strategy can name them; and it is no step itself."""
    results = (Result(Verdict.WRONG), Result(Verdict.WRONG), Result(Verdict.OK, time_us=5.0))
    strategy = STRATEGIES[name].make(options, rounds=12)
    played = play(strategy, Story(results, start=Result(verdict)), rounds=12)
    assert played.attempts[0].operator is Operator.START
    at_once = [proposal for proposal in played.upcoming[1] if proposal is not None]
    assert {proposal.parent for proposal in at_once} == {0}
    right = {Operator.OPTIMISE, Operator.CONTRAST, Operator.FSR}
    assert {proposal.operator for proposal in at_once} <= (
        right if verdict is Verdict.OK else {Operator.REPAIR, Operator.FSR}
    )
    assert len(played.proposals) == len(strategy.steps) <= 12
    assert any(attempt.accepted for attempt in played.attempts[1:])


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("metrics", ["none", "subset", "full", "dram__bytes.sum sm__inst_executed.sum"])
def test_every_strategy_shows_as_much_of_a_profile_as_it_is_told_to(name: str, metrics: str) -> None:
    played = play(STRATEGIES[name].make({"metrics": metrics}, rounds=8), Story((Result(Verdict.OK),)), rounds=8)
    assert {proposal.sight.metrics for proposal in played.proposals} == {metrics}
    assert STRATEGIES[name].settle({})["metrics"] == ("none" if name == "contrast" else "full")


@pytest.mark.slow
@pytest.mark.one_in(3)
@EACH
@settings(max_examples=8, deadline=None)
@given(results=st.lists(RESULT, min_size=1, max_size=24).map(tuple))
def test_no_right_kernel_is_clearly_faster_by_the_model_than_the_best(
    name: str, options: dict[str, Any], results: tuple[Result, ...]
) -> None:
    played = play(STRATEGIES[name].make(options, rounds=20), Story(results), rounds=20)
    times = {
        attempt.number: attempt.evaluation.performance.time_us
        for attempt in played.attempts
        if attempt.evaluation.performance is not None
    }
    if times:
        best = current_best(played.attempts)
        assert best in times
        assert (1 - APART) * times[best] < min(times.values())


@pytest.mark.one_in(4)
@EACH
@pytest.mark.parametrize("verdict", list(Verdict))
def test_it_ends_by_itself_in_its_published_number_of_rounds(
    name: str, options: dict[str, Any], verdict: Verdict
) -> None:
    """Even when everything works, or when nothing ever does."""
    strategy = STRATEGIES[name].make(options)
    rounds = STRATEGIES[name].default_rounds(STRATEGIES[name].Options(**options))
    play(strategy, Story((Result(verdict),)), rounds=rounds)
    play(STRATEGIES[name].make(options), Story((Result(verdict, candidate=verdict is Verdict.OK),)), rounds=rounds)


@EACH
def test_tuned_children_are_not_steps(name: str, options: dict[str, Any]) -> None:
    """Worse children change nothing but the numbers of attempts."""
    plain = (Result(Verdict.OK, time_us=10.0), Result(Verdict.WRONG), Result(Verdict.OK, time_us=5.0))
    tuned = tuple(Result(item.verdict, time_us=item.time_us, tuned=(Tuned(300.0), Tuned(0.0))) for item in plain)
    without = play(STRATEGIES[name].make(options, rounds=12), Story(plain), rounds=12)
    having = play(STRATEGIES[name].make(options, rounds=12), Story(tuned), rounds=12)
    assert len(having.attempts) > len(without.attempts)
    assert [item.operator for item in having.proposals] == [item.operator for item in without.proposals]
    assert [item.coder for item in having.proposals] == [item.coder for item in without.proposals]


@pytest.mark.parametrize("name", STRATEGIES)
def test_it_says_where_it_comes_from_and_what_each_option_is(name: str) -> None:
    strategy = STRATEGIES[name]
    assert strategy.name == name
    assert strategy.source
    for option in strategy.Options.model_fields:
        assert field_docs(strategy.Options)[option]


@pytest.mark.parametrize("name", STRATEGIES)
def test_its_options_are_plain_values_that_survive_the_journal(name: str) -> None:
    options = STRATEGIES[name].settle({})
    assert STRATEGIES[name].settle(json.loads(json.dumps(options))) == options
    assert all(isinstance(value, bool | int | float | str) for value in options.values())


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"there is no strategy 'guess'; choose one of: refine, "):
        STRATEGIES["guess"].make()


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'refine' has no option 'depth'; its options are metrics, rollback, latency"):
        STRATEGIES["refine"].make({"depth": 3})


def test_a_value_that_an_option_cannot_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"strategy 'best-of-n', option samples: .*greater than or equal to 1"):
        STRATEGIES["best-of-n"].make({"samples": 0})
