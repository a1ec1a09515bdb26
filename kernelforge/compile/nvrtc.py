"""NVRTC by ctypes, from its wheel. Loaded only in separate processes (the compiler's zygote, and this file run as a
program), never in the parent.

Output buffers are allocated here, because NVRTC writes into them and a Python ``bytes`` may be shared.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelforge.errors import DeviceError

SUCCESS, OUT_OF_MEMORY, INVALID_OPTION, COMPILATION = 0, 1, 5, 6
"""``nvrtcResult`` (NVRTC documentation, *Error Handling*)."""


@dataclass(frozen=True)
class Compilation:
    """Result of one compilation. ``status`` is NVRTC's result code."""

    status: int
    log: str
    ptx: bytes = b""
    cubin: bytes = b""
    lowered: tuple[str, ...] = ()
    """Lowered name of each name expression, in order."""


class Nvrtc:
    """The library, loaded.

    Args:
        library: Path of ``libnvrtc.so``; the library of its built-in headers is in the same folder.

    Raises:
        DeviceError: it does not load.
    """

    def __init__(self, library: Path) -> None:
        try:
            # 13.0 has no run path: its builtins must be loaded first.
            for builtins in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
            self._lib = ctypes.CDLL(str(library))
        except OSError as error:
            raise DeviceError(f"NVRTC does not load ({error})") from error
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p

    def version(self) -> str:
        """Major and minor version: ``13.0``."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return f"{major.value}.{minor.value}"

    def architectures(self) -> tuple[int, ...]:
        """Supported architectures, oldest first: ``75`` stands for ``sm_75``."""
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        numbers = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(numbers))
        return tuple(sorted(numbers))

    def compile(
        self,
        source: str,
        name: str,
        *,
        headers: Mapping[str, str],
        options: Sequence[str],
        expressions: Sequence[str],
    ) -> Compilation:
        """Compile ``source`` to PTX and a cubin.

        ``headers`` are files in memory, by the name for includes. ``options`` must name a real architecture. A program
        that does not compile is a result, not an error.

        Raises:
            DeviceError: NVRTC itself failed.
        """
        program = ctypes.c_void_p()
        count = len(headers)
        names = (ctypes.c_char_p * max(count, 1))(*(header.encode() for header in headers))
        texts = (ctypes.c_char_p * max(count, 1))(*(text.encode() for text in headers.values()))
        self._check(
            self._lib.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), name.encode(), ctypes.c_int(count), texts, names
            )
        )
        for expression in expressions:
            self._check(self._lib.nvrtcAddNameExpression(program, expression.encode()))
        flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        status = int(self._lib.nvrtcCompileProgram(program, ctypes.c_int(len(options)), flags))
        # The part of ptxas ends with a zero byte, and its errors follow.
        log = self._get(program, "ProgramLog").replace(b"\0", b"").rstrip(b" \n").decode("utf-8", "replace")
        if status != SUCCESS:
            return Compilation(status, log or self._text(status))
        return Compilation(
            status,
            log,
            ptx=self._get(program, "PTX").rstrip(b"\0"),
            cubin=self._get(program, "CUBIN"),
            lowered=tuple(self._lowered(program, expression) for expression in expressions),
        )

    def reserve_for_headers(self, size: int) -> None:
        """Reserve memory for precompiled headers, in this process and in those forked from it.

        Since 12.8; older releases have no precompiled headers, and reserve nothing.
        """
        if hasattr(self._lib, "nvrtcSetPCHHeapSize"):
            self._check(self._lib.nvrtcSetPCHHeapSize(ctypes.c_size_t(size)))

    def _get(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(max(size.value, 1))
        self._check(getattr(self._lib, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw[: size.value]

    def _lowered(self, program: ctypes.c_void_p, expression: str) -> str:
        name = ctypes.c_char_p()
        self._check(self._lib.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)))
        return (name.value or b"").decode()

    def _text(self, status: int) -> str:
        return bytes(self._lib.nvrtcGetErrorString(status) or b"unknown error").decode()

    def _check(self, status: int) -> None:
        if status == OUT_OF_MEMORY:
            raise MemoryError
        if status != SUCCESS:
            raise DeviceError(f"NVRTC failed: {self._text(status)}")


if __name__ == "__main__":
    try:
        print(json.dumps(Nvrtc(Path(sys.argv[1])).architectures()))
    except DeviceError as error:
        sys.exit(str(error))
