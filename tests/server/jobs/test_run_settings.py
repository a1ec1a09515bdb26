"""Callers may name any number of runs: those with nothing to do are forgotten, and looking for them costs little."""

from __future__ import annotations

import pytest

from kernelforge.server.jobs import state
from kernelforge.server.jobs.state import ActiveJobs, RunState


def test_idle_runs_are_forgotten_and_others_are_not_looked_at_for_each_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    class Counted(RunState):
        @property
        def forgettable(self) -> bool:
            nonlocal looked
            looked += 1
            return self.weight == 1.0

    monkeypatch.setattr(state, "_MOST_RUNS", 100)
    monkeypatch.setattr(state, "RunState", Counted)
    runs = ActiveJobs()
    for number in range(500):
        runs.run(f"busy{number}").weight = 2.0
    assert (len(runs.runs), looked) == (500, sum(range(100, 500, 10)))
    for number in range(500):
        runs.run(f"idle{number}")
    assert len(runs.runs) < 550
    assert all(f"busy{number}" in runs.runs for number in range(500))
