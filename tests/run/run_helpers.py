"""Helpers of the tests of runs: a quick configuration, and an observer that remembers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kernelforge.records import Budget, Run, RunConfig
from kernelforge.run import Event, StopSignal, configure, start_run
from kernelforge.store import DATABASE_NAME, Store

TASKS = ("swish", "transpose")

SMALL_TASK = """
[[task]]
name = "{name}"
full = {{ ROWS = 128, COLS = 1024 }}
"""


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kernelforge-tests-")


@cache
def small_core() -> str:
    """Four tasks of core at a 32nd of their full size, for runs that are not about their kernels."""
    folder = Path(_scratch().name)
    core = Path(__file__).parents[2] / "tasks" / "core"
    shutil.copytree(core, folder / "core", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "small").mkdir()
    tasks = "".join(SMALL_TASK.format(name=name) for name in ("gelu", "swish", "rmsnorm", "transpose"))
    (folder / "small" / "suite.toml").write_text(f'title = "Small"\nbase = "core"\n{tasks}')
    return str(folder / "small")


class Watcher:
    """Remembers every event; ``react`` sees each as it comes."""

    def __init__(self, react: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self._react = react

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self._react(event)


def quick_config(**changes: Any) -> RunConfig:
    options: dict[str, Any] = {
        "suite": small_core(), "tasks": TASKS, "seed": 5, "jobs": 2, "budget": Budget(rounds=3),
    }  # fmt: skip
    return configure(**(options | changes))


def open_store(folder: Path) -> Store:
    return Store.open(folder / DATABASE_NAME)


def run_in(folder: Path, config: RunConfig, react: Callable[[Event, StopSignal], None] | None = None) -> Run:
    """Start a run that journals in ``folder``; ``react`` may ask it to stop."""
    stop = StopSignal()
    watcher = Watcher((lambda event: react(event, stop)) if react else lambda event: None)
    with open_store(folder) as store:
        return start_run(config, store, watcher, stop)


def decisions(folder: Path) -> dict[tuple[str, int], tuple[str | None, str, bool, str]]:
    """Contents of a journal for each attempt, but for times and the run's own name."""
    with open_store(folder) as store:
        attempts = store.attempts(store.run("latest").id)
    assert len({(a.task, a.number) for a in attempts}) == len(attempts)
    return {
        (a.task, a.number): (a.candidate.hash if a.candidate else None, a.evaluation.verdict, a.accepted, a.note)
        for a in attempts
    }
