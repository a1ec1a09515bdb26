"""The data of a training run's page."""

from __future__ import annotations

from typing import Any

from kernelforge.report.figures import Absent
from kernelforge.report.figures.training import draw_training
from kernelforge.report.views.training import MOST_STEPS, TrainingJob, training_view


def job(reward: float | None = 0.3, **changes: Any) -> TrainingJob:
    fields: dict[str, Any] = {
        "task": "core/gelu",
        "policy_version": None,
        "group": None,
        "queued": False,
        "seconds": 1.0,
        "verdict": "OK" if reward else "WRONG",
        "reward": reward,
        "correct": bool(reward),
        "faster": False,
    }
    return TrainingJob(**(fields | changes))


def test_steps_are_policy_versions_where_every_job_says_one() -> None:
    jobs = [job(0.0, policy_version=1), job(0.5, policy_version=1), job(1.0, policy_version=3, faster=True)]
    view = training_view("r", jobs)
    assert view.versioned
    assert [(step.at, step.jobs, step.mean_reward, step.correct, step.faster) for step in view.steps] == [
        (1, 2, 0.25, 0.5, 0.0), (3, 1, 1.0, 1.0, 1.0),
    ]  # fmt: skip
    assert [(item.verdict, item.jobs) for item in view.verdicts] == [("OK", 2), ("WRONG", 1)]


def test_steps_are_stretches_of_the_run_where_a_job_says_no_version() -> None:
    view = training_view("r", [job(number / 1000) for number in range(1, 1001)] + [job(policy_version=2)])
    assert not view.versioned
    assert len(view.steps) <= MOST_STEPS
    assert sum(step.jobs for step in view.steps) == 1001
    assert view.steps[-1].at == 1001


def test_a_group_of_equal_rewards_is_flat() -> None:
    jobs = [
        job(0.3, group="a"), job(0.3, group="a"), job(0.3, group="b"), job(0.0, group="b"), job(0.3, group="c"),
        job(0.3, group="a", task="core/softmax"),
    ]  # fmt: skip
    view = training_view("r", jobs)
    assert (view.groups, view.flat) == (2, 1)


def test_staleness_counts_from_the_newest_version_submitted_by_then() -> None:
    view = training_view("r", [job(policy_version=version) for version in (1, 2, 1, 4, 4, 1)])
    assert [(lag.lag, lag.jobs) for lag in view.lags] == [(0, 4), (1, 1), (3, 1)]


def test_the_slowest_tasks_come_first_and_answers_of_earlier_evaluations_do_not_count() -> None:
    jobs = [
        job(seconds=2.0), job(0.0, seconds=4.0), job(seconds=None),
        job(task="core/softmax", seconds=9.0), job(None, task="core/cumsum", queued=True, verdict=None, seconds=None),
    ]  # fmt: skip
    view = training_view("r", jobs)
    assert [(pace.task, pace.evaluated, pace.median_s, pace.longest_s) for pace in view.slowest] == [
        ("core/softmax", 1, 9.0, 9.0), ("core/gelu", 2, 3.0, 4.0),
    ]  # fmt: skip
    assert (view.queued, view.ended) == (1, 4)


def test_figures_say_in_words_what_they_show_and_why_one_is_missing() -> None:
    view = training_view("r", [job(0.0, group="a", policy_version=1), job(0.5, group="a", policy_version=2)])
    reward, shares, flat, lags = draw_training(view)
    assert not isinstance(reward, Absent)
    assert reward.description == "Mean reward goes from 0 to 0.5 over 2 steps."
    assert not isinstance(shares, Absent)
    assert isinstance(flat, Absent)  # no step has two jobs of the group
    assert not isinstance(lags, Absent)
    assert lags.description == "2 jobs 0 versions behind."
    assert all(isinstance(item, Absent) for item in draw_training(training_view("r", [])))
