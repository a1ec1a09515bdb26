"""The corpus of kernels in ``kernels/``: launch, inputs and NumPy reference of each, run on the emulated device.

A case names the arguments of one launch and, by position, what its outputs hold afterwards. Integers have to be equal;
floating point is compared with the case's tolerance. Counters have to be those that Nsight Compute read on an H100.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelforge.devices.emulated.profile.collector import add_launch
from kernelforge.devices.emulated.report import LaunchReport
from kernelforge.devices.emulated.runtime.cache import CacheCounts
from kernelforge.profiling.counts import KernelCounts
from kernelforge.profiling.metrics import SHARED_EXCESS, summed_metrics
from tests.devices.emulated.harness import Device
from tests.devices.emulated.nvrtc import compile_ptx

FOLDER = Path(__file__).parent / "kernels"
MEASURED = json.loads((Path(__file__).parents[3] / "results/reference/h100/kernel_corpus.json").read_text())
"""What an H100 counted, by family and kernel."""
COMPARED = (
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
)
OTHER_NAMES = {COMPARED[-1]: SHARED_EXCESS}
"""Counters that have another name in emulated profiles."""
OTHERWISE = {
    "scan/across_blocks": "blocks wait for their neighbours in a loop",
    "atomics/greatest_double": "a loop of compare-and-swap, as often as other threads interfere",
    "atomics/locks_of_buckets": "a loop of compare-and-swap, as often as other threads interfere",
    "groups/two_phases_of_a_grid": "blocks wait for each other in a loop",
    "sort/counting": "ptxas unrolls other loops than NVRTC, and adds loads",
    "sparse/csr_by_threads": "ptxas unrolls the loop again, and adds loads",
    "sparse/csr_by_warps": "ptxas drops or moves loads",
    "attention/decode_in_parts": "ptxas loads q once, before the loop",
    "transforms/haar": "ptxas makes one access of 8 bytes of two of 4, without conflicts",
    "groups/histogram_of_a_cluster": "conflicts in the shared memory of other blocks are not counted",
}
"""Cases whose counters differ from the H100's, and why."""
F32, F64, I32, U32, I64, U8 = np.float32, np.float64, np.int32, np.uint32, np.int64, np.uint8
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One launch of one kernel."""

    kernel: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    arguments: Sequence[Any]
    want: dict[int, Any]
    """Position of an argument → what it holds after the launch."""
    tolerance: float = 2e-6
    """Relative to the value, and to the greatest one as an absolute bound."""
    shared: int = 0
    options: dict[str, Any] = field(default_factory=dict)


Cases = Iterator[Case]
FAMILIES: dict[str, Callable[[np.random.Generator], Cases]] = {}


def family(make: Callable[[np.random.Generator], Cases]) -> Callable[[np.random.Generator], Cases]:
    """Enter the cases of ``kernels/NAME.cu``, where NAME is the function's, but for an underscore at its end."""
    FAMILIES[make.__name__.rstrip("_")] = make
    return make


def zeros(*shape: int, dtype: Any = F32) -> Array:
    return np.zeros(shape, dtype)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[F64])(x)


def bfloat(x: Array) -> Array:
    """The bits of float32 values, rounded to bfloat16."""
    bits = x.astype(F32).view(U32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def softmax_of(x: Array) -> Array:
    e = np.exp(x.astype(F64) - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


@family
def elementwise(rng: np.random.Generator) -> Cases:
    x, y = (rng.standard_normal(1000).astype(F32) for _ in range(2))
    wide = x.astype(F64)
    out, n = zeros(1000), 1000
    yield Case("axpy", 8, 128, [x, y.copy(), 2.5, n], {1: 2.5 * wide + y})
    yield Case("gelu", 8, 128, [x, out, n], {1: 0.5 * wide * (1 + erf(wide / math.sqrt(2)))})
    s = 1 / (1 + np.exp(-wide))
    yield Case("sigmoid_and_its_slope", 8, 128, [x, out, out, n], {1: s, 2: s * (1 - s)})
    yield Case("mish", 3, 64, [x, out, n], {1: wide * np.tanh(np.log1p(np.exp(wide)))}, 5e-6)
    yield Case("clamp_by_four", 2, 125, [x, out, -0.5, 0.75], {1: x.clip(-0.5, 0.75)})
    a, b = x.view(np.complex64), y.view(np.complex64)
    yield Case("complex_product", 4, 125, [a, b, np.zeros_like(a)], {2: a.astype(np.complex128) * b})
    yield Case("distance_in_double", 10, 100, [wide, y.astype(F64), zeros(n, dtype=F64)], {2: np.hypot(wide, y)}, 1e-15)
    yield Case("broadcast_sum", 20, 32, [x[:20], y[:50], zeros(20, 50), 50], {2: x[:20, None] + y[:50]})
    p, q = rng.integers(-1000, 1000, 256).astype(I32), rng.integers(1, 30, 256).astype(I32) * rng.choice([-1, 1], 256)
    q = q.astype(I32)
    yield Case("divide_with_floor", 4, 64, [p, q, p * 0, p * 0], {2: p // q, 3: p % q})
    mask, h = rng.integers(0, 2, 256).astype(U8), p.astype(np.int16)
    yield Case("select_by_mask", 4, 64, [mask, h, -h, h * 0], {3: np.where(mask, h, -h)})
    terms = rng.standard_normal(6).astype(F32)
    yield Case("polynomial", 8, 125, [x, terms, out, 5], {2: np.polynomial.polynomial.polyval(wide, terms)}, 1e-5)
    v, w = rng.integers(-(2**63), 2**63, 128), rng.integers(0, 2**63, 128).astype(np.uint64)
    high = np.array([int(k) * 1000003 >> 64 for k in v], I64)
    yield Case("wide_product", 2, 64, [v, w, v * 0, w * 0], {2: high, 3: w * w // np.uint64(7)})
    levels = np.rint(x * F32(64) + F32(128)).clip(0, 255).astype(U8)
    yield Case("to_bytes", 8, 125, [x, zeros(n, dtype=U8)], {1: levels})
    yield Case("polar", 8, 125, [x, y, out, out], {2: np.hypot(wide, y), 3: np.arctan2(y.astype(F64), wide)})


@family
def reduction(rng: np.random.Generator) -> Cases:
    x = rng.integers(-100, 100, 1024).astype(I32)
    yield Case("sum_by_tree", 4, 256, [x, zeros(4, dtype=I32)], {1: x.reshape(4, 256).sum(1)})
    m = rng.standard_normal((16, 77)).astype(F32)
    wide = m.astype(F64)
    yield Case("sum_of_rows", 4, 128, [m, zeros(16), 77], {1: wide.sum(1)}, 1e-5)
    yield Case("sum_of_columns", 3, (32, 8), [m, zeros(77), 16, 77], {1: wide.sum(0)}, 1e-5)
    yield Case("position_of_the_least", 16, 32, [m, zeros(16, dtype=I32), 77], {1: m.argmin(1)})
    yield Case("mean_and_variance", 16, 32, [m, zeros(16), zeros(16), 77], {1: wide.mean(1), 2: wide.var(1)}, 1e-5)
    a, b = m.ravel(), m[::-1].ravel().copy()
    yield Case("dot_in_double", 3, 64, [a, b, zeros(1, dtype=F64), a.size], {2: [a.astype(F64) @ b]}, 1e-12)
    rows = x.reshape(32, 32)
    yield Case("extremes", 32, 32, [x, zeros(32, dtype=I32), zeros(32, dtype=I32)], {1: rows.min(1), 2: rows.max(1)})
    small = rng.integers(-9, 10, (4, 64)).astype(I32)
    votes = np.stack([(small > 0).sum(1), (small > -9).all(1), (small == 9).any(1)], 1)
    yield Case("votes_of_a_block", 4, 64, [small, zeros(4, 3, dtype=I32)], {1: votes})
    starts = np.array([0, 3, 3, 100, 400, 1024], I32)
    parts = [x[i:j].sum() for i, j in itertools.pairwise(starts)]
    yield Case("sums_of_segments", 5, 32, [x, starts, zeros(5, dtype=I32)], {2: parts})
    u = rng.integers(1, 2**31, (3, 32)).astype(U32)
    products = [functools.reduce(lambda p, q: p * q % 1000003, map(int, row), 1) for row in u]
    yield Case("product_modulo", 3, 32, [u, zeros(3, dtype=U32), 1000003], {1: products})
    f = m.ravel()[: 12 * 32]
    arguments = [f, zeros(12), zeros(1, dtype=U32), zeros(1)]
    yield Case("last_block_finishes", 12, 32, arguments, {1: f.reshape(12, 32).sum(1), 3: [f.astype(F64).sum()]}, 1e-5)


@family
def scan(rng: np.random.Generator) -> Cases:
    x = rng.integers(-50, 50, (4, 128)).astype(I32)
    sums = x.cumsum(1)
    yield Case("inclusive", 4, 128, [x, x * 0], {1: sums})
    yield Case("exclusive_by_tree", 4, 64, [x, x * 0], {1: sums - x}, shared=512)
    row = x[0].copy()
    kept = np.concatenate([row[row > 0], np.zeros((row <= 0).sum(), I32)])
    yield Case("keep_positive", 1, 128, [row, row * 0, zeros(1, dtype=I32)], {1: kept, 2: [(row > 0).sum()]})
    f = rng.standard_normal(100).astype(F32)
    yield Case("running_greatest", 1, 32, [f, f * 0, 100], {1: np.maximum.accumulate(f)})
    v, first = x[1, :32].copy(), (rng.random(32) < 0.2).astype(U8)
    want, run = [], 0
    for value, begins in zip(v, first, strict=True):
        run = value if begins else run + value
        want.append(run)
    yield Case("segmented", 1, 32, [v, first, v * 0], {2: want})
    state = zeros(8, dtype=I32)
    yield Case("across_blocks", 4, 128, [x, x * 0, state, zeros(1, dtype=U32)], {1: x.ravel().cumsum().reshape(4, 128)})
    a, b = f[:32].copy(), f[32:64].copy()
    h, steps = 0.0, []
    for p, q in zip(a.astype(F64), b, strict=True):
        h = p * h + q
        steps.append(h)
    yield Case("linear_recurrence", 1, 32, [a, b, a * 0, 32], {2: steps}, 1e-5)


@family
def layout(rng: np.random.Generator) -> Cases:
    x = rng.standard_normal((50, 70)).astype(F32)
    yield Case("transpose", (3, 2), (32, 8), [x, zeros(70, 50), 50, 70], {1: x.T})
    square = rng.integers(-99, 99, (32, 32)).astype(I32)
    yield Case("transpose_by_xor", 1, (32, 8), [square, square * 0], {1: square.T})
    block = rng.integers(-99, 99, (5, 6, 7)).astype(np.int16)
    yield Case("permute", 2, 64, [block, zeros(7, 5, 6, dtype=np.int16), 5, 6, 7], {1: block.transpose(2, 0, 1)})
    table, index = rng.standard_normal((20, 12)).astype(F32), rng.integers(0, 20, 9)
    yield Case("gather_rows", 9, 32, [table, index, zeros(9, 12), 3], {2: table[index]})
    order, values = rng.permutation(128).astype(I32), rng.standard_normal(128)
    moved = values * 0
    moved[order] = values
    yield Case("scatter", 2, 64, [values, order, values * 0], {2: moved})
    line = x[0].copy()
    yield Case("pad_by_reflection", 1, 96, [line, zeros(80), 70, 5], {1: np.pad(line, 5, "reflect")})
    image = x[:9, :11].copy()
    padded = np.pad(image, 1)
    patches = np.stack([padded[i : i + 9, j : j + 11] for i in range(3) for j in range(3)])
    yield Case("columns_of_patches", 2, 64, [image, zeros(9, 9, 11), 9, 11], {1: patches})
    pixels = rng.integers(0, 256, (60, 4)).astype(U8)
    yield Case("structures_to_arrays", 1, 64, [pixels, zeros(4, 60, dtype=U8), 60], {1: pixels.T})
    yield Case("reverse_in_place", 2, 32, [np.arange(99, dtype=I32), 99], {0: np.arange(99)[::-1]})
    labels = rng.integers(0, 10, 16).astype(I32)
    yield Case("one_hot", 16, 32, [labels, zeros(16, 10, dtype=U8), 10], {1: np.eye(10, dtype=U8)[labels]})
    yield Case("lower_triangle", 32, 32, [x[:32, :32].copy(), zeros(32, 32), 32, 2], {1: np.tril(x[:32, :32], 2)})


@family
def norm(rng: np.random.Generator) -> Cases:
    x = (3 * rng.standard_normal((6, 100))).astype(F32)
    wide, out = x.astype(F64), x * 0
    yield Case("softmax", 6, 64, [x, out, 100], {1: softmax_of(x)}, 1e-5)
    yield Case("online_softmax", 6, 32, [x, out, 100], {1: softmax_of(x)}, 5e-6)
    yield Case("log_softmax", 6, 64, [x, out, 100], {1: np.log(softmax_of(x))}, 5e-6)
    scale, shift = (rng.standard_normal(100).astype(F32) for _ in range(2))
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    yield Case("layer_norm", 6, 64, [x, scale, shift, out, 100], {3: normal * scale + shift}, 1e-5)
    yield Case("rms_norm", 6, 32, [x, out, 25], {1: wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6)}, 5e-6)
    batch = wide.reshape(3, 4, 50)
    mean, variance = batch.mean((0, 2), keepdims=True), batch.var((0, 2), keepdims=True)
    yield Case(
        "batch_norm", 4, 64, [x, out, 3, 4, 50], {1: ((batch - mean) / np.sqrt(variance + 1e-5)).reshape(6, 100)}, 1e-5
    )
    labels = rng.integers(0, 100, 6).astype(I32)
    losses = -np.log(softmax_of(x)[np.arange(6), labels])
    yield Case("cross_entropy", 6, 64, [x, labels, zeros(6), 100], {2: losses}, 5e-6)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    yield Case("unit_length", 6, 32, [wide, wide * 0, 100], {1: wide / lengths}, 1e-14)


@family
def stencil(rng: np.random.Generator) -> Cases:
    x = rng.standard_normal((20, 30)).astype(F32)
    y = x.copy()
    y[1:-1, 1:-1] = (x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]) / 4
    yield Case("jacobi", (2, 3), (16, 8), [x, x * 0, 20, 30], {1: y})
    cube = rng.standard_normal((8, 8, 8)).astype(F32)
    inner = slice(1, -1)
    want = cube * 0
    for axis, step in itertools.product(range(3), (-1, 1)):
        want += np.roll(cube, step, axis)
    want -= 6 * cube
    edge = np.ones((8, 8, 8), bool)
    edge[inner, inner, inner] = False
    want[edge] = 0
    yield Case("seven_points", 1, (6, 6), [cube, cube * 0, 8], {1: want}, 1e-5)
    line = x.ravel()[:200].copy()
    yield Case(
        "binomial", 2, 128, [line, line * 0, 200], {1: np.convolve(line, np.array([1, 4, 6, 4, 1]) / 16, "same")}
    )
    cells = rng.integers(0, 2, (12, 17)).astype(U8)
    around = sum(np.roll(cells, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    alive = (around == 3) | ((around == 2) & (cells == 1))
    yield Case("game_of_life", 4, 64, [cells, cells * 0, 12, 17], {1: alive})
    gray = rng.integers(0, 256, (10, 18)).astype(U8)
    windows = np.lib.stride_tricks.sliding_window_view(gray, (3, 3))
    medians = np.median(windows.reshape(8, 16, 9), axis=2)
    yield Case("median_of_nine", 8, 16, [gray, zeros(8, 16, dtype=U8), 10, 18], {1: medians})
    a, b = (rng.standard_normal(64).astype(F32) for _ in range(2))
    before, now = a.astype(F64), b.astype(F64)
    for _ in range(5):
        before, now = now, 2 * now - before + 0.25 * (np.roll(now, -1) - 2 * now + np.roll(now, 1))
    yield Case("wave", 1, 64, [a, b, a * 0, 64, 5], {2: now}, 1e-5, shared=768)
    p = np.pad(x.astype(F64), 1, "edge")
    gx = p[:-2, 2:] + 2 * p[1:-1, 2:] + p[2:, 2:] - p[:-2, :-2] - 2 * p[1:-1, :-2] - p[2:, :-2]
    gy = p[2:, :-2] + 2 * p[2:, 1:-1] + p[2:, 2:] - p[:-2, :-2] - 2 * p[:-2, 1:-1] - p[:-2, 2:]
    yield Case("sobel", 20, 30, [x, x * 0, 20, 30], {1: np.hypot(gx, gy)}, 5e-6)


@family
def atomics(rng: np.random.Generator) -> Cases:
    x = rng.integers(0, 256, 2000).astype(U8)
    yield Case("histogram", 3, 128, [x, zeros(256, dtype=U32), 2000], {1: np.bincount(x, minlength=256)})
    f = rng.standard_normal(500).astype(F32)
    places = np.floor((f + F32(2)) / F32(4) * F32(10)).clip(0, 9).astype(I32)
    arguments = [f, zeros(10, dtype=I32), 10, -2.0, 2.0, 500]
    yield Case("histogram_of_floats", 4, 128, arguments, {1: np.bincount(places, minlength=10)})
    d = rng.random(256)
    yield Case("greatest_double", 4, 64, [d, zeros(1, dtype=F64)], {1: [d.max()]})
    counters = [zeros(1, dtype=U32), np.array([10], U32), zeros(4, dtype=I32)]
    yield Case("wrapping_counters", 2, 50, counters, {0: [100 % 7], 1: [(10 - 100) % 11], 2: [-52, -52, -48, -48]})
    v = rng.integers(0, 1000, 100).astype(I32)
    thirds = v[v % 3 == 0]
    kept = np.concatenate([thirds, np.zeros(100 - len(thirds), I32)])
    yield Case("aggregated_in_warps", 4, 32, [v, v * 0, zeros(1, dtype=I32), 100], {1: kept, 2: [len(thirds)]})
    members = rng.integers(0, 128, 64).astype(I32)
    some, every, parity = [0] * 4, 2**32 - 1, 0
    for m in map(int, members):
        some[m // 32] |= 1 << m % 32
        every &= ~(1 << m % 32)
        parity ^= 1 << m % 64
    arguments = [members, np.array([2**32 - 1], U32), zeros(4, dtype=U32), zeros(1, dtype=np.uint64)]
    yield Case("bit_sets", 2, 32, arguments, {1: [every], 2: some, 3: np.array([parity], np.uint64)})
    key = rng.integers(0, 8, 128).astype(I32)
    first = [np.flatnonzero(key == k)[0] for k in range(8)]
    yield Case("first_of_each_key", 4, 32, [key, np.full(8, 2**31 - 1, I32)], {1: first})
    sums = np.bincount(key, np.arange(128), 8)
    yield Case("locks_of_buckets", 4, 32, [key, zeros(8, dtype=I32), zeros(8, dtype=I32)], {1: sums, 2: [0] * 8})
    values = f[:128].copy()
    yield Case("sums_in_shared_memory", 4, 32, [values, key, zeros(8)], {2: np.bincount(key, values, 8)}, 1e-5)
    keys = rng.integers(0, 60, 64).astype(U32)
    table, slot = np.full(101, 2**32 - 1, U32), zeros(64, dtype=U32)
    yield Case("hash_table", 2, 32, [keys, table, slot, 101], {})


@family
def sort(rng: np.random.Generator) -> Cases:
    x = rng.integers(-999, 999, (2, 256)).astype(I32)
    yield Case("bitonic", 2, 256, [x, x * 0], {1: np.sort(x, 1)})
    f = rng.standard_normal((4, 32)).astype(F32)
    yield Case("bitonic_by_shuffles", 4, 32, [f, f * 0], {1: np.sort(f, 1)})
    line = x[0, :51].copy()
    yield Case("odd_even", 1, 32, [line, 51], {0: np.sort(line)})
    d = rng.standard_normal(100)
    yield Case("by_rank", 2, 64, [d, d * 0, 100], {1: np.sort(d)})
    u = rng.integers(0, 2**32, 128).astype(U32)
    yield Case("radix", 1, 128, [u, u * 0], {1: np.sort(u)})
    a, b = np.sort(x[0, :70]), np.sort(x[1, :55])
    yield Case("merge_path", 2, 64, [a, b, zeros(125, dtype=I32), 70, 55], {2: np.sort(np.concatenate([a, b]))})
    key = rng.integers(0, 16, 90).astype(U8)
    yield Case("counting", 1, 32, [key, zeros(90, dtype=I32), 90], {1: np.argsort(key, kind="stable")})
    rows = rng.standard_normal((32, 20)).astype(F32)
    at = np.argsort(-rows, 1)[:, :3]
    best = np.take_along_axis(rows, at, 1)
    yield Case("best_three", 1, 32, [rows, zeros(32, 3), zeros(32, 3, dtype=I32), 20], {1: best, 2: at})
    ordered, keys = np.sort(rng.integers(0, 30, 50)).astype(I32), np.arange(-1, 31, dtype=I32)
    low, high = (np.searchsorted(ordered, keys, side) for side in ("left", "right"))  # type: ignore[call-overload]
    yield Case("bounds_in_a_sorted_list", 1, 32, [ordered, keys, keys * 0, keys * 0, 50], {2: low, 3: high})


@family
def products(rng: np.random.Generator) -> Cases:
    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(F32)

    a, b = normal(20, 33), normal(33, 27)
    c, sizes = zeros(20, 27), [20, 27, 33]
    yield Case("naive", (2, 2), (16, 16), [a, b, c, *sizes], {2: a.astype(F64) @ b}, 1e-5)
    yield Case("tiled", (2, 2), (16, 16), [a, b, c, *sizes], {2: a.astype(F64) @ b}, 1e-5)
    p, q = normal(64, 64), normal(64, 64)
    yield Case("four_by_four", (2, 2), 64, [p, q, p * 0, 64], {2: p.astype(F64) @ q}, 1e-5)
    s, t = (rng.integers(-128, 128, (n, 32)).astype(np.int8) for n in (9, 16))
    exact = s.astype(I32) @ t.astype(I32).T
    yield Case("bytes_by_dp4a", 9, 16, [s, t, zeros(9, 16, dtype=I32), 16, 8], {2: exact})
    yield Case("vector_product", 20, 32, [a, b[:, 0].copy(), zeros(20), 33], {2: a.astype(F64) @ b[:, 0]}, 1e-5)
    u, v = rng.standard_normal((8, 40)), rng.standard_normal((40, 8))
    yield Case("split_over_blocks", 4, (8, 8), [u, v, zeros(8, 8, dtype=F64), 8, 40], {2: u @ v}, 1e-13)
    m, n = normal(12, 4, 4), normal(12, 4, 4)
    yield Case("batch_of_small", 3, 64, [m, n, m * 0], {2: m.astype(F64) @ n}, 5e-6)
    h, g = normal(32, 48).astype(np.float16), normal(32, 48).astype(np.float16)
    square_h, square_g = h[:, :32].copy(), g[:, :32].copy()
    want = square_h.astype(F64) @ square_g.astype(F64).T
    yield Case("by_wmma", (2, 2), 32, [square_h, square_g, zeros(32, 32), 32], {2: want}, 1e-5)
    x, y = h[:16, :16].copy(), g[:8, :16].copy()
    want = x.astype(F64) @ y.astype(F64).T
    yield Case("by_mma_of_halves", 1, 32, [x, y, zeros(16, 8)], {2: want}, 1e-5)
    yield Case("by_ldmatrix", 1, 32, [x, y.T.copy(), zeros(16, 8)], {2: want}, 1e-5)
    s, t = (rng.integers(-128, 128, (k, 32)).astype(np.int8) for k in (16, 8))
    yield Case("by_mma_of_bytes", 1, 32, [s, t, zeros(16, 8, dtype=I32)], {2: s.astype(I32) @ t.astype(I32).T})
    e, f = (np.rint(normal(k, 8) * 64).astype(F32) / F32(64) for k in (16, 8))  # values that tf32 holds
    yield Case(
        "by_mma_of_tf32", 1, 32, [e.view(U32), f.view(U32), zeros(16, 8)], {2: e.astype(F64) @ f.astype(F64).T}, 1e-5
    )
    x = normal(64, 16).astype(np.float16)
    yield Case("by_wgmma", 1, 128, [x, y, zeros(64, 8)], {2: x.astype(F64) @ y.astype(F64).T}, 1e-5)


@family
def sparse(rng: np.random.Generator) -> Cases:
    n = 40
    dense = np.where(rng.random((n, n)) < 0.15, rng.standard_normal((n, n)), 0).astype(F32)
    dense[7] = 0
    at, column = (k.astype(I32) for k in np.nonzero(dense))
    row, v = np.searchsorted(at, np.arange(n + 1)).astype(I32), dense[at, column]
    x = rng.standard_normal(n).astype(F32)
    want = dense.astype(F64) @ x
    yield Case("csr_by_threads", 2, 32, [row, column, v, x, zeros(n), n], {4: want}, 1e-5)
    yield Case("csr_by_warps", n, 32, [row, column, v, x, zeros(n)], {4: want}, 1e-5)
    yield Case("coo", 8, 64, [at, column, v, x, zeros(n), len(v)], {4: want}, 1e-5)
    width = int(np.diff(row).max())
    columns, values = np.full((width, n), -1, I32), zeros(width, n)
    for r in range(n):
        count = row[r + 1] - row[r]
        columns[:count, r], values[:count, r] = column[row[r] : row[r + 1]], v[row[r] : row[r + 1]]
    yield Case("ell", 1, n, [columns, values, x, zeros(n), n, width], {3: want}, 1e-5)
    y = rng.standard_normal((n, 32)).astype(F32)
    yield Case("csr_times_dense", n, 32, [row, column, v, y, zeros(n, 32), 32], {4: dense.astype(F64) @ y}, 1e-5)
    a, b = (rng.standard_normal((n, 20)).astype(F32) for _ in range(2))
    samples = (a.astype(F64) @ b.T)[at, column]
    yield Case("sampled_product", n, 32, [row, column, a, b, v * 0, n, 20], {4: samples}, 1e-5)

    linked = rng.random((n, n)) < 0.05
    linked |= linked.T
    np.fill_diagonal(linked, False)
    at, column = (k.astype(I32) for k in np.nonzero(linked))
    row = np.searchsorted(at, np.arange(n + 1)).astype(I32)
    level, front = np.full(n, -1), [0]
    level[0] = 0
    while front:
        front = [
            int(s)
            for r in front
            for s in np.flatnonzero(linked[r] & (level < 0))
            if not level.__setitem__(s, level[r] + 1)
        ]
    start = np.full(n, -1, I32)
    start[0] = 0
    yield Case("levels", 1, 32, [row, column, start, n], {2: level})
    d = np.where(linked[:16, :16], rng.integers(1, 20, (16, 16)), 1000).astype(I32)
    np.fill_diagonal(d, 0)
    paths = d.copy()
    for k in range(16):
        paths = np.minimum(paths, paths[:, k : k + 1] + paths[k])
    yield Case("shortest_paths", 1, (16, 16), [d, 16], {0: paths})
    degree = np.maximum(linked.sum(0), 1).astype(I32)
    ranks = 0.15 / n + 0.85 * linked @ (np.abs(x) / degree)
    yield Case("rank_of_pages", 1, n, [row, column, degree, np.abs(x), zeros(n), n], {4: ranks}, 1e-5)
    label = np.arange(n)
    for _ in range(n):
        label = np.array([min([label[r], *label[linked[r]]]) for r in range(n)])
    yield Case("components", 1, n, [row, column, np.arange(n, dtype=I32), n], {2: label})
    graph = rng.random((32, 32)) < 0.3
    graph |= graph.T
    np.fill_diagonal(graph, False)
    bits = (graph.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(1).astype(U32)
    count = np.trace(np.linalg.matrix_power(graph.astype(I64), 3)) // 6
    yield Case("triangles", 1, 32, [bits, zeros(1, dtype=I32), 32], {1: [count]})


@family
def attention(rng: np.random.Generator) -> Cases:
    q, k, v = (rng.standard_normal((64, 16)).astype(F32) for _ in range(3))
    scores = q.astype(F64) @ k.T / 4
    out = q * 0
    yield Case("one_query_per_block", 64, 64, [q, k, v, out, 64], {3: softmax_of(scores) @ v}, 1e-5)
    causal = np.where(np.tri(64, dtype=bool), scores, -np.inf)
    yield Case("online_and_causal", 2, 32, [q, k, v, out, 64], {3: softmax_of(causal) @ v}, 1e-5)
    pairs = q.view(np.complex64)
    turned = pairs * np.exp(1j * np.arange(64)[:, None] * 100.0 ** (-np.arange(8) / 8))
    yield Case("rotary", 64, 8, [pairs.copy(), 8, 100.0], {0: turned}, 2e-5)
    table = rng.permutation(8).astype(I32)
    pages = k.reshape(8, 8, 16)
    products = pages[table].reshape(64, 16)[:50].astype(F64) @ q[0]
    yield Case("paged_scores", 2, 32, [q[0].copy(), k, table, zeros(50), 8, 50], {3: products}, 1e-5)
    parts = []
    for s, values in zip(scores[0].reshape(4, 16), v.reshape(4, 16, 16), strict=True):
        p = np.exp(s - s.max())
        parts.append([s.max(), p.sum(), *(p @ values)])
    yield Case("decode_in_parts", 4, 16, [q[0].copy(), k, v, zeros(4, 18), 64], {3: parts}, 1e-5)
    token = np.array([3, 63, -1, 64, 0], I32)
    rows = np.where(((token >= 0) & (token < 64))[:, None], k[token.clip(0, 63)] * 4, 0)
    yield Case("embed_and_scale", 5, 16, [token, k, zeros(5, 16), 64], {2: rows})
    wide = q.astype(F64)
    yield Case("swiglu", 16, 64, [q, k, out, 1024], {2: wide / (1 + np.exp(-wide)) * k}, 1e-5)
    order = np.argsort(-q[:32, :8], 1)[:, :2]
    best = np.take_along_axis(wide[:32, :8], order, 1)
    arguments = [q[:32, :8].copy(), zeros(32, 2, dtype=I32), zeros(32, 2), 8]
    yield Case("experts_of_tokens", 1, 32, arguments, {1: order, 2: softmax_of(best)}, 5e-6)


@family
def convolution(rng: np.random.Generator) -> Cases:
    x, w = rng.standard_normal((3, 10, 12)).astype(F32), rng.standard_normal((4, 3, 3, 3)).astype(F32)
    patches = np.lib.stride_tricks.sliding_window_view(x.astype(F64), (3, 3), (1, 2))
    want = np.einsum("irwab,oiab->orw", patches, w)
    yield Case("direct", (8, 4), 10, [x, w, zeros(4, 8, 10), 3, 10, 12, 4], {2: want}, 1e-5)
    patches = np.lib.stride_tricks.sliding_window_view(np.pad(x.astype(F64), ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    want = np.einsum("irwab,iab->irw", patches, w[0])
    yield Case("depthwise", 3, (12, 10), [x, w[0].copy(), x * 0, 10, 12], {2: want}, 1e-5)
    line, taps = x[0, 0].copy(), w.ravel()[:5].copy()
    stretched = np.zeros(23)
    stretched[::2] = line
    yield Case("transposed", 1, 27, [line, taps, zeros(27), 12, 5, 2], {2: np.convolve(stretched, taps)}, 1e-5)
    pools = x[0].reshape(5, 2, 6, 2).transpose(0, 2, 1, 3).reshape(5, 6, 4)
    arguments = [x[0].copy(), zeros(5, 6), zeros(5, 6, dtype=U8), 12]
    yield Case("greatest_of_pools", 5, 6, arguments, {1: pools.max(2), 2: pools.argmax(2)})
    means = [x.ravel()[max(0, i - 2) : min(50, i + 3)].astype(F64).mean() for i in range(50)]
    yield Case("mean_of_pools", 1, 50, [x.ravel()[:50].copy(), zeros(50), 50, 5], {1: means}, 5e-6)
    image = x[0, :9, :9].astype(F64)
    at = ((np.arange(16) + 0.5) * 9 / 16 - 0.5).clip(0, 8)
    across = np.stack([np.interp(at, np.arange(9), r) for r in image])
    resized = np.stack([np.interp(at, np.arange(9), c) for c in across.T], 1)
    yield Case("bilinear", 16, 16, [x[0, :9, :9].copy(), zeros(16, 16), 9, 16], {1: resized}, 1e-5)
    rows, taps = x[1].copy(), w.ravel()[:4].copy()
    want = [np.convolve(r, taps[::-1].astype(F64))[:12] for r in rows]
    yield Case("causal_1d", 10, 1, [rows, taps, rows * 0, 12], {2: want}, 5e-6)
    line, taps = x.ravel()[:66].copy(), w.ravel()[:3].copy()
    yield Case("winograd", 1, 32, [line, taps, zeros(64)], {2: np.correlate(line.astype(F64), taps, "valid")}, 1e-5)


@family
def transforms(rng: np.random.Generator) -> Cases:
    x = rng.standard_normal((3, 128)).astype(F32).view(np.complex64)
    yield Case("dft", 1, 64, [x[0].copy(), x[0] * 0, 64], {1: np.fft.fft(x[0])}, 2e-5)
    yield Case("fft", 3, 32, [x, x * 0, 6], {1: np.fft.fft(x)}, 2e-5, shared=512)
    v = rng.integers(-99, 99, (4, 32)).astype(I32)
    signs = np.array([[(-1) ** (i & j).bit_count() for j in range(32)] for i in range(32)])
    yield Case("walsh_hadamard", 4, 32, [v, v * 0], {1: v @ signs})
    d = rng.standard_normal((5, 8))
    basis = np.cos((2 * np.arange(8)[:, None] + 1) * np.arange(8) * np.pi / 16)
    yield Case("cosine_transform", 5, 8, [d, d * 0], {1: d @ basis}, 1e-14)
    line = rng.standard_normal(64).astype(F32)
    want, m = line.astype(F64), 64
    while m > 1:
        want[:m] = np.concatenate([want[0:m:2] + want[1:m:2], want[0:m:2] - want[1:m:2]]) / 2
        m //= 2
    yield Case("haar", 1, 32, [line, line * 0, 64], {1: want})
    u = rng.integers(0, 257, 16).astype(U32)
    powers = np.array([[pow(249, i * j, 257) for j in range(16)] for i in range(16)])
    yield Case("modular", 1, 16, [u, u * 0, 16, 249, 257], {1: powers @ u.astype(I64) % 257})


@family
def random_(rng: np.random.Generator) -> Cases:
    mask = 2**32 - 1
    seed = rng.integers(1, 2**32, 32).astype(U32)
    v = seed.astype(np.uint64)
    for _ in range(7):
        v ^= v << np.uint64(13) & np.uint64(mask)
        v ^= v >> np.uint64(17)
        v ^= v << np.uint64(5) & np.uint64(mask)
    yield Case("xorshift", 1, 32, [seed, seed * 0, 7], {1: v})
    words = []
    for thread in range(32):
        c, k = [thread, 0, 0, 0], [1234, 5678]
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [q >> 32 ^ c[1] ^ k[0], q & mask, p >> 32 ^ c[3] ^ k[1], p & mask]
            k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
        words.append(c)
    yield Case("philox", 1, 32, [zeros(32, 4, dtype=U32), 1234, 5678], {0: words})
    state = rng.integers(0, 2**63, 32).astype(np.uint64)
    drawn = []
    for s in map(int, state):
        word, by = (s >> 18 ^ s) >> 27 & mask, s >> 59
        drawn.append((word >> by | word << (32 - by)) & mask)
    yield Case("pcg", 1, 32, [state, zeros(32, dtype=U32)], {1: drawn})
    halton = zeros(32, 2, dtype=F64)
    for i, base in itertools.product(range(32), (2, 3)):
        rest, part = i, 1.0
        while rest:
            part /= base
            halton[i, base - 2] += part * (rest % base)
            rest //= base
    yield Case("radical_inverse", 1, 32, [zeros(32, 2)], {0: halton})
    inside = 0
    for s in range(1, 129):
        for _ in range(20):
            s = (s * 1664525 + 1013904223) & mask
            x = s >> 16
            s = (s * 1664525 + 1013904223) & mask
            inside += x * x + (s >> 16) ** 2 < 1 << 32
    yield Case("points_in_a_circle", 2, 64, [zeros(1, dtype=U32), 20], {0: [inside]})
    u = rng.random((32, 2)).astype(F32)
    wide = u.astype(F64)
    pairs = np.sqrt(-2 * np.log(wide[:, :1])) * np.stack(
        [np.cos(2 * np.pi * wide[:, 1]), np.sin(2 * np.pi * wide[:, 1])], 1
    )
    yield Case("box_muller", 1, 32, [u, u * 0], {1: pairs}, 5e-6)
    x = rng.standard_normal(200).astype(F32)
    kept = []
    for i in range(200):
        h = i * 0x9E3779B9 & mask
        h = (h ^ h >> 16) * 0x85EBCA6B & mask
        h = (h ^ h >> 13) * 0xC2B2AE35 & mask
        kept.append((h ^ h >> 16) >> 8 < 0.75 * 2**24)
    yield Case("dropout", 4, 64, [x, x * 0, 0.75, 200], {1: np.where(kept, x / F32(0.75), 0)})


@family
def bits(rng: np.random.Generator) -> Cases:
    mask = 2**32 - 1
    x = rng.integers(0, 2**32, 32).astype(U32)
    x[:3] = 0, 1, mask
    ints = [int(v) for v in x]
    facts = [[v.bit_count(), 32 - v.bit_length(), (v & -v).bit_length(), int(f"{v:032b}"[::-1], 2)] for v in ints]
    yield Case("counts", 1, 32, [x, zeros(32, 4, dtype=I32)], {1: np.array(facts, I64).astype(I32)})
    wide = rng.integers(1, 2**63, 32)
    facts = [[v.bit_count(), 64 - v.bit_length(), (v & -v).bit_length()] for v in map(int, wide)]
    yield Case("counts_of_64", 1, 32, [wide, zeros(32, 3, dtype=I32)], {1: facts})
    yield Case("gray_and_back", 1, 32, [x, x * 0, x * 0], {1: x ^ x >> 1, 2: x})
    points = rng.integers(0, 2**16, (32, 2)).astype(np.uint16)
    codes = [sum((int(a) >> k & 1) << 2 * k | (int(b) >> k & 1) << 2 * k + 1 for k in range(16)) for a, b in points]
    yield Case("morton", 1, 32, [points, zeros(32, dtype=U32)], {1: codes})
    text = rng.integers(0, 256, (32, 13)).astype(U8)
    yield Case("crc32", 1, 32, [text, zeros(32, dtype=U32), 13], {1: [zlib.crc32(row.tobytes()) for row in text]})
    hashes = []
    for row in text:
        h = 14695981039346656037
        for byte in map(int, row):
            h = (h ^ byte) * 1099511628211 % 2**64
        hashes.append(h)
    yield Case("fnv", 1, 32, [text, zeros(32, dtype=np.uint64), 13], {1: np.array(hashes, np.uint64)})
    yield Case("swapped_bytes", 1, 32, [x, x * 0], {1: x.byteswap()})
    by = np.arange(32, dtype=U32) * 3
    turned = [(v << s % 32 | v >> (32 - s % 32)) & mask for v, s in zip(ints, map(int, by), strict=True)]
    yield Case("rotated", 1, 32, [x, by, x * 0], {2: turned})
    a, b = rng.integers(0, 256, (2, 32, 4)).astype(U8)
    p, q = a.astype(I32), b.astype(I32)
    results = {2: (p + q).clip(0, 255), 3: abs(p - q), 4: np.maximum(p, q)}
    yield Case("bytes_by_simd", 1, 32, [a, b, a * 0, a * 0, a * 0], results)
    content, word = b"abracadabra and abracadabra: cadabra" * 3, b"abra"
    matches = [content[i : i + 4] == word for i in range(len(content))]
    arguments = [np.frombuffer(content, U8).copy(), np.frombuffer(word, U8).copy(), zeros(108, dtype=I32), 108, 4]
    yield Case("occurrences", 2, 64, arguments, {2: matches})
    digits = np.frombuffer("".join(f"{v:010d}" for v in ints).encode(), U8)
    yield Case("decimal_digits", 1, 32, [x, zeros(320, dtype=U8)], {1: digits})
    words = np.frombuffer("Füße, naïve, 数, 🙂 und mehr".encode(), U8).copy()
    yield Case("code_points", 1, 32, [words, zeros(1, dtype=I32), words.size], {1: [len(words.tobytes().decode())]})
    starts, steps = np.arange(1, 65, dtype=U32), []
    for v in map(int, starts):
        count = 0
        while v != 1:
            v, count = (3 * v + 1 if v & 1 else v // 2), count + 1
        steps.append(count)
    yield Case("collatz", 1, 64, [starts, zeros(64, dtype=I32)], {1: steps})
    yield Case("queens", 1, 7, [zeros(1, dtype=I32), 7], {0: [40]})


@family
def groups(rng: np.random.Generator) -> Cases:
    x = rng.integers(0, 1000, 256).astype(I32)
    yield Case("sums_of_tiles", 1, 64, [x[:64].copy(), zeros(4, dtype=I32)], {1: x[:64].reshape(4, 16).sum(1)})
    yield Case("two_phases_of_a_grid", 4, 64, [x.copy(), x * 0], {1: 2 * x[::-1]}, options={"cooperative": True})
    ring = np.roll(x.reshape(2, 4, 32), -1, 1).ravel()
    yield Case("neighbours_in_a_cluster", 8, 32, [x, x * 0], {1: ring})
    small = x % 32
    yield Case("histogram_of_a_cluster", 4, 64, [small, zeros(32, dtype=I32)], {1: np.bincount(small, minlength=32)})
    u = rng.integers(0, 2**32, 256).astype(U32)
    yield Case("block_sort", 1, 64, [u, u * 0], {1: np.sort(u)})
    f = rng.standard_normal(128).astype(F32)
    sums = f.astype(F64).cumsum()
    yield Case("block_scan", 1, 128, [f, f * 0, zeros(1)], {1: sums, 2: sums[-1:]}, 1e-5)
    three = rng.integers(-999, 0, (3, 96)).astype(I32)
    yield Case("block_greatest", 3, 96, [three, zeros(3, dtype=I32)], {1: three.max(1)})
    tiles = rng.standard_normal((5, 64, 4)).astype(F32)
    yield Case("two_stages_of_copies", 1, 64, [tiles, tiles * 0, 5], {1: tiles[:, ::-1] + F32(1)})
    v = x[:64]
    for _ in range(3):
        v = v + np.roll(v, -1)
    yield Case("barrier_object", 1, 64, [x[:64].copy(), zeros(64, dtype=I32)], {1: v})
    two = rng.integers(-99, 99, (2, 256)).astype(I32)
    yield Case("bulk_copy", 2, 256, [two, two * 0], {1: two[:, ::-1]})
    rows = x.reshape(8, 32)
    yield Case("producer_and_consumer", 1, 64, [rows, rows * 0, 8], {1: 3 * rows[:, ::-1]})
    label = x[:32] % 5
    ranks = [100 * (label == k).sum() + (label[:i] == k).sum() for i, k in enumerate(label)]
    yield Case("by_label", 1, 32, [x[:32].copy(), zeros(32, dtype=I32)], {1: ranks})


@family
def small_types(rng: np.random.Generator) -> Cases:
    x, y = (rng.standard_normal(128).astype(np.float16) for _ in range(2))
    fused = (1.5 * x.astype(F64) + y.astype(F64)).astype(np.float16)
    yield Case("half_axpy", 1, 64, [x, y.copy(), 1.5], {1: fused}, 0)
    yield Case("half_sum", 4, 32, [x, zeros(4)], {1: x.astype(F64).reshape(4, 32).sum(1)}, 1e-5)
    greater = x > np.roll(x, -1)
    yield Case("half_relu_and_order", 1, 128, [x, x * 0, zeros(128, dtype=U8)], {1: np.maximum(x, 0), 2: greater}, 0)
    f = rng.standard_normal(64).astype(F32)
    a, b = bfloat(f), bfloat(f[::-1])
    values = [(k.astype(U32) << 16).view(F32) for k in (a, b)]
    yield Case("bfloat_product", 1, 64, [a, b, a * 0], {2: bfloat(values[0] * values[1])})
    yield Case("to_bfloat", 1, 64, [f, a * 0], {1: a})
    steps = np.array([(1 + m / 8) * 2.0 ** (e - 7) if e else m / 512 for e in range(16) for m in range(8)][:127])
    bits8 = rng.integers(0, 127, 64)
    exact = (steps[bits8] * rng.choice([-1, 1], 64)).astype(F32)
    signed = (bits8 | (np.signbit(exact) << 7)).astype(U8)
    yield Case("through_fp8", 1, 64, [exact, zeros(64, dtype=U8), zeros(64)], {1: signed, 2: exact})
    rows = rng.standard_normal((4, 50)).astype(F32)
    scale = abs(rows).max(1) / F32(127)
    yield Case("quantize", 4, 32, [rows, zeros(4, 50, dtype=np.int8), zeros(4), 50],
               {1: np.rint(rows / scale[:, None]), 2: scale})  # fmt: skip
    nibbles, scales = rng.integers(0, 16, (32, 8)), rng.random(32).astype(F32)
    packed = (nibbles << 4 * np.arange(8)).sum(1).astype(U32)
    yield Case("nibbles", 1, 32, [packed, scales, zeros(32, 8)], {2: (nibbles - 8) * scales[:, None]})
    h = (x[:64] * np.float16(20)).astype(np.float16)
    nearest = np.rint(h.astype(F32)).astype(np.int16)
    empty = zeros(64, dtype=np.int16)
    results = {1: nearest, 2: np.floor(h.astype(F32)).astype(np.int16), 3: nearest.astype(np.float16)}
    yield Case("half_integers", 1, 64, [h, empty, empty, h * 0], results, 0)


@family
def dynamic(rng: np.random.Generator) -> Cases:
    a, b = rng.integers(97, 101, 30).astype(U8), rng.integers(97, 101, 25).astype(U8)
    result = zeros(1, dtype=I32)
    table = np.zeros((31, 26), I64)
    table[:, 0], table[0] = np.arange(31), np.arange(26)
    common, local = np.zeros((31, 26), I64), np.zeros((31, 26), I64)
    for i, j in itertools.product(range(1, 31), range(1, 26)):
        same = a[i - 1] == b[j - 1]
        table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (not same))
        common[i, j] = max(common[i - 1, j], common[i, j - 1], common[i - 1, j - 1] + same)
        local[i, j] = max(0, local[i - 1, j] - 2, local[i, j - 1] - 2, local[i - 1, j - 1] + (3 if same else -2))
    yield Case("edit_distance", 1, 32, [a, b, result, 30, 25], {2: table[-1, -1:]})
    yield Case("common_subsequence", 1, 32, [a.astype(I32), b.astype(I32), result, 30, 25], {2: common[-1, -1:]})
    yield Case("local_alignment", 1, 32, [a, b, result, 30, 25], {2: [local.max()]})
    weight, value = (rng.integers(1, 30, 12).astype(I32) for _ in range(2))
    best = np.zeros(101, I64)
    for w, gain in zip(weight, value, strict=True):
        best[w:] = np.maximum(best[w:], best[:-w] + gain)
    yield Case("knapsack", 1, 128, [weight, value, result, 12, 100], {2: best[-1:]})
    words = rng.integers(-(2**15), 2**15, (3, 32, 2)).astype(np.int16)
    yield Case("pairs_of_halfwords", 1, 32, [*words, words[0] * 0], {3: words.max(0)})
    start, step, seen = (rng.standard_normal(shape).astype(F32) for shape in (16, (16, 16), (20, 16)))
    score, back = start + seen[0], []
    for k in range(1, 20):
        ways = score[:, None] + step
        back.append(ways.argmax(0))
        score = ways.max(0) + seen[k]
    path = [int(score.argmax())]
    for who in reversed(back):
        path.append(int(who[path[-1]]))
    yield Case("likeliest_path", 1, 16, [start, step, seen, zeros(20, dtype=I32), 16, 20], {3: path[::-1]})
    size, n = rng.integers(1, 20, 11).astype(I32), 10
    cost = np.zeros((n, n), I64)
    for length, i in itertools.product(range(1, n), range(n)):
        j = i + length
        if j < n:
            cost[i, j] = min(cost[i, k] + cost[k + 1, j] + size[i] * size[k + 1] * size[j + 1] for k in range(i, j))
    yield Case("chain_of_matrices", 1, n, [size, result, n], {1: [cost[0, -1]]}, shared=400)


@family
def images(rng: np.random.Generator) -> Cases:
    pixels = rng.integers(0, 256, (100, 3)).astype(U8)
    gray = (pixels.astype(I32) @ [77, 150, 29] + 128) >> 8
    yield Case("to_gray", 2, 64, [pixels, zeros(100, dtype=U8), 100], {1: gray})
    x = rng.integers(0, 99, (16, 20)).astype(I32)
    yield Case("integral_rows", 1, 16, [x, x * 0, 20], {1: x.cumsum(1)})
    cy, cx = np.meshgrid(-1.5 + 3.0 * np.arange(24) / 24, -2.0 + 3.0 * np.arange(24) / 24, indexing="ij")
    a, b, count = cx * 0, cx * 0, np.zeros((24, 24), I32)
    for _ in range(40):
        inside = a * a + b * b <= 4
        count += inside
        a, b = np.where(inside, a * a - b * b + cx, a), np.where(inside, 2 * a * b + cy, b)
    yield Case("mandelbrot", 24, 24, [zeros(24, 24, dtype=U8), 24, 40], {0: count})
    square = rng.integers(0, 2**32, (20, 20)).astype(U32)
    yield Case("rotate_by_a_quarter", 20, 20, [square, square * 0, 20], {1: np.rot90(square, -1)})
    dark = rng.integers(0, 80, 500).astype(U8)
    ranks = np.bincount(dark, minlength=256).cumsum()
    yield Case("equalize", 1, 256, [dark, dark * 0, 500], {1: ranks[dark] * 255 // 500})
    light = rng.random((12, 20)).astype(F32)
    order = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
    limits = np.tile(order, (3, 5)) + 0.5
    yield Case("ordered_dither", 12, 20, [light, zeros(12, 20, dtype=U8), 20], {1: light * 16 > limits})
    points = rng.integers(0, 24, (6, 2)).astype(U8)
    rows, columns = np.mgrid[0:24, 0:24]
    distances = np.hypot(columns[..., None] - points[:, 0].astype(I32), rows[..., None] - points[:, 1].astype(I32)).min(
        2
    )
    yield Case("distance_to_set", 24, 24, [points, zeros(24, 24), 6, 24], {1: distances})
    bodies = rng.random((64, 4)).astype(F32)
    apart = bodies[None, :, :3].astype(F64) - bodies[:, None, :3]
    pulls = bodies[:, 3] * ((apart**2).sum(2) + 0.01) ** -1.5
    forces = np.concatenate([(apart * pulls[..., None]).sum(1), np.zeros((64, 1))], 1)
    yield Case("bodies", 2, 32, [bodies, bodies * 0, 64], {1: forces}, 1e-5)
    places, centres = rng.standard_normal((96, 2)).astype(F32), rng.standard_normal((4, 2)).astype(F32)
    which = ((places[:, None].astype(F64) - centres) ** 2).sum(2).argmin(1)
    sums = [[*places[which == k].sum(0), (which == k).sum()] for k in range(4)]
    yield Case(
        "nearest_centre", 3, 32, [places, centres, zeros(96, dtype=I32), zeros(4, 3), 4], {2: which, 3: sums}, 1e-5
    )
    spot, strike = rng.uniform(50, 150, (2, 64)).astype(F32)
    s, k = spot.astype(F64), strike.astype(F64)
    d1 = (np.log(s / k) + (0.05 + 0.02) * 0.5) / (0.2 * math.sqrt(0.5))
    below, above = (0.5 * (1 + erf(d / math.sqrt(2))) for d in (d1, d1 - 0.2 * math.sqrt(0.5)))
    calls = s * below - k * math.exp(-0.025) * above
    yield Case("option_price", 1, 64, [spot, strike, zeros(64), 0.05, 0.2, 0.5], {2: calls}, 2e-5)


def _cases() -> Iterator[tuple[str, Case]]:
    for name, make in FAMILIES.items():
        for case in make(np.random.default_rng(zlib.crc32(name.encode()))):
            yield name, case


CASES = list(_cases())


@functools.cache
def loaded(name: str) -> Device:
    """All kernels of a family, compiled once."""
    return Device(compile_ptx((FOLDER / f"{name}.cu").read_text()))


def run(name: str, case: Case) -> tuple[list[Any], LaunchReport]:
    """The arguments after the launch, and its report. Only memory that no case shares is written."""
    arguments = [a.copy() if isinstance(a, np.ndarray) else a for a in case.arguments]
    launched = loaded(name).run(
        case.grid, case.block, *arguments, kernel=case.kernel, shared=case.shared, **case.options
    )
    return arguments, launched


def counters(name: str, case: Case, launched: LaunchReport) -> dict[str, float]:
    """Metrics that depend on addresses alone, and so have one right value."""
    entry = loaded(name).machine.entries[case.kernel]
    counts = KernelCounts(case.kernel, launched.grid, launched.block, case.shared, entry.static_shared_bytes)
    add_launch(counts, [launched], CacheCounts(), 0.0, 0.0, ran=launched.ctas_run)
    metrics = {metric.name: metric.value for metric in summed_metrics([counts])}
    return {metric: metrics.get(OTHER_NAMES.get(metric, metric), 0.0) for metric in COMPARED}


@pytest.mark.slow
@pytest.mark.one_in(14)
@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case.kernel}" for name, case in CASES])
def test_a_kernel_computes_what_numpy_does_and_counts_what_an_h100_does(name: str, case: Case) -> None:
    after, launched = run(name, case)
    measured = MEASURED[f"{name}/{case.kernel}"]
    differ = {
        metric: (value, measured[metric])
        for metric, value in counters(name, case, launched).items()
        if value != measured[metric]
    }
    assert bool(differ) == (f"{name}/{case.kernel}" in OTHERWISE), f"(emulated, H100): {differ}"
    for position, expected in case.want.items():
        got, want = after[position], np.asarray(expected)
        assert got.shape == want.shape
        if got.dtype.kind in "fc":
            assert np.isfinite(want).all()
            bound = case.tolerance * (np.abs(want) + np.abs(want).max())
            worst = np.abs(got.astype(np.complex128) - want) - bound
            assert (worst <= 0).all(), f"argument {position}: {got.ravel()[:8]} instead of {want.ravel()[:8]}"
        else:
            assert np.array_equal(got, want.astype(got.dtype)), f"argument {position}"


def test_equal_keys_share_a_slot_of_the_hash_table() -> None:
    (case,) = (case for name, case in CASES if case.kernel == "hash_table")
    (keys, table, slot, _), _ = run("atomics", case)
    assert np.array_equal(table[slot], keys)
    assert np.array_equal(np.sort(table[table != 2**32 - 1]), np.unique(keys))


def test_every_kernel_of_the_folder_has_a_case() -> None:
    kernel = re.compile(r'extern "C" __global__ void (?:__\w+__\([^()]*\) )*(\w+)\(')
    written = {(file.stem, name) for file in FOLDER.glob("*.cu") for name in kernel.findall(file.read_text())}
    assert written == {(name, case.kernel) for name, case in CASES}
    assert len(CASES) == len(written) >= 180
