"""A process that listens and serves until a signal, whatever it serves."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from kernelforge.errors import UsageError

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
