"""State of one access, block or launch never decides the result or the checks of a later one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, cuda, ptx_module


@pytest.mark.parametrize("vector", [False, True], ids=["uniform", "lanes"])
def test_a_generic_load_of_a_parameter_does_not_make_null_readable(vector: bool) -> None:
    body = f"""
    mov.b64 %d1, out;
    cvta.param.u64 %d1, %d1;
    mov.u32 %r1, %tid.x; cvt.u64.u32 %d5, %r1; mul.lo.u64 %d5, %d5, {int(vector)}; and.b64 %d5, %d5, 0;
    mov.u32 %r2, 0;
    LOOP:
    add.u64 %d6, %d1, %d5;
    ld.u64 %d2, [%d6];
    mov.u64 %d1, 0;
    add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 3; @%p1 bra LOOP;
    """
    report = Device(ptx_module(body)).run(1, 32, np.zeros(1, np.uint32), clean=False)
    assert {(f.kind, f.space, f.address) for f in report.faults} == {("out_of_bounds", "global", 0)}
    assert report.fault_count == 64


BASES = """
    ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d4, %r1, 4;
    mov.u32 %r2, 0; mov.u64 %d5, %d1; setp.ne.u32 %p0, %r2, 0;
    LOOP:
    add.u64 %d6, %d5, %d4;
    ld.global.u32 %r3, [%d6];
    add.u32 %r3, %r3, 1;
    st.global.u32 [%d6], %r3;
    selp.b64 %d5, %d2, %d3, %p0;
    add.u32 %r2, %r2, 1; setp.eq.u32 %p0, %r2, 1; setp.lt.u32 %p1, %r2, 3; @%p1 bra LOOP;
"""


def test_a_pattern_is_rechecked_when_its_base_moves_to_other_buffers() -> None:
    device = Device(ptx_module(BASES, ".param .u64 a, .param .u64 b, .param .u64 c"))
    a, b, c = (np.zeros(n, np.uint32) for n in (32, 16, 32))
    report = device.run(1, 32, a, b, c, clean=False, read_only=(0,))
    assert {(f.kind, f.access) for f in report.faults} == {
        ("read_only_write", "store"),
        ("out_of_bounds", "load"),
        ("out_of_bounds", "store"),
    }
    assert not a.any()
    assert report.fault_count == 32 + (16 + 16)
    report = device.run(1, 32, c, c.copy(), b, clean=False)
    assert report.fault_count == 16 + 16


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_a_pattern_is_rechecked_under_other_masks_offsets_and_wraparound(width: int) -> None:
    """Many accesses of one instruction; the model is a Python set of the bytes that are in bounds."""
    rng = np.random.default_rng(width)
    size = 256
    steps = 200
    offsets = rng.choice([0, width, 4 * width, size - 32 * width, size - 8, -8, -width, 3, 2**64 - 1, 2**63], steps)
    offsets = np.array([int(o) % 2**64 for o in offsets], np.uint64)
    strides = rng.choice([0, width, 2 * width, 1, 2**62, 2**32], steps).astype(np.uint64)
    masks = rng.choice(np.array([0xFFFFFFFF, 0, 1, 0xFFFF0000, 0xFF, 0x80000001], np.uint32), steps)
    body = f"""
    ld.param.u64 %d1, [data]; ld.param.u64 %d10, [offsets]; ld.param.u64 %d11, [strides];
    ld.param.u64 %d12, [masks]; ld.param.u64 %d13, [out];
    mov.u32 %r1, %tid.x; cvt.u64.u32 %d2, %r1;
    mov.u32 %r2, 1; shl.b32 %r2, %r2, %r1;
    mov.u32 %r3, 0;
    LOOP:
    mul.wide.u32 %d5, %r3, 8; add.u64 %d6, %d10, %d5; ld.global.u64 %d7, [%d6];
    add.u64 %d6, %d11, %d5; ld.global.u64 %d8, [%d6];
    mul.wide.u32 %d5, %r3, 4; add.u64 %d6, %d12, %d5; ld.global.u32 %r5, [%d6];
    and.b32 %r6, %r5, %r2; setp.ne.u32 %p1, %r6, 0;
    mad.lo.u64 %d9, %d2, %d8, %d7; add.u64 %d9, %d9, %d1;
    mov.u64 %d14, 0;
    @%p1 ld.global.u{8 * width} %d14, [%d9];
    mul.wide.u32 %d5, %r3, 256; add.u64 %d6, %d13, %d5; mul.wide.u32 %d5, %r1, 8; add.u64 %d6, %d6, %d5;
    st.global.u64 [%d6], %d14;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, {steps}; @%p2 bra LOOP;
    """
    parameters = ", ".join(f".param .u64 {n}" for n in ("data", "offsets", "strides", "masks", "out"))
    data = rng.integers(1, 255, size).astype(np.uint8)
    out = np.zeros((steps, 32), np.uint64)
    report = Device(ptx_module(body, parameters)).run(1, 32, data, offsets, strides, masks, out, clean=False)
    want = np.zeros_like(out)
    refused = 0
    for step in range(steps):
        for lane_id in range(32):
            if not int(masks[step]) >> lane_id & 1:
                continue
            at = (int(offsets[step]) + lane_id * int(strides[step])) % 2**64
            if at + width <= size and at % width == 0:
                want[step, lane_id] = int.from_bytes(data[at : at + width].tobytes(), "little")
            else:
                refused += 1
    assert np.array_equal(out, want)
    assert report.fault_count == refused


def test_a_lane_that_does_not_take_part_gives_a_shuffle_nothing_of_the_past() -> None:
    """Its value is undefined on a GPU; here it is all ones, after any other launch and at any number of threads."""
    source = """
    extern "C" __global__ void k(const int* x, int* old, int* y, int bias) {
      int v = x[blockIdx.x * 32 + threadIdx.x] + bias;
      int w = threadIdx.x < 8 ? atomicAdd(old + threadIdx.x, v) : v;
      y[blockIdx.x * 16 + threadIdx.x] = __shfl_down_sync(0xffff, v + w, 15);
    }"""
    seen = []
    for threads in (1, 2):
        device = cuda(source, threads=threads)
        for bias in (3, 1000):
            y = np.zeros(4 * 16, np.int32)
            device.run(4, 16, np.zeros(128, np.int32), np.zeros(16, np.int32), y, bias)
            seen.append(y.reshape(4, 16)[:, 1:].copy())
    assert all((y == -1).all() for y in seen)


def test_shared_and_local_memory_of_an_earlier_block_or_launch_are_gone() -> None:
    source = """
    extern "C" __global__ void k(unsigned* y, unsigned secret, int at) {
      __shared__ unsigned s[64];
      unsigned l[8];
      volatile unsigned* local = l;
      volatile unsigned* shared = s;
      y[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x] ^ local[at];
      for (int i = 0; i < 8; i++) local[i] = secret + 1;
      shared[threadIdx.x] = secret;
    }"""
    device = cuda(source)
    for poison in (0xFF, 0x5A):
        y = np.ones(4 * 64, np.uint32)
        device.run(4, 64, y, 0xDEAD, 3, poison=poison)
        assert not y.any()
