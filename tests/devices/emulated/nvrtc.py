"""A tiny NVRTC binding for the emulator's own tests: CUDA source to PTX, no GPU needed."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import pytest


def _toolkit() -> Path:
    nvidia = pytest.importorskip("nvidia", reason="NVRTC's wheel is not installed")
    for root in nvidia.__path__:
        for candidate in sorted(Path(root).glob("cu1*")):
            if list(candidate.glob("lib/libnvrtc.so*")):
                return candidate
    pytest.skip("NVRTC's wheel is not installed")


@functools.cache
def _library() -> tuple[ctypes.CDLL, list[str]]:
    root = _toolkit()
    # NVRTC opens its built-ins by name, which only works once they are loaded.
    for builtins in sorted(root.glob("lib/libnvrtc-builtins.so*")):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(sorted(root.glob("lib/libnvrtc.so*"))[0]))
    includes = [f"-I{path}" for path in (root / "include", root / "include" / "cccl") if path.is_dir()]
    return library, includes


_PRELUDE = """
#define INFINITY __int_as_float(0x7f800000)
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t; typedef int int32_t; typedef long long int64_t;
#line 1
"""


@functools.cache
def compile_ptx(source: str, *options: str, arch: str = "compute_90a") -> str:
    """Compile CUDA source and return its PTX; the compiler's log is in the error."""
    library, includes = _library()
    flags = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "-lineinfo", *includes, *options]
    program = ctypes.c_void_p()
    text = (_PRELUDE + source).encode()
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
        library.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        library.nvrtcGetPTX(program, ptx)
        return ptx.value.decode()
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
