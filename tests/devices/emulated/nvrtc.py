"""A tiny NVRTC binding for the emulator's own tests: CUDA source to PTX, no GPU needed."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import tempfile
from pathlib import Path

import pytest

from kernelforge.compile import installed_toolchain
from kernelforge.errors import DeviceError


@functools.cache
def _library(cuda: int | None) -> tuple[ctypes.CDLL, list[str]]:
    try:
        toolchain = installed_toolchain(cuda)
    except DeviceError as error:
        pytest.skip(str(error))
    # NVRTC opens its built-ins by name, which only works once they are loaded.
    for builtins in sorted(toolchain.library.parent.glob("libnvrtc-builtins.so*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(toolchain.library)), [f"-I{path}" for path in toolchain.includes]


_PRELUDE = """
#define INFINITY __int_as_float(0x7f800000)
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef int int32_t; typedef long long int64_t;
#line 1
"""

PRECOMPILED = "--pch"
"""Option of sources that begin with the same headers: those are read once, and kept in a file of 10 to 100 MB."""


@functools.cache
def _folder() -> Path:
    """Precompiled headers of this process, which no other could use; and the prelude, that comes before them."""
    folder = tempfile.mkdtemp(prefix="kf-headers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "prelude.h").write_text(_PRELUDE.replace("#line 1\n", ""))
    return Path(folder)


@functools.cache
def compile_ptx(source: str, *options: str, arch: str = "compute_90a", cuda: int | None = None) -> str:
    """Compile CUDA source, by default with the CUDA of candidates, and return its PTX; the compiler's log is in the
    error."""
    (ptx,) = _build(source, ("PTX",), options, arch, cuda)
    return ptx.rstrip(b"\0").decode()


def compile_cubin(source: str) -> tuple[str, bytes]:
    """PTX and cubin for sm_90a, with the CUDA of candidates."""
    ptx, cubin = _build(source, ("PTX", "CUBIN"), (), "sm_90a", None)
    return ptx.rstrip(b"\0").decode(), cubin


def _build(source: str, results: tuple[str, ...], options: tuple[str, ...], arch: str, cuda: int | None) -> list[bytes]:
    library, includes = _library(cuda)
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "-lineinfo", *includes, *options]
    text = (_PRELUDE + source).encode()
    if PRECOMPILED in options:
        # A line directive would end the part that is kept.
        flags += [f"--pch-dir={_folder()}", f"--pre-include={_folder() / 'prelude.h'}"]
        text = source.encode()
    program = ctypes.c_void_p()
    array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    try:
        status = library.nvrtcCompileProgram(program, len(flags), array)
        size = ctypes.c_size_t()
        if status:
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.value.decode())
        made = []
        for result in results:
            getattr(library, f"nvrtcGet{result}Size")(program, ctypes.byref(size))
            buffer = ctypes.create_string_buffer(size.value)
            getattr(library, f"nvrtcGet{result}")(program, buffer)
            made.append(buffer.raw)
        return made
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
