"""The pages of a report; written to a folder, to one file, or served."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from kernelforge.records import Attempt, Origin
from kernelforge.report.exports import leaderboard_csv
from kernelforge.report.html import paths
from kernelforge.report.html.contexts import (
    Full,
    RunPages,
    attempt_context,
    boards_context,
    compare_context,
    integrity_context,
    run_context,
    runs_context,
    task_context,
    tasks_table,
)
from kernelforge.report.html.paths import FolderLinks, Links, OneFileLinks
from kernelforge.report.html.rendering import (
    CHART_SCRIPTS,
    CODE_SCRIPTS,
    EARLY_SCRIPT,
    SCRIPTS,
    assets,
    environment,
    policy,
)
from kernelforge.report.tables.task import compare_table
from kernelforge.report.views.board import Leaderboard, leaderboard
from kernelforge.report.views.compare import CompareView, compare_view
from kernelforge.report.views.run_records import RunRecords
from kernelforge.version import __version__

_PAIRED = 4
"""Up to this many runs, all pairs are compared; of more, each with the first."""

Context = Mapping[str, Any]
Crumb = tuple[str, str]
"""Title and path of a parent page."""


@dataclass(frozen=True)
class Page:
    """One page before rendering."""

    path: str
    title: str
    template: str
    context: Callable[[Links], Context]
    above: tuple[Crumb, ...] = ()
    """Parent pages, the outermost first."""
    run: RunPages | None = None
    """The run of the page, if any."""
    data: tuple[Crumb, ...] = ()
    """Files with its data: label and path."""


class Site:
    """The pages of some runs.

    Args:
        runs: the runs, in the order of the report.
        full: loads one task with its texts, where the records have none.
        live: a server delivers the pages and pushes updates: pages may connect to it, and load its script.
        news: number of the last update in the runs, which live pages send back.
        templates: folders of further templates.
        training: pages of runs of the reward server, the one that lists them first.
    """

    def __init__(
        self,
        runs: Sequence[RunRecords],
        *,
        full: Full | None = None,
        live: bool = False,
        news: int = 0,
        templates: Sequence[Path] = (),
        training: Sequence[Page] = (),
    ) -> None:
        self.runs = {records.run.id: RunPages(records, full) for records in runs}
        self.live = live
        self.news = news
        self._environment = environment(*templates)
        self._comparisons: dict[tuple[str, str], CompareView] = {}
        self._data = dict(self._all_data())
        self.training = bool(training)
        self._pages = {page.path: page for page in (*self._all_pages(), *training)}

    def pages(self) -> list[str]:
        """Paths of all pages, the front page first."""
        return list(self._pages)

    def data(self) -> list[str]:
        """Paths of all files of data."""
        return list(self._data)

    def assets(self) -> Mapping[str, Path]:
        """Files of ``assets/`` by name."""
        return assets()

    def render(self, path: str) -> str | None:
        """A page or a file of data; None for an unknown path."""
        if path in self._data:
            return self._data[path]()
        page = self._pages.get(path)
        return None if page is None else self.page(page)

    def page(self, page: Page) -> str:
        """A page as a complete document; it need not be one of :meth:`pages`."""
        scripts = [*CHART_SCRIPTS, *CODE_SCRIPTS, *SCRIPTS, *(("live.js",) if self.live else ())]
        return self._write(
            page,
            FolderLinks(page.path),
            layout="page.html.j2",
            files=True,
            policy=policy(live=self.live),
            early=f"assets/{EARLY_SCRIPT}",
            scripts=[f"assets/{name}" for name in scripts],
        )

    def section(self, path: str) -> str:
        """A page as a section of a larger document."""
        first = path == next(iter(self._pages))
        return self._write(
            self._pages[path], OneFileLinks(path, self.twin), layout="section.html.j2", first=first, files=False
        )

    def _write(self, page: Page, links: Links, **more: Any) -> str:
        shared = {"links": links, "page": page, "site": self, "paths": paths, "version": __version__}
        return self._environment.get_template(page.template).render(**shared, **page.context(links), **more)

    def shell(self, *, links: Links, style: str, scripts: Sequence[str], policy: str) -> tuple[str, str]:
        """Text before and after the sections of a document that contains all pages.

        Args:
            style, scripts: contents of static files, inserted unescaped; the first script before all content, the
                others after it.
        """
        cut = "\x00"
        document = self._environment.get_template("onefile.html.j2").render(
            site=self,
            page=self._pages[paths.INDEX],
            paths=paths,
            links=links,
            policy=policy,
            style=Markup(style),
            scripts=[Markup(script) for script in scripts],
            version=__version__,
            cut=Markup(cut),
        )
        before, _, after = document.partition(cut)
        return before, after

    def prepare(self) -> None:
        """Compute shared data, so that processes forked from this one need not: views of complete runs, and by
        rendering a page of each kind, caches that fill on first use."""
        for run in self.runs.values():
            run.prepare()
        for page in {page.template: page for page in self._pages.values()}.values():
            self.page(page)
        for run in self.runs.values():
            run.forget()

    @property
    def twin(self) -> str | None:
        """The page that equals the front page, if any."""
        return paths.run_page(next(iter(self.runs))) if len(self.runs) == 1 else None

    @property
    def front(self) -> str:
        """Title of the front page."""
        return "Run" if len(self.runs) == 1 else "Runs"

    @cached_property
    def leaderboard(self) -> Leaderboard:
        return leaderboard([run.records for run in self.runs.values()])

    @cached_property
    def modelled(self) -> bool:
        """Whether any run of the site is modelled."""
        return any(run.origin is Origin.MODELLED for run in self.runs.values())

    @cached_property
    def pairs(self) -> list[tuple[RunPages, RunPages]]:
        """Compared runs."""
        runs = list(self.runs.values())
        if len(runs) <= _PAIRED:
            return list(itertools.combinations(runs, 2))
        return [(runs[0], other) for other in runs[1:]]

    def _all_pages(self) -> Iterator[Page]:
        runs = list(self.runs.values())
        if len(runs) == 1:
            yield self._run_page(runs[0], paths.INDEX)
        else:
            yield Page(paths.INDEX, "Runs", "runs.html.j2", partial(runs_context, runs, self.pairs))
        above = ((self.front, paths.INDEX),)
        yield Page(
            paths.LEADERBOARD,
            "Leaderboard",
            "leaderboard.html.j2",
            lambda links: boards_context(self.leaderboard, self.runs, links),
            above,
            data=_files("leaderboard"),
        )
        for a, b in self.pairs:
            path, data = paths.compare_page(a.id, b.id), _files(_pair_name(a, b))
            context = partial(self._compare_context, a, b)
            yield Page(path, f"{a.id} and {b.id}", "compare.html.j2", context, above, data=data)
        for run in runs:
            yield from self._pages_of(run)

    def _compare_context(self, a: RunPages, b: RunPages, links: Links) -> Context:
        return compare_context(a, b, self._compared(a, b), links)

    def _compared(self, a: RunPages, b: RunPages) -> CompareView:
        if (a.id, b.id) not in self._comparisons:
            self._comparisons[a.id, b.id] = compare_view(a.records, b.records)
        return self._comparisons[a.id, b.id]

    def _run_page(self, run: RunPages, path: str) -> Page:
        above = () if len(self.runs) == 1 else ((self.front, paths.INDEX),)
        context = partial(run_context, run)
        return Page(path, f"Run {run.id}", "run.html.j2", context, above, run, _files(run.id))

    def _pages_of(self, run: RunPages) -> Iterator[Page]:
        data = _files(run.id)
        above: tuple[Crumb, ...] = ((self.front, paths.INDEX),)
        if len(self.runs) > 1:
            above = (*above, (run.id, paths.run_page(run.id)))
        yield self._run_page(run, paths.run_page(run.id))
        path, context = paths.integrity_page(run.id), partial(integrity_context, run)
        yield Page(path, f"Integrity of {run.id}", "integrity.html.j2", context, above, run, data)
        for task in run.tasks:
            path = paths.task_page(run.id, task)
            yield Page(path, task, "task.html.j2", partial(task_context, run, task), above, run, data)
            below = (*above, (task, path))
            for attempt in run.records.of_task(task):
                yield self._attempt_page(run, attempt, below, data)

    def _attempt_page(self, run: RunPages, attempt: Attempt, above: tuple[Crumb, ...], data: tuple[Crumb, ...]) -> Page:
        path = paths.attempt_page(run.id, attempt.task, attempt.number)
        title = f"{attempt.task} / {attempt.number:02d}"
        return Page(path, title, "attempt.html.j2", partial(attempt_context, run, attempt), above, run, data)

    def _all_data(self) -> Iterator[tuple[str, Callable[[], str]]]:
        for run in self.runs.values():
            yield from _data_of(run.id, partial(getattr, run, "view"), lambda view: tasks_table(view).to_csv())
        for a, b in self.pairs:
            yield from _data_of(
                _pair_name(a, b), partial(self._compared, a, b), lambda view: compare_table(view).to_csv()
            )
        yield from _data_of("leaderboard", lambda: self.leaderboard, leaderboard_csv)


def _data_of(name: str, view: Callable[[], Any], csv: Callable[[Any], str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """A view as two files of data, each made when it is asked for."""
    yield paths.data_file(name, "json"), lambda: f"{view().model_dump_json(indent=1)}\n"
    yield paths.data_file(name, "csv"), lambda: csv(view())


def _files(name: str) -> tuple[Crumb, ...]:
    return tuple((suffix.upper(), paths.data_file(name, suffix)) for suffix in ("json", "csv"))


def _pair_name(a: RunPages, b: RunPages) -> str:
    return f"compare {a.id} {b.id}"
