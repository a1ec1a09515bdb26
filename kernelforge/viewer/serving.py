"""The viewer as a process: one loopback address, until a signal."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from kernelforge.server.http.listening import CLOSE_S, Server, Stop
from kernelforge.viewer.app import Viewer
from kernelforge.viewer.news import MOST_STREAMS

HOST = "127.0.0.1"
_CONNECTIONS = MOST_STREAMS + 64


async def serve(viewer: Viewer, listener: socket.socket, stop: Stop, *, ready: Callable[[], None]) -> None:
    """Serve until a signal; streams end then, and answers that are being written have a few seconds.

    Args:
        ready: called when connections are accepted.
    """
    server = Server(_config(viewer), ready)
    serving = asyncio.create_task(server.serve([listener]))
    asked = asyncio.create_task(stop.asked.wait())
    await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
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
