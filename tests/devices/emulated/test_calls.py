"""Calls that are not expanded in place: recursion, pointers to functions, virtual functions."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, cuda, ptx_module

RECURSION = """
__device__ __noinline__ int fibonacci(int n, int* calls) {
  int own = 1;
  *calls += own;
  return n < 2 ? n : fibonacci(n - 1, &own) + fibonacci(n - 2, calls) + 100 * (own - 1);
}
__device__ int odd(unsigned n);
__device__ __noinline__ int even(unsigned n) { return n == 0 ? 1 : odd(n - 1); }
__device__ __noinline__ int odd(unsigned n) { return n == 0 ? 0 : even(n - 1); }
struct Pair { double x; short y[3]; };
__device__ __noinline__ Pair walk(Pair p, bool twice, int n) {
  if (n == 0) return p;
  Pair q = walk(Pair{p.x * 2, {p.y[1], p.y[2], p.y[0]}}, !twice, n - 1);
  return twice ? Pair{q.x + p.x, {q.y[0], q.y[1], (short)(q.y[2] + n)}} : q;
}
extern "C" __global__ void k(const int* x, int* a, int* b, double* c, short* d) {
  int t = threadIdx.x, calls = 0;
  a[t] = fibonacci(x[t], &calls) * 1000 + calls;
  b[t] = even(x[t]) * 2 + __shfl_xor_sync(~0u, odd(x[t] + 1), 1);
  Pair p = walk(Pair{1.5, {1, 2, 3}}, t & 1, x[t]);
  c[t] = p.x;
  for (int k = 0; k < 3; k++) d[3 * t + k] = p.y[k];
}"""


def fibonacci(n: int, calls: list[int]) -> int:
    own = [1]
    calls[0] += own[0]
    if n < 2:
        return n
    return fibonacci(n - 1, own) + fibonacci(n - 2, calls) + 100 * (own[0] - 1)


def walk(x: float, y: list[int], twice: bool, n: int) -> tuple[float, list[int]]:
    if n == 0:
        return x, y
    x1, y1 = walk(x * 2, [y[1], y[2], y[0]], not twice, n - 1)
    return (x1 + x, [y1[0], y1[1], y1[2] + n]) if twice else (x1, y1)


@pytest.mark.slow
@pytest.mark.parametrize("block", [32, 45])
def test_recursion(block: int) -> None:
    x = np.random.default_rng(1).integers(0, 8, 64).astype(np.int32)
    a, b, c, d = np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(64), np.zeros(192, np.int16)
    if block == 32:
        cuda(RECURSION).run(1, block, x, a, b, c, d)
    else:
        cuda(RECURSION.replace("__shfl_xor_sync(~0u, odd(x[t] + 1), 1)", "odd(x[t ^ 1] + 1)")).run(1, 64, x, a, b, c, d)
    for t in range(32 if block == 32 else 64):
        calls = [0]
        assert a[t] == fibonacci(int(x[t]), calls) * 1000 + calls[0]
        assert b[t] == (x[t] % 2 == 0) * 2 + (x[t ^ 1] % 2 == 0)
        assert (c[t], d[3 * t : 3 * t + 3].tolist()) == walk(1.5, [1, 2, 3], bool(t & 1), int(x[t]))


def test_a_stack_that_overflows_is_a_fault() -> None:
    source = """__device__ __noinline__ int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1) * 3 % 7; }
    extern "C" __global__ void k(const int* x, int* y) { y[threadIdx.x] = deep(x[threadIdx.x]); }"""
    device = cuda(source)
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    device.run(1, 32, x, y)
    want = 0
    for t in range(32):
        assert y[t] == want
        want = 1 + want * 3 % 7
    x[5] = 100_000
    report = device.run(1, 32, x, y, clean=False)
    assert [(f.kind, f.thread[0], f.source_line) for f in report.faults] == [("stack_overflow", 5, 1)]


POINTERS = """
typedef int (*Function)(int);
__device__ __noinline__ int twice(int f) { return 2 * f; }
__device__ __noinline__ int thrice(int f) { return 3 * f; }
__device__ __noinline__ int square(int f) { return f * f; }
__device__ __noinline__ float half(float f) { return f / 2; }
__device__ Function const table[] = {twice, thrice, square};
__device__ float (*const other)(float) = half;
__device__ __noinline__ int apply(Function f, int e) { return f(e) + f(e + 1); }
struct Shape { int size; __device__ virtual int area(int f) = 0; };
struct Circle : Shape { __device__ __noinline__ int area(int f) override { return 3 * f + size; } };
struct Square : Shape { __device__ __noinline__ int area(int f) override { return f * f - size; } };
extern "C" __global__ void k(const int* x, int* y, Function* passed) {
  int t = threadIdx.x;
  Circle circle; Square square_; circle.size = t; square_.size = 2 * t;
  Shape* shape = t & 1 ? (Shape*)&circle : (Shape*)&square_;
  y[t] = table[x[t]](t) + 1000 * apply(t & 2 ? twice : thrice, t) + 1000000 * (shape->area(t) & 255);
  passed[t] = table[x[t]];
  y[32 + t] = passed[t](7) + (int)other(8);
}"""


@pytest.mark.slow
def test_pointers_to_functions() -> None:
    x = np.random.default_rng(2).integers(0, 3, 32).astype(np.int32)
    y, passed = np.zeros(64, np.int32), np.zeros(32, np.uint64)
    cuda(POINTERS).run(1, 32, x, y, passed)
    functions = [lambda v: 2 * v, lambda v: 3 * v, lambda v: v * v]
    for t in range(32):
        f = functions[0 if t & 2 else 1]
        area = 3 * t + t if t & 1 else t * t - 2 * t
        assert y[t] == functions[x[t]](t) + 1000 * (f(t) + f(t + 1)) + 1000000 * (area & 255)
        assert y[32 + t] == functions[x[t]](7) + 4


@pytest.mark.parametrize("pointer", [0, 0x4_0000_0000 + 16 * 500, 0x4_0000_0008])
def test_a_pointer_to_no_such_function_is_a_fault(pointer: int) -> None:
    source = POINTERS.replace("table[x[t]](t)", "(t == 9 ? (Function)bad : table[x[t]])(t)")
    source = source.replace("Function* passed)", "Function* passed, unsigned long long bad)")
    x, y, passed = np.zeros(32, np.int32), np.zeros(64, np.int32), np.zeros(32, np.uint64)
    report = cuda(source).run(1, 32, x, y, passed, pointer, clean=False)
    assert [(f.kind, f.thread[0]) for f in report.faults] == [("bad_function_pointer", 9)]


def test_recursion_through_a_pointer() -> None:
    source = """
    typedef int (*Function)(int, const void*);
    __device__ __noinline__ int down(int n, const void* f) { return n < 1 ? 1 : n + (*(const Function*)f)(n - 1, f); }
    __device__ __noinline__ int skip(int n, const void* f) { return n < 1 ? 5 : 2 * (*(const Function*)f)(n - 2, f); }
    extern "C" __global__ void k(int* y) {
      int t = threadIdx.x;
      Function f = t % 3 ? down : skip;
      y[t] = f(t % 9, &f);
    }"""
    y = np.zeros(32, np.int32)
    cuda(source).run(1, 32, y)

    def down(n: int) -> int:
        return 1 if n < 1 else n + down(n - 1)

    def skip(n: int) -> int:
        return 5 if n < 1 else 2 * skip(n - 2)

    assert y.tolist() == [(down if t % 3 else skip)(t % 9) for t in range(32)]


def test_an_indirect_branch_takes_the_entry_of_its_table() -> None:
    body = """mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [out];
      add.u64 %d3, %d1, %d2;
      choices: .branchtargets A, B, C, A;
      brx.idx %r2, choices;
      A: mov.u32 %r3, 10; bra E;
      B: mov.u32 %r3, 20; bra E;
      C: mov.u32 %r3, 30;
      E: st.global.u32 [%d3], %r3;"""
    out = np.zeros(32, np.uint32)
    Device(ptx_module(body)).run(1, 32, out)
    assert out.tolist() == [10, 20, 30, 10] * 8
