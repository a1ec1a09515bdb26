"""Requirements on every device for runs of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.devices.base import Device, RunRequest
from kernelforge.errors import UnsupportedError
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, ADD_PLAN, Make, floats, randoms, request


def passes(device: Device, make: Make) -> bool:
    """Whether a good candidate is right on the device."""
    a, b = randoms(100, seed=5), randoms(100, seed=6)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        ran = session.run(request(plan, a, b))
    return ran.faults == () and np.array_equal(floats(ran.outputs[0]), a + b)


def test_a_device_says_what_it_is(device: Device) -> None:
    facts = device.describe()
    assert device.name.split(":")[0] == device.kind
    assert facts["architecture"] == device.arch
    for key, unit in (("memory bandwidth", "GB/s"), ("clock", "MHz"), ("shared memory per block", "KiB")):
        assert facts[key].split()[1] == unit
        assert float(facts[key].split()[0]) > 0
    assert device.memory_bytes > 0
    assert device.l2_bytes > 0
    identity = device.identity()
    assert set(identity) == ({"gpu", "gpu_uuid", "driver", "runtime"} if device.kind == "cuda" else set())
    assert all(identity.values())


@pytest.mark.parametrize("n", [1, 255, 5000, 1 << 18])
def test_outputs_are_right_under_any_poison(device: Device, make: Make, n: int) -> None:
    a, b = randoms(n), randoms(n, seed=1)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        for poison in (0xFF, 0x5A, 0):
            ran = session.run(request(plan, a, b, poison=poison))
            assert ran.faults == ()
            np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)


def test_what_is_not_written_holds_the_poison(device: Device, make: Make) -> None:
    a, b = randoms(100), randoms(100)
    plan, artifact = make(ADD, ADD_PLAN.replace("i32(n)", "i32(n - 3)"), a, b)
    with device.open(artifact) as session:
        for poison in (0xFF, 0x5A):
            assert session.run(request(plan, a, b, poison=poison)).outputs[0][-12:] == bytes([poison]) * 12


def test_zeros_are_zero_in_every_run(device: Device, make: Make) -> None:
    text = ADD_PLAN.replace("empty_like(a)", "zeros((n,))").replace("i32(n))", "i32(n - 3))")
    a, b = randoms(100), randoms(100)
    plan, artifact = make(ADD, text, a, b)
    with device.open(artifact) as session:
        for _ in range(2):
            assert session.run(request(plan, a, b)).outputs[0][-12:] == bytes(12)


def test_scalars_arrive_as_they_are(device: Device, make: Make) -> None:
    source = """
    #include <cuda_fp16.h>
    extern "C" __global__ void scalars(float* out, int i, long long l, float f, double d, __half h) {
      out[0] = i; out[1] = l >> 33; out[2] = f; out[3] = d; out[4] = __half2float(h);
    }
    """
    text = """
def forward(x):
    out = empty((5,), dtype=float32)
    scalars[1, 1](out, i32(-7), i64(3 * 2 ** 33), f32(0.5), f64(0.25), f16(1.5))
    return out
"""
    plan, artifact = make(source, text, randoms(1))
    with device.open(artifact) as session:
        ran = session.run(request(plan, randoms(1)))
    assert ran.faults == ()
    assert floats(ran.outputs[0]).tolist() == [-7, 3, 0.5, 0.25, 1.5]


def test_a_mutable_input_comes_back_and_a_fixed_one_must_not_change(device: Device, make: Make) -> None:
    x = randoms(50)
    plan, artifact = make(plans.INCREMENT, plans.INCREMENT_PLAN, x)
    with device.open(artifact) as session:
        ran = session.run(request(plan, x, mutable=frozenset({0})))
        assert ran.faults == ()
        np.testing.assert_array_equal(floats(ran.outputs[0]), 2 * (x + 1))
        np.testing.assert_array_equal(floats(ran.outputs[1]), x + 1)
        assert session.run(request(plan, x)).faults[0].kind == "sanitizer"


def test_setup_prepares_what_forward_reads(device: Device, make: Make) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    plan, artifact = make(plans.SCALE, plans.SCALE_PLAN, x, weights={"weight": weight})
    with device.open(artifact) as session:
        ran = session.run(request(plan, x, weights={"weight": weight}))
    assert ran.faults == ()
    np.testing.assert_array_equal(floats(ran.outputs[0]), x * (2 * weight))


def test_what_setup_prepared_may_not_be_written(device: Device, make: Make) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    plan, artifact = make(plans.SCALE, plans.DAMAGE_PLAN, x, weights={"weight": weight})
    with device.open(artifact) as session:
        ran = session.run(request(plan, x, weights={"weight": weight}))
    assert ran.faults[0].kind == "sanitizer"


@pytest.mark.parametrize(
    ("source", "text", "kinds"),
    [
        (ADD, plans.OVERRUN_PLAN, {"sanitizer"}),
        (plans.COPY, plans.SPOIL_PLAN, {"sanitizer"}),
        (plans.COUNTER, plans.COUNTER_PLAN, {"sanitizer"}),
        # Checked on every access, or not until the hardware finds nothing there.
        (plans.WILD, plans.WILD_PLAN, {"sanitizer", "crash"}),
        (plans.TRAP, plans.TRAP_PLAN, {"crash"}),
    ],
    ids=["past the end", "input", "module variable", "wild address", "trap"],
)
def test_a_fault_has_its_kind_and_the_next_candidate_is_unaffected(
    device: Device, make: Make, source: str, text: str, kinds: set[str]
) -> None:
    arrays = [randoms(100)] * (2 if text is plans.OVERRUN_PLAN else 1)
    plan, artifact = make(source, text, *arrays)
    with device.open(artifact) as session:
        for _ in range(2):
            ran = session.run(request(plan, *arrays))
            assert ran.outputs == ()
            assert ran.faults[0].kind in kinds
            assert ran.faults[0].message
    assert passes(device, make)


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_a_timeout_and_the_next_candidate_is_unaffected(device: Device, make: Make) -> None:
    x = randoms(4)
    plan, artifact = make(plans.SPIN, plans.SPIN_PLAN, x)
    with device.open(artifact) as session:
        assert session.run(request(plan, x, deadline_s=0.3)).faults[0].kind == "timeout"
    assert passes(device, make)


def test_more_memory_than_allowed_is_a_fault(device: Device, make: Make) -> None:
    a, b = randoms(100), randoms(100)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        ran = session.run(request(plan, a, b, memory_bytes=1000))
    assert ran.faults[0].kind == "memory"
    assert "1200 bytes of device memory, 1000 are allowed" in ran.faults[0].message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (0, 1, 1)}, "grid (0, 1, 1) is outside 1 to (2147483647, 65535, 65535)"),
        ({"grid": (1, 65536, 1)}, "grid (1, 65536, 1) is outside 1 to (2147483647, 65535, 65535)"),
        ({"block": (2048, 1, 1)}, "block (2048, 1, 1) is outside 1 to (1024, 1024, 64)"),
        ({"block": (64, 32, 1)}, "a block of 2048 threads, 1024 are allowed"),
        ({"dynamic_shared_bytes": 300_000}, "300000 bytes of shared memory per block, "),
    ],
)
def test_impossible_launches_are_refused_in_the_same_words(
    device: Device, make: Make, changes: dict[str, Any], message: str
) -> None:
    a, b = randoms(100), randoms(100)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    bad = replace(plan, steps=(replace(plan.steps[0], **changes),))
    with device.open(artifact) as session:
        ran = session.run(request(bad, a, b))
        assert ran.faults[0].kind == "crash"
        assert message in ran.faults[0].message
        assert ran.faults[0].message.endswith("'add', launched in plan line 5")
        assert session.run(request(plan, a, b)).faults == ()


def test_launch_bounds_are_kept(device: Device, make: Make) -> None:
    source = ADD.replace("void add", "void __launch_bounds__(128) add")
    a, b = randoms(100), randoms(100)
    plan, artifact = make(source, ADD_PLAN, a, b)
    with device.open(artifact) as session:
        ran = session.run(request(plan, a, b))
    assert "a block of 256 threads, 128 are allowed: 'add', launched in plan line 5" in ran.faults[0].message


SHARED = """
extern "C" __global__ void reverse(const float* x, float* out, int n) {
  extern __shared__ float tile[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = tile[n - 1 - i];
}
"""


def test_shared_memory_over_48_kib_needs_nothing_but_to_be_asked_for(device: Device, make: Make) -> None:
    x = randoms(20_000)
    text = """
def forward(x):
    n = x.numel()
    out = empty_like(x)
    reverse[1, 256, 4 * n](x, out, i32(n))
    return out
"""
    plan, artifact = make(SHARED, text, x)
    with device.open(artifact) as session:
        ran = session.run(request(plan, x))
    assert ran.faults == ()
    np.testing.assert_array_equal(floats(ran.outputs[0]), x[::-1])


def test_two_sessions_are_two_runners(device: Device, make: Make) -> None:
    a, b = randoms(100), randoms(100, seed=1)
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    wild_plan, wild = make(plans.WILD, plans.WILD_PLAN, randoms(4))
    with device.open(artifact) as good, device.open(wild) as bad:
        first = good.run(request(plan, a, b))
        assert bad.run(request(wild_plan, randoms(4))).faults
        assert good.run(request(plan, a, b)).outputs == first.outputs


def test_a_session_can_be_closed_twice(device: Device, make: Make) -> None:
    a = randoms(10)
    plan, artifact = make(ADD, ADD_PLAN, a, a)
    session = device.open(artifact)
    assert session.run(request(plan, a, a)).faults == ()
    session.close()
    session.close()


def test_a_request_without_its_tensors_is_an_error_of_the_caller(device: Device, make: Make) -> None:
    a = randoms(10)
    plan, artifact = make(ADD, ADD_PLAN, a, a)
    with device.open(artifact) as session, pytest.raises(ValueError, match="'a' takes 40 bytes"):
        session.run(RunRequest(plan, {}))


def test_a_device_that_measures_no_time_arms_nothing(device: Device, make: Make) -> None:
    if device.capabilities.measures_time:
        pytest.skip(f"{device.name} measures time")
    a = randoms(10)
    plan, artifact = make(ADD, ADD_PLAN, a, a)
    with device.open(artifact) as session, pytest.raises(UnsupportedError, match="cannot measure"):
        session.arm([request(plan, a, a)])


def test_a_rating_orders_plans_that_differ_a_lot(device: Device, make: Make) -> None:
    a, b = randoms(1 << 16), randoms(1 << 16)
    slow_text = ADD_PLAN.replace(
        "    add[ceil_div(n, 256), 256](a, b, out, i32(n))\n",
        "    for k in range(20):\n        add[ceil_div(n, 256), 256](a, b, out, i32(n))\n",
    )
    plan, artifact = make(ADD, ADD_PLAN, a, b)
    slow, _ = make(ADD, slow_text, a, b)
    with device.open(artifact) as session:
        assert session.rate(request(slow, a, b), 0.25).time_us > 3 * session.rate(request(plan, a, b), 0.25).time_us
