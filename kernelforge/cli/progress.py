"""What a run shows while it works: bars and lines on a terminal, one line per finished attempt elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelforge.records import Attempt, Origin
from kernelforge.report.summary import step_name
from kernelforge.report.text import byte_count, duration, number, one_line, times

if TYPE_CHECKING:
    from kernelforge.cli.interrupt import Stop
    from kernelforge.run.events import Event


class Progress(Protocol):
    """An observer that is shown for a while."""

    def on_event(self, event: Event) -> None: ...


def standing(attempt: Attempt) -> str:
    """How good an attempt is, in a few words: measured speedup or time, else DRAM traffic."""
    speed, profile = attempt.evaluation.performance, attempt.profile
    if speed is not None and speed.origin is Origin.MEASURED:
        return f"{number(speed.time_us)} µs" + ("" if speed.speedup is None else f", {times(speed.speedup)}")
    if profile is not None and profile.roofline.compulsory_bytes:
        roof = profile.roofline
        return f"{byte_count(roof.dram_bytes)} DRAM, {times(roof.dram_bytes / roof.compulsory_bytes)} the least"
    return "correct"


class QuietProgress:
    """Shows warnings alone."""

    def __init__(self, errors: Console) -> None:
        self._errors = errors

    def on_event(self, event: Event) -> None:
        if event.kind == "warning":
            where = f"{event.task}: " if event.task else ""
            self._errors.print(Text(f"warning: {where}{one_line(event.message)}", style="yellow"), soft_wrap=True)


class PlainProgress(QuietProgress):
    """One line per finished attempt and per finished task."""

    def __init__(self, out: Console, errors: Console) -> None:
        super().__init__(errors)
        self._out = out

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if event.kind == "attempt" and event.attempt is not None:
            self._line(_attempt_line(event.attempt))
        elif event.kind == "task_finished":
            self._line(f"{event.task} done: {one_line(event.message)}")
        elif event.kind == "run_started":
            self._line(f"run {event.message}")

    def _line(self, text: str) -> None:
        self._out.print(Text(text), soft_wrap=True)


def _attempt_line(attempt: Attempt) -> str:
    verdict = attempt.evaluation.verdict.value
    detail = standing(attempt) if verdict == "OK" else one_line(attempt.evaluation.reason, 120)
    mark = "best so far: " if attempt.accepted else ""
    return f"{attempt.task} {attempt.number:02d} {step_name(attempt)} {verdict} {mark}{detail}"


@dataclass
class _Lane:
    """One task's line."""

    task: str
    round: int = 0
    state: str = "waiting"
    verdict: str = ""
    best: str = ""
    since: float = 0.0


class LiveProgress(QuietProgress):
    """A bar for the run and a line per task with round, stage, latest verdict and best so far."""

    def __init__(self, errors: Console, tasks: Sequence[str], stop: Stop) -> None:
        super().__init__(errors)
        self._lanes = {task: _Lane(task) for task in tasks}
        self._stop = stop
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        lane = self._lanes.get(event.task or "")
        if lane is None:
            return
        with self._lock:
            if event.kind == "task_finished":
                lane.state = "done"
            elif event.kind == "stage":
                lane.state, lane.since = event.stage or "", time.monotonic()
                lane.round = event.round if event.round is not None else lane.round
            elif event.kind == "warning":
                lane.state = "failed"
            elif event.kind == "attempt" and event.attempt is not None:
                lane.round, lane.verdict = event.attempt.number, event.attempt.evaluation.verdict.value
                if event.attempt.accepted:
                    lane.best = standing(event.attempt)

    def __rich__(self) -> RenderableType:
        with self._lock:
            lanes = [_Lane(**vars(lane)) for lane in self._lanes.values()]
        done = sum(lane.state in ("done", "failed") for lane in lanes)
        head = Table.grid(padding=(0, 1))
        state = " · stopping" if self._stop.draining else ""
        elapsed = duration(time.monotonic() - self._started)
        head.add_row(
            ProgressBar(total=len(lanes), completed=done, width=30), f"{done} of {len(lanes)} tasks · {elapsed}{state}"
        )
        body = Table.grid(padding=(0, 2))
        for lane in lanes:
            working = lane.state not in ("waiting", "done", "failed")
            body.add_row(
                Text(lane.task, style="bold" if working else "dim"),
                f"round {lane.round}",
                Text(lane.state + (f" {time.monotonic() - lane.since:.0f} s" if working and lane.since else "")),
                Text(lane.verdict, style="green" if lane.verdict == "OK" else "yellow"),
                Text(lane.best),
            )
        return Group(head, body)


@contextmanager
def progress(tasks: Sequence[str], stop: Stop, *, quiet: bool, out: Console, errors: Console) -> Iterator[Progress]:
    """The observer that fits where the output goes."""
    if quiet:
        yield QuietProgress(errors)
    elif not out.is_terminal:
        yield PlainProgress(out, errors)
    else:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            shown = LiveProgress(live.console, tasks, stop)
            live.update(shown)
            yield shown
