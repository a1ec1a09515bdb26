"""Blocks of a sampled launch side by side, as an SM and a GPU run them, from one block that was recorded.

Where every request of a kernel moves by a fixed distance from one block to the next, on each axis of the grid, one
recorded block tells the requests of all: those that share an L1, and those that a wave sends to the L2.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen import llvm_jit
from kernelforge.devices.emulated.profile.sampling import coordinates
from kernelforge.devices.emulated.profile.traffic import Extent, LaunchTraffic
from kernelforge.devices.emulated.runtime import replay as rp
from kernelforge.devices.emulated.runtime.cache import (
    HEADER_BIT,
    HEADER_COUNT,
    HEADER_WARP,
    REPLAY_RESULT,
    REPLAY_RESULTS,
    REPLAY_SENT,
    REPLAY_SENT_CAPACITY,
    REPLAY_SENT_JOB,
    REPLAY_SENT_WORDS,
    SENT_WORDS,
    WARPS_OF_A_SLOT,
    CacheModel,
    Trace,
)
from kernelforge.hardware.specs import H100, DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES

Blocks = npt.NDArray[np.int64]
"""Distances from the recorded block, in blocks of each axis: one row per block."""

TRACE_WORDS = 4 << 20
"""Of one recorded block: 32 MiB."""
L1_WORDS = 12_000_000
"""Words of traces that are replayed through one L1."""
L1_REPLAYS = (64, 500)
"""Least and most replays where chance decides which blocks meet on an SM, and the order of blocks matters."""
L1_REPLAYED_WORDS = 4_000_000
"""Words of traces in all of them together, beyond the least."""
L1_SCATTER = 0.002
"""Standard error, over the mean, that ends them. Means of 500 have 1.5 % for additions from offsets."""
L2_SECTORS = 30_000_000
"""Sectors of three waves that are replayed through the L2 at most; of two, twice as many."""
L2_LOOKUPS = 400_000
"""The part of them that it looks up: about as many lookups. Of streams, a quarter of the lines reads 0.01 % less."""
MOST = 0.95
"""Requests of another block that have to be where the recorded one tells."""
TOGETHER_NS = 140.0
"""Time within which blocks that wait for DRAM end together. Of an RTX 4090's blocks in order, 7 to 50 % meet the one
before them on their SM if 3 to 24 are resident: the sectors that they share hit in its L1 (additions from offsets)."""
DRIFT = 0.05
"""Part of a block's time by which blocks that start together are further apart after each wave, where instructions
bind: an estimate. After 46 and 72 waves (naive products on a GTX 1660 Super and an H100) they start at any time."""
TURNS = 64
"""Turns of a block: side by side, blocks are apart by as little as that part of their time."""


@dataclass(frozen=True)
class RecordedBlock:
    """Requests of one block, and how they move from block to block."""

    trace: Trace
    shifts: npt.NDArray[np.int64]
    """Sectors per block of each axis, in parts of ``SHIFT_ONE``: one row per request."""


@dataclass(frozen=True)
class Surroundings:
    """A launch and the GPU that runs it."""

    spec: DeviceSpec
    grid: tuple[int, int, int]
    blocks_per_sm: int
    l1_bytes: int
    """Of an SM."""
    extents: Sequence[Extent]
    """The plan's buffers."""
    burst: float
    """Blocks of an SM that end at about the same time, on average; their places are taken by blocks in order."""
    host: Sequence[tuple[int, int]] = ()
    """Ranges of host memory, as :meth:`CacheModel.map_host` takes them."""

    @property
    def beyond_l1(self) -> float:
        """Time of a sector of the DRAM over that of one in the L1, where the DRAM binds: blocks advance with it. Where
        instructions do, they advance with their requests, and it is 0."""
        if not self.burst:
            return 0.0
        spec = self.spec
        dram_bytes_per_cycle = spec.dram_sustained_gbps * 1e9 / (spec.sm_count * spec.clock_hz)
        return spec.l1_bytes_per_cycle / dram_bytes_per_cycle


class Pace(NamedTuple):
    """Progress of blocks side by side: each request takes as long as it does on average in blocks before."""

    beyond_l1: float = 0.0
    """Time of a sector that the L1 asks the L2 for, or sends there, in that of one that it has."""
    sent: float = 0.0
    """Such sectors of a block alone."""


ALONE = Pace()


class Sharing(NamedTuple):
    """The difference that blocks side by side make to blocks one after another."""

    misses: float
    """Sectors that a block reads from the L2 among others of its SM, over those that it reads with the L1 to itself."""
    host_sectors: float
    """The same of sectors that it reads of host memory."""
    host_requests: float
    """The same of requests for these."""
    fetched: Mapping[int, float] | None
    """Bytes of each buffer that the grid reads from DRAM; None where they would take too long to find out."""
    partly_written: float
    """Bytes of the sectors that the grid writes in part, each counted once a block."""


def blocks_per_burst(
    spec: DeviceSpec, traffic: LaunchTraffic, warp_instructions: float, blocks: int, wave: int
) -> float:
    """Blocks of an SM that end at about the same time.

    Where the DRAM binds, data of an SM's blocks come together. Where the warps' instructions do, or all blocks run at
    once, blocks take no other's place at the same time.
    """
    dram_ns = (sum(traffic.read.values()) + sum(traffic.written.values())) / spec.dram_sustained_gbps
    issue_ns = warp_instructions / (spec.sm_count * spec.schedulers_per_sm * spec.clock_hz) * 1e9
    if dram_ns < issue_ns or blocks <= wave:
        return 0.0
    return TOGETHER_NS * blocks / (dram_ns * spec.sm_count)


def blocks_of_an_sm(first: int, count: int, surroundings: Surroundings, draws: random.Random) -> Blocks:
    """Blocks, by linear id, that one SM runs one after another; more than there are wrap around."""
    burst, sms = surroundings.burst, surroundings.spec.sm_count
    apart = round(sms * (burst / -math.expm1(-burst) if burst else 1.0))
    ids: list[int] = []
    while len(ids) < count:
        # A number of Poisson's distribution that is at least 1.
        places, share = 1, burst * math.exp(-burst)
        rest = draws.uniform(math.exp(-burst), 1.0) - math.exp(-burst) - share if burst else 0.0
        while rest > 0 and places < count:
            places += 1
            share *= burst / places
            rest -= share
        ids += range(first, first + places)
        first += max(apart, places)
    return np.array(ids[:count], dtype=np.int64)


def side_by_side(
    block: RecordedBlock, recorded_id: int, surroundings: Surroundings, draws: random.Random
) -> Sharing | None:
    """A recorded block among others of its SM, and blocks in order on all SMs; None where it reads nothing."""
    spec, grid, total = surroundings.spec, surroundings.grid, math.prod(surroundings.grid)
    resident = min(surroundings.blocks_per_sm, math.ceil(total / spec.sm_count))
    slots = max(min(resident, L1_WORDS // (3 * block.trace.size)), 1)
    share = surroundings.l1_bytes // surroundings.blocks_per_sm
    count = min(math.ceil(total / spec.sm_count), 3 * slots)
    # The first blocks start together and the last end alone: those between are measured.
    measured = slice(slots, max(count - slots, slots + 1)) if count > slots else slice(None)
    begin = recorded_id - spec.sm_count * (count // 2)
    host = surroundings.host
    alone = through_l1(block, np.zeros((1, 3), dtype=np.int64), 1, surroundings.l1_bytes, slice(None), host=host)
    if not alone.read_sectors:
        return None
    sent = alone.l2_read_sectors + alone.l2_write_sectors
    pace = Pace(surroundings.beyond_l1, sent)

    def replayed(ids: npt.NDArray[np.int64]) -> L1Result:
        return through_l1(block, _away(grid, recorded_id, ids), slots, slots * share, measured, pace, host)

    results = [replayed(blocks_of_an_sm(begin, count, surroundings, draws))]
    most = 1
    if surroundings.burst:
        extremes = replayed(begin + np.arange(count)), replayed(begin + spec.sm_count * np.arange(count))
        if any(extreme.read_sectors != results[0].read_sectors for extreme in extremes):
            most = min(max(L1_REPLAYED_WORDS // (count * block.trace.size), L1_REPLAYS[0]), L1_REPLAYS[1])
    while len(results) < most and not _is_settled(results):
        results.append(replayed(blocks_of_an_sm(begin, count, surroundings, draws)))

    def times(name: str) -> float:
        """A figure of blocks side by side over that of one alone."""
        by_itself: float = getattr(alone, name)
        return statistics.mean(getattr(result, name) for result in results) / by_itself if by_itself else 1.0

    sender = results[0]
    headers, sectors, masks = sender.sent.reshape(-1, SENT_WORDS).T
    partly = (headers & 7 == lay.STORE) & (masks != lay.COMPLETE_SECTOR)
    partly_written = float(np.unique(sectors[partly]).size) * SECTOR_BYTES * total
    return Sharing(
        times("l2_read_sectors"),
        times("host_sectors"),
        times("host_requests"),
        _fetched(block, recorded_id, sender, surroundings, draws),
        partly_written,
    )


def _is_settled(results: Sequence[L1Result]) -> bool:
    """Whether the mean of some replays is known well enough."""
    read = [result.read_sectors for result in results]
    if len(read) < L1_REPLAYS[0]:
        return False
    return statistics.stdev(read) <= L1_SCATTER * statistics.mean(read) * math.sqrt(len(read))


def _fetched(
    block: RecordedBlock, recorded_id: int, sender: L1Result, surroundings: Surroundings, draws: random.Random
) -> Mapping[int, float] | None:
    """Bytes of each buffer that the grid reads from DRAM."""
    spec, grid, total = surroundings.spec, surroundings.grid, math.prod(surroundings.grid)
    wave = min(surroundings.blocks_per_sm * spec.sm_count, total)
    # Rows of blocks that share nothing but along their row would be seen only in part.
    row = grid[0] if grid[0] <= 4 * wave else 1
    measured = math.ceil(wave / row) * row
    sectors = sender.sent.size // SENT_WORDS
    waves = 3 if 3 * measured * sectors <= L2_SECTORS else 2
    if sectors == 0 or waves * measured * sectors > 2 * L2_SECTORS:
        return None
    # From a block's start to that of the one that takes its place: blocks of a wave may start at about the same time.
    count = min(total, waves * measured + 1)
    first, blocks = (count - 1 - measured, measured) if count < total else (-1, total)
    start = draws.randrange(total - count + 1)
    in_order = _away(grid, recorded_id, np.arange(start, start + count))
    l2_bytes = spec.l2_distinct_bytes
    # Blocks that wait for the DRAM are apart at once.
    spread = 1.0 if surroundings.burst else min(DRIFT * total / wave / 2, 1.0)
    fetched = through_l2(
        block, sender, in_order, wave, first, surroundings.extents, l2_bytes, spec.l2_fetch_bytes, spread
    )
    return {buffer: nbytes * total / blocks for buffer, nbytes in fetched.items()}


def _away(grid: tuple[int, int, int], recorded_id: int, ids: npt.NDArray[np.int64]) -> Blocks:
    """Distances of blocks from the recorded one on each axis of the grid; after its last block comes its first."""
    indices = np.stack(np.unravel_index(ids % math.prod(grid), grid[::-1])[::-1], axis=1)
    return indices - np.asarray(coordinates(recorded_id, grid), dtype=np.int64)


@dataclass(frozen=True)
class L1Result:
    """Requests of the L1 of one SM to the L2, per block; and a trace of one block's."""

    l2_read_sectors: float
    """Of loads and atomics."""
    l2_write_sectors: float
    host_sectors: float
    """Of host memory, which the L2 has no part in."""
    host_requests: float
    sent: Trace
    sent_by: Blocks
    """How far that block is from the recorded one."""

    @property
    def read_sectors(self) -> float:
        """Sectors that the L1 lacked, of device and of host memory."""
        return self.l2_read_sectors + self.host_sectors


def warm_up_replay() -> None:
    """Use every library function of a replay once: a jail does not let them load their parts later."""
    trace = np.array([lay.LOAD | 1 << HEADER_COUNT | HEADER_BIT, 0], dtype=np.int64)
    block = recorded_block(trace, {0: (1, trace)}, (1, 0, 0), trace)
    assert block is not None
    spec = replace(H100, sm_count=1, l2_bytes=SECTOR_BYTES)
    surroundings = Surroundings(spec, (4, 1, 1), 1, SECTOR_BYTES, [Extent(0, 0, SECTOR_BYTES)], 1.0)
    side_by_side(block, 0, surroundings, random.Random(0))


def recorded_block(
    trace: Trace | None,
    apart: Mapping[int, tuple[int, Trace | None]],
    away: Sequence[int],
    other: Trace | None,
) -> RecordedBlock | None:
    """A recorded block with the distances of its requests to those of others.

    Args:
        trace: Of the block.
        apart: By axis: how many blocks away another one is, and its trace.
        away: How far one more block is, in blocks of each axis.
        other: Its trace.

    Returns:
        None where requests do not correspond, or those of that one block are not where they should be.
    """
    if trace is None or other is None or not trace.size:
        return None
    first, access = _requests(trace)
    shifts = np.zeros((first.size, 3), dtype=np.int64)
    for axis, (blocks, there) in apart.items():
        if there is None:
            return None
        places, kinds = _requests(there)
        if not np.array_equal(access, kinds):
            return None
        shifts[:, axis] = np.rint((places - first) * (rp.SHIFT_ONE / blocks))
    places, kinds = _requests(other)
    if not np.array_equal(access, kinds):
        return None
    expected = first + (shifts @ np.asarray(away, dtype=np.int64) + rp.SHIFT_ONE // 2) // rp.SHIFT_ONE
    if np.mean(np.abs(expected - places) <= 1) < MOST:
        return None
    return RecordedBlock(_interleaved(trace), shifts)


def _interleaved(trace: Trace) -> Trace:
    """The requests of a block as its warps issue them in turn, one each."""
    starts = np.flatnonzero(trace < 0)
    lengths = np.diff(starts, append=trace.size)
    warps = trace[starts] >> HEADER_WARP & (WARPS_OF_A_SLOT - 1)
    turns = np.empty(starts.size, dtype=np.int64)
    for warp in np.unique(warps):
        own = warps == warp
        turns[own] = np.arange(np.count_nonzero(own))
    order = np.argsort(turns, kind="stable")
    lengths, starts = lengths[order], starts[order]
    ends = np.cumsum(lengths)
    words: Trace = trace[np.arange(trace.size) + np.repeat(starts - (ends - lengths), lengths)]
    return words


def _requests(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First sector and kind of each request."""
    headers = np.flatnonzero(trace < 0)
    return trace[headers + 1], trace[headers] & 7


def through_l1(
    block: RecordedBlock,
    blocks: Blocks,
    slots: int,
    l1_bytes: int,
    measured: slice,
    pace: Pace = ALONE,
    host: Sequence[tuple[int, int]] = (),
) -> L1Result:
    """Replay blocks of one SM, ``slots`` of them side by side, through its L1; figures are means of some of them."""
    results = np.zeros((len(blocks), REPLAY_RESULT // 8), dtype=np.int64)
    positions = range(len(blocks))[measured]
    sender = positions[len(positions) // 2]
    # No request sends more sectors than it has.
    sent = np.empty(SENT_WORDS * block.trace.size, dtype=np.int64)
    sent_by = np.zeros(2 * block.trace.size if pace.beyond_l1 else 0, dtype=np.int64)
    options = {
        rp.REPLAY_SENT_BY: sent_by.ctypes.data,
        REPLAY_RESULTS: results.ctypes.data,
        rp.REPLAY_THROUGH_L1: 1,
        REPLAY_SENT_JOB: sender,
        REPLAY_SENT: sent.ctypes.data,
        REPLAY_SENT_CAPACITY: sent.size,
        rp.REPLAY_BEYOND: round(pace.beyond_l1),
        rp.REPLAY_TURN: math.ceil((block.trace.size + round(pace.beyond_l1) * pace.sent) / TURNS),
    }
    cache = CacheModel(l1_bytes, SECTOR_BYTES)
    cache.map_host(host)
    arguments = _replay(cache, block.trace, block.shifts, blocks, slots, options)
    words = int(arguments[REPLAY_SENT_WORDS // 8])
    reads, writes, host_sectors, host_requests = results[measured].mean(axis=0).tolist()
    return L1Result(reads, writes, host_sectors, host_requests, sent=sent[:words].copy(), sent_by=blocks[sender])


def through_l2(
    block: RecordedBlock,
    sender: L1Result,
    blocks: Blocks,
    slots: int,
    first: int,
    extents: Sequence[Extent],
    l2_bytes: int,
    fetch_bytes: int,
    spread: float = 1.0,
) -> Mapping[int, float]:
    """Replay consecutive blocks, ``slots`` of them side by side, through the L2, each as one block of an SM sends it.

    The first ``slots`` start one after another within the part ``spread`` of a block's time.

    Returns:
        Bytes of each buffer that are read from DRAM between the starts of block ``first`` and the last one; all where
        it is -1.
    """
    sent = sender.sent
    sectors = sent.size // SENT_WORDS * len(blocks)
    part = 1
    while sectors / part > L2_LOOKUPS and l2_bytes / part > 1 << 18:
        part *= 2
    table = np.array(
        [[e.address // SECTOR_BYTES, -(-(e.address + e.nbytes) // SECTOR_BYTES), 0] for e in extents], dtype=np.int64
    )
    options = {
        rp.REPLAY_MASK: part - 1,
        rp.REPLAY_FIRST: first,
        rp.REPLAY_EXTENTS: table.ctypes.data,
        rp.REPLAY_EXTENT_COUNT: len(extents),
        rp.REPLAY_SPREAD: round(TURNS * spread) if len(blocks) > slots else 0,
    }
    cache = CacheModel(SECTOR_BYTES, l2_bytes // part, fetch_bytes)
    _replay(cache, sent, block.shifts, blocks - sender.sent_by, slots, options)
    return {e.buffer: float(n) * SECTOR_BYTES * part for e, n in zip(extents, table[:, 2].tolist(), strict=True) if n}


def _replay(
    cache: CacheModel,
    trace: Trace,
    shifts: npt.NDArray[np.int64],
    blocks: Blocks,
    slots: int,
    options: Mapping[int, int],
) -> npt.NDArray[np.int64]:
    """Run the compiled replay; returns its arguments, some of which it changes."""
    jobs, moved = np.ascontiguousarray(blocks), np.ascontiguousarray(shifts)
    state, scratch = np.zeros(3 * slots, dtype=np.int64), np.zeros(256, dtype=np.int64)
    arguments = np.zeros(rp.REPLAY_BYTES // 8, dtype=np.int64)
    for where, value in {
        REPLAY_SENT_JOB: -1,
        rp.REPLAY_TRACE: trace.ctypes.data,
        rp.REPLAY_WORDS: trace.size,
        rp.REPLAY_SHIFTS: moved.ctypes.data,
        rp.REPLAY_JOBS: jobs.ctypes.data,
        rp.REPLAY_JOB_COUNT: len(jobs),
        rp.REPLAY_SLOTS: slots,
        rp.REPLAY_STATE: state.ctypes.data,
        rp.REPLAY_TURN: math.ceil(trace.size / TURNS),
        # The first blocks start together; later ones where others end, at any time.
        rp.REPLAY_SPREAD: TURNS if len(blocks) > slots else 0,
        rp.REPLAY_SCRATCH: scratch.ctypes.data,
        **options,
    }.items():
        arguments[where // 8] = value
    llvm_jit.KernelFunction(llvm_jit.runtime_address(rp.replay))(cache.address, arguments.ctypes.data)
    return arguments
