"""Template variables of a live run's page. The browser advances the clocks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kernelforge.report.formatting import clock
from kernelforge.report.html import paths
from kernelforge.report.views.progress import (
    BudgetBar,
    ProgressView,
    WorkerStatus,
    format_spent,
    seconds_since,
    visible_bars,
    worker_label,
)
from kernelforge.viewer.run_cache import LiveProgress

ENDED = ("finished", "stopped", "failed", "interrupted")


def live_context(live: LiveProgress, *, selected: bool) -> Mapping[str, Any]:
    """Variables of the template.

    Args:
        selected: whether the URL names this run, so that the page stays with it when another starts.
    """
    view, now = live.progress, datetime.now(UTC)
    ended = view.state in ENDED
    until = datetime.fromisoformat(view.updated) if ended else now
    elapsed = seconds_since(view.started, until if until.tzinfo is not None else now)
    return {
        "view": view,
        "asked": view.run if selected else "",
        "now": now.isoformat(timespec="milliseconds"),
        "ended": ended,
        "elapsed": clock(elapsed),
        "left": None if view.expected_end is None else clock(-seconds_since(view.expected_end, now)),
        "run_path": paths.run_page(view.run),
        "bars": [_bar(bar, elapsed) for bar in visible_bars(view)],
        "lanes": [_worker(item, view.device, live.links, now) for item in view.lanes],
        "gains": _gains(view, live.links, now),
    }


def _bar(bar: BudgetBar, elapsed: float) -> dict[str, Any]:
    timed = bar.name == "seconds"
    spent = elapsed if timed else bar.spent
    return {
        "name": "time" if timed else bar.name,
        "timed": timed,
        "spent": spent,
        "limit": bar.limit,
        "of": clock(bar.limit) if timed and bar.limit is not None else "",
        "words": format_spent(bar, spent),
    }


def _worker(row: WorkerStatus, device: str, links: Mapping[str, str], now: datetime) -> dict[str, Any]:
    spent = seconds_since(row.since, now)
    return {
        "lane": row,
        "name": worker_label(row, device),
        "path": None if row.task is None else links.get(row.task),
        "clock": clock(spent),
        "stalled": row.task is not None and spent > row.stalled_after_s,
    }


def _gains(view: ProgressView, links: Mapping[str, str], now: datetime) -> list[dict[str, Any]]:
    return [
        {"gain": gain, "path": links.get(gain.attempt), "ago": clock(seconds_since(gain.at, now))}
        for gain in view.gains
    ]
