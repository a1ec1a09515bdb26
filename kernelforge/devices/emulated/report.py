"""Report of one launch on the emulated device: counters, memory operations and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernelforge.devices.base import OPERATIONS_PER_INSTRUCTION
from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.matrix_ir import matrix_work
from kernelforge.devices.emulated.codegen.program import Program
from kernelforge.devices.emulated.execute.launch import Run
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.ptx import parser
from kernelforge.devices.emulated.ptx.instruction_facts import is_barrier
from kernelforge.devices.emulated.ptx.parser import Instruction
from kernelforge.devices.emulated.runtime import tensor_products

_PENDING = (
    "a tcgen05.mma or tcgen05.cp writes it, and no thread waited for the mbarrier of a tcgen05.commit of its thread",
    "a tcgen05.st writes it, and its warp did not wait by tcgen05.wait::st",
    "a tcgen05.ld reads it, and its warp did not wait by tcgen05.wait::ld",
)
"""What an access to tensor memory meets."""
_DESCRIPTORS = {
    tensor_products.BAD_BITS: "bits of the instruction descriptor that are reserved, or of sparse products, are set",
    tensor_products.BAD_TYPES: "the instruction's .kind has no such types of A, B and D",
    tensor_products.BAD_SHAPE: "the instruction has no such M and N",
    tensor_products.BAD_TRANSPOSE: "A or B may not be transposed with this type, N, swizzle or memory",
    tensor_products.BAD_MATRIX: "bits 46 to 48 of a matrix descriptor must be 001, bits 52 to 60 zero",
    tensor_products.BAD_SWIZZLE: "a matrix descriptor has no swizzle 3, 5 or 7",
    tensor_products.BAD_SIGN: "only integers saturate, and only floats are negated",
    tensor_products.BAD_LANE: "D and A begin at lane 0, or both at 16 with M = 64; a copy begins at lane 0, of .4x256b "
    "up to 31",
    tensor_products.BAD_SCALE: "no such type of scales, or position of them in a word, with so many of them in a row",
    tensor_products.BAD_PAIR: ".cta_group::2 needs two blocks of a cluster",
}
"""What is wrong with a descriptor of an instruction on tensor memory."""


def signed(word: int) -> int:
    """A 64-bit word as a signed integer."""
    return word - (word >> 63 << 64)


@dataclass(frozen=True)
class LaunchFault:
    """One fault of a kernel and its location."""

    kind: str
    """One of ``layout.FAULT_NAMES``."""
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
            "barrier_operands": "a barrier's number is over 15, or its count of threads is no multiple of 32, or they "
            "differ between threads of one warp",
            "no_multicast_object": "multimem on memory that is no multicast object: no plan can make one",
            "barrier_deadlock": "__syncthreads() that not all threads of the block reach",
            "shared_race": f"race: {access} at offset {self.address:#x} conflicts with another warp's access, "
            "no __syncthreads() between them",
            "warp_race": f"race: {access} at offset {self.address:#x} conflicts with an access of another lane of its "
            "warp, no __syncwarp() between them",
            "grid_deadlock": "the blocks of a cooperative launch wait for one another and none can continue: a block "
            "ended, or a thread waits elsewhere, without the grid.sync() that the others reached",
            "cluster_deadlock": "barrier.cluster.wait that not all threads of the cluster arrive for",
            "cluster_barrier_misuse": "barrier.cluster.arrive and barrier.cluster.wait do not alternate: a thread "
            "arrives twice, or waits without an arrival",
            "peer_ended": f"{access} at {self.address:#x}, in shared memory of another block of the cluster, which may "
            "have ended by then: no barrier of the cluster is between the access and that block's end",
            "no_mbarrier": f"no mbarrier at offset {self.address:#x} of shared memory: no mbarrier.init came before, "
            "or an mbarrier.inval did",
            "mbarrier_count": f"the mbarrier at offset {self.address:#x} takes no such count: 1 to 1048575 at its "
            "initialisation, then no more arrivals than its phase still needs",
            "mbarrier_bytes": f"the mbarrier at offset {self.address:#x} takes no such transaction count: at most "
            "1048575 bytes may be expected, or complete before they are expected",
            "mbarrier_busy": f"mbarrier.inval at offset {self.address:#x} while copies are under way that complete at "
            "it",
            "mbarrier_deadlock": "wait for a phase of an mbarrier that nothing completes: no thread and no copy goes "
            "on, too few arrive, or more bytes are expected than are copied",
            "copy_size": f"a bulk copy of {self.bytes} bytes: its size must be a positive multiple of 16",
            "no_tensor_map": f"no tensor map at {self.address:#x}: the plan passes one by tensor_map(...), the kernel "
            "takes it as const __grid_constant__ CUtensorMap",
            "copy_misaligned": f"misaligned bulk {access} at {self.address:#x}: its address must be a multiple of 16, "
            "in shared memory of 128 for a box of a tensor map",
            "box_misaligned": f"a box of a tensor map begins at innermost coordinate {signed(self.address)}, of "
            f"{self.bytes}-byte elements: on a GPU an illegal instruction; begin at a multiple of "
            f"{16 // max(self.bytes, 1)}, which is 16 bytes, and skip the elements before in shared memory",
            "wide_column": "an im2col::w copy takes a wHalo below 512, one of im2col::w::128 below 32, and a wOffset "
            f"below 32; here they are {self.address} and {self.bytes}",
            "proxy_fence": f"a bulk copy, wgmma or tcgen05 reads shared memory at offset {self.address:#x} that a "
            "thread stored, no fence.proxy.async between them",
            "wgmma_source": f"bulk copy to shared memory at {self.address:#x} that a wgmma.mma_async may still read: "
            "no wgmma.wait_group of its warp came before",
            **self._tensor_texts(),
            "sparse_metadata": "metadata of a sparse matrix name a position of a chunk twice, or positions out of "
            "order, or none of the two positions of .tf32: the result is undefined",
            "accumulator": "a result of wgmma.mma_async is used before a wgmma.wait_group that covers it",
            "product_fence": "no wgmma.fence between an access to the accumulators or to the fragment of A, or the "
            "start of the kernel, and this wgmma.mma_async",
            "fragment": "the fragment of A of a wgmma.mma_async is overwritten before a wgmma.wait_group that covers "
            "it",
            "division_by_zero": "integer division or remainder by zero, whose result no GPU defines",
            "timeout": "the kernel did not end within its budget (endless loop, or a wait that nothing ends)",
            "trap": "trap instruction executed",
            "assert": "device assert() failed",
            "stack_overflow": f"calls nest too deeply, or alloca: more than {lay.STACK_BYTES} bytes of stack",
            "bad_function_pointer": "call through a pointer that is no function with these parameters",
            "divergent_sync": "warp-wide operation names lanes that do not take part (they are elsewhere), or leaves "
            "out a lane that executes it",
            "uninitialised": f"{access} of {self.bytes} bytes of {self.space} memory at {self.address:#x} that nothing "
            f"has written{near}",
            "global_race": f"race: {access} at {self.address:#x} conflicts with an access of another block, or of "
            f"another warp without __syncthreads() between them{near}",
        }[self.kind]
        return f"{text} at {where} ({who})"

    def _tensor_texts(self) -> dict[str, str]:
        """Texts of faults of tensor memory, by their kind."""
        cell = f"column {self.address & 0xFFFF}, lanes from {self.address >> 16 & 0xFFFF} on"
        return {
            "tensor_columns": f"{signed(self.address)} columns of tensor memory: their number must be a power of two "
            "from 32 to 512",
            "tensor_permit": "tcgen05.alloc after tcgen05.relinquish_alloc_permit of its block",
            "tensor_full": "tcgen05.alloc waits for columns that no warp of the block deallocates",
            "tensor_dealloc": f"tcgen05.dealloc of {self.bytes} columns from column {self.address} on, which are no "
            "allocation",
            "tensor_leak": f"{self.address} columns of tensor memory are still allocated when the block ends: "
            "no tcgen05.dealloc came",
            "tensor_unallocated": f"{self.access} of tensor memory at {cell}: not all of its {self.bytes} columns are "
            "allocated",
            "tensor_lanes": f"{self.access} of tensor memory at {cell}: this warp accesses lanes {32 * self.bytes} to "
            f"{32 * self.bytes + 31}, and a shape begins at a multiple of its lanes",
            "tensor_pending": f"{self.access} of tensor memory at {cell}, too early: {_PENDING[self.bytes % 3]}",
            "tensor_descriptor": f"descriptor {self.address:#x}: {_DESCRIPTORS.get(self.bytes, '')}",
            "tensor_source": f"bulk copy to shared memory at {self.address:#x} that a tcgen05.mma or tcgen05.cp may "
            "still read: no wait for the mbarrier of its tcgen05.commit came before",
            "tensor_address": "lanes of a warp give different addresses of tensor memory, or numbers of columns",
        }


Leaders = tuple[tuple[int, int], ...]
"""Words, or lines, by number, with updates that each has at least."""


@dataclass
class MemoryOp:
    """Counters of one memory instruction over a launch."""

    ptx_line: int
    source_line: int
    source_file: str
    opcode: str
    space: str
    """``global``, ``shared``, ``local``, ``const``, or ``dshared`` for shared memory of another block of the cluster; a
    generic access counts as global, or as dshared."""
    access: Literal["load", "store", "atomic"]
    bytes_per_thread: int
    requests: int = 0
    """Executions by a warp with at least one active lane."""
    threads: int = 0
    """Lanes served."""
    transactions: int = 0
    """32-byte sectors for global, local, const and dshared; wavefronts for shared."""
    lines: int = 0
    """128-byte lines that the requests touched, for global and local."""
    ideal_transactions: int = 0
    """What the same distinct bytes need when perfectly coalesced, or free of bank conflicts."""
    in_flight: float = 1.0
    """Of a load or an atomic with a result: loads of its basic block over the longest chain of dependent ones there."""
    sketch: int = 0
    """Of an atomic: a set of the words it met, 1024 bits with one set for each by its hash."""
    word_updates: Leaders = ()
    """Of an atomic in a profile: words that lead others, with updates that each has at least."""
    line_updates: Leaders = ()
    """The same of lines of 128 bytes, by the sectors that requests updated."""


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
    matrix: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Per kind of matrix product, by the types of A and of the sums (``f16.f32``): operations, two per multiply-add,
    and bytes of operands that the products themselves read from shared memory."""
    branches: int = 0
    """Conditional branches executed by warps."""
    divergent_branches: int = 0
    barriers: int = 0
    """CTA-wide barriers completed."""
    executed: list[tuple[Sequence[Instruction], int, int]] = field(default_factory=list)
    """Instructions of each basic block that ran, with the warps and the threads that executed it."""
    memory: list[MemoryOp] = field(default_factory=list)
    faults: list[LaunchFault] = field(default_factory=list)
    """The first 64, in CTA order."""
    fault_count: int = 0
    warp_work: int = 0
    """Instructions of warps, of which a matrix product counts what it computes: limits are about this."""
    seconds: float = 0.0
    """Wall time of the emulation, without JIT compilation. Unrelated to the time on a GPU."""
    jit_seconds: float = 0.0

    @property
    def work(self) -> int:
        """Thread instructions, of which a matrix product counts what it computes."""
        operations = sum(count for count, _ in self.matrix.values())
        return self.thread_instructions + operations // OPERATIONS_PER_INSTRUCTION


_TYPE_MARKS = frozenset(parser.TYPE_BYTES)


def own_line(line: int, file: str) -> int:
    """A line in the candidate's source; 0 for one of a header."""
    return line if PurePath(file).suffix in ("", ".cu") else 0


def operation_name(i: Instruction) -> str:
    """Short name for the instruction mix: opcode with its type, or with its state space for memory operations."""
    if is_barrier(i) or i.opcode in ("bra", "ret", "exit", "brx", "membar", "fence", "trap"):
        return {"barrier": "bar", "exit": "ret"}.get(i.opcode, i.opcode)
    if i.opcode in ("ld", "st", "atom", "red", "ldu"):
        space = next((m.split("::")[0] for m in i.modifiers if m.split("::")[0] in lay.SPACE_NAMES), "generic")
        return f"{i.opcode}.{space}"
    if i.opcode == "tcgen05":
        return f"{i.opcode}.{i.modifiers[0].split('::')[0]}"
    if i.opcode == "cvt":
        return ".".join((i.opcode, *i.modifiers[-2:]))
    kind = next((m for m in reversed(i.modifiers) if m in _TYPE_MARKS), "")
    if i.opcode in ("mul", "mad") and "wide" in i.modifiers:
        return f"{i.opcode}.wide.{kind}"
    return f"{i.opcode}.{kind}" if kind else i.opcode


def summarise(memory: Memory, program: Program, runs: Sequence[Run], report: LaunchReport) -> None:
    """Add up what the runs of one launch counted, and describe their faults."""
    _add_instructions(program, runs, report)
    _add_products(program, runs, report)
    report.barriers = sum(run.barriers for run in runs)
    report.warp_work = sum(run.warp_work for run in runs)
    _add_memory(program, runs, report)
    report.fault_count = sum(run.fault_count for run in runs)
    _add_faults(memory, program, runs, report)


def _add_instructions(program: Program, runs: Sequence[Run], report: LaunchReport) -> None:
    blocks = program.flow.blocks
    counts = sum((run.counts for run in runs), np.zeros_like(runs[0].counts)).reshape(-1, 2)
    mix: dict[str, tuple[int, int]] = {}
    for block in blocks:
        warp, thread = int(counts[block.index, 0]), int(counts[block.index, 1])
        if not warp:
            continue
        instructions = block.all()
        report.executed.append((instructions, warp, thread))
        report.warp_instructions += warp * len(instructions)
        report.thread_instructions += thread * len(instructions)
        for i in instructions:
            name = operation_name(i)
            before = mix.get(name, (0, 0))
            mix[name] = (before[0] + warp, before[1] + thread)
            if (work := matrix_work(i)) is not None:
                kind, operations, read = work
                had = report.matrix.get(kind, (0, 0))
                report.matrix[kind] = (had[0] + warp * operations, had[1] + warp * read)
        if block.terminator is not None and len(set(block.successors)) > 1:
            report.branches += warp
    report.mix = dict(sorted(mix.items(), key=lambda item: (-item[1][1], item[0])))
    report.divergent_branches = int(counts[len(blocks), 0])


def _add_products(program: Program, runs: Sequence[Run], report: LaunchReport) -> None:
    """Add the products of tensor memory, whose types and shapes the runtime counts."""
    kinds = [f"{element}.{result}" for element in tensor_products.ELEMENTS for result in tensor_products.RESULTS]
    for row, site in enumerate(program.sites):
        if site.instruction.opcode != "tcgen05" or site.instruction.modifiers[0] != "mma":
            continue
        size = 16 * len(kinds)
        counts = sum(
            (run.records[row, lay.OP_PRODUCTS : lay.OP_PRODUCTS + size].view(np.int64) for run in runs),
            np.zeros(size // 8, np.int64),
        ).reshape(-1, 2)
        for kind, (operations, read) in zip(kinds, counts.tolist(), strict=True):
            if operations:
                had = report.matrix.get(kind, (0, 0))
                report.matrix[kind] = (had[0] + operations, had[1] + read)


def _add_memory(program: Program, runs: Sequence[Run], report: LaunchReport) -> None:
    totals = sum((_totals(run) for run in runs), np.zeros((len(runs[0].records), 5), dtype=np.int64))
    peers = sum((_peer_totals(run.records) for run in runs), np.zeros((len(runs[0].records), 5), dtype=np.int64))
    for row, site in enumerate(program.sites):
        if site.hidden:
            continue
        for space, counts in ((_reported_space(site.space), totals[row]), ("dshared", peers[row])):
            if space == "dshared" and not counts.any():
                continue
            i, (requests, transactions, threads, ideal, lines) = site.instruction, counts.tolist()
            report.memory.append(
                MemoryOp(
                    i.ptx_line,
                    i.location.line,
                    i.location.file,
                    i.name,
                    space,
                    lay.ACCESS_NAMES[site.access],
                    site.width,
                    requests,
                    threads,
                    transactions,
                    lines,
                    ideal,
                    program.in_flight.get(id(i), 1.0),
                    *(_updates(runs, row) if site.access == lay.ATOMIC else ()),
                )
            )


def _updates(runs: Sequence[Run], row: int) -> tuple[int, Leaders, Leaders]:
    """Words that one atomic met in any of the runs, and the words and lines that lead others in the number of updates.
    Leaders are counted where one run follows all accesses in their order."""
    bits = 0
    for run in runs:
        bits |= int.from_bytes(run.records[row, lay.OP_SKETCH : lay.OP_SKETCH + lay.SKETCH_BYTES].tobytes(), "little")

    def leaders(keys: int, counts: int) -> Leaders:
        record, size = runs[0].records[row], 4 * lay.UPDATE_COUNTERS
        pairs = record[keys : keys + size].view(np.uint32), record[counts : counts + size].view(np.uint32)
        return tuple((key, count) for key, count in zip(*(part.tolist() for part in pairs), strict=True) if count)

    return (
        bits,
        leaders(lay.OP_WORD_KEYS, lay.OP_WORD_UPDATES),
        leaders(lay.OP_LINE_KEYS, lay.OP_LINE_UPDATES),
    )


def _peer_totals(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """(requests, transactions, threads, ideal, 0) of every record in shared memory of other blocks of the cluster."""
    longs = records.view(np.int64)
    fields = (lay.OP_PEER_REQUESTS, lay.OP_PEER_SECTORS, lay.OP_PEER_THREADS, lay.OP_PEER_IDEAL)
    return np.stack([*(longs[:, at // 8] for at in fields), np.zeros(len(longs), dtype=np.int64)], axis=1)


def _totals(run: Run) -> npt.NDArray[np.int64]:
    """(requests, transactions, threads, ideal, lines) of every record, pending hits included."""
    longs, words = run.records.view(np.int64), run.records.view(np.uint32)
    fields = (lay.OP_REQUESTS, lay.OP_TRANSACTIONS, lay.OP_THREADS, lay.OP_IDEAL_TOTAL, lay.OP_LINES)
    totals = np.stack([longs[:, at // 8].copy() for at in fields], axis=1)
    slots = longs[:, lay.OP_SLOTS // 8 : lay.OP_SLOTS // 8 + lay.SLOTS].copy()
    # Every run of the block since then was a hit of this slot.
    pending = np.flatnonzero(words[:, lay.OP_SLOT // 4].astype(np.int32) >= 0)
    blocks = words[pending, lay.OP_BLOCK // 4]
    slots[pending, words[pending, lay.OP_SLOT // 4]] += run.counts[2 * blocks] - longs[pending, lay.OP_SINCE // 8]
    slots[words[:, lay.OP_ACCESS // 4] == lay.ATOMIC] = 0  # other things are there
    hits = slots >> 8 * lay.ENTRY_HITS & 0xFFFFFFFF
    lanes = np.array([int(m).bit_count() for m in words[:, lay.OP_MASK // 4]], dtype=np.int64)
    total_hits = hits.sum(axis=1)
    totals[:, 0] += total_hits
    totals[:, 1] += (hits * (slots >> 8 * lay.ENTRY_COUNT & 0xFFFF)).sum(axis=1)
    totals[:, 2] += total_hits * lanes
    totals[:, 3] += total_hits * words[:, lay.OP_IDEAL // 4].astype(np.int64)
    totals[:, 4] += (hits * (slots >> 8 * lay.ENTRY_LINES & 0xFF)).sum(axis=1)
    uniform = longs[:, lay.OP_UNIFORM // 8]
    space = words[:, lay.OP_SPACE // 4]
    totals[:, 0] += uniform
    totals[:, 2] += longs[:, lay.OP_UNIFORM_LANES // 8]
    totals[:, 1] += np.where(space == lay.LOCAL, 0, uniform)
    totals[:, 3] += np.where(space == lay.LOCAL, 0, uniform)
    # Each word of a local access is in a line of its own.
    local_lines = uniform * (words[:, lay.OP_BYTES // 4].astype(np.int64) >> 2)
    is_global = (space == lay.GLOBAL) | (space == lay.GENERIC)
    totals[:, 4] += np.where(space == lay.LOCAL, local_lines, np.where(is_global, uniform, 0))
    return totals


def _reported_space(space: int) -> str:
    names = {lay.GENERIC: "global", lay.SHARED_CLUSTER: "shared"}
    return names.get(space, lay.SPACE_NAMES[space])


def _add_faults(memory: Memory, program: Program, runs: Sequence[Run], report: LaunchReport) -> None:
    same: dict[tuple[int, int], int] = {}
    for run in runs:
        stored = int(run.faults[:8].view(np.int64)[0])
        for k in range(stored):
            raw = run.faults[8 + k * lay.FAULT_RECORD : 8 + (k + 1) * lay.FAULT_RECORD]
            fault, key = _fault(memory, program, raw, report)
            same[key] = same.get(key, 0) + 1
            if same[key] <= 8 and len(report.faults) < lay.FAULT_CAPACITY:
                report.faults.append(fault)


def _fault(
    memory: Memory, program: Program, raw: npt.NDArray[np.uint8], report: LaunchReport
) -> tuple[LaunchFault, tuple[int, int]]:
    words, longs = raw.view(np.int32), raw.view(np.int64)
    kind, site = int(words[lay.FAULT_KIND // 4]), int(words[lay.FAULT_SITE // 4])
    address, cta = int(longs[lay.FAULT_ADDRESS // 8]), int(longs[lay.FAULT_CTA // 8])
    space = access = nearest = ""
    if site >= 0:
        record = program.sites[site]
        i = record.instruction
        number = int(words[lay.FAULT_SPACE // 4])
        space, access = lay.SPACE_NAMES[number], lay.ACCESS_NAMES[record.access]
        if number in (lay.GLOBAL, lay.CONST, lay.GENERIC):
            space = "global" if number == lay.GENERIC else space
            nearest = memory.nearest(address)
        elif number == lay.SHARED:
            nearest = f"the block has {program.shape.static_shared_bytes} bytes of static shared memory"
            if 0 < address >> lay.PEER_SHIFT <= lay.LANES:
                nearest = "only ld.shared::cluster and generic accesses reach another block of the cluster"
            nearest = nearest if kind == lay.FAULT_OUT_OF_BOUNDS else ""
        elif number == lay.SHARED_CLUSTER and kind == lay.FAULT_OUT_OF_BOUNDS:
            rank, offset = (address >> lay.PEER_SHIFT) - 1, address & ((1 << lay.PEER_SHIFT) - 1)
            nearest = f"offset {offset} in the block of rank {rank} of the cluster"
        elif number == lay.LOCAL and kind == lay.FAULT_OUT_OF_BOUNDS:
            nearest = f"the thread's frame has {program.flow.kernel.frame_bytes} bytes"
    elif site <= -1_000_000:
        index = min(max(-1_000_000 - site, 0), len(program.flow.blocks) - 1)
        i = next((x for b in program.flow.blocks[index:] for x in b.all() if x.ptx_line), Instruction("ret", (), ()))
    else:
        i = program.points[-1 - site]
    x, y, _ = report.block
    linear = int(words[lay.FAULT_WARP // 4]) * lay.LANES + int(words[lay.FAULT_LANE // 4])
    gx, gy, _ = report.grid
    fault = LaunchFault(
        lay.FAULT_NAMES[kind],
        report.entry,
        space,
        access,
        address & (2**64 - 1),
        int(words[lay.FAULT_BYTES // 4]),
        (cta % gx, cta // gx % gy, cta // gx // gy),
        (linear % x, linear // x % y, linear // (x * y)),
        i.location.line,
        i.location.file,
        i.ptx_line,
        nearest,
    )
    return fault, (kind, site)
