"""The emulator's cache model, with what a profile needs to see of it. Runner side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernelforge.devices.emulated.memory import (
    CACHE_L1_SETS,
    CACHE_L1_TAGS,
    L1_ENTRY,
    L1_WAYS,
    L2_ENTRY,
    LINE_BYTES,
    CacheModel,
)
from kernelforge.devices.emulated.profile.traffic import Footprint, Sectors
from kernelforge.profiling.counts import SECTOR_BYTES

_LINE_SECTORS = LINE_BYTES // SECTOR_BYTES


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
class CacheCounts:
    """The cache model's counters, in sectors, over some blocks."""

    l1_read_sectors: float = 0.0
    l1_read_hits: float = 0.0
    l2_read_sectors: float = 0.0
    l2_read_hits: float = 0.0
    l2_write_sectors: float = 0.0
    dram_read_sectors: float = 0.0
    dram_write_sectors: float = 0.0

    @classmethod
    def of(cls, cache: CacheModel) -> CacheCounts:
        return cls(**{name: getattr(cache, name) for name in cls.__dataclass_fields__})

    def plus(self, other: CacheCounts, sign: int = 1) -> CacheCounts:
        return CacheCounts(
            **{name: getattr(self, name) + sign * getattr(other, name) for name in self.__dataclass_fields__}
        )
