"""Executions of machine code, estimated from counts of PTX: against an H100, and against known answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from benchmarks import sass
from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.profiling.sass_code import SassFunction, SassInstruction
from kernelforge.profiling.sass_executions import block_executions
from tests.devices.emulated.harness import Device
from tests.support.benchmark_scripts import benchmark_script

ROOT = Path(__file__).parents[2]
LOOP = """
__global__ void total(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum += x[k * 32 + threadIdx.x];
    y[threadIdx.x] = sum;
}
"""
GUARDED = """
__global__ void total(const float* x, float* y, int n) {
    __shared__ float left[32], right[32];
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) {
        int at = k * 32 + threadIdx.x;
        if (at < n * 32) {
            left[threadIdx.x] = x[at];
            right[threadIdx.x] = x[at ^ 1];
        } else {
            left[threadIdx.x] = 0.0f;
            right[threadIdx.x] = 0.0f;
        }
        __syncthreads();
        #pragma unroll
        for (int j = 0; j < 32; ++j) sum += left[j] * right[31 - j];
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}
"""


@pytest.fixture(scope="module")
def read(compiler: Compiler) -> Callable[[str, str], tuple[SassFunction, list[str]]]:
    def code(source: str, kernel: str) -> tuple[SassFunction, list[str]]:
        built = compiler.build(source, [kernel])
        assert isinstance(built, Artifact)
        (symbol,) = (fact.symbol for fact in built.build.kernels)
        function = read_machine_code(built.cubin).function(symbol)
        assert function is not None
        return function, built.ptx.decode().split("\n")

    return code


def by_opcode(function: SassFunction, executions: tuple[float, ...]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for block, count in zip(function.blocks, executions, strict=True):
        for instruction in function.instructions_of(block):
            totals[instruction.name] = totals.get(instruction.name, 0.0) + count
    return totals


def counted(ptx: list[str], rounds: int) -> dict[int, float]:
    """Executions of each line of the loop's PTX by its one warp, on the emulated device."""
    x, y = np.ones(32 * max(rounds, 1), np.float32), np.zeros(32, np.float32)
    report = Device("\n".join(ptx)).run(1, 32, x, y, np.int32(rounds))
    counts: dict[int, float] = {}
    for instructions, warps, _ in report.executed:
        counts |= {line: counts.get(line, 0.0) + warps for line in {i.ptx_line for i in instructions}}
    return counts


def test_a_loop_of_any_length_executes_each_load_as_often_as_the_ptx(read) -> None:
    """NVVM unrolls the loop by four and ptxas by four again; the loop for what remains does three."""
    function, ptx = read(LOOP, "total")
    for rounds in (0, 3, 64, 67, 1003):
        executions = block_executions(function, ptx, counted(ptx, rounds), warps=1)
        assert executions is not None
        totals = by_opcode(function, executions)
        assert totals["LDG"] == pytest.approx(rounds, rel=1e-3, abs=1e-3)
        assert totals["STG"] == pytest.approx(1.0, rel=1e-3)
        assert totals["EXIT"] == pytest.approx(1.0, rel=1e-3)


def test_most_of_a_long_loop_runs_in_the_copy_that_is_unrolled_the_most(read) -> None:
    function, ptx = read(LOOP, "total")
    executions = block_executions(function, ptx, counted(ptx, 1003), warps=1)
    assert executions is not None
    loads = [sum(i.name == "LDG" for i in function.instructions_of(block)) for block in function.blocks]
    largest = max(range(len(loads)), key=lambda k: loads[k])
    assert executions[largest] * loads[largest] == pytest.approx(1003 // loads[largest] * loads[largest], rel=1e-3)


def test_a_side_that_no_lane_takes_does_not_keep_warps_from_its_block(read) -> None:
    function, ptx = read(GUARDED, "total")
    counts = counted(ptx, 100)
    never = [k for k, text in enumerate(ptx, 1) if "st.shared" in text and not counts.get(k)]
    assert any(i.predicated and i.ptx_line in never for i in function.instructions)
    executions = block_executions(function, ptx, counts, 1.0)
    assert executions is not None
    assert by_opcode(function, executions)["LDG"] == pytest.approx(200, rel=1e-3)


def test_what_is_computed_again_in_a_loop_does_not_shorten_it(read) -> None:
    function, ptx = read(LOOP, "total")
    counts = counted(ptx, 4096)
    once = next(i.ptx_line for i in function.instructions if i.name == "IMAD" and counts.get(i.ptx_line) == 1.0)
    body = max(function.blocks, key=lambda block: sum(i.name == "LDG" for i in function.instructions_of(block)))
    inside = function.instructions_of(body)
    moved = next(i for i in inside if i.name in ("IADD3", "IMAD"))
    instructions = tuple(replace(i, ptx_line=once) if i is moved else i for i in function.instructions)
    executions = block_executions(replace(function, instructions=instructions), ptx, counts, 1.0)
    assert executions is not None
    assert by_opcode(function, executions)["LDG"] == pytest.approx(4096, rel=1e-3)


def test_code_without_a_line_table_has_no_estimate(read) -> None:
    function, ptx = read(LOOP, "total")
    assert block_executions(function, ptx, {}, warps=0) is None
    bare = SassFunction(function.name, tuple(_without_line(i) for i in function.instructions), function.blocks)
    assert block_executions(bare, ptx, {1: 1.0}, warps=1) is None


def _without_line(instruction: SassInstruction) -> SassInstruction:
    return replace(instruction, ptx_line=0)


@pytest.fixture(scope="module")
def ladder() -> ModuleType:
    """The script that compiles and counts the ladder's kernels."""
    return benchmark_script("hardware_ladder")


NAMES = ("copy_1", "silu_exact", "sum_divergent", "transpose_padded_4096", "softmax_online_1024", "sum_columns")
"""A kernel of one block, a division, lanes that part, a loop with a barrier, two loops, one that is unrolled twice."""


def test_an_h100_executed_each_instruction_as_often(ladder: ModuleType, tmp_path: Path) -> None:
    ladder.prepare(tmp_path)
    cases = json.loads((tmp_path / "cases.json").read_text(encoding="utf-8"))
    selected = [case for case in cases if case["name"] in NAMES]
    assert len(selected) == len(NAMES)
    (tmp_path / "cases.json").write_text(json.dumps(selected), encoding="utf-8")
    ladder.emulate(tmp_path, "")
    for kernel in sass.compare(tmp_path, sass.REFERENCE):
        assert kernel.error < 0.01, kernel.name
        assert kernel.misplaced < 0.01, kernel.name
