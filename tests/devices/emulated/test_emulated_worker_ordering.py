"""The modelled time orders kernels that differ several-fold on any GPU, and names what binds them."""

import pytest

from kernelforge.hardware.specs import A100, H100
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import Performance
from tests.devices.emulated.emulated_plans import REGISTERS, Array, facts, randoms, resolve, runner, work

MATMULS = """
extern "C" __global__ void scattered(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.x * 16 + threadIdx.x, col = blockIdx.y * 16 + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + col];
  c[row * n + col] = sum;
}
extern "C" __global__ void coalesced(const float* a, const float* b, float* c, int n) {
  int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + col];
  c[row * n + col] = sum;
}
extern "C" __global__ void tiled(const float* a, const float* b, float* c, int n) {
  __shared__ float as[16][64], bs[16][64];
  int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
  float sum[4][4] = {};
  for (int k0 = 0; k0 < n; k0 += 16) {
    for (int i = t; i < 1024; i += 256) {
      as[i % 16][i / 16] = a[(blockIdx.y * 64 + i / 16) * n + k0 + i % 16];
      bs[i / 64][i % 64] = b[(k0 + i / 64) * n + blockIdx.x * 64 + i % 64];
    }
    __syncthreads();
    for (int k = 0; k < 16; ++k)
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sum[i][j] += as[k][ty * 4 + i] * bs[k][tx * 4 + j];
    __syncthreads();
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) c[(blockIdx.y * 64 + ty * 4 + i) * n + blockIdx.x * 64 + tx * 4 + j] = sum[i][j];
}
"""


def timed(source: str, plan: str, *arrays: Array, spec=H100) -> Performance:  # type: ignore[no-untyped-def]
    resolved = resolve(plan, arrays)
    counts = runner(source, spec=spec).profile(work(resolved, arrays, poison=0))
    registers = dict.fromkeys(resolved.expressions, REGISTERS)
    return build_profile(spec, f"emulated:{spec.key}", counts, registers, facts(resolved, arrays, 1))[1]


def matmul(kernel: str, tile: int, spec=H100) -> Performance:  # type: ignore[no-untyped-def]
    plan = f"""
def forward(a, b):
    n = a.shape[0]
    c = empty_like(a)
    {kernel}[(n // {tile}, n // {tile}), (16, 16)](a, b, c, i32(n))
    return c
"""
    return timed(MATMULS, plan, randoms(1024, 1024), randoms(1024, 1024), spec=spec)


@pytest.mark.slow
def test_a_tiled_matmul_is_several_times_faster_than_a_scattered_one() -> None:
    scattered, coalesced, tiled = matmul("scattered", 16), matmul("coalesced", 16), matmul("tiled", 64)
    assert scattered.time_us > coalesced.time_us > tiled.time_us
    assert scattered.time_us > 4 * tiled.time_us
    assert scattered.bound in ("l1", "l2")
    assert tiled.bound in ("fp32", "issue", "shared", "latency")


@pytest.mark.slow
def test_no_matmul_is_faster_than_its_arithmetic() -> None:
    for spec in (H100, A100):
        assert matmul("tiled", 64, spec).time_us > 2 * 1024**3 / spec.fp32_flops_per_s * 1e6


SUMS = """
extern "C" __global__ void by_thread(const float* x, float* out, int d) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int i = 0; i < d; ++i) sum += x[(long long)row * d + i];
  out[row] = sum;
}
extern "C" __global__ void by_warp(const float* x, float* out, int d) {
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  float sum = 0;
  for (int i = threadIdx.x % 32; i < d; i += 32) sum += x[(long long)row * d + i];
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
  if (threadIdx.x % 32 == 0) out[row] = sum;
}
"""


@pytest.mark.slow
def test_a_row_sum_by_warps_is_faster_than_by_threads_and_bound_by_dram() -> None:
    plan = """
def forward(x):
    n, d = x.shape
    out = empty((n,), x.dtype)
    KERNEL[n * THREADS // 256, 256](x, out, i32(d))
    return out
"""
    x = randoms(8192, 2048)
    slow = timed(SUMS, plan.replace("KERNEL", "by_thread").replace("THREADS", "1"), x)
    fast = timed(SUMS, plan.replace("KERNEL", "by_warp").replace("THREADS", "32"), x)
    assert slow.time_us > 2 * fast.time_us
    assert fast.bound == "dram"
