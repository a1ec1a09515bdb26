"""A driver with no GPU: every call is carried out by the emulator, so that all of the GPU lane runs in real children.

A build's PTX rides behind its cubin (:func:`with_ptx`). Times are made up, the same in every run: they are good for
tests of who asks for what, and for nothing else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from kernelforge.candidate.resolved import TensorView
from kernelforge.compile import Artifact
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.session import CudaSession
from kernelforge.devices.cuda.worker.driver import DriverError, Feature, GpuFacts, LaunchShape, TensorMapSpec
from kernelforge.devices.emulated import layout
from kernelforge.devices.emulated.errors import EmulatorError, OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.execute import loaded_module as machine
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError
from kernelforge.devices.library_calls import cpu_tensor
from kernelforge.sandbox.policy import role_policy

MARK = b"\0PTX of this cubin\0"
FACTS = GpuFacts(
    name="Software GPU",
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    compute_capability=(9, 0),
    sm_count=4,
    max_clock_mhz=1000,
    memory_clock_mhz=1000,
    memory_bus_bits=512,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_sm=228 << 10,
    registers_per_sm=64 << 10,
    threads_per_sm=2048,
    driver="13.0",
    runtime="software",
)
# GPU runners and tools have a private home: each tool would compile the emulator for 15 seconds.
role_policy("gpu-runner").environment["NUMBA_CACHE_DIR"] = role_policy("runner").environment["NUMBA_CACHE_DIR"]

LAUNCH_US, INSTRUCTIONS_PER_US, BYTES_PER_US, OPERATOR_US = 2.0, 1000.0, 1e6, 5.0

_CODES = {
    "misaligned": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "trap": "CUDA_ERROR_LAUNCH_FAILED",
    "assert": "CUDA_ERROR_ASSERT",
    "timeout": "CUDA_ERROR_LAUNCH_TIMEOUT",
    "divergent_barrier": "CUDA_ERROR_LAUNCH_FAILED",
    "barrier_deadlock": "CUDA_ERROR_LAUNCH_FAILED",
}


def with_ptx(artifact: Artifact) -> Artifact:
    """The build with its PTX where this driver looks for it; ELF readers pass over what follows the file."""
    return replace(artifact, cubin=artifact.cubin + MARK + artifact.ptx)


def warm_up() -> None:
    """Import the emulator for the children. Children that use torch import it themselves."""
    machine.warm_up()


@dataclass
class Module:
    machine: LoadedModule
    unloaded: bool = False


class Recorded:
    """A graph: calls in order."""

    def __init__(self, driver: SoftwareDriver) -> None:
        self._driver = driver
        self.calls: list[Callable[[], None]] = []

    def launch(self) -> None:
        for call in self.calls:
            self._driver._put(call)

    def close(self) -> None:
        self.calls = []


class Capturing:
    def __init__(self, driver: SoftwareDriver) -> None:
        self._driver = driver
        self.graph = Recorded(driver)

    def __enter__(self) -> Capturing:
        self._driver._check()
        self._driver._capture = self.graph
        return self

    def __exit__(self, *error: object) -> None:
        self._driver._capture = None


class SoftwareDriver:
    """See the module. Errors of kernels show at the next wait, and stay, as on a GPU."""

    lacks: frozenset[Feature] = frozenset({"clusters", "cooperative", "tensor_maps"})

    def __init__(self, ordinal: int = 0, *, memory_bytes: int = FACTS.memory_bytes) -> None:
        self.facts = replace(FACTS, memory_bytes=memory_bytes)
        self._memory = Memory(memory_bytes)
        self._clock_ns = 0
        self._error: str | None = None
        self.host_blocks: dict[int, int] = {}
        """Bytes of each block of host memory, by its address."""
        self._capture: Recorded | None = None

    def _check(self) -> None:
        if self._error is not None:
            raise DriverError(self._error, "the software driver was asked for more")

    def _pass(self, microseconds: float) -> None:
        """Whole nanoseconds, so that the same work takes the same time whenever it runs."""
        self._clock_ns += round(1000 * microseconds)

    def _put(self, call: Callable[[], None]) -> None:
        """Onto the stream: run now, or recorded. After an error nothing runs."""
        self._check()
        if self._capture is not None:
            self._capture.calls.append(call)
        else:
            call()

    def memory(self) -> tuple[int, int]:
        return self._memory.capacity_bytes - self._memory.used_bytes, self._memory.capacity_bytes

    def allocate(self, nbytes: int) -> int:
        self._check()
        try:
            return self._memory.allocate(nbytes, "allocation")
        except OutOfDeviceMemory as error:
            raise DriverError("CUDA_ERROR_OUT_OF_MEMORY", f"allocating {nbytes} bytes") from error

    def allocate_host(self, nbytes: int) -> int:
        self._check()
        pointer = self._memory.allocate(nbytes, "host memory")
        self.host_blocks[pointer] = nbytes
        return pointer

    def free(self, pointer: int) -> None:
        self._check()
        self._memory.free(pointer)
        self.host_blocks.pop(pointer, None)

    def write(self, pointer: int, data: bytes | memoryview) -> None:
        self._check()
        self._memory.write(pointer, data)

    def read(self, pointer: int, nbytes: int) -> bytes:
        self._check()
        return self._memory.read(pointer, nbytes)

    def fill(self, pointer: int, byte: int, nbytes: int) -> None:
        def work() -> None:
            self._memory.fill(pointer, nbytes, byte)
            self._pass(1 + nbytes / BYTES_PER_US)

        self._put(work)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        def work() -> None:
            self._memory.write(target, self._memory.read(source, nbytes))
            self._pass(1 + 2 * nbytes / BYTES_PER_US)

        self._put(work)

    def load(self, image: bytes) -> Module:
        self._check()
        _, mark, ptx = image.partition(MARK)
        if not mark:
            text, end, _ = image.partition(b"\0")
            if not end or not text.startswith(b".version"):
                raise DriverError("CUDA_ERROR_INVALID_IMAGE", "loading a cubin that no PTX rides on")
            ptx = text
        try:
            loaded = LoadedModule(ptx.decode(), self._memory)
        except PtxSyntaxError as error:
            raise DriverError("CUDA_ERROR_NOT_SUPPORTED", f"loading PTX that cannot be emulated: {error}") from error
        # A GPU does not protect module variables.
        for address in loaded._addresses.values():
            self._memory._allocations[address] = replace(self._memory._allocations[address], flags=0)
        return Module(loaded)

    def unload(self, module: Module) -> None:
        self._check()
        module.machine.close()
        module.unloaded = True

    def function(self, module: Module, symbol: str) -> tuple[Module, str]:
        self._check()
        if symbol not in module.machine.entries:
            raise DriverError("CUDA_ERROR_NOT_FOUND", f"looking for {symbol}")
        return module, symbol

    def variable(self, module: Module, symbol: str) -> tuple[int, int]:
        self._check()
        if symbol not in module.machine._addresses:
            raise DriverError("CUDA_ERROR_NOT_FOUND", f"looking for {symbol}")
        address = module.machine._addresses[symbol]
        return address, self._memory._allocations[address].size

    def tensor_map(self, spec: TensorMapSpec) -> bytes:
        raise DriverError("CUDA_ERROR_NOT_SUPPORTED", "encoding a tensor map")

    def launch(self, function: tuple[Module, str], shape: LaunchShape, arguments: Sequence[bytes]) -> None:
        module, symbol = function
        assert not module.unloaded
        entry = module.machine.entries[symbol]
        block = bytearray(entry.param_bytes)
        for param, packed in zip(entry.params, arguments, strict=True):
            assert len(packed) == param.size
            block[param.offset : param.offset + param.size] = packed

        def work() -> None:
            if self._error is not None:
                return
            try:
                report = module.machine.launch(symbol, shape.grid, shape.block, shape.shared_bytes, bytes(block))
            except UnsupportedInstruction:
                self._error = "CUDA_ERROR_NOT_SUPPORTED"
                return
            except EmulatorError:
                self._error = "CUDA_ERROR_INVALID_VALUE"
                return
            self._pass(LAUNCH_US + report.thread_instructions / INSTRUCTIONS_PER_US)
            if report.faults:
                self._error = _CODES.get(report.faults[0].kind, "CUDA_ERROR_ILLEGAL_ADDRESS")

        self._put(work)

    def capture(self) -> Capturing:
        return Capturing(self)

    def event(self, reuse: int | None = None) -> int:
        self._check()
        return self._clock_ns

    def elapsed_us(self, start: int, end: int) -> float:
        return (end - start) / 1000

    def synchronize(self) -> None:
        self._check()

    @contextlib.contextmanager
    def torch_stream(self) -> Iterator[None]:
        self._check()
        if self._capture is not None:
            raise DriverError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "calling torch during a capture")
        yield
        self._pass(OPERATOR_US)

    def tensor(self, pointer: int, view: TensorView) -> Any:
        """Torch's view of emulated memory: it is the host's."""
        return cpu_tensor(self._memory.host_base + pointer - layout.GLOBAL_BASE, view)

    def profiler_region(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        self._error = "CUDA_ERROR_CONTEXT_IS_DESTROYED"


def create(ordinal: int) -> SoftwareDriver:
    """Factory of the driver, as in ``package.module:factory``."""
    return SoftwareDriver(ordinal)


def create_small(ordinal: int) -> SoftwareDriver:
    """A GPU with 48 MiB."""
    return SoftwareDriver(ordinal, memory_bytes=48 << 20)


def create_crowded(ordinal: int) -> SoftwareDriver:
    """A GPU whose memory is in use by others: 1 GiB, of which 8 MiB are free."""
    driver = SoftwareDriver(ordinal, memory_bytes=8 << 20)
    driver.facts = FACTS
    return driver


class Graphless(SoftwareDriver):
    lacks = SoftwareDriver.lacks | {"graphs", "torch"}


def create_without_graphs(ordinal: int) -> SoftwareDriver:
    return Graphless(ordinal)


class Ailing(SoftwareDriver):
    """Runs plans, and copies wrongly: what only a probe finds."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        super().copy(target, source, nbytes - 1)


def create_ailing(ordinal: int) -> SoftwareDriver:
    return Ailing(ordinal)


class Mortal(SoftwareDriver):
    """Takes the process with it when a kernel faults."""

    def synchronize(self) -> None:
        if self._error is not None:
            os.abort()


def create_mortal(ordinal: int) -> SoftwareDriver:
    return Mortal(ordinal)


class Blind(SoftwareDriver):
    """Does not find module variables."""

    def variable(self, module: Module, symbol: str) -> tuple[int, int]:
        raise DriverError("CUDA_ERROR_NOT_FOUND", f"looking for {symbol}")


def create_blind(ordinal: int) -> SoftwareDriver:
    return Blind(ordinal)


def create_unknown(ordinal: int) -> SoftwareDriver:
    """A GPU of a generation that no compiler of today knows."""
    driver = SoftwareDriver(ordinal)
    driver.facts = replace(FACTS, compute_capability=(99, 0))
    return driver


def create_nothing(ordinal: int) -> SoftwareDriver:
    """A machine without a GPU."""
    raise DriverError("CUDA_ERROR_NO_DEVICE", f"opening GPU {ordinal}")


class SoftwareDevice(CudaDevice):
    """``cuda:0`` on the software driver, for builds as the compiler makes them.

    Args:
        factory: Of this module.
    """

    def __init__(self, factory: str = "create", **options: Any) -> None:
        super().__init__(0, driver=f"{__name__}:{factory}", **{"grace_s": 2.0} | options)

    def open(self, artifact: Artifact) -> CudaSession:
        return super().open(with_ptx(artifact))


DeviceOf = Callable[[str], SoftwareDevice]
