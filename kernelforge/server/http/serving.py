"""Serving an application until a signal: one process, one event loop, a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

import uvicorn
from fastapi import FastAPI

from kernelforge.server.base import Core
from kernelforge.server.http.connections import bounded_protocol
from kernelforge.server.http.held import Held
from kernelforge.server.http.limits import Limits
from kernelforge.server.http.listening import CLOSE_S, Server, Stop
from kernelforge.server.http.logs import log

DRAIN_S = 60.0


_OTHER_FILES = 1_000
"""Files that the server opens beside connections, with room to spare."""


def allow_connections(limits: Limits) -> Limits:
    """Raise the soft limit of open files towards what the connections take; many systems begin with 1024.

    Returns:
        The limits, with as many connections as there can be open files for: one more could not even be refused.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    return replace(limits, connections=max(soft - _OTHER_FILES, soft // 2))


@dataclass(frozen=True)
class Ending:
    """How serving ended."""

    signal: int
    """The signal that asked for it."""
    at_once: bool
    """Whether a second one came, so that what ran was not waited for."""


async def serve(
    app: FastAPI,
    core: Core,
    listener: socket.socket,
    stop: Stop,
    *,
    limits: Limits,
    ready: Callable[[], None],
    drain_s: float = DRAIN_S,
) -> Ending:
    """Serve until a signal, then accept no more jobs, wait for what runs, and end.

    Polls are answered while it drains. Held requests end when nothing runs any more, or when time is up.

    Args:
        ready: called when connections are accepted.
        drain_s: how long to wait for what runs.
    """
    server = Server(_config(app, limits), ready)
    serving = asyncio.create_task(server.serve([listener]))
    asked = asyncio.create_task(stop.asked.wait())
    at_once = asyncio.create_task(stop.at_once.wait())
    await asyncio.wait((serving, asked), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        log.info("draining", signal=stop.signal, limit_s=drain_s)
        drain = asyncio.create_task(core.drain())
        await asyncio.wait((drain, at_once, serving), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            log.warning("not_drained", running=core.status().running)
            drain.cancel()
        held: Held = app.state.held
        held.close()
        server.should_exit, server.force_exit = True, stop.at_once.is_set()
        await asyncio.wait((serving, at_once), return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = True
    for task in (asked, at_once):
        task.cancel()
    await serving
    return Ending(stop.signal, stop.at_once.is_set())


def _config(app: FastAPI, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=bounded_protocol(limits),
        ws_max_size=limits.body_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_graceful_shutdown=CLOSE_S,
    )
