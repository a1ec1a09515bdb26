"""Raw counters of a profiled plan, classes of instructions, and profiles of one run merged.

The runner sends the counters and the parent validates them. Of two profiles, one measured by a GPU and one counted by
the emulator over the same PTX, each metric keeps its origin; a measured number replaces the emulator's of that name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from kernelforge.errors import SandboxError
from kernelforge.records import KernelProfile, MemoryHotSpot, Metric, Origin, Profile

SECTOR_BYTES = 32
HOT_SPOTS = 8


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
    lines: float = 0.0
    """128-byte lines that the requests touched, of global and local memory; 0 where they were not counted."""
    addresses: float = 0.0
    """Estimated number of different words that an atomic updates; 0 for loads and stores."""
    in_flight: float = 1.0
    """Of a load or an atomic with a result: loads of its basic block over the longest chain of dependent ones there."""
    word_updates: float = 0.0
    """Estimated updates of the word that an atomic updates most, over all launches; 0 for loads and stores."""
    line_updates: float = 0.0
    """The same of sectors of the 128-byte line in which requests update most."""

    @property
    def is_bulk(self) -> bool:
        """Whether the unit for bulk copies makes the access, not the load and store unit."""
        return self.opcode.startswith(("cp.async.bulk", "cp.reduce.async.bulk"))


CountedText = Literal["source", "ptx"]
"""A text whose lines are counted: the candidate's source, or the PTX of its build."""


@dataclass
class KernelCounts:
    """All launches of one kernel with one grid, block and dynamic shared memory, summed.

    Sums are for complete grids: if only some blocks ran they are scaled up, and ``blocks_run`` is below ``blocks``.
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
    l2_dirty_bytes: float = 0.0
    """Of ``dram_write_bytes``: what the L2 still has when the plan ends. Nsight Compute does not count it."""
    host_read_sectors: float = 0.0
    """Sectors of host memory, which the host link moves; no L2 or DRAM counter has them."""
    host_read_requests: float = 0.0
    """Requests of them on the link, each of up to four sectors of one line."""
    mix: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per operation (``fma.f32``, ``ld.global``): warp instructions, thread instructions."""
    memory: list[MemoryCounts] = field(default_factory=list)
    matrix: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Per kind of matrix product, by the types of A and of the sums (``f16.f32``): operations, two per multiply-add,
    and bytes of operands that the products themselves read from shared memory."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster per axis."""
    lines: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Per line of the counted text, where one was asked for: warp instructions, thread instructions. 0: of headers."""
    ptx_lines: dict[int, float] = field(default_factory=dict)
    """Per line of the PTX: how often warps executed it. A line with several instructions counts once."""

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

    def most_updated_words(self, space: str) -> list[tuple[str, float]]:
        """Atomics of one state space: opcode, and updates of the word that they update most.

        Instructions that update equally many words (of an unrolled loop) are assumed to update the same ones.
        """
        together: dict[tuple[str, int], float] = {}
        for position, op in enumerate(self.select(space, "atomic")):
            key = op.opcode, round(op.addresses) or -position
            together[key] = together.get(key, 0.0) + op.word_updates
        return [(opcode, updates) for (opcode, _), updates in together.items()]

    def total(self, attribute: str, space: str, *accesses: str, bulk: bool | None = None) -> float:
        """Sum of one attribute over :meth:`select`; of bulk copies alone, or of all else, by ``bulk``."""
        selected = (op for op in self.select(space, *accesses) if bulk is None or op.is_bulk == bulk)
        return float(sum(getattr(op, attribute) for op in selected))


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
            SandboxError: the data are malformed.
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
    integers = {"ptx_line", "source_line", "bytes_per_thread"}
    values: dict[str, Any] = {
        item.name: (_text if item.name in texts else _count if item.name in integers else _number)(raw[item.name])
        for item in fields(MemoryCounts)
    }
    if values["in_flight"] < 1:
        raise ValueError(f"{values['in_flight']!r} loads in flight")
    return MemoryCounts(**values)


def _kernel(raw: Any) -> KernelCounts:
    integers = {"dynamic_shared_bytes", "static_shared_bytes", "launches", "blocks", "blocks_run"}
    structured: dict[str, Any] = {
        "expression": _text(raw["expression"]),
        "grid": _triple(raw["grid"]),
        "block": _triple(raw["block"]),
        "cluster": _triple(raw["cluster"]),
        "mix": {_text(name): (_number(warps), _number(threads)) for name, (warps, threads) in raw["mix"].items()},
        "matrix": {_text(name): (_number(ops), _number(read)) for name, (ops, read) in raw["matrix"].items()},
        "memory": [_memory(op) for op in raw["memory"]],
        "lines": {int(line): (_number(warps), _number(threads)) for line, (warps, threads) in raw["lines"].items()},
        "ptx_lines": {int(line): _number(warps) for line, warps in raw["ptx_lines"].items()},
    }
    plain: dict[str, Any] = {
        item.name: (_count if item.name in integers else _number)(raw[item.name])
        for item in fields(KernelCounts)
        if item.name not in structured
    }
    counts = KernelCounts(**structured, **plain)
    if not 1 <= counts.launches <= counts.blocks or not 1 <= counts.blocks_run <= counts.blocks:
        raise ValueError(f"{counts.expression}: launches and blocks do not add up")
    return counts


CLASSES = ("fp32", "fp64", "fp16", "int", "special", "convert", "memory", "warp", "barrier", "control", "move", "other")
"""Every PTX operation is in exactly one.

``special`` are the functions of the special-function unit, divisions and roots among them; ``warp`` are shuffles, votes
and matches; ``move`` are moves, selections and address conversions, most of which cost nothing on hardware.
"""

_BY_OPERATION = {
    **dict.fromkeys(("ld", "ldu", "st", "atom", "red", "prefetch", "cp", "ldmatrix", "stmatrix"), "memory"),
    **dict.fromkeys(("shfl", "vote", "match", "activemask", "redux", "elect"), "warp"),
    **dict.fromkeys(("bar", "barrier", "membar", "fence", "mbarrier"), "barrier"),
    **dict.fromkeys(("bra", "brx", "call", "ret", "exit", "trap", "nanosleep"), "control"),
    **dict.fromkeys(("mov", "cvta", "selp", "isspacep", "mapa", "getctarank"), "move"),
    **dict.fromkeys(("ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt"), "special"),
    "cvt": "convert",
}
_BY_TYPE = {
    "f32": "fp32",
    "f32x2": "fp32",
    "f64": "fp64",
    **dict.fromkeys(("f16", "f16x2", "bf16", "bf16x2"), "fp16"),
    **{f"{kind}{bits}": "int" for kind in "usb" for bits in (8, 16, 32, 64)},
    "pred": "int",
}


def instruction_class(operation: str) -> str:
    """Class of an operation as the emulator names it: ``fma.f32``, ``ld.global``, ``bar.sync``."""
    head, *qualifiers = operation.split(".")
    if head in _BY_OPERATION:
        return _BY_OPERATION[head]
    kinds = [_BY_TYPE[qualifier] for qualifier in qualifiers if qualifier in _BY_TYPE]
    if head == "div" and kinds and kinds[0] != "int":
        return "special"
    return kinds[0] if kinds else "other"


def integer_divisions(mix: Mapping[str, tuple[float, float]]) -> dict[int, float]:
    """Warp instructions that divide integers, remainders among them, by width in bits.

    Each is one PTX instruction that ptxas expands to a loop of tens of machine instructions.
    """
    divisions = {32: 0.0, 64: 0.0}
    for operation, (warps, _) in mix.items():
        head, *qualifiers = operation.split(".")
        if head in ("div", "rem") and instruction_class(operation) == "int":
            divisions[64 if qualifiers[-1].endswith("64") else 32] += warps
    return divisions


def _is_matrix(operation: str) -> bool:
    return operation.split(".")[0] in ("mma", "wmma", "wgmma") or operation == "tcgen05.mma"


def matrix_instructions(mix: Mapping[str, tuple[float, float]]) -> float:
    """Warp instructions of the tensor cores."""
    return sum(warps for operation, (warps, _) in mix.items() if _is_matrix(operation))


def by_class(mix: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Warp instructions of every class; classes that do not occur are 0."""
    totals = dict.fromkeys(CLASSES, 0.0)
    for operation, (warps, _) in mix.items():
        totals[instruction_class(operation)] += warps
    return totals


def hot_spots(ops: Iterable[MemoryCounts]) -> tuple[MemoryHotSpot, ...]:
    """The memory instructions with the most wasted transactions, then those with the most transactions.

    Counters of one line, opcode, space and access are added up.
    """
    merged: dict[tuple[int, str, str, str], MemoryCounts] = {}
    for op in ops:
        key = (op.source_line, op.opcode, op.space, op.access)
        total = merged.setdefault(key, MemoryCounts(op.ptx_line, *key, bytes_per_thread=op.bytes_per_thread))
        total.requests += op.requests
        total.transactions += op.transactions
        total.ideal_transactions += op.ideal_transactions

    def cost(op: MemoryCounts) -> tuple[float, float, int]:
        return (op.ideal_transactions - op.transactions, -op.transactions, op.source_line)

    return tuple(
        MemoryHotSpot(
            source_line=op.source_line,
            opcode=op.opcode,
            space=op.space,
            access=op.access,
            requests=round(op.requests),
            transactions=round(op.transactions),
            ideal_transactions=round(op.ideal_transactions),
        )
        for op in sorted(merged.values(), key=cost)[:HOT_SPOTS]
    )


PTX_COUNTER = "ptx__warp_inst_executed.sum"
"""A counter of every emulated profile, and of no profile of hardware counters."""
UNPROFILED = "unprofiled"
"""The bound of a profile without counters for one."""


def has_ptx_counts(profile: Profile) -> bool:
    """Whether a profile has the emulator's counters."""
    return profile.metric(PTX_COUNTER) is not None


def with_counts(measured: Profile, emulated: Profile, *notes: str) -> Profile:
    """A device's profile with figures that only the emulator has: instruction classes, limits, accesses by line.

    Time, grid and number of launches are the device's; so are traffic and bound if it measured them. A kernel that was
    sampled on either side keeps the smaller share.

    Args:
        measured: Profile of the device.
        emulated: Profile by the emulator, of the same build, plan and size.
        notes: Notes to add.
    """
    counted = {kernel.kernel: kernel for kernel in emulated.kernels}
    kernels = [_merged_kernel(kernel, counted.get(kernel.kernel)) for kernel in measured.kernels]
    names = {kernel.kernel for kernel in measured.kernels}
    roofline = measured.roofline
    changes: dict[str, object] = {}
    if not roofline.dram_bytes:
        traffic = emulated.roofline.dram_bytes
        changes = {"dram_bytes": traffic, "arithmetic_intensity": roofline.flops / traffic if traffic else 0.0}
    if roofline.bound == UNPROFILED:
        changes["bound"] = emulated.roofline.bound
    return measured.model_copy(
        update={
            "kernels": (*kernels, *(kernel for kernel in emulated.kernels if kernel.kernel not in names)),
            "metrics": _joined(measured.metrics, emulated.metrics),
            "roofline": roofline.model_copy(update=changes),
            "notes": (*measured.notes, *notes),
        }
    )


def _merged_kernel(measured: KernelProfile, emulated: KernelProfile | None) -> KernelProfile:
    if emulated is None:
        return measured
    return measured.model_copy(
        update={
            "sampled": min(measured.sampled, emulated.sampled),
            "metrics": _joined(measured.metrics, emulated.metrics),
            "hot_spots": measured.hot_spots or emulated.hot_spots,
            "sass": measured.sass or emulated.sass,
        }
    )


def _joined(measured: Iterable[Metric], emulated: Iterable[Metric]) -> tuple[Metric, ...]:
    """The device's measured metrics, then the emulator's for the other names."""
    first = {metric.name: metric for metric in measured}
    second = {metric.name: metric for metric in emulated}
    kept = [metric for metric in first.values() if metric.origin is Origin.MEASURED or metric.name not in second]
    names = {metric.name for metric in kept}
    return (*kept, *(metric for metric in second.values() if metric.name not in names))
