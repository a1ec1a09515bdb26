"""Progress of a live run, folded from its events with a fake clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kernelforge.records import Budget, LLMSettings, Message, RunState, Usage
from kernelforge.report.formatting import clock
from kernelforge.report.views.progress import (
    BATCH_STALLED_AFTER_S,
    BUILTIN_STALLED_AFTER_S,
    STALLED_AFTER_S,
    BudgetBar,
    Gain,
    ProgressView,
    RunProgress,
    WorkerStatus,
    format_spent,
    journalled_progress,
    seconds_since,
    stalled_after_s,
    visible_bars,
    worker_label,
)
from kernelforge.report.views.run import run_view
from kernelforge.report.views.run_records import RunRecords
from kernelforge.run.events import Event, Totals
from tests.support.recorded_run import HOSTILE, golden_attempts, make_run

START = datetime(2026, 11, 21, 6, tzinfo=UTC)
ATTEMPTS = golden_attempts(make_run())


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Told(RunProgress):
    """``progress.hear(12, Event(...))``: 12 seconds after the start."""

    def __init__(self, **changes: object) -> None:
        super().__init__(make_run(**changes).config, pid=7)
        self.hear(0, Event("run_started", message="r1"))

    def hear(self, seconds: float, event: Event) -> None:
        self.on_event(event, at(seconds))

    def lanes(self) -> list[tuple[str | None, str, int]]:
        return [(worker.task, worker.stage, worker.round) for worker in self.view(at(10_000)).lanes]


def bars(view: ProgressView) -> dict[str, tuple[float, float | None]]:
    return {bar.name: (bar.spent, bar.limit) for bar in view.bars}


def test_a_task_stays_in_the_first_free_lane_until_it_is_finished() -> None:
    progress = Told(jobs=2)
    assert progress.lanes() == [(None, "", 0), (None, "", 0)]
    progress.hear(1, Event("task_started", task="softmax"))
    progress.hear(2, Event("stage", task="matmul", round=0, stage="describe"))
    progress.hear(3, Event("stage", task="softmax", round=1, stage="coder"))
    assert progress.lanes() == [("softmax", "coder", 1), ("matmul", "describe", 0)]
    progress.hear(4, Event("task_finished", task="softmax", message="done"))
    assert progress.lanes() == [(None, "", 0), ("matmul", "describe", 0)]
    progress.hear(5, Event("stage", task="argmax", round=0, stage="describe"))
    progress.hear(6, Event("stage", task="matmul", round=2, stage="evaluate"))
    assert progress.lanes() == [("argmax", "describe", 0), ("matmul", "evaluate", 2)]
    view = progress.view(at(9))
    assert [seconds_since(worker.since, at(9)) for worker in view.lanes] == [4, 3]
    progress.hear(7, Event("warning", task="matmul", message="no model answers", failed=True))
    assert progress.lanes()[1] == (None, "", 0)
    progress.hear(8, Event("run_finished", message="stopped"))
    assert progress.lanes() == [(None, "", 0), (None, "", 0)]
    assert progress.view(at(9)).state == "stopped"


def test_lanes_of_several_devices_stand_together_under_their_names() -> None:
    progress = Told(device="cuda", jobs=3)
    progress.hear(1, Event("stage", task="softmax", round=0, stage="describe"))
    progress.hear(2, Event("stage", task="softmax", round=0, stage="coder", device="cuda:1"))
    progress.hear(3, Event("stage", task="matmul", round=0, stage="coder", device="cuda:0"))
    lanes = progress.view(at(4)).lanes
    assert [(worker_label(worker, "cuda"), worker.task) for worker in lanes] == [
        ("cuda:0", "matmul"), ("cuda:1", "softmax"), ("2", None),
    ]  # fmt: skip
    alone = Told(device="cuda:0", jobs=1)
    alone.hear(1, Event("stage", task="softmax", round=0, stage="coder", device="cuda:0"))
    assert [worker_label(worker, "cuda:0") for worker in alone.view(at(2)).lanes] == ["0"]


def test_more_tasks_at_work_than_workers_are_shown_all_the_same() -> None:
    progress = Told(jobs=1)
    for task in ("softmax", "matmul"):
        progress.hear(1, Event("stage", task=task, round=0, stage="coder"))
    assert [worker.task for worker in progress.view(at(1)).lanes] == ["softmax", "matmul"]


def test_bars_have_what_the_run_told_and_the_limits_of_its_budget() -> None:
    progress = Told(budget=Budget(evaluations=40, wall_seconds=600, tokens=1000, dollars=2.5))
    spent = Totals(evaluations=5, tokens=900, dollars=0.25, uncounted=0, unpriced=1)
    progress.hear(3, Event("stage", task="softmax", round=0, stage="coder", spent=spent))
    view = progress.view(at(33))
    assert bars(view) == {
        "tasks": (0, 3),
        "evaluations": (5, 40),
        "seconds": (33, 600),
        "tokens": (900, 1000),
        "dollars": (0.25, 2.5),
    }
    assert [bar.name for bar in view.bars if bar.at_least] == ["dollars"]
    assert [format_spent(bar, bar.spent) for bar in view.bars] == [
        "0 of 3", "5 of 40", "33 s of 10 min 00 s", "900 of 1,000", "at least $0.25 of $2.50",
    ]  # fmt: skip
    assert visible_bars(view) == view.bars


def test_bars_that_say_nothing_are_not_shown() -> None:
    progress = Told()
    progress.hear(1, Event("stage", task="softmax", round=0, stage="coder", spent=Totals(2, 0, 0.0, 0, 0)))
    assert [bar.name for bar in visible_bars(progress.view(at(5)))] == ["tasks", "evaluations"]


def test_the_funnel_is_that_of_the_run_view() -> None:
    progress = Told()
    for attempt in ATTEMPTS:
        progress.hear(1, Event("attempt", task=attempt.task, round=attempt.number, attempt=attempt))
    result = progress.view(at(2)).funnel
    view = run_view(RunRecords(make_run(), tuple(ATTEMPTS)))
    assert result == {step.step: step.count for step in view.funnel}
    assert list(result) == [step.step for step in view.funnel]


def test_gains_are_the_latest_five_newest_first() -> None:
    progress = Told()
    for number in range(7):
        progress.hear(number, Event("attempt", task="softmax", attempt=ATTEMPTS[number % 2]))
    progress.hear(8, Event("attempt", task="softmax", attempt=ATTEMPTS[2]))
    gains = progress.view(at(9)).gains
    assert [seconds_since(gain.at, START) for gain in gains] == [-6, -5, -4, -3, -2]
    assert gains[1].attempt == "r1/softmax/01"
    assert (gains[1].step, gains[1].standing) == ("vectorise", "8.39 MB DRAM, 1.00x the least")


def test_a_run_that_goes_on_counts_what_earlier_sittings_did() -> None:
    fold = RunProgress(make_run(budget=Budget(wall_seconds=60)).config, pid=7)
    past = Event(
        "run_started", message="r1", past=tuple(ATTEMPTS[:7]), finished=("softmax",), spent=Totals(7, 0, 0.0, 0, 0)
    )
    fold.on_event(past, at(1000))
    view = fold.view(at(1010))
    assert bars(view)["tasks"] == (1, 3)
    assert bars(view)["evaluations"][0] == 7
    assert bars(view)["seconds"] == (10, 60)
    assert view.funnel["generated"] == 7
    assert {gain.attempt for gain in view.gains} == {attempt.id for attempt in ATTEMPTS[:7] if attempt.accepted}
    fold.on_event(Event("task_finished", task="matmul", message="stopped: asked to stop", unfinished=True), at(1020))
    assert bars(fold.view(at(1021)))["tasks"] == (1, 3)


def test_an_end_is_expected_only_once_enough_tasks_have_finished() -> None:
    tasks = tuple(f"task{number}" for number in range(10))
    progress = Told(tasks=tasks, jobs=4)
    for number, task in enumerate(tasks[:3]):
        progress.hear(10 * (number + 1), Event("task_finished", task=task, message="done"))
    assert progress.view(at(31)).expected_end is None
    progress.hear(40, Event("task_finished", task=tasks[3], message="done"))
    expected = progress.view(at(41)).expected_end
    assert expected is not None
    assert seconds_since(expected, at(0)) == -100
    assert progress.view(at(41), stopping=True).expected_end is None
    assert progress.view(at(100)).expected_end is None


def test_an_end_is_never_expected_after_the_wall_time() -> None:
    tasks = tuple(f"task{number}" for number in range(100))
    progress = Told(tasks=tasks, jobs=1, budget=Budget(wall_seconds=90))
    for number, task in enumerate(tasks[:3]):
        progress.hear(10 * (number + 1), Event("task_finished", task=task, message="done"))
    expected = progress.view(at(31)).expected_end
    assert expected is not None
    assert seconds_since(expected, at(0)) == -90


def test_a_warning_is_one_line_that_moves_no_cursor() -> None:
    progress = Told()
    progress.hear(1, Event("warning", task="softmax", message=HOSTILE + "\nand more"))
    error = progress.view(at(2)).error
    assert error.startswith("softmax: \\x1b[31mred")
    assert error.endswith("next and more")
    assert error.isprintable()


def test_states_follow_the_run() -> None:
    progress = Told()
    assert progress.view(at(1)).state == "running"
    assert progress.view(at(1), stopping=True).state == "stopping"
    progress.fail("the disk is full")
    assert (progress.view(at(1), stopping=True).state, progress.view(at(1)).error) == ("failed", "the disk is full")
    over = Told()
    over.hear(1, Event("run_finished", message="finished"))
    assert over.view(at(1), stopping=True).state == "finished"


@pytest.mark.parametrize(
    ("changes", "stage", "seconds"),
    [
        ({}, "coder", BUILTIN_STALLED_AFTER_S),
        ({}, "tester", BUILTIN_STALLED_AFTER_S),
        ({"coder": "builtin,openai:gpt-5"}, "coder", 600.0),
        ({"judge": "openai:gpt-5", "llm": LLMSettings(timeout_seconds=33)}, "judge", 33.0),
        ({"judge": "openai:gpt-5", "llm": LLMSettings(timeout_seconds=33)}, "reflect", 33.0),
        ({"judge": "openai:gpt-5", "llm": LLMSettings(timeout_seconds=33)}, "coder", BUILTIN_STALLED_AFTER_S),
        ({"coder": "openai:gpt-5", "llm": LLMSettings(batch=True)}, "coder", BATCH_STALLED_AFTER_S),
        ({}, "evaluate", STALLED_AFTER_S["evaluate"]),
        ({}, "tune", STALLED_AFTER_S["tune"]),
        ({}, "a stage of a later version", STALLED_AFTER_S["describe"]),
    ],
)
def test_when_a_stage_stalls_depends_on_who_is_asked(changes: dict[str, object], stage: str, seconds: float) -> None:
    assert stalled_after_s(stage, make_run(**changes).config) == seconds


def test_a_journal_alone_tells_how_far_a_run_came() -> None:
    usages = [
        Usage(model="m", input_tokens=10, output_tokens=5, dollars=0.5, seconds=1),
        Usage(model="m", input_tokens=None, output_tokens=5, dollars=None, seconds=1),
    ]
    messages = tuple(
        Message(role="reply", agent="coder", content="x", provider="openai:m", usage=usage) for usage in usages
    )
    run = make_run(state=RunState.FINISHED, budget=Budget(dollars=1)).model_copy(
        update={"ended": "2026-11-21T06:02:00+00:00"}
    )
    records = RunRecords(run, tuple(ATTEMPTS), {"softmax": "done"}, messages={"softmax": messages})
    view = journalled_progress(records)
    assert (view.state, view.pid, view.lanes, view.expected_end) == ("finished", 0, (), None)
    assert bars(view) == {
        "tasks": (1, 3),
        "evaluations": (11, None),
        "seconds": (120, None),
        "tokens": (15, None),
        "dollars": (0.5, 1),
    }
    assert [bar.name for bar in view.bars if bar.at_least] == ["tokens", "dollars"]
    assert view.funnel["generated"] == 11
    assert ProgressView.model_validate_json(view.model_dump_json()) == view
    killed = journalled_progress(RunRecords(make_run(), tuple(ATTEMPTS)))
    assert killed.state == "interrupted"


def test_a_clock_has_whole_seconds() -> None:
    assert [clock(value) for value in (-1, 59.9, 60, 3599, 3661)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "59 min 59 s",
        "1 h 01 min",
    ]


def test_words_of_a_bar_without_a_limit_have_none() -> None:
    assert format_spent(BudgetBar(name="tokens", spent=1234567, limit=None), 1234567) == "1,234,567"


def test_the_page_on_watching_names_every_field() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "view.md").read_text()
    for view in (ProgressView, BudgetBar, WorkerStatus, Gain):
        for field in view.model_fields:
            assert f"`{field}`" in page, f"{view.__name__}.{field}"
