"""Extrapolating footprints, on access patterns whose traffic is known."""

import math
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    is_inside,
)
from kernelforge.devices.emulated.profile.traffic import (
    MOST_PARTS,
    ChunkFootprint,
    Extent,
    Footprint,
    LaunchTraffic,
    Residency,
    SampledBlocks,
    Sectors,
    all_sectors,
    bytes_by_buffer,
    extrapolate,
    ranges_by_buffer,
    ranges_of_grid,
)

MIB = 1 << 20
BASE = 0x7000_0000_0000
GRID = 4096
EMPTY = Sectors.of(np.empty(0, dtype=np.int64))


def sectors(start_byte: int, nbytes: int) -> Sectors:
    return Sectors.of(np.arange((BASE + start_byte) // 32, (BASE + start_byte + nbytes) // 32))


def sampled(touch, write=None):  # type: ignore[no-untyped-def]
    """Footprints of a kernel whose block ``b`` touches the sectors ``touch(b)``."""

    def side(function, start, end):  # type: ignore[no-untyped-def]
        return EMPTY if function is None else all_sectors([function(b) for b in range(start, end)])

    return [
        ChunkFootprint(
            chunk.blocks,
            chunk.middle - chunk.start,
            Footprint(side(touch, chunk.start, chunk.middle), side(write, chunk.start, chunk.middle)),
            Footprint(side(touch, chunk.start, chunk.end), side(write, chunk.start, chunk.end)),
        )
        for chunk in choose_chunks(GRID, 64, random.Random(0))
    ]


STREAMED, LARGE = GRID * 1024, GRID * 65536


@pytest.mark.parametrize(
    ("touch", "buffer_bytes", "read"),
    [
        pytest.param(lambda b: sectors(b * 1024, 1024), STREAMED, STREAMED, id="streaming"),
        pytest.param(lambda b: sectors(b * 65536, 65536), LARGE, LARGE, id="streaming more than the L2"),
        pytest.param(lambda b: sectors(b * 1024, 512), STREAMED, GRID * 512, id="half of the buffer"),
        pytest.param(lambda b: sectors(0, 4096), MIB, 4096, id="shared by all blocks"),
        # Each block reads its own kilobyte and the next one.
        pytest.param(lambda b: sectors(b * 1024, 2048), STREAMED + 1024, STREAMED + 1024, id="with a halo"),
    ],
)
def test_a_grid_reads_the_bytes_that_it_touches_once(
    touch: Callable[[int], Sectors], buffer_bytes: int, read: int
) -> None:
    extents = [Extent(7, BASE, buffer_bytes)]
    traffic = extrapolate(sampled(touch), extents, grid_blocks=GRID, wave_blocks=1056, l2_bytes=50 * MIB)
    assert traffic.read == {7: read}
    assert traffic.refetched == (pytest.approx(0, abs=1) if buffer_bytes == LARGE else 0)


def matmul(n: int, l2_bytes: int) -> tuple[LaunchTraffic, int]:
    """A naive matmul of 64x64 blocks: row strips of A, column strips of B (each as a contiguous range here)."""
    strip = n * n * 4 // 64

    def touch(block: int) -> Sectors:
        row, column = divmod(block, 64)
        return all_sectors([sectors(row * strip, strip), sectors(n * n * 4 + column * strip, strip)])

    extents = [Extent(0, BASE, n * n * 4), Extent(1, BASE + n * n * 4, n * n * 4)]
    traffic = extrapolate(sampled(touch), extents, grid_blocks=GRID, wave_blocks=1056, l2_bytes=l2_bytes)
    return traffic, n * n * 8


def test_a_matmul_that_fits_the_l2_reads_each_operand_once() -> None:
    traffic, compulsory = matmul(1024, 50 * MIB)
    assert sum(traffic.read.values()) == compulsory
    assert traffic.refetched == 0


def test_a_matmul_larger_than_the_l2_is_refetched_by_every_wave() -> None:
    traffic, compulsory = matmul(1024, MIB)
    assert sum(traffic.read.values()) == compulsory
    # Four waves, each needing all of B: three times B again, less what the small L2 keeps.
    assert 0.5 * compulsory < traffic.refetched < 2 * compulsory


@pytest.mark.slow
@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)), st.integers(0, 300), st.integers(0, 300))
def test_a_set_of_sectors_is_a_set(some: set[int], other: set[int], first: int, end: int) -> None:
    sets = [Sectors.of(np.array(list(numbers), np.int64)) for numbers in (some, other)]
    both = all_sectors(sets)
    assert both.numbers().tolist() == sorted(some | other)
    assert both.size == len(some | other)
    within = both.within(first, end)
    assert within.numbers().tolist() == [number for number in sorted(some | other) if first <= number < end]
    if within.size:
        assert (within.first, within.last) == (within.numbers()[0], within.numbers()[-1])


def test_bytes_of_a_buffer_never_exceed_its_size() -> None:
    assert bytes_by_buffer(sectors(0, 96), [Extent(0, BASE, 40), Extent(1, BASE + 64, 30)]) == {0: 40, 1: 30}


BUFFERS = dict.fromkeys(range(3), 200 * MIB)
"""Bytes of each buffer."""


def test_an_intermediate_that_stays_in_the_l2_is_not_read_from_dram() -> None:
    residency = Residency(50 * MIB, BUFFERS)
    assert residency.launch(LaunchTraffic({0: 4 * MIB}, {1: 4 * MIB}, 0)) == (4 * MIB, 0)
    assert residency.launch(LaunchTraffic({1: 4 * MIB}, {2: 4 * MIB}, 0)) == (0, 0)
    assert residency.flush() == 8 * MIB
    assert residency.flush() == 0


def test_an_intermediate_larger_than_the_l2_is_written_and_read_back() -> None:
    residency = Residency(50 * MIB, BUFFERS)
    big = 200 * MIB
    read, written = residency.launch(LaunchTraffic({0: big}, {1: big}, 0))
    second_read, more = residency.launch(LaunchTraffic({1: big}, {2: big}, 0))
    assert (read, second_read) == (big, big)
    assert written + more + residency.flush() == pytest.approx(2 * big)


def test_what_a_launch_reads_and_writes_side_by_side_shares_the_l2() -> None:
    """At the end half of the L2 has output that is not written yet: 25 MB less than 200 MB go to DRAM before."""
    residency = Residency(50 * MIB, BUFFERS)
    read, written = residency.launch(LaunchTraffic({0: 200 * MIB}, {1: 200 * MIB}, 0))
    assert (read, written) == (200 * MIB, pytest.approx(175 * MIB))
    assert residency.flush() == pytest.approx(25 * MIB)
    # What is read again and again leaves it little room.
    residency = Residency(50 * MIB, BUFFERS)
    residency.launch(LaunchTraffic({0: 200 * MIB}, {1: 200 * MIB}, 20_000 * MIB))
    assert residency.flush() < MIB


def on_rows(first: int, end: int) -> LaunchTraffic:
    """A launch that reads rows of a MiB of buffer 0, and writes those of buffer 1."""
    rows = float(first * MIB), float(end * MIB)
    nbytes = (end - first) * MIB
    return LaunchTraffic({0: nbytes}, {1: nbytes}, 0, ranges={0: rows, 1: rows})


def test_another_part_of_a_tensor_is_not_in_the_l2() -> None:
    residency = Residency(50 * MIB, BUFFERS)
    assert residency.launch(on_rows(0, 4))[0] == 4 * MIB
    assert residency.launch(on_rows(4, 8))[0] == 4 * MIB
    assert residency.launch(on_rows(2, 6))[0] == 0
    assert residency.launch(on_rows(6, 10))[0] == 2 * MIB
    assert residency.flush() == 10 * MIB


def test_launches_on_one_row_each_read_and_write_each_row_once() -> None:
    residency = Residency(50 * MIB, BUFFERS)
    moved = [residency.launch(on_rows(row, row + 1)) for row in range(200)]
    assert sum(read for read, _ in moved) == 200 * MIB
    assert sum(written for _, written in moved) + residency.flush() == pytest.approx(200 * MIB)
    assert len(residency._parts) <= MOST_PARTS
    assert residency.launch(on_rows(190, 200))[0] == 0
    assert residency.launch(on_rows(0, 10))[0] == 10 * MIB


def test_where_a_launch_touches_a_buffer_comes_from_its_sectors() -> None:
    extents = [Extent(0, BASE, 3200), Extent(1, BASE + 4096, 3200)]
    assert ranges_by_buffer(sectors(320, 320), extents) == {0: (320.0, 640.0)}
    # Samples need not touch the first and the last bytes.
    assert ranges_by_buffer(sectors(64, 3072), extents) == {0: (0.0, 3200.0)}


@pytest.mark.parametrize("blocks", [(3,), (2, 4), (1, 6), (0, 7)])
def test_where_a_grid_touches_a_buffer_comes_from_some_of_its_blocks(blocks: tuple[int, ...]) -> None:
    """8 blocks read a row of 1,024 bytes each, from the 16th row on, and the second buffer from its 8th row to its 16th
    each; each writes 32 bytes of every row."""
    extents = [Extent(buffer, BASE + buffer * MIB, MIB // 2) for buffer in range(3)]
    row = 1024
    samples = [
        SampledBlocks(
            block,
            block,
            all_sectors(
                [
                    sectors((16 + block) * row, row),
                    sectors(MIB + 8 * row, 8 * row),
                    Sectors.of((BASE + 2 * MIB) // 32 + block + np.arange(0, 512, 32)),
                ]
            ),
        )
        for block in blocks
    ]
    nbytes = {0: 8.0 * row, 1: 8.0 * row, 2: 8.0 * 16 * 32}
    ranges = ranges_of_grid(samples, extents, nbytes, 8)
    assert ranges[0] == (16 * row, 24 * row)
    assert ranges[1] == (8 * row, 16 * row)
    assert ranges[2] == (0, pytest.approx(16 * row, rel=0.1))


@pytest.mark.parametrize("blocks", [(7, 8), (15, 16)])
def test_a_grid_of_tiles_touches_no_more_of_a_matrix_than_there_is(blocks: tuple[int, ...]) -> None:
    """8 x 8 blocks read 128 KiB by tiles of 32 rows of 64 bytes; samples end a row of tiles and begin the next."""

    def tile(block: int) -> Sectors:
        first = block // 8 * 32 * 512 + block % 8 * 64
        return all_sectors([sectors(first + 512 * row, 64) for row in range(32)])

    samples = [SampledBlocks(block, block, tile(block)) for block in blocks]
    (touched,) = ranges_of_grid(samples, [Extent(0, BASE, MIB)], {0: 131072.0}, 64).values()
    assert touched == (pytest.approx(0, abs=8192), pytest.approx(131072, abs=8192))


def test_an_output_written_twice_while_in_the_l2_goes_to_dram_once() -> None:
    residency = Residency(50 * MIB, BUFFERS)
    residency.launch(LaunchTraffic({}, {1: MIB}, 0))
    residency.launch(LaunchTraffic({}, {1: MIB}, 0))
    assert residency.flush() == MIB


@given(st.integers(2, 5000), st.integers(0, 300), st.integers(0, 1000))
def test_chunks_lie_anywhere_in_equal_parts_of_the_grid_but_its_last_block(
    blocks: int, affordable: int, seed: int
) -> None:
    chunks = choose_chunks(blocks, affordable, random.Random(seed))
    if len(chunks) == 1:
        assert chunks in ((Chunk(0, blocks),), (Chunk(chunks[0].start, chunks[0].end),))
        return
    assert len({chunk.blocks for chunk in chunks}) == 1
    for index, chunk in enumerate(chunks):
        assert (blocks - 1) * index // len(chunks) <= chunk.start
        assert chunk.end <= (blocks - 1) * (index + 1) // len(chunks)


GRIDS = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))


@pytest.mark.slow
@given(GRIDS, st.integers(0, 30), st.integers(0, 1000), st.data())
def test_edges_stand_for_the_blocks_at_ends_that_do_something_else(
    grid: tuple[int, int, int], affordable: int, seed: int, data: st.DataObject
) -> None:
    inside = choose_inside(grid, random.Random(seed))
    assert is_inside(inside, grid)
    at = coordinates(inside, grid)
    all_ends = ends_of(grid, at)
    assert not any(is_inside(block, grid) for block in all_ends.values())
    ends = data.draw(st.sets(st.sampled_from(sorted(all_ends)))) if all_ends else set()
    edges = choose_edges(grid, at, ends, affordable)
    assert len(edges) <= max(affordable, len(ends))
    assert len({edge.block for edge in edges}) == len(edges)
    other = sum(
        any((axis, -1 if i == 0 else 1) in ends for axis, i in enumerate(coordinates(block, grid))
            if i in (0, grid[axis] - 1))
        for block in range(math.prod(grid))
    )  # fmt: skip
    stood_for = sum(edge.blocks for edge in edges)
    if affordable >= 26:
        assert stood_for == other
    assert other <= stood_for + 1e-6
    assert stood_for <= math.prod(grid) + 1e-6


@pytest.mark.slow
@given(st.tuples(st.integers(9, 40), st.integers(9, 40), st.integers(1, 2)), st.tuples(*[st.integers(0, 9)] * 4))
def test_what_edges_do_less_adds_up_in_corners_that_do_not_run(
    grid: tuple[int, int, int], less: tuple[int, ...]
) -> None:
    by_end = dict(zip([(0, -1), (0, 1), (1, -1), (1, 1)], less, strict=True))

    def work(block: int) -> int:
        x, y, _ = coordinates(block, grid)
        return 100 - sum(by_end[axis, -1 if i == 0 else 1] for axis, i in ((0, x), (1, y)) if i in (0, grid[axis] - 1))

    at = (4, 4, 0)
    ends = [end for end, block in ends_of(grid, at).items() if work(block) != 100]
    edges = choose_edges(grid, at, ends, affordable=0)
    total = math.prod(grid)
    estimate = sum(edge.blocks * work(edge.block) for edge in edges)
    estimate += (total - sum(edge.blocks for edge in edges)) * 100
    assert estimate == pytest.approx(sum(work(block) for block in range(total)))


@given(st.integers(1, 70_000), st.data())
def test_where_empty_blocks_begin_takes_few_runs(blocks: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, blocks))
    busy = data.draw(st.integers(0, first - 1))
    ran: list[int] = []

    def is_empty(block: int) -> bool:
        ran.append(block)
        return block >= first

    assert first_empty_block(busy, blocks, is_empty, affordable=40) == first
    assert all(busy < block < blocks for block in ran)
    full = [block for block in ran if block < first]
    assert len(full) <= (blocks - first + 1).bit_length()
    affordable = data.draw(st.integers(0, 3))
    ran.clear()
    assert first <= first_empty_block(busy, blocks, is_empty, affordable) <= blocks
    assert sum(block < first for block in ran) <= affordable


def test_each_edge_and_corner_has_a_block_where_they_may_run() -> None:
    grid, at = (10, 20, 1), (3, 5, 0)
    ends = ends_of(grid, at)
    assert ends == {(0, -1): 50, (0, 1): 59, (1, -1): 3, (1, 1): 193}
    assert sorted(edge.blocks for edge in choose_edges(grid, at, ends, 8)) == [1, 1, 1, 1, 8, 8, 18, 18]
    # Two corners run; the other two, on one side of the first axis, count with both of their edges.
    assert sorted(edge.blocks for edge in choose_edges(grid, at, ends, 6)) == [1, 1, 8 + 1, 8 + 1, 18, 18 + 2]
    assert [edge.blocks for edge in choose_edges(grid, at, {(1, 1)}, 8)] == [10]
    assert choose_edges(grid, at, (), 8) == ()


def test_edges_share_a_corner_where_few_blocks_are_inside() -> None:
    grid, at = (3, 3, 100), (1, 1, 50)
    ends = [(0, -1), (0, 1), (1, -1), (1, 1)]
    assert [edge.blocks for edge in choose_edges(grid, at, ends, 0)] == [200] * 4


def test_blocks_that_share_as_neighbours_do_read_least() -> None:
    extents = [Extent(7, BASE, STREAMED * 2)]
    halo = sampled(lambda b: sectors(b * 1024, 2048))
    traffic = extrapolate(halo, extents, grid_blocks=GRID, wave_blocks=1056, l2_bytes=50 * MIB)
    assert traffic.least_read[7] == pytest.approx(STREAMED, rel=0.01)
    assert traffic.read[7] > 1.03 * STREAMED


@given(
    grid=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4)),
    affordable=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_a_sample_has_blocks_inside_wherever_its_chunks_lie(
    grid: tuple[int, int, int], affordable: int, seed: int
) -> None:
    draws = random.Random(seed)
    chunks = choose_chunks(grid[0] * grid[1] * grid[2], affordable, draws)
    parts = halves(chunks, grid, inside=True, draws=draws)
    assert parts
    assert all(first for first, _ in parts)
    assert all(is_inside(block, grid) for first, second in parts for block in (*first, *second))
    complete = halves(chunks, grid, inside=False, draws=draws)
    assert [len(first) + len(second) for first, second in complete] == [chunk.blocks for chunk in chunks]


def test_no_block_of_a_grid_is_always_sampled_or_never() -> None:
    """A kernel cannot know where it is looked at."""
    seen: Counter[int] = Counter()
    for seed in range(400):
        for chunk in choose_chunks(65, 16, random.Random(seed)):
            seen.update(range(chunk.start, chunk.end))
    assert set(seen) == set(range(64))
    assert max(seen.values()) < 200


def test_launches_of_one_shape_are_sampled_by_chance() -> None:
    assert choose_launches(16, random.Random(0)) == frozenset(range(16))
    samples = [choose_launches(100, random.Random(seed)) for seed in range(300)]
    assert all(0 in sample and len(sample) == 16 for sample in samples)
    assert frozenset().union(*samples) == frozenset(range(100))


def test_a_grid_that_is_affordable_is_one_chunk() -> None:
    assert choose_chunks(10, 10, random.Random(0)) == (Chunk(0, 10),)


def test_a_few_blocks_run_however_dear_they_are() -> None:
    assert [chunk.blocks for chunk in choose_chunks(1000, 1, random.Random(0))] == [2, 2]
    assert [chunk.blocks for chunk in choose_chunks(1000, 0, random.Random(0))] == [1, 1]
    assert choose_chunks(3, 0, random.Random(0)) == (Chunk(0, 3),)


def test_what_a_launch_leaves_the_next_may_use() -> None:
    budget = Budget(2, total=100, floor=1)
    assert not budget.exceeded_by(50)
    assert budget.exceeded_by(51)
    budget.spend(10)
    assert not budget.exceeded_by(90)
    assert [budget.affordable_blocks(cost) for cost in (1, 20, 45, 46, 180, 181)] == [45, 2, 1, 1, 1, 0]
    budget.spend(500)
    assert budget.exceeded_by(2)
    assert not budget.exceeded_by(1)
