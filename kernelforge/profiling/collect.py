"""Runs a plan's launches for a profile, whole or in samples, and gathers their counters. Runner side.

As long as whole grids run, one model of the L2 follows every access of the plan. From the first launch that has to be
sampled on, footprints stand in for it (:mod:`kernelforge.profiling.traffic`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kernelforge.candidate.resolved import Fill, Launch
from kernelforge.devices.emulated.memory import (
    CACHE_L1_SETS,
    CACHE_L1_TAGS,
    L1_ENTRY,
    L1_WAYS,
    L2_ENTRY,
    LINE_BYTES,
    CacheModel,
)
from kernelforge.devices.occupancy import Occupancy, l1_bytes, occupancy
from kernelforge.devices.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, KernelCounts, MemoryCounts, PlanCounts
from kernelforge.profiling.sampling import PROBE_BLOCKS, Budget, Chunk, choose_chunks
from kernelforge.profiling.traffic import (
    ChunkFootprint,
    Extent,
    Footprint,
    LaunchTraffic,
    Residency,
    Sectors,
    bytes_by_buffer,
    extrapolate,
)

if TYPE_CHECKING:
    from kernelforge.devices.emulated.report import LaunchReport

_LINE_SECTORS = LINE_BYTES // SECTOR_BYTES


class RunBlocks(Protocol):
    """Runs some blocks of a launch, or all where ``ctas`` is None, through a cache model."""

    def __call__(self, step: Launch, ctas: Sequence[int] | None, cache: CacheModel) -> LaunchReport: ...


class TracedCache(CacheModel):
    """The cache model, with an L1 of changing size and a look at what its L2 holds."""

    def resize_l1(self, nbytes: int) -> None:
        """Give the L1 another capacity; the L2 keeps what it has."""
        sets = max(nbytes // (LINE_BYTES * L1_WAYS), 1)
        if sets != self._header[CACHE_L1_SETS // 8]:
            self._l1 = np.zeros(sets * L1_WAYS * L1_ENTRY // 8, dtype=np.int64)
            self._header[CACHE_L1_SETS // 8] = sets
            self._header[CACHE_L1_TAGS // 8] = self._l1.ctypes.data

    def sectors(self) -> tuple[Sectors, Sectors]:
        """Sectors held, and those of them that are dirty; sorted."""
        entries = self._l2.reshape(-1, L2_ENTRY // 8)
        entries = entries[entries[:, 0] != 0]
        first = (entries[:, 0] - 1) * _LINE_SECTORS
        bits = np.arange(_LINE_SECTORS)
        held = (first[:, None] + bits)[(entries[:, 1, None] >> bits & 1) != 0]
        dirty = (first[:, None] + bits)[(entries[:, 2, None] >> bits & 1) != 0]
        return np.sort(held), np.sort(dirty)

    def footprint(self) -> Footprint:
        """What was fetched and written since the last reset, if nothing was evicted meanwhile."""
        held, dirty = self.sectors()
        clean = np.setdiff1d(held, dirty, assume_unique=True)
        # Sectors that were fetched and then written are dirty: the counter knows how many there are.
        fetched = min(max(self.dram_read_sectors - clean.size, 0), dirty.size)
        also = dirty[np.linspace(0, dirty.size - 1, fetched).astype(np.int64)] if fetched else dirty[:0]
        return Footprint(np.union1d(clean, also), dirty)


@dataclass
class _CacheCounts:
    """The cache model's counters, in sectors, over some blocks."""

    l1_read_sectors: float = 0.0
    l1_read_hits: float = 0.0
    l2_read_sectors: float = 0.0
    l2_read_hits: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_sectors: float = 0.0
    dram_write_sectors: float = 0.0

    @classmethod
    def of(cls, cache: CacheModel) -> _CacheCounts:
        return cls(**{name: getattr(cache, name) for name in cls.__dataclass_fields__})

    def plus(self, other: _CacheCounts, sign: int = 1) -> _CacheCounts:
        return _CacheCounts(
            **{name: getattr(self, name) + sign * getattr(other, name) for name in self.__dataclass_fields__}
        )


class Collector:
    """Counters of one run of a plan, launch by launch, in order.

    Args:
        spec: The device that is modelled.
        registers: Registers per thread by kernel expression.
        static_shared_bytes: Static shared memory by kernel expression.
        extents: The plan's buffers in device memory.
        launches: How many launches the plan has.
        run: Runs blocks on the emulator.
        budget: Thread instructions to spend; by default the module's constants.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        registers: Mapping[str, int],
        static_shared_bytes: Callable[[str], int],
        extents: Sequence[Extent],
        launches: int,
        run: RunBlocks,
        budget: Budget | None = None,
    ) -> None:
        self._spec = spec
        self._registers = registers
        self._static_shared_bytes = static_shared_bytes
        self._extents = sorted(extents, key=lambda extent: extent.address)
        self._run = run
        self._budget = budget or Budget(launches)
        self._groups: dict[tuple[object, ...], KernelCounts] = {}
        self._cache = TracedCache(spec.unified_l1_bytes_per_sm, spec.l2_bytes)
        self._residency: Residency | None = None
        self._memsets = 0
        self._memset_bytes = 0

    @property
    def exact(self) -> bool:
        """Whether every grid so far ran whole."""
        return self._residency is None

    def memset(self, step: Fill) -> None:
        """Count a memset; its bytes go to DRAM."""
        self._memsets += 1
        self._memset_bytes += step.nbytes

    def launch(self, step: Launch) -> None:
        """Run a launch, whole or sampled, and add its counters."""
        group = self._group(step)
        occupied = self._occupancy(group)
        blocks = math.prod(step.grid)
        per_sm = min(max(occupied.blocks_per_sm, 1), math.ceil(blocks / self._spec.sm_count))
        cache = self._cache
        cache.resize_l1(l1_bytes(self._spec, occupied) // per_sm)
        wave = max(occupied.blocks_per_sm, 1) * self._spec.sm_count
        share = self._budget.share
        if self._residency is not None:
            cache.reset()
        before = _CacheCounts.of(cache)
        reports: list[LaunchReport] = []
        rest: Sequence[int] | None = None
        if blocks > PROBE_BLOCKS:
            probe = (0, blocks // 2)
            reports.append(self._run(step, probe, cache))
            per_block = max(reports[0].thread_instructions // len(probe), 1)
            if per_block * blocks > share:
                self._sample(step, group, choose_chunks(blocks, share // per_block), wave, blocks)
                return
            rest = [block for block in range(blocks) if block not in probe]
        reports.append(self._run(step, rest, cache))
        self._whole(group, reports, _CacheCounts.of(cache).plus(before, -1), cache, blocks)

    def finish(self) -> PlanCounts:
        """All counters; what is still dirty in the L2 is written back, shared among kernels by what they wrote."""
        if self._residency is not None:
            left = self._residency.flush()
        else:
            before = self._cache.dram_write_sectors
            self._cache.flush()
            left = float(self._cache.dram_write_sectors - before) * SECTOR_BYTES
        kernels = list(self._groups.values())
        written = sum(kernel.l2_write_sectors for kernel in kernels)
        for kernel in kernels:
            kernel.dram_write_bytes += left * kernel.l2_write_sectors / written if written else 0.0
        return PlanCounts(kernels, self._memsets, self._memset_bytes)

    def _group(self, step: Launch) -> KernelCounts:
        key = (step.expression, step.grid, step.block, step.dynamic_shared_bytes)
        if key not in self._groups:
            static = self._static_shared_bytes(step.expression)
            self._groups[key] = KernelCounts(*key, static)
        return self._groups[key]

    def _occupancy(self, group: KernelCounts) -> Occupancy:
        return occupancy(
            self._spec,
            threads_per_block=group.threads_per_block,
            registers_per_thread=self._registers[group.expression],
            shared_bytes=group.static_shared_bytes + group.dynamic_shared_bytes,
        )

    def _whole(
        self,
        group: KernelCounts,
        reports: Sequence[LaunchReport],
        moved: _CacheCounts,
        cache: TracedCache,
        blocks: int,
    ) -> None:
        self._budget.spend(sum(report.thread_instructions for report in reports))
        read, written = moved.dram_read_sectors * SECTOR_BYTES, moved.dram_write_sectors * SECTOR_BYTES
        if self._residency is not None:
            one = cache.footprint()
            traffic = LaunchTraffic(
                {b: float(n) for b, n in bytes_by_buffer(one.read, self._extents).items()},
                {b: float(n) for b, n in bytes_by_buffer(one.written, self._extents).items()},
                0.0,
            )
            read, written = self._residency.launch(traffic)
        _add(group, reports, moved, read, written, scale=1.0, blocks=blocks)

    def _sample(self, step: Launch, group: KernelCounts, chunks: Sequence[Chunk], wave: int, blocks: int) -> None:
        if self._residency is None:
            self._residency = self._resident()
        reports: list[LaunchReport] = []
        moved = _CacheCounts()
        footprints: list[ChunkFootprint] = []
        for chunk in chunks:
            self._cache.reset()
            reports.append(self._run(step, range(chunk.start, chunk.middle), self._cache))
            first = self._cache.footprint()
            if chunk.middle < chunk.end:
                reports.append(self._run(step, range(chunk.middle, chunk.end), self._cache))
            whole = self._cache.footprint()
            moved = moved.plus(_CacheCounts.of(self._cache))
            footprints.append(ChunkFootprint(chunk.blocks, chunk.middle - chunk.start, first, whole))
        self._budget.spend(sum(report.thread_instructions for report in reports))
        traffic = extrapolate(
            footprints, self._extents, grid_blocks=blocks, wave_blocks=wave, l2_bytes=self._spec.l2_bytes
        )
        read, written = self._residency.launch(traffic)
        scale = blocks / sum(chunk.blocks for chunk in chunks)
        # No more can come from DRAM than the L1 asked for.
        read = min(read, moved.l2_read_sectors * scale * SECTOR_BYTES)
        moved.l2_read_hits = max(moved.l2_read_sectors - read / SECTOR_BYTES / scale, 0.0)
        _add(group, reports, moved, read, written, scale=scale, blocks=blocks)

    def _resident(self) -> Residency:
        """What the L2 model holds now, by buffer: where footprints take over from it."""
        residency = Residency(self._spec.l2_bytes)
        held, dirty = self._cache.sectors()
        unwritten = bytes_by_buffer(dirty, self._extents)
        for buffer, nbytes in bytes_by_buffer(held, self._extents).items():
            residency.hold(buffer, nbytes, unwritten.get(buffer, 0))
        return residency


def _add(
    group: KernelCounts,
    reports: Sequence[LaunchReport],
    moved: _CacheCounts,
    read_bytes: float,
    written_bytes: float,
    *,
    scale: float,
    blocks: int,
) -> None:
    """Add one launch to its group, its sums scaled up to the whole grid."""
    group.launches += 1
    group.blocks += blocks
    group.blocks_run += sum(report.ctas_run for report in reports)
    for name in ("l1_read_sectors", "l1_read_hits", "l2_read_sectors", "l2_read_hits", "l2_write_sectors"):
        setattr(group, name, getattr(group, name) + scale * getattr(moved, name))
    group.dram_read_bytes += read_bytes
    group.dram_write_bytes += written_bytes
    ops = {(op.ptx_line, op.space, op.access): op for op in group.memory}
    for report in reports:
        for name in ("thread_instructions", "warp_instructions", "branches", "divergent_branches", "barriers"):
            setattr(group, name, getattr(group, name) + scale * getattr(report, name))
        for operation, (warps, threads) in report.mix.items():
            had = group.mix.get(operation, (0.0, 0.0))
            group.mix[operation] = (had[0] + scale * warps, had[1] + scale * threads)
        for op in report.memory:
            key = (op.ptx_line, op.space, op.access)
            if key not in ops:
                ops[key] = MemoryCounts(
                    op.ptx_line, op.source_line, op.opcode, op.space, op.access, op.bytes_per_thread
                )
                group.memory.append(ops[key])
            for name in ("requests", "threads", "transactions", "ideal_transactions"):
                setattr(ops[key], name, getattr(ops[key], name) + scale * getattr(op, name))
