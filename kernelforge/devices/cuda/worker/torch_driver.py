"""The driver in a process that uses torch on the GPU: torch owns context, memory and stream, cuda-bindings do the rest.

Operators of packages run on it; evaluations do not, whose runner imports no torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kernelforge.devices.cuda.worker.bindings_driver import BindingsDriver
from kernelforge.devices.cuda.worker.driver import DriverError, Pointer
from kernelforge.errors import DeviceError
from kernelforge.utils.shell_hints import install_hint

if TYPE_CHECKING:
    from types import ModuleType


def make(ordinal: int) -> TorchDriver:
    """The driver of a GPU that torch sees, on torch's current stream.

    Raises:
        DeviceError: a package is missing.
        DriverError: CUDA does not start.
    """
    import torch

    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise DeviceError(f"operators on a GPU need cuda-bindings: {install_hint('gpu')}")
    with torch.cuda.device(ordinal):
        torch.cuda.current_stream().synchronize()  # makes the primary context, and makes it current on this thread
        return TorchDriver(TorchOwner(torch), ordinal)


class TorchDriver(BindingsDriver):
    """Driver calls on the stream that torch uses now."""

    def use_current_stream(self) -> None:
        """Launch on torch's current stream from now on."""
        self.stream = self.cuda.CUstream(self.owner.stream)

    def torch_stream(self) -> AbstractContextManager[None]:
        """Nothing to do: torch is on this stream already."""
        return nullcontext()


class TorchOwner:
    """Context, memory and stream of torch's current GPU; modules by cuda-bindings.

    Args:
        torch: The package, or what stands in for its allocator and stream.
    """

    def __init__(self, torch: ModuleType | Any) -> None:
        from cuda.bindings import driver as cuda

        self._cuda = cuda
        self._torch = torch
        self.runtime = f"torch {torch.__version__}"

    @property
    def stream(self) -> int:
        return int(self._torch.cuda.current_stream().cuda_stream)

    def _take(self, doing: str, outcome: tuple[Any, ...]) -> Any:
        status, *results = outcome
        if status:
            raise DriverError(status.name, doing)
        return results[0] if results else None

    def allocate(self, nbytes: int) -> Pointer:
        return int(self._torch.cuda.caching_allocator_alloc(max(1, nbytes)))

    def free(self, pointer: Pointer) -> None:
        self._torch.cuda.caching_allocator_delete(pointer)

    def load(self, image: bytes) -> Any:
        return self._take("loading a module", self._cuda.cuModuleLoadData(image))

    def handle(self, module: Any) -> int:
        return int(module)

    def function(self, module: Any, symbol: str) -> int:
        doing = f"looking for the kernel {symbol}"
        return int(self._take(doing, self._cuda.cuModuleGetFunction(module, symbol.encode())))

    def unload(self, module: Any) -> None:
        self._take("unloading a module", self._cuda.cuModuleUnload(module))

    def close(self) -> None:
        """Nothing: torch keeps its context."""
