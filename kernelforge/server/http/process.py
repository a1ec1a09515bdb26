"""The server's process: sockets, uvicorn, and draining on a signal."""

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
from kernelforge.server.http.limits import Limits, LongPollLimiter, OpenRequests, bounded_protocol
from kernelforge.server.http.logs import log
from kernelforge.server.jobs.service import JobService

CLOSE_S = 5
"""Longest time to write the last answers once no job runs; requests that still run are refused then."""
_ANSWER_S = 1
"""Longest time to write those refusals."""
T = TypeVar("T")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free port.

    Raises:
        UsageError: the address cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted sockets inherit this. asyncio sets it only if the protocol number is known; without it an answer
        # written in two pieces waits 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, UnicodeError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from error


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop if it is installed, which serves twice as many requests per second."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(main)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches a socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def address(listener: socket.socket) -> str:
    """URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and with a callback when connections are accepted."""

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
    """Signal handlers: the first signal drains, the second ends at once. A context manager for the main thread."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
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
        """Run ``work``, and cancel it if a signal comes first. Returns whether it finished.

        Args:
            at_once: cancel only at the second signal.
        """
        running = asyncio.create_task(work)
        signalled = asyncio.create_task((self.at_once if at_once else self.requested).wait())
        await asyncio.wait((running, signalled), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=CLOSE_S)
            return False
        signalled.cancel()
        await running
        return True

    def _on_signal(self, number: int) -> None:
        self.signal = number
        (self.at_once if self.requested.is_set() else self.requested).set()


DRAIN_S = 60.0


_OTHER_FILES = 1_000
"""Upper bound of open files other than connections."""


def allow_connections(limits: Limits) -> Limits:
    """Raise the soft limit of open files for the connections; the default of many systems is 1024.

    Returns:
        The limits, with no more connections than there can be open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return limits
    return replace(limits, connections=max(soft - _OTHER_FILES, soft // 2))


@dataclass(frozen=True)
class ServerExit:
    """Signals that ended the server."""

    signal: int
    """The first signal."""
    at_once: bool
    """Whether a second signal came, so that running jobs were not awaited."""


async def serve(
    app: FastAPI,
    service: JobService,
    listener: socket.socket,
    stop: Stop,
    *,
    limits: Limits,
    ready: Callable[[], None],
    drain_s: float = DRAIN_S,
) -> ServerExit:
    """Serve until a signal, then accept no more jobs, wait for running ones, and end.

    Polls are answered while it drains. Open requests end when no job runs, or when time is up.

    Args:
        ready: called when connections are accepted.
        drain_s: longest wait for running jobs.
    """
    server = Server(_config(app, limits), ready)
    serving = asyncio.create_task(server.serve([listener]))
    signalled = asyncio.create_task(stop.requested.wait())
    at_once = asyncio.create_task(stop.at_once.wait())
    await asyncio.wait((serving, signalled), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        log.info("draining", signal=stop.signal, limit_s=drain_s)
        drain = asyncio.create_task(service.drain())
        await asyncio.wait((drain, at_once, serving), timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            log.warning("not_drained", running=service.status().running)
            drain.cancel()
        long_polls: LongPollLimiter = app.state.long_polls
        long_polls.close()
        server.should_exit = True
        await asyncio.wait((serving, at_once), timeout=CLOSE_S, return_when=asyncio.FIRST_COMPLETED)
        requests: OpenRequests = app.state.requests
        await requests.close(_ANSWER_S)
        server.force_exit = True
    for task in (signalled, at_once):
        task.cancel()
    await serving
    return ServerExit(stop.signal, stop.at_once.is_set())


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
        timeout_graceful_shutdown=CLOSE_S + 2 * _ANSWER_S,
    )
