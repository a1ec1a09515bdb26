"""Kernels with one planted fault each, and sound ones: source, plan, inputs, and what should be said of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from kernelforge.agents.diagnosis.rules import Bottleneck as B
from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.compile import Artifact, Compiler, LaunchSignature
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.worker import Kernel, Runner
from kernelforge.hardware.specs import H100
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import Build, DType, Profile, SizeFacts, TensorSpec

F32, F16 = DType.FLOAT32, DType.FLOAT16


@dataclass(frozen=True)
class Faulty:
    name: str
    expected: B
    inputs: tuple[tuple[int, ...], ...]
    source: str
    plan: str
    dtype: DType = F32
    flops: int = 0


@cache
def profiled(case: Faulty, compiler: Compiler) -> tuple[Profile, Build, SizeFacts]:
    """Build and profile a kernel as a candidate is."""
    specs = [TensorSpec.contiguous(shape, case.dtype) for shape in case.inputs]
    resolved = parse_plan(case.plan).resolve(specs, {}, {})
    checks = [LaunchSignature(item.expression, item.args) for item in signatures(resolved)]
    artifact = compiler.build(case.source, resolved.expressions, signatures=checks, constants=resolved.constants)
    assert isinstance(artifact, Artifact), (artifact.errors, artifact.refused)
    rng = np.random.default_rng(0)
    tensors = {
        buffer.id: rng.standard_normal(specs[int(buffer.source)].shape).astype(case.dtype.value).tobytes()
        for buffer in resolved.buffers
        if buffer.kind == "input" and buffer.source is not None
    }
    kernels = {item.expression: Kernel(item.symbol, item.registers_per_thread) for item in artifact.build.kernels}
    runner = Runner(artifact.ptx.decode(), kernels, H100, memory_bytes=1 << 30, threads=1)
    counts = runner.profile(
        RunRequest(plan=resolved, tensors=tensors, poison=0, mutable=frozenset(), deadline_s=60.0, memory_bytes=1 << 30,
             max_thread_instructions=None)
    )  # fmt: skip
    outputs = tuple(TensorSpec.contiguous(item.shape, item.dtype) for item in resolved.outputs)
    facts = SizeFacts(
        size="full", inputs=tuple(specs), outputs=outputs, weights=(), attrs={},
        compulsory_bytes=sum(item.nbytes for item in (*specs, *outputs)), flops=case.flops, eager_launches=1,
    )  # fmt: skip
    registers = {item.expression: item.registers_per_thread for item in artifact.build.kernels}
    return build_profile(H100, "emulated:h100", counts, registers, facts)[0], artifact.build, facts


def pointwise(name: str, expected: B, body: str, n: int = 1 << 20, block: int = 256, head: str = "") -> Faulty:
    """One thread per element, ``i``, of ``x`` and ``y``."""
    source = f"""{head}
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  {body}
}}"""
    plan = f"""
def forward(x):
    n = x.numel()
    y = empty_like(x)
    k[ceil_div(n, {block}), {block}](x, y, i32(n))
    return y
"""
    return Faulty(name, expected, ((n,),), source, plan)


ONE_THREAD_PER_ROW = Faulty("one thread per row", B.UNCOALESCED, ((32768, 64),), """
__global__ void k(const float* x, float* y, int rows, int cols) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float s = 0.f;
  for (int c = 0; c < cols; c++) s += x[r * cols + c];
  y[r] = s;
}""", """
def forward(x):
    rows, cols = x.shape
    y = empty((rows,), x.dtype)
    k[ceil_div(rows, 128), 128](x, y, i32(rows), i32(cols))
    return y
""")  # fmt: skip

TRANSPOSE_PLAN = """
def forward(x):
    rows, cols = x.shape
    y = empty((cols, rows), x.dtype)
    k[(cols // 32, rows // 32), (32, 8)](x, y, i32(rows), i32(cols))
    return y
"""


def transpose(name: str, expected: B, width: int, tiled: bool) -> Faulty:
    body = f"""__shared__ float tile[32][{width}];
  int bx = blockIdx.x * 32, by = blockIdx.y * 32, t = threadIdx.x;
  for (int j = threadIdx.y; j < 32; j += 8) tile[j][t] = x[(by + j) * w + bx + t];
  __syncthreads();
  for (int j = threadIdx.y; j < 32; j += 8) y[(bx + j) * h + by + t] = tile[t][j];"""
    if not tiled:
        body = """int bx = blockIdx.x * 32, by = blockIdx.y * 32, t = threadIdx.x;
  for (int j = threadIdx.y; j < 32; j += 8) y[(bx + t) * h + by + j] = x[(by + j) * w + bx + t];"""
    source = f"__global__ void k(const float* x, float* y, int h, int w) {{\n  {body}\n}}"
    return Faulty(name, expected, ((1024, 1024),), source, TRANSPOSE_PLAN)


MATMUL_PLAN = """
def forward(a, b):
    m, k = a.shape
    n = b.shape[1]
    c = empty((m, n), a.dtype)
    mm[(n // 16, m // 16), (16, 16)](a, b, c, i32(m), i32(n), i32(k))
    return c
"""
NAIVE_MATMUL = Faulty("naive matmul", B.REDUNDANT_LOADS, ((512, 512), (512, 512)), """
__global__ void mm(const float* a, const float* b, float* c, int m, int n, int k) {
  int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  float s = 0.f;
  for (int i = 0; i < k; i++) s += a[row * k + i] * b[i * n + col];
  c[row * n + col] = s;
}""", MATMUL_PLAN, flops=2 * 512**3)  # fmt: skip
HALF_MATMUL = Faulty("scalar half matmul", B.TENSOR_CORES_UNUSED, ((512, 512), (512, 512)), """
#include <cuda_fp16.h>
__global__ void mm(const __half* a, const __half* b, __half* c, int m, int n, int k) {
  __shared__ __half sa[16][16], sb[16][16];
  int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  float s = 0.f;
  for (int t = 0; t < k; t += 16) {
    sa[threadIdx.y][threadIdx.x] = a[row * k + t + threadIdx.x];
    sb[threadIdx.y][threadIdx.x] = b[(t + threadIdx.y) * n + col];
    __syncthreads();
    for (int i = 0; i < 16; i++) s += __half2float(sa[threadIdx.y][i]) * __half2float(sb[i][threadIdx.x]);
    __syncthreads();
  }
  c[row * n + col] = __float2half(s);
}""", MATMUL_PLAN, dtype=F16, flops=2 * 512**3)  # fmt: skip

SUM_PLAN = """
def forward(x):
    n = x.numel()
    y = zeros((1,), x.dtype)
    k[GRID, 256](x, y, i32(n))
    return y
"""
CHAIN = Faulty("unfused chain", B.INTERMEDIATE_TRAFFIC, ((1 << 20,),), """
__global__ void scale(const float4* x, float4* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.x *= 2.f; v.y *= 2.f; v.z *= 2.f; v.w *= 2.f;
  y[i] = v;
}
__global__ void shift(const float4* x, float4* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.x += 1.f; v.y += 1.f; v.z += 1.f; v.w += 1.f;
  y[i] = v;
}
__global__ void relu(const float4* x, float4* y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.x = fmaxf(v.x, 0.f); v.y = fmaxf(v.y, 0.f); v.z = fmaxf(v.z, 0.f); v.w = fmaxf(v.w, 0.f);
  y[i] = v;
}
""", """
def forward(x):
    n = x.numel()
    a = empty_like(x)
    b = empty_like(x)
    y = empty_like(x)
    scale[n // 1024, 256](x, a)
    shift[n // 1024, 256](a, b)
    relu[n // 1024, 256](b, y)
    return y
""")  # fmt: skip
MANY_LAUNCHES = Faulty("a launch per row", B.LAUNCH_BOUND, ((64, 1024),), """
__global__ void row(const float* x, float* y, int r, int cols) {
  int c = blockIdx.x * 256 + threadIdx.x;
  if (c < cols) y[r * cols + c] = tanhf(x[r * cols + c]);
}""", """
def forward(x):
    rows, cols = x.shape
    y = empty_like(x)
    for r in range(rows):
        row[ceil_div(cols, 256), 256](x, y, i32(r), i32(cols))
    return y
""")  # fmt: skip

BLOCK_SUM = """__global__ void k(const float* x, float* y, int n) {{
  __shared__ float s[256];
  float sum = 0.f;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) sum += x[i];
  s[threadIdx.x] = sum;
  __syncthreads();
  {tree}
  if (threadIdx.x == 0) atomicAdd(y, s[0]);
}}"""
TREE = """for (int h = 128; h > 0; h >>= 1) {
    if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h];
    __syncthreads();
  }"""

FAULTY: tuple[Faulty, ...] = (
    pointwise("strided reads", B.UNCOALESCED, "y[i] = x[(i % 1024) * 1024 + i / 1024] + 1.f;"),
    pointwise("array of structures", B.UNCOALESCED, "y[i] = x[(i & ((n >> 3) - 1)) * 8] * 2.f;"),
    ONE_THREAD_PER_ROW,
    transpose("scattered stores", B.UNCOALESCED, 32, tiled=False),
    transpose("unpadded tile", B.BANK_CONFLICT, 32, tiled=True),
    pointwise("stride in shared memory", B.BANK_CONFLICT, """__shared__ float s[256 * 16];
  s[threadIdx.x * 16] = x[i]; __syncthreads();
  y[i] = s[((threadIdx.x + 1) & 255) * 16];"""),
    NAIVE_MATMUL,
    HALF_MATMUL,
    pointwise("coefficients from memory", B.REDUNDANT_LOADS, """const volatile float* c = x; float v = x[i], s = 0.f;
  for (int j = 0; j < 64; j++) s = s * v + c[j];
  y[i] = s;"""),
    CHAIN,
    MANY_LAUNCHES,
    pointwise("dynamic local array", B.SPILLS, """float a[32];
  #pragma unroll
  for (int j = 0; j < 32; j++) a[j] = x[(i + j) & (n - 1)] * j;
  int at = (int)(fabsf(x[i]) * 7.f) & 31; float s = 0.f;
  for (int j = 0; j < 16; j++) { s += a[at]; at = (at * 5 + 3) & 31; }
  y[i] = s;""", n=1 << 18),
    Faulty("spilled registers", B.SPILLS, ((1 << 18,),), """
__global__ void __launch_bounds__(1024, 2) k(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 1024 + threadIdx.x;
  float a[64];
  #pragma unroll
  for (int j = 0; j < 64; j++) a[j] = x[(i + 1024 * j) & (n - 1)];
  #pragma unroll 1
  for (int t = 0; t < 8; t++) {
    #pragma unroll
    for (int j = 0; j < 64; j++) a[j] = a[j] * a[(j + 7) & 63] + a[(j + 29) & 63];
  }
  float s = 0.f;
  #pragma unroll
  for (int j = 0; j < 64; j++) s += a[j];
  y[i] = s;
}""", """
def forward(x):
    n = x.numel()
    y = empty_like(x)
    k[n // 1024, 1024](x, y, i32(n))
    return y
"""),
    Faulty("too much shared memory", B.LOW_OCCUPANCY_SHARED, ((1 << 20,),), """
__global__ void k(const float4* x, float4* y) {
  extern __shared__ float4 s[];
  int i = blockIdx.x * 128 + threadIdx.x;
  s[threadIdx.x] = x[i];
  __syncthreads();
  float4 v = s[127 - threadIdx.x];
  v.x += 1.f;
  y[i] = v;
}""", """
def forward(x):
    y = empty_like(x)
    k[x.numel() // 512, 128, 100000](x, y)
    return y
"""),
    Faulty("too many registers", B.LOW_OCCUPANCY_REGISTERS, ((1 << 19,),), """
__global__ void __launch_bounds__(256, 1) k(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x, total = gridDim.x * 256;
  float a[160];
  #pragma unroll
  for (int j = 0; j < 160; j++) a[j] = x[(i + j * 32) & (n - 1)];
  #pragma unroll 1
  for (int t = 0; t < 2; t++) {
    #pragma unroll
    for (int j = 0; j < 160; j++) a[j] = a[j] * a[(j + 81) % 160] + 1.f;
  }
  float s = 0.f;
  #pragma unroll
  for (int j = 0; j < 160; j++) s += a[j];
  y[i] = s;
}""", """
def forward(x):
    n = x.numel()
    y = empty_like(x)
    k[n // 256, 256](x, y, i32(n))
    return y
"""),
    pointwise("blocks of one warp", B.LOW_OCCUPANCY_BLOCK, "y[i] = x[i] * 2.f;", block=32),
    pointwise("blocks of 40 threads", B.LOW_OCCUPANCY_BLOCK, "y[i] = __expf(x[i]);", block=40, n=40 << 14),
    pointwise("odd lanes work more", B.DIVERGENCE, """float v = x[i];
  if (i % 2) { for (int j = 0; j < 30; j++) v = v * v + 0.5f; }
  else { for (int j = 0; j < 30; j++) v = __sinf(v) - 1.f; }
  y[i] = v;"""),
    pointwise("a switch by lane", B.DIVERGENCE, """float v = x[i];
  switch (threadIdx.x & 7) {
    case 0: for (int j = 0; j < 9; j++) v = v * v + 1.f; break;
    case 1: for (int j = 0; j < 9; j++) v = v * 3.f - v * v; break;
    case 2: for (int j = 0; j < 9; j++) v = __expf(v); break;
    case 3: for (int j = 0; j < 9; j++) v = __cosf(v); break;
    case 4: for (int j = 0; j < 9; j++) v = __logf(v * v + 1.f); break;
    case 5: for (int j = 0; j < 9; j++) v = v / (v + 3.f); break;
    case 6: for (int j = 0; j < 9; j++) v = sqrtf(v * v + 2.f); break;
    default: for (int j = 0; j < 9; j++) v = fminf(v * 2.f, v - 1.f); break;
  }
  y[i] = v;"""),
    Faulty("one thread of each block works", B.DIVERGENCE, ((1 << 18,),), """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float s[256];
  s[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) { float sum = 0.f; for (int j = 0; j < 256; j++) { sum += s[j]; s[j] = sum; } }
  __syncthreads();
  y[blockIdx.x * 256 + threadIdx.x] = s[threadIdx.x];
}""", """
def forward(x):
    n = x.numel()
    y = empty_like(x)
    k[n // 256, 256](x, y, i32(n))
    return y
"""),
    Faulty("one block", B.TINY_GRID, ((1 << 18,),), BLOCK_SUM.format(tree=TREE), SUM_PLAN.replace("GRID", "1")),
    Faulty("one thread", B.TINY_GRID, ((1 << 14,),), """
__global__ void k(const float* x, float* y, int n) {
  float s = 0.f;
  for (int i = 0; i < n; i++) { s += x[i]; y[i] = s; }
}""", """
def forward(x):
    n = x.numel()
    y = empty_like(x)
    k[1, 1](x, y, i32(n))
    return y
"""),
    Faulty("an atomic per element", B.ATOMICS_CONTENTION, ((1 << 18,),), """
__global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) atomicAdd(y, x[i]);
}""", SUM_PLAN.replace("GRID", "ceil_div(n, 256)")),
    Faulty("a histogram of few bins", B.ATOMICS_CONTENTION, ((1 << 18,),), """
__global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) atomicAdd(&y[x[i] > 0.f], 1.f);
}""", SUM_PLAN.replace("GRID", "ceil_div(n, 256)").replace("(1,)", "(8,)")),
    pointwise("a barrier at every step", B.SYNCHRONISATION, """__shared__ float s[256];
  float v = x[i];
  for (int j = 0; j < 64; j++) { s[threadIdx.x] = v; __syncthreads(); v += s[threadIdx.x ^ 1]; __syncthreads(); }
  y[i] = v;""", n=1 << 18),
    pointwise("double literals", B.DOUBLE_PRECISION, "y[i] = x[i] * 0.5 * (1.0 + 0.0447 * x[i] * x[i]) + 0.797;"),
    pointwise("integer division in a loop", B.ISSUE_BOUND, """int s = i + 1; float v = x[i];
  for (int j = 1; j < 16; j++) s += (n + s) / (i + j) + s % (j + 3 + i);
  y[i] = v + s;""", n=1 << 19),
    pointwise("the same factor by every thread", B.REDUNDANT_WORK, """float f = 1.f;
  for (int j = 1; j < 200; j++) f = f * 0.99f + 1.f / (float)(n + j);
  y[i] = x[i] * f;""", n=1 << 18),
    pointwise("a word at a time", B.UNVECTORISED, "y[i] = x[i] * 2.f + 1.f;", n=1 << 22),
)  # fmt: skip

REDUCE = """__global__ void k(const float* x, float* y, int n) {{
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 256 + t];
  __syncthreads();
  for (int d = 1; d < 256; d *= 2) {{ {step} __syncthreads(); }}
  if (t == 0) y[blockIdx.x] = s[0];
}}"""
PER_BLOCK = """
def forward(x):
    n = x.numel()
    y = empty((n // 256,), x.dtype)
    k[n // 256, 256](x, y, i32(n))
    return y
"""
FAULTY += (
    Faulty("a tree with strides", B.BANK_CONFLICT, ((1 << 18,),),
           REDUCE.format(step="int at = 2 * d * t; if (at < 256) s[at] += s[at + d];"), PER_BLOCK),
    Faulty("a tree by modulo", B.DIVERGENCE, ((1 << 18,),),
           REDUCE.format(step="if (t % (2 * d) == 0) s[t] += s[t + d];"), PER_BLOCK),
    Faulty("atomics in shared memory", B.ATOMICS_CONTENTION, ((1 << 18,),), """
__global__ void k(const float* x, float* y, int n) {
  __shared__ float s;
  if (threadIdx.x == 0) s = 0.f;
  __syncthreads();
  atomicAdd(&s, x[blockIdx.x * 256 + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) y[blockIdx.x] = s;
}""", PER_BLOCK),
    Faulty("a matrix times a vector, a thread per row", B.UNCOALESCED, ((4096, 512), (512,)), """
__global__ void k(const float* a, const float* x, float* y, int m, int n) {
  int r = blockIdx.x * 256 + threadIdx.x;
  if (r >= m) return;
  float s = 0.f;
  for (int j = 0; j < n; j++) s += a[r * n + j] * x[j];
  y[r] = s;
}""", """
def forward(a, x):
    m, n = a.shape
    y = empty((m,), a.dtype)
    k[ceil_div(m, 256), 256](a, x, y, i32(m), i32(n))
    return y
"""),
    Faulty("a scan with barriers at every step", B.SYNCHRONISATION, ((256, 4096),), """
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float s[1024];
  int t = threadIdx.x;
  float carry = 0.f;
  for (int base = 0; base < cols; base += 1024) {
    s[t] = x[blockIdx.x * cols + base + t];
    __syncthreads();
    for (int d = 1; d < 1024; d *= 2) {
      float v = t >= d ? s[t - d] : 0.f;
      __syncthreads();
      s[t] += v;
      __syncthreads();
    }
    y[blockIdx.x * cols + base + t] = s[t] + carry;
    carry += s[1023];
    __syncthreads();
  }
}""", """
def forward(x):
    rows, cols = x.shape
    y = empty_like(x)
    k[rows, 1024](x, y, i32(cols))
    return y
"""),
    Faulty("blocks of one warp", B.LOW_OCCUPANCY_BLOCK, ((1 << 20,),), """
__global__ void k(const float* __restrict__ x, float* __restrict__ y, int n) {
  int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) { float v = x[i]; y[i] = v / (1.f + __expf(-v)); }
}""", """
def forward(x):
    y = empty_like(x)
    k[ceil_div(x.numel(), 32), 32](x, y, i32(x.numel()))
    return y
"""),
    Faulty("a row's mean by each of its threads", B.REDUNDANT_LOADS, ((256, 512),), """
__global__ void k(const float* x, float* y, int rows, int cols) {
  int c = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
  float s = 0.f;
  for (int j = 0; j < cols; j++) s += x[r * cols + j];
  y[r * cols + c] = x[r * cols + c] - s / cols;
}""", """
def forward(x):
    rows, cols = x.shape
    y = empty_like(x)
    k[(cols // 256, rows), 256](x, y, i32(rows), i32(cols))
    return y
"""),
)  # fmt: skip

SOUND = Faulty("four words at a time", B.DRAM_BOUND, ((1 << 22,),), """
__global__ void k(const float4* __restrict__ x, float4* __restrict__ y) {
  int i = blockIdx.x * 256 + threadIdx.x;
  float4 v = x[i];
  v.x = v.x * 2.f + 1.f; v.y = v.y * 2.f + 1.f; v.z = v.z * 2.f + 1.f; v.w = v.w * 2.f + 1.f;
  y[i] = v;
}""", """
def forward(x):
    y = empty_like(x)
    k[x.numel() // 1024, 256](x, y)
    return y
""")  # fmt: skip
