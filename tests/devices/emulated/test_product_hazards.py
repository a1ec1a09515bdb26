"""Accesses to registers of ``wgmma.mma_async``: what is a fault, and what a compiler may do to correct code."""

from __future__ import annotations

import pytest

from tests.devices.emulated.harness import Device, ptx_module

FENCE = "wgmma.fence.sync.aligned;"
PRODUCT = (
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, %d1, 1, 1, 1, 0;"
)
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
DONE = f"{COMMIT} {WAIT}"


def faults(body: str) -> set[str]:
    """Kinds of faults of a kernel with three turns of a loop, if ``body`` says ``LOOP`` and ``AGAIN``."""
    body = body.replace("LOOP", "L:").replace("AGAIN", "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3; @%p1 bra L;")
    start = """
    mov.u32 %r1, 0; ld.param.u64 %d0, [out]; mov.u32 %r0, s; cvt.u64.u32 %d1, %r0; shr.u64 %d1, %d1, 4;
    or.b64 %d1, %d1, 0x1000080000;
    mov.f32 %f0, 0f00000000; mov.f32 %f1, 0f00000000; mov.f32 %f2, 0f00000000; mov.f32 %f3, 0f00000000;
    mov.b32 %r10, 0; mov.b32 %r11, 0; mov.b32 %r12, 0; mov.b32 %r13, 0;
    """
    module = ptx_module(start + body + "st.global.f32 [%d0], %f0;", declarations=".shared .align 1024 .b8 s[256];")
    device = Device(module)
    address = device.memory.allocate(4096, "out")
    report = device.machine.launch("k", (1, 1, 1), (128, 1, 1), 0, address.to_bytes(8, "little"), racecheck=True)
    return {fault.kind for fault in report.faults}


CORRECT = {
    "a fence for each product": f"LOOP {FENCE} {PRODUCT} {DONE} AGAIN",
    "accumulators of one product after another": f"{FENCE} LOOP {PRODUCT} {COMMIT} AGAIN {WAIT}",
    "a load ahead of the fence": f"LOOP ld.global.b32 %r10, [%d0]; {FENCE} {PRODUCT} {DONE} AGAIN",
    "arithmetic that was moved behind the fence": f"LOOP {FENCE} mul.f32 %f0, %f0, %f0; {PRODUCT} {DONE} AGAIN",
    "a constant that was moved behind the fence": f"{FENCE} mov.f32 %f0, 0f00000000; {PRODUCT} {DONE}",
    "a read that was moved behind the fence": f"LOOP {FENCE} add.f32 %f9, %f0, %f0; {PRODUCT} {DONE} AGAIN",
    "copies of accumulators": f"{FENCE} LOOP mov.f32 %f8, %f0; mov.f32 %f0, %f8; {PRODUCT} {DONE} AGAIN",
    "an access on a path that has the fence": (
        f"LOOP setp.eq.u32 %p2, %r1, 1; @!%p2 bra PASS; mul.f32 %f0, %f0, %f0; PASS: setp.le.u32 %p3, %r1, 1;"
        f" @!%p3 bra NEXT; {FENCE} NEXT: {PRODUCT} {DONE} AGAIN"
    ),
    "a wait on every path": (
        f"LOOP {FENCE} {PRODUCT} {COMMIT} setp.ne.u32 %p2, %r1, 1; @%p2 bra PASS; {WAIT} add.f32 %f9, %f0, %f0;"
        f" PASS: {WAIT} AGAIN"
    ),
}
WRONG = {
    "no fence at all": (f"LOOP {PRODUCT} {DONE} AGAIN", "product_fence"),
    "arithmetic without a fence": (f"{FENCE} LOOP {PRODUCT} {DONE} mul.f32 %f0, %f0, %f0; AGAIN", "product_fence"),
    "arithmetic on a copy": (
        f"{FENCE} LOOP {PRODUCT} {DONE} mul.f32 %f8, %f0, %f0; mov.f32 %f0, %f8; AGAIN",
        "product_fence",
    ),
    "a read without a fence": (f"{FENCE} LOOP {PRODUCT} {DONE} st.global.f32 [%d0], %f0; AGAIN", "product_fence"),
    "a load behind the fence": (f"LOOP {FENCE} ld.global.b32 %r10, [%d0]; {PRODUCT} {DONE} AGAIN", "product_fence"),
    "an access on one path": (
        f"{FENCE} LOOP setp.ne.u32 %p2, %r1, 1; @%p2 bra PASS; mul.f32 %f0, %f0, %f0; PASS: {PRODUCT} {DONE} AGAIN",
        "product_fence",
    ),
    "a fragment that is read": (
        f"LOOP ld.global.b32 %r10, [%d0]; {FENCE} {PRODUCT} {COMMIT} AGAIN {WAIT}",
        "fragment",
    ),
    "a result in the loop": (
        f"LOOP {FENCE} {PRODUCT} {COMMIT} setp.ne.u32 %p2, %r1, 1; @!%p2 bra PASS; {WAIT} PASS:"
        f" add.f32 %f9, %f0, %f0; {WAIT} AGAIN",
        "accumulator",
    ),
}


@pytest.mark.parametrize("case", CORRECT)
def test_a_correct_kernel_is_clean(case: str) -> None:
    assert faults(CORRECT[case]) == set()


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_kernel_is_a_fault(case: str) -> None:
    body, kind = WRONG[case]
    assert faults(body) == {kind}
