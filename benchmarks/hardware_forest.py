"""A random forest on features of launches against the model of times, on the ladders that ran on an H100.

    PYTHONPATH=. python benchmarks/hardware_ladder.py prepare FOLDER
    PYTHONPATH=. python benchmarks/hardware_ladder.py emulate FOLDER
    PYTHONPATH=. python benchmarks/hardware_forest.py FOLDER

GPPerf predicts times of matrix products by a random forest on the features of 16,128 of them. Here the data are the
launches of ``results/reference/h100/ladder.jsonl``, the features those of the emulated device. Each ladder is predicted
by a forest that was grown on the others, so that no kernel is predicted by its like; the last line has random folds,
which is what a forest promises without that care. It prints R2 of the logarithms of times, errors, and pairs in order.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from fidelity_parts.launches import work_of
from fidelity_parts.scores import Order, mean_error, order_of
from hardware_ladder import KEPT

from kernelforge.hardware.occupancy import Occupancy
from kernelforge.hardware.specs import H100, DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, KernelCounts, PlanCounts, by_class, integer_divisions
from kernelforge.profiling.model import kernel_occupancy, launch_time

Floats = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[1]
TREES = 100
LEAST_ROWS = 3
"""Rows of a leaf, at least."""
FOLDS = 10


@dataclass(frozen=True)
class Leaf:
    """End of a tree: the mean of its rows."""

    value: float


@dataclass(frozen=True)
class Branch:
    """A question of a tree: rows whose feature is at most the threshold go to the lower side."""

    feature: int
    threshold: float
    lower: Branch | Leaf
    higher: Branch | Leaf


class RandomForest:
    """A forest that was grown on some rows; equal rows give equal forests.

    Each tree is grown on as many rows as there are, drawn with replacement. A branch is the best split of the squared
    error among a third of the features, drawn for each branch.

    Args:
        rows: Features by row, shape (rows, features).
        targets: Values, shape (rows,).

    Raises:
        ValueError: the shapes do not fit, or there is no row.
    """

    def __init__(self, rows: Floats, targets: Floats) -> None:
        if rows.ndim != 2 or len(rows) != len(targets) or not len(rows):
            raise ValueError(f"a forest grows on rows and as many targets, not {rows.shape} and {targets.shape}")
        rng = np.random.default_rng(0)
        self._trees = []
        for _ in range(TREES):
            drawn = rng.integers(0, len(rows), len(rows))
            self._trees.append(_grown(rows[drawn], targets[drawn], rng))

    def predict(self, rows: Floats) -> Floats:
        """Mean of the trees, by row."""
        return np.array([np.mean([_value(tree, row) for tree in self._trees]) for row in rows])


def _value(tree: Branch | Leaf, row: Floats) -> float:
    while isinstance(tree, Branch):
        tree = tree.lower if row[tree.feature] <= tree.threshold else tree.higher
    return tree.value


def _grown(rows: Floats, targets: Floats, rng: np.random.Generator) -> Branch | Leaf:
    count, features = rows.shape
    if count < 2 * LEAST_ROWS or np.ptp(targets) == 0:
        return Leaf(float(targets.mean()))
    best = (np.inf, 0, 0.0)
    for feature in rng.choice(features, max(features // 3, 1), replace=False):
        split = _best_split(rows[:, feature], targets)
        best = min(best, (split[0], int(feature), split[1]))
    error, feature, threshold = best
    if error == np.inf:
        return Leaf(float(targets.mean()))
    lower = rows[:, feature] <= threshold
    return Branch(
        feature, threshold, _grown(rows[lower], targets[lower], rng), _grown(rows[~lower], targets[~lower], rng)
    )


def _best_split(column: Floats, targets: Floats) -> tuple[float, float]:
    """Least squared error of a split by one feature, and its threshold; infinite where no split is allowed."""
    order = np.argsort(column, kind="stable")
    column, targets = column[order], targets[order]
    count = len(targets)
    sizes = np.arange(1, count)
    sums = np.cumsum(targets)[:-1]
    # The squared error of both sides is the constant sum of squares less this.
    explained = sums**2 / sizes + (targets.sum() - sums) ** 2 / (count - sizes)
    allowed = (sizes >= LEAST_ROWS) & (count - sizes >= LEAST_ROWS) & (column[:-1] < column[1:])
    if not allowed.any():
        return np.inf, 0.0
    at = int(np.argmax(np.where(allowed, explained, -np.inf)))
    return float((targets**2).sum() - explained[at]), float(column[at])


LIMITS = (
    "dram", "l2", "l1", "shared", "fp32", "fp64", "int", "special", "convert", "issue", "tensor", "blocks", "atomics",
)  # fmt: skip
SHAPE = (
    "log_floor_us", "warps_per_sm", "log_waves", "tail", "registers", "warps_per_block", "l1_hits", "l2_hits",
    "sectors_per_request", "excess_sectors", "barriers_per_warp", "loads_per_warp", "loads_in_flight",
    "log_instructions_per_warp", "divisions", "active_lanes",
)  # fmt: skip


def launch_features(
    spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy, registers: int
) -> tuple[float, tuple[float, ...]]:
    """Least time of a launch under its largest limit, in microseconds, and its features by :data:`NAMES`.

    The features are ratios and counts, so that one forest serves launches of all sizes; it predicts how much longer
    than that least time a launch takes.
    """
    limits = _limits_us(spec, counts, occupied)
    floor = max(limits.values())
    launches, blocks = counts.launches, math.prod(counts.grid)
    warps = max(blocks * launches * occupied.warps_per_block, 1)
    slots = max(occupied.blocks_per_sm, 1) * spec.sm_count
    loads = list(counts.select("global", "load"))
    requests = sum(op.requests for op in loads)
    sectors = counts.total("transactions", "global")
    shape = {
        "log_floor_us": math.log(floor),
        "warps_per_sm": min(blocks / spec.sm_count, max(occupied.blocks_per_sm, 1)) * occupied.warps_per_block,
        "log_waves": math.log(blocks / slots),
        "tail": math.ceil(blocks / slots) / (blocks / slots) if blocks > slots else 1.0,
        "registers": float(registers),
        "warps_per_block": float(occupied.warps_per_block),
        "l1_hits": counts.l1_read_hits / counts.l1_read_sectors if counts.l1_read_sectors else 0.0,
        "l2_hits": counts.l2_read_hits / counts.l2_read_sectors if counts.l2_read_sectors else 0.0,
        "sectors_per_request": sectors / max(counts.total("requests", "global"), 1.0),
        "excess_sectors": sectors / max(counts.total("ideal_transactions", "global"), 1.0),
        "barriers_per_warp": counts.barriers / max(blocks * launches, 1),
        "loads_per_warp": requests / warps,
        "loads_in_flight": sum(op.requests * op.in_flight for op in loads) / requests if requests else 0.0,
        "log_instructions_per_warp": math.log(max(counts.warp_instructions / warps, 1.0)),
        "divisions": sum(integer_divisions(counts.mix).values()) / max(counts.warp_instructions, 1.0),
        "active_lanes": counts.thread_instructions / max(counts.warp_instructions * spec.warp_size, 1.0),
    }
    shares = (max(limits[limit] / floor, 1e-4) for limit in LIMITS)
    return floor, (*(math.log(share) for share in shares), *(shape[name] for name in SHAPE))


def _limits_us(spec: DeviceSpec, counts: KernelCounts, occupied: Occupancy) -> dict[str, float]:
    """Time of one launch under each limit alone, work over rate."""
    blocks = math.prod(counts.grid)
    busiest = math.ceil(blocks / spec.sm_count)
    share_us = busiest / (blocks * counts.launches) * 1e6 / spec.clock_hz  # of all cycles, those of the busiest SM
    warps = by_class(counts.mix)
    cached = [op for space in ("global", "local") for op in counts.select(space)]
    atomics = counts.total("transactions", "global", "atomic") + counts.total("threads", "shared", "atomic")
    return {
        "dram": counts.dram_bytes / counts.launches / spec.dram_sustained_gbps * 1e-3,
        "l2": (counts.l2_read_sectors + counts.l2_write_sectors)
        * SECTOR_BYTES / counts.launches / spec.l2_bandwidth_gbps * 1e-3,
        "l1": sum(max(op.requests, op.lines) for op in cached) * share_us,
        "shared": counts.total("transactions", "shared") * share_us,
        "fp32": warps["fp32"] * spec.warp_size / spec.fp32_lanes_per_sm * share_us,
        "fp64": warps["fp64"] * spec.warp_size / spec.fp64_lanes_per_sm * share_us,
        "int": warps["int"] * spec.warp_size / spec.int32_lanes_per_sm * share_us,
        "special": warps["special"] * spec.warp_size / spec.special_lanes_per_sm * share_us,
        "convert": warps["convert"] * spec.warp_size / spec.special_lanes_per_sm * share_us,
        "issue": counts.warp_instructions / spec.schedulers_per_sm * share_us,
        "tensor": sum(
            operations / peak
            for kind, (operations, _) in counts.matrix.items()
            if (peak := spec.tensor_flops_per_s(*kind.split(".")))
        ) / counts.launches * 1e6,
        "blocks": busiest * (spec.block_cycles + spec.block_cycles_per_warp * occupied.warps_per_block)
        * 1e6 / spec.clock_hz,
        "atomics": atomics / counts.launches * spec.atomic_ns * 1e-3 / 32,
    }  # fmt: skip


class Launch(NamedTuple):
    """One launch: what was measured, modelled, and its features."""

    ladder: str
    measured_us: float
    modelled_us: float
    floor_us: float
    features: tuple[float, ...]


def launches_in(folder: Path) -> list[Launch]:
    """Launches that both ran on the H100, in a cold L2, and were profiled."""
    cases = {case["name"]: case for case in json.loads((folder / "cases.json").read_text(encoding="utf-8"))}
    profiled: dict[str, Any] = json.loads((folder / "emulated.json").read_text(encoding="utf-8"))
    kept = ROOT / "results" / "reference" / "h100" / KEPT
    records = {record["name"]: record for record in map(json.loads, kept.read_text(encoding="utf-8").splitlines())}
    launches = []
    for name, result in profiled.items():
        if "counts" not in result or "cold_us" not in records.get(name, {}):
            continue
        (counts,) = PlanCounts.from_wire(result["counts"]).kernels
        occupied = kernel_occupancy(H100, counts, result["registers"])
        work = work_of(folder / cases[name]["family"], cases[name]["kernel"], counts)
        modelled = launch_time(H100, counts, occupied, work)
        floor, features = launch_features(H100, counts, occupied, result["registers"])
        launches.append(
            Launch(
                cases[name]["ladder"],
                records[name]["cold_us"]["median"],
                modelled.time_us - modelled.overhead_us,
                floor,
                features,
            )
        )
    return launches


def predicted(launches: list[Launch], groups: list[str], scale: Callable[[Launch], float]) -> Floats:
    """Time of each launch by a forest grown on the launches of other groups: it predicts the ratio to ``scale``."""
    rows = np.array([launch.features for launch in launches])
    scales = np.array([scale(launch) for launch in launches])
    targets = np.log(np.array([launch.measured_us for launch in launches]) / scales)
    group = np.array(groups)
    times = np.zeros(len(launches))
    for name in sorted(set(groups)):
        left_out = group == name
        forest = RandomForest(rows[~left_out], targets[~left_out])
        times[left_out] = np.exp(forest.predict(rows[left_out])) * scales[left_out]
    return times


def report(title: str, launches: list[Launch], times: Floats) -> None:
    """Print a line of errors."""
    measured = np.array([launch.measured_us for launch in launches])
    logs, real = np.log(times), np.log(measured)
    r2 = 1 - ((logs - real) ** 2).sum() / ((real - real.mean()) ** 2).sum()
    both = list(zip(measured.tolist(), times.tolist(), strict=True))
    order = Order(0, 0, 0)
    for ladder in {launch.ladder for launch in launches}:
        order += order_of([pair for launch, pair in zip(launches, both, strict=True) if launch.ladder == ladder])
    middle = np.median(np.abs(times / measured - 1))
    print(f"{title:<44}{r2:>6.3f}{mean_error(both):>9.1%}{middle:>9.1%}{order.right / order.pairs:>9.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    launches = launches_in(parser.parse_args().folder)
    ladders = [launch.ladder for launch in launches]
    folds = [str(fold) for fold in np.random.default_rng(0).integers(0, FOLDS, len(launches))]
    print(f"{len(launches)} launches of {len(set(ladders))} ladders")
    print(f"{'':<44}{'R2':>6}{'mean':>9}{'median':>9}{'pairs':>9}")
    report("the largest limit alone", launches, np.array([launch.floor_us for launch in launches]))
    report("the model", launches, np.array([launch.modelled_us for launch in launches]))
    report("forest of the time", launches, predicted(launches, ladders, lambda launch: 1.0))
    report(
        "forest of the ratio to the largest limit",
        launches,
        predicted(launches, ladders, lambda launch: launch.floor_us),
    )
    report(
        "forest of the ratio to the model", launches, predicted(launches, ladders, lambda launch: launch.modelled_us)
    )
    report("the last, with random folds", launches, predicted(launches, folds, lambda launch: launch.modelled_us))


if __name__ == "__main__":
    main()
