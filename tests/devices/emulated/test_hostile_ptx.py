"""PTX is untrusted: no address and no layout of it reaches host memory."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernelforge.devices.emulated import layout as lay
from kernelforge.devices.emulated.errors import EmulatorError, UnsupportedInstruction
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.memory import Memory
from kernelforge.devices.emulated.ptx.parser import Instruction, PtxSyntaxError, parse
from tests.devices.emulated.harness import Device, ptx_module

SECRET = np.arange(64, dtype=np.uint32)

ADDRESSES = [
    int(SECRET.ctypes.data),
    0,
    4,
    8,
    2**64 - 4,
    2**64 - 16,
    2**63,
    2**63 - 4,
    lay.GLOBAL_BASE - 4,
    lay.GLOBAL_BASE,
    lay.GLOBAL_BASE + 2**40,
    lay.SHARED_WINDOW - 4,
    lay.SHARED_WINDOW + 4096,
    lay.LOCAL_WINDOW + 4096,
    lay.PARAM_WINDOW + 4096,
    lay.PARAM_WINDOW - 4,
]
FORMS = [
    "ld.global.u32",
    "ld.u32",
    "ld.volatile.global.u32",
    "ld.global.nc.u32",
    "ld.const.u32",
    "ld.shared.u32",
    "ld.local.u32",
]


@pytest.mark.parametrize("vector", [False, True], ids=["uniform", "lanes"])
@pytest.mark.parametrize("form", FORMS)
def test_loads_from_host_addresses_fault_and_give_zero(form: str, vector: bool) -> None:
    index = "mov.u32 %r2, %tid.x;" if vector else "mov.u32 %r2, 0;"
    loads = "\n".join(
        f"""
    mov.u64 %d2, {a};
    cvt.u64.u32 %d3, %r2;
    mul.lo.u64 %d3, %d3, 0;
    add.u64 %d2, %d2, %d3;
    {form} %r3, [%d2];
    or.b32 %r1, %r1, %r3;"""
        for a in ADDRESSES
    )
    body = f"""
    .local .align 16 .b8 depot[64];
    .shared .align 16 .b8 smem[64];
    mov.u32 %r1, 0;
    {index}
    mov.u32 %r10, smem;
    mov.u32 %r9, 0;
    st.shared.u32 [%r10], %r9;
    st.shared.u32 [%r10+4], %r9;
    st.shared.u32 [%r10+8], %r9;
    mov.u64 %d10, depot;
    st.local.u32 [%d10], %r9;
    st.local.u32 [%d10+4], %r9;
    st.local.u32 [%d10+8], %r9;
    {loads}
    ld.param.u64 %d1, [out];
    mov.u32 %r5, %tid.x;
    mul.wide.u32 %d5, %r5, 4;
    add.u64 %d1, %d1, %d5;
    st.global.u32 [%d1], %r1;
    """
    out = np.full(32, 77, np.uint32)
    report = Device(ptx_module(body)).run(1, 32, out, clean=False)
    assert report.fault_count > 0
    assert {f.kind for f in report.faults} <= {"out_of_bounds", "misaligned"}
    assert not out.any()


@pytest.mark.parametrize(
    "form",
    [
        "st.global.u32 [%d2], %r1",
        "st.u32 [%d2], %r1",
        "st.shared.u32 [%d2], %r1",
        "st.local.u32 [%d2], %r1",
        "atom.global.add.u32 %r3, [%d2], %r1",
        "red.add.u32 [%d2], %r1",
        "atom.shared.exch.b32 %r3, [%d2], %r1",
    ],
)
def test_stores_and_atomics_never_touch_the_host(form: str) -> None:
    victim = (ctypes.c_uint32 * 64)(*range(64))
    addresses = [ctypes.addressof(victim), *ADDRESSES[4:11]]
    lines = "\n".join(f"mov.u64 %d2, {a}; {form};" for a in addresses)
    body = f".local .align 4 .b8 depot[64]; mov.u32 %r1, 0xDEAD; {lines}"
    report = Device(ptx_module(body)).run(1, 32, np.zeros(1, np.uint32), clean=False)
    assert report.fault_count == 32 * len(addresses)
    assert list(victim) == list(range(64))


def test_a_pattern_learnt_in_bounds_is_rechecked_out_of_bounds() -> None:
    body = """
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d1, %d2;
    mov.u32 %r2, 0; mov.u64 %d4, %d3;
    LOOP:
    st.global.u32 [%d4], %r2;
    add.u64 %d4, %d4, 128; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 8; @%p1 bra LOOP;
    mov.u64 %d4, 0xFFFFFFFFFFFFFF80; add.u64 %d4, %d4, %d2; st.global.u32 [%d4], %r2;
    """
    out = np.full(128, 9, np.uint32)
    report = Device(ptx_module(body)).run(1, 32, out, clean=False)
    assert np.array_equal(out, np.repeat(np.arange(4), 32))
    assert report.fault_count == 32 * 4 + 32


def test_wide_accesses_at_a_buffers_end_fault() -> None:
    body = """
    ld.param.u64 %d1, [out];
    ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1+48];
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%d1+64];
    ld.global.u64 %d2, [%d1+60];
    ld.global.u32 %r9, [%d1+-4];
    """
    report = Device(ptx_module(body)).run(1, 1, np.zeros(16, np.uint32), clean=False)
    assert [(f.kind, f.bytes) for f in report.faults] == [
        ("out_of_bounds", 16),
        ("misaligned", 8),
        ("out_of_bounds", 4),
    ]


def test_freed_memory_faults() -> None:
    memory = Memory(1 << 20)
    machine = LoadedModule(ptx_module("ld.param.u64 %d1, [out]; mov.u32 %r1, 1; st.global.u32 [%d1], %r1;"), memory)
    address = memory.allocate(64, "gone")
    memory.free(address)
    report = machine.launch("k", (1, 1, 1), (1, 1, 1), 0, address.to_bytes(8, "little"))
    assert [f.kind for f in report.faults] == ["out_of_bounds"]


def test_parameters_cannot_be_read_past_their_end() -> None:
    indexed = "mov.b64 %d1, out; ld.param.u64 %d2, [%d1+8]; ld.param.u64 %d3, [%d1+0];"
    report = Device(ptx_module(indexed)).run(1, 1, np.zeros(1, np.uint32), clean=False)
    assert [(f.kind, f.space) for f in report.faults] == [("out_of_bounds", "param")]
    with pytest.raises(UnsupportedInstruction):
        Device(ptx_module("ld.param.u64 %d1, [out+8];")).run(1, 1, np.zeros(1, np.uint32))


def test_local_frames_are_bounded_for_lane_dependent_offsets() -> None:
    body = """
    .local .align 4 .b8 depot[16];
    mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; mov.u64 %d1, depot; add.u64 %d1, %d1, %d2; mov.u32 %r2, 5;
    st.local.u32 [%d1], %r2;
    """
    report = Device(ptx_module(body)).run(1, 32, np.zeros(1, np.uint32), clean=False)
    assert report.fault_count == 28
    assert {f.space for f in report.faults} == {"local"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        ".version 8.0\n.entry k(",
        ".visible .entry k() { bra NOWHERE; }",
        ".visible .entry k() { add.s32 %r1, %r2, %r3; ret; }",
        ".visible .entry k() { .reg .b32 %r<2>; add.s32 %r1; ret; }",
        ".visible .entry k() { .reg .b32 %r<2>; mov.u32 %r1, undefined_symbol; ret; }",
        ".visible .entry k() { tcgen05; ret; }",
        ".visible .entry k() { tcgen05.ld.sync.aligned.32x32b.x1.b32; ret; }",
        ".visible .entry k() { mbarrier; ret; }",
        ".visible .entry k() { wgmma.mma_async; ret; }",
        ".visible .entry k() { multimem.ld_reduce.relaxed.sys.global.add.f32; ret; }",
        ".visible .entry k() { clusterlaunchcontrol.query_cancel.is_canceled.pred.b128; ret; }",
    ],
)
def test_malformed_ptx_is_an_error_not_a_crash(text: str) -> None:
    try:
        machine = LoadedModule(text, Memory(1 << 20))
    except PtxSyntaxError:
        return
    if "k" in machine.entries:
        with pytest.raises((UnsupportedInstruction, PtxSyntaxError)):
            machine.launch("k", (1, 1, 1), (1, 1, 1), 0, b"")


def test_impossible_launches_are_refused() -> None:
    device = Device(ptx_module("ret;"))
    for grid, block, shared in (
        ((1, 1, 1), (1025, 1, 1), 0),
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 70000, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 1, 1), 1 << 20),
    ):
        with pytest.raises(EmulatorError):
            device.machine.launch("k", grid, block, shared, bytes(8))
    with pytest.raises(EmulatorError):
        device.machine.launch("k", (1, 1, 1), (1, 1, 1), 0, b"")


def seen(body: str) -> list[str]:
    """Opcodes that the parser sees in a kernel's body."""
    return [item.opcode for item in parse(ptx_module(body)).functions["k"].body if isinstance(item, Instruction)]


@pytest.mark.parametrize(
    "location",
    [
        ".loc 1 5 3 ",
        ".loc 1 5\n3 ",
        ".loc 1 5 3, function_name $L__info0, inlined_at 1 2 3 ",
        ".loc 1 5 3 , function_name $L__info0 + 4 , inlined_at 1 2 3\t",
    ],
)
def test_code_behind_a_place_in_the_source_is_code(location: str) -> None:
    """ptxas 13 assembles the trap: a line's end does not end ``.loc``."""
    assert "trap" in seen(f"{location}trap;")


@pytest.mark.parametrize(
    "text",
    [
        ".loc 1 5 3trap;",
        ".loc 1 5 3, trap;",
        ".loc 1 5 3, function_name $L__info0 trap;",
        "mov.u32 %r1,, 1;",
        "mov.u32 , %r1;",
        "st.global.u32 [], %r1;",
    ],
)
def test_text_that_is_nearly_ptx_is_refused(text: str) -> None:
    with pytest.raises(PtxSyntaxError):
        parse(ptx_module(text))


@pytest.mark.parametrize(
    "head", [".version 9.0 .target sm_80\n", ".version 9.0\n.target sm_80, debug .address_size 64\n"]
)
def test_directives_may_share_a_line(head: str) -> None:
    module = parse(f"{head}.visible .entry k() {{ ret; }}")
    assert (module.version, module.target.split(",")[0]) == ("9.0", "sm_80")


def test_code_behind_a_file_on_its_line_is_code() -> None:
    assert "k" in parse('.version 9.0\n.file 1 "a.cu" .visible .entry k() { ret; }').functions
