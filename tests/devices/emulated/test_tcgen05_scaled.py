"""Products of tensor memory whose blocks have scales (``tcgen05.mma.block_scale``), against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices.emulated.tensor_core_sums import Array, exponents, toward_zero
from tests.devices.emulated.tensor_memory import (
    A_AT,
    A_SCALES_AT,
    B_AT,
    B_SCALES_AT,
    CODES,
    IMAGE_BYTES,
    RNG,
    TENSOR_A_AT,
    Case,
    assemble,
    elements,
    kernel,
    layout,
    matrix_descriptor,
    memory_of,
    packed_chunks,
)

BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}


def scale_values(raw: Array, small: bool) -> Array:
    """Scales of ue4m3, where they are small, or ue8m0."""
    if not small:
        return np.where(raw == 255, np.nan, np.ldexp(1.0, raw.astype(np.int64) - 127))
    exponent = raw.astype(np.int64) >> 3 & 15
    value = np.ldexp((raw & 7) / 8 + (exponent > 0), np.maximum(exponent, 1) - 7)
    return np.where(raw & 127 == 127, np.nan, value)


def scale_exponents(raw: Array, small: bool) -> Array:
    if not small:
        return raw.astype(np.int64) - 127
    return np.where(raw & 127, np.maximum(raw.astype(np.int64) >> 3 & 15, 1) - 7, -126)


def scale_columns(raw: Array, at: int) -> Array:
    """Columns of tensor memory, with the scales of 32 rows each, of which every part of the lanes has a copy."""
    columns = -(-len(raw) // 32)
    parts = RNG.integers(0, 256, (columns, 32, 4)).astype(np.uint8)
    rows = np.arange(len(raw))
    for k in range(raw.shape[1]):
        parts[rows // 32, rows % 32, at + k] = raw[:, k]
    return np.tile(parts.view(np.uint32)[..., 0], (1, 4))


class ScaledCase(Case):
    """One product with random operands and scales."""

    def __init__(
        self, kind: str, vectors: int, a_type: str = "e2m1", b_type: str = "e2m1", n: int = 32, *, qualifier: str = "",
        small: bool = False, a: str = "128B", b: str = "128B", transposed: bool = False, spread: int = 6,
        parts: tuple[int, int] = (0, 0), flags: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        m, mixed = 128, kind == "mxf8f6f4"
        self.kind, self.result, self.m, self.n, self.k = kind, "f32", m, n, 32 if mixed else 64
        self.vectors, self.small, self.scale, self.types = vectors, small, 0, (a_type, b_type, "f32")
        a_raw, a_values = elements(a_type, (m, self.k))
        b_raw, b_values = elements(b_type, (n, self.k))
        self.image = np.zeros(IMAGE_BYTES, np.uint8)
        self.descriptors = [0, 0]
        containers = a_raw
        for number, (raw, element, at, swizzle) in enumerate(((a_raw, a_type, A_AT, a), (b_raw, b_type, B_AT, b))):
            data = raw if mixed else raw[:, ::2] | raw[:, 1::2] << 4
            if number == 0:
                containers = data << 2 if mixed and element == "e2m1" else data
            if swizzle == "tensor":
                continue
            where = layout(len(raw), 32, 1, swizzle, transposed)
            data = packed_chunks(raw, BITS[element]) if mixed and element in BITS else data
            self.image |= np.roll(memory_of(data, where.offsets, IMAGE_BYTES), at)
            self.descriptors[number] = matrix_descriptor(at, where.leading, where.stride, swizzle)
        middle = 60 if small else 127
        self.scales = [
            RNG.integers(middle - spread, middle + spread, (lines, vectors)).astype(np.uint8) for lines in (m, n)
        ]
        self.parts = parts
        self.tensor_a = np.zeros((24, 128), np.uint32)
        self.tensor_a[:8] = np.ascontiguousarray(containers).view(np.uint32).T
        self.place_scales()
        self.values = a_values, b_values.T
        self.lanes, self.columns_of_d = np.indices((m, n))
        self.columns = n
        self.c = RNG.standard_normal((m, n)).astype(np.float32)
        codes = [CODES[element] if mixed else 1 for element in (a_type, b_type)]
        self.idesc = codes[0] << 7 | codes[1] << 10 | n >> 3 << 17 | m >> 4 << 24 | parts[1] << 4 | parts[0] << 29
        self.idesc |= (not small) << 23 | transposed * (3 << 15) | sum(1 << bit for bit in flags)
        name = f"cta_group::1.kind::{kind}.block_scale{qualifier}"
        self.text = kernel(name, a == "tensor", n, scaled=True)

    def place_scales(self) -> None:
        """Put the scales into the columns that the kernel stores."""
        for raw, at, part in zip(self.scales, (A_SCALES_AT, B_SCALES_AT), self.parts, strict=True):
            columns = scale_columns(raw, part)
            self.tensor_a[at - TENSOR_A_AT : at - TENSOR_A_AT + len(columns)] = columns

    def scaled(self) -> tuple[Array, Array]:
        """Operands in float64, multiplied by their scales."""
        each = self.k // self.vectors
        a, b = (np.repeat(scale_values(raw, self.small), each, axis=1) for raw in self.scales)
        return self.values[0].astype(np.float64) * a, self.values[1].astype(np.float64) * b.T

    def exact(self, keep: int = 1) -> Array:
        a, b = self.scaled()
        product: Array = a @ b + keep * self.c.astype(np.float64)
        return product

    def expected(self, keep: int = 1) -> Array:
        a, b = self.scaled()
        c = keep * self.c.astype(np.float64)
        c_exponents = exponents(c, "f32")
        powers = [scale_exponents(raw, self.small) for raw in self.scales]
        if self.kind == "mxf8f6f4":
            terms = a[:, :, None] * b[None]
            of_a = exponents(self.values[0], self.types[0]) + powers[0]
            of_b = exponents(self.values[1], self.types[1]) + powers[1].T
            largest, bits = (of_a[:, :, None] + of_b[None]).max(axis=1), 25
        else:
            terms = np.einsum("mgk,gkn->mgn", a.reshape(self.m, 4, 16), b.reshape(4, 16, self.n))
            largest, bits = (powers[0][:, :, None] + powers[1].T[None]).max(axis=1), 35
        unit = np.ldexp(1.0, np.maximum(largest, c_exponents) - bits)
        total = (np.trunc(terms / unit[:, None]).sum(axis=1) + np.trunc(c / unit)) * unit
        return toward_zero(total, 23).astype(np.float32) + np.float32(0)

    def check(self, keep: int = 1) -> None:
        cells, _ = self.run(keep=keep)
        d = cells[self.columns_of_d, self.lanes].view(np.float32)
        a, b = self.scaled()
        error = np.abs(d - self.exact(keep)) / np.maximum(np.abs(a) @ np.abs(b) + np.abs(self.c), 2.0**-20)
        assert error.max() <= 2.0**-20
        assert np.array_equal(cells, self.cells(self.expected(keep)))


KINDS = [
    ("mxf8f6f4", 1, "", False), ("mxf8f6f4", 1, ".scale_vec::1X", False), ("mxf8f6f4", 1, ".block32", False),
    ("mxf4", 2, "", False), ("mxf4", 2, ".scale_vec::2X", False), ("mxf4", 2, ".block32", False),
    ("mxf4nvf4", 2, ".scale_vec::2X", False), ("mxf4nvf4", 4, ".scale_vec::4X", False),
    ("mxf4nvf4", 4, ".scale_vec::4X", True), ("mxf4nvf4", 2, ".block32", False), ("mxf4nvf4", 4, ".block16", True),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("a", ["128B", "tensor"])
@pytest.mark.parametrize(("kind", "vectors", "qualifier", "small"), KINDS)
def test_products_of_every_kind(kind: str, vectors: int, qualifier: str, small: bool, a: str) -> None:
    for n, spread in ((32, 6), (136, 40)):
        ScaledCase(kind, vectors, n=n, qualifier=qualifier, small=small, a=a, b="32B", spread=spread).check()
    ScaledCase(kind, vectors, qualifier=qualifier, small=small).check(keep=0)


TYPES = [("e4m3", "e5m2"), ("e5m2", "e2m1"), ("e2m3", "e4m3"), ("e3m2", "e3m2"), ("e4m3", "e4m3")]


@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_mixed_products_of_every_type(types: tuple[str, str]) -> None:
    case = ScaledCase("mxf8f6f4", 1, *types, 48, a="64B", b="none")
    case.check()
    ScaledCase("mxf8f6f4", 1, *types, 48, a="tensor", flags=(13,)).run()


@pytest.mark.parametrize("parts", [(1, 3), (2, 0), (3, 2)])
def test_scales_are_in_the_bytes_that_a_descriptor_names(parts: tuple[int, int]) -> None:
    ScaledCase("mxf8f6f4", 1, "e4m3", "e4m3", parts=parts).check()


def test_pairs_of_scales_are_in_halves() -> None:
    for parts in ((0, 2), (2, 0), (2, 2)):
        ScaledCase("mxf4", 2, parts=parts).check()


def test_bytes_may_be_transposed() -> None:
    ScaledCase("mxf8f6f4", 1, "e4m3", "e5m2", 64, transposed=True).check()


def test_a_scale_that_is_nan_spoils_its_row() -> None:
    for kind, vectors, qualifier, small, spoilt in (
        ("mxf8f6f4", 1, "", False, 255), ("mxf4", 2, "", False, 255), ("mxf4nvf4", 4, ".block16", True, 127),
    ):  # fmt: skip
        case = ScaledCase(kind, vectors, qualifier=qualifier, small=small)
        case.scales[0][77, 0] = case.scales[1][11, -1] = spoilt
        case.place_scales()
        cells, _ = case.run()
        d = cells[case.columns_of_d, case.lanes].view(np.float32)
        spoilt_cells = np.zeros(d.shape, bool)
        spoilt_cells[77] = spoilt_cells[:, 11] = True
        assert np.array_equal(np.isnan(d), spoilt_cells)


def test_scales_that_are_copied_from_shared_memory() -> None:
    """Rows of 16 bytes, each to four lanes, as libraries bring scales to tensor memory."""
    case = ScaledCase("mxf4nvf4", 4, n=128, qualifier=".block16", small=True)
    rows = np.ascontiguousarray(case.tensor_a[A_SCALES_AT - TENSOR_A_AT :][:4, :32].T)
    case.image[49152 : 49152 + 512] = rows.view(np.uint8).reshape(-1)
    case.tensor_a[A_SCALES_AT - TENSOR_A_AT :][:4] = 0
    copied = matrix_descriptor(49152, 16, 128, "none")
    case.text = case.text.replace(
        "tcgen05.mma.", f"mov.b64 %d9, {copied}; tcgen05.cp.cta_group::1.32x128b.warpx4 [%r8+{A_SCALES_AT}], %d9;\n"
        "tcgen05.mma.",
    )  # fmt: skip
    case.check()


def test_products_are_counted() -> None:
    for case, name, depth in (
        (ScaledCase("mxf8f6f4", 1, "e4m3", "e4m3"), "e4m3.f32", 32), (ScaledCase("mxf4", 2), "e2m1.f32", 64),
    ):  # fmt: skip
        _, report = case.run()
        assert report.matrix == {name: (2 * 128 * 32 * depth, 32 * (128 + 32))}


WRONG = {
    "a type of the scale that the vector cannot have": {"small": True},
    "a part that pairs of scales cannot begin at": {"parts": (1, 0)},
    "a depth of 96": {"flags": (31,)},
    "a reserved bit": {"flags": (6,)},
    "a transposed matrix": {"transposed": True},
}


@pytest.mark.parametrize("name", WRONG)
def test_descriptors_are_checked(name: str) -> None:
    case = ScaledCase("mxf4", 2, n=64, **WRONG[name])
    _, report = case.run(clean=False)
    assert {fault.kind for fault in report.faults} == {"tensor_descriptor"}
    assert all(str(fault) for fault in report.faults)


def test_scales_outside_of_allocated_columns_are_a_fault() -> None:
    case = ScaledCase("mxf4", 2)
    case.text = case.text.replace(f"[%r8+{B_SCALES_AT}]", "[%r8+512]")
    _, report = case.run(clean=False)
    assert {fault.kind for fault in report.faults} == {"tensor_unallocated"}


@pytest.mark.slow
def test_ptxas_assembles_every_form(tmp_path: Path) -> None:
    cases = [ScaledCase(*kind[:2], qualifier=kind[2], a=a) for kind in KINDS for a in ("128B", "tensor")]
    assemble({case.text.replace(".version 8.7", ".version 8.8") for case in cases}, tmp_path)
