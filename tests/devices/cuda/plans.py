"""Small candidates for tests of CUDA devices: sources, plans, requests, and builds by the real compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.plan import parse_plan, signatures
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import RunRequest
from kernelforge.records import DType, TensorSpec

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]
Make = Callable[..., tuple[ResolvedPlan, Artifact]]


def specs(arrays: Sequence[Array]) -> list[TensorSpec]:
    return [TensorSpec.contiguous(array.shape, DType(str(array.dtype))) for array in arrays]


def resolve(
    text: str, arrays: Sequence[Array], weights: Weights | None = None, library: Sequence[str] = ()
) -> ResolvedPlan:
    weights = weights or {}
    weight_specs = dict(zip(weights, specs(list(weights.values())), strict=True))
    return parse_plan(text).resolve(specs(arrays), weight_specs, {}, library=library)


def buffer_contents(plan: ResolvedPlan, arrays: Sequence[Array], weights: Weights | None = None) -> dict[int, bytes]:
    """Bytes of the plan's inputs and weights."""
    contents = {}
    for buffer in plan.buffers:
        if isinstance(buffer.source, int):
            contents[buffer.id] = arrays[buffer.source].tobytes()
        elif isinstance(buffer.source, str):
            contents[buffer.id] = (weights or {})[buffer.source].tobytes()
    return contents


def request(plan: ResolvedPlan, *arrays: Array, weights: Weights | None = None, **changes: Any) -> RunRequest:
    return RunRequest(plan, buffer_contents(plan, arrays, weights), **changes)


def build(compiler: Compiler, source: str, plan: ResolvedPlan, arch: str = "sm_90a") -> Artifact:
    built = compiler.build(source, plan.expressions, signatures=signatures(plan), scored=False, arch=arch)
    assert isinstance(built, Artifact), built
    return built


def randoms(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def floats(raw: bytes) -> Array:
    return np.frombuffer(raw, np.float32)


ADD = """
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
}
"""
ADD_PLAN = """
def forward(a, b):
    n = a.numel()
    out = empty_like(a)
    add[ceil_div(n, 256), 256](a, b, out, i32(n))
    return out
"""
OVERRUN_PLAN = ADD_PLAN.replace("i32(n)", "i32(n + 2)")
"""Two elements beyond the end."""

SPIN = """
extern "C" __global__ void spin(const volatile float* x, float* out) { while (x[0] == x[0]) {} out[0] = 1; }
"""
SPIN_PLAN = "def forward(x):\n    out = empty_like(x)\n    spin[1, 32](x, out)\n    return out\n"

WILD = """
extern "C" __global__ void wild(const float* x, float* out) { out[(1LL << 44) + threadIdx.x] = x[0]; }
"""
WILD_PLAN = "def forward(x):\n    out = empty_like(x)\n    wild[1, 32](x, out)\n    return out\n"

TRAP = """
extern "C" __global__ void trap(const float* x, float* out) { if (x[0] < 1e9f) asm volatile("trap;"); out[0] = x[0]; }
"""
TRAP_PLAN = "def forward(x):\n    out = empty_like(x)\n    trap[1, 1](x, out)\n    return out\n"

COPY = """
extern "C" __global__ void duplicate(const float* x, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i];
}
extern "C" __global__ void spoil(const float* x, float* out) {
  const_cast<float*>(x)[3] = 7.0f; out[0] = x[0];
}
"""
SPOIL_PLAN = "def forward(x):\n    out = empty_like(x)\n    spoil[1, 1](x, out)\n    return out\n"
"""Writes to its input."""

INCREMENT = """
extern "C" __global__ void increment(float* x, float* out, int n) {
  int i = threadIdx.x;
  if (i < n) { x[i] += 1.0f; out[i] = 2.0f * x[i]; }
}
"""
INCREMENT_PLAN = """
def forward(x):
    out = empty_like(x)
    increment[1, 128](x, out, i32(x.numel()))
    return out
"""
"""Writes to its input, as a task may ask for."""

COUNTER = """
__device__ int calls;
extern "C" __global__ void count(const float* x, float* out, int n) {
  if (threadIdx.x == 0) calls += 1;
  if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x];
}
"""
COUNTER_PLAN = """
def forward(x):
    out = empty_like(x)
    count[1, 128](x, out, i32(x.numel()))
    return out
"""
"""Keeps state between calls."""

SCALE = """
extern "C" __global__ void twice(const float* w, float* packed, int n) {
  if (threadIdx.x < n) packed[threadIdx.x] = 2.0f * w[threadIdx.x];
}
extern "C" __global__ void scale(const float* x, const float* packed, float* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = x[threadIdx.x] * packed[threadIdx.x];
}
extern "C" __global__ void damage(const float* x, float* packed, float* out, int n) {
  if (threadIdx.x < n) { packed[threadIdx.x] += 1.0f; out[threadIdx.x] = x[threadIdx.x] * packed[threadIdx.x]; }
}
"""
SCALE_PLAN = """
def setup(w):
    weight = w["weight"]
    packed = empty_like(weight)
    twice[1, 128](weight, packed, i32(weight.numel()))
    return packed

def forward(x):
    out = empty_like(x)
    scale[1, 128](x, prepared, out, i32(x.numel()))
    return out
"""
DAMAGE_PLAN = SCALE_PLAN.replace("scale[", "damage[")
"""Writes to what setup prepared."""

LIBRARY_PLAN = """
def forward(a, b):
    n = a.shape[0]
    product = empty((n, n))
    library("matmul", a, b, out=product)
    out = zeros((n, n))
    add[ceil_div(n * n, 256), 256](product, a, out, i32(n * n))
    return out
"""
"""A matrix product by torch, a memset, and a kernel."""
