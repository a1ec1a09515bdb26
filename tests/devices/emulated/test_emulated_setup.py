"""``setup`` on the emulated device: it runs first, what it prepared is read-only then, and profiles leave it out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernelforge.candidate import ResolvedPlan, parse_plan
from kernelforge.candidate.resolved import Launch
from kernelforge.devices.base import RunRequest
from kernelforge.devices.emulated.execute.plan_execution import LaunchFailed
from kernelforge.hardware.specs import H100, SPECS
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import DType, TensorSpec
from tests.devices.emulated.emulated_plans import Array, facts, randoms, runner, work

SOURCE = """
extern "C" __global__ void twice(const float* w, float* packed, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) packed[i] = 2 * w[i];
}
extern "C" __global__ void add(const float* x, const float* packed, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + packed[i];
}
extern "C" __global__ void spoil(float* packed, float* out) { packed[0] = 1; out[threadIdx.x] = packed[threadIdx.x]; }
"""
PLAN = """
def setup(w):
    n = w["a"].numel()
    scratch = empty(n)
    twice[ceil_div(n, 128), 128](w["a"], scratch, i32(n))
    packed = empty(n)
    twice[ceil_div(n, 128), 128](scratch, packed, i32(n))
    return packed

def forward(x):
    n = x.numel()
    out = empty_like(x)
    add[ceil_div(n, 128), 128](x, prepared, out, i32(n))
    return out
"""


def resolve(plan: str, n: int, **options: Any) -> ResolvedPlan:
    spec = TensorSpec.contiguous((n,), DType.FLOAT32)
    return parse_plan(plan).resolve([spec], {"a": spec}, {}, **options)


def run_request(plan: ResolvedPlan, x: Array, a: Array, **changes: Any) -> RunRequest:
    tensors = {b.id: (x if b.kind == "input" else a).tobytes() for b in plan.buffers if b.provided}
    return work(plan, [x], tensors=tensors, **changes)


@pytest.mark.parametrize("poison", [0xA5, 0])
def test_forward_reads_what_setup_wrote(poison: int) -> None:
    x, a = randoms(300), randoms(300, seed=1)
    runs = runner(SOURCE)
    for _ in range(2):
        ran = runs.run(run_request(resolve(PLAN, 300), x, a, poison=poison))
        assert ran.faults == ()
        np.testing.assert_array_equal(np.frombuffer(ran.outputs[0], np.float32), x + 4 * a)
    assert runs.build.memory.used_bytes == 0


def test_forward_cannot_write_what_setup_prepared() -> None:
    plan = PLAN.replace("add[", "spoil[1, 32](prepared, out)\n    add[")
    ran = runner(SOURCE).run(run_request(resolve(plan, 64), randoms(64), randoms(64)))
    assert ran.outputs == ()
    assert ran.faults[0].kind == "sanitizer"
    assert "read-only buffer" in ran.faults[0].message
    assert "'packed (prepared by setup)'" in ran.faults[0].message
    assert "'spoil' is launched in plan line 13" in ran.faults[0].message
    assert "in setup" not in ran.faults[0].message


def test_setup_cannot_write_a_weight() -> None:
    plan = PLAN.replace("(scratch, packed,", '(scratch, w["a"],').replace("return packed", "return scratch")
    fault = runner(SOURCE).run(run_request(resolve(plan, 64), randoms(64), randoms(64))).faults[0]
    assert fault.kind == "sanitizer"
    assert "read-only buffer" in fault.message
    assert "plan line 7, in setup" in fault.message


def test_a_fault_in_setup_says_so() -> None:
    plan = PLAN.replace('(w["a"], scratch, i32(n))', '(w["a"], scratch, i32(n + 1))')
    ran = runner(SOURCE).run(run_request(resolve(plan, 63), randoms(63), randoms(63)))
    assert ran.faults[0].kind == "sanitizer"
    assert "out-of-bounds" in ran.faults[0].message
    assert "'twice' is launched in plan line 5, in setup" in ran.faults[0].message
    with pytest.raises(LaunchFailed, match="plan line 5, in setup"):
        runner(SOURCE).profile(run_request(resolve(plan, 63), randoms(63), randoms(63)))


def test_a_missing_argument_in_setup_says_so() -> None:
    plan = PLAN.replace("(scratch, packed, i32(n))", "(scratch, packed)")
    fault = runner(SOURCE).run(run_request(resolve(plan, 64), randoms(64), randoms(64))).faults[0]
    assert fault.kind == "crash"
    assert "takes 3 arguments, plan line 7, in setup gives 2" in fault.message


def test_a_profile_counts_forward_alone() -> None:
    n = 128 * 50
    plan = resolve(PLAN, n)
    x, a = randoms(n), randoms(n, seed=1)
    runs = runner(SOURCE)
    counts = runs.profile(run_request(plan, x, a, poison=0))
    assert [(kernel.expression, kernel.launches, kernel.blocks_run) for kernel in counts.kernels] == [("add", 1, 50)]
    # The same forward on a weight in place of what was prepared: setup leaves nothing in the counters.
    plain = resolve(PLAN[PLAN.index("def forward") :].replace("prepared", 'w["a"]'), n)
    assert counts == runs.profile(run_request(plain, x, a, poison=0))
    profile, performance = build_profile(H100, "emulated:h100", counts, {"add": 32}, facts(plan, [x], 12 * n))
    assert [kernel.kernel for kernel in profile.kernels] == ["add"]
    assert performance is not None


def test_a_profile_runs_some_blocks_of_a_long_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thousandth of the effort setup may run about 400,000 thread instructions."""
    n = 128 * 4000
    plan = resolve(PLAN, n)
    x, a = randoms(n), randoms(n, seed=1)
    runs = runner(SOURCE)
    blocks: list[int] = []
    machine_launch = runs.build.machine.launch

    def counted(name: str, *rest: Any, ctas: Any = None, **options: Any) -> Any:
        if name == "twice":
            blocks.append(4000 if ctas is None else len(ctas))
        return machine_launch(name, *rest, ctas=ctas, **options)

    monkeypatch.setattr(runs.build.machine, "launch", counted)
    runs.profile(run_request(plan, x, a, poison=0))
    assert sum(blocks) == 8000
    blocks.clear()
    runs.profile(run_request(plan, x, a, poison=0), effort=0.001)
    assert 8 <= sum(blocks) < 1000


def test_what_a_sampled_setup_left_out_raises_no_fault_in_a_profile() -> None:
    """``pick`` traps where ``twice`` wrote nothing, which it did wherever the profile left its blocks out."""
    source = (
        SOURCE
        + """
extern "C" __global__ void pick(const float* x, const float* packed, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (packed[i] == 0) __trap();
  out[i] = x[i];
}
"""
    )
    n = 128 * 4000
    one_block = "pick[1, 128](x, prepared[128 * 1001 :], out, i32(n))"
    plan = resolve(PLAN.replace("add[ceil_div(n, 128), 128](x, prepared, out, i32(n))", one_block), n)
    work = run_request(plan, randoms(n), np.ones(n, np.float32), poison=0)
    assert runner(source).run(work).faults == ()
    assert runner(source).profile(work, effort=0.001).kernels


LACKS = [
    (
        "add[2, 32](x, tensor_map(x, box=32), out, i32(9))",
        "A100 SXM4 80 GB has no tensor maps, pass the tensor and load its tiles in the kernel: argument 2 of 'add', ",
    ),
]


@pytest.mark.parametrize(("line", "message"), LACKS)
@pytest.mark.parametrize("where", ["setup", "forward"])
def test_what_the_device_lacks_is_refused_before_anything_runs(line: str, message: str, where: str) -> None:
    plan = PLAN.replace("    return out\n", f"    {line}\n    return out\n")
    number = 14
    if where == "setup":
        line = (
            line.replace("x", 'w["a"]').replace("out)", "packed)").replace("out,", "packed,").replace('bow["a"]', "box")
        )
        plan = PLAN.replace("    return packed\n", f"    {line}\n    return packed\n")
        number = 8
    resolved = resolve(plan, 64)
    runs = runner(SOURCE, spec=SPECS["a100"])
    ran = runs.run(run_request(resolved, randoms(64), randoms(64)))
    assert [fault.kind for fault in ran.faults] == ["unsupported"]
    assert message in ran.faults[0].message
    assert ran.faults[0].message.endswith(f"plan line {number}" + (", in setup" if where == "setup" else ""))
    assert ran.thread_instructions == 0
    with pytest.raises(LaunchFailed, match="plan line"):
        runs.profile(run_request(resolved, randoms(64), randoms(64)))


def test_a_kernel_that_takes_a_tensor_map_loads_beside_others() -> None:
    source = (
        SOURCE
        + """
struct alignas(128) Map { unsigned long long opaque[16]; };
extern "C" __global__ void tiles(const __grid_constant__ Map map, float* out) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
  out[0] = 1;
}
"""
    )
    plan = resolve(PLAN, 64)
    assert isinstance(plan.steps[0], Launch)
    ran = runner(source).run(run_request(plan, randoms(64), randoms(64)))
    assert ran.faults == ()
