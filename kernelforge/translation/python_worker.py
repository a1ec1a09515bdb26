"""The confined child of a Python candidate: runs its file, and calls its function on NumPy arrays.

It holds no reference, no expected outputs and no seed. From the first line of the candidate on it is presumed to be the
candidate's: what it answers is bytes to be compared. Requests and replies are those of
:mod:`kernelforge.translation.worker`.
"""

from __future__ import annotations

import linecache
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numba
import numpy as np

from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.translation.replies import failure, unsupported

FILE: Final = "candidate.py"
_DTYPES: Final = {"float": np.float32, "double": np.float64, "int": np.int32}
_MOST_TEXT = 2000

_Reply = tuple[dict[str, Any], Sequence[Blob]]


def warm_up(options: Mapping[str, Any]) -> None:
    """Import what candidates import, once for all children; start no thread."""
    np.zeros(4) @ np.zeros(4)
    numba.njit(lambda: 0)


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    server = _Server()
    for frame in channel.requests():
        data, blobs = server.answer(frame)
        channel.send(data, blobs)


class _Server:
    """One candidate."""

    def __init__(self) -> None:
        self._module = types.ModuleType("candidate")
        self._name = ""

    def answer(self, frame: Frame) -> _Reply:
        request = frame.data
        kind = "build" if request["op"] == "load" else "crash"
        try:
            match request["op"]:
                case "load":
                    self._load(request["source"], request["name"])
                case "run":
                    return self._run(request, frame.blobs)
            return {"ok": True}, ()
        except ModuleNotFoundError as error:
            return unsupported(f"it imports {error.name}, which is not installed here"), ()
        except MemoryError as error:
            return _raised("memory", error), ()
        except BaseException as error:  # an exit of the candidate is its failure too
            return _raised(kind, error), ()

    def _load(self, source: str, name: str) -> None:
        """Run the candidate's file, which has to be a file: Numba reads the text of functions."""
        Path(FILE).write_text(source)
        linecache.checkcache(FILE)
        self._module.__file__ = FILE
        exec(compile(source, FILE, "exec"), self._module.__dict__)
        self._name = name

    def _run(self, request: Mapping[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Call the function once. Inputs are copies; outputs hold a byte of the parent's choice before."""
        values: list[Any] = []
        outputs: list[np.ndarray[Any, Any]] = []
        contents = iter(blobs)
        for item in request["arguments"]:
            if item["kind"] == "number":
                values.append(item["value"])
                continue
            dtype = np.dtype(_DTYPES[item["type"]])
            if item["kind"] == "input":
                values.append(np.frombuffer(bytes(next(contents)), dtype).copy())
                continue
            filled = bytes([int(request["poison"])]) * int(item["bytes"])
            outputs.append(np.frombuffer(filled, dtype).copy())
            values.append(outputs[-1])
        self._module.__dict__[self._name](*values)
        return {"ok": True}, [output.tobytes() for output in outputs]


def _raised(kind: str, error: BaseException) -> dict[str, Any]:
    """The reply for an exception, with the last line of the candidate's file on its way."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == FILE]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    return failure(kind, str(error)[:_MOST_TEXT], type=type(error).__name__, line=line)
