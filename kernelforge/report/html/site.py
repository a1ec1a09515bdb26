"""A report as pages: which there are, and what each holds. Whoever asks decides whether they become files of a folder,
sections of one file, or answers of a server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelforge.records import Attempt
from kernelforge.report.board import Leaderboard, leaderboard
from kernelforge.report.documents import leaderboard_csv
from kernelforge.report.html import contexts, paths
from kernelforge.report.html.paths import FolderLinks, Links
from kernelforge.report.html.rendering import CHART_SCRIPTS, CODE_SCRIPTS, SCRIPTS, assets, environment, policy
from kernelforge.report.html.shown import ShownRun
from kernelforge.report.source import RunRecords
from kernelforge.version import __version__

_PAIRED = 4
"""Up to this many runs are compared each with each; of more, each with the first."""

Context = Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """One page, before it is written."""

    path: str
    title: str
    template: str
    context: Callable[[Links], Context]
    crumbs: tuple[tuple[str, str], ...] = ()
    """Pages above it: title and path, the outermost first."""
    run: ShownRun | None = None
    """The run that it belongs to, if it is of one."""


class Site:
    """The pages of some runs.

    Args:
        runs: what is shown, in this order.
        live: the pages come from a server that pushes news: they may connect to it, and load its script.
        templates: folders of further templates.
    """

    def __init__(self, runs: Sequence[RunRecords], *, live: bool = False, templates: Sequence[Path] = ()) -> None:
        self.runs = tuple(ShownRun(records) for records in runs)
        self.live = live
        self._environment = environment(*templates)
        self._pages = {page.path: page for page in self._all_pages()}
        self._data = dict(self._all_data())

    def pages(self) -> list[str]:
        """Paths of all pages, the front page first."""
        return list(self._pages)

    def data(self) -> list[str]:
        """Paths of all files of data."""
        return list(self._data)

    def render(self, path: str) -> str | None:
        """A page or a file of data; None where there is none of that path."""
        if path in self._data:
            return self._data[path]()
        page = self._pages.get(path)
        return None if page is None else self.page(page)

    def assets(self) -> Mapping[str, Path]:
        """Files of ``assets/`` by name."""
        return assets()

    def page(self, page: Page) -> str:
        """A page as a document of its own."""
        scripts = ["assets/" + name for name in (*CHART_SCRIPTS, *CODE_SCRIPTS, *SCRIPTS)]
        if self.live:
            scripts.append("assets/live.js")
        links = FolderLinks(page.path)
        return self._write(page, "page.html.j2", links, policy=policy(live=self.live), scripts=scripts)

    def section(self, path: str) -> str:
        """A page as a section of a larger document."""
        return self._write(self._pages[path], "section.html.j2", paths.OneFileLinks(path))

    def _write(self, page: Page, layout: str, links: Links, **more: Any) -> str:
        shared = {
            "layout": layout,
            "links": links,
            "page": page,
            "site": self,
            "paths": paths,
            "version": __version__,
        }
        template = self._environment.get_template(page.template)
        return template.render(shared | dict(page.context(links)) | more)

    @cached_property
    def leaderboard(self) -> Leaderboard:
        return leaderboard([run.records for run in self.runs])

    @property
    def pairs(self) -> list[tuple[ShownRun, ShownRun]]:
        """Runs that are compared."""
        if len(self.runs) <= _PAIRED:
            return list(itertools.combinations(self.runs, 2))
        return [(self.runs[0], other) for other in self.runs[1:]]

    def _all_pages(self) -> Iterator[Page]:
        if len(self.runs) == 1:
            yield self._run_page(self.runs[0], paths.INDEX)
        else:
            yield Page(paths.INDEX, "Runs", "runs.html.j2", lambda links: contexts.runs(self.runs, self.pairs, links))
        yield Page(
            paths.LEADERBOARD,
            "Leaderboard",
            "leaderboard.html.j2",
            lambda links: contexts.boards(self.leaderboard, links),
            self._above(),
        )
        for run in self.runs:
            yield from self._pages_of(run)

    def _above(self, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        return (("Run" if len(self.runs) == 1 else "Runs", paths.INDEX), *more)

    def _run_page(self, run: ShownRun, path: str) -> Page:
        return Page(
            path,
            f"Run {run.id}",
            "run.html.j2",
            lambda links: contexts.run(run, links),
            () if len(self.runs) == 1 else self._above(),
            run,
        )

    def _pages_of(self, run: ShownRun) -> Iterator[Page]:
        yield self._run_page(run, paths.run_page(run.id))
        above = self._above() if len(self.runs) == 1 else self._above((run.id, paths.run_page(run.id)))
        for task in run.tasks:
            path = paths.task_page(run.id, task)
            yield Page(path, task, "task.html.j2", _of_task(run, task), above, run)
            attempts = run.by_task[task]
            for index, attempt in enumerate(attempts):
                around = (attempts[index - 1] if index else None, attempts[index + 1 : index + 2])
                yield Page(
                    paths.attempt_page(run.id, task, attempt.number),
                    f"Attempt {attempt.number:02d} at {task}",
                    "attempt.html.j2",
                    _of_attempt(run, attempt, around[0], around[1][0] if around[1] else None),
                    (*above, (task, path)),
                    run,
                )

    def _all_data(self) -> Iterator[tuple[str, Callable[[], str]]]:
        for run in self.runs:
            yield paths.data_file(run.id, "json"), lambda run=run: run.view.model_dump_json(indent=1) + "\n"
            yield paths.data_file(run.id, "csv"), lambda run=run: contexts.tasks_table(run.view).to_csv()
        yield paths.data_file("leaderboard", "json"), lambda: self.leaderboard.model_dump_json(indent=1) + "\n"
        yield paths.data_file("leaderboard", "csv"), lambda: leaderboard_csv(self.leaderboard)


def _of_task(run: ShownRun, task: str) -> Callable[[Links], Context]:
    return lambda links: contexts.task(run, task, links)


def _of_attempt(
    run: ShownRun, attempt: Attempt, before: Attempt | None, after: Attempt | None
) -> Callable[[Links], Context]:
    return lambda links: contexts.attempt(run, attempt, before, after, links)
