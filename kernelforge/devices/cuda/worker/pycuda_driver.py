"""The driver on pycuda: a second implementation of the protocol, within pycuda's limits.

pycuda 2026.1 launches through calls older than clusters, and wraps neither cooperative launches, nor stream capture,
nor tensor maps. Timing is therefore by launches, which the name of the timing protocol says.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kernelforge.devices.cuda import libcuda
from kernelforge.devices.cuda.discovery import require_packages
from kernelforge.devices.cuda.worker.driver import (
    Capture,
    Driver,
    DriverError,
    Feature,
    GpuFacts,
    HostMemory,
    KernelFunction,
    LaunchShape,
    LoadedModule,
    Pointer,
    TensorMapSpec,
    cuda_library,
    gpu_facts,
    on_torch_stream,
    write_host,
)

_INTEGERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
"""numpy types for an argument's bytes, by size; the size is the alignment that the kernel expects."""


def make(ordinal: int) -> Driver:
    """Open the GPU with that ordinal, on this thread, with its primary context, which torch uses too.

    Raises:
        DeviceError: pycuda is missing.
        DriverError: there is no such GPU, or CUDA does not start.
    """
    require_packages("pycuda")
    return PycudaDriver(ordinal)


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
        self._host = HostMemory()
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
            # This stream waits for the default stream, on which pycuda copies pageable memory.
            self._stream: Any = self._cuda.Stream()
            self._facts = self._read_facts(device, f"pycuda {pycuda.VERSION_TEXT}")

    @contextmanager
    def _named(self, doing: str) -> Iterator[None]:
        """Translate pycuda's errors to :class:`DriverError`; pycuda keeps CUDA's text of an error, not its number."""
        try:
            yield
        except self._cuda.Error as error:
            library = libcuda.library()
            names = libcuda.error_names(library) if library is not None else {}
            text = str(error).partition(" failed: ")[2]
            matches = [name for message, name in names.items() if text == message or text.startswith(f"{message} - ")]
            raise DriverError(matches[0] if matches else "CUDA_ERROR_UNKNOWN", f"{doing} ({error})") from error

    @property
    def facts(self) -> GpuFacts:
        return self._facts

    def _read_facts(self, device: Any, runtime: str) -> GpuFacts:
        names = self._cuda.device_attribute

        def attribute(name: str) -> int:
            return int(device.get_attribute(getattr(names, name)))

        return gpu_facts(
            attribute,
            name=device.name(),
            uuid=libcuda.uuid(cuda_library(), self.ordinal),
            compute_capability=device.compute_capability(),
            memory_bytes=device.total_memory(),
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

    def allocate_host(self, nbytes: int) -> Pointer:
        flags = self._cuda.host_alloc_flags
        with self._named(f"allocating {nbytes} bytes of pinned host memory"):
            array = self._cuda.pagelocked_empty(
                max(1, nbytes), self._numpy.uint8, mem_flags=flags.PORTABLE | flags.DEVICEMAP
            )
            device = int(array.base.get_device_pointer())
        # pycuda frees the memory with the array.
        return self._host.add(device, int(array.ctypes.data), nbytes, array)

    def free(self, pointer: Pointer) -> None:
        if self._host.pop(pointer) is not None:
            return
        if pointer not in self._blocks:
            raise DriverError("CUDA_ERROR_INVALID_VALUE", f"freeing {pointer:#x}, which is not allocated")
        with self._named("freeing memory"):
            self._blocks.pop(pointer).free()

    def write(self, pointer: Pointer, data: bytes | memoryview) -> None:
        nbytes = memoryview(data).nbytes
        address = self._host.address(pointer, nbytes)
        if address is not None:
            self.synchronize()
            write_host(address, data)
        elif nbytes:
            with self._named(f"writing {nbytes} bytes"):
                self._stream.synchronize()
                self._cuda.memcpy_htod(pointer, data)

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        address = self._host.address(pointer, nbytes)
        if address is not None:
            self.synchronize()
            return ctypes.string_at(address, nbytes)
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

    def load(self, image: bytes) -> LoadedModule:
        with self._named("loading a module"):
            return LoadedModule(self._cuda.module_from_buffer(image))

    def unload(self, module: LoadedModule) -> None:
        for function in module.functions:
            function.handle = None
        module.functions.clear()
        # pycuda unloads a module with its object.
        module.module = None

    def function(self, module: LoadedModule, symbol: str) -> KernelFunction:
        with self._named(f"looking for the kernel {symbol}"):
            handle = module.alive.get_function(symbol)
            allowed = handle.get_attribute(self._cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES)
        function = KernelFunction(handle, symbol, int(allowed))
        module.functions.append(function)
        return function

    def variable(self, module: LoadedModule, symbol: str) -> tuple[Pointer, int]:
        with self._named(f"looking for the variable {symbol}"):
            pointer, nbytes = module.alive.get_global(symbol)
        return int(pointer), int(nbytes)

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        raise self._lacking("encoding a tensor map")

    def launch(self, function: KernelFunction, shape: LaunchShape, arguments: Sequence[bytes]) -> None:
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

    def event(self, reuse: Any = None) -> Any:
        with self._named("recording an event"):
            event = self._cuda.Event() if reuse is None else reuse
            return event.record(self._stream)

    def elapsed_us(self, start: Any, end: Any) -> float:
        with self._named("timing two events"):
            return 1000.0 * float(start.time_till(end))

    def synchronize(self) -> None:
        with self._named("waiting for the stream"):
            self._stream.synchronize()

    def torch_stream(self) -> AbstractContextManager[None]:
        return on_torch_stream(self.ordinal, int(self._stream.handle), None)

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
