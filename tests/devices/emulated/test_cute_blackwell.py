"""Products in CuTe for Blackwell: the atoms and layouts of CUTLASS agree with tensor memory here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kernelforge.compile import COMPILE_LIMITS, Artifact, Compiler, installed_toolchain
from kernelforge.hardware.wheels import header_wheels
from tests.devices.emulated.harness import Device

RNG = np.random.default_rng(5)

HEADERS = """#define NDEBUG
#include <cute/tensor.hpp>
#include <cute/arch/tmem_allocator_sm100.hpp>
#include <cutlass/arch/barrier.h>
using namespace cute;
"""
KERNEL = """namespace of_NAME {
TYPES

// d (m, n) = a (m, k) b (n, k)^T, all row-major. Threads copy tiles to shared memory, one issues the products.
extern "C" __global__ void CLUSTER NAME(const TA* a, const TB* b, float* d, int m, int n, int k) {
  using Allocator = conditional_t<PAIR, TMEM::Allocator2Sm, TMEM::Allocator1Sm>;
  extern __shared__ __align__(1024) unsigned char raw[];
  __shared__ __align__(16) uint32_t where;
  __shared__ __align__(16) uint64_t barrier;
  auto mma = make_tiled_mma(Atom{});
  int half = PAIR ? int(block_rank_in_cluster()) : 0;
  auto tile = make_shape(tile_size<0>(mma), tile_size<1>(mma), tile_size<2>(mma) * Int<4>{});
  auto coordinate = make_coord(int(blockIdx.x) / (PAIR ? 2 : 1), int(blockIdx.y), _);
  Tensor A = make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, _1{}));
  Tensor B = make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, _1{}));
  Tensor D = make_tensor(make_gmem_ptr(d), make_shape(m, n), make_stride(n, _1{}));
  auto own = mma.get_slice(half);
  Tensor gA = own.partition_A(local_tile(A, tile, coordinate, Step<_1, X, _1>{}));
  Tensor gB = own.partition_B(local_tile(B, tile, coordinate, Step<X, _1, _1>{}));
  Tensor gD = own.partition_C(local_tile(D, tile, coordinate, Step<_1, _1, X>{}));
  auto shape_a = partition_shape_A(mma, make_shape(size<0>(tile), size<2>(tile)));
  auto shape_b = partition_shape_B(mma, make_shape(size<1>(tile), size<2>(tile)));
  auto layout_a = UMMA::tile_to_mma_shape(LayoutA{}, shape_a);
  auto layout_b = UMMA::tile_to_mma_shape(LayoutB{}, shape_b);
  TA* place_a = reinterpret_cast<TA*>(raw);
  TB* place_b = reinterpret_cast<TB*>(raw + 32768);
  Tensor sA = make_tensor(make_smem_ptr(place_a), layout_a);
  Tensor sB = make_tensor(make_smem_ptr(place_b), layout_b);
  Tensor fA = mma.make_fragment_A(sA);
  Tensor fB = mma.make_fragment_B(sB);
  Tensor sums = mma.make_fragment_C(gD);
  bool first_warp = threadIdx.x < 32;
  Allocator allocator{};
  if (first_warp) allocator.allocate(512, &where);
  if (threadIdx.x == 0) initialize_barrier(barrier, 1);
  cutlass::arch::fence_barrier_init();
  __syncthreads();
  if (PAIR) cluster_sync();
  sums.data() = where;
  mma.accumulate_ = UMMA::ScaleOut::Zero;
  for (int step = 0; step < size<3>(gA); ++step) {
    for (int i = threadIdx.x; i < size(sA); i += blockDim.x) sA(i) = gA(_, _, _, step)(i);
    for (int i = threadIdx.x; i < size(sB); i += blockDim.x) sB(i) = gB(_, _, _, step)(i);
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    if (PAIR) cluster_sync();
    if (first_warp && half == 0) {
      for (int q = 0; q < size<2>(fA); ++q) {
        gemm(mma, fA(_, _, q), fB(_, _, q), sums);
        mma.accumulate_ = UMMA::ScaleOut::One;
      }
      if (PAIR) cutlass::arch::umma_arrive_multicast_2x1SM(&barrier, 3);
      else cutlass::arch::umma_arrive(&barrier);
    }
    wait_barrier(barrier, step & 1);
  }
  auto loads = make_tmem_copy(Load{}, sums);
  auto mine = loads.get_slice(threadIdx.x);
  Tensor from = mine.partition_S(sums);
  Tensor to = mine.partition_D(gD);
  Tensor values = make_tensor<float>(shape(to));
  copy(loads, from, values);
  cutlass::arch::fence_view_async_tmem_load();
  copy(values, to);
  __syncthreads();
  if (PAIR) cluster_sync();
  if (first_warp) {
    allocator.release_allocation_lock();
    allocator.free(where, 512);
  }
}
}
using of_NAME::NAME;
"""


def types(atom: str, m: int, n: int, *, pair: bool, majors: str = "KK", lanes: int = 32) -> str:
    """Definitions for the kernel: an atom of CuTe for operands of f16, their layouts, and loads of the sums."""
    made = ", ".join(f"UMMA::Major::{'MN' if major == 'N' else 'K'}" for major in majors)
    layouts = "".join(
        f"using Layout{name} = UMMA::Layout_{'MN' if major == 'N' else 'K'}_SW128_Atom<T{name}>;\n"
        for name, major in zip("AB", majors, strict=True)
    )
    return (
        "using TA = half_t;\nusing TB = half_t;\n"
        f"using Atom = SM100_MMA_F16BF16_{atom}<TA, TB, float, {m}, {n}, {made}>;\n"
        f"using Load = SM100_TMEM_LOAD_{lanes}dp32b1x;\nconstexpr bool PAIR = {str(pair).lower()};\n{layouts}"
    )


CASES = [("SS", 128, 128, False, "KK", 32), ("SS", 64, 64, False, "NN", 16), ("2x1SM_SS", 256, 64, True, "KK", 32),
         ("2x1SM_SS", 128, 64, True, "NK", 32)]  # fmt: skip


@pytest.fixture(scope="module")
def device(open_warm: Callable[..., Compiler]) -> Device:
    """The kernels of all cases, built together: most of 15 s of CPU time for one goes into the headers."""
    if not any(wheel.extra == "cutlass" for wheel in header_wheels(installed_toolchain().major)):
        pytest.skip("nvidia-cutlass is not installed: install the extra cutlass")
    source = HEADERS
    for number, (atom, m, n, pair, majors, lanes) in enumerate(CASES):
        kernel = KERNEL.replace("TYPES", types(atom, m, n, pair=pair, majors=majors, lanes=lanes))
        source += kernel.replace("CLUSTER", "__cluster_dims__(2, 1, 1)" if pair else "").replace("NAME", f"k{number}")
    compiler = open_warm(Compiler, None, limits=replace(COMPILE_LIMITS, wall_s=280, cpu_s=140))
    built = compiler.build(source, [f"k{number}" for number in range(len(CASES))], arch="sm_100a")
    assert isinstance(built, Artifact), built
    return Device(built.ptx.decode())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_products_in_cute_are_right(device: Device, case: tuple[str, int, int, bool, str, int]) -> None:
    """Rows or columns of the matrices may be adjacent in shared memory."""
    _, m, n, pair, _, _ = case
    rows, columns, k = 2 * m, 2 * n, 192
    a, b = (RNG.standard_normal((lines, k)).astype(np.float16) for lines in (rows, columns))
    d = np.zeros((rows, columns), np.float32)
    grid, kernel = (4 if pair else 2, 2), f"k{CASES.index(case)}"
    device.run(grid, 128, a, b, d, rows, columns, k, kernel=kernel, shared=65536)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(d, exact, rtol=1e-5, atol=2e-4)
