"""Variations of a run differ where hardware leaves the behaviour open; honest kernels give the same results."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.execute.launch import undefined_word, windows
from kernelforge.devices.emulated.execute.memory import Memory, vary
from tests.devices.emulated.harness import Device, cuda, ptx_module

VARIATIONS = (0, 1, 2, 77, 0xDEADBEEF, 2**32 - 1)

ADDRESSES = """__device__ const int table[4] = {5, 6, 7, 8};
__constant__ int constants[4] = {1, 2, 3, 4};
__device__ const int* where = table;
extern "C" __global__ void k(unsigned long long* y, int at) {
  __shared__ int s[32];
  volatile int local[8];
  for (int k = 0; k < 8; ++k) local[k] = k;
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  volatile int* p = at == 0 ? (volatile int*)s : at == 1 ? local : at == 2 ? (volatile int*)table
                  : at == 3 ? (volatile int*)constants : at == 4 ? (volatile int*)where : (volatile int*)y;
  if (threadIdx.x == 0) { y[0] = (unsigned long long)p; y[1] = at < 5 ? p[3] : 0; }
}"""


def test_addresses_differ_and_hold_what_they_held() -> None:
    device = cuda(ADDRESSES)
    for at, value in enumerate((3, 3, 8, 4, 8, 0)):
        seen = set()
        for variation in VARIATIONS:
            device.machine.arrange(variation)
            y = np.zeros(32, np.uint64)
            device.run(1, 32, y, at, variation=variation)
            assert y[1] == value
            seen.add(int(y[0]))
        assert len(seen) == len(VARIATIONS), at
        assert at == 1 or at == 3 or not any(address % 256 for address in seen)
    assert device.machine.arrange(0) is None
    assert device.memory.base == lay.GLOBAL_BASE


def test_allocations_start_at_multiples_of_512_with_gaps_of_the_variation() -> None:
    layouts = {}
    for variation in VARIATIONS:
        memory = Memory(1 << 20)
        memory.arrange(variation)
        bases = [memory.allocate(size, str(size)) for size in (1, 512, 700, 4096, 5, 6)]
        assert all(base % 512 == 0 for base in bases)
        assert lay.GLOBAL_BASE <= bases[0] < 1 << 47
        for base in bases:
            memory.write(base, b"x")
        layouts[variation] = [b - a for a, b in pairwise(bases)]
        assert memory.arrange(variation) == 0
    assert layouts[0] == [1024, 1024, 1536, 4608, 1024]
    assert len({tuple(gaps) for gaps in layouts.values()}) == len(VARIATIONS)


@pytest.mark.parametrize("variation", VARIATIONS)
def test_all_of_the_capacity_can_be_had_with_every_variation(variation: int) -> None:
    memory = Memory(1 << 20)
    memory.arrange(variation)
    sizes = [(1 << 18) - lay.RED_ZONE] * 4
    assert len({memory.allocate(size, "part") for size in sizes}) == 4


def test_windows_never_meet() -> None:
    for variation in [*VARIATIONS, *range(3, 300)]:
        starts = sorted(windows(variation).values())
        assert all(b - a >= lay.WINDOW_BYTES for a, b in pairwise(starts))
        assert starts[0] >= lay.WINDOW_BYTES
        assert starts[-1] + lay.WINDOW_BYTES <= lay.GLOBAL_BASE
        assert not any(start % (1 << 24) for start in starts)
    assert windows(0)[lay.CTX_SHARED_WINDOW] == lay.SHARED_WINDOW


def test_registers_that_nothing_was_written_to_differ() -> None:
    body = """mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 100; @%p1 mov.u32 %r2, 1; @%p1 bra NEXT;
NEXT: ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], %r2;"""
    device, seen = Device(ptx_module(body)), set()
    for variation in (0, 1, 2, 3):
        y = np.zeros(32, np.uint32)
        device.run(1, 32, y, variation=variation)
        seen.add(int(y[0]))
    assert len(seen) > 2
    assert 0 in seen


def test_what_a_shuffle_takes_from_an_absent_lane_differs() -> None:
    source = """extern "C" __global__ void k(unsigned* y) {
  y[threadIdx.x] = __shfl_down_sync(0xffff, threadIdx.x, 8);
}"""
    device, seen = cuda(source), set()
    for variation in (0, 1, 2, 3):
        y = np.zeros(16, np.uint32)
        device.run(1, 16, y, variation=variation)
        assert np.array_equal(y[:8], np.arange(8, 16))
        assert np.isnan(y[8:].view(np.float32)).all()
        assert int(y[9]) == undefined_word(variation)
        seen.add(int(y[9]))
    assert len(seen) == 4


def test_a_variation_of_zero_chooses_nothing() -> None:
    assert vary(0, "base") == 0
    assert vary(5, "base") == vary(5, "base") != vary(6, "base")
