"""A warp-specialised product with TMA, mbarriers, tcgen05 and tensor memory is right here; its mistakes are found."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.base import RunResult
from kernelforge.hardware.specs import SPECS
from tests.devices.emulated.blackwell_gemm import GEMM, PLAN
from tests.devices.emulated.emulated_plans import resolve, runner, work
from tests.devices.emulated.hopper_gemm import MAP
from tests.devices.emulated.test_hopper_gemm import operands, product_of

SIZES = [(128, 128, 64), (200, 136, 200), (64, 72, 40), (256, 384, 512)]
B200 = SPECS["b200"]


def ran(source: str, a: np.ndarray, b: np.ndarray, **changes: object) -> RunResult:
    request = work(resolve(PLAN, (a, b)), (a, b), deadline_s=120.0, **changes)
    return runner(MAP + source, spec=B200, arch="compute_100a", registers=64).run(request)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_products_of_every_size_are_right(size: tuple[int, int, int]) -> None:
    a, b = operands(*size)
    c = product_of(ran(GEMM, a, b), *size[:2])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-4)


MISTAKES = {
    "wait(full + s, t / STAGES & 1);": ("", "conflicts with another warp"),
    "commit(empty + s);": ("arrive(empty + s);", "tcgen05.mma or tcgen05.cp may still read"),
    "commit(summed + half);": ("arrive(summed + half);", "no thread waited for the mbarrier of a tcgen05.commit"),
    "tcgen05.wait::ld.sync.aligned;": ("", "tcgen05.ld reads it"),
    "expect(full + s, 2 * TILE);": ("expect(full + s, 2 * TILE + 16);", "phase of an mbarrier that nothing completes"),
    "if (threadIdx.x % 32 == 0) arrive(stored": ("if (threadIdx.x == 64) arrive(stored", "that nothing completes"),
    "+ (32 * part << 16)": ("", "accesses lanes"),
    "COLUMNS = 2 * BN": ("COLUMNS = BN", "columns are allocated"),
    '  if (warp == 1)\n    asm volatile("tcgen05.de': ('  if (0) asm volatile("tcgen05.de', "still allocated"),
    "(u64)1 << 46 |": ("", "bits 46 to 48"),
}  # fmt: skip
"""Tiles that are read before they are there, stages released before they are read, sums read before they are there,
sums that may be overwritten while they are read, bytes that no copy brings, halves that are never released, lanes of
another warp, too few columns, columns that are never freed, and a descriptor of another generation."""


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("right", MISTAKES)
def test_mistakes_are_faults(right: str) -> None:
    wrong, message = MISTAKES[right]
    assert right in GEMM
    a, b = operands(384, 384, 512)
    result = ran(GEMM.replace(right, wrong), a, b)
    assert {fault.kind for fault in result.faults} == {"sanitizer"}
    assert any(message in fault.message for fault in result.faults), [fault.message for fault in result.faults]


def test_a_profile_counts_the_tiles_and_the_products() -> None:
    a, b = operands(256, 384, 512)
    request = work(resolve(PLAN, (a, b)), (a, b), deadline_s=120.0)
    (kernel,) = runner(MAP + GEMM, spec=B200, arch="compute_100a", registers=64).profile(request).kernels
    tiles, steps = 2 * 3, 512 // 64
    loads = [op for op in kernel.memory if op.space == "global" and op.access == "load"]
    assert sum(op.transactions for op in loads) == tiles * steps * 2 * 128 * 128 // 32
    assert kernel.mix["tcgen05.mma"] == (tiles * steps * 4, tiles * steps * 4)
    assert kernel.matrix == {"f16.f32": (2 * 256 * 384 * 512, tiles * steps * 4 * 2 * 128 * 32)}
    assert kernel.dram_read_bytes == a.nbytes + b.nbytes
