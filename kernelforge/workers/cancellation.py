"""A call that another thread can cancel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kernelforge.errors import EvaluationCancelled

ORACLE_PATIENCE_S = 0.5
"""How long an interrupted call may go on waiting for its oracle, which is dear to replace."""

_AGAIN_S = 0.05


class CancellableCall:
    """The call that a bench is in.

    Args:
        end: ends what the call waits for now; with True, its oracle too. Called from another thread, again and again
            until the call has ended: between two looks it may have begun to wait for something else.
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
        """Around a call.

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
        """End the call in progress, which then raises :class:`EvaluationCancelled`; False where there is none."""
        with self._lock:
            if not self._busy:
                return False
            if not self._stopped:
                self._stopped = True
                threading.Thread(target=self._insist, args=(self._number,), name="interrupt", daemon=True).start()
            return True

    def _insist(self, number: int) -> None:
        started = time.monotonic()
        while True:
            with self._lock:
                if not self._busy or self._number != number:
                    return
                self._end(time.monotonic() - started > ORACLE_PATIENCE_S)
            time.sleep(_AGAIN_S)
