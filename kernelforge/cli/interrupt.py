"""Ctrl-C: once drains, twice aborts, three times leaves at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

ABORTED = 130
"""Exit code after an abort: 128 + SIGINT."""

_DRAINING = "\nstopping: the attempts in flight are being finished; Ctrl-C again to abort them\n"
_ABORTING = "\naborting: the attempts in flight are dropped; 'kernelforge resume' makes them again\n"


class Stop(Protocol):
    """What :class:`kernelforge.run.StopSignal` does."""

    def drain(self) -> None: ...

    def abort(self) -> None: ...

    @property
    def draining(self) -> bool: ...

    @property
    def aborting(self) -> bool: ...


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM stop the run in good order instead of ending the process."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if stop.aborting:
            os._exit(ABORTED)
        if stop.draining:
            _say(_ABORTING)
            stop.abort()
        else:
            _say(_DRAINING)
            stop.drain()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Write past every buffer: a signal may come while one of them is locked."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
