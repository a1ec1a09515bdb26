"""Memory traffic of a launch: distinct addresses, footprints of blocks, and the bytes that must move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernelforge.devices.emulated.runtime.cache import Footprint, Sectors
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES

BITS = 1024


def ecc_bytes(spec: DeviceSpec, read: float, written: float) -> float:
    """Bytes of ECC that are read with bytes of data, or before they are written."""
    return spec.dram_ecc_share * (read + written)


def distinct(sketch: int) -> float:
    """Estimate of the number of distinct words that were added to a sketch (linear counting)."""
    empty = max(BITS - sketch.bit_count(), 1)
    return BITS * math.log(BITS / empty)


def distinct_in_grid(sketches: Sequence[int], scale: float) -> float:
    """Words that a complete grid updates, from sketches of some of its blocks.

    Args:
        sketches: one for each part of the grid that ran.
        scale: blocks of the grid over blocks that ran. Where parts update different words, the rest of the grid is
            assumed to update further ones; where all update the same, it adds none.
    """
    parts = [distinct(sketch) for sketch in sketches if sketch]
    if not parts:
        return 0.0
    union = 0
    for sketch in sketches:
        union |= sketch
    together, mean = distinct(union), sum(parts) / len(parts)
    apart = (together / mean - 1) / (len(parts) - 1) if len(parts) > 1 else 1.0
    return together * (1 + min(max(apart, 0.0), 1.0) * (scale - 1))


def most_updates(counters: Sequence[Sequence[int]], scale: float) -> float:
    """Updates of the word, or line, that has most, from counters of some of a grid's blocks.

    What the counter that has least holds is taken for the share of all others in each. ``scale``: blocks of the grid
    over blocks that ran; they are assumed to update the same words alike.
    """
    totals = np.sum([np.asarray(values) for values in counters if len(values)], axis=0)
    return float(np.max(totals) - np.min(totals)) * scale if np.ndim(totals) else 0.0


def most_updates_of_a_word(
    counters: Sequence[Sequence[int]], sketches: Sequence[int], updates: int, scale: float
) -> float:
    """As ``most_updates``, but at least the mean of all words, where the sketches tell how many words there are.

    Words as many as the counters, or a multiple of that, fill all counters alike. ``updates``: of all words together.
    """
    words = distinct_in_grid(sketches, scale)
    mean = updates * scale / max(words, 1.0) if words <= BITS else 0.0
    return max(most_updates(counters, scale), mean)


@dataclass(frozen=True)
class ChunkFootprint:
    """Footprint of a chunk of consecutive blocks, and of its first part."""

    blocks: int
    first_blocks: int
    first: Footprint
    complete: Footprint


@dataclass(frozen=True)
class Extent:
    """One buffer in device memory."""

    buffer: int
    address: int
    nbytes: int


@dataclass(frozen=True)
class LaunchTraffic:
    """Bytes by buffer that one launch touches, and bytes that it reads again because the L2 did not keep them."""

    read: Mapping[int, float]
    written: Mapping[int, float]
    refetched: float
    least_read: Mapping[int, float] = field(default_factory=dict)
    """As ``read``, but without what neighbouring blocks both touch."""


def bytes_by_buffer(sectors: Sectors, extents: Sequence[Extent]) -> dict[int, int]:
    """Bytes of the sectors that lie in each buffer; at most the buffer's own size."""
    nbytes: dict[int, int] = {}
    for extent in extents:
        first = extent.address // SECTOR_BYTES
        last = -(-(extent.address + extent.nbytes) // SECTOR_BYTES)
        count = int(np.searchsorted(sectors, last) - np.searchsorted(sectors, first))
        if count:
            nbytes[extent.buffer] = min(count * SECTOR_BYTES, extent.nbytes)
    return nbytes


def _union(parts: Sequence[Sectors]) -> Sectors:
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)


def extrapolate(
    chunks: Sequence[ChunkFootprint],
    extents: Sequence[Extent],
    *,
    grid_blocks: int,
    wave_blocks: int,
    l2_bytes: int,
) -> LaunchTraffic:
    """Traffic of the complete grid from chunks of it.

    Args:
        chunks: Footprints of chunks of equal length, spread over the grid.
        extents: The plan's buffers.
        grid_blocks: Blocks of the grid.
        wave_blocks: Blocks that run side by side on the device.
        l2_bytes: Capacity of the L2.
    """
    sizes = {extent.buffer: extent.nbytes for extent in extents}
    read, wave, least = _side(chunks, extents, sizes, grid_blocks, wave_blocks, "read")
    written, _, _ = _side(chunks, extents, sizes, grid_blocks, wave_blocks, "written")
    waves = max(grid_blocks / wave_blocks, 1.0)
    repeated = sum(max(wave[buffer] * waves - read[buffer], 0.0) for buffer in read)
    touched = sum(max(read.get(b, 0.0), written.get(b, 0.0)) for b in read.keys() | written.keys())
    kept = min(l2_bytes / touched, 1.0) if touched else 1.0
    return LaunchTraffic(read, written, repeated * (1.0 - kept), least)


def _side(
    chunks: Sequence[ChunkFootprint],
    extents: Sequence[Extent],
    sizes: Mapping[int, int],
    grid_blocks: int,
    wave_blocks: int,
    side: str,
) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """Bytes by buffer of the complete grid, of one wave of blocks, and of the grid if blocks share as neighbours do."""
    blocks = sum(chunk.blocks for chunk in chunks)
    together = bytes_by_buffer(_union([getattr(chunk.complete, side) for chunk in chunks]), extents)
    completes = [bytes_by_buffer(getattr(chunk.complete, side), extents) for chunk in chunks]
    firsts = [bytes_by_buffer(getattr(chunk.first, side), extents) for chunk in chunks]
    length = blocks / len(chunks)
    rest = sum(chunk.blocks - chunk.first_blocks for chunk in chunks) / len(chunks)
    grid: dict[int, float] = {}
    wave: dict[int, float] = {}
    least: dict[int, float] = {}
    for buffer, union in together.items():
        complete = sum(part.get(buffer, 0) for part in completes) / len(chunks)
        first = sum(part.get(buffer, 0) for part in firsts) / len(chunks)
        # 1 where distant chunks touch different bytes, 0 where all touch the same.
        apart = (union / complete - 1) / (len(chunks) - 1) if len(chunks) > 1 else 1.0
        estimate = union + (grid_blocks - blocks) * min(apart, 1.0) * complete / length
        grid[buffer] = min(estimate, float(sizes[buffer]))
        growth = (complete - first) / rest if rest else complete / length
        least[buffer] = min(union + (grid_blocks - blocks) * min(apart, 1.0) * growth, grid[buffer])
        wave[buffer] = min(max(complete + (wave_blocks - length) * growth, 0.0), grid[buffer])
    return grid, wave, least


class Residency:
    """Content of the L2 between launches, by buffer: bytes, and the part that is not yet written back."""

    def __init__(self, l2_bytes: int) -> None:
        self.l2_bytes = l2_bytes
        self._cached: dict[int, tuple[float, float]] = {}  # least recently used first

    def hold(self, buffer: int, nbytes: float, dirty: float) -> None:
        """Add bytes of a buffer, most recently used."""
        self._cached.pop(buffer, None)
        if nbytes > 0:
            self._cached[buffer] = (nbytes, min(dirty, nbytes))

    def launch(self, traffic: LaunchTraffic) -> tuple[float, float]:
        """Bytes that a launch reads from DRAM and writes to it, after the earlier launches."""
        touched = {
            buffer: max(traffic.read.get(buffer, 0.0), traffic.written.get(buffer, 0.0))
            for buffer in (*traffic.read, *(b for b in traffic.written if b not in traffic.read))
        }
        # A launch that touches more than the L2 holds evicts bytes that it would have found.
        over = max(sum(touched.values()) - self.l2_bytes, 0.0)
        kept = max(1.0 - over / self.l2_bytes, 0.0)
        fetched = traffic.refetched
        for buffer, nbytes in traffic.read.items():
            cached, _ = self._cached.get(buffer, (0.0, 0.0))
            fetched += nbytes - min(cached, nbytes) * kept
        evicted = 0.0
        if over:
            # Blocks read and write side by side: at the end the L2 has the same part of each buffer.
            evicted = self.flush()
            self._cached.clear()
        part = min(self.l2_bytes / max(sum(touched.values()), 1.0), 1.0)
        # What is read again and again takes the place of what was written.
        unwritten = min(self.l2_bytes / max(fetched + sum(traffic.written.values()), 1.0), part)
        for buffer, nbytes in touched.items():
            cached, dirty = self._cached.get(buffer, (0.0, 0.0))
            written = traffic.written.get(buffer, 0.0)
            evicted += written * (1 - unwritten)
            self.hold(buffer, max(cached, nbytes * part), max(dirty, written * unwritten))
        return fetched, evicted + self._evict()

    def flush(self) -> float:
        """Bytes that are written back at the end; clean data stays."""
        dirty = sum(dirty for _, dirty in self._cached.values())
        self._cached = {buffer: (nbytes, 0.0) for buffer, (nbytes, _) in self._cached.items()}
        return dirty

    def _evict(self) -> float:
        """Drop the least recently used until the rest fits; returns the bytes written back."""
        over = sum(nbytes for nbytes, _ in self._cached.values()) - self.l2_bytes
        written = 0.0
        for buffer in list(self._cached):
            if over <= 0:
                break
            nbytes, dirty = self._cached[buffer]
            gone = min(over, nbytes)
            written += dirty * gone / nbytes
            over -= gone
            if gone == nbytes:
                del self._cached[buffer]
            else:
                self._cached[buffer] = (nbytes - gone, dirty * (1 - gone / nbytes))
        return written
