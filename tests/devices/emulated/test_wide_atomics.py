"""Atomics on vectors and on 16 bytes, and policies of caches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import Device, cuda, ptx_module, total


@pytest.mark.parametrize("width", [2, 4])
def test_sums_of_vectors_of_floats(width: int) -> None:
    source = f"""extern "C" __global__ void k(const float* x, float* sums, float* before) {{
      int t = blockIdx.x * 32 + threadIdx.x;
      float{width} v = ((const float{width}*)x)[t];
      float{width} old = atomicAdd((float{width}*)sums + t % 3, v);
      ((float{width}*)before)[t] = old;
    }}"""
    rng = np.random.default_rng(4)
    x = rng.integers(-50, 50, (64, width)).astype(np.float32)
    sums, before = np.ones((3, width), np.float32), np.zeros((64, width), np.float32)
    report = cuda(source).run(2, 32, x, sums, before)
    for k in range(3):
        assert np.array_equal(sums[k], 1 + x[k::3].sum(0))
        assert np.array_equal(before[k::3], 1 + np.cumsum(x[k::3], 0) - x[k::3])
    assert total(report, "requests", "global", "atomic") == 2
    assert [op.bytes_per_thread for op in report.memory if op.access == "atomic"] == [4 * width]


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "f16", "bf16"])
@pytest.mark.parametrize("operation", ["add", "min", "max"])
def test_vectors_of_halves(operation: str, kind: str) -> None:
    register, width = ("%r", 4) if kind.endswith("x2") else ("%h", 2)
    item = "b32" if width == 4 else "b16"
    body = f"""mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, {2 * width}; ld.param.u64 %d2, [x]; add.u64 %d3, %d1, %d2;
      ld.global.v2.{item} {{{register}2, {register}3}}, [%d3]; ld.param.u64 %d2, [out]; add.u64 %d3, %d1, %d2;
      atom.global.{operation}.noftz.v2.{kind} {{{register}4, {register}5}}, [%d3], {{{register}2, {register}3}};
      ld.param.u64 %d2, [old]; add.u64 %d3, %d1, %d2; st.global.v2.{item} [%d3], {{{register}4, {register}5}};"""
    device = Device(ptx_module(body, ".param .u64 out, .param .u64 x, .param .u64 old"))
    rng = np.random.default_rng(6)
    count = 32 * width
    numbers = [(rng.integers(-8, 9, count) * 2.0 ** rng.integers(-1, 2, count)).astype(np.float32) for _ in range(2)]
    numbers[0][:3], numbers[1][:3] = (np.nan, 0.0, 1), (2, -0.0, np.nan)
    brain = kind.startswith("b")

    def pack(v: np.ndarray) -> np.ndarray:
        return (v.view(np.uint32) >> 16).astype(np.uint16) if brain else v.astype(np.float16).view(np.uint16)

    out, x = pack(numbers[0]), pack(numbers[1])
    before, old = out.copy(), np.zeros_like(out)
    device.run(1, 32, out, x, old)
    with np.errstate(invalid="ignore"):
        want = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation](*numbers)
    want[1] = {"add": 0.0, "min": -0.0, "max": 0.0}[operation]
    got = out.astype(np.uint32) << 16 if brain else out.view(np.float16).astype(np.float32)
    got = got.view(np.float32)
    assert np.array_equal(old, before)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[1:]), np.signbit(want[1:])) or operation == "add"


def test_sixteen_bytes_at_once() -> None:
    source = """extern "C" __global__ void k(ulonglong2* x, ulonglong2* before, int exchange) {
      int t = threadIdx.x;
      unsigned long long a, b;
      if (exchange)
        asm volatile("{.reg .b128 n, o; mov.b128 n, {%2, %3}; atom.global.exch.b128 o, [%4], n; mov.b128 {%0, %1}, o;}"
                     : "=l"(a), "=l"(b) : "l"(1000ull + t), "l"(2000ull + t), "l"(x + t / 8) : "memory");
      else
        asm volatile("{.reg .b128 c, n, o; mov.b128 c, {%2, %3}; mov.b128 n, {%4, %5};"
                     "atom.global.cas.b128 o, [%6], c, n; mov.b128 {%0, %1}, o;}"
                     : "=l"(a), "=l"(b) : "l"((unsigned long long)(t % 8)), "l"(~0ull), "l"(t % 8 + 1ull), "l"(~0ull),
                       "l"(x + t / 8) : "memory");
      before[t] = make_ulonglong2(a, b);
    }"""
    device = cuda(source)
    x, before = np.zeros((4, 2), np.uint64), np.zeros((32, 2), np.uint64)
    x[:, 1] = (1 << 64) - 1
    x[3, 0] = 77  # no lane expects that value
    device.run(1, 32, x, before, 0)
    assert x[:, 0].tolist() == [8, 8, 8, 77]
    assert before[:, 0].tolist() == [*range(8)] * 3 + [77] * 8
    device.run(1, 32, x, before, 1)
    assert x.tolist() == [[1007 + 8 * k, 2007 + 8 * k] for k in range(4)]
    assert before[9].tolist() == [1008, 2008]
    report = device.run(1, 32, x[:3].copy(), before, 1, clean=False)
    assert {(f.kind, f.bytes) for f in report.faults} == {("out_of_bounds", 16)}


def test_sixteen_bytes_are_loaded_and_stored_by_one_register() -> None:
    source = """extern "C" __global__ void k(const ulonglong2* x, ulonglong2* y, int same) {
      __shared__ ulonglong2 s[32];
      int t = threadIdx.x;
      asm volatile("{.reg .b128 v; ld.global.b128 v, [%0]; st.shared.b128 [%1], v;}"
                   :: "l"(x + (same ? 5 : t)), "r"((unsigned)__cvta_generic_to_shared(s + t)) : "memory");
      __syncthreads();
      asm volatile("{.reg .b128 v; ld.shared.b128 v, [%0]; st.global.b128 [%1], v;}"
                   :: "r"((unsigned)__cvta_generic_to_shared(s + 31 - t)), "l"(y + t) : "memory");
    }"""
    x = np.random.default_rng(3).integers(0, 1 << 64, (32, 2), np.uint64)
    y = np.zeros_like(x)
    device = cuda(source)
    device.run(1, 32, x, y, 0)
    assert np.array_equal(y, x[::-1])
    device.run(1, 32, x, y, 1)
    assert (y == x[5]).all()
    report = device.run(1, 32, x[:31].copy(), y, 0, clean=False)
    assert {(fault.kind, fault.bytes) for fault in report.faults} == {("out_of_bounds", 16)}


def test_policies_of_caches_change_nothing() -> None:
    source = """extern "C" __global__ void k(const float* x, float* y, unsigned* count) {
      unsigned long long p;
      float v;
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 0.5;" : "=l"(p));
      asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(x + threadIdx.x), "l"(p));
      asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" :: "l"(y + threadIdx.x), "f"(v), "l"(p) : "memory");
      asm volatile("red.global.add.L2::cache_hint.u32 [%0], %1, %2;" :: "l"(count), "r"(3), "l"(p) : "memory");
    }"""
    x = np.random.default_rng(5).standard_normal(32).astype(np.float32)
    y, count = np.zeros(32, np.float32), np.zeros(1, np.uint32)
    cuda(source).run(1, 32, x, y, count)
    assert np.array_equal(x, y)
    assert count[0] == 96
