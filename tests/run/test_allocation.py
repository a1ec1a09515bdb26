"""``--allocate headroom``: rounds that tasks leave go to those that are farthest from their floors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernelforge.agents.diagnosis.floor import NEAR, headroom
from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Budget, Operator, RunConfig, RunState
from kernelforge.run import Event, StopSignal, configure, resume_run
from kernelforge.run.allocation import RoundPool, steps_of
from tests.run.run_helpers import Watcher, decisions, open_store, quick_config, run_in
from tests.support.factories import make_attempt, make_profile, modelled, not_compared

FLOOR_US = 10.0
FLOORS = dict.fromkeys(["a", "b", "used up", "far", "ended by its own rule", "near"], FLOOR_US)


def attempts_of(task: str, *times: float) -> list[Attempt]:
    """Attempts of one task with a floor of 10 us; the last one is its best."""
    result = []
    for number, time_us in enumerate(times):
        attempt = make_attempt(number, accepted=True)
        evaluation = attempt.evaluation.model_copy(update={"performance": modelled(time_us)})
        changes = {"task": task, "evaluation": evaluation, "profile": make_profile()}
        result.append(attempt.model_copy(update=changes))
    return result


def test_headroom_is_the_time_over_the_floor_with_or_without_a_profile() -> None:
    (far,), (near,) = attempts_of("far", 30.0), attempts_of("near", 10.9)
    assert headroom(far, FLOOR_US) == pytest.approx(3.0)
    assert (headroom(near, FLOOR_US) or 0.0) <= NEAR
    assert headroom(None, FLOOR_US) is None
    assert headroom(far.model_copy(update={"profile": None}), FLOOR_US) == pytest.approx(3.0)
    assert headroom(not_compared(far), FLOOR_US) is None, "a kernel that was not compared may do nothing"


def test_the_farthest_of_those_that_used_their_rounds_gets_what_others_left() -> None:
    pool = RoundPool(rounds=4, tasks=4)
    assert (pool.total, pool.share) == (16, 1)
    attempts = [
        *attempts_of("used up", *[20.0] * 4),
        *attempts_of("far", *[50.0] * 4),
        *attempts_of("ended by its own rule", 90.0, 90.0),
        *attempts_of("near", 90.0, 10.5, 10.5, 10.5),
    ]
    finished = ["used up", "far", "ended by its own rule", "near"]
    assert pool.grants(attempts, finished, FLOORS, most=1) == {"far": 5}
    assert pool.grants(attempts, finished, FLOORS, most=2) == {"far": 5, "used up": 5}
    assert pool.grants(attempts, ["used up"], FLOORS, most=2) == {"used up": 5}


def test_no_more_is_granted_than_is_left() -> None:
    pool = RoundPool(rounds=8, tasks=2)
    attempts = [*attempts_of("a", *[50.0] * 8), *attempts_of("b", *[50.0] * 7)]
    assert pool.grants(attempts, ["a", "b"], FLOORS, most=2) == {"a": 9}
    assert pool.grants([*attempts, *attempts_of("b", 50.0)], ["a", "b"], FLOORS, most=2) == {}


def test_a_share_that_was_begun_is_gone_on_with() -> None:
    pool = RoundPool(rounds=8, tasks=3)
    attempts = [*attempts_of("a", *[50.0] * 9), *attempts_of("b", *[50.0] * 3)]
    assert pool.allowance(attempts, "a") == 10
    assert pool.allowance(attempts, "b") == 8
    attempts += attempts_of("c", *[50.0] * 12)
    assert pool.allowance(attempts, "a") == 9


def test_tuned_children_take_no_rounds() -> None:
    tuned = make_attempt(1, operator=Operator.TUNE, parent=0).model_copy(update={"task": "a"})
    assert steps_of([*attempts_of("a", 7.0), tuned], "a") == 1


@pytest.mark.slow
def test_a_run_gives_what_is_left_to_the_farthest_and_a_killed_one_goes_on_alike(
    tmp_path: Path, warm_zygotes: None
) -> None:
    """Swish ends near its floor and transpose by the Judge's word; rmsnorm gets a round of theirs."""

    def config() -> RunConfig:
        return quick_config(
            tasks=("swish", "rmsnorm", "transpose"), budget=Budget(rounds=4), jobs=1, allocate="headroom", stop_after=50
        )

    complete = run_in(tmp_path / "complete", config())
    assert complete.state is RunState.FINISHED
    steps = decisions(tmp_path / "complete")
    assert len([step for step in steps if step[0] == "rmsnorm"]) == 5
    assert len(steps) <= 12

    def stop_at_the_ninth(event: Event, stop: StopSignal) -> None:
        nonlocal seen
        seen += event.kind == "attempt"
        if seen == 9:
            stop.drain()

    seen = 0
    stopped = run_in(tmp_path / "stopped", config(), stop_at_the_ninth)
    if stopped.state is RunState.STOPPED:
        with open_store(tmp_path / "stopped") as store:
            resume_run(stopped.id, store, Watcher(), StopSignal())
    assert decisions(tmp_path / "stopped") == steps


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "best-of-n", "allocate": "headroom"}, "draws a number of samples that its options set"),
        ({"strategy": "evolve", "cascade": 2, "coder": ("builtin", "builtin")}, "deals out Coders by itself"),
        ({"cascade": 2}, "name several, the cheapest first"),
        ({"stop_gain": -1.0}, "--stop-gain -1"),
        ({"strategy": "beam", "stop_gain": 0.5}, "--stop-gain 0.5 .* strategy 'beam' .* give --stop-after too"),
    ],
)
def test_what_cannot_be_handed_on_or_allocated_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        configure(device="emulated:h100", **settings)
