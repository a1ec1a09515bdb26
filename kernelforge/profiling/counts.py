"""Raw counters of a profiled plan, as the runner sends them; validated on arrival."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kernelforge.errors import SandboxError

SECTOR_BYTES = 32


@dataclass
class MemoryCounts:
    """One memory instruction. ``transactions`` are 32-byte sectors, or wavefronts for shared memory."""

    ptx_line: int
    source_line: int
    opcode: str
    space: str
    access: str
    bytes_per_thread: int
    requests: float = 0.0
    threads: float = 0.0
    transactions: float = 0.0
    ideal_transactions: float = 0.0
    addresses: float = 0.0
    """Of an atomic: different words that it updates, estimated; 0 for loads and stores."""


@dataclass
class KernelCounts:
    """All launches of one kernel with one grid, block and dynamic shared memory, summed.

    Sums stand for whole grids: where only some blocks ran they are scaled up, and ``blocks_run`` is below ``blocks``.
    """

    expression: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    static_shared_bytes: int
    launches: int = 0
    blocks: int = 0
    blocks_run: int = 0
    thread_instructions: float = 0.0
    warp_instructions: float = 0.0
    branches: float = 0.0
    divergent_branches: float = 0.0
    barriers: float = 0.0
    l1_read_sectors: float = 0.0
    l1_read_hits: float = 0.0
    l2_read_sectors: float = 0.0
    l2_read_hits: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_bytes: float = 0.0
    dram_write_bytes: float = 0.0
    mix: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per operation (``fma.f32``, ``ld.global``): warp instructions, thread instructions."""
    memory: list[MemoryCounts] = field(default_factory=list)

    @property
    def threads_per_block(self) -> int:
        return math.prod(self.block)

    @property
    def sampled(self) -> float:
        return min(self.blocks_run / self.blocks, 1.0) if self.blocks else 1.0

    @property
    def dram_bytes(self) -> float:
        return self.dram_read_bytes + self.dram_write_bytes

    def select(self, space: str, *accesses: str) -> Iterable[MemoryCounts]:
        """Memory instructions of one state space, and of some kinds of access where any are named."""
        return (op for op in self.memory if op.space == space and (not accesses or op.access in accesses))

    def total(self, attribute: str, space: str, *accesses: str) -> float:
        """Sum of one attribute over :meth:`select`."""
        return float(sum(getattr(op, attribute) for op in self.select(space, *accesses)))


@dataclass
class PlanCounts:
    """Everything counted in one run of a plan."""

    kernels: list[KernelCounts]
    memsets: int = 0
    memset_bytes: int = 0

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON for the runner's channel."""
        return asdict(self)

    @classmethod
    def from_wire(cls, wire: Any) -> PlanCounts:
        """Inverse of :meth:`to_wire`.

        Raises:
            SandboxError: the runner sent something else; nothing it sends is believed unchecked.
        """
        try:
            kernels = [_kernel(raw) for raw in wire["kernels"]]
            return cls(kernels, _count(wire["memsets"]), _count(wire["memset_bytes"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SandboxError(f"the runner sent a profile that cannot be read: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(f"{value!r} is not a count")
    return value


def _count(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError(f"{value!r} is not a whole number")
    return int(number)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise ValueError("text expected")
    return value


def _triple(value: Any) -> tuple[int, int, int]:
    x, y, z = (_count(extent) for extent in value)
    if min(x, y, z) < 1:
        raise ValueError(f"{value!r} is not a grid or a block")
    return x, y, z


def _memory(raw: Any) -> MemoryCounts:
    texts = {"opcode", "space", "access"}
    whole = {"ptx_line", "source_line", "bytes_per_thread"}
    values: dict[str, Any] = {
        item.name: (_text if item.name in texts else _count if item.name in whole else _number)(raw[item.name])
        for item in fields(MemoryCounts)
    }
    return MemoryCounts(**values)


def _kernel(raw: Any) -> KernelCounts:
    whole = {"dynamic_shared_bytes", "static_shared_bytes", "launches", "blocks", "blocks_run"}
    structured: dict[str, Any] = {
        "expression": _text(raw["expression"]),
        "grid": _triple(raw["grid"]),
        "block": _triple(raw["block"]),
        "mix": {_text(name): (_number(warps), _number(threads)) for name, (warps, threads) in raw["mix"].items()},
        "memory": [_memory(op) for op in raw["memory"]],
    }
    plain: dict[str, Any] = {
        item.name: (_count if item.name in whole else _number)(raw[item.name])
        for item in fields(KernelCounts)
        if item.name not in structured
    }
    counts = KernelCounts(**structured, **plain)
    if not 1 <= counts.launches <= counts.blocks or not 1 <= counts.blocks_run <= counts.blocks:
        raise ValueError(f"{counts.expression}: launches and blocks do not add up")
    return counts
