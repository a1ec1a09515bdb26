"""ConCuR's rule and its ablations, and the difficulty of tasks by the length of reasoning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelforge.datasets.curation import (
    RULES,
    TaskTraces,
    curate,
    curated_rows,
    difficulty,
    summaries,
    traces_by_task,
)
from kernelforge.datasets.training import Sample
from kernelforge.records import Verdict
from tests.datasets.test_training import sample
from tests.support.factories import make_evaluation, make_fingerprint, measured, modelled

GPU = make_fingerprint(device="cuda:0", device_kind="cuda")


def trace(task: str, number: int, tokens: int, time_us: float, verdict: Verdict = Verdict.OK, **changes: Any) -> Sample:
    performance = {"performance": modelled(time_us)} if verdict is Verdict.OK else {}
    evaluation = make_evaluation(verdict, task=f"{task:0<16}", **performance)
    fields = {"reasoning": "hm", "reasoning_tokens": tokens, "evaluation": evaluation, "task": task}
    return sample(number, verdict, **(fields | changes))


def tasks_of(*samples: Sample, single: str = "") -> list[TaskTraces]:
    return traces_by_task(samples, {f"{name:0<16}" for name in single})


def ids(tasks: list[TaskTraces], rule: str) -> list[tuple[str, str]]:
    return [(choice.sample.id[-2:], choice.why) for choice in curate(tasks, rule)]


def test_the_shortest_trace_is_chosen_if_it_is_also_the_fastest() -> None:
    both = [trace("a", 0, 900, 10.0), trace("a", 1, 100, 5.0), trace("a", 2, 50, 1.0, Verdict.WRONG)]
    apart = [trace("b", 3, 100, 10.0), trace("b", 4, 900, 5.0)]
    tied = [trace("c", 5, 100, 10.0), trace("c", 6, 900, 10.0)]
    tasks = tasks_of(*both, *apart, *tied)
    assert ids(tasks, "concur") == [("01", "shortest and fastest"), ("05", "shortest and fastest")]
    assert ids(tasks, "shortest") == [("01", "shortest"), ("03", "shortest"), ("05", "shortest")]
    assert ids(tasks, "fastest") == [("01", "fastest"), ("04", "fastest"), ("05", "fastest")]
    assert ids(tasks, "longest") == [("00", "longest"), ("04", "longest"), ("06", "longest")]
    assert {"00", "01"} >= {ids(tasks, "random")[0][0]}
    assert ids(tasks, "random") == ids(tasks, "random")


def test_times_that_a_measurement_does_not_resolve_count_as_equal() -> None:
    tasks = tasks_of(trace("a", 0, 10, 10.09), trace("a", 1, 99, 10.0))
    assert ids(tasks, "concur") == [("00", "shortest and fastest")]
    assert curate(tasks, "concur", equal=0.0) == []
    assert summaries(tasks, equal=0.0)[0].tokens is None


def test_a_trace_over_five_times_as_fast_is_chosen_though_another_is_shorter() -> None:
    times = {4.9: [], 5.1: [("01", "over 5x")]}
    for eager, expected in times.items():
        fast = make_evaluation(
            fingerprint=GPU, performance=measured(2.0, speedup=2.0, speedup_eager=eager), task="a" * 16
        )
        slow = make_evaluation(
            fingerprint=GPU, performance=measured(4.0, speedup=1.0, speedup_eager=eager / 2), task="a" * 16
        )
        tasks = tasks_of(trace("a", 0, 10, 1.0, evaluation=slow), trace("a", 1, 99, 1.0, evaluation=fast))
        assert ids(tasks, "concur") == expected


def test_tasks_of_a_single_operator_are_added_for_balance_the_shortest_first() -> None:
    first = [trace(f"{number:x}f", number, 100, 5.0) for number in range(8)]
    others = [
        item
        for number, name in enumerate("abc")
        for item in (trace(name, 20 + number, 60 - number, 9.0), trace(name, 30 + number, 90, 5.0))
    ]
    assert [why for _, why in ids(tasks_of(*first, *others), "concur")] == ["shortest and fastest"] * 8
    balanced = ids(tasks_of(*first, *others, single="abc"), "concur")
    assert balanced[8:] == [("22", "single operator")], "one for each eight: 544 to 4,348"


def test_only_the_first_traces_of_a_task_are_looked_at_and_those_without_reasoning_are_none() -> None:
    samples = [trace("a", number, 900 - number, 9.0 - number) for number in range(7)]
    unseen = [replace(item, reasoning=None, reasoning_tokens=None) for item in samples[:1]]
    assert ids(traces_by_task([*unseen, *samples], set(), 3), "concur") == [("02", "shortest and fastest")]
    assert traces_by_task(unseen, set()) == []
    assert traces_by_task([trace("a", 0, 10, 1.0, Verdict.CRASH)], set()) == []


@pytest.mark.parametrize(
    ("lengths", "level"),
    [([3_999], "easy"), ([4_000], "medium"), ([8_500], "medium"), ([8_501], "hard"), ([100] * 10 + [99_999], "easy")],
)
def test_difficulty_is_the_average_length_of_ten_traces(lengths: list[int], level: str) -> None:
    average = difficulty(lengths)
    assert average is not None
    assert (average.level, average.traces) == (level, min(len(lengths), 10))
    assert difficulty([]) is None


def test_rows_say_why_they_were_chosen_and_how_hard_their_task_is() -> None:
    tasks = tasks_of(trace("a", 0, 5_000, 5.0), trace("a", 1, 7_000, 9.0, Verdict.WRONG))
    [row] = curated_rows(curate(tasks, "concur"))
    assert (row["chosen_as"], row["difficulty"], row["average_reasoning_tokens"]) == (
        "shortest and fastest", "medium", 6_000.0,
    )  # fmt: skip
    assert row["messages"][-1]["content"] == "reply 0"


def test_the_table_has_counts_and_means_of_every_rule() -> None:
    measured_eager = {"speedup": 1.5, "speedup_eager": 4.0}
    fast = make_evaluation(fingerprint=GPU, performance=measured(2.0, **measured_eager), task="b" * 16)
    tasks = tasks_of(trace("a", 0, 100, 10.0), trace("a", 1, 300, 5.0), trace("b", 2, 200, 1.0, evaluation=fast))
    rows = {row.rule: row for row in summaries(tasks)}
    assert list(rows) == list(RULES)
    assert (rows["shortest"].traces, rows["shortest"].tokens) == (2, 150)
    assert (rows["longest"].tokens, rows["fastest"].tokens, rows["concur"].tokens) == (250, 250, 200)
    assert rows["concur"].measured_speedup == pytest.approx(4.0)
    assert rows["concur"].predicted_speedup is None
