"""Locks of runs, and the state of a run after an abort."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError, StoreError, TaskError, UsageError
from kernelforge.evaluation.evaluator import Evaluator
from kernelforge.evaluation.remote import machines
from kernelforge.records import Budget, Run, RunState, Verdict
from kernelforge.run import StopSignal, extend_budget, resume_run, start_run
from kernelforge.run.submissions import SubmissionRun, external_config
from kernelforge.store import Store
from tests.run.run_helpers import Watcher, open_store, quick_config

pytestmark = pytest.mark.usefixtures("warm_zygotes")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run was locked at the moment from which others see it."""
    result: list[bool] = []
    journal = Store.start_run

    def start_run(store: Store, run: Run) -> None:
        journal(store, run)
        result.append(store.is_live(run.id))

    monkeypatch.setattr(Store, "start_run", start_run)
    return result


def stopped() -> StopSignal:
    stop = StopSignal()
    stop.drain()
    return stop


def test_a_run_is_held_before_others_can_see_it(tmp_path: Path, seen: list[bool]) -> None:
    """A run in state running without a lock was interrupted: any process may take it over."""
    with open_store(tmp_path) as store:
        run = start_run(quick_config(), store, Watcher(), stopped())
        assert (run.state, seen) == (RunState.STOPPED, [True])


def test_a_run_of_submissions_is_held_before_others_can_see_it(tmp_path: Path, seen: list[bool]) -> None:
    message: dict[str, Any] = {
        "device": "emulated:h100",
        "coder": "mcp:x",
        "budget": Budget(),
        "allow_unconfined": False,
    }
    with open_store(tmp_path) as store:
        SubmissionRun(external_config("core", "0" * 16, ("gelu",), **message), store).close()
    assert seen == [True]


def test_a_run_that_another_finishes_meanwhile_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_run = Store.lock_run

    @contextlib.contextmanager
    def after_another(store: Store, run_id: str) -> Iterator[None]:
        store.update_run(run_id, RunState.FINISHED, "2026-11-22T06:00:00+00:00")
        with lock_run(store, run_id):
            yield

    with open_store(tmp_path) as store:
        run = start_run(quick_config(), store, Watcher(), stopped())
        monkeypatch.setattr(Store, "lock_run", after_another)
        with pytest.raises(UsageError, match="is finished"):
            resume_run(run.id, store, Watcher(), StopSignal())
        assert store.run(run.id).state is RunState.FINISHED


def test_the_budget_of_a_run_that_goes_on_stays_as_it_is(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        run = start_run(quick_config(), store, Watcher(), stopped())
        with store.lock_run(run.id), pytest.raises(StoreError, match="already going on"):
            extend_budget(run, {"evaluations": 99}, store)
        assert store.run(run.id).config == run.config
        extend_budget(run, {"evaluations": 99}, store)
        assert store.run(run.id).config.budget.evaluations == 99


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("kernelforge.evaluation.evaluator.Evaluator.evaluate", SandboxError("the runner was ended: signal 9")),
        ("kernelforge.evaluation.oracle.client.Oracle.require_admitted", TaskError("the oracle gives no answer")),
    ],
)
def test_what_an_abort_does_to_helper_processes_says_nothing_of_candidate_or_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    stop, closed, workers = StopSignal(), threading.Event(), []

    class Told(machines.EvaluatorPool):
        def close(self) -> None:
            super().close()
            closed.set()

    def aborted_meanwhile(*_: object, **__: object) -> None:
        workers.append(threading.current_thread())
        stop.abort()
        assert closed.wait(120)
        raise error

    monkeypatch.setattr(machines, "EvaluatorPool", Told)
    monkeypatch.setattr(method, aborted_meanwhile)
    with open_store(tmp_path) as store:
        run = start_run(quick_config(tasks=("gelu",)), store, Watcher(), stop)
        (worker,) = workers
        worker.join(120)
        assert not worker.is_alive()
        assert run.state is RunState.STOPPED
        assert store.attempts(run.id) == []
        assert store.finished_tasks(run.id) == {}


@pytest.mark.slow
@pytest.mark.parametrize("error", [ChildDied("signal 9", signal=9), ChildTimeout("no answer in 180 s")])
@pytest.mark.parametrize(("deaths", "verdict"), [(1, Verdict.OK), (2, Verdict.INFRA)])
def test_a_child_that_failed_once_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, verdict: Verdict, error: Exception
) -> None:
    calls: list[int] = []
    evaluate = Evaluator.evaluate

    def dying(evaluator: Evaluator, *arguments: Any, **options: Any) -> Any:
        calls.append(options["seed"])
        if len(calls) <= deaths:
            raise error
        return evaluate(evaluator, *arguments, **options)

    monkeypatch.setattr(Evaluator, "evaluate", dying)
    with open_store(tmp_path) as store:
        run = start_run(quick_config(tasks=("gelu",)), store, Watcher(), StopSignal())
        first = store.attempts(run.id)[0]
    assert first.evaluation.verdict is verdict
    assert len(set(calls[:2])) == 1, "both tries have the same inputs"


@pytest.mark.slow
def test_a_task_whose_helper_process_failed_to_start_is_worked_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, failures = machines.EvaluatorPool.evaluator, [ChildTimeout("no answer in 180 s"), SandboxError("no room")]

    def failing(pool: machines.EvaluatorPool, *arguments: Any, **options: Any) -> Evaluator:
        if failures:
            raise failures.pop()
        return opened(pool, *arguments, **options)

    monkeypatch.setattr(machines.EvaluatorPool, "evaluator", failing)
    with open_store(tmp_path) as store:
        run = start_run(quick_config(tasks=("gelu",)), store, Watcher(), StopSignal())
        assert run.state is RunState.FINISHED
        assert store.attempts(run.id)[0].evaluation.verdict is Verdict.OK
