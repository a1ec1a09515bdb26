"""Kernels of the harness: one flushes the L2, one overwrites shared memory, and an empty one measures the overhead of a
kernel in a graph.

The L2 is flushed by reading, which leaves clean lines, so that no write-back falls into a measured time. Shared memory
keeps its contents from one kernel to the next, and is filled with poison.
"""

from __future__ import annotations

import struct
from typing import Any

from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import Driver, DriverError, LaunchShape, Pointer

FLUSH, SCRUB, EMPTY = "kernelforge_flush", "kernelforge_scrub", "kernelforge_empty"
THREADS = 256
BLOCKS_PER_SM = 8
"""With 2048 threads on an SM, one load of 16 bytes per thread in flight saturates the memory's bandwidth."""

SCRUB_THREADS = 1024
"""Threads of the one block that an SM holds when the block has all shared memory."""

_VECTOR_BYTES = 16
_SINK_BYTES = 4

PTX = f"""\
.version 7.0
.target sm_50
.address_size 64

.extern .shared .align 16 .b8 kernelforge_shared[];

.visible .entry {FLUSH}(
    .param .u64 {FLUSH}_param_0,
    .param .u64 {FLUSH}_param_1,
    .param .u64 {FLUSH}_param_2
)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<13>;
    .reg .b64 %rd<10>;

    ld.param.u64 %rd1, [{FLUSH}_param_0];
    ld.param.u64 %rd2, [{FLUSH}_param_1];
    ld.param.u64 %rd3, [{FLUSH}_param_2];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd4, %r1, %r2;
    cvt.u64.u32 %rd5, %r3;
    add.s64 %rd4, %rd4, %rd5;
    mul.wide.u32 %rd6, %r4, %r2;
    mov.u32 %r5, 0;

$next:
    setp.ge.u64 %p1, %rd4, %rd3;
    @%p1 bra $end;
    shl.b64 %rd7, %rd4, 4;
    add.s64 %rd8, %rd1, %rd7;
    ld.global.cg.v4.u32 {{%r6, %r7, %r8, %r9}}, [%rd8];
    or.b32 %r10, %r6, %r7;
    or.b32 %r11, %r8, %r9;
    or.b32 %r10, %r10, %r11;
    or.b32 %r5, %r5, %r10;
    add.s64 %rd4, %rd4, %rd6;
    bra $next;

$end:
    setp.ne.u32 %p2, %r5, 0;
    @%p2 st.global.u32 [%rd2], %r5;
    ret;
}}

.visible .entry {SCRUB}(
    .param .u32 {SCRUB}_param_0,
    .param .u32 {SCRUB}_param_1
)
{{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;

    ld.param.u32 %r1, [{SCRUB}_param_0];
    ld.param.u32 %r2, [{SCRUB}_param_1];
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %ntid.x;
    shl.b32 %r3, %r3, 4;
    shl.b32 %r4, %r4, 4;
    mov.u32 %r5, kernelforge_shared;

$fill:
    setp.ge.u32 %p1, %r3, %r1;
    @%p1 bra $filled;
    add.u32 %r6, %r5, %r3;
    st.volatile.shared.v4.u32 [%r6], {{%r2, %r2, %r2, %r2}};
    add.u32 %r3, %r3, %r4;
    bra $fill;

$filled:
    ret;
}}

.visible .entry {EMPTY}()
{{
    ret;
}}
"""
"""``flush(buffer, sink, vectors of 16 bytes)`` reads the buffer through the L2 and past the L1. The buffer holds zeros;
any other content is written to the sink. ``scrub(bytes, word)`` fills the block's shared memory. ``empty()`` does
nothing."""


class L2Flush:
    """A buffer of zeros, the kernel that reads it, and the one that fills shared memory.

    Args:
        driver: Calls CUDA.
        nbytes: Bytes to read; rounded down to whole vectors.
        poison: Byte that shared memory holds afterwards.

    Raises:
        DriverError: the buffer does not fit.
        RuntimeError: the GPU's driver refuses the kernel, for which no plan is to blame.
    """

    def __init__(self, driver: Driver, nbytes: int, poison: int) -> None:
        self._driver = driver
        self._buffer: Pointer = 0
        self._sink: Pointer = 0
        self._module = _loaded(driver)
        try:
            self._flush = driver.function(self._module, FLUSH)
            self._scrub = driver.function(self._module, SCRUB)
            self._empty = driver.function(self._module, EMPTY)
            self._buffer = driver.allocate(nbytes)
            self._sink = driver.allocate(_SINK_BYTES)
            driver.fill(self._buffer, 0, nbytes)
            driver.fill(self._sink, 0, _SINK_BYTES)
        except BaseException:
            self.close()
            raise
        facts = driver.facts
        shared = facts.shared_bytes_per_block // _VECTOR_BYTES * _VECTOR_BYTES
        self._scrub_shape = LaunchShape((facts.sm_count, 1, 1), (SCRUB_THREADS, 1, 1), shared)
        self._scrub_arguments = [struct.pack("<I", shared), bytes([poison]) * 4]
        self._flush_shape = LaunchShape((BLOCKS_PER_SM * facts.sm_count, 1, 1), (THREADS, 1, 1))
        self._flush_arguments = [
            struct.pack("<Q", value) for value in (self._buffer, self._sink, nbytes // _VECTOR_BYTES)
        ]
        # The first launch of a kernel may load it, which cannot be captured.
        self.run()

    def run(self) -> None:
        """Enqueue both kernels: the flush last, so that an SM is as any kernel leaves it."""
        self._driver.launch(self._scrub, self._scrub_shape, self._scrub_arguments)
        self._driver.launch(self._flush, self._flush_shape, self._flush_arguments)

    def run_empty(self, shape: LaunchShape) -> None:
        """Enqueue the empty kernel with the grid, block and shared memory of ``shape``."""
        self._driver.launch(self._empty, shape, [])

    def faults(self) -> list[RunFailure]:
        """A fault if the buffer was written before it was last read; else none."""
        if not any(self._driver.read(self._sink, _SINK_BYTES)):
            return []
        text = "out-of-bounds write, into the memory that the harness reads to empty the L2"
        return [RunFailure("sanitizer", text)]

    def close(self) -> None:
        """Free the buffers and the kernels."""
        for pointer in (self._buffer, self._sink):
            if pointer:
                self._driver.free(pointer)
        self._buffer = self._sink = 0
        self._driver.unload(self._module)


def _loaded(driver: Driver) -> Any:
    try:
        # CUDA requires PTX text to end with a zero.
        return driver.load(PTX.encode() + b"\0")
    except DriverError as error:
        if error.sticky or error.code == "CUDA_ERROR_OUT_OF_MEMORY":
            raise
        raise RuntimeError(
            f"the kernels that empty the L2 were not loaded: {error}. The GPU's driver compiles them from PTX with "
            "libnvidia-ptxjitcompiler.so.1, which must be in the folder of libcuda.so.1"
        ) from error
