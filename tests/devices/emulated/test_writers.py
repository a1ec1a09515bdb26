"""Store slices, which name the block that writes each byte, and runs of only the blocks behind some elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.resolved import Buffer, Fill, Launch, Output, ResolvedPlan, ScalarArg, TensorArg
from kernelforge.devices.base import PartResult, RunRequest
from kernelforge.devices.emulated.execute.loaded_module import LoadedModule
from kernelforge.devices.emulated.execute.partial_execution import DENSE_BYTES, _Bits
from kernelforge.devices.emulated.execute.plan_execution import Execution, Kernel
from kernelforge.devices.emulated.ptx.store_slice import NotSliceable, writer_entry
from kernelforge.devices.emulated.report import LaunchReport
from kernelforge.devices.emulated.worker import Runner
from kernelforge.hardware.specs import SPECS
from kernelforge.records import DType
from tests.devices.emulated.harness import Device, cuda
from tests.devices.emulated.nvrtc import compile_ptx

TILE = 32
SOURCE = r"""
#define TS 32
extern "C" __global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TS][TS + 1], bs[TS][TS + 1];
    int x = threadIdx.x % TS, y = threadIdx.x / TS;
    int row = blockIdx.y * TS + y, col = blockIdx.x * TS + x;
    float sum = 0;
    for (int at = 0; at < k; at += TS) {
        as[y][x] = row < m && at + x < k ? a[row * k + at + x] : 0;
        bs[y][x] = col < n && at + y < k ? b[(at + y) * n + col] : 0;
        __syncthreads();
        for (int q = 0; q < TS; q++) sum += as[y][q] * bs[q][x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = sum;
}
extern "C" __global__ void row_sums(const float* c, float* s, int n) {
    float t = 0;
    for (int i = threadIdx.x; i < n; i += 32) t += c[blockIdx.x * n + i];
    for (int o = 16; o; o /= 2) t += __shfl_xor_sync(~0u, t, o);
    if (threadIdx.x == 0) s[blockIdx.x] = t;
}
extern "C" __global__ void add_rows(float* c, const float* s, int n) {
    for (int i = threadIdx.x; i < n; i += 32) c[blockIdx.x * n + i] += s[blockIdx.x];
}
extern "C" __global__ void split(const float* a, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float t = 0;
    for (int k = blockIdx.y; k < n; k += gridDim.y) t += a[k] * (i + 1);
    atomicAdd(c + i, t);
}
extern "C" __global__ void stride(const unsigned short* x, unsigned short* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];
}
extern "C" __global__ void bytes(const unsigned char* x, unsigned char* y) {
    y[blockIdx.x * blockDim.x + threadIdx.x] = x[threadIdx.x];
}
extern "C" __global__ void scatter(const int* index, const float* x, float* y) {
    y[index[blockIdx.x * blockDim.x + threadIdx.x]] = x[0];
}
extern "C" __global__ void counter(int* next, float* y) {
    __shared__ int tile;
    if (threadIdx.x == 0) tile = atomicAdd(next, 1);
    __syncthreads();
    y[tile * blockDim.x + threadIdx.x] = 1;
}
extern "C" __global__ void asserted(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (x[i] > 1e30f) __trap();
    if (i % 3) y[i] = x[i];
}
extern "C" __global__ void looped(const float* x, float4* y, int n) {
    for (int k = 0; k < n; k++) {
        float t = 0;
        while (t < x[k]) t += 1;
        if (k % 2 == 0) y[(blockIdx.x * n + k) * blockDim.x + threadIdx.x] = make_float4(t, t, t, t);
    }
}
extern "C" __global__ void counts(const float* x, float* y, int* next) {
    int before = threadIdx.x ? 0 : atomicAdd(next, 1);
    y[blockIdx.x * 32 + threadIdx.x] = before > 4 ? 0 : x[threadIdx.x];
}
extern "C" __global__ void neighbours(const float* x, float* y) {
    int i = blockIdx.x * 32 + threadIdx.x;
    float left = blockIdx.x ? ((volatile float*)y)[i - 32] : 0;
    y[i] = x[threadIdx.x] + (left == 12345.0f);
}
extern "C" __global__ void own(const float* x, float* y) {
    int i = blockIdx.x * 32 + threadIdx.x;
    y[i] = x[threadIdx.x];
    __syncthreads();
    y[i] = 2 * ((volatile float*)y)[i ^ 1];
}
extern "C" __global__ void squares(const float* a, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] * a[i];
}
extern "C" __global__ void sums_of_rows(const float* c, float* s, int m, int n) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m) return;
    float t = 0;
    for (int j = 0; j < n; j++) t += c[row * n + j];
    s[row] = t;
}
extern "C" __global__ void divided(const float* a, const float* s, float* y, int count, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = a[i] / s[i / n];
}
extern "C" __global__ void backwards(const float* a, float* c, int n) {
    int i = n - 1 - (blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= 0) c[i] = a[i] * a[i];
}
extern "C" __global__ void nothing(const float* x, float* y) { if (x[0] == 5 && threadIdx.x == 99) __trap(); }
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(SOURCE)


def owners(ptx: str, kernel: str, grid: Sequence[int], block: int, out: np.ndarray, *arguments: object) -> np.ndarray:
    """The number of the block that writes each unit of ``out``; -1 for none."""
    device = Device(ptx)
    slices = device.machine.writers(kernel)
    units = np.zeros(out.nbytes // slices.granule, np.uint32)
    for plane in range(slices.planes):
        out[:] = 0
        device.run(grid, block, *arguments, kernel=writer_entry(kernel, plane))
        part = out.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[slices.granule]).astype(np.uint32)
        units |= part << (8 * slices.granule * plane)
    return units.astype(np.int64) - 1


def test_tiles_of_a_product_belong_to_their_blocks(ptx: str) -> None:
    a, b, c = (np.ones((n, m), np.float32) for n, m in ((70, 50), (50, 90), (70, 90)))
    owner = owners(ptx, "gemm", (3, 3), TILE * TILE, c.reshape(-1), a, b, c.reshape(-1), 70, 90, 50).reshape(70, 90)
    rows, columns = np.arange(70)[:, None] // TILE, np.arange(90)[None] // TILE
    assert (owner == rows * 3 + columns).all()


def test_a_slice_leaves_out_what_values_cost(ptx: str) -> None:
    device = Device(ptx)
    a, b, c = np.ones((64, 2048), np.float32), np.ones((2048, 64), np.float32), np.ones((64, 64), np.float32)
    device.machine.writers("gemm")
    complete = device.run((2, 2), TILE * TILE, a, b, c, 64, 64, 2048, kernel="gemm")
    slices = device.run((2, 2), TILE * TILE, a, b, c, 64, 64, 2048, kernel=writer_entry("gemm", 0))
    assert slices.thread_instructions * 100 < complete.thread_instructions


def test_elements_of_two_bytes_and_of_one_tell_their_blocks(ptx: str) -> None:
    halves = np.zeros(200_000, np.uint16)
    owner = owners(ptx, "stride", (700,), 64, halves, halves.copy(), halves, halves.size)
    assert (owner == np.arange(halves.size) // 64 % 700).all()
    single = np.zeros(70_000 * 4, np.uint8)
    assert (owners(ptx, "bytes", (70_000,), 4, single, single.copy(), single) == np.arange(single.size) // 4).all()


def test_an_address_may_be_read_from_memory(ptx: str) -> None:
    index = np.random.default_rng(1).permutation(256).astype(np.int32)
    out = np.zeros(256, np.float32)
    assert (
        owners(ptx, "scatter", (4,), 64, out, index, np.ones(1, np.float32), out)[index] == np.arange(256) // 64
    ).all()
    assert Device(ptx).machine.writers("scatter").loads_through == {0}


def test_asserts_are_taken_as_held_and_loops_of_values_left_out(ptx: str) -> None:
    x, y = np.full(192, 2e30, np.float32), np.zeros(192, np.float32)
    owner = owners(ptx, "asserted", (3,), 64, y, x, y, 192)
    assert (owner == np.where(np.arange(192) % 3, np.arange(192) // 64, -1)).all()
    wide = np.zeros(2 * 4 * 32 * 4, np.float32)
    owner = owners(ptx, "looped", (2,), 32, wide, np.full(4, np.inf, np.float32), wide, 4)
    assert (owner.reshape(2, 4, 128) == np.array([[[0], [-1], [0], [-1]], [[1], [-1], [1], [-1]]])).all()


def test_a_kernel_without_stores_writes_nothing(ptx: str) -> None:
    y = np.zeros(64, np.float32)
    assert (owners(ptx, "nothing", (2,), 32, y, np.full(1, 5, np.float32), y) == -1).all()


def test_an_address_that_was_computed_is_refused(ptx: str) -> None:
    with pytest.raises(NotSliceable, match=r"depends on the result of ld\.shared"):
        Device(ptx).machine.writers("counter")
    returned = cuda('extern "C" __global__ void k(int* n, float* y) { y[atomicAdd(n, 1)] = 1; }')
    with pytest.raises(NotSliceable, match=r"depends on the result of atom"):
        returned.machine.writers("k")


# Runs of some blocks

M, N, K = 96, 160, 64
RNG = np.random.default_rng(7)
A, B = RNG.standard_normal((M, K)).astype(np.float32), RNG.standard_normal((K, N)).astype(np.float32)
PRODUCT = A.astype(np.float64) @ B
FLOAT = DType("float32")
BUFFERS = (
    Buffer(0, "input", A.nbytes, "a", 0),
    Buffer(1, "input", B.nbytes, "b", 1),
    Buffer(2, "workspace", 4 * M * N, "c"),
    Buffer(3, "workspace", 4 * M, "s"),
    Buffer(4, "workspace", A.nbytes, "squares"),
    Buffer(5, "workspace", A.nbytes, "divided"),
)


def step(kernel: str, grid: tuple[int, int, int], block: int, *args: int | str, line: int = 1) -> Launch:
    """A launch; an argument ``"b2"`` is buffer 2, a number is an ``int``."""
    values = tuple(TensorArg(int(a[1:]), 0, FLOAT) if isinstance(a, str) else ScalarArg("i32", a) for a in args)
    return Launch(kernel, grid, (block, 1, 1), 0, values, line)


GEMM = step("gemm", (5, 3, 1), TILE * TILE, "b0", "b1", "b2", M, N, K)
SUMS = step("row_sums", (M, 1, 1), 32, "b2", "b3", N)
ADD = step("add_rows", (M, 1, 1), 32, "b2", "b3", N)
C, S = Output(2, 0, (M, N), FLOAT), Output(3, 0, (M,), FLOAT)


@pytest.fixture(params=[DENSE_BYTES, 1], ids=["all of a buffer", "around the elements"])
def looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.DENSE_BYTES", request.param)


def run_part(
    ptx: str,
    steps: Sequence[Launch | Fill],
    output: Output,
    indices: Sequence[int],
    *,
    nearby: bool = False,
    most: int | None = None,
) -> PartResult:
    names = {s.expression for s in steps if isinstance(s, Launch)}
    runner = Runner(ptx, {name: Kernel(name, 32) for name in names}, SPECS["h100"], memory_bytes=1 << 24)
    plan = ResolvedPlan(BUFFERS, tuple(steps), (output,))
    tensors = {0: A.tobytes(), 1: B.tobytes()}
    request = RunRequest(
        plan, tensors, 0xFF, deadline_s=60.0, memory_bytes=1 << 24, nearby=nearby, max_thread_instructions=most
    )
    return runner.run_part(request, {0: indices})


def values(ran: PartResult) -> tuple[np.ndarray, np.ndarray, int]:
    assert not ran.reason
    assert not ran.faults
    (part,) = ran.parts
    return np.frombuffer(part.elements, np.int64), np.frombuffer(part.data, np.float32), part.unwritten


def test_the_tiles_behind_two_elements_are_run_and_no_others(ptx: str) -> None:
    elements, data, unwritten = values(run_part(ptx, [GEMM], C, [M * N - 1, 3]))
    rows, columns = elements // N, elements % N
    assert len(elements) == 2 * TILE * TILE
    assert set(zip(rows // TILE, columns // TILE, strict=True)) == {(0, 0), (2, 4)}
    np.testing.assert_allclose(data, PRODUCT[rows, columns], atol=1e-4)
    assert unwritten == 0


@pytest.mark.parametrize("kernel", ["squares", "backwards", "asserted"])
def test_blocks_near_the_elements_are_enough_where_they_write_all_there(
    ptx: str, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    looked_at: list[int] = []

    def run_blocks(self: Execution, step: Launch, ctas: Sequence[int] | None, **rest: Any) -> LaunchReport:
        if rest.get("entry"):
            looked_at.append(math.prod(step.grid) if ctas is None else len(ctas))
        return ran(self, step, ctas, **rest)

    ran = Execution.run_blocks
    for name in ("DENSE_BYTES", "NEARBY_DENSE_BYTES"):
        monkeypatch.setattr(f"kernelforge.devices.emulated.execute.partial_execution.{name}", 1)
    monkeypatch.setattr(Execution, "run_blocks", run_blocks)
    launch = step(kernel, (A.size // 32, 1, 1), 32, "b0", "b4", A.size)
    output = Output(4, 0, A.shape, FLOAT)
    near = run_part(ptx, [launch], output, [2000], nearby=True)
    nearby = tuple(looked_at)
    looked_at.clear()
    of_all = run_part(ptx, [launch], output, [2000])
    assert (near.parts, near.reason) == (of_all.parts, "")
    assert (near.parts[0].unwritten > 0) == (kernel == "asserted")
    assert sum(looked_at) == A.size // 32
    assert nearby[0] < A.size // 32 // 4
    assert nearby[1:] == (() if kernel == "squares" else (A.size // 32,))


@pytest.mark.usefixtures("looked_at")
def test_blocks_of_earlier_launches_run_where_later_ones_read(ptx: str) -> None:
    elements, data, _ = values(run_part(ptx, [GEMM, SUMS], S, [40, 95]))
    assert elements.tolist() == [40, 95]
    np.testing.assert_allclose(data, PRODUCT.sum(1)[elements], atol=1e-3)


@pytest.mark.usefixtures("looked_at")
def test_a_launch_that_adds_to_a_result_has_it_first(ptx: str) -> None:
    elements, data, _ = values(run_part(ptx, [GEMM, SUMS, ADD], C, [50 * N + 7]))
    assert set(elements // N) == {50}
    right = PRODUCT[50] + PRODUCT[50].sum()
    np.testing.assert_allclose(data, right[elements % N], atol=1e-3)


def test_of_a_large_buffer_only_what_lies_around_the_elements_is_looked_at(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.DENSE_BYTES", 4 * M * N - 1)
    elements, data, unwritten = values(run_part(ptx, [GEMM], C, [M * N - 1, 3]))
    rows, columns = elements // N, elements % N
    assert set(zip(rows // TILE, columns // TILE, strict=True)) == {(0, 0), (2, 4)}
    assert set(elements // 1024) == {0, (M * N - 1) // 1024}
    np.testing.assert_allclose(data, PRODUCT[rows, columns], atol=1e-4)
    assert unwritten == 0
    short = step("gemm", (5, 2, 1), TILE * TILE, "b0", "b1", "b2", M, N, K)
    assert values(run_part(ptx, [short], C, [5]))[2] == 0
    assert values(run_part(ptx, [short], C, [5, M * N - 1]))[2] == 1024


def test_what_nothing_writes_is_counted(ptx: str) -> None:
    short = step("gemm", (5, 2, 1), TILE * TILE, "b0", "b1", "b2", M, N, K)
    assert values(run_part(ptx, [short], C, [5]))[2] == TILE * N
    elements, data, unwritten = values(run_part(ptx, [Fill(2, 0, 4 * M * N, 1), short], C, [M * N - 1, 5]))
    assert unwritten == 0
    assert data[elements == M * N - 1] == 0


@pytest.mark.usefixtures("looked_at")
def test_all_blocks_that_add_to_an_element_are_run(ptx: str) -> None:
    split = step("split", (M // 32, 4, 1), 32, "b0", "b3", K)
    elements, data, _ = values(run_part(ptx, [Fill(3, 0, 4 * M, 1), split], S, [70]))
    np.testing.assert_allclose(data[elements == 70], A.reshape(-1)[:K].sum() * 71, rtol=1e-4)


@pytest.mark.usefixtures("looked_at")
def test_a_launch_that_cannot_be_split_is_run_whole_or_refused(ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = step("counter", (3, 1, 1), 32, "b2", "b3")
    elements, data, _ = values(run_part(ptx, [Fill(2, 0, 4 * M * N, 1), counted], S, [70]))
    assert (data == 1).all()
    assert 70 in elements
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.RUN_INSTRUCTIONS", 100)
    assert "takes too long to be run whole" in run_part(ptx, [Fill(2, 0, 4 * M * N, 1), counted], S, [70]).reason


@pytest.mark.usefixtures("looked_at")
@pytest.mark.parametrize(
    ("kernel", "reason"), [("counts", "which others ran before"), ("neighbours", "read what other blocks of it write")]
)
def test_a_block_that_can_tell_how_many_others_run_is_not_run_alone(
    ptx: str, monkeypatch: pytest.MonkeyPatch, kernel: str, reason: str
) -> None:
    """Else a kernel could work only where few blocks run."""
    arguments = ("b0", "b2", "b3") if kernel == "counts" else ("b0", "b2")
    steps = [Fill(3, 0, 4 * M, 1), step(kernel, (M * N // 32, 1, 1), 32, *arguments)]
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.RUN_INSTRUCTIONS", 5000)
    assert reason in run_part(ptx, steps, C, [70, M * N - 1]).reason


def test_what_a_block_reads_is_seen_however_much_it_is(ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it reads of earlier launches would not all be there."""
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution._TRACE_BYTES", 2048)
    elements, data, _ = values(run_part(ptx, [GEMM, SUMS], S, [40, 95]))
    assert elements.tolist() == [40, 95]
    np.testing.assert_allclose(data, PRODUCT.sum(1)[elements], atol=1e-3)


@pytest.mark.usefixtures("looked_at")
def test_a_block_may_read_what_it_wrote_itself(ptx: str) -> None:
    elements, data, _ = values(run_part(ptx, [step("own", (M * N // 32, 1, 1), 32, "b0", "b2")], C, [70, M * N - 1]))
    assert len(elements) == 64
    np.testing.assert_array_equal(data, 2 * A.reshape(-1)[elements % 32 ^ 1])


PARTIAL = "kernelforge.devices.emulated.execute.partial_execution"
ROWS = (
    step("squares", (M * K // 48, 1, 1), 48, "b0", "b4", M * K),
    step("sums_of_rows", (1, 1, 1), 100, "b4", "b3", M, K),
    step("divided", (M * K // 32, 1, 1), 32, "b0", "b3", "b5", M * K, K),
)
DIVIDED = Output(5, 0, (M, K), FLOAT)


@pytest.mark.slow
@pytest.mark.usefixtures("looked_at")
def test_of_threads_that_do_nothing_together_those_behind_the_elements_run(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one element of a batch norm, whose channels are threads of one block, would need all of its input; and if a
    sum were needed with the others of its sector, eight times as much."""
    executed: list[int] = []
    launch = LoadedModule.launch

    def counted(machine: LoadedModule, entry: str, *arguments: Any, **options: Any) -> LaunchReport:
        report = launch(machine, entry, *arguments, **options)
        executed[-1] += 0 if "writers" in entry else report.thread_instructions
        return report

    monkeypatch.setattr(LoadedModule, "launch", counted)
    executed.append(0)
    alone = run_part(ptx, ROWS, DIVIDED, [5, 40 * K + 3, M * K - 1])
    elements, data, unwritten = values(alone)
    right = (A / (A.astype(np.float64) ** 2).sum(1, keepdims=True)).reshape(-1)
    np.testing.assert_allclose(data, right[elements], rtol=1e-4)
    assert set(elements // K) == {0, 40, M - 1}
    assert unwritten == 0
    monkeypatch.setattr(f"{PARTIAL}.PartialRun._has_single_threads", lambda *arguments: False)
    executed.append(0)
    complete = run_part(ptx, ROWS, DIVIDED, [5, 40 * K + 3, M * K - 1])
    assert [(p.elements, p.data) for p in complete.parts] == [(p.elements, p.data) for p in alone.parts]
    assert 12 * executed[0] < executed[1]


@pytest.mark.slow
def test_single_threads_write_an_output_where_the_blocks_behind_an_element_take_too_long(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block has a thread for each of 96 rows: all of the input, for one sum."""
    sums = Output(3, 0, (M,), FLOAT)
    steps = (
        step("squares", (M * K // 48, 1, 1), 48, "b0", "b4", M * K),
        step("sums_of_rows", (1, 1, 1), 128, "b4", "b3", M, K),
    )
    every, *_ = values(run_part(ptx, steps, sums, [5, 41, M - 1]))
    assert every.tolist() == list(range(M))
    monkeypatch.setattr(f"{PARTIAL}.RUN_INSTRUCTIONS", 100_000)
    elements, data, unwritten = values(run_part(ptx, steps, sums, [5, 41, M - 1]))
    # With the others of their sectors, of eight words each.
    assert elements.tolist() == [*range(8), *range(40, 48), *range(M - 8, M)]
    np.testing.assert_allclose(data, (A.astype(np.float64) ** 2).sum(1)[elements], rtol=1e-5)
    assert unwritten == 0
    monkeypatch.setattr(f"{PARTIAL}.RUN_INSTRUCTIONS", 1_000)
    assert "the blocks behind one element" in run_part(ptx, steps, sums, [5]).reason


@pytest.mark.slow
def test_blocks_that_fewer_elements_need_too_are_tried_once(ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a batch norm: every element needs all blocks of the product."""
    steps = [GEMM, step("sums_of_rows", (1, 1, 1), 32, "b2", "b3", 1, M * N)]
    first = Output(3, 0, (1,), FLOAT)
    tried_and_run = run_part(ptx, steps, first, [0])
    assert values(tried_and_run)[1] == pytest.approx(PRODUCT.sum(), rel=1e-4)
    monkeypatch.setattr(f"{PARTIAL}.RUN_INSTRUCTIONS", tried_and_run.thread_instructions // 2 - 100_000)
    tried = run_part(ptx, steps, first, [0])
    assert "the blocks behind one element" in tried.reason
    assert tried.thread_instructions < tried_and_run.thread_instructions


def test_blocks_that_take_more_than_the_run_may_are_told(ptx: str) -> None:
    ran = run_part(ptx, [GEMM, SUMS], S, [0, 50], most=100_000)
    assert ran.reason == "to try its blocks takes over 1e+05 thread instructions"


def test_a_search_for_writers_over_its_budget_says_so(ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PARTIAL}.MAP_INSTRUCTIONS", 1_000)
    reason = run_part(ptx, [GEMM], C, [3]).reason
    assert reason == "finding out which blocks write what takes over 1e+03 thread instructions"


@pytest.mark.usefixtures("looked_at")
def test_an_element_that_no_thread_writes_is_seen_where_single_threads_run(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PARTIAL}.RUN_INSTRUCTIONS", 60_000)
    sums = Output(3, 0, (M,), FLOAT)
    steps = [
        step("squares", (M * K // 48, 1, 1), 48, "b0", "b4", M * K),
        step("sums_of_rows", (1, 1, 1), 128, "b4", "b3", M - 30, K),
    ]
    elements, _, unwritten = values(run_part(ptx, steps, sums, [5, M - 1]))
    assert elements.tolist() == list(range(8))
    assert unwritten == 30


def test_threads_that_can_tell_what_others_do_are_not_run_alone(ptx: str) -> None:
    writers = Device(ptx).machine.writers
    assert writers("sums_of_rows").alone
    assert not any(writers(name).alone for name in ("gemm", "row_sums", "own", "split", "counts"))
    tells = cuda('extern "C" __global__ void k(int* y) { y[threadIdx.x] = __activemask(); }')
    assert not tells.machine.writers("k").alone


def test_a_thread_is_named_where_one_is_asked_for(ptx: str) -> None:
    device, halves = Device(ptx), np.zeros(1000, np.uint16)
    numbers = np.zeros(1000, np.uint32)
    for plane in range(device.machine.writers("stride", threads=True).planes):
        device.run((7,), 40, halves.copy(), halves, 1000, kernel=writer_entry("stride", plane, threads=True))
        numbers |= halves.astype(np.uint32) << 16 * plane
    assert (numbers == np.arange(1000) % 280 + 1).all()


@pytest.mark.slow
def test_large_sets_take_memory_where_they_have_numbers() -> None:
    numbers = np.unique(np.random.default_rng(3).integers(0, 1 << 31, 3000))
    bits = _Bits(1 << 31)
    bits.add(numbers[::2])
    bits.add(numbers[1000:])
    kept = np.union1d(numbers[::2], numbers[1000:])
    assert np.array_equal(np.concatenate(list(bits.pieces())), kept)
    assert np.array_equal(bits.windows(), np.unique(kept // 1024))
    assert not any(_Bits(5).pieces())


def test_fewer_elements_are_had_where_the_host_could_not_hold_what_they_need(
    ptx: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of earlier launches are looked at in the host's memory, which killed the device's process."""
    monkeypatch.setattr(f"{PARTIAL}.DENSE_BYTES", 1)
    monkeypatch.setattr(f"{PARTIAL}.MOST_BYTES", 40_000)
    elements, data, _ = values(run_part(ptx, [GEMM, SUMS], S, list(range(0, M, 9))))
    assert 0 < len(elements) < len(range(0, M, 9))
    np.testing.assert_allclose(data, PRODUCT.sum(1)[elements], atol=1e-3)
    monkeypatch.setattr(f"{PARTIAL}.MOST_BYTES", 4096)
    assert "which this machine would have to hold" in run_part(ptx, [GEMM, SUMS], S, [0, 50]).reason


@pytest.mark.slow
@pytest.mark.usefixtures("looked_at")
def test_fewer_elements_are_had_where_they_are_dear(ptx: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elements, _, _ = values(run_part(ptx, [GEMM], C, [0]))
    smallest = len(elements)
    cost = run_part(ptx, [GEMM], C, [0]).thread_instructions
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.RUN_INSTRUCTIONS", cost)
    elements, _, _ = values(run_part(ptx, [GEMM], C, list(range(0, M * N, 97))))
    assert smallest <= len(elements) < 15 * smallest
    monkeypatch.setattr("kernelforge.devices.emulated.execute.partial_execution.RUN_INSTRUCTIONS", 10)
    assert "one element of the output" in run_part(ptx, [GEMM], C, [0]).reason
