"""Warp matrix instructions against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices.emulated.harness import cuda

RNG = np.random.default_rng(21)

PRODUCT = """
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, const float* c, float* d) {
  __shared__ __align__(16) unsigned short s[16 * 16], t[16 * 8];
  int lane = threadIdx.x, g = lane >> 2, p = 2 * (lane & 3);
  for (int k = lane; k < 256; k += 32) s[k] = a[k];
  for (int k = lane; k < 128; k += 32) t[k] = b[k];
  __syncwarp();
  unsigned x[4], y[2];
  unsigned from = __cvta_generic_to_shared(s + (lane & 15) * 16 + (lane >> 4) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
  from = __cvta_generic_to_shared(t + (lane & 15) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(y[0]), "=r"(y[1]) : "r"(from));
  float z[4] = {c[g * 8 + p], c[g * 8 + p + 1], c[(g + 8) * 8 + p], c[(g + 8) * 8 + p + 1]};
  PRODUCT
  d[g * 8 + p] = z[0]; d[g * 8 + p + 1] = z[1]; d[(g + 8) * 8 + p] = z[2]; d[(g + 8) * 8 + p + 1] = z[3];
}"""
DEEP = """
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.T.T.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3])
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));"""
HALVES = "".join(
    f"""asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.T.T.f32 {{%0,%1,%2,%3}}, {{%4,%5}}, {{%6}}, {{%0,%1,%2,%3}};"
  : "+f"(z[0]), "+f"(z[1]), "+f"(z[2]), "+f"(z[3]) : "r"(x[{2 * k}]), "r"(x[{2 * k + 1}]), "r"(y[{k}]));"""
    for k in range(2)
)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("code", [DEEP, HALVES], ids=["m16n8k16", "m16n8k8 twice"])
def test_matrix_products(code: str, kind: str) -> None:
    a, b = (RNG.standard_normal(s).astype(np.float32) for s in ((16, 16), (16, 8)))
    c, d = RNG.standard_normal((16, 8)).astype(np.float32), np.zeros((16, 8), np.float32)
    if kind == "f16":
        raw = [m.astype(np.float16).view(np.uint16) for m in (a, b)]
        a, b = (m.view(np.float16).astype(np.float64) for m in raw)
    else:
        raw = [(m.view(np.uint32) >> 16).astype(np.uint16) for m in (a, b)]
        a, b = ((m.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for m in raw)
    report = cuda(PRODUCT.replace("PRODUCT", code.replace("T.T", f"{kind}.{kind}"))).run(1, 32, *raw, c, d)
    assert np.allclose(d, a @ b + c, rtol=1e-6, atol=1e-6)
    rows = [op for op in report.memory if op.opcode.startswith("ldmatrix")]
    assert [(op.space, op.access, op.requests, op.threads) for op in rows] == [
        ("shared", "load", 1, 32),
        ("shared", "load", 1, 16),
    ]


def test_a_matrix_row_outside_shared_memory_faults() -> None:
    source = """
    extern "C" __global__ void k(unsigned* y) {
      __shared__ __align__(16) unsigned s[32];
      unsigned x, from = __cvta_generic_to_shared(s) + threadIdx.x * 32;
      s[threadIdx.x] = threadIdx.x;
      __syncwarp();
      asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(from));
      y[threadIdx.x] = x;
    }"""
    y = np.ones(32, np.uint32)
    report = cuda(source).run(1, 32, y, clean=False)
    assert [(f.kind, f.space, f.bytes) for f in report.faults] == [("out_of_bounds", "shared", 16)] * 4
    assert y.reshape(8, 4).tolist() == [[8 * r + k for k in range(4)] for r in range(4)] + [[0] * 4] * 4


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("option", ["", ".trans"])
@pytest.mark.parametrize("pitch", [16, 40])
def test_repeated_matrix_loads_read_and_count_as_checked_ones(count: int, option: str, pitch: int) -> None:
    """Rows move by a step each time, jump to another pattern, and at last leave shared memory."""
    registers = ", ".join(f"%{k}" for k in range(count))
    source = f"""
    extern "C" __global__ void k(const unsigned short* x, unsigned* y, int steps) {{
      __shared__ __align__(16) unsigned short s[2048];
      for (int k = threadIdx.x; k < 2048; k += 32) s[k] = x[k];
      __syncwarp();
      for (int step = 0; step < steps; ++step) {{
        unsigned row = step % 5 == 4 ? 31 - threadIdx.x : threadIdx.x;
        unsigned r[{count}], from = __cvta_generic_to_shared(s) + 2 * {pitch} * row + 16 * step;
        asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{option}.shared.b16 {{{registers}}}, [%{count}];"
          : {", ".join(f'"=r"(r[{k}])' for k in range(count))} : "r"(from));
        for (int k = 0; k < {count}; ++k) y[(step * {count} + k) * 32 + threadIdx.x] = r[k];
      }}
    }}"""
    device = cuda(source)
    x = RNG.integers(0, 1 << 16, 2048).astype(np.uint16)
    steps = 16
    y, checked = np.zeros((2, steps, count, 32), np.uint32)
    report = device.run(1, 32, x, y, steps)
    slow = device.run(1, 32, x, checked, steps, racecheck=True)
    expected = np.zeros((steps, count, 8, 8), np.uint16)
    for step in range(steps):
        rows = np.arange(8 * count).reshape(count, 8)
        starts = pitch * (31 - rows if step % 5 == 4 else rows) + 8 * step
        expected[step] = x[starts[..., None] + np.arange(8)]
    if option:
        expected = expected.swapaxes(2, 3)
    assert np.array_equal(y.view(np.uint16).reshape(expected.shape), expected)
    assert np.array_equal(checked, y)
    loads, slow_loads = ([op for op in r.memory if op.opcode.startswith("ldmatrix")] for r in (report, slow))
    assert loads == slow_loads
    assert sum(op.requests for op in loads) == steps
    beyond = device.run(1, 32, x, np.zeros((300, count, 32), np.uint32), 300, clean=False)
    assert {(fault.kind, fault.access) for fault in beyond.faults} == {("out_of_bounds", "load")}
