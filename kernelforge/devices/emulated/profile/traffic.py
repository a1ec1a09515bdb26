"""Memory traffic of a launch: distinct addresses, footprints of blocks, and the bytes that must move."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kernelforge.devices.emulated.runtime.cache import CacheModel, Footprint, Sectors, all_sectors
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


Leaders = Sequence[tuple[int, int]]
"""Words, or lines, by number, with updates that each has at least."""


def most_updates(parts: Sequence[Leaders], scale: float) -> float:
    """Updates of the word, or line, that has most, from those that lead in each part of a grid that ran.

    The rest of the grid is assumed to update a word only if parts do that did not choose it: the word that leads in all
    other parts. For of many words that are updated alike any may lead in one part, and its updates are no sample.

    Args:
        parts: of the blocks that ran.
        scale: blocks of the grid over blocks that ran.
    """
    counts = [_added_up([part]) for part in parts]
    totals = _added_up(parts)
    if not totals:
        return 0.0
    shared = 0
    for part in counts:
        others = totals - part
        if others:
            shared += part[max(others, key=lambda key: (others[key], key))]
    return max(float(max(totals.values())), scale * shared)


def _added_up(parts: Iterable[Leaders]) -> Counter[int]:
    totals: Counter[int] = Counter()
    for part in parts:
        for key, count in part:
            totals[key] += count
    return totals


def most_updates_of_a_word(
    parts: Sequence[Leaders], sketches: Sequence[int], updates: int, scale: float, words: float = math.inf
) -> float:
    """As ``most_updates``, but at least the mean of all words, where it is known how many there are.

    Words that are updated alike lead no others. ``updates``: of all words together. ``words``: at most so many are
    written, or are if a sketch cannot tell them apart.
    """
    several = distinct_in_grid(sketches, scale)
    if several > BITS:
        several = words
    return max(most_updates(parts, scale), updates * scale / max(min(several, words), 1.0))


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


Range = tuple[float, float]
"""First byte in a buffer, and the end."""

EVERYWHERE: Range = (0.0, math.inf)

NEAR_END = 1 / 16
"""Part of a range's length within which it is taken to reach the end of its buffer: samples need not touch the last."""


MOST_PARTS = 64
"""Ranges of all buffers in the L2 that are kept apart: each launch looks at all of them."""


def keep_footprint(cache: CacheModel, extents: Sequence[Extent]) -> None:
    """Let a cache note which sectors of some buffers are fetched and written."""
    if extents:
        first = min(extent.address for extent in extents)
        cache.keep_footprint(first, max(extent.address + extent.nbytes for extent in extents) - first)


def sectors_of(sectors: Sectors, extent: Extent) -> Sectors:
    """The subset of sectors that lie in a buffer."""
    return sectors.within(extent.address // SECTOR_BYTES, -(-(extent.address + extent.nbytes) // SECTOR_BYTES))


def ranges_by_buffer(sectors: Sectors, extents: Sequence[Extent]) -> dict[int, Range]:
    """First and last byte that the sectors touch, by buffer."""
    ranges: dict[int, Range] = {}
    for extent in extents:
        touched = _range_in(sectors, extent)
        if touched:
            ranges[extent.buffer] = _to_near_ends(touched, extent)
    return ranges


def _range_in(sectors: Sectors, extent: Extent) -> Range | None:
    inside = sectors_of(sectors, extent)
    if not inside.size:
        return None
    first, end = inside.first * SECTOR_BYTES - extent.address, (inside.last + 1) * SECTOR_BYTES - extent.address
    return float(max(first, 0)), float(min(end, extent.nbytes))


def _to_near_ends(touched: Range, extent: Extent) -> Range:
    """The range; where it comes near to an end of its buffer it reaches that."""
    low, high = touched
    near = NEAR_END * (high - low)
    return low if low > near else 0.0, high if high < extent.nbytes - near else float(extent.nbytes)


def _is_strided(samples: Sequence[SampledBlocks], extent: Extent) -> bool:
    """Whether blocks touch less than half of the ranges that they touch something in."""
    spans = [own for sample in samples if (own := _range_in(sample.sectors, extent))]
    touched = sum(sectors_of(sample.sectors, extent).size for sample in samples) * SECTOR_BYTES
    return 2 * touched < sum(high - low for low, high in spans)


class SampledBlocks(NamedTuple):
    """Consecutive blocks of a grid that ran."""

    first: int
    last: int
    sectors: Sectors
    """That they touched."""


def ranges_of_grid(
    samples: Sequence[SampledBlocks],
    extents: Sequence[Extent],
    nbytes: Mapping[int, float],
    grid_blocks: int,
) -> dict[int, Range]:
    """First and last byte that a complete grid touches, by buffer, from blocks of which none need be at its ends.

    Between the first sample and the last, blocks are taken to move on by equal steps, and so to both ends of the grid.
    Of a grid of tiles the samples may lie in two rows of it: where the steps would reach twice as far as the bytes that
    the grid touches, and each block touches less than half of its own range, the range is as long as these bytes. A
    range has at least the bytes that the grid touches. What samples lack of those, as a single one does, lies before
    and after them by the number of blocks there.

    Args:
        samples: In order.
        extents: The plan's buffers.
        nbytes: By buffer: bytes that the grid touches, an estimate of at most the buffer's own size.
        grid_blocks: Blocks of the grid.
    """
    ranges: dict[int, Range] = {}
    for extent in extents:
        touched = [(sample, own) for sample in samples if (own := _range_in(sample.sectors, extent))]
        if not touched:
            continue
        (first, begin), (last, end) = touched[0], touched[-1]
        before, after = first.first, grid_blocks - 1 - last.last
        blocks = (last.first + last.last - first.first - first.last) / 2
        step = (sum(end) - sum(begin)) / 2 / blocks if blocks else 0.0
        moved = ((begin, -step * before), (end, step * after))
        reached = [own for _, own in touched] + [(low + by, high + by) for (low, high), by in moved]
        low = max(min(low for low, _ in reached), 0.0)
        high = min(max(high for _, high in reached), float(extent.nbytes))
        footprint = nbytes.get(extent.buffer, 0.0)
        if high - low > 2 * footprint and step > 2 * footprint / grid_blocks and _is_strided(samples, extent):
            # A step to the next row of tiles is none that all blocks make.
            low, high = min(low for low, _ in reached[:-2]), max(high for _, high in reached[:-2])
        length = max(high - low, footprint)
        low -= (length - (high - low)) * before / max(before + after, 1)
        low = min(max(low, 0.0), extent.nbytes - length)
        ranges[extent.buffer] = _to_near_ends((low, low + length), extent)
    return ranges


@dataclass(frozen=True)
class LaunchTraffic:
    """Bytes by buffer that one launch touches, and bytes that it reads again because the L2 did not keep them."""

    read: Mapping[int, float]
    written: Mapping[int, float]
    refetched: float
    least_read: Mapping[int, float] = field(default_factory=dict)
    """As ``read``, but without what neighbouring blocks both touch."""
    ranges: Mapping[int, Range] = field(default_factory=dict)
    """By buffer: where those bytes lie in it. A buffer without a range is touched everywhere."""

    @property
    def touched(self) -> dict[int, float]:
        """Bytes that are read, written or both, by buffer."""
        buffers = (*self.read, *(buffer for buffer in self.written if buffer not in self.read))
        return {buffer: max(self.read.get(buffer, 0.0), self.written.get(buffer, 0.0)) for buffer in buffers}


def bytes_by_buffer(sectors: Sectors, extents: Sequence[Extent]) -> dict[int, int]:
    """Bytes of the sectors that lie in each buffer; at most the buffer's own size."""
    nbytes: dict[int, int] = {}
    for extent in extents:
        count = sectors_of(sectors, extent).size
        if count:
            nbytes[extent.buffer] = min(count * SECTOR_BYTES, extent.nbytes)
    return nbytes


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
    together = bytes_by_buffer(all_sectors([getattr(chunk.complete, side) for chunk in chunks]), extents)
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


@dataclass(frozen=True)
class _Part:
    """Bytes of a range of a buffer that are in the L2, evenly spread, and those of them that are not written back."""

    buffer: int
    range: Range
    nbytes: float
    dirty: float

    def within(self, first: float, end: float) -> _Part:
        """The part of it in a narrower range."""
        low, high = max(first, self.range[0]), min(end, self.range[1])
        if (low, high) == self.range:
            return self
        share = max(high - low, 0.0) / (self.range[1] - self.range[0])
        return _Part(self.buffer, (low, high), share * self.nbytes, share * self.dirty)


class Residency:
    """Content of the L2 between launches, by ranges of buffers: bytes, and the part that is not yet written back.

    Args:
        l2_bytes: Capacity.
        sizes: Bytes of each buffer.
    """

    def __init__(self, l2_bytes: int, sizes: Mapping[int, int]) -> None:
        self.l2_bytes = l2_bytes
        self._sizes = sizes
        self._parts: list[_Part] = []
        """Least recently used first."""

    def hold(self, buffer: int, nbytes: float, dirty: float, touched: Range = EVERYWHERE) -> None:
        """Make ``nbytes`` in a range of a buffer the content there, most recently used."""
        first, end = self._bounded(buffer, touched)
        rest: list[_Part] = []
        for part in self._parts:
            if part.buffer != buffer:
                rest.append(part)
                continue
            sides = part.within(part.range[0], first), part.within(end, part.range[1])
            rest += [side for side in sides if side.range[0] < side.range[1]]
        self._parts = rest
        if nbytes > 0:
            self._parts.append(_Part(buffer, (first, end), nbytes, min(dirty, nbytes)))
        if len(self._parts) > MOST_PARTS:
            self._join()

    def _join(self) -> None:
        """Join two parts of one buffer that touch, the least recently used first; where none do, any two of one."""
        for touching in (True, False):
            for older, newer in itertools.combinations(self._parts, 2):
                ends = {older.range[0], older.range[1]} & {newer.range[0], newer.range[1]}
                if older.buffer == newer.buffer and (ends or not touching):
                    both = min(older.range[0], newer.range[0]), max(older.range[1], newer.range[1])
                    joined = _Part(older.buffer, both, older.nbytes + newer.nbytes, older.dirty + newer.dirty)
                    self._parts.remove(newer)
                    self._parts[self._parts.index(older)] = joined
                    return

    def _bounded(self, buffer: int, touched: Range) -> Range:
        size = float(self._sizes[buffer])
        first, end = max(touched[0], 0.0), min(touched[1], size)
        return (first, end) if first < end else (0.0, size)

    def _within(self, buffer: int, touched: Range) -> tuple[float, float]:
        """Bytes in a range of a buffer, and the part that is not yet written back."""
        first, end = self._bounded(buffer, touched)
        parts = [part.within(first, end) for part in self._parts if part.buffer == buffer]
        return sum(part.nbytes for part in parts), sum(part.dirty for part in parts)

    def launch(self, traffic: LaunchTraffic) -> tuple[float, float]:
        """Bytes that a launch reads from DRAM and writes to it, after the earlier launches."""
        touched = traffic.touched
        # A launch that touches more than the L2 holds evicts bytes that it would have found.
        over = max(sum(touched.values()) - self.l2_bytes, 0.0)
        kept = max(1.0 - over / self.l2_bytes, 0.0)
        fetched = traffic.refetched
        for buffer, nbytes in traffic.read.items():
            cached, _ = self._within(buffer, traffic.ranges.get(buffer, EVERYWHERE))
            fetched += nbytes - min(cached, nbytes) * kept
        evicted = 0.0
        if over:
            # Blocks read and write side by side: at the end the L2 has the same part of each buffer.
            evicted = self.flush()
            self._parts.clear()
        part = min(self.l2_bytes / max(sum(touched.values()), 1.0), 1.0)
        # What is read again and again takes the place of what was written.
        unwritten = min(self.l2_bytes / max(fetched + sum(traffic.written.values()), 1.0), part)
        for buffer, nbytes in touched.items():
            where = traffic.ranges.get(buffer, EVERYWHERE)
            cached, dirty = self._within(buffer, where)
            written = traffic.written.get(buffer, 0.0)
            evicted += written * (1 - unwritten)
            self.hold(buffer, max(cached, nbytes * part), max(dirty, written * unwritten), where)
        return fetched, evicted + self._evict()

    def flush(self) -> float:
        """Bytes that are written back at the end; clean data stays."""
        dirty = sum(part.dirty for part in self._parts)
        self._parts = [replace(part, dirty=0.0) for part in self._parts]
        return dirty

    def _evict(self) -> float:
        """Drop the least recently used until the rest fits; returns the bytes written back."""
        over = sum(part.nbytes for part in self._parts) - self.l2_bytes
        written = 0.0
        while over > 0 and self._parts:
            part = self._parts.pop(0)
            gone = min(over, part.nbytes)
            written += part.dirty * gone / part.nbytes
            over -= gone
            if gone < part.nbytes:
                first, end = part.range
                self._parts.insert(0, part.within(first + (end - first) * gone / part.nbytes, end))
        return written
