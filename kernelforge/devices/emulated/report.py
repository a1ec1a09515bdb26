"""Report of one launch on the emulated device: counters, memory operations and faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FaultKind = Literal[
    "out_of_bounds",
    "misaligned",
    "module_global_write",
    "read_only_write",
    "divergent_barrier",
    "barrier_deadlock",
    "shared_race",
    "timeout",
    "trap",
    "assert",
    "divergent_sync",
    "warp_race",
    "division_by_zero",
]


@dataclass(frozen=True)
class LaunchFault:
    """One thing the kernel did wrong, and where."""

    kind: FaultKind
    entry: str
    space: str
    """State space of the access, empty for faults that are not accesses."""
    access: str
    """``load``, ``store``, ``atomic``, or empty."""
    address: int
    """Device address: an offset for shared and local memory, a virtual address for global memory."""
    bytes: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    source_line: int
    source_file: str
    ptx_line: int
    nearest: str = ""
    """For global memory, the nearest allocation: ``12 bytes after the end of 'x' (4096 bytes)``."""

    def __str__(self) -> str:
        where = f"{self.source_file}:{self.source_line}" if self.source_line else f"PTX line {self.ptx_line}"
        who = f"block {self.block}, thread {self.thread}, kernel {self.entry!r}"
        access = f"{self.bytes}-byte {self.space} {self.access}"
        near = f", {self.nearest}" if self.nearest else ""
        text = {
            "out_of_bounds": f"out-of-bounds {access} at {self.address:#x}{near}",
            "misaligned": f"misaligned {access} at {self.address:#x}: not a multiple of {self.bytes}{near}",
            "module_global_write": f"{access} to a __device__ or __constant__ variable, which is read-only here{near}",
            "read_only_write": f"{access} to a read-only buffer{near}",
            "divergent_barrier": "threads of one warp wait at different __syncthreads()",
            "barrier_deadlock": "__syncthreads() that not all threads of the block reach",
            "shared_race": f"race: {access} at offset {self.address:#x} conflicts with another warp's access, "
            "no __syncthreads() between them",
            "warp_race": f"race: {access} at offset {self.address:#x} conflicts with an access of another lane of its "
            "warp, no __syncwarp() between them",
            "division_by_zero": "integer division or remainder by zero, whose result no GPU defines",
            "timeout": "the kernel did not end within its budget (endless loop, or a wait that nothing ends)",
            "trap": "trap instruction executed",
            "assert": "device assert() failed",
            "divergent_sync": "warp-wide operation names lanes that do not take part (they are elsewhere)",
        }[self.kind]
        return f"{text} at {where} ({who})"


@dataclass
class MemoryOp:
    """Counters of one memory instruction over a launch."""

    ptx_line: int
    source_line: int
    source_file: str
    opcode: str
    space: str
    """``global``, ``shared``, ``local`` or ``const``; a generic access counts as global."""
    access: Literal["load", "store", "atomic"]
    bytes_per_thread: int
    requests: int = 0
    """Executions by a warp with at least one active lane."""
    threads: int = 0
    """Lanes served."""
    transactions: int = 0
    """32-byte sectors for global, local and const; wavefronts for shared."""
    ideal_transactions: int = 0
    """What the same distinct bytes need when perfectly coalesced, or free of bank conflicts."""
    sketch: int = 0
    """Of an atomic: a set of the words it met, 1024 bits with one set for each by its hash."""


@dataclass
class LaunchReport:
    """Counters and faults of one launch. Counts are exact for the CTAs that ran, and the same at any thread count."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    ctas_run: int = 0
    thread_instructions: int = 0
    """PTX instructions times active lanes (lanes that a predicate turns off are counted)."""
    warp_instructions: int = 0
    mix: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per operation, for example ``fma.f32`` or ``ld.global``: (warp instructions, thread instructions)."""
    branches: int = 0
    """Conditional branches executed by warps."""
    divergent_branches: int = 0
    barriers: int = 0
    """CTA-wide barriers completed."""
    memory: list[MemoryOp] = field(default_factory=list)
    faults: list[LaunchFault] = field(default_factory=list)
    """The first 64, in CTA order."""
    fault_count: int = 0
    seconds: float = 0.0
    """Wall time of the emulation, without JIT compilation. Says nothing of the time on a GPU."""
    jit_seconds: float = 0.0

    def _sum(self, attribute: str, space: str, *accesses: str) -> int:
        return sum(
            getattr(op, attribute)
            for op in self.memory
            if op.space == space and (not accesses or op.access in accesses)
        )

    @property
    def global_load_sectors(self) -> int:
        """32-byte sectors that global loads touched, summed over requests."""
        return self._sum("transactions", "global", "load")

    @property
    def global_load_requests(self) -> int:
        """Warp-level global loads."""
        return self._sum("requests", "global", "load")

    @property
    def global_store_sectors(self) -> int:
        """32-byte sectors that global stores touched, summed over requests."""
        return self._sum("transactions", "global", "store")

    @property
    def global_store_requests(self) -> int:
        """Warp-level global stores."""
        return self._sum("requests", "global", "store")

    @property
    def shared_requests(self) -> int:
        """Warp-level shared-memory accesses of every kind."""
        return self._sum("requests", "shared")

    @property
    def shared_wavefronts(self) -> int:
        """Shared-memory wavefronts of every kind of access."""
        return self._sum("transactions", "shared")

    @property
    def shared_bank_conflicts(self) -> int:
        """Wavefronts beyond what conflict-free accesses would need."""
        return self._sum("transactions", "shared") - self._sum("ideal_transactions", "shared")

    @property
    def local_sectors(self) -> int:
        """32-byte sectors of local memory (arrays the compiler did not keep in registers)."""
        return self._sum("transactions", "local")

    @property
    def global_load_bytes(self) -> int:
        """Bytes that threads asked of global loads."""
        return sum(
            op.threads * op.bytes_per_thread for op in self.memory if op.space == "global" and op.access == "load"
        )

    @property
    def global_store_bytes(self) -> int:
        """Bytes that threads wrote by global stores."""
        return sum(
            op.threads * op.bytes_per_thread for op in self.memory if op.space == "global" and op.access == "store"
        )
