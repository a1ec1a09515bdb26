"""Products of pairs of blocks (``.cta_group::2``) in tensor memory, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelforge.devices.base import RunResult
from kernelforge.devices.emulated.report import LaunchReport
from tests.devices.emulated.blackwell_gemm import PAIR_GEMM, PAIR_PLAN
from tests.devices.emulated.emulated_plans import resolve, runner, work
from tests.devices.emulated.harness import Device
from tests.devices.emulated.hopper_gemm import MAP
from tests.devices.emulated.tensor_core_sums import Array
from tests.devices.emulated.tensor_memory import (
    A_AT,
    B_AT,
    IMAGE_BYTES,
    RNG,
    Case,
    assemble,
    element_bytes,
    elements,
    instruction_descriptor,
    kernel,
    layout,
    matrix_descriptor,
    memory_of,
)
from tests.devices.emulated.test_blackwell_gemm import B200
from tests.devices.emulated.test_hopper_gemm import operands, product_of
from tests.devices.emulated.test_tcgen05_scaled import ScaledCase, scale_columns


def paired(text: str, columns: int, scaled: bool = False) -> str:
    """The kernel of a product, for two blocks: the first one issues it, and both wait."""
    both = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    rows = 24 if scaled else 8
    places = " ".join(
        f"mul.wide.u32 %d10, %r18, {size}; add.u64 {pointer}, {pointer}, %d10;"
        for pointer, size in (("%d0", IMAGE_BYTES), ("%d1", 512 * columns), ("%d3", 512 * rows))
    )
    return (
        text.replace("cta_group::1", "cta_group::2")
        .replace(")\n{", ")\n.explicitcluster .reqnctapercluster 2, 1, 1\n{")
        .replace("shl.b32 %r1, %r0, 4;", f"shl.b32 %r1, %r0, 4; mov.u32 %r18, %cluster_ctarank; {places}")
        .replace("before_thread_sync; bar.sync 0;", f"before_thread_sync; {both}")
        .replace("@!%p4 bra ISSUED;", "mov.b16 %h0, 3; setp.eq.and.s32 %p6, %r18, 0, %p4; @!%p6 bra ISSUED;")
        .replace("shared::cluster.b64 [%r11];", "shared::cluster.multicast::cluster.b64 [%r11], %h0;")
        .replace("bar.sync 0;\n@!%p5 bra FREE;", f"{both}\n@!%p5 bra FREE;")
    )


class PairCase(Case):
    """One product of two blocks with random operands."""

    def __init__(
        self, kind: str, result: str, a_type: str, b_type: str, m: int, n: int, *, a: str = "128B", b: str = "128B",
        lanes: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        size = element_bytes(a_type)
        self.kind, self.result, self.m, self.n, self.k, self.scale = kind, result, m, n, 32 // size, 0
        a_raw, a_values = elements(a_type, (m, self.k))
        b_raw, b_values = elements(b_type, (n, self.k))
        images, self.descriptors = np.zeros((2, IMAGE_BYTES), np.uint8), [0, 0]
        self.tensor_a = np.zeros((2, 8, 128), np.uint32)
        for number, (raw, at, swizzle) in enumerate(((a_raw, A_AT, a), (b_raw, B_AT, b))):
            for rank, part in enumerate(np.split(raw, 2)):
                if swizzle == "tensor":
                    words = np.ascontiguousarray(part).view(np.uint8).reshape(m // 2, 32).view(np.uint32).T
                    self.tensor_a[rank] = np.tile(words, (1, 256 // m))
                    continue
                where = layout(len(part), self.k, size, swizzle, transposed=False)
                images[rank] |= np.roll(memory_of(part, where.offsets, IMAGE_BYTES), at)
                self.descriptors[number] = matrix_descriptor(at, where.leading, where.stride, swizzle)
        self.image = images.reshape(-1)
        row, column = np.indices((m, n))
        width = n * m // 256
        self.lanes = row % (m // 2) + column // width * (m // 2)
        self.columns_of_d = row // (m // 2) * width + column % width
        self.columns = 2 * width
        self.c = RNG.standard_normal((m, n)).astype(np.float16 if result == "f16" else np.float32)
        if result == "s32":
            self.c = RNG.integers(-1000, 1000, (m, n)).astype(np.int32)
        self.values, self.types = (a_values, b_values.T), (a_type, b_type, result)
        self.idesc = instruction_descriptor(m, n, a_type, b_type, result)
        text = kernel(f"cta_group::1.kind::{kind}", a == "tensor", width, lanes=lanes)
        self.text = paired(text, width).replace("%r15, %r16, %r17}", "%r15, %r16, %r17, %r17, %r16, %r15, %r14}")

    def run(self, *, keep: int = 1, clean: bool = True, **options: object) -> tuple[Array, LaunchReport]:
        cells = self.cells(self.c)
        report = Device(self.text).run(
            2, 128, self.image, cells, self.tensor_a, *self.descriptors, self.idesc, keep, clean=clean, **options
        )
        return cells, report


class ScaledPairCase(ScaledCase):
    """One product of two blocks with scales: the halves of a larger one, whose B they share."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        other = ScaledCase(*arguments, **options)
        n = self.n
        both = np.stack([self.image, other.image])
        half = both[0, B_AT:].copy()
        # With rows of 32 bytes and without a swizzle, groups of 8 rows of B are 256 bytes apart.
        both[:, B_AT:] = 0
        both[0, B_AT : B_AT + 16 * n] = half[: 16 * n]
        both[1, B_AT : B_AT + 16 * n] = half[16 * n : 32 * n]
        self.image = both.reshape(-1)
        self.scales = [np.concatenate([self.scales[0], other.scales[0]]), self.scales[1]]
        other.scales[1] = self.scales[1]
        other.place_scales()
        self.tensor_a = np.stack([self.tensor_a, other.tensor_a])
        self.values = np.concatenate([self.values[0], other.values[0]]), self.values[1]
        self.c = np.concatenate([self.c, other.c])
        row, self.columns_of_d = np.indices((256, n))
        self.lanes, self.columns_of_d = row % 128, self.columns_of_d + row // 128 * n
        self.m, self.columns = 256, 2 * n
        self.idesc += 8 << 24
        self.text = paired(self.text, n, scaled=True)

    run = PairCase.run


F16 = ("f16", "f32", "f16", "f16")
TYPES = [
    F16, ("f16", "f16", "f16", "f16"), ("f16", "f32", "bf16", "bf16"), ("tf32", "f32", "tf32", "tf32"),
    ("f8f6f4", "f32", "e4m3", "e5m2"), ("i8", "s32", "s8", "u8"),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("a", ["128B", "tensor"])
@pytest.mark.parametrize("m", [128, 256])
@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_products_of_every_type(types: tuple[str, str, str, str], m: int, a: str) -> None:
    PairCase(*types, m, 32, a=a).check()


@pytest.mark.slow
@pytest.mark.parametrize(("m", "n"), [(128, 16), (128, 256), (256, 48), (256, 256)])
def test_products_of_every_width(m: int, n: int) -> None:
    PairCase(*F16, m, n, b="32B").check()
    PairCase(*F16, m, n).check(keep=0)


@pytest.mark.parametrize(
    ("kind", "vectors", "qualifier", "small"),
    [("mxf8f6f4", 1, "", False), ("mxf4", 2, "", False), ("mxf4nvf4", 4, ".block16", True)],
)
def test_products_with_scales(kind: str, vectors: int, qualifier: str, small: bool) -> None:
    case = ScaledPairCase(kind, vectors, n=64, qualifier=qualifier, small=small, b="32B")
    assert case.scales[0].shape == (256, vectors)
    assert len(scale_columns(case.scales[1], 0)) == 2
    case.check()


def test_lanes_that_are_disabled_do_not_change() -> None:
    case = PairCase(*F16, 256, 32, lanes=(5, 0, -1, 0x80000000))
    cells, _ = case.run()
    kept = np.zeros((2, 128), bool)
    kept[0, [0, 2, *range(64, 96), 127]] = True
    kept[1, [31, *range(32, 64), 96, 98]] = True
    width = case.columns // 2
    assert np.array_equal(cells, np.where(np.repeat(kept, width, 0), case.cells(case.c), case.cells(case.expected())))


def test_a_copy_is_of_both_blocks() -> None:
    """Each copies its A to its own tensor memory."""
    case = PairCase(*F16, 256, 32)
    case.text = case.text.replace(
        "tcgen05.mma.cta_group::2.kind::f16 [%r8+0], %d4,",
        "tcgen05.cp.cta_group::2.128x256b [%r8+256], %d4;\ntcgen05.mma.cta_group::2.kind::f16 [%r8+0], [%r8+256],",
    )
    case.check()


def faults_of(case: PairCase, **options: object) -> set[str]:
    _, report = case.run(clean=False, **options)
    assert all(str(fault) for fault in report.faults)
    return {fault.kind for fault in report.faults}


def test_a_pair_needs_a_cluster() -> None:
    case = PairCase(*F16, 256, 32)
    case.text = case.text.replace(".explicitcluster .reqnctapercluster 2, 1, 1\n", "")
    assert "tensor_descriptor" in faults_of(case)


def test_the_other_block_must_have_columns() -> None:
    case = PairCase(*F16, 256, 32)
    case.text = case.text.replace(
        "setp.lt.u32 %p5, %r0, 32;", "setp.lt.u32 %p5, %r0, 32; setp.eq.and.u32 %p5, %r18, 0, %p5;"
    )
    case.text = case.text.replace("%r0, 4; mov.u32 %r18", "%r0, 4; st.shared.u32 [where], 0; mov.u32 %r18")
    assert faults_of(case) == {"tensor_unallocated"}


def ran(source: str, a: np.ndarray, b: np.ndarray, **changes: object) -> RunResult:
    request = work(resolve(PAIR_PLAN, (a, b)), (a, b), deadline_s=120.0, **changes)
    return runner(MAP + source, spec=B200, arch="compute_100a", registers=64).run(request)


FIRST_OF_PAIR = {
    "mapa": "first_of_pair(b)",
    "CUTLASS's mask": "(at(b) & 0xFEFFFFFFu)",
    "a mask of the rank": "(at(b) & ~((rank() & 1u) << 24))",
}


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("address", FIRST_OF_PAIR)
@pytest.mark.parametrize("size", [(256, 128, 64), (400, 136, 200), (256, 384, 512)])
def test_a_product_of_pairs_is_right(size: tuple[int, int, int], address: str) -> None:
    """The address of the first block's mbarrier by ``mapa``, or by arithmetic."""
    source = PAIR_GEMM.replace("first_of_pair(b)", FIRST_OF_PAIR[address])
    a, b = operands(*size)
    result = ran(source, a, b)
    c = product_of(result, *size[:2])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-4)


MISTAKES = {
    "wait(full + s, t / STAGES & 1);": ("", "conflicts with another warp"),
    "commit(&summed, 3);": ("commit(&summed, 1);", "that nothing completes"),
    "first_of_pair(b)": ("at(b)", "that nothing completes"),
}
"""Tiles that are read before they are there; sums and tiles that the other block waits for, or the first one."""


@pytest.mark.slow
@pytest.mark.parametrize("right", MISTAKES)
def test_mistakes_of_pairs_are_faults(right: str) -> None:
    wrong, message = MISTAKES[right]
    assert right in PAIR_GEMM
    a, b = operands(512, 384, 512)
    result = ran(PAIR_GEMM.replace(right, wrong), a, b)
    assert result.faults
    assert any(message in fault.message for fault in result.faults), [fault.message for fault in result.faults]


@pytest.mark.slow
def test_ptxas_assembles_every_form(tmp_path: Path) -> None:
    texts = {PairCase(*types, 256, 32, a=a).text for types in TYPES for a in ("128B", "tensor")}
    texts.add(PairCase(*F16, 256, 32, lanes=(1, 2, 3, 4)).text)
    texts.add(ScaledPairCase("mxf4nvf4", 4, qualifier=".scale_vec::4X", small=True, b="32B").text)
    assemble(texts, tmp_path)
