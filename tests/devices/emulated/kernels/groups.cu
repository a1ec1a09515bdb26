// Cooperative groups, CUB, clusters, asynchronous copies and barriers.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda/barrier>
#include <cuda_pipeline.h>
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
namespace cg = cooperative_groups;

extern "C" __global__ void sums_of_tiles(const int* x, int* y) {
  auto tile = cg::tiled_partition<16>(cg::this_thread_block());
  int sum = cg::reduce(tile, x[threadIdx.x], cg::plus<int>());
  if (tile.thread_rank() == 0) y[tile.meta_group_rank()] = sum;
}
extern "C" __global__ void two_phases_of_a_grid(int* x, int* y) {
  auto grid = cg::this_grid();
  x[grid.thread_rank()] *= 2;
  grid.sync();
  y[grid.thread_rank()] = x[grid.size() - 1 - grid.thread_rank()];
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) neighbours_in_a_cluster(const int* x, int* y) {
  __shared__ int s[32];
  auto cluster = cg::this_cluster();
  int i = blockIdx.x * 32 + threadIdx.x;
  s[threadIdx.x] = x[i];
  cluster.sync();
  y[i] = cluster.map_shared_rank(s, (cluster.block_rank() + 1) % 4)[threadIdx.x];
  cluster.sync();
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) histogram_of_a_cluster(const int* x, int* y) {
  __shared__ int bins[16];
  auto cluster = cg::this_cluster();
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  cluster.sync();
  int v = x[blockIdx.x * 64 + threadIdx.x];
  atomicAdd(cluster.map_shared_rank(bins, v / 16) + v % 16, 1);
  cluster.sync();
  if (threadIdx.x < 16) atomicAdd(y + 16 * cluster.block_rank() + threadIdx.x, bins[threadIdx.x]);
}
extern "C" __global__ void block_sort(const unsigned* x, unsigned* y) {
  using Sort = cub::BlockRadixSort<unsigned, 64, 4>;
  __shared__ typename Sort::TempStorage storage;
  unsigned v[4];
  for (int k = 0; k < 4; k++) v[k] = x[4 * threadIdx.x + k];
  Sort(storage).Sort(v);
  for (int k = 0; k < 4; k++) y[4 * threadIdx.x + k] = v[k];
}
extern "C" __global__ void block_scan(const float* x, float* y, float* all) {
  using Scan = cub::BlockScan<float, 128>;
  __shared__ typename Scan::TempStorage storage;
  float v, sum;
  Scan(storage).InclusiveSum(x[threadIdx.x], v, sum);
  y[threadIdx.x] = v;
  if (threadIdx.x == 0) *all = sum;
}
struct Greatest {
  __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};
extern "C" __global__ void block_greatest(const int* x, int* y) {
  using Reduce = cub::BlockReduce<int, 96>;
  __shared__ typename Reduce::TempStorage storage;
  int v = Reduce(storage).Reduce(x[blockIdx.x * 96 + threadIdx.x], Greatest());
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
extern "C" __global__ void two_stages_of_copies(const float4* x, float4* y, int steps) {
  __shared__ float4 s[2][64];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&s[0][t], x + t, 16);
  __pipeline_commit();
  for (int k = 0; k < steps; k++) {
    if (k + 1 < steps) __pipeline_memcpy_async(&s[(k + 1) % 2][t], x + 64 * (k + 1) + t, 16);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    float4 v = s[k % 2][63 - t];
    y[64 * k + t] = make_float4(v.x + 1, v.y + 1, v.z + 1, v.w + 1);
    __syncthreads();
  }
}
extern "C" __global__ void barrier_object(const int* x, int* y) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int s[64];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  int v = x[threadIdx.x];
  for (int k = 0; k < 3; k++) {
    s[threadIdx.x] = v;
    barrier.arrive_and_wait();
    v += s[(threadIdx.x + 1) % 64];
    barrier.arrive_and_wait();
  }
  y[threadIdx.x] = v;
}
extern "C" __global__ void bulk_copy(const int* x, int* y) {
  __shared__ __align__(128) int s[256];
  __shared__ unsigned long long ready;
  unsigned to = __cvta_generic_to_shared(s), at = __cvta_generic_to_shared(&ready);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(at) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 :: "r"(to), "l"(x + blockIdx.x * 256), "r"(at) : "memory");
  }
  __syncthreads();
  int done = 0;
  while (!done)
    asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.s32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(at) : "memory");
  y[blockIdx.x * 256 + threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void producer_and_consumer(const int* x, int* y, int n) {  // warps meet at named barriers
  __shared__ int box[32];
  int lane = threadIdx.x & 31;
  for (int k = 0; k < n; k++) {
    if (threadIdx.x < 32) {
      if (k) asm volatile("bar.sync 2, 64;" ::: "memory");
      box[lane] = x[32 * k + lane] * 3;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      y[32 * k + lane] = box[31 - lane];
      if (k + 1 < n) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
}
extern "C" __global__ void by_label(const int* x, int* y) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  auto same = cg::labeled_partition(warp, x[threadIdx.x] % 5);
  y[threadIdx.x] = same.size() * 100 + same.thread_rank();
}
