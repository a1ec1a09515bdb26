"""A child replaces its parent where its time says so; a counter decides where the model cannot tell times apart."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.agents.acceptance import APART, TUNED_APART, Decision, Outcome, accept, improves
from kernelforge.evaluation.stages.tuning import LEAST_GAIN
from kernelforge.records import Attempt, Candidate, Finding, Operator, SassProfile, Verdict
from tests.agents import agent_setup as workbench
from tests.support.factories import (
    make_attempt,
    make_fingerprint,
    make_passed_over,
    modelled,
    uncompared_evaluation,
)
from tests.support.factories import measured as make_measured

DRAM = "dram__bytes.sum"


def finding(*metrics: str) -> Finding:
    return Finding(kind="optimise", headline="h", why="w", action="a", metrics=metrics)


def attempt(dram: float | None, time_us: float | None = 10, verdict: Verdict = Verdict.OK) -> Attempt:
    candidate = Candidate(source="s", plan="p")
    profile = None if dram is None else workbench.profile_of("k", dram=dram)
    if profile is not None:
        profile = workbench.profile_of("k", dram=dram or 0, sectors=dram or 0)
        profile = profile.model_copy(
            update={"metrics": tuple(m.model_copy(update={"name": DRAM}) for m in profile.metrics)}
        )
    reason = "" if verdict is Verdict.OK else "it failed"
    return workbench.attempt(
        workbench.brief("softmax"), candidate, verdict=verdict, reason=reason, profile=profile,
        time_us=time_us if verdict is Verdict.OK else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (10.0, 9.5, Outcome.ACCEPTED),
        (10.0, 2.0, Outcome.ACCEPTED),
        (10.0, 9.51, Outcome.UNDECIDED),
        (10.0, 10.0, Outcome.UNDECIDED),
        (10.0, 10.01, Outcome.REFUSED),
        (10.0, 30.0, Outcome.REFUSED),
    ],
)
@pytest.mark.parametrize("answered", [None, finding(), finding("unknown__metric"), finding("+" + DRAM)])
def test_the_modelled_time_decides_by_what_the_model_can_tell_apart(
    before: float, after: float, outcome: Outcome, answered: Finding | None
) -> None:
    decision = improves(attempt(100, before), attempt(100, after), answered)
    assert decision.outcome is outcome
    assert decision.note.startswith(f"{outcome}: modelled time {before:.4g} -> {after:.4g} us")
    assert decision.accepted is (outcome is Outcome.ACCEPTED)


@pytest.mark.parametrize("time_us", [9.5, 5.0])
@pytest.mark.parametrize("dram", [50, 100, 1000])
def test_no_counter_holds_back_a_kernel_that_is_faster(time_us: float, dram: float) -> None:
    decision = improves(attempt(100, 10), attempt(dram, time_us), finding(DRAM))
    assert decision.accepted
    assert f"{DRAM} 100 -> {dram:,} " in decision.reason, "what became of the metric is said all the same"


@pytest.mark.parametrize("dram", [1, 50])
def test_no_counter_makes_up_for_a_time_that_rose(dram: float) -> None:
    assert improves(attempt(100, 10), attempt(dram, 10.1), finding(DRAM)).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    ("before", "after", "metric", "better"),
    [
        (100, 90, DRAM, True),
        (100, 90.1, DRAM, False),
        (100, 110, DRAM, False),
        (100, 110, "+" + DRAM, True),
        (100, 109, "+" + DRAM, False),
        (100, 90, "+" + DRAM, False),
        (0, 0, DRAM, False),
    ],
)
@pytest.mark.parametrize("time_us", [9.6, 10.0])
def test_where_the_model_does_not_tell_the_first_named_counter_decides(
    before: float, after: float, metric: str, better: bool, time_us: float
) -> None:
    decision = improves(attempt(before), attempt(after, time_us), finding(metric, "kernelforge__launches"))
    assert decision.outcome is (Outcome.ACCEPTED if better else Outcome.UNDECIDED)
    assert DRAM in decision.reason
    assert f"{APART:.0%}" in decision.reason


def _of_machine_code(made: Attempt) -> Attempt:
    assert made.profile is not None
    sass = SassProfile(warp_instructions=1, opcodes=())
    kernels = tuple(kernel.model_copy(update={"sass": sass}) for kernel in made.profile.kernels)
    return made.model_copy(update={"profile": made.profile.model_copy(update={"kernels": kernels})})


def test_times_of_machine_code_and_of_ptx_are_compared_only_beyond_the_models_interval() -> None:
    before, after = attempt(100, 10), attempt(100, 6)
    assert before.profile is not None
    assert before.profile.kernels
    assert improves(_of_machine_code(before), _of_machine_code(after), None).accepted
    for parent, child in ((before, _of_machine_code(after)), (_of_machine_code(before), after)):
        assert improves(parent, child, None).outcome is Outcome.NOT_COMPARED
    fewer = attempt(80, 12)
    assert improves(_of_machine_code(before), fewer, finding(DRAM)).accepted
    for time_us, outcome in ((0.1, Outcome.ACCEPTED), (1000.0, Outcome.REFUSED)):
        assert improves(before, _of_machine_code(attempt(100, time_us)), finding(DRAM)).outcome is outcome


def test_a_tuned_child_is_told_apart_by_less() -> None:
    tuned = {"operator": Operator.TUNE, "parent": attempt(100).id}
    by_two, by_one = (attempt(100, time_us=time_us).model_copy(update=tuned) for time_us in (9.8, 9.9))
    assert TUNED_APART == LEAST_GAIN, "the winner of a search for values must be able to become the best"
    assert improves(attempt(100, time_us=10), by_two, None).accepted
    assert improves(attempt(100, time_us=10), by_one, None).outcome is Outcome.UNDECIDED
    of_another = by_two.model_copy(update={"parent": "r/softmax/07"})
    assert improves(attempt(100, time_us=10), of_another, None).outcome is Outcome.UNDECIDED


def test_the_best_never_gets_slower_by_the_model() -> None:
    """Steps within what the model tells apart do not add up: each accepted one is at most as slow as the last."""
    existing: list[Attempt] = []
    for number, time_us in enumerate((10, 9.9, 9.95, 9.7, 9.72)):
        child = attempt(100 * 0.5**number, time_us).model_copy(
            update={"number": number, "id": f"run/softmax/{number:02d}"}
        )
        if existing:
            best = next(past for past in reversed(existing) if past.accepted)
            changes = {"operator": Operator.OPTIMISE, "parent": best.id, "finding": finding(DRAM)}
            child = child.model_copy(update=changes)
        existing.append(child.model_copy(update={"accepted": accept(child, existing).accepted}))
    assert [past.accepted for past in existing] == [True, True, False, True, False]


def test_a_finding_about_another_kernel_decides_nothing() -> None:
    best = attempt(100, 10).model_copy(update={"accepted": True})
    other = attempt(100, 20).model_copy(update={"id": "run/softmax/01", "number": 1})
    child = attempt(10, 9.9).model_copy(
        update={"id": "run/softmax/02", "number": 2, "operator": Operator.OPTIMISE, "parent": other.id,
                "finding": finding(DRAM)}
    )  # fmt: skip
    assert accept(child, [best, other]).outcome is Outcome.UNDECIDED
    assert accept(child.model_copy(update={"parent": best.id}), [best, other]).accepted


def test_a_wrong_child_never_pays_and_a_right_one_beats_a_wrong_parent() -> None:
    wrong = attempt(1, verdict=Verdict.WRONG)
    assert improves(attempt(100), wrong, finding(DRAM)).outcome is Outcome.REFUSED
    assert improves(wrong, attempt(100), finding(DRAM)).accepted


def test_what_could_not_be_compared_was_not_found_to_be_no_better() -> None:
    """Nothing is known of the change then: no lesson may say that it did not pay."""
    timed_one, untimed = attempt(100, 10), attempt(None, None)
    assert improves(timed_one, untimed, finding(DRAM)).outcome is Outcome.NOT_COMPARED
    assert improves(untimed, untimed, finding(DRAM)).outcome is Outcome.NOT_COMPARED
    assert improves(untimed, timed_one, None) == Decision(Outcome.ACCEPTED, "it has a time, and its parent has none")
    assert improves(timed_one, attempt(1, verdict=Verdict.INFRA), None).outcome is Outcome.NOT_COMPARED


def timed(lower: float | None = None, **changes: Any) -> Attempt:
    """An attempt that a GPU timed."""
    fields: dict[str, Any] = {"speedup": None if lower is None else 2, "speedup_lower": lower}
    performance = make_measured(5.0, **(fields | changes))
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    base = attempt(None)
    evaluation = base.evaluation.model_copy(update={"performance": performance, "fingerprint": fingerprint})
    return base.model_copy(update={"evaluation": evaluation})


def test_on_a_device_that_measures_the_lower_bound_of_the_speedup_decides() -> None:
    assert improves(timed(1.5), timed(1.6), finding(DRAM)).accepted
    assert improves(timed(1.5), timed(1.5), finding(DRAM)).outcome is Outcome.REFUSED


def test_without_a_baseline_the_intervals_of_the_times_must_not_touch() -> None:
    parent = timed(interval_us=(4.9, 5.1))
    assert improves(parent, timed(interval_us=(4.7, 4.8)), None).accepted
    assert not improves(parent, timed(interval_us=(4.7, 4.9)), None).accepted


def test_a_quarantined_time_replaces_nothing_and_holds_no_place() -> None:
    doubtful = timed(quarantined="under the floor")
    decision = improves(timed(1.5), doubtful, None)
    assert decision.outcome is Outcome.REFUSED
    assert "under the floor" in decision.note
    assert improves(doubtful, timed(1.1), None).accepted
    assert not improves(attempt(100, 10), doubtful, None).accepted


def test_a_modelled_time_never_replaces_a_measured_one() -> None:
    real, soft = timed(0.5), attempt(100, 1e-3)
    assert improves(real, soft, finding(DRAM)) == Decision(
        Outcome.NOT_COMPARED, "its time is modelled, and the best's was measured"
    )
    assert improves(soft, real, None).accepted
    assert improves(timed(quarantined="under the floor"), soft, None).outcome is Outcome.NOT_COMPARED


def test_what_was_predicted_and_not_measured_never_becomes_the_best() -> None:
    attempt = make_attempt(0)
    assert attempt.candidate is not None
    passed_over = make_passed_over(candidate=attempt.candidate.hash)
    accepted = accept(attempt.model_copy(update={"evaluation": passed_over}), ())
    assert accepted == Decision(Outcome.NOT_COMPARED, "predicted, and not measured")


def test_what_was_not_compared_at_its_full_size_never_replaces_what_was_nor_holds_it_off() -> None:
    fast = uncompared_evaluation(performance=modelled(1.0))
    lazy = make_attempt(0, accepted=True)
    lazy = lazy.model_copy(update={"evaluation": fast.model_copy(update={"candidate": lazy.evaluation.candidate})})
    honest = make_attempt(1)
    assert improves(lazy, honest, None).note == "accepted: compared at its full size, as its parent was not"
    assert improves(honest, lazy, None).outcome is Outcome.NOT_COMPARED
    assert accept(honest, [lazy]).accepted
