"""Choice of the launches of a plan, and the blocks of a grid, that a profile runs.

Their positions are drawn from a seed that no candidate knows, so a kernel cannot behave differently where it is
profiled.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

PLAN_BUDGET = 8_000_000
"""Thread instructions that one profile runs through the cache model, shared by the launches of a plan. They take a
fraction of a second, because the model follows every access."""
SETUP_BUDGET = 400_000_000
"""Thread instructions that a plan's ``setup`` may take before a profile: about a second, without the cache model."""
LAUNCH_FLOOR = 100_000
"""Thread instructions that every launch may run, even in a plan of many."""
CHUNKS = 4
LEAST_BLOCKS = 4
"""Blocks of a sampled launch that run unless one alone is over its share: two chunks of two."""
SAMPLES_PER_SHAPE = 16
"""Sampled launches of one kernel and shape; one of them stands for each other launch."""


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


@dataclass(frozen=True)
class Edge:
    """Blocks of a grid that lie at the same ends of some axes, by one of them."""

    block: int
    """Linear id of the one that runs."""
    blocks: float
    """Blocks that it stands for."""


def coordinates(block: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Index of a block on each axis."""
    return block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])


def linear_id(at: Sequence[int], grid: tuple[int, int, int]) -> int:
    """The block at an index on each axis."""
    return (at[2] * grid[1] + at[1]) * grid[0] + at[0]


def is_inside(block: int, grid: tuple[int, int, int]) -> bool:
    """Whether a block is neither first nor last on an axis of three blocks or more."""
    return all(size < 3 or 0 < at < size - 1 for at, size in zip(coordinates(block, grid), grid, strict=True))


def choose_inside(grid: tuple[int, int, int], draws: random.Random) -> int:
    """Any block inside."""
    return linear_id([draws.randrange(1, size - 1) if size >= 3 else draws.randrange(size) for size in grid], grid)


def halves(
    chunks: Iterable[Chunk], grid: tuple[int, int, int], *, inside: bool, draws: random.Random, empty: int = 0
) -> list[tuple[list[int], list[int]]]:
    """Blocks of both halves of each chunk, of which the second may have none.

    Where no chunk has such a block inside, one is drawn.

    Args:
        chunks: The chunks.
        grid: Blocks per axis.
        inside: Without those at edges.
        draws: For the block that is drawn.
        empty: Last blocks of a grid of one axis that are left out with the edges.
    """
    end = math.prod(grid) - empty
    parts = []
    for chunk in chunks:
        first, second = (
            [unit for unit in half if not inside or (unit < end and is_inside(unit, grid))]
            for half in (range(chunk.start, chunk.middle), range(chunk.middle, chunk.end))
        )
        if first or second:
            parts.append((first, second) if first else (second, []))
    return parts or [([choose_inside((end + 1, 1, 1) if empty else grid, draws)], [])]


End = tuple[int, int]
"""Axis of a grid, and -1 for its first block or 1 for its last."""


def ends_of(grid: tuple[int, int, int], at: Sequence[int]) -> dict[End, int]:
    """The blocks that lie at one end of the grid, and otherwise at the same index as a block inside; the end that most
    blocks share first. Axes of two blocks or one have no ends."""
    ends = [(axis, side) for axis in range(3) for side in (-1, 1) if grid[axis] >= 3]
    return {end: _block_at(grid, at, (end,)) for end in sorted(ends, key=lambda end: grid[end[0]])}


def choose_edges(
    grid: tuple[int, int, int], at: Sequence[int], ends: Collection[End], affordable: int
) -> tuple[Edge, ...]:
    """Blocks for the edges of a grid and for its corners, as many as may run: edges, then the largest corners.

    Blocks at the ends of an axis often do less, because data ends there, so that a sample of a few must not hold too
    many of them. A corner that may not run is taken to do less than a block inside by what each of its edges does less:
    each stands for the corner too, and the blocks inside for fewer. Where those are few, its edges share it.

    Args:
        grid: Blocks per axis.
        at: Index on each axis of a block inside.
        ends: Those where blocks do something else than inside, with a block of each affordable.
        affordable: Blocks that may run.
    """
    sides = [[(axis, side) for side in (-1, 1) if (axis, side) in ends] for axis in range(3)]
    parts = {
        tuple(end for end in corner if end is not None): math.prod(
            1 if end is not None else size - len(own) for end, own, size in zip(corner, sides, grid, strict=True)
        )
        for corner in itertools.product(*([None, *own] for own in sides))
    }
    edges: dict[tuple[End, ...], float] = {part: blocks for part, blocks in parts.items() if len(part) == 1}
    corners = sorted((part for part in parts if len(part) > 1), key=lambda part: -parts[part])
    may_run = max(affordable - len(edges), 0)
    edges.update((corner, parts[corner]) for corner in corners[:may_run])
    others = corners[may_run:]
    few_inside = sum(parts[corner] * (len(corner) - 1) for corner in others) > parts[()] / 2
    for corner in others:
        for end in corner:
            edges[end,] += parts[corner] / len(corner) if few_inside else parts[corner]
    return tuple(Edge(_block_at(grid, at, part), blocks) for part, blocks in edges.items())


def first_empty_block(busy: int, last: int, is_empty: Callable[[int], bool], affordable: int) -> int:
    """The first of the empty blocks at the end of a grid, or a later one where too many others would have to run.

    Args:
        busy: A block that is not empty.
        last: The last block, which is empty.
        is_empty: Runs a block between them and says whether it is.
        affordable: Blocks that may run although they are not empty.
    """
    step = 1
    while last - busy > 1 and affordable > 0:
        block = max(last - step, busy + 1) if step else (busy + last) // 2
        if is_empty(block):
            last, step = block, 2 * step
        else:
            busy, step, affordable = block, 0, affordable - 1
    return last


def _block_at(grid: tuple[int, int, int], at: Sequence[int], ends: Iterable[End]) -> int:
    """The block at some ends of a grid, and otherwise at an index on each axis."""
    index = list(at)
    for axis, side in ends:
        index[axis] = 0 if side < 0 else grid[axis] - 1
    return linear_id(index, grid)


def choose_launches(launches: int, draws: random.Random) -> frozenset[int]:
    """Launches of one kernel and shape that are sampled: the first, and a random choice of the others."""
    if launches <= SAMPLES_PER_SHAPE:
        return frozenset(range(launches))
    return frozenset([0, *draws.sample(range(1, launches), SAMPLES_PER_SHAPE - 1)])


def choose_chunks(grid_blocks: int, affordable: int, draws: random.Random) -> tuple[Chunk, ...]:
    """Chunks of equal length, one in each equal part of the grid, at a random offset in it.

    The offset is the same from the part's begin in the first half of the grid, and from its end in the second: chance
    then has little influence on what chunks share, and none on the mean of a quantity that grows along the grid.

    The last block is left out because it often is a remnant, which would then stand for many. Consecutive blocks run
    side by side on hardware and share their footprint; distant ones show that of the complete grid. ``affordable`` is
    the number of blocks that may run; at least :data:`LEAST_BLOCKS` do, of a grid that has them, or two single ones
    where not even one is affordable (the growth of a footprint is then unknown).
    """
    if not affordable and grid_blocks > LEAST_BLOCKS:
        return _one_in_each_part(grid_blocks - 1, 2, 1, draws)
    affordable = min(max(affordable, LEAST_BLOCKS), grid_blocks)
    if affordable == grid_blocks:
        return (Chunk(0, grid_blocks),)
    count = max(1, min(CHUNKS, affordable // 2))
    return _one_in_each_part(grid_blocks - 1, count, affordable // count, draws)


def _one_in_each_part(blocks: int, count: int, length: int, draws: random.Random) -> tuple[Chunk, ...]:
    offset = draws.randint(0, blocks // count - length)
    starts = [blocks * index // count + offset for index in range(count - count // 2)]
    starts += [blocks - length - start for start in reversed(starts[: count // 2])]
    return tuple(Chunk(start, start + length) for start in starts)


class Budget:
    """Shares a plan's budget among its launches; the unused rest of one is available to the next."""

    def __init__(self, launches: int, total: int = PLAN_BUDGET, floor: int = LAUNCH_FLOOR) -> None:
        self._left = total
        self._launches = launches
        self._floor = floor

    @classmethod
    def share(cls, launches: int, effort: float) -> Budget:
        """A share of the usual budget, between 0 and 1."""
        return cls(launches, round(PLAN_BUDGET * effort), round(LAUNCH_FLOOR * effort))

    @classmethod
    def of_setup(cls, launches: int, effort: float = 1.0) -> Budget:
        """A share of the budget of ``setup``."""
        return cls(launches, round(SETUP_BUDGET * effort), round(LAUNCH_FLOOR * effort))

    @property
    def _share(self) -> int:
        return max(self._left // max(self._launches, 1), self._floor)

    def exceeded_by(self, thread_instructions: int) -> bool:
        """Whether the next launch costs too much to run whole."""
        return thread_instructions > self._share

    def affordable_blocks(self, thread_instructions: int) -> int:
        """Number of blocks of that cost in a sample of the next launch; 0 where one is far too expensive."""
        sample = self._share // 2
        return sample // thread_instructions or int(thread_instructions <= 4 * sample)

    def spend(self, thread_instructions: int) -> None:
        """Account for one launch."""
        self._left = max(self._left - thread_instructions, 0)
        self._launches -= 1
