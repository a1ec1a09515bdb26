"""A run's view: the funnel, the curves, the best so far, what was spent, and the matrix."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kernelforge.records import Attempt, Message, Origin, Usage, Verdict
from kernelforge.report import RunRecords, RunView, leaderboard, run_view, task_view
from kernelforge.report.views.funnel import STEPS, step_reached
from kernelforge.report.views.run_records import measured_floor_us
from kernelforge.report.views.statistics import FAST_P
from kernelforge.store import Store
from tests.report.golden.golden_runs import golden, golden_store
from tests.support.recorded_run import make_attempt, make_facts, make_run, make_task

NAMES = ("modelled", "measured-a", "measured-b")
"""Emulated; with quarantined and unsettled times; with prices that are unknown."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path = golden_store(tmp_path_factory.mktemp("results"), *NAMES)
    with Store.open(path, read_only=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def runs(store: Store) -> dict[str, RunRecords]:
    return {name: RunRecords.load(store, golden(name).run) for name in NAMES}


@pytest.fixture(scope="module")
def views(runs: dict[str, RunRecords]) -> dict[str, RunView]:
    return {name: run_view(records) for name, records in runs.items()}


every_run = pytest.mark.parametrize("name", NAMES)


def alone(*attempts: Attempt, **changes: object) -> RunRecords:
    """A measured run of the task softmax."""
    run = make_run(device="cuda:0", tasks=("softmax",), **changes)
    return RunRecords(run, attempts)


# Funnel


@every_run
def test_each_step_lost_what_the_next_does_not_have(views: dict[str, RunView], name: str):
    steps = views[name].funnel
    assert steps[0].count == views[name].attempts
    assert steps[0].lost == {}
    for before, after in pairwise(steps):
        assert before.count - after.count == sum(after.lost.values())


@every_run
def test_the_funnel_the_stages_and_the_matrix_count_the_same_attempts(views: dict[str, RunView], name: str):
    view = views[name]
    cells = [cell for row in view.matrix for cell in row.cells]
    for step in view.funnel:
        assert step.count == sum(STEPS.index(cell.reached) >= STEPS.index(step.step) for cell in cells)
    assert Counter((cell.stage, cell.verdict) for cell in cells) == {
        (end.stage, end.verdict): end.count for end in view.stages
    }
    assert [row.task for row in view.matrix] == [task.task for task in view.tasks]


def test_a_modelled_run_ends_at_correct_and_a_measured_one_at_faster(views: dict[str, RunView]):
    assert [step.step for step in views["modelled"].funnel] == ["generated", "parsed", "built", "ran", "correct"]
    assert [step.step for step in views["measured-a"].funnel] == list(STEPS)


@pytest.mark.parametrize(
    ("verdict", "stage", "reached"),
    [
        (Verdict.WRONG, "parse", "generated"),
        (Verdict.POLICY, "plan", "generated"),
        (Verdict.BUILD, "compile", "parsed"),
        (Verdict.POLICY, "policy", "parsed"),
        (Verdict.CRASH, "small", "built"),
        (Verdict.TIMEOUT, "small", "built"),
        (Verdict.WRONG, "small", "ran"),
        (Verdict.CRASH, "hidden", "ran"),
        (Verdict.INFRA, "full", "ran"),
        (Verdict.CRASH, "sanitizer", "ran"),
        (Verdict.WRONG, "timing", "ran"),
    ],
)
def test_an_attempt_comes_as_far_as_its_stage_says(verdict: Verdict, stage: str, reached: str):
    evaluation = make_attempt(make_run(), make_task(), 0, verdict).evaluation
    assert step_reached(evaluation.model_copy(update={"stage": stage})) == reached


def test_a_correct_attempt_is_stable_and_faster_by_its_time(runs: dict[str, RunRecords]):
    reached = {attempt.id.split("/", 1)[1]: step_reached(attempt.evaluation) for attempt in runs["measured-a"].attempts}
    assert reached["softmax/01"] == "faster"
    assert reached["argmax/01"] == "stable"  # slower than the fastest baseline
    assert reached["unstable/01"] == "correct"  # its interval did not settle
    assert reached["attention/01"] == "correct"  # quarantined
    assert reached["only_in_a/00"] == "correct"  # not timed


# Curves and headline


def test_a_modelled_run_has_no_speedup_but_the_predicted_one(views: dict[str, RunView]):
    view = views["modelled"]
    assert view.origin is Origin.MODELLED
    assert view.fast_curves == ()
    assert {name for name, value in view.headline if value is not None} == {
        "correct", "predicted_fast_1", "predicted_geomean"
    }  # fmt: skip
    assert all(point.geomean_speedup is None for point in view.anytime)
    assert all((task.speedup, task.floor_us, task.floor_share) == (None, None, None) for task in view.tasks)


def test_there_is_a_curve_against_every_baseline_that_was_timed(views: dict[str, RunView]):
    curves = views["measured-a"].fast_curves
    assert [curve.baseline for curve in curves] == [
        "fastest", "eager", "eager-graph", "compile", "compile-max-autotune"
    ]  # fmt: skip
    for curve in curves:
        grid = [point.p for point in curve.points]
        assert set(FAST_P) <= set(grid)
        assert grid == sorted(grid)
        values = [point.value for point in curve.points]
        assert values == sorted(values, reverse=True)
        assert all(point.low <= point.value <= point.high for point in curve.points)
    fastest, eager = curves[:2]
    assert all(easy.value >= hard.value for hard, easy in zip(fastest.points, eager.points, strict=False))


def test_a_speedup_beyond_belief_makes_no_endless_curve(runs: dict[str, RunRecords]):
    """A database from elsewhere may say anything; the curve ends where curves end."""
    from dataclasses import replace

    def absurd(attempt: Attempt) -> Attempt:
        speed = attempt.evaluation.performance
        if speed is None or speed.speedup is None:
            return attempt
        claimed = attempt.evaluation.model_copy(
            update={"performance": speed.model_copy(update={"speedup": 1e308, "speedup_lower": 1e308})}
        )
        return attempt.model_copy(update={"evaluation": claimed})

    records = runs["measured-a"]
    view = run_view(replace(records, attempts=tuple(map(absurd, records.attempts))))
    assert view.fast_curves[0].points[-1].p == 4.0


def test_a_curve_counts_tasks_as_their_summaries_do(views: dict[str, RunView]):
    view = views["measured-a"]
    at = {point.p: point.value for point in view.fast_curves[0].points}
    assert at[0.0] == view.tasks_ok / view.tasks_total == view.headline.correct.value
    for p in FAST_P[1:]:
        assert at[p] == sum((task.speedup or 0.0) > p for task in view.tasks) / view.tasks_total
    assert at[1.0] == view.headline.fast_1.value
    untimed = [task.task for task in view.tasks if task.best is not None and task.speedup is None]
    assert untimed == ["attention", "only_in_a"]  # quarantined; not timed
    assert [curve.untimed for curve in view.fast_curves] == [2] * 5


def test_the_run_and_its_board_say_the_same(runs: dict[str, RunRecords], views: dict[str, RunView]):
    (board,) = leaderboard([runs["measured-a"]]).boards
    (entry,), headline = board.entries, views["measured-a"].headline
    assert (entry.correct, entry.win_rate) == (headline.correct, headline.win_rate)
    assert (entry.geomean_speedup, entry.geomean_correct) == (headline.geomean_speedup, headline.geomean_correct)
    assert [point for point in views["measured-a"].fast_curves[0].points if point.p in FAST_P] == list(entry.fast_p)


def test_the_floor_is_what_must_move_at_the_bandwidth_of_the_gpu_that_measured():
    run, task = make_run(device="cuda:0"), make_task()
    best = make_attempt(run, task, 0, Verdict.OK, accepted=True, speedup=1.5, time_us=5.0)
    assert measured_floor_us(best) == pytest.approx(8388608 / 4.8e6)  # the H200's 4.8 TB/s
    blind = best.model_copy(update={"profile": None})
    assert measured_floor_us(blind) is None
    facts = make_facts(task).at("full").compulsory_bytes
    assert measured_floor_us(blind, facts) == pytest.approx(facts / 4.8e6)
    assert run_view(alone(best)).tasks[0].floor_share == pytest.approx(8388608 / 4.8e6 / 5.0)
    quarantined = {"quarantined": "too fast", "speedup": None, "speedup_lower": None, "speedup_eager": None}
    doubted = best.evaluation.performance.model_copy(update=quarantined)
    unbelieved = best.model_copy(update={"evaluation": best.evaluation.model_copy(update={"performance": doubted})})
    assert run_view(alone(unbelieved)).tasks[0].floor_share is None
    other = best.evaluation.fingerprint.model_copy(update={"gpu": "Some Other GPU"})
    assert (
        measured_floor_us(
            best.model_copy(update={"evaluation": best.evaluation.model_copy(update={"fingerprint": other})})
        )
        is None
    )


# The best so far


@every_run
def test_the_best_so_far_only_gets_better_and_ends_at_the_runs_numbers(views: dict[str, RunView], name: str):
    view = views[name]
    assert [point.evaluations for point in view.anytime] == list(range(1, view.attempts + 1))
    assert {point.attempt for point in view.anytime} == {cell.id for row in view.matrix for cell in row.cells}
    for values in ([point.tasks_ok for point in view.anytime], [point.seconds for point in view.anytime]):
        assert values == sorted(values)
    last = view.anytime[-1]
    assert last.tasks_ok == view.tasks_ok
    assert last.median_dram_ratio == view.median_dram_ratio
    assert last.dollars == (None if view.cost.dollars is None else pytest.approx(view.cost.dollars))
    if view.origin is Origin.MEASURED:
        assert last.geomean_speedup == pytest.approx(view.headline.geomean_speedup.value)


def test_attempts_side_by_side_stand_in_the_order_of_their_ends():
    run = make_run(device="cuda:0", tasks=("softmax", "matmul"))
    long, short = (
        make_attempt(run, make_task(name), 0, Verdict.OK, accepted=True, speedup=speedup).model_copy(
            update={"started": "2026-11-21T06:00:05+00:00", "seconds": seconds}
        )
        for name, speedup, seconds in (("softmax", 4.0, 30.0), ("matmul", 1.0, 2.0))
    )
    points = run_view(RunRecords(run, (long, short))).anytime
    assert [(point.attempt, point.seconds) for point in points] == [("r1/matmul/00", 7.0), ("r1/softmax/00", 35.0)]
    assert [point.geomean_speedup for point in points] == pytest.approx([1.0, 2.0])
    assert [point.tasks_ok for point in points] == [1, 2]


def test_an_attempt_that_ends_after_its_successor_does_not_become_the_best_again():
    run, task = make_run(device="cuda:0"), make_task()
    long, short = (
        make_attempt(
            run, task, number, Verdict.OK, parent=parent, accepted=True, move=move, speedup=speedup
        ).model_copy(update={"seconds": seconds})
        for number, parent, move, speedup, seconds in ((0, None, None, 2.0, 30.0), (1, 0, "vectorise", 4.0, 2.0))
    )
    points = run_view(alone(long, short)).anytime
    assert [(point.attempt, point.geomean_speedup) for point in points] == [
        ("r1/softmax/01", pytest.approx(4.0)), ("r1/softmax/00", pytest.approx(4.0)),
    ]  # fmt: skip


def paid_message(agent: str, dollars: float | None) -> Message:
    usage = Usage(model="m", dollars=dollars, seconds=1.0)
    return Message(agent=agent, role="reply", provider="openai:m", content="x", usage=usage)


def test_tests_are_paid_before_the_first_attempt_and_lessons_after_the_last():
    run, task = make_run(device="cuda:0", tasks=("softmax",)), make_task()
    attempts = tuple(make_attempt(run, task, n, Verdict.WRONG, parent=0 if n else None) for n in range(2))
    outside = {"softmax": (paid_message("tester", 1.0), paid_message("reflexion", 10.0))}
    view = run_view(RunRecords(run, attempts, messages=outside))
    assert [point.dollars for point in view.anytime] == [1.0, 11.0]
    assert view.matrix[0].dollars == view.cost.dollars == 11.0


def test_once_a_price_is_unknown_so_is_every_later_sum():
    def replied(number: int, dollars: float | None) -> Attempt:
        made = make_attempt(make_run(), make_task(), number, Verdict.WRONG, parent=0 if number else None)
        return made.model_copy(update={"messages": (paid_message("coder", dollars),)})

    points = run_view(alone(replied(0, 0.5), replied(1, None), replied(2, 0.5))).anytime
    assert [point.dollars for point in points] == [0.5, None, None]


# Time and money


@every_run
def test_all_that_was_paid_and_all_evaluations_are_in_what_was_spent(
    runs: dict[str, RunRecords], views: dict[str, RunView], name: str
):
    view, attempts = views[name], runs[name].attempts
    agents = [part for part in view.spent if part.kind == "agent"]
    assert sum(part.seconds for part in agents) == pytest.approx(view.cost.seconds)
    if view.cost.dollars is None:
        assert None in [part.dollars for part in agents]
    else:
        assert sum(part.dollars for part in agents) == pytest.approx(view.cost.dollars)
    evaluations = sum(part.seconds for part in view.spent if part.kind == "evaluation")
    assert evaluations == pytest.approx(sum(sum(part.evaluation.seconds.values()) for part in attempts), abs=0.01)
    assert [part.what for part in view.spent if part.kind == "rest"] == ["other", "idle"]
    assert len({part.what for part in view.spent}) == len(view.spent)


def test_what_nobody_worked_is_idle():
    task = make_task()
    attempt = make_attempt(make_run(device="cuda:0"), task, 0, Verdict.WRONG)
    records = alone(attempt)
    ended = records.run.model_copy(update={"ended": "2026-11-21T06:00:10+00:00"})
    rest = {part.what: part.seconds for part in run_view(RunRecords(ended, (attempt,))).spent if part.kind == "rest"}
    assert rest == {"other": pytest.approx(0.8 - 0.65), "idle": pytest.approx(2 * 10 - 0.8)}
    assert "idle" not in {part.what for part in run_view(records).spent}


@every_run
def test_rows_of_the_matrix_add_up_to_the_run(runs: dict[str, RunRecords], views: dict[str, RunView], name: str):
    view = views[name]
    assert sum(row.seconds for row in view.matrix) == pytest.approx(
        sum(attempt.seconds for attempt in runs[name].attempts)
    )
    expected = [row.dollars for row in view.matrix]
    assert (None in expected) == (view.cost.dollars is None)
    if None not in expected:
        assert math.fsum(expected) == pytest.approx(view.cost.dollars)
    for row, task in zip(view.matrix, view.tasks, strict=True):
        assert len(row.cells) == task.rounds
        assert [cell.id for cell in row.cells if cell.accepted][-1:] == ([task.best] if task.best else [])


def test_a_task_that_the_run_never_came_to_is_an_empty_row(views: dict[str, RunView]):
    row = views["modelled"].matrix[-1]
    assert (row.task, row.title, row.level, row.tags, row.cells) == ("cumsum", "", None, (), ())
    assert views["modelled"].matrix[0].title == "Softmax over rows"


# Loading


@every_run
def test_without_texts_the_views_of_a_run_are_the_same(store: Store, views: dict[str, RunView], name: str):
    light = RunRecords.load(store, golden(name).run, texts=False)
    assert {message.content for message in light.all_messages()} == {""}
    assert run_view(light).model_dump_json() == views[name].model_dump_json()


@every_run
def test_one_task_can_be_had_in_full(store: Store, runs: dict[str, RunRecords], name: str):
    light = RunRecords.load(store, golden(name).run, texts=False)
    for task in ("softmax", golden(name).run.config.tasks[-1]):
        full = light.full(store, task)
        expected = task_view(runs[name], task).model_dump_json()
        assert list(map(repr, full.attempts)) == list(map(repr, runs[name].of_task(task)))  # a NaN equals itself here
        assert task_view(full, task).model_dump_json() == expected
        assert task_view(runs[name].full(store, task), task).model_dump_json() == expected


@pytest.mark.parametrize("name", ["hostile", "escaping"])
def test_the_same_records_give_the_same_view(name: str):
    assert run_view(golden(name).records()).model_dump_json() == run_view(golden(name).records()).model_dump_json()


def test_a_view_survives_json(views: dict[str, RunView], tmp_path: Path):
    for view in views.values():
        (tmp_path / "view.json").write_text(view.model_dump_json())
        assert RunView.model_validate_json((tmp_path / "view.json").read_text()) == view
