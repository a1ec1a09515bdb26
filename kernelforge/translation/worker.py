"""The confined child of a C candidate: compiles it, and calls its function on arrays between unreadable pages.

It holds no reference, no expected outputs and no seed. From the first call on it is presumed to be the candidate's:
what it answers is bytes to be compared.

A timed call is different: its outputs are memory files of the parent, its inputs come with the request that the parent
times, and its reply holds nothing, so that the parent ends this process and reads what is there.

Requests are frames ``{"op": ...}``; a reply is ``{"ok": true, ...}`` or ``{"ok": false, "failure": {...}}``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.shared_memory import Blob
from kernelforge.translation import kokkos, thrust
from kernelforge.translation.host_runtime import HostRuntime
from kernelforge.translation.kokkos import KokkosRuntime
from kernelforge.translation.offload import RUNTIME_SOURCE, Offload, OffloadRuntime
from kernelforge.translation.pages import PROT_READ, GuardedArray, protect
from kernelforge.translation.replies import failure

_FLAGS: Final = ("-O2", "-fopenmp", "-fPIC", "-shared", "-fno-diagnostics-show-caret")
"""Of every compiler. OpenMP's directives count; arithmetic follows the standards."""
_OFFLOAD_FLAGS: Final[dict[Offload | None, tuple[str, ...]]] = {
    None: (), "openmp": (), "openacc": ("-fno-openmp", "-fopenacc"), "thrust": thrust.FLAGS,
    "kokkos": kokkos.FLAGS,
}  # fmt: skip
"""Further ones by the directives that run in a memory of their own."""
_RUNTIME_FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-fno-builtin", "-c")
_COMPILERS: Final = {
    "c": ("cc", "-std=gnu11"),
    "cpp": ("c++", "-std=gnu++17"),
    "cuda": ("c++", "-std=gnu++17"),
    "fortran": ("gfortran", "-std=gnu"),
}
"""Compiler of each language, and its standard. A CUDA host program is C++ with a runtime."""
_SUFFIXES: Final = {"c": "c", "cpp": "cpp", "cuda": "cpp", "fortran": "f90"}
_FORTRAN_FLAGS: Final = ("-ffree-form", "-ffree-line-length-none", "-fcheck=bounds")
"""Of the Fortran compiler alone. An access outside the bounds of an array ends the process."""

LIBRARY: Final = "./candidate.so"

_THRUST_HEADERS: Final = thrust.header_folder()
"""Of CCCL, found before the jail closes."""
_KOKKOS_HEADERS: Final = kokkos.header_folder()

_MOST_LOG = 8000
_PAGE = mmap.PAGESIZE
_NUMBERS: Final[dict[str, Any]] = {
    "float": ctypes.c_float, "double": ctypes.c_double, "int": ctypes.c_int, "long long": ctypes.c_longlong,
    "unsigned char": ctypes.c_ubyte, "signed char": ctypes.c_byte,
}  # fmt: skip

_Reply = tuple[dict[str, Any], Sequence[Blob]]


def compiler_command(language: str, offload: Offload | None = None) -> tuple[str, ...]:
    """Compiler and flags of a candidate's language, without files and libraries."""
    own = _FORTRAN_FLAGS if language == "fortran" else ()
    return (*_COMPILERS[language], *_FLAGS, *_OFFLOAD_FLAGS[offload], *own)


def warm_up(options: Mapping[str, Any]) -> None:
    """Load the C library's functions that every child uses."""
    protect(mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE), 0, _PAGE, PROT_READ)


def serve(channel: Channel) -> None:
    """Answer requests until the parent closes the channel."""
    server = _Server(channel)
    for frame in channel.requests():
        data, blobs = server.answer(frame)
        channel.send(data, blobs)


class _Failure(Exception):
    """A candidate that cannot be compiled or called; ``kind`` decides the verdict."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Server:
    """One candidate."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._function: Any = None
        self._runtime: HostRuntime | None = None
        self._placed: Sequence[Blob] = ()  # keeps the memory of the outputs mapped
        self._outputs: list[ctypes.c_void_p] = []
        self._offload: OffloadRuntime | None = None
        self._kokkos: KokkosRuntime | None = None

    def answer(self, frame: Frame) -> _Reply:
        request = frame.data
        try:
            match request["op"]:
                case "start":
                    return {"ok": True}, ()
                case "load":
                    language = request["language"]
                    offload: Offload | None = request["offload"]
                    library = _load(request["source"], request["declaration"], request["name"], language, offload)
                    self._function = getattr(library, request["name"])
                    self._function.restype = None
                    self._runtime = HostRuntime(library, self._channel) if language == "cuda" else None
                    if offload == "kokkos":
                        self._kokkos = KokkosRuntime(library, self._channel)
                    elif offload is not None:
                        self._offload = OffloadRuntime(library, self._channel, offload)
                    return {"ok": True}, ()
                case "library":
                    return {"ok": True}, [Path(LIBRARY).read_bytes()]
                case "open":
                    Path(LIBRARY).write_bytes(frame.blobs[0])
                    self._function = getattr(_opened(request["name"]), request["name"])
                    self._function.restype = None
                    return {"ok": True}, ()
                case "place":
                    self._outputs = [ctypes.c_void_p(_address(blob)) for blob in frame.blobs]
                    self._placed = frame.blobs
                    return {"ok": True}, ()
                case "timed":
                    return self._timed(request, frame.blobs)
                case "run":
                    return self._run(request, frame.blobs)
                case unknown:
                    raise _Failure("build", f"the child knows no request {unknown!r}")
        except _Failure as caught:
            return failure(caught.kind, str(caught)), ()

    def _run(self, request: Mapping[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Call the function once; every array stands at one end of its pages, next to one that cannot be read."""
        values, arrays, contents = [], [], iter(blobs)
        for item in request["arguments"]:
            if item["kind"] == "number":
                values.append(_NUMBERS[item["type"]](item["value"]))
                continue
            content = next(contents) if item["kind"] == "input" else None
            array = GuardedArray(int(item["bytes"]), content, int(request["poison"]), at_end=bool(request["at_end"]))
            arrays.append((item["kind"], array))
            values.append(ctypes.c_void_p(array.address))
        if self._runtime is not None:
            self._runtime.renew(int(request["poison"]))
        if self._kokkos is not None:
            self._kokkos.renew(int(request["poison"]))
        if self._offload is not None:
            of_host = [array for _, array in arrays]
            self._offload.renew(of_host, int(request["poison"]), at_end=bool(request["at_end"]))
        self._function(*values)
        return {"ok": True}, [array.content() for kind, array in arrays if kind == "output"]

    def _timed(self, request: Mapping[str, Any], blobs: Sequence[Blob]) -> _Reply:
        """Call the function once on each set of arguments; inputs are where the frame's bytes are."""
        inputs, outputs = iter(blobs), iter(self._outputs)
        for arguments in request["calls"]:
            values: list[Any] = []
            for item in arguments:
                if item["kind"] == "number":
                    values.append(_NUMBERS[item["type"]](item["value"]))
                elif item["kind"] == "input":
                    values.append(ctypes.c_void_p(_address(next(inputs))))
                else:
                    values.append(next(outputs))
            self._function(*values)
        return {"ok": True}, ()


class _Buffer(ctypes.Structure):
    """``Py_buffer`` of CPython's stable interface."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


def _address(blob: Blob) -> int:
    """Address of the bytes of a blob, which has to stay alive. ``from_buffer`` takes no buffer that is read-only."""
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(blob), ctypes.byref(buffer), 0)
    address = int(buffer.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return address


def _load(source: str, declaration: str, name: str, language: str, offload: Offload | None) -> ctypes.CDLL:
    """Compile a candidate, which defines the function ``name``.

    A declaration in front of the candidate's file makes another type of the function a compiler's error; Fortran has
    none, and what calls a suggestion there is not the candidate's.

    Raises:
        _Failure: it does not compile, or defines no such function.
    """
    suffix = _SUFFIXES[language]
    file, entry = f"candidate.{suffix}", f"entry.{suffix}"
    linkage = 'extern "C" ' if suffix == "cpp" else ""
    Path(file).write_text(source)
    if language == "fortran":
        entry = file
    else:
        Path(entry).write_text(f'{linkage}{declaration};\n#include "{file}"\n')
    objects: list[str] = []
    further: list[str] = []
    libraries = ["-lm"]
    if offload == "kokkos":
        if _KOKKOS_HEADERS is None:
            raise _Failure("missing", kokkos.MISSING)
        kokkos.write_device(Path("."))
        further = ["-I.", f"-isystem{_KOKKOS_HEADERS}"]
        libraries.append(kokkos.LIBRARY)
    elif offload is not None:
        Path("offload_runtime.c").write_text(RUNTIME_SOURCE)
        _compile(["cc", *_RUNTIME_FLAGS, "-o", "offload_runtime.o", "offload_runtime.c"])
        objects.append("offload_runtime.o")
    if offload == "thrust":
        if _THRUST_HEADERS is None:
            raise _Failure("missing", thrust.MISSING)
        thrust.write_system(Path("."), _THRUST_HEADERS)
        further = ["-I.", f"-isystem{_THRUST_HEADERS}"]
    _compile([*compiler_command(language, offload), *further, "-o", LIBRARY, entry, *objects, *libraries])
    return _opened(name)


def _compile(command: Sequence[str]) -> None:
    """Run a compiler.

    Raises:
        _Failure: it cannot be run, or refuses the source.
    """
    try:
        with open("log", "wb") as log:
            ascii_quotes = {**os.environ, "LC_ALL": "C"}
            code = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ascii_quotes, check=False
            ).returncode
    except OSError as error:
        raise _Failure("missing", f"the compiler `{command[0]}` cannot be run: {error}") from error
    with open("log", errors="replace") as log:
        text = log.read(_MOST_LOG)
    if code:
        raise _Failure("build", text or f"the compiler ended with code {code}")


def _opened(name: str) -> ctypes.CDLL:
    """The candidate's library, which defines the function ``name``.

    Raises:
        _Failure: it defines no such function.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
        getattr(library, name)
    except (OSError, AttributeError) as error:
        raise _Failure("build", f"the candidate defines no function `{name}`: {error}") from error
    return library
