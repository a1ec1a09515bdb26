"""``kernelforge report``: runs as web pages."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.output import DEFAULT_RESULTS, ResultsOption, open_store
from kernelforge.errors import UsageError

if TYPE_CHECKING:
    from kernelforge.report import RunRecords
    from kernelforge.store import Store


def report(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Ids of runs, unique beginnings of them, or 'latest', which is it if left out."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run of the results folder.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FOLDER|FILE.html", help="Where it goes; 'report' in the results folder if left out."
        ),
    ] = None,
    one_file: Annotated[bool, typer.Option("--one-file", help="One HTML file instead of a folder.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Write runs as web pages: a folder, or one file, that needs no network and no server."""
    if every and run:
        raise UsageError("--all takes every run; leave out the names of runs, or leave out --all")
    one_file = one_file or (output is not None and output.suffix == ".html")
    target = output or results / ("report.html" if one_file else "report")
    from kernelforge.report import RunRecords
    from kernelforge.report.formatting import byte_count, one_line
    from kernelforge.report.html.site import Site
    from kernelforge.report.html.writer import write_file, write_folder

    with open_store(results, read_only=True) as store:
        chosen = store.runs() if every else [store.run(which) for which in run or ("latest",)]
        chosen = list({one.id: one for one in chosen}.values())
        if not chosen:
            raise UsageError(f"there is no run in {results}: start one with 'kernelforge run'")
        with _kept_from_the_collector() as loaded:
            site = Site([RunRecords.load(store, one, texts=False) for one in chosen], full=_Reader(results))
            loaded()
            if one_file:
                size, index = write_file(site, target), target
            else:
                processes = len(os.sched_getaffinity(0))
                size, index = write_folder(site, target, processes=processes), target / "index.html"
    pages = len(site.pages())
    typer.echo(f"{pages} {'page' if pages == 1 else 'pages'}, {byte_count(size)}: {one_line(str(index))}")
    url = index.resolve().as_uri()
    typer.echo(url)
    if show:
        _open(url)


@contextlib.contextmanager
def _kept_from_the_collector() -> Iterator[Callable[[], None]]:
    """No search for cycles while records are loaded, nor, once the function that it gives was called, ever among them:
    they hold none, there are millions of them, and each search would go through all, in every process that writes."""
    others = gc.get_freeze_count()
    gc.disable()

    def loaded() -> None:
        gc.freeze()
        gc.enable()

    try:
        yield loaded
    finally:
        if not others:  # what somebody else kept from it stays so
            gc.unfreeze()
        gc.enable()


class _Reader:
    """Reads the records of one task in full, by a connection of the process that asks."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._stores: dict[int, Store] = {}

    def __call__(self, records: RunRecords, task: str) -> RunRecords:
        process = os.getpid()
        if process not in self._stores:
            self._stores[process] = open_store(self._results, read_only=True)
        return records.full(self._stores[process], task)


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        typer.echo("no browser could be started: open the address above in one", err=True)
