"""The driver on cupy and cuda-bindings: cupy owns context, memory, modules and stream, the bindings do the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kernelforge.devices.cuda.discovery import require_packages
from kernelforge.devices.cuda.worker.bindings_driver import BindingsDriver
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, LoadedModule, Pointer


def warm_up() -> None:
    """Import cupy and cuda-bindings, which takes most of the time to open a GPU. Does not start CUDA.

    Raises:
        DeviceError: a package is missing.
    """
    require_packages("cupy")
    for module in ("cupy", "cuda.bindings.driver"):
        import_module(module)


def make(ordinal: int) -> Driver:
    """Open the GPU with that ordinal, on this thread, with its primary context, which torch uses too.

    Raises:
        DeviceError: a package is missing.
        DriverError: there is no such GPU, or CUDA does not start.
    """
    require_packages("cupy")
    return BindingsDriver(CupyOwner(ordinal), ordinal)


class CupyOwner:
    """Context, memory, modules and stream of one GPU, by cupy."""

    def __init__(self, ordinal: int) -> None:
        import cupy

        self._cupy = cupy
        self.runtime = f"cupy {cupy.__version__}"
        self._blocks: dict[Pointer, Any] = {}
        with self._named(f"opening GPU {ordinal}"):
            cupy.cuda.Device(ordinal).use()
            # The default stream cannot be captured; this one does not wait for it.
            stream = cupy.cuda.Stream(non_blocking=True)
        self._stream: Any | None = stream
        self.stream = int(stream.ptr)

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        """Translate cupy's errors to :class:`DriverError`, by CUDA's names."""
        from cuda.bindings import driver as cuda

        backends = self._cupy.cuda
        try:
            yield
        except (backends.runtime.CUDARuntimeError, backends.driver.CUDADriverError) as error:
            # Runtime and driver API share the numbers of common errors; the text begins with the runtime's own name.
            common = error.status in list(cuda.CUresult)
            name = cuda.CUresult(error.status).name if common else str(error).split(":")[0]
            raise DriverError(name, f"{doing} ({error})") from error

    def allocate(self, nbytes: int) -> Pointer:
        # Not from cupy's pool: it rounds sizes up, which hides the end of a buffer from a sanitizer.
        with self._named(f"allocating {nbytes} bytes"):
            block = self._cupy.cuda.Memory(max(1, nbytes))
        self._blocks[int(block.ptr)] = block
        return int(block.ptr)

    def free(self, pointer: Pointer) -> None:
        if pointer not in self._blocks:
            raise DriverError("CUDA_ERROR_INVALID_VALUE", f"freeing {pointer:#x}, which is not allocated")
        # cupy frees a block with its object.
        del self._blocks[pointer]

    def load(self, image: bytes) -> LoadedModule:
        module = self._cupy.cuda.function.Module()
        with self._named("loading a module"):
            module.load(image)
        return LoadedModule(module)

    def handle(self, module: LoadedModule) -> int:
        return int(module.alive.ptr)

    def function(self, module: LoadedModule, symbol: str) -> int:
        with self._named(f"looking for the kernel {symbol}"):
            return int(module.alive.get_function(symbol).ptr)

    def unload(self, module: LoadedModule) -> None:
        # cupy unloads a module with its object.
        module.module = None

    def close(self) -> None:
        self._blocks.clear()
        # cupy destroys a stream with its object.
        self._stream = None
