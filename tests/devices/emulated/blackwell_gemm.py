"""A matrix product for Blackwell: tensor maps, a ring of mbarriers, tcgen05 and an epilogue from tensor memory.

Blocks stay for several tiles of the result. One thread copies tiles, one multiplies, and four warps store the sums of
one tile while the next one is multiplied into the other half of tensor memory.
"""

from __future__ import annotations

_SUMS = ", ".join(f"%{k}" for k in range(32))
_OPERANDS = ", ".join(f'"=r"(d[{k}])' for k in range(32))

_COMMON = """
typedef unsigned long long u64;

__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ void init(u64* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(b)), "r"(count) : "memory");
}

__device__ void wait(u64* b, int parity) {
  asm volatile("{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @p bra DONE; bra AGAIN; DONE:}"
               :: "r"(at(b)), "r"(parity) : "memory");
}

__device__ void expect(u64* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}

// Rows of 64 halves, swizzled by 128 bytes; eight of them take 1024 bytes.
__device__ u64 descriptor(unsigned address) {
  return (u64)(address >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 46 | (u64)2 << 61;
}

#define BEFORE_SYNC asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory")
#define AFTER_SYNC asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory")
"""

GEMM = f"""{_COMMON}
constexpr int BM = 128, BN = 128, BK = 64, STAGES = 3, TILE = 128 * BK * 2, COLUMNS = 2 * BN;

__device__ void arrive(u64* b) {{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(b)) : "memory");
}}

__device__ void load(unsigned to, const CUtensorMap* map, int column, int row, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{%2, %3}}], [%4];"
               :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(at(b)) : "memory");
}}

// Sums of f32, operands of f16, 128 by 128.
constexpr unsigned SHAPE = 1 << 4 | (BN >> 3) << 17 | (BM >> 4) << 24;

__device__ void multiply(unsigned d, u64 a, u64 b, int adds) {{
  asm volatile("{{.reg .pred p; setp.ne.b32 p, %4, 0;"
               " tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;}}"
               :: "r"(d), "l"(a), "l"(b), "r"(SHAPE), "r"(adds) : "memory");
}}

__device__ void commit(u64* b) {{
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(at(b)) : "memory");
}}

extern "C" __global__ void __launch_bounds__(192) gemm(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k) {{
  extern __shared__ unsigned char raw[];
  __shared__ u64 full[STAGES], empty[STAGES], summed[2], stored[2];
  __shared__ unsigned where;
  unsigned tiles = (at(raw) + 1023) & ~1023u;
  int steps = (k + BK - 1) / BK, warp = threadIdx.x / 32, wide = (n + BN - 1) / BN;
  int count = wide * ((m + BM - 1) / BM);
  if (threadIdx.x == 0) {{
    for (int s = 0; s < STAGES; ++s) {{ init(full + s, 1); init(empty + s, 1); }}
    for (int s = 0; s < 2; ++s) {{ init(summed + s, 1); init(stored + s, 4); }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  if (warp == 1) {{
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(at(&where)), "r"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }}
  BEFORE_SYNC;
  __syncthreads();
  AFTER_SYNC;
  unsigned sums = where;
  if (threadIdx.x == 0) {{
    int t = 0;
    for (int tile = blockIdx.x; tile < count; tile += gridDim.x)
      for (int step = 0; step < steps; ++step, ++t) {{
        int s = t % STAGES;
        wait(empty + s, (t / STAGES & 1) ^ 1);
        expect(full + s, 2 * TILE);
        unsigned to = tiles + 2 * s * TILE;
        load(to, &a, step * BK, tile / wide * BM, full + s);
        load(to + TILE, &b, step * BK, tile % wide * BN, full + s);
      }}
  }} else if (threadIdx.x == 32) {{
    int t = 0, number = 0;
    for (int tile = blockIdx.x; tile < count; tile += gridDim.x, ++number) {{
      int half = number & 1;
      wait(stored + half, (number / 2 & 1) ^ 1);
      AFTER_SYNC;
      for (int step = 0; step < steps; ++step, ++t) {{
        int s = t % STAGES;
        wait(full + s, t / STAGES & 1);
        unsigned from = tiles + 2 * s * TILE;
        for (int q = 0; q < BK / 16; ++q)
          multiply(sums + half * BN, descriptor(from + 32 * q), descriptor(from + TILE + 32 * q), step | q);
        commit(empty + s);
      }}
      commit(summed + half);
    }}
  }} else if (warp >= 2) {{
    int number = 0, part = warp % 4;
    for (int tile = blockIdx.x; tile < count; tile += gridDim.x, ++number) {{
      int half = number & 1, row = tile / wide * BM + 32 * part + threadIdx.x % 32;
      wait(summed + half, number / 2 & 1);
      AFTER_SYNC;
      for (int j = 0; j < BN; j += 32) {{
        unsigned d[32];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{_SUMS}}}, [%32];"
                     : {_OPERANDS} : "r"(sums + half * BN + j + (32 * part << 16)));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        int column = tile % wide * BN + j;
        for (int i = 0; i < 32; ++i)
          if (row < m && column + i < n) c[row * n + column + i] = __uint_as_float(d[i]);
      }}
      BEFORE_SYNC;
      if (threadIdx.x % 32 == 0) arrive(stored + half);
    }}
  }}
  BEFORE_SYNC;
  __syncthreads();
  AFTER_SYNC;
  if (warp == 1)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(sums), "r"(COLUMNS));
}}
"""

PLAN = """
def forward(a, b):
    m, k = a.shape
    n = b.shape[0]
    out = empty((m, n), dtype=float32)
    gemm[2, 192, 99328](
        tensor_map(a, box=(128, 64), swizzle=128), tensor_map(b, box=(128, 64), swizzle=128),
        out, i32(m), i32(n), i32(k)
    )
    return out
"""

PAIR_GEMM = f"""{_COMMON}
constexpr int BM = 256, BN = 128, BK = 64, STAGES = 3, A_TILE = 128 * BK * 2, B_TILE = 64 * BK * 2;
constexpr int TILES = A_TILE + B_TILE;

__device__ unsigned rank() {{ unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }}

__device__ unsigned first_of_pair(const void* p) {{
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(p)), "r"(rank() & ~1u));
  return there;
}}

__device__ void arrive(u64* b) {{
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(first_of_pair(b)) : "memory");
}}

__device__ void load(unsigned to, const CUtensorMap* map, int column, int row, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{%2, %3}}], [%4];"
               :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(first_of_pair(b)) : "memory");
}}

// Sums of f32, operands of f16, 256 by 128: each block has half of the rows, and the copies of half of the columns.
constexpr unsigned SHAPE = 1 << 4 | (BN >> 3) << 17 | (BM >> 4) << 24;

__device__ void multiply(unsigned d, u64 a, u64 b, int adds) {{
  asm volatile("{{.reg .pred p; setp.ne.b32 p, %4, 0;"
               " tcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;}}"
               :: "r"(d), "l"(a), "l"(b), "r"(SHAPE), "r"(adds) : "memory");
}}

__device__ void commit(u64* b, unsigned short ctas) {{
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
               :: "r"(at(b)), "h"(ctas) : "memory");
}}

#define CLUSTER_SYNC asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory")

extern "C" __global__ void __launch_bounds__(192) gemm(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k) {{
  extern __shared__ unsigned char raw[];
  __shared__ u64 full[STAGES], empty[STAGES], summed, stored;
  __shared__ unsigned where;
  unsigned tiles = (at(raw) + 1023) & ~1023u;
  int steps = (k + BK - 1) / BK, warp = threadIdx.x / 32, wide = (n + BN - 1) / BN, half = rank();
  int count = wide * ((m + BM - 1) / BM);
  if (threadIdx.x == 0) {{
    for (int s = 0; s < STAGES; ++s) {{ init(full + s, 1); init(empty + s, 1); }}
    init(&summed, 1);
    init(&stored, 8);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  if (warp == 1) {{
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;"
                 :: "r"(at(&where)), "r"(BN) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
  }}
  BEFORE_SYNC;
  __syncthreads();
  CLUSTER_SYNC;
  AFTER_SYNC;
  unsigned sums = where;
  int first = blockIdx.x / 2, step_of_tiles = gridDim.x / 2;
  if (threadIdx.x == 0) {{
    int t = 0;
    for (int tile = first; tile < count; tile += step_of_tiles)
      for (int step = 0; step < steps; ++step, ++t) {{
        int s = t % STAGES;
        wait(empty + s, (t / STAGES & 1) ^ 1);
        if (half == 0) expect(full + s, 2 * TILES);
        unsigned to = tiles + s * TILES;
        load(to, &a, step * BK, tile / wide * BM + 128 * half, full + s);
        load(to + A_TILE, &b, step * BK, tile % wide * BN + 64 * half, full + s);
      }}
  }} else if (threadIdx.x == 32 && half == 0) {{
    int t = 0, number = 0;
    for (int tile = first; tile < count; tile += step_of_tiles, ++number) {{
      wait(&stored, (number & 1) ^ 1);
      AFTER_SYNC;
      for (int step = 0; step < steps; ++step, ++t) {{
        int s = t % STAGES;
        wait(full + s, t / STAGES & 1);
        unsigned from = tiles + s * TILES;
        for (int q = 0; q < BK / 16; ++q)
          multiply(sums, descriptor(from + 32 * q), descriptor(from + A_TILE + 32 * q), step | q);
        commit(empty + s, 3);
      }}
      commit(&summed, 3);
    }}
  }} else if (warp >= 2) {{
    int number = 0, part = warp % 4;
    for (int tile = first; tile < count; tile += step_of_tiles, ++number) {{
      int row = tile / wide * BM + 128 * half + 32 * part + threadIdx.x % 32;
      wait(&summed, number & 1);
      AFTER_SYNC;
      for (int j = 0; j < BN; j += 32) {{
        unsigned d[32];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {{{_SUMS}}}, [%32];"
                     : {_OPERANDS} : "r"(sums + j + (32 * part << 16)));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        int column = tile % wide * BN + j;
        for (int i = 0; i < 32; ++i)
          if (row < m && column + i < n) c[row * n + column + i] = __uint_as_float(d[i]);
      }}
      BEFORE_SYNC;
      if (threadIdx.x % 32 == 0) arrive(&stored);
    }}
  }}
  BEFORE_SYNC;
  __syncthreads();
  CLUSTER_SYNC;
  AFTER_SYNC;
  if (warp == 1)
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" :: "r"(sums), "r"(BN));
}}
"""
"""The same for pairs of blocks, whose tensor cores compute one tile together; the first block's thread issues it."""

PAIR_PLAN = """
def forward(a, b):
    m, k = a.shape
    n = b.shape[0]
    out = empty((m, n), dtype=float32)
    gemm[4, 192, 74752](
        tensor_map(a, box=(128, 64), swizzle=128), tensor_map(b, box=(64, 64), swizzle=128),
        out, i32(m), i32(n), i32(k), cluster=(2, 1, 1)
    )
    return out
"""
