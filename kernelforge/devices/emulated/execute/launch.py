"""One launch: state shared by its CTAs, and the threads that run them."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen import llvm_jit
from kernelforge.devices.emulated.codegen.program import Program
from kernelforge.devices.emulated.errors import EmulatorError
from kernelforge.devices.emulated.execute import cta_scheduler
from kernelforge.devices.emulated.execute.memory import Memory, Sanitizer, vary
from kernelforge.devices.emulated.runtime.cache import CacheModel
from kernelforge.devices.emulated.runtime.faults import shadow_bytes
from kernelforge.devices.emulated.runtime.proxies import proxy_bytes
from kernelforge.devices.emulated.runtime.sanitize import written_shared_bytes
from kernelforge.sandbox.policy import Deadline

RESIDENT_CTAS = 1056
"""CTAs that run side by side when blocks wait for each other: 132 SMs times 8."""
RESIDENT_BYTES = 1 << 30
"""Memory for their registers, local and shared memory."""
USUAL_STACK_BYTES = 1 << 20
"""Stack that generated code may use on any thread; the runtime needs some of its own."""


@dataclass
class Launch:
    """State shared by every thread of one launch; sizes are bytes."""

    program: Program
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Shared memory of one CTA, ``dynamic_shared`` included."""
    dynamic_shared: int
    params: bytes
    ctas: npt.NDArray[np.int64] | None
    """Linear ids of the CTAs to run, all when None."""
    memory: Memory
    symbols: npt.NDArray[np.int64]
    """Addresses of the module's variables, by their number in the program."""
    max_work: int
    """In instructions of a warp, of which a matrix product counts what it computes; 0 for no limit."""
    cache: CacheModel | None
    racecheck: bool
    poison: int
    variation: int
    worst_errors: bool
    """Selects one of the behaviours that hardware may have."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """CTAs of a cluster per axis; ``ctas`` lists those of one cluster one after another, by rank."""
    explicit_cluster: bool = False
    lanes: npt.NDArray[np.uint32] | None = None
    """Of each of ``ctas`` and each of its warps, the lanes that run, a bit each; each CTA has one. All when None."""
    cooperative: bool = False
    """All blocks of the grid are resident at once, and may wait for one another."""
    sanitizer: Sanitizer | None = None
    races: bool = False
    """Check global memory for races."""
    workspace: int = 0
    """Device address of the memory in which the blocks of a cooperative launch meet; 0 where none do."""
    stop: npt.NDArray[np.int64] = field(init=False)
    """One word: not 0 ends every thread at its next back edge."""
    table: npt.NDArray[np.int64] = field(init=False)
    allocations: int = field(init=False)

    def __post_init__(self) -> None:
        self.stop = np.zeros(1, dtype=np.int64)
        self.table = self.memory.table()
        self.allocations = len(self.memory.allocations)

    @property
    def count(self) -> int:
        """CTAs that run."""
        return self.grid[0] * self.grid[1] * self.grid[2] if self.ctas is None else int(self.ctas.size)

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps of one CTA."""
        return (self.threads + lay.LANES - 1) // lay.LANES

    @property
    def frame(self) -> int:
        """Local memory of one thread."""
        return self.program.flow.kernel.frame_bytes

    @property
    def shared_stride(self) -> int:
        """Distance between the shared memories of two CTAs."""
        return (self.shared + lay.RED_ZONE + 127) // 128 * 128

    @property
    def copies_stride(self) -> int:
        """Size of one warp's record of asynchronous copies."""
        return lay.COPIES_BYTES if self.program.copies else 0

    @property
    def async_stride(self) -> int:
        """Size of one CTA's record of mbarriers and bulk copies."""
        return lay.ASYNC_BYTES if self.program.asynchronous else 0

    @property
    def tensor_stride(self) -> int:
        """Size of one CTA's tensor memory."""
        return lay.TENSOR_BYTES if self.program.tensor else 0

    @property
    def shadow_bytes(self) -> int:
        """Size of the records of one CTA's shared memory: of the race check, and of what was written or stored."""
        written = written_shared_bytes(self.shared) if self.sanitizes_shared else 0
        proxies = proxy_bytes(self.shared) if self.watches_proxies else 0
        return shadow_bytes(self.shared) + written + proxies if self.racecheck or written else 0

    @property
    def watches_proxies(self) -> bool:
        """Whether stores to shared memory are watched that the async proxy reads."""
        return self.racecheck and self.program.asynchronous

    @property
    def sanitizes_shared(self) -> bool:
        """Whether shared memory is checked for reads before a write: only the CTA's own threads write it."""
        return self.sanitizer is not None and math.prod(self.cluster) == 1 and not self.program.asynchronous

    def resident(self, count: int) -> int:
        """Number of ``count`` CTAs that run side by side: complete clusters."""
        size = math.prod(self.cluster)
        if not self.program.flow.spins or self.racecheck:
            return size
        per_warp = self.program.state_bytes + self.frame * lay.LANES + self.copies_stride
        per_cta = self.warps * per_warp + self.shared_stride + self.async_stride + self.tensor_stride
        most = max(1, RESIDENT_BYTES // max(per_cta, 1))
        if self.cooperative:
            if count > most:
                raise EmulatorError(f"a cooperative launch of {count} blocks; this device holds {most} of them at once")
            return count
        return max(min(count, RESIDENT_CTAS, most) // size, 1) * size


def cta_ids(
    ctas: Sequence[int] | None, grid: tuple[int, int, int], cluster: tuple[int, int, int] = (1, 1, 1)
) -> npt.NDArray[np.int64] | None:
    """The linear ids as an array, those of one cluster one after another by rank.

    Raises:
        EmulatorError: An id is not of the grid, or a cluster is not complete.
    """
    if ctas is None:
        return None
    total = grid[0] * grid[1] * grid[2]
    ids = np.asarray(ctas, dtype=np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= total):
        raise EmulatorError(f"CTA ids must be from 0 to {total - 1}")
    if math.prod(cluster) == 1:
        return ids
    clusters = np.unique(cluster_of(ids, grid, cluster))
    complete = cluster_ctas(clusters, grid, cluster)
    if not np.array_equal(np.sort(ids), np.sort(complete)):
        raise EmulatorError(f"CTA ids must be those of complete clusters {cluster}")
    return complete


def cluster_of(
    ctas: npt.NDArray[np.int64], grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """Linear ids of the clusters that CTAs belong to."""
    x, y, z = ctas % grid[0], ctas // grid[0] % grid[1], ctas // grid[0] // grid[1]
    wide, high = grid[0] // cluster[0], grid[1] // cluster[1]
    return (z // cluster[2] * high + y // cluster[1]) * wide + x // cluster[0]


def cluster_ctas(
    clusters: npt.ArrayLike, grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """Linear ids of the CTAs of some clusters, cluster by cluster, each by rank."""
    numbers = np.asarray(clusters, dtype=np.int64)[:, None]
    ranks = np.arange(math.prod(cluster), dtype=np.int64)
    wide, high = grid[0] // cluster[0], grid[1] // cluster[1]
    x = numbers % wide * cluster[0] + ranks % cluster[0]
    y = numbers // wide % high * cluster[1] + ranks // cluster[0] % cluster[1]
    z = numbers // wide // high * cluster[2] + ranks // cluster[0] // cluster[1]
    ids: npt.NDArray[np.int64] = ((z * grid[1] + y) * grid[0] + x).reshape(-1)
    return ids


def execute(launch: Launch, threads: int, deadline: Deadline | None) -> list[Run]:
    """Run the CTAs on at most ``threads`` operating-system threads."""
    size = math.prod(launch.cluster)
    clusters = launch.count // size
    workers = max(1, min(threads, clusters))
    runs = [Run(launch, clusters * k // workers * size, clusters * (k + 1) // workers * size) for k in range(workers)]
    done = threading.Event()
    watcher = None if deadline is None else threading.Thread(target=_end_at, args=(deadline, launch, done), daemon=True)
    if watcher is not None:
        watcher.start()
    try:
        if launch.program.stack_bytes > USUAL_STACK_BYTES:
            others = _start(runs, USUAL_STACK_BYTES + launch.program.stack_bytes)
        else:
            others = _start(runs[1:])
            runs[0]()
        for thread in others:
            thread.join()
    finally:
        done.set()
        if watcher is not None:
            watcher.join()  # else those of many short launches would be more threads than the jail allows
    return runs


def _start(runs: Sequence[Run], stack_bytes: int = 0) -> list[threading.Thread]:
    """Start a thread for each run, with a stack of at least so many bytes; 0: the system's default."""
    threads = [threading.Thread(target=run) for run in runs]
    usual = threading.stack_size((stack_bytes + 4095) // 4096 * 4096)
    try:
        for thread in threads:
            thread.start()
    finally:
        threading.stack_size(usual)
    return threads


def _end_at(deadline: Deadline, launch: Launch, done: threading.Event) -> None:
    """Stop a launch that is not ``done`` by its deadline."""
    while not done.wait(deadline.remaining()):
        if deadline.remaining() == 0.0:
            launch.stop[0] = cta_scheduler.END_TIMEOUT
            return


def _address(array: npt.NDArray[Any]) -> int:
    """Address of an array's memory; quicker than ``array.ctypes.data``."""
    address: int = array.__array_interface__["data"][0]
    return address


class _Buffers:
    """Memory that generated code, the runtime and the driver use in one run: zeroed parts of one buffer."""

    def __init__(self, launch: Launch, resident: int) -> None:
        program = launch.program
        warps = resident * launch.warps
        records = program.records
        sizes = {
            "records": records.nbytes,
            "context": lay.CTX_BYTES,
            "counts": 16 * (len(program.flow.blocks) + 1),
            "faults": 8 + lay.FAULT_CAPACITY * lay.FAULT_RECORD,
            "scratch": lay.SCRATCH_BYTES,
            "state": warps * program.state_bytes,
            "shared": resident * launch.shared_stride + lay.RED_ZONE,
            "local": warps * launch.frame * lay.LANES + lay.RED_ZONE,
            "copies": warps * launch.copies_stride,
            "asynchronous": resident * launch.async_stride,
            "tensor": resident * launch.tensor_stride,
            "products": lay.PRODUCT_BYTES if launch.tensor_stride else 0,
            "shadow": resident * launch.shadow_bytes or 16,
            "met": lay.MET_BYTES * warps if launch.racecheck else 16,
            "order": lay.ORDER_BYTES * resident if launch.racecheck else 16,
            "status": 4 * (resident * (16 + launch.warps) + 16),
            "slots": lay.SLOT_BYTES * resident,
            "params": len(launch.params) + 64,
        }
        self._starts: dict[str, tuple[int, int]] = {}
        total = 0
        for name, size in sizes.items():
            self._starts[name] = total, size
            total = (total + size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._buffer = np.zeros(total + _ALIGNMENT, dtype=np.uint8)
        self._first = -_address(self._buffer) % _ALIGNMENT
        self._base = _address(self._buffer) + self._first
        self.records = self.view("records", np.uint8).reshape(records.shape)
        self.records[:] = records
        self.view("params", np.uint8)[: len(launch.params)] = np.frombuffer(launch.params, dtype=np.uint8)

    def address(self, name: str) -> int:
        """Address of a part, a multiple of 128."""
        return self._base + self._starts[name][0]

    def view(self, name: str, kind: Any) -> Any:
        """A part as an array of ``kind``."""
        start, size = self._starts[name]
        return self._buffer[self._first + start : self._first + start + size].view(kind)


_ALIGNMENT = 128


class Run:
    """One operating-system thread's share of a launch: CTAs ``first`` to ``end``, its buffers and counters."""

    def __init__(self, launch: Launch, first: int, end: int) -> None:
        resident = launch.resident(end - first)
        # Compiled code has only the addresses of the buffers: the run keeps them, and the launch, alive.
        self._launch = launch
        self._buffers = _Buffers(launch, resident)
        self.counts: npt.NDArray[np.int64] = self._buffers.view("counts", np.int64)
        """(warps, threads) per basic block, then of divergent branches."""
        self.faults: npt.NDArray[np.uint8] = self._buffers.view("faults", np.uint8)
        self.records: npt.NDArray[np.uint8] = self._buffers.records
        self._longs = _context(launch, self._buffers, resident)
        self._arguments = _arguments(launch, self._buffers, resident, first, end)
        self._function = llvm_jit.KernelFunction(llvm_jit.runtime_address(cta_scheduler.run_ctas))
        self.outcome = cta_scheduler.END_COMPLETE

    def __call__(self) -> None:
        self.outcome = self._function(self._buffers.address("context"), _address(self._arguments))

    @property
    def barriers(self) -> int:
        """Barriers that warps passed."""
        return int(self._longs[lay.CTX_BARRIERS // 8])

    @property
    def warp_work(self) -> int:
        """Work in instructions of a warp, of which a matrix product counts what it computes."""
        blocks = self._launch.program.block_costs
        products = int(self._longs[lay.CTX_PRODUCT_WORK // 8])
        return products + int(self.counts[: 2 * len(blocks) : 2] @ blocks)

    @property
    def fault_count(self) -> int:
        """Faults, those beyond the capacity of ``faults`` included."""
        return int(self._longs[lay.CTX_FAULT_COUNT // 8])


_WINDOWS = (
    (lay.CTX_SHARED_WINDOW, lay.SHARED_WINDOW),
    (lay.CTX_LOCAL_WINDOW, lay.LOCAL_WINDOW),
    (lay.CTX_PARAM_WINDOW, lay.PARAM_WINDOW),
)


@functools.lru_cache(64)
def windows(variation: int) -> dict[int, int]:
    """Start of the generic addresses of shared, local and param memory, by their offset in the context."""
    if not variation:
        return dict(_WINDOWS)
    # 8 GiB apart at multiples of 16 MiB, below global memory.
    slots = [3 * (vary(variation, f"window {k}") % 4000) + k + 1 for k in range(3)]
    return {
        at: (slot << 33) + (vary(variation, f"offset {slot}") % 256 << 24)
        for (at, _), slot in zip(_WINDOWS, slots, strict=True)
    }


@functools.lru_cache(64)
def undefined_word(variation: int) -> int:
    """Bits of an undefined value: a float NaN, which shows in the result of a kernel that uses it."""
    return 0xFFFFFFFF - vary(variation, "undefined") % (1 << 22)


def _context(launch: Launch, buffers: _Buffers, resident: int) -> npt.NDArray[np.int64]:
    """Fill the context that generated code and the runtime read; returns it as 64-bit words."""
    program, cache = launch.program, launch.cache
    mode = (lay.MODE_RACECHECK if launch.racecheck else 0) | (lay.MODE_CACHE if cache is not None else 0)
    mode |= lay.MODE_RESIDENT if resident > 1 else 0
    mode |= lay.MODE_PROXIES if launch.watches_proxies else 0
    sanitizer = launch.sanitizer
    if sanitizer is not None:
        mode |= lay.MODE_SANITIZE | (lay.MODE_SANITIZE_SHARED if launch.sanitizes_shared else 0)
    grid = launch.grid
    values = {
        lay.CTX_PARAMS: buffers.address("params"),
        lay.CTX_PARAM_BYTES: len(launch.params),
        lay.CTX_SHARED: buffers.address("shared"),
        lay.CTX_SHARED_BYTES: launch.shared,
        lay.CTX_LOCAL: buffers.address("local"),
        lay.CTX_LOCAL_BYTES: launch.frame,
        lay.CTX_COUNTS: buffers.address("counts"),
        lay.CTX_OPS: buffers.address("records"),
        lay.CTX_ALLOCATIONS: _address(launch.table),
        lay.CTX_ALLOCATION_COUNT: launch.allocations,
        lay.CTX_FAULTS: buffers.address("faults"),
        lay.CTX_ARENA_DELTA: launch.memory.host_base - launch.memory.base,
        lay.CTX_SYMBOLS: _address(launch.symbols),
        lay.CTX_STOP: _address(launch.stop),
        lay.CTX_MODE: mode,
        lay.CTX_CACHE: cache.address if cache is not None else 0,
        lay.CTX_SHADOW: buffers.address("shadow"),
        lay.CTX_SHADOW_STRIDE: launch.shadow_bytes,
        lay.CTX_MET: buffers.address("met"),
        lay.CTX_ORDER: buffers.address("order"),
        lay.CTX_SCRATCH: buffers.address("scratch"),
        lay.CTX_DYNAMIC_SHARED: launch.dynamic_shared,
        lay.CTX_GRID_CTAS: grid[0] * grid[1] * grid[2],
        lay.CTX_BLOCK_COST: _address(program.block_costs),
        lay.CTX_BLOCKS: len(program.flow.blocks),
        lay.CTX_MAX_INSTRUCTIONS: launch.max_work,
        lay.CTX_POISON: launch.poison,
        lay.CTX_WORKSPACE: launch.workspace,
        lay.CTX_PEERS: buffers.address("slots"),
        lay.CTX_PEER_SHARED: buffers.address("shared"),
        lay.CTX_PEER_STRIDE: launch.shared_stride,
        lay.CTX_ASYNC: buffers.address("asynchronous"),
        lay.CTX_ASYNC_STRIDE: launch.async_stride,
        lay.CTX_TENSOR: buffers.address("tensor"),
        lay.CTX_TENSOR_STRIDE: launch.tensor_stride,
        lay.CTX_TENSOR_SCRATCH: buffers.address("products"),
        lay.CTX_COPIES_STRIDE: launch.copies_stride,
        **windows(launch.variation),
    }
    if sanitizer is not None:
        values[lay.CTX_SANITIZED_BASE] = sanitizer.base
        values[lay.CTX_WRITTEN_GLOBAL] = _address(sanitizer.written)
        values[lay.CTX_UNDEFINED_GLOBAL] = _address(sanitizer.undefined)
        values[lay.CTX_OWNERS] = _address(sanitizer.owners) if launch.races and sanitizer.owners.size else 0
        values[lay.CTX_LAUNCH] = sanitizer.launches
    longs: npt.NDArray[np.int64] = buffers.view("context", np.int64)
    for where, value in values.items():
        longs[where // 8] = value
    unsigned = buffers.view("context", np.uint32)
    unsigned[lay.CTX_VARIATION // 4] = lay.WORST_ERRORS if launch.worst_errors else launch.variation
    unsigned[lay.CTX_UNDEFINED // 4] = undefined_word(launch.variation)
    signed = buffers.view("context", np.int32)
    signed[lay.CTX_NCTAID // 4 : lay.CTX_NCTAID // 4 + 3] = grid
    for axis in range(3):
        signed[lay.CTX_CLUSTER_NCTAID // 4 + axis] = launch.cluster[axis]
        signed[lay.CTX_NCLUSTERID // 4 + axis] = grid[axis] // launch.cluster[axis]
    signed[lay.CTX_CLUSTER_NCTARANK // 4] = math.prod(launch.cluster)
    signed[lay.CTX_EXPLICIT_CLUSTER // 4] = int(launch.explicit_cluster)
    signed[lay.CTX_POLL_COST // 4] = cta_scheduler.SPIN_BACK_EDGES_PER_TURN if launch.cooperative else 1
    return longs


def _arguments(launch: Launch, buffers: _Buffers, resident: int, first: int, end: int) -> npt.NDArray[np.int64]:
    """Arguments of the driver's ``run_ctas``."""
    program, cache, ids = launch.program, launch.cache, launch.ctas
    settings = {
        cta_scheduler.ARG_FUNCTION: program.address,
        cta_scheduler.ARG_FIRST: first,
        cta_scheduler.ARG_END: end,
        cta_scheduler.ARG_LIST: _address(ids) if ids is not None and ids.size else 0,
        cta_scheduler.ARG_LANES: _address(launch.lanes) if launch.lanes is not None and launch.lanes.size else 0,
        cta_scheduler.ARG_STATE: buffers.address("state"),
        cta_scheduler.ARG_STATE_BYTES: program.state_bytes,
        cta_scheduler.ARG_CLEAR_BYTES: program.clear_bytes,
        cta_scheduler.ARG_BLOCKS: len(program.flow.blocks),
        cta_scheduler.ARG_SHARED: buffers.address("shared"),
        cta_scheduler.ARG_SHARED_STRIDE: launch.shared_stride,
        cta_scheduler.ARG_LOCAL: buffers.address("local"),
        cta_scheduler.ARG_LOCAL_STRIDE: launch.frame * lay.LANES,
        cta_scheduler.ARG_WARPS: launch.warps,
        cta_scheduler.ARG_THREADS: launch.threads,
        cta_scheduler.ARG_RESIDENT: resident,
        cta_scheduler.ARG_SPINS: int(program.flow.spins),
        cta_scheduler.ARG_POISON: launch.poison,
        cta_scheduler.ARG_HEADER_BYTES: program.header_bytes,
        cta_scheduler.ARG_UNDEFINED: vary(launch.variation, "registers") % 256,
        cta_scheduler.ARG_COPIES: buffers.address("copies") if launch.copies_stride else 0,
        cta_scheduler.ARG_COPIES_STRIDE: launch.copies_stride,
        cta_scheduler.ARG_STATUS: buffers.address("status") + 64 * resident,
        cta_scheduler.ARG_SLOTS: buffers.address("slots"),
        cta_scheduler.ARG_COOPERATIVE: int(launch.cooperative),
        **{cta_scheduler.ARG_CLUSTER + axis: launch.cluster[axis] for axis in range(3)},
        cta_scheduler.ARG_PHASES_ONLY: int(program.flow.phases_only),
        cta_scheduler.ARG_ROTATES: int(program.flow.rotates),
        cta_scheduler.ARG_ASYNC: buffers.address("asynchronous"),
        cta_scheduler.ARG_ASYNC_STRIDE: launch.async_stride,
        cta_scheduler.ARG_TENSOR: buffers.address("tensor"),
        cta_scheduler.ARG_TENSOR_STRIDE: launch.tensor_stride,
        cta_scheduler.ARG_SITES: len(program.sites),
        cta_scheduler.ARG_SHADOW: buffers.address("shadow"),
        cta_scheduler.ARG_SHADOW_STRIDE: launch.shadow_bytes,
        cta_scheduler.ARG_MET: buffers.address("met"),
        cta_scheduler.ARG_ORDER: buffers.address("order"),
        cta_scheduler.ARG_L1_TAGS: _address(cache.l1_tags) if cache is not None else 0,
        cta_scheduler.ARG_L1_BYTES: int(cache.l1_tags.nbytes) if cache is not None else 0,
    }
    arguments = np.zeros(cta_scheduler.ARG_COUNT, dtype=np.int64)
    for index, value in settings.items():
        arguments[index] = value
    return arguments
