"""Metrics of several launches together: what adds up is added, shares are averaged over the time they held for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelforge.profiling.ncu.catalogue import DURATION, L1_SECTORS, L2_SECTORS
from kernelforge.profiling.ncu.rows import LaunchRow
from kernelforge.profiling.ncu.units import Value

_WEIGHTS = {
    "l1tex__t_sector_hit_rate.pct": L1_SECTORS,
    "lts__t_sector_hit_rate.pct": L2_SECTORS,
    "smsp__thread_inst_executed_per_inst_executed.ratio": "smsp__inst_executed.sum",
    **{
        f"l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_{op}.ratio": (
            f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum"
        )
        for op in ("ld", "st")
    },
}
"""What a ratio is per: the weight with which ratios of several launches make the ratio of all of them."""


@dataclass(frozen=True)
class Weighted:
    """A profiled launch, and for how many launches of the plan it stands."""

    row: LaunchRow
    stands_for: float = 1.0

    @property
    def time_ns(self) -> float:
        return (self.row.value(DURATION) or 0.0) * self.stands_for


def is_additive(name: str) -> bool:
    """Whether values of several launches add up.

    Sums of a counter do, and so does a counter's mean over the units of the chip (``sm__cycles_active.avg``): the
    number of units is the same for all. What follows another suffix (``.per_second``, ``.pct_of_peak...``) is a rate.
    """
    suffix = name.partition(".")[2]
    return suffix in ("sum", "avg") and not name.startswith("launch__")


def roll_up(launches: Sequence[Weighted]) -> dict[str, Value]:
    """Metrics of all launches together, by name; those that only some have are left out.

    ``.sum`` and ``.avg`` add up; ``.max`` and ``.min`` are the extreme; ``launch__*``, occupancy limits and peaks are
    those of the launches that take the most time; every other rate or share is averaged, weighted by what it is a
    share of where that was collected, else by time.
    """
    if not launches:
        return {}
    main = dominant(launches)
    names = set(launches[0].row.metrics).intersection(*(one.row.metrics for one in launches[1:]))
    rolled = {}
    for name in sorted(names):
        unit = launches[0].row.metrics[name].unit
        if any(one.row.metrics[name].unit != unit for one in launches):
            continue
        rolled[name] = Value(_value(name, launches, main), unit)
    return rolled


def dominant(launches: Sequence[Weighted]) -> Weighted:
    """One of the launches of that kernel, grid and block which most of the time goes to."""
    spent: dict[tuple[object, ...], float] = {}
    for one in launches:
        spent[_shape(one)] = spent.get(_shape(one), 0.0) + one.time_ns
    return max(launches, key=lambda one: spent[_shape(one)])


def _shape(one: Weighted) -> tuple[object, ...]:
    return one.row.symbol, one.row.grid, one.row.block


def _value(name: str, launches: Sequence[Weighted], main: Weighted) -> float:
    values = [one.row.metrics[name].value for one in launches]
    suffix = name.partition(".")[2]
    if is_additive(name):
        return sum(value * one.stands_for for value, one in zip(values, launches, strict=True))
    if suffix in ("max", "min"):
        return max(values) if suffix == "max" else min(values)
    if not suffix:
        return main.row.metrics[name].value
    return _mean(values, _weights(name, launches))


def _weights(name: str, launches: Sequence[Weighted]) -> list[float]:
    per = _WEIGHTS.get(name)
    if per is not None and all(one.row.value(per) is not None for one in launches):
        weights = [(one.row.value(per) or 0.0) * one.stands_for for one in launches]
        if sum(weights):
            return weights
    weights = [one.time_ns for one in launches]
    return weights if sum(weights) else [one.stands_for for one in launches]


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def by_symbol(rows: Sequence[LaunchRow]) -> Mapping[str, list[LaunchRow]]:
    """Launches by exact mangled name, in the order of their first launch."""
    groups: dict[str, list[LaunchRow]] = {}
    for row in rows:
        groups.setdefault(row.symbol, []).append(row)
    return groups
