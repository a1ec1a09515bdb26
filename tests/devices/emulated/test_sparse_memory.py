"""Device memory as large as a GPU's, of which the host holds what a run touches."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.execute.memory import SPARSE_FROM_BYTES, WINDOW_BYTES, Memory

LARGE = SPARSE_FROM_BYTES + 12345
PAGE = 4096


def resident_bytes(*kinds: str) -> int:
    with open("/proc/self/status") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith(kinds))


def test_large_memory_takes_pages_of_the_host_only_where_it_is_written() -> None:
    memory, before = Memory(80 * 10**9), resident_bytes("RssAnon:", "RssShmem:")
    address = memory.allocate(60 * 10**9, "x")
    memory.fill(address, 60 * 10**9, 0xFF)
    content = memory.view(address, 60 * 10**9)
    content[10**10] = 3
    assert (content[10**10 - 1], content[10**10], content[10**10 + 1], content[-1]) == (255, 3, 255, 255)
    assert resident_bytes("RssAnon:", "RssShmem:") - before < 256 << 20


@pytest.mark.slow
def test_each_tile_can_be_written_alone() -> None:
    memory = Memory(1 << 30)
    memory.allocate(100, "before it")
    address = memory.allocate(LARGE, "x")
    tile = np.random.default_rng(0).integers(0, 256, 5 * PAGE, dtype=np.uint8)
    memory.repeat(address, LARGE, tile.tobytes())
    content = memory.view(address, LARGE)
    expected = np.resize(tile, LARGE)
    assert np.array_equal(content, expected)
    content[7 * PAGE : 7 * PAGE + 5] = expected[7 * PAGE : 7 * PAGE + 5] = 9
    assert np.array_equal(content, expected)


@pytest.mark.parametrize("nbytes", [1000, LARGE])
def test_what_is_freed_or_filled_with_zeros_is_zero_to_the_last_byte(nbytes: int) -> None:
    memory = Memory(1 << 30)
    memory.allocate(100, "before it")
    address, behind = memory.allocate(nbytes, "x"), memory.allocate(100, "behind it")
    memory.fill(behind, 100, 7)
    memory.fill(address, nbytes, 0x5A)
    assert memory.view(address, nbytes).min() == 0x5A
    memory.fill(address, nbytes, 0)
    assert not memory.view(address, nbytes).any()
    assert memory.read(behind, 100) == bytes([7]) * 100


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", [[], [0], [1, 2, 3, 30_000], [0, 7, LARGE // WINDOW_BYTES]])
def test_writes_that_are_diverted_take_no_memory_and_spare_what_is_kept(kept: list[int]) -> None:
    memory = Memory(1 << 30)
    before = memory.allocate(100, "before it")
    address, behind = memory.allocate(LARGE, "x"), memory.allocate(100, "behind it")
    for neighbour in (before, behind):
        memory.fill(neighbour, 100, 7)
    memory.fill(address, LARGE, 0x5A)
    memory.divert(address, LARGE, np.array(kept, np.int64))
    content = memory.view(address, LARGE)
    windows = [content[window * WINDOW_BYTES : (window + 1) * WINDOW_BYTES] for window in kept]
    assert not any(window.any() for window in windows)
    numbers = np.arange(LARGE, dtype=np.uint32).astype(np.uint8) | 1
    anonymous = resident_bytes("RssAnon:")
    content[:] = numbers
    assert resident_bytes("RssAnon:") - anonymous < 64 << 20
    for window, at in zip(windows, kept, strict=True):
        assert np.array_equal(window, numbers[at * WINDOW_BYTES : (at + 1) * WINDOW_BYTES])
    assert memory.read(before, 100) == memory.read(behind, 100) == bytes([7]) * 100
    memory.fill(address, LARGE, 0)
    assert not content.any()
