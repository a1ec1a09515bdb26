"""Live terminal display of a run: budgets, workers, progress and latest gains, within the screen's height."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kernelforge.report.formatting import clock, one_line
from kernelforge.report.views.progress import (
    BudgetBar,
    Gain,
    ProgressView,
    WorkerStatus,
    format_spent,
    seconds_since,
    visible_bars,
    worker_label,
)

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
