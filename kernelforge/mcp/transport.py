"""Transports: stdio, or HTTP on the loopback interface behind a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import anyio
import uvicorn
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from pydantic import AnyHttpUrl

from kernelforge.errors import UsageError
from kernelforge.mcp.server import build_server
from kernelforge.mcp.service import Service

HOST = "127.0.0.1"
PATH = "/mcp"
TOKEN_VARIABLE = "KERNELFORGE_MCP_TOKEN"
MIN_TOKEN_CHARS = 16
_PIECE_BYTES = 1 << 16


class OneToken:
    """Knows one bearer token, and compares without telling by time how much of a guess is right."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        if not secrets.compare_digest(token.encode(errors="replace"), self._token):
            return None
        return AccessToken(token=token, client_id="kernelforge", scopes=[])


def token_from_environment() -> str | None:
    """The token that a user chose.

    Raises:
        UsageError: it is short, or could not stand in a header.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and (len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable()):
        raise UsageError(f"{TOKEN_VARIABLE} needs {MIN_TOKEN_CHARS} characters of printable ASCII or more")
    return token


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def http_server(service: Service, token: str, port: int) -> MCPServer[object]:
    """A server that answers only requests with the token."""
    # The SDK wants an issuer's address beside a verifier; without a resource address it is never told to anyone.
    auth = AuthSettings(issuer_url=AnyHttpUrl(f"http://{HOST}:{port}"), resource_server_url=None)
    return build_server(service, auth=auth, token_verifier=OneToken(token))


def serve_stdio(service: Service) -> None:
    """Serve over stdin and stdout until the client closes them, or SIGTERM or Ctrl-C asks to end."""
    _end_input_on_signal()
    build_server(service).run("stdio")


def serve_http(service: Service, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve over HTTP on 127.0.0.1 until Ctrl-C or SIGTERM.

    Args:
        port: 0 for one that is free.
        ready: told the address when connections are accepted.

    Raises:
        UsageError: the port cannot be had.
    """
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another port") from error
    with listener:
        # Accepted connections have it from here; asyncio sets it on none whose socket was not made for TCP by name.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        # On a loopback host the SDK refuses requests whose Host or Origin names another one.
        app = http_server(service, token, port).streamable_http_app(host=HOST, streamable_http_path=PATH)
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
        server = _Server(config, lambda: ready(f"http://{HOST}:{port}{PATH}"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, server.on_signal)
        anyio.run(lambda: server.serve(sockets=[listener]))


class _Server(uvicorn.Server):
    """Tells when connections are accepted, and hears of signals that come before it listens for them itself."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Also called once it has shut down, for it hands signals on; by then nothing is left to interrupt."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def _end_input_on_signal() -> None:
    """Put a pipe before stdin that a signal ends: a thread that waits for a client's next line hears of no signal."""
    wire = os.dup(0)
    received, sent = os.pipe()
    os.dup2(received, 0)
    os.close(received)
    asked, ask = os.pipe()

    def pass_on() -> None:
        with contextlib.suppress(OSError), open(sent, "wb") as out:
            while asked not in select.select([wire, asked], [], [])[0]:
                piece = os.read(wire, _PIECE_BYTES)
                if not piece:
                    return
                out.write(piece)
                out.flush()

    def leave(number: int, frame: FrameType | None) -> None:
        os.write(ask, b"!")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=pass_on, name="stdin", daemon=True).start()
