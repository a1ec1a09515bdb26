"""Speedups of runs over CUDA-L2's grid of half-precision products, as its release publishes them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kernelforge.datasets.cuda_l2 import (
    GRID,
    Accumulator,
    GridGroup,
    GridResult,
    KernelFolder,
    Release,
    Shape,
    Speedup,
    accumulator_of,
    count_kernels,
    grid_results,
    is_narrower,
)
from kernelforge.errors import UsageError
from kernelforge.prediction import predict_baseline
from kernelforge.prediction.operators import product_trace
from kernelforge.records import Attempt, Origin, Performance, RunConfig, Timing
from kernelforge.records.timing import UNRANKED
from kernelforge.report.views import View
from kernelforge.report.views.board import suite_name
from kernelforge.report.views.curves import FASTEST
from kernelforge.report.views.roofline import spec_of_fingerprint
from kernelforge.report.views.run_records import RunRecords, best_of

SUITES: Final = ("hgemm", "hgemm-f16")
"""Suites of the grid: with sums in float32, and with sums in float16 allowed."""

PUBLISHED: Final = {
    "eager": "torch.matmul",
    "cublas": "cuBLAS-max",
    "cublaslt-heuristic": "cuBLASLt-heuristic-max",
    "cublaslt-autotuned": "cuBLASLt-auto-tuning-max",
}
"""Baselines of CUDA-L2's release that ours are: those of a library with its stronger layout."""

_SHAPES = frozenset(GRID)
_TASK = re.compile(r"m(\d{1,6})_n(\d{1,6})_k(\d{1,6})")

EMULATED_NOTE = (
    "predicted: one call from an empty L2 against a predicted time of PyTorch, with 90 % intervals; "
    "server mode is not modelled, for the emulated device knows no idle clocks"
)


class GridCoverage(KernelFolder):
    """Tasks of one group: how many there are, and what their kernels sum in by their texts."""

    grid: int
    """Shapes of the grid."""
    tried: int
    """Shapes with an attempt."""
    right: int
    """Shapes with a right kernel, compared at the full size; the counts of kernels are of these."""
    timed: int
    """Those with a speedup."""
    refused: int
    """Shapes without one whose last candidate has sums in a narrower type than the task asks for."""


class GridReport(View):
    """Runs over the grid."""

    runs: tuple[str, ...]
    results: tuple[GridResult, ...]
    """By group, baseline and region; those of CUDA-L2's release last."""
    coverage: tuple[GridCoverage, ...]
    notes: tuple[str, ...]


def on_grid(config: RunConfig) -> bool:
    """Whether a run is of a suite of the grid."""
    return suite_name(config) in SUITES


def grid_report(
    runs: Iterable[RunRecords], release: Release | None = None, *, baseline: str | None = None
) -> GridReport:
    """Win rates and geometric means of the best kernels over the grid and its regions.

    Several runs of one GPU, accumulator, mode and protocol are one result: of each shape its fastest right kernel.

    Args:
        runs: Runs of the suites of the grid.
        release: CUDA-L2's, to be put next to them over the shapes that they have a speedup for.
        baseline: Only this one of the runs.

    Raises:
        UsageError: there are no attempts, or there is no such baseline.
    """
    loaded = tuple(runs)
    groups: dict[GridGroup, dict[Shape, _Cell]] = {}
    for records in loaded:
        for group, shape, cell in _cells(records):
            before = groups.setdefault(group, {}).get(shape)
            if before is None or cell.beats(before):
                groups[group][shape] = cell
    if not groups:
        raise UsageError("no attempt at a product of the grid yet: start with 'kernelforge run --suite hgemm'")
    results = [result for group, cells in groups.items() for result in _results(group, cells)]
    names = dict.fromkeys(result.baseline for result in results)
    if baseline is not None and baseline not in names:
        raise UsageError(f"no speedup over {baseline!r}; there is: {', '.join(names) or 'none'}")
    results = [result for result in results if baseline in (None, result.baseline)]
    if release is not None:
        results += _published(release, groups, [PUBLISHED.get(baseline)] if baseline else PUBLISHED.values())
    return GridReport(
        runs=tuple(records.run.id for records in loaded),
        results=tuple(results),
        coverage=tuple(_coverage(group, cells) for group, cells in groups.items()),
        notes=(EMULATED_NOTE,) if any(group.origin == "predicted" for group in groups) else (),
    )


@dataclass(frozen=True)
class _Cell:
    """The best of one shape."""

    right: bool
    time_us: float | None
    accumulator: Accumulator
    speedups: Mapping[str, Speedup]

    def beats(self, other: _Cell) -> bool:
        """Whether it is the better of two; of equal ones the later counts."""
        if self.right != other.right or not self.right:
            return self.right or not other.right
        if self.time_us is None or other.time_us is None or bool(self.speedups) != bool(other.speedups):
            return bool(self.speedups)
        return self.time_us <= other.time_us


def _cells(records: RunRecords) -> Iterable[tuple[GridGroup, Shape, _Cell]]:
    group_of = _Groups(records)
    for name in records.run.config.tasks:
        attempts = [attempt for attempt in records.of_task(name) if not attempt.evaluation.passed_over]
        extents = _TASK.fullmatch(name)
        if not attempts or extents is None:
            continue
        shape = (int(extents[1]), int(extents[2]), int(extents[3]))
        if shape not in _SHAPES:
            continue
        best = best_of(attempts)
        right = best is not None and not best.evaluation.uncompared
        attempt = best if best is not None and right else attempts[-1]
        speed, candidate = attempt.evaluation.performance, attempt.candidate
        cell = _Cell(
            right=right,
            time_us=speed.time_us if speed else None,
            accumulator=accumulator_of(candidate.source) if candidate else "not seen",
            speedups=_speedups(attempt, shape) if right else {},
        )
        yield group_of(attempt), shape, cell


class _Groups:
    """Groups of a run's tasks. What an attempt that was not timed lacks is as of the run's others."""

    def __init__(self, records: RunRecords) -> None:
        self._records = records
        evaluations = [attempt.evaluation for attempt in records.attempts if not attempt.evaluation.passed_over]
        fingerprints = [evaluation.fingerprint for evaluation in evaluations]
        self._gpu = next((fingerprint.gpu for fingerprint in fingerprints if fingerprint.gpu), None)
        self._protocol = next((each.performance.protocol for each in evaluations if each.performance), None)

    def __call__(self, attempt: Attempt) -> GridGroup:
        records, config = self._records, self._records.run.config
        fingerprint, speed = attempt.evaluation.fingerprint, attempt.evaluation.performance
        task = records.tasks.get(attempt.task)
        half = task.policy.accumulator == "float16" if task is not None else suite_name(config) == SUITES[1]
        timing = speed.timing if speed is not None else None
        served = timing.mode == "server" if timing is not None else config.measure.qps is not None
        return GridGroup(
            gpu=fingerprint.gpu or self._gpu or fingerprint.device,
            accumulator="float16" if half else "float32",
            mode="server" if records.measured and served else "offline",
            origin="measured" if records.measured else "predicted",
            protocol=speed.protocol if speed is not None else self._protocol,
        )


def _speedups(attempt: Attempt, shape: Shape) -> dict[str, Speedup]:
    """Speedups of a right attempt by baseline; none where its time is quarantined."""
    speed = attempt.evaluation.performance
    if speed is None or speed.quarantined is not None:
        return {}
    if speed.origin is Origin.MODELLED:
        return _predicted(attempt, speed, shape)
    return {} if speed.timing is None else _measured(speed, speed.timing)


def _measured(speed: Performance, timing: Timing) -> dict[str, Speedup]:
    """Over the fastest baseline, then over each; over one that was not compared in turns, by both medians."""
    speedups: dict[str, Speedup] = {}
    candidate = timing.candidate
    for side in timing.baselines:
        if side.name in UNRANKED:
            continue
        ratio = timing.ratio(side.name)
        if ratio is not None:
            speedups[side.name] = Speedup(ratio.speedup, *ratio.interval)
        else:
            (low, high), (least, most) = side.interval_us, candidate.interval_us
            speedups[side.name] = Speedup(side.median_us / candidate.median_us, low / most, high / least)
    if timing.fastest in speedups and speed.speedup is not None:
        speedups = {FASTEST: speedups[timing.fastest], **speedups}
    return speedups


def _predicted(attempt: Attempt, speed: Performance, shape: Shape) -> dict[str, Speedup]:
    """Over eager PyTorch as the record has it, and over a CUDA graph of it, whose time has the same relative spread."""
    predicted, spec = speed.predicted, spec_of_fingerprint(attempt.evaluation.fingerprint)
    if predicted is None:
        return {}
    speedups = {"eager": Speedup(predicted.speedup, predicted.low, predicted.high)}
    if spec is not None and predicted.eager_origin == "predicted":
        graph_us = predict_baseline(product_trace(*shape, "float16", 2), spec, "graph").time_us
        scale = graph_us / predicted.eager_us
        speedups["eager-graph"] = Speedup(
            *(scale * value for value in (predicted.speedup, predicted.low, predicted.high))
        )
    return speedups


def _results(group: GridGroup, cells: Mapping[Shape, _Cell]) -> Iterable[GridResult]:
    narrower = _narrower(group, cells)
    for baseline in dict.fromkeys(name for cell in cells.values() for name in cell.speedups):
        speedups = {shape: cell.speedups[baseline] for shape, cell in cells.items() if baseline in cell.speedups}
        yield from grid_results(group, baseline, speedups, narrower=narrower, every_region=True)


def _narrower(group: GridGroup, cells: Mapping[Shape, _Cell]) -> frozenset[Shape]:
    return frozenset(shape for shape, cell in cells.items() if is_narrower(group.accumulator, cell.accumulator))


def _coverage(group: GridGroup, cells: Mapping[Shape, _Cell]) -> GridCoverage:
    right = [cell.accumulator for cell in cells.values() if cell.right]
    suite = SUITES[group.accumulator == "float16"]
    narrower = _narrower(group, cells)
    return GridCoverage(
        **dict(count_kernels(f"{suite} on {group.gpu}, {group.mode}", group.accumulator, right)),
        grid=len(GRID),
        tried=len(cells),
        right=len(right),
        timed=sum(bool(cell.speedups) for cell in cells.values()),
        refused=sum(not cells[shape].right for shape in narrower),
    )


def _published(
    release: Release, groups: Mapping[GridGroup, Mapping[Shape, _Cell]], baselines: Collection[str | None]
) -> Iterable[GridResult]:
    """Published results of the accumulators and modes of the runs, over the shapes that these have a speedup for."""
    shapes: dict[tuple[str, str], set[Shape]] = {}
    for group, cells in groups.items():
        timed = {shape for shape, cell in cells.items() if cell.speedups}
        shapes.setdefault((group.accumulator, group.mode), set()).update(timed)
    for column in release.speedups:
        grid = shapes.get((column.group.accumulator, column.group.mode))
        if grid and column.baseline in baselines:
            yield from column.results(grid, every_region=True)
