"""Operations across lanes, and convergence."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.codegen.emit.warp import shuffle_indices
from tests.devices.emulated.harness import Device, cuda, ptx_module


def shuffle_reference(mode: str, values: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The PTX ISA's pseudo-code for ``shfl.sync``."""
    out, flags = values.copy(), np.zeros(32, np.uint32)
    for lane_id in range(32):
        bval, cval = int(b[lane_id]) & 31, int(c[lane_id]) & 31
        mask = int(c[lane_id]) >> 8 & 31
        max_lane = (lane_id & mask) | (cval & ~mask)
        min_lane = lane_id & mask
        if mode == "up":
            j, ok = lane_id - bval, lane_id - bval >= max_lane
        elif mode == "down":
            j, ok = lane_id + bval, lane_id + bval <= max_lane
        elif mode == "bfly":
            j, ok = lane_id ^ bval, (lane_id ^ bval) <= max_lane
        else:
            j = min_lane | (bval & ~mask)
            ok = j <= max_lane
        out[lane_id] = values[j if ok else lane_id]
        flags[lane_id] = ok
    return out, flags


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 4])
def test_shuffles_with_constant_and_computed_operands(mode: str, width: int) -> None:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    for delta in (0, 1, 3, 8, 31):
        body = f"""
        ld.param.u64 %d1, [out];
        mov.u32 %r1, %tid.x;
        mul.lo.u32 %r2, %r1, 7;
        mul.wide.u32 %d2, %r1, 4;
        add.u64 %d1, %d1, %d2;
        shfl.sync.{mode}.b32 %r3|%p1, %r2, {delta}, {clamp}, -1;
        selp.u32 %r4, 1, 0, %p1;
        ld.global.u32 %r5, [%d1];
        shfl.sync.{mode}.b32 %r6|%p2, %r2, %r5, {clamp}, -1;
        selp.u32 %r7, 1, 0, %p2;
        st.global.u32 [%d1], %r3;
        st.global.u32 [%d1+128], %r4;
        st.global.u32 [%d1+256], %r6;
        st.global.u32 [%d1+384], %r7;
        """
        out = np.zeros(128, np.uint32)
        out[:32] = delta
        Device(ptx_module(body)).run(1, 32, out)
        values, flags = shuffle_reference(
            mode, np.arange(32, dtype=np.uint32) * 7, np.full(32, delta), np.full(32, clamp)
        )
        assert np.array_equal(out, np.concatenate([values, flags, values, flags]))


def test_shuffle_indices_match_the_reference() -> None:
    for mode in ("up", "down", "bfly", "idx"):
        for c in (0x1F, 0x181F, 0x1C03, 0x0):
            for b in range(32):
                indices, valid = shuffle_indices(mode, b, c)
                values, flags = shuffle_reference(mode, np.arange(32), np.full(32, b), np.full(32, c))
                assert indices == values.tolist()
                assert [valid >> k & 1 for k in range(32)] == flags.tolist()


def test_votes_matches_and_reductions() -> None:
    source = """extern "C" __global__ void k(const int* x, unsigned* y) {
  int t = threadIdx.x, v = x[t];
  y[t] = __ballot_sync(0xffffffffu, v & 1);
  y[t + 32] = __any_sync(0xffffffffu, v == 3) * 2 + __all_sync(0xffffffffu, v < 8);
  y[t + 64] = __match_any_sync(0xffffffffu, v);
  int p; unsigned m = __match_all_sync(0xffffffffu, v & 8, &p);
  y[t + 96] = m + p;
  y[t + 128] = __reduce_add_sync(0xffffffffu, v);
  y[t + 160] = __reduce_max_sync(0xffffffffu, v) * 100 + __reduce_min_sync(0xffffffffu, v - 4);
  y[t + 192] = __reduce_xor_sync(0xffffffffu, (unsigned)v);
  if (v & 1) y[t + 224] = __activemask(); else y[t + 224] = __popc(__activemask());
}"""
    x = np.random.default_rng(1).integers(0, 8, 32).astype(np.int32)
    y = np.zeros(256, np.uint32)
    cuda(source).run(1, 32, x, y)
    odd = sum(1 << k for k in range(32) if x[k] & 1)
    rows = y.reshape(8, 32)
    assert (rows[0] == odd).all()
    assert (rows[1] == 2 * (x == 3).any() + 1).all()
    assert rows[2].tolist() == [sum(1 << j for j in range(32) if x[j] == v) for v in x]
    assert (rows[3] == 0).all()  # 0xffffffff + 1
    assert (rows[4] == x.sum()).all()
    assert (rows[5].astype(np.int32) == x.max() * 100 + x.min() - 4).all()
    assert (rows[6] == np.bitwise_xor.reduce(x)).all()
    assert rows[7].tolist() == [odd if v & 1 else 32 - bin(odd).count("1") for v in x]


def test_lanes_reconverge_after_loops_of_different_length() -> None:
    source = """extern "C" __global__ void k(int* y) {
  int t = threadIdx.x, n = 0;
  for (int i = 0; i < (t % 7); i++) { if (i & 1) n += 2; else n += 3; for (int j = 0; j < t % 3; j++) n ^= j + i; }
  y[t] = __shfl_sync(0xffffffffu, n, (t + 1) & 31);
}"""
    y = np.zeros(32, np.int32)
    cuda(source).run(1, 32, y)

    def value(t: int) -> int:
        n = 0
        for i in range(t % 7):
            n += 2 if i & 1 else 3
            for j in range(t % 3):
                n ^= j + i
        return n

    assert y.tolist() == [value((t + 1) & 31) for t in range(32)]


def test_special_registers_in_three_dimensions() -> None:
    source = """extern "C" __global__ void k(int* y) {
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned lane, warp, lt; asm("mov.u32 %0, %laneid;" : "=r"(lane)); asm volatile("mov.u32 %0, %warpid;" : "=r"(warp));
  asm("mov.u32 %0, %lanemask_lt;" : "=r"(lt));
  int* p = y + (b * 90 + t) * 9;
  p[0] = threadIdx.x; p[1] = threadIdx.y; p[2] = threadIdx.z; p[3] = blockIdx.x; p[4] = blockIdx.y; p[5] = blockIdx.z;
  p[6] = lane; p[7] = warp; p[8] = lt;
}"""
    y = np.zeros((2 * 3 * 2, 90, 9), np.int32)
    cuda(source).run((2, 3, 2), (5, 6, 3), y)
    for b in range(12):
        for t in range(90):
            want = [t % 5, t // 5 % 6, t // 30, b % 2, b // 2 % 3, b // 6, t % 32, t // 32, (1 << t % 32) - 1]
            assert y[b, t].tolist() == want


def test_indirect_branches() -> None:
    body = """
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;
    TABLE: .branchtargets A, B, C, D;
    brx.idx %r2, TABLE;
    A: mov.u32 %r3, 10; bra.uni END;
    B: mov.u32 %r3, 20; bra.uni END;
    C: mov.u32 %r3, 30; bra.uni END;
    D: mov.u32 %r3, 40;
    END: st.global.u32 [%d1], %r3;
    """
    out = np.zeros(32, np.uint32)
    Device(ptx_module(body)).run(1, 32, out)
    assert out.tolist() == [10, 20, 30, 40] * 8


def test_barrier_reductions() -> None:
    source = """extern "C" __global__ void k(int* y) {
  int t = threadIdx.x;
  y[t] = __syncthreads_count(t % 3 == 0);
  y[t + 96] = __syncthreads_or(t == 95) * 2 + (__syncthreads_and(t < 96) != 0);
}"""
    y = np.zeros(192, np.int32)
    cuda(source).run(1, 96, y)
    assert (y[:96] == 32).all()
    assert (y[96:] % 2 == 1).all()
    assert (y[96:] >= 2).all()


@pytest.mark.parametrize("leave", ["ret", "exit"])
@pytest.mark.parametrize("first", [0, 5, 32])
def test_lanes_that_return_early_do_nothing_more(leave: str, first: int) -> None:
    """Though the kernel ends in the same run of instructions as its return."""
    body = f"""
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %d2, %r1, 4;
    add.u64 %d1, %d1, %d2;
    setp.lt.u32 %p1, %r1, {first};
    @%p1 {leave};
    st.global.u32 [%d1], 7;
    """
    out = np.zeros(32, np.uint32)
    Device(ptx_module(body)).run(1, 32, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < first, 0, 7))


def test_an_exit_between_pragmas_is_no_comment() -> None:
    source = r"""extern "C" __global__ void k(int* y) {
  asm volatile(".pragma \"/*\"; exit; .pragma \"*/\";");
  y[threadIdx.x] = 1;
}"""
    y = np.zeros(32, np.int32)
    cuda(source).run(1, 32, y)
    assert not y.any()


def test_an_offset_of_an_address_wraps_at_64_bits() -> None:
    source = """extern "C" __global__ void k(const int* x, int* y) {
  asm volatile("ld.global.u32 %0, [%1+18446744073709551612];" : "=r"(y[threadIdx.x]) : "l"(x + threadIdx.x + 1));
}"""
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    cuda(source).run(1, 32, x, y)
    assert np.array_equal(x, y)
