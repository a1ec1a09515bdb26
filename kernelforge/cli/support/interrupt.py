"""Ctrl-C in a run: once drains, twice aborts, three times leaves at once. SIGTERM in all else: as Ctrl-C."""

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

    came = handled = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal came, handled
        came += 1
        if came > handled + 1:
            return  # a signal within the handling of another: its turn comes below, where the other is handled
        while handled < came:
            _act(stop)
            handled += 1

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM ends the process as Ctrl-C does: by an exception, so that what is pending can be
    cancelled on the way out. The exit code is 143."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _act(stop: Stop) -> None:
    """The next step towards the end."""
    if stop.aborting:
        os._exit(ABORTED)
    if stop.draining:
        stop.abort()
        _say(_ABORTING)
    else:
        stop.drain()
        _say(_DRAINING)


def _say(text: str) -> None:
    """Write past every buffer: a signal may come while one of them is locked."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
