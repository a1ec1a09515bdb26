"""Shortcuts of the generated code change no result and no count: shared patterns of addresses, sides of branches."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.codegen import program
from kernelforge.devices.emulated.codegen.emit import emitter
from kernelforge.devices.emulated.ptx.address_patterns import repeated_patterns
from kernelforge.devices.emulated.ptx.blocks import short_sides
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
    "shared": """__shared__ float s[200]; int i = threadIdx.x; s[i] = x[i]; s[i + 96] = x[i + 96]; __syncthreads();
        y[i] = s[95 - i] + s[191 - i];""",
}

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


def outcome(body: str, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Memory after a run by code that is compiled for it, and all counts."""
    monkeypatch.setattr(program, "_programs", {})
    source = f'extern "C" __global__ void k(const float* __restrict__ x, float* y, int n) {{ {body} }}'
    n = THREADS * BLOCKS
    x, y = np.arange(2 * n, dtype=np.float32), np.linspace(-1, 1, 2 * n, dtype=np.float32)
    report = cuda(source).run(BLOCKS, THREADS, x, y, n)
    return y.tobytes(), report.mix, report.memory, report.warp_instructions, report.thread_instructions


@pytest.mark.parametrize("case", ADDRESSES)
def test_shared_patterns_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = outcome(ADDRESSES[case], monkeypatch)
    monkeypatch.setattr(emitter, "repeated_patterns", lambda flow: set())
    assert grouped == outcome(ADDRESSES[case], monkeypatch)


@pytest.mark.parametrize("case", BRANCHES)
def test_sides_without_dispatch_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"int i = blockIdx.x * blockDim.x + threadIdx.x; {BRANCHES[case]}"
    quick = outcome(body, monkeypatch)
    monkeypatch.setattr(program, "short_sides", lambda blocks: {})
    assert quick == outcome(body, monkeypatch)


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
