"""Small launches run code that is made quickly, large ones code that is optimised, and both count and compute alike."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernelforge.devices.emulated.codegen import program
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from tests.devices.emulated.harness import Device, cuda, ptx_module

BLOCK = 64
CTAS = program.MANY_WARPS * 32 // BLOCK

LOOP = """extern "C" __global__ void k(const float* x, float* y, int n) {
  float s = threadIdx.x;
  for (int i = 0; i <= (threadIdx.x & 3); i++) s = s * x[i] + blockIdx.x;
  y[(blockIdx.x & 1) * blockDim.x + threadIdx.x] = s;
}"""
STRAIGHT = """extern "C" __global__ void k(const float* x, float* y, int n) {
  y[(blockIdx.x & 1) * blockDim.x + threadIdx.x] = threadIdx.x * x[0] + n;
}"""


def level(device: Device) -> int:
    return device.machine.program("k", (BLOCK, 1, 1)).level


def run(device: Device, grid: int, **options: object) -> tuple[np.ndarray, list[int]]:
    """The two rows that blocks of even and odd number write, and counts."""
    x, y = np.array([0.5, 1.5, -2, 3], np.float32), np.zeros((2, BLOCK), np.float32)
    report = device.run(grid, BLOCK, x, y, 7, **options)
    return y, [report.warp_instructions, report.thread_instructions]


def test_a_kernel_with_loops_is_optimised_when_many_warps_run_it() -> None:
    device = cuda(LOOP)
    run(device, CTAS - 1)
    assert level(device) == 0
    few = run(device, 2)
    assert level(device) == 0
    run(device, CTAS, ctas=range(CTAS - 1))
    assert level(device) == 0, "blocks that are left out do not count"
    run(device, CTAS)
    assert level(device) == 1
    second = run(device, 2)
    assert level(device) == 1, "what is optimised stays so"
    assert np.array_equal(few[0], second[0])
    assert few[1] == second[1]
    assert np.array_equal(few[0][0], expected(0))


def expected(cta: int) -> np.ndarray:
    x = np.array([0.5, 1.5, -2, 3], np.float32)
    values = []
    for thread in range(BLOCK):
        s = np.float32(thread)
        for i in range((thread & 3) + 1):
            s = s * x[i] + np.float32(cta)
        values.append(s)
    return np.array(values, np.float32)


@pytest.mark.parametrize(("few", "expected"), [(100, 1), (5, 0)])
def test_a_kernel_without_loops_is_when_it_is_short(few: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "FEW_INSTRUCTIONS", few)
    device = cuda(STRAIGHT.replace("+ n", f"+ n + {few}"))
    run(device, CTAS)
    assert level(device) == expected


def test_a_long_kernel_always_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "MANY_LINES", 10)
    device = cuda(STRAIGHT.replace("+ n", "- n"))
    run(device, 2)
    assert level(device) == 1


@pytest.mark.slow
def test_unoptimised_code_of_a_long_kernel_has_stack_enough() -> None:
    """Every value is read after the next ones were computed, so that all of them are on the stack at once."""
    count = 6_000
    adds = "".join(f"add.u64 %v{k + 1}, %v{k}, {k};" for k in range(count))
    sums = "".join(f"xor.b64 %d3, %d3, %v{k + 1};" for k in range(count))
    body = f"""
    .reg .b64 %v<{count + 1}>;
    mov.u32 %r1, %tid.x; mul.wide.u32 %v0, %r1, 8; {adds}
    shfl.sync.idx.b32 %r1, %r1, %r1, 31, -1; mov.u64 %d3, 0; {sums}
    ld.param.u64 %d1, [out]; add.u64 %d1, %d1, %v0; st.global.u64 [%d1], %d3;"""
    memory = Memory(1 << 20)
    machine = LoadedModule(ptx_module(body), memory)
    out = memory.allocate(256, "out")
    usual = threading.stack_size(1 << 20)
    try:
        thread = threading.Thread(
            target=machine.launch, args=("k", (1, 1, 1), (32, 1, 1), 0, out.to_bytes(8, "little"))
        )
        thread.start()
    finally:
        threading.stack_size(usual)
    thread.join()
    program = machine.program("k", (32, 1, 1))
    assert program.level == 0
    assert program.stack_bytes > 1 << 20
    expected = []
    for lane_id in range(32):
        value, result = 8 * lane_id, 0
        for k in range(count):
            value += k
            result ^= value
        expected.append(result)
    assert np.frombuffer(memory.read(out, 256), np.uint64).tolist() == expected
