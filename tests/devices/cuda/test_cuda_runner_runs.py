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
from kernelforge.devices.cuda.worker.tensors import GUARD_BYTES
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


class Placing(SoftwareDriver):
    """Remembers how many bytes of host memory there were at each launch."""

    def launch(self, *arguments: Any) -> None:
        self.at_launch = list(self.host_blocks.values())
        super().launch(*arguments)


@pytest.mark.slow
def test_an_input_of_the_host_is_mapped_guarded_and_freed(compiler: Compiler) -> None:
    a, b = randoms(300), randoms(300, seed=1)
    driver = Placing()
    ran = run(compiler, ADD, ADD_PLAN, a, b, driver=driver, mapped=frozenset({1}))
    np.testing.assert_array_equal(floats(ran.outputs[0]), a + b)
    assert (driver.at_launch, driver.host_blocks) == ([b.nbytes + 2 * GUARD_BYTES], {})
    source = ADD.replace("out[i] = a[i] + b[i];", "out[i] = 1; if (i == 7) const_cast<float*>(b)[AT] = 1;")
    for at, message in (("7", "write to a read-only buffer, 2[89] bytes into 'b'"), ("300", "after the end of 'b'")):
        written = run(compiler, source.replace("AT", at), ADD_PLAN, a, b, mapped=frozenset({1}))
        assert re.search(message, written.faults[0].message)


def test_a_host_without_memory_to_pin_is_no_fault_of_the_plan(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(driver: SoftwareDriver, nbytes: int) -> int:
        raise DriverError("CUDA_ERROR_OUT_OF_MEMORY", f"allocating {nbytes} bytes of pinned host memory")

    monkeypatch.setattr(SoftwareDriver, "allocate_host", refuse)
    with pytest.raises(DriverError, match="PINNED_MEMORY while 'b' was put into host memory: CUDA_ERROR_OUT_OF"):
        run(compiler, ADD, ADD_PLAN, randoms(300), randoms(300), mapped=frozenset({1}))


def test_a_write_to_an_input_is_found(compiler: Compiler) -> None:
    ran = run(compiler, plans.COPY, plans.SPOIL_PLAN, randoms(8))
    assert ran.faults[0].kind == "sanitizer"
    assert ran.faults[0].message == "write to a read-only buffer, 12 bytes into 'x' (32 bytes)"


def test_a_module_variable_that_is_written_is_found_in_every_run(compiler: Compiler) -> None:
    x = randoms(16)
    plan = resolve(plans.COUNTER_PLAN, [x])
    made = runner(plans.build(compiler, plans.COUNTER, plan))
    for _ in range(2):
        ran = made.run(work(plan, x))
        assert ran.faults[0].kind == "sanitizer"
        assert "write to a __device__ or __constant__ variable, 0 bytes into 'calls' (4 bytes)" in ran.faults[0].message


def test_variables_that_cannot_be_found_begin_anew_in_every_run(compiler: Compiler) -> None:
    source = plans.COUNTER.replace("= x[threadIdx.x]", "= x[threadIdx.x] + calls")
    x = np.zeros(1, np.float32)
    plan = resolve(plans.COUNTER_PLAN, [x])
    made = runner(plans.build(compiler, source, plan), Blind())
    assert [floats(made.run(work(plan, x)).outputs[0])[0] for _ in range(3)] == [1, 1, 1]


def test_a_driver_without_torch_says_so(compiler: Compiler) -> None:
    a, b = randoms(12, 12), randoms(12, 12)
    ran = run(compiler, ADD, plans.LIBRARY_PLAN, a, b, library=["matmul"], driver=Graphless())
    assert ran.faults[0].kind == "unsupported"
    assert "library('matmul') in plan line 5" in ran.faults[0].message


def test_a_kernel_that_the_build_lacks_is_told(compiler: Compiler) -> None:
    a, b = randoms(100), randoms(100)
    plan = resolve(ADD_PLAN, [a, b])
    bad = replace(plan, steps=(replace(plan.steps[0], expression="other"),))  # type: ignore[call-arg]
    fault = runner(plans.build(compiler, ADD, plan)).run(work(bad, a, b)).faults[0]
    assert (fault.kind, fault.message) == ("crash", "the build has no kernel 'other', launched in plan line 5")


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
