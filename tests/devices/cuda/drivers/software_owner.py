"""For scripts that run on the libcuda in software: an owner of context and memory, and what the library recorded."""

import ctypes
from typing import Any

from kernelforge.devices.cuda.worker.bindings_driver import BindingsDriver
from kernelforge.devices.cuda.worker.driver import DriverError, LaunchShape, PixelBoxSpec, TensorMapSpec

__all__ = [
    "IMAGE",
    "DriverError",
    "LaunchShape",
    "Owner",
    "PixelBoxSpec",
    "TensorMapSpec",
    "fail",
    "forget",
    "open_driver",
    "record",
]

IMAGE = b"software\nkernel add_one 8 4\nkernel many 8 4 8 2 128\nkernel nothing\nvariable table 24\n\0"

_library = ctypes.CDLL("libcuda.so.1")
_library.software_record.restype = ctypes.c_char_p


def record() -> list[str]:
    """Calls since the last time."""
    lines = _library.software_record().decode().splitlines()
    forget()
    return lines


def forget() -> None:
    _library.software_forget()


def fail(function: str, code: int) -> None:
    """Let the next call of a function answer with an error."""
    _library.software_fail(function.encode(), code)


class Owner:
    """Context, memory, modules and stream by cuda-bindings alone."""

    runtime = "software 1"

    def __init__(self) -> None:
        from cuda.bindings import driver as cuda

        self._cuda = cuda
        self._take(cuda.cuInit(0))
        context = self._take(cuda.cuDevicePrimaryCtxRetain(cuda.CUdevice(0)))
        self._take(cuda.cuCtxSetCurrent(context))
        self.stream = int(self._take(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))

    def _take(self, outcome: tuple[Any, ...]) -> Any:
        if outcome[0]:
            raise DriverError(outcome[0].name, "working for a test")
        return outcome[1] if len(outcome) > 1 else None

    def allocate(self, nbytes: int) -> int:
        return int(self._take(self._cuda.cuMemAlloc(max(1, nbytes))))

    def free(self, pointer: int) -> None:
        self._take(self._cuda.cuMemFree(pointer))

    def load(self, image: bytes) -> Any:
        return self._take(self._cuda.cuModuleLoadData(image))

    def handle(self, module: Any) -> int:
        return int(module)

    def function(self, module: Any, symbol: str) -> int:
        return int(self._take(self._cuda.cuModuleGetFunction(module, symbol.encode())))

    def unload(self, module: Any) -> None:
        self._take(self._cuda.cuModuleUnload(module))

    def close(self) -> None:
        self._take(self._cuda.cuStreamDestroy(self._cuda.CUstream(self.stream)))


def open_driver() -> BindingsDriver:
    return BindingsDriver(Owner(), 0)
