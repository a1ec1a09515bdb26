"""``wgmma.mma_async`` of every type, operands in registers and by descriptors of every layout, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.emulated.report import LaunchReport
from tests.devices.emulated.harness import Device, ptx_module
from tests.devices.emulated.tensor_core_sums import tensor_core_sum
from tests.devices.emulated.test_matrix_products import elements

BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "b1": 1}
SWIZZLE = {"none": (0, 16), "128B": (1, 128), "64B": (2, 64), "32B": (3, 32)}
"""Mode and bytes of a row in a descriptor."""
A_AT, B_AT = 0, 32768


def layout(lines: int, depth: int, size: int, swizzle: str, transposed: bool) -> tuple[np.ndarray, int, int]:
    """Offset of each element (line, k) of a matrix in shared memory, and both distances of its descriptor.

    The canonical layouts of the PTX ISA, for matrices that are wider than one instruction where the swizzle is.
    """
    line, k = np.indices((lines, depth))
    span = SWIZZLE[swizzle][1]
    chunk = 16 // size
    if not transposed:
        if swizzle == "none":
            leading, stride = 128, 256
            offset = line % 8 * 16 + line // 8 * stride + k // chunk * leading + k % chunk * size
        else:
            leading, stride = 16, 8 * span
            offset = line % 8 * span + line // 8 * stride + k * size
    elif swizzle == "none":
        leading, stride = 128, 256
        offset = line % 8 * 2 + line // 8 * stride + k % 8 * 16 + k // 8 * leading
    else:
        parts = span // 16
        stride = 8 * span
        leading = 2 * stride
        offset = line % 8 * 2 + line // 8 % parts * 16 + line // 8 // parts * leading + k % 8 * span + k // 8 * stride
    mask = span // 16 - 1
    return offset ^ ((offset >> 7 & mask) << 4), leading, stride


def descriptor(at: int, leading: int, stride: int, swizzle: str) -> int:
    return at >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | SWIZZLE[swizzle][0] << 62


def memory_of(raw: np.ndarray, offsets: np.ndarray, nbytes: int) -> np.ndarray:
    image = np.zeros(nbytes, np.uint8)
    size = raw.dtype.itemsize
    parts = np.ascontiguousarray(raw).view(np.uint8).reshape(*raw.shape, size)
    for byte in range(size):
        image[offsets + byte] = parts[..., byte]
    return image


def kernel(instruction: str, registers: int, a_registers: bool, extra: str = "", wait: str = "wait_group") -> str:
    """One product: shared memory and accumulators come from global memory, 128 threads, registers one after another."""
    fill = """
mov.u32 %r0, %tid.x; ld.param.u64 %d0, [image]; ld.param.u64 %d1, [c]; ld.param.u64 %d3, [a];
ld.param.u64 %d4, [da]; ld.param.u64 %d5, [db]; ld.param.u32 %r3, [keep]; setp.ne.s32 %p3, %r3, 0;
shl.b32 %r1, %r0, 4;
FILL: cvt.u64.u32 %d2, %r1; add.u64 %d2, %d0, %d2; ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d2];
mov.u32 %r2, s; add.u32 %r2, %r2, %r1; st.shared.v4.b32 [%r2], {%r4, %r5, %r6, %r7};
add.u32 %r1, %r1, 2048; setp.lt.u32 %p0, %r1, 65536; @%p0 bra FILL;
fence.proxy.async; bar.sync 0;
mul.wide.u32 %d6, %r0, 4; add.u64 %d7, %d1, %d6; add.u64 %d8, %d3, %d6;
"""
    names = [f"%w{k}" for k in range(registers)]
    loads = "\n".join(f"ld.global.b32 {name}, [%d7+{512 * k}];" for k, name in enumerate(names))
    a_names = [f"%r{20 + k}" for k in range(4)]
    loads += "\n".join(f"ld.global.b32 {name}, [%d8+{512 * k}];" for k, name in enumerate(a_names))
    a = "{" + ", ".join(a_names) + "}" if a_registers else "%d4"
    stores = "\n".join(f"st.global.b32 [%d7+{512 * k}], {name};" for k, name in enumerate(names))
    waits = f"wgmma.{wait}.sync.aligned 0;" if wait else ""
    body = f"""
.reg .b32 %w<{registers}>;
{fill}{loads}
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.{instruction} {{{", ".join(names)}}}, {a}, %d5, %p3{extra};
wgmma.commit_group.sync.aligned;
{waits}
{stores}
"""
    parameters = ".param .u64 image, .param .u64 c, .param .u64 a, .param .u64 da, .param .u64 db, .param .u32 keep"
    return ptx_module(body, parameters, ".shared .align 1024 .b8 s[65536];")


def accumulator(matrix: np.ndarray, half: bool) -> np.ndarray:
    """Registers of a 64 x N matrix of raw elements: (registers, 128)."""
    thread = np.arange(128)
    row, column = 16 * (thread // 32) + thread % 32 // 4, 2 * (thread % 4)
    count = matrix.shape[1] // 8
    if half:
        words = [
            matrix[row + 8 * h, column + 8 * j].astype(np.uint32)
            | matrix[row + 8 * h, column + 8 * j + 1].astype(np.uint32) << 16
            for j in range(count)
            for h in range(2)
        ]
    else:
        words = [matrix[row + 8 * h, column + 8 * j + e] for j in range(count) for h in range(2) for e in range(2)]
    return np.array(words)


def a_fragment(raw: np.ndarray) -> np.ndarray:
    """Registers of a 64 x K matrix of A: (4, 128) words."""
    rows = np.ascontiguousarray(raw).view(np.uint8).reshape(64, 32).view(np.uint32)
    thread = np.arange(128)
    row, word = 16 * (thread // 32) + thread % 32 // 4, thread % 4
    return np.array([rows[row + 8 * (r & 1), word + 4 * (r >> 1)] for r in range(4)])


class Case:
    """One product with random operands."""

    def __init__(
        self, total: str, a_type: str, b_type: str, n: int, *, a: str = "128B", b: str = "128B",
        a_transposed: bool = False, b_transposed: bool = False, signs: tuple[int, int] = (1, 1), option: str = "",
    ) -> None:  # fmt: skip
        size = BYTES[a_type]
        self.k = 32 // size * (8 if a_type == "b1" else 1)
        depth = 32 // size
        a_raw, a_values = elements(a_type, (64, self.k))
        b_raw, b_values = elements(b_type, (n, self.k))
        if a_type == "b1":
            a_raw, b_raw = (np.packbits(x, axis=1, bitorder="little") for x in (a_raw, b_raw))
        self.image = np.zeros(65536, np.uint8)
        self.descriptors = []
        for raw, at, lines, swizzle, flip in (
            (a_raw, A_AT, 64, a, a_transposed), (b_raw, B_AT, n, b, b_transposed),
        ):  # fmt: skip
            offsets, leading, stride = layout(lines, depth, size, "128B" if swizzle == "registers" else swizzle, flip)
            self.image |= np.roll(memory_of(raw, offsets, 65536), at)
            self.descriptors.append(descriptor(at, leading, stride, "128B" if swizzle == "registers" else swizzle))
        self.a = a_fragment(a_raw)
        if total == "s32":
            self.c = np.random.default_rng(n).integers(-1000, 1000, (64, n)).astype(np.int32)
            self.product = a_values.astype(np.int64) @ b_values.astype(np.int64).T
        else:
            self.c = (
                np.random.default_rng(n).standard_normal((64, n)).astype(np.float16 if total == "f16" else np.float32)
            )
            self.product = signs[0] * signs[1] * (a_values @ b_values.T)
        self.total = total
        self.values, self.kinds = (signs[0] * signs[1] * a_values, b_values.T), (a_type, b_type, total)
        flags = "" if total == "s32" else f", {signs[0]}, {signs[1]}"
        if a_type in ("f16", "bf16"):
            flags += f", {int(b_transposed)}" if a == "registers" else f", {int(a_transposed)}, {int(b_transposed)}"
        name = f"m64n{n}k{self.k}.{total}.{a_type}.{b_type}{option}"
        self.text = kernel(name, n // 4 if total == "f16" else n // 2, a == "registers", flags)

    def run(self, *, keep: int = 1, clean: bool = True, **options: object) -> tuple[np.ndarray, LaunchReport]:
        raw = self.c.view(np.uint16 if self.total == "f16" else np.uint32)
        registers = accumulator(raw, self.total == "f16").astype(np.uint32)
        report = Device(self.text).run(
            1, 128, self.image, registers, self.a.astype(np.uint32), *self.descriptors, keep, clean=clean, **options
        )
        return registers, report

    def check(self, keep: int = 1) -> None:
        registers, _ = self.run(keep=keep)
        c = self.c * self.c.dtype.type(keep)
        if self.total == "s32":
            exact = (self.product + c).astype(np.int32)
            assert np.array_equal(registers, accumulator(exact.view(np.uint32), half=False))
            return
        expected = tensor_core_sum(*self.values, c, self.kinds, group=True)
        half = self.total == "f16"
        raw = accumulator(expected.view(np.uint16 if half else np.uint32), half).astype(np.uint32)
        assert np.array_equal(registers, raw)


TYPES = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e5m2"), ("f32", "e5m2", "e4m3"), ("f16", "e4m3", "e4m3"), ("s32", "s8", "u8"), ("s32", "u8", "s8"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize(("total", "a_type", "b_type"), TYPES)
def test_products_of_every_type(total: str, a_type: str, b_type: str, n: int) -> None:
    Case(total, a_type, b_type, n).check()
    Case(total, a_type, b_type, n, a="registers", b="none").check()


def test_products_of_single_bits() -> None:
    Case("s32", "b1", "b1", 16, option=".and.popc").check()


@pytest.mark.parametrize(("total", "kind", "a"), [("f32", "f16", "128B"), ("s32", "s8", "registers")])
def test_a_product_counts_its_operations_and_what_it_reads_of_shared_memory(total: str, kind: str, a: str) -> None:
    """Operands of 32 bytes a line: 64 lines of A where it is no fragment, and those of B once for four warps."""
    case = Case(total, kind, kind, 64, a=a)
    _, report = case.run()
    assert report.matrix == {f"{kind}.{total}": (2 * 64 * 64 * case.k, 32 * (64 + (64 if a != "registers" else 0)))}


@pytest.mark.parametrize("n", [24, 136, 256])
def test_products_of_every_width(n: int) -> None:
    Case("f32", "bf16", "bf16", n).check()


@pytest.mark.parametrize("swizzle", SWIZZLE)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_layout_of_a_descriptor(swizzle: str, transposed: bool) -> None:
    Case("f32", "f16", "f16", 64, a=swizzle, b="64B", a_transposed=transposed).check()
    Case("f32", "f16", "f16", 64, a="32B", b=swizzle, b_transposed=transposed).check()
    Case("f32", "f16", "f16", 128, a="registers", b=swizzle, b_transposed=transposed).check()


@pytest.mark.parametrize("signs", [(1, -1), (-1, 1), (-1, -1)])
def test_operands_are_negated(signs: tuple[int, int]) -> None:
    Case("f32", "f16", "f16", 16, signs=signs).check()


@pytest.mark.slow
def test_the_accumulator_may_begin_at_zero_and_saturate() -> None:
    Case("f32", "f16", "f16", 16).check(keep=0)
    case = Case("s32", "u8", "u8", 16, option=".satfinite")
    case.c[:] = np.int32(2**31 - 1)
    registers, _ = case.run()
    assert (registers == 2**31 - 1).all()


def test_a_result_that_is_used_before_its_wait_is_a_fault() -> None:
    case = Case("f32", "f16", "f16", 16)
    for text in ("", "wgmma.wait_group.sync.aligned 1;"):
        case.text = case.text.replace("wgmma.wait_group.sync.aligned 0;", text)
        _, report = case.run(clean=False)
        assert {fault.kind for fault in report.faults} == {"accumulator"}
        case = Case("f32", "f16", "f16", 16)


def test_an_operand_outside_shared_memory_is_a_fault() -> None:
    case = Case("f32", "f16", "f16", 16)
    case.descriptors[1] = descriptor(65536 - 512, 16, 1024, "128B")
    _, report = case.run(clean=False)
    assert {fault.kind for fault in report.faults} == {"out_of_bounds"}


def test_reading_what_another_warp_writes_is_a_race() -> None:
    case = Case("f32", "f16", "f16", 16)
    case.run(racecheck=True)
    case.text = case.text.replace("bar.sync 0;", "")
    _, report = case.run(racecheck=True, clean=False)
    assert {fault.kind for fault in report.faults} == {"shared_race"}


def test_a_product_is_one_instruction_of_each_warp() -> None:
    _, report = Case("f32", "f16", "f16", 16).run()
    assert sum(warps for name, (warps, _) in report.mix.items() if name == "wgmma.f16") == 4
