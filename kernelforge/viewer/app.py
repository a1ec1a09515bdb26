"""The viewer: a local web application over a results folder, and its process."""

from __future__ import annotations

import asyncio
import mimetypes
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kernelforge.errors import KernelForgeError, UsageError
from kernelforge.report.formatting import clock
from kernelforge.report.html import paths
from kernelforge.report.html.rendering import assets
from kernelforge.report.html.site import Page
from kernelforge.report.views.progress import (
    BudgetBar,
    ProgressView,
    WorkerStatus,
    format_spent,
    seconds_since,
    visible_bars,
    worker_label,
)
from kernelforge.server.http.process import CLOSE_S, Server, Stop
from kernelforge.viewer.auth import ViewerAuth
from kernelforge.viewer.event_stream import MOST_STREAMS, EventBroadcaster
from kernelforge.viewer.run_cache import LiveProgress, RunCache

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


HOST = "127.0.0.1"
_CONNECTIONS = MOST_STREAMS + 64


async def serve(viewer: Viewer, listener: socket.socket, stop: Stop, *, ready: Callable[[], None]) -> None:
    """Serve until a signal; then streams end, and answers in progress get a few seconds.

    Args:
        ready: called when connections are accepted.
    """
    server = Server(_config(viewer), ready)
    serving = asyncio.create_task(server.serve([listener]))
    signalled = asyncio.create_task(stop.requested.wait())
    await asyncio.wait((serving, signalled), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    viewer.news.close()
    server.should_exit = True
    await serving


def _config(viewer: Viewer) -> uvicorn.Config:
    return uvicorn.Config(
        viewer.app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # the token is in the first address
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=CLOSE_S,
    )


STATIC = Path(__file__).parent / "static"
_EVENTS = "text/event-stream"
_TYPES = {".html": "text/html", ".json": "application/json", ".csv": "text/csv"}


class Viewer:
    """The viewer's routes and their shared state.

    Args:
        token: required by every request.
        port: port of the viewer.
        news: a broadcaster with other limits than the default ones.
    """

    def __init__(self, journal: RunCache, *, token: str, port: int, news: EventBroadcaster | None = None) -> None:
        self.journal = journal
        self.news = news or EventBroadcaster(journal.look)
        self._assets = {**assets(), **{path.name: path for path in STATIC.iterdir() if path.is_file()}}
        routes = [
            Route("/assets/{name}", self._asset),
            Route("/events", self._events),
            Route("/live", self._live),
            Route(f"/{paths.LIVE}", self._live),
            Route("/{path:path}", self._page),
        ]
        handlers = {KernelForgeError: _failed, HTTPException: _refused}
        self.app = ViewerAuth(Starlette(routes=routes, exception_handlers=handlers), token, port)

    async def _page(self, request: Request) -> Response:
        path = request.path_params["path"] or await asyncio.to_thread(self.journal.front)
        text = await asyncio.to_thread(self.journal.render, path)
        if text is None:
            raise HTTPException(404, "there is no such page here")
        return Response(text, media_type=_TYPES[Path(path).suffix])

    async def _live(self, request: Request) -> Response:
        text = await asyncio.to_thread(self._live_text, request.query_params.get("run"))
        return Response(text, media_type="text/html")

    def _live_text(self, which: str | None) -> str:
        site = self.journal.site()  # its news number goes into the page; the progress may be newer, never older
        live = self.journal.progress(which)
        context = live_context(live, selected=which is not None)
        return site.page(Page(paths.LIVE, "Live", "live.html.j2", lambda links: context))

    async def _asset(self, request: Request) -> Response:
        path = self._assets.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404, "there is no such file here")
        return FileResponse(path, media_type=mimetypes.guess_type(path.name)[0] or "application/octet-stream")

    async def _events(self, request: Request) -> Response:
        which = request.query_params.get("run")
        await asyncio.to_thread(self.journal.look, which)  # an unknown run is refused before a stream begins
        if self.news.full:
            raise HTTPException(503, "too many pages listen already", {"Retry-After": "5"})
        if request.method == "HEAD":
            return Response(media_type=_EVENTS)
        last = request.headers.get("last-event-id") or request.query_params.get("last")
        return _Stream(self.news.stream(which, last), media_type=_EVENTS)


class _Stream(StreamingResponse):
    """Ends what makes its events as soon as the client has left, and not when that is collected as garbage."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(cast("AsyncGenerator[str]", self.body_iterator)):
            await super().__call__(scope, receive, send)


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 404 if isinstance(error, UsageError) else 503)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
