"""The archive tells kernels apart by what they do, not by words in comments."""

from __future__ import annotations

from typing import Any

import pytest

from kernelforge.records import Attempt, Origin, Profile, Roofline
from kernelforge.search.archive import Cell, behaviour_cell, elites, techniques
from tests.support.factories import make_attempt, make_candidate, make_evaluation, make_passed_over, modelled

KERNEL = "__global__ void k(float* x) { %s }"


def techniques_of(body: str, head: str = "") -> tuple[str, bool]:
    return techniques(make_candidate(source=head + KERNEL % body))


def attempt(number: int, time_us: float, bound: str = "dram", **changes: Any) -> Attempt:
    candidate = make_candidate(f"v{number}")
    evaluation = make_evaluation(candidate=candidate.hash, performance=modelled(time_us, bound=bound))
    return make_attempt(number, candidate=candidate, evaluation=evaluation, **changes)


@pytest.mark.parametrize(
    ("body", "staging"),
    [
        ("x[0] = 1;", "none"),
        ("__shared__ float tile[32]; tile[0] = x[0];", "shared"),
        ("extern __shared__ float tile[]; tile[0] = x[0];", "shared"),
        ('asm volatile("st.shared.f32 [%0], %1;" :: "r"(0), "f"(1.f));', "shared"),
        ("__shared__ float t[4]; __pipeline_memcpy_async(t, x, 16);", "async"),
        ("__shared__ float t[4]; cuda::memcpy_async(block, t, x, 16);", "async"),
        (
            '__shared__ float t[4]; asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(x));',
            "async",
        ),
        ('asm("cp.async.bulk.tensor.2d.shared::cluster.global.tile [%0], [%1];" :: "r"(a), "l"(x));', "async"),
        ('asm("cp.reduce.async.bulk.global.shared::cta.add.f32 [%0], [%1], 4;" :: "l"(x), "r"(a));', "async"),
    ],
)
def test_staging_is_read_from_the_code(body: str, staging: str) -> None:
    assert techniques_of(body) == (staging, False)


@pytest.mark.parametrize(
    "body",
    [
        "wmma::mma_sync(c, a, b, c);",
        'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0}, {%1};" : "+f"(d) : "r"(a));',
        'asm volatile(\n"{\\n"\n" wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0}, %1;}" : "+f"(d) : "l"(a));',
    ],
)
def test_tensor_cores_are_seen_in_calls_and_inline_ptx(body: str) -> None:
    assert techniques_of(body)[1]


@pytest.mark.parametrize(
    "body",
    [
        "// __shared__ mma_sync wmma cp.async\n x[0] = 1;",
        "/* __shared__ float t[4]; wmma::mma_sync */ x[0] = 1;",
        'const char* text = "mma.sync cp.async.cg __shared__";',
        "int my__shared__ = 0, not_mma_sync = 0, memcpy_async_count = 0;",
        'asm("add.f32 %0, %0, %0;" : "+f"(x[0])); const char* text = "mma.sync";',
        "float mma = 1; x[0] = mma;",
        "// continued \\\n __shared__ float t[4];\n x[0] = 1;",
    ],
)
def test_comments_strings_and_longer_names_do_not_count(body: str) -> None:
    assert techniques_of(body) == ("none", False)


def test_the_bound_is_the_profiles_and_else_the_performances() -> None:
    plain = attempt(0, 10.0, "latency")
    assert behaviour_cell(plain) == Cell("latency", "none", False)
    roofline = Roofline(
        flops=1.0, dram_bytes=1.0, compulsory_bytes=1.0, arithmetic_intensity=1.0, ridge=1.0, bound="fp32",
        time_us=1.0, time_origin=Origin.MODELLED,
    )  # fmt: skip
    profile = Profile(size="full", device="emulated:h100", kernels=(), metrics=(), roofline=roofline)
    assert behaviour_cell(plain.model_copy(update={"profile": profile})) == Cell("fp32", "none", False)


def test_each_cell_keeps_its_best_and_of_equals_the_oldest() -> None:
    attempts = [attempt(0, 30.0), attempt(1, 10.0), attempt(2, 10.0), attempt(3, 99.0, "fp32")]
    cells = {item.number: behaviour_cell(item) for item in attempts}
    kept = elites(attempts, cells)
    assert {cell.bound: item.number for cell, item in kept.items()} == {"dram": 1, "fp32": 3}


def test_the_tasks_best_has_its_cell_even_where_modelled_times_tell_nothing_apart() -> None:
    attempts = [attempt(0, 10.0), attempt(1, 11.0), attempt(2, 9.0)]
    cells = {item.number: behaviour_cell(item) for item in attempts}
    assert [item.number for item in elites(attempts, cells, best=1).values()] == [1]


def test_a_measured_kernel_holds_its_cell_against_one_that_was_passed_over() -> None:
    kept, passed_over = attempt(0, 1.0), attempt(1, 99.0)
    evaluation = make_passed_over(candidate=passed_over.evaluation.candidate)
    passed_over = passed_over.model_copy(update={"evaluation": evaluation})
    cells = dict.fromkeys((0, 1), behaviour_cell(kept))
    for order in ([passed_over, kept], [kept, passed_over]):
        assert list(elites(order, cells).values()) == [kept]
