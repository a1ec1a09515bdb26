"""The CUDA driver API through cuda-bindings: launches, graphs, events, copies, tensor maps and facts.

An :class:`Owner` (cupy in production) provides the context, its memory, its modules and its stream. Each call of CUDA
is made either by the owner or here, never by both.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol

from kernelforge.devices.cuda import libcuda
from kernelforge.devices.cuda.worker.driver import (
    DriverError,
    Feature,
    GpuFacts,
    Graph,
    HostMemory,
    KernelFunction,
    LaunchShape,
    Pointer,
    TensorMapSpec,
    cuda_library,
    gpu_facts,
    on_torch_stream,
    torch_pool,
    write_host,
)

PORTABLE_CLUSTER = 8
"""Blocks per cluster that every GPU with clusters runs (CUDA C++ Programming Guide, *Thread Block Clusters*)."""

_MAP_BYTES = 128
_MAP_ALIGNMENT = 128
"""Alignment in host memory: CUDA requires 64 bytes; its header aligns the type to 128 from CUDA 13 on."""

_MAP_ELEMENTS = {
    "float64": "FLOAT64",
    "float32": "FLOAT32",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int64": "INT64",
    "int32": "INT32",
    # A tile is copied bit for bit; CUDA names no signed types of 8 and 16 bits.
    "int16": "UINT16",
    "int8": "UINT8",
    "uint8": "UINT8",
    "bool": "UINT8",
}

_WIDE_MODES = {
    "im2col::w": "CU_TENSOR_MAP_IM2COL_WIDE_MODE_W",
    "im2col::w::128": "CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128",
}
_MAP_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}


class Owner(Protocol):
    """Owns the context, which is current on the calling thread, and its memory and modules."""

    runtime: str
    """Name and version: ``cupy 14.2.0``."""

    @property
    def stream(self) -> int:
        """Handle (``CUstream``) of a stream that can be captured."""
        ...

    def allocate(self, nbytes: int) -> Pointer: ...

    def free(self, pointer: Pointer) -> None: ...

    def load(self, image: bytes) -> Any: ...

    def handle(self, module: Any) -> int:
        """``CUmodule`` of a module."""
        ...

    def function(self, module: Any, symbol: str) -> int:
        """``CUfunction`` of a kernel, valid as long as its module."""
        ...

    def unload(self, module: Any) -> None: ...

    def close(self) -> None: ...


class BindingsEvent:
    """A timing event, destroyed with the object."""

    __slots__ = ("_destroy", "handle")

    def __init__(self, cuda: Any, handle: Any) -> None:
        self.handle = handle
        self._destroy = cuda.cuEventDestroy

    def __del__(self) -> None:
        # A destructor cannot report an error; a lost context shows in the next call.
        self._destroy(self.handle)


class BindingsGraph:
    """An instantiated graph."""

    def __init__(self, driver: BindingsDriver, handle: Any, torch_pool: object | None) -> None:
        self._driver = driver
        self._handle: Any | None = handle
        self._torch_pool = torch_pool
        """Memory that torch operators allocated during the capture; each replay writes to it."""

    def launch(self) -> None:
        if self._handle is None:
            raise DriverError("CUDA_ERROR_INVALID_HANDLE", "launching a graph that was closed")
        self._driver.call("launching a graph", "cuGraphLaunch", self._handle, self._driver.stream)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self._driver.call("destroying a graph", "cuGraphExecDestroy", handle)
        self._torch_pool = None


class BindingsCapture:
    """``with driver.capture() as capture: ...``, then ``capture.graph``."""

    graph: Graph

    def __init__(self, driver: BindingsDriver) -> None:
        self._driver = driver
        self.torch_pool: object | None = None

    def __enter__(self) -> BindingsCapture:
        driver = self._driver
        # Thread-local: calls that cannot be captured are refused on this thread only.
        mode = driver.cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.call("beginning a capture", "cuStreamBeginCapture", driver.stream, mode)
        driver.capturing = self
        return self

    def __exit__(self, *error: object) -> None:
        driver = self._driver
        driver.capturing = None
        if error[0] is not None:
            # The stream must leave capture mode; the error that is being raised says why the capture failed.
            status, template = driver.cuda.cuStreamEndCapture(driver.stream)
            if not status and int(template):
                driver.call("destroying a graph", "cuGraphDestroy", template)
            return
        template = driver.call("ending a capture", "cuStreamEndCapture", driver.stream)
        try:
            handle = driver.call("instantiating a graph", "cuGraphInstantiate", template, 0)
        finally:
            driver.call("destroying a graph's template", "cuGraphDestroy", template)
        self.graph = BindingsGraph(driver, handle, self.torch_pool)
        # The first replay must take as long as the others.
        driver.call("uploading a graph", "cuGraphUpload", handle, driver.stream)


class BindingsDriver:
    """A driver for ``owner``'s context on the GPU with that ordinal."""

    lacks: frozenset[Feature]

    def __init__(self, owner: Owner, ordinal: int) -> None:
        from cuda.bindings import driver as cuda

        self.cuda = cuda
        self.owner = owner
        self.ordinal = ordinal
        self.stream = cuda.CUstream(owner.stream)
        self.capturing: BindingsCapture | None = None
        self._host = HostMemory()
        self._facts = self._read_facts()
        # Both came with Hopper (CUDA C++ Programming Guide, *Compute Capabilities*).
        old: frozenset[Feature] = frozenset({"clusters", "tensor_maps"})
        self.lacks = old if self._facts.compute_capability < (9, 0) else frozenset()

    def call(self, doing: str, name: str, *arguments: Any) -> Any:
        """Call a function of the driver API.

        Returns:
            Its result, a tuple of several, or None.

        Raises:
            DriverError: the result is not ``CUDA_SUCCESS``.
        """
        try:
            status, *results = getattr(self.cuda, name)(*arguments)
        except (KeyError, ValueError) as error:
            # Bindings older than the driver lack its newest errors: they raise the number, or a text with it.
            number = str(error).removesuffix(" is not a valid CUresult")
            if not number.isdecimal():
                raise
            raise DriverError(f"CUDA_ERROR_{number}", doing) from error
        if status:
            raise DriverError(status.name, doing)
        return results[0] if len(results) == 1 else tuple(results) or None

    @property
    def facts(self) -> GpuFacts:
        return self._facts

    def _read_facts(self) -> GpuFacts:
        device = self.call(f"looking for GPU {self.ordinal}", "cuDeviceGet", self.ordinal)

        def attribute(name: str) -> int:
            number = getattr(self.cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.call(f"asking for {name}", "cuDeviceGetAttribute", number, device))

        name = self.call("asking for the GPU's name", "cuDeviceGetName", 256, device)
        version = self.call("asking for the driver's version", "cuDriverGetVersion")
        return gpu_facts(
            attribute,
            name=name.split(b"\0")[0].decode(),
            uuid=self._uuid(int(device)),
            compute_capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            memory_bytes=self.call("asking for the GPU's memory", "cuDeviceTotalMem", device),
            driver=libcuda.version_text(version),
            runtime=self.owner.runtime,
        )

    def _uuid(self, device: int) -> str:
        """The UUID by the function that lists GPUs: on a MIG instance, ``cuDeviceGetUuid`` of the bindings depends on
        their version."""
        library = cuda_library()
        try:
            return libcuda.uuid(library, device)
        except RuntimeError as error:
            code, _, doing = str(error).partition(" while ")
            raise DriverError(code, doing) from error

    def memory(self) -> tuple[int, int]:
        free, total = self.call("asking for free memory", "cuMemGetInfo")
        return int(free), int(total)

    def allocate(self, nbytes: int) -> Pointer:
        return self.owner.allocate(nbytes)

    def allocate_host(self, nbytes: int) -> Pointer:
        doing = f"allocating {nbytes} bytes of pinned host memory"
        flags = self.cuda.CU_MEMHOSTALLOC_PORTABLE | self.cuda.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(self.call(doing, "cuMemHostAlloc", max(1, nbytes), flags))
        try:
            device = int(self.call(doing, "cuMemHostGetDevicePointer", address, 0))
        except DriverError:
            self.call("freeing host memory", "cuMemFreeHost", address)
            raise
        return self._host.add(device, address, nbytes)

    def free(self, pointer: Pointer) -> None:
        address = self._host.pop(pointer)
        if address is not None:
            self.call("freeing host memory", "cuMemFreeHost", address)
        else:
            self.owner.free(pointer)

    def write(self, pointer: Pointer, data: bytes | memoryview) -> None:
        nbytes = memoryview(data).nbytes
        address = self._host.address(pointer, nbytes)
        if address is not None:
            self.synchronize()
            write_host(address, data)
        elif nbytes:
            doing = f"writing {nbytes} bytes"
            self.call(doing, "cuMemcpyHtoDAsync", pointer, data, nbytes, self.stream)
            self.call(doing, "cuStreamSynchronize", self.stream)

    def read(self, pointer: Pointer, nbytes: int) -> bytes:
        address = self._host.address(pointer, nbytes)
        if address is not None:
            self.synchronize()
            return ctypes.string_at(address, nbytes)
        data = bytearray(nbytes)
        if nbytes:
            doing = f"reading {nbytes} bytes"
            self.call(doing, "cuMemcpyDtoHAsync", data, pointer, nbytes, self.stream)
            self.call(doing, "cuStreamSynchronize", self.stream)
        return bytes(data)

    def fill(self, pointer: Pointer, byte: int, nbytes: int) -> None:
        if nbytes:
            self.call(f"filling {nbytes} bytes", "cuMemsetD8Async", pointer, byte, nbytes, self.stream)

    def copy(self, target: Pointer, source: Pointer, nbytes: int) -> None:
        if nbytes:
            self.call(f"copying {nbytes} bytes", "cuMemcpyDtoDAsync", target, source, nbytes, self.stream)

    def load(self, image: bytes) -> Any:
        return self.owner.load(image)

    def unload(self, module: Any) -> None:
        self.owner.unload(module)

    def function(self, module: Any, symbol: str) -> KernelFunction:
        handle = self.cuda.CUfunction(self.owner.function(module, symbol))
        limit = self.cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        allowed = self.call(f"asking for the shared memory of {symbol}", "cuFuncGetAttribute", limit, handle)
        return KernelFunction(handle, symbol, int(allowed), module)

    def variable(self, module: Any, symbol: str) -> tuple[Pointer, int]:
        handle = self.cuda.CUmodule(self.owner.handle(module))
        pointer, nbytes = self.call(f"looking for the variable {symbol}", "cuModuleGetGlobal", handle, symbol.encode())
        return int(pointer), int(nbytes)

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        return encode_tensor_map(self.cuda, spec)

    def launch(self, function: KernelFunction, shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        self._allow(function, shape)
        config = self.cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
        config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
        config.sharedMemBytes = shape.shared_bytes
        config.hStream = self.stream
        attributes = self._attributes(shape)
        config.numAttrs = len(attributes)
        config.attrs = attributes
        values = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
        self.call(
            f"launching {function.symbol} with grid {shape.grid} and block {shape.block}",
            "cuLaunchKernelEx", config, function.handle, ctypes.addressof(pointers) if values else 0, 0,
        )  # fmt: skip

    def _allow(self, function: KernelFunction, shape: LaunchShape) -> None:
        """Set the attributes that the kernel needs for this launch."""
        names = self.cuda.CUfunction_attribute
        if shape.shared_bytes > function.dynamic_shared_bytes:
            self.call(
                f"allowing {function.symbol} {shape.shared_bytes} bytes of dynamic shared memory", "cuFuncSetAttribute",
                function.handle, names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shape.shared_bytes,
            )  # fmt: skip
            function.dynamic_shared_bytes = shape.shared_bytes
        x, y, z = shape.cluster or (1, 1, 1)
        if x * y * z > PORTABLE_CLUSTER and not function.non_portable_cluster:
            self.call(
                f"allowing {function.symbol} clusters of {x * y * z} blocks", "cuFuncSetAttribute",
                function.handle, names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
            )  # fmt: skip
            function.non_portable_cluster = True

    def _attributes(self, shape: LaunchShape) -> list[Any]:
        attributes = []
        if shape.cluster is not None:
            cluster = self.cuda.CUlaunchAttribute()
            cluster.id = self.cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = shape.cluster
            attributes.append(cluster)
        if shape.cooperative:
            cooperative = self.cuda.CUlaunchAttribute()
            cooperative.id = self.cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            attributes.append(cooperative)
        return attributes

    def capture(self) -> BindingsCapture:
        return BindingsCapture(self)

    def event(self, reuse: BindingsEvent | None = None) -> BindingsEvent:
        event = reuse
        if event is None:
            # The event exists before it is recorded, so that a failure there destroys it.
            handle = self.call("creating an event", "cuEventCreate", int(self.cuda.CUevent_flags.CU_EVENT_DEFAULT))
            event = BindingsEvent(self.cuda, handle)
        self.call("recording an event", "cuEventRecord", event.handle, self.stream)
        return event

    def elapsed_us(self, start: BindingsEvent, end: BindingsEvent) -> float:
        return 1000.0 * float(self.call("timing two events", "cuEventElapsedTime", start.handle, end.handle))

    def synchronize(self) -> None:
        self.call("waiting for the stream", "cuStreamSynchronize", self.stream)

    def torch_stream(self) -> AbstractContextManager[None]:
        if self.capturing is not None and self.capturing.torch_pool is None:
            self.capturing.torch_pool = torch_pool()
        pool = self.capturing.torch_pool if self.capturing is not None else None
        return on_torch_stream(self.ordinal, int(self.stream), pool)

    @contextmanager
    def profiler_region(self) -> Iterator[None]:
        self.call("starting the profiler", "cuProfilerStart")
        try:
            yield
            self.synchronize()
        finally:
            self.call("stopping the profiler", "cuProfilerStop")

    def close(self) -> None:
        self.owner.close()


class _Encoder(NamedTuple):
    """The function of CUDA that encodes a map, and those of its arguments that others do not take."""

    name: str
    moved: tuple[Any, ...]
    steps: tuple[int, ...]
    """Element strides."""
    mode: tuple[Any, ...] = ()
    """Of wide ones."""


def _encoder(cuda: Any, spec: TensorMapSpec) -> _Encoder:
    rank, pixels = len(spec.extents), spec.pixels
    if pixels is None:
        return _Encoder("cuTensorMapEncodeTiled", ((ctypes.c_uint32 * rank)(*spec.box),), (1,) * rank)
    corners, extents = (pixels.lower, pixels.upper), tuple(ctypes.c_uint32(extent) for extent in spec.box)
    steps = (1, *pixels.stride, *(1,) * rank)[:rank]
    if pixels.mode == "im2col":
        moved = (*((ctypes.c_int * rank)(*corner) for corner in corners), *extents)
        return _Encoder("cuTensorMapEncodeIm2col", moved, steps)
    mode = ctypes.c_int(getattr(cuda.CUtensorMapIm2ColWideMode, _WIDE_MODES[pixels.mode]))
    moved = (*(ctypes.c_int(corner[0]) for corner in corners), *extents)
    return _Encoder("cuTensorMapEncodeIm2colWide", moved, steps, (mode,))


def encode_tensor_map(cuda: Any, spec: TensorMapSpec) -> bytes:
    """The 128 bytes of a tensor map, for the GPU of the current context.

    Not interleaved, element strides of 1, zeros outside, and L2 fetches of 128 bytes (CUDA driver API, *Tensor Map
    Object Management*). By ctypes: CUDA needs the map aligned to 64 bytes, and cuda-bindings 13.5 holds it in a Python
    object, which is aligned to 16 (NVIDIA/cuda-python, pull request 1692).

    Args:
        cuda: ``cuda.bindings.driver``, for CUDA's numbers.
        spec: The map.

    Raises:
        DriverError: CUDA refuses it, or has no such element type or mode.
    """
    images = ""
    if spec.pixels is not None:
        box = spec.pixels
        images = f", {box.mode}, corners {box.lower} and {box.upper}, stride {box.stride}"
    doing = (
        f"encoding a tensor map ({spec.element}, extents {spec.extents}, strides of {spec.strides_bytes} bytes, "
        f"box {spec.box}, swizzle {spec.swizzle_bytes}, at {spec.pointer:#x}{images})"
    )
    if spec.element not in _MAP_ELEMENTS:
        raise DriverError("CUDA_ERROR_INVALID_VALUE", f"{doing}: CUDA has no such element type")
    library = cuda_library()
    storage = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    address = -(-ctypes.addressof(storage) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    rank = len(spec.extents)
    name, moved, steps, mode = _encoder(cuda, spec)
    encode = getattr(library, name, None)
    if encode is None:
        raise DriverError("CUDA_ERROR_NOT_SUPPORTED", f"{doing}: this driver has no {name}")
    status = encode(
        ctypes.c_void_p(address),
        ctypes.c_int(getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_MAP_ELEMENTS[spec.element]}")),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(spec.pointer),
        (ctypes.c_uint64 * rank)(*spec.extents),
        (ctypes.c_uint64 * rank)(*spec.strides_bytes),
        *moved,
        (ctypes.c_uint32 * rank)(*steps),
        ctypes.c_int(cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
        *mode,
        ctypes.c_int(getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_MAP_SWIZZLES[spec.swizzle_bytes]}")),
        ctypes.c_int(cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B),
        ctypes.c_int(cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
    )
    if status:
        raise DriverError(libcuda.error_name(library, status), doing)
    return ctypes.string_at(address, _MAP_BYTES)
