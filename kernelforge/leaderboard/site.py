"""Boards as web pages: the page that a report of runs has too, alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from kernelforge.report.html import paths
from kernelforge.report.html.contexts.across import boards_context
from kernelforge.report.html.site import Page, Site
from kernelforge.report.views.board import Leaderboard


class BoardSite(Site):
    """The boards of submitted entries, without pages of their runs: an entry holds the best kernels alone."""

    def __init__(self, view: Leaderboard) -> None:
        self._view = view
        super().__init__(())

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """What is shown."""
        return self._view

    def _all_pages(self) -> Iterator[Page]:
        board = next(page for page in super()._all_pages() if page.path == paths.LEADERBOARD)
        for path in (paths.INDEX, paths.LEADERBOARD):  # a host shows the first, links name the second
            yield Page(path, board.title, board.template, self._context, data=board.data)

    def _context(self, links: paths.Links) -> dict[str, object]:
        return dict(boards_context(self._view, {}, links))
