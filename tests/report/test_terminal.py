"""Pages on a terminal: they fit 80 and 120 columns, say nothing by colour alone, and let nothing hostile out."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Group, RenderableType

from kernelforge.records import Message, Screening, SideEnergy, Usage
from kernelforge.report import attempt_view, run_view, task_view
from kernelforge.report.formatting import format_screening
from kernelforge.report.terminal import attempt_lines, compare_lines, diff_lines, run_lines, run_summary, task_lines
from kernelforge.report.terminal.compare import MAX_CHARS, DiffBody
from kernelforge.report.terminal.run import speed_lines
from kernelforge.report.terminal.widgets import Block, bar
from kernelforge.report.views.compare import compare_view
from kernelforge.report.views.diff import diff_view, text_diff
from kernelforge.report.views.messages import search
from kernelforge.report.views.run_records import best_of
from tests.report.golden.golden_runs import golden_records
from tests.support.factories import make_attempt, make_forecast, make_timing, measured, measured_evaluation
from tests.support.terminal import drawn

BAD = "\x1b\x07\u202e\u200b"


def pages(name: str) -> list[RenderableType]:
    """Every page of a golden run, with the attempts of its first and its last two tasks."""
    records = golden_records(name)
    result: list[RenderableType] = [run_lines(run_view(records))]
    for task in (records.run.config.tasks[0], *records.run.config.tasks[-2:]):
        attempts = records.of_task(task)
        by_id = {attempt.id: attempt for attempt in attempts}
        result.append(task_lines(task_view(records, task)))
        for attempt in attempts:
            parent = by_id.get(attempt.parent or "")
            result.append(attempt_lines(attempt_view(attempt, parent, best=best_of(attempts), messages=True)))
            if parent and parent.candidate and attempt.candidate:
                result.append(diff_lines(diff_view(parent, attempt)))
    return result


def test_reasoning_stands_before_its_reply_with_its_length() -> None:
    usage = Usage(model="m", output_tokens=900, reasoning_tokens=640, seconds=1.0)
    words = Message(agent="coder", role="reply", provider="m", content="the kernel", usage=usage, reasoning="hm")
    text = drawn(attempt_lines(attempt_view(make_attempt(0, messages=(words,)), None, messages=True)))
    assert text.index("coder reasoning (640 tokens)") < text.index("hm") < text.index("coder reply (m)")
    (match,) = search("HM", "t", [make_attempt(0, messages=(words,))])
    assert (match.role, match.text) == ("reasoning", "hm")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["modelled", "measured-a", "hostile"])
def test_no_line_is_wider_than_the_terminal_and_nothing_hostile_gets_out(name: str) -> None:
    for page in pages(name):
        for width in (80, 120):
            text = drawn(page, width=width)
            assert max(map(len, text.splitlines()), default=0) <= width
            assert not [bad for bad in BAD if bad in text]


def test_a_funnel_has_a_bar_for_each_step_and_says_what_was_lost() -> None:
    view = run_view(golden_records("modelled"))
    text = drawn(run_lines(view))
    bars = []
    for step in view.funnel:
        (line,) = re.findall(rf"^{step.step} +{step.count} (.*)$", text, re.M)
        bars.append(line.count("█"))
        for verdict, count in step.lost.items():
            assert f"{count} {verdict.value}" in line
    assert bars == sorted(bars, reverse=True)


def test_the_matrix_reads_without_colours() -> None:
    view = run_view(golden_records("modelled"))
    text = drawn(run_lines(view))
    letters = {"WRONG": "w", "POLICY": "p", "BUILD": "b", "CRASH": "c", "TIMEOUT": "t", "LIMIT": "l", "INFRA": "i"}
    for row in view.matrix:
        expected = "".join(
            ("A" if cell.accepted else "o") if cell.verdict.value == "OK" else letters[cell.verdict.value]
            for cell in row.cells
        )
        assert re.search(rf"^{re.escape(row.task)} +{expected or 'no attempt'} *$", text, re.M)
    for verdict in {cell.verdict.value for row in view.matrix for cell in row.cells} - {"OK"}:
        assert f"{letters[verdict]} {verdict}" in text


def test_many_attempts_go_on_below_and_none_is_left_out() -> None:
    view = run_view(golden_records("modelled"))
    row = view.matrix[0]
    long = view.model_copy(update={"matrix": (row.model_copy(update={"cells": row.cells[:1] * 200}),)})
    text = drawn(run_lines(long), width=80).partition("Attempts")[2].partition("Where time went")[0]
    assert sum(line.count("A") for line in text.splitlines()[2:]) == 200


def test_a_measured_run_shows_fast_p_with_intervals_and_a_modelled_one_only_what_is_predicted() -> None:
    view = run_view(golden_records("measured-a"))
    text = drawn(run_lines(view))
    curve = view.fast_curves[0]
    for p in (0, 1, 1.2, 1.5, 2):
        point = next(point for point in curve.points if point.p == p)
        interval = f"{100 * point.value:.0f} % [{100 * point.low:.0f} %, {100 * point.high:.0f} %]"
        assert re.search(rf"^> {p:g} +{re.escape(interval)}", text, re.M)
    modelled = drawn(run_lines(run_view(golden_records("modelled"))))
    assert "geomean" not in modelled
    about_speed = [line for line in modelled.splitlines() if "fast" in line]
    assert len(about_speed) == 1
    assert "of all tasks are correct and, as predicted, faster than eager PyTorch" in about_speed[0]


def test_a_bar_per_limit_says_where_modelled_time_goes() -> None:
    attempt = next(attempt for attempt in golden_records("modelled").of_task("softmax") if attempt.profile)
    view = attempt_view(attempt, None)
    lines = drawn(attempt_lines(view)).splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("time of"))
    assert "1 launch; under each limit alone" in lines[start]
    bars = lines[start + 1 : start + 1 + len(view.bounds[0].bounds)]
    lengths = [line.count("█") for line in bars]
    assert bars[0].split()[0] == "DRAM"
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 24
    measured = next(attempt for attempt in golden_records("measured-a").attempts if attempt.profile)
    assert "under each limit alone" not in drawn(attempt_lines(attempt_view(measured, None)))


def test_gates_are_a_checklist() -> None:
    records = golden_records("modelled")
    attempts = records.of_task("matmul")
    text = drawn(attempt_lines(attempt_view(attempts[2], attempts[1])))
    assert re.search(r"^✓ small +passed", text, re.M)
    assert re.search(r"^✗ hidden +failed", text, re.M)
    assert re.search(r"^· full +not reached", text, re.M)
    assert re.search(r"^– timing +not applicable: times are modelled", text, re.M)


def test_metrics_that_did_not_change_are_counted_and_not_listed() -> None:
    records = golden_records("measured-a")
    seed, child = records.of_task("softmax")
    same = child.model_copy(update={"profile": seed.profile, "finding": None})
    view = attempt_view(same, seed)
    text = drawn(attempt_lines(view))
    still = sum(metric.before == metric.after for metric in view.metrics)
    assert still > 5
    assert f"{still} more did not change" in text
    assert "dram__bytes_read.sum" not in text


def test_a_difference_is_numbered_and_goes_on_under_its_own_text() -> None:
    result = text_diff("a\n" + "b" * 50, "a\n" + "c" * 50, name="source", beside="parent", against="r/t/00")
    lines = drawn(DiffBody(result.lines), width=40).splitlines()
    assert lines[0] == "  1   1  a"
    assert lines[1] == "  2     -" + "b" * 31
    assert lines[2] == "        -" + "b" * 19
    assert lines[3] == "      2 +" + "c" * 31
    coloured = drawn(DiffBody(result.lines), width=40, colours=True)
    assert "\x1b[32m" in coloured
    assert "\x1b[31m" in coloured


def test_a_line_of_a_megabyte_is_cut_and_says_how_long_it_is() -> None:
    result = text_diff("x", "\x1b" * 1_000_000, name="source", beside="parent", against="r/t/00")
    text = drawn(DiffBody(result.lines), width=80)
    assert "(1,000,000 characters" in text
    assert "\x1b" not in text
    assert len(text) < 8 * MAX_CHARS


def test_a_block_of_text_keeps_every_character_that_can_be_seen() -> None:
    text = "wide 你好 " * 30 + "\n\n\tend"
    page = drawn(Block(text), width=37)
    assert page.replace("\n", "") == text.expandtabs(4).replace("\n", "")
    assert "\n\n" in page


def test_a_bar_is_never_empty_for_more_than_nothing() -> None:
    assert (bar(0, 30), bar(1, 30), bar(2, 30)) == ("", "█" * 30, "█" * 30)
    assert bar(1e-9, 30) == "▏"
    assert len(bar(0.5, 30)) == 15


def test_a_comparison_says_how_times_were_compared_and_what_is_apart() -> None:
    a, b = golden_records("measured-a"), golden_records("measured-b")
    text = re.sub(r"\s+", " ", drawn(compare_lines(compare_view(a, b)), width=80))
    assert "b wins 3, loses 2; 4 ties, 1 failed in both" in text
    assert "did not take turns" in text
    assert "only_in_b" in text
    assert "no task is in both" in drawn(compare_lines(compare_view(golden_records("hostile"), a)))


@pytest.mark.slow
def test_the_end_of_a_run_says_once_which_baselines_were_not_there() -> None:
    records = golden_records("measured-a")
    changed = []
    for attempt in records.attempts:
        speed = attempt.evaluation.performance
        if speed is not None and speed.timing is not None:
            timing = speed.timing.model_copy(update={"absent": {"compile": "no C compiler"}})
            speed = speed.model_copy(update={"timing": timing})
            evaluation = attempt.evaluation.model_copy(update={"performance": speed})
            attempt = attempt.model_copy(update={"evaluation": evaluation})
        changed.append(attempt)
    assert run_view(records).absent == ()
    view = run_view(replace(records, attempts=tuple(changed)))
    timed = {item.task for item in changed if item.evaluation.performance and item.evaluation.performance.timing}
    assert [(item.baseline, item.reason, item.tasks) for item in view.absent] == [
        ("compile", "no C compiler", len(timed))
    ]
    text = f"compile was not there at {len(timed)} of {view.tasks_total} tasks: no C compiler"
    for page in (run_lines(view), Group(*run_summary(view))):
        assert drawn(page, width=200).count(text) == 1


def test_an_attempt_says_what_was_predicted_before_it_was_measured_and_how_far_off_that_was() -> None:
    forecast = make_forecast(10.0, factor=1.2, measured=5, tasks=2, exact=False)
    attempt = make_attempt(0)
    evaluation = measured_evaluation(
        candidate=attempt.evaluation.candidate,
        performance=measured(15.0),
        screening=Screening(device="emulated:h100", outcome="passed", forecast=forecast),
    )
    attempt = attempt.model_copy(update={"evaluation": evaluation})
    text = " ".join(drawn(attempt_lines(attempt_view(attempt, None)), width=300).split())
    assert (
        "before 12 µs (7.5 to 19.2) by emulated/7 on NVIDIA H100 SXM5 80 GB, the nearest known GPU, 10 µs, "
        "times 1.20 after 5 measured; measured is 1.25x that; predicted before it was measured"
    ) in text
    assert "screened passed on emulated:h100, before the GPU was used" in text


@pytest.mark.parametrize(
    ("screening", "words"),
    [
        (Screening(device="emulated:h100", outcome="failed"), "failed on emulated:h100; no GPU was used"),
        (
            Screening(device="emulated:h100", outcome="unsupported", message="no instruction x"),
            "emulated:h100 could not run it, so the GPU alone decided: no instruction x",
        ),
        (
            Screening(device="emulated:h100", outcome="infra", message="a child of it failed (ChildDied)"),
            "emulated:h100 was in trouble, so the GPU alone decided: a child of it failed (ChildDied)",
        ),
        (
            Screening(device="emulated:h100", outcome="passed", message="torch operators"),
            "passed on emulated:h100, before the GPU was used; no time was predicted: torch operators",
        ),
    ],
)
def test_the_outcome_in_front_of_the_gpu_is_told_in_words(screening: Screening, words: str) -> None:
    assert format_screening(screening) == words


def test_a_timing_says_what_a_place_in_the_graph_costs_and_what_hid_the_launches() -> None:
    sides = {name: make_timing(time_us=time_us).candidate for name, time_us in (("a", 4.0), ("b", 9.0), ("c", 50.0))}
    timing = make_timing(4.0, 2.25).model_copy(
        update={
            "candidate": sides["a"].model_copy(update={"node_gap_us": 1.25}),
            "baselines": (
                sides["b"].model_copy(update={"name": "eager", "node_gap_us": 1.5}),
                sides["c"].model_copy(update={"name": "eager-synchronised"}),
            ),
            "absent": {"compile": "no C compiler"},
            "energy": (SideEnergy(name="eager", joules=0.025, interval=(0.02, 0.03), idle_w=71.0, windows=5),),
        }
    )
    speed = measured(4.0, timing=timing, speedup=2.25, speedup_lower=2.2, speedup_eager=2.25)
    text = " ".join(drawn(Group(*speed_lines(speed, None)), width=200).split())
    assert "vs eager 2.25x, 50 µs where no flush hides its launches" in text
    assert "1.25 µs: the gap before a kernel and the least that one takes, in every time once per kernel" in text
    assert "no baseline compile: no C compiler" in text
    assert "eager: 25 mJ (20 to 30) above 71 W of idling" in text
