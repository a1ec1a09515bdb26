"""The emulated device: load a PTX module, launch its kernels, report what happened."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import driver, jit, ptx
from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.emit.emitter import MemorySite, Shape
from kernelforge.devices.emulated.errors import EmulatorError, OutOfDeviceMemory, UnsupportedInstruction
from kernelforge.devices.emulated.flow import is_barrier
from kernelforge.devices.emulated.inline import FlatKernel, flatten
from kernelforge.devices.emulated.memory import CacheModel, Memory
from kernelforge.devices.emulated.program import Program, build
from kernelforge.devices.emulated.ptx import Instruction
from kernelforge.devices.emulated.report import Fault, LaunchReport, MemoryOp

MAX_THREADS_PER_BLOCK = 1024
MAX_SHARED_BYTES = 232_448
"""227 KiB, what one CTA may use on Hopper with the opt-in."""
MAX_LOCAL_BYTES = 512 * 1024
RESIDENT_CTAS = 1056
"""CTAs that run side by side when blocks wait for each other: 132 SMs times 8."""


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
class Entry:
    """A kernel of the module."""

    name: str
    params: tuple[Param, ...]
    static_shared_bytes: int
    local_bytes: int
    """Frame per thread that the PTX declares."""
    uses_global_atomics: bool
    max_threads: int | None
    """From ``__launch_bounds__``."""

    @property
    def param_bytes(self) -> int:
        """Size of the parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


_programs: dict[tuple[str, str, tuple[int, int, int]], Program] = {}
_programs_lock = threading.Lock()


def _uses_global_atomics(kernel: FlatKernel) -> bool:
    for item in kernel.body:
        if not isinstance(item, Instruction) or item.opcode not in ("atom", "red"):
            continue
        if not any(m.startswith("shared") for m in item.modifiers):
            return True
    return False


def _site_columns(sites: Sequence[MemorySite], mode: int, frame_bytes: int) -> npt.NDArray[np.uint8]:
    """Initial memory records, one row each."""
    records = np.zeros((max(len(sites), 1), lay.OP_RECORD), dtype=np.uint8)
    words, longs = records.view(np.int32), records.view(np.int64)
    for row, site in enumerate(sites):
        words[row, lay.OP_SPACE // 4] = site.space
        words[row, lay.OP_BYTES // 4] = site.width
        words[row, lay.OP_ALIGN // 4] = site.width
        words[row, lay.OP_ACCESS // 4] = site.access
        longs[row, lay.OP_OFFSET // 8] = site.offset
        longs[row, lay.OP_NARROW // 8] = int(site.narrow)
        if site.space == lay.LOCAL:
            # Frame accesses at one offset for all lanes only need the frame's size.
            longs[row, lay.OP_SPAN // 8] = max(frame_bytes - site.width + 1, 0)
    return records


class Machine:
    """A PTX module loaded on the emulated device.

    Args:
        ptx: PTX text; untrusted. No PTX can reach host memory outside ``memory`` and the launch's own buffers.
        memory: Global memory. Module variables are placed there and mapped read-only.
        threads: Operating-system threads for launches whose result cannot depend on the order of CTAs.

    Raises:
        PtxSyntaxError: The text cannot be parsed.
        OutOfDeviceMemory: Module variables do not fit.
    """

    def __init__(self, ptx: str, memory: Memory, threads: int = 1) -> None:
        self.memory = memory
        self.threads = max(threads, 1)
        self._digest = hashlib.sha256(ptx.encode()).hexdigest()
        self._module = _parse(ptx)
        self._symbols: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self._place_variables()
        self._kernels: dict[str, FlatKernel] = {}
        self._failures: dict[str, UnsupportedInstruction] = {}
        self.entries: dict[str, Entry] = {}
        for name, function in self._module.functions.items():
            if function.is_entry and function.defined:
                self.entries[name] = self._entry(name)

    def _place_variables(self) -> None:
        variables = [v for v in self._module.variables.values() if v.space in ("global", "const")]
        data: list[tuple[int, bytes, list[tuple[int, str, int]]]] = []
        for index, variable in enumerate(variables):
            address = self.memory.allocate(variable.size, variable.name, read_only=True, module=True)
            self._symbols[variable.name] = index
            self._addresses[variable.name] = address
            content, relocations = ptx.parse_initialiser(variable)
            data.append((address, content, relocations))
        for address, content, relocations in data:
            raw = bytearray(content)
            for at, symbol, addend in relocations:
                if symbol not in self._addresses:
                    raise ptx.PtxSyntaxError(f"initialiser names {symbol!r}, which is not a module variable")
                raw[at : at + 8] = (self._addresses[symbol] + addend).to_bytes(8, "little")
            self.memory.write(address, bytes(raw))

    def close(self) -> None:
        """Free the module's variables."""
        for address in self._addresses.values():
            self.memory.free(address)
        self._addresses.clear()

    def unsupported(self, name: str) -> UnsupportedInstruction | None:
        """Why the kernel of that name cannot be run here, where that is known before its launch."""
        return self._failures.get(name)

    def _entry(self, name: str) -> Entry:
        function = self._module.functions[name]
        try:
            kernel = flatten(self._module, name)
        except UnsupportedInstruction as error:
            # Reported when the kernel is used: another entry of the module may be fine.
            self._failures[name] = error
            return Entry(name, (), 0, 0, False, None)
        self._kernels[name] = kernel
        params = tuple(Param(v.name, v.size, v.align, offset, v.type) for v, offset in kernel.params.values())
        bounds = function.directives.get("reqntid") or function.directives.get("maxntid")
        _, static = self._shared_layout(kernel)
        return Entry(
            name,
            params,
            static,
            kernel.frame_bytes,
            _uses_global_atomics(kernel),
            int(np.prod(bounds)) if bounds else None,
        )

    def _shared_layout(self, kernel: FlatKernel) -> tuple[dict[str, int], int]:
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

    def program(self, entry: str, block: tuple[int, int, int]) -> Program:
        """Native code of a kernel for one CTA shape, compiled on first use and shared by all machines of the process.

        Raises:
            KeyError: No such kernel.
            UnsupportedInstruction: The kernel uses something the emulator does not implement.
        """
        if entry in self._failures:
            raise self._failures[entry]
        kernel = self._kernels[entry]
        key = (self._digest, entry, block)
        with _programs_lock:
            program = _programs.get(key)
            if program is None:
                jit.load_runtime()
                offsets, static = self._shared_layout(kernel)
                program = build(kernel, Shape(block, offsets, static, self._symbols))
                _programs[key] = program
        return program

    def launch(
        self,
        entry: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        dynamic_shared_bytes: int,
        params: bytes,
        *,
        ctas: Sequence[int] | None = None,
        max_warp_instructions: int | None = None,
        deadline_s: float | None = None,
        cache: CacheModel | None = None,
        racecheck: bool = False,
        poison: int = 0xFF,
    ) -> LaunchReport:
        """Run a kernel to its end and report counters and faults.

        Args:
            entry: Kernel name, as in ``entries``.
            grid: CTAs per axis.
            block: Threads per axis.
            dynamic_shared_bytes: Size of the extern shared array.
            params: Parameter buffer, laid out as ``entries[entry].params`` says.
            ctas: Linear ids of the CTAs to run, all when None.
            max_warp_instructions: Deterministic budget; exceeding it is a ``timeout`` fault (checked at back edges).
            deadline_s: Wall-clock budget in seconds; not deterministic.
            cache: Cache model to drive; slower, and CTAs run in order on one thread.
            racecheck: Report shared-memory races between warps; slower.
            poison: Byte that fills shared and local memory when a CTA starts.

        Raises:
            KeyError: No such kernel.
            UnsupportedInstruction: The kernel uses something the emulator does not implement.
            EmulatorError: The launch is impossible on the device: too many threads, too much shared memory, a
                parameter buffer of the wrong size.
        """
        known = self.entries[entry]
        program = self.program(entry, block)
        fresh = _consume_jit_seconds(program)
        threads = block[0] * block[1] * block[2]
        total = grid[0] * grid[1] * grid[2]
        shared = self._check_launch(known, grid, block, threads, dynamic_shared_bytes, params)
        chosen = None if ctas is None else np.asarray(ctas, dtype=np.int64)
        if chosen is not None and chosen.size and (chosen.min() < 0 or chosen.max() >= total):
            raise EmulatorError(f"CTA ids must be from 0 to {total - 1}")
        count = total if chosen is None else int(chosen.size)
        ordered = known.uses_global_atomics or program.flow.spins or cache is not None
        workers = 1 if ordered else max(1, min(self.threads, count))
        stop = np.zeros(1, dtype=np.int64)
        table = self.memory.table()
        allocations = len(self.memory.allocations)
        start = time.perf_counter()
        runs = [
            _Run(
                self,
                program,
                grid,
                block,
                threads,
                shared,
                dynamic_shared_bytes,
                params,
                chosen,
                stop,
                table,
                allocations,
                max_warp_instructions or 0,
                cache,
                racecheck,
                poison,
                (count * k // workers, count * (k + 1) // workers),
            )
            for k in range(workers)
        ]
        timer = None
        if deadline_s is not None:
            timer = threading.Timer(max(deadline_s, 0.0), stop.__setitem__, (0, driver.END_TIMEOUT))
            timer.daemon = True
            timer.start()
        try:
            others = [threading.Thread(target=run) for run in runs[1:]]
            for thread in others:
                thread.start()
            runs[0]()
            for thread in others:
                thread.join()
        finally:
            if timer is not None:
                timer.cancel()
        report = LaunchReport(entry, grid, block, count)
        report.seconds = time.perf_counter() - start
        report.jit_seconds = fresh
        _summarise(self, program, runs, report)
        return report

    def _check_launch(
        self,
        known: Entry,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        threads: int,
        dynamic: int,
        params: bytes,
    ) -> int:
        """Validate a launch; returns the shared bytes of one CTA."""
        if min(*grid, *block) < 1 or threads > MAX_THREADS_PER_BLOCK or block[2] > 64:
            raise EmulatorError(f"invalid launch: grid {grid}, block {block} (at most {MAX_THREADS_PER_BLOCK} threads)")
        if grid[0] > 2**31 - 1 or grid[1] > 65535 or grid[2] > 65535:
            raise EmulatorError(f"invalid launch: grid {grid} exceeds (2147483647, 65535, 65535)")
        if known.max_threads is not None and threads > known.max_threads:
            raise EmulatorError(
                f"{threads} threads per block exceed the kernel's __launch_bounds__ ({known.max_threads})"
            )
        offsets, static = self._shared_layout(self._kernels[known.name])
        extern = [offsets[n] for n, v in self._kernels[known.name].shared.items() if v.extern or v.size == 0]
        base = extern[0] if extern else static
        shared = max(static, base + dynamic) if dynamic else static
        if dynamic < 0 or shared > MAX_SHARED_BYTES:
            raise EmulatorError(f"{shared} bytes of shared memory exceed {MAX_SHARED_BYTES}")
        if known.local_bytes > MAX_LOCAL_BYTES:
            raise EmulatorError(f"{known.local_bytes} bytes of local memory per thread exceed {MAX_LOCAL_BYTES}")
        if len(params) != known.param_bytes:
            raise EmulatorError(f"{known.name!r} takes {known.param_bytes} bytes of parameters, not {len(params)}")
        return shared


def _symbols(operand: object) -> list[str]:
    if isinstance(operand, ptx.Sym):
        return [operand.name]
    if isinstance(operand, ptx.Addr):
        return _symbols(operand.base)
    if isinstance(operand, ptx.Vec):
        return [name for item in operand.items for name in _symbols(item)]
    return []


def _parse(text: str) -> ptx.Module:
    return ptx.parse(text)


_reported: set[int] = set()


def _consume_jit_seconds(program: Program) -> float:
    """Compilation time, on the first launch that uses the program."""
    if id(program) in _reported:
        return 0.0
    _reported.add(id(program))
    return program.jit_seconds


def _aligned(size: int, alignment: int = 128) -> tuple[npt.NDArray[np.uint8], int]:
    """A zeroed buffer and the address of its first aligned byte."""
    buffer = np.zeros(size + alignment, dtype=np.uint8)
    return buffer, (int(buffer.ctypes.data) + alignment - 1) // alignment * alignment


class _Run:
    """One operating-system thread's share of a launch: its context, buffers and counters."""

    def __init__(
        self,
        machine: Machine,
        program: Program,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        threads: int,
        shared: int,
        dynamic: int,
        params: bytes,
        chosen: npt.NDArray[np.int64] | None,
        stop: npt.NDArray[np.int64],
        table: npt.NDArray[np.int64],
        allocations: int,
        max_instructions: int,
        cache: CacheModel | None,
        racecheck: bool,
        poison: int,
        span: tuple[int, int],
    ) -> None:
        flow = program.flow
        warps = (threads + lay.LANES - 1) // lay.LANES
        blocks = len(flow.blocks)
        count = span[1] - span[0]
        resident = 1
        frame = flow.kernel.frame_bytes
        stride = (shared + lay.RED_ZONE + 127) // 128 * 128
        if flow.spins and not racecheck:
            per_cta = warps * (program.state_bytes + frame * lay.LANES) + stride
            resident = max(1, min(count, RESIDENT_CTAS, (1 << 30) // max(per_cta, 1)))
        mode = (lay.MODE_RACECHECK if racecheck else 0) | (lay.MODE_CACHE if cache is not None else 0)
        mode |= lay.MODE_RESIDENT if resident > 1 else 0
        self.keep: list[object] = [stop, table, chosen, cache, params]
        self.records = _site_columns(program.sites, mode, frame)
        self.counts = np.zeros(2 * (blocks + 1), dtype=np.int64)
        self.faults = np.zeros(8 + lay.FAULT_CAPACITY * lay.FAULT_RECORD, dtype=np.uint8)
        self.context, ctx = _aligned(lay.CTX_BYTES)
        self.ctx = ctx
        records, records_at = _aligned(self.records.nbytes)
        offset = records_at - int(records.ctypes.data)
        self.records_view = records[offset : offset + self.records.nbytes].reshape(self.records.shape)
        self.records_view[:] = self.records
        scratch, scratch_at = _aligned(lay.SCRATCH_BYTES)
        state, state_at = _aligned(resident * warps * program.state_bytes)
        shared_buffer, shared_at = _aligned(resident * stride + lay.RED_ZONE)
        local, local_at = _aligned(resident * warps * frame * lay.LANES + lay.RED_ZONE)
        shadow, shadow_at = _aligned((16 * (shared // 4 + 2)) if racecheck else 16)
        status = np.zeros(resident * (16 + warps) + 16, dtype=np.int32)
        slots = np.zeros(4 * resident, dtype=np.int64)
        parameters = np.frombuffer(params + bytes(64), dtype=np.uint8).copy()
        addresses = [machine._addresses[name] for name in machine._symbols] or [0]
        symbols = np.array(addresses, dtype=np.int64)
        self.keep += [
            records,
            scratch,
            state,
            shared_buffer,
            local,
            shadow,
            status,
            slots,
            parameters,
            symbols,
            program,
        ]
        longs = _view(self.context, ctx, np.int64, lay.CTX_BYTES)
        words = _view(self.context, ctx, np.int32, lay.CTX_BYTES)
        values = {
            lay.CTX_PARAMS: int(parameters.ctypes.data),
            lay.CTX_PARAM_BYTES: len(params),
            lay.CTX_SHARED: shared_at,
            lay.CTX_SHARED_BYTES: shared,
            lay.CTX_LOCAL: local_at,
            lay.CTX_LOCAL_BYTES: frame,
            lay.CTX_COUNTS: int(self.counts.ctypes.data),
            lay.CTX_OPS: records_at,
            lay.CTX_ALLOCATIONS: int(table.ctypes.data),
            lay.CTX_ALLOCATION_COUNT: allocations,
            lay.CTX_FAULTS: int(self.faults.ctypes.data),
            lay.CTX_ARENA_DELTA: machine.memory.host_base - lay.GLOBAL_BASE,
            lay.CTX_SYMBOLS: int(symbols.ctypes.data),
            lay.CTX_STOP: int(stop.ctypes.data),
            lay.CTX_MODE: mode,
            lay.CTX_CACHE: cache.address if cache is not None else 0,
            lay.CTX_SHADOW: shadow_at,
            lay.CTX_SCRATCH: scratch_at,
            lay.CTX_DYNAMIC_SHARED: dynamic,
            lay.CTX_GRID_CTAS: grid[0] * grid[1] * grid[2],
            lay.CTX_BLOCK_COST: int(program.block_costs.ctypes.data),
            lay.CTX_BLOCKS: blocks,
            lay.CTX_MAX_INSTRUCTIONS: max_instructions,
        }
        for where, value in values.items():
            longs[where // 8] = value
        words[lay.CTX_NCTAID // 4 : lay.CTX_NCTAID // 4 + 3] = grid
        self.longs = longs
        arguments = np.zeros(driver.ARG_COUNT, dtype=np.int64)
        settings = {
            driver.ARG_FUNCTION: program.address,
            driver.ARG_FIRST: span[0],
            driver.ARG_END: span[1],
            driver.ARG_LIST: int(chosen.ctypes.data) if chosen is not None and chosen.size else 0,
            driver.ARG_STATE: state_at,
            driver.ARG_STATE_BYTES: program.state_bytes,
            driver.ARG_CLEAR_BYTES: program.clear_bytes,
            driver.ARG_BLOCKS: blocks,
            driver.ARG_SHARED: shared_at,
            driver.ARG_SHARED_STRIDE: stride,
            driver.ARG_LOCAL: local_at,
            driver.ARG_LOCAL_STRIDE: frame * lay.LANES,
            driver.ARG_WARPS: warps,
            driver.ARG_THREADS: threads,
            driver.ARG_RESIDENT: resident,
            driver.ARG_SPINS: int(flow.spins),
            driver.ARG_POISON: poison,
            driver.ARG_STATUS: int(status.ctypes.data) + 64 * resident,
            driver.ARG_SLOTS: int(slots.ctypes.data),
            driver.ARG_L1_TAGS: int(cache._l1.ctypes.data) if cache is not None else 0,
            driver.ARG_L1_BYTES: int(cache._l1.nbytes) if cache is not None else 0,
            driver.ARG_SHADOW_BYTES: 16 * (shared // 4 + 2) if racecheck else 0,
        }
        for index, value in settings.items():
            arguments[index] = value
        self.arguments = arguments
        self.function = jit.KernelFunction(driver.run_ctas.address)
        self.outcome = driver.END_COMPLETE

    def __call__(self) -> None:
        self.outcome = self.function(self.ctx, int(self.arguments.ctypes.data))

    @property
    def fault_count(self) -> int:
        return int(self.longs[lay.CTX_FAULT_COUNT // 8])


def _view(buffer: npt.NDArray[np.uint8], address: int, kind: Any, size: int) -> Any:
    offset = address - int(buffer.ctypes.data)
    return buffer[offset : offset + size].view(kind)


def _totals(records: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """(requests, transactions, threads, ideal) of every record, pending hits included."""
    longs, words = records.view(np.int64), records.view(np.uint32)
    totals = np.stack(
        [longs[:, at // 8].copy() for at in (lay.OP_REQUESTS, lay.OP_TRANSACTIONS, lay.OP_THREADS, lay.OP_IDEAL_TOTAL)],
        axis=1,
    )
    hits = words[:, lay.OP_HITS // 4 : lay.OP_HITS // 4 + 32].astype(np.int64)
    counts = records.view(np.uint16)[:, lay.OP_COUNTS // 2 : lay.OP_COUNTS // 2 + 32].astype(np.int64)
    lanes = np.array([int(m).bit_count() for m in words[:, lay.OP_MASK // 4]], dtype=np.int64)
    total_hits = hits.sum(axis=1)
    totals[:, 0] += total_hits
    totals[:, 1] += (hits * counts).sum(axis=1)
    totals[:, 2] += total_hits * lanes
    totals[:, 3] += total_hits * words[:, lay.OP_IDEAL // 4].astype(np.int64)
    uniform = longs[:, lay.OP_UNIFORM // 8]
    private = words[:, lay.OP_SPACE // 4] == lay.LOCAL
    totals[:, 0] += uniform
    totals[:, 2] += longs[:, lay.OP_UNIFORM_LANES // 8]
    totals[:, 1] += np.where(private, 0, uniform)
    totals[:, 3] += np.where(private, 0, uniform)
    return totals


_TYPE_MARKS = frozenset(ptx.TYPE_BYTES)


def operation_name(i: Instruction) -> str:
    """Short name for the instruction mix: opcode with its type, or with its state space for memory operations."""
    if is_barrier(i) or i.opcode in ("bra", "ret", "exit", "brx", "membar", "fence", "trap"):
        return {"barrier": "bar", "exit": "ret"}.get(i.opcode, i.opcode)
    if i.opcode in ("ld", "st", "atom", "red", "ldu"):
        space = next((m.split("::")[0] for m in i.modifiers if m.split("::")[0] in lay.SPACE_NAMES), "generic")
        return f"{i.opcode}.{space}"
    if i.opcode == "cvt":
        return ".".join((i.opcode, *i.modifiers[-2:]))
    kind = next((m for m in reversed(i.modifiers) if m in _TYPE_MARKS), "")
    if i.opcode in ("mul", "mad") and "wide" in i.modifiers:
        return f"{i.opcode}.wide.{kind}"
    return f"{i.opcode}.{kind}" if kind else i.opcode


def _summarise(machine: Machine, program: Program, runs: list[_Run], report: LaunchReport) -> None:
    blocks = program.flow.blocks
    counts = sum((run.counts for run in runs), np.zeros_like(runs[0].counts)).reshape(-1, 2)
    mix: dict[str, tuple[int, int]] = {}
    for block in blocks:
        warp, thread = int(counts[block.index, 0]), int(counts[block.index, 1])
        if not warp:
            continue
        instructions = block.all()
        report.warp_instructions += warp * len(instructions)
        report.thread_instructions += thread * len(instructions)
        for i in instructions:
            name = operation_name(i)
            before = mix.get(name, (0, 0))
            mix[name] = (before[0] + warp, before[1] + thread)
        if block.terminator is not None and len(set(block.successors)) > 1:
            report.branches += warp
    report.mix = dict(sorted(mix.items(), key=lambda item: (-item[1][1], item[0])))
    report.divergent_branches = int(counts[len(blocks), 0])
    report.barriers = sum(int(run.longs[lay.CTX_BARRIERS // 8]) for run in runs)
    totals = sum((_totals(run.records_view) for run in runs), np.zeros((len(runs[0].records_view), 4), dtype=np.int64))
    for site, (requests, transactions, threads, ideal) in zip(program.sites, totals.tolist(), strict=False):
        if site.hidden:
            continue
        i = site.instruction
        report.memory.append(
            MemoryOp(
                i.ptx_line,
                i.location.line,
                i.location.file,
                i.name,
                _reported_space(site.space),
                lay.ACCESS_NAMES[site.access],
                site.width,
                requests,
                threads,
                transactions,
                ideal,
            )
        )
    report.fault_count = sum(run.fault_count for run in runs)
    same: dict[tuple[int, int], int] = {}
    for run in runs:
        stored = int(run.faults[:8].view(np.int64)[0])
        for k in range(stored):
            raw = run.faults[8 + k * lay.FAULT_RECORD : 8 + (k + 1) * lay.FAULT_RECORD]
            fault, key = _fault(machine, program, raw, report)
            same[key] = same.get(key, 0) + 1
            if same[key] <= 8 and len(report.faults) < lay.FAULT_CAPACITY:
                report.faults.append(fault)


def _reported_space(space: int) -> str:
    return "global" if space == lay.GENERIC else lay.SPACE_NAMES[space]


def _fault(
    machine: Machine, program: Program, raw: npt.NDArray[np.uint8], report: LaunchReport
) -> tuple[Fault, tuple[int, int]]:
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
            nearest = machine.memory.nearest(address)
        elif number == lay.SHARED:
            nearest = f"the block has {program_shared(program, report)} bytes of static shared memory"
            nearest = nearest if kind == lay.FAULT_OUT_OF_BOUNDS else ""
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
    fault = Fault(
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


def program_shared(program: Program, report: LaunchReport) -> int:
    """Static shared bytes of a program, for messages."""
    return program.shape.static_shared_bytes


def warm_up() -> None:
    """Compile or load everything that launches need, so that a fork of this process needs no files.

    Takes about ten seconds the first time on a machine (numba compiles and fills its cache), one second after.
    """
    jit.load_runtime()
    memory = Memory(1 << 16)
    machine = Machine(_WARM_UP, memory)
    out = memory.allocate(128, "warm-up")
    machine.launch("warm_up", (1, 1, 1), (32, 1, 1), 0, out.to_bytes(8, "little"))


_WARM_UP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry warm_up(.param .u64 warm_up_param_0)
{
.reg .b32 %r<3>;
.reg .b64 %rd<4>;
ld.param.u64 %rd1, [warm_up_param_0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r1;
ret;
}
"""

__all__ = [
    "CacheModel",
    "EmulatorError",
    "Entry",
    "Fault",
    "LaunchReport",
    "Machine",
    "Memory",
    "MemoryOp",
    "OutOfDeviceMemory",
    "Param",
    "UnsupportedInstruction",
    "warm_up",
]
