"""Whole runs with the built-in agents: real processes, real builds, a real journal."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from kernelforge.agents.acceptance import APART
from kernelforge.errors import StoreError, UsageError
from kernelforge.records import Attempt, Budget, Limits, Operator, RunState, Verdict
from kernelforge.run import Event, StopSignal, configure, resume_run, start_run
from kernelforge.store import Store
from tests.run.run_helpers import TASKS, Watcher, decisions, open_store, quick_config, run_in, small_core

pytestmark = pytest.mark.usefixtures("warm_zygotes")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal of one undisturbed run, which starts its own processes, as a user's does."""
    folder = tmp_path_factory.mktemp("finished")
    run = run_in(folder, quick_config())
    assert run.state is RunState.FINISHED
    return folder


@pytest.fixture(scope="module")
def attempts(finished: Path) -> list[Attempt]:
    with open_store(finished) as store:
        return store.attempts(store.run("latest").id)


def test_every_task_starts_with_a_correct_seed(attempts: list[Attempt]) -> None:
    seeds = [attempt for attempt in attempts if attempt.number == 0]
    assert sorted(seed.task for seed in seeds) == sorted(TASKS)
    for seed in seeds:
        assert seed.operator is Operator.SEED
        assert seed.evaluation.verdict is Verdict.OK, seed.evaluation.reason
        assert seed.accepted


def test_later_attempts_answer_one_finding_on_the_best_parent(attempts: list[Attempt]) -> None:
    by_id = {attempt.id: attempt for attempt in attempts}
    later = [attempt for attempt in attempts if attempt.number > 0]
    assert later
    for attempt in later:
        assert attempt.finding is not None
        assert attempt.parent is not None
        assert by_id[attempt.parent].accepted


def test_an_accepted_move_made_the_kernel_faster_by_the_model(attempts: list[Attempt]) -> None:
    times = {
        attempt.id: attempt.evaluation.performance.time_us for attempt in attempts if attempt.evaluation.performance
    }
    later = [attempt for attempt in attempts if attempt.number > 0 and attempt.evaluation.verdict is Verdict.OK]
    assert any(attempt.accepted for attempt in later)
    for attempt in later:
        fell = times[attempt.id] <= (1 - APART) * times[attempt.parent or ""]
        assert fell == attempt.accepted or attempt.note.endswith(f"falls below {APART:.0%}"), attempt.note


def test_everything_said_is_journalled(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        text = {(message.agent, message.role) for message in attempt.messages}
        assert {("coder", "prompt"), ("coder", "reply")} <= text
        if attempt.number > 0:
            assert {("judge", "prompt"), ("judge", "reply")} <= text


def test_a_modelled_time_earns_what_it_predicts_and_no_speed_reward(attempts: list[Attempt]) -> None:
    for attempt in attempts:
        if attempt.evaluation.verdict is Verdict.OK:
            parts = attempt.reward.components
            performance = attempt.evaluation.performance
            assert parts["log_speedup"] is None
            assert (parts["log_predicted"] is None) == (performance is None or performance.predicted is None)
            if performance is not None and performance.predicted is not None:
                assert performance.predicted_launches is not None
                assert performance.predicted_launches.origin == "predicted"
            assert attempt.reward.value == parts["correct"] + (parts["log_predicted"] or 0.0)


def test_a_finished_run_is_not_resumed(finished: Path) -> None:
    with open_store(finished) as store, pytest.raises(UsageError, match="is finished"):
        resume_run(store.run("latest").id, store, Watcher(), StopSignal())


@pytest.mark.slow
def test_a_drained_run_resumes_to_the_same_attempts(finished: Path, tmp_path: Path) -> None:
    def stop_after_the_first(event: Event, stop: StopSignal) -> None:
        if event.kind == "attempt":
            stop.drain()

    stopped = run_in(tmp_path, quick_config(), stop_after_the_first)
    assert stopped.state is RunState.STOPPED
    assert 1 <= len(decisions(tmp_path)) <= len(TASKS)
    with open_store(tmp_path) as store:
        resumed = resume_run(stopped.id, store, Watcher(), StopSignal())
    assert resumed.state is RunState.FINISHED
    assert decisions(tmp_path) == decisions(finished)


@pytest.mark.slow
def test_the_budget_of_evaluations_is_kept_to_the_letter(tmp_path: Path) -> None:
    run = run_in(tmp_path, quick_config(budget=Budget(rounds=3, evaluations=2)))
    assert run.state is RunState.STOPPED
    assert len(decisions(tmp_path)) == 2


@pytest.mark.slow
def test_the_budget_of_rounds_includes_the_seed(tmp_path: Path) -> None:
    run = run_in(tmp_path, quick_config(suite=small_core(), tasks=("gelu",), budget=Budget(rounds=1)))
    assert run.state is RunState.FINISHED
    assert list(decisions(tmp_path)) == [("gelu", 0)]


@pytest.mark.slow
def test_a_task_out_of_time_ends_alone(tmp_path: Path) -> None:
    run = run_in(tmp_path, quick_config(jobs=1, budget=Budget(rounds=3, per_task=Limits(wall_seconds=1e-12))))
    assert run.state is RunState.FINISHED
    with open_store(tmp_path) as store:
        reasons = store.finished_tasks(run.id)
    assert set(reasons) == set(TASKS)
    assert all("the task's budget of 1e-12 s wall time is spent" in reason for reason in reasons.values())


@pytest.mark.slow
def test_a_full_disk_stops_the_run_with_one_error_and_keeps_the_journal(tmp_path: Path) -> None:
    config = quick_config(suite=small_core(), tasks=("gelu",))
    with open_store(tmp_path) as store:

        def fill(event: Event) -> None:
            if event.kind == "attempt":
                pages = store._database.rows("PRAGMA page_count")[0]["page_count"]
                store._database.rows(f"PRAGMA max_page_count = {pages}")

        with pytest.raises(StoreError, match="disk is full"):
            start_run(config, store, Watcher(fill), StopSignal())
    assert list(decisions(tmp_path)) == [("gelu", 0)]
    with open_store(tmp_path) as store:
        run = store.run("latest")
        assert resume_run(run.id, store, Watcher(), StopSignal()).state is RunState.FINISHED
    assert len(decisions(tmp_path)) > 1


def test_a_run_takes_the_tasks_that_a_pattern_selects_in_the_suites_order() -> None:
    config = configure(suite="core", tasks=("*_*2d", "softmax", "gelu"), device="emulated:h100")
    assert config.tasks == ("gelu", "softmax", "max_pool2d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "nowhere"}, "nowhere"),
        ({"tasks": ("softmin",)}, "has no task 'softmin'"),
        ({"device": "cuda:0"}, "emulated"),
        ({"strategy": "guess"}, "choose one of: refine"),
        ({"coder": "oracle-of-delphi"}, "oracle-of-delphi"),
        ({"coder": "replay:missing,really.jsonl"}, "a comma separates Coders"),
        ({"reward": "gold"}, "there is no reward policy 'gold'"),
        ({"jobs": 0}, "at least one"),
        ({"stop_after": 0}, "at least one round"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_in_words(options: dict[str, object], message: str) -> None:
    from kernelforge.errors import KernelForgeError

    with pytest.raises(KernelForgeError, match=message) as caught:
        configure(**options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


CONSTANT = """
import torch
import torch.nn as nn

N = 64


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 0.0 + 1.0


def get_inputs():
    return [torch.randn(N)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected_text"),
    [
        (CONSTANT, "not admitted"),
        (CONSTANT.replace("torch.relu(x) * 0.0 + 1.0", "x.reshape(3, 5)"), "Model.forward failed"),
    ],
)
def test_a_task_that_cannot_be_judged_ends_with_its_reason(tmp_path: Path, source: str, expected_text: str) -> None:
    path = tmp_path / "constant.py"
    path.write_text(source)
    run = run_in(tmp_path, quick_config(suite=str(path), tasks=(), jobs=1))
    assert run.state is RunState.FINISHED
    with open_store(tmp_path) as store:
        assert store.attempts(run.id) == []
        assert expected_text in store.finished_tasks(run.id)["constant"]


@pytest.mark.slow
def test_what_agents_are_shown_does_not_depend_on_a_stop_within_a_round(tmp_path: Path) -> None:
    """A draft that is made again after a stop sees what it saw when it was first asked for, not its siblings."""
    config = quick_config(suite=small_core(), tasks=("rmsnorm",), strategy="contrast", budget=Budget(rounds=5), jobs=1)
    run_in(tmp_path / "whole", config)

    def stop_within(event: Event, stop: StopSignal) -> None:
        if event.kind == "attempt" and event.round is not None and event.round % 3 == 1:
            stop.drain()

    run = run_in(tmp_path / "cut", config, stop_within)
    with open_store(tmp_path / "cut") as store:
        while run.state is not RunState.FINISHED:
            forget_drafts(store, run.id)
            stop = StopSignal()
            run = resume_run(run.id, store, Watcher(partial(stop_within, stop=stop)), stop)
    assert decisions(tmp_path / "cut") == decisions(tmp_path / "whole")


def forget_drafts(store: Store, run_id: str) -> None:
    """As a kill does to drafts in flight."""
    with store._database.transaction() as db:
        db.execute("DELETE FROM drafts WHERE run = ?", (run_id,))
