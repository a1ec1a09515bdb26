"""HTTP/1.1 with as little of the machine as a load generator may take: it shares two cores with what it measures."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Connections:
    """Keep-alive connections to one server on this machine, as many as are in use at a time, up to ``most``."""

    def __init__(self, port: int, most: int = 256) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._slots = asyncio.Semaphore(most)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        wait_s: float = 90.0,
    ) -> Answer:
        """
        Raises:
            OSError: the server is not there, or went away; TimeoutError is one of them.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        raw = "\r\n".join([*lines, "", ""]).encode() + body
        async with self._slots:
            while self._idle:
                try:
                    return await self._once(*self._idle.pop(), raw, wait_s)
                except ConnectionError:
                    continue  # the server had closed it while it was idle: the request was not read
            return await self._once(*await asyncio.open_connection("127.0.0.1", self._port), raw, wait_s)

    async def _once(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, raw: bytes, wait_s: float
    ) -> Answer:
        try:
            async with asyncio.timeout(wait_s):
                writer.write(raw)
                answer = await _read(reader)
        except BaseException as error:
            writer.close()
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError("the server closed the connection") from error
            raise
        self._idle.append((reader, writer))
        return answer

    async def post(self, path: str, data: Any, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.request("POST", path, json.dumps(data).encode(), headers)

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._idle.clear()


async def _read(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(head[0].split()[1]), headers, body)
