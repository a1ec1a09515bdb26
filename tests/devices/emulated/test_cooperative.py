"""Cooperative launches: all blocks of a grid side by side, ``grid.sync()``, and blocks that never arrive."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated import harness

SOURCE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void relax(float* a, float* b, int n, int rounds) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int r = 0; r < rounds; ++r) {
    if (i < n) b[i] = 0.25f * a[i ? i - 1 : n - 1] + 0.5f * a[i] + 0.25f * a[i + 1 < n ? i + 1 : 0];
    cg::this_grid().sync();
    float* c = a; a = b; b = c;
  }
}

extern "C" __global__ void total(const float* x, float* sums, float* out, int n) {
  extern __shared__ float part[];
  auto grid = cg::this_grid();
  float sum = 0;
  for (unsigned long long i = grid.thread_rank(); i < n; i += grid.num_threads()) sum += x[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int step = blockDim.x / 2; step; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (threadIdx.x == 0) sums[block] = part[0];
  grid.sync();
  if (threadIdx.x == 0) {
    float all = 0;
    for (int k = 0; k < grid.num_blocks(); ++k) all += sums[k];
    out[block] = all;
  }
}

extern "C" __global__ void leaves(float* out) {
  if (blockIdx.x == 2) return;
  cg::this_grid().sync();
  out[blockIdx.x] = 1;
}

extern "C" __global__ void counter(unsigned* count, unsigned* out) {
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(count, 1);
    while (*(volatile unsigned*)count < gridDim.x) {}
    out[blockIdx.x] = *(volatile unsigned*)count;
  }
}

extern "C" __global__ void patient(unsigned* flag, unsigned* out) {
  if (threadIdx.x == 0) {
    if (blockIdx.x == gridDim.x - 1) {
      unsigned x = 1;
      for (int k = 0; k < 100000; ++k) x = x * 1664525 + 1013904223;
      *(volatile unsigned*)flag = x | 1;
    }
    while (*(volatile unsigned*)flag == 0) {}
    out[blockIdx.x] = 1;
  }
}
"""

DEPENDENT = """
extern "C" __global__ void dependent(const float* x, float* out) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  out[threadIdx.x] = 2 * x[threadIdx.x];
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
"""


@pytest.fixture(scope="module")
def device() -> harness.Device:
    return harness.cuda(SOURCE)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "rounds"), [(1000, 3), (64, 1), (5000, 4)])
def test_every_block_sees_what_all_blocks_wrote_before_the_barrier(device: harness.Device, n: int, rounds: int) -> None:
    a = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    b = np.zeros_like(a)
    expected = a.astype(np.float64)
    for _ in range(rounds):
        expected = 0.25 * np.roll(expected, 1) + 0.5 * expected + 0.25 * np.roll(expected, -1)
    device.run(-(-n // 64), 64, a, b, n, rounds, kernel="relax", cooperative=True)
    np.testing.assert_allclose(b if rounds % 2 else a, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("grid", [(1, 1, 1), (7, 1, 1), (3, 2, 2)])
def test_grids_of_any_shape_meet(device: harness.Device, grid: tuple[int, int, int]) -> None:
    x = np.random.default_rng(1).standard_normal(3001).astype(np.float32)
    blocks = int(np.prod(grid))
    sums, out = np.zeros(blocks, np.float32), np.zeros(blocks, np.float32)
    device.run(grid, 128, x, sums, out, x.size, kernel="total", shared=512, cooperative=True)
    np.testing.assert_allclose(out, np.full(blocks, x.astype(np.float64).sum()), rtol=1e-4, atol=1e-3)


def test_two_launches_give_the_same_bytes_and_counters(device: harness.Device) -> None:
    x = np.random.default_rng(2).standard_normal(2000).astype(np.float32)
    reports, results = [], []
    for variation in (0, 0, 7):
        sums, out = np.zeros(9, np.float32), np.zeros(9, np.float32)
        reports.append(
            device.run(9, 64, x, sums, out, x.size, kernel="total", shared=256, cooperative=True, variation=variation)
        )
        results.append(out.tobytes())
    assert results[0] == results[1] == results[2]
    assert reports[0].mix == reports[1].mix
    assert reports[0].memory == reports[1].memory


def test_a_block_that_waits_is_counted_as_a_few_polls(device: harness.Device) -> None:
    x = np.ones(640, np.float32)
    report = device.run(64, 32, x, np.zeros(64, np.float32), np.zeros(64, np.float32), x.size, kernel="total",
                        shared=128, cooperative=True)  # fmt: skip
    polls = [op for op in report.memory if op.opcode.startswith("ld.acquire")]
    assert [op.space for op in polls] == ["global"]
    assert 64 <= polls[0].requests <= 3 * 64


def test_a_grid_barrier_of_the_kernels_own_works(device: harness.Device) -> None:
    count, out = np.zeros(1, np.uint32), np.zeros(2000, np.uint32)
    device.run(2000, 32, count, out, kernel="counter", cooperative=True)
    assert (out == 2000).all()


def test_a_block_that_leaves_early_is_a_fault(device: harness.Device) -> None:
    report = device.run(8, 32, np.zeros(8, np.float32), kernel="leaves", cooperative=True, clean=False)
    assert [fault.kind for fault in report.faults] == ["grid_deadlock"]
    assert "grid.sync()" in str(report.faults[0])
    assert report.faults[0].block == (0, 0, 0)


def test_a_long_wait_is_no_deadlock(device: harness.Device) -> None:
    flag, out = np.zeros(1, np.uint32), np.zeros(4, np.uint32)
    device.run(4, 32, flag, out, kernel="patient", cooperative=True)
    assert (out == 1).all()


def test_grid_sync_in_an_ordinary_launch_traps(device: harness.Device) -> None:
    report = device.run(8, 32, np.zeros(8, np.float32), kernel="leaves", clean=False)
    assert {fault.kind for fault in report.faults} == {"trap"}


def test_more_blocks_than_the_device_can_hold_are_refused(
    device: harness.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelforge.devices.emulated.errors import EmulatorError
    from kernelforge.devices.emulated.execute import launch

    monkeypatch.setattr(launch, "RESIDENT_BYTES", 1 << 13)
    with pytest.raises(EmulatorError, match="cooperative launch of 64 blocks"):
        device.run(64, 32, np.zeros(64, np.float32), kernel="leaves", cooperative=True)


def test_programmatic_dependent_launch_waits_for_nothing() -> None:
    x, out = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    harness.cuda(DEPENDENT).run(1, 32, x, out)
    np.testing.assert_array_equal(out, 2 * x)
