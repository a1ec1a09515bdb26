"""Metrics are chosen by CudaForge's steps: ends of the times, strongest correlations, recurrence, percentile."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pytest

from kernelforge.records import Attempt, Metric, Origin, Verdict
from kernelforge.report.views.metric_selection import MetricSelection, metric_selections, names_file, read_names
from tests.support.factories import (
    make_attempt,
    make_candidate,
    make_evaluation,
    make_fingerprint,
    make_passed_over,
    make_profile,
    measured_evaluation,
    modelled,
)


def timed(task: str, number: int, time_us: float, metrics: Mapping[str, float], **changes: Any) -> Attempt:
    """A correct attempt with a time and these metrics; a name that begins with ``time`` is in microseconds."""
    candidate = make_candidate(source=f"__global__ void {task}_{number}(float* out) {{}}")
    of_profile = tuple(
        Metric(name=name, value=value, unit="us" if name.startswith("time") else "inst", origin=Origin.COUNTED)
        for name, value in metrics.items()
    )
    evaluation = make_evaluation(
        **({"candidate": candidate.hash, "performance": modelled(time_us), "task": f"digest of {task}"} | changes)
    )
    return make_attempt(
        number,
        task=task,
        id=f"run/{task}/{number:02d}",
        run="run",
        candidate=candidate,
        evaluation=evaluation,
        profile=make_profile().model_copy(update={"metrics": of_profile}),
    )


def planted(tasks: int = 4, candidates: int = 14, noise: int = 40) -> list[Attempt]:
    """Attempts whose times go with three metrics alone.

    ``sm__more`` grows and ``sm__less`` falls with the time in every task; ``sm__ends`` grows between the five fastest
    and the five slowest, and is far off between them; ``sm__turns`` has another sign in every second task.
    """
    rng, attempts = Random(5), []
    for task in range(tasks):
        for number in range(candidates):
            time_us = 10.0 + number
            metrics = {
                "sm__more.sum": 1e6 * time_us + 1e5 * rng.random(),
                "sm__less.pct": 99.0 - time_us - 0.2 * rng.random(),
                "sm__ends.sum": time_us if number < 5 or number >= candidates - 5 else 1e9,
                "sm__turns.sum": time_us if task % 2 else -time_us,
                "sm__constant.sum": 7.0,
                "time_duration": time_us,
                **{f"sm__noise_{at}.sum": rng.random() for at in range(noise)},
            }
            attempts.append(timed(f"task{task}", number, time_us, metrics))
    return attempts


def only(attempts: list[Attempt], **options: Any) -> MetricSelection:
    [selection] = metric_selections(attempts, **options)
    return selection


def test_planted_correlations_are_chosen_and_nothing_else() -> None:
    selection = only(planted(), percentile=92)
    assert set(selection.names) == {"sm__more.sum", "sm__less.pct", "sm__ends.sum"}
    rows = {row.name: row for row in selection.metrics}
    assert (rows["sm__more.sum"].sign, rows["sm__less.pct"].sign) == ("slower", "faster")
    assert (rows["sm__turns.sum"].top, rows["sm__turns.sum"].one_sign) == (4, False)
    assert rows["sm__turns.sum"].mean == pytest.approx(1)
    assert not {"sm__constant.sum", "time_duration"} & rows.keys()
    assert [sample.counted for sample in selection.tasks] == [10] * 4
    assert set(only(planted(), percentile=94, ends=7).names) == {"sm__more.sum", "sm__less.pct"}


def test_correlations_are_pearsons_and_the_percentile_is_over_their_means() -> None:
    attempts = planted(tasks=2)
    selection = only(attempts, top=100)
    counted = [[*attempts[start : start + 5], *attempts[start + 9 : start + 14]] for start in (0, 14)]
    means = []
    for row in selection.metrics:
        for group, task in zip(counted, ("task0", "task1"), strict=True):
            values = [next(m.value for m in item.profile.metrics if m.name == row.name) for item in group]  # type: ignore[union-attr]
            times = [item.evaluation.performance.time_us for item in group]  # type: ignore[union-attr]
            assert row.correlations[task] == pytest.approx(np.corrcoef(values, times)[0, 1])
        means.append(np.mean(np.abs(list(row.correlations.values()))))
    assert selection.threshold == pytest.approx(np.percentile(means, 75))
    assert all(row.mean > selection.threshold for row in selection.metrics if row.selected)


def test_only_the_strongest_of_a_task_count_and_a_metric_has_to_recur() -> None:
    assert only(planted(), top=1).metrics[0].top == 4
    attempts = [*planted(tasks=1), timed("other", 0, 1.0, {"sm__more.sum": 1.0})]
    assert only(attempts).names == ()
    assert only(attempts, tasks=1).names
    left_out = {sample.task: sample for sample in only(attempts).tasks}["other"]
    assert (left_out.candidates, left_out.counted) == (1, 0)
    assert left_out.why == "fewer than 4 correct candidates of different times"


def test_what_has_no_time_that_is_believed_does_not_count() -> None:
    attempts = planted(tasks=1, candidates=6)
    first = attempts[0]
    equal = first.evaluation.model_copy(
        update={"equals": first.evaluation.key, "candidate": attempts[1].evaluation.candidate}
    )
    wrong = make_evaluation(Verdict.WRONG, candidate=first.evaluation.candidate, task=first.evaluation.task)
    without = [
        make_attempt(6, task="task0", id="run/task0/06", run="run", evaluation=wrong, candidate=first.candidate),
        attempts[1].model_copy(update={"evaluation": equal, "number": 7, "id": "run/task0/07"}),
        timed("task0", 8, 1.0, {"sm__more.sum": 0.0}).model_copy(update={"profile": None}),
    ]
    assert only(attempts + without).tasks == only(attempts).tasks
    passed_over = make_passed_over(candidate=first.evaluation.candidate, task=first.evaluation.task)
    rest = [first.model_copy(update={"evaluation": passed_over}), *attempts[1:]]
    assert sum(sample.candidates for item in metric_selections(rest) for sample in item.tasks) == 5


def test_gpus_are_apart_and_measured_times_come_before_modelled_ones() -> None:
    attempts = []
    for gpu in ("NVIDIA H200", "NVIDIA A100"):
        for attempt in planted(tasks=2):
            assert attempt.evaluation.performance is not None
            assert attempt.profile is not None
            named = {"candidate": attempt.evaluation.candidate, "task": attempt.evaluation.task}
            own = measured_evaluation(
                fingerprint=make_fingerprint(device="cuda:0", device_kind="cuda", gpu=gpu), **named
            )
            assert own.performance is not None
            speed = own.performance.model_copy(update={"time_us": attempt.evaluation.performance.time_us})
            evaluation = own.model_copy(update={"performance": speed})
            profile = attempt.profile.model_copy(update={"device": "cuda:0"})
            attempts.append(attempt.model_copy(update={"evaluation": evaluation, "profile": profile}))
    selections = metric_selections([*attempts, *planted(tasks=2)])
    assert [item.gpu for item in selections] == ["NVIDIA A100", "NVIDIA H200", "emulated:h100"]
    assert [item.origin for item in selections] == [Origin.MEASURED, Origin.MEASURED, Origin.MODELLED]
    assert selections[0].names == selections[1].names


def test_a_file_of_names_is_read_as_it_was_written() -> None:
    selection = only(planted())
    text = names_file(selection, ["20260101-000000-aaaa"])
    assert read_names(text) == selection.names
    assert text.startswith("# metrics of emulated:h100, by modelled times of 4 tasks of 20260101-000000-aaaa\n")
    assert read_names("a__b.sum  # why\n\nc__d\na__b.sum e__f\n") == ("a__b.sum", "c__d", "e__f")
