"""Barriers of a block whose number, or whose count of threads, is in a register."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda

PAIRS = """extern "C" __global__ void k(int* y, int threads) {
  __shared__ int s[4][64];
  int group = threadIdx.x / 64, t = threadIdx.x % 64;
  for (int turn = 0; turn < 3; turn++) {
    s[group][t] = 100 * turn + t + group;
    asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "r"(threads) : "memory");
    y[threadIdx.x] += s[group][63 - t];
    asm volatile("bar.sync %0, %1;" :: "r"(group + 1), "r"(threads) : "memory");
    if (group == 3) return;
  }
}"""


def test_each_group_of_warps_has_a_barrier_of_its_own() -> None:
    y = np.zeros(256, np.int32)
    report = cuda(PAIRS).run(1, 256, y, 64, racecheck=True)
    turns = np.array([3, 3, 3, 1])[:, None]
    expected = turns * (63 - np.arange(64) + np.arange(4)[:, None]) + 100 * (turns * (turns - 1) // 2)
    assert np.array_equal(y.reshape(4, 64), expected)
    assert report.barriers == 3 * 6 + 2


def test_producers_arrive_and_consumers_wait_by_numbers_in_registers() -> None:
    source = """extern "C" __global__ void k(int* y, int full) {
  __shared__ int s[2][32];
  int warp = threadIdx.x / 32, t = threadIdx.x % 32, stage = warp % 2;
  if (warp < 2) {
    s[stage][t] = 10 * t + stage;
    asm volatile("bar.arrive %0, 64;" :: "r"(full + stage) : "memory");
  } else {
    asm volatile("bar.sync %0, 64;" :: "r"(full + stage) : "memory");
    y[threadIdx.x - 64] = s[stage][31 - t];
  }
}"""
    y = np.zeros(64, np.int32)
    cuda(source).run(1, 128, y, 3)
    assert np.array_equal(y.reshape(2, 32), 10 * (31 - np.arange(32)) + np.arange(2)[:, None])


def test_a_vote_at_a_barrier_in_a_register() -> None:
    source = """extern "C" __global__ void k(int* y, int name) {
  int count;
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %1, 40; bar.red.popc.u32 %0, %2, %3, p; }"
               : "=r"(count) : "r"(threadIdx.x), "r"(name), "r"(64));
  y[threadIdx.x] = count;
}"""
    y = np.zeros(64, np.int32)
    cuda(source).run(1, 64, y, 5)
    assert (y == 40).all()


@pytest.mark.parametrize(
    "operands",
    [
        pytest.param('"r"(which + 16), "r"(64)', id="a number over 15"),
        pytest.param('"r"(-which - 1), "r"(64)', id="a negative number"),
        pytest.param('"r"(which + 1), "r"(which + 33)', id="a part of a warp"),
        pytest.param('"r"(threadIdx.x & 1), "r"(64)', id="two numbers in one warp"),
    ],
)
def test_a_barrier_that_no_gpu_has_is_a_fault(operands: str) -> None:
    source = f"""extern "C" __global__ void k(int* y, int which) {{
  asm volatile("bar.sync %0, %1;" :: {operands} : "memory");
  y[threadIdx.x] = 1;
}}"""
    report = cuda(source).run(1, 64, np.zeros(64, np.int32), 0, clean=False)
    assert [(fault.kind, fault.source_line) for fault in report.faults][:1] == [("barrier_operands", 2)]


def test_lanes_of_one_warp_that_wait_at_two_barriers_are_a_fault() -> None:
    source = """extern "C" __global__ void k(int* y) {
  int name = 1 + threadIdx.x % 2;
  for (int turn = 0; turn < 2; turn++)
    if (threadIdx.x % 2 == turn) asm volatile("bar.sync %0, %1;" :: "r"(name), "r"(64) : "memory");
  y[threadIdx.x] = name;
}"""
    report = cuda(source).run(1, 64, np.zeros(64, np.int32), clean=False)
    assert report.faults[0].kind in ("barrier_operands", "divergent_barrier")
