"""Compare the search among many ``# tune:`` combinations with all of them, and with random search at equal cost.

    python benchmarks/tuning.py [--task core/matmul] [--seeds 20] [--ratings FOLDER]

For each of three kernels every combination is built and rated on an emulated H100, cheaply and completely. Searches
from many seeds then read these ratings in place of the device's: :class:`~kernelforge.evaluation.stages.multi_fidelity.
MultiFidelitySearch` is what a run uses. Random search rates as many combinations completely as the same cost buys, of
those that are not refused before they are built. Printed is the time of the best combination that was rated
completely, over the least of all: mean, median and worst over the seeds. With ``--ratings`` what was rated is kept, and
an interrupted comparison goes on there.

Exits with 1 where the median of a search is more than 5 % above the least time, where a search costs more than an
eighth of all complete ratings, or where random search does better on the mean.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from rich.console import Console
from rich.table import Table

from kernelforge.candidate import parse_plan
from kernelforge.evaluation import EvaluatorPool
from kernelforge.evaluation.stages.multi_fidelity import BUDGET, MultiFidelitySearch, encode
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
LARGEST_SHARE = 1 / 8


@dataclass(frozen=True)
class Ratings:
    """Times of one combination, in microseconds; None where it cannot be rated."""

    cheap_us: float | None
    complete_us: float | None
    settled: bool
    built: bool


def rate_all(pool: EvaluatorPool, reference: str, kept: Path | None) -> list[Ratings]:
    """Ratings of every combination, in the order of the plan."""
    candidate = KERNELS[reference]
    file = None if kept is None else kept / f"{reference.replace('/', '-')}.jsonl"
    ratings = [Ratings(**json.loads(line)) for line in file.read_text().splitlines()] if file and file.exists() else []
    combinations = parse_plan(candidate.plan).combinations
    if len(ratings) == len(combinations):
        return ratings
    evaluator = pool.evaluator(load_task(reference))
    own = Combination(combinations[0])
    evaluator.prepare(candidate, own.work)
    rater = Rater(evaluator, candidate, own, lambda: False)
    with rater.drawn(1) as draw:
        for number, choices in enumerate(combinations[len(ratings) :], len(ratings)):
            arm, times, settled = Combination(choices), [], False
            for fidelity in ("cheap", "complete"):
                rater.take(arm, fidelity, {}, draw)
                times.append(arm.rating.time_us if arm.rating and not arm.problem else None)
                settled = settled or (fidelity == "cheap" and arm.rating is not None and arm.rating.settled)
            ratings.append(Ratings(times[0], times[1], settled, "build" in arm.work.seconds))
            print(f"\r{reference}: {number + 1} of {len(combinations)}", end="", file=sys.stderr, flush=True)
            if file is not None:
                with file.open("a") as lines:
                    lines.write(json.dumps(asdict(ratings[-1])) + "\n")
    evaluator.oracle.close()
    print(file=sys.stderr)
    return ratings


def searched(reference: str, ratings: list[Ratings], seed: int) -> tuple[float, int, float]:
    """Least complete time that a search finds, the combinations that it builds, and its cost."""
    points = encode(parse_plan(KERNELS[reference].plan).combinations)
    first = next(number for number, rating in enumerate(ratings) if rating.complete_us is not None)
    search = MultiFidelitySearch(points, first, seed)
    best, built = math.inf, set()
    while (step := search.next()) is not None:
        rating = ratings[step.point]
        time = rating.cheap_us if step.fidelity == "cheap" else rating.complete_us
        if time is not None and rating.complete_us is not None and (step.fidelity == "complete" or rating.settled):
            best = min(best, rating.complete_us)
        if rating.built:
            built.add(step.point)
        search.record(step, time, built=rating.built, settled=rating.settled)
    return best, len(built), search.spent


def drawn(ratings: list[Ratings], seed: int) -> float:
    """Least complete time of as many built combinations as a search has the cost of, drawn at random."""
    built = [rating for rating in ratings if rating.built]
    sample = Random(seed).sample(built, int(BUDGET))
    return min((rating.complete_us for rating in sample if rating.complete_us is not None), default=math.inf)


def main() -> None:
    """Print the comparison; exit with 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=tuple(KERNELS))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--ratings", type=Path)
    options = parser.parse_args()
    if options.ratings:
        options.ratings.mkdir(parents=True, exist_ok=True)
    table = Table("task", "combinations", "rated", "search", "mean", "median", "worst", "builds", "cost")
    missed = False
    with EvaluatorPool("emulated:h100", threads=1) as pool:
        for reference in options.task or KERNELS:
            ratings = rate_all(pool, reference, options.ratings)
            times = [rating.complete_us for rating in ratings if rating.complete_us is not None]
            results = [searched(reference, ratings, seed) for seed in range(options.seeds)]
            ratios = [best / min(times) for best, _, _ in results]
            random = [drawn(ratings, seed) / min(times) for seed in range(options.seeds)]
            cost, builds = max(cost for *_, cost in results), fmean(built for _, built, _ in results)
            row = reference, f"{len(ratings)}", f"{len(times)}"
            for name, values, counts in (
                ("multi-fidelity", ratios, (f"{builds:.1f}", f"{cost:.1f}")),
                ("random", random, (f"{BUDGET:g}", f"{BUDGET:g}")),
            ):
                shares = (f"{value:.3f}" for value in (fmean(values), median(values), max(values)))
                table.add_row(*row, name, *shares, *counts)
            missed |= median(ratios) > MOST_ABOVE or cost > LARGEST_SHARE * len(times) or fmean(ratios) > fmean(random)
    Console(width=120).print(table)
    sys.exit(missed)


if __name__ == "__main__":
    main()
