"""Moments at which a load test sends its requests: even, in bursts, or those of a trace."""

from __future__ import annotations

import csv
import itertools
import random
from pathlib import Path


def even_arrivals(rate: float, seconds: float) -> list[float]:
    """Moments in s, one every ``1 / rate``."""
    return [number / rate for number in range(int(rate * seconds))]


def gamma_arrivals(rate: float, seconds: float, shape: float, seed: int) -> list[float]:
    """As many moments in s, with gaps from a gamma distribution; a small shape makes bursts.

    The gaps are scaled so that their mean is ``1 / rate``. BurstGPT (Wang et al., arXiv:2401.17644) models the arrivals
    of its trace so; a shape of 1 is a Poisson process.
    """
    rng = random.Random(seed)
    gaps = [rng.gammavariate(shape, 1.0) for _ in range(int(rate * seconds))]
    scale = len(gaps) / rate / sum(gaps)
    return [moment * scale for moment in itertools.accumulate(gaps)]


def trace_arrivals(path: Path, rate: float, seconds: float) -> list[float]:
    """The first moments of a trace in BurstGPT's format, as many, with time scaled so that their mean rate is ``rate``.

    Args:
        path: a CSV file with a column ``Timestamp``, in s and ascending; other columns are not read.
        rate: requests per second.
        seconds: how long they take.

    Raises:
        SystemExit: the file cannot be read, has no such column, or too few rows.
    """
    count = int(rate * seconds)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            times = [float(row["Timestamp"]) for row in itertools.islice(csv.DictReader(file), count)]
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise SystemExit(f"{path}: no CSV file with a number in a column Timestamp in each row: {error!r}") from None
    if len(times) < count or times != sorted(times) or times[-1] <= times[0]:
        raise SystemExit(f"{path}: {count:,} ascending timestamps are needed; it has {len(times):,}. Lower --seconds")
    scale = (count - 1) / rate / (times[-1] - times[0])
    return [(moment - times[0]) * scale for moment in times]
