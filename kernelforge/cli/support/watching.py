"""Current status of a run, for the live display and for viewers that read the status file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kernelforge.report.views.progress import ProgressView, RunProgress
from kernelforge.store.live_status import end_live, write_status

if TYPE_CHECKING:
    from kernelforge.cli.support.interrupt import Stop
    from kernelforge.records import RunConfig
    from kernelforge.run.events import Event

TELL_EVERY_S = 0.25
"""Least time between two writings of the file."""
_LOOK_EVERY_S = 1.0
"""How soon a Ctrl-C is told, which is no event."""


class Watch:
    """Follows a run's events; any thread may ask how it stands.

    Args:
        stop: whether the run was asked to stop.
    """

    def __init__(self, config: RunConfig, stop: Stop) -> None:
        self._fold = RunProgress(config, pid=os.getpid())
        self._stop = stop
        self._lock = threading.Lock()
        self.changed = threading.Event()
        """Set by every event; whoever waits for it clears it."""

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
        """Note that the run ended by an error."""
        with self._lock:
            self._fold.fail(message)

    def view(self) -> ProgressView:
        with self._lock:
            return self._fold.view(datetime.now(UTC), stopping=self._stop.draining)


@contextmanager
def published(watch: Watch, folder: Path) -> Iterator[None]:
    """Within the block, how a run stands is told to other processes, a few times a second at most.

    Args:
        folder: that of the results database.
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
            end_live(folder, watch.run)


def _publish(watch: Watch, folder: Path, over: threading.Event) -> None:
    told: ProgressView | None = None
    while not over.is_set():
        news = watch.changed.wait(_LOOK_EVERY_S)
        watch.changed.clear()
        view = watch.view()
        if view.run and (news or told is None or told.state != view.state):
            try:
                write_status(folder, view.run, view.model_dump_json())
                told = view
            except OSError:
                told = None  # a run goes on where nobody can look at it: a full disk shows at its journal
        over.wait(TELL_EVERY_S)
