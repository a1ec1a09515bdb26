"""Extrapolating footprints, on access patterns whose traffic is known."""

import numpy as np
import pytest

from kernelforge.devices.emulated.profile.sampling import Budget, Chunk, choose_chunks
from kernelforge.devices.emulated.profile.traffic import (
    ChunkFootprint,
    Extent,
    Footprint,
    LaunchTraffic,
    Residency,
    Sectors,
    bytes_by_buffer,
    extrapolate,
)

MIB = 1 << 20
BASE = 0x7000_0000_0000
GRID = 4096
EMPTY = np.empty(0, dtype=np.int64)


def sectors(start_byte: int, nbytes: int) -> Sectors:
    return np.arange((BASE + start_byte) // 32, (BASE + start_byte + nbytes) // 32)


def sampled(touch, write=None):  # type: ignore[no-untyped-def]
    """Footprints of a kernel whose block ``b`` touches the sectors ``touch(b)``."""

    def side(function, start, end):  # type: ignore[no-untyped-def]
        return EMPTY if function is None else np.unique(np.concatenate([function(b) for b in range(start, end)]))

    return [
        ChunkFootprint(
            chunk.blocks,
            chunk.middle - chunk.start,
            Footprint(side(touch, chunk.start, chunk.middle), side(write, chunk.start, chunk.middle)),
            Footprint(side(touch, chunk.start, chunk.end), side(write, chunk.start, chunk.end)),
        )
        for chunk in choose_chunks(GRID, 64)
    ]


def test_a_streaming_kernel_reads_its_buffer_once() -> None:
    nbytes = GRID * 1024
    found = extrapolate(
        sampled(lambda b: sectors(b * 1024, 1024)),
        [Extent(7, BASE, nbytes)],
        grid_blocks=GRID,
        wave_blocks=1056,
        l2_bytes=50 * MIB,
    )
    assert found.read == {7: nbytes}
    assert found.refetched == 0


def test_a_streaming_kernel_larger_than_the_l2_is_not_refetched() -> None:
    nbytes = GRID * 65536
    found = extrapolate(
        sampled(lambda b: sectors(b * 65536, 65536)),
        [Extent(7, BASE, nbytes)],
        grid_blocks=GRID,
        wave_blocks=1056,
        l2_bytes=50 * MIB,
    )
    assert found.read == {7: nbytes}
    assert found.refetched == pytest.approx(0, abs=1)


def test_half_a_buffer_counts_half() -> None:
    found = extrapolate(
        sampled(lambda b: sectors(b * 1024, 512)),
        [Extent(7, BASE, GRID * 1024)],
        grid_blocks=GRID,
        wave_blocks=1056,
        l2_bytes=50 * MIB,
    )
    assert found.read[7] == pytest.approx(GRID * 512)


def test_what_all_blocks_share_is_read_once() -> None:
    found = extrapolate(
        sampled(lambda b: sectors(0, 4096)),
        [Extent(7, BASE, MIB)],
        grid_blocks=GRID,
        wave_blocks=1056,
        l2_bytes=50 * MIB,
    )
    assert found.read == {7: 4096}


def test_a_halo_is_not_counted_twice() -> None:
    # Each block reads its own kilobyte and the next one.
    nbytes = (GRID + 1) * 1024
    found = extrapolate(
        sampled(lambda b: sectors(b * 1024, 2048)),
        [Extent(7, BASE, nbytes)],
        grid_blocks=GRID,
        wave_blocks=1056,
        l2_bytes=50 * MIB,
    )
    assert found.read == {7: nbytes}


def matmul(n: int, l2_bytes: int) -> tuple[LaunchTraffic, int]:
    """A naive matmul of 64x64 blocks: row strips of A, column strips of B (each as a contiguous range here)."""
    strip = n * n * 4 // 64

    def touch(block: int) -> Sectors:
        row, column = divmod(block, 64)
        return np.concatenate([sectors(row * strip, strip), sectors(n * n * 4 + column * strip, strip)])

    extents = [Extent(0, BASE, n * n * 4), Extent(1, BASE + n * n * 4, n * n * 4)]
    found = extrapolate(sampled(touch), extents, grid_blocks=GRID, wave_blocks=1056, l2_bytes=l2_bytes)
    return found, n * n * 8


def test_a_matmul_that_fits_the_l2_reads_each_operand_once() -> None:
    found, compulsory = matmul(1024, 50 * MIB)
    assert sum(found.read.values()) == compulsory
    assert found.refetched == 0


def test_a_matmul_larger_than_the_l2_is_refetched_by_every_wave() -> None:
    found, compulsory = matmul(1024, MIB)
    assert sum(found.read.values()) == compulsory
    # Four waves, each needing all of B: three times B again, less what the small L2 keeps.
    assert 0.5 * compulsory < found.refetched < 2 * compulsory


def test_bytes_of_a_buffer_never_exceed_its_size() -> None:
    assert bytes_by_buffer(sectors(0, 96), [Extent(0, BASE, 40), Extent(1, BASE + 64, 30)]) == {0: 40, 1: 30}


def test_an_intermediate_that_stays_in_the_l2_is_not_read_from_dram() -> None:
    residency = Residency(50 * MIB)
    assert residency.launch(LaunchTraffic({0: 4 * MIB}, {1: 4 * MIB}, 0)) == (4 * MIB, 0)
    assert residency.launch(LaunchTraffic({1: 4 * MIB}, {2: 4 * MIB}, 0)) == (0, 0)
    assert residency.flush() == 8 * MIB
    assert residency.flush() == 0


def test_an_intermediate_larger_than_the_l2_is_written_and_read_back() -> None:
    residency = Residency(50 * MIB)
    big = 200 * MIB
    read, written = residency.launch(LaunchTraffic({0: big}, {1: big}, 0))
    again, more = residency.launch(LaunchTraffic({1: big}, {2: big}, 0))
    assert (read, again) == (big, big)
    assert written + more + residency.flush() == pytest.approx(2 * big)


def test_an_output_written_twice_while_in_the_l2_goes_to_dram_once() -> None:
    residency = Residency(50 * MIB)
    residency.launch(LaunchTraffic({}, {1: MIB}, 0))
    residency.launch(LaunchTraffic({}, {1: MIB}, 0))
    assert residency.flush() == MIB


def test_chunks_are_spread_over_the_grid_without_its_last_block() -> None:
    chunks = choose_chunks(1000, 64)
    assert [chunk.blocks for chunk in chunks] == [16, 16, 16, 16]
    assert chunks[0].start == 0
    assert chunks[-1].end == 999


def test_a_grid_that_is_affordable_is_one_chunk() -> None:
    assert choose_chunks(10, 10) == (Chunk(0, 10),)


def test_a_few_blocks_run_however_dear_they_are() -> None:
    assert choose_chunks(1000, 1) == (Chunk(0, 2), Chunk(997, 999))
    assert choose_chunks(1000, 0) == (Chunk(0, 1), Chunk(998, 999))
    assert choose_chunks(3, 0) == (Chunk(0, 3),)


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
