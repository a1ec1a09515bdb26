"""A matrix product for Hopper: tensor maps, a ring of mbarriers, warp specialisation and wgmma; also with clusters."""

from __future__ import annotations

_REGISTERS = ", ".join(f"%{k}" for k in range(64))
_OPERANDS = ", ".join(f'"+f"(d[{k}])' for k in range(64))

GEMM = f"""
typedef unsigned long long u64;
#ifndef CLUSTER
#define CLUSTER 1
#endif
constexpr int BM = 128, BN = 128, BK = 64, STAGES = 3, TILE = 128 * BK * 2;

__device__ unsigned at(const void* p) {{ return (unsigned)__cvta_generic_to_shared(p); }}

__device__ void wait(u64* b, int parity) {{
  asm volatile("{{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
               " @p bra DONE; bra AGAIN; DONE:}}"
               :: "r"(at(b)), "r"(parity) : "memory");
}}

__device__ void expect(u64* b, int bytes) {{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at(b)), "r"(bytes) : "memory");
}}

__device__ void arrive(u64* b, unsigned rank) {{
  asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
               " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }}"
               :: "r"(at(b)), "r"(rank) : "memory");
}}

__device__ void load(unsigned to, const CUtensorMap* map, int column, int row, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {{%2, %3}}], [%4];"
               :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(at(b)) : "memory");
}}

__device__ void load_for_all(unsigned to, const CUtensorMap* map, int column, int row, u64* b) {{
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {{%2, %3}}], [%4], %5;"
               :: "r"(to), "l"(map), "r"(column), "r"(row), "r"(at(b)), "h"((short)((1 << CLUSTER) - 1)) : "memory");
}}

// Rows of 64 halves, swizzled by 128 bytes; eight of them take 1024 bytes.
__device__ u64 descriptor(unsigned address) {{
  return (u64)(address >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}}

__device__ void multiply(float* d, u64 a, u64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{{_REGISTERS}}}, %64, %65, 1, 1, 1, 0, 0;"
               : {_OPERANDS} : "l"(a), "l"(b));
}}

extern "C" __global__ void __launch_bounds__(384) gemm(
    const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, float* c, int m, int n, int k) {{
  extern __shared__ unsigned char raw[];
  __shared__ u64 full[STAGES], empty[STAGES];
  unsigned tiles = (at(raw) + 1023) & ~1023u;
  int steps = (k + BK - 1) / BK, group = threadIdx.x / 128;
  int row = blockIdx.y * BM, column = blockIdx.x * BN;
  unsigned rank = CLUSTER > 1 ? blockIdx.x % CLUSTER : 0;
  if (threadIdx.x == 0) {{
    for (int s = 0; s < STAGES; ++s) {{
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at(full + s)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(empty + s)), "r"(2 * CLUSTER) : "memory");
    }}
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }}
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
  else __syncthreads();
  if (group == 0) {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {{
      for (int t = 0; t < steps; ++t) {{
        int s = t % STAGES;
        wait(empty + s, (t / STAGES & 1) ^ 1);
        expect(full + s, 2 * TILE);
        unsigned to = tiles + 2 * s * TILE;
        if (CLUSTER > 1) {{
          int part = BM / CLUSTER;
          load_for_all(to + rank * part * BK * 2, &a, t * BK, row + rank * part, full + s);
        }} else {{
          load(to, &a, t * BK, row, full + s);
        }}
        load(to + TILE, &b, t * BK, column, full + s);
      }}
    }}
  }} else {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    float d[64];
    for (int i = 0; i < 64; ++i) d[i] = 0;
    int lane = threadIdx.x % 128;
    for (int t = 0; t < steps; ++t) {{
      int s = t % STAGES;
      wait(full + s, t / STAGES & 1);
      unsigned from = tiles + 2 * s * TILE;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int q = 0; q < BK / 16; ++q)
        multiply(d, descriptor(from + (group - 1) * 64 * BK * 2 + 32 * q), descriptor(from + TILE + 32 * q));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane < CLUSTER) arrive(empty + s, CLUSTER > 1 ? lane : rank);
    }}
    row += 64 * (group - 1) + lane / 32 * 16 + lane % 32 / 4;
    column += 2 * (lane % 4);
    for (int j = 0; j < BN / 8; ++j)
      for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 2; ++e)
          if (row + 8 * h < m && column + 8 * j + e < n)
            c[(row + 8 * h) * n + column + 8 * j + e] = d[4 * j + 2 * h + e];
  }}
  if (CLUSTER > 1) asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
}}
"""
MAP = "struct alignas(128) CUtensorMap { unsigned long long opaque[16]; };\n"
"""The type of a tensor map, which the header of the compiler's jail gives candidates."""

PLAN = """
def forward(a, b):
    m, k = a.shape
    n = b.shape[0]
    out = empty((m, n), dtype=float32)
    gemm[(ceil_div(n, 128), ceil_div(m, 128)), 384, 99328](
        tensor_map(a, box=(128, 64), swizzle=128), tensor_map(b, box=(128, 64), swizzle=128),
        out, i32(m), i32(n), i32(k)
    )
    return out
"""
CLUSTER_PLAN = (
    PLAN.replace("(ceil_div(n, 128), ", "(2 * ceil_div(n, 256), ")
    .replace("tensor_map(a, box=(128, 64)", "tensor_map(a, box=(64, 64)")
    .replace("i32(k)\n", "i32(k), cluster=(2, 1, 1)\n")
)
