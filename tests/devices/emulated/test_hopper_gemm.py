"""A warp-specialised product with TMA, mbarriers and wgmma is right here, and its mistakes are found."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.base import RunResult
from tests.devices.emulated.emulated_plans import resolve, runner, work
from tests.devices.emulated.hopper_gemm import CLUSTER_PLAN, GEMM, MAP, PLAN

SIZES = [(128, 128, 64), (200, 136, 200), (64, 72, 40), (256, 384, 512)]


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)


def ran(source: str, plan: str, a: np.ndarray, b: np.ndarray, **changes: object) -> RunResult:
    return runner(MAP + source, registers=168).run(work(resolve(plan, (a, b)), (a, b), deadline_s=120.0, **changes))


def product_of(result: RunResult, m: int, n: int) -> np.ndarray:
    assert result.faults == ()
    return np.frombuffer(bytes(result.outputs[0]), np.float32).reshape(m, n)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("cluster", [False, True])
def test_products_of_every_size_are_right(size: tuple[int, int, int], cluster: bool) -> None:
    a, b = operands(*size)
    source = "#define CLUSTER 2\n" + GEMM if cluster else GEMM
    c = product_of(ran(source, CLUSTER_PLAN if cluster else PLAN, a, b), *size[:2])
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c, exact, rtol=1e-5, atol=1e-4)


MISTAKES = {
    "wait(full + s, t / STAGES & 1);": ("", "conflicts with another warp"),
    'asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");': ("", "wgmma.mma_async may still read"),
    '"wgmma.wait_group.sync.aligned 0;"': ('"wgmma.wait_group.sync.aligned 1;"', "wgmma.mma_async may still read"),
    "expect(full + s, 2 * TILE);": ("expect(full + s, 2 * TILE + 16);", "phase of an mbarrier that nothing completes"),
    "if (lane < CLUSTER) arrive": ("if (lane < CLUSTER && t < 1) arrive", "an mbarrier that nothing completes"),
    "unsigned to = tiles": ("unsigned to = 16 + tiles", "misaligned"),
}
"""A tile is read before it is there, stages are released before they are read, bytes that no
copy brings, a stage that is never released, and a tile that is not aligned."""


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize("right", MISTAKES)
def test_mistakes_are_faults(right: str) -> None:
    wrong, message = MISTAKES[right]
    assert right in GEMM
    a, b = operands(128, 128, 512)
    result = ran(GEMM.replace(right, wrong), PLAN, a, b)
    assert {fault.kind for fault in result.faults} == {"sanitizer"}
    assert any(message in fault.message for fault in result.faults), [fault.message for fault in result.faults]


def test_a_profile_counts_the_tiles_and_the_products() -> None:
    a, b = operands(256, 384, 512)
    request = work(resolve(PLAN, (a, b)), (a, b), deadline_s=120.0)
    (kernel,) = runner(MAP + GEMM, registers=168).profile(request).kernels
    blocks, steps = 2 * 3, 512 // 64
    loads = [op for op in kernel.memory if op.space == "global" and op.access == "load"]
    assert sum(op.transactions for op in loads) == blocks * steps * 2 * 128 * 128 // 32
    assert sum(op.requests for op in loads) == blocks * steps * 2
    assert kernel.mix["wgmma.f16"][0] == blocks * steps * 4 * 8
    assert kernel.dram_read_bytes == a.nbytes + b.nbytes


@pytest.mark.slow
def test_a_part_of_the_output_needs_few_blocks() -> None:
    a, b = operands(512, 512, 128)
    plan = resolve(PLAN, (a, b))
    part = runner(MAP + GEMM, registers=168).run_part(work(plan, (a, b), deadline_s=120.0), {0: [5, 512 * 511 + 511]})
    assert part.reason == ""
    assert part.faults == ()
    elements = np.frombuffer(bytes(part.parts[0].elements), np.int64)
    values = np.frombuffer(bytes(part.parts[0].data), np.float32)
    assert elements.size == 2 * 128 * 128
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(values, exact.reshape(-1)[elements], rtol=1e-5, atol=1e-4)
