"""``kernelforge view``: pages of runs in a browser, updated during a run."""

from __future__ import annotations

import os
from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from kernelforge.cli.support.output import DEFAULT_RESULTS, ResultsOption, open_store
from kernelforge.errors import UsageError
from kernelforge.utils.shell_hints import RESULTS_VARIABLE, install_hint

if TYPE_CHECKING:
    import socket

    from kernelforge.store import Store

DEFAULT_PORT = 8766
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TERM", "NO_COLOR", "KERNELFORGE_DEBUG", RESULTS_VARIABLE)
"""Variables of the environment that the viewer may have. Keys of providers are none of them."""


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
    """Serve the pages of runs to a browser of this machine, live while they go on, until Ctrl-C.

    Reads the results folder and writes nothing. Whoever has the printed address can look; nobody else can.
    """
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the viewer needs packages that are not installed ({', '.join(missing)}): {install_hint('server')}"
        )
    with open_store(results, read_only=True) as store:
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
            run_loop(_serve(store, run, listener))


def _forget_keys() -> None:
    """Have nothing in this process that a page could give away."""
    for name in set(os.environ) - set(_KEPT):
        del os.environ[name]


async def _serve(store: Store, which: str | None, listener: socket.socket) -> None:
    from kernelforge.server.http.process import Stop, address
    from kernelforge.viewer.app import Viewer, serve
    from kernelforge.viewer.auth import new_token
    from kernelforge.viewer.run_cache import RunCache

    token, port = new_token(), listener.getsockname()[1]
    viewer = Viewer(RunCache(store, which), token=token, port=port)

    def ready() -> None:
        typer.echo(f"kernelforge: open {address(listener)}/?token={token}")
        typer.echo("It is for your browser alone. Ctrl-C ends it.", err=True)

    with Stop() as stop:
        await serve(viewer, listener, stop, ready=ready)
