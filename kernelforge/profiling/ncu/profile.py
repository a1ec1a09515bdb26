"""From profiled launches to a :class:`~kernelforge.records.Profile` whose every metric was measured."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernelforge.profiling.ncu import catalogue
from kernelforge.profiling.ncu.catalogue import DURATION, MetricSet, flop_counters
from kernelforge.profiling.ncu.rollup import Weighted, by_symbol, dominant, roll_up
from kernelforge.profiling.ncu.rows import Instruction, LaunchRow, Triple
from kernelforge.profiling.ncu.units import Value
from kernelforge.records import KernelProfile, MemoryHotSpot, Metric, Origin, Profile, Roofline, SizeFacts

HOT_SPOTS = 8
BUSY_PERCENT = 60.0
"""A unit below this is not what binds: under 60 % of every peak a kernel waits ("GPU Speed of Light" in Nsight
Compute's Kernel Profiling Guide calls that latency)."""

_LOADED = "smsp__sass_data_bytes_mem_global_op_ld.sum"
_STORED = "smsp__sass_data_bytes_mem_global_op_st.sum"
_ACCESS = {"LD": "load", "ST": "store", "AT": "atomic", "RE": "atomic"}
_UNTOLD = re.compile(r"(device__|nvlink__|numa__|c2clink__|profiler__|pmsampling|smsp__pcsamp|launch__\w+_id\Z)")


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of the plan, as the profiler will see it."""

    expression: str
    symbol: str
    grid: Triple
    block: Triple


@dataclass(frozen=True)
class Subject:
    """What was profiled, and what its times are held against."""

    device: str
    launches: Sequence[PlannedLaunch]
    facts: SizeFacts
    ridge: float
    """Flop per byte where the GPU's FP32 roof begins to bind."""
    launch_overhead_us: float
    memsets: int = 0
    source_name: str = ""
    """File name of the candidate's source in the build's line table; lines of other files are not its own."""
    notes: tuple[str, ...] = ()


def build_measured_profile(subject: Subject, rows: Sequence[LaunchRow], counters: MetricSet = "default") -> Profile:
    """The profile of one run of a plan, from the launches that Nsight Compute profiled.

    A launch stands for all launches of the same kernel with the same grid and block where only some were profiled.
    Memsets and library calls are not kernels of the candidate: their time and traffic are in no number.

    Raises:
        ValueError: no launch of the plan is among the rows.
    """
    planned = Counter((one.symbol, one.grid, one.block) for one in subject.launches)
    profiled = Counter((row.symbol, row.grid, row.block) for row in rows)
    kernels, everything, missing = [], [], []
    symbols = {one.symbol: one.expression for one in subject.launches}
    groups = by_symbol([row for row in rows if (row.symbol, row.grid, row.block) in planned])
    for symbol, expression in symbols.items():
        group = groups.get(symbol)
        total = sum(count for (name, _, _), count in planned.items() if name == symbol)
        if not group:
            missing.append(f"{total} launches of {expression} were not profiled.")
            continue
        shapes = {(row.symbol, row.grid, row.block) for row in group}
        weighted = [Weighted(row, planned[shape] / profiled[shape]) for row in group if (shape := _shape(row))]
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


def _shape(row: LaunchRow) -> tuple[str, Triple, Triple]:
    return row.symbol, row.grid, row.block


def _kernel(
    expression: str,
    total: int,
    group: Sequence[LaunchRow],
    weighted: Sequence[Weighted],
    planned: Mapping[tuple[str, Triple, Triple], int],
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
        hot_spots=hot_spots(weighted, source_name),
    )


def _measured(name: str, value: float, unit: str) -> Metric:
    return Metric(name=name, value=value, unit=unit, origin=Origin.MEASURED)


def _metrics(rolled: Mapping[str, Value], launches: Sequence[Weighted], counters: MetricSet) -> list[Metric]:
    """Metrics of a set in a fixed order, and what follows from them by arithmetic."""
    wanted: Iterable[str]
    if counters == "full":
        wanted = [name for name in rolled if not _UNTOLD.match(name)]
    else:
        wanted = [name for name in (*catalogue.default_metrics(), *catalogue.OF_SECTIONS) if name in rolled]
    metrics = [_measured(name, rolled[name].value, rolled[name].unit) for name in dict.fromkeys(wanted)]
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
    if any(one.row.instructions for one in launches):
        for name, access in (("ld", "load"), ("st", "store")):
            excess = sum(
                max(op.sectors - op.ideal_sectors, 0.0) * one.stands_for
                for one in launches
                for op in one.row.instructions
                if _place(op) == ("global", access)
            )
            metrics.append(_measured(f"kernelforge__global_sectors_excess_op_{name}.sum", excess, "sector"))
    return metrics


def _opcode(op: Instruction) -> str:
    words = op.sass.split()
    return next((word for word in words if not word.startswith("@")), "?")


def _place(op: Instruction) -> tuple[str, str]:
    """Address space and access, from the machine instruction's name ("Instruction Set Reference" in CUDA Binary
    Utilities): ``LDG`` loads global, ``STS`` stores shared, ``ATOMS`` updates shared memory."""
    name = _opcode(op).partition(".")[0]
    shared = name in ("LDS", "STS", "ATOMS", "LDSM", "STSM", "REDS")
    access = "load" if name.startswith("LDGSTS") else _ACCESS.get(name[:2], "other")
    return ("shared" if shared else "global"), access


def hot_spots(launches: Sequence[Weighted], source_name: str = "") -> tuple[MemoryHotSpot, ...]:
    """The memory instructions with the most transactions to save, of all launches of a kernel together."""
    merged: dict[tuple[int, str, str, str], list[float]] = {}
    for one in launches:
        for op in one.row.instructions:
            own = not source_name or op.file.rpartition("/")[2] == source_name
            space, access = _place(op)
            counts = (op.wavefronts, op.ideal_wavefronts) if space == "shared" else (op.sectors, op.ideal_sectors)
            if not counts[0]:
                continue
            totals = merged.setdefault((op.line if own else 0, _opcode(op), space, access), [0.0, 0.0, 0.0])
            for at, value in enumerate((op.executed, *counts)):
                totals[at] += value * one.stands_for

    def cost(item: tuple[tuple[int, str, str, str], list[float]]) -> tuple[float, float, int]:
        (line, *_), (_, transactions, ideal) = item
        return ideal - transactions, -transactions, line

    return tuple(
        MemoryHotSpot(
            source_line=line,
            opcode=opcode,
            space=space,
            access=access,
            requests=round(requests),
            transactions=round(transactions),
            ideal_transactions=round(ideal),
        )
        for (line, opcode, space, access), (requests, transactions, ideal) in sorted(merged.items(), key=cost)[
            :HOT_SPOTS
        ]
    )


def _roofline(subject: Subject, plan: Mapping[str, Value], launches: Sequence[Weighted]) -> Roofline:
    dram_bytes = plan[catalogue.DRAM_BYTES].value if catalogue.DRAM_BYTES in plan else 0.0
    time_us = sum(one.time_ns for one in launches) / 1e3
    mean_us = time_us / sum(one.stands_for for one in launches)
    return Roofline(
        flops=float(subject.facts.flops),
        dram_bytes=dram_bytes,
        compulsory_bytes=float(subject.facts.compulsory_bytes),
        arithmetic_intensity=subject.facts.flops / dram_bytes if dram_bytes else 0.0,
        ridge=subject.ridge,
        bound="launch" if DURATION in plan and mean_us < subject.launch_overhead_us else bound(plan),
        time_us=time_us,
        time_origin=Origin.MEASURED,
    )


def bound(plan: Mapping[str, Value]) -> str:
    """The unit that came nearest to its peak, or ``latency`` where none came near.

    ``dram l2 l1 shared fp32 tensor issue latency``; the L1's data path counts for shared memory where that makes
    most of its passes.
    """
    shared = plan.get(catalogue.SHARED_WAVEFRONTS, Value(0.0, ""))
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
    found = {name: plan[metric].value for name, metric in uses.items() if metric in plan}
    if not found:
        return "latency"
    best = max(found, key=lambda name: found[name])
    return best if found[best] >= BUSY_PERCENT else "latency"
