"""Profiles from launches of Nsight Compute: matched with the launches of the plan and summed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelforge.profiling.counts import MemoryCounts, hot_spots
from kernelforge.profiling.metrics import SHARED_EXCESS, SHARED_WAVEFRONTS
from kernelforge.profiling.ncu import catalogue
from kernelforge.profiling.ncu.catalogue import DURATION, L1_SECTORS, L2_SECTORS, MetricSet, flop_counters
from kernelforge.profiling.ncu.parse import Instruction, LaunchRow, Shape, Triple, Value
from kernelforge.records import KernelProfile, Metric, Origin, Profile, Roofline, SizeFacts

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
"""Denominator of a ratio: the weight for averaging ratios of several launches."""


@dataclass(frozen=True)
class Weighted:
    """A profiled launch, and the number of launches of the plan that it represents."""

    row: LaunchRow
    stands_for: float = 1.0

    @property
    def time_ns(self) -> float:
        return (self.row.value(DURATION) or 0.0) * self.stands_for


def is_additive(name: str) -> bool:
    """Whether values of several launches add up.

    Sums of a counter do, also those over instructions (``memory_...``), and so does a counter's mean over the units of
    the chip (``sm__cycles_active.avg``): the number of units is constant. Other suffixes (``.per_second``,
    ``.pct_of_peak...``) are rates.
    """
    suffix = name.partition(".")[2]
    if name.startswith("memory_"):
        return True
    return suffix in ("sum", "avg") and not name.startswith("launch__")


def roll_up(launches: Sequence[Weighted]) -> dict[str, Value]:
    """Metrics of all launches together, by name; only metrics that all launches have.

    ``.sum`` and ``.avg`` add up; ``.max`` and ``.min`` are the extreme; ``launch__*``, occupancy limits and peaks are
    those of the launches with the most time; every other rate or share is averaged, weighted by its denominator if that
    was collected, else by time.
    """
    if not launches:
        return {}
    main = dominant(launches)
    names = set(launches[0].row.metrics).intersection(*(launch.row.metrics for launch in launches[1:]))
    rolled = {}
    for name in sorted(names):
        unit = launches[0].row.metrics[name].unit
        if any(launch.row.metrics[name].unit != unit for launch in launches):
            continue
        rolled[name] = Value(_value(name, launches, main), unit)
    return rolled


def dominant(launches: Sequence[Weighted]) -> Weighted:
    """A launch of the kernel, grid and block with the most time."""
    spent: dict[Shape, float] = {}
    for launch in launches:
        spent[launch.row.shape] = spent.get(launch.row.shape, 0.0) + launch.time_ns
    return max(launches, key=lambda launch: spent[launch.row.shape])


def _value(name: str, launches: Sequence[Weighted], main: Weighted) -> float:
    values = [launch.row.metrics[name].value for launch in launches]
    suffix = name.partition(".")[2]
    if is_additive(name):
        return sum(value * launch.stands_for for value, launch in zip(values, launches, strict=True))
    if suffix in ("max", "min"):
        return max(values) if suffix == "max" else min(values)
    if not suffix:
        return main.row.metrics[name].value
    return _mean(values, _weights(name, launches))


def _weights(name: str, launches: Sequence[Weighted]) -> list[float]:
    per = _WEIGHTS.get(name)
    if per is not None and all(launch.row.value(per) is not None for launch in launches):
        weights = [(launch.row.value(per) or 0.0) * launch.stands_for for launch in launches]
        if sum(weights):
            return weights
    weights = [launch.time_ns for launch in launches]
    return weights if sum(weights) else [launch.stands_for for launch in launches]


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def by_symbol(rows: Sequence[LaunchRow]) -> Mapping[str, list[LaunchRow]]:
    """Launches by exact mangled name, in the order of their first launch."""
    groups: dict[str, list[LaunchRow]] = {}
    for row in rows:
        groups.setdefault(row.symbol, []).append(row)
    return groups


BUSY_PERCENT = 60.0
"""A unit below this share of its peak is not the bound: a kernel under 60 % of every peak is bound by latency ("GPU
Speed of Light" in Nsight Compute's Kernel Profiling Guide)."""

_LOADED = "smsp__sass_data_bytes_mem_global_op_ld.sum"
_STORED = "smsp__sass_data_bytes_mem_global_op_st.sum"
_ACCESS = {"LD": "load", "ST": "store", "AT": "atomic", "RE": "atomic"}
_OMITTED = re.compile(r"(device__|nvlink__|numa__|c2clink__|profiler__|pmsampling|smsp__pcsamp|launch__\w+_id\Z)")


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of the plan, as the profiler reports it."""

    expression: str
    symbol: str
    grid: Triple
    block: Triple

    @property
    def shape(self) -> Shape:
        return self.symbol, self.grid, self.block


class Roof(NamedTuple):
    """Roofs of a GPU for one task."""

    ridge: float
    """Flop per byte where its FP32 roof begins to bind."""
    floor_us: float | None
    """Least time that a kernel can be expected to take; None where the figures of the GPU are not known."""


@dataclass(frozen=True)
class Subject:
    """The profiled run, and the figures of its GPU."""

    device: str
    launches: Sequence[PlannedLaunch]
    facts: SizeFacts
    roof: Roof
    launch_overhead_us: float
    memsets: int = 0
    source_name: str = ""
    """File name of the candidate's source in the build's line table."""
    notes: tuple[str, ...] = ()


def build_measured_profile(subject: Subject, rows: Sequence[LaunchRow], counters: MetricSet = "default") -> Profile:
    """The profile of one run of a plan, from the launches that Nsight Compute profiled.

    A launch represents all launches of the same kernel with the same grid and block if only some were profiled. Memsets
    and library calls are not kernels of the candidate: no number includes their time and traffic.

    Raises:
        ValueError: no launch of the plan is among the rows.
    """
    planned = Counter(launch.shape for launch in subject.launches)
    profiled = Counter(row.shape for row in rows)
    kernels, everything, missing = [], [], []
    symbols = {launch.symbol: launch.expression for launch in subject.launches}
    groups = by_symbol([row for row in rows if row.shape in planned])
    for symbol, expression in symbols.items():
        group = groups.get(symbol)
        total = sum(count for (name, _, _), count in planned.items() if name == symbol)
        if not group:
            missing.append(f"{total} launches of {expression} were not profiled.")
            continue
        shapes = {row.shape for row in group}
        weighted = [Weighted(row, planned[row.shape] / profiled[row.shape]) for row in group]
        unseen = sum(count for shape, count in planned.items() if shape[0] == symbol and shape not in shapes)
        if unseen:
            missing.append(f"{unseen} launches of {expression} with other grids were not profiled.")
        everything += weighted
        kernels.append(_kernel(expression, total, group, weighted, planned, subject.source_name, counters))
    if not everything:
        raise ValueError("none of the plan's kernels was profiled")
    plan = roll_up(everything)
    metrics = [
        _measured("kernelforge__launches", float(len(subject.launches)), "launch"),
        *([_measured("kernelforge__memsets", float(subject.memsets), "launch")] if subject.memsets else []),
        *_metrics(plan, everything, counters),
    ]
    return Profile(
        size=subject.facts.size,
        device=subject.device,
        kernels=tuple(kernels),
        metrics=tuple(metrics),
        roofline=_roofline(subject, plan, everything),
        notes=(*subject.notes, *missing),
    )


def _kernel(
    expression: str,
    total: int,
    group: Sequence[LaunchRow],
    weighted: Sequence[Weighted],
    planned: Mapping[Shape, int],
    source_name: str,
    counters: MetricSet,
) -> KernelProfile:
    main = dominant(weighted).row
    blocks = sum(count * math.prod(shape[1]) for shape, count in planned.items() if shape[0] == main.symbol)
    run = sum(math.prod(row.grid) for row in group)
    return KernelProfile(
        kernel=expression,
        launches=total,
        grid=main.grid,
        block=main.block,
        sampled=min(run / blocks, 1.0),
        metrics=tuple(_metrics(roll_up(weighted), weighted, counters)),
        hot_spots=hot_spots(memory_counts(weighted, source_name)),
    )


def _measured(name: str, value: float, unit: str) -> Metric:
    return Metric(name=name, value=value, unit=unit, origin=Origin.MEASURED)


def _metrics(rolled: Mapping[str, Value], launches: Sequence[Weighted], counters: MetricSet) -> list[Metric]:
    """Metrics of a set in a fixed order, and metrics computed from them."""
    names: Iterable[str]
    if counters == "full":
        names = [name for name in rolled if not _OMITTED.match(name)]
    else:
        names = [name for name in (*catalogue.default_metrics(), *catalogue.OF_SECTIONS) if name in rolled]
    metrics = [_measured(name, rolled[name].value, rolled[name].unit) for name in dict.fromkeys(names)]
    for precision in ("fp16", "fp32", "fp64"):
        counted = [(rolled[name].value, flops) for name, flops in flop_counters(precision).items() if name in rolled]
        if len(counted) == len(flop_counters(precision)):
            flops = sum(value * each for value, each in counted)
            metrics.append(_measured(f"kernelforge__flops_{precision}.sum", flops, "flop"))
    if _LOADED in rolled and _STORED in rolled:
        loaded, stored = rolled[_LOADED].value, rolled[_STORED].value
        metrics += [
            _measured("kernelforge__global_bytes_requested", loaded + stored, "byte"),
            _measured("kernelforge__global_load_bytes_requested", loaded, "byte"),
            _measured("kernelforge__global_store_bytes_requested", stored, "byte"),
        ]
    if any(launch.row.instructions for launch in launches):
        for name, access in (("ld", "load"), ("st", "store")):
            excess = sum(
                max(op.sectors - op.ideal_sectors, 0.0) * launch.stands_for
                for launch in launches
                for op in launch.row.instructions
                if _access_of(op) == ("global", access)
            )
            metrics.append(_measured(f"kernelforge__global_sectors_excess_op_{name}.sum", excess, "sector"))
        shared = [(launch.stands_for, op) for launch in launches for op in launch.row.instructions if op.wavefronts]
        if SHARED_WAVEFRONTS not in rolled:
            wavefronts = sum(times * op.wavefronts for times, op in shared)
            metrics.append(_measured(SHARED_WAVEFRONTS, wavefronts, "wavefront"))
        excess = sum(times * max(op.wavefronts - op.ideal_wavefronts, 0.0) for times, op in shared)
        metrics.append(_measured(SHARED_EXCESS, excess, "wavefront"))
    return metrics


def _opcode(op: Instruction) -> str:
    words = op.sass.split()
    return next((word for word in words if not word.startswith("@")), "?")


def _access_of(op: Instruction) -> tuple[str, str]:
    """Address space and access, by the machine instruction's name ("Instruction Set Reference" in CUDA Binary
    Utilities): ``LDG`` loads global, ``STS`` stores shared, ``ATOMS`` updates shared memory."""
    name = _opcode(op).partition(".")[0]
    shared = name in ("LDS", "STS", "ATOMS", "LDSM", "STSM", "REDS")
    access = "load" if name.startswith("LDGSTS") else _ACCESS.get(name[:2], "other")
    return ("shared" if shared else "global"), access


def memory_counts(launches: Sequence[Weighted], source_name: str = "") -> Iterator[MemoryCounts]:
    """Counters of the memory instructions that moved anything, for all launches that a profiled one represents."""
    for launch in launches:
        for op in launch.row.instructions:
            own = not source_name or op.file.rpartition("/")[2] == source_name
            space, access = _access_of(op)
            moved, ideal = (op.wavefronts, op.ideal_wavefronts) if space == "shared" else (op.sectors, op.ideal_sectors)
            if moved:
                yield MemoryCounts(
                    ptx_line=0,
                    source_line=op.line if own else 0,
                    opcode=_opcode(op),
                    space=space,
                    access=access,
                    bytes_per_thread=0,
                    requests=op.executed * launch.stands_for,
                    transactions=moved * launch.stands_for,
                    ideal_transactions=ideal * launch.stands_for,
                )


def _roofline(subject: Subject, plan: Mapping[str, Value], launches: Sequence[Weighted]) -> Roofline:
    dram_bytes = plan[catalogue.DRAM_BYTES].value if catalogue.DRAM_BYTES in plan else 0.0
    time_us = sum(launch.time_ns for launch in launches) / 1e3
    mean_us = time_us / sum(launch.stands_for for launch in launches)
    return Roofline(
        flops=float(subject.facts.flops),
        dram_bytes=dram_bytes,
        compulsory_bytes=float(subject.facts.compulsory_bytes),
        host_bytes=float(subject.facts.host_bytes),
        arithmetic_intensity=subject.facts.flops / dram_bytes if dram_bytes else 0.0,
        ridge=subject.roof.ridge,
        bound="launch" if DURATION in plan and mean_us < subject.launch_overhead_us else bound(plan),
        time_us=time_us,
        time_origin=Origin.MEASURED,
        floor_us=subject.roof.floor_us,
    )


def bound(plan: Mapping[str, Value]) -> str:
    """The unit nearest to its peak, or ``latency`` if none is near.

    One of ``dram l2 l1 shared fp32 tensor issue latency``; the L1's data path counts for shared memory if that causes
    most of its passes. No cache is nearer to its peak than Nsight Compute's figure for the memory system as a whole:
    on an H100, whose L2 moves sectors between its two halves, the L2's own is up to 1.9 times the DRAM's in kernels
    that only stream, and that figure the DRAM's.
    """
    shared = plan.get(catalogue.DATA_PATH_WAVEFRONTS, Value(0.0, ""))
    sectors = plan.get(catalogue.L1_SECTORS, Value(0.0, ""))
    data_path = "shared" if shared.value > sectors.value / 4 else "l1"
    uses = {
        "dram": catalogue.DRAM_USE,
        "l2": catalogue.L2_USE,
        data_path: catalogue.L1_USE,
        "fp32": catalogue.FMA_PIPE,
        "tensor": catalogue.TENSOR_PIPE,
        "issue": catalogue.ISSUE,
    }
    shares = {name: plan[metric].value for name, metric in uses.items() if metric in plan}
    if not shares:
        return "latency"
    if catalogue.MEMORY_USE in plan:
        for name in {"l2", data_path} & shares.keys():
            shares[name] = min(shares[name], plan[catalogue.MEMORY_USE].value)
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= BUSY_PERCENT else "latency"
