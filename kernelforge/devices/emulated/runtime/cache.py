"""The cache model: its state and counters, and the L1 and L2 look-ups of the sectors that a request touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.codegen.numba_intrinsics import (
    exported,
    load_i32,
    load_i64,
    load_u8,
    load_u32,
    native,
    popcount,
    store_i64,
    store_u8,
    store_u32,
    trailing_zeros,
)
from kernelforge.devices.emulated.layout import UNITS
from kernelforge.profiling.counts import SECTOR_BYTES

_WORD_SECTORS = 64
"""Sectors that a word of a set has bits for: those of 16 lines."""


@dataclass(frozen=True)
class Sectors:
    """A set of sectors, whose numbers are device addresses divided by 32; a bit for each, for they may be millions."""

    words: npt.NDArray[np.int64]
    """Numbers of those words that have sectors: sector divided by 64; ascending, each once."""
    bits: npt.NDArray[np.uint64]
    """Of each of these words, the sectors in it: the lowest bit for its first."""

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64]) -> Sectors:
        """The set of some sectors, in any order."""
        words, position = np.unique(numbers // _WORD_SECTORS, return_inverse=True)
        bits = np.zeros(words.size, np.uint64)
        np.bitwise_or.at(bits, position, np.left_shift(np.uint64(1), (numbers % _WORD_SECTORS).astype(np.uint64)))
        return cls(words, bits)

    @property
    def size(self) -> int:
        """Number of sectors."""
        return int(np.bitwise_count(self.bits).sum())

    @property
    def first(self) -> int:
        """The lowest; the set must have one."""
        lowest = int(self.bits[0])
        return int(self.words[0]) * _WORD_SECTORS + (lowest & -lowest).bit_length() - 1

    @property
    def last(self) -> int:
        """The highest; the set must have one."""
        return int(self.words[-1]) * _WORD_SECTORS + int(self.bits[-1]).bit_length() - 1

    def within(self, first: int, end: int) -> Sectors:
        """The subset from ``first`` to ``end``, without ``end``."""
        start, stop = np.searchsorted(self.words, (first // _WORD_SECTORS, -(-end // _WORD_SECTORS))).tolist()
        words, bits = self.words[start:stop], self.bits[start:stop].copy()
        everything = (1 << _WORD_SECTORS) - 1
        bits[words == first // _WORD_SECTORS] &= np.uint64(everything << first % _WORD_SECTORS & everything)
        if end % _WORD_SECTORS:
            bits[words == end // _WORD_SECTORS] &= np.uint64((1 << end % _WORD_SECTORS) - 1)
        return Sectors(words[bits != 0], bits[bits != 0])

    def numbers(self) -> npt.NDArray[np.int64]:
        """The sectors, ascending."""
        is_there = np.unpackbits(self.bits.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        at, within = np.nonzero(is_there)
        return self.words[at] * _WORD_SECTORS + within


def all_sectors(parts: Sequence[Sectors]) -> Sectors:
    """All sectors of some sets."""
    words, position = np.unique(
        np.concatenate([np.empty(0, np.int64), *(part.words for part in parts)]), return_inverse=True
    )
    bits = np.zeros(words.size, np.uint64)
    end = 0
    for part in parts:
        bits[position[end : end + part.words.size]] |= part.bits
        end += part.words.size
    return Sectors(words, bits)


Trace = npt.NDArray[np.int64]
"""Requests of a block, or of a few: see :func:`record_request`."""

# Cache state: a header of counters, then the tag arrays. Offsets in bytes.
CACHE_L1_SETS = 0
CACHE_L2_SETS = 8
CACHE_TICK = 16
CACHE_COUNTERS = 24  # seven i64
CACHE_L1_TAGS = 80  # addresses of i64 arrays
CACHE_L2_TAGS = 88
CACHE_FETCH = 96  # sectors that a miss of the L2 fetches: 1, or 2 neighbours
CACHE_STORES = 104  # address of the sectors that stores have begun
CACHE_EPOCHS = 112  # address of an i64 per warp: loads so far
CACHE_TRACE = 120  # address of the trace of requests, or 0
CACHE_TRACE_WORDS = 128  # words in it
CACHE_TRACE_CAPACITY = 136  # 0: requests are not recorded
CACHE_REQUESTS = 144  # requests recorded, those beyond the capacity included
CACHE_L1_LATEST = 152  # addresses of the entries used last
CACHE_L2_LATEST = 160
CACHE_L2_IN_USE = 168  # address of the indices of the L2's entries that have a line, in the order in which they got one
CACHE_L2_IN_USE_COUNT = 176
CACHE_FOOTPRINT = 184  # address of two words for each word of Sectors: fetched from DRAM, and written
CACHE_FOOTPRINT_FIRST = 192  # the first line there
CACHE_FOOTPRINT_LINES = 200  # 0: no footprint is kept
CACHE_TOUCHED = 208  # address of the numbers of its words that have sectors, in the order in which they got some
CACHE_TOUCHED_COUNT = 216
CACHE_FOOTPRINT_ONLY = 224  # 1: loads of sectors that nothing has written are noted in the footprint alone
CACHE_HOST_COUNTERS = 232  # two i64: sectors read over the host link, and requests of them
CACHE_HOST_RANGES = 248  # address of the first sector and the end of each range of host memory
CACHE_HOST_RANGE_COUNT = 256
CACHE_READ_WORDS = 264  # address of a byte for each sector of the footprint: its words that loads read; or 0
CACHE_HEADER = 272
L1_WAYS = 16
"""Chosen for the time of a look-up: lines may be almost anywhere in an L1. Accel-Sim's Volta has 4 sets of 64 to 256
ways (``SM7_QV100``); an A100's windows of images keep with 16 what they keep with more, and lose it with 4."""
L2_WAYS = 16
"""As in Accel-Sim's models of Ampere (``S:128:128:16``)."""
LINE_BYTES = 128
L1_ENTRY = 24  # tag, valid sectors, last use
L2_ENTRY = 48  # tag, valid sectors, dirty sectors, last use, mask of the bytes written of each sector (u32)
STORE_ENTRIES = 4096
"""As many as the warps of an SM can have begun with two stores each: 64 warps of 32 lanes. No buffer of hardware is
known; what ends the merging of a sector is the next load of its warp."""
STORE_ENTRY = 48  # sector + 1, warp, its loads so far, mask of the bytes written, job, request
WARPS_OF_A_SLOT = 64
MOST_WARPS = 64 * WARPS_OF_A_SLOT
"""Twice as many as the warps of the 32 blocks that an SM holds at most, if each had a slot's."""
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
    host_read_sectors: float = 0.0
    """Sectors of host memory that the L1 lacked; the L2 holds none of them."""
    host_read_requests: float = 0.0
    """What a warp's request lacks of one line of host memory is one request on the link."""

    def plus(self, other: CacheCounts, sign: float = 1) -> CacheCounts:
        return CacheCounts(*(a + sign * b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Footprint:
    """Distinct sectors that some blocks fetched from DRAM and wrote, each starting from an empty L2."""

    read: Sectors
    written: Sectors


class CacheModel:
    """Sectored caches: an L1 that starts cold in every CTA, and one L2 that persists across launches.

    Lines are 128 bytes of four 32-byte sectors, replaced least recently used within a set of 16. The L1 is
    write-through; stores take lines in it (as in Accel-Sim's model of Volta, Khairy et al., 2020), and those that a
    warp issues without a load in between are merged before the L2. The L2 is write-back; a sector is fetched if it is
    written in part and not completed. CTAs run one after another, so hit rates approximate those of a GPU that runs
    them side by side: :mod:`kernelforge.devices.emulated.profile.side_by_side` does better.

    Host memory that is mapped into the device's address space (:meth:`map_host`) is in no L2, as an engineer of NVIDIA
    says of compute capability 3.5 (forums.developer.nvidia.com/t/switch-off-l1-cache/37274). Of later GPUs that is an
    assumption, and so is it that an L1 holds it as it does device memory.

    Args:
        l1_bytes: L1 capacity of one CTA.
        l2_bytes: L2 capacity.
        fetch_bytes: What a miss of the L2 fetches: 32, or 64 for a sector and its neighbour.
        footprint_only: Only the footprint matters, not the counters: it is the same, and loads of sectors that nothing
            has written are not looked up, which takes most of the time. Of its sectors it has the words that were read.
    """

    def __init__(self, l1_bytes: int, l2_bytes: int, fetch_bytes: int = 32, *, footprint_only: bool = False) -> None:
        self._header = np.zeros(CACHE_HEADER // 8, dtype=np.int64)
        self.resize_l1(l1_bytes)
        l2_sets = max(l2_bytes // (LINE_BYTES * L2_WAYS), 1)
        self._l2 = np.zeros((l2_sets * L2_WAYS, L2_ENTRY // 8), dtype=np.int64)
        self._header[CACHE_L2_SETS // 8] = l2_sets
        self._header[CACHE_L2_TAGS // 8] = self._header[CACHE_L2_LATEST // 8] = self._l2.ctypes.data
        self._in_use = np.empty(len(self._l2), dtype=np.int64)
        self._header[CACHE_L2_IN_USE // 8] = self._in_use.ctypes.data
        self._header[CACHE_FETCH // 8] = fetch_bytes // 32
        self._header[CACHE_FOOTPRINT_ONLY // 8] = int(footprint_only)
        self._stores = np.zeros(STORE_ENTRIES * STORE_ENTRY // 8, dtype=np.int64)
        self._header[CACHE_STORES // 8] = self._stores.ctypes.data
        self._epochs = np.zeros(MOST_WARPS, dtype=np.int64)
        self._header[CACHE_EPOCHS // 8] = self._epochs.ctypes.data
        self._trace = np.empty(0, dtype=np.int64)
        self._footprint = np.zeros((0, 2), dtype=np.uint64)
        self._touched = np.empty(0, dtype=np.int64)
        self._footprint_only = footprint_only
        self._read_words = np.zeros((0, _WORD_SECTORS), dtype=np.uint8)
        self._host_ranges = np.empty((0, 2), dtype=np.int64)

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
        self._finish_stores()
        counters = (self._header[at // 8 : at // 8 + n] for at, n in ((CACHE_COUNTERS, 7), (CACHE_HOST_COUNTERS, 2)))
        return CacheCounts(*np.concatenate(list(counters)).tolist())

    def map_host(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Let ranges of device addresses, each its first and its end, be host memory; whole sectors each."""
        self._host_ranges = np.array([(a // SECTOR_BYTES, -(-end // SECTOR_BYTES)) for a, end in ranges], np.int64)
        self._header[CACHE_HOST_RANGES // 8] = self._host_ranges.ctypes.data
        self._header[CACHE_HOST_RANGE_COUNT // 8] = len(ranges)

    def record(self, words: int) -> None:
        """Record requests from now on, in at most that many words; 0 ends it."""
        if words > self._trace.size:
            self._trace = np.empty(words, dtype=np.int64)
        self._header[CACHE_TRACE // 8] = self._trace.ctypes.data
        self._header[CACHE_TRACE_WORDS // 8] = self._header[CACHE_REQUESTS // 8] = 0
        self._header[CACHE_TRACE_CAPACITY // 8] = words

    def recorded(self) -> Trace | None:
        """The requests recorded so far; None where they were too many."""
        words, requests = (int(self._header[at // 8]) for at in (CACHE_TRACE_WORDS, CACHE_REQUESTS))
        trace = self._trace[:words].copy()
        return trace if np.count_nonzero(trace < 0) == requests else None

    def keep_footprint(self, address: int, nbytes: int) -> None:
        """Note from now on which sectors of a range of device memory are fetched and written, however many."""
        first = address // (SECTOR_BYTES * _WORD_SECTORS)
        words = -(-(address + nbytes) // (SECTOR_BYTES * _WORD_SECTORS)) - first
        # Zeros that nothing has touched take no memory of the host.
        self._footprint = np.zeros((words, 2), dtype=np.uint64)
        self._touched = np.empty(words, dtype=np.int64)
        self._header[CACHE_FOOTPRINT // 8] = self._footprint.ctypes.data
        self._header[CACHE_FOOTPRINT_FIRST // 8] = first * (_WORD_SECTORS // _LINE_SECTORS)
        self._header[CACHE_FOOTPRINT_LINES // 8] = words * (_WORD_SECTORS // _LINE_SECTORS)
        self._header[CACHE_TOUCHED // 8] = self._touched.ctypes.data
        self._header[CACHE_TOUCHED_COUNT // 8] = 0
        if self._footprint_only:
            self._read_words = np.zeros((words, _WORD_SECTORS), dtype=np.uint8)
            self._header[CACHE_READ_WORDS // 8] = self._read_words.ctypes.data

    def _finish_stores(self) -> None:
        if self._stores[:: STORE_ENTRY // 8].any():
            finish_stores.run(self.address, 0)

    def resize_l1(self, nbytes: int) -> None:
        """Give the L1 another capacity; the content of the L2 stays."""
        sets = max(nbytes // (LINE_BYTES * L1_WAYS), 1)
        if sets != self._header[CACHE_L1_SETS // 8]:
            self.l1_tags = np.zeros(sets * L1_WAYS * L1_ENTRY // 8, dtype=np.int64)
            self._header[CACHE_L1_SETS // 8] = sets
            self._header[CACHE_L1_TAGS // 8] = self._header[CACHE_L1_LATEST // 8] = self.l1_tags.ctypes.data

    def reset(self) -> None:
        """Empty both caches and clear the counters."""
        self.l1_tags[:] = 0
        self._l2[self._used] = 0
        self._header[CACHE_L2_IN_USE_COUNT // 8] = 0
        self._stores[:] = 0
        self._footprint[self._touched_words] = 0
        if self._footprint_only:
            self._read_words[self._touched_words] = 0
        self._header[CACHE_TOUCHED_COUNT // 8] = 0
        self._header[CACHE_TICK // 8 : CACHE_COUNTERS // 8 + 7] = 0
        self._header[CACHE_HOST_COUNTERS // 8 : CACHE_HOST_COUNTERS // 8 + 2] = 0

    @property
    def _used(self) -> npt.NDArray[np.int64]:
        """Indices of the L2's entries that have a line."""
        return self._in_use[: int(self._header[CACHE_L2_IN_USE_COUNT // 8])]

    @property
    def _touched_words(self) -> npt.NDArray[np.int64]:
        """Words of the footprint that have sectors."""
        return self._touched[: int(self._header[CACHE_TOUCHED_COUNT // 8])]

    def flush(self) -> None:
        """Write dirty L2 sectors back, counting the DRAM writes; clean data stays."""
        self._finish_stores()
        self._header[CACHE_COUNTERS // 8 + 6] += int(np.bitwise_count(self._l2[self._used, 2]).sum())
        self._l2[self._used, 2] = 0

    def complete(self) -> None:
        """Fetch the rest of sectors that were written in part, counting the DRAM reads: a launch has ended."""
        self._finish_stores()
        written = self._used[self._l2[self._used, 2] != 0]
        dirty = self._l2[written]
        masks = dirty[:, 4:].copy().view(np.uint32)
        partly = (dirty[:, 2, None] >> np.arange(_LINE_SECTORS) & 1 != 0) & (masks != lay.COMPLETE_SECTOR)
        self._header[CACHE_COUNTERS // 8 + 5] += np.count_nonzero(partly)
        self._l2[written, 4:] = -1
        self._fetched(dirty[:, 0] - 1, partly)

    def _fetched(self, lines: npt.NDArray[np.int64], sectors: npt.NDArray[np.bool_]) -> None:
        """Add sectors of lines that were written to the footprint, where one is kept."""
        at = lines - self._header[CACHE_FOOTPRINT_FIRST // 8]
        inside = (at >= 0) & (at < self._header[CACHE_FOOTPRINT_LINES // 8])
        at, sectors = at[inside], sectors[inside]
        bits = (sectors << np.arange(_LINE_SECTORS)).sum(axis=1).astype(np.uint64)
        per_word = _WORD_SECTORS // _LINE_SECTORS
        shifts = (_LINE_SECTORS * (at % per_word)).astype(np.uint64)
        np.bitwise_or.at(self._footprint[:, 0], at // per_word, bits << shifts)

    def sectors(self) -> tuple[Sectors, Sectors]:
        """Sectors in the L2, and the dirty ones among them."""
        self._finish_stores()
        entries = self._l2[self._used]
        first = (entries[:, 0] - 1) * _LINE_SECTORS
        bits = np.arange(_LINE_SECTORS)
        cached = (first[:, None] + bits)[(entries[:, 1, None] >> bits & 1) != 0]
        dirty = (first[:, None] + bits)[(entries[:, 2, None] >> bits & 1) != 0]
        return Sectors.of(cached), Sectors.of(dirty)

    def words_of(self, sectors: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Words that were read of some sectors of the footprint, by number: device address divided by 4. Of what no
        load of a thread reads, as of atomics and bulk copies, all words of the sectors. For ``footprint_only``."""
        first = int(self._header[CACHE_FOOTPRINT_FIRST // 8]) * _LINE_SECTORS
        bits = self._read_words.reshape(-1)[sectors - first]
        at, within = np.nonzero(np.unpackbits(bits[:, None], axis=1, bitorder="little"))
        return sectors[at] * (SECTOR_BYTES // 4) + within

    def footprint(self) -> Footprint:
        """Sectors fetched and written since the last reset, of the range whose footprint is kept."""
        self._finish_stores()
        touched = np.sort(self._touched_words)
        first = int(self._header[CACHE_FOOTPRINT_FIRST // 8]) // (_WORD_SECTORS // _LINE_SECTORS)
        sets = []
        for side in range(2):
            bits = self._footprint[touched, side]
            sets.append(Sectors(first + touched[bits != 0], bits[bits != 0]))
        return Footprint(*sets)


@native
def partly_written(entry: int) -> int:
    """Dirty sectors of a line of which some bytes were not written, a bit for each."""
    dirty = load_i64(entry + 16)
    bits = 0
    for sector in range(4):
        if dirty >> sector & 1 and load_u32(entry + 32 + 4 * sector) != lay.COMPLETE_SECTOR:
            bits |= 1 << sector
    return bits


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
    add_fetched(cache, sector >> 2, bit)
    for k in range(4):
        if bit >> k & 1:
            store_u32(entry + 32 + 4 * k, lay.COMPLETE_SECTOR)


@native
def l2_write(cache: int, sector: int, mask: int) -> None:
    """Dirty bytes of one sector in L2."""
    counters = cache + CACHE_COUNTERS
    bit = 1 << (sector & 3)
    entry = l2_entry(cache, sector)
    store_i64(counters + 32, load_i64(counters + 32) + 1)
    written = entry + 32 + 4 * (sector & 3)
    store_u32(written, load_u32(written) | mask)
    store_i64(entry + 8, load_i64(entry + 8) | bit)
    store_i64(entry + 16, load_i64(entry + 16) | bit)
    add_to_footprint(cache, sector >> 2, bit, 8)


@native
def is_written(cache: int, sector: int) -> bool:
    """Whether the footprint has a sector as written."""
    at = (sector >> 2) - load_i64(cache + CACHE_FOOTPRINT_FIRST)
    if at < 0 or at >= load_i64(cache + CACHE_FOOTPRINT_LINES):
        return False
    written = load_i64(load_i64(cache + CACHE_FOOTPRINT) + 16 * (at >> 4) + 8)
    return written >> (4 * (at & 15) + (sector & 3)) & 1 != 0


@native
def add_to_footprint(cache: int, line: int, bits: int, side: int) -> None:
    """Note sectors of a line that are fetched (side 0) or written (side 8), where a footprint is kept."""
    at = line - load_i64(cache + CACHE_FOOTPRINT_FIRST)
    if bits == 0 or at < 0 or at >= load_i64(cache + CACHE_FOOTPRINT_LINES):
        return
    words = load_i64(cache + CACHE_FOOTPRINT) + 16 * (at >> 4)
    if load_i64(words) == 0 and load_i64(words + 8) == 0:
        count = load_i64(cache + CACHE_TOUCHED_COUNT)
        store_i64(load_i64(cache + CACHE_TOUCHED) + 8 * count, at >> 4)
        store_i64(cache + CACHE_TOUCHED_COUNT, count + 1)
    store_i64(words + side, load_i64(words + side) | bits << 4 * (at & 15))


@native
def add_fetched(cache: int, line: int, bits: int) -> None:
    """Note sectors of a line that are fetched, with all of their words."""
    add_to_footprint(cache, line, bits, 0)
    for k in range(4):
        if bits >> k & 1:
            note_words(cache, 4 * line + k, 255)


@native
def note_words(cache: int, sector: int, bits: int) -> None:
    """Note words of a sector that are read, a bit for each, where that is kept."""
    kept = load_i64(cache + CACHE_READ_WORDS)
    at = sector - 4 * load_i64(cache + CACHE_FOOTPRINT_FIRST)
    if kept != 0 and at >= 0 and at < 4 * load_i64(cache + CACHE_FOOTPRINT_LINES):
        store_u8(kept + at, load_u8(kept + at) | bits)


@native
def note_words_of_lanes(ctx: int, addresses: int, mask: int, size: int) -> None:
    """Note the words that the lanes of a load read, where that is kept."""
    cache = load_i64(ctx + lay.CTX_CACHE)
    if load_i64(cache + CACHE_READ_WORDS) == 0:
        return
    rest = mask
    while rest != 0:
        lane_id = trailing_zeros(rest)
        rest &= rest - 1
        address = load_i64(addresses + 8 * lane_id)
        for word in range(address >> 2, ((address + size - 1) >> 2) + 1):
            note_words(cache, word >> 3, 1 << (word & 7))


@native
def l2_entry(cache: int, sector: int) -> int:
    """The entry of a sector's line in L2, which takes the place of another one's where there is none."""
    counters = cache + CACHE_COUNTERS
    line = (sector >> 2) + 1
    tick = load_i64(cache + CACHE_TICK) + 1
    store_i64(cache + CACHE_TICK, tick)
    latest = load_i64(cache + CACHE_L2_LATEST)
    if load_i64(latest) == line:
        store_i64(latest + 24, tick)
        return latest
    sets = load_i64(cache + CACHE_L2_SETS)
    tags = load_i64(cache + CACHE_L2_TAGS)
    base = tags + ((line ^ (line >> 11)) % sets) * L2_WAYS * L2_ENTRY
    victim = base
    oldest = load_i64(base + 24)
    for way in range(L2_WAYS):
        entry = base + way * L2_ENTRY
        if load_i64(entry) == line:
            store_i64(entry + 24, tick)
            store_i64(cache + CACHE_L2_LATEST, entry)
            return entry
        used = load_i64(entry + 24)
        if used < oldest:
            oldest = used
            victim = entry
    dirty = load_i64(victim + 16)
    if dirty:
        store_i64(counters + 48, load_i64(counters + 48) + popcount(dirty))
        fetched = partly_written(victim)
        store_i64(counters + 40, load_i64(counters + 40) + popcount(fetched))
        add_fetched(cache, load_i64(victim) - 1, fetched)
    if load_i64(victim) == 0:
        used = load_i64(cache + CACHE_L2_IN_USE_COUNT)
        store_i64(load_i64(cache + CACHE_L2_IN_USE) + 8 * used, (victim - tags) // L2_ENTRY)
        store_i64(cache + CACHE_L2_IN_USE_COUNT, used + 1)
    store_i64(cache + CACHE_L2_LATEST, victim)
    store_i64(victim, line)
    store_i64(victim + 8, 0)
    store_i64(victim + 16, 0)
    store_i64(victim + 24, tick)
    store_i64(victim + 32, 0)
    store_i64(victim + 40, 0)
    return victim


@native
def l1_entry(cache: int, tags: int, sets: int, sector: int) -> int:
    """The entry of a sector's line in an L1, which takes the place of another one's where there is none."""
    line = (sector >> 2) + 1
    tick = load_i64(cache + CACHE_TICK) + 1
    store_i64(cache + CACHE_TICK, tick)
    latest = load_i64(cache + CACHE_L1_LATEST)
    if load_i64(latest) == line:
        store_i64(latest + 16, tick)
        return latest
    base = tags + ((line ^ (line >> 8)) % sets) * L1_WAYS * L1_ENTRY
    victim = base
    oldest = load_i64(base + 16)
    for way in range(L1_WAYS):
        entry = base + way * L1_ENTRY
        if load_i64(entry) == line:
            store_i64(entry + 16, tick)
            store_i64(cache + CACHE_L1_LATEST, entry)
            return entry
        used = load_i64(entry + 16)
        if used < oldest:
            oldest = used
            victim = entry
    store_i64(cache + CACHE_L1_LATEST, victim)
    store_i64(victim, line)
    store_i64(victim + 8, 0)
    store_i64(victim + 16, tick)
    return victim


@native
def l1_read(cache: int, tags: int, sets: int, sector: int) -> bool:
    """Look one sector up in an L1 and fill it; whether it was there."""
    entry = l1_entry(cache, tags, sets, sector)
    valid = load_i64(entry + 8)
    bit = 1 << (sector & 3)
    store_i64(entry + 8, valid | bit)
    return valid & bit != 0


@native
def l1_write(cache: int, tags: int, sets: int, sector: int, mask: int) -> None:
    """Write bytes of one sector to an L1: they take a line, and can be read there if the sector is complete."""
    entry = l1_entry(cache, tags, sets, sector)
    if mask == lay.COMPLETE_SECTOR:
        store_i64(entry + 8, load_i64(entry + 8) | 1 << (sector & 3))


@native
def stands_alone(sectors: int, k: int, count: int) -> bool:
    """Whether the ``k``-th of a request's sorted sectors is there without its neighbour."""
    neighbour = load_i64(sectors + 8 * k) ^ 1
    before = k > 0 and load_i64(sectors + 8 * k - 8) == neighbour
    return not before and (k == count - 1 or load_i64(sectors + 8 * k + 8) != neighbour)


@native
def cache_access(ctx: int, count: int, access: int, masks: int) -> None:
    """Send the distinct sectors of one request (in the units area) through the cache model. ``masks``: address of the
    bytes that a store writes of each, or 0 if all."""
    cache = load_i64(ctx + lay.CTX_CACHE)
    units = load_i64(ctx + lay.CTX_SCRATCH) + UNITS
    warp = load_i32(ctx + lay.CTX_WARP)
    if load_i64(cache + CACHE_TRACE_CAPACITY):
        record_request(cache, units, count, access, masks, warp)
    if load_i64(cache + CACHE_FOOTPRINT_ONLY) and access == lay.LOAD:
        note_loads(cache, units, count, warp)
    else:
        l1_access(cache, 0, units, masks, count, access, warp, 0, 0)


@native
def is_host(cache: int, sector: int) -> bool:
    """Whether a sector is of host memory."""
    at = load_i64(cache + CACHE_HOST_RANGES)
    for _ in range(load_i64(cache + CACHE_HOST_RANGE_COUNT)):
        if sector >= load_i64(at) and sector < load_i64(at + 8):
            return True
        at += 16
    return False


@native
def count_host(host: int, sectors: int, requests: int) -> None:
    """Count sectors that are read over the host link, and requests of them; ``host``: address of both counters."""
    store_i64(host, load_i64(host) + sectors)
    store_i64(host + 8, load_i64(host + 8) + requests)


@native
def note_loads(cache: int, units: int, count: int, warp: int) -> None:
    """Add the sectors of a load to the footprint. Those that nothing has written were in a cache only if loads had
    brought them there, and are in the footprint then; the others are looked up."""
    epoch = load_i64(cache + CACHE_EPOCHS) + 8 * warp
    store_i64(epoch, load_i64(epoch) + 1)
    for k in range(count):
        sector = load_i64(units + 8 * k)
        if is_written(cache, sector):
            l1_access(cache, 0, units + 8 * k, 0, 1, lay.LOAD, warp, 0, 0)
        else:
            add_to_footprint(cache, sector >> 2, 1 << (sector & 3), 0)


REPLAY_RESULTS = 0
"""Address of four i64 per job: sectors that the L1 asks the L2 for, and that it sends there; sectors that it reads of
host memory, and requests of them."""
REPLAY_RESULT = 32


@native
def l1_access(
    cache: int, replay: int, units: int, masks: int, count: int, access: int, warp: int, job: int, request: int
) -> None:
    """Send the distinct sectors of one request through an L1, and what it lacks or writes on to the L2.

    ``masks`` as of :func:`cache_access`; ``replay``: arguments of
    :func:`kernelforge.devices.emulated.runtime.replay.replay` or 0; ``job`` and ``request`` are its.
    """
    counters = cache + CACHE_COUNTERS
    sets = load_i64(cache + CACHE_L1_SETS)
    tags = load_i64(cache + CACHE_L1_TAGS)
    if access != lay.STORE:
        epoch = load_i64(cache + CACHE_EPOCHS) + 8 * warp
        store_i64(epoch, load_i64(epoch) + 1)
    host = load_i64(replay + REPLAY_RESULTS) + REPLAY_RESULT * job + 16 if replay else cache + CACHE_HOST_COUNTERS
    line = -1
    for k in range(count):
        sector = load_i64(units + 8 * k)
        if access == lay.STORE:
            part = load_i64(masks + 8 * k) if masks else lay.COMPLETE_SECTOR
            l1_write(cache, tags, sets, sector, part)
            write_through(cache, replay, warp, sector, part, job, request)
            continue
        if access == lay.LOAD:
            store_i64(counters, load_i64(counters) + 1)
            if l1_read(cache, tags, sets, sector):
                store_i64(counters + 8, load_i64(counters + 8) + 1)
                continue
        if is_host(cache, sector):
            count_host(host, 1, sector >> 2 != line)
            line = sector >> 2
            continue
        send_read(cache, replay, sector, access, stands_alone(units, k, count), job, request)


@native
def send_read(cache: int, replay: int, sector: int, access: int, alone: bool, job: int, request: int) -> None:
    """Ask the L2 for one sector, which an atomic writes too, or record that."""
    if replay:
        record_sent(replay, sector, access | (HEADER_ALONE if alone else 0), lay.COMPLETE_SECTOR, job, request)
        return
    l2_read(cache, sector, alone)
    if access == lay.ATOMIC:
        l2_write(cache, sector, lay.COMPLETE_SECTOR)


# A trace is an array of words: for each request a header and its sectors, then their masks if it is masked.
HEADER_BIT = -(1 << 63)
HEADER_ALONE = 8
HEADER_COUNT = 4  # position of the number of words that follow, 8 bits; below it are the access and whether it is alone
HEADER_MASKED = 1 << 12  # a store that does not write all bytes of its sectors
HEADER_WARP = 24  # 6 bits
HEADER_REQUEST = 30  # 32 bits: its number in the block


@native
def record_request(cache: int, units: int, count: int, access: int, masks: int, warp: int) -> None:
    """Add one request to the trace, if it has room."""
    used = load_i64(cache + CACHE_TRACE_WORDS)
    number = load_i64(cache + CACHE_REQUESTS)
    store_i64(cache + CACHE_REQUESTS, number + 1)
    words = 2 * count if masks else count
    if used + words + 1 > load_i64(cache + CACHE_TRACE_CAPACITY):
        return
    at = load_i64(cache + CACHE_TRACE) + 8 * used
    header = access | words << HEADER_COUNT | warp << HEADER_WARP | number << HEADER_REQUEST | HEADER_BIT
    store_i64(at, header | HEADER_MASKED if masks else header)
    for k in range(count):
        store_i64(at + 8 * k + 8, load_i64(units + 8 * k))
        if masks:
            store_i64(at + 8 * (count + k) + 8, load_i64(masks + 8 * k))
    store_i64(cache + CACHE_TRACE_WORDS, used + words + 1)


@native
def write_through(cache: int, replay: int, warp: int, sector: int, mask: int, job: int, request: int) -> None:
    """Write bytes of one sector through the L1, which merges stores that a warp issues without a load in between."""
    if mask == lay.COMPLETE_SECTOR:
        send_write(cache, replay, sector, mask, job, request)
        return
    entry = load_i64(cache + CACHE_STORES) + ((sector ^ (sector >> 12)) & (STORE_ENTRIES - 1)) * STORE_ENTRY
    loads = load_i64(load_i64(cache + CACHE_EPOCHS) + 8 * warp)
    same = load_i64(entry) == sector + 1 and load_i64(entry + 8) == warp and load_i64(entry + 16) == loads
    if same:
        mask |= load_i64(entry + 24)
        if mask == lay.COMPLETE_SECTOR:
            store_i64(entry, 0)
            send_write(cache, replay, sector, mask, job, request)
        else:
            store_i64(entry + 24, mask)
        return
    send_begun(cache, replay, entry)
    store_i64(entry, sector + 1)
    store_i64(entry + 8, warp)
    store_i64(entry + 16, loads)
    store_i64(entry + 24, mask)
    store_i64(entry + 32, job)
    store_i64(entry + 40, request)


@native
def send_begun(cache: int, replay: int, entry: int) -> None:
    """Send a sector on that stores have begun, if there is one."""
    sector = load_i64(entry) - 1
    if sector >= 0:
        store_i64(entry, 0)
        send_write(cache, replay, sector, load_i64(entry + 24), load_i64(entry + 32), load_i64(entry + 40))


@native
def send_all_begun(cache: int, replay: int) -> None:
    """Send all sectors on that stores have begun."""
    entry = load_i64(cache + CACHE_STORES)
    for _ in range(STORE_ENTRIES):
        send_begun(cache, replay, entry)
        entry += STORE_ENTRY


REPLAY_SENT_JOB = 8  # the job whose traffic to the L2 is recorded
REPLAY_SENT = 16  # address of that trace
REPLAY_SENT_WORDS = 24
SENT_WORDS = 3  # of a sector there: header, sector, mask
REPLAY_SENT_CAPACITY = 32


@native
def send_write(cache: int, replay: int, sector: int, mask: int, job: int, request: int) -> None:
    """Write bytes of one sector to the L2, or record that."""
    if replay == 0:
        l2_write(cache, sector, mask)
    else:
        record_sent(replay, sector, lay.STORE, mask, job, request)


@native
def record_sent(replay: int, sector: int, header: int, mask: int, job: int, request: int) -> None:
    """Count one sector that goes to the L2, and record it with its mask if it is of the job that is recorded."""
    result = load_i64(replay + REPLAY_RESULTS) + REPLAY_RESULT * job + (8 if header & 7 == lay.STORE else 0)
    store_i64(result, load_i64(result) + 1)
    used = load_i64(replay + REPLAY_SENT_WORDS)
    if job != load_i64(replay + REPLAY_SENT_JOB) or used + SENT_WORDS > load_i64(replay + REPLAY_SENT_CAPACITY):
        return
    at = load_i64(replay + REPLAY_SENT) + 8 * used
    store_i64(at, header | HEADER_MASKED | 2 << HEADER_COUNT | request << HEADER_REQUEST | HEADER_BIT)
    store_i64(at + 8, sector)
    store_i64(at + 16, mask)
    store_i64(replay + REPLAY_SENT_WORDS, used + SENT_WORDS)


@exported
def finish_stores(cache: int, replay: int) -> int:
    """Send all sectors on that stores have begun: a launch has ended."""
    send_all_begun(cache, replay)
    return 0
