"""Headers of NVIDIA's wheels: what kernels include builds, passes the gate, and is right on the emulated device."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelforge.compile import COMPILE_LIMITS, Artifact, Compiler, installed_toolchain
from kernelforge.compile.diagnostics import parse_log
from kernelforge.devices.emulated.execute.plan_execution import Kernel
from kernelforge.devices.emulated.worker import Runner
from kernelforge.hardware.specs import H100
from kernelforge.hardware.wheels import HEADER_WHEELS, RELEASES, header_wheels
from tests.devices.emulated.emulated_plans import resolve, work
from tests.devices.emulated.harness import Device

RNG = np.random.default_rng(5)

CUTE_COPY = """#include <cute/tensor.hpp>
using namespace cute;
__global__ void k(const float* in, float* out, int m, int n) {
  auto shape = make_shape(m, n);
  Tensor x = make_tensor(make_gmem_ptr(in), shape, LayoutRight{});
  Tensor y = make_tensor(make_gmem_ptr(out), shape, LayoutRight{});
  Tensor where = make_identity_tensor(shape);
  auto tile = make_shape(Int<16>{}, Int<64>{});
  auto block = make_coord(blockIdx.y, blockIdx.x);
  auto threads = Layout<Shape<_4, _64>, Stride<_64, _1>>{};
  Tensor mine = local_partition(local_tile(x, tile, block), threads, threadIdx.x);
  Tensor result = local_partition(local_tile(y, tile, block), threads, threadIdx.x);
  Tensor position = local_partition(local_tile(where, tile, block), threads, threadIdx.x);
  for (int i = 0; i < size(mine); i++) {
    if (elem_less(position(i), shape)) result(i) = 2 * mine(i);
  }
}
"""
CUTE_GEMM = """#include <cute/tensor.hpp>
using namespace cute;
// c (m, n) = a (m, d) b (n, d)^T, all row-major: cp.async in two stages, swizzled tiles, ldmatrix, mma.
__global__ void __launch_bounds__(64) k(const __half* a, const __half* b, float* c, int m, int n, int d) {
  using Extent = Shape<_32, _32, _16>;
  Tensor A = make_tensor(make_gmem_ptr(reinterpret_cast<const half_t*>(a)), make_shape(m, d), make_stride(d, _1{}));
  Tensor B = make_tensor(make_gmem_ptr(reinterpret_cast<const half_t*>(b)), make_shape(n, d), make_stride(d, _1{}));
  Tensor C = make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, _1{}));
  auto block = make_coord(blockIdx.y, blockIdx.x, _);
  Tensor gA = local_tile(A, Extent{}, block, Step<_1, X, _1>{});
  Tensor gB = local_tile(B, Extent{}, block, Step<X, _1, _1>{});
  Tensor gC = local_tile(C, Extent{}, block, Step<_1, _1, X>{});

  auto atom = composition(Swizzle<1, 3, 3>{}, Layout<Shape<_8, _16>, Stride<_16, _1>>{});
  auto staged = tile_to_shape(atom, Shape<_32, _16, _2>{});
  __shared__ alignas(128) half_t shared_a[32 * 16 * 2];
  __shared__ alignas(128) half_t shared_b[32 * 16 * 2];
  Tensor sA = make_tensor(make_smem_ptr(shared_a), staged);
  Tensor sB = make_tensor(make_smem_ptr(shared_b), staged);
  auto load = make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{},
                              Layout<Shape<_32, _2>, Stride<_2, _1>>{}, Layout<Shape<_1, _8>>{});
  auto loader = load.get_slice(threadIdx.x);
  Tensor tAg = loader.partition_S(gA);
  Tensor tAs = loader.partition_D(sA);
  Tensor tBg = loader.partition_S(gB);
  Tensor tBs = loader.partition_D(sB);

  auto mma = make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN{}, Layout<Shape<_2, _1>>{}, cute::Tile<_32, _16, _16>{});
  auto thread = mma.get_slice(threadIdx.x);
  Tensor tCg = thread.partition_C(gC);
  Tensor sum = thread.make_fragment_C(tCg);
  Tensor fA = thread.partition_fragment_A(sA(_, _, 0));
  Tensor fB = thread.partition_fragment_B(sB(_, _, 0));
  auto read_a = make_tiled_copy_A(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto read_b = make_tiled_copy_B(Copy_Atom<SM75_U32x4_LDSM_N, half_t>{}, mma);
  auto reader_a = read_a.get_slice(threadIdx.x);
  auto reader_b = read_b.get_slice(threadIdx.x);
  Tensor tAr = reader_a.partition_S(sA);
  Tensor vA = reader_a.retile_D(fA);
  Tensor tBr = reader_b.partition_S(sB);
  Tensor vB = reader_b.retile_D(fB);
  clear(sum);
  int tiles = size<3>(tAg);
  copy(load, tAg(_, _, _, 0), tAs(_, _, _, 0));
  copy(load, tBg(_, _, _, 0), tBs(_, _, _, 0));
  cp_async_fence();
  for (int tile = 0; tile < tiles; tile++) {
    int stage = tile & 1;
    if (tile + 1 < tiles) {
      copy(load, tAg(_, _, _, tile + 1), tAs(_, _, _, stage ^ 1));
      copy(load, tBg(_, _, _, tile + 1), tBs(_, _, _, stage ^ 1));
    }
    cp_async_fence();
    cp_async_wait<1>();
    __syncthreads();
    copy(read_a, tAr(_, _, _, stage), vA);
    copy(read_b, tBr(_, _, _, stage), vB);
    gemm(mma, fA, fB, sum);
    __syncthreads();
  }
  copy(sum, tCg);
}
"""
CUTE_HOPPER_GEMM = """#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
using namespace cute;
// c (m, n) = a (m, d) b (n, d)^T, all row-major: TMA into swizzled tiles of two stages, mbarriers, wgmma.
using Atom = GMMA::Layout_K_SW128_Atom<half_t>;
using Tiles = decltype(tile_to_shape(Atom{}, Shape<_64, _64, _2>{}));
struct Shared {
  alignas(1024) half_t a[cosize_v<Tiles>];
  alignas(1024) half_t b[cosize_v<Tiles>];
  uint64_t full[2];
};
__device__ void load(Shared& shared, const CUtensorMap& a, const CUtensorMap& b, int tile) {
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  int stage = tile & 1;
  Tensor sA = make_tensor(make_smem_ptr(shared.a), Tiles{});
  Tensor sB = make_tensor(make_smem_ptr(shared.b), Tiles{});
  constexpr auto hint = static_cast<uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
  Barrier::arrive_and_expect_tx(&shared.full[stage], 2 * 64 * 64 * sizeof(half_t));
  SM90_TMA_LOAD::copy(&a, &shared.full[stage], hint, raw_pointer_cast(&sA(0, 0, stage)), 64 * tile, 64 * blockIdx.y);
  SM90_TMA_LOAD::copy(&b, &shared.full[stage], hint, raw_pointer_cast(&sB(0, 0, stage)), 64 * tile, 64 * blockIdx.x);
}
__global__ void __launch_bounds__(128) k(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                                         float* c, int m, int n, int d) {
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  extern __shared__ unsigned char raw[];
  Shared& shared = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(raw) + 1023) / 1024 * 1024);
  Tensor sA = make_tensor(make_smem_ptr(shared.a), Tiles{});
  Tensor sB = make_tensor(make_smem_ptr(shared.b), Tiles{});
  bool leads = threadIdx.x < 32 && elect_one_sync();
  int tiles = ceil_div(d, 64);
  if (leads) {
    Barrier::init(&shared.full[0], 1);
    Barrier::init(&shared.full[1], 1);
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  if (leads) {
    for (int tile = 0; tile < 2 && tile < tiles; tile++) load(shared, a, b, tile);
  }
  Tensor C = make_tensor(make_gmem_ptr(c), make_shape(m, n), make_stride(n, _1{}));
  Tensor gC = local_tile(C, Shape<_64, _64>{}, make_coord(blockIdx.y, blockIdx.x));
  auto mma = make_tiled_mma(SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::K>{});
  auto thread = mma.get_slice(threadIdx.x);
  Tensor fA = thread.make_fragment_A(thread.partition_A(sA));
  Tensor fB = thread.make_fragment_B(thread.partition_B(sB));
  Tensor tCg = thread.partition_C(gC);
  Tensor sum = thread.make_fragment_C(tCg);
  clear(sum);
  for (int tile = 0; tile < tiles; tile++) {
    int stage = tile & 1;
    Barrier::wait(&shared.full[stage], tile / 2 & 1);
    warpgroup_fence_operand(sum);
    warpgroup_arrive();
    gemm(mma, fA(_, _, _, stage), fB(_, _, _, stage), sum);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(sum);
    __syncthreads();
    if (leads && tile + 2 < tiles) load(shared, a, b, tile + 2);
  }
  Tensor where = thread.partition_C(local_tile(make_identity_tensor(make_shape(m, n)), Shape<_64, _64>{},
                                               make_coord(blockIdx.y, blockIdx.x)));
  for (int i = 0; i < size(sum); i++) {
    if (elem_less(where(i), make_shape(m, n))) tCg(i) = sum(i);
  }
}
"""
HOPPER_PLAN = """
def forward(a, b):
    m, d = a.shape
    n = b.shape[0]
    out = empty((m, n), dtype=float32)
    k[(ceil_div(n, 64), ceil_div(m, 64)), 128, 34000](
        tensor_map(a, box=(64, 64), swizzle=128), tensor_map(b, box=(64, 64), swizzle=128), out, i32(m), i32(n), i32(d)
    )
    return out
"""


BARRIER = """#include <cuda/barrier>
__global__ void k(const float* in, float* out) {
  __shared__ float tile[256];
  __shared__ cuda::barrier<cuda::thread_scope_block> full;
  if (threadIdx.x == 0) init(&full, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(tile + threadIdx.x, in + blockIdx.x * 256 + threadIdx.x, sizeof(float), full);
  full.arrive_and_wait();
  out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
"""
PIPELINE = """#include <cooperative_groups.h>
#include <cuda/pipeline>
__global__ void k(const float* in, float* out, int n) {
  auto block = cooperative_groups::this_thread_block();
  __shared__ float tile[2][128];
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  auto pipe = cuda::make_pipeline(block, &state);
  float sum = 0;
  for (int batch = 0, sent = 0; batch < n; batch++) {
    for (; sent < n && sent < batch + 2; sent++) {
      pipe.producer_acquire();
      cuda::memcpy_async(block, tile[sent & 1], in + sent * blockDim.x, sizeof(float) * blockDim.x, pipe);
      pipe.producer_commit();
    }
    pipe.consumer_wait();
    sum += tile[batch & 1][blockDim.x - 1 - threadIdx.x];
    pipe.consumer_release();
  }
  out[threadIdx.x] = sum;
}
"""


@pytest.fixture(scope="module")
def of_cuda(compiler: Compiler, open_warm: Callable[..., Compiler]) -> Callable[[int], Compiler]:
    """The compiler of a major version of CUDA: the same for all tests, since it keeps its builds."""
    compilers = {compiler.toolchain.major: compiler}

    def of(major: int) -> Compiler:
        if major not in compilers:
            compilers[major] = open_warm(Compiler, None, toolchain=installed_toolchain(major))
        return compilers[major]

    return of


@pytest.fixture
def cutlass() -> None:
    """Skip where the extra is not installed."""
    if not any(wheel.extra == "cutlass" for wheel in header_wheels(installed_toolchain().major)):
        pytest.skip("nvidia-cutlass is not installed: install the extra cutlass")


@pytest.fixture
def without_wheels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No wheel of :data:`HEADER_WHEELS` is installed."""
    module = importlib.import_module("kernelforge.hardware.wheels")
    there = module.metadata.version

    def version(name: str) -> str:
        if any(name == wheel.distribution for wheels in HEADER_WHEELS.values() for wheel in wheels):
            raise module.metadata.PackageNotFoundError(name)
        return str(there(name))

    monkeypatch.setattr(module.metadata, "version", version)
    installed_toolchain.cache_clear()
    yield
    installed_toolchain.cache_clear()


def load(compiler: Compiler, source: str, arch: str = "sm_90a") -> Device:
    """The module of a source that builds and that the gate lets through."""
    built = compiler.build(source, ["k"], arch=arch)
    assert isinstance(built, Artifact), built
    return Device(built.ptx.decode())


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_75"])
def test_a_copy_in_cute_is_right(compiler: Compiler, cutlass: None, arch: str) -> None:
    x = RNG.standard_normal((37, 100)).astype(np.float32)
    y = np.zeros_like(x)
    load(compiler, CUTE_COPY, arch).run((2, 3), 256, x, y, *x.shape)
    assert np.array_equal(y, 2 * x)


@pytest.mark.slow
def test_a_tiled_product_in_cute_is_right(open_warm: Callable[..., Compiler], cutlass: None) -> None:
    """To instantiate its templates takes a quarter of a minute of CPU time, and more on a busy machine."""
    compiler = open_warm(Compiler, None, limits=replace(COMPILE_LIMITS, wall_s=280, cpu_s=140))
    m, n, d = 64, 32, 48
    a, b = (RNG.standard_normal((rows, d)).astype(np.float16) for rows in (m, n))
    c = np.zeros((m, n), np.float32)
    load(compiler, CUTE_GEMM, "sm_80").run((n // 32, m // 32), 64, a, b, c, m, n, d)
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32).T, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
def test_a_product_by_tensor_maps_and_warpgroups_in_cute_is_right(
    open_warm: Callable[..., Compiler], cutlass: None
) -> None:
    compiler = open_warm(Compiler, None, limits=replace(COMPILE_LIMITS, wall_s=280, cpu_s=140))
    built = compiler.build(CUTE_HOPPER_GEMM, ["k"], arch="sm_90a")
    assert isinstance(built, Artifact), built
    assert [note for note in built.build.diagnostics if note.severity == "warning"] == []
    m, n, d = 100, 136, 200
    a, b = (RNG.standard_normal((rows, d)).astype(np.float16) for rows in (m, n))
    kernels = {"k": Kernel(built.symbol("k"), 168)}
    device = Runner(built.ptx.decode(), kernels, H100, memory_bytes=1 << 28, threads=1)
    result = device.run(work(resolve(HOPPER_PLAN, (a, b)), (a, b), deadline_s=120.0))
    assert result.faults == ()
    c = np.frombuffer(bytes(result.outputs[0]), np.float32).reshape(m, n)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_asynchronous_copies_at_a_barrier_are_right(compiler: Compiler, arch: str) -> None:
    x = RNG.standard_normal((3, 256)).astype(np.float32)
    y = np.zeros_like(x)
    load(compiler, BARRIER, arch).run(3, 256, x, y)
    assert np.array_equal(y, x[:, ::-1])


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("threads", [128, 32, 64])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_pipeline_that_reuses_its_stages_is_right(compiler: Compiler, arch: str, threads: int) -> None:
    x = RNG.standard_normal((7, threads)).astype(np.float32)
    y = np.zeros(threads, np.float32)
    load(compiler, PIPELINE, arch).run(1, threads, x, y, len(x))
    np.testing.assert_allclose(y, x[:, ::-1].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.one_in(8)
@pytest.mark.parametrize("source", [BARRIER, PIPELINE], ids=["barrier", "pipeline"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("major", sorted(RELEASES))
def test_waits_read_no_clock(of_cuda: Callable[[int], Compiler], source: str, arch: str, major: int) -> None:
    built = of_cuda(major).build(source, ["k"], arch=arch)
    assert isinstance(built, Artifact), built
    assert not re.search(rb"%(globaltimer|clock)|nanosleep", built.ptx)


STANDARD = """#include <array>
#include <complex>
#include <functional>
#include <iterator>
#include <tuple>
#include <utility>
__global__ void k(const float* x, float* y) {
  std::array<float, 3> a{x[0], x[1], x[2]};
  std::pair<float, int> pair = std::make_pair(a[1], 2);
  auto tuple = std::make_tuple(a[2], 4);
  std::complex<float> c(x[0], x[1]);
  c = c * c;
  std::swap(a[0], a[2]);
  y[0] = std::plus<float>()(a[0], std::get<1>(tuple)) + std::move(pair.first) * pair.second;
  y[1] = c.real();
  y[2] = c.imag();
}
"""
CUB = """#include <cub/cub.cuh>
#include <cuda/functional>
__global__ void k(const float* x, float* y) {
  using Sort = cub::BlockRadixSort<float, 128, 1>;
  using Scan = cub::BlockScan<float, 128>;
  __shared__ union { typename Sort::TempStorage sort; typename Scan::TempStorage scan; } storage;
  float mine[1] = {x[threadIdx.x]};
  Sort(storage.sort).Sort(mine);
  y[threadIdx.x] = mine[0];
  __syncthreads();
  Scan(storage.scan).InclusiveScan(mine[0], mine[0], cuda::maximum<>());
  y[128 + threadIdx.x] = mine[0];
}
"""
GROUPS = """#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
__global__ void k(const float* x, float* y, int* count) {
  __shared__ float tile[256];
  cg::thread_block block = cg::this_thread_block();
  cg::memcpy_async(block, tile, x, sizeof(tile));
  cg::wait(block);
  y[threadIdx.x] = cg::inclusive_scan(cg::tiled_partition<32>(block), tile[255 - threadIdx.x]);
  cuda::atomic_ref<int, cuda::thread_scope_device>(count[0]).fetch_add(1, cuda::memory_order_relaxed);
}
"""
NARROW = """#include <cuda_fp8.h>
__global__ void k(const float* x, float* y) {
  y[threadIdx.x] = float(__nv_fp8_e4m3(x[threadIdx.x]));
  y[32 + threadIdx.x] = float(__nv_fp8_e5m2(x[threadIdx.x]));
}
"""
UNIFORM = """#include <curand_kernel.h>
__global__ void k(float* y, int seed) {
  curandStatePhilox4_32_10_t state;
  curand_init(seed, threadIdx.x, 0, &state);
  float4 drawn = curand_uniform4(&state);
  y[4 * threadIdx.x] = drawn.x, y[4 * threadIdx.x + 1] = drawn.y;
  y[4 * threadIdx.x + 2] = drawn.z, y[4 * threadIdx.x + 3] = drawn.w;
}
"""


@pytest.fixture(scope="module", params=sorted(RELEASES), ids=[f"CUDA {major}" for major in sorted(RELEASES)])
def either(request: pytest.FixtureRequest, of_cuda: Callable[[int], Compiler]) -> Compiler:
    """A compiler of each major version of CUDA."""
    return of_cuda(request.param)


@pytest.mark.slow
def test_standard_headers_have_what_device_code_uses(either: Compiler) -> None:
    x, y = np.array([2, 3, 5], np.float32), np.zeros(3, np.float32)
    load(either, STANDARD).run(1, 1, x, y)
    assert y.tolist() == [5 + 4 + 3 * 2, 4 - 9, 12]


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_75"])
def test_cubs_own_header_has_the_parts_for_blocks(compiler: Compiler, arch: str) -> None:
    x, y = RNG.standard_normal(128).astype(np.float32), np.zeros(256, np.float32)
    load(compiler, CUB, arch).run(1, 128, x, y)
    assert np.array_equal(y[:128], np.sort(x))
    assert np.array_equal(y[128:], np.sort(x))


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
def test_groups_copy_and_scan(compiler: Compiler, arch: str) -> None:
    x, y, count = RNG.standard_normal(256).astype(np.float32), np.zeros(256, np.float32), np.zeros(1, np.int32)
    load(compiler, GROUPS, arch).run(1, 256, x, y, count)
    np.testing.assert_allclose(y.reshape(8, 32), x[::-1].reshape(8, 32).cumsum(1), rtol=1e-4, atol=1e-4)
    assert count[0] == 256


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_values_of_eight_bits_are_rounded_to_nearest(compiler: Compiler, arch: str) -> None:
    x, y = RNG.standard_normal(32).astype(np.float32), np.zeros(64, np.float32)
    load(compiler, NARROW, arch).run(1, 32, x, y)
    for part, dtype in ((y[:32], torch.float8_e4m3fn), (y[32:], torch.float8_e5m2)):
        assert np.array_equal(part, torch.from_numpy(x).to(dtype).float().numpy())


@pytest.mark.slow
def test_random_numbers_are_uniform_and_repeat(either: Compiler) -> None:
    if not any(wheel.extra.startswith("curand") for wheel in header_wheels(either.toolchain.major)):
        pytest.skip("cuRAND's headers are not installed: install the extra curand")
    device, draws = load(either, UNIFORM), [np.zeros(1024, np.float32) for _ in range(3)]
    for draw, seed in zip(draws, (1, 1, 2), strict=True):
        device.run(1, 256, draw, seed)
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert draws[0].min() > 0
    assert draws[0].max() <= 1
    assert abs(float(draws[0].mean()) - 0.5) < 0.05


CLOCKS = """#include <cuda/std/chrono>
__global__ void k(long long* out) {
  using clock = cuda::std::chrono::CLOCK;
  auto begin = clock::now();
  for (int i = 0; i < 100; i++) atomicAdd((unsigned long long*)out, 1ull);
  out[1] = (clock::now() - begin).count() + begin.time_since_epoch().count();
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["system_clock", "high_resolution_clock"])
def test_the_clock_of_a_candidate_stands_still(compiler: Compiler, clock: str) -> None:
    """A clock that runs would tell a benchmark from a check."""
    out = np.full(2, 7, np.int64)
    load(compiler, CLOCKS.replace("CLOCK", clock)).run(1, 1, out)
    assert out.tolist() == [107, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["cuda/std/detail/../__cuda/chrono.h", "cuda/std/__cuda/../__cuda/chrono.h", "FOLDER/cuda/std/__cuda/chrono.h"],
)
def test_the_clock_that_runs_is_refused_by_any_path(compiler: Compiler, path: str) -> None:
    """The header of libcu++ itself can be reached by another path; the gate then sees what it reads."""
    (folder,) = (each for each in installed_toolchain().includes if (each / "cuda/std/__cuda/chrono.h").is_file())
    source = f"""
    #include <cuda/std/detail/libcxx/include/chrono>
    #include "{path.replace("FOLDER", str(folder))}"
    __global__ void k(long long* out) {{ out[0] = cuda::std::chrono::system_clock::now().time_since_epoch().count(); }}
    """
    built = compiler.build(source, ["k"])
    assert not isinstance(built, Artifact) or b"globaltimer" not in built.ptx


@pytest.mark.slow
@pytest.mark.parametrize("header", ["cute/tensor.hpp", "cutlass/numeric_types.h"])
def test_a_header_that_is_not_installed_names_its_extra(without_wheels: None, header: str) -> None:
    with Compiler(None) as compiler:
        built = compiler.build(f"#include <{header}>\n__global__ void k(float* x) {{ x[0] = 1; }}", ["k"])
    assert not isinstance(built, Artifact)
    assert built.errors[0].message == (
        f'cannot open source file "{header}"; it is in nvidia-cutlass, which is not installed here: '
        "install the extra cutlass"
    )


@pytest.mark.parametrize(("header", "named"), [("curand_kernel.h", "curand"), ("nothing/such.h", None)])
def test_only_headers_of_the_wheels_have_advice(without_wheels: None, header: str, named: str | None) -> None:
    log = f'candidate.cu(1): catastrophic error: cannot open source file "{header}"\n'
    (error,) = parse_log(log, missing_headers=installed_toolchain().missing_headers())
    assert error.message.partition("install the extra ")[2] == (named or "")


def test_the_digest_changes_with_the_installed_headers(request: pytest.FixtureRequest, cutlass: None) -> None:
    digest = installed_toolchain().digest
    request.getfixturevalue("without_wheels")
    assert installed_toolchain().digest != digest


def test_every_header_wheel_is_in_the_extra_that_messages_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for wheel in (wheel for wheels in HEADER_WHEELS.values() for wheel in wheels):
        required = project["optional-dependencies"][wheel.extra]
        assert any(
            requirement.startswith((f"{wheel.distribution}=", f"{wheel.distribution}>")) for requirement in required
        )
