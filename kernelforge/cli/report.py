"""``kernelforge report`` and ``kernelforge view``: runs as web pages, written or served during a run."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.options import DEFAULT_RESULTS, ResultsOption, open_store
from kernelforge.errors import UsageError
from kernelforge.utils.machine import usable_cpus
from kernelforge.utils.shell_hints import RESULTS_VARIABLE, install_hint

if TYPE_CHECKING:
    import socket

    from kernelforge.report import RunRecords
    from kernelforge.store import Store
    from kernelforge.viewer.training import TrainingPages


def report(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs, unique beginnings of them, or 'latest' (if left out)."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every run of the results folder.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FOLDER|FILE.html", help="Target; 'report' in the results folder if left out."
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
        selected = store.runs() if every else [store.run(which) for which in run or ("latest",)]
        selected = list({item.id: item for item in selected}.values())
        if not selected:
            raise UsageError(f"there is no run in {results}: start one with 'kernelforge run'")
        with _uncollected() as loaded:
            site = Site([RunRecords.load(store, item, texts=False) for item in selected], full=_Reader(results))
            loaded()
            if one_file:
                size, index = write_file(site, target), target
            else:
                processes = usable_cpus()
                size, index = write_folder(site, target, processes=processes), target / "index.html"
    pages = len(site.pages())
    typer.echo(f"{pages} {'page' if pages == 1 else 'pages'}, {byte_count(size)}: {one_line(str(index))}")
    url = index.resolve().as_uri()
    typer.echo(url)
    if show:
        _open(url)


@contextlib.contextmanager
def _uncollected() -> Iterator[Callable[[], None]]:
    """Exclude the records loaded in the block from garbage collection.

    There are millions of them, without reference cycles, and every collection would visit all, in each process that
    writes pages. Yields a function to call once they are loaded.
    """
    others = gc.get_freeze_count()
    gc.disable()

    def loaded() -> None:
        gc.freeze()
        gc.enable()

    try:
        yield loaded
    finally:
        if not others:  # keep objects that other code has frozen
            gc.unfreeze()
        gc.enable()


class _Reader:
    """Loads the complete records of one task, over a connection of the calling process."""

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


DEFAULT_PORT = 8766
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "NO_COLOR", "KERNELFORGE_DEBUG", RESULTS_VARIABLE)
"""Environment variables that the viewer keeps; keys of providers are removed."""


def view(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Only this run: its id, a unique beginning of one, or 'latest'."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = DEFAULT_PORT,
    results: ResultsOption = DEFAULT_RESULTS,
) -> None:
    """Serve the pages of runs to a browser on this machine, updated during a run, until Ctrl-C.

    Runs of a reward server that keeps its jobs in the same folder have pages too: rewards, verdicts, staleness.
    Reads the results folder and writes nothing. Only the printed address gives access.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the viewer needs packages that are not installed ({', '.join(missing)}): {install_hint('server')}"
        )
    with ExitStack() as stack:
        training = _training(stack, results)
        store = _runs(stack, results, training)
        if run is not None or training is None:
            store.run(run or "latest")
        from kernelforge.server.http.process import listen
        from kernelforge.server.http.process import run as run_loop
        from kernelforge.viewer.app import HOST

        try:
            listener = listen(HOST, port)
        except UsageError as error:
            raise UsageError(f"cannot listen on {HOST}:{port}, it is in use: choose another with --port") from error
        _forget_keys()
        with closing(listener):
            run_loop(_serve(store, run, training, listener))


def _training(stack: ExitStack, results: Path) -> TrainingPages | None:
    """Runs of the reward server of a folder; None without one."""
    from kernelforge.server.base import DATABASE_NAME
    from kernelforge.viewer.training import TrainingPages

    if not (results / DATABASE_NAME).is_file():
        return None
    return stack.enter_context(closing(TrainingPages(results)))


def _runs(stack: ExitStack, results: Path, training: TrainingPages | None) -> Store:
    """Runs of a folder; none where it has the jobs of a reward server alone."""
    from kernelforge.store import DATABASE_NAME, Store

    if training is not None and not (results / DATABASE_NAME).exists():
        folder = stack.enter_context(TemporaryDirectory())
        return stack.enter_context(Store.open(Path(folder) / DATABASE_NAME))
    return stack.enter_context(open_store(results, read_only=True))


def _forget_keys() -> None:
    """Remove secrets from the environment, so that no page can show them."""
    for name in set(os.environ) - set(_KEPT):
        del os.environ[name]


async def _serve(store: Store, which: str | None, training: TrainingPages | None, listener: socket.socket) -> None:
    from kernelforge.server.http.process import Stop, address
    from kernelforge.viewer.app import Viewer, serve
    from kernelforge.viewer.auth import new_token
    from kernelforge.viewer.run_cache import RunCache

    token, port = new_token(), listener.getsockname()[1]
    viewer = Viewer(RunCache(store, which, training), token=token, port=port)

    def ready() -> None:
        typer.echo(f"kernelforge: open {address(listener)}/?token={token}")
        typer.echo("The address is for your browser only. Ctrl-C ends it.", err=True)

    with Stop() as stop:
        await serve(viewer, listener, stop, ready=ready)
