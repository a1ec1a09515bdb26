"""Access control of the viewer: a token in the address, and the expected host name.

Cookies of one host are shared by all its ports, so that the cookie's name has the port in it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""Of every answer, refusals too."""
_TOKEN_BYTES = 32
_LOST = "open the address that 'kernelforge view' printed, with its token; an address of an earlier start has gone\n"


def new_token() -> str:
    """What opens a viewer; new at every start."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class ViewerAuth:
    """Lets in who may look, before anything else sees the request. Pure ASGI.

    A request must name this machine (a page of another site whose name was pointed here does not), must bring the token
    or the cookie that it was exchanged for, and must ask and not tell.

    Args:
        port: where the viewer listens.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._cookie = f"kernelforge-view-{port}"
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == 80:
            self._hosts |= {"127.0.0.1", "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> Response | None:
        """What to answer instead of the application; None where it may answer."""
        headers = list(scope["headers"])
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _said("this viewer answers to 127.0.0.1 and localhost alone\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        # Of cookies one is enough: servers on other ports may have set some of any name beside it.
        may = all(map(self._is_token, tokens)) if tokens else any(map(self._is_token, self._cookies(headers)))
        if not may:
            return _said(_LOST, 401)
        if scope["method"] not in ("GET", "HEAD"):
            return _said("a viewer shows, and takes nothing\n", 405, {"Allow": "GET, HEAD"})
        return self._exchange(scope, [pair for pair in query if pair[0] != "token"]) if tokens else None

    def _exchange(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """The cookie for the token, and the same address without it: it stays in no history and no bookmark."""
        # One slash: an address that begins with two names another host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return answer

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode("utf-8", "surrogatepass"), self._token.encode())

    def _cookies(self, headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
        """Values of our cookie. Read leniently: what others left beside it must lock nobody out."""
        pairs = [pair for name, value in headers if name == b"cookie" for pair in value.decode("latin-1").split(";")]
        named = [pair.strip().partition("=") for pair in pairs]
        return [value for name, _, value in named if name == self._cookie]


def _said(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text, status, headers)
