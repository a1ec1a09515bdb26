"""The CUDA calls that a runner needs, as a protocol that cupy and pycuda implement.

A driver owns one context on one GPU and one stream; everything asynchronous goes to that stream, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Pointer = int
"""A device address."""

Feature = Literal["clusters", "cooperative", "tensor_maps", "graphs", "torch"]
"""What a driver may lack. ``torch``: torch operators can be called on its memory and its stream."""


class DriverError(Exception):
    """A call of CUDA failed.

    Attributes:
        code: CUDA's name of the error: ``CUDA_ERROR_ILLEGAL_ADDRESS``.
        sticky: Whether the context is lost: every later call would fail with the same error.
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
    """What the driver says of the GPU. Units are in the names."""

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
    """What talks to it: ``cupy 14.2.0``."""

    @property
    def arch(self) -> str:
        """The GPU's own architecture: with the instructions that it alone has (``sm_90a``) from Hopper on. What is
        compiled for hangs on the compiler, too: see :attr:`kernelforge.devices.cuda.device.CudaDevice.arch`."""
        major, minor = self.compute_capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def memory_bandwidth_gbps(self) -> float:
        """Peak, from memory clock and bus width, two transfers a cycle; 0 where the driver does not say."""
        return 2 * self.memory_clock_mhz * 1e6 * self.memory_bus_bits / 8 / 1e9


@dataclass(frozen=True)
class LaunchShape:
    """Grid, block and attributes of one launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    """Dynamic shared memory; over 48 KB the driver sets the kernel's attribute itself."""
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


@dataclass(frozen=True)
class TensorMapSpec:
    """A tiled tensor map (``cuTensorMapEncodeTiled``). Extents are innermost first, as CUDA has them."""

    pointer: Pointer
    element: str
    """dtype by torch's name."""
    extents: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    """Of all dimensions but the innermost."""
    box: tuple[int, ...]
    swizzle_bytes: Literal[0, 32, 64, 128] = 0


class Graph(Protocol):
    """A captured sequence of work."""

    def launch(self) -> None:
        """Put one replay onto the stream."""
        ...

    def close(self) -> None: ...


class Capture(Protocol):
    """A capture in progress; ``graph`` is there once it has ended."""

    graph: Graph

    def __enter__(self) -> Capture: ...

    def __exit__(self, *error: object) -> None: ...


class Driver(Protocol):
    """One context on one GPU. Every method raises :class:`DriverError` where CUDA refuses."""

    lacks: frozenset[Feature]

    @property
    def facts(self) -> GpuFacts: ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        ...

    def allocate(self, nbytes: int) -> Pointer:
        """Aligned to 256 bytes at least; ``nbytes`` may be 0."""
        ...

    def free(self, pointer: Pointer) -> None: ...

    def write(self, pointer: Pointer, data: bytes | memoryview) -> None:
        """Host to device; returns when the data may be reused."""
        ...

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        """Device to host, after all that was put onto the stream before."""
        ...

    def fill(self, pointer: Pointer, byte: int, nbytes: int) -> None:
        """Asynchronous; may be captured."""
        ...

    def copy(self, target: Pointer, source: Pointer, nbytes: int) -> None:
        """Device to device, asynchronous; may be captured."""
        ...

    def load(self, image: bytes) -> Any:
        """A module from a cubin, or from PTX text that ends with a zero byte, which the GPU's driver compiles."""
        ...

    def unload(self, module: Any) -> None: ...

    def function(self, module: Any, symbol: str) -> Any: ...

    def variable(self, module: Any, symbol: str) -> tuple[Pointer, int]:
        """Address and size in bytes of a module variable."""
        ...

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        """The 128 bytes that a kernel takes as ``const __grid_constant__ CUtensorMap``."""
        ...

    def launch(self, function: Any, shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        """Asynchronous; may be captured. Each argument is its value's bytes, in the kernel's order."""
        ...

    def capture(self) -> Capture:
        """What is put onto the stream within ``with driver.capture() as held`` does not run; it is ``held.graph``."""
        ...

    def event(self, again: Any = None) -> Any:
        """A timing event, recorded now on the stream.

        Args:
            again: One that is done with, and may be recorded anew: making an event takes longer than recording it.
        """
        ...

    def elapsed_us(self, start: Any, end: Any) -> float:
        """Between two events that have both happened."""
        ...

    def synchronize(self) -> None:
        """Wait for the stream."""
        ...

    def torch_stream(self) -> AbstractContextManager[None]:
        """Within it torch works on this driver's stream, so that what it does is ordered and can be captured.

        Raises:
            DriverError: the driver lacks ``torch``.
        """
        ...

    def profiler_region(self) -> AbstractContextManager[None]:
        """What runs inside is what a profiler started with ``--profile-from-start off`` sees."""
        ...

    def close(self) -> None: ...
