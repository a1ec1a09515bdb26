"""Compare the search among many ``# tune:`` combinations with all of them, and with random search at equal cost.

    python benchmarks/tuning.py [--task core/matmul] [--combinations 64] [--seeds 20] [--ratings FOLDER]

For each of three kernels so many of its combinations, drawn at random but for the first values, are built and rated on
an emulated H100, cheaply and completely; ``--combinations 0`` takes all of them, 192 to 252 each. Searches from many
seeds then choose among these combinations, and read the ratings in place of the device's: :class:`~kernelforge.
evaluation.stages.multi_fidelity.MultiFidelitySearch` is what a run uses. Random search builds combinations in random
order and rates them completely, for the same cost; like the search it pays nothing for plans that are refused. Printed
is the least complete time of a search, over the least of all: mean, median and worst over the seeds. With
``--ratings`` what was rated is kept, under the hash of the candidate, and an interrupted comparison goes on there.

Exits with 1 where the median of a search is more than 5 % above the least time, or where random search does better on
the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from kernelforge.candidate import parse_plan
from kernelforge.evaluation import EvaluatorPool
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION
from kernelforge.evaluation.oracle.client import DrawHandle
from kernelforge.evaluation.stages.multi_fidelity import BUDGET, BUILD_COST, RATING_COST, MultiFidelitySearch, encode
from kernelforge.evaluation.stages.tuning import Combination, Rater
from kernelforge.records import Candidate
from kernelforge.tasks import load_task

MATMUL = """constexpr int THREADS_M = BM / TM, THREADS_N = BN / TN, BLOCK = THREADS_M * THREADS_N;

__global__ void product(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[BK][BM + 1], bs[BK][BN];
    int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;
    int tm = threadIdx.x / THREADS_N, tn = threadIdx.x % THREADS_N;
    float acc[TM][TN] = {};
    for (int k0 = 0; k0 < k; k0 += BK) {
        for (int i = threadIdx.x; i < BM * BK; i += BLOCK) {
            int r = i / BK, q = i % BK;
            as[q][r] = row0 + r < m && k0 + q < k ? a[(long long)(row0 + r) * k + k0 + q] : 0.0f;
        }
        for (int i = threadIdx.x; i < BK * BN; i += BLOCK) {
            int q = i / BN, s = i % BN;
            bs[q][s] = k0 + q < k && col0 + s < n ? b[(long long)(k0 + q) * n + col0 + s] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < BK; ++q) {
            float x[TM], y[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) x[i] = as[q][tm + i * THREADS_M];
#pragma unroll
            for (int j = 0; j < TN; ++j) y[j] = bs[q][tn + j * THREADS_N];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) acc[i][j] = fmaf(x[i], y[j], acc[i][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            int r = row0 + tm + i * THREADS_M, s = col0 + tn + j * THREADS_N;
            if (r < m && s < n) c[(long long)r * n + s] = acc[i][j];
        }
}
"""
MATMUL_PLAN = """# tune: BM = 32 | 64 | 128
# tune: BN = 32 | 64 | 128
# tune: BK = 8 | 16 | 32
# tune: TM = 2 | 4 | 8
# tune: TN = 2 | 4 | 8
def forward(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = empty((m, n))
    product[(ceil_div(n, BN), ceil_div(m, BM)), BM // TM * (BN // TN)](a, b, c, i32(m), i32(n), i32(k))
    return c
"""

SUM = """template <int WIDTH>
__global__ void partial_sums(const float* x, float* part, int batch, int channels, int length) {
    __shared__ float warps[32];
    int channel = blockIdx.x, first = blockIdx.y;
    float sums[UNROLL] = {};
    for (int b = first; b < batch; b += SPLITS) {
        const float* row = x + ((long long)b * channels + channel) * length;
        for (int i = threadIdx.x * WIDTH; i < length; i += BLOCK * WIDTH * UNROLL) {
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                int at = i + u * BLOCK * WIDTH;
                if (at >= length) continue;
                if constexpr (WIDTH == 4) {
                    float4 v = *(const float4*)(row + at);
                    sums[u] += v.x + v.y + v.z + v.w;
                } else if constexpr (WIDTH == 2) {
                    float2 v = *(const float2*)(row + at);
                    sums[u] += v.x + v.y;
                } else {
                    sums[u] += row[at];
                }
            }
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) sum += sums[u];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = threadIdx.x < BLOCK / 32 ? warps[threadIdx.x] : 0.0f;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) part[(long long)first * channels + channel] = sum;
}

__global__ void total(const float* part, float* out, int channels) {
    int channel = blockIdx.x * 128 + threadIdx.x;
    if (channel >= channels) return;
    float sum = 0.0f;
    for (int i = 0; i < SPLITS; ++i) sum += part[(long long)i * channels + channel];
    out[channel] = sum;
}
"""
SUM_PLAN = """# tune: BLOCK = 32 | 64 | 128 | 256 | 512 | 1024
# tune: SPLITS = 1 | 2 | 4 | 8 | 16 | 32 | 64
# tune: WIDTH = 1 | 2 | 4
# tune: UNROLL = 1 | 4
def forward(x):
    batch, channels, length = x.shape
    width = WIDTH if length % WIDTH == 0 else 1
    part = empty((SPLITS, channels))
    out = empty((channels,))
    sums = kernel(f"partial_sums<{width}>")
    sums[(channels, SPLITS), BLOCK](x, part, i32(batch), i32(channels), i32(length))
    total[ceil_div(channels, 128), 128](part, out, i32(channels))
    return out
"""

TRANSPOSE = """__global__ void transpose(const float* x, float* y, int rows, int cols) {
    extern __shared__ float tile[];
    int row0 = blockIdx.y * TILE_Y, col0 = blockIdx.x * TILE_X;
    constexpr int PITCH = TILE_X + PAD;
    for (int i = threadIdx.x; i < TILE_Y * TILE_X; i += THREADS) {
        int r = i / TILE_X, c = i % TILE_X;
        if (row0 + r < rows && col0 + c < cols) tile[r * PITCH + c] = x[(long long)(row0 + r) * cols + col0 + c];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_Y * TILE_X; i += THREADS) {
        int c = i / TILE_Y, r = i % TILE_Y;
        if (row0 + r < rows && col0 + c < cols) y[(long long)(col0 + c) * rows + row0 + r] = tile[r * PITCH + c];
    }
}
"""
TRANSPOSE_PLAN = """# tune: TILE_X = 16 | 32 | 64 | 128
# tune: TILE_Y = 16 | 32 | 64 | 128
# tune: THREADS = 64 | 128 | 256 | 512
# tune: PAD = 0 | 1 | 2
def forward(x):
    rows, cols = x.shape
    y = empty((cols, rows))
    grid = (ceil_div(cols, TILE_X), ceil_div(rows, TILE_Y))
    transpose[grid, THREADS, 4 * TILE_Y * (TILE_X + PAD)](x, y, i32(rows), i32(cols))
    return y
"""

KERNELS = {
    "core/matmul": Candidate(source=MATMUL, plan=MATMUL_PLAN),
    "core/sum_axes": Candidate(source=SUM, plan=SUM_PLAN),
    "core/transpose": Candidate(source=TRANSPOSE, plan=TRANSPOSE_PLAN),
}
MOST_ABOVE = 1.05


@dataclass(frozen=True)
class Ratings:
    """Times of one combination, in microseconds; None where it cannot be rated."""

    choices: dict[str, int]
    cheap_us: float | None
    complete_us: float | None
    settled: bool
    built: bool
    rated: tuple[bool, bool]
    """Whether the device was asked for the cheap one, and for the complete one."""


@dataclass(frozen=True)
class Found:
    """Outcome of one search: the least complete time, infinite without one; combinations that were built; its cost."""

    time_us: float
    built: int
    cost: float


def drawn_combinations(candidate: Candidate, count: int) -> list[dict[str, int]]:
    """The first values and ``count - 1`` others, in the order of the plan; all of them for 0."""
    first, *others = parse_plan(candidate.plan).combinations
    numbers = Random(0).sample(range(len(others)), len(others))  # so that fewer are part of more
    taken = sorted(numbers[: count - 1] if count else numbers)
    return [first, *(others[number] for number in taken)]


def rate_all(pool: EvaluatorPool, reference: str, count: int, kept: Path | None) -> list[Ratings]:
    """Ratings of ``count`` combinations, those of the first values at the beginning.

    Raises:
        SystemExit: the first values cannot be rated.
    """
    candidate = KERNELS[reference]
    name = f"{reference.replace('/', '-')}-{candidate.hash[:16]}-{EVALUATOR_VERSION}.jsonl"
    file = None if kept is None else kept / name
    # A line that an interruption cut off has no end.
    lines = file.read_text().splitlines(keepends=True) if file and file.exists() else []
    lines = [line for line in lines if line.endswith("\n")]
    by_choices = {tuple(each.choices.items()): each for each in (Ratings(**json.loads(line)) for line in lines)}
    combinations = drawn_combinations(candidate, count)
    missing = [choices for choices in combinations if tuple(choices.items()) not in by_choices]
    if file is not None:
        file.write_text("".join(lines))
    if missing:
        with closing(pool.evaluator(load_task(reference))) as evaluator:
            own = Combination(combinations[0])
            evaluator.prepare(candidate, own.work)
            rater = Rater(evaluator, candidate, own, lambda: False)
            with rater.drawn(1) as draw:
                for number, choices in enumerate(missing, len(combinations) - len(missing) + 1):
                    ratings = rate(rater, choices, draw)
                    by_choices[tuple(choices.items())] = ratings
                    print(f"\r{reference}: {number} of {len(combinations)}", end="", file=sys.stderr, flush=True)
                    if file is not None:
                        with file.open("a") as rows:
                            rows.write(json.dumps(asdict(ratings)) + "\n")
        print(file=sys.stderr)
    every = [by_choices[tuple(choices.items())] for choices in combinations]
    if every[0].complete_us is None:
        sys.exit(f"{reference}: the first values cannot be rated, and a winner must be faster than they are")
    return every


def rate(rater: Rater, choices: dict[str, int], draw: DrawHandle) -> Ratings:
    """Build one combination, and rate it cheaply, then completely."""
    arm, times, rated, settled = Combination(choices), [], [], False
    for fidelity in ("cheap", "complete"):
        rated.append(rater.take(arm, fidelity, {}, draw))
        times.append(arm.rating.time_us if arm.rating and not arm.problem else None)
        settled |= fidelity == "cheap" and arm.rating is not None and arm.rating.settled
    return Ratings(choices, times[0], times[1], settled, "build" in arm.work.seconds, (rated[0], rated[1]))


def searched(ratings: list[Ratings], seed: int) -> Found:
    """Outcome of a search among combinations, from those of the first values."""
    search = MultiFidelitySearch(encode([each.choices for each in ratings]), 0, seed)
    best, built = math.inf, set()
    while (step := search.next()) is not None:
        at, cheap = ratings[step.point], step.fidelity == "cheap"
        time = at.cheap_us if cheap else at.complete_us
        if time is not None and at.complete_us is not None and (at.settled or not cheap):
            best = min(best, at.complete_us)
        if at.built:
            built.add(step.point)
        search.record(step, time, built=at.built, rated=at.rated[0 if cheap else 1], settled=at.settled)
    return Found(best, len(built), search.spent)


def drawn(ratings: list[Ratings], seed: int) -> Found:
    """Outcome of random search: combinations that can be built, in random order, each rated completely."""
    candidates = [each for each in ratings if each.built]
    best, built, cost = math.inf, 0, 0.0
    for each in Random(seed).sample(candidates, len(candidates)):
        if cost + BUILD_COST + RATING_COST > BUDGET:
            break
        built, cost = built + 1, cost + BUILD_COST + RATING_COST * any(each.rated)
        best = min(best, math.inf if each.complete_us is None else each.complete_us)
    return Found(best, built, cost)


def main() -> None:
    """Print the comparison; exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=tuple(KERNELS))
    parser.add_argument("--combinations", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ratings", type=Path)
    options = parser.parse_args()
    if options.combinations < 0 or options.seeds < 1:
        parser.error("--combinations is at least 0, --seeds at least 1")
    if options.ratings:
        options.ratings.mkdir(parents=True, exist_ok=True)
    table = Table("task", "combinations", "rated", "search", "mean", "median", "worst", "builds", "cost")
    missed = False
    with EvaluatorPool("emulated:h100", threads=1) as pool:
        for reference in options.task or KERNELS:
            ratings = rate_all(pool, reference, options.combinations, options.ratings)
            times = [each.complete_us for each in ratings if each.complete_us is not None]
            means = {}
            for name, search in (("multi-fidelity", searched), ("random", drawn)):
                results = [search(ratings, seed) for seed in range(options.seeds)]
                above = [each.time_us / min(times) for each in results]
                means[name] = fmean(above)
                shares = (f"{value:.3f}" for value in (means[name], median(above), max(above)))
                builds, cost = (
                    fmean(values) for values in zip(*((each.built, each.cost) for each in results), strict=True)
                )
                row = reference, f"{len(ratings)}", f"{len(times)}"
                table.add_row(*row, name, *shares, f"{builds:.1f}", f"{cost:.1f}")
                missed |= search is searched and median(above) > MOST_ABOVE
            missed |= means["multi-fidelity"] > means["random"]
    Console(width=120).print(table)
    sys.exit(missed)


if __name__ == "__main__":
    main()
