"""The golden runs hold what they promise, and a journal keeps all of it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from kernelforge.records import Stage, Verdict
from kernelforge.report import RunRecords
from kernelforge.store import Store
from tests.report.golden.golden_hostile import ALL
from tests.report.golden.golden_runs import GOLDEN, golden, golden_store


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_run_survives_its_journal(name: str, tmp_path: Path):
    run = golden(name)
    with Store.open(golden_store(tmp_path, name), read_only=True) as store:
        loaded = RunRecords.load(store, store.run(run.run.id))
    made = run.records()
    assert [attempt.model_dump_json() for attempt in loaded.attempts] == [
        attempt.model_dump_json() for attempt in made.attempts
    ]
    for part in ("run", "finished", "messages", "generators", "lessons", "tasks", "facts", "compulsory_bytes"):
        assert getattr(loaded, part) == getattr(made, part), part


def test_the_modelled_run_holds_every_verdict_and_every_stage():
    attempts = golden("modelled").attempts
    assert {attempt.evaluation.verdict for attempt in attempts} == set(Verdict)
    assert {attempt.evaluation.stage for attempt in attempts} == set(get_args(Stage))


def test_the_measured_runs_hold_every_doubt_about_a_time():
    speeds = [attempt.evaluation.performance for attempt in golden("measured-a").attempts]
    timings = [speed.timing for speed in speeds if speed is not None]
    assert any(speed.quarantined for speed in speeds if speed)
    assert any(not timing.settled for timing in timings)
    assert any(timing.clocks.throttled for timing in timings)
    assert any(not timing.host.agrees for timing in timings)
    assert any(timing.coverage < 1 for timing in timings)
    values = [speed.speedup for speed in speeds if speed and speed.speedup]
    assert min(values) < 1 < max(values)


def test_the_hostile_run_attacks_where_texts_are_shown():
    run = golden("hostile").records()
    attempt = run.attempts[0]
    for text in (attempt.note, attempt.technique, attempt.messages[0].content, attempt.candidate.source):
        assert ALL in text
