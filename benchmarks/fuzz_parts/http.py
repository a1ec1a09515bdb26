"""Raw bytes to a reward server in another process, with a token and without."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

# After the path is set: an engine that judges nothing lives with the tests of the server.
from fuzz_parts.damage import NESTED, of_bytes, of_json, of_text
from kernelforge.server import protocols
from kernelforge.server.base import DATABASE_NAME
from kernelforge.server.http.app import create_app
from kernelforge.server.http.limits import Limits
from kernelforge.server.http.process import (
    Stop,
    listen,
    serve,
)
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.server.sessions import routes as session_routes
from kernelforge.server.sessions.service import Sessions
from kernelforge.tasks.suites import Catalogue
from tests.support.inprocess_engine import InProcessEngine, completion

_ANSWER_S = 8.0
_JOB = {"task": "core/gelu", "completion": completion(), "run_id": "r", "priority": 1, "deadline_s": 5, "tag": "t"}
_BODIES: tuple[object, ...] = (
    _JOB, {"jobs": [_JOB, _JOB]}, {"weight": 2, "min_policy_version": 1}, {"task": "core/gelu", "turns": 2},
    {"ids": ["a"]},
    {"completion": "x", "number": 1}, {"task_id": "core/gelu", "kernel_code": "x", "reference_code": "y"},
    {"action": {"completion": "x"}}, [], {}, "text", 1, None,
)  # fmt: skip
_TEXTS = (
    "\r\n", "\n", "\r", "\r\n\r\n", " ", "\t", "\x00", ":", ";", "%", "%00", "%ff", "..", "//", "?", "#", "&a=1",
    "HTTP/1.1", "HTTP/2.0",
    "Content-Length: 0\r\n", "Content-Length: -1\r\n", "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: evil\r\n", "Expect: 100-continue\r\n", "Upgrade: websocket\r\nConnection: upgrade\r\n",
    "Connection: close\r\n",
    "Idempotency-Key: x\r\n", "Authorization: Bearer \xff\r\n", "X: " + "a" * 70_000 + "\r\n",
    "Content-Encoding: gzip\r\n", "\xe9",
)  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


class Cases:
    """See above."""

    def __init__(self, folder: Path) -> None:
        self._listener = listen("127.0.0.1", 0)
        self._port = int(self._listener.getsockname()[1])
        self._paths: list[tuple[str, str]] = []
        ready, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(folder, ready)), daemon=True)
        self._thread.start()
        if not ready.wait(60):
            raise RuntimeError("the server did not start")

    def close(self) -> None:
        self._end.set()
        self._thread.join(30)

    async def _serve(self, folder: Path, ready: threading.Event) -> None:
        gateway = JobService(InProcessEngine(), Catalogue(["core"], ["gelu"]), folder, JobServiceSettings())
        await gateway.start()
        sessions = Sessions(gateway, folder / DATABASE_NAME)
        limits = Limits(head_s=0.1, body_s=0.1, body_bytes=100_000, batch_bytes=200_000)
        routers = [*protocols.routers(gateway, sessions), session_routes.router(sessions)]
        app = create_app(gateway, limits=limits, routers=routers)
        self._paths = [
            (method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in sorted(methods)
        ]
        stop = Stop()
        serving = asyncio.create_task(
            serve(app, gateway, self._listener, stop, limits=limits, ready=ready.set, drain_s=1.0)
        )
        await asyncio.to_thread(self._end.wait)
        stop.asked.set()
        await serving
        await sessions.close()
        await gateway.close()

    def case(self, rng: random.Random) -> bool:
        sent = self._request(rng)
        with socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_S) as connection:
            answer = b""
            with contextlib.suppress(ConnectionError):
                connection.sendall(sent)
                while piece := connection.recv(65_536):
                    answer += piece
                    if len(answer) > 1 << 20:
                        break
        statuses = [int(status) for status in _STATUS.findall(answer)]
        if bad := [status for status in statuses if status >= 500 and status not in (503, 504)]:
            raise AssertionError(f"{bad} for {sent[:2000]!r}: {answer[:500]!r}")
        if rng.random() < 0.02:
            self._healthy()
        return bool(statuses) and statuses[0] < 400

    def _healthy(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_S) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = connection.recv(65_536)
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise AssertionError(f"the server is not well any more: {answer[:300]!r}")

    def _request(self, rng: random.Random) -> bytes:
        method, path = rng.choice(self._paths)
        path = re.sub(r"\{\w+\}", lambda _: rng.choice(("r", "core/gelu", "s1", "%2e%2e", "x" * 300, "")), path)
        if rng.random() < 0.3:
            path += "?" + rng.choice(
                ("timeout_s=0", "timeout_s=nan", "wait_s=1e999", "limit=-1", "after=x", "ids=" + "a," * 200)
            )
        if rng.random() < 0.1:
            method = rng.choice(("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT", "TRACE", "X"))
        text = json.dumps(rng.choice(_BODIES))
        text = of_json(text, rng) if rng.random() < 0.5 else NESTED if rng.random() < 0.05 else text
        body = text.encode("utf-8", "surrogatepass")[:120_000]
        if rng.random() < 0.2:
            body = of_bytes(body, rng)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        if rng.random() < 0.15:
            head += "Transfer-Encoding: chunked\r\n"
            body = (
                b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:10], body[10:]) if part) + b"0\r\n\r\n"
            )
        else:
            head += f"Content-Length: {len(body) + rng.choice((0, 0, 0, 0, 1, -1, 1000))}\r\n"
        if rng.random() < 0.4:
            head = of_text(head, rng, _TEXTS)
        request = head.encode("latin-1", "replace") + b"\r\n" + body
        return of_bytes(request, rng) if rng.random() < 0.15 else request * rng.choice((1, 1, 1, 2))
