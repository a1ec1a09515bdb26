"""Speed of the emulated device next to PyTorch on the CPU, one thread each, every check on.

    python benchmarks/emulator.py [--reps N] [--json]

Times are minima over repetitions of one run; both sides run in this process. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule, warm_up
from kernelforge.devices.emulated.execute.memory import Memory

PHASES = 8


def ptx_of(source: str) -> str:
    """PTX of one kernel, built as a candidate's would be; the kernel is the last identifier before its parameters."""
    name = source.partition("__global__ void")[2].partition("(")[0].split()[-1]
    with Compiler(None) as compiler:
        built = compiler.build(source, [name])
    if not isinstance(built, Artifact):
        raise SystemExit("\n".join(map(str, built.errors)) or f"{name}: {built.refused or built.limit}")
    return built.ptx.decode()


VECTOR_ADD = """
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}"""

SOFTMAX = """
__device__ __forceinline__ float warp_max(float v) {
  for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
extern "C" __global__ void softmax(const float* __restrict__ x, float* __restrict__ y, int cols) {
  __shared__ float red[32];
  int t = threadIdx.x, lane = t & 31, warp = t >> 5, warps = blockDim.x >> 5;
  const float* row = x + (size_t)blockIdx.x * cols;
  float* out = y + (size_t)blockIdx.x * cols;
  float m = __int_as_float(0xff800000);
  for (int i = t; i < cols; i += blockDim.x) m = fmaxf(m, row[i]);
  m = warp_max(m);
  if (lane == 0) red[warp] = m;
  __syncthreads();
  m = warp_max(lane < warps ? red[lane] : __int_as_float(0xff800000));
  __syncthreads();
  float s = 0;
  for (int i = t; i < cols; i += blockDim.x) { float e = expf(row[i] - m); s += e; out[i] = e; }
  s = warp_sum(s);
  if (lane == 0) red[warp] = s;
  __syncthreads();
  s = warp_sum(lane < warps ? red[lane] : 0.0f);
  float inverse = 1.0f / s;
  for (int i = t; i < cols; i += blockDim.x) out[i] *= inverse;
}"""

LAYER_NORM = """
extern "C" __global__ void layer_norm(const float4* __restrict__ x, const float4* __restrict__ g,
                                      const float4* __restrict__ b, float4* __restrict__ y, int n4, float eps) {
  __shared__ float sums[32], squares[32];
  const float4* row = x + (size_t)blockIdx.x * n4;
  float s = 0, q = 0;
  for (int i = threadIdx.x; i < n4; i += blockDim.x) {
    float4 v = row[i];
    s += v.x + v.y + v.z + v.w;
    q += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  for (int o = 16; o; o >>= 1) { s += __shfl_xor_sync(0xffffffffu, s, o); q += __shfl_xor_sync(0xffffffffu, q, o); }
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (lane == 0) { sums[warp] = s; squares[warp] = q; }
  __syncthreads();
  s = lane < warps ? sums[lane] : 0.0f;
  q = lane < warps ? squares[lane] : 0.0f;
  for (int o = 16; o; o >>= 1) { s += __shfl_xor_sync(0xffffffffu, s, o); q += __shfl_xor_sync(0xffffffffu, q, o); }
  float mean = s / (4 * n4), scale = rsqrtf(q / (4 * n4) - mean * mean + eps);
  for (int i = threadIdx.x; i < n4; i += blockDim.x) {
    float4 v = row[i], w = g[i], c = b[i], o;
    o.x = (v.x - mean) * scale * w.x + c.x; o.y = (v.y - mean) * scale * w.y + c.y;
    o.z = (v.z - mean) * scale * w.z + c.z; o.w = (v.w - mean) * scale * w.w + c.w;
    y[(size_t)blockIdx.x * n4 + i] = o;
  }
}"""

SGEMM = """
extern "C" __global__ void sgemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                                 int n) {
  __shared__ float s[16][16], t[16][16];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 16 + y, col = blockIdx.x * 16 + x;
  float acc = 0;
  for (int k = 0; k < n; k += 16) {
    s[y][x] = a[row * n + k + x];
    t[y][x] = b[(k + y) * n + col];
    __syncthreads();
    for (int i = 0; i < 16; ++i) acc += s[y][i] * t[i][x];
    __syncthreads();
  }
  c[row * n + col] = acc;
}"""


@dataclass
class Case:
    """A kernel, its launch, the same computation in PyTorch, and how many times slower it may be."""

    name: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    inputs: list[torch.Tensor]
    shape: tuple[int, ...]
    scalars: bytes
    reference: Callable[..., torch.Tensor]
    target: float


def i32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def layer_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (1024,), g, b, 1e-5)


def _cases() -> list[Case]:
    torch.manual_seed(0)
    n = 1 << 20
    x, g, b = torch.randn(1024, 1024), torch.randn(1024), torch.randn(1024)
    return [
        Case("vector add 1M", VECTOR_ADD, (n // 256, 1, 1), (256, 1, 1), [torch.randn(n), torch.randn(n)], (n,), i32(n),
             torch.add, 10),
        Case("softmax 1024x1024", SOFTMAX, (1024, 1, 1), (256, 1, 1), [x], (1024, 1024), i32(1024),
             lambda x: torch.softmax(x, 1), 12),
        Case("layer norm 1024x1024 float4", LAYER_NORM, (1024, 1, 1), (256, 1, 1), [x, g, b], (1024, 1024),
             i32(256) + np.float32(1e-5).tobytes(), layer_norm, 8),
        Case("sgemm 16x16 tiles 512", SGEMM, (32, 32, 1), (16, 16, 1), [torch.randn(512, 512), torch.randn(512, 512)],
             (512, 512), i32(512), torch.matmul, 80),
    ]  # fmt: skip


def measure(case: Case, reps: int) -> dict[str, float | str]:
    """Run one case on both sides and check that they agree."""
    memory = Memory(64 << 20)
    machine = LoadedModule(ptx_of(case.source), memory)
    (entry,) = machine.entries
    addresses = []
    for k, tensor in enumerate(case.inputs):
        addresses.append(memory.allocate(4 * tensor.numel(), f"input{k}"))
        memory.write(addresses[-1], tensor.numpy())
    size = 4 * int(np.prod(case.shape))
    out = memory.allocate(size, "output")
    params = b"".join(a.to_bytes(8, "little") for a in (*addresses, out)) + case.scalars
    emulated, native, jit = [], [], 0.0
    # Alternating phases, so that both sides find their own data in the caches and share the machine's noise.
    for _ in range(PHASES):
        for _ in range(reps):
            report = machine.launch(entry, case.grid, case.block, 0, params)
            assert not report.faults, report.faults[0]
            emulated.append(report.seconds)
            jit = max(jit, report.jit_seconds)
        for _ in range(reps):
            start = time.perf_counter()
            expected = case.reference(*case.inputs)
            native.append(time.perf_counter() - start)
    result = np.frombuffer(memory.read(out, size), np.float32).reshape(case.shape)
    np.testing.assert_allclose(result, expected.numpy(), rtol=1e-3, atol=1e-3)
    ratio = min(emulated) / min(native)
    return {
        "name": case.name, "emulated_ms": 1e3 * min(emulated), "torch_ms": 1e3 * min(native), "ratio": ratio,
        "target": case.target, "jit_ms": 1e3 * jit,
    }  # fmt: skip


def main() -> int:
    """Print the table; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=10, help="repetitions per phase")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    rows = [measure(case, options.reps) for case in _cases()]
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        print(f"{'kernel':30s} {'emulated ms':>12s} {'torch ms':>9s} {'ratio':>7s} {'target':>7s} {'jit ms':>7s}")
        for r in rows:
            print(
                f"{r['name']:30s} {r['emulated_ms']:12.2f} {r['torch_ms']:9.3f} {r['ratio']:7.1f} {r['target']:7.0f} "
                f"{r['jit_ms']:7.0f}"
            )
    missed = [str(r["name"]) for r in rows if float(r["ratio"]) > float(r["target"])]
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
