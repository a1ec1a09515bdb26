"""Round trips through the journal: records come out as they went in."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from kernelforge.errors import StoreError, UsageError
from kernelforge.records import RunState, Screening, Size, Verdict, forecast_outcome
from kernelforge.store import Store
from tests.support.factories import make_forecast, measured_evaluation
from tests.support.recorded_run import (
    TASKS,
    fill,
    golden_attempts,
    make_attempt,
    make_facts,
    make_graph,
    make_run,
    make_task,
)


@pytest.fixture
def store(tmp_path: Path):
    with Store.open(tmp_path / "results" / "kernelforge.db") as store:
        yield store


def test_a_run_comes_back_equal(store: Store):
    run = make_run()
    store.start_run(run)
    assert store.runs() == [run]
    assert store.run("r1") == run


def test_measured_times_come_back_with_what_was_predicted_for_them(store: Store):
    measured = make_run("r2", device="cuda:0", started="2026-11-22T06:00:00+00:00")
    for run in (make_run(), measured):
        fill(store, run)
    assert store.forecast_outcomes() == [], "nothing was predicted"
    screening = Screening(device="emulated:h100", outcome="passed", forecast=make_forecast(10.0))
    last = store.attempts("r2", TASKS[0])[-1]
    evaluation = measured_evaluation(
        candidate=last.evaluation.candidate, task=last.evaluation.task, screening=screening
    )
    changes = {"id": f"r2/{TASKS[0]}/{last.number + 1:02d}", "number": last.number + 1, "evaluation": evaluation}
    store.add_attempt(last.model_copy(update={**changes, "profile": None, "trials": ()}))
    (outcome,) = store.forecast_outcomes()
    assert outcome == forecast_outcome(evaluation, TASKS[0])


def test_a_run_can_end(store: Store):
    store.start_run(make_run())
    store.update_run("r1", RunState.FINISHED, "2026-11-21T07:00:00+00:00")
    assert store.run("r1").state is RunState.FINISHED
    assert store.run("r1").ended == "2026-11-21T07:00:00+00:00"


def test_a_run_that_is_not_there_cannot_end(store: Store):
    with pytest.raises(StoreError, match="ghost"):
        store.update_run("ghost", RunState.FINISHED, None)


def test_a_run_cannot_start_twice(store: Store):
    store.start_run(make_run())
    with pytest.raises(StoreError, match="already"):
        store.start_run(make_run())


def test_runs_are_found_by_unique_beginning_and_by_latest(store: Store):
    for number, run_id in enumerate(("apple", "apricot", "banana")):
        store.start_run(make_run(run_id, started=f"2026-11-21T0{number}:00:00+00:00"))
    assert store.run("b").id == "banana"
    assert store.run("latest").id == "banana"
    with pytest.raises(UsageError, match="apple, apricot"):
        store.run("ap")
    with pytest.raises(UsageError, match="no run 'x'"):
        store.run("x")
    with pytest.raises(UsageError):
        store.run("")


def test_an_id_that_begins_another_is_still_found(store: Store):
    store.start_run(make_run("a"))
    store.start_run(make_run("ab"))
    assert store.run("a").id == "a"


def test_an_empty_store_says_how_to_begin(store: Store):
    with pytest.raises(UsageError, match="kernelforge run"):
        store.run("latest")


def test_tasks_and_facts_come_back_equal(store: Store):
    store.start_run(make_run())
    task = make_task()
    store.put_task("r1", task, make_facts(task), make_graph())
    store.put_task("r1", task, make_facts(task), None)
    assert store.task("r1", "softmax") == task
    assert store.facts("r1", "softmax") == make_facts(task)
    assert store.facts("r1", "never-reached") is None
    assert store.tasks("r1") == [task]
    with pytest.raises(UsageError, match="softmax"):
        store.task("r1", "nope")


def test_a_task_that_cannot_be_worked_on_is_finished_without_facts(store: Store):
    store.start_run(make_run())
    store.put_task("r1", make_task())
    store.finish_task("r1", "softmax", "its reference does not run")
    assert store.facts("r1", "softmax") is None
    assert store.finished_tasks("r1") == {"softmax": "its reference does not run"}


def test_a_task_cannot_change_under_a_run(store: Store):
    store.start_run(make_run())
    task = make_task()
    store.put_task("r1", task, make_facts(task), None)
    changed = task.model_copy(update={"sizes": (*task.sizes, Size(name="hidden_more"))})
    with pytest.raises(StoreError, match="has changed"):
        store.put_task("r1", changed, make_facts(changed), None)
    with pytest.raises(StoreError, match="another version"):
        store.put_task("r1", task, make_facts(changed), None)


def test_a_task_needs_its_run(store: Store):
    task = make_task()
    with pytest.raises(StoreError, match="not in"):
        store.put_task("ghost", task, make_facts(task), None)


def test_a_finished_task_says_why_and_keeps_the_last_words(store: Store):
    attempts = fill(store, make_run())
    assert store.finished_tasks("r1") == {}
    store.finish_task("r1", "softmax", "no new best in 4 rounds", attempts[0].messages)
    store.finish_task("r1", "matmul", "judge: nothing left")
    assert store.finished_tasks("r1") == {"softmax": "no new best in 4 rounds", "matmul": "judge: nothing left"}
    assert store.task_messages("r1", "softmax") == attempts[0].messages
    assert store.task_messages("r1", "matmul") == ()
    store.finish_task("r1", "softmax", "again", attempts[0].messages[:1])
    assert store.task_messages("r1", "softmax") == attempts[0].messages + attempts[0].messages[:1]
    with pytest.raises(StoreError, match="nope"):
        store.finish_task("r1", "nope", "why")


@pytest.mark.parametrize("device", ["emulated:h100", "cuda:0"])
def test_attempts_of_every_verdict_come_back_equal(store: Store, device: str):
    run = make_run(device=device)
    written = fill(store, run)
    assert {attempt.evaluation.verdict for attempt in written} == set(Verdict)
    read = store.attempts("r1")
    assert sorted(written, key=lambda a: (a.task, a.number)) == read
    assert [a for a in written if a.task == "matmul"] == store.attempts("r1", "matmul")
    assert store.attempts("r1", "nothing") == []


def test_an_attempt_is_found_by_reference(store: Store):
    written = fill(store, make_run())
    assert store.attempt("r1/softmax/01") == written[1]
    assert store.attempt("latest/softmax/1") == written[1]
    for wrong in ("r1", "r1/softmax", "r1/softmax/x", "r1//1", ""):
        with pytest.raises(UsageError):
            store.attempt(wrong)
    with pytest.raises(UsageError, match="0 to 3"):
        store.attempt("r1/softmax/9")
    with pytest.raises(UsageError, match="softmax"):
        store.attempt("r1/nope/1")


def test_an_attempt_is_journalled_once(store: Store):
    attempts = fill(store, make_run())
    with pytest.raises(StoreError, match="already"):
        store.add_attempt(attempts[0])
    renamed = attempts[0].model_copy(update={"id": "r1/softmax/other"})
    with pytest.raises(StoreError, match="already"):
        store.add_attempt(renamed)
    assert len(store.attempts("r1")) == len(attempts)


def test_an_attempt_needs_its_task_and_its_parent(store: Store):
    run = make_run()
    store.start_run(run)
    attempt = make_attempt(run, make_task(), 0, Verdict.OK)
    with pytest.raises(StoreError, match="not in"):
        store.add_attempt(attempt)
    store.put_task("r1", make_task(), make_facts(make_task()), None)
    with pytest.raises(StoreError, match="parent"):
        store.add_attempt(make_attempt(run, make_task(), 1, Verdict.OK, parent=0, move="m"))
    assert store.attempts("r1") == []
    with sqlite3.connect(store.path) as plain:
        assert plain.execute("SELECT count(*) FROM blobs").fetchone() == (0,)


def test_equal_texts_are_kept_once(store: Store):
    attempts = fill(store, make_run())
    prompts = {message.content for attempt in attempts for message in attempt.messages}
    assert "write a kernel" in prompts
    with sqlite3.connect(store.path) as plain:
        kept = plain.execute("SELECT count(*) FROM blobs WHERE content = 'write a kernel'").fetchone()
        used = plain.execute("SELECT count(*) FROM message_texts WHERE content = 'write a kernel'").fetchone()
    assert (kept, used) == ((1,), (len(attempts),))


def test_threads_share_a_store(store: Store):
    run = make_run()
    store.start_run(run)
    for name in TASKS:
        store.put_task(run.id, make_task(name), make_facts(make_task(name)), None)
    attempts = golden_attempts(run)
    errors: list[Exception] = []

    def work(task: str) -> None:
        try:
            for attempt in attempts:
                if attempt.task == task:
                    store.add_attempt(attempt)
                    store.attempts(run.id, task)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in TASKS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.attempts(run.id)) == len(attempts)


def test_the_latest_run_is_the_one_that_began_last_though_the_clock_was_put_back(tmp_path: Path):
    with Store.open(tmp_path / "kernelforge.db") as store:
        store.start_run(make_run("first", started="2026-11-23T06:00:00+00:00"))
        store.start_run(make_run("second", started="2026-11-21T06:00:00+00:00"))
        assert store.run("latest").id == "second"
        assert [run.id for run in store.runs()] == store.run_ids() == ["first", "second"]
