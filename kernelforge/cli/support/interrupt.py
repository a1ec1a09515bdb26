"""Signal handling: in a run, the first Ctrl-C drains, the second aborts, the third exits at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelforge.run import StopSignal

ABORTED = 130
"""Exit code after an abort: 128 + SIGINT."""

_DRAINING = "\nstopping: the attempts in flight are being finished; Ctrl-C again to abort them\n"
_ABORTING = "\naborting: the attempts in flight are dropped; 'kernelforge resume' makes them again\n"


@contextmanager
def stopping(stop: StopSignal) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM stop the run in good order instead of ending the process."""

    received = handled = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received, handled
        received += 1
        if received > handled + 1:
            return  # a signal during the handling of another: the loop below, in the other call, handles it
        while handled < received:
            _escalate(stop)
            handled += 1

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM raises an exception as Ctrl-C does, to cancel pending work. Exit code 143."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _escalate(stop: StopSignal) -> None:
    """Take the next step: drain, abort, exit."""
    if stop.aborting:
        os._exit(ABORTED)
    if stop.draining:
        stop.abort()
        _write_stderr(_ABORTING)
    else:
        stop.drain()
        _write_stderr(_DRAINING)


def _write_stderr(text: str) -> None:
    """Write unbuffered: a signal may come while a buffer is locked."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())
