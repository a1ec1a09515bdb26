"""Builds small candidates for tests of the emulated device: CUDA source and plan to a runner and its work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelforge.candidate.plan import parse_plan
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.devices.base import RunRequest, RunResult
from kernelforge.devices.emulated.execute.plan_execution import Kernel
from kernelforge.devices.emulated.worker import Runner
from kernelforge.hardware.specs import H100, DeviceSpec
from kernelforge.records import DType, SizeFacts, TensorSpec
from tests.devices.emulated.nvrtc import compile_ptx

Array = npt.NDArray[Any]
REGISTERS = 32


def specs(arrays: Sequence[Array]) -> list[TensorSpec]:
    return [TensorSpec.contiguous(array.shape, DType(str(array.dtype))) for array in arrays]


def resolve(plan: str, arrays: Sequence[Array]) -> ResolvedPlan:
    return parse_plan(plan).resolve(specs(arrays), {}, {})


def input_bytes(plan: ResolvedPlan, arrays: Sequence[Array]) -> dict[int, bytes]:
    """Bytes of the plan's input buffers."""
    return {b.id: arrays[int(b.source)].tobytes() for b in plan.buffers if b.kind == "input" and b.source is not None}


def runner(
    source: str, *, spec: DeviceSpec = H100, arch: str = "compute_90a", memory_bytes: int = 1 << 30, threads: int = 1,
    registers: int = REGISTERS,
) -> Runner:  # fmt: skip
    """A runner for kernels declared ``extern "C"``."""
    names = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\(\d+\)\s+)?(\w+)", source)
    kernels = {name: Kernel(name, registers) for name in names}
    return Runner(compile_ptx(source, arch=arch), kernels, spec, memory_bytes=memory_bytes, threads=threads)


def work(plan: ResolvedPlan, arrays: Sequence[Array], **changes: Any) -> RunRequest:
    fields: dict[str, Any] = {
        "plan": plan,
        "tensors": input_bytes(plan, arrays),
        "poison": 0xA5,
        "mutable": frozenset(),
        "deadline_s": 20.0,
        "memory_bytes": 1 << 30,
        "max_thread_instructions": None,
    }
    return RunRequest(**(fields | changes))


def run(source: str, plan: str, *arrays: Array, **changes: Any) -> RunResult:
    resolved = resolve(plan, arrays)
    return runner(source).run(work(resolved, arrays, **changes))


def facts(plan: ResolvedPlan, arrays: Sequence[Array], compulsory_bytes: int, flops: int = 0) -> SizeFacts:
    return SizeFacts(
        size="full",
        inputs=tuple(specs(arrays)),
        outputs=tuple(TensorSpec.contiguous(o.shape, o.dtype) for o in plan.outputs),
        weights=(),
        attrs={},
        compulsory_bytes=compulsory_bytes,
        flops=flops,
        eager_launches=1,
    )


def randoms(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


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
