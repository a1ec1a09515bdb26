"""Figures show the numbers of views; untrusted text is only ever data in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from kernelforge.hardware.specs import SPECS
from kernelforge.report import RunRecords, attempt_view, leaderboard, run_view, task_view
from kernelforge.report.figures import (
    Absent,
    Drawing,
    Figure,
    base,
    draw_attempt,
    draw_board,
    draw_compare,
    draw_run,
    draw_task,
    embedded_json,
    figures_of,
)
from kernelforge.report.figures.attempt import roofline
from kernelforge.report.figures.run import EACH_END
from kernelforge.report.views.compare import compare_view
from kernelforge.report.views.roofline import device_peaks
from kernelforge.report.views.run import RunView
from tests.report.golden.golden_runs import golden_records

EXPRESSIONS = {"height", "isValid(datum.low) && isValid(datum.high)"}
"""All that is ever evaluated."""


@cache
def view_of(name: str) -> RunView:
    return run_view(golden_records(name))


def drawings_of(records: RunRecords) -> Iterator[Drawing]:
    """Every figure of a run, of its tasks and of its attempts."""
    by_id = {attempt.id: attempt for attempt in records.attempts}
    yield from draw_run(run_view(records))
    for task in records.run.config.tasks:
        yield from draw_task(task_view(records, task))
    for attempt in records.attempts:
        yield from draw_attempt(attempt_view(attempt, by_id.get(attempt.parent or "")))
    for board in leaderboard([records]).boards:
        yield from draw_board(board)
    yield from draw_compare(compare_view(records, records))


def test_a_number_that_json_does_not_know_is_refused_wherever_it_stands_and_the_word_is_not():
    text = Figure(name="n", title="t", description="d", spec={"values": ["NaN", "</script>", 1e-7, "\u2028", True]})
    assert json.loads(embedded_json(text)) == text.spec
    assert "<" not in embedded_json(text)
    for number in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            embedded_json(text.model_copy(update={"spec": {"values": [{"us": number}]}}))


@cache
def figures_in(name: str) -> tuple[Figure, ...]:
    return tuple(drawing for drawing in drawings_of(golden_records(name)) if isinstance(drawing, Figure))


def named(drawings: tuple[Drawing, ...], name: str) -> Any:
    return next(drawing for drawing in drawings if drawing.name == name)


def rows_of(figure: Figure) -> list[dict[str, Any]]:
    """Data of all layers, in order."""
    return [row for node in nodes(figure.spec) if isinstance(node.get("data"), dict) for row in node["data"]["values"]]


def nodes(spec: Any) -> Iterator[dict[str, Any]]:
    """Every object of a specification outside of its data."""
    if isinstance(spec, dict):
        yield spec
        for key, value in spec.items():
            if key != "values":
                yield from nodes(value)
    elif isinstance(spec, list):
        for item in spec:
            yield from nodes(item)


@pytest.mark.parametrize("run", ["modelled", "measured-a", "hostile", "escaping"])
def test_names_of_others_are_data_and_never_fields_expressions_or_addresses(run: str) -> None:
    for figure in figures_in(run):
        for node in nodes(figure.spec):
            assert not {"url", "href", "image", "params", "usermeta"} & node.keys()
            for key in ("field", "as", "groupby", "signal"):
                assert re.fullmatch(r"[a-z]+", node.get(key, "a")), node
            for key in ("expr", "filter", "calculate", "test", "labelExpr"):
                assert node.get(key, "height") in EXPRESSIONS, node
        assert re.fullmatch(r"[a-z0-9-]+", figure.name)


@pytest.mark.parametrize("run", ["modelled", "measured-a", "hostile", "escaping"])
def test_an_embedded_figure_ends_no_script_and_is_the_same_figure(run: str) -> None:
    for figure in figures_in(run):
        text = embedded_json(figure)
        assert "<" not in text
        assert json.loads(text) == figure.spec


def test_hostile_text_is_shown_with_its_control_characters_written_out() -> None:
    text = "".join(map(embedded_json, figures_in("hostile"))) + "".join(
        figure.title for figure in figures_in("hostile")
    )
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_a_modelled_run_has_no_figure_of_speedups_and_says_why() -> None:
    drawn = draw_run(view_of("modelled"))
    for name in ("fast-p", "speedups", "task-speedups", "anytime-speedup-evaluations"):
        absent = named(drawn, name)
        assert isinstance(absent, Absent)
        assert "modelled" in absent.why
    assert isinstance(named(drawn, "task-dram"), Figure)
    assert not any("speedup" in figure.name for figure in figures_in("modelled"))


@pytest.mark.parametrize(
    ("run", "origin", "other"), [("modelled", "modelled", "measured"), ("measured-a", "measured", "modelled")]
)
def test_axes_say_whether_their_numbers_are_measured_or_modelled(run: str, origin: str, other: str) -> None:
    by_correctness = re.compile(r"anytime-correct-.*|funnel|spent-.*|board-correct|metrics|scatter")
    for figure in figures_in(run):
        if by_correctness.fullmatch(figure.name):
            continue
        titles = " ".join(str(node["title"]) for node in nodes(figure.spec) if "axis" in node)
        assert origin in titles, figure.name
        assert other not in titles, figure.name


def test_fast_p_has_every_point_of_the_view_and_a_band_for_each_baseline() -> None:
    view = view_of("measured-a")
    drawn = draw_run(view)
    lines = named(drawn, "fast-p").spec["layer"][1]["data"]["values"]
    assert [(row["baseline"], row["p"], row["share"]) for row in lines] == [
        (curve.baseline, point.p, point.value) for curve in view.fast_curves for point in curve.points
    ]
    for curve in view.fast_curves:
        band = named(drawn, f"fast-p-{curve.baseline}").spec["layer"][0]["data"]["values"]
        assert [(row["low"], row["high"]) for row in band] == [(point.low, point.high) for point in curve.points]


def test_speedups_have_one_mark_per_task_with_one_and_its_exact_interval() -> None:
    view = view_of("measured-a")
    expected = {task.task: task for task in view.tasks if task.speedup is not None}
    for name in ("speedups", "task-speedups"):
        rows = named(draw_run(view), name).spec["data"]["values"]
        assert {row["task"]: (row["speedup"], row.get("low"), row.get("high")) for row in rows} == {
            name: (task.speedup, task.speedup_lower, task.speedup_upper) for name, task in expected.items()
        }
        assert all(a["speedup"] >= b["speedup"] for a, b in pairwise(rows))


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(1.1, 1.3, "faster"), (0.7, 0.9, "slower"), (0.9, 1.2, "too close to tell")]
)
def test_a_speedup_counts_as_one_beyond_its_noise_alone(low: float, high: float, outcome: str) -> None:
    view = view_of("measured-a")
    task = next(task for task in view.tasks if task.speedup is not None)
    noisy = task.model_copy(update={"speedup": (low + high) / 2, "speedup_lower": low, "speedup_upper": high})
    rows = named(draw_run(view.model_copy(update={"tasks": (noisy,)})), "task-speedups").spec["data"]["values"]
    assert [row["outcome"] for row in rows] == [outcome]


@pytest.mark.parametrize(
    ("run", "measure", "field"),
    [
        ("measured-a", "speedup", "geomean_speedup"),
        ("modelled", "correct", "tasks_ok"),
        ("modelled", "dram", "median_dram_ratio"),
    ],
)
@pytest.mark.parametrize("budget", ["dollars", "evaluations", "seconds"])
def test_the_corners_of_an_anytime_curve_say_all_that_its_points_say(
    run: str, measure: str, field: str, budget: str
) -> None:
    view = view_of(run)
    points = [
        (getattr(point, budget), getattr(point, field))
        for point in view.anytime
        if getattr(point, budget) is not None and getattr(point, field) is not None
    ]
    rows = rows_of(named(draw_run(view), f"anytime-{measure}-{budget}"))
    assert len(rows) <= len(points)
    last_at = dict(points)  # of several points at one place the last stands
    for spent, value in last_at.items():
        assert [row["reached"] for row in rows if row["spent"] <= spent][-1] == value
    assert rows[-1]["spent"] == points[-1][0]


def test_the_funnel_and_the_spending_are_those_of_the_view() -> None:
    view = view_of("measured-a")
    drawn = draw_run(view)
    assert {row["step"]: row["count"] for row in rows_of(named(drawn, "funnel"))} == {
        step.step: step.count for step in view.funnel
    }
    assert {row["what"]: row["amount"] for row in rows_of(named(drawn, "spent-time"))} == {
        part.what: part.seconds for part in view.spent if part.seconds
    }
    assert {row["what"]: row["amount"] for row in rows_of(named(drawn, "spent-money"))} == {
        part.what: part.dollars for part in view.spent if part.dollars
    }


def test_the_roofline_puts_an_attempt_where_its_view_does() -> None:
    records = golden_records("measured-a")
    by_id = {attempt.id: attempt for attempt in records.attempts}
    child = next(
        attempt for attempt in records.attempts if attempt.profile and attempt.parent and by_id[attempt.parent].profile
    )
    view = attempt_view(child, by_id[child.parent])
    assert view.place is not None
    assert view.place.roofs is not None
    rows = rows_of(named(draw_attempt(view), "roofline"))
    here = next(row for row in rows if row.get("who") == "this attempt")
    assert (here["intensity"], here["rate"]) == (view.place.arithmetic_intensity, view.place.flops_per_s)
    assert next(row for row in rows if row.get("who") == "its parent")["attempt"] == child.parent
    roof = [row for row in rows if "rate" in row and "who" not in row and "name" not in row]
    assert roof[1]["intensity"] == view.place.roofs.ridge
    assert roof[-1]["rate"] == view.place.roofs.fp32_flops_per_s


def test_the_ceilings_of_tensor_cores_are_drawn_where_tensor_cores_worked() -> None:
    records = golden_records("measured-a")
    view = attempt_view(next(attempt for attempt in records.attempts if attempt.profile), None)
    point = view.place
    assert point is not None
    assert point.roofs is not None
    roofs = point.roofs
    used = point.model_copy(update={"tensor_cores": True, "flops_per_s": 3e14})
    drawn = {drawn_point: rows_of(roofline(drawn_point)) for drawn_point in (point, used)}
    peaks = {
        drawn_point: {row["name"].partition(" ")[0]: row["rate"] for row in rows if "flop" in row.get("name", "")}
        for drawn_point, rows in drawn.items()
    }
    assert peaks[point] == {"FP32": roofs.fp32_flops_per_s}
    assert peaks[used] == {
        "FP32": roofs.fp32_flops_per_s,
        "TF32": roofs.tf32_tensor_flops_per_s,
        "FP16": roofs.fp16_tensor_flops_per_s,
    }
    turing = used.model_copy(update={"roofs": device_peaks(SPECS["t4"])})
    assert not any(row.get("name", "").startswith("TF32") for row in rows_of(roofline(turing)))
    ends = [row["rate"] for row in drawn[used] if row.keys() == {"intensity", "rate"}]
    assert set(peaks[used].values()) < set(ends)
    assert max(ends) == roofs.fp16_tensor_flops_per_s


def test_samples_are_all_drawn_with_medians_and_intervals() -> None:
    records = golden_records("measured-a")
    attempt = next(
        attempt
        for attempt in records.attempts
        if attempt.evaluation.performance and attempt.evaluation.performance.timing
    )
    timing = attempt.evaluation.performance.timing
    rows = rows_of(named(draw_attempt(attempt_view(attempt, None)), "samples"))
    for side in (timing.candidate, *timing.baselines):
        own_rows = [row for row in rows if row["side"] == side.name]
        assert tuple(row["us"] for row in own_rows if "number" in row) == side.samples_us
        assert {(row["low"], row["us"], row["high"]) for row in own_rows if "low" in row} == {
            (side.interval_us[0], side.median_us, side.interval_us[1])
        }


def test_every_attempt_of_a_task_is_drawn_failures_without_a_value() -> None:
    records = golden_records("modelled")
    task = max(records.run.config.tasks, key=lambda name: len(records.of_task(name)))
    view = task_view(records, task)
    rows = [row for row in rows_of(named(draw_task(view), "attempts-dram")) if "kind" in row and "step" in row]
    values = {row["number"]: row.get("value") for row in rows}
    assert values == {node.number: node.dram_ratio if node.verdict == "OK" else None for node in view.lineage}


def test_a_comparison_draws_every_pair_with_both_values() -> None:
    view = compare_view(golden_records("measured-a"), golden_records("measured-c"))
    rows = [row for row in rows_of(draw_compare(view)[0]) if "task" in row]
    assert {(row["task"], row["a"], row["b"]) for row in rows} == {
        (pair.task, pair.a_value, pair.b_value) for pair in view.pairs if pair.a_value and pair.b_value
    }


def test_marks_lead_where_the_caller_says_and_nowhere_else() -> None:
    view = view_of("hostile")
    links = {view.tasks[0].task: "a/index.html"}
    assert {
        row["href"] for figure in figures_of(draw_run(view, links)) for row in rows_of(figure) if "href" in row
    } <= {"a/index.html"}
    assert not any("href" in row for figure in figures_of(draw_run(view)) for row in rows_of(figure))


def test_at_250_tasks_all_have_a_mark_bars_show_both_ends_and_figures_stay_light() -> None:
    view = view_of("measured-a")
    timed = next(task for task in view.tasks if task.speedup is not None)
    many = tuple(
        timed.model_copy(update={"task": f"level1/{n}_Convolution", "speedup": 1 + n / 100, "speedup_lower": None})
        for n in range(250)
    )
    drawn = draw_run(view.model_copy(update={"tasks": many, "tasks_total": 250}))
    assert len(rows_of(named(drawn, "speedups"))) == 250 + 1  # the line at 1
    bars = [row for row in rows_of(named(drawn, "task-speedups")) if "task" in row]
    assert [row["task"] for row in bars[:2]] == ["level1/249_Convolution", "level1/248_Convolution"]
    assert bars[-1]["task"] == "level1/0_Convolution"
    assert len(bars) == 2 * EACH_END
    assert "200 between them left out" in named(drawn, "task-speedups").title
    assert max(len(embedded_json(figure)) for figure in drawn if isinstance(figure, Figure)) < 100_000


def test_tasks_whose_names_look_the_same_keep_a_row_each() -> None:
    view = view_of("measured-a")
    counted = next(task for task in view.tasks if task.dram_ratio is not None)
    twins = tuple(counted.model_copy(update={"task": "x" * 300 + end}) for end in "ab")
    rows = rows_of(named(draw_run(view.model_copy(update={"tasks": twins})), "task-dram"))
    assert len({row["task"] for row in rows if "task" in row}) == 2


@pytest.mark.parametrize("background", ["#ffffff", "#15171a", "#1d2024"])
@pytest.mark.parametrize("colour", base.SERIES)
def test_colours_of_data_stand_out_on_light_and_on_dark_pages(colour: str, background: str) -> None:
    lighter, darker = sorted((luminance(colour), luminance(background)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 3


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.1 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(
    ("low", "high"), [(0.96, 1.04), (0.6, 2.5), (0.1, 40.0), (1e-3, 1e9), (2.9e11, 1e14), (1.0, 2.99)]
)
def test_ticks_of_a_logarithmic_axis_are_few_round_and_inside(low: float, high: float) -> None:
    ticks = base.log_ticks(low, high)
    assert 3 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
    assert all(a < b for a, b in pairwise(ticks))
    assert all(len(f"{tick:g}".strip("0").replace(".", "").partition("e")[0]) <= 4 for tick in ticks)
