"""The driver on pycuda: a second implementation of the protocol, within pycuda's limits.

pycuda 2026.1 launches through the calls that CUDA had before clusters, and wraps neither cooperative launches, nor
stream capture, nor tensor maps. Timing is therefore by launches, which the protocol's name says.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kernelforge.devices.cuda import libcuda
from kernelforge.devices.cuda.discovery import require_packages
from kernelforge.devices.cuda.worker import torch_stream
from kernelforge.devices.cuda.worker.driver import (
    Capture,
    Driver,
    DriverError,
    Feature,
    GpuFacts,
    LaunchShape,
    Pointer,
    TensorMapSpec,
)

_INTEGERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
"""numpy types that carry an argument's bytes; their size is the alignment that the kernel expects."""


def make(ordinal: int) -> Driver:
    """Open the GPU with that ordinal, on this thread, with its primary context, which torch uses too.

    Raises:
        DeviceError: pycuda is missing.
        DriverError: there is no such GPU, or CUDA does not start.
    """
    require_packages("pycuda")
    return PycudaDriver(ordinal)


class _Function:
    """A kernel with the dynamic shared memory that its attribute allows."""

    def __init__(self, handle: Any, symbol: str, dynamic_shared_bytes: int) -> None:
        self.handle = handle
        self.symbol = symbol
        self.dynamic_shared_bytes = dynamic_shared_bytes


class _Module:
    """A module that can be let go of while others hold this object; functions of pycuda keep their module alive."""

    def __init__(self, module: Any) -> None:
        self.module: Any | None = module
        self.functions: list[_Function] = []

    @property
    def alive(self) -> Any:
        if self.module is None:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE", "using a module that was unloaded")
        return self.module


class PycudaDriver:
    """One GPU through ``pycuda.driver``."""

    lacks: frozenset[Feature] = frozenset({"clusters", "cooperative", "tensor_maps", "graphs"})

    def __init__(self, ordinal: int) -> None:
        import numpy
        import pycuda
        import pycuda.driver

        self._numpy = numpy
        self._cuda = pycuda.driver
        self.ordinal = ordinal
        self._blocks: dict[Pointer, Any] = {}
        self._open = False
        with self._named(f"opening GPU {ordinal}"):
            self._cuda.init()
            device = self._cuda.Device(ordinal)
            self._context = device.retain_primary_context()
            self._context.push()
        self._open = True
        # pycuda aborts a process that ends with a current context.
        atexit.register(self.close)
        with self._named(f"opening GPU {ordinal}"):
            # It waits for the default stream, on which pycuda's copies of pageable memory run.
            self._stream: Any = self._cuda.Stream()
            self._facts = self._read_facts(device, f"pycuda {pycuda.VERSION_TEXT}")

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        """Turn pycuda's errors into ours; pycuda keeps CUDA's text of an error and drops its number."""
        try:
            yield
        except self._cuda.Error as error:
            library = libcuda.library()
            names = libcuda.error_names(library) if library is not None else {}
            text = str(error).partition(" failed: ")[2]
            known = [name for known, name in names.items() if text == known or text.startswith(f"{known} - ")]
            raise DriverError(known[0] if known else "CUDA_ERROR_UNKNOWN", f"{doing} ({error})") from error

    @property
    def facts(self) -> GpuFacts:
        return self._facts

    def _read_facts(self, device: Any, runtime: str) -> GpuFacts:
        names = self._cuda.device_attribute

        def attribute(name: str) -> int:
            return int(device.get_attribute(getattr(names, name)))

        library = libcuda.library()
        if library is None:
            raise DriverError("CUDA_ERROR_NOT_FOUND", f"loading {libcuda.SONAME}")
        return GpuFacts(
            name=device.name(),
            uuid=libcuda.uuid(library, self.ordinal),
            compute_capability=device.compute_capability(),
            sm_count=attribute("MULTIPROCESSOR_COUNT"),
            max_clock_mhz=attribute("CLOCK_RATE") // 1000,
            memory_clock_mhz=attribute("MEMORY_CLOCK_RATE") // 1000,
            memory_bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
            memory_bytes=device.total_memory(),
            l2_bytes=attribute("L2_CACHE_SIZE"),
            shared_bytes_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            shared_bytes_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            registers_per_sm=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
            threads_per_sm=attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
            driver=libcuda.version_text(self._cuda.get_driver_version()),
            runtime=runtime,
        )

    def memory(self) -> tuple[int, int]:
        with self._named("asking for free memory"):
            free, total = self._cuda.mem_get_info()
        return int(free), int(total)

    def allocate(self, nbytes: int) -> Pointer:
        with self._named(f"allocating {nbytes} bytes"):
            block = self._cuda.mem_alloc(max(1, nbytes))
        self._blocks[int(block)] = block
        return int(block)

    def free(self, pointer: Pointer) -> None:
        if pointer not in self._blocks:
            raise DriverError("CUDA_ERROR_INVALID_VALUE", f"freeing {pointer:#x}, which is not allocated")
        with self._named("freeing memory"):
            self._blocks.pop(pointer).free()

    def write(self, pointer: Pointer, data: bytes | memoryview) -> None:
        nbytes = memoryview(data).nbytes
        if nbytes:
            with self._named(f"writing {nbytes} bytes"):
                self._stream.synchronize()
                self._cuda.memcpy_htod(pointer, data)

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        if nbytes:
            with self._named(f"reading {nbytes} bytes"):
                self._stream.synchronize()
                self._cuda.memcpy_dtoh(data, pointer)
        return bytes(data)

    def fill(self, pointer: Pointer, byte: int, nbytes: int) -> None:
        if nbytes:
            with self._named(f"filling {nbytes} bytes"):
                self._cuda.memset_d8_async(pointer, byte, nbytes, self._stream)

    def copy(self, target: Pointer, source: Pointer, nbytes: int) -> None:
        if nbytes:
            with self._named(f"copying {nbytes} bytes"):
                self._cuda.memcpy_dtod_async(target, source, nbytes, self._stream)

    def load(self, image: bytes) -> _Module:
        with self._named("loading a module"):
            return _Module(self._cuda.module_from_buffer(image))

    def unload(self, module: _Module) -> None:
        for function in module.functions:
            function.handle = None
        module.functions.clear()
        # pycuda unloads a module with its object.
        module.module = None

    def function(self, module: _Module, symbol: str) -> _Function:
        with self._named(f"looking for the kernel {symbol}"):
            handle = module.alive.get_function(symbol)
            allowed = handle.get_attribute(self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function = _Function(handle, symbol, int(allowed))
        module.functions.append(function)
        return function

    def variable(self, module: _Module, symbol: str) -> tuple[Pointer, int]:
        with self._named(f"looking for the variable {symbol}"):
            pointer, nbytes = module.alive.get_global(symbol)
        return int(pointer), int(nbytes)

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        raise self._lacking("encoding a tensor map")

    def launch(self, function: _Function, shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        doing = f"launching {function.symbol} with grid {shape.grid} and block {shape.block}"
        if function.handle is None:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE", f"{doing}: its module was unloaded")
        if shape.cluster is not None or shape.cooperative:
            raise self._lacking(f"{doing} as a cluster or cooperatively")
        values = [self._value(argument, doing) for argument in arguments]
        with self._named(doing):
            if shape.shared_bytes > function.dynamic_shared_bytes:
                limit = self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
                function.handle.set_attribute(limit, shape.shared_bytes)
                function.dynamic_shared_bytes = shape.shared_bytes
            function.handle(*values, grid=shape.grid, block=shape.block, shared=shape.shared_bytes, stream=self._stream)

    def _value(self, argument: bytes, doing: str) -> Any:
        """A numpy scalar of these bytes: pycuda packs arguments by the type of each."""
        if len(argument) not in _INTEGERS:
            raise self._lacking(f"{doing}: an argument of {len(argument)} bytes")
        return self._numpy.frombuffer(argument, dtype=_INTEGERS[len(argument)])[0]

    def _lacking(self, doing: str) -> DriverError:
        return DriverError("CUDA_ERROR_NOT_SUPPORTED", f"{doing}: pycuda cannot; use the cupy runtime")

    def capture(self) -> Capture:
        raise self._lacking("capturing a graph")

    def event(self, again: Any = None) -> Any:
        with self._named("recording an event"):
            event = self._cuda.Event() if again is None else again
            return event.record(self._stream)

    def elapsed_us(self, start: Any, end: Any) -> float:
        with self._named("timing two events"):
            return 1000.0 * float(start.time_till(end))

    def synchronize(self) -> None:
        with self._named("waiting for the stream"):
            self._stream.synchronize()

    def torch_stream(self) -> AbstractContextManager[None]:
        return torch_stream.on_stream(self.ordinal, int(self._stream.handle), None)

    @contextmanager
    def profiler_region(self) -> Iterator[None]:
        with self._named("starting the profiler"):
            self._cuda.start_profiler()
        try:
            yield
            self.synchronize()
        finally:
            with self._named("stopping the profiler"):
                self._cuda.stop_profiler()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        atexit.unregister(self.close)
        with self._named("closing the GPU"):
            try:
                for block in self._blocks.values():
                    block.free()
                self._blocks.clear()
                self._stream = None
            finally:
                self._context.pop()
                self._context.detach()
