"""The CUDA calls that a runner needs, as a protocol that cupy and pycuda implement, and code that both share.

A driver owns one context on one GPU and one stream; asynchronous work goes to that stream, in order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol

from kernelforge.candidate.resolved import PixelMode
from kernelforge.devices.cuda import libcuda

Pointer = int
"""A device address."""

Feature = Literal["clusters", "cooperative", "tensor_maps", "graphs", "torch"]
"""Features that a driver may lack. ``torch``: torch operators can be called on its memory and its stream."""


class DriverError(Exception):
    """A call of CUDA failed.

    Attributes:
        code: CUDA's name of the error: ``CUDA_ERROR_ILLEGAL_ADDRESS``.
        sticky: Whether the context is lost: every later call fails with the same error.
    """

    STICKY = frozenset(
        {
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_INVALID_PC",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_ASSERT",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_CONTAINED",
            "CUDA_ERROR_EXTERNAL_DEVICE",
            "CUDA_ERROR_TENSOR_MEMORY_LEAK",
            "CUDA_ERROR_UNKNOWN",
        }
    )
    """Errors that the CUDA driver API reference says leave the process in an inconsistent state."""

    def __init__(self, code: str, doing: str) -> None:
        super().__init__(f"{code} while {doing}")
        self.code = code

    @property
    def sticky(self) -> bool:
        return self.code in self.STICKY


@dataclass(frozen=True)
class GpuFacts:
    """Facts of a GPU, from its driver. Units are in the names."""

    name: str
    uuid: str
    compute_capability: tuple[int, int]
    sm_count: int
    max_clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    memory_bytes: int
    l2_bytes: int
    shared_bytes_per_block: int
    """With the opt-in attribute."""
    shared_bytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    driver: str
    """Version of CUDA that the driver supports: ``13.0``."""
    runtime: str
    """Package that calls CUDA: ``cupy 14.2.0``."""

    @property
    def arch(self) -> str:
        """The GPU's own architecture, from Hopper on with its specific instructions (``sm_90a``). The architecture to
        compile for also depends on the compiler: see :attr:`kernelforge.devices.cuda.device.CudaDevice.arch`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak, from memory clock and bus width, two transfers a cycle; 0 if the driver does not report them."""
        return 2 * self.memory_clock_mhz * 1e6 * self.memory_bus_bits / 8 / 1e9


@dataclass(frozen=True)
class LaunchShape:
    """Grid, block and attributes of one launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    """Dynamic shared memory; above 48 KB the driver sets the kernel's attribute."""
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


@dataclass(frozen=True)
class PixelBoxSpec:
    """The box of pixels that ``cuTensorMapEncodeIm2col`` takes, innermost first: along width, height and depth.

    ``cuda.h`` lists the corners the other way round; CUTLASS and Triton pass them in this order.
    ``cuTensorMapEncodeIm2colWide`` takes a box along the width alone.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    stride: tuple[int, ...]
    mode: PixelMode = "im2col"


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """A tensor map (CUDA driver API, *Tensor Map Object Management*). Extents are innermost first."""

    pointer: Pointer
    element: str
    """dtype by torch's name."""
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    """Strides of all dimensions but the innermost."""
    box: tuple[int, ...]
    """With ``pixels``, how many channels and how many pixels."""
    swizzle_bytes: Literal[0, 32, 64, 128] = 0
    pixels: PixelBoxSpec | None = None


class Graph(Protocol):
    """A captured sequence of work."""

    def launch(self) -> None:
        """Enqueue one replay on the stream."""
        ...

    def close(self) -> None: ...


class Capture(Protocol):
    """A capture in progress; ``graph`` is set when it ends."""

    graph: Graph

    def __enter__(self) -> Capture: ...

    def __exit__(self, *error: object) -> None: ...


class HostMemory:
    """Blocks of pinned host memory that one driver mapped into the device's address space.

    The CPU writes and reads them, without copies by CUDA.
    """

    def __init__(self) -> None:
        self._blocks: dict[Pointer, tuple[int, int, object]] = {}

    def add(self, device: Pointer, address: int, nbytes: int, owner: object = None) -> Pointer:
        """Keep a block of ``nbytes``.

        Args:
            device: Its device address, which is returned.
            address: Its address in the process.
            nbytes: Its size.
            owner: An object that frees the memory with its last reference.
        """
        self._blocks[device] = address, nbytes, owner
        return device

    def pop(self, device: Pointer) -> int | None:
        """Forget the block at a device address; its address in the process, None if no block begins there."""
        block = self._blocks.pop(device, None)
        return None if block is None else block[0]

    def address(self, pointer: Pointer, nbytes: int) -> int | None:
        """Address in the process of bytes at a device address; None if they are in device memory."""
        for device, (address, size, _) in self._blocks.items():
            if 0 <= pointer - device <= size - nbytes:
                return address + pointer - device
        return None


def write_host(address: int, data: bytes | memoryview) -> None:
    """Copy bytes to an address in the process."""
    view = memoryview(data).cast("B")
    memoryview((ctypes.c_char * view.nbytes).from_address(address)).cast("B")[:] = view


class Driver(Protocol):
    """One context on one GPU. Every method raises :class:`DriverError` if CUDA refuses."""

    lacks: frozenset[Feature]

    @property
    def facts(self) -> GpuFacts: ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        ...

    def allocate(self, nbytes: int) -> Pointer:
        """Allocate memory, aligned to at least 256 bytes; ``nbytes`` may be 0."""
        ...

    def allocate_host(self, nbytes: int) -> Pointer:
        """Allocate pinned host memory that is mapped into the device's address space; :meth:`free` frees it.

        Returns:
            Its device address. Kernels reach it there, and :meth:`write` and :meth:`read` the memory itself.
        """
        ...

    def free(self, pointer: Pointer) -> None: ...

    def write(self, pointer: Pointer, data: bytes | memoryview) -> None:
        """Copy host to device; returns when the data may be reused."""
        ...

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        """Copy device to host, after all earlier work on the stream."""
        ...

    def fill(self, pointer: Pointer, byte: int, nbytes: int) -> None:
        """Fill memory: asynchronous, may be captured."""
        ...

    def copy(self, target: Pointer, source: Pointer, nbytes: int) -> None:
        """Copy device to device: asynchronous, may be captured."""
        ...

    def load(self, image: bytes) -> Any:
        """Load a module from a cubin, or from PTX text that ends with a zero byte, which the GPU's driver compiles."""
        ...

    def unload(self, module: Any) -> None: ...

    def function(self, module: Any, symbol: str) -> Any: ...

    def variable(self, module: Any, symbol: str) -> tuple[Pointer, int]:
        """Address and size in bytes of a module variable."""
        ...

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """Encode the 128 bytes that a kernel takes as ``const __grid_constant__ CUtensorMap``."""
        ...

    def launch(self, function: Any, shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        """Launch a kernel: asynchronous, may be captured. Each argument is its value's bytes, in the kernel's order."""
        ...

    def capture(self) -> Capture:
        """Capture the work of ``with driver.capture() as capture`` as ``capture.graph``, without running it."""
        ...

    def event(self, reuse: Any = None) -> Any:
        """Record a timing event on the stream.

        Args:
            reuse: An event to record again: making an event takes longer than recording it.
        """
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Time between two completed events, in µs."""
        ...

    def synchronize(self) -> None:
        """Wait for the stream."""
        ...

    def torch_stream(self) -> AbstractContextManager[None]:
        """Make torch use this driver's stream, so that its work is ordered and can be captured.

        Raises:
            DriverError: the driver lacks ``torch``.
        """
        ...

    def profiler_region(self) -> AbstractContextManager[None]:
        """Region that a profiler started with ``--profile-from-start off`` records."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class KernelFunction:
    """A kernel with the attributes that were set on it."""

    handle: Any
    symbol: str
    dynamic_shared_bytes: int
    """Limit that its attribute allows."""
    module: Any = None
    """Its module, kept alive: cupy unloads a module when the last reference goes, and ``handle`` is a number."""
    non_portable_cluster: bool = False


@dataclass
class LoadedModule:
    """A module of cupy or pycuda, which unload it with their object; this object may outlive it."""

    module: Any | None
    functions: list[KernelFunction] = field(default_factory=list)
    """Functions of pycuda, which keep their module alive."""

    @property
    def alive(self) -> Any:
        if self.module is None:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE", "using a module that was unloaded")
        return self.module


def gpu_facts(attribute: Callable[[str], int], **others: Any) -> GpuFacts:
    """Facts of a GPU.

    Args:
        attribute: Value of ``CU_DEVICE_ATTRIBUTE_...``, without that prefix.
        others: The facts that are no attributes.
    """
    return GpuFacts(
        sm_count=attribute("MULTIPROCESSOR_COUNT"),
        max_clock_mhz=attribute("CLOCK_RATE") // 1000,
        memory_clock_mhz=attribute("MEMORY_CLOCK_RATE") // 1000,
        memory_bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        **others,
    )


def cuda_library() -> ctypes.CDLL:
    """The driver's library.

    Raises:
        DriverError: there is none.
    """
    library = libcuda.library()
    if library is None:
        raise DriverError("CUDA_ERROR_NOT_FOUND", f"loading {libcuda.SONAME}")
    return library


@cache
def _torch_with_cuda() -> Any:
    import torch

    if not torch.cuda.is_available():
        build = torch.version.cuda or "no CUDA"
        raise DriverError(
            "CUDA_ERROR_NOT_SUPPORTED",
            f"calling a torch operator: torch {torch.__version__} (built for {build}) sees no GPU here; "
            "install a build of torch for this driver",
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return torch


def torch_pool() -> object:
    """A pool of torch's allocator; its memory stays allocated as long as the pool object lives.

    Raises:
        DriverError: torch has no GPU.
    """
    return _torch_with_cuda().cuda.MemPool()


@contextmanager
def on_torch_stream(ordinal: int, stream: int, pool: object | None) -> Iterator[None]:
    """Make torch use a stream, by its handle, and allocate from ``pool`` if there is one.

    Torch and the driver share the GPU's primary context. Before torch operators are captured, the caller must have run
    the same calls once on this stream (cuBLAS makes its handle and workspace at the first), and they must draw no
    random numbers (a generator must be registered with the graph; torch does so for its own graphs only).

    Raises:
        DriverError: torch has no GPU.
    """
    torch = _torch_with_cuda()
    with ExitStack() as stack:
        stack.enter_context(torch.cuda.device(ordinal))
        stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(stream, device=ordinal)))
        if pool is not None:
            stack.enter_context(torch.cuda.use_mem_pool(pool, ordinal))
        yield
