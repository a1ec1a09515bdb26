"""A child replaces its parent only where the counter that the Judge named, or a measured speedup, says so."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.agents.acceptance import accept, drift_reason, improves
from kernelforge.records import Attempt, Candidate, Finding, Operator, Verdict
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
def test_the_first_named_counter_must_change_by_a_tenth(before: float, after: float, metric: str, better: bool) -> None:
    accepted, note = improves(attempt(before), attempt(after), finding(metric, "kernelforge__launches"))
    assert accepted is better
    assert DRAM in note


def test_a_counter_that_fell_does_not_excuse_a_much_worse_time() -> None:
    accepted, note = improves(attempt(100, 10), attempt(50, 12.1), finding(DRAM))
    assert not accepted
    assert "10 -> 12.1 us" in note
    assert improves(attempt(100, 10), attempt(50, 12), finding(DRAM))[0]


def test_without_a_counter_the_modelled_time_decides() -> None:
    assert improves(attempt(100, 10), attempt(100, 9), finding("unknown__metric"))[0]
    assert not improves(attempt(100, 10), attempt(100, 9.5), finding())[0]
    assert not improves(attempt(None, None), attempt(None, None), finding(DRAM))[0]


def test_a_wrong_child_never_pays_and_a_right_one_beats_a_wrong_parent() -> None:
    wrong = attempt(1, verdict=Verdict.WRONG)
    assert not improves(attempt(100), wrong, finding(DRAM))[0]
    assert improves(wrong, attempt(100), finding(DRAM))[0]


def timed(lower: float | None = None, **changes: Any) -> Attempt:
    """An attempt that a GPU timed."""
    fields: dict[str, Any] = {"speedup": None if lower is None else 2, "speedup_lower": lower}
    performance = make_measured(5.0, **(fields | changes))
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda")
    base = attempt(None)
    evaluation = base.evaluation.model_copy(update={"performance": performance, "fingerprint": fingerprint})
    return base.model_copy(update={"evaluation": evaluation})


def test_on_a_device_that_measures_the_lower_bound_of_the_speedup_decides() -> None:
    assert improves(timed(1.5), timed(1.6), finding(DRAM))[0]
    assert not improves(timed(1.5), timed(1.5), finding(DRAM))[0]


def test_without_a_baseline_the_intervals_of_the_times_must_not_touch() -> None:
    parent = timed(interval_us=(4.9, 5.1))
    assert improves(parent, timed(interval_us=(4.7, 4.8)), None)[0]
    assert not improves(parent, timed(interval_us=(4.7, 4.9)), None)[0]


def test_a_quarantined_time_replaces_nothing_and_holds_no_place() -> None:
    doubtful = timed(quarantined="under the floor")
    accepted, note = improves(timed(1.5), doubtful, None)
    assert not accepted
    assert "under the floor" in note
    assert improves(doubtful, timed(1.1), None)[0]


def test_without_a_finding_time_alone_decides() -> None:
    assert improves(attempt(100, time_us=10), attempt(10, time_us=9), None)[0]
    accepted, note = improves(attempt(100, time_us=10), attempt(10, time_us=9.5), None)
    assert not accepted
    assert "10%" in note


def test_a_tuned_child_needs_two_hundredths() -> None:
    tuned = {"operator": Operator.TUNE, "parent": "run/softmax/00"}
    assert improves(attempt(100, time_us=10), attempt(100, time_us=9.8).model_copy(update=tuned), None)[0]
    assert not improves(attempt(100, time_us=10), attempt(100, time_us=9.9).model_copy(update=tuned), None)[0]


def test_steps_that_each_cost_a_little_do_not_add_up() -> None:
    """A Judge that names a counter that any change moves cannot make the best slower without end."""
    existing = [attempt(100, 10).model_copy(update={"accepted": True})]
    for dram, time_us, fits in ((80, 11.5, True), (60, 12, True), (40, 13.5, False)):
        child = attempt(dram, time_us)
        assert improves(existing[-1], child, finding(DRAM))[0]
        assert (drift_reason(child, existing) is None) is fits
        existing.append(child.model_copy(update={"accepted": fits}))
    assert "13.5 us" in (drift_reason(existing[-1], existing[:-1]) or "")


def test_what_was_predicted_and_not_measured_never_becomes_the_best() -> None:
    attempt = make_attempt(0)
    assert attempt.candidate is not None
    passed_over = make_passed_over(candidate=attempt.candidate.hash)
    accepted = accept(attempt.model_copy(update={"evaluation": passed_over}), ())
    assert accepted == (False, "not accepted: predicted, and not measured")


def test_what_was_not_compared_at_its_full_size_never_replaces_what_was_nor_holds_it_off() -> None:
    fast = uncompared_evaluation(performance=modelled(1.0))
    lazy = make_attempt(0, accepted=True)
    lazy = lazy.model_copy(update={"evaluation": fast.model_copy(update={"candidate": lazy.evaluation.candidate})})
    honest = make_attempt(1)
    assert improves(lazy, honest, None) == (True, "accepted: compared at its full size, as its parent was not")
    assert improves(honest, lazy, None) == (False, "not accepted: not compared at its full size, as its parent was")
    assert drift_reason(honest, [lazy]) is None
