"""Declared features work; others are refused as unsupported, never as the candidate's mistake."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from kernelforge.devices.base import Device, RunResult
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, Array, Make, floats, randoms, request

GRID_SYNC = """
#include <cooperative_groups.h>
extern "C" __global__ void turn(const float* x, float* middle, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) middle[i] = x[i] + 1.0f;
  cooperative_groups::this_grid().sync();
  if (i < n) out[i] = middle[n - 1 - i];
}
"""
GRID_SYNC_PLAN = """
def forward(x):
    n = x.numel()
    middle = empty_like(x)
    out = empty_like(x)
    turn[ceil_div(n, 128), 128](x, middle, out, i32(n), cooperative=True)
    return out
"""

CLUSTER = """
extern "C" __global__ void swap(const float* x, float* out) {
  __shared__ float mine;
  unsigned rank, theirs;
  float value;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) mine = x[blockIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");
  unsigned address = (unsigned)__cvta_generic_to_shared(&mine);
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(address), "r"(rank ^ 1));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
  asm volatile("barrier.cluster.arrive.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) out[blockIdx.x] = value;
}
"""
"""Pairs of blocks exchange a value through each other's shared memory."""
CLUSTER_PLAN = """
def forward(x):
    out = empty_like(x)
    swap[x.numel(), 32](x, out, cluster=(2, 1, 1))
    return out
"""

TILE = """
extern "C" __global__ void tile(const __grid_constant__ CUtensorMap map, float* out) {
  __shared__ alignas(128) float box[8 * 16];
  __shared__ alignas(8) unsigned long long arrived;
  unsigned barrier = (unsigned)__cvta_generic_to_shared(&arrived);
  unsigned target = (unsigned)__cvta_generic_to_shared(box);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(512) : "memory");
    asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      :: "r"(target), "l"(&map), "r"(16), "r"(24), "r"(barrier) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p;\\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\\n selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier) : "memory");
  out[threadIdx.x] = box[threadIdx.x];
}
"""
"""One box of 8 x 16 elements from row 24, column 16; its last rows lie outside."""
TILE_PLAN = """
def forward(x):
    out = empty((8, 16))
    tile[1, 128](tensor_map(x, box=(8, 16)), out)
    return out
"""


COLUMN = (
    TILE.replace("2d.shared::cluster.global.tile", "4d.shared::cluster.global.im2col")
    .replace("[%1, {%2, %3}], [%4];", "[%1, {%2, %3, %4, %5}], [%6], {%7, %8};")
    .replace('"r"(16), "r"(24), "r"(barrier)',
             '"r"(8), "r"(0), "r"(1), "r"(0), "r"(barrier), "h"((short)1), "h"((short)2)')
)  # fmt: skip
"""Sixteen pixels of channels 8 to 15, from position (1, 0) of the first image on, at the place (2, 1) of a filter."""
COLUMN_PLAN = """
def forward(x):
    out = empty((16, 8))
    tile[1, 128](tensor_map(x, box=(16, 8), lower=(-1, 0), upper=(-1, -1), stride=(2, 1)), out)
    return out
"""


def ran(device: Device, make: Make, source: str, text: str, *arrays: Array, library: tuple[str, ...] = ()) -> RunResult:
    plan, artifact = make(source, text, *arrays, library=library)
    with device.open(artifact) as session:
        return session.run(request(plan, *arrays))


def declared(device: Device, result: RunResult, *, capability: str) -> bool:
    """Whether the device declares it; if not, the run must have said that it cannot."""
    assert capability in {field.name for field in fields(device.capabilities)}
    if getattr(device.capabilities, capability):
        assert result.faults == ()
        return True
    assert result.outputs == ()
    assert [fault.kind for fault in result.faults] == ["unsupported"]
    assert result.faults[0].message
    return False


@pytest.mark.slow
def test_cooperative_launches(device: Device, make: Make) -> None:
    x = randoms(1000)
    result = ran(device, make, GRID_SYNC, GRID_SYNC_PLAN, x)
    if declared(device, result, capability="cooperative"):
        np.testing.assert_array_equal(floats(result.outputs[0]), (x + 1)[::-1])


@pytest.mark.slow
def test_thread_block_clusters(device: Device, make: Make) -> None:
    x = randoms(8)
    result = ran(device, make, CLUSTER, CLUSTER_PLAN, x)
    if declared(device, result, capability="clusters"):
        np.testing.assert_array_equal(floats(result.outputs[0]), x.reshape(4, 2)[:, ::-1].reshape(-1))


def test_tensor_maps(device: Device, make: Make) -> None:
    x = randoms(30, 64)
    result = ran(device, make, TILE, TILE_PLAN, x)
    if declared(device, result, capability="tensor_maps"):
        expected = np.zeros((8, 16), np.float32)
        expected[:6] = x[24:30, 16:32]
        np.testing.assert_array_equal(floats(result.outputs[0]).reshape(8, 16), expected)


def test_tensor_maps_of_images(device: Device, make: Make) -> None:
    x = randoms(3, 6, 4, 24)
    result = ran(device, make, COLUMN, COLUMN_PLAN, x)
    if declared(device, result, capability="tensor_maps"):
        windows = [(n, row, column) for n in range(3) for row in (-1, 1, 3) for column in (0, 1, 2)]
        padded = np.zeros((3, 9, 5, 24), np.float32)
        padded[:, 1:7, :4] = x
        expected = [padded[n, row + 3, column + 1, 8:16] for n, row, column in windows[3:19]]
        np.testing.assert_array_equal(floats(result.outputs[0]).reshape(16, 8), expected)


@pytest.mark.slow
def test_library_calls(device: Device, make: Make) -> None:
    a, b = randoms(12, 12), randoms(12, 12, seed=1)
    result = ran(device, make, ADD, plans.LIBRARY_PLAN, a, b, library=("matmul",))
    if declared(device, result, capability="library"):
        np.testing.assert_allclose(floats(result.outputs[0]).reshape(12, 12), a @ b + a, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", [GRID_SYNC_PLAN, GRID_SYNC_PLAN.replace("ceil_div(n, 128)", "100000")])
def test_a_cooperative_grid_that_does_not_fit_at_once_is_refused(device: Device, make: Make, text: str) -> None:
    if not device.capabilities.cooperative:
        pytest.skip(f"{device.name} has no cooperative launches")
    result = ran(device, make, GRID_SYNC, text, randoms(1000))
    assert bool(result.faults) == ("100000" in text)
    assert all(fault.kind == "crash" for fault in result.faults)
