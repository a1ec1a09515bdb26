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
    """Verifier of one bearer token, in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def verify_token(self, token: str) -> AccessToken | None:
        if not secrets.compare_digest(token.encode(errors="replace"), self._token):
            return None
        return AccessToken(token=token, client_id="kernelforge", scopes=[])


def token_from_environment() -> str | None:
    """The token in the environment, if any.

    Raises:
        UsageError: it is short, or invalid in a header.
    """
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and (len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable()):
        raise UsageError(f"{TOKEN_VARIABLE} needs {MIN_TOKEN_CHARS} characters of printable ASCII or more")
    return token


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(32)


def http_server(service: Service, token: str, port: int) -> MCPServer[object]:
    """A server that answers only requests with the token."""
    # The SDK requires an issuer address with a verifier; without a resource address it is not published.
    auth = AuthSettings(issuer_url=AnyHttpUrl(f"http://{HOST}:{port}"), resource_server_url=None)
    return build_server(service, auth=auth, token_verifier=OneToken(token))


def serve_stdio(service: Service) -> None:
    """Serve over stdin and stdout until the client closes them, or until SIGTERM or Ctrl-C."""
    _end_input_on_signal()
    build_server(service).run("stdio")


def serve_http(service: Service, port: int, token: str, ready: Callable[[str], None]) -> None:
    """Serve over HTTP on 127.0.0.1 until Ctrl-C or SIGTERM.

    Args:
        port: 0 picks a free port.
        ready: called with the address when connections are accepted.

    Raises:
        UsageError: the port cannot be used.
    """
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another port") from error
    with listener:
        # Accepted sockets inherit this; asyncio sets it only if the protocol number is known.
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
    """uvicorn's server with a callback when connections are accepted, and handlers for early signals."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Also called after the shutdown, because uvicorn raises captured signals again."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def _end_input_on_signal() -> None:
    """Replace stdin by a pipe that ends on a signal, because a thread that reads stdin receives no signal."""
    original_stdin = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    stop_read, stop_write = os.pipe()

    def pass_on() -> None:
        with contextlib.suppress(OSError), open(write_end, "wb") as out:
            while stop_read not in select.select([original_stdin, stop_read], [], [])[0]:
                piece = os.read(original_stdin, _PIECE_BYTES)
                if not piece:
                    return
                out.write(piece)
                out.flush()

    def leave(number: int, frame: FrameType | None) -> None:
        os.write(stop_write, b"!")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    threading.Thread(target=pass_on, name="stdin", daemon=True).start()
