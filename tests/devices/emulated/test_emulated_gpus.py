"""Each GPU that is stood in for: a kernel built for its architecture runs, and what is modelled of it makes sense."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.plan import signatures
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import device_names, make_device
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.profile.sampling import Budget
from kernelforge.hardware.specs import SPECS, DeviceSpec
from kernelforge.profiling.metrics import build_profile
from kernelforge.sandbox import select_tier
from tests.devices.emulated.emulated_plans import (
    ADD,
    ADD_PLAN,
    REGISTERS,
    facts,
    input_bytes,
    randoms,
    resolve,
    runner,
    work,
)

BUILT = [SPECS[name.removeprefix("emulated:")] for name in device_names() if name.startswith("emulated:")]
ONE_OF_EACH = {spec.arch: spec for spec in reversed(BUILT)}
LARGE = 1 << 20

SHUFFLED = """
extern "C" __global__ void sums(const float* x, float* out) {
  __shared__ float tile[256];
  int i = blockIdx.x * 256 + threadIdx.x;
  tile[threadIdx.x] = x[i];
  __syncthreads();
  float v = tile[255 - threadIdx.x];
  for (int step = 16; step; step /= 2) v += __shfl_xor_sync(0xffffffff, v, step);
  out[i] = v;
}
"""
SHUFFLED_PLAN = """
def forward(x):
    out = empty_like(x)
    sums[x.numel() // 256, 256](x, out)
    return out
"""


@pytest.mark.slow
@pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine")
@pytest.mark.parametrize("spec", ONE_OF_EACH.values(), ids=lambda spec: spec.arch)
def test_a_kernel_is_built_for_the_architecture_and_runs(
    compiler: Compiler, open_warm: Callable[..., Any], spec: DeviceSpec
) -> None:
    x = randoms(1024)
    plan = resolve(SHUFFLED_PLAN, [x])
    with open_warm(make_device, f"emulated:{spec.key}") as device:
        assert device.arch == spec.arch
        built = compiler.build(SHUFFLED, plan.expressions, signatures=signatures(plan), arch=device.arch)
        assert isinstance(built, Artifact), built
        assert f".target {spec.arch}" in built.ptx.decode()
        request = RunRequest(plan, input_bytes(plan, [x]))
        with device.open(built) as session:
            ran = session.run(request)
            profile, performance = session.profile(request, facts(plan, [x], 8192))
    assert ran.faults == ()
    warps = x.reshape(-1, 256)[:, ::-1].reshape(-1, 32)
    values = np.frombuffer(ran.outputs[0], np.float32).reshape(-1, 32)
    np.testing.assert_allclose(values, np.repeat(warps.sum(axis=1, keepdims=True), 32, axis=1), atol=1e-4)
    assert profile.device == f"emulated:{spec.key}"
    assert profile.value("sm__maximum_warps_per_active_cycle_pct") == 100.0
    assert 0 < performance.time_us < 100


@pytest.mark.one_in(3)
@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.key)
def test_the_time_of_a_kernel_is_modelled_between_the_peak_and_a_few_times_it(spec: DeviceSpec) -> None:
    """An addition of 12 MiB: from DRAM it takes no less than its bytes at the peak, and not far more."""
    a, b = randoms(LARGE), randoms(LARGE, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    budget = Budget(len(plan.launches), total=60_000, floor=60_000)
    counts = runner(ADD, spec=spec).profile(work(plan, [a, b], poison=0), budget=budget)
    registers = dict.fromkeys(plan.expressions, REGISTERS)
    profile, performance = build_profile(
        spec, f"emulated:{spec.key}", counts, registers, facts(plan, [a, b], 12 * LARGE, LARGE)
    )
    least_us = 12 * LARGE / spec.dram_bandwidth_gbps * 1e-3
    assert least_us < performance.time_us < 4 * least_us + 2 * spec.launch_overhead_us
    limits = profile.kernels[0].limits_us
    assert len(limits) >= 6
    assert all(math.isfinite(limit) and limit > 0 for limit in limits.values())
    assert profile.value("sm__maximum_warps_per_active_cycle_pct") == 100.0
    assert profile.roofline.ridge == spec.ridge_flop_per_byte
