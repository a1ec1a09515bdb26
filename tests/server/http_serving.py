"""A reward server over a job service in memory, inside the test's own event loop or without any connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from kernelforge.server.http.app import create_app
from kernelforge.server.http.limits import Limits
from kernelforge.server.http.process import Stop, address, listen, serve
from tests.support.minimal_service import MinimalService

JOB = {"task": "core/swish", "completion": "a reply"}
SLOW_JOB = {"task": "core/swish", "completion": "slow"}
WAIT_S = 60.0
"""For what must happen; nothing is timed by it."""


def client_of(
    service: MinimalService, base_url: str = "http://127.0.0.1", headers: dict[str, str] | None = None, **options: Any
) -> httpx2.AsyncClient:
    """A client of an application without any connection, so that it need not be closed."""
    transport = httpx2.ASGITransport(create_app(service, **options), raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url=base_url, headers=headers, timeout=WAIT_S)


@asynccontextmanager
async def served(
    service: MinimalService, limits: Limits | None = None, **options: Any
) -> AsyncIterator[tuple[str, int]]:
    """Host and port of a server that accepts connections."""
    limits = limits or Limits()
    listener, stop, accepting = listen("127.0.0.1", 0), Stop(), asyncio.Event()
    app = create_app(service, limits=limits, **options)
    serving = asyncio.create_task(serve(app, service, listener, stop, limits=limits, ready=accepting.set))
    try:
        await asyncio.wait_for(accepting.wait(), WAIT_S)
        host, _, port = address(listener).removeprefix("http://").partition(":")
        yield host, int(port)
    finally:
        stop.requested.set()
        await asyncio.wait_for(serving, WAIT_S)
