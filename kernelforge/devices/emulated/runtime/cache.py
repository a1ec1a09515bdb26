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
CACHE_HEADER = 96
L1_WAYS = 4
L2_WAYS = 16
LINE_BYTES = 128
L1_ENTRY = 24  # tag, valid sectors, last use
L2_ENTRY = 32  # tag, valid sectors, dirty sectors, last use
_LINE_SECTORS = LINE_BYTES // 32


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
    and no-allocate; L2 16-way, write-back, a full sector write fetches nothing). CTAs run one after another, so hit
    rates approximate those of a GPU that runs them side by side.

    Args:
        l1_bytes: L1 capacity of one CTA.
        l2_bytes: L2 capacity.
    """

    def __init__(self, l1_bytes: int, l2_bytes: int) -> None:
        self._header = np.zeros(CACHE_HEADER // 8, dtype=np.int64)
        self.resize_l1(l1_bytes)
        l2_sets = max(l2_bytes // (LINE_BYTES * L2_WAYS), 1)
        self._l2 = np.zeros(l2_sets * L2_WAYS * L2_ENTRY // 8, dtype=np.int64)
        self._header[CACHE_L2_SETS // 8] = l2_sets
        self._header[CACHE_L2_TAGS // 8] = self._l2.ctypes.data

    @property
    def address(self) -> int:
        """Host address of the state, for the runtime."""
        return int(self._header.ctypes.data)

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
def l2_access(cache: int, sector: int, write: bool) -> None:
    """Look one sector up in L2, filling or dirtying it."""
    counters = cache + CACHE_COUNTERS
    line = (sector >> 2) + 1
    bit = 1 << (sector & 3)
    sets = load_i64(cache + CACHE_L2_SETS)
    base = load_i64(cache + CACHE_L2_TAGS) + ((line ^ (line >> 11)) % sets) * L2_WAYS * L2_ENTRY
    tick = load_i64(cache + CACHE_TICK) + 1
    store_i64(cache + CACHE_TICK, tick)
    victim = base
    oldest = load_i64(base + 24)
    if write:
        store_i64(counters + 32, load_i64(counters + 32) + 1)
    else:
        store_i64(counters + 16, load_i64(counters + 16) + 1)
    for way in range(L2_WAYS):
        entry = base + way * L2_ENTRY
        if load_i64(entry) == line:
            store_i64(entry + 24, tick)
            valid = load_i64(entry + 8)
            if write:
                store_i64(entry + 16, load_i64(entry + 16) | bit)
            elif valid & bit:
                store_i64(counters + 24, load_i64(counters + 24) + 1)
            else:
                store_i64(counters + 40, load_i64(counters + 40) + 1)
            store_i64(entry + 8, valid | bit)
            return
        used = load_i64(entry + 24)
        if used < oldest:
            oldest = used
            victim = entry
    dirty = popcount(load_i64(victim + 16))
    store_i64(counters + 48, load_i64(counters + 48) + dirty)
    store_i64(victim, line)
    store_i64(victim + 8, bit)
    store_i64(victim + 16, bit if write else 0)
    store_i64(victim + 24, tick)
    if not write:
        store_i64(counters + 40, load_i64(counters + 40) + 1)


@native
def cache_access(ctx: int, count: int, access: int) -> None:
    """Send the distinct sectors of one request (in the units area) through the cache model."""
    cache = load_i64(ctx + lay.CTX_CACHE)
    units = load_i64(ctx + lay.CTX_SCRATCH) + UNITS
    counters = cache + CACHE_COUNTERS
    sets = load_i64(cache + CACHE_L1_SETS)
    tags = load_i64(cache + CACHE_L1_TAGS)
    for k in range(count):
        sector = load_i64(units + 8 * k)
        if access == lay.STORE:
            l2_access(cache, sector, True)
            continue
        if access == lay.ATOMIC:
            l2_access(cache, sector, False)
            l2_access(cache, sector, True)
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
                    l2_access(cache, sector, False)
                break
            used = load_i64(entry + 16)
            if used < oldest:
                oldest = used
                victim = entry
        if not hit:
            store_i64(victim, line)
            store_i64(victim + 8, bit)
            store_i64(victim + 16, tick)
            l2_access(cache, sector, False)
