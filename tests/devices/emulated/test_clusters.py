"""Thread block clusters: ranks, the cluster's barrier, and shared memory of other blocks."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernelforge.candidate.resolved import Buffer, Launch, Output, ResolvedPlan, ScalarArg, TensorArg
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.errors import EmulatorError
from kernelforge.devices.emulated.execute.plan_execution import Kernel
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.devices.emulated.worker import Runner
from kernelforge.hardware.specs import SPECS
from kernelforge.profiling.counts import PlanCounts
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import DType, SizeFacts
from tests.devices.emulated import harness
from tests.devices.emulated.nvrtc import compile_ptx

SOURCE = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void ranks(int* out) {
  auto c = cg::this_cluster();
  dim3 b = c.block_index(), d = c.dim_blocks();
  int x, y, z, nx, ny, nz, flag;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(x));
  asm volatile("mov.u32 %0, %%clusterid.y;" : "=r"(y));
  asm volatile("mov.u32 %0, %%clusterid.z;" : "=r"(z));
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(nx));
  asm volatile("mov.u32 %0, %%nclusterid.y;" : "=r"(ny));
  asm volatile("mov.u32 %0, %%nclusterid.z;" : "=r"(nz));
  asm volatile("{.reg .pred p; mov.pred p, %%is_explicit_cluster; selp.s32 %0, 1, 0, p;}" : "=r"(flag));
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int values[16] = {(int)c.block_rank(), (int)c.num_blocks(), (int)b.x, (int)b.y, (int)b.z, (int)d.x, (int)d.y,
                    (int)d.z, x, y, z, nx, ny, nz, flag, (int)c.thread_rank()};
  for (int k = threadIdx.x; k < 16; k += blockDim.x) out[16 * block + k] = values[k];
}

extern "C" __global__ void histogram(const int* x, int* out, int n, int bins) {
  extern __shared__ int mine[];
  auto c = cg::this_cluster();
  int per = bins / c.num_blocks();
  for (int k = threadIdx.x; k < per; k += blockDim.x) mine[k] = 0;
  c.sync();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
    int bin = x[i];
    atomicAdd(c.map_shared_rank(mine, bin / per) + bin % per, 1);
  }
  c.sync();
  for (int k = threadIdx.x; k < per; k += blockDim.x) atomicAdd(out + c.block_rank() * per + k, mine[k]);
}

extern "C" __global__ void __cluster_dims__(4, 1, 1) row_sums(const float* x, float* out, int n) {
  __shared__ float part, scratch[32];
  auto c = cg::this_cluster();
  unsigned row = blockIdx.x / 4;
  float sum = 0;
  for (int k = c.block_rank() * blockDim.x + threadIdx.x; k < n; k += 4 * blockDim.x) sum += x[row * n + k];
  for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) { sum = 0; for (int k = 0; k < blockDim.x / 32; ++k) sum += scratch[k]; part = sum; }
  asm volatile("barrier.cluster.arrive.release.aligned;\\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (c.block_rank() == 0 && threadIdx.x == 0) {
    float all = 0;
    for (int r = 0; r < 4; ++r) {
      unsigned theirs; float value;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs)
                   : "r"((unsigned)__cvta_generic_to_shared(&part)), "r"(r));
      asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
      all += value;
    }
    out[row] = all;
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\\n barrier.cluster.wait.aligned;" ::: "memory");
}

extern "C" __global__ void spaces(int* out) {
  __shared__ int mine[4];
  auto c = cg::this_cluster();
  mine[0] = 7;
  c.sync();
  int peer = c.block_rank() ^ 1;
  int* theirs = c.map_shared_rank(mine, peer);
  int* alias = c.map_shared_rank(mine, c.block_rank());
  unsigned cta, cluster, cta_own, rank32, address;
  asm volatile("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(cta) : "l"(theirs));
  asm volatile("{.reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(cluster) : "l"(theirs));
  asm volatile("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(cta_own) : "l"(mine));
  address = (unsigned)__cvta_generic_to_shared(theirs);
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(rank32) : "r"(address));
  if (threadIdx.x == 0) {
    alias[1] = 5;
    int values[8] = {(int)cta, (int)cluster, (int)cta_own, (int)rank32, (int)c.query_shared_rank(theirs),
                     (int)c.query_shared_rank(mine), mine[1], __isShared(mine)};
    for (int k = 0; k < 8; ++k) out[8 * blockIdx.x + k] = values[k];
  }
  c.sync();
}

extern "C" __global__ void reach(float* out, int offset, int rank, int final) {
  __shared__ float mine[32];
  auto c = cg::this_cluster();
  mine[threadIdx.x] = blockIdx.x * 32 + threadIdx.x;
  c.sync();
  out[blockIdx.x * 32 + threadIdx.x] = c.map_shared_rank(mine, rank)[threadIdx.x + offset];
  if (final) c.sync();
}

extern "C" __global__ void direct(float* out) {
  __shared__ float mine[32];
  mine[threadIdx.x] = 1;
  cg::this_cluster().sync();
  unsigned theirs; float value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs)
               : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(cg::this_cluster().block_rank() ^ 1));
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(theirs) : "memory");
  out[blockIdx.x] = value;
  cg::this_cluster().sync();
}

extern "C" __global__ void early(float* out) {
  __shared__ float mine[32];
  mine[threadIdx.x] = blockIdx.x;
  if (cg::this_cluster().block_rank() == 1 && threadIdx.x < 16) return;
  cg::this_cluster().sync();
  out[blockIdx.x * 32 + threadIdx.x] = *cg::this_cluster().map_shared_rank(mine, 0);
  cg::this_cluster().sync();
}

extern "C" __global__ void apart(int* out) {
  __shared__ int mine;
  if (threadIdx.x == 0) mine = 10 + blockIdx.x;
  if (threadIdx.x % 2) {
    asm volatile("barrier.cluster.arrive;" ::: "memory");
    asm volatile("barrier.cluster.wait;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive;" ::: "memory");
    out[64 + blockIdx.x * 32 + threadIdx.x] = 1;
    asm volatile("barrier.cluster.wait;" ::: "memory");
  }
  out[blockIdx.x * 32 + threadIdx.x] = *cg::this_cluster().map_shared_rank(&mine, 1 - blockIdx.x % 2);
  cg::this_cluster().sync();
}

extern "C" __global__ void shared_tiles(const float* a, const float* b, float* c, int m, int n, int k) {
  // Two blocks of a cluster compute neighbouring tiles of one row, and each loads one half of their tile of a.
  __shared__ float half[32][16], tile[32][33];
  auto cluster = cg::this_cluster();
  int rank = cluster.block_rank(), x = threadIdx.x % 32, y = threadIdx.x / 32;
  int row = blockIdx.y * 32 + y, column = blockIdx.x * 32 + x;
  float sum = 0;
  for (int at = 0; at < k; at += 32) {
    if (x < 16) half[y][x] = row < m && at + 16 * rank + x < k ? a[row * k + at + 16 * rank + x] : 0;
    tile[y][x] = at + y < k && column < n ? b[(at + y) * n + column] : 0;
    cluster.sync();
    for (int r = 0; r < 2; ++r) {
      float(*theirs)[16] = cluster.map_shared_rank(half, r);
      for (int q = 0; q < 16; ++q) sum += theirs[y][q] * tile[16 * r + q][x];
    }
    cluster.sync();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

extern "C" __global__ void transposed(const float* x, float* out, int n) {
  // Every block stores its row into the shared memory of the others, by addresses of the generic space.
  __shared__ float row[64];
  auto cluster = cg::this_cluster();
  int rank = cluster.block_rank();
  for (int k = threadIdx.x; k < 64; k += blockDim.x)
    *(cluster.map_shared_rank(row, k % 4) + 16 * rank + k / 4) = x[blockIdx.x * 64 + k];
  cluster.sync();
  for (int k = threadIdx.x; k < 64; k += blockDim.x) out[blockIdx.x * 64 + k] = row[k];
}

extern "C" __global__ void stuck(int* out, int how) {
  if (how == 0 && blockIdx.x % 2) { asm volatile("barrier.cluster.wait;" ::: "memory"); }
  if (how == 1) asm volatile("barrier.cluster.arrive;\\n barrier.cluster.arrive;" ::: "memory");
  if (how == 2) {
    if (threadIdx.x < 32 || blockIdx.x % 2) cg::this_cluster().sync();
    else asm volatile("bar.sync 1, 64;" ::: "memory");
  }
  out[blockIdx.x] = 1;
}
"""


FLOAT = DType("float32")
M, N, K = 70, 100, 50


def step(kernel: str, grid: tuple[int, int, int], block: int, *args: int) -> Launch:
    """A launch with clusters along x on buffers 0, 1 and 2, or 0 and 2 of a plan."""
    buffers = (0, 1, 2) if kernel == "shared_tiles" else (0, 2)
    values = (*(TensorArg(buffer, 0, FLOAT) for buffer in buffers), *(ScalarArg("i32", value) for value in args))
    return Launch(kernel, grid, (block, 1, 1), 0, values, 1, (2 if kernel == "shared_tiles" else 4, 1, 1))


def requested(launch: Launch, a: np.ndarray, b: np.ndarray, out: tuple[int, ...]) -> tuple[Runner, RunRequest]:
    buffers = tuple(
        Buffer(k, kind, nbytes, name)
        for k, (nbytes, kind, name) in enumerate(
            [(a.nbytes, "input", "a"), (b.nbytes, "input", "b"), (4 * int(np.prod(out)), "workspace", "c")]
        )
    )
    plan = ResolvedPlan(buffers, (launch,), (Output(2, 0, out, FLOAT),))
    runner = Runner(
        compile_ptx(SOURCE), {launch.expression: Kernel(launch.expression, 32)}, SPECS["h100"], memory_bytes=1 << 24
    )
    return runner, RunRequest(plan, {0: a.tobytes(), 1: b.tobytes()}, poison=0xFF, deadline_s=60.0)


@pytest.fixture(scope="module")
def device() -> harness.Device:
    return harness.cuda(SOURCE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "cluster"),
    [((8, 1, 1), (2, 1, 1)), ((4, 6, 2), (2, 3, 1)), ((2, 2, 4), (1, 2, 4)), ((3, 2, 1), (1, 1, 1))],
)
def test_every_block_has_its_place_in_a_cluster(
    device: harness.Device, grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> None:
    out = np.zeros((grid[2], grid[1], grid[0], 16), np.int32)
    device.run(grid, 32, out, kernel="ranks", cluster=cluster)
    z, y, x = np.indices(out.shape[:3])
    at = [x, y, z]
    inside = [coordinate % extent for coordinate, extent in zip(at, cluster, strict=True)]
    rank = inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2])
    np.testing.assert_array_equal(out[..., 0], rank)
    assert (out[..., 1] == np.prod(cluster)).all()
    for axis in range(3):
        np.testing.assert_array_equal(out[..., 2 + axis], inside[axis])
        assert (out[..., 5 + axis] == cluster[axis]).all()
        np.testing.assert_array_equal(out[..., 8 + axis], at[axis] // cluster[axis])
        assert (out[..., 11 + axis] == grid[axis] // cluster[axis]).all()


def test_only_a_launch_with_clusters_is_an_explicit_cluster(device: harness.Device) -> None:
    for cluster, flag in ((None, 0), ((1, 1, 1), 1), ((2, 1, 1), 1)):
        out = np.zeros((2, 16), np.int32)
        device.run(2, 32, out, kernel="ranks", cluster=cluster)
        assert (out[:, 14] == flag).all()


@pytest.mark.parametrize(("size", "threads"), [(1, 1), (2, 1), (4, 2), (8, 1)])
def test_atomics_reach_the_shared_memory_of_all_blocks(size: int, threads: int) -> None:
    device = harness.cuda(SOURCE, threads=threads)
    x = np.random.default_rng(size).integers(0, 256, 5000).astype(np.int32)
    out = np.zeros(256, np.int32)
    report = device.run(16, 64, x, out, x.size, 256, kernel="histogram", shared=1024 // size, cluster=(size, 1, 1))
    np.testing.assert_array_equal(out, np.bincount(x, minlength=256))
    peers = [op for op in report.memory if op.space == "dshared"]
    assert bool(peers) == (size > 1)
    assert sum(op.threads for op in peers) <= 5000
    assert report.barriers == 32


@pytest.mark.parametrize(("rows", "n"), [(1, 1000), (5, 64), (7, 3333)])
def test_cluster_dims_of_the_kernel_hold_without_an_option(device: harness.Device, rows: int, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32)
    out = np.zeros(rows, np.float32)
    report = device.run(4 * rows, 128, x, out, n, kernel="row_sums")
    np.testing.assert_allclose(out, x.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)
    reads = [op for op in report.memory if op.opcode == "ld.shared::cluster.f32"]
    for space, requests in (("dshared", 3 * rows), ("shared", rows)):
        of = [op for op in reads if op.space == space]
        assert sum(op.requests for op in of) == sum(op.threads for op in of) == requests
        assert sum(op.transactions for op in of) == requests


def test_addresses_know_their_block(device: harness.Device) -> None:
    out = np.zeros((4, 8), np.int32)
    device.run(4, 32, out, kernel="spaces", cluster=(2, 1, 1))
    for block in range(4):
        own, peer = block % 2, 1 - block % 2
        assert out[block].tolist() == [0, 1, 1, peer, peer, own, 5, 1]


def test_threads_that_ended_are_not_waited_for(device: harness.Device) -> None:
    out = np.full((2, 32), -1, np.float32)
    device.run(2, 32, out, kernel="early", cluster=(2, 1, 1))
    assert (out[0] == 0).all()
    assert (out[1, 16:] == 0).all()
    assert (out[1, :16] == -1).all()


def test_lanes_may_wait_at_the_barrier_in_different_branches(device: harness.Device) -> None:
    out = np.zeros(128, np.int32)
    device.run(2, 32, out, kernel="apart", cluster=(2, 1, 1))
    assert out[:64].tolist() == [11] * 32 + [10] * 32


@pytest.mark.parametrize(
    ("offset", "rank", "kind"),
    [
        (0, 1, ""),
        (1, 1, "out_of_bounds"),
        (0, 2, "out_of_bounds"),
        (0, 300, "out_of_bounds"),
        (-33, 0, "out_of_bounds"),
    ],
)
def test_accesses_to_other_blocks_are_checked(device: harness.Device, offset: int, rank: int, kind: str) -> None:
    out = np.zeros(128, np.float32)
    report = device.run(4, 32, out, offset, rank, 1, kernel="reach", cluster=(2, 1, 1), clean=False)
    assert {fault.kind for fault in report.faults} == ({kind} if kind else set())
    if not kind:
        np.testing.assert_array_equal(out.reshape(2, 2, 32), np.stack([out[32:64], out[96:]])[:, None].repeat(2, 1))
    elif rank == 1:
        fault = report.faults[0]
        assert "of the cluster" in str(fault)
        assert fault.thread == (31, 0, 0)


def test_a_block_that_ends_while_another_may_read_it_is_a_fault(device: harness.Device) -> None:
    out = np.zeros(64, np.float32)
    for rank in (0, 1):
        report = device.run(2, 32, out, 0, rank, 0, kernel="reach", cluster=(2, 1, 1), clean=False)
        assert {fault.kind for fault in report.faults} == {"peer_ended"}
        assert "may have ended" in str(report.faults[0])
        assert {fault.block[0] for fault in report.faults} == {1 - rank}


def test_the_own_space_does_not_reach_other_blocks(device: harness.Device) -> None:
    report = device.run(2, 32, np.zeros(2, np.float32), kernel="direct", cluster=(2, 1, 1), clean=False)
    assert {fault.kind for fault in report.faults} == {"out_of_bounds"}
    assert "ld.shared::cluster" in str(report.faults[0])


@pytest.mark.parametrize(
    ("how", "kind"), [(0, "cluster_barrier_misuse"), (1, "cluster_barrier_misuse"), (2, "cluster_deadlock")]
)
def test_misuse_of_the_clusters_barrier_is_a_fault(device: harness.Device, how: int, kind: str) -> None:
    report = device.run(4, 64, np.zeros(4, np.int32), how, kernel="stuck", cluster=(2, 1, 1), clean=False)
    assert {fault.kind for fault in report.faults} == {kind}
    assert "barrier.cluster" in str(report.faults[0])


@pytest.mark.parametrize(
    ("kernel", "grid", "cluster", "message"),
    [
        ("row_sums", 6, None, "not a multiple of cluster (4, 1, 1)"),
        ("row_sums", 8, (2, 1, 1), "differs from the kernel's __cluster_dims__ (4, 1, 1)"),
        ("reach", 16, (16, 1, 1), "16 blocks; the limit is 8"),
        ("reach", 3, (2, 1, 1), "grid (3, 1, 1) is not a multiple"),
    ],
)
def test_clusters_that_no_gpu_launches_are_refused(
    device: harness.Device, kernel: str, grid: int, cluster: tuple[int, int, int] | None, message: str
) -> None:
    arguments = (np.zeros(4, np.float32), np.zeros(4, np.float32), 0) if kernel == "row_sums" else (
        np.zeros(4, np.float32), 0, 0, 0)  # fmt: skip
    with pytest.raises(EmulatorError, match=re.escape(message)):
        device.run(grid, 32, *arguments, kernel=kernel, cluster=cluster)


def test_only_complete_clusters_can_be_chosen(device: harness.Device) -> None:
    out = np.zeros((4, 4, 16), np.int32)
    device.run((4, 4, 1), 32, out, kernel="ranks", cluster=(2, 2, 1), ctas=[10, 11, 14, 15])
    assert [tuple(where) for where in np.argwhere(out[..., 1])] == [(2, 2), (2, 3), (3, 2), (3, 3)]
    with pytest.raises(EmulatorError, match="complete clusters"):
        device.run((4, 4, 1), 32, out, kernel="ranks", cluster=(2, 2, 1), ctas=[0, 1])


def test_the_clusters_behind_some_elements_are_run_and_no_others() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (K, N)))
    runner, request = requested(step("shared_tiles", (4, 3, 1), 1024, M, N, K), a, b, (M, N))
    (output,) = runner.run(request).outputs
    np.testing.assert_allclose(np.frombuffer(output, np.float32).reshape(M, N), a @ b, atol=1e-4)
    ran = runner.run_part(request, {0: [3, 66 * N + 70]})
    assert not ran.reason
    assert not ran.faults
    elements = np.frombuffer(ran.parts[0].elements, np.int64)
    # A cluster computes a tile of 32 x 64 elements.
    assert set(zip((elements // N // 32).tolist(), (elements % N // 64).tolist(), strict=True)) == {(0, 0), (2, 1)}
    assert len(elements) == 32 * 64 + (M - 64) * (N - 64)
    np.testing.assert_allclose(np.frombuffer(ran.parts[0].data, np.float32), (a @ b).reshape(-1)[elements], atol=1e-4)


def test_stores_into_other_blocks_are_no_stores_to_global_memory() -> None:
    x = np.random.default_rng(4).standard_normal((16, 64)).astype(np.float32)
    runner, request = requested(step("transposed", (16, 1, 1), 32, 64), x, x[:1], (16, 64))
    expected = x.reshape(4, 4, 16, 4).transpose(0, 3, 1, 2).reshape(16, 64)
    (output,) = runner.run(request).outputs
    np.testing.assert_array_equal(np.frombuffer(output, np.float32).reshape(16, 64), expected)
    ran = runner.run_part(request, {0: [5 * 64 + 1]})
    assert not ran.faults
    elements = np.frombuffer(ran.parts[0].elements, np.int64)
    assert set((elements // 64).tolist()) == {4, 5, 6, 7}
    np.testing.assert_array_equal(np.frombuffer(ran.parts[0].data, np.float32), expected.reshape(-1)[elements])


@pytest.mark.slow
def test_a_profile_samples_complete_clusters() -> None:
    a = np.ones((640, K), np.float32)
    b = np.ones((K, 640), np.float32)
    runner, request = requested(step("shared_tiles", (20, 20, 1), 1024, 640, 640, K), a, b, (640, 640))
    complete = runner.profile(request, budget=Budget(1, 10**9)).kernels[0]
    sampled = runner.profile(request, budget=Budget(1, 10**6, 10**6)).kernels[0]
    assert complete.sampled == 1
    assert sampled.sampled < 0.5
    assert sampled.blocks_run % 2 == 0
    assert sampled.blocks == complete.blocks == 400
    assert sampled.thread_instructions == complete.thread_instructions
    assert sampled.total("requests", "dshared") == complete.total("requests", "dshared") > 0
    assert complete.cluster == (2, 1, 1)
    facts = SizeFacts(
        size="small", inputs=(), outputs=(), weights=(), attrs={}, compulsory_bytes=1, flops=1, eager_launches=1
    )
    counts = PlanCounts.from_wire(PlanCounts([complete]).to_wire())
    profile, _ = build_profile(SPECS["h100"], "emulated:h100", counts, {"shared_tiles": 32}, facts)
    metrics = {metric.name: metric.value for metric in profile.kernels[0].metrics}
    assert metrics["launch__cluster_size"] == metrics["launch__cluster_dim_x"] == 2
    assert metrics["launch__cluster_dim_y"] == 1
    assert metrics["l1tex__t_requests_pipe_lsu_mem_dshared_op_ld.sum"] == complete.total("requests", "dshared")
