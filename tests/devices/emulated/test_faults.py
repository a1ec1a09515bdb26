"""Every seeded bug is found, at its place; nothing else is reported."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kernelforge.devices.emulated.errors import UnsupportedInstruction
from kernelforge.sandbox.policy import Deadline
from tests.devices.emulated.harness import cuda


def line_of(source: str, mark: str) -> int:
    return next(n for n, text in enumerate(source.splitlines(), 1) if mark in text)


GUARDLESS = """extern "C" __global__ void k(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float v = ((const volatile float*)x)[i];  // read
  if (i < n) y[i] = v;
}"""


def test_out_of_bounds_read_names_line_thread_and_buffer() -> None:
    x, y = np.ones(100, np.float32), np.zeros(128, np.float32)
    report = cuda(GUARDLESS).run(1, 128, x, y, 100, clean=False)
    assert report.fault_count == 28
    fault = report.faults[0]
    assert (fault.kind, fault.space, fault.access, fault.bytes) == ("out_of_bounds", "global", "load", 4)
    assert fault.source_line == line_of(GUARDLESS, "// read")
    assert fault.source_file.endswith("kernel.cu")
    assert (fault.block, fault.thread) == ((0, 0, 0), (100, 0, 0))
    assert fault.nearest == "0 bytes after the end of 'arg0' (400 bytes)"
    assert "arg0" in str(fault)
    assert "kernel.cu" in str(fault)
    assert np.array_equal(y[:100], x)


def test_out_of_bounds_write_is_suppressed_and_located() -> None:
    source = 'extern "C" __global__ void k(float* y, int n) {\n  y[(int)(blockIdx.x * 64 + threadIdx.x) - 1] = 1.0f;\n}'
    y = np.zeros(128, np.float32)
    report = cuda(source).run(2, 64, y, 0, clean=False)
    assert report.fault_count == 1
    fault = report.faults[0]
    assert (fault.kind, fault.access, fault.source_line) == ("out_of_bounds", "store", 2)
    assert fault.nearest == "4 bytes before 'arg0' (512 bytes)"
    assert y.tolist() == [1.0] * 127 + [0.0]


def test_shared_out_of_bounds() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float s[64];
  s[threadIdx.x * 2] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}"""
    report = cuda(source).run((1, 1, 1), (64, 1, 1), np.zeros(64, np.float32), clean=False)
    assert report.fault_count == 32
    fault = report.faults[0]
    assert (fault.kind, fault.space, fault.source_line, fault.thread, fault.address) == (
        "out_of_bounds",
        "shared",
        3,
        (32, 0, 0),
        256,
    )


SEEDED = [
    pytest.param(
        """(float4* y) {
  y[threadIdx.x] = *(const float4*)((const float*)y + threadIdx.x * 4 + 1);
}""", 32, 32, ("misaligned", "load", 16, 2), id="misaligned vector access",
    ),
    pytest.param(
        """(int* y) {
  counter[1] = 9;
  y[0] = counter[1];
}""", 1, 1, ("module_global_write", "store", 4, 2), id="write to a module variable",
    ),
    pytest.param(
        """(int* y) {
  y[threadIdx.x] = atomicAdd(&counter[0], 1);
}""", 4, 4, ("module_global_write", "atomic", 4, 2), id="atomic on a module variable",
    ),
    pytest.param(
        """(volatile int* y) {
  __syncthreads();
  if (threadIdx.x < 32) {
    while (y[0] == 0) { }
  }
  __syncthreads();
}""", 64, 1, ("timeout", "", 0, 4), id="endless loop",
    ),
    pytest.param(
        """(int* y) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else __syncthreads();
  y[threadIdx.x] = 1;
}""", 64, 1, ("barrier_deadlock", "", 0, 2), id="barriers of different numbers",
    ),
    pytest.param(
        """(int* y) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
  y[threadIdx.x] = 1;
}""", 64, 1, ("barrier_deadlock", "", 0, 2), id="a named barrier that never fills",
    ),
    pytest.param(
        """(int* y) {
  int v = threadIdx.x;
  if (threadIdx.x < 16) { v = __shfl_xor_sync(0xffffffffu, v, 1); y[v] = 5; } else { y[threadIdx.x] = 7; }
}""", 32, 1, ("divergent_sync", "", 0, 3), id="a shuffle that waits for absent lanes",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("source", "threads", "count", "expected"), SEEDED)
def test_a_seeded_bug_is_found_at_its_line(
    source: str, threads: int, count: int, expected: tuple[str, str, int, int]
) -> None:
    kernel = f'__device__ int counter[4] = {{1, 2, 3, 4}}; extern "C" __global__ void k{source}'
    y = np.zeros(1024, np.int32)
    report = cuda(kernel).run(1, threads, y, clean=False, max_warp_work=200_000)
    assert {(f.kind, f.access, f.bytes, f.source_line) for f in report.faults} == {expected}
    assert report.fault_count == count


def test_generic_pointer_out_of_bounds() -> None:
    source = """extern "C" __global__ void k(float* y, int pick, int at) {
  __shared__ float s[32];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  volatile float* p = pick ? (volatile float*)s : (volatile float*)y;
  float v = p[threadIdx.x + at];
  y[threadIdx.x] = v;
}"""
    device = cuda(source)
    y = np.zeros(32, np.float32)
    device.run(1, 32, y, 1, 0)
    assert np.array_equal(y, np.arange(32))
    report = device.run(1, 32, y, 1, 8, clean=False)
    assert {(f.kind, f.space, f.source_line) for f in report.faults} == {("out_of_bounds", "shared", 6)}
    report = device.run(1, 32, y, 0, 8, clean=False)
    assert {(f.kind, f.space, f.source_line) for f in report.faults} == {("out_of_bounds", "global", 6)}


def test_read_only_buffers_fault_on_write() -> None:
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] = 2.0f; }'
    x = np.ones(32, np.float32)
    report = cuda(source).run(1, 32, x, read_only=(0,), clean=False)
    assert report.faults[0].kind == "read_only_write"
    assert np.array_equal(x, np.ones(32))


def test_wall_clock_deadline_ends_a_loop() -> None:
    source = 'extern "C" __global__ void k(volatile int* flag) { while (flag[0] == 0) { } }'
    report = cuda(source).run(4, 32, np.zeros(1, np.int32), clean=False, deadline=Deadline(0.2))
    assert report.faults[0].kind == "timeout"


def test_a_launch_with_a_deadline_leaves_no_thread() -> None:
    """Else many short launches have more than the jail allows, and the emulator fails on a correct candidate."""
    before = threading.active_count()
    for _ in range(20):
        cuda('extern "C" __global__ void k(int* y) { y[0] = 1; }').run(
            1, 1, np.zeros(1, np.int32), deadline=Deadline(9)
        )
        assert threading.active_count() == before


def test_warps_meet_at_a_barrier_wherever_they_are_in_the_code() -> None:
    """Hardware counts arrivals by the barrier's number; warps that have ended are not waited for."""
    source = """extern "C" __global__ void k(int* y) {
  __shared__ int s[64];
  s[threadIdx.x] = threadIdx.x;
  if (threadIdx.x < 32) { __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x]; __syncthreads(); }
  else { __syncthreads(); y[threadIdx.x] = s[63 - threadIdx.x]; }
}"""
    y = np.zeros(64, np.int32)
    cuda(source).run(1, 64, y, racecheck=True)
    assert np.array_equal(y, 63 - np.arange(64))


def test_barrier_inside_a_divergent_branch() -> None:
    source = """extern "C" __global__ void k(int* y) {
  if (threadIdx.x & 1) {
    y[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = 2;
  } else {
    y[threadIdx.x] = 3;
    __syncthreads();
    y[threadIdx.x] = 4;
  }
}"""
    report = cuda(source).run(1, 32, np.zeros(32, np.int32), clean=False)
    assert report.faults[0].kind == "divergent_barrier"
    assert report.faults[0].source_line in (4, 8)


def test_missing_barriers_are_races() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float s[128];
  s[threadIdx.x] = threadIdx.x;
  BARRIER
  y[threadIdx.x] = s[127 - threadIdx.x];
}"""
    y = np.zeros(128, np.float32)
    report = cuda(source.replace("BARRIER", "")).run(1, 128, y, clean=False, racecheck=True)
    assert {f.kind for f in report.faults} == {"shared_race"}
    assert {f.source_line for f in report.faults} == {3, 5}  # a write after another warp's read, and the reverse
    cuda(source.replace("BARRIER", "__syncthreads();")).run(1, 128, y, racecheck=True)
    assert np.array_equal(y, 127 - np.arange(128))


NEIGHBOURS = """extern "C" __global__ void k(TYPE* y, int shift) {
  __shared__ __align__(16) TYPE s[4];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (lane == 0) s[(warp + shift * warp) & 3] = (TYPE)(warp + 1);  // write
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = s[threadIdx.x];
  __syncthreads();
  if (lane == 0) *(TYPE*)((char*)s + sizeof(TYPE) * warp) += (TYPE)1;
  __syncthreads();
  if (threadIdx.x < sizeof(s) / 4) ((int*)s)[threadIdx.x] ^= 0;
}"""


@pytest.mark.parametrize(("kind", "dtype"), [("unsigned char", np.uint8), ("unsigned short", np.uint16)])
def test_neighbouring_bytes_of_a_word_may_be_written_by_different_warps(kind: str, dtype: type) -> None:
    y = np.zeros(4, dtype)
    device = cuda(NEIGHBOURS.replace("TYPE", kind))
    device.run(1, 128, y, 0, racecheck=True)
    assert y.tolist() == [1, 2, 3, 4]
    report = device.run(1, 128, y, 1, clean=False, racecheck=True)  # warps 0 and 2, and 1 and 3, write one element
    assert {(f.kind, f.source_line) for f in report.faults} == {("shared_race", 4)}


@pytest.mark.slow
def test_a_byte_of_a_word_that_another_warp_wrote_or_reads_is_a_race() -> None:
    source = """extern "C" __global__ void k(int* y, int part) {
  __shared__ union { int words[32]; unsigned char bytes[128]; } s;
  int lane = threadIdx.x & 31;
  if (threadIdx.x < 32) FIRST;
  else SECOND;
  __syncthreads();
  y[lane] = s.words[lane];
}"""
    write, half = "s.words[lane] = lane", "s.bytes[4 * lane + 2] = 1"
    read, byte = "y[lane] = s.words[lane]", "y[32 + lane] = s.bytes[4 * lane + 3]"
    for first, second, races in (
        (write, half, True), (half, write, True), (read, half, True), (half, read, True), (write, byte, True),
        (half, byte, False), (byte, half, False), (byte, read, False),
    ):  # fmt: skip
        kernel = cuda(source.replace("FIRST", first).replace("SECOND", second))
        report = kernel.run(1, 64, np.zeros(64, np.int32), 0, clean=False, racecheck=True)
        assert {f.kind for f in report.faults} == ({"shared_race"} if races else set()), (first, second)


REPEATED = """extern "C" __global__ void k(TYPE* y, int other, int again) {
  __shared__ __align__(16) TYPE s[64];
  int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  s[lane] = make(lane + (warp == other ? 1 : 0));
  if (warp == 1 && again == 1) y[lane] = s[lane ^ 1];
  if (warp == 1 && again == 2) s[lane] = make(99);
  if (warp == 1 && again == 3) atomicAdd((int*)&s[lane], 0);
  __syncthreads();
  y[lane] = s[lane];
}"""


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("int", "(x)"),
        ("unsigned char", "((unsigned char)(x))"),
        ("double", "((double)(x))"),
        ("int4", "make_int4(x, 1, 2, 3)"),
    ],
)
def test_stores_of_one_value_by_several_warps_are_no_race(kind: str, make: str) -> None:
    device = cuda(f"#define make(x) {make}\n" + REPEATED.replace("TYPE", kind))
    y = np.zeros(64 * 16, np.uint8)
    device.run(1, 128, y, -1, 0, racecheck=True)  # every warp stores the same
    racing = [
        (3, 0, 4),  # warp 3 stores another value than the three before it
        (-1, 1, 5),  # warp 1 reads what warps 0 and 1 have stored
        (-1, 2, 6),  # warp 1 stores another value behind what warp 0 may store later
    ]
    for other, second, line in racing if kind == "unsigned char" else [*racing, (-1, 3, 7)]:
        report = device.run(1, 128, y, other, second, clean=False, racecheck=True)
        assert line in {f.source_line - 1 for f in report.faults}, (other, second)  # one line for `make`
        assert {f.kind for f in report.faults} == {"shared_race"}


SUM = "v = fmaf(v, w, __shfl_xor_sync(~0u, v * w, 16)); for (int m = 8; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);"


@pytest.mark.parametrize(
    ("value", "races"),
    [
        (f"{SUM} s[0] = v;", False),  # both warps sum the same, rounded in each lane's own order
        (f"v += warp; {SUM} s[0] = v;", True),
        (f"{SUM.replace('m = 8', 'm = 4')} s[0] = v;", True),  # halves of a warp have other sums
        ("s[0] = lane;", True),  # which lane wins is not defined
        ("s[0] = 1; s[0] = lane == 31 ? 1 : lane;", True),
    ],
)
def test_of_lanes_that_store_one_sum_at_once_the_value_that_wins_is_compared(value: str, races: bool) -> None:
    source = f"""
extern "C" __global__ void k(float* y) {{
  __shared__ volatile float s[1];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float v = y[lane], w = y[lane + 32];
  {value}
  __syncthreads();
  y[threadIdx.x] = s[0];
}}"""
    y = np.random.default_rng(5).standard_normal(64).astype(np.float32)
    report = cuda(source).run(1, 64, y, clean=False, racecheck=True)
    assert bool(report.faults) is races


def test_device_assert_and_trap() -> None:
    source = """
extern "C" __global__ void k(int* y, int n) {
  if (threadIdx.x >= n) __assertfail("t < n", "kernel.cu", 3, "k", 1);
  y[threadIdx.x] = 1;
  if (n == 7) __trap();
}"""
    device = cuda(source)
    device.run(1, 32, np.zeros(32, np.int32), 32)
    report = device.run(1, 32, np.zeros(32, np.int32), 5, clean=False)
    assert [(f.kind, f.source_line, f.thread[0]) for f in report.faults] == [("assert", 3, 5)]
    report = device.run(1, 7, np.zeros(32, np.int32), 7, clean=False)
    assert [f.kind for f in report.faults] == ["trap"]


def test_at_most_64_faults_are_kept_and_all_are_counted() -> None:
    lines = "\n".join(f"  y[n + {k} * 1000 + (int)threadIdx.x] = {k};" for k in range(20))
    source = f'extern "C" __global__ void k(int* y, int n) {{\n{lines}\n}}'
    report = cuda(source).run(4, 32, np.zeros(32, np.int32), 1 << 20, clean=False)
    assert report.fault_count == 20 * 32 * 4
    assert len(report.faults) == 64


def test_unsupported_instruction_is_refused_when_its_kernel_is_built() -> None:
    source = """extern "C" __global__ void good(int* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void bad(int* y) {
  asm volatile("{.reg .pred p; isspacep.const p, %0;}" :: "l"(y));
  y[threadIdx.x] = 1;
}"""
    device = cuda(source)
    y = np.zeros(32, np.int32)
    device.run(1, 32, y, kernel="good")
    with pytest.raises(UnsupportedInstruction, match="isspacep") as error:
        device.run(1, 32, y, kernel="bad")
    assert error.value.source_line == 3
    assert error.value.ptx_line > 0


@pytest.mark.parametrize(
    "statement",
    [
        "multimem.red.relaxed.sys.global.add.u32 [%1], 1;",
        "multimem.st.weak.global.v4.f32 [%1], {f, f, f, f};",
        "multimem.ld_reduce.weak.global.add.acc::f32.v2.bf16x2 {%0, r}, [%1];",
    ],
)
def test_memory_of_several_gpus_is_a_fault_where_a_thread_reaches_for_it(statement: str) -> None:
    source = f"""extern "C" __global__ void k(int* y, int several) {{
  int r = 1;
  if (several) {{
    asm volatile("{{.reg .f32 f; .reg .b32 r; mov.f32 f, 0f00000000; {statement}}}" : "+r"(r) : "l"(y));
  }}
  y[threadIdx.x] = r;
}}"""
    device = cuda(source)
    y = np.zeros(32, np.int32)
    device.run(1, 32, y, 0)
    assert (y == 1).all()
    (fault, *_) = device.run(1, 32, y, 1, clean=False).faults
    assert (fault.kind, fault.source_line) == ("no_multicast_object", 4)


@pytest.mark.parametrize("kind", ["int", "unsigned", "long long", "short"])
@pytest.mark.parametrize("operator", ["/", "%"])
def test_integer_division_by_zero_is_found_where_a_lane_does_it(kind: str, operator: str) -> None:
    source = f"""extern "C" __global__ void k(const {kind}* x, const {kind}* y, {kind}* z, int careful) {{
  int t = threadIdx.x;
  if (!careful || y[t] != 0) z[t] = x[t] {operator} y[t];
}}"""
    dtype = {"int": np.int32, "unsigned": np.uint32, "long long": np.int64, "short": np.int16}[kind]
    x, y, z = np.arange(32).astype(dtype), (np.arange(32) % 5).astype(dtype), np.full(32, 77, dtype)
    device = cuda(source)
    device.run(1, 32, x, y, z, 1)
    divisors = np.where(y, y, 1)
    assert np.array_equal(z, np.where(y, x // divisors if operator == "/" else x % divisors, 77))
    report = device.run(1, 32, x, y, z, 0, clean=False)
    line = 0 if kind == "long long" else 3  # the compiler splits this one in two and forgets where it was
    assert [(f.kind, f.source_line, f.thread[0]) for f in report.faults] == [("division_by_zero", line, 0)]


def test_a_divisor_that_all_lanes_share_is_checked_as_well() -> None:
    source = """extern "C" __global__ void k(int* z, int n) { z[threadIdx.x] = threadIdx.x + 100 / n; }"""
    z = np.zeros(32, np.int32)
    device = cuda(source)
    device.run(1, 32, z, 7)
    assert np.array_equal(z, np.arange(32) + 14)
    assert [f.kind for f in device.run(1, 32, z, 0, clean=False).faults] == ["division_by_zero"]
