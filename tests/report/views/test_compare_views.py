"""Two runs: only what is comparable is compared, and a missing case is not a passing one."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest

from kernelforge.report import RunRecords
from kernelforge.report.exports import compare_markdown
from kernelforge.report.tables.task import compare_table
from kernelforge.report.views.compare import CompareView, PairRow, compare_view
from tests.report.golden.golden_runs import golden_records


def compared(a: str, b: str) -> CompareView:
    return compare_view(golden_records(a), golden_records(b))


def row(view: CompareView, task: str) -> PairRow:
    return next(pair for pair in view.pairs if pair.task == task)


def outcomes(view: CompareView) -> dict[str, str]:
    return {pair.task: pair.outcome for pair in view.pairs}


def test_measured_runs_are_compared_by_the_interval_of_the_ratio_of_times() -> None:
    view = compared("measured-a", "measured-b")
    assert view.quantity == "time_us"
    assert outcomes(view) == {
        "softmax": "win", "matmul": "loss", "argmax": "tie", "layer_norm": "win", "gelu": "loss",
        "conv2d": "both-failed", "attention": "tie", "cumsum": "tie", "rope": "win", "unstable": "tie",
    }  # fmt: skip
    for pair in view.pairs:
        if pair.ratio is not None:
            assert pair.ratio == pytest.approx(pair.a_value / pair.b_value)
            assert pair.low <= pair.ratio <= pair.high
            expected = "win" if pair.low > 1 else "loss" if pair.high < 1 else "tie"
            assert pair.outcome == expected
    assert (view.wins, view.losses, view.ties, view.both_failed) == (3, 2, 4, 1)


def test_the_interval_joins_those_of_both_times_and_is_wider_than_either() -> None:
    view = compared("measured-a", "measured-b")
    a, b = golden_records("measured-a"), golden_records("measured-b")
    pair = row(view, "softmax")
    speeds = [
        next(attempt for attempt in run.of_task("softmax") if attempt.id == best).evaluation.performance
        for run, best in ((a, pair.a_best), (b, pair.b_best))
    ]
    ends = [[math.log(end / speed.time_us) for end in speed.interval_us] for speed in speeds]
    (a_low, a_high), (b_low, b_high) = ends
    assert math.log(pair.low / pair.ratio) == pytest.approx(-math.hypot(a_low, b_high))
    assert math.log(pair.high / pair.ratio) == pytest.approx(math.hypot(a_high, b_low))
    assert math.log(pair.high / pair.low) > max(a_high - a_low, b_high - b_low)


def test_compared_the_other_way_round_wins_are_losses() -> None:
    there, back = compared("measured-a", "measured-c"), compared("measured-c", "measured-a")
    turned = {"win": "loss", "loss": "win", "tie": "tie", "both-failed": "both-failed"}
    assert outcomes(back) == {task: turned[outcome] for task, outcome in outcomes(there).items()}
    for pair in there.pairs:
        if pair.ratio is not None:
            other = row(back, pair.task)
            assert other.ratio == pytest.approx(1 / pair.ratio)
            assert other.low == pytest.approx(1 / pair.high)
    assert there.geomean_ratio.value == pytest.approx(1 / back.geomean_ratio.value)


def test_the_geometric_mean_is_over_tasks_with_a_ratio() -> None:
    view = compared("measured-a", "measured-b")
    ratios = [pair.ratio for pair in view.pairs if pair.ratio is not None]
    assert view.geomean_ratio.value == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)))
    assert view.geomean_ratio.low <= view.geomean_ratio.value <= view.geomean_ratio.high
    assert compared("modelled", "measured-a").geomean_ratio is None


def test_a_correct_kernel_beats_a_failure_and_a_time_that_is_not_believed_decides_nothing() -> None:
    view = compared("measured-a", "measured-b")
    assert row(view, "layer_norm").why == "b is correct, a is not: WRONG"
    assert row(view, "gelu").why == "a is correct, b is not: WRONG"
    doubted = row(view, "attention")
    assert (doubted.a_value, doubted.ratio, doubted.outcome) == (None, None, "tie")
    assert "a has no time that is believed" in doubted.why


def test_regressions_come_first_and_the_worst_of_them_at_the_top() -> None:
    for other in ("measured-b", "measured-c"):
        pairs = compared("measured-a", other).pairs
        rank = [["loss", "win", "tie", "both-failed"].index(pair.outcome) for pair in pairs]
        assert rank == sorted(rank)
        losses = [0.0 if pair.ratio is None else pair.ratio for pair in pairs if pair.outcome == "loss"]
        assert losses == sorted(losses)
        wins = [math.inf if pair.ratio is None else pair.ratio for pair in pairs if pair.outcome == "win"]
        assert wins == sorted(wins, reverse=True)


def test_tasks_of_one_run_alone_are_named_and_not_compared() -> None:
    view = compared("measured-a", "measured-b")
    assert view.only_a == ("only_in_a", "library_call")
    assert view.only_b == ("only_in_b",)
    assert not {pair.task for pair in view.pairs} & {*view.only_a, *view.only_b}
    assert not view.comparable
    assert any("number of tasks" in difference for difference in view.differences)
    same = compared("measured-a", "measured-c")
    assert (same.comparable, same.differences, same.only_a, same.only_b) == (True, (), (), ())


def test_a_task_that_was_changed_between_the_runs_is_named_apart() -> None:
    a = golden_records("measured-a")
    longer = a.tasks["softmax"].model_copy(update={"source": a.tasks["softmax"].source + "# changed\n"})
    b = replace(golden_records("measured-c"), tasks={**golden_records("measured-c").tasks, "softmax": longer})
    view = compare_view(a, b)
    assert view.changed == ("softmax",)
    assert "softmax" not in outcomes(view)


def test_modelled_runs_are_compared_by_modelled_time_where_it_tells_them_apart() -> None:
    records = golden_records("modelled")
    same = compare_view(records, records)
    assert same.quantity == "modelled_us"
    assert (same.wins, same.losses) == (0, 0)
    assert {pair.low for pair in same.pairs} == {None}
    best = records.of_task("softmax")[5]
    without = RunRecords(
        records.run.model_copy(update={"id": "earlier"}),
        tuple(attempt for attempt in records.attempts if attempt.id != best.id),
        tasks=records.tasks,
    )
    better = row(compare_view(without, records), "softmax")
    assert (better.outcome, better.ratio) == ("win", pytest.approx(9.6 / 9.1))
    assert (better.a_value, better.b_value) == (9.6, 9.1)
    assert row(compare_view(records, without), "softmax").outcome == "loss"
    close = best.evaluation.performance.model_copy(update={"time_us": 9.3, "predicted": None})
    slower = best.model_copy(update={"evaluation": best.evaluation.model_copy(update={"performance": close})})
    attempts = tuple(slower if attempt.id == best.id else attempt for attempt in records.attempts)
    tie = row(compare_view(without, RunRecords(records.run, attempts, tasks=records.tasks)), "softmax")
    assert (tie.outcome, tie.ratio) == ("tie", pytest.approx(9.6 / 9.3))
    assert tie.why == "modelled 9.3 µs, a's 9.6 µs: less than 5% apart"


def test_modelled_and_measured_are_compared_by_correctness_alone() -> None:
    view = compared("modelled", "measured-a")
    assert view.quantity == "none"
    assert {pair.ratio for pair in view.pairs} == {None}
    assert any(difference.startswith("device: ") for difference in view.differences)
    assert row(view, "softmax").outcome == "tie"
    assert row(view, "cumsum").why == "b is correct, a is not: no attempt"
    assert "ratio" not in [column.key for column in compare_table(view).columns]


def test_every_format_holds_the_same_numbers() -> None:
    view = compared("measured-a", "measured-b")
    rows = list(csv.DictReader(io.StringIO(compare_table(view).to_csv())))
    pairs = json.loads(view.model_dump_json())["pairs"]
    assert [line["task"] for line in rows] == [pair["task"] for pair in pairs]
    for line, pair in zip(rows, pairs, strict=True):
        for key in ("a_value", "b_value", "ratio", "low", "high"):
            assert (float(line[key]) if line[key] else None) == pair[key]
    page = compare_markdown(view)
    assert "- score: b wins 3, loses 2; 4 ties, 1 failed in both" in page
    assert page.count("\n| ") == len(pairs) + 2


def test_runs_with_no_task_in_common_have_a_view() -> None:
    view = compared("hostile", "measured-a")
    assert view.pairs == ()
    assert view.geomean_ratio is None
