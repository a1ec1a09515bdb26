"""The sanitizer reports every seeded bug of the corpus, and nothing in its clean twins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from kernelforge.emulation import Emulator
from tests.support.seeded_bugs import SeededBug, seeded_bugs

CASES = seeded_bugs()


@pytest.fixture(scope="module")
def emulator(
    tmp_path_factory: pytest.TempPathFactory, warmly: Callable[[], AbstractContextManager[None]]
) -> Iterator[Emulator]:
    with warmly(), Emulator("emulated:h100", cache=tmp_path_factory.mktemp("builds")) as opened:
        yield opened


def test_the_corpus_is_large_and_its_names_differ() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.slow
@pytest.mark.one_in(10)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind}: {case.name}")
def test_a_seeded_bug_is_found_and_its_twin_is_clean(emulator: Emulator, case: SeededBug) -> None:
    twin = case.run(emulator, buggy=False)
    assert twin.problem == ""
    result = case.run(emulator, buggy=True)
    assert result.build.ok, result.problem
    assert re.search(case.header["finds"], result.problem)


def test_without_the_checks_only_hardware_faults_are_found(emulator: Emulator) -> None:
    case = next(case for case in CASES if case.name == "workspace that nothing fills")
    tensors = {"x": "f32[64]", "y": "f32[64]"}
    launch = case.header["buggy"].replace("; ", "\n")
    assert emulator.run(case.source_of(True), launch, tensors, profile=False, sanitize=False).ok
    assert not emulator.run(case.source_of(True), launch, tensors, profile=False).ok


TWO_BLOCKS = "__global__ void k(int* x) {{ x[blockIdx.x * {stride}] = {value}; }}"


@pytest.mark.parametrize(
    ("stride", "value", "clean"),
    [(1, "blockIdx.x", True), (0, "7", True), (0, "blockIdx.x", False)],
    ids=["other words", "one value", "other values"],
)
def test_blocks_may_store_one_value_to_one_word(emulator: Emulator, stride: int, value: str, clean: bool) -> None:
    source = TWO_BLOCKS.format(stride=stride, value=value)
    assert emulator.run(source, "k[4, 1](x)", {"x": "i32[4]"}, profile=False).ok == clean


LAST_BLOCK = """
__device__ __forceinline__ int arrived(int* count) { __threadfence(); return atomicAdd(count, 1); }
__global__ void k(const int* x, int* partial, int* count, int* y) {
    partial[blockIdx.x] = x[blockIdx.x];
    if (arrived(count) == gridDim.x - 1) {
        int sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += partial[b];
        *y = sum;
    }
}
"""


def test_blocks_that_atomics_order_are_no_race(emulator: Emulator) -> None:
    plan = (
        "def forward(x):\n    partial = empty((8,), dtype=int32)\n    count = zeros((1,), dtype=int32)\n"
        "    y = empty((1,), dtype=int32)\n    k[8, 1](x, partial, count, y)\n    return y\n"
    )
    result = emulator.run(LAST_BLOCK, plan=plan, tensors={"x": "i32[8]:arange"}, profile=False).check()
    assert result.tensors["y"].tolist() == [28]


def test_a_later_launch_may_read_what_an_earlier_one_wrote(emulator: Emulator) -> None:
    source = "__global__ void k(int* x, int d) { int v = x[(blockIdx.x + d) % 4]; x[blockIdx.x + 4] = v; }"
    steps = "k[4, 1](x, i32(0))\nk[4, 1](x, i32(1))"
    assert emulator.run(source, steps, {"x": "i32[8]"}, profile=False).ok
