"""Shortcuts of the generated code change no result and no count: shared patterns of addresses, sides of branches,
reductions over a warp."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.codegen import program
from kernelforge.devices.emulated.codegen.emit import emitter, memory
from kernelforge.devices.emulated.ptx import uniformity
from kernelforge.devices.emulated.ptx.address_patterns import repeated_patterns
from kernelforge.devices.emulated.ptx.blocks import short_sides
from kernelforge.devices.emulated.ptx.instruction_facts import registers_of
from tests.devices.emulated.harness import Device, cuda, ptx_module

THREADS, BLOCKS = 96, 5

ADDRESSES = {
    "signed": "int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i] * 2 + y[i];",
    "unsigned": "unsigned i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i] * 2 + y[i];",
    "wide": "size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; y[i] = x[i] + y[i] + x[i / 2];",
    "before zero": "int i = (int)threadIdx.x - 40; const float* z = x + 40; float* w = y + 40; w[i] = z[i] + w[i];",
    "wrapped": """unsigned i = threadIdx.x - 40u;
        if (i < 56u) { y[i] = x[i] + y[i]; y[i + 100] = x[i + 100]; } else y[i + 200u] = x[i + 200u];""",
    "far": """int i = (1 << 30) + threadIdx.x; const float* z = x - (1 << 30); float* w = y - (1 << 30);
        w[i] = z[i] + w[i];""",
    "scattered": "int i = blockIdx.x * blockDim.x + (threadIdx.x * 5) % 96; y[i] = x[i] + y[i]; y[i + n] = x[i];",
    "masked": "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i % 3 && i < n) y[i] = x[i] - y[i];",
    "vectors": """int i = threadIdx.x;
        float4 v = ((const float4*)x)[i], w = ((float4*)y)[i];
        ((float4*)y)[i] = make_float4(v.x + w.y, v.y, v.z, w.w);""",
    "bytes": """int i = threadIdx.x;
        unsigned char* b = (unsigned char*)y; const unsigned char* a = (const unsigned char*)x;
        b[i] = a[i] ^ b[i]; b[i + 1000] = a[i];""",
    "in a loop": "for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] + 1; ",
    "above the half": """unsigned i = (1u << 31) + threadIdx.x; const float* z = x - (1u << 31);
        float* w = y - (1u << 31); w[i] = z[i] + w[i];""",
    "around the half": """unsigned i = (1u << 31) - 40 + threadIdx.x; const float* z = x + 40 - (1u << 31);
        float* w = y + 40 - (1u << 31); w[i] = z[i] + w[i];""",
    "around 2**30": """unsigned i = (1u << 30) - 40 + threadIdx.x; const float* z = x + 40 - (1u << 30);
        float* w = y + 40 - (1u << 30); w[i] = z[i] + w[i];""",
    "by lane": "int i = threadIdx.x, lane = i & 31; y[i] = x[lane] + x[lane + n]; y[lane + n] = x[i];",
    "by lane, once": "int i = threadIdx.x; y[i] = x[i & 31];",
    "shared": """__shared__ float s[200]; int i = threadIdx.x; s[i] = x[i]; s[i + 96] = x[i + 96]; __syncthreads();
        y[i] = s[95 - i] + s[191 - i];""",
}

DEFERRED = {
    "used late": """int i = threadIdx.x; float a = x[i], b = y[i]; float c = x[i + n], d = y[i + n];
        y[i] = a - d; y[i + n] = b * c;""",
    "overwritten in memory": """int i = threadIdx.x; volatile float* w = y; float a = y[i], b = y[i + n];
        y[i] = 5; y[i + n] = a; w[i + 100] = b;""",
    "by another lane": "int i = threadIdx.x; float a = y[i]; y[i ^ 1] = 2 * x[i]; y[i + n] = a + y[i];",
    "vectors": """int i = threadIdx.x; float4 a = ((const float4*)x)[i], b = ((float4*)y)[i];
        float2 c = ((const float2*)x)[i];
        ((float4*)y)[i] = make_float4(a.x * b.y, a.y + c.x, b.z, a.w - c.y);""",
    "vectors by some lanes": """int i = threadIdx.x;
        if (i % 3) {
          float4 a = ((const float4*)x)[i], b = ((float4*)y)[i];
          ((float4*)y)[i] = make_float4(b.w, a.x, a.z, b.y);
        }""",
    "vectors far apart": """int i = threadIdx.x; float4 a = ((const float4*)x)[2 * i], b = ((float4*)y)[2 * i];
        ((float4*)y)[2 * i] = make_float4(b.w, a.x, a.z, b.y);""",
    "bytes": """int i = threadIdx.x; const uchar4* a = (const uchar4*)x; uchar4* b = (uchar4*)y;
        uchar4 v = a[i], w = b[i];
        unsigned char u = ((const unsigned char*)x)[3 * i]; b[i] = make_uchar4(v.x ^ u, w.y, v.z, w.w);""",
    "doubles": """int i = threadIdx.x; const double2* a = (const double2*)x; double2* b = (double2*)y;
        double2 v = a[i], w = b[i]; b[i] = make_double2(v.x + w.y, w.x); b[i + 96] = v;""",
    "an address that was loaded": """int i = threadIdx.x; int k = (int)x[i] & 63;
        y[i] = x[k] + y[i + n]; y[i + n] = x[k + n];""",
    "before an atomic": "int i = threadIdx.x; float a = y[i]; atomicAdd(y + i / 2, 1.0f); y[i + n] = a + y[i];",
    "across a shuffle": "int i = threadIdx.x; float a = x[i], b = y[i]; y[i] = __shfl_xor_sync(-1u, a, 3) + b;",
    "outside": "int i = threadIdx.x; float a = x[i + 1000 * n], b = x[i]; y[i] = a + b + x[i + 1000 * n + 1];",
    "not aligned": """int i = threadIdx.x; const float* z = (const float*)((const char*)x + 2);
        y[i] = z[i] + z[i + n] + x[i];""",
    "many": """int i = threadIdx.x; float v[40];
        #pragma unroll
        for (int k = 0; k < 40; ++k) v[k] = x[i + 7 * k];
        float s = 0;
        #pragma unroll
        for (int k = 39; k >= 0; --k) s = 3 * s + v[k];
        y[i] = s;""",
}
"""Loads whose values can wait in memory."""

SAME_PLACE = {
    "by all": "y[blockIdx.x] = n;",
    "by one": "if (threadIdx.x % 32 == 7) y[blockIdx.x] = n;",
    "by none": "if (threadIdx.x > 96) y[blockIdx.x] = n;",
    "vectors": "((float4*)y)[blockIdx.x] = make_float4(n, 2 * n, x[n], 1);",
    "bytes": "((unsigned char*)y)[blockIdx.x] = n;",
    "shared": """__shared__ float s[4]; if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = n; __syncthreads();
        y[threadIdx.x] = s[threadIdx.x >> 5];""",
    "outside": "y[n * 1000 + blockIdx.x] = n;",
    "not aligned": "*(float*)((char*)y + n + 1) = n;",
}
"""Stores of one value to one address."""

BRANCHES = {
    "one side": "float v = x[i]; if (threadIdx.x % 32 == 0) v += 5; y[i] = v;",
    "nested": "float v = x[i]; if (i & 1) { v += 1; if (i & 2) v *= 2; y[i + n] = v; } y[i] = v;",
    "in a loop": """float v = 0;
        for (int k = 0; k < (int)(threadIdx.x & 7); ++k)
          if ((k ^ i) & 1) { v += x[k]; y[i + n] = v; } else v -= x[i];
        y[i] = v;""",
    "before a shuffle": "float v = x[i]; if (i & 1) { v = 2 * v; y[i + n] = v; } y[i] = __shfl_xor_sync(-1u, v, 3);",
    "all or none": "float v = x[i]; if (threadIdx.x / 32 == 1) { v = -v; y[i + n] = v; } y[i] = v;",
    "to the end": "if (i % 5 == 0) y[i] = x[i];",
    "around a barrier": """__shared__ float s[96];
        if (i & 1) s[threadIdx.x] = x[i]; else s[threadIdx.x] = -x[i];
        __syncthreads(); y[i] = s[95 - threadIdx.x];""",
}


def outcome(body: str, monkeypatch: pytest.MonkeyPatch, odd: bool = False, clean: bool = True) -> tuple[object, ...]:
    """Memory after a run by code that is compiled for it, and all counts.

    Args:
        body: Of the kernel.
        odd: Some inputs are NaN, infinite, zeros of both signs or subnormal.
        clean: It must not fault.
    """
    monkeypatch.setattr(program, "_programs", {})
    source = f'extern "C" __global__ void k(const float* __restrict__ x, float* y, int n) {{ {body} }}'
    n = THREADS * BLOCKS
    x, y = np.arange(2 * n, dtype=np.float32), np.linspace(-1, 1, 2 * n, dtype=np.float32)
    if odd:
        x = np.random.default_rng(7).normal(size=2 * n).astype(np.float32)
        x[:128] = np.float32([np.nan, -0.0, 0.0, np.inf, -np.inf, 1e-42, -1e-42, -np.nan])[np.arange(128) // 5 % 8]
        x[128:160], x[160:192], x[192:224] = np.nan, -0.0, np.where(np.arange(32) % 2, 0.0, -0.0)
    report = cuda(source).run(BLOCKS, THREADS, x, y, n, clean=clean)
    y[np.isnan(y)] = np.nan
    faults = [str(fault) for fault in report.faults]
    return y.tobytes(), report.mix, report.memory, report.warp_instructions, report.thread_instructions, faults


@pytest.mark.parametrize("case", ADDRESSES)
def test_shared_patterns_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = outcome(ADDRESSES[case], monkeypatch)
    monkeypatch.setattr(emitter, "repeated_patterns", lambda flow: set())
    assert grouped == outcome(ADDRESSES[case], monkeypatch)


@pytest.mark.parametrize("case", DEFERRED)
def test_loads_that_wait_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    defer = emitter.Emitter.defer

    def counted(e: emitter.Emitter, load: emitter.DeferredLoad) -> None:
        defer(e, load)
        waited.append(len(e.deferred))

    monkeypatch.setattr(emitter.Emitter, "defer", counted)
    late = outcome(DEFERRED[case], monkeypatch, clean=case not in ("outside", "not aligned"))
    assert max(waited) > (31 if case == "many" else 0)
    monkeypatch.setattr(emitter.Emitter, "defer", lambda e, load: load.arrive())
    assert late == outcome(DEFERRED[case], monkeypatch, clean=case not in ("outside", "not aligned"))


APPROXIMATE = ("rsqrtf(v)", "__expf(v)", "__logf(v)", "__sinf(v)", "__cosf(v)", "__frcp_rn(v)", "__fdividef(v, 3)")


@pytest.mark.parametrize("variation", [0, 3])
def test_results_that_are_kept_are_those_of_the_same_number(variation: int) -> None:
    body = "".join(f"y[{len(APPROXIMATE)} * (32 * k + t) + {k}] = {call}; " for k, call in enumerate(APPROXIMATE))
    numbers = np.float32([-np.nan, np.nan, 0, 0, -0.0, 2, 2, 3, 2, 1, np.inf, np.inf, 0.3, -np.inf, 5e-40, 0.3])
    numbers.view(np.uint32)[0] = 0xFFFFFFFF
    results = []
    for index in ("k", "k + (t >> n)"):
        device = cuda(f"""extern "C" __global__ void k(const float* __restrict__ x, float* y, int n) {{
          int t = threadIdx.x;
          for (int k = 0; k < {len(numbers)}; ++k) {{ float v = x[{index}]; {body} }} }}""")
        y = np.zeros(len(APPROXIMATE) * 32 * len(numbers), np.float32)
        device.run(1, 32, numbers, y, 31, variation=variation)
        results.append(y.view(np.uint32).reshape(len(numbers), 32, -1))
    scalar, lanes = results
    assert np.array_equal(scalar, lanes)
    assert (scalar == scalar[:, :1]).all()


@pytest.mark.parametrize("case", SAME_PLACE)
def test_stores_of_scalars_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scalar = outcome(SAME_PLACE[case], monkeypatch, clean=False)
    monkeypatch.setattr(memory, "_private", lambda e, target: True)
    assert scalar == outcome(SAME_PLACE[case], monkeypatch, clean=False)


@pytest.mark.parametrize("case", BRANCHES)
def test_sides_without_dispatch_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; {BRANCHES[case]}"
    quick = outcome(body, monkeypatch)
    monkeypatch.setattr(program, "short_sides", lambda blocks: {})
    assert quick == outcome(body, monkeypatch)


SUM = "for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(-1u, v, o);"
REDUCTIONS = {
    "sum": (1, f"float v = x[i]; {SUM} y[i] = v;"),
    "sum from the nearest lane on": (
        1,
        "float v = x[i]; for (int o = 1; o < 32; o *= 2) v += __shfl_xor_sync(-1u, v, o); y[i] = v;",
    ),
    "two sums": (
        2,
        """float v = x[i], w = v * v;
        for (int o = 16; o; o >>= 1) { v += __shfl_xor_sync(-1u, v, o); w += __shfl_xor_sync(-1u, w, o); }
        y[i] = v / w;""",
    ),
    "steps that are read": (
        1,
        """float v = x[i], w = 0;
        for (int o = 16; o; o >>= 1) { v += __shfl_xor_sync(-1u, v, o); w = 3 * w + v; } y[i] = w;""",
    ),
    "maximum": (1, "float v = x[i]; for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(-1u, v, o)); y[i] = v;"),
    "minimum": (1, "float v = x[i]; for (int o = 16; o; o >>= 1) v = fminf(v, __shfl_xor_sync(-1u, v, o)); y[i] = v;"),
    "integers": (
        3,
        """int v = __float_as_int(x[i]), w = v, u = v;
        for (int o = 16; o; o >>= 1) {
          v += __shfl_xor_sync(-1u, v, o); w = max(w, __shfl_xor_sync(-1u, w, o)); u ^= __shfl_xor_sync(-1u, u, o);
        }
        y[i] = __int_as_float(v + w * u & 0x3fffffff);""",
    ),
    "one step short": (0, "float v = x[i]; for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(-1u, v, o); y[i] = v;"),
    "one step too many": (1, f"float v = x[i]; {SUM} v += __shfl_xor_sync(-1u, v, 4); y[i] = v;"),
    "by two operations": (
        0,
        """float v = x[i];
        for (int o = 16; o > 2; o >>= 1) v += __shfl_xor_sync(-1u, v, o);
        v = fmaxf(v, __shfl_xor_sync(-1u, v, 2)); v = fmaxf(v, __shfl_xor_sync(-1u, v, 1)); y[i] = v;""",
    ),
    "another value": (
        0,
        """float v = x[i], w = y[i];
        for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(-1u, w, o); y[i] = v;""",
    ),
    "of half warps": (0, "float v = x[i]; for (int o = 8; o; o >>= 1) v += __shfl_xor_sync(-1u, v, o, 16); y[i] = v;"),
    "on one side of a branch": (1, f"float v = x[i]; if (threadIdx.x < 32) {{ {SUM} }} y[i] = v;"),
    "in a loop": (
        1,
        f"""float w = 0;
#pragma unroll 1
        for (int k = 0; k < 3; ++k) {{ float v = x[i + k]; {SUM} w = 2 * w + v; }}
        y[i] = w;""",
    ),
}
"""By name: how many are found, and the body of a kernel."""


TWO_SIDES = ptx_module("""
ld.param.u64 %d1, [out];
mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 4;
setp.ne.u32 %p1, %r2, 0;
mul.wide.u32 %d2, %r1, 4;
add.u64 %d3, %d1, %d2;
@%p1 bra YES;
mov.u32 %r3, 7;
bra.uni END;
YES:
st.global.u32 [%d3+1024], %r1;
mov.u32 %r3, 9;
END:
st.global.u32 [%d3], %r3;
""")


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_by_trees_change_nothing(case: str, odd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    count, body = REDUCTIONS[case]
    body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; {body}"
    assert len(analysed(body).reductions) == count
    tree = outcome(body, monkeypatch, odd)
    monkeypatch.setattr(uniformity, "warp_reductions", lambda *_: {})
    assert tree == outcome(body, monkeypatch, odd)


def test_sums_of_a_warp_are_scalars() -> None:
    flow = analysed(f"float v = x[threadIdx.x]; {SUM} y[threadIdx.x] = v;")
    (reduction,) = flow.reductions.values()
    assert reduction.distances == (16, 8, 4, 2, 1)
    assert len(reduction.inner) >= 9
    (result,) = (i for block in flow.blocks for i in block.instructions if id(i) in flow.reductions)
    assert not set(registers_of(result.operands[0])) & flow.varying


def test_both_sides_run_for_their_lanes() -> None:
    device = Device(TWO_SIDES)
    (sides, _), *others = short_sides(device.machine.program("k", (THREADS, 1, 1)).flow.blocks).values()
    assert (len(sides), others) == (2, [])
    y = np.zeros(512, np.uint32)
    report = device.run(1, THREADS, y)
    thread = np.arange(THREADS)
    assert np.array_equal(y[:THREADS], np.where(thread & 4, 9, 7))
    assert np.array_equal(y[256 : 256 + THREADS], np.where(thread & 4, thread, 0))
    assert report.divergent_branches == THREADS // 32
    assert report.thread_instructions == THREADS * 7 + (THREADS // 2) * 2 + (THREADS // 2) * 2 + 2 * THREADS


ODD = [
    "mad.wide.s32 %d5, %r1, 0xFFFFFFFC, %d4;", "mad.wide.s32 %d5, %r1, -4, %d4;", "mad.wide.u32 %d5, %r1, -4, %d4;",
    "mad.wide.u32 %d5, %r1, 4, %d1;", "mul.wide.s32 %d5, %r1, 4; add.s64 %d5, %d1, %d5;",
    "cvt.u64.u32 %d5, %d2; shl.b64 %d5, %d5, 2; add.s64 %d5, %d5, %d1;",
    "shl.b64 %d5, %d3, -1; add.s64 %d5, %d5, %d1;",
    "mul.lo.s64 %d5, %d3, 4; sub.s64 %d5, %d5, -8; add.s64 %d5, %d5, %d1;",
    "and.b64 %d5, %d3, 124; and.b64 %d5, %d5, 60; add.s64 %d5, %d5, %d1;",
    "and.b64 %d5, %d3, 31; shl.b64 %d5, %d5, 2; and.b64 %d5, %d5, 60; add.s64 %d5, %d5, %d1;",
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(ODD)))
def test_odd_operands_of_addresses_change_nothing(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    address = ODD[case]
    text = ptx_module(f"""
ld.param.u64 %d1, [out];
mov.u32 %r1, %tid.x;
cvt.u64.u32 %d2, %r1;
mov.u64 %d3, %d2;
add.u64 %d4, %d1, 1024;
{address}
ld.global.u32 %r2, [%d5];
add.u32 %r2, %r2, 7;
st.global.u32 [%d5], %r2;
""")
    outcomes = []
    for alone in (False, True):
        monkeypatch.setattr(program, "_programs", {})
        if alone:
            monkeypatch.setattr(emitter, "repeated_patterns", lambda flow: set())
        y = np.arange(512, dtype=np.uint32)
        report = Device(text).run(1, THREADS, y, clean=False)
        outcomes.append((y.tobytes(), [str(fault) for fault in report.faults]))
    assert outcomes[0] == outcomes[1]


def analysed(body: str) -> program.ControlFlowGraph:
    device = cuda(f'extern "C" __global__ void k(const float* x, float* y, int n) {{ {body} }}')
    return device.machine.program("k", (THREADS, 1, 1)).flow


def test_accesses_of_several_buffers_share_a_pattern() -> None:
    flow = analysed(f"{ADDRESSES['signed']}")
    assert len(repeated_patterns(flow)) == 3
    flow = analysed("int i = threadIdx.x; y[n * i] = x[i];")
    assert not repeated_patterns(flow)


def test_only_short_sides_are_found() -> None:
    flow = analysed(f"int i = threadIdx.x; {BRANCHES['nested']}")
    assert [len(sides) for sides, _ in short_sides(flow.blocks).values()] == [1]
    flow = analysed("if (threadIdx.x & 1) { for (int k = 0; k < n; ++k) y[k] = x[k * n]; }")
    branches = short_sides(flow.blocks)
    assert all(len(flow.blocks[side].successors) == 1 for sides, _ in branches.values() for side in sides)
