"""Progress of a run: a live screen, lines, JSON or warnings only, and the status file for viewers."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelforge.records import Attempt
from kernelforge.report.formatting import clock, one_line
from kernelforge.report.views.progress import (
    BudgetBar,
    Gain,
    ProgressView,
    RunProgress,
    WorkerStatus,
    format_spent,
    seconds_since,
    standing,
    visible_bars,
    worker_label,
)
from kernelforge.report.views.run_records import step_name
from kernelforge.store.live_runs import remove_status, write_status

if TYPE_CHECKING:
    from kernelforge.records import RunConfig
    from kernelforge.run import StopSignal
    from kernelforge.run.events import Event
    from kernelforge.store import Store


WRITE_EVERY_S = 0.25
"""Shortest time between two writes of the file."""
_POLL_EVERY_S = 1.0
"""Longest delay before a Ctrl-C, which is no event, shows in the file."""


class Watch:
    """Status of a run, updated by its events. Thread-safe.

    Args:
        stop: tells whether the run is stopping.
    """

    def __init__(self, config: RunConfig, stop: StopSignal) -> None:
        self._fold = RunProgress(config, pid=os.getpid())
        self._stop = stop
        self._lock = threading.Lock()
        self.changed = threading.Event()
        """Set by every event; the waiting thread clears it."""

    @property
    def run(self) -> str:
        """Id of the run; empty before its first event."""
        with self._lock:
            return self._fold.run

    def on_event(self, event: Event) -> None:
        with self._lock:
            self._fold.on_event(event, datetime.now(UTC))
        self.changed.set()

    def fail(self, message: str) -> None:
        """Record the error that ended the run."""
        with self._lock:
            self._fold.fail(message)

    def view(self) -> ProgressView:
        with self._lock:
            return self._fold.view(datetime.now(UTC), stopping=self._stop.draining)


@contextmanager
def published(watch: Watch, folder: Path) -> Iterator[None]:
    """Within the block, write the status file for other processes, a few times a second at most.

    Args:
        folder: folder of the results database.
    """
    over = threading.Event()
    thread = threading.Thread(target=_publish, args=(watch, folder, over), name="live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        watch.changed.set()
        thread.join()
        if watch.run:
            remove_status(folder, watch.run)


def _publish(watch: Watch, folder: Path, over: threading.Event) -> None:
    published_view: ProgressView | None = None
    while not over.is_set():
        news = watch.changed.wait(_POLL_EVERY_S)
        watch.changed.clear()
        view = watch.view()
        if view.run and (news or published_view is None or published_view.state != view.state):
            try:
                write_status(folder, view.run, view.model_dump_json())
                published_view = view
            except OSError:
                published_view = None  # the run continues without a status file: a full disk is reported by the journal
        over.wait(WRITE_EVERY_S)


JSON_VERSION = 1
"""Version of the lines of ``--display json``: raised when a field changes its meaning or goes."""


class Progress(Protocol):
    """An observer of a run's events."""

    def on_event(self, event: Event) -> None: ...


class QuietProgress:
    """Prints warnings only."""

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
    evaluation = attempt.evaluation
    detail = standing(attempt) if evaluation.verdict.value == "OK" else one_line(evaluation.reason, 120)
    mark = "best so far: " if attempt.accepted else ""
    colon = ": " if evaluation.uncompared else " "
    return f"{attempt.task} {attempt.number:02d} {step_name(attempt)} {evaluation.outcome}{colon}{mark}{detail}"


class JsonProgress(QuietProgress):
    """A JSON object per line on stdout: every event, then the fields of the progress that it changed."""

    def __init__(self, watch: Watch, errors: Console) -> None:
        super().__init__(errors)
        self._watch = watch
        self._printed: dict[str, Any] = {}

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        view = self._watch.view()
        print_json_line({"type": "event", "run": view.run, "at": view.updated, **_event_fields(event)})
        self._print_changes(view)

    def _print_changes(self, view: ProgressView) -> None:
        """Print the fields of the view that have changed. Elapsed time alone is no change."""
        now = view.model_dump(mode="json")
        changed = {name: value for name, value in now.items() if name != "updated" and self._differs(name, value)}
        self._printed = now
        if changed:
            print_json_line({"type": "progress", "updated": view.updated, **changed})

    def _differs(self, name: str, value: Any) -> bool:
        before = self._printed.get(name)
        if name == "bars" and before is not None:
            return [bar for bar in value if bar["name"] != "seconds"] != [
                bar for bar in before if bar["name"] != "seconds"
            ]
        if name == "lanes" and before is not None:
            return [_occupied(worker) for worker in value] != [_occupied(worker) for worker in before]
        return name not in self._printed or bool(value != before)


def _occupied(worker: dict[str, Any]) -> dict[str, Any]:
    """A worker's fields, without the clock of an idle one."""
    return worker if worker["task"] is not None else worker | {"since": ""}


def _event_fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "kind": event.kind,
        "task": event.task,
        "round": event.round,
        "stage": event.stage,
        "message": event.message,
    }
    if event.attempt is not None:
        attempt = event.attempt
        fields["attempt"] = {
            "id": attempt.id,
            "number": attempt.number,
            "step": step_name(attempt),
            "parent": attempt.parent,
            "verdict": attempt.evaluation.verdict.value,
            "uncompared": attempt.evaluation.uncompared,
            "reason": attempt.evaluation.reason,
            "accepted": attempt.accepted,
            "standing": standing(attempt) if attempt.evaluation.verdict.value == "OK" else "",
            "reward": attempt.reward.value,
            "seconds": attempt.seconds,
        }
    return fields


def print_json_line(fields: dict[str, Any]) -> None:
    """Write one object on one line and flush; ASCII, so that foreign text cannot control a terminal."""
    sys.stdout.write(json.dumps({"version": JSON_VERSION, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


@contextmanager
def progress(
    config: RunConfig, stop: StopSignal, store: Store, *, display: str, out: Console, errors: Console
) -> Iterator[WatchedDisplay]:
    """Observer of a run: displays it, and writes its status file.

    Args:
        store: journal of the run.
        display: ``full`` for a screen, ``plain`` for a line per attempt, ``json``, or ``none`` for warnings alone.
    """
    watch = Watch(config, stop)
    with published(watch, store.path.parent), _display(watch, display, out, errors) as observer:
        try:
            yield WatchedDisplay(watch, observer)
        except Exception as error:
            watch.fail(str(error) or type(error).__name__)
            raise


@contextmanager
def _display(watch: Watch, display: str, out: Console, errors: Console) -> Iterator[Progress]:
    if display == "full":
        from rich.live import Live

        with Live(LiveScreen(watch.view), console=out, refresh_per_second=4, transient=True) as live:
            # A warning on the same terminal goes above the display, so print it through the display's console.
            yield QuietProgress(live.console if errors.is_terminal else errors)
    elif display == "plain":
        yield PlainProgress(out, errors)
    elif display == "json":
        yield JsonProgress(watch, errors)
    else:
        yield QuietProgress(errors)


class WatchedDisplay:
    """Updates the watch first, so that the display shows the event's effect."""

    def __init__(self, watch: Watch, display: Progress) -> None:
        self._watch = watch
        self._display = display
        self.failed = False
        """Whether a task ended because a component failed."""

    def on_event(self, event: Event) -> None:
        self.failed = self.failed or event.failed
        self._watch.on_event(event)
        self._display.on_event(event)


_STATES = {
    "running": "green",
    "stopping": "yellow",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
    "interrupted": "red",
}
_LEAST_WORKERS = 3
"""Least number of workers shown on a low screen."""
_SPACING_LINES = 5
"""Free lines needed to put empty lines between the parts."""


class LiveScreen:
    """Renderable for ``rich.live.Live``, drawn several times a second."""

    def __init__(self, view: Callable[[], ProgressView]) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield screen(self._view(), datetime.now(UTC), console.height)


def screen(view: ProgressView, now: datetime, height: int) -> RenderableType:
    """Status of a run, in at most ``height - 1`` lines: a terminal scrolls at its last line.

    Args:
        now: the time for the clocks.
    """
    elapsed = seconds_since(view.started, now)
    bars, gains = visible_bars(view), view.gains
    room = height - 1 - 2 - len(bars) - bool(view.error)  # for workers and gains: head and funnel have a line each
    if gains and room - 1 - len(gains) < min(len(view.lanes), _LEAST_WORKERS):
        gains = ()
    room -= 1 + len(gains) if gains else 0
    gap = [""] if room - len(view.lanes) >= _SPACING_LINES else []
    parts: list[RenderableType] = [_head(view, now, elapsed), *gap, _bars(bars, elapsed), *gap]
    if view.lanes:
        parts += [_lanes(view.lanes, view.device, now, max(room, _LEAST_WORKERS)), *gap]
    parts.append(_funnel(view.funnel))
    if gains:
        parts += [*gap, Text("latest gains", style="bold"), _gains(gains, now)]
    if view.error:
        parts += [*gap, _cut(Text(f"warning: {one_line(view.error)}", style="yellow"))]
    return Group(*parts)


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _head(view: ProgressView, now: datetime, elapsed: float) -> Text:
    text = Text()
    text.append(one_line(view.run) or "starting", style="bold")
    text.append("  ")
    text.append(view.state, style=_STATES[view.state])
    text.append(f"  {clock(elapsed)}")
    if view.expected_end is not None:
        text.append(f"  about {clock(max(-seconds_since(view.expected_end, now), 0))} left")
    text.append(f"  {one_line(view.device)}", style="dim")
    return _cut(text)


def _bars(bars: Sequence[BudgetBar], elapsed: float) -> Table:
    table = Table.grid(padding=(0, 2))
    for bar in bars:
        spent = elapsed if bar.name == "seconds" else bar.spent
        drawn: RenderableType = ""
        if bar.limit is not None:
            drawn = ProgressBar(total=bar.limit, completed=min(spent, bar.limit), width=24)
        table.add_row("time" if bar.name == "seconds" else bar.name, drawn, _cut(Text(format_spent(bar, spent))))
    return table


def _lanes(lanes: Sequence[WorkerStatus], device: str, now: datetime, room: int) -> Table:
    """One line per worker; where lines are short, stalled workers first, then busy ones."""
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=44)
    for _ in range(4):
        table.add_column(no_wrap=True)
    visible, rest = list(lanes), 0
    if len(lanes) > room:
        order = sorted(
            lanes,
            key=lambda worker: (worker.task is None, -(seconds_since(worker.since, now) - worker.stalled_after_s)),
        )
        visible = sorted(order[: room - 1], key=lanes.index)
        rest = len(lanes) - len(visible)
    for worker in visible:
        if worker.task is None:
            table.add_row(one_line(worker_label(worker, device)), Text("idle", style="dim"))
            continue
        spent = seconds_since(worker.since, now)
        stalled = spent > worker.stalled_after_s
        table.add_row(
            one_line(worker_label(worker, device)),
            Text(one_line(worker.task), style="bold"),
            f"round {worker.round}",
            one_line(worker.stage),
            Text(clock(spent), style="red" if stalled else ""),
            Text("stalled", style="bold red") if stalled else "",
        )
    if rest:
        hidden = [worker for worker in lanes if worker not in visible]
        at_work = sum(worker.task is not None for worker in hidden)
        table.add_row("", Text(f"and {rest} more: {at_work} at work, {rest - at_work} idle", style="dim"))
    return table


def _funnel(funnel: dict[str, int]) -> Text:
    return _cut(Text(" › ".join(f"{step} {count:,}" for step, count in funnel.items())))


def _gains(gains: Sequence[Gain], now: datetime) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column(no_wrap=True, overflow="ellipsis")
    table.add_column(no_wrap=True, justify="right", style="dim")
    for gain in gains:
        ago = f"{clock(seconds_since(gain.at, now))} ago"
        table.add_row(Text(one_line(gain.task)), Text(one_line(gain.step)), Text(one_line(gain.standing)), ago)
    return table
