"""In-memory cache of the results folder: records without their texts, refreshed incrementally."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from kernelforge.errors import StoreError, UsageError
from kernelforge.records import Run, RunState
from kernelforge.report.html import paths
from kernelforge.report.html.site import Site
from kernelforge.report.views import View
from kernelforge.report.views.progress import ProgressView, journalled_progress
from kernelforge.report.views.run_records import RUN_METRICS, RunRecords
from kernelforge.store import Store
from kernelforge.store.live_status import read_status
from kernelforge.store.task_store import TaskKey

TEMPLATES = Path(__file__).parent / "templates"


class LiveProgress(View):
    """What a browser is told of a run: its progress, and where its tasks and attempts are shown."""

    progress: ProgressView
    links: dict[str, str]
    """By name of a task at work, or id of a gain's attempt: the path of its page."""


@dataclass(frozen=True)
class Snapshot:
    """The journal at one moment."""

    progress: str
    """A :class:`LiveProgress` as JSON."""
    news: int
    """Goes up when there is something new on the pages."""
    changed: float
    """When it last went up, on the monotonic clock; when the viewer started, before that."""


@dataclass
class _CachedRun:
    """A run as it was read."""

    records: RunRecords
    marks: dict[str, TaskKey]


class RunCache:
    """Runs of a results folder. All methods may be called from any thread; they take turns.

    Args:
        which: the one run to show, as the command line takes it; None for all.

    Raises:
        UsageError: there is no such run.
    """

    def __init__(self, store: Store, which: str | None) -> None:
        self._store = store
        self._only = None if which is None else store.run(which).id
        self._file = _identity(store.path)
        self._lock = threading.RLock()
        self._known: dict[str, _CachedRun] = {}
        self._revision: int | None = None
        self._news = 0
        self._changed = time.monotonic()
        self._site: Site | None = None
        self._finished: dict[str, tuple[int, str]] = {}
        """By run that is not live, what was told of it, and at which news."""

    def look(self, which: str | None) -> Snapshot:
        """What is new.

        Args:
            which: the run whose progress is asked for; None for the one that goes on, or else the latest.

        Raises:
            UsageError: there is no such run.
        """
        with self._lock:
            self._refresh()
            run_id = self._chosen(which)
            return Snapshot(self._progress(run_id), self._news, self._changed)

    def progress(self, which: str | None) -> LiveProgress:
        """How a run stands.

        Raises:
            UsageError: there is no such run.
        """
        return LiveProgress.model_validate_json(self.look(which).progress)

    def site(self) -> Site:
        """The pages, as of now."""
        with self._lock:
            self._refresh()
            if self._site is None:
                records = [known.records for known in self._known.values()]
                self._site = Site(records, full=self._full, live=True, news=self._news, templates=[TEMPLATES])
            return self._site

    def render(self, path: str) -> str | None:
        """A page or a file of data; None where there is none of that path."""
        with self._lock:
            return self.site().render(path)

    def _full(self, records: RunRecords, task: str) -> RunRecords:
        """What the pages of a task are made from, texts and all; read when they are asked for, and not kept."""
        return records.full(self._store, task)

    def _chosen(self, which: str | None) -> str:
        if which is not None:
            if which not in self._known:
                raise UsageError(f"there is no run {which!r} here")
            return which
        live = [run_id for run_id, known in self._known.items() if known.records.live]
        ids = live or list(self._known)
        if not ids:
            raise UsageError("there is no run here yet")
        return ids[-1]

    def _refresh(self) -> None:
        """Read what is new: nothing where no other process has written, and no run began or ended."""
        if _identity(self._store.path) != self._file:
            raise StoreError(
                f"{self._store.path} was removed, or another file put in its place: start 'kernelforge view' again"
            )
        revision = self._store.revision()
        if revision == self._revision and not any(self._ended(known.records) for known in self._known.values()):
            return
        runs = self._store.runs() if self._only is None else [self._store.run(self._only)]
        fresh = {run.id: self._read(run) for run in runs}
        self._revision = revision
        if fresh != self._known or list(fresh) != list(self._known):
            self._known, self._site = fresh, None
            self._news += 1
            self._changed = time.monotonic()

    def _ended(self, records: RunRecords) -> bool:
        """Whether a run that was live is not so any more, or the other way round."""
        return records.run.state is RunState.RUNNING and self._store.is_live(records.run.id) != records.live

    def _read(self, run: Run) -> _CachedRun:
        known = self._known.get(run.id)
        if known is not None and run.state is RunState.FINISHED and run == known.records.run:
            return known
        marks = self._store.task_marks(run.id)
        if known is None:
            return _CachedRun(RunRecords.load(self._store, run, texts=False), marks)
        run, live = self._store.refresh(run)
        ended = run.state is not known.records.run.state
        if marks == known.marks and run == known.records.run and live == known.records.live:
            return known
        changed = set(marks) if ended else {task for task, mark in marks.items() if mark != known.marks.get(task)}
        return _CachedRun(self._reread(known.records, run, live, changed), marks)

    def _reread(self, known: RunRecords, run: Run, live: bool, changed: Collection[str]) -> RunRecords:
        """Records with those tasks' part read again."""
        store, names = self._store, sorted({attempt.task for attempt in known.attempts} | set(changed))
        again = {name: tuple(store.attempts(run.id, name, texts=False, metrics=RUN_METRICS)) for name in changed}
        attempts = tuple(one for name in names for one in (again[name] if name in again else known.of_task(name)))
        return replace(
            known,
            run=run,
            attempts=attempts,
            finished=store.finished_tasks(run.id),
            live=live,
            messages={**known.messages, **{name: store.task_messages(run.id, name, texts=False) for name in changed}},
            generators={**known.generators, **{name: store.generators(run.id, name) for name in changed}},
            lessons={**known.lessons, **{name: store.lessons_of(run.id, name) for name in changed}},
            tasks={**known.tasks, **{name: store.task(run.id, name) for name in changed}},
            compulsory_bytes=store.compulsory_bytes(run.id),
        )

    def _progress(self, run_id: str) -> str:
        told = read_status(self._store.path.parent, run_id)
        view: ProgressView | None = None
        if told is not None:
            try:
                view = ProgressView.model_validate_json(told)
            except ValidationError:
                view = None  # another version of KernelForge is at work on it
        if view is not None:
            return _linked(view)
        before = self._finished.get(run_id)
        if before is None or before[0] != self._news:
            before = self._news, _linked(journalled_progress(self._known[run_id].records))
            self._finished[run_id] = before
        return before[1]


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file lies at a path; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _linked(view: ProgressView) -> str:
    links = {lane.task: paths.task_page(view.run, lane.task) for lane in view.lanes if lane.task is not None}
    for gain in view.gains:
        number = gain.attempt.rpartition("/")[2]
        if number.isdecimal():
            links[gain.attempt] = paths.attempt_page(view.run, gain.task, int(number))
    return LiveProgress(progress=view, links=links).model_dump_json()
