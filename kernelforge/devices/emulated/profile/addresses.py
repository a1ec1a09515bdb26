"""How many different words an atomic updates, from sketches of the blocks that ran. Runner side.

Linear counting (Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm for database
applications", ACM TODS 1990): of m bits, the share that is still 0 after n different words were hashed is exp(-n / m).
With 1024 bits the estimate is within a few per cent up to about a thousand words, and ends at some 7,000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BITS = 1024


def distinct(sketch: int) -> float:
    """Words that left the sketch as it is."""
    empty = max(BITS - sketch.bit_count(), 1)
    return BITS * math.log(BITS / empty)


def distinct_in_grid(sketches: Sequence[int], scale: float) -> float:
    """Words that a whole grid updates, from sketches of some of its blocks.

    Args:
        sketches: one for each part of the grid that ran.
        scale: blocks of the grid over blocks that ran. Where parts meet different words, the rest of the grid is taken
            to meet others still; where all meet the same, it adds none.
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
