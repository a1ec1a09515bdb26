"""Work that machine code tells of: pipes, widths of accesses, atomics, the schedule of a warp, lines of the source."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelforge.compile import Artifact, Compiler
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.profiling.counts import KernelCounts, PlanCounts
from kernelforge.profiling.sass import MachineWork, machine_work, plan_work, source_lines
from kernelforge.profiling.sass_code import SassFunction
from kernelforge.profiling.sass_schedule import Latencies, Schedule

BLOCKS, THREADS = 10, 64
WARPS = BLOCKS * THREADS // 32
STREAM = """
__global__ void stream(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = x[i], b = x[i + 640], c = x[i + 1280], d = x[i + 1920];
    y[i] = a * b + c * d;
}
"""
CHAIN = """
__global__ void chain(const int* x, int* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[x[x[i]]];
}
"""
TILE = """
__global__ void tile(const float* x, float* y) {
    __shared__ float rows[256];
    for (int k = threadIdx.x; k < 256; k += 64) rows[k] = x[k];
    __syncthreads();
    int at = threadIdx.x * 4;
    y[threadIdx.x] = rows[at] + rows[at + 1] * 2.0f + rows[at + 2] * 3.0f + rows[at + 3] * 4.0f;
}
"""
FEW = """
__global__ void few(const float* x, float* y, int n) {
    if (threadIdx.x >= 32) return;
    float sum = 0.0f;
    for (int k = 0; k < n; ++k) sum = fmaf(sum, x[k], x[k + 1]);
    y[threadIdx.x] = sum;
}
"""


NO_LATENCY = Latencies(memory=0.0, shared=0.0, special=0.0, constant=0.0)
Read = Callable[[str, str], tuple[SassFunction, str]]


@pytest.fixture(scope="module")
def read(compiler: Compiler) -> Read:
    def code(source: str, kernel: str) -> tuple[SassFunction, str]:
        built = compiler.build(source, [kernel])
        assert isinstance(built, Artifact)
        (symbol,) = (fact.symbol for fact in built.build.kernels)
        function = read_machine_code(built.cubin).function(symbol)
        assert function is not None
        return function, built.ptx.decode()

    return code


def work_of(read: Read, source: str, kernel: str) -> MachineWork:
    """The work of a kernel that executes each line of its PTX once per warp."""
    function, ptx = read(source, kernel)
    counts = KernelCounts(kernel, (BLOCKS, 1, 1), (THREADS, 1, 1), 0, 0, launches=1, blocks=BLOCKS, blocks_run=BLOCKS)
    counts.ptx_lines = dict.fromkeys(range(1, ptx.count("\n") + 1), float(WARPS))
    return machine_work(function, ptx, counts)


@pytest.mark.slow
def test_opcodes_and_pipes_add_up(read: Read) -> None:
    work = work_of(read, STREAM, "stream")
    assert work.opcodes["LDG"] == pytest.approx(4 * WARPS, rel=1e-3)
    assert work.opcodes["EXIT"] == pytest.approx(WARPS, rel=1e-3)
    assert sum(work.pipes.values()) == pytest.approx(work.instructions)
    assert sum(work.opcodes.values()) == pytest.approx(work.instructions)
    assert work.pipes["lsu"] == pytest.approx(6 * WARPS, rel=1e-3)  # with threadIdx.x
    assert work.exchanges == pytest.approx(WARPS, rel=1e-3)  # threadIdx.x
    assert work.schedule.chain(NO_LATENCY).issue >= work.instructions / WARPS * 0.999


def test_instructions_are_found_by_line_of_the_source(read: Read) -> None:
    work = work_of(read, STREAM, "stream")
    line = next(number for number, text in enumerate(STREAM.split("\n"), 1) if "float a" in text)
    assert work.lines[line].instructions >= 4 * WARPS * 0.999
    assert sum(line.instructions for line in work.lines.values()) == pytest.approx(work.instructions)


def test_a_kernel_whose_estimate_contradicts_the_ptx_has_none_and_a_note_says_why(compiler: Compiler) -> None:
    built = compiler.build(STREAM, ["stream"])
    assert isinstance(built, Artifact)
    counts = KernelCounts("stream", (BLOCKS, 1, 1), (THREADS, 1, 1), 0, 0, launches=1, blocks=BLOCKS, blocks_run=BLOCKS)
    code, ptx = read_machine_code(built.cubin), built.ptx.decode()
    symbols = {fact.expression: fact.symbol for fact in built.build.kernels}
    counts.ptx_lines = dict.fromkeys(range(1, ptx.count("\n") + 1), float(WARPS))
    assert plan_work(code, symbols, ptx, PlanCounts([counts], 0, 0)).kernel(counts) is not None
    store = next(number for number, text in enumerate(ptx.split("\n"), 1) if "st.global" in text)
    counts.ptx_lines[store] = 100.0 * WARPS
    work = plan_work(code, symbols, ptx, PlanCounts([counts], 0, 0))
    assert work.kernel(counts) is None
    (note,) = work.notes
    assert note.startswith("no machine code of stream is estimated, its time comes from the PTX: of 2,000 stores")


def test_lines_of_headers_belong_to_none() -> None:
    ptx = ['.file 1 "candidate.cu"', '.file 2 "cuda_fp16.hpp"', ".loc 1 7 3", "add;", ".loc 2 9 1", "mul;"]
    assert source_lines(ptx) == {4: 7}


def test_independent_loads_are_waited_for_once_and_dependent_ones_one_by_one(read: Read) -> None:
    latencies = NO_LATENCY._replace(memory=1000.0)
    together = work_of(read, STREAM, "stream").schedule.chain(latencies)
    assert 950 < together.memory <= 1000
    apart = work_of(read, STREAM, "stream").schedule.chain(latencies._replace(memory_interval=30.0))
    assert apart.memory == pytest.approx(together.memory + 3 * 30, abs=20)
    alone = work_of(read, CHAIN, "chain").schedule.chain(latencies)
    assert 2950 < alone.memory <= 3000
    assert alone.issue == work_of(read, CHAIN, "chain").schedule.chain(NO_LATENCY).issue


def test_loads_that_ptxas_joins_are_as_wide_as_the_machine_makes_them(read: Read) -> None:
    _, ptx = read(TILE, "tile")
    assert ptx.count("ld.shared.f32") == 4
    work = work_of(read, TILE, "tile")
    (load,) = (access for access in work.shared if access.opcode.startswith("LDS"))
    assert load.bytes_per_thread == 16


def test_warps_that_leave_early_do_not_shorten_the_time_of_those_that_stay(read: Read) -> None:
    function, _ = read(FEW, "few")
    (ends,) = (
        block.successors[0]
        for block in function.blocks
        if function.instructions_of(block)[-1].name == "EXIT" and block.successors
    )
    executions = [float(WARPS)] + [WARPS / 8] * (len(function.blocks) - 1)
    assert function.blocks[ends].first > 0
    chains = Schedule.of(function, executions, WARPS), Schedule.of(function, [float(WARPS)] * len(executions), WARPS)
    few, all_stay = (schedule.chain(NO_LATENCY, last=True).issue for schedule in chains)
    assert few == pytest.approx(all_stay)
    assert chains[0].chain(NO_LATENCY).issue < 0.5 * few
    assert chains[1].chain(NO_LATENCY) == chains[1].chain(NO_LATENCY, last=True)
