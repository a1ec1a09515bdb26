"""CUDA features beyond plain C, as NVRTC compiles them: cooperative groups, CUB, half types, big launches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import bank_conflicts, cuda

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def integers(*shape: int) -> np.ndarray:
    return RNG.integers(-1000, 1000, shape).astype(np.int32)


COOPERATIVE_GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
extern "C" __global__ void k(const int* x, int* sums, int* tiles, int* scans, int* coalesced, int* labels) {
  cg::thread_block block = cg::this_thread_block();
  int t = block.thread_rank();
  cg::thread_block_tile<8> tile = cg::tiled_partition<8>(block);
  tiles[t] = cg::reduce(tile, x[t], cg::greater<int>());
  scans[t] = cg::inclusive_scan(tile, x[t]);
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int total = cg::reduce(warp, x[t], cg::plus<int>());
  if (warp.thread_rank() == 0) sums[warp.meta_group_rank()] = total;
  block.sync();
  coalesced[t] = -1;
  if (x[t] > 0) {
    cg::coalesced_group active = cg::coalesced_threads();
    coalesced[t] = active.size() * 100 + active.thread_rank();
  }
  cg::coalesced_group same = cg::labeled_partition(warp, t % 3);
  labels[t] = cg::reduce(same, x[t], cg::plus<int>());
}"""


@pytest.mark.slow
def test_cooperative_groups() -> None:
    x = integers(64)
    sums, tiles, scans, coalesced, labels = (np.zeros(n, np.int32) for n in (2, 64, 64, 64, 64))
    cuda(COOPERATIVE_GROUPS).run(1, 64, x, sums, tiles, scans, coalesced, labels)
    rows = x.reshape(8, 8)
    assert np.array_equal(sums, x.reshape(2, 32).sum(1))
    assert np.array_equal(tiles, rows.max(1).repeat(8))
    assert np.array_equal(scans, rows.cumsum(1).ravel())
    for warp in (0, 1):
        part = slice(32 * warp, 32 * warp + 32)
        positive = x[part] > 0
        want = np.where(positive, positive.sum() * 100 + np.cumsum(positive) - 1, -1)
        assert np.array_equal(coalesced[part], want)
        label = np.arange(32 * warp, 32 * warp + 32) % 3
        assert np.array_equal(labels[part], [x[part][label == k].sum() for k in label])


CUB = """
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
extern "C" __global__ void k(const int* x, int* block_sum, int* scan, int* warp_sum, int valid) {
  using Reduce = cub::BlockReduce<int, 128>;
  using Scan = cub::BlockScan<int, 128>;
  using Warp = cub::WarpReduce<int>;
  __shared__ typename Reduce::TempStorage reduce;
  __shared__ typename Scan::TempStorage scanning;
  __shared__ typename Warp::TempStorage warps[4];
  int t = threadIdx.x, v = x[t], prefix;
  int sum = Reduce(reduce).Sum(v, valid);
  if (t == 0) block_sum[0] = sum;
  Scan(scanning).ExclusiveSum(v, prefix);
  scan[t] = prefix;
  int w = Warp(warps[t / 32]).Sum(v);
  if (t % 32 == 0) warp_sum[t / 32] = w;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("valid", [128, 77])
def test_cub_block_and_warp_primitives(valid: int) -> None:
    x = integers(128)
    block_sum, scan, warp_sum = np.zeros(1, np.int32), np.zeros(128, np.int32), np.zeros(4, np.int32)
    cuda(CUB).run(1, 128, x, block_sum, scan, warp_sum, valid)
    assert block_sum[0] == x[:valid].sum()
    assert np.array_equal(scan, x.cumsum() - x)
    assert np.array_equal(warp_sum, x.reshape(4, 32).sum(1))


def test_warp_functions_with_partial_masks() -> None:
    source = """
    extern "C" __global__ void k(const int* x, int* y) {
      int t = threadIdx.x, v = x[t];
      unsigned half = t < 16 ? 0x0000ffffu : 0xffff0000u;
      int a = 0, b = 0;
      if (t < 16) {
        a = __shfl_xor_sync(half, v, 5);
        b = __reduce_add_sync(half, v);
        __syncwarp(half);
      } else {
        a = __shfl_sync(half, v, 20);
        b = __reduce_max_sync(half, v);
      }
      __syncwarp();
      int c = __popc(__ballot_sync(~0u, v > 0)) + __popc(__match_any_sync(~0u, t & 3)) * 100;
      int d = __shfl_down_sync(~0u, v, 3, 8);
      y[t] = a; y[32 + t] = b; y[64 + t] = c; y[96 + t] = d;
    }"""
    x, y = integers(32), np.zeros((4, 32), np.int32)
    cuda(source).run(1, 32, x, y)
    t = np.arange(32)
    assert np.array_equal(y[0], np.where(t < 16, x[t ^ 5], x[20]))
    assert np.array_equal(y[1], np.where(t < 16, x[:16].sum(), x[16:].max()))
    assert (y[2] == (x > 0).sum() + 800).all()
    assert np.array_equal(y[3], x[np.where(t % 8 < 5, t + 3, t) % 32])


def test_member_masks_that_differ_between_lanes() -> None:
    source = """
    extern "C" __global__ void k(const int* x, const unsigned* members, unsigned* y) {
      int t = threadIdx.x, v = x[t], same;
      unsigned m = members[t];
      y[t] = __ballot_sync(m, v & 1);
      y[32 + t] = __all_sync(m, v > -900) | __any_sync(m, v > 900) << 1 | uniform(m, v & 1) << 2;
      y[64 + t] = __match_any_sync(m, v & 3);
      y[96 + t] = __match_all_sync(m, v & 1, &same) + same;
      y[128 + t] = __reduce_min_sync(m, v);
      y[160 + t] = __reduce_xor_sync(m, (unsigned)v);
    }"""
    x = integers(32)
    x[20:24] |= 1
    groups = [range(7), range(7, 20), range(20, 24), range(24, 32)]
    members, want = np.zeros(32, np.uint32), np.zeros((6, 32), np.uint32)
    for group in groups:
        mask = sum(1 << t for t in group)
        odd = [int(x[t]) & 1 for t in group]
        for t in group:
            members[t] = mask
            want[0, t] = sum(1 << s for s in group if x[s] & 1)
            want[1, t] = int(min(x[group]) > -900) | int(max(x[group]) > 900) << 1 | int(len(set(odd)) == 1) << 2
            want[2, t] = sum(1 << s for s in group if (x[s] ^ x[t]) & 3 == 0)
            want[3, t] = mask + 1 if len(set(odd)) == 1 else 0
            want[4, t] = int(min(x[group])) % 2**32
            want[5, t] = int(np.bitwise_xor.reduce(x[group])) % 2**32
    y = np.zeros((6, 32), np.uint32)
    cuda(UNIFORM + source).run(1, 32, x, members, y)
    assert np.array_equal(y, want)


UNIFORM = """
__device__ int uniform(unsigned m, int v) {
  int r;
  asm volatile("{.reg .pred p, q; setp.ne.s32 p, %1, 0; vote.sync.uni.pred q, p, %2; selp.s32 %0, 1, 0, q;}"
               : "=r"(r) : "r"(v), "r"(m));
  return r;
}
"""


def test_atomic_sums_of_halves_are_rounded_once() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(__half* h, const __half* x, __nv_bfloat16* b, const __nv_bfloat16* y) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(h + i, x[i]);
      atomicAdd(b + i, y[i]);
    }"""
    n = 1 << 14
    h, x, b, y = (RNG.integers(0, 1 << 16, n).astype(np.uint16) for _ in range(4))
    x[::2] = h[::2] ^ RNG.integers(0, 1 << 12, n // 2).astype(np.uint16)
    y[::2] = b[::2] ^ RNG.integers(0, 1 << 10, n // 2).astype(np.uint16)
    with np.errstate(all="ignore"):
        half = h.view(np.float16) + x.view(np.float16)
        wide = (b.astype(np.uint32) << 16).view(np.float32) + (y.astype(np.uint32) << 16).view(np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    brain = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    cuda(source).run(n // 128, 128, h, x, b, y)
    number = ~np.isnan(half)
    assert np.array_equal(h[number], half.view(np.uint16)[number])
    assert np.isnan(h.view(np.float16)[~number]).all()
    number = ~np.isnan(wide)
    assert np.array_equal(b[number], brain[number])


def test_atomics_on_floating_point_and_by_compare_and_swap() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __device__ float float_max(float* at, float v) {
      int* bits = (int*)at;
      int old = *bits, seen;
      do {
        seen = old;
        old = atomicCAS(bits, seen, __float_as_int(fmaxf(v, __int_as_float(seen))));
      } while (seen != old);
      return __int_as_float(old);
    }
    extern "C" __global__ void k(const float* x, float* f, double* d, __half2* h, __half* h1, __nv_bfloat162* b) {
      int t = blockIdx.x * blockDim.x + threadIdx.x;
      __shared__ float s;
      if (threadIdx.x == 0) s = 0;
      __syncthreads();
      atomicAdd(&s, x[t]);
      atomicAdd(f, x[t]);
      atomicAdd(d, (double)x[t]);
      float_max(f + 1, x[t]);
      atomicAdd(h, __floats2half2_rn(1.0f, 2.0f));
      atomicAdd(h1, __float2half(0.5f));
      atomicAdd(b, __floats2bfloat162_rn(1.0f, 2.0f));
      __syncthreads();
      if (threadIdx.x == 0) atomicAdd(f + 2, s);
    }"""
    x, f, d = normal(128), np.zeros(3, np.float32), np.zeros(1)
    f[1] = -np.inf
    h, h1, b = np.zeros(2, np.float16), np.zeros(2, np.float16), np.zeros(2, np.uint16)
    cuda(source).run(2, 64, x, f, d, h, h1, b)
    assert np.isclose(f[0], x.sum(), atol=1e-4)
    assert np.isclose(f[2], x.sum(), atol=1e-4)
    assert f[1] == x.max()
    assert np.isclose(d[0], x.sum(dtype=np.float64))
    assert h.tolist() == [128, 256]
    assert h1.tolist() == [64, 0]
    assert (b.astype(np.uint32) << 16).view(np.float32).tolist() == [128, 256]


@pytest.mark.slow
def test_half_and_bfloat16_elementwise() -> None:
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k(const __half* a, const __nv_bfloat16* b, __half* h, __nv_bfloat16* g, float* f,
                                 int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (2 * i + 1 < n) {
        __half2 x = reinterpret_cast<const __half2*>(a)[i];
        __half2 y = __hmul2(__hadd2(x, __float2half2_rn(1.5f)), __hmax2(x, __half2half2(__float2half(0.25f))));
        reinterpret_cast<__half2*>(h)[i] = __hgt2(y, __float2half2_rn(0.0f)).x != __half(0) ? y : __hneg2(y);
        __nv_bfloat162 z = reinterpret_cast<const __nv_bfloat162*>(b)[i];
        reinterpret_cast<__nv_bfloat162*>(g)[i] = __hfma2(z, z, z);
        float2 w = __half22float2(x);
        f[2 * i] = w.x + __bfloat162float(z.x);
        f[2 * i + 1] = w.y * __low2float(z) + __half2float(hexp(x.y)) + __half2float(h2rcp(__half2half2(__half(2))).x);
      }
    }"""
    n = 200
    a = normal(n).astype(np.float16)
    b = (normal(n).view(np.uint32) >> 16).astype(np.uint16)
    wide = (b.astype(np.uint32) << 16).view(np.float32)
    h, g, f = np.zeros(n, np.float16), np.zeros(n, np.uint16), np.zeros(n, np.float32)
    cuda(source).run(1, 128, a, b, h, g, f, n)
    y = (a + np.float16(1.5)) * np.maximum(a, np.float16(0.25))
    y = np.where((y[::2] > 0).repeat(2), y, -y)
    assert np.array_equal(h, y)
    exact = wide.astype(np.float64) ** 2 + wide
    got = (g.astype(np.uint32) << 16).view(np.float32)
    assert np.all(np.abs(got - exact) <= np.abs(exact) * 2.0**-8)
    assert np.array_equal(f[::2], a[::2].astype(np.float32) + wide[::2])
    second = a[1::2].astype(np.float32)
    exponential = np.exp(second)
    assert np.all(np.abs(f[1::2] - (second * wide[::2] + exponential + 0.5)) <= 1e-6 + exponential * 2.0**-10)


def test_switches_tables_and_functions_that_stay_calls() -> None:
    source = """
    __constant__ int weights[4][3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {10, 11, 12}};
    struct Point { short x; char tag; float y; double z; };
    __device__ __noinline__ double along(Point p, int scale) { return p.x * scale + p.y - p.z + p.tag; }
    __device__ __noinline__ int route(int op, int v) {
      switch (op) {
        case 0: return v + 1;
        case 1: return v * v;
        case 2: return ~v;
        case 3: return v << 3;
        case 4: return v % 7;
        case 5: return __clz(v);
        case 6: return v / 3;
        case 7: return __brev(v);
        case 8: return v ^ 0x55;
        default: return -v;
      }
    }
    extern "C" __global__ void __launch_bounds__(64, 2) k(Point p, const int* op, int* y, double* d) {
      int t = threadIdx.x;
      y[t] = route(op[t], t + 100) + weights[t & 3][op[t] % 3];
      d[t] = along(p, t);
    }"""
    op, y, d = RNG.integers(0, 11, 64).astype(np.int32), np.zeros(64, np.int32), np.zeros(64)
    point = np.array(
        [(-7, 5, 2.5, 0.125)],
        dtype=np.dtype([("x", "i2"), ("tag", "i1"), ("y", "f4"), ("z", "f8")], align=True),
    )[0]
    cuda(source).run(1, 64, point, op, y, d)
    functions = [
        lambda v: v + 1, lambda v: v * v, lambda v: ~v, lambda v: v << 3, lambda v: v % 7,
        lambda v: 32 - v.bit_length(), lambda v: v // 3, lambda v: int(f"{v:032b}"[::-1], 2), lambda v: v ^ 0x55,
    ]  # fmt: skip
    weights = np.arange(1, 13).reshape(4, 3)
    want = [(functions[k](t + 100) if k < 9 else -(t + 100)) + weights[t & 3][k % 3] for t, k in enumerate(op.tolist())]
    assert np.array_equal(y, np.array(want, np.int64).astype(np.int32))
    assert np.array_equal(d, -7.0 * np.arange(64) + 2.5 - 0.125 + 5)


def test_three_dimensional_grids_and_full_blocks() -> None:
    source = """
    extern "C" __global__ void __launch_bounds__(1024) k(int* y) {
      int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      y[block * blockDim.x * blockDim.y * blockDim.z + thread] =
          threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z +
          1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z;
    }"""
    shapes = (((3, 2, 4), (16, 8, 8)), ((2, 3, 2), (5, 7, 3)), ((1, 1, 2), (32, 2, 16)), ((2, 1, 1), (1, 9, 9)))
    for grid, block in shapes:
        y = np.zeros((*grid[::-1], *block[::-1]), np.int32)
        cuda(source).run(grid, block, y)
        bz, by, bx, tz, ty, tx = np.indices(y.shape)
        assert np.array_equal(y, tx + 10 * ty + 100 * tz + 1000 * bx + 10000 * by + 100000 * bz)


def test_dynamic_shared_memory_beyond_48_kilobytes() -> None:
    source = """
    extern "C" __global__ void k(const float* x, float* y, int n) {
      extern __shared__ __align__(16) float4 tile[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = reinterpret_cast<const float4*>(x)[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) reinterpret_cast<float4*>(y)[i] = tile[n - 1 - i];
    }"""
    n = 200 * 1024 // 16
    x = normal(n, 4)
    y = np.zeros_like(x)
    report = cuda(source).run(1, 1024, x, y, n, shared=200 * 1024)
    assert np.array_equal(y, x[::-1])
    assert bank_conflicts(report) == 0


def test_read_only_loads_streaming_stores_and_asserts() -> None:
    source = """
    #define assert(condition) ((condition) ? (void)0 : __assertfail(#condition, "kernel.cu", __LINE__, "k", 1))
    extern "C" __global__ void k(const float* __restrict__ x, float* y, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      assert(i < n);
      float4 v = __ldg(reinterpret_cast<const float4*>(x) + i);
      __stcs(reinterpret_cast<float4*>(y) + i, make_float4(v.w, v.z, __ldcs(x + 4 * i + 1), __ldca(x + 4 * i)));
    }"""
    x = normal(64, 4)
    y = np.zeros_like(x)
    device = cuda(source)
    device.run(1, 64, x, y, 64)
    assert np.array_equal(y, x[:, ::-1])
    report = device.run(1, 64, x, y, 60, clean=False)
    assert {(f.kind, f.source_line) for f in report.faults} == {("assert", 5)}
