"""``alloca``, ``stacksave`` and ``stackrestore``: memory of a thread that lasts until its function returns."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.errors import UnsupportedInstruction
from tests.devices.emulated.harness import Device, cuda, ptx_module

START = "ld.param.u64 %d0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 8; add.u64 %d0, %d0, %d1;"


def run(body: str, *, threads: int = 32, clean: bool = True) -> tuple[np.ndarray, list[str]]:
    out = np.zeros(threads, np.uint64)
    report = Device(ptx_module(START + body)).run(1, threads, out, clean=clean)
    return out, [fault.kind for fault in report.faults]


@pytest.mark.parametrize("kind", ["u64", "u32"])
def test_threads_allocate_what_they_ask_for(kind: str) -> None:
    """Each thread keeps as many words as its number, and adds them up from the last to the first."""
    pointer, size = ("%d2", "%d3") if kind == "u64" else ("%r2", "%r3")
    body = f"""
    add.u32 %r5, %r0, 1; shl.b32 %r6, %r5, 2; {"cvt.u64.u32 %d3, %r6;" if kind == "u64" else "mov.u32 %r3, %r6;"}
    alloca.{kind} {pointer}, {size}, 16;
    {"" if kind == "u64" else "cvt.u64.u32 %d2, %r2;"}
    mov.u32 %r7, 0; mov.u64 %d4, %d2;
    FILL: mul.lo.u32 %r8, %r7, %r5; st.local.u32 [%d4], %r8; add.u64 %d4, %d4, 4; add.u32 %r7, %r7, 1;
    setp.lt.u32 %p0, %r7, %r5; @%p0 bra FILL;
    mov.u32 %r9, 0;
    SUM: sub.u64 %d4, %d4, 4; ld.local.u32 %r8, [%d4]; add.u32 %r9, %r9, %r8; setp.gt.u64 %p0, %d4, %d2;
    @%p0 bra SUM;
    cvt.u64.u32 %d5, %r9; st.global.u64 [%d0], %d5;
    """
    out, _ = run(body)
    assert out.tolist() == [(t + 1) * t * (t + 1) // 2 for t in range(32)]


def test_allocations_are_aligned_and_apart() -> None:
    body = """
    alloca.u64 %d2, 5; alloca.u64 %d3, 100, 64; alloca.u64 %d4, 0; and.b64 %d5, %d2, 7; and.b64 %d6, %d3, 63;
    add.u64 %d5, %d5, %d6; sub.u64 %d6, %d2, %d3; setp.lt.u64 %p0, %d6, 100; @%p0 add.u64 %d5, %d5, 1000;
    stacksave.u64 %d7; sub.u64 %d7, %d4, %d7; add.u64 %d5, %d5, %d7; st.global.u64 [%d0], %d5;
    """
    assert not run(body)[0].any()


def test_a_restored_stack_is_allocated_again() -> None:
    body = """
    mov.u32 %r1, 0; mov.u64 %d9, 0;
    AGAIN: stacksave.u64 %d2; alloca.u64 %d3, 4096; st.local.u64 [%d3], %d0; stackrestore.u64 %d2;
    setp.ne.u64 %p0, %d9, 0; @%p0 sub.u64 %d9, %d3, %d9; @!%p0 mov.u64 %d9, %d3; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p0, %r1, 2; @%p0 bra AGAIN; st.global.u64 [%d0], %d9;
    """
    assert not run(body)[0].any()


@pytest.mark.parametrize("body", [
    "alloca.u64 %d2, 9000;", "alloca.u64 %d2, -8;", "AGAIN: alloca.u64 %d2, 64; bra AGAIN;",
    "alloca.u64 %d2, 8, 16384; alloca.u64 %d2, 8, 16384;",
])  # fmt: skip
def test_too_much_is_a_fault(body: str) -> None:
    _, kinds = run(body, clean=False)
    assert set(kinds) == {"stack_overflow"}


def test_a_predicate_leaves_threads_out() -> None:
    body = """
    setp.lt.u32 %p1, %r0, 5; mov.u64 %d2, 7; @%p1 alloca.u64 %d2, 16; setp.gt.u64 %p2, %d2, 7; selp.u64 %d3, 1, 0, %p2;
    st.global.u64 [%d0], %d3;
    """
    assert run(body)[0].tolist() == [1] * 5 + [0] * 27


FUNCTION = """
__device__ __noinline__ int total(const int* x, int n) {
  unsigned long long p;
  asm volatile("alloca.u64 %0, %1;" : "=l"(p) : "l"((unsigned long long)n * 4) : "memory");
  for (int i = 0; i < n; i++) asm volatile("st.local.u32 [%0], %1;" :: "l"(p + 4 * i), "r"(x[i]) : "memory");
  int sum = RECURSE;
  for (int i = 0; i < n; i++) {
    int v;
    asm volatile("ld.local.u32 %0, [%1];" : "=r"(v) : "l"(p + 4 * i) : "memory");
    sum += v;
  }
  return sum;
}
extern "C" __global__ void k(const int* x, int* y, int n) {
  int sum = 0;
  for (int i = 0; i < 20; i++) sum += total(x, n);
  y[threadIdx.x] = sum;
}
"""


@pytest.mark.slow
def test_what_a_function_allocated_is_free_when_it_returns() -> None:
    x, y = np.arange(500, dtype=np.int32), np.zeros(32, np.int32)
    cuda(FUNCTION.replace("RECURSE", "0")).run(1, 32, x, y, 500)
    assert (y == 20 * x.sum()).all()


@pytest.mark.slow
def test_a_function_that_recurs_allocates_for_each_call() -> None:
    x, y = np.arange(20, dtype=np.int32), np.zeros(32, np.int32)
    cuda(FUNCTION.replace("RECURSE", "n > 1 ? total(x, n - 1) : 0")).run(1, 32, x, y, 20)
    assert (y == 20 * sum(x[: n + 1].sum() for n in range(20))).all()


@pytest.mark.parametrize("instruction", ["alloca.u64 %d2, 8, 12;", "alloca.u64 %d2, 8, %r1;", "alloca.b64 %d2, 8;"])
def test_other_operands_are_not_known(instruction: str) -> None:
    module = ptx_module(START + instruction)
    with pytest.raises(UnsupportedInstruction, match=instruction.split(".")[0]):
        Device(module).machine.launch("k", (1, 1, 1), (1, 1, 1), 0, bytes(8))
