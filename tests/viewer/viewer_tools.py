"""A viewer that accepts connections, inside the test's own event loop, over a folder that the test writes to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kernelforge.server.base import DATABASE_NAME as SERVER_DATABASE
from kernelforge.server.http.process import Stop, listen
from kernelforge.store import Store
from kernelforge.viewer.app import HOST, Viewer, serve
from kernelforge.viewer.auth import new_token
from kernelforge.viewer.event_stream import EventBroadcaster
from kernelforge.viewer.run_cache import RunCache
from kernelforge.viewer.training import TrainingPages

WAIT_S = 60.0
"""For what must happen; nothing is timed by it."""


@dataclass(frozen=True)
class Open:
    """A viewer that serves."""

    viewer: Viewer
    url: str
    port: int
    token: str
    client: httpx2.AsyncClient
    """Holds the cookie."""
    stop: Stop


@asynccontextmanager
async def opened(
    results: Path, which: str | None = None, *, store: Store | None = None, **news: Any
) -> AsyncIterator[Open]:
    """A viewer of a results folder.

    Args:
        store: instead of one that is opened for reading.
        news: limits of its :class:`EventBroadcaster`.
    """
    listener, stop, token, accepting = listen(HOST, 0), Stop(), new_token(), asyncio.Event()
    port = listener.getsockname()[1]
    with store or Store.open(results / "kernelforge.db", read_only=True) as opened_store:
        training = TrainingPages(results) if (results / SERVER_DATABASE).exists() else None
        journal = RunCache(opened_store, which, training)
        viewer = Viewer(journal, token=token, port=port, news=EventBroadcaster(journal.look, **news))
        serving = asyncio.create_task(serve(viewer, listener, stop, ready=accepting.set))
        try:
            await asyncio.wait_for(accepting.wait(), WAIT_S)
            url = f"http://{HOST}:{port}"
            async with httpx2.AsyncClient(base_url=url, timeout=WAIT_S) as client:
                assert (await client.get(f"/?token={token}")).status_code == 303
                yield Open(viewer, url, port, token, client, stop)
        finally:
            stop.requested.set()
            await asyncio.wait_for(serving, WAIT_S)
            if training is not None:
                training.close()


@dataclass(frozen=True)
class Told:
    """One server-sent event; ``kind`` is empty for a comment."""

    kind: str
    id: str
    data: Any


@asynccontextmanager
async def listening(
    client: httpx2.AsyncClient, address: str = "/events", last: str | None = None
) -> AsyncIterator[Callable[[str], Awaitable[Told]]]:
    """``await next_one("changed")``: the next event of that kind, those before it skipped."""
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", address, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = _events(response)

        async def next_one(kind: str) -> Told:
            async with asyncio.timeout(WAIT_S):
                async for event in events:
                    if event.kind == kind:
                        return event
            raise AssertionError(f"the stream ended before {kind!r}")

        yield next_one


async def _events(response: httpx2.Response) -> AsyncIterator[Told]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line.startswith(":"):
            yield Told("", "", line)
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            if "event" in fields:
                yield Told(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
            fields = {}


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.02)
