"""A worker and a driver that do one thing: start CUDA by its library, as every role with a GPU does in the end."""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
from collections.abc import Mapping
from typing import Any, NoReturn

from kernelforge.devices.cuda.worker.driver import DriverError
from kernelforge.errors import ChildDied
from kernelforge.sandbox.channel import Channel


def start() -> str:
    """Result of ``cuInit``, by CUDA's name."""
    library = ctypes.CDLL("libcuda.so.1")
    name = ctypes.c_char_p()
    library.cuGetErrorName(library.cuInit(0), ctypes.byref(name))
    return (name.value or b"").decode()


def moves() -> str:
    """Whether a file can be moved to another folder, as compilers do that fill a cache."""
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "cache", "made")
        for name in ("part", "cache"):
            os.mkdir(os.path.join(folder, name))
        with open(os.path.join(folder, "part", "made"), "w") as file:
            file.write("made")
        try:
            os.replace(os.path.join(folder, "part", "made"), target)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        with open(target) as file:
            return f"{file.read()}, {len(os.listdir(os.path.join(folder, 'part')))} left behind"


def warm_up(options: Mapping[str, Any] | None = None) -> None:
    """Nothing is needed but what is imported above."""


def serve(channel: Channel) -> None:
    while True:
        try:
            channel.receive()
        except ChildDied:
            return
        channel.send({"start": start(), "moves": moves()})


def make(ordinal: int) -> NoReturn:
    """A driver factory for runners, which ends where a machine without a GPU ends."""
    raise DriverError(start(), "starting CUDA")
