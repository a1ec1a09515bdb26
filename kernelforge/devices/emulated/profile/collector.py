"""Runs a plan's launches for a profile, completely or on sampled blocks, and collects their counters.

As long as complete grids run, one model of the L2 follows every access of the plan. From the first sampled launch on,
footprints replace it (:mod:`kernelforge.devices.emulated.profile.traffic`).
"""

from __future__ import annotations

import functools
import math
import operator
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernelforge.candidate.resolved import Fill, Launch, ScalarArg
from kernelforge.devices.emulated.execute.plan_execution import Execution
from kernelforge.devices.emulated.profile.sampling import (
    Budget,
    Chunk,
    choose_chunks,
    choose_edges,
    choose_inside,
    choose_launches,
    coordinates,
    ends_of,
    first_empty_block,
    halves,
    linear_id,
)
from kernelforge.devices.emulated.profile.side_by_side import (
    TRACE_WORDS,
    RecordedBlock,
    Surroundings,
    blocks_per_burst,
    recorded_block,
    side_by_side,
    warm_up_replay,
)
from kernelforge.devices.emulated.profile.traffic import (
    ChunkFootprint,
    Extent,
    LaunchTraffic,
    Range,
    Residency,
    SampledBlocks,
    bytes_by_buffer,
    distinct_in_grid,
    ecc_bytes,
    extrapolate,
    keep_footprint,
    most_updates,
    most_updates_of_a_word,
    ranges_by_buffer,
    ranges_of_grid,
)
from kernelforge.devices.emulated.ptx.parser import Instruction, Sym
from kernelforge.devices.emulated.report import LaunchReport, MemoryOp, own_line
from kernelforge.devices.emulated.runtime.cache import CacheCounts, CacheModel, Footprint, Sectors, Trace, all_sectors
from kernelforge.hardware.occupancy import Occupancy, l1_bytes
from kernelforge.profiling.counts import SECTOR_BYTES, CountedText, KernelCounts, MemoryCounts, PlanCounts
from kernelforge.profiling.model import kernel_occupancy

WORD_BYTES = 4
SAMPLED_BLOCKS = 5
"""Blocks that run of a launch whose blocks are dear: one that tells so, two of the sample, and one twice to see what is
fetched again. Where they are over the launch's share of the limit of work, one of them stands for the launch."""


def warm_up_collector() -> None:
    """Use every library function of a sampled profile once: a jail does not let them load their parts later."""
    cache = CacheModel(SECTOR_BYTES, SECTOR_BYTES)
    cache.keep_footprint(0, 64)
    empty = cache.footprint()
    sectors = Sectors.of(np.arange(4))
    chunk = ChunkFootprint(2, 1, empty, Footprint(sectors, sectors))
    extrapolate([chunk, chunk], [Extent(0, 0, 64)], grid_blocks=8, wave_blocks=4, l2_bytes=64)
    bytes_by_buffer(empty.read, [])
    warm_up_replay()


@dataclass(frozen=True)
class _Sample:
    """Counters of sampled blocks of one launch."""

    step: Launch
    reports: tuple[LaunchReport, ...]
    edges: tuple[tuple[LaunchReport, float], ...]
    """Blocks at edges of the grid, and how many each stands for."""
    moved: CacheCounts
    """Of the whole grid."""
    traffic: LaunchTraffic
    scale: float
    """Blocks that ``reports`` stand for over those of them that ran."""

    @property
    def ran(self) -> int:
        """Blocks that ran."""
        return sum(report.ctas_run for report in (*self.reports, *(report for report, _ in self.edges)))

    def traffic_of(self, step: Launch) -> LaunchTraffic:
        """The traffic on the buffers of another launch of the same shape, as far from its arguments' first bytes."""
        pairs = [
            (own, other)
            for own, other in zip(self.step.args, step.args, strict=True)
            if not isinstance(own, ScalarArg) and not isinstance(other, ScalarArg)
        ]
        buffers = {own.buffer: other.buffer for own, other in pairs}
        shifts = {own.buffer: other.offset_bytes - own.offset_bytes for own, other in pairs}
        read = {buffers.get(buffer, buffer): nbytes for buffer, nbytes in self.traffic.read.items()}
        written = {buffers.get(buffer, buffer): nbytes for buffer, nbytes in self.traffic.written.items()}
        ranges: dict[int, Range] = {}
        for buffer, (first, end) in self.traffic.ranges.items():
            shift = shifts.get(buffer, 0)
            ranges[buffers.get(buffer, buffer)] = first + shift, end + shift
        return LaunchTraffic(read, written, self.traffic.refetched, ranges=ranges)


class _EdgeRun(NamedTuple):
    """A block at an edge of a grid that ran from an empty L2."""

    report: LaunchReport
    moved: CacheCounts
    blocks: float
    """Blocks that it stands for."""

    @property
    def is_empty(self) -> bool:
        """Whether it made no request, as where a grid has more blocks than there is data."""
        return not any(op.requests for op in self.report.memory)


class _Edges(NamedTuple):
    """Blocks at the edges of a grid."""

    runs: Sequence[_EdgeRun] = ()
    """Those that do something else than a block inside."""
    touched: Sectors | None = None
    """Sectors of blocks at all ends of the grid; None where not all of them ran."""


class Collector:
    """Counters of one run of a plan, launch by launch, in order.

    Args:
        execution: The run.
        budget: Thread instructions to spend.
        strict: Faults end the profile as long as every grid ran completely.
        lines: Count the instructions of each line of this text too.
    """

    def __init__(self, execution: Execution, budget: Budget, *, strict: bool, lines: CountedText | None = None) -> None:
        self._execution = execution
        self._spec = execution.build.spec
        self._extents = sorted(execution.extents(), key=lambda extent: extent.address)
        self._budget = budget
        self._strict = strict
        self._lines = lines
        self._random = random.Random(execution.request.sample_seed)
        counts = Counter(map(_shape, execution.request.plan.launches))
        self._sampled_launches = {shape: choose_launches(count, self._random) for shape, count in counts.items()}
        self._launches: Counter[tuple[object, ...]] = Counter()
        self._groups: dict[tuple[object, ...], KernelCounts] = {}
        self._samples: dict[int, list[_Sample]] = {}
        spec = self._spec
        self._l2_bytes = spec.l2_distinct_bytes
        self._cache = CacheModel(spec.unified_l1_bytes_per_sm, self._l2_bytes, spec.l2_fetch_bytes)
        mapped = execution.request.mapped
        self._host = [(e.address, e.address + e.nbytes) for e in self._extents if e.buffer in mapped]
        self._cache.map_host(self._host)
        keep_footprint(self._cache, self._extents)
        self._residency: Residency | None = None
        self._memsets = 0
        self._memset_bytes = 0

    @property
    def complete(self) -> bool:
        """Whether every grid so far, those of ``setup`` included, ran completely."""
        return self._strict and self._residency is None

    def memset(self, step: Fill) -> None:
        """Count a memset; its bytes go to DRAM."""
        self._memsets += 1
        self._memset_bytes += step.nbytes

    def launch(self, step: Launch) -> None:
        """Run a launch, completely or on sampled blocks, and add its counters.

        Of a shape that comes often some launches are run; one of their samples stands for each of the others.
        """
        group, shape = self._group(step), _shape(step)
        samples = self._samples.setdefault(id(group), [])
        number = self._launches[shape]
        self._launches[shape] += 1
        if samples and number not in self._sampled_launches[shape]:
            self._add_sample(step, group, samples[self._random.randrange(len(samples))], ran=0)
            self._budget.spend(0)
            return
        registers = self._execution.build.kernels[group.expression].registers_per_thread
        occupied = kernel_occupancy(self._spec, group, registers)
        blocks, units = math.prod(step.grid), self._execution.units(step)
        l1_share = self._l1_share(step, occupied)
        self._cache.resize_l1(l1_share)
        if self._residency is not None:
            self._cache.reset()
        before, work = self._cache.counts, self._execution.work
        reports: list[LaunchReport] = []
        rest: Sequence[int] | None = None
        if units > 1 and not self._execution.waits(step):
            # The cost of one block, or cluster, predicts that of the grid.
            probe = choose_inside(step.grid, self._random) if units == blocks else self._random.randrange(units)
            report, trace = self._record(step, probe, alone=units == blocks)
            reports.append(report)
            per_unit = max(report.thread_instructions, 1)
            affordable = self._budget.affordable_blocks(per_unit)
            chunks = choose_chunks(units, affordable, self._random)
            exceeded = self._budget.exceeded_by(per_unit * units)
            if exceeded and self._is_over_share(self._execution.work - work, units):
                self._add_single(step, group, occupied, probe, report, before)
                return
            if exceeded and len(chunks) > 1:
                probed = self._cache.counts.plus(before, -1).dram_read_sectors * SECTOR_BYTES
                if self._residency is None:
                    self._residency = self._resident()
                else:
                    probed = 0.0
                recorded = self._recorded(step, probe, trace) if units == blocks and affordable else None
                # Blocks that share an L1 are compared with one that has all of it.
                self._cache.resize_l1(l1_share if recorded is None else l1_bytes(self._spec, occupied))
                edges = self._edges(step, probe, report, affordable) if units == blocks else _Edges()
                sample = self._sample(step, occupied, chunks, edges)
                samples.append(self._side_by_side(sample, occupied, chunks[0].start, recorded))
                self._add_sample(step, group, samples[-1], samples[-1].ran, probed)
                self._budget.spend(sum(report.thread_instructions for report in samples[-1].reports))
                return
            rest = [unit for unit in range(units) if unit != probe]
        reports.append(self._run(step, rest))
        self._cache.complete()
        self._add_complete(group, reports, self._cache.counts.plus(before, -1))

    def _is_over_share(self, per_unit: int, units: int) -> bool:
        """Whether the usual blocks of a launch take more than its share of the work that the request allows, of which
        one block, or cluster, took ``per_unit``: a profile of all launches would end there, with nothing."""
        limit = self._execution.request.max_thread_instructions
        if limit is None:
            return False
        later = sum(
            number >= self._launches[shape] for shape, sampled in self._sampled_launches.items() for number in sampled
        )
        spent = self._execution.work - per_unit
        return per_unit * min(units, SAMPLED_BLOCKS) > (limit - spent) / (later + 1)

    def _add_single(
        self,
        step: Launch,
        group: KernelCounts,
        occupied: Occupancy,
        unit: int,
        report: LaunchReport,
        before: CacheCounts,
    ) -> None:
        """Add a launch, and later ones of its shape, by one block or cluster: all others are taken to do the same.

        Args:
            step: The launch.
            group: Of its shape.
            occupied: Occupancy of the kernel.
            unit: The block or cluster that ran.
            report: Of it, from an empty L2 if a launch before was sampled.
            before: Counters of the cache before it ran.
        """
        probed, units = 0.0, self._execution.units(step)
        if self._residency is None:
            probed = self._cache.counts.plus(before, -1).dram_read_sectors * SECTOR_BYTES
            self._residency = self._resident()
            self._cache.reset()
            unit = self._random.randrange(units)
            report = self._run(step, (unit,))
        self._cache.complete()
        touched = self._cache.footprint()
        traffic = extrapolate(
            [ChunkFootprint(1, 1, touched, touched)],
            self._extents,
            grid_blocks=units,
            wave_blocks=self._wave(step, occupied),
            l2_bytes=self._l2_bytes,
        )
        moved = CacheCounts().plus(self._cache.counts, units)
        repeated = max(moved.l2_read_sectors * SECTOR_BYTES - sum(traffic.read.values()), 0.0)
        sectors = all_sectors([touched.read, touched.written])
        ranges = ranges_of_grid([SampledBlocks(unit, unit, sectors)], self._extents, traffic.touched, units)
        traffic = replace(traffic, refetched=min(traffic.refetched, repeated), ranges=ranges)
        sample = _Sample(step, (report,), (), moved, traffic, float(units))
        self._samples[id(group)].append(sample)
        self._add_sample(step, group, sample, sample.ran, probed)
        self._budget.spend(report.thread_instructions)
        shape = _shape(step)
        ran = range(self._launches[shape])
        self._sampled_launches[shape] = self._sampled_launches[shape].intersection(ran)

    def _record(self, step: Launch, unit: int, *, alone: bool = True) -> tuple[LaunchReport, Trace | None]:
        """Run one block and record its requests; those of a cluster's blocks are mixed."""
        self._cache.record(TRACE_WORDS if alone else 0)
        report = self._run(step, (unit,))
        trace = self._cache.recorded() if alone else None
        self._cache.record(0)
        return report, trace

    def _recorded(self, step: Launch, probe: int, trace: Trace | None) -> tuple[RecordedBlock, int] | None:
        """The probe with the distances of its requests to those of other blocks, and where it is in the grid."""
        at, apart = coordinates(probe, step.grid), {}
        for axis, size in enumerate(step.grid):
            if size < 2:
                continue
            first, places = (1, size - 2) if size > 3 else (0, size)
            other = first + (at[axis] - first + max(places // 2, 1)) % places
            unit = linear_id([*at[:axis], other, *at[axis + 1 :]], step.grid)
            apart[axis] = (other - at[axis], self._record(step, unit)[1])
        third = choose_inside(step.grid, self._random)
        away = [there - here for there, here in zip(coordinates(third, step.grid), at, strict=True)]
        block = recorded_block(trace, apart, away, self._record(step, third)[1])
        return None if block is None else (block, probe)

    def _edges(self, step: Launch, probe: int, inside: LaunchReport, affordable: int) -> _Edges:
        """Run blocks at the edges and corners of a grid that do something else than one inside, the probe."""
        at = coordinates(probe, step.grid)

        sectors: list[Sectors] = []

        def run(block: int) -> tuple[LaunchReport, CacheCounts]:
            self._cache.reset()
            report = self._run(step, (block,))
            footprint = self._cache.footprint()
            sectors.extend((footprint.read, footprint.written))
            return report, self._cache.counts

        all_ends = ends_of(step.grid, at)
        ends = dict(list(all_ends.items())[:affordable])
        ran = {block: run(block) for block in ends.values()}
        different = {end for end, block in ends.items() if not does_the_same(ran[block][0], inside)}
        edges = choose_edges(step.grid, at, different, affordable)
        runs = [_EdgeRun(*(ran.get(edge.block) or run(edge.block)), edge.blocks) for edge in edges]
        touched = all_sectors(sectors) if len(ends) == len(all_ends) else None
        last = math.prod(step.grid) - 1
        if max(step.grid) - 1 == last and edges and edges[-1].block == last and runs[-1].is_empty:
            spare = affordable - len(ends)
            first = first_empty_block(probe, last, lambda block: _EdgeRun(*run(block), 1).is_empty, spare)
            runs[-1] = runs[-1]._replace(blocks=last + 1 - first)
        return _Edges(runs, touched)

    def finish(self) -> PlanCounts:
        """All counters. Bytes still dirty in the L2 are written back, attributed to kernels by what they wrote."""
        if self._residency is not None:
            dirty = self._residency.flush()
        else:
            before = self._cache.counts.dram_write_sectors
            self._cache.flush()
            dirty = float(self._cache.counts.dram_write_sectors - before) * SECTOR_BYTES
        kernels = list(self._groups.values())
        written = sum(kernel.l2_write_sectors for kernel in kernels)
        for kernel in kernels:
            own = dirty * kernel.l2_write_sectors / written if written else 0.0
            kernel.dram_write_bytes += own
            kernel.l2_dirty_bytes += own if self._spec.l2_keeps_written else 0.0
        return PlanCounts(kernels, self._memsets, self._memset_bytes)

    def _run(self, step: Launch, units: Sequence[int] | None) -> LaunchReport:
        """Run some blocks of a launch, or clusters where it has them; None for all."""
        ctas = None if units is None else self._execution.blocks(step, units)
        # After a sampled launch blocks may read what left-out blocks would have written: no fault is theirs.
        return self._execution.run_blocks(step, ctas, cache=self._cache, strict=self.complete)

    def _group(self, step: Launch) -> KernelCounts:
        key = _shape(step)
        if key not in self._groups:
            self._groups[key] = KernelCounts(
                step.expression,
                step.grid,
                step.block,
                step.dynamic_shared_bytes,
                self._execution.build.entry(step.expression).static_shared_bytes,
                cluster=self._execution.cluster(step),
            )
        return self._groups[key]

    def _add_complete(self, group: KernelCounts, reports: Sequence[LaunchReport], moved: CacheCounts) -> None:
        self._budget.spend(sum(report.thread_instructions for report in reports))
        read, written = moved.dram_read_sectors * SECTOR_BYTES, moved.dram_write_sectors * SECTOR_BYTES
        if self._residency is not None:
            footprint = self._cache.footprint()
            traffic = LaunchTraffic(
                {b: float(n) for b, n in bytes_by_buffer(footprint.read, self._extents).items()},
                {b: float(n) for b, n in bytes_by_buffer(footprint.written, self._extents).items()},
                0.0,
                ranges=ranges_by_buffer(all_sectors([footprint.read, footprint.written]), self._extents),
            )
            read, written = self._residency.launch(traffic)
            moved = replace(moved, l2_read_hits=max(moved.l2_read_sectors - read / SECTOR_BYTES, 0.0))
        read += ecc_bytes(self._spec, read, written)
        ran = sum(report.ctas_run for report in reports)
        add_launch(group, reports, moved, read, written, ran=ran, lines=self._lines)

    def _sample(
        self,
        step: Launch,
        occupied: Occupancy,
        chunks: Sequence[Chunk],
        at_ends: _Edges,
    ) -> _Sample:
        """Run chunks of a grid's blocks or clusters, each from an empty L2, and add its edges."""
        edges = at_ends.runs
        reports: list[LaunchReport] = []
        moved = CacheCounts()
        footprints: list[ChunkFootprint] = []
        ran: list[SampledBlocks] = []
        units, wave, blocks = self._execution.units(step), self._wave(step, occupied), math.prod(step.grid)
        empty = int(sum(edge.blocks - 1 for edge in edges if edge.is_empty)) if max(step.grid) == blocks else 0
        for first, second in halves(chunks, step.grid, inside=bool(edges), empty=empty, draws=self._random):
            self._cache.reset()
            reports.append(self._run(step, first))
            self._cache.complete()
            begun = complete = self._cache.footprint()
            if second:
                reports.append(self._run(step, second))
                self._cache.complete()
                complete = self._cache.footprint()
            moved = moved.plus(self._cache.counts)
            footprints.append(ChunkFootprint(len(first) + len(second), len(first), begun, complete))
            sectors = all_sectors([complete.read, complete.written])
            ran.append(SampledBlocks(first[0], (second or first)[-1], sectors))
        traffic = extrapolate(footprints, self._extents, grid_blocks=units, wave_blocks=wave, l2_bytes=self._l2_bytes)
        if at_ends.touched is None:
            ranges = ranges_of_grid(ran, self._extents, traffic.touched, units)
        else:
            ranges = ranges_by_buffer(all_sectors([at_ends.touched, *(part.sectors for part in ran)]), self._extents)
        traffic = replace(traffic, ranges=ranges)
        scale = (units - sum(edge.blocks for edge in edges)) / sum(part.blocks for part in footprints)
        moved = CacheCounts().plus(moved, scale)
        for edge in edges:
            moved = moved.plus(edge.moved, edge.blocks)
        at_edges = tuple((edge.report, edge.blocks) for edge in edges)
        return _Sample(step, tuple(reports), at_edges, moved, traffic, scale)

    def _l1_share(self, step: Launch, occupied: Occupancy) -> int:
        """Bytes of an L1 for each of the blocks that share it."""
        resident = min(max(occupied.blocks_per_sm, 1), math.ceil(math.prod(step.grid) / self._spec.sm_count))
        return l1_bytes(self._spec, occupied) // resident

    def _wave(self, step: Launch, occupied: Occupancy) -> int:
        """Blocks, or clusters, of a launch that run at one time where it has enough of them."""
        blocks = max(occupied.blocks_per_sm, 1) * self._spec.sm_count
        return max(blocks * self._execution.units(step) // math.prod(step.grid), 1)

    def _side_by_side(
        self, sample: _Sample, occupied: Occupancy, unit: int, recorded: tuple[RecordedBlock, int] | None
    ) -> _Sample:
        """A sample with the traffic of its blocks when they run side by side.

        Args:
            sample: Of blocks one after another.
            occupied: Occupancy of the kernel.
            unit: One of the blocks, or clusters.
            recorded: A block's requests, and where it is in the grid; None where they were not recorded.
        """
        moved, traffic = sample.moved, sample.traffic
        units, wave = self._execution.units(sample.step), self._wave(sample.step, occupied)
        sharing = None
        if recorded is not None:
            warp_instructions = sample.scale * sum(report.warp_instructions for report in sample.reports)
            surroundings = Surroundings(
                spec=self._spec,
                grid=sample.step.grid,
                blocks_per_sm=max(occupied.blocks_per_sm, 1),
                l1_bytes=l1_bytes(self._spec, occupied),
                extents=self._extents,
                host=self._host,
                burst=blocks_per_burst(self._spec, traffic, warp_instructions, units, wave),
            )
            sharing = side_by_side(*recorded, surroundings, self._random)
        read = sum(traffic.read.values())
        fetched = None
        filled = 0.0
        if sharing is not None:
            misses, from_host = moved.l2_read_sectors * sharing.misses, moved.host_read_sectors * sharing.host_sectors
            more = misses - moved.l2_read_sectors + from_host - moved.host_read_sectors
            moved = replace(
                moved,
                l1_read_hits=max(moved.l1_read_hits - more, 0.0),
                l2_read_sectors=misses,
                host_read_sectors=from_host,
                host_read_requests=moved.host_read_requests * sharing.host_requests,
            )
            fetched = sharing.fetched
            if self._spec.dram_ecc_share:
                filled = min(sharing.partly_written, sum(traffic.written.values()))
        # No more can be fetched again than the L1 asked for again.
        repeated = max(moved.l2_read_sectors * SECTOR_BYTES - read, 0.0)
        refetched = traffic.refetched
        if fetched is not None:
            reads = {b: max(fetched.get(b, 0.0), least) for b, least in traffic.least_read.items()}
            once = {b: min(nbytes, reads[b]) for b, nbytes in traffic.read.items()}
            refetched = sum(reads.values()) - sum(once.values())
            filled += sum(nbytes for b, nbytes in fetched.items() if b not in reads)
            traffic = replace(traffic, read=once)
        elif repeated > 0.01 * read:
            l1_share = self._l1_share(sample.step, occupied)
            refetched += self._fetched_again(sample.step, unit, l1_share, min(wave, units), read / units) * units
        traffic = replace(traffic, refetched=min(refetched, repeated) + filled)
        return replace(sample, moved=moved, traffic=traffic)

    def _fetched_again(self, step: Launch, unit: int, l1_share: int, together: int, own_bytes: float) -> float:
        """Bytes that one block, or cluster, reads again from DRAM because the others evict them in between: what it
        misses with its share of the L2, less what it misses with all of it.

        Args:
            step: The launch.
            unit: The block or cluster.
            l1_share: Bytes of the L1 that are its own.
            together: Number that run side by side.
            own_bytes: What each of them reads that no other does, on average.
        """

        def missed(l2_bytes: float) -> float:
            cache = CacheModel(l1_share, int(l2_bytes), self._spec.l2_fetch_bytes)
            cache.map_host(self._host)
            self._execution.run_blocks(step, self._execution.blocks(step, (unit,)), cache=cache, strict=False)
            return cache.counts.dram_read_sectors * SECTOR_BYTES

        read = missed(self._l2_bytes)
        # Bytes that several read are in the L2 once.
        apart = max(together * min(own_bytes / max(read, 1.0), 1.0), 1.0)
        return missed(self._l2_bytes / apart) - read if read * apart > self._l2_bytes else 0.0

    def _add_sample(
        self, step: Launch, group: KernelCounts, sample: _Sample, ran: int, already_read: float = 0.0
    ) -> None:
        """Add a launch by a sample of it. ``already_read``: bytes that the probe of its cost put into the L2."""
        assert self._residency is not None
        traffic = sample.traffic_of(step)
        read, written = self._residency.launch(traffic)
        read += min(already_read, sum(traffic.read.values()) + traffic.refetched - read)  # what was found in the L2
        read += ecc_bytes(self._spec, read, written)
        moved = replace(sample.moved, l2_read_hits=max(sample.moved.l2_read_sectors - read / SECTOR_BYTES, 0.0))
        add_launch(
            group,
            sample.reports,
            moved,
            read,
            written,
            scale=sample.scale,
            edges=sample.edges,
            ran=ran,
            lines=self._lines,
            written_words=sum(sample.traffic.written.values()) / WORD_BYTES,
        )

    def _resident(self) -> Residency:
        """The content of the L2 model, by buffer, which footprints continue."""
        residency = Residency(self._l2_bytes, {extent.buffer: extent.nbytes for extent in self._extents})
        cached, dirty = self._cache.sectors()
        unwritten, ranges = bytes_by_buffer(dirty, self._extents), ranges_by_buffer(cached, self._extents)
        for buffer, nbytes in bytes_by_buffer(cached, self._extents).items():
            residency.hold(buffer, nbytes, unwritten.get(buffer, 0), ranges[buffer])
        return residency


def does_the_same(first: LaunchReport, second: LaunchReport) -> bool:
    """Whether parts of a launch executed as many instructions and made as many requests, of as many sectors."""

    def work(report: LaunchReport) -> list[object]:
        ops = [(op.ptx_line, op.access, op.requests, op.threads, op.transactions, op.lines) for op in report.memory]
        return [report.thread_instructions, report.warp_instructions, report.barriers, report.branches, *sorted(ops)]

    return work(first) == work(second)


def _shape(step: Launch) -> tuple[object, ...]:
    """The key of a launch's group."""
    return step.expression, step.grid, step.block, step.dynamic_shared_bytes, step.cluster


def add_launch(
    group: KernelCounts,
    reports: Sequence[LaunchReport],
    moved: CacheCounts,
    read_bytes: float,
    written_bytes: float,
    *,
    ran: int,
    scale: float = 1.0,
    edges: Sequence[tuple[LaunchReport, float]] = (),
    lines: CountedText | None = None,
    written_words: float = math.inf,
) -> None:
    """Add one launch to its group; ``ran`` of its blocks were run.

    Args:
        group: The launches of its kernel and shape.
        reports: Of parts of it, whose sums are scaled up.
        moved: Traffic of the whole grid.
        read_bytes: From DRAM.
        written_bytes: To DRAM.
        ran: Blocks that were run.
        scale: Blocks that the reports stand for over those that ran.
        edges: Reports of blocks that each stand for a number of others.
        lines: Count the instructions of each line of this text too.
        written_words: Different words of global memory that the grid writes, where that is known.
    """
    group.launches += 1
    group.blocks += math.prod(group.grid)
    group.blocks_run += ran
    for name in (
        "l1_read_sectors", "l1_read_hits", "l2_read_sectors", "l2_read_hits", "l2_write_sectors", "host_read_sectors",
        "host_read_requests",
    ):  # fmt: skip
        setattr(group, name, getattr(group, name) + getattr(moved, name))
    group.dram_read_bytes += read_bytes
    group.dram_write_bytes += written_bytes
    ops = {(op.ptx_line, op.space, op.access): op for op in group.memory}
    atomics: dict[tuple[str, str], dict[int, list[MemoryOp]]] = {}
    weighted = [*((report, scale) for report in reports), *edges]
    for report, weight in weighted:
        for name in ("thread_instructions", "warp_instructions", "branches", "divergent_branches", "barriers"):
            setattr(group, name, getattr(group, name) + weight * getattr(report, name))
        for operation, (warps, threads) in report.mix.items():
            had = group.mix.get(operation, (0.0, 0.0))
            group.mix[operation] = (had[0] + weight * warps, had[1] + weight * threads)
        for kind, (operations, read) in report.matrix.items():
            had = group.matrix.get(kind, (0.0, 0.0))
            group.matrix[kind] = (had[0] + weight * operations, had[1] + weight * read)
        for op in report.memory:
            key = (op.ptx_line, op.space, op.access)
            if key not in ops:
                line = own_line(op.source_line, op.source_file)
                ops[key] = MemoryCounts(
                    op.ptx_line, line, op.opcode, op.space, op.access, op.bytes_per_thread, in_flight=op.in_flight
                )
                group.memory.append(ops[key])
            for name in ("requests", "threads", "transactions", "lines", "ideal_transactions"):
                setattr(ops[key], name, getattr(ops[key], name) + weight * getattr(op, name))
    for number, report in enumerate(reports):
        for op in report.memory:
            if op.access == "atomic":
                atomics.setdefault((op.opcode, op.space), {}).setdefault(number, []).append(op)
    for (_, space), parts in atomics.items():
        together = [op for part in parts.values() for op in part]
        for line in {op.ptx_line for op in together}:
            own = ops[line, space, "atomic"]
            # Launches of one shape are assumed to update the same words.
            sketches = [op.sketch for op in together if op.ptx_line == line]
            own.addresses = max(own.addresses, distinct_in_grid(sketches, scale))
        # What the instructions of one kind do to a word adds up; the first of them has it.
        first = ops[min(op.ptx_line for op in together), space, "atomic"]
        sketches = [functools.reduce(operator.or_, (op.sketch for op in part)) for part in parts.values()]
        words = [[pair for op in part for pair in op.word_updates] for part in parts.values()]
        line_leaders = [[pair for op in part for pair in op.line_updates] for part in parts.values()]
        updates = sum(op.threads for op in together)
        written = written_words if space == "global" else math.inf
        first.word_updates += most_updates_of_a_word(words, sketches, updates, scale, written)
        first.line_updates += most_updates(line_leaders, scale)
    for report, weight in weighted:
        _add_ptx_lines(group, report, weight)
        if lines is not None:
            _add_lines(group, report, weight, lines)


def _add_ptx_lines(group: KernelCounts, report: LaunchReport, scale: float) -> None:
    """Add the executions of each line of the PTX by warps, from those of basic blocks."""
    for instructions, warps, _ in report.executed:
        for line in {i.ptx_line for i in instructions if not _is_branch_around(i)}:
            group.ptx_lines[line] = group.ptx_lines.get(line, 0.0) + scale * warps


def _is_branch_around(instruction: Instruction) -> bool:
    """Whether a branch stands for the predicate of the instruction after it, whose line it has: its label is none that
    PTX could have."""
    target = instruction.operands[0] if instruction.opcode == "bra" else None
    return isinstance(target, Sym) and target.name.startswith("@")


def _add_lines(group: KernelCounts, report: LaunchReport, scale: float, text: CountedText) -> None:
    """Add the instructions of a part of a launch to the lines that they belong to."""
    for instructions, warps, threads in report.executed:
        for i in instructions:
            line = i.ptx_line if text == "ptx" else own_line(i.location.line, i.location.file)
            had = group.lines.get(line, (0.0, 0.0))
            group.lines[line] = (had[0] + scale * warps, had[1] + scale * threads)
