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
from kernelforge.store.live_runs import read_status
from kernelforge.store.task_store import TaskKey
from kernelforge.viewer.training import TrainingPages

TEMPLATES = Path(__file__).parent / "templates"


class LiveProgress(View):
    """Progress of a run, with links to the pages of its tasks and attempts."""

    progress: ProgressView
    links: dict[str, str]
    """Paths of pages, by name of a running task or id of an improving attempt."""


@dataclass(frozen=True)
class Snapshot:
    """State of the database at one moment."""

    progress: str | None
    """A :class:`LiveProgress` as JSON; None where there is no run of the loop."""
    news: int
    """Increases when the content of pages changes."""
    changed: float
    """Time of its last increase, or of the viewer's start, on the monotonic clock."""


@dataclass
class _CachedRun:
    """A run as it was last read."""

    records: RunRecords
    marks: dict[str, TaskKey]


class RunCache:
    """Runs of a results folder. All methods are thread-safe.

    Args:
        which: the only run to show, as on the command line; None for all.
        training: runs of the reward server that keeps its jobs in the same folder.

    Raises:
        UsageError: there is no such run.
    """

    def __init__(self, store: Store, which: str | None, training: TrainingPages | None = None) -> None:
        self._store = store
        self._training = training
        self._training_revision: int | None = None
        self._training_runs: list[str] = []
        self._only = None if which is None else store.run(which).id
        self._file = _identity(store.path)
        self._lock = threading.RLock()
        self._runs: dict[str, _CachedRun] = {}
        self._revision: int | None = None
        self._news = 0
        self._changed = time.monotonic()
        self._site: Site | None = None
        self._finished: dict[str, tuple[int, str]] = {}
        """Progress of runs that are not live, with the ``news`` that it belongs to."""

    def look(self, which: str | None) -> Snapshot:
        """The current snapshot.

        Args:
            which: the run whose progress to return; None for the running one, or else the latest.

        Raises:
            UsageError: there is no such run.
        """
        with self._lock:
            self._refresh()
            progress = None if which is None and not self._runs else self._progress(self._select(which))
            return Snapshot(progress, self._news, self._changed)

    def progress(self, which: str | None) -> LiveProgress:
        """Progress of a run.

        Raises:
            UsageError: there is no such run.
        """
        progress = self.look(which).progress
        if progress is None:
            raise UsageError("there is no run here yet")
        return LiveProgress.model_validate_json(progress)

    def site(self) -> Site:
        """The current pages."""
        with self._lock:
            self._refresh()
            if self._site is None:
                records = [cached.records for cached in self._runs.values()]
                training = [] if self._training is None else self._training.pages(self._training_runs)
                self._site = Site(
                    records, full=self._full, live=True, news=self._news, templates=[TEMPLATES], training=training
                )
            return self._site

    def front(self) -> str:
        """Path of the first page: that of the runs, or of the training runs where there are no others."""
        site = self.site()
        return paths.TRAINING if site.training and not site.runs else paths.INDEX

    def render(self, path: str) -> str | None:
        """A page or a file of data; None if there is none of that path."""
        with self._lock:
            return self.site().render(path)

    def _full(self, records: RunRecords, task: str) -> RunRecords:
        """Records of one task's pages including texts, read on request and not cached."""
        return records.full(self._store, task)

    def _select(self, which: str | None) -> str:
        if which is not None:
            if which not in self._runs:
                raise UsageError(f"there is no run {which!r} here")
            return which
        live = [run_id for run_id, cached in self._runs.items() if cached.records.live]
        return (live or list(self._runs))[-1]

    def _refresh(self) -> None:
        """Read changes, unless no process has written and no run started or ended."""
        if _identity(self._store.path) != self._file:
            raise StoreError(
                f"{self._store.path} was removed, or replaced by another file: start 'kernelforge view' again"
            )
        self._refresh_training()
        revision = self._store.revision()
        if revision == self._revision and not any(self._ended(cached.records) for cached in self._runs.values()):
            return
        runs = self._store.runs() if self._only is None else [self._store.run(self._only)]
        fresh = {run.id: self._read(run) for run in runs}
        self._revision = revision
        if fresh != self._runs or list(fresh) != list(self._runs):
            self._runs, self._site = fresh, None
            self._announce()

    def _refresh_training(self) -> None:
        """Announce that a reward server wrote. Its pages read the jobs when they are rendered."""
        if self._training is None:
            return
        revision = self._training.revision()
        if revision == self._training_revision:
            return
        self._training_revision = revision
        names = self._training.runs()
        if names != self._training_runs:
            self._training_runs, self._site = names, None
        self._announce()

    def _announce(self) -> None:
        """Tell open pages that there is something new."""
        self._news += 1
        self._changed = time.monotonic()
        if self._site is not None:
            self._site.news = self._news

    def _ended(self, records: RunRecords) -> bool:
        """Whether a run is no longer live, or is live again."""
        return records.run.state is RunState.RUNNING and self._store.is_live(records.run.id) != records.live

    def _read(self, run: Run) -> _CachedRun:
        cached = self._runs.get(run.id)
        if cached is not None and run.state is RunState.FINISHED and run == cached.records.run:
            return cached
        marks = self._store.task_marks(run.id)
        if cached is None:
            return _CachedRun(RunRecords.load(self._store, run, texts=False), marks)
        run, live = self._store.refresh(run)
        ended = run.state is not cached.records.run.state
        if marks == cached.marks and run == cached.records.run and live == cached.records.live:
            return cached
        changed = set(marks) if ended else {task for task, mark in marks.items() if mark != cached.marks.get(task)}
        return _CachedRun(self._reread(cached.records, run, live, changed), marks)

    def _reread(self, records: RunRecords, run: Run, live: bool, changed: Collection[str]) -> RunRecords:
        """Records with the parts of changed tasks read again."""
        store, names = self._store, sorted({attempt.task for attempt in records.attempts} | set(changed))
        reloaded = {name: tuple(store.attempts(run.id, name, texts=False, metrics=RUN_METRICS)) for name in changed}
        attempts = tuple(
            attempt for name in names for attempt in (reloaded[name] if name in reloaded else records.of_task(name))
        )
        return replace(
            records,
            run=run,
            attempts=attempts,
            finished=store.finished_tasks(run.id),
            live=live,
            messages={**records.messages, **{name: store.task_messages(run.id, name, texts=False) for name in changed}},
            generators={**records.generators, **{name: store.generators(run.id, name) for name in changed}},
            lessons={**records.lessons, **{name: store.lessons_of(run.id, name) for name in changed}},
            tasks={**records.tasks, **{name: store.task(run.id, name) for name in changed}},
            compulsory_bytes=store.compulsory_bytes(run.id),
        )

    def _progress(self, run_id: str) -> str:
        status = read_status(self._store.path.parent, run_id)
        view: ProgressView | None = None
        if status is not None:
            try:
                view = ProgressView.model_validate_json(status)
            except ValidationError:
                view = None  # written by another version of KernelForge
        if view is not None:
            return _linked(view)
        before = self._finished.get(run_id)
        if before is None or before[0] != self._news:
            before = self._news, _linked(journalled_progress(self._runs[run_id].records))
            self._finished[run_id] = before
        return before[1]


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _linked(view: ProgressView) -> str:
    links = {row.task: paths.task_page(view.run, row.task) for row in view.lanes if row.task is not None}
    for gain in view.gains:
        number = gain.attempt.rpartition("/")[2]
        if number.isdecimal():
            links[gain.attempt] = paths.attempt_page(view.run, gain.task, int(number))
    return LiveProgress(progress=view, links=links).model_dump_json()
