"""The kernels of a module: their parameters, their shared variables, and the launches that they accept."""

from __future__ import annotations

from dataclasses import dataclass

from kernelforge.devices.emulated.errors import EmulatorError
from kernelforge.devices.emulated.layout import MAX_SHARED_BYTES
from kernelforge.devices.emulated.ptx import parser
from kernelforge.devices.emulated.ptx.inline import FlatKernel
from kernelforge.devices.emulated.ptx.parser import Instruction

MAX_THREADS_PER_BLOCK = 1024
MAX_CLUSTER = 8
"""CTAs of a cluster that every GPU with clusters runs (CUDA C++ Programming Guide, *Thread Block Clusters*)."""
MAX_LOCAL_BYTES = 512 * 1024


@dataclass(frozen=True)
class Param:
    """A kernel parameter; sizes and the offset in the parameter buffer are bytes."""

    name: str
    size: int
    align: int
    offset: int
    type: str
    """PTX type: ``u64``, ``f32``, or ``b8`` for structs."""


@dataclass(frozen=True)
class KernelEntry:
    """A kernel of the module."""

    name: str
    params: tuple[Param, ...]
    static_shared_bytes: int
    local_bytes: int
    """Frame per thread that the PTX declares."""
    uses_global_atomics: bool
    max_threads: int | None
    """From ``__launch_bounds__``."""
    meets: bool = False
    """It asks for the memory in which all blocks of a cooperative launch meet."""
    cluster: tuple[int, int, int] | None = None
    """From ``__cluster_dims__``."""

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


def uses_global_atomics(kernel: FlatKernel) -> bool:
    """Whether the result may depend on the order of CTAs, through atomics outside shared memory."""
    for item in kernel.body:
        if isinstance(item, Instruction) and item.opcode == "cp" and {"reduce", "bulk_group"} <= set(item.modifiers):
            return True
        if not isinstance(item, Instruction) or item.opcode not in ("atom", "red"):
            continue
        if not any(m.startswith("shared") for m in item.modifiers):
            return True
    return False


def reads_special(kernel: FlatKernel, name: str) -> bool:
    """Whether a kernel reads a special register."""
    return any(isinstance(item, Instruction) and parser.Special(name) in item.operands for item in kernel.body)


def shared_layout(kernel: FlatKernel) -> tuple[dict[str, int], int]:
    """Offsets of the shared variables that the kernel names, and their total; extern arrays start after it."""
    used = {
        op
        for item in kernel.body
        if isinstance(item, Instruction)
        for operand in item.operands
        for op in _symbols(operand)
    }
    offsets: dict[str, int] = {}
    at = 0
    dynamic_align = 16
    for name, variable in kernel.shared.items():
        if variable.extern or variable.size == 0:
            dynamic_align = max(dynamic_align, variable.align)
        elif name in used:
            at = (at + variable.align - 1) // variable.align * variable.align
            offsets[name] = at
            at += variable.size
    total = at
    base = (at + dynamic_align - 1) // dynamic_align * dynamic_align
    for name, variable in kernel.shared.items():
        if variable.extern or variable.size == 0:
            offsets[name] = base
            total = max(total, base if name in used else total)
    return offsets, total


def _symbols(operand: object) -> list[str]:
    if isinstance(operand, parser.Sym):
        return [operand.name]
    if isinstance(operand, parser.Addr):
        return _symbols(operand.base)
    if isinstance(operand, parser.Vec):
        return [name for item in operand.items for name in _symbols(item)]
    return []


def cluster_shape(extents: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    """The extents that ``.reqnctapercluster`` gives, as three."""
    if not extents:
        return None
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def check_cluster(
    entry: KernelEntry, grid: tuple[int, int, int], cluster: tuple[int, int, int] | None
) -> tuple[int, int, int]:
    """The CTAs of a cluster per axis in a launch that asks for ``cluster``.

    Raises:
        EmulatorError: It differs from ``__cluster_dims__``, is too large, or does not divide the grid.
    """
    if cluster is not None and entry.cluster is not None and cluster != entry.cluster:
        raise EmulatorError(f"cluster {cluster} differs from the kernel's __cluster_dims__ {entry.cluster}")
    shape = cluster or entry.cluster or (1, 1, 1)
    blocks = shape[0] * shape[1] * shape[2]
    if min(shape) < 1 or blocks > MAX_CLUSTER:
        raise EmulatorError(f"a cluster {shape} of {blocks} blocks; the limit is {MAX_CLUSTER}")
    if any(extent % part for extent, part in zip(grid, shape, strict=True)):
        raise EmulatorError(f"grid {grid} is not a multiple of cluster {shape}")
    return shape


def check_launch(
    entry: KernelEntry,
    kernel: FlatKernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    dynamic: int,
    params: bytes,
) -> int:
    """Validate a launch with ``dynamic`` bytes of extern shared memory; returns the shared bytes of one CTA.

    Raises:
        EmulatorError: The launch is impossible on the device, or the parameter buffer has the wrong size.
    """
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block) < 1 or threads > MAX_THREADS_PER_BLOCK or block[2] > 64:
        raise EmulatorError(f"invalid launch: grid {grid}, block {block} (at most {MAX_THREADS_PER_BLOCK} threads)")
    if grid[0] > 2**31 - 1 or grid[1] > 65535 or grid[2] > 65535:
        raise EmulatorError(f"invalid launch: grid {grid} exceeds (2147483647, 65535, 65535)")
    if entry.max_threads is not None and threads > entry.max_threads:
        raise EmulatorError(f"{threads} threads per block exceed the kernel's __launch_bounds__ ({entry.max_threads})")
    offsets, static = shared_layout(kernel)
    extern = [offsets[n] for n, v in kernel.shared.items() if v.extern or v.size == 0]
    base = extern[0] if extern else static
    shared = max(static, base + dynamic) if dynamic else static
    if dynamic < 0 or shared > MAX_SHARED_BYTES:
        raise EmulatorError(f"{shared} bytes of shared memory exceed {MAX_SHARED_BYTES}")
    if entry.local_bytes > MAX_LOCAL_BYTES:
        raise EmulatorError(f"{entry.local_bytes} bytes of local memory per thread exceed {MAX_LOCAL_BYTES}")
    if len(params) != entry.param_bytes:
        raise EmulatorError(f"{entry.name!r} takes {entry.param_bytes} bytes of parameters, not {len(params)}")
    return shared
