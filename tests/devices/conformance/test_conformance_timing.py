"""Requirements on every device that measures time for a timed plan."""

from __future__ import annotations

import numpy as np
import pytest

from kernelforge.devices.base import Device, RunFailed
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, ADD_PLAN, Make, floats, randoms, request

pytestmark = pytest.mark.usefixtures("timing")


@pytest.mark.slow
def test_every_set_is_run_in_every_sample(device: Device, make: Make) -> None:
    pairs = [(randoms(3000, seed=2 * k), randoms(3000, seed=2 * k + 1)) for k in range(3)]
    plan, artifact = make(ADD, ADD_PLAN, *pairs[0])
    with device.open(artifact) as session:
        armed = session.arm([request(plan, *pair) for pair in pairs])
        times = armed.block(5)
        assert len(times) == 5
        assert all(time > 0 for time in times)
        for outputs, (a, b) in zip(armed.outputs(), pairs, strict=True):
            np.testing.assert_array_equal(floats(outputs[0]), a + b)
        assert armed.flush_block(2) == (0.0, 0.0)
        assert armed.coverage() == 1.0
        assert armed.setup_us is None
        armed.close()


def test_flushes_take_time_of_their_own(device: Device, make: Make) -> None:
    a, b = randoms(3000), randoms(3000, seed=1)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        armed = session.arm([request(plan, a, b)] * 2, flush_bytes=2 * device.l2_bytes)
        armed.block(3)
        flush, total = armed.flush_block(5), armed.block(5)
        assert 0 < sorted(flush)[2] < sorted(total)[2]
        np.testing.assert_array_equal(floats(armed.outputs()[1][0]), a + b)
        armed.close()


def test_gaps_lie_outside_the_samples(device: Device, make: Make) -> None:
    a, b = randoms(3000), randoms(3000, seed=1)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        armed = session.arm([request(plan, a, b)])
        armed.block(3)
        assert max(armed.block(4, gaps_us=[20_000.0, 1.0, 20_000.0, 5.0])) < 20_000
        armed.close()


def test_refreshed_values_are_what_comes_out(device: Device, make: Make) -> None:
    pairs = [(randoms(100, seed=k), randoms(100, seed=9)) for k in range(4)]
    plan, artifact = make(ADD, ADD_PLAN, *pairs[0])
    with device.open(artifact) as session:
        armed = session.arm([request(plan, *pair, poison=0x5A) for pair in pairs[:2]])
        armed.block(2)
        armed.refresh([request(plan, *pair, poison=0x5A) for pair in pairs[2:]])
        assert [outputs[0] for outputs in armed.outputs()] == [b"Z" * 400] * 2
        armed.block(2)
        for outputs, (a, b) in zip(armed.outputs(), pairs[2:], strict=True):
            np.testing.assert_array_equal(floats(outputs[0]), a + b)
        armed.close()


def test_setup_is_timed_apart_and_follows_the_weights(device: Device, make: Make) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    plan, artifact = make(plans.SCALE, plans.SCALE_PLAN, x, weights={"weight": weight})
    with device.open(artifact) as session:
        armed = session.arm([request(plan, x, weights={"weight": weight})] * 2)
        assert armed.setup_us is not None
        assert armed.setup_us > 0
        armed.refresh([request(plan, x, weights={"weight": weight + k}) for k in (1, 2)])
        armed.block(1)
        for k, outputs in zip((1, 2), armed.outputs(), strict=True):
            np.testing.assert_array_equal(floats(outputs[0]), x * (2 * (weight + np.float32(k))))
        armed.close()


def test_mutated_inputs_start_as_given(device: Device, make: Make) -> None:
    x = randoms(50)
    plan, artifact = make(plans.INCREMENT, plans.INCREMENT_PLAN, x)
    run_request = request(plan, x, mutable=frozenset({0}))
    with device.open(artifact) as session:
        armed = session.arm([run_request])
        armed.block(1)
        np.testing.assert_array_equal(floats(armed.outputs()[0][1]), x + 1)
        armed.refresh([run_request])
        armed.block(1)
        np.testing.assert_array_equal(floats(armed.outputs()[0][1]), x + 1)
        armed.close()


@pytest.mark.slow
def test_coverage_counts_own_kernels_alone(device: Device, make: Make) -> None:
    if not device.capabilities.library:
        pytest.skip(f"{device.name} calls no torch operators")
    a, b = randoms(64, 64), randoms(64, 64, seed=1)
    plan, artifact = make(ADD, plans.LIBRARY_PLAN, a, b, library=("matmul",))
    with device.open(artifact) as session:
        armed = session.arm([request(plan, a, b)] * 2)
        armed.block(2)
        assert 0 < armed.coverage() < 1
        for outputs in armed.outputs():
            np.testing.assert_allclose(floats(outputs[0]).reshape(64, 64), a @ b + a, rtol=1e-3, atol=1e-3)
        armed.close()


@pytest.mark.parametrize(
    ("source", "text"),
    [(ADD, plans.OVERRUN_PLAN), (plans.COUNTER, plans.COUNTER_PLAN), (plans.TRAP, plans.TRAP_PLAN)],
    ids=["past the end", "module variable", "trap"],
)
def test_a_plan_that_faults_is_not_armed(device: Device, make: Make, source: str, text: str) -> None:
    arrays = [randoms(100)] * (2 if text is plans.OVERRUN_PLAN else 1)
    plan, artifact = make(source, text, *arrays)
    with device.open(artifact) as session, pytest.raises(RunFailed):
        session.arm([request(plan, *arrays)])


def test_tables_that_are_only_read_are_no_reason_to_refuse(device: Device, make: Make) -> None:
    """Libraries keep tables in module variables: sinf does."""
    source = """
    __constant__ float step[4] = {1, 2, 3, 4};
    __device__ float offset[2] = {0.5f, 1.5f};
    extern "C" __global__ void look(const float* x, float* out) {
      int i = threadIdx.x;
      out[i] = step[i & 3] + offset[i & 1] + sinf(x[i] * 1e5f);
    }
    """
    x = randoms(32)
    text = "def forward(x):\n    out = empty_like(x)\n    look[1, 32](x, out)\n    return out\n"
    plan, artifact = make(source, text, x)
    with device.open(artifact) as session:
        armed = session.arm([request(plan, x)] * 2)
        armed.block(3)
        expected = np.tile([1.5, 3.5, 3.5, 5.5], 8) + np.sin((x * np.float32(1e5)).astype(np.float64))
        for outputs in armed.outputs():
            np.testing.assert_allclose(floats(outputs[0]), expected, atol=1e-5)
        armed.close()


def test_a_module_variable_that_only_timed_samples_write_is_found(device: Device, make: Make) -> None:
    source = """
    __device__ int seen;
    extern "C" __global__ void once(const float* x, float* out) {
      if (x[0] == 42.0f) seen = 1;
      out[threadIdx.x] = x[threadIdx.x];
    }
    """
    x = randoms(32)
    text = "def forward(x):\n    out = empty_like(x)\n    once[1, 32](x, out)\n    return out\n"
    plan, artifact = make(source, text, x)
    with device.open(artifact) as session:
        armed = session.arm([request(plan, x)])
        armed.block(2)
        armed.outputs()
        armed.refresh([request(plan, np.full(32, 42, np.float32))])
        armed.block(2)
        with pytest.raises(RunFailed, match="'seen'") as caught:
            armed.outputs()
        assert caught.value.fault.kind == "sanitizer"
        armed.close()


def test_sets_that_do_not_fit_are_a_fault_of_memory(device: Device, make: Make) -> None:
    a = randoms(1 << 20)
    plan, artifact = make(ADD, ADD_PLAN, a, a)
    sets = device.memory_bytes // (12 << 20) + 1
    if sets > 1000:
        pytest.skip("too many sets to describe")
    with device.open(artifact) as session, pytest.raises(RunFailed) as caught:
        session.arm([request(plan, a, a)] * sets)
    assert caught.value.fault.kind == "memory"


def test_a_session_goes_on_after_it_was_armed(device: Device, make: Make) -> None:
    a, b = randoms(100), randoms(100, seed=1)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        for _ in range(2):
            armed = session.arm([request(plan, a, b)])
            armed.block(1)
            armed.close()
            assert session.run(request(plan, a, b)).faults == ()
