"""Which blocks of a big grid a profile runs."""

from __future__ import annotations

from dataclasses import dataclass

PLAN_BUDGET = 200_000_000
"""Thread instructions that one profile may run, over all launches of a plan."""
LAUNCH_FLOOR = 4_000_000
"""What one launch may always run, however many a plan has."""
CHUNKS = 4
PROBE_BLOCKS = 2


@dataclass(frozen=True)
class Chunk:
    """Consecutive blocks ``[start, end)`` by linear id; ``middle`` splits them for the growth of their footprint."""

    start: int
    end: int

    @property
    def blocks(self) -> int:
        return self.end - self.start

    @property
    def middle(self) -> int:
        return self.start + (self.blocks + 1) // 2


def choose_chunks(grid_blocks: int, affordable: int) -> tuple[Chunk, ...]:
    """Chunks of equal length, spread evenly over the grid, the first and the last block among them.

    Consecutive blocks run side by side on hardware and share what they touch; distant ones show what the whole grid
    touches. ``affordable`` is how many blocks may run; at least two do, of a grid that has them.
    """
    affordable = min(max(affordable, 2), grid_blocks)
    if affordable == grid_blocks:
        return (Chunk(0, grid_blocks),)
    count = max(1, min(CHUNKS, affordable // 2))
    length = affordable // count
    last = grid_blocks - length
    starts = [last * index // max(count - 1, 1) for index in range(count)]
    return tuple(Chunk(start, start + length) for start in starts)


class Budget:
    """Shares a plan's budget among its launches: what one leaves, the next may use."""

    def __init__(self, launches: int, total: int = PLAN_BUDGET, floor: int = LAUNCH_FLOOR) -> None:
        self._left = total
        self._launches = launches
        self._floor = floor

    @property
    def share(self) -> int:
        """Thread instructions that the next launch may run."""
        return max(self._left // max(self._launches, 1), self._floor)

    def spend(self, thread_instructions: int) -> None:
        """Account for one launch."""
        self._left = max(self._left - thread_instructions, 0)
        self._launches -= 1
