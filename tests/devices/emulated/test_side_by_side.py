"""Blocks side by side, from one that was recorded: what they share in an L1, and what a wave reads from DRAM."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.profile.side_by_side import (
    Pace,
    RecordedBlock,
    Surroundings,
    recorded_block,
    side_by_side,
    through_l1,
    through_l2,
)
from kernelforge.devices.emulated.profile.traffic import Extent
from kernelforge.devices.emulated.runtime.cache import (
    HEADER_BIT,
    HEADER_COUNT,
    HEADER_MASKED,
    HEADER_REQUEST,
    HEADER_WARP,
    Trace,
)
from kernelforge.hardware.specs import H100

KIB = 1024
EVERYTHING = slice(None)
Request = tuple[int, int, int] | tuple[int, int, int, int]
"""Warp, kind of access, first of four sectors; of a store that does not write all bytes, a mask of each of them."""


def trace_of(*requests: Request) -> Trace:
    words: list[int] = []
    for number, (warp, access, first, *masks) in enumerate(requests):
        header = access | 4 * (1 + len(masks)) << HEADER_COUNT | warp << HEADER_WARP | number << HEADER_REQUEST
        words += [header | HEADER_BIT | (HEADER_MASKED if masks else 0), *range(first, first + 4), *masks * 4]
    return np.array(words, dtype=np.int64)


def recorded(of_block: Callable[[int], list[Request]]) -> RecordedBlock:
    """Block 5 of a grid of one axis, recorded with blocks 9 and 7."""
    traces = {block: trace_of(*of_block(block)) for block in (5, 7, 9)}
    block = recorded_block(traces[5], {0: (4, traces[9])}, (2, 0, 0), traces[7])
    assert block is not None
    return block


def away(*blocks: int) -> np.ndarray:
    return np.array([[block - 5, 0, 0] for block in blocks], dtype=np.int64)


def test_requests_move_from_block_to_block() -> None:
    block = recorded(lambda b: [(0, lay.LOAD, 4 * b), (0, lay.LOAD, 1000), (0, lay.STORE, 2000 - 8 * b)])
    assert (block.shifts[:, 0] / 1024).tolist() == [4, 0, -8]


def test_blocks_that_do_not_correspond_tell_nothing_of_each_other() -> None:
    load, store = (0, lay.LOAD, 64), (0, lay.STORE, 64)
    both, loads = trace_of(load, store), trace_of(load)
    assert recorded_block(both, {0: (4, loads)}, (2, 0, 0), both) is None
    assert recorded_block(both, {0: (4, both)}, (2, 0, 0), loads) is None
    assert recorded_block(both, {0: (4, None)}, (2, 0, 0), both) is None
    # A gather: two blocks seem to tell a distance, the third is elsewhere.
    gather = [trace_of((0, lay.LOAD, first)) for first in (400, 16_000, 900)]
    assert recorded_block(gather[0], {0: (4, gather[1])}, (2, 0, 0), gather[2]) is None


def test_warps_of_a_recorded_block_take_turns() -> None:
    block = recorded(lambda b: [(0, lay.LOAD, 4 * b), (0, lay.LOAD, 400), (1, lay.LOAD, 800), (1, lay.LOAD, 1200)])
    headers = block.trace[block.trace < 0]
    assert (headers >> HEADER_WARP & 63).tolist() == [0, 1, 0, 1]
    assert (headers >> HEADER_REQUEST & 0xFFFFFFFF).tolist() == [0, 2, 1, 3]


def test_blocks_of_an_sm_share_what_all_of_them_read() -> None:
    """A row each, and weights of all: the weights are read from the L2 once."""
    block = recorded(lambda b: [(0, lay.LOAD, 4 * b), (0, lay.LOAD, 100_000)])
    alone = through_l1(block, away(5), 1, 64 * KIB, EVERYTHING)
    beside = through_l1(block, away(*range(8)), 4, 64 * KIB, EVERYTHING)
    assert alone.l2_read_sectors == 8
    assert beside.l2_read_sectors == pytest.approx(4 + 4 / 8)


def test_blocks_of_an_sm_evict_what_each_reads_twice() -> None:
    def twice(b: int) -> list[Request]:
        row = [(0, lay.LOAD, 4 * (1024 * b + k)) for k in range(64)]
        return [*row, *row]

    block = recorded(twice)
    assert through_l1(block, away(5), 1, 16 * KIB, EVERYTHING).l2_read_sectors == 256
    # Eight rows of 8 KiB do not fit: each block reads its own from the L2 again.
    assert through_l1(block, away(*range(40)), 8, 16 * KIB, slice(16, 24)).l2_read_sectors == 512


def test_blocks_that_wait_for_dram_advance_with_what_they_read_there() -> None:
    """A row that is read, then read again among many requests for weights, which the L1 has: as a norm does."""

    def norm(b: int) -> list[Request]:
        row = [(0, lay.LOAD, 4 * (1024 * b + k)) for k in range(64)]
        weights = [(0, lay.LOAD, 4 * (10_000_000 + k)) for k in range(8)]
        return [*row, *(request for k in range(64) for request in (row[k], *[weights[k % 8]] * 6))]

    block = recorded(norm)
    alone = through_l1(block, away(5), 1, 16 * KIB, EVERYTHING).l2_read_sectors
    assert alone == 256 + 32

    def of_a_block(pace: Pace) -> float:
        return through_l1(block, away(*range(40)), 8, 48 * KIB, slice(16, 24), pace).l2_read_sectors

    # By requests most blocks are in their second part, and little is read before a row is read again.
    assert of_a_block(Pace()) < 430
    assert of_a_block(Pace(beyond_l1=16, sent=alone)) > 500


@pytest.mark.parametrize(("between", "sectors"), [([], 4), ([(0, lay.LOAD, 900)], 8), ([(1, lay.LOAD, 900)], 4)])
def test_stores_of_a_warp_merge_until_it_loads(between: list[Request], sectors: int) -> None:
    """Two stores that write a half of the same sectors each, as ``float4`` results that are stored one by one."""
    first, second = 0x0F0F0F0F, 0xF0F0F0F0
    block = recorded(lambda b: [(0, lay.STORE, 4 * b, first), *between, (0, lay.STORE, 4 * b, second)])
    assert through_l1(block, away(5), 1, 16 * KIB, EVERYTHING).l2_write_sectors == sectors


@pytest.mark.parametrize(("second", "complete"), [(0xFFFF0000, True), (0x0000FFFF, False)])
def test_the_l2_is_sent_which_bytes_of_a_sector_were_written(second: int, complete: bool) -> None:
    block = recorded(lambda b: [(0, lay.STORE, 4 * b, 0x0000FFFF), (0, lay.STORE, 4 * b, second)])
    sender = through_l1(block, away(5), 1, 16 * KIB, EVERYTHING)
    assert sender.l2_write_sectors == 4
    assert set((sender.sent[2::3] == lay.COMPLETE_SECTOR).tolist()) == {complete}


def dram_reads(block: RecordedBlock, blocks: int, slots: int, l2_bytes: int, first: int = -1) -> dict[int, float]:
    sender = through_l1(block, away(5), 1, KIB, EVERYTHING)
    extents = [Extent(0, 0, 32 * 1_000_000), Extent(1, 32 * 1_000_000, 32 * 1_000_000)]
    return dict(through_l2(block, sender, away(*range(blocks)), slots, first, extents, l2_bytes, 32))


def products(b: int) -> list[Request]:
    """A block of a grid 16 wide: a strip of A for its row, and one of B for its column; only columns are recorded."""
    return [(0, lay.LOAD, 4 * (64 * b + k)) for k in range(64)] + [(0, lay.LOAD, 1_000_000 + 4 * k) for k in range(64)]


def test_a_wave_reads_from_dram_what_the_l2_does_not_hold() -> None:
    block = recorded(products)
    own, shared = 64 * 128.0, 64 * 128.0
    assert dram_reads(block, 32, 8, 1 << 20) == {0: 32 * own, 1: shared}
    # Blocks start one after another, so that the L2 loses B between them if it holds less than they read.
    small = dram_reads(block, 32, 2, 4 * KIB)
    assert small[0] == 32 * own
    assert small[1] > 16 * shared


def test_a_part_of_the_grid_is_measured_in_the_steady_state() -> None:
    block = recorded(products)
    measured = dram_reads(block, 48, 8, 1 << 20, first=31)
    assert measured[0] == pytest.approx(16 * 64 * 128, rel=0.1)
    assert 1 not in measured


def test_blocks_that_start_together_are_measured_until_others_take_their_places() -> None:
    spec = replace(H100, sm_count=8)
    extents = [Extent(0, 0, 32 * 1_000_000), Extent(1, 32 * 1_000_000, 32 * 1_000_000)]
    surroundings = Surroundings(spec, (48, 1, 1), 1, KIB, extents, burst=0.0)
    sharing = side_by_side(recorded(products), 5, surroundings, random.Random(0))
    assert sharing is not None
    assert sharing.fetched is not None
    assert sharing.fetched[0] == pytest.approx(48 * 64 * 128, rel=0.1)
