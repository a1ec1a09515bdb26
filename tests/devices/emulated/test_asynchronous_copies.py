"""``cp.async``: its data arrives in shared memory when the thread waits for it, and not before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda, total

COPY = """
__device__ void copy(void* to, const void* from, int bytes = 16) {
  unsigned address = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(bytes));
}
#define COMMIT asm volatile("cp.async.commit_group;")
#define WAIT(n) asm volatile("cp.async.wait_group " #n ";")
#define WAIT_ALL asm volatile("cp.async.wait_all;")
"""
TILES = (
    COPY
    + """
extern "C" __global__ void k(const float4* x, float* y, int tiles) {
  __shared__ float4 s[2][128];
  int t = threadIdx.x;
  float sum = 0;
  copy(&s[0][t], x + t);
  COMMIT;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) copy(&s[(tile + 1) & 1][t], x + (tile + 1) * 128 + t);
    COMMIT;
    WAIT(1);
    __syncthreads();
    float4 v = s[tile & 1][127 - t];
    sum += v.x + v.y + v.z + v.w;
    __syncthreads();
  }
  y[t] = sum;
}"""
)
X = np.random.default_rng(3).integers(1, 9, (5, 128, 4)).astype(np.float32)
RIGHT = X.sum((0, 2))[::-1]


@pytest.mark.slow
def test_a_pipeline_of_tiles_gets_its_values_and_is_counted() -> None:
    y = np.zeros(128, np.float32)
    report = cuda(TILES).run(1, 128, X, y, 5, racecheck=True)
    assert np.array_equal(y, RIGHT)
    copied = 5 * 128 * 16
    assert total(report, "transactions", "global", "load") == copied // 32
    stores = [op for op in report.memory if (op.space, op.access) == ("shared", "store")]
    assert sum(op.threads for op in stores) == 5 * 128
    assert sum(op.transactions for op in stores) == copied // 128


@pytest.mark.parametrize("poison", [0xFF, 0x5A])
@pytest.mark.parametrize("tiles", [1, 5])
def test_tiles_that_nobody_waits_for_are_poison(poison: int, tiles: int) -> None:
    y = np.zeros(128, np.float32)
    cuda(TILES.replace("WAIT(1);", "")).run(1, 128, X, y, tiles, poison=poison)
    value = np.full(1, poison * 0x01010101, np.uint32).view(np.float32)
    assert np.array_equal(y, np.full(128, 4 * tiles * value), equal_nan=True)


@pytest.mark.slow
def test_a_group_arrives_at_the_wait_that_covers_it() -> None:
    """Groups of one copy each; what a wait leaves pending is still poison, and so is what was never committed."""
    source = (
        COPY
        + """
extern "C" __global__ void k(const float4* x, float* y) {
  __shared__ float4 s[4][32];
  int t = threadIdx.x;
  for (int k = 0; k < 4; ++k) { copy(&s[k][t], x + 32 * k + t); if (k < 3) COMMIT; }
  WAITS
  for (int k = 0; k < 4; ++k) y[32 * k + t] = s[k][t].x;
}"""
    )
    for waits, arrived in (
        ("", 0), ("WAIT(3);", 0), ("WAIT(2);", 1), ("WAIT(1);", 2), ("WAIT(0);", 3), ("COMMIT; WAIT(0);", 4),
        ("WAIT_ALL;", 4), ("COMMIT; COMMIT; WAIT(2);", 3), ("if (t < 0) WAIT_ALL;", 0),
    ):  # fmt: skip
        y = np.zeros((4, 32), np.float32)
        cuda(source.replace("WAITS", waits)).run(1, 32, X[0], y)
        assert np.isnan(y).all(1).tolist() == [k >= arrived for k in range(4)], waits
        assert np.array_equal(y[:arrived], X[0, :, 0].reshape(4, 32)[:arrived])


def test_each_thread_waits_for_its_own_copies() -> None:
    source = (
        COPY
        + """
extern "C" __global__ void k(const float4* x, float* y, const int* waits) {
  __shared__ float4 s[32];
  int t = threadIdx.x;
  if (t % 3) copy(&s[t], x + t);
  COMMIT;
  asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p cp.async.wait_group 0;}" :: "r"(waits[t]));
  if (t % 3) y[t] = s[t].y;
}"""
    )
    y, waits = np.zeros(32, np.float32), (np.arange(32) % 2).astype(np.int32)
    cuda(source).run(1, 32, X[0], y, waits)
    copied = np.arange(32) % 3 > 0
    assert np.array_equal(np.isnan(y), copied & (waits == 0))
    assert np.array_equal(y[copied & (waits == 1)], X[0, :32, 1][copied & (waits == 1)])


def test_bytes_beyond_the_source_arrive_as_zeros() -> None:
    source = (
        COPY
        + """
extern "C" __global__ void k(const float4* x, float4* y) {
  __shared__ float4 s[32];
  copy(&s[threadIdx.x], x + threadIdx.x, 4 * (threadIdx.x % 5));
  WAIT_ALL;
  y[threadIdx.x] = s[threadIdx.x];
}"""
    )
    y = np.zeros((32, 4), np.float32)
    cuda(source).run(1, 32, X[0], y)
    assert np.array_equal(y, np.where(np.arange(4) < np.arange(32)[:, None] % 5, X[0, :32], 0))


def test_more_copies_than_are_kept_all_arrive() -> None:
    source = (
        COPY
        + """
extern "C" __global__ void k(const float4* x, float* y, int rounds) {
  __shared__ float4 s[2][32];
  for (int k = 0; k < rounds; ++k) { copy(&s[k & 1][threadIdx.x], x + k % 16 * 32 + threadIdx.x); COMMIT; }
  WAIT(0);
  y[threadIdx.x] = s[0][threadIdx.x].x + s[1][threadIdx.x].x;
}"""
    )
    y = np.zeros(32, np.float32)
    cuda(source).run(1, 32, X, y, 700)
    last = X.reshape(20, 32, 4)[[698 % 16, 699 % 16], :, 0]
    assert np.array_equal(y, last.sum(0))


def test_a_wait_is_no_barrier_for_other_warps() -> None:
    source = TILES.replace("WAIT(1);\n    __syncthreads();", "__syncthreads();\n    WAIT(1);")
    report = cuda(source).run(1, 128, X, np.zeros(128, np.float32), 5, clean=False, racecheck=True)
    assert {fault.kind for fault in report.faults} == {"shared_race"}


def test_a_second_block_starts_without_copies_of_the_first() -> None:
    source = (
        COPY
        + """
extern "C" __global__ void k(const float4* x, float* y) {
  __shared__ float4 s[32];
  int t = threadIdx.x;
  if (blockIdx.x == 0) copy(&s[t], x + t);
  COMMIT;
  if (blockIdx.x == 1) { s[t].x = 7; WAIT(0); y[t] = s[t].x; }
}"""
    )
    y = np.zeros(32, np.float32)
    cuda(source).run(2, 32, X[0], y)
    assert (y == 7).all()
