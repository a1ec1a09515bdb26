"""A call that another thread can cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelforge.errors import EvaluationCancelled

ORACLE_PATIENCE_S = 0.5
"""How long an interrupted call may wait for its oracle before the oracle is ended too, which is slow to replace."""

_REPEAT_S = 0.05


class CancellableCall:
    """The call that a worker is executing.

    Args:
        end: ends the child that the call waits for; with True, its oracle too. Called repeatedly from another thread
            until the call has ended, because the call may have started to wait for another child in between.
    """

    def __init__(self, end: Callable[[bool], None]) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._number = 0
        self._busy = self._stopped = False

    def stopped(self) -> bool:
        """Whether the call in progress should end."""
        return self._stopped

    @contextmanager
    def call(self) -> Iterator[None]:
        """Context of one call.

        Raises:
            EvaluationCancelled: another thread cancelled the call; its result, or its error, is discarded.
        """
        with self._lock:
            self._number += 1
            self._busy, self._stopped = True, False
        try:
            yield
        finally:
            with self._lock:
                self._busy = False
                stopped = self._stopped
            if stopped:
                raise EvaluationCancelled("the call was interrupted")

    def interrupt(self) -> bool:
        """End the call in progress, which then raises :class:`EvaluationCancelled`; False if there is none."""
        with self._lock:
            if not self._busy:
                return False
            if not self._stopped:
                self._stopped = True
                threading.Thread(target=self._end_calls, args=(self._number,), name="interrupt", daemon=True).start()
            return True

    def _end_calls(self, number: int) -> None:
        started = time.monotonic()
        while True:
            with self._lock:
                if not self._busy or self._number != number:
                    return
                self._end(time.monotonic() - started > ORACLE_PATIENCE_S)
            time.sleep(_REPEAT_S)
