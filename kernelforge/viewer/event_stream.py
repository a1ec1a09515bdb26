"""Server-sent events: the status of runs, and notice of new page content."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from kernelforge.errors import KernelForgeError
from kernelforge.viewer.run_cache import Snapshot

POLL_S = 0.5
BEAT_S = 15.0
"""Interval of keep-alive comments, so that both ends notice a lost connection."""
MOST_STREAMS = 32
"""Browser tabs that may listen at the same time."""
_RECENT_S = 10.0
"""A page may have been rendered just before a change: a listener that connects this soon after is notified."""
RETRY_MS = 2000


class TooManyStreams(Exception):
    """The number of listeners is at its limit."""


class _Subscriber:
    """The latest snapshot of a run, with its listeners."""

    def __init__(self) -> None:
        self.look: Snapshot | None = None
        self.changed = asyncio.Event()
        self.listeners = 0

    def put(self, look: Snapshot) -> None:
        if look != self.look:
            self.look = look
            self.changed.set()
            self.changed = asyncio.Event()


class EventBroadcaster:
    """Polls the run cache while there are listeners, once for all listeners of a run.

    Args:
        look: returns a snapshot of a run; called in a thread.
    """

    def __init__(
        self, look: Callable[[str | None], Snapshot], *, beat_s: float = BEAT_S, most: int = MOST_STREAMS
    ) -> None:
        self._look = look
        self._beat_s = beat_s
        self._most = most
        self._feeds: dict[str | None, _Subscriber] = {}
        self._tasks: dict[str | None, asyncio.Task[None]] = {}
        self._streams = 0
        self._over = asyncio.Event()

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return self._streams

    @property
    def full(self) -> bool:
        """Whether no further listener is accepted."""
        return self._streams >= self._most or self._over.is_set()

    def close(self) -> None:
        """End all streams."""
        self._over.set()
        for task in self._tasks.values():
            task.cancel()

    async def stream(self, which: str | None, last: str | None) -> AsyncIterator[str]:
        """Events for one listener, until it disconnects or the viewer ends.

        Args:
            which: the run; None for the running one, or else the latest.
            last: id of the last event that the listener received before it lost the connection.

        Raises:
            TooManyStreams: before the first event.
        """
        if self.full:
            raise TooManyStreams
        self._streams += 1
        try:
            async with self._following(which) as feed:
                yield f"retry: {RETRY_MS}\n\n"
                seen: Snapshot | None = None
                while not self._over.is_set():
                    change, look = feed.changed, feed.look
                    if look is not None and look != seen:
                        for event in _events(seen, look, last):
                            yield event
                        seen = look
                    elif not await self._changed_in_time(change.wait()):
                        yield ": nothing new\n\n"
        finally:
            self._streams -= 1

    async def _changed_in_time(self, change: Awaitable[bool]) -> bool:
        """Wait for a change or the end of the viewer; False if the keep-alive interval ends first."""
        waiting = [asyncio.ensure_future(change), asyncio.ensure_future(self._over.wait())]
        try:
            done, _ = await asyncio.wait(waiting, timeout=self._beat_s, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for task in waiting:
                task.cancel()

    @asynccontextmanager
    async def _following(self, which: str | None) -> AsyncIterator[_Subscriber]:
        feed = self._feeds.get(which)
        if feed is None:
            feed = self._feeds[which] = _Subscriber()
            self._tasks[which] = asyncio.create_task(self._keep_looking(which, feed))
        feed.listeners += 1
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                del self._feeds[which]
                self._tasks.pop(which).cancel()

    async def _keep_looking(self, which: str | None, feed: _Subscriber) -> None:
        while True:
            # The database is locked or the run is missing for now; its pages show the error.
            with suppress(KernelForgeError):
                feed.put(await asyncio.to_thread(self._look, which))
            await asyncio.sleep(POLL_S)


def _events(seen: Snapshot | None, look: Snapshot, last: str | None) -> list[str]:
    events = []
    if look.progress is not None and (seen is None or look.progress != seen.progress):
        events.append(_event("progress", look.progress))
    received = seen.news if seen is not None else _number(last)
    recent = time.monotonic() - look.changed < _RECENT_S
    if received != look.news if received is not None else recent:
        events.append(_event("changed", json.dumps({"news": look.news}), number=look.news))
    return events


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _event(kind: str, data: str, *, number: int | None = None) -> str:
    """One event; ``data`` is JSON without line breaks.

    Args:
        number: id of the change, which a listener sends when it reconnects. Other events have none, so that a
            connection that breaks between two events loses no change.
    """
    id = "" if number is None else f"id: {number}\n"
    return f"event: {kind}\n{id}data: {data}\n\n"
