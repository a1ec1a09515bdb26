"""The cache model: its state and counters, and the L1 and L2 look-ups of the sectors that a request touches."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import load_i64, native, popcount, store_i64
from kernelforge.devices.emulated.layout import UNITS

Sectors = npt.NDArray[np.int64]
"""Sorted, distinct sector numbers: device address divided by 32."""

# Cache state: a header of counters, then the tag arrays. Offsets in bytes.
CACHE_L1_SETS = 0
CACHE_L2_SETS = 8
CACHE_TICK = 16
CACHE_COUNTERS = 24  # seven i64
CACHE_L1_TAGS = 80  # addresses of i64 arrays
CACHE_L2_TAGS = 88
CACHE_FETCH = 96  # sectors that a miss of the L2 fetches: 1, or 2 neighbours
CACHE_HEADER = 104
L1_WAYS = 4
L2_WAYS = 16
LINE_BYTES = 128
L1_ENTRY = 24  # tag, valid sectors, last use
L2_ENTRY = 40  # tag, valid sectors, dirty sectors, last use, bytes written of each sector (u16)
_LINE_SECTORS = LINE_BYTES // 32
_ALL_WRITTEN = 0x0020_0020_0020_0020
"""Bytes written of the sectors of a line: 32 of each."""


@dataclass
class CacheCounts:
    """The cache model's counters, in sectors, in the order of its state."""

    l1_read_sectors: float = 0.0
    """Sectors that loads requested from L1."""
    l1_read_hits: float = 0.0
    l2_read_sectors: float = 0.0
    """L1 misses, and atomics."""
    l2_read_hits: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_sectors: float = 0.0
    dram_write_sectors: float = 0.0

    def plus(self, other: CacheCounts, sign: int = 1) -> CacheCounts:
        return CacheCounts(*(a + sign * b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Footprint:
    """Distinct sectors that some blocks fetched from DRAM and wrote, each starting from an empty L2."""

    read: Sectors
    written: Sectors


class CacheModel:
    """Sectored caches: an L1 that starts cold in every CTA, and one L2 that persists across launches.

    Lines are 128 bytes of four 32-byte sectors, replaced least recently used within a set (L1 4-way, write-through
    and no-allocate; L2 16-way, write-back; a sector is fetched if it is written in part and not completed). CTAs run
    one after another, so hit rates approximate those of a GPU that runs them side by side.

    Args:
        l1_bytes: L1 capacity of one CTA.
        l2_bytes: L2 capacity.
        fetch_bytes: What a miss of the L2 fetches: 32, or 64 for a sector and its neighbour.
    """

    def __init__(self, l1_bytes: int, l2_bytes: int, fetch_bytes: int = 32) -> None:
        self._header = np.zeros(CACHE_HEADER // 8, dtype=np.int64)
        self.resize_l1(l1_bytes)
        l2_sets = max(l2_bytes // (LINE_BYTES * L2_WAYS), 1)
        self._l2 = np.zeros(l2_sets * L2_WAYS * L2_ENTRY // 8, dtype=np.int64)
        self._header[CACHE_L2_SETS // 8] = l2_sets
        self._header[CACHE_L2_TAGS // 8] = self._l2.ctypes.data
        self._header[CACHE_FETCH // 8] = fetch_bytes // 32

    @property
    def address(self) -> int:
        """Host address of the state, for the runtime."""
        return int(self._header.ctypes.data)

    @property
    def l1_bytes(self) -> int:
        """Capacity of the L1."""
        return int(self._header[CACHE_L1_SETS // 8]) * LINE_BYTES * L1_WAYS

    @property
    def counts(self) -> CacheCounts:
        """The counters since the last reset."""
        return CacheCounts(*self._header[CACHE_COUNTERS // 8 : CACHE_COUNTERS // 8 + 7].tolist())

    def resize_l1(self, nbytes: int) -> None:
        """Give the L1 another capacity; the content of the L2 stays."""
        sets = max(nbytes // (LINE_BYTES * L1_WAYS), 1)
        if sets != self._header[CACHE_L1_SETS // 8]:
            self.l1_tags = np.zeros(sets * L1_WAYS * L1_ENTRY // 8, dtype=np.int64)
            self._header[CACHE_L1_SETS // 8] = sets
            self._header[CACHE_L1_TAGS // 8] = self.l1_tags.ctypes.data

    def reset(self) -> None:
        """Empty both caches and clear the counters."""
        self.l1_tags[:] = 0
        self._l2[:] = 0
        self._header[CACHE_TICK // 8 : CACHE_COUNTERS // 8 + 7] = 0

    def flush(self) -> None:
        """Write dirty L2 sectors back, counting the DRAM writes; clean data stays."""
        entries = self._l2.reshape(-1, L2_ENTRY // 8)
        dirty = entries[:, 2]
        self._header[CACHE_COUNTERS // 8 + 6] += sum(int(v).bit_count() for v in dirty[dirty != 0])
        entries[:, 2] = 0

    def complete(self) -> None:
        """Fetch the rest of sectors that were written in part, counting the DRAM reads: a launch has ended."""
        entries = self._l2.reshape(-1, L2_ENTRY // 8)
        dirty = entries[entries[:, 2] != 0]
        shifts = 16 * np.arange(_LINE_SECTORS)
        written = dirty[:, 4, None] >> shifts & 0xFFFF
        partly = (dirty[:, 2, None] >> np.arange(_LINE_SECTORS) & 1 != 0) & (written < 32)
        self._header[CACHE_COUNTERS // 8 + 5] += np.count_nonzero(partly)
        entries[entries[:, 2] != 0, 4] = _ALL_WRITTEN

    def sectors(self) -> tuple[Sectors, Sectors]:
        """Sectors in the L2, and the dirty ones among them; sorted."""
        entries = self._l2.reshape(-1, L2_ENTRY // 8)
        entries = entries[entries[:, 0] != 0]
        first = (entries[:, 0] - 1) * _LINE_SECTORS
        bits = np.arange(_LINE_SECTORS)
        cached = (first[:, None] + bits)[(entries[:, 1, None] >> bits & 1) != 0]
        dirty = (first[:, None] + bits)[(entries[:, 2, None] >> bits & 1) != 0]
        return np.sort(cached), np.sort(dirty)

    def footprint(self) -> Footprint:
        """Sectors fetched and written since the last reset, if nothing was evicted."""
        cached, dirty = self.sectors()
        clean = np.setdiff1d(cached, dirty, assume_unique=True)
        # Sectors that were fetched and then written are dirty: the counter has their number.
        fetched = min(max(int(self.counts.dram_read_sectors) - clean.size, 0), dirty.size)
        also = dirty[np.linspace(0, dirty.size - 1, fetched).astype(np.int64)] if fetched else dirty[:0]
        return Footprint(np.union1d(clean, also), dirty)


@native
def partly_written(dirty: int, written: int) -> int:
    """Dirty sectors of a line of which some bytes were not written."""
    count = 0
    for sector in range(4):
        if dirty >> sector & 1 and (written >> 16 * sector & 0xFFFF) < 32:
            count += 1
    return count


@native
def l2_read(cache: int, sector: int, alone: bool) -> None:
    """Look one sector up in L2 and fill it, with its neighbour where that is fetched too. ``alone``: the request does
    not read that."""
    counters = cache + CACHE_COUNTERS
    bit = 1 << (sector & 3)
    entry = l2_entry(cache, sector)
    store_i64(counters + 16, load_i64(counters + 16) + 1)
    valid = load_i64(entry + 8)
    if valid & bit:
        store_i64(counters + 24, load_i64(counters + 24) + 1)
        return
    if alone and load_i64(cache + CACHE_FETCH) == 2:
        bit |= (1 << ((sector ^ 1) & 3)) & ~valid
    store_i64(counters + 40, load_i64(counters + 40) + popcount(bit))
    store_i64(entry + 8, valid | bit)
    for k in range(4):
        if bit >> k & 1:
            store_i64(entry + 32, load_i64(entry + 32) & ~(0xFFFF << 16 * k) | 32 << 16 * k)


@native
def l2_write(cache: int, sector: int, nbytes: int) -> None:
    """Dirty ``nbytes`` bytes of one sector in L2."""
    counters = cache + CACHE_COUNTERS
    bit = 1 << (sector & 3)
    shift = 16 * (sector & 3)
    entry = l2_entry(cache, sector)
    store_i64(counters + 32, load_i64(counters + 32) + 1)
    written = load_i64(entry + 32)
    now = min((written >> shift & 0xFFFF) + nbytes, 32)
    store_i64(entry + 32, written & ~(0xFFFF << shift) | now << shift)
    store_i64(entry + 8, load_i64(entry + 8) | bit)
    store_i64(entry + 16, load_i64(entry + 16) | bit)


@native
def l2_entry(cache: int, sector: int) -> int:
    """The entry of a sector's line in L2, which takes the place of another one's where there is none."""
    counters = cache + CACHE_COUNTERS
    line = (sector >> 2) + 1
    sets = load_i64(cache + CACHE_L2_SETS)
    base = load_i64(cache + CACHE_L2_TAGS) + ((line ^ (line >> 11)) % sets) * L2_WAYS * L2_ENTRY
    tick = load_i64(cache + CACHE_TICK) + 1
    store_i64(cache + CACHE_TICK, tick)
    victim = base
    oldest = load_i64(base + 24)
    for way in range(L2_WAYS):
        entry = base + way * L2_ENTRY
        if load_i64(entry) == line:
            store_i64(entry + 24, tick)
            return entry
        used = load_i64(entry + 24)
        if used < oldest:
            oldest = used
            victim = entry
    dirty = load_i64(victim + 16)
    if dirty:
        store_i64(counters + 48, load_i64(counters + 48) + popcount(dirty))
        fetched = partly_written(dirty, load_i64(victim + 32))
        store_i64(counters + 40, load_i64(counters + 40) + fetched)
    store_i64(victim, line)
    store_i64(victim + 8, 0)
    store_i64(victim + 16, 0)
    store_i64(victim + 24, tick)
    store_i64(victim + 32, 0)
    return victim


@native
def cache_access(ctx: int, count: int, access: int, nbytes: int) -> None:
    """Send the distinct sectors of one request (in the units area), of ``nbytes`` together, through the cache model."""
    cache = load_i64(ctx + lay.CTX_CACHE)
    units = load_i64(ctx + lay.CTX_SCRATCH) + UNITS
    counters = cache + CACHE_COUNTERS
    sets = load_i64(cache + CACHE_L1_SETS)
    tags = load_i64(cache + CACHE_L1_TAGS)
    # Where requests write more than half of their sectors, all but the last are taken to be complete.
    dense = nbytes > 16 * count
    for k in range(count):
        sector = load_i64(units + 8 * k)
        if access == lay.STORE:
            part = max(min(nbytes - 32 * k, 32), 1) if dense else max(nbytes // count, 1)
            l2_write(cache, sector, part)
            continue
        neighbour = sector ^ 1
        alone = (k == 0 or load_i64(units + 8 * k - 8) != neighbour) and (
            k == count - 1 or load_i64(units + 8 * k + 8) != neighbour
        )
        if access == lay.ATOMIC:
            l2_read(cache, sector, alone)
            l2_write(cache, sector, 32)
            continue
        store_i64(counters, load_i64(counters) + 1)
        line = (sector >> 2) + 1
        bit = 1 << (sector & 3)
        base = tags + ((line ^ (line >> 8)) % sets) * L1_WAYS * L1_ENTRY
        tick = load_i64(cache + CACHE_TICK) + 1
        store_i64(cache + CACHE_TICK, tick)
        victim = base
        oldest = load_i64(base + 16)
        hit = False
        for way in range(L1_WAYS):
            entry = base + way * L1_ENTRY
            if load_i64(entry) == line:
                hit = True
                store_i64(entry + 16, tick)
                valid = load_i64(entry + 8)
                if valid & bit:
                    store_i64(counters + 8, load_i64(counters + 8) + 1)
                else:
                    store_i64(entry + 8, valid | bit)
                    l2_read(cache, sector, alone)
                break
            used = load_i64(entry + 16)
            if used < oldest:
                oldest = used
                victim = entry
        if not hit:
            store_i64(victim, line)
            store_i64(victim + 8, bit)
            store_i64(victim + 16, tick)
            l2_read(cache, sector, alone)
