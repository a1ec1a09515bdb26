"""Displays of a running run: the choice of a display, a screen that fits, lines, JSON lines."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kernelforge.cli.run import Display, _chosen_display
from kernelforge.cli.support.progress import JsonProgress, PlainProgress, QuietProgress, Watch, progress, screen
from kernelforge.errors import UsageError
from kernelforge.records import UNCOMPARED, Budget
from kernelforge.report.views.progress import ProgressView, RunProgress
from kernelforge.run.budget import StopSignal
from kernelforge.run.events import Event, Totals
from kernelforge.store import Store
from tests.support.factories import not_compared
from tests.support.recorded_run import HOSTILE, golden_attempts, make_run

START = datetime(2026, 11, 21, 6, tzinfo=UTC)


def console(*, terminal: bool = False, width: int = 120) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False)


def drawn(view: ProgressView, *, at: float, width: int, height: int) -> list[str]:
    """Lines of the screen, ``at`` seconds after the start."""
    out = console(width=width)
    out.print(screen(view, START + timedelta(seconds=at), height), end="")
    return out.file.getvalue().splitlines()


def big_run(jobs: int = 16) -> ProgressView:
    """250 tasks on many workers, with every budget, gains and a warning that a model wrote."""
    tasks = tuple(f"{number:03d}_convolution_with_a_long_name" for number in range(250))
    budget = Budget(rounds=20, evaluations=5000, wall_seconds=3600, tokens=10_000_000, dollars=20)
    fold = RunProgress(make_run(tasks=tasks, jobs=jobs, budget=budget).config, pid=1)
    fold.on_event(Event("run_started", message="r1"), START)
    for number, task in enumerate(tasks[:jobs]):
        stage = Event("stage", task=task, round=number, stage="evaluate")
        fold.on_event(stage, START + timedelta(seconds=10 * number))
    for attempt in golden_attempts(make_run())[:3] * 3:
        fold.on_event(Event("attempt", task=attempt.task, attempt=attempt), START + timedelta(seconds=160))
    spent = Totals(evaluations=9, tokens=1_234_567, dollars=3.2, uncounted=0, unpriced=1)
    fold.on_event(Event("warning", task=tasks[0], message=HOSTILE, spent=spent), START + timedelta(seconds=170))
    return fold.view(START + timedelta(seconds=190))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [24, 50])
@pytest.mark.parametrize("jobs", [1, 16, 200])
def test_the_screen_of_a_large_run_fits(width: int, height: int, jobs: int) -> None:
    lines = drawn(big_run(jobs), at=190, width=width, height=height)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for bar in ("tasks", "evaluations", "time", "tokens", "dollars"):
        assert re.search(rf"^{bar}\b.*\bof\b", text, re.M), text
    assert "at least $3.20 of $20.00" in text
    assert "generated 9 › parsed 9" in text
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
    if jobs == 200:
        assert re.search(r"and \d+ more: \d+ at work, 0 idle", text)


def test_the_longest_stalled_worker_is_shown_where_not_all_fit() -> None:
    lines = drawn(big_run(200), at=185, width=80, height=24)
    stalled = [line for line in lines if line.endswith("stalled")]
    assert len(stalled) == 1
    assert "000_convolution" in stalled[0]
    assert "3 min 05 s" in stalled[0]
    assert not any(line.endswith("stalled") for line in drawn(big_run(200), at=175, width=80, height=24))


def test_gains_come_newest_first_with_their_standing() -> None:
    text = "\n".join(drawn(big_run(2), at=190, width=120, height=24))
    assert re.search(r"latest gains\n *softmax +vectorise +8.39 MB DRAM, 1.00x the least +30 s ago", text)


@pytest.mark.parametrize(
    ("display", "quiet", "terminal", "expected"),
    [
        (Display.AUTO, False, True, Display.FULL),
        (Display.AUTO, False, False, Display.PLAIN),
        (Display.AUTO, True, True, Display.NONE),
        (Display.NONE, True, False, Display.NONE),
        (Display.PLAIN, False, True, Display.PLAIN),
        (Display.JSON, False, True, Display.JSON),
        (Display.FULL, False, True, Display.FULL),
    ],
)
def test_the_display_fits_where_the_output_goes(
    display: Display, quiet: bool, terminal: bool, expected: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.cli.run.console", lambda: console(terminal=terminal))
    monkeypatch.setenv("TERM", "xterm")
    assert _chosen_display(display, quiet) is expected


@pytest.mark.parametrize(("display", "quiet"), [(Display.FULL, False), (Display.PLAIN, True), (Display.JSON, True)])
def test_a_display_that_cannot_be_is_refused_in_a_line(
    display: Display, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.cli.run.console", console)
    with pytest.raises(UsageError, match=f"--display {display.value}") as refused:
        _chosen_display(display, quiet)
    assert "\n" not in str(refused.value)


def test_a_measured_attempt_is_told_by_its_time() -> None:
    out = console(width=200)
    rendered = PlainProgress(out, out)
    attempt = golden_attempts(make_run(device="cuda:0"))[1]
    rendered.on_event(Event("attempt", task="softmax", round=1, attempt=attempt))
    assert out.file.getvalue() == "softmax 01 vectorise OK best so far: 9.5 µs, 1.50x\n"


def test_an_attempt_whose_full_size_was_not_compared_says_so() -> None:
    out = console(width=200)
    rendered = PlainProgress(out, out)
    attempt = not_compared(golden_attempts(make_run(device="cuda:0"))[1])
    rendered.on_event(Event("attempt", task="softmax", round=1, attempt=attempt))
    assert out.file.getvalue() == f"softmax 01 vectorise {UNCOMPARED}: best so far: 9.5 µs, 1.50x\n"
    watch = Watch(make_run().config, StopSignal())
    watch.on_event(Event("run_started", message="r1"))
    watch.on_event(Event("attempt", task="softmax", round=1, attempt=attempt))
    assert [gain.standing for gain in watch.view().gains] == [f"{UNCOMPARED}: 9.5 µs, 1.50x"]


def test_without_a_display_warnings_are_said_and_nothing_else() -> None:
    out = console()
    rendered = QuietProgress(out)
    for event in (Event("task_started", task="softmax"), Event("warning", task="softmax", message="slow \x1b[2J")):
        rendered.on_event(event)
    assert out.file.getvalue() == "warning: softmax: slow \\x1b[2J\n"


def test_json_lines_give_each_event_and_what_it_changed(capsys: pytest.CaptureFixture[str]) -> None:
    config, stop = make_run().config, StopSignal()
    watch, errors = Watch(config, stop), console()
    rendered = JsonProgress(watch, errors)
    attempts = golden_attempts(make_run())
    events = [
        Event("run_started", message="r1"),
        Event("stage", task="softmax", round=1, stage="evaluate"),
        Event("attempt", task="softmax", round=1, attempt=attempts[1]),
        Event("warning", message=HOSTILE),
        Event("run_finished", message="finished"),
    ]
    for event in events:
        watch.on_event(event)
        rendered.on_event(event)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isascii() for line in lines)
    result = [json.loads(line) for line in lines]
    assert all(item["version"] == 1 for item in result)
    assert [item["kind"] for item in result if item["type"] == "event"] == [event.kind for event in events]
    attempt = next(item["attempt"] for item in result if item.get("kind") == "attempt")
    assert attempt["id"] == attempts[1].id
    assert (attempt["verdict"], attempt["uncompared"]) == ("OK", False)
    changes = [item for item in result if item["type"] == "progress"]
    assert set(ProgressView.model_fields) <= changes[0].keys()
    assert "bars" not in changes[1]
    assert changes[1]["lanes"][0]["task"] == "softmax"
    merged: dict[str, Any] = {}
    for change in changes:
        merged |= {name: value for name, value in change.items() if name not in ("type", "version")}
    assert ProgressView.model_validate(merged).model_copy(
        update={"updated": "", "bars": ()}
    ) == watch.view().model_copy(update={"updated": "", "bars": (), "lanes": ProgressView.model_validate(merged).lanes})
    assert merged["error"].startswith("\\x1b[31mred")


@pytest.mark.parametrize("display", ["plain", "json", "none", "full"])
def test_whatever_is_shown_others_can_read_how_the_run_stands(display: str, tmp_path: Path) -> None:
    from kernelforge.store.live_runs import read_status

    out = console(terminal=True)
    with Store.open(tmp_path / "kernelforge.db") as store, store.lock_run("r1"):
        with progress(make_run().config, StopSignal(), store, display=display, out=out, errors=out) as rendered:
            rendered.on_event(Event("run_started", message="r1"))
            wait_until(lambda: read_status(tmp_path, "r1") is not None)
            rendered.on_event(Event("stage", task="softmax", round=0, stage="coder"))
            wait_until(lambda: '"coder"' in (read_status(tmp_path, "r1") or ""))
        assert read_status(tmp_path, "r1") is None
    assert list((tmp_path / "locks").iterdir()) == []


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


TERMINAL = """
import sys, time
from pathlib import Path
from tests.support.recorded_run import fill, golden_attempts, make_run
from kernelforge.cli.run import Display, conduct
from kernelforge.records import RunState
from kernelforge.run.events import Event
from kernelforge.store import Store

results = Path("results")
store = Store.open(results / "kernelforge.db")
run = make_run(tasks=tuple(f"{number:03d}_a_task" for number in range(250)), jobs=40)

def work(observer, stop):
    store.start_run(run)
    observer.on_event(Event("run_started", message=run.id))
    for task in run.config.tasks[:40]:
        observer.on_event(Event("stage", task=task, round=0, stage="coder"))
    observer.on_event(Event("warning", task="000_a_task", message="waiting \\x1b[2J"))
    while not stop.draining:
        time.sleep(0.05)
    store.update_run(run.id, RunState.STOPPED, "2026-11-21T06:10:00+00:00")
    observer.on_event(Event("run_finished", message="stopped"))
    return run.model_copy(update={"state": RunState.STOPPED})

conduct(work, run.config, store, results, display=Display.FULL)
"""


@pytest.mark.slow
def test_on_a_terminal_of_24_rows_a_run_is_drawn_in_place_and_gives_the_terminal_back(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    # rich asks the environment first.
    sizes = {"TERM": "xterm-256color", "FORCE_COLOR": "1", "NO_COLOR": "", "COLUMNS": "80", "LINES": "24"}
    process = start("-c", TERMINAL, stdout=slave, stderr=slave, stdin=slave, env=sizes)
    os.close(slave)
    raw, interrupted = b"", False
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    while True:
        try:
            raw += os.read(master, 65536)  # what is read may end within a character
        except OSError:  # the other end is closed
            break
        if b"waiting" in raw and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = True
    os.close(master)
    output = raw.decode()
    assert process.wait(60) == 0, output[-2000:]
    watchdog.cancel()
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).splitlines()
    # The screen is redrawn beneath the warning, which comes after all that it is to show.
    result = lines.index("warning: 000_a_task: waiting \\x1b[2J")
    frame = next(lines[at : at + 23] for at in range(result, len(lines)) if lines[at].startswith("r1  running"))
    assert any(re.match(r" 0  000_a_task +round 0  coder  \d+ s", line) for line in frame)
    assert any(re.search(r"and \d\d more: \d\d at work, 0 idle", line) for line in frame)
    assert all(len(line) <= 80 for line in frame)
    assert len([line for line in frame if "_a_task" in line]) < 20
    assert "\x1b[2J" not in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")
    assert "r1 stopped" in output[output.rindex("\x1b[?25h") :]
