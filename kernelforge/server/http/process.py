"""The server's process: sockets, uvicorn, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI
from uvicorn.loops.auto import auto_loop_factory

from kernelforge.errors import UsageError
from kernelforge.server.http.limits import Limits, bounded_protocol
from kernelforge.server.http.logs import log
from kernelforge.server.http.long_poll import LongPollLimiter
from kernelforge.server.jobs.service import JobService

CLOSE_S = 5
"""How long answers may take to be written once nothing runs any more."""
T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 for one that is free.

    Raises:
        UsageError: the address cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted sockets inherit it. asyncio would set it itself only where the protocol's number is known, and an
        # answer written in two pieces would wait 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from error


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where it is installed: it serves twice as many requests a second."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(main)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches a socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def address(listener: socket.socket) -> str:
    """Where a socket is reached, as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Leaves signals to us, and tells when connections are accepted."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class Stop:
    """What signals ask for: the first to drain, the second to end at once. Use as a context manager in the main
    thread, around all that a signal should end in good order."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.at_once = asyncio.Event()
        self.signal = 0

    def __enter__(self) -> Stop:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        return self

    def __exit__(self, *exception: object) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def unless(self, work: Coroutine[Any, Any, None], *, at_once: bool = False) -> bool:
        """Do something, unless a signal comes first: it is cancelled then. Whether it was done.

        Args:
            at_once: let it go on after the first signal.
        """
        doing = asyncio.create_task(work)
        asked = asyncio.create_task((self.at_once if at_once else self.asked).wait())
        await asyncio.wait((doing, asked), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait((doing,), timeout=CLOSE_S)
            return False
        asked.cancel()
        await doing
        return True

    def _on_signal(self, number: int) -> None:
        self.signal = number
        (self.at_once if self.asked.is_set() else self.asked).set()


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
    service: JobService,
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
        drain = asyncio.create_task(service.drain())
        await asyncio.wait((drain, at_once, serving), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            log.warning("not_drained", running=service.status().running)
            drain.cancel()
        held: LongPollLimiter = app.state.held
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
