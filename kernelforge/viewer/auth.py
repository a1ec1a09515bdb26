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
"""Headers of every answer, including refusals."""
_TOKEN_BYTES = 32
_LOST = "open the address that 'kernelforge view' printed, with its token; the address of an earlier start is invalid\n"


def new_token() -> str:
    """A random token; new at every start."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


class ViewerAuth:
    """Pure ASGI middleware that authenticates each request before anything else reads it.

    A request must name this machine (against DNS rebinding), must have the token or the cookie that it was exchanged
    for, and must not change anything.

    Args:
        port: port of the viewer.
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
        """The refusal or redirection of a request; None if the application may answer."""
        headers = list(scope["headers"])
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return _text_response("this viewer answers only to 127.0.0.1 and localhost\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        # One valid cookie is enough: servers on other ports may have set cookies of any name.
        allowed = all(map(self._is_token, tokens)) if tokens else any(map(self._is_token, self._cookies(headers)))
        if not allowed:
            return _text_response(_LOST, 401)
        if scope["method"] not in ("GET", "HEAD"):
            return _text_response("a viewer is read-only\n", 405, {"Allow": "GET, HEAD"})
        return self._exchange(scope, [pair for pair in query if pair[0] != "token"]) if tokens else None

    def _exchange(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Set the cookie and redirect to the URL without the token, which then is in no history and no bookmark."""
        # One slash: a path that begins with two slashes would name another host.
        path = "/" + quote(scope["path"].lstrip("/\\"))
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        answer.set_cookie(self._cookie, self._token, path="/", httponly=True, samesite="strict")
        return answer

    def _is_token(self, value: str) -> bool:
        return secrets.compare_digest(value.encode("utf-8", "surrogatepass"), self._token.encode())

    def _cookies(self, headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
        """Values of the viewer's cookie, parsed leniently: other cookies must not cause a refusal."""
        pairs = [pair for name, value in headers if name == b"cookie" for pair in value.decode("latin-1").split(";")]
        named = [pair.strip().partition("=") for pair in pairs]
        return [value for name, _, value in named if name == self._cookie]


def _text_response(text: str, status: int, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text, status, headers)
