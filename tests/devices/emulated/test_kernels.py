"""Whole kernels of the kinds that Coders write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda, total

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_vector_add_with_a_tail() -> None:
    source = """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}"""
    for n, block in ((1000, 256), (1, 32), (777, 96), (100, 50)):
        a, b, c = normal(n), normal(n), np.zeros(n, np.float32)
        cuda(source).run(-(-n // block), block, a, b, c, n)
        assert np.array_equal(c, a + b)


SOFTMAX = """
__device__ float reduce(float v, bool want_max, float* red) {
  for (int o = 16; o; o >>= 1) { float w = __shfl_xor_sync(0xffffffffu, v, o); v = want_max ? fmaxf(v, w) : v + w; }
  if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
  __syncthreads();
  v = red[0];
  for (int w = 1; w < blockDim.x / 32; w++) v = want_max ? fmaxf(v, red[w]) : v + red[w];
  __syncthreads();
  return v;
}
extern "C" __global__ void k(const float* x, float* y, int cols) {
  __shared__ float red[32];
  const float* row = x + blockIdx.x * cols;
  float m = -INFINITY, s = 0;
  for (int i = threadIdx.x; i < cols; i += blockDim.x) m = fmaxf(m, row[i]);
  m = reduce(m, true, red);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) s += expf(row[i] - m);
  s = reduce(s, false, red);
  for (int i = threadIdx.x; i < cols; i += blockDim.x) y[blockIdx.x * cols + i] = expf(row[i] - m) / s;
}"""


@pytest.mark.parametrize("options", [(), ("--use_fast_math",)], ids=["precise", "fast"])
def test_softmax_by_shuffles(options: tuple[str, ...]) -> None:
    x = normal(9, 333) * 5
    y = np.zeros_like(x)
    cuda(SOFTMAX, *options).run(9, 128, x, y, 333)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True), rtol=2e-5 if options else 2e-6, atol=1e-9)


def test_tiled_matrix_product_with_ragged_edges() -> None:
    source = """extern "C" __global__ void k(const float* a, const float* b, float* c, int m, int n, int p) {
  __shared__ float s[16][16], t[16][17];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  float acc = 0;
  for (int k = 0; k < p; k += 16) {
    s[y][x] = row < m && k + x < p ? a[row * p + k + x] : 0;
    t[y][x] = col < n && k + y < p ? b[(k + y) * n + col] : 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) acc += s[y][i] * t[i][x];
    __syncthreads();
  }
  if (row < m && col < n) c[row * n + col] = acc;
}"""
    a, b, c = normal(50, 37), normal(37, 29), np.zeros((50, 29), np.float32)
    cuda(source).run((2, 4), (16, 16), a, b, c, 50, 29, 37)
    assert np.allclose(c, a @ b, atol=1e-4)


def test_layer_norm_with_float4() -> None:
    source = """extern "C" __global__ void k(const float4* x, float4* y, int n4, float eps) {
  __shared__ float2 part[8];
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < n4; i += blockDim.x) {
    float4 v = x[blockIdx.x * n4 + i];
    s += v.x + v.y + v.z + v.w;
    q += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  for (int o = 16; o; o >>= 1) { s += __shfl_down_sync(~0u, s, o); q += __shfl_down_sync(~0u, q, o); }
  if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = make_float2(s, q);
  __syncthreads();
  s = q = 0;
  for (int w = 0; w < blockDim.x / 32; w++) { s += part[w].x; q += part[w].y; }
  float mean = s / (4 * n4), inv = rsqrtf(q / (4 * n4) - mean * mean + eps);
  for (int i = threadIdx.x; i < n4; i += blockDim.x) {
    float4 v = x[blockIdx.x * n4 + i];
    v.x = (v.x - mean) * inv;
    v.y = (v.y - mean) * inv;
    v.z = (v.z - mean) * inv;
    v.w = (v.w - mean) * inv;
    y[blockIdx.x * n4 + i] = v;
  }
}"""
    x = normal(7, 260)
    y = np.zeros_like(x)
    cuda(source).run(7, 64, x, y, 65, 1e-5)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    assert np.allclose(y, want, atol=1e-5)


def test_block_scan_in_dynamic_shared_memory() -> None:
    source = """extern "C" __global__ void k(const int* x, int* y) {
  extern __shared__ int s[];
  int t = threadIdx.x, at = 0;
  s[t] = x[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (int d = 1; d < blockDim.x; d *= 2) {
    int next = 1 - at, n = blockDim.x;
    s[next * n + t] = s[at * n + t] + (t >= d ? s[at * n + t - d] : 0);
    at = next;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + t] = s[at * blockDim.x + t];
}"""
    x = RNG.integers(-9, 9, (4, 192)).astype(np.int32)
    y = np.zeros_like(x)
    cuda(source).run(4, 192, x, y, shared=2 * 192 * 4)
    assert np.array_equal(y, x.cumsum(1))


@pytest.mark.parametrize("threads", [1, 2])
def test_histogram_and_argmax_by_atomics(threads: int) -> None:
    source = """extern "C" __global__ void k(
    const unsigned char* x, const float* v, unsigned* bins, unsigned long long* best, float* total, double* sum, int n
) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[x[i]], 1u);
    atomicMax(best, ((unsigned long long)__float_as_uint(v[i]) << 32) | i);
    atomicAdd(total, 1.0f); atomicAdd(sum, (double)v[i]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x) if (local[i]) atomicAdd(&bins[i], local[i]);
}"""
    n = 5000
    x, v = RNG.integers(0, 256, n).astype(np.uint8), np.abs(normal(n))
    bins, best, total, sums = np.zeros(256, np.uint32), np.zeros(1, np.uint64), np.zeros(1, np.float32), np.zeros(1)
    cuda(source, threads=threads).run(8, 128, x, v, bins, best, total, sums, n)
    assert np.array_equal(bins, np.bincount(x, minlength=256))
    assert int(best[0]) & 0xFFFFFFFF == v.argmax()
    assert total[0] == n
    assert np.isclose(sums[0], v.sum(dtype=np.float64))


def test_atomic_operations() -> None:
    source = """extern "C" __global__ void k(unsigned* y, int* z, unsigned* old) {
  unsigned t = threadIdx.x;
  old[t] = atomicInc(&y[0], 5);
  atomicDec(&y[1], 7);
  atomicAnd(&y[2], ~(1u << t));
  atomicOr(&y[3], 1u << t);
  atomicXor(&y[4], t);
  atomicExch(&y[5], t);
  atomicCAS(&y[6], 3u, 99u);
  atomicSub(&y[7], t);
  atomicMin(&z[0], (int)t - 16);
  atomicMax(&z[1], -(int)t - 5);
  atomicMin(&y[8], t + 7);
  atomicMax(&y[9], t);
}"""
    y = np.array([0, 3, 0xFFFFFFFF, 0, 0, 0, 3, 1000, 0xFFFFFFFF, 0], np.uint32)
    z, old = np.array([0, -100], np.int32), np.zeros(32, np.uint32)
    cuda(source).run(1, 32, y, z, old)
    assert old.tolist() == [k % 6 for k in range(32)]
    assert y.tolist() == [2, 3, 0, 0xFFFFFFFF, 0, 31, 99, 1000 - 496, 7, 31]
    assert z.tolist() == [-16, -5]


SPIN = """extern "C" __global__ void k(int* lock, int* count) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      volatile int* c = count;
      *c = *c + 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}"""


def test_a_spin_lock_taken_by_every_thread() -> None:
    count = np.zeros(1, np.int32)
    cuda(SPIN).run(4, 64, np.zeros(1, np.int32), count, max_warp_work=50_000_000)
    assert count[0] == 256


def test_blocks_that_wait_for_each_other_make_progress() -> None:
    source = """extern "C" __global__ void k(volatile int* flag, int* y) {
  __shared__ int seen;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) { while (flag[0] != gridDim.x - 1) { } seen = flag[0]; }
    __syncthreads();
    y[threadIdx.x] = seen;
  } else if (threadIdx.x == 0) atomicAdd((int*)flag, 1);
}"""
    y = np.zeros(64, np.int32)
    cuda(source).run(10, 64, np.zeros(1, np.int32), y, max_warp_work=50_000_000)
    assert (y == 9).all()


def test_grid_barrier_by_hand() -> None:
    source = """extern "C" __global__ void k(int* arrived, int* x, int* y) {
  x[blockIdx.x * 32 + threadIdx.x] = blockIdx.x + threadIdx.x;
  __threadfence(); __syncthreads();
  if (threadIdx.x == 0) { atomicAdd(arrived, 1); while (*(volatile int*)arrived < (int)gridDim.x) { } }
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = ((volatile int*)x)[((blockIdx.x + 1) % gridDim.x) * 32 + threadIdx.x];
}"""
    y = np.zeros((6, 32), np.int32)
    cuda(source).run(6, 32, np.zeros(1, np.int32), np.zeros((6, 32), np.int32), y, max_warp_work=50_000_000)
    assert np.array_equal(y, (np.arange(6)[:, None] + 1) % 6 + np.arange(32))


def test_local_array_and_switch() -> None:
    source = """extern "C" __global__ void k(const int* op, const float* x, float* y) {
  int t = threadIdx.x;
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = x[t] * (i + 1);
  float r = a[(op[t] * 3) & 7];
  switch (op[t]) {
    case 0: r += 1; break;
    case 1: r *= r; break;
    case 2: r = sqrtf(fabsf(r)); break;
    case 3: for (int i = 0; i < t % 5; i++) r += a[i]; break;
    default: r = -r;
  }
  y[t] = r;
}"""
    op, x, y = RNG.integers(0, 6, 64).astype(np.int32), normal(64), np.zeros(64, np.float32)
    cuda(source).run(1, 64, op, x, y)
    for t in range(64):
        a = [np.float32(x[t] * np.float32(i + 1)) for i in range(8)]
        r = a[(op[t] * 3) & 7]
        if op[t] == 3:
            for i in range(t % 5):
                r = np.float32(r + a[i])
        else:
            r = {0: lambda r: r + np.float32(1), 1: lambda r: r * r, 2: lambda r: np.sqrt(abs(r))}.get(
                int(op[t]), lambda r: -r
            )(r)
        assert y[t] == r


def test_calls_that_are_not_inlined() -> None:
    source = """struct Pair { float a; int b; double c; };
__device__ __noinline__ Pair make(float x, int n) { Pair p; p.a = x * n; p.b = n + 1; p.c = x + 0.5; return p; }
__device__ __noinline__ float twice(float x) { return make(x, 2).a; }
__device__ __noinline__ void through(int* p, int v) { *p = v; }
extern "C" __global__ void k(float* y, int* z, double* w) {
  int t = threadIdx.x, l = 0;
  Pair p = make(t, t & 3);
  if (t & 1) y[t] = twice(p.a); else y[t] = p.a;
  through(&l, p.b); z[t] = l; w[t] = p.c;
}"""
    y, z, w = np.zeros(32, np.float32), np.zeros(32, np.int32), np.zeros(32)
    cuda(source).run(1, 32, y, z, w)
    t = np.arange(32)
    assert np.array_equal(y, t * (t & 3) * np.where(t & 1, 2, 1))
    assert np.array_equal(z, (t & 3) + 1)
    assert np.array_equal(w, t + 0.5)


def test_constant_tables_and_generic_pointers() -> None:
    source = """__constant__ float table[8] = {1, 2, 4, 8, 16, 32, 64, 128};
__device__ const short shorts[4] = {-1, 2, -3, 4};
__device__ const short* where = shorts;
extern "C" __global__ void k(float* y) { int t = threadIdx.x; y[t] = table[t & 7] + where[t & 3]; }"""
    y = np.zeros(32, np.float32)
    cuda(source).run(1, 32, y)
    t = np.arange(32)
    assert np.array_equal(y, 2.0 ** (t & 7) + np.array([-1, 2, -3, 4])[t & 3])


def test_struct_parameters_indexed_at_run_time() -> None:
    source = """struct S { int v[6]; float f; };
extern "C" __global__ void k(S s, int* y, const int* at) { y[threadIdx.x] = s.v[at[threadIdx.x]] + (int)s.f; }"""
    at = RNG.integers(0, 6, 32).astype(np.int32)
    y = np.zeros(32, np.int32)

    class Struct(np.ndarray):
        pass

    device = cuda(source)
    packed = np.array([(np.arange(6) * 10, 3.0)], dtype=[("v", "6i4"), ("f", "f4")])[0]
    device.run(1, 32, packed, y, at)
    assert np.array_equal(y, at * 10 + 3)


def test_asynchronous_copies() -> None:
    source = """extern "C" __global__ void k(const float4* x, float* y) {
  __shared__ float4 s[32];
  unsigned to = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(x + threadIdx.x));
  asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;");
  __syncthreads();
  y[threadIdx.x] = s[31 - threadIdx.x].z;
}"""
    x, y = normal(32, 4), np.zeros(32, np.float32)
    report = cuda(source).run(1, 32, x, y)
    assert np.array_equal(y, x[::-1, 2])
    assert total(report, "transactions", "global", "load") == 16


def test_half_precision_pairs() -> None:
    source = """#include <cuda_fp16.h>
extern "C" __global__ void k(const __half2* a, const __half2* b, __half2* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = __hfma2(a[i], b[i], __float2half2_rn(0.5f));
}"""
    a, b = normal(200).astype(np.float16), normal(200).astype(np.float16)
    c = np.zeros(200, np.float16)
    cuda(source).run(1, 128, a, b, c, 100)
    assert np.array_equal(c, (a.astype(np.float64) * b.astype(np.float64) + 0.5).astype(np.float16))


def test_clock_moves_and_printf_is_dropped() -> None:
    source = """extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void k(long long* y) {
  long long a = clock64();
  while (clock64() - a < 1000) { }
  printf("%d\\n", 3);
  y[threadIdx.x] = clock64() - a;
}"""
    y = np.zeros(32, np.int64)
    cuda(source).run(1, 32, y)
    assert (y >= 1000).all()


def test_results_repeat_exactly() -> None:
    x = normal(16, 500)
    runs = []
    for threads in (1, 2, 1):
        y = np.zeros_like(x)
        report = cuda(SOFTMAX, threads=threads).run(16, 64, x, y, 500)
        runs.append((y.tobytes(), report.memory, report.mix, report.barriers))
    assert runs[0] == runs[1] == runs[2]
