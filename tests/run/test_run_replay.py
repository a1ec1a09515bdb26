"""Runs whose Coder is a transcript: the attempts of the run that was recorded, through a stop and a resume as well."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.llm.recording import transcript_lines
from kernelforge.records import Budget, RunState
from kernelforge.run import Event, StopSignal, resume_run
from tests.run.run_helpers import Watcher, decisions, open_store, quick_config, run_in

pytestmark = pytest.mark.usefixtures("warm_workshop")

TASKS = ("gelu",)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, warm_workshop: None) -> Path:
    """Folder of a run of the built-in pair, with its transcript."""
    folder = tmp_path_factory.mktemp("recorded")
    run = run_in(folder, quick_config(suite="core", tasks=TASKS, budget=Budget(rounds=3), memory="off", tune=False))
    with open_store(folder) as store:
        outside = {task: store.task_messages(run.id, task) for task in TASKS}
        lines = transcript_lines(store.attempts(run.id), outside, written_by="builtin")
        (folder / "transcript.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_replayed_run_that_is_stopped_and_resumed_makes_the_recorded_attempts(recorded: Path, tmp_path: Path) -> None:
    def stop_after_the_first(event: Event, stop: StopSignal) -> None:
        if event.kind == "attempt":
            stop.drain()

    spec = f"replay:{recorded / 'transcript.jsonl'}"
    config = quick_config(suite="core", tasks=TASKS, budget=Budget(rounds=3), memory="off", tune=False, coder=spec)
    run = run_in(tmp_path, config, stop_after_the_first)
    assert run.state is RunState.STOPPED
    with open_store(tmp_path) as store:
        assert resume_run(run.id, store, Watcher(), StopSignal()).state is RunState.FINISHED
        providers = {
            message.provider
            for attempt in store.attempts(run.id)
            for message in attempt.messages
            if message.agent == "coder"
        }
    assert decisions(tmp_path) == decisions(recorded)
    assert len(decisions(tmp_path)) >= 2
    assert providers == {spec}
