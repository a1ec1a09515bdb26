"""ncu and compute-sanitizer on a real GPU."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernelforge.compile import Compiler
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.devices.cuda.discovery import gpus
from kernelforge.devices.cuda.tools.fallback_profile import TIME, estimate_profile
from kernelforge.devices.cuda.tools.ncu import profile, profiler_status
from kernelforge.devices.cuda.tools.sanitizer import TOOLS, sanitize
from kernelforge.devices.cuda.tools.tool_process import find_tool
from kernelforge.records import Origin
from tests.devices.cuda.plans import ADD, ADD_PLAN, build, randoms, request, resolve
from tests.support.factories import sum_facts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not gpus(), reason="no NVIDIA GPU on this machine")]

ELEMENTS = 1 << 24
BEYOND = ADD.replace("i < n", "i < n + 1")
RACE = """
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  __shared__ float tile[256];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = a[i];
  out[i] = tile[255 - threadIdx.x] + b[i];
}
"""
UNWRITTEN = """
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i] + out[i];
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[CudaDevice]:
    with CudaDevice(0) as made:
        yield made


@pytest.mark.skipif(find_tool("ncu") is None, reason="ncu is not installed")
def test_ncu_measures_a_streaming_kernel(
    compiler: Compiler, device: CudaDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELFORGE_NCU_CAPTURES", str(tmp_path))
    arrays = [randoms(ELEMENTS), randoms(ELEMENTS, seed=1)]
    plan = resolve(ADD_PLAN, arrays)
    artifact = build(compiler, ADD, plan, device.arch)
    result = profile(device.target, device.runners, artifact, request(plan, *arrays), sum_facts(ELEMENTS))
    if any("No hardware counters" in note for note in result.notes):
        pytest.skip(result.notes[0])
    warps = ELEMENTS / 32
    assert result.value("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum") == 2 * 4 * warps
    assert result.value("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum") == 4 * warps
    assert result.value("kernelforge__flops_fp32.sum") == ELEMENTS
    assert result.value("dram__bytes_read.sum") == pytest.approx(8 * ELEMENTS, rel=0.1)
    assert result.roofline.bound == "dram"
    assert {metric.origin for metric in result.metrics} == {Origin.MEASURED}
    assert sorted(spot.access for spot in result.kernels[0].hot_spots) == ["load", "load", "store"]
    assert list(tmp_path.glob("*.ncu-rep"))


def test_events_and_the_emulator_stand_in(compiler: Compiler, device: CudaDevice) -> None:
    arrays = [randoms(1 << 20), randoms(1 << 20, seed=1)]
    plan = resolve(ADD_PLAN, arrays)
    artifact = build(compiler, ADD, plan, device.arch)
    result = estimate_profile(
        device.target, device.runners, artifact, request(plan, *arrays), sum_facts(1 << 20), "a test asked for it", 14.0
    )
    assert 1 < (result.value(TIME) or 0) < 10_000
    assert [metric.name for metric in result.metrics if metric.origin is Origin.MEASURED] == [TIME]


def test_the_status_names_ncu() -> None:
    assert (profiler_status().ncu is None) == (shutil.which("ncu") is None and find_tool("ncu") is None)


@pytest.mark.skipif(find_tool("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize(
    ("source", "tool"), [(BEYOND, "memcheck"), (RACE, "racecheck"), (UNWRITTEN, "initcheck"), (ADD, None)]
)
def test_the_sanitizer_finds_what_was_planted_and_nothing_else(
    compiler: Compiler, device: CudaDevice, source: str, tool: str | None
) -> None:
    n = 1024
    arrays = [np.ones(n, np.float32), np.ones(n, np.float32)]
    plan = resolve(
        ADD_PLAN.replace("ceil_div(n, 256)", "ceil_div(n + 1, 256)") if source is BEYOND else ADD_PLAN, arrays
    )
    artifact = build(compiler, source, plan, device.arch)
    faults = sanitize(device.target, device.runners, artifact, request(plan, *arrays), TOOLS)
    if tool is None:
        assert faults == ()
    else:
        assert faults
        assert all(fault.kind == "sanitizer" for fault in faults)
        assert f"compute-sanitizer {tool}" in faults[0].message
        assert "'add'" in faults[0].message
