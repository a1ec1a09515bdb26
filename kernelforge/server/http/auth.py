"""Authentication and scopes.

A server on a loopback address without tokens is open to whoever can reach that address, and to nobody's browser:
requests must name a loopback host (against DNS rebinding) and must not come from another site's page. As soon as there
is a token, and always on any other address, every request needs a valid one, whatever its path.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64decode
from functools import lru_cache
from typing import Annotated, Literal, Protocol, get_args

from fastapi import Depends
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.errors import problem_response

TokenScope = Literal["submit", "read", "admin"]
SCOPES: tuple[TokenScope, ...] = get_args(TokenScope)
_HOST = re.compile(rb"(?:(?P<name>localhost)|\[(?P<v6>[0-9a-f:.]+)\]|(?P<v4>[0-9.]+))(?::[0-9]{1,5})?", re.I)
"""A Host header that names this machine (RFC 9110, 7.2), and nothing that libraries read each in their own way."""
LOCAL = Caller("local")
"""Whoever asks an open server."""


class TokenBook(Protocol):
    """What a server knows of tokens. Both are asked for every request, and answer from memory."""

    def any(self) -> bool:
        """Whether there is or ever was one: a server that had tokens does not become open when they are revoked."""
        ...

    def caller(self, token: bytes) -> Caller | None:
        """Whose a token is; None for one that is unknown or revoked."""
        ...


class AuthMiddleware:
    """Lets in who may come in, before anything else looks at the request. Pure ASGI.

    Args:
        tokens: None on a server that can have none.
        public: whether the address is more than a loopback one; tokens are then always needed.
    """

    def __init__(self, app: ASGIApp, tokens: TokenBook | None, public: bool) -> None:
        self._app = app
        self._tokens = tokens
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            if not scope.get("raw_path", b"/").startswith((b"/", b"*")):
                # Of a whole URL as the target the host counts, whatever the header says.
                raise RequestRejected(400, "bad_request", "ask for a path of this server, not for a whole URL")
            if sum(name == b"host" for name, _ in scope["headers"]) > 1:
                raise RequestRejected(400, "bad_request", "send one Host header")
            scope.setdefault("state", {})["caller"] = self._admit(dict(scope["headers"]))
        except RequestRejected as refusal:
            await _refuse(refusal, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _admit(self, headers: dict[bytes, bytes]) -> Caller:
        if self._public or (self._tokens is not None and self._tokens.any()):
            token = _token(headers.get(b"authorization", b""))
            caller = self._tokens.caller(token) if self._tokens and token else None
            if caller is None:
                message = "send a valid token: 'Authorization: Bearer TOKEN', or KERNELFORGE_TOKEN of our clients"
                raise RequestRejected(401, "unauthorised", message)
            return caller
        host = headers.get(b"host", b"")
        if not _is_loopback(host):
            raise RequestRejected(403, "forbidden_host", "this server answers only to loopback names such as 127.0.0.1")
        origin = headers.get(b"origin")
        if origin is not None and origin.lower().partition(b"://")[2] != host.lower():
            raise RequestRejected(403, "forbidden_origin", "this server takes no requests from other sites' pages")
        return LOCAL


def _token(header: bytes) -> bytes | None:
    """The token in an Authorization header. Basic is for clients that can only be given a URL, such as
    ``http://any:TOKEN@host``: the password is the token."""
    kind, _, value = header.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    if kind.lower() == b"basic":
        try:
            return b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return None
    return None


@lru_cache(maxsize=256)
def _is_loopback(host: bytes) -> bool:
    """Whether a Host header names this machine by a name that nobody else can point elsewhere."""
    match = _HOST.fullmatch(host)
    if match is None or match["name"]:
        return match is not None
    try:
        return ipaddress.ip_address((match["v6"] or match["v4"]).decode()).is_loopback
    except ValueError:
        return False


async def _refuse(refusal: RequestRejected, scope: Scope, receive: Receive, send: Send) -> None:
    # The body was not read. A connection that goes on sending one would keep the server busy for nothing.
    response = problem_response(refusal, scope, {"Connection": "close"} if _has_body(scope) else None)
    if scope["type"] != "websocket":
        await response(scope, receive, send)
        return
    await receive()  # the handshake
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return

    async def send_denial(message: Message) -> None:
        await send({**message, "type": "websocket." + message["type"]})

    await response({**scope, "type": "http", "method": "GET"}, receive, send_denial)


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") and value != b"0" for name, value in scope["headers"])


class RequireScope(SecurityBase):
    """A dependency that gives the caller, if its token has a scope.

    Args:
        scope: None: any valid token will do.
    """

    def __init__(self, scope: TokenScope | None) -> None:
        self.scope = scope
        self.model = HTTPBearer(description="A token of `kernelforge token create`; an open server needs none.")
        self.scheme_name = "token"

    async def __call__(self, connection: HTTPConnection) -> Caller:
        caller: Caller = connection.scope["state"]["caller"]
        if self.scope is not None and self.scope not in caller.scopes:
            raise RequestRejected(403, "forbidden", f"token {caller.name!r} lacks the scope {self.scope!r}")
        return caller


Submitter = Annotated[Caller, Depends(RequireScope("submit"))]
"""A parameter of routes that submit or cancel."""
Reader = Annotated[Caller, Depends(RequireScope("read"))]
"""A parameter of routes that tell of jobs, runs and tasks."""
Admin = Annotated[Caller, Depends(RequireScope("admin"))]
"""A parameter of routes that change how the server treats others."""
Anyone = Annotated[Caller, Depends(RequireScope(None))]
"""A parameter of routes for whoever has a token at all."""
