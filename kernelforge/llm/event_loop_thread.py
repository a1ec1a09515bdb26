"""An event loop in a thread, so that a caller waiting for the network can be interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from kernelforge.errors import BudgetExhausted
from kernelforge.llm.retrying import LOOK_S

Ending = Callable[[], Coroutine[Any, Any, None]]
"""Something to await before the thread ends."""

_T = TypeVar("_T")


class BackgroundLoop:
    """Runs coroutines for callers in any thread. Its thread starts with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Coroutine[Any, Any, _T], stopped: Callable[[], bool], what: str) -> _T:
        """Wait for ``work``; give it up, cancelled, as soon as ``stopped`` says so.

        Raises:
            BudgetExhausted: stopped, or the loop was closed; ``what`` says in words what was given up.
        """
        future = None if stopped() else self._submit(work)
        if future is None:
            work.close()
            raise BudgetExhausted(f"stopped before {what}")
        try:
            while not wait([future], LOOK_S).done:
                if stopped():
                    raise BudgetExhausted(f"stopped while {what}")
            return future.result()
        except CancelledError:
            raise BudgetExhausted(f"stopped while {what}") from None
        finally:
            future.cancel()

    def close(self, *, first: Ending | None = None, last: Ending) -> None:
        """Await ``first``, cancel whatever runs, await ``last``, and end the thread. A second call does nothing."""
        with self._lock:
            self._closed = True
            loop, self._loop = self._loop, None
            if loop is None or self._thread is None:
                return
            ending = asyncio.run_coroutine_threadsafe(_wind_up(first, last), loop)
        ending.result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def _submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T] | None:
        """Start ``work``; None once the loop is closed."""
        with self._lock:
            if self._closed:
                return None
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="llm", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)


async def _wind_up(first: Ending | None, last: Ending) -> None:
    if first is not None:
        await first()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()
    await asyncio.get_running_loop().shutdown_asyncgens()
