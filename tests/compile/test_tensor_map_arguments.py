"""Kernels that take tensor maps build without an include, and only for what the plan passes as one."""

import pytest

from kernelforge.compile import Artifact, LaunchSignature

TILES = r"""
__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__global__ void copy_tile(const __grid_constant__ CUtensorMap map, float* out, int rows) {
  __shared__ alignas(128) float tile[16][32];
  __shared__ alignas(8) unsigned long long barrier;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.proxy.async;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;" ::"r"(shared_address(&barrier)));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(shared_address(tile)), "l"(&map), "r"(0), "r"(0), "r"(shared_address(&barrier)) : "memory");
  }
  __syncthreads();
  asm volatile("{ .reg .pred done; wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0; @!done bra wait; }"
               ::"r"(shared_address(&barrier)));
  for (int row = 0; row < rows; ++row) out[row * 32 + threadIdx.x] = tile[row][threadIdx.x];
}
"""
ARGUMENTS = ("tensor_map", "tensor:float32", "i32")


@pytest.mark.slow
@pytest.mark.parametrize("head", ["", "#include <cuda.h>\n", "#include <cuda/barrier>\n"])
def test_a_kernel_that_loads_a_tile_builds_and_gets_128_aligned_bytes(compiler, head):
    artifact = compiler.build(head + TILES, ["copy_tile"], signatures=[LaunchSignature("copy_tile", ARGUMENTS)])
    assert isinstance(artifact, Artifact), artifact
    text = artifact.ptx.decode()
    assert ".param .align 128 .b8" in text
    assert "[128]" in text.split(".entry")[1].split(")")[0]
    assert "cp.async.bulk.tensor.2d" in text


MISTAKES = [
    ("float* map", ("tensor_map",), "the plan passes a tensor map (const CUtensorMap), the kernel takes float *"),
    (
        "const __grid_constant__ CUtensorMap map",
        ("tensor:float32",),
        "the plan passes a float32 tensor (float*), the kernel takes CUtensorMap",
    ),
]


@pytest.mark.parametrize(("parameter", "args", "message"), MISTAKES)
def test_a_tensor_map_for_another_parameter_is_a_build_error(compiler, parameter, args, message):
    build = compiler.build(f"__global__ void k({parameter}) {{}}\n", ["k"], signatures=[LaunchSignature("k", args)])
    assert [diagnostic.message for diagnostic in build.errors] == [f"argument 1 of k: {message}"]
