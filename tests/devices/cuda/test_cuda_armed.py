"""Armed plans: what a sample is, what is read from it, and that cheats show. Times are the software driver's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kernelforge.compile import Compiler
from kernelforge.compile.cubin import read_cubin
from kernelforge.devices.base import RunFailed
from kernelforge.devices.cuda.worker.module_globals import unwritten_variables
from kernelforge.sandbox import select_tier
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, ADD_PLAN, build, floats, randoms, request, resolve
from tests.devices.cuda.software import (
    BYTES_PER_US,
    INSTRUCTIONS_PER_US,
    LAUNCH_US,
    OPERATOR_US,
    DeviceOf,
    SoftwareDevice,
)

pytestmark = pytest.mark.skipif(select_tier().tier == "none", reason="no jail tier works on this machine")


@pytest.fixture(scope="module")
def graphless(device_of: DeviceOf) -> Iterator[SoftwareDevice]:
    with device_of("create_without_graphs") as made:
        yield made


@pytest.mark.slow
def test_a_sample_runs_every_set_once(compiler: Compiler, device: SoftwareDevice) -> None:
    pairs = [(randoms(1000, seed=2 * k), randoms(1000, seed=2 * k + 1)) for k in range(3)]
    plan = resolve(ADD_PLAN, pairs[0])
    with device.open(build(compiler, ADD, plan)) as session:
        times = []
        for sets in (1, 3):
            with session.arm([request(plan, *pair) for pair in pairs[:sets]]) as armed:
                assert armed.captured
                assert armed.setup_us is None
                block = armed.block(4)
                assert len(set(block)) == 1
                times.append(block[0])
                assert armed.flush_block(2) == (0.0, 0.0)
                assert armed.coverage() == 1.0
                for outputs, (a, b) in zip(armed.outputs(), pairs, strict=False):
                    np.testing.assert_array_equal(floats(outputs[0]), a + b)
    assert times[1] == pytest.approx(3 * times[0])


@pytest.mark.slow
def test_the_flush_is_part_of_a_sample_and_can_be_taken_out(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(1000), randoms(1000)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        with session.arm([request(plan, a, b)] * 2) as armed:
            bare = armed.block(1)[0]
        overheads = []
        for each in (False, True):
            with session.arm([request(plan, a, b)] * 2, flush_bytes=4 << 20, flush_each=each) as armed:
                overhead = armed.flush_block(3)
                assert len(set(overhead)) == 1
                assert armed.block(1)[0] - overhead[0] == pytest.approx(bare)
                overheads.append(overhead[0])
        resets = 2 * (1 + 4000 / BYTES_PER_US)
        assert overheads[1] - resets == pytest.approx(2 * (overheads[0] - resets), abs=0.01)
        assert overheads[0] - resets > (4 << 20) / 16 / INSTRUCTIONS_PER_US, "every vector is loaded"


@pytest.mark.slow
def test_without_graphs_the_same_is_launched(
    compiler: Compiler, device: SoftwareDevice, graphless: SoftwareDevice
) -> None:
    a, b = randoms(1000), randoms(1000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    times = []
    for gpu in (device, graphless):
        with (
            gpu.open(build(compiler, ADD, plan)) as session,
            session.arm([request(plan, a, b)] * 2, flush_bytes=1 << 20, flush_each=True) as armed,
        ):
            times.append((armed.block(2), armed.flush_block(1), armed.outputs()))
            assert armed.captured == (gpu is device)
    assert times[0] == times[1]


@pytest.mark.slow
def test_gaps_are_no_part_of_a_sample(compiler: Compiler, device: SoftwareDevice) -> None:
    a = randoms(100)
    plan = resolve(ADD_PLAN, [a, a])
    with device.open(build(compiler, ADD, plan)) as session, session.arm([request(plan, a, a)]) as armed:
        assert armed.block(3, gaps_us=[10.0, 500.0, 20.0]) == armed.block(3)
        with pytest.raises(ValueError, match="3 samples with 1 gaps"):
            armed.block(3, gaps_us=[1.0])
        with pytest.raises(ValueError, match="at least one"):
            armed.block(0)
        with pytest.raises(ValueError, match="2 requests for 1 sets"):
            armed.refresh([request(plan, a, a)] * 2)


@pytest.mark.slow
def test_setup_is_no_part_of_a_sample(compiler: Compiler, device: SoftwareDevice) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    plan = resolve(plans.SCALE_PLAN, [x], {"weight": weight})
    with (
        device.open(build(compiler, plans.SCALE, plan)) as session,
        session.arm([request(plan, x, weights={"weight": weight})] * 2) as armed,
    ):
        assert armed.setup_us is not None
        assert armed.setup_us > LAUNCH_US
        with_setup = armed.block(1)[0]
        assert with_setup < 2 * (2 * LAUNCH_US + 64)


@pytest.mark.slow
def test_what_setup_prepared_may_not_be_written(compiler: Compiler, device: SoftwareDevice) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    plan = resolve(plans.DAMAGE_PLAN, [x], {"weight": weight})
    with device.open(build(compiler, plans.SCALE, plan)) as session:
        with pytest.raises(RunFailed, match="write to what setup prepared"):
            session.arm([request(plan, x, weights={"weight": weight})])
        assert device.runners._holds == 0


WRITES_WHEN_TIMED = """
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a[i] + b[i];
  if (i == 0 && b[2] == 42.0f) const_cast<float*>(a)[1] = 0.5f;
}
"""


def test_a_write_that_only_timed_samples_do_is_found(compiler: Compiler, device: SoftwareDevice) -> None:
    """Its trigger is a value that comes with a refresh."""
    a, b = randoms(300), randoms(300)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, WRITES_WHEN_TIMED, plan)) as session, session.arm([request(plan, a, b)]) as armed:
        armed.block(4)
        armed.outputs()
        b[2] = 42
        armed.refresh([request(plan, a, b)])
        armed.block(4)
        with pytest.raises(RunFailed, match="write to a read-only buffer, 4 bytes into 'a'") as caught:
            armed.outputs()
        assert caught.value.fault.kind == "sanitizer"


@pytest.mark.slow
def test_a_module_variable_that_nobody_can_watch_refuses_to_be_timed(compiler: Compiler, device_of: DeviceOf) -> None:
    x = randoms(16)
    plan = resolve(plans.COUNTER_PLAN, [x])
    with device_of("create_blind") as device, device.open(build(compiler, plans.COUNTER, plan)) as session:
        with pytest.raises(RunFailed, match="'calls' cannot be found") as caught:
            session.arm([request(plan, x)])
        assert caught.value.fault.kind == "unsupported"


SINE = """
__device__ const double table[3] = {1, 2, 3};
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = sinf(a[i]) + b[i] + (float)table[i % 3];
}
"""


@pytest.mark.slow
def test_variables_that_no_instruction_writes_need_not_be_found(compiler: Compiler, device_of: DeviceOf) -> None:
    """Every kernel with a sine has such tables, and NVRTC 13 gives their symbols no global name."""
    a, b = randoms(300), randoms(300, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    artifact = build(compiler, SINE, plan)
    assert {"table", "__cudart_i2opi_f"} <= read_cubin(artifact.cubin).variables
    with device_of("create_blind") as device, device.open(artifact) as session:
        with session.arm([request(plan, a, b)], flush_bytes=1 << 16) as armed:
            armed.refresh([request(plan, a, b)])
            armed.block(2)
            output = floats(armed.outputs()[0][0])
    np.testing.assert_allclose(output, np.sin(a) + b + np.arange(300) % 3 + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("declared", "use"),
    [
        ("__device__ int mark;", "mark = i;"),
        ("__device__ int mark;", "atomicAdd(&mark, 1);"),
        ("__device__ int mark[64];", "(a[i] > 0 ? mark : mark + 7)[i & 31] = 1;"),
        ("__device__ int mark; __device__ int* where = &mark;", "*where = i;"),
        ("__device__ int mark; __device__ __noinline__ void put(int* p) { *p = 1; }", "put(&mark);"),
        ("__device__ int mark;", 'asm volatile("st.global.u32 [mark], %0;" :: "r"(i)); if (i == -1) out[0] = mark;'),
        ("__device__ int mark;", "unsigned long long p = (unsigned long long)&mark; *(int*)(p ^ 0ull) = i;"),
        (
            "__device__ int mark;",
            "unsigned long long p = (unsigned long long)&mark, q = 0; for (int k = 0; k < 64; k++) "
            "if (p >> k & 1) q += 1ull << k; *(int*)q = i;",
        ),
        (
            "__device__ int mark[256] = {0, 1, 2, 3};",
            "unsigned long long p = (unsigned long long)mark, q = 0; for (int k = 0; k < 64; k += 2) "
            "q += (unsigned long long)mark[p >> k & 3] << k; *(int*)q = i;",
        ),
        ("__device__ int mark;", "int* kept[2] = {&mark, &mark}; *((int* volatile*)kept)[i & 1] = i;"),
    ],
)
def test_a_variable_that_an_instruction_may_write_is_not_overlooked(
    compiler: Compiler, declared: str, use: str
) -> None:
    a = randoms(8)
    plan = resolve(ADD_PLAN, [a, a])
    source = declared + ADD.replace("if (i < n)", use + " if (i < n)")
    artifact = build(compiler, source, plan)
    assert "mark" in read_cubin(artifact.cubin).variables
    assert "mark" not in unwritten_variables(artifact.ptx)


def test_ptx_that_cannot_be_read_proves_nothing() -> None:
    assert unwritten_variables(b".version 9.0\n.global .b32 mark; nonsense {") == frozenset()
    head = b".version 9.0\n.target sm_90a\n.address_size 64\n"
    assert unwritten_variables(head + b".global .align 4 .b32 mark = 7;") == {"mark"}
    assert unwritten_variables(head + b".global .align 4 .f32 mark = 0fZZ;") == frozenset()
    assert unwritten_variables(head + b".global .align 1 .b8 mark[9000000000000] = {1};") == frozenset()


@pytest.mark.slow
def test_coverage_is_the_share_of_own_kernels(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(12, 12), randoms(12, 12, seed=1)
    plan = resolve(plans.LIBRARY_PLAN, [a, b], library=["matmul"])
    with device.open(build(compiler, ADD, plan)) as session, session.arm([request(plan, a, b)]) as armed:
        assert not armed.captured
        total = armed.block(1)[0]
        memset = 1 + 4 * 144 / BYTES_PER_US
        assert armed.coverage() == pytest.approx(1 - (OPERATOR_US + memset) / total, abs=1e-3)
        np.testing.assert_allclose(floats(armed.outputs()[0][0]).reshape(12, 12), a @ b + a, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_fault_while_timed_ends_the_runner_alone(compiler: Compiler, device: SoftwareDevice) -> None:
    source = """
    extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) out[i] = a[i] + b[i];
      if (a[0] == 42.0f) out[1LL << 44] = 0;
    }
    """
    a, b = randoms(100), randoms(100)
    bad = a.copy()
    bad[0] = 42
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, source, plan)) as session:
        armed = session.arm([request(plan, a, b)])
        armed.refresh([request(plan, bad, b)])
        with pytest.raises(RunFailed, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
            armed.block(3)
        assert caught.value.fault.kind == "crash"
        armed.close()
        assert session.run(request(plan, a, b)).faults == ()


@pytest.mark.slow
def test_a_hang_while_timed_is_a_timeout(compiler: Compiler, device: SoftwareDevice) -> None:
    source = """
    extern "C" __global__ void spin(const volatile float* x, float* out) { while (x[0] == 42.0f) {} out[0] = 1; }
    """
    x = randoms(4)
    plan = resolve(plans.SPIN_PLAN, [x])
    with device.open(build(compiler, source, plan)) as session:
        armed = session.arm([request(plan, x, deadline_s=0.2)])
        armed.refresh([request(plan, np.full(4, 42, np.float32))])
        with pytest.raises(RunFailed) as caught:
            armed.block(1)
        assert caught.value.fault.kind == "timeout"
        with pytest.raises(RunFailed, match="the runner was lost"):
            armed.block(1)
        armed.close()
        assert device.runners._holds == 0


def test_an_armed_session_runs_nothing_else(compiler: Compiler, device: SoftwareDevice) -> None:
    a = randoms(10)
    plan = resolve(ADD_PLAN, [a, a])
    with device.open(build(compiler, ADD, plan)) as session:
        armed = session.arm([request(plan, a, a)])
        with pytest.raises(ValueError, match="the session is armed"):
            session.run(request(plan, a, a))
        with pytest.raises(ValueError, match="the session is armed"):
            session.arm([request(plan, a, a)])
        armed.close()
        armed.close()
        with pytest.raises(ValueError, match="was closed"):
            armed.block(1)
        assert session.run(request(plan, a, a)).faults == ()


def test_a_rating_is_the_plans_time_without_the_flush(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(1000), randoms(1000)
    plan = resolve(ADD_PLAN, [a, b])
    with device.open(build(compiler, ADD, plan)) as session:
        with session.arm([request(plan, a, b)]) as armed:
            alone = armed.block(1)[0]
        rating = session.rate(request(plan, a, b), 0.1)
        assert rating.time_us == pytest.approx(alone)
        assert rating.settled
        bad = resolve(plans.OVERRUN_PLAN, [a, b])
        with pytest.raises(RunFailed, match="out-of-bounds write"):
            session.rate(request(bad, a, b), 1.0)


MARKED = """
__device__ float laborious(float x) {
  for (int k = 0; k < 200; k++) x = x * 0.5f + 1.0f;
  return x;
}
extern "C" __global__ void work(const float* x, float* out, unsigned* marker, int n) {
  int i = threadIdx.x;
  bool done = CHEAT;
  if (i < n && !done) out[i] = laborious(x[i]);
  __syncthreads();
  if (i == 0) marker[0] = 0x600D600Du;
}
"""
"""Skips its work where it finds that it was done before; ``CHEAT`` is how it would know."""
MARKED_PLAN = """
def forward(x):
    out = empty_like(x)
    marker = empty((1,), int32)
    work[1, 128](x, out, marker, i32(x.numel()))
    return out
"""
CHEATS = {
    "marker": "marker[0] == 0x600D600Du",
    "right already": "i < n && fabsf(out[i] - 2.0f) < 1e-3f",
    "no longer poison": "marker[0] != 0xA5A5A5A5u",
}
FLUSHES = [{}, {"flush_bytes": 1 << 16}, {"flush_bytes": 1 << 16, "flush_each": True}]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS)
@pytest.mark.parametrize("flush", FLUSHES)
def test_a_kernel_that_would_skip_what_was_done_before_works_in_every_sample(
    compiler: Compiler, device: SoftwareDevice, cheat: str, flush: dict[str, int]
) -> None:
    x = randoms(64)
    plan = resolve(MARKED_PLAN, [x])
    measured = []
    for condition in (cheat, f"({cheat}) && x[0] == 42.0f"):
        artifact = build(compiler, MARKED.replace("CHEAT", condition), plan)
        with device.open(artifact) as session, session.arm([request(plan, x)] * 2, **flush) as armed:
            times = armed.block(5)
            assert len(set(times)) == 1
            overhead = armed.flush_block(1)[0]
            measured.append(times[0] - overhead)
            for outputs in armed.outputs():
                np.testing.assert_allclose(floats(outputs[0]), 2.0, rtol=1e-5)
    # The same loop in both, of 200 rounds by each of 64 threads.
    assert min(measured) > 2 * 64 * 200 / INSTRUCTIONS_PER_US
    assert measured[0] == pytest.approx(measured[1], rel=0.05)


@pytest.mark.parametrize("flush", FLUSHES)
def test_inputs_that_are_accumulated_into_are_as_drawn_before_every_execution(
    compiler: Compiler, device: SoftwareDevice, flush: dict[str, int]
) -> None:
    first, second = randoms(50), randoms(50, seed=1)
    plan = resolve(plans.INCREMENT_PLAN, [first])
    sets = [request(plan, x, mutable=frozenset({0})) for x in (first, second)]
    with (
        device.open(build(compiler, plans.INCREMENT, plan)) as session,
        session.arm(sets, **flush) as armed,
    ):
        for pair, requests in (((first, second), sets), ((second, first), sets[::-1])):
            armed.refresh(requests)
            armed.block(3)
            armed.flush_block(2)
            for outputs, x in zip(armed.outputs(), pair, strict=True):
                np.testing.assert_array_equal(floats(outputs[1]), x + 1)
                np.testing.assert_array_equal(floats(outputs[0]), 2 * (x + 1))


@pytest.mark.slow
def test_outputs_are_an_executions_even_after_overheads(compiler: Compiler, device: SoftwareDevice) -> None:
    a, b = randoms(100), randoms(100, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    with (
        device.open(build(compiler, ADD, plan)) as session,
        session.arm([request(plan, a, b)] * 2, flush_bytes=1 << 16) as armed,
    ):
        armed.block(1)
        armed.flush_block(2)
        for outputs in armed.outputs():
            np.testing.assert_array_equal(floats(outputs[0]), a + b)
