"""Every cause for doubt is listed once, with what was seen and whether the attempt still counts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kernelforge.records import Attempt, Clocks, Verdict
from kernelforge.report import RunRecords, run_view
from kernelforge.report.formatting import EXCESSIVE
from kernelforge.report.terminal import run_summary
from kernelforge.report.views.integrity import CONCERNS, HIGH_VARIANCE, IntegrityView, integrity_view
from tests.report.golden.golden_runs import golden
from tests.support.factories import make_timing
from tests.support.recorded_run import make_attempt, make_run, make_task

TASK = make_task()
RUN = make_run(device="cuda:0", tasks=(TASK.name,))


def view_of(*attempts: Attempt, device: str = "cuda:0") -> IntegrityView:
    return integrity_view(RunRecords(make_run(device=device, tasks=(TASK.name,)), attempts))


def timed(**changes: object) -> Attempt:
    """A correct attempt, 1.5 times as fast as eager, with changes to its performance."""
    made = make_attempt(RUN, TASK, 0, Verdict.OK, accepted=True, speedup=1.5)
    speed = made.evaluation.performance.model_copy(update=changes)
    return made.model_copy(update={"evaluation": made.evaluation.model_copy(update={"performance": speed})})


def concerns(attempt: Attempt) -> dict[str, tuple[str, bool]]:
    return {row.concern: (row.detail, row.scored) for row in view_of(attempt).rows}


def test_an_attempt_without_fault_is_not_listed():
    view = view_of(timed())
    assert view.rows == ()
    assert view.counts == dict.fromkeys(CONCERNS, 0)
    assert view.origin == "measured"


def test_a_quarantined_time_is_listed_and_does_not_count():
    unscored = {"quarantined": "below the floor", "speedup": None, "speedup_lower": None, "speedup_eager": None}
    attempt = timed(**unscored)
    assert concerns(attempt) == {"quarantined": ("below the floor", True)}  # its reward for being correct stands
    unpaid = attempt.model_copy(update={"reward": attempt.reward.model_copy(update={"value": None})})
    assert concerns(unpaid) == {"quarantined": ("below the floor", False)}


def test_doubts_about_how_a_time_was_taken_are_listed():
    clocks = Clocks(
        sm_mhz=(1200, 1980), memory_mhz=(2619, 2619), temperature_c=(60, 84), power_w=(400.0, 700.0),
        throttled=("SwPowerCap", "HwThermalSlowdown"),
    )  # fmt: skip
    host = {"events_us": 10.0, "slope_us": 15.0, "agrees": False}
    timing = make_timing(9.5, 1.5, clocks=clocks, host=host, settled=False, budget_s=4.0)
    assert concerns(timed(timing=timing)) == {
        "clocks-disagree": ("10 µs by events, 15 µs by the parent's clock", True),
        "throttled": ("SwPowerCap, HwThermalSlowdown", True),
        "unsettled": ("not as narrow as asked for within 4 s", True),
    }


def test_variance_is_high_beyond_its_bound():
    at, beyond = (9.5 * (1 + width / 2) for width in (HIGH_VARIANCE - 1e-9, HIGH_VARIANCE + 1e-3))
    assert concerns(timed(interval_us=(19.0 - at, at))) == {}
    assert set(concerns(timed(interval_us=(19.0 - beyond, beyond)))) == {"high-variance"}


def test_correct_and_without_a_speedup_is_untimed_where_time_is_measured():
    none = {"speedup": None, "speedup_lower": None, "speedup_eager": None}
    assert set(concerns(timed(**none))) == {"untimed"}
    assert set(
        concerns(timed().model_copy(update={"evaluation": timed().evaluation.model_copy(update={"performance": None})}))
    ) == {"untimed"}
    modelled = make_attempt(make_run(tasks=(TASK.name,)), TASK, 0, Verdict.OK, accepted=True)
    assert view_of(modelled, device="emulated:h100").counts["untimed"] == 0


def test_policy_and_infra_come_with_their_reasons_and_count_for_nothing():
    for verdict, concern in ((Verdict.POLICY, "policy"), (Verdict.INFRA, "infra")):
        assert concerns(make_attempt(RUN, TASK, 0, verdict)) == {concern: (f"why it is {verdict}", False)}


def unjudged(reason: str, number: int) -> Attempt:
    made = make_attempt(RUN, TASK, number, Verdict.INFRA)
    return made.model_copy(update={"evaluation": made.evaluation.model_copy(update={"reason": reason})})


def test_attempts_without_a_score_are_counted_with_their_reasons():
    lacking = "the emulator does not support 'setmaxnreg' (source line {}, PTX line {}): k; this is a limit of it"
    attempts = [
        unjudged(f"at the small size, task inputs: {lacking.format(1, 2)}", 0),
        unjudged(f"at the full size, task inputs: {lacking.format(3, 4)}", 1),
        unjudged("the oracle child ended without an answer: out of memory", 2),
        *(make_attempt(RUN, TASK, number, Verdict.WRONG) for number in range(3, 15)),
    ]
    unscored = view_of(*attempts).unscored
    assert (unscored.count, unscored.attempts, unscored.excessive) == (3, 15, False)
    assert unscored.reasons == (
        ("the emulator does not support 'setmaxnreg'", 2),
        ("the oracle child ended without an answer", 1),
    )
    assert unscored.text.startswith("3 of 15 attempts (20 %) ended as INFRA: 2 × the emulator does not")


@pytest.mark.parametrize(("infra", "others", "excessive"), [(2, 8, False), (3, 7, True), (9, 0, False), (10, 0, True)])
def test_too_many_attempts_without_a_score_are_told_in_one_sentence(infra: int, others: int, excessive: bool):
    attempts = [unjudged("the device is full", number) for number in range(infra)]
    attempts += [make_attempt(RUN, TASK, infra + number, Verdict.WRONG) for number in range(others)]
    records = RunRecords(make_run(device="cuda:0", tasks=(TASK.name,)), tuple(attempts))
    console = Console(width=300, file=io.StringIO(), markup=False, highlight=False)
    for line in run_summary(run_view(records)):
        console.print(line)
    text = console.file.getvalue()
    assert f"{infra} of {infra + others} attempts" in text
    assert (EXCESSIVE in text) is excessive


def test_an_attempt_without_a_jail_is_listed():
    made = timed()
    fingerprint = made.evaluation.fingerprint.model_copy(update={"jail": "none"})
    evaluation = made.evaluation.model_copy(update={"fingerprint": fingerprint})
    assert set(concerns(made.model_copy(update={"evaluation": evaluation}))) == {"unconfined"}


def test_rows_come_by_concern_and_then_in_the_order_of_the_run():
    records = golden("measured-a").records()
    view = integrity_view(records)
    places = [(CONCERNS.index(row.concern), records.run.config.tasks.index(row.task), row.attempt) for row in view.rows]
    assert places == sorted(places)
    assert {concern: sum(row.concern == concern for row in view.rows) for concern in CONCERNS} == view.counts
    seen = {concern for concern, count in view.counts.items() if count}
    assert seen == {"quarantined", "clocks-disagree", "throttled", "unsettled", "high-variance", "untimed"}


def test_a_modelled_run_has_no_doubts_about_times():
    view = integrity_view(golden("modelled").records())
    assert view.origin == "modelled"
    assert {concern for concern, count in view.counts.items() if count} == {"policy", "infra"}


def test_a_run_that_timed_nothing_has_no_origin():
    assert view_of(make_attempt(RUN, TASK, 0, Verdict.WRONG)).origin == "none"
