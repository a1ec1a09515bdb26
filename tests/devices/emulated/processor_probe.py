"""Run a handful of kernels on code generated for other processors and print a digest of every result.

Usage: ``python processor_probe.py PTX_FILE PROCESSOR...``; the PTX comes from :data:`SOURCE`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

SOURCE = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void arithmetic(const float* x, float* y, double* z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float v = x[i];
    y[i] = fmaf(v, v, 1.0f) / (2.0f + sqrtf(fabsf(v))) + __fadd_rz(v, 1e-9f) + exp2f(v) + tanhf(v) + sinf(v);
    z[i] = __dmul_ru((double)v, 1.0 / 3) + rint((double)v * 7) + (double)(long long)(v * 1e12f);
  }
}
extern "C" __global__ void halves(const __half2* h, __half2* g, __nv_bfloat162* b, const float* x) {
  int i = threadIdx.x;
  g[i] = __hmul2(__hfma2(h[i], h[63 - i], h[i]), __floats2half2_rn(x[i], x[2 * i]));
  b[i] = __floats2bfloat162_rn(x[i], x[i + 64]);
}
extern "C" __global__ void convert(__half* h, float* f) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  h[i] = __float2half_rn(__uint_as_float(0x33000000u + i * 5113u));
  f[i] = __half2float(__ushort_as_half((unsigned short)i));
}
extern "C" __global__ void memory(const int* x, const unsigned char* bytes, int4* y, int* sums) {
  __shared__ int tile[33 * 32];
  int t = threadIdx.x, v = 0;
  for (int k = 0; k < 32; k++) tile[t * 33 + k] = x[(t * 7 + k * 5) & 255];
  __syncthreads();
  for (int k = 0; k < 32; k++) v += tile[k * 33 + t] * bytes[(k * t) & 127];
  y[t] = make_int4(v, v / 3, v >> (t & 7), v % 11);
  if (t & 1) v = __shfl_xor_sync(0xaaaaaaaa, v, 2);
  atomicAdd(sums, v);
  sums[1 + t] = __reduce_max_sync(~0u, v) + __popc(__ballot_sync(~0u, v > 9));
}
"""


def digests(ptx: str) -> list[str]:
    from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
    from kernelforge.devices.emulated.execute.memory import Memory

    rng = np.random.default_rng(3)
    floats = (rng.standard_normal(1000) * 3).astype(np.float32)
    machine = LoadedModule(ptx, Memory(1 << 20))
    launches = {
        "arithmetic": (8, 128, [floats, np.zeros(1000, np.float32), np.zeros(1000), 1000]),
        "halves": (1, 64, [floats[:128].astype(np.float16), *(np.zeros(128, np.uint16) for _ in range(2)), floats]),
        "convert": (512, 128, [np.zeros(1 << 16, np.uint16), np.zeros(1 << 16, np.float32)]),
        "memory": (
            1,
            32,
            [rng.integers(-99, 99, 256).astype(np.int32), rng.integers(0, 255, 128).astype(np.uint8),
             np.zeros(128, np.int32), np.zeros(33, np.int32)],
        ),
    }  # fmt: skip
    lines = []
    for kernel, (grid, block, arguments) in launches.items():
        buffer, addresses = b"", []
        for value in arguments:
            if isinstance(value, np.ndarray):
                addresses.append((machine.memory.allocate(value.nbytes, kernel), value.nbytes))
                machine.memory.write(addresses[-1][0], value)
                buffer += addresses[-1][0].to_bytes(8, "little")
            else:
                buffer += value.to_bytes(4, "little")
        report = machine.launch(kernel, (grid, 1, 1), (block, 1, 1), 0, buffer)
        content = b"".join(machine.memory.read(*where) for where in addresses)
        counted = repr((report.faults, report.mix, report.memory, report.barriers))
        lines.append(f"{kernel} {hashlib.sha256(content + counted.encode()).hexdigest()}")
    return lines


if __name__ == "__main__":
    from kernelforge.devices.emulated.codegen import llvm_jit

    # The processor is chosen once in a process; what is loaded now is the same for all.
    for processor in sys.argv[2:]:
        if os.fork() == 0:
            llvm_jit.PROCESSOR = processor
            print("\n".join(f"{processor} {line}" for line in digests(Path(sys.argv[1]).read_text())), flush=True)
            os._exit(0)
        os.wait()
