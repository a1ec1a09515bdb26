"""Views say what the records say."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest

from kernelforge.records import Budget, Limits, Operator, RunState, StartOrigin, Verdict
from kernelforge.report import RunRecords, attempt_view, export_lines, leaderboard, run_view, task_view
from kernelforge.report.exports import leaderboard_csv, leaderboard_markdown
from kernelforge.report.terminal import attempt_lines, leaderboard_lines, run_lines, task_lines
from kernelforge.report.views.run_records import summarise
from kernelforge.store import DATABASE_NAME, Store
from tests.support.recorded_run import HOSTILE, TASKS, golden_attempts, make_attempt, make_run, make_task
from tests.support.terminal import drawn


def records(
    run_id: str = "r1", *, device: str = "emulated:h100", keep: tuple[str, ...] = TASKS, **changes
) -> RunRecords:
    run = make_run(run_id, device=device, **changes)
    attempts = [attempt for attempt in golden_attempts(run) if attempt.task in keep]
    return RunRecords(run, tuple(attempts), {"softmax": "no new best in 4 rounds"})


def test_the_funnel_never_widens_and_ends_at_the_correct():
    counts = {step.step: step.count for step in run_view(records()).funnel}
    assert counts == {"generated": 11, "parsed": 10, "built": 8, "ran": 7, "correct": 4}
    assert list(counts.values()) == sorted(counts.values(), reverse=True)


def test_a_run_counts_its_verdicts_and_tasks():
    view = run_view(records())
    assert view.verdicts[Verdict.OK] == 4
    assert set(view.verdicts) == set(Verdict)
    assert (view.tasks_ok, view.tasks_total, view.tasks_finished, view.accepted) == (2, 3, 1, 3)
    assert [task.task for task in view.tasks] == list(TASKS)
    assert view.mean_reward == pytest.approx((0.3 + 0.3 + 0) / 3)


def test_a_run_tells_its_limits_and_its_tester():
    budget = Budget(rounds=4, dollars=5, per_task=Limits(tokens=20_000, wall_seconds=90))
    lines = drawn(run_lines(run_view(RunRecords(make_run(budget=budget, tester="openai:m"), ()))), width=120)
    assert "budget    4 rounds a task, $5; for each task 20,000 tokens, 1 min 30 s wall time\n" in lines
    assert "judge builtin, tester openai:m, seed 7\n" in lines
    free = drawn(run_lines(run_view(RunRecords(make_run(budget=Budget()), ()))), width=120)
    assert "budget    no limit for the run\n" in free


def test_a_run_without_attempts_has_a_view():
    view = run_view(RunRecords(make_run(), ()))
    assert view.tasks_ok == 0
    assert view.mean_reward is None
    assert all(task.verdict is None for task in view.tasks)
    assert "–" in drawn(run_lines(view), width=80)


@pytest.mark.parametrize(
    ("state", "live", "text"),
    [
        (RunState.RUNNING, True, "running"),
        (RunState.RUNNING, False, "interrupted"),
        (RunState.STOPPED, False, "stopped"),
        (RunState.FINISHED, False, "finished"),
    ],
)
def test_a_killed_run_is_told_apart_from_a_running_one(state: RunState, live: bool, text: str):
    assert run_view(RunRecords(make_run(state=state), (), {}, live)).state == text


def test_a_run_that_ended_since_it_was_read_was_not_interrupted(tmp_path: Path):
    with Store.open(tmp_path / DATABASE_NAME) as store:
        store.start_run(make_run())
        with store.lock_run("r1"):
            read = store.run("r1")
            assert RunRecords.load(store, read).state == "running"
            store.update_run("r1", RunState.FINISHED, "2026-11-20T10:00:00+00:00")
            assert not RunRecords.load(store, read).live, "it is held a moment longer than it goes on"
        assert RunRecords.load(store, read).state == "finished"


def test_the_best_of_a_task_is_the_last_accepted():
    summary = run_view(records()).tasks[0]
    assert summary.best == "r1/softmax/01"
    assert summary.moves == ("seed", "vectorise")
    assert summary.dram_ratio == 1.0
    assert summary.sectors_per_request == 4.0
    assert summary.launches == 1
    assert summary.generality == pytest.approx(2 / 3)
    assert summary.finished == "no new best in 4 rounds"


def test_a_task_with_nothing_correct_has_a_verdict_and_no_numbers():
    summary = run_view(records()).tasks[2]
    assert summary.verdict is Verdict.INFRA
    assert summary.best is None
    assert summary.dram_ratio is None
    assert summary.moves == ()


def test_lineage_is_a_tree_with_the_change_of_the_named_metric():
    view = task_view(records(), "softmax")
    assert [(node.number, node.depth) for node in view.lineage] == [(0, 0), (1, 1), (2, 2), (3, 2)]
    first, second, crash, worse = view.lineage
    assert first.changes == ()
    assert second.changes[0].name == "dram__bytes.sum"
    assert second.changes[0].change == pytest.approx(8388608 / 16e6 - 1)
    assert crash.changes[0].after is None
    assert crash.changes[0].change is None
    assert worse.changes[0].change > 0
    assert [node.best for node in view.lineage] == [False, True, False, False]


@pytest.mark.slow
def test_a_lineage_of_two_hundred_attempts_is_drawn():
    run, task = make_run(), make_task()
    chain = tuple(
        make_attempt(run, task, n, Verdict.OK, parent=n - 1 if n else None, accepted=True, move="m" if n else None)
        for n in range(200)
    )
    view = task_view(RunRecords(run, chain), "softmax")
    assert view.lineage[-1].depth == 199
    assert "199 m OK" in drawn(task_lines(view), width=80).replace("\n", " ").replace("  ", " ")


def test_an_attempt_is_compared_with_its_parent():
    attempts = golden_attempts(make_run())
    view = attempt_view(attempts[1], attempts[0])
    assert "-  // version 0" in view.source_diff
    assert "+  // version 1" in view.source_diff
    assert "+    k[2, BLOCK](x, out, i32(1))" in view.plan_diff
    named = [change for change in view.metrics if change.named]
    assert [change.name for change in named] == ["dram__bytes.sum"]
    assert view.metrics[0].named
    assert view.messages is None
    assert attempt_view(attempts[1], attempts[0], messages=True).messages == attempts[1].messages


def test_a_seed_is_shown_whole():
    attempts = golden_attempts(make_run())
    view = attempt_view(attempts[0], None)
    assert view.source_diff is None
    assert "// version 0" in drawn(attempt_lines(view), width=80)


def test_an_attempt_without_a_candidate_says_so():
    attempts = golden_attempts(make_run())
    limit = next(attempt for attempt in attempts if attempt.candidate is None)
    assert "held no candidate" in drawn(attempt_lines(attempt_view(limit, None)), width=80)


def test_modelled_and_measured_results_never_share_a_board():
    view = leaderboard([records("r1"), records("m1", device="cuda:0")])
    assert [board.key.device for board in view.boards] == ["NVIDIA H200", "emulated:h100"]
    assert all(len(board.entries) == 1 for board in view.boards)


@pytest.mark.parametrize(
    "other",
    [
        {"suite_digest": "another"},
        {"device": "emulated:a100"},
        {"tasks": ("softmax", "matmul"), "keep": ("softmax", "matmul")},
    ],
    ids=["suite", "device", "tasks"],
)
def test_results_with_another_key_stand_on_another_board(other: dict):
    assert len(leaderboard([records("r1"), records("r2", **other)]).boards) == 2
    assert len(leaderboard([records("r1"), records("r2", seed=8)]).boards) == 1


def test_a_run_with_nothing_correct_stands_on_the_board_it_failed_to_enter():
    (board,) = leaderboard([records("r1"), records("r2", keep=("argmax",))]).boards
    assert [(entry.run, entry.tasks_ok, entry.tasks_total) for entry in board.entries] == [("r1", 2, 3), ("r2", 0, 3)]
    (alone,) = leaderboard([records("r2", keep=("argmax",))]).boards
    assert alone.key.protocol is None


def test_a_modelled_board_shows_no_speedups():
    view = leaderboard([records()])
    (entry,) = view.boards[0].entries
    assert entry.fast_p == ()
    assert entry.median_speedup is None
    assert entry.geomean_speedup is None
    for text in (drawn(leaderboard_lines(view), width=120), leaderboard_markdown(view)):
        assert "fast" not in text
        assert "geomean" not in text
        assert "modelled bound" in re.sub(r"\s+", " ", text) or "modelled" in text


def test_fast_p_is_over_all_tasks_and_a_failure_is_no_speedup():
    (board,) = leaderboard([records("m1", device="cuda:0")]).boards
    (entry,) = board.entries
    assert {point.p: point.value for point in entry.fast_p} == {
        0.0: pytest.approx(2 / 3), 1.0: pytest.approx(2 / 3), 1.2: pytest.approx(1 / 3), 1.5: 0.0,
        2.0: 0.0,
    }  # fmt: skip
    assert entry.median_speedup.value == pytest.approx(1.3)
    assert entry.geomean_correct.value == pytest.approx(math.sqrt(1.5 * 1.1))
    assert entry.geomean_speedup.value == pytest.approx((1.5 * 1.1) ** (1 / 3))
    assert entry.geomean_eager.value == pytest.approx(math.sqrt(2.25 * 1.65))
    assert entry.win_rate.value == pytest.approx(2 / 3)
    # 8388608 bytes at the H200's 4.8 TB/s are 1.7476 us; both kernels take 9.5 us, the third task has none.
    assert entry.floor_share.value == pytest.approx(2 / 3 * 1.7476 / 9.5, rel=1e-4)
    assert entry.untimed == 0


def test_a_correct_kernel_without_a_baseline_counts_for_fast_0_alone():
    run = make_run(device="cuda:0", tasks=("softmax",))
    attempt = make_attempt(run, make_task(), 0, Verdict.OK, accepted=True)
    (board,) = leaderboard([RunRecords(run, (attempt,))]).boards
    assert [point.value for point in board.entries[0].fast_p] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert board.entries[0].untimed == 1


def test_better_runs_rank_first_and_ties_keep_both():
    (board,) = leaderboard([records("low", keep=("matmul",)), records("high"), records("same")]).boards
    assert [entry.run for entry in board.entries] == ["high", "same", "low"]
    assert [entry.rank for entry in board.entries] == [1, 2, 3]
    assert [task.run for task in board.records][:1] == ["high"]


def test_an_empty_leaderboard_says_so():
    view = leaderboard([RunRecords(make_run(), ())])
    assert view.boards == ()
    assert "no run has an attempt" in drawn(leaderboard_lines(view), width=80)
    assert "No run has an attempt" in leaderboard_markdown(view)
    assert leaderboard_csv(view).count("\n") == 1


@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("device", ["emulated:h100", "cuda:0"])
def test_no_cell_is_lost_at_any_width(width: int, device: str):
    view = leaderboard([records(device=device)])
    text = drawn(leaderboard_lines(view), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = re.sub(r"\s+", "", text)
    for task in TASKS:
        assert task in flat
    expected = ["8.39MB", "1.00x", "dram"] if device.startswith("emulated") else ["1.50x", "1.18x", "67%", "1of"]
    for cell in expected:
        assert cell in flat, cell


def test_every_format_of_the_board_says_the_same():
    view = leaderboard([records("m1", device="cuda:0")])
    rows = list(csv.DictReader(io.StringIO(leaderboard_csv(view))))
    data = json.loads(view.model_dump_json())
    tasks = data["boards"][0]["entries"][0]["tasks"]
    assert [row["task"] for row in rows] == [task["task"] for task in tasks]
    assert [float(row["speedup"]) if row["speedup"] else None for row in rows] == [task["speedup"] for task in tasks]
    assert {row["suite_digest"] for row in rows} == {data["boards"][0]["key"]["suite_digest"]}
    terminal = drawn(leaderboard_lines(view), width=200)
    page = leaderboard_markdown(view)
    for text in ("1.50x", "2.25x", "67 %", "1.18x"):
        assert text in terminal
        assert text in page


def test_hostile_text_does_not_reach_a_terminal_or_a_page_as_it_is():
    attempts = golden_attempts(make_run())
    for attempt in attempts:
        text = drawn(attempt_lines(attempt_view(attempt, None, messages=True)), width=80)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\x07" not in text
    assert "[bold]x[/bold]" in drawn(attempt_lines(attempt_view(attempts[2], attempts[1], messages=True)), width=200)


@pytest.mark.slow
def test_a_megabyte_of_reply_is_shown():
    run = make_run()
    attempt = golden_attempts(run)[0]
    long = attempt.messages[2].model_copy(update={"content": "x\x1b" * 500_000})
    view = attempt_view(attempt.model_copy(update={"messages": (long,)}), None, messages=True)
    assert "\x1b" not in drawn(attempt_lines(view), width=120)


def test_huge_texts_are_not_compared_line_by_line():
    attempt = golden_attempts(make_run())[1]
    huge = attempt.candidate.model_copy(update={"source": "a\n" * 60_000})
    evaluation = attempt.evaluation.model_copy(update={"candidate": huge.hash})
    grown = attempt.model_copy(update={"candidate": huge, "evaluation": evaluation})
    assert attempt_view(grown, attempt).source_diff is None


def test_exported_lines_hold_what_training_needs():
    attempts = golden_attempts(make_run())
    lines = [json.loads(line) for line in export_lines(attempts)]
    assert [line["id"] for line in lines] == [attempt.id for attempt in attempts]
    best = lines[1]
    assert best["prompt"] == "write a kernel"
    assert best["reply"].endswith(HOSTILE)
    assert best["finding"]["move"] == "vectorise"
    assert best["candidate"]["hash"] == attempts[1].candidate.hash
    assert best["candidate"]["source"] == attempts[1].candidate.source
    assert best["candidate"]["language"] == attempts[1].candidate.language
    assert best["verdict"] == "OK"
    assert best["reward"]["components"]["odd"] == "Infinity"
    assert best["profile"]["metrics"][0]["name"] == "dram__bytes.sum"
    assert best["fingerprint"]["toolchain"] == "nvrtc 13.0.88"
    limit = next(line for line in lines if line["verdict"] == "LIMIT")
    assert limit["candidate"] is None
    origin = StartOrigin(file="softmax.cu", digest="0" * 64)
    started = json.loads(
        next(
            export_lines([attempts[0].model_copy(update={"start": origin, "operator": Operator.START, "parent": None})])
        )
    )
    assert (best["start"], started["start"]["file"]) == (None, "softmax.cu")
    assert all("\n" not in line for line in export_lines(attempts))


def test_a_summary_follows_parents_even_in_a_circle():
    run, task = make_run(), make_task()
    first = make_attempt(run, task, 0, Verdict.OK, parent=1, accepted=True, move="a")
    two = make_attempt(run, task, 1, Verdict.OK, parent=0, accepted=True, move="b")
    assert len(summarise(run.id, task.name, [first, two]).moves) <= 3
