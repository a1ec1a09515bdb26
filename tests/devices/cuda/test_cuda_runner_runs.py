"""The runner over a driver: what it runs, what it refuses, and what it notices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices.base import RunRequest, RunResult
from kernelforge.devices.cuda.worker.driver import DriverError
from kernelforge.devices.cuda.worker.errors import plan_failure
from kernelforge.devices.cuda.worker.launch_binding import KernelLimits
from kernelforge.devices.cuda.worker.runner import Runner
from tests.devices.cuda import plans
from tests.devices.cuda.plans import ADD, ADD_PLAN, Array, Weights, buffer_contents, floats, randoms, resolve
from tests.devices.cuda.software import Blind, Graphless, SoftwareDriver, with_ptx


def runner(artifact: Artifact, driver: SoftwareDriver | None = None) -> Runner:
    made = driver or SoftwareDriver()
    kernels = {
        k.expression: KernelLimits(k.symbol, k.registers_per_thread, k.static_shared_bytes, k.max_threads_per_block)
        for k in artifact.build.kernels
    }
    return Runner(made, with_ptx(artifact).cubin, kernels, made.tensor)


def work(plan: ResolvedPlan, *arrays: Array, weights: Weights | None = None, **changes: Any) -> RunRequest:
    given_fields = {
        "plan": plan,
        "tensors": buffer_contents(plan, arrays, weights),
        "poison": 0xA5,
        "mutable": frozenset(),
    }
    return RunRequest(**(given_fields | changes))


def run(
    compiler: Compiler,
    source: str,
    text: str,
    *arrays: Array,
    driver: SoftwareDriver | None = None,
    weights: Weights | None = None,
    library: Sequence[str] = (),
    **changes: Any,
) -> RunResult:
    plan = resolve(text, arrays, weights, library)
    made = runner(plans.build(compiler, source, plan), driver)
    return made.run(work(plan, *arrays, weights=weights, **changes))


def test_a_plan_runs_and_leaves_nothing_behind(compiler: Compiler) -> None:
    a, b = randoms(5000), randoms(5000, seed=1)
    plan = resolve(ADD_PLAN, [a, b])
    driver = SoftwareDriver()
    made = runner(plans.build(compiler, ADD, plan), driver)
    before = driver.memory()
    for poison in (0xA5, 0x5A):
        ran = made.run(work(plan, a, b, poison=poison))
        assert ran.faults == ()
        np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)
    assert driver.memory() == before


def test_what_is_never_written_holds_the_poison(compiler: Compiler) -> None:
    a, b = randoms(100), randoms(100)
    ran = run(compiler, ADD, ADD_PLAN.replace("i32(n)", "i32(n - 1)"), a, b, poison=0x5A)
    assert ran.outputs[0][-4:] == b"ZZZZ"
    assert ran.outputs[0][:4] != b"ZZZZ"


def test_a_write_past_the_end_is_found_in_the_guard(compiler: Compiler) -> None:
    a, b = randoms(100), randoms(100)
    ran = run(compiler, ADD, plans.OVERRUN_PLAN, a, b)
    assert [fault.kind for fault in ran.faults] == ["sanitizer"]
    # One random byte in 256 is what the kernel wrote.
    assert re.fullmatch(r"out-of-bounds write, [0-7] bytes after the end of 'out' \(400 bytes\)", ran.faults[0].message)
    assert ran.outputs == ()


def test_a_write_before_the_start_is_found_in_the_guard(compiler: Compiler) -> None:
    source = """
    extern "C" __global__ void early(const float* x, float* out) { out[-2] = x[0]; out[0] = 1; }
    """
    x = randoms(4)
    ran = run(
        compiler, source, "def forward(x):\n    out = empty_like(x)\n    early[1, 1](x, out)\n    return out\n", x
    )
    assert re.search(r"[5-8] bytes before 'out' \(16 bytes\)", ran.faults[0].message)


def test_copying_beyond_the_end_is_found_although_guards_are_copied(compiler: Compiler) -> None:
    text = "def forward(x):\n    out = empty_like(x)\n    duplicate[1, 128](x, out, i32(128))\n    return out\n"
    assert run(compiler, plans.COPY, text, randoms(100)).faults[0].kind == "sanitizer"


def test_a_write_to_an_input_is_found(compiler: Compiler) -> None:
    ran = run(compiler, plans.COPY, plans.SPOIL_PLAN, randoms(8))
    assert ran.faults[0].kind == "sanitizer"
    assert ran.faults[0].message == "write to a read-only buffer, 12 bytes into 'x' (32 bytes)"


def test_an_input_that_may_be_written_is_given_back(compiler: Compiler) -> None:
    x = randoms(50)
    plan = resolve(plans.INCREMENT_PLAN, [x])
    made = runner(plans.build(compiler, plans.INCREMENT, plan))
    ran = made.run(work(plan, x, mutable=frozenset({0})))
    assert ran.faults == ()
    np.testing.assert_array_equal(floats(ran.outputs[1]), x + 1)
    np.testing.assert_array_equal(floats(ran.outputs[0]), 2 * (x + 1))
    assert made.run(work(plan, x)).faults[0].kind == "sanitizer"


def test_a_module_variable_that_is_written_is_found_in_every_run(compiler: Compiler) -> None:
    x = randoms(16)
    plan = resolve(plans.COUNTER_PLAN, [x])
    made = runner(plans.build(compiler, plans.COUNTER, plan))
    for _ in range(2):
        ran = made.run(work(plan, x))
        assert ran.faults[0].kind == "sanitizer"
        assert "write to a __device__ or __constant__ variable, 0 bytes into 'calls' (4 bytes)" in ran.faults[0].message


def test_module_variables_that_are_only_read_are_fine(compiler: Compiler) -> None:
    source = """
    __constant__ float table[4] = {1, 2, 3, 4};
    extern "C" __global__ void look(const float* x, float* out) {
      out[threadIdx.x] = table[threadIdx.x & 3] + sinf(x[threadIdx.x] * 1e5f);
    }
    """
    x = randoms(32)
    text = "def forward(x):\n    out = empty_like(x)\n    look[1, 32](x, out)\n    return out\n"
    ran = run(compiler, source, text, x)
    assert ran.faults == ()
    expected = np.tile([1, 2, 3, 4], 8) + np.sin(x.astype(np.float32) * np.float32(1e5))
    np.testing.assert_allclose(floats(ran.outputs[0]), expected, rtol=1e-5, atol=1e-5)


def test_variables_that_cannot_be_found_begin_anew_in_every_run(compiler: Compiler) -> None:
    source = plans.COUNTER.replace("= x[threadIdx.x]", "= x[threadIdx.x] + calls")
    x = np.zeros(1, np.float32)
    plan = resolve(plans.COUNTER_PLAN, [x])
    made = runner(plans.build(compiler, source, plan), Blind())
    assert [floats(made.run(work(plan, x)).outputs[0])[0] for _ in range(3)] == [1, 1, 1]


def test_setup_prepares_what_forward_reads(compiler: Compiler) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    ran = run(compiler, plans.SCALE, plans.SCALE_PLAN, x, weights={"weight": weight})
    assert ran.faults == ()
    np.testing.assert_array_equal(floats(ran.outputs[0]), x * (2 * weight))


def test_a_write_to_what_setup_prepared_is_found(compiler: Compiler) -> None:
    x, weight = randoms(64), randoms(64, seed=1)
    ran = run(compiler, plans.SCALE, plans.DAMAGE_PLAN, x, weights={"weight": weight})
    assert ran.faults[0].kind == "sanitizer"
    assert ran.faults[0].message.startswith("write to what setup prepared, ")


def test_torch_operators_run_between_launches(compiler: Compiler) -> None:
    a, b = randoms(12, 12), randoms(12, 12, seed=1)
    ran = run(compiler, ADD, plans.LIBRARY_PLAN, a, b, library=["matmul"])
    assert ran.faults == ()
    np.testing.assert_allclose(floats(ran.outputs[0]).reshape(12, 12), a @ b + a, rtol=1e-5, atol=1e-5)


def test_a_driver_without_torch_says_so(compiler: Compiler) -> None:
    a, b = randoms(12, 12), randoms(12, 12)
    ran = run(compiler, ADD, plans.LIBRARY_PLAN, a, b, library=["matmul"], driver=Graphless())
    assert ran.faults[0].kind == "unsupported"
    assert "library('matmul') in plan line 5" in ran.faults[0].message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (0, 1, 1)}, "grid (0, 1, 1) is outside 1 to (2147483647, 65535, 65535)"),
        ({"grid": (1, 65536, 1)}, "grid (1, 65536, 1) is outside 1 to (2147483647, 65535, 65535)"),
        ({"block": (2048, 1, 1)}, "block (2048, 1, 1) is outside 1 to (1024, 1024, 64)"),
        ({"block": (64, 32, 1)}, "a block of 2048 threads, 1024 are allowed"),
        ({"dynamic_shared_bytes": 300_000}, "300000 bytes of shared memory per block, 232448 are there"),
        ({"expression": "other"}, "the build has no kernel 'other'"),
    ],
)
def test_launches_that_cuda_would_refuse_are_told(compiler: Compiler, changes: dict[str, Any], message: str) -> None:
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    made = runner(plans.build(compiler, ADD, plan))
    bad = replace(plan, steps=(replace(plan.steps[0], **changes),))
    ran = made.run(work(bad, a, b))
    assert ran.faults[0].kind == "crash"
    assert ran.faults[0].message.startswith(message)
    assert "launched in plan line 5" in ran.faults[0].message
    assert made.run(work(plan, a, b)).faults == ()


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"cooperative": True}, "a cooperative launch"), ({"cluster": (2, 1, 1)}, "thread block clusters")],
)
def test_what_the_driver_lacks_is_unsupported(compiler: Compiler, changes: dict[str, Any], name: str) -> None:
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    bad = replace(plan, steps=(replace(plan.steps[0], **changes),))
    ran = runner(plans.build(compiler, ADD, plan)).run(work(bad, a, b))
    assert ran.faults[0].kind == "unsupported"
    assert name in ran.faults[0].message


def test_an_illegal_access_names_its_launch_and_takes_the_context(compiler: Compiler) -> None:
    x = randoms(4)
    plan = resolve(plans.WILD_PLAN, [x])
    made = runner(plans.build(compiler, plans.WILD, plan))
    ran = made.run(work(plan, x))
    assert ran.faults[0].kind == "crash"
    assert ran.faults[0].message == (
        "a kernel accessed memory that is not mapped (CUDA_ERROR_ILLEGAL_ADDRESS): 'wild', launched in plan line 3"
    )
    assert made.lost


def test_a_trap_is_a_crash(compiler: Compiler) -> None:
    ran = run(compiler, plans.TRAP, plans.TRAP_PLAN, randoms(4))
    assert ran.faults[0].kind == "crash"
    assert "CUDA_ERROR_LAUNCH_FAILED" in ran.faults[0].message


def test_out_of_memory_is_told_and_ends_the_context(compiler: Compiler) -> None:
    a, b = randoms(300_000), randoms(300_000)
    plan = resolve(ADD_PLAN, [a, b])
    made = runner(plans.build(compiler, ADD, plan), SoftwareDriver(memory_bytes=3 << 20))
    ran = made.run(work(plan, a, b))
    assert ran.faults[0].kind == "memory"
    assert "allocating 3600000 bytes for the plan's tensors" in ran.faults[0].message
    assert made.lost


@pytest.mark.parametrize(
    ("code", "kind", "lost"),
    [
        ("CUDA_ERROR_MISALIGNED_ADDRESS", "crash", True),
        ("CUDA_ERROR_ASSERT", "crash", True),
        ("CUDA_ERROR_LAUNCH_TIMEOUT", "timeout", True),
        ("CUDA_ERROR_OUT_OF_MEMORY", "memory", True),
        ("CUDA_ERROR_NOT_SUPPORTED", "unsupported", False),
        ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "crash", False),
    ],
)
def test_every_error_of_a_plan_has_its_kind(code: str, kind: str, lost: bool) -> None:
    fault = plan_failure(DriverError(code, "testing"), "here")
    assert (fault.faults[0].kind, fault.lost) == (kind, lost)
    assert f"({code}): here" in fault.faults[0].message


@pytest.mark.parametrize(
    "code", ["CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_SYSTEM_NOT_READY"]
)
def test_an_error_of_the_machine_is_no_fault_of_a_plan(code: str) -> None:
    with pytest.raises(DriverError, match=code):
        plan_failure(DriverError(code, "testing"), "here")
