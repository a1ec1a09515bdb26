"""Readings of the GPU's clocks as one record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelforge.records import Clocks


def merge(readings: Iterable[Clocks | None]) -> Clocks | None:
    """The range of each value over all readings, and every throttle reason that was seen; None where there are none."""
    seen = [reading for reading in readings if reading is not None]
    if not seen:
        return None
    return Clocks(
        sm_mhz=_range([reading.sm_mhz for reading in seen]),
        memory_mhz=_range([reading.memory_mhz for reading in seen]),
        temperature_c=_range([reading.temperature_c for reading in seen]),
        power_w=(min(reading.power_w[0] for reading in seen), max(reading.power_w[1] for reading in seen)),
        throttled=tuple(sorted({reason for reading in seen for reason in reading.throttled})),
    )


def _range(ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)
