"""Accuracy of speedups under noise: this project's timing protocol next to KernelBench's mean and Triton's median.

    python benchmarks/timing.py [--repeats N] [--json]

A simulated GPU has a known true speedup of 1.25 and is disturbed in five ways. Every protocol times the same two
kernels on it, many times over:

- ``kernelforge``: blocks in turns, a bootstrap over rounds (``kernelforge.evaluation.timing.measure``), until 1 %;
- ``kernelbench``: means of 100 calls each, one kernel after the other;
- ``do_bench``: medians of 100 ms each after 25 ms of warm-up, one kernel after the other, as Triton's ``do_bench``.

The last two publish no interval. They get the one that follows if their samples are taken to be independent: a
bootstrap over samples. ``held`` is the share of 95 % intervals that hold the truth, ``width`` the mean half-width,
``error`` the 95th percentile of how far the speedup is off, ``GPU`` the simulated seconds that one comparison takes.
Nothing here says what the noise of a real GPU is. Exits with 1 when fewer than 85 % of this project's intervals hold
the truth in any row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kernelforge.evaluation.timing import SamplePlan, kernelbench, measure
from kernelforge.records import MeasureSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.evaluation.timing.simulated_gpu import SimulatedSide, World

TRUTH = 1.25
EXECUTION_US = 120.0
TARGET = 0.85

Answer = tuple[float, float, float]
"""Speedup, and the ends of its interval."""
Protocol = Callable[[World, SimulatedSide, SimulatedSide, int], Answer]


@dataclass(frozen=True)
class Regime:
    """Disturbances of the GPU."""

    name: str
    drift: Callable[[int], Callable[[float], float]]
    """From a seed to the slow-down that all work shares, by time."""
    noise: dict[str, Any]


def steady(seed: int) -> Callable[[float], float]:
    return lambda seconds: 1.0


def warming(seed: int) -> Callable[[float], float]:
    return lambda seconds: 1 + 0.1 * (1 - float(np.exp(-seconds / 1.5)))


def throttling(seed: int) -> Callable[[float], float]:
    return lambda seconds: 1.08 if (seconds + 0.13 * seed) % 0.5 > 0.3 else 1.0


REGIMES = (
    Regime("calm", steady, {"slow_noise": 0.002}),
    Regime("clock falls 10 % while the GPU warms up", warming, {"slow_noise": 0.002}),
    Regime("throttled by 8 % two fifths of the time", throttling, {"slow_noise": 0.002}),
    Regime("slow noise of 1 % on each side, 30 ms", steady, {"slow_noise": 0.01}),
    Regime("one sample in ten takes half as long again", steady, {"slow_noise": 0.002, "outliers": 0.1}),
)


def kernelforge(world: World, candidate: SimulatedSide, baseline: SimulatedSide, seed: int) -> Answer:
    timing = measure(
        candidate,
        [baseline],
        SamplePlan(candidate.sets, 0),
        MeasureSettings(),
        set_bytes=1,
        clocks=world.clocks,
        host_clock=world.clock,
        between=world.between,
        rng=random.Random(seed),
    )
    ratio = timing.ratios[0]
    return ratio.speedup, *ratio.interval


def independent(over: np.ndarray, under: np.ndarray, statistic: Callable[..., Any], seed: int) -> Answer:
    """Ratio of a statistic, and its percentile interval as if every sample were independent."""
    rng = np.random.default_rng(seed)

    def resampled(samples: np.ndarray) -> Any:
        return statistic(rng.choice(samples, size=(500, len(samples))), axis=1)

    low, high = np.quantile(resampled(over) / resampled(under), [0.025, 0.975])
    return float(statistic(over) / statistic(under)), float(low), float(high)


def kernelbench_mean(world: World, candidate: SimulatedSide, baseline: SimulatedSide, seed: int) -> Answer:
    timing = kernelbench(candidate, [baseline], set_bytes=1, clocks=world.clocks)
    over, under = (np.asarray(side.samples_us) for side in (timing.baselines[0], timing.candidate))
    return independent(over, under, np.mean, seed)


def do_bench_median(world: World, candidate: SimulatedSide, baseline: SimulatedSide, seed: int) -> Answer:
    def samples(side: SimulatedSide) -> np.ndarray:
        estimate_us = float(np.mean(side.block(5)))
        side.block(max(1, int(25_000 / estimate_us)))
        return np.asarray(side.block(max(1, int(100_000 / estimate_us))))

    under = samples(candidate)
    return independent(samples(baseline), under, np.median, seed)


PROTOCOLS: dict[str, tuple[Protocol, int]] = {
    "kernelforge": (kernelforge, 4),
    "kernelbench": (kernelbench_mean, 1),
    "do_bench": (do_bench_median, 1),
}
"""What times, and how many sets its samples go through."""


@dataclass(frozen=True)
class Row:
    regime: str
    protocol: str
    coverage: float
    width_percent: float
    error_percent: float
    gpu_seconds: float


def rate(regime: Regime, name: str, repeats: int) -> Row:
    protocol, sets = PROTOCOLS[name]
    covered, widths, errors, seconds = [], [], [], []
    for seed in range(repeats):
        world = World(seed, regime.drift(seed))
        candidate = SimulatedSide(world, "candidate", EXECUTION_US, sets=sets, **regime.noise)
        baseline = SimulatedSide(world, "eager", TRUTH * EXECUTION_US, sets=sets, **regime.noise)
        speedup, low, high = protocol(world, candidate, baseline, seed)
        covered.append(low <= TRUTH <= high)
        widths.append((high - low) / 2 / speedup)
        errors.append(abs(speedup / TRUTH - 1))
        seconds.append(world.seconds)
    return Row(
        regime.name,
        name,
        float(np.mean(covered)),
        100 * float(np.mean(widths)),
        100 * float(np.quantile(errors, 0.95)),
        float(np.mean(seconds)),
    )


def table(rows: list[Row]) -> Table:
    grid = Table("noise", "protocol", title=f"true speedup {TRUTH}")
    for column in ("held", "width", "error", "GPU"):
        grid.add_column(column, justify="right")
    for row in rows:
        grid.add_row(
            row.regime,
            row.protocol,
            f"{row.coverage:.0%}",
            f"{row.width_percent:.2f} %",
            f"{row.error_percent:.2f} %",
            f"{row.gpu_seconds:.2f} s",
        )
    return grid


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=200, help="comparisons per protocol and kind of noise")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    options = parser.parse_args()
    rows = [rate(regime, name, options.repeats) for regime in REGIMES for name in PROTOCOLS]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        Console().print(table(rows))
    return int(any(row.coverage < TARGET for row in rows if row.protocol == "kernelforge"))


if __name__ == "__main__":
    sys.exit(main())
