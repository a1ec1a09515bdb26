"""Executions of machine code, estimated from counts of PTX: against an H100, and against known answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import sass
from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.profiling.sass_code import Control, NoEstimateError, SassFunction, SassInstruction, cut_into_blocks
from kernelforge.profiling.sass_executions import block_executions, loops
from tests.devices.emulated.harness import Device
from tests.support.benchmark_scripts import benchmark_script

WARPS, THREADS, LONGEST = 8, 64, 40
LENGTHS = np.random.default_rng(0).integers(0, LONGEST, 32 * WARPS).astype(np.int32)
VALUES = np.random.default_rng(1).standard_normal(32 * WARPS * LONGEST).astype(np.float32)
ROW = "int i = blockIdx.x * blockDim.x + threadIdx.x, m = length[i]; const float* row = x + i * 40; float s = 0.0f;"
WHILE = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    int steps = 0;
    while (m > 0) { m = (m & 1) ? m - 1 : m >> 1; ++steps; }
    y[i] = steps;
}
"""
DATA = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    #pragma unroll 1
    for (int k = 0; k < m; ++k) s += row[k] * 1.5f;
    y[i] = s;
}
"""
CAUSAL = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    const int last = length[i / 32];
    #pragma unroll 1
    for (int k = 0; k <= last; ++k) {
        float partial = i < 100000 ? 0.0f : row[k];
        if (i >= 200000) partial += row[k] * row[k + 1];
        for (int o = 16; o; o >>= 1) partial += __shfl_xor_sync(~0u, partial, o);
        s += partial;
    }
    y[i] = s + m;
}
"""
SPILL = """
__global__ void __launch_bounds__(64, 24) work(const float* x, const int* length, float* y) {
    ROW
    float a[40];
    #pragma unroll
    for (int k = 0; k < 40; ++k) a[k] = row[k];
    #pragma unroll 1
    for (int r = 0; r < m; ++r) {
        #pragma unroll
        for (int k = 0; k < 40; ++k) a[k] = a[(k + 7) % 40] * 1.01f + a[(k * 3 + 1) % 40];
    }
    #pragma unroll
    for (int k = 0; k < 40; ++k) s += a[k];
    y[i] = s;
}
"""
BREAK = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    #pragma unroll 1
    for (int k = 0; k < m; ++k) {
        if (row[k] > 1.5f) break;
        s += row[k];
    }
    y[i] = s;
}
"""
CALLED = """
__device__ __noinline__ float sum(const float* row, int m) {
    float s = 0.0f;
    #pragma unroll 1
    for (int k = 0; k < m; ++k) s += row[k];
    return s;
}
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    y[i] = sum(row, m) + sum(row + 1, m - 2);
}
"""
ONE_LANE = """
__global__ void work(const float* x, const int* length, float* y) {
    __shared__ float staged[64];
    ROW
    #pragma unroll 1
    for (int r = 0; r < 3; ++r) {
        staged[threadIdx.x] = row[r];
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            const int end = min(32, 61 - r * 32);
            for (int k = 0; k < end; ++k) {
                const float v = staged[threadIdx.x + k];
                if (v > s) s = v;
            }
        }
        __syncwarp();
    }
    y[i] = s;
}
"""
LOCAL = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    float kept[40];
    for (int k = 0; k < 40; ++k) kept[k] = row[k];
    #pragma unroll 1
    for (int k = 0; k < m; ++k) { const int at = (k * 7 + m) % 40; s += kept[at]; kept[(at + 3) % 40] = s; }
    y[i] = s;
}
"""
NESTED = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    for (int a = 0; a < 10; ++a) {
        for (int b = 0; b < 4; ++b) {
            const float v = row[a * 4 + b];
            if (v > 2.0f) goto out;
            if (v < -1.0f) break;
            s += v;
        }
        if (s > 3.0f) continue;
        s *= 1.01f;
    }
out:
    y[i] = s;
}
"""
SHUFFLES = """
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    m = length[i / 32];
    for (int k = 0; k < m; ++k) {
        s += x[(i * 40 + k * 32) % 8192];
        s += __shfl_xor_sync(~0u, s, 1);
    }
    y[i] = s;
}
"""
RECURSION = """
__device__ __noinline__ float sum(const float* row, int m) {
    return m <= 1 ? row[0] : sum(row, m / 2) * 1.5f + sum(row + m / 2, m - m / 2);
}
__global__ void work(const float* x, const int* length, float* y) {
    ROW
    y[i] = sum(row, m);
}
"""
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
    return executed_lines(ptx, 1, 32, x, y, np.int32(rounds))


def executed_lines(ptx: list[str], grid: int, block: int, *arguments: Any) -> dict[int, float]:
    """Executions of each line of the PTX by warps, on the emulated device."""
    report = Device("\n".join(ptx)).run(grid, block, *arguments)
    counts: dict[int, float] = {}
    for instructions, warps, _ in report.executed:
        counts |= {line: counts.get(line, 0.0) + warps for line in {i.ptx_line for i in instructions}}
    return counts


@pytest.mark.slow
def test_a_loop_of_any_length_executes_each_load_as_often_as_the_ptx(read) -> None:
    """NVVM unrolls the loop by four and ptxas by four again; the loop for what remains does three."""
    function, ptx = read(LOOP, "total")
    for rounds in (0, 3, 64, 67, 1003):
        executions = block_executions(function, ptx, counted(ptx, rounds), warps=1)
        totals = by_opcode(function, executions)
        assert totals["LDG"] == pytest.approx(rounds, rel=1e-3, abs=1e-3)
        assert totals["STG"] == pytest.approx(1.0, rel=1e-3)
        assert totals["EXIT"] == pytest.approx(1.0, rel=1e-3)


def test_most_of_a_long_loop_runs_in_the_copy_that_is_unrolled_the_most(read) -> None:
    function, ptx = read(LOOP, "total")
    executions = block_executions(function, ptx, counted(ptx, 1003), warps=1)
    loads = [sum(i.name == "LDG" for i in function.instructions_of(block)) for block in function.blocks]
    largest = max(range(len(loads)), key=lambda k: loads[k])
    assert executions[largest] * loads[largest] == pytest.approx(1003 // loads[largest] * loads[largest], rel=1e-3)


def test_a_side_that_no_lane_takes_does_not_keep_warps_from_its_block(read) -> None:
    function, ptx = read(GUARDED, "total")
    counts = counted(ptx, 100)
    never = [k for k, text in enumerate(ptx, 1) if "st.shared" in text and not counts.get(k)]
    assert any(i.predicated and i.ptx_line in never for i in function.instructions)
    executions = block_executions(function, ptx, counts, 1.0)
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
    assert by_opcode(function, executions)["LDG"] == pytest.approx(4096, rel=1e-3)


def of_warps(function: Callable[[Any], int]) -> float:
    """The sum over all warps of the most rounds that a lane makes."""
    rounds = [function(thread) for thread in range(32 * WARPS)]
    return float(np.reshape(rounds, (WARPS, 32)).max(axis=1).sum())


def halvings(thread: int) -> int:
    number, steps = int(LENGTHS[thread]), 0
    while number:
        number, steps = number - 1 if number & 1 else number >> 1, steps + 1
    return steps


def until_large(thread: int) -> int:
    row = VALUES[LONGEST * thread : LONGEST * thread + LENGTHS[thread]]
    large = np.flatnonzero(row > 1.5)
    return int(large[0]) + 1 if large.size else len(row)


ROUNDS = {
    "while": (WHILE, of_warps(halvings)),
    "length of data": (DATA, of_warps(lambda thread: LENGTHS[thread])),
    "accesses that never run": (CAUSAL, of_warps(lambda thread: LENGTHS[thread // 32] + 1)),
    "spilled registers": (SPILL, of_warps(lambda thread: LENGTHS[thread])),
    "break": (BREAK, of_warps(until_large)),
    "local array": (LOCAL, of_warps(lambda thread: LENGTHS[thread])),
}
"""Kernels with one loop, and how often warps execute it by the algorithm."""


def estimated(read: Any, source: str) -> tuple[SassFunction, list[str], dict[int, float], tuple[float, ...]]:
    function, ptx = read(source.replace("ROW", ROW), "work")
    y = np.zeros(32 * WARPS, np.float32)
    counts = executed_lines(ptx, 32 * WARPS // THREADS, THREADS, VALUES, LENGTHS, y)
    return function, ptx, counts, block_executions(function, ptx, counts, float(WARPS))


@pytest.mark.parametrize("name", ROUNDS)
def test_a_loop_runs_as_often_as_the_algorithm_says(read, name: str) -> None:
    source, rounds = ROUNDS[name]
    function, _, _, executions = estimated(read, source)
    looped = {index for loop in loops(function) for index in loop if executions[index]}
    assert max(executions[index] for index in looped) == pytest.approx(rounds, rel=0.01)
    sizes = [block.end - block.first for block in function.blocks]
    total = sum(count * size for count, size in zip(executions, sizes, strict=True))
    expected = rounds * sum(sizes[index] for index in looped)
    expected += WARPS * sum(sizes[k] for k, count in enumerate(executions) if count and k not in looped)
    assert total == pytest.approx(expected, rel=0.05)


ACCESSES = {
    "functions that are not inlined": (CALLED, ("LDG", "LD", "FADD")),
    "one lane of a warp": (ONE_LANE, ("LDS", "STS")),
    "nested loops with early exits": (NESTED, ("LDG", "FADD")),
    "local array": (LOCAL, ("STL", "LDL", "LDG")),
    "spilled registers": (SPILL, ("FFMA", "LDG", "STG")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCESSES)
def test_accesses_and_arithmetic_run_as_often_as_their_lines(read, name: str) -> None:
    source, opcodes = ACCESSES[name]
    function, ptx, counts, executions = estimated(read, source)
    of_lines: dict[int, float] = {}
    for block, count in zip(function.blocks, executions, strict=True):
        for instruction in function.instructions_of(block):
            line = ptx[instruction.ptx_line - 1].split()[0] if instruction.ptx_line else ""
            if instruction.name in opcodes and line.startswith(("ld", "st", "add", "fma")):
                of_lines[instruction.ptx_line] = of_lines.get(instruction.ptx_line, 0.0) + count
    assert of_lines
    expected = sum(counts.get(line, 0.0) for line in of_lines)
    assert sum(of_lines.values()) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_shuffles_for_lanes_that_are_apart_are_not_executed(compiler: Compiler, arch: str) -> None:
    """Before compute capability 9 ptxas writes both: a branch if lanes are together skips the other."""
    built = compiler.build(SHUFFLES.replace("ROW", ROW), ["work"], arch=arch)
    assert isinstance(built, Artifact)
    function = read_machine_code(built.cubin).function(built.build.kernels[0].symbol)
    assert function is not None
    ptx, y = built.ptx.decode().split("\n"), np.zeros(32 * WARPS, np.float32)
    counts = executed_lines(ptx, 32 * WARPS // THREADS, THREADS, VALUES, LENGTHS, y)
    executions = block_executions(function, ptx, counts, float(WARPS))
    rounds = float(LENGTHS[:WARPS].sum())
    assert by_opcode(function, executions)["SHFL"] == pytest.approx(rounds, rel=1e-3)
    calls = [count for block, count in zip(function.blocks, executions, strict=True) if block.call is not None]
    assert max(calls, default=0.0) == pytest.approx(0.0, abs=1e-3)


def test_many_integers_that_are_computed_again_do_not_shorten_a_loop() -> None:
    """As where registers are few: each of their lines is executed once in the PTX, before the loop."""
    lines = ["add.f32 %f1, %f1, %f2;", *("add.s32 %r1, %r1, 1;" for _ in range(60)), "ret;"]
    names = ["IADD3", "FADD", *("IADD3" for _ in range(60)), "BRA", "EXIT"]
    of_line = [2, 1, *range(2, 62), 1, 62]
    control = Control(1, False, None, None, (), 0)
    code = [
        SassInstruction(16 * k, name, 0, False, name == "BRA", line, control, (16,) if name == "BRA" else ())
        for k, (name, line) in enumerate(zip(names, of_line, strict=True))
    ]
    counts = {1: 1000.0, **dict.fromkeys(range(2, 63), 1.0)}
    executions = block_executions(cut_into_blocks("loop", code), lines, counts, 1.0)
    assert executions == pytest.approx([1.0, 1000.0, 1.0], rel=1e-3)


def test_integers_that_are_computed_again_before_a_branch_do_not_keep_warps_from_it() -> None:
    """In a loop around a part that a branch passes over: integers of lines before the loop, then the branch."""
    stores = [f"st.shared.f32 [%r{number}], %f1;" for number in range(4)]
    lines = ["@%p1 bra $L__1;", *stores, *("add.s32 %r1, %r1, 1;" for _ in range(60)), "ret;"]
    names = ["IADD3", *("IADD3" for _ in range(60)), "BRA", *("STS" for _ in stores), "BRA", "EXIT"]
    of_line = [6, *range(6, 66), 1, 2, 3, 4, 5, 0, 66]
    targets = {61: (16 * 66,), 66: (16,)}
    control = Control(1, False, None, None, (), 0)
    code = [
        SassInstruction(16 * k, name, 0, k in targets, k in targets, line, control, targets.get(k, ()))
        for k, (name, line) in enumerate(zip(names, of_line, strict=True))
    ]
    counts = {**dict.fromkeys(range(1, 6), 1000.0), **dict.fromkeys(range(6, 67), 1.0)}
    executions = block_executions(cut_into_blocks("loop", code), lines, counts, 1.0)
    assert executions == pytest.approx([1.0, 1000.0, 1000.0, 1000.0, 1.0], rel=1e-3)


def test_a_function_that_calls_itself_has_no_estimate(read) -> None:
    with pytest.raises(NoEstimateError, match="a function calls itself"):
        estimated(read, RECURSION)


def test_an_estimate_far_below_the_ptx_is_refused(read) -> None:
    """Code of which loads are executed a thousand times less often than the rest of their loop."""
    function, ptx = read(LOOP, "total")
    counts = counted(ptx, 64)
    rare = [code for code in function.instructions if counts.get(code.ptx_line) == 1.0]
    once = [code.ptx_line for code in rare if code.name not in ("STG", "EXIT")]
    with pytest.raises(NoEstimateError, match=r"of [\d,]+ instructions of lines that the code names"):
        block_executions(function, ptx, counts | dict.fromkeys(once, 50_000.0), 1.0)


def test_stores_that_an_estimate_lacks_refuse_it(read) -> None:
    """Code of which a line is executed both once and a thousand times, as if ptxas had removed stores."""
    function, ptx = read(LOOP, "total")
    counts = counted(ptx, 64)
    store = next(i.ptx_line for i in function.instructions if i.name == "STG")
    with pytest.raises(NoEstimateError, match="of 50,000 stores"):
        block_executions(function, ptx, counts | {store: 50_000.0}, 1.0)


def test_code_without_a_line_table_has_no_estimate(read) -> None:
    function, ptx = read(LOOP, "total")
    with pytest.raises(NoEstimateError, match="names no lines"):
        block_executions(function, ptx, {}, warps=0)
    bare = SassFunction(function.name, tuple(_without_line(i) for i in function.instructions), function.blocks)
    with pytest.raises(NoEstimateError, match="names no lines"):
        block_executions(bare, ptx, {1: 1.0}, warps=1)


def _without_line(instruction: SassInstruction) -> SassInstruction:
    return replace(instruction, ptx_line=0)


@pytest.fixture(scope="module")
def ladder() -> ModuleType:
    """The script that compiles and counts the ladder's kernels."""
    return benchmark_script("hardware_ladder")


NAMES = ("copy_1", "silu_exact", "sum_divergent", "transpose_padded_4096", "softmax_online_1024", "sum_columns")
"""A kernel of one block, a division, lanes that part, a loop with a barrier, two loops, one that is unrolled twice."""


@pytest.mark.slow
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
