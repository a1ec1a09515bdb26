"""Cupy's classes of memory, modules and streams, as its documentation has them, by cuda-bindings.

Cupy carries its own copy of CUDA's runtime, which no libcuda but NVIDIA's can serve; its errors are its own.
"""

from typing import Any

import cupy
from cuda.bindings import driver as cuda


def _take(outcome: tuple[Any, ...]) -> Any:
    if outcome[0]:
        raise cupy.cuda.runtime.CUDARuntimeError(int(outcome[0]))
    return outcome[1] if len(outcome) > 1 else None


class Memory:
    def __init__(self, size: int) -> None:
        self.ptr = int(_take(cuda.cuMemAlloc(size)))

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            cuda.cuMemFree(self.ptr)


class Function:
    def __init__(self, module: "Module", name: str) -> None:
        self.module = module
        self.ptr = int(_take(cuda.cuModuleGetFunction(module.handle, name.encode())))


class Module:
    handle: Any = None

    def load(self, cubin: bytes) -> None:
        self.handle = _take(cuda.cuModuleLoadData(cubin))
        self.ptr = int(self.handle)

    def get_function(self, name: str) -> Function:
        return Function(self, name)

    def __del__(self) -> None:
        if self.handle is not None:
            cuda.cuModuleUnload(self.handle)


class Stream:
    def __init__(self, *, non_blocking: bool) -> None:
        assert non_blocking
        self.ptr = int(_take(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def __del__(self) -> None:
        if hasattr(self, "ptr"):
            cuda.cuStreamDestroy(self.ptr)


class Device:
    def __init__(self, device: int) -> None:
        self.id = device

    def use(self) -> None:
        _take(cuda.cuInit(0))
        context = _take(cuda.cuDevicePrimaryCtxRetain(_take(cuda.cuDeviceGet(self.id))))
        _take(cuda.cuCtxSetCurrent(context))


def stand_in() -> None:
    """Put them in cupy's place."""
    for kind in (Memory, Stream, Device):
        setattr(cupy.cuda, kind.__name__, kind)
    cupy.cuda.function.Module = Module
