"""``library`` calls on the emulated device: torch in a child of its own, results, faults, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernelforge.candidate.resolved import Library, ResolvedPlan, TensorView
from kernelforge.compile import Artifact, Compiler
from kernelforge.devices import make_device
from kernelforge.devices.base import RunFailed, RunRequest, RunResult
from kernelforge.devices.emulated.device import EmulatedDevice
from kernelforge.devices.emulated.operator_calls import OperatorCalls
from kernelforge.devices.emulated.operator_worker import call_on_cpu
from kernelforge.devices.library_calls import LibraryCallFailed
from kernelforge.errors import SandboxError
from kernelforge.records import DType
from kernelforge.sandbox import Frame, Zygote, select_tier
from tests.devices.cuda.plans import ADD, LIBRARY_PLAN, build, floats, request, resolve
from tests.devices.emulated.emulated_plans import facts, randoms

N = 24
OPERATORS = ("matmul", "embedding", "relu_", "linear", "topk", "matmull")
SETUP_PLAN = """
def setup(w):
    squared = empty((24, 24))
    library("matmul", w["a"], w["a"], out=squared)
    return squared

def forward(x):
    out = empty((24, 24))
    add[3, 256](x, prepared, out, i32(576))
    return out
"""


@pytest.fixture(scope="module")
def device(open_warm: Callable[..., Any]) -> Iterator[EmulatedDevice]:
    if select_tier().tier == "none":
        pytest.skip("no jail tier works on this machine")
    made = open_warm(make_device, "emulated:h100")
    yield made
    made.close()


@pytest.fixture
def arrays() -> list[Any]:
    return [randoms(N, N), randoms(N, N, seed=1)]


Ran = Callable[..., RunResult]


@pytest.fixture
def prepared(compiler: Compiler, device: EmulatedDevice, arrays: list[Any]) -> Callable[[str], tuple[Any, Any]]:
    """From a plan's text to its request and its build."""

    def made(text: str) -> tuple[RunRequest, Artifact]:
        plan = resolve(text, arrays, library=OPERATORS)
        return request(plan, *arrays), build(compiler, ADD, plan, device.arch)

    return made


@pytest.fixture
def ran(device: EmulatedDevice, prepared: Callable[[str], tuple[Any, Any]]) -> Ran:
    def run(text: str, **changes: Any) -> RunResult:
        work, artifact = prepared(text)
        with device.open(artifact) as session:
            return session.run(replace(work, **changes))

    return run


@pytest.mark.slow
def test_a_kernel_reads_what_an_operator_wrote(ran: Ran, arrays: list[Any]) -> None:
    a, b = arrays
    result = ran(LIBRARY_PLAN, sanitize=True)
    assert result.faults == ()
    np.testing.assert_allclose(floats(result.outputs[0]).reshape(N, N), a @ b + a, rtol=1e-5, atol=1e-5)
    assert result.thread_instructions


@pytest.mark.slow
def test_setup_may_call_one(device: EmulatedDevice, compiler: Compiler) -> None:
    x, a = randoms(N, N), randoms(N, N, seed=2)
    plan = resolve(SETUP_PLAN, [x], {"a": a}, library=OPERATORS)
    with device.open(build(compiler, ADD, plan, device.arch)) as session:
        result = session.run(request(plan, x, weights={"a": a}))
    assert result.faults == ()
    np.testing.assert_allclose(floats(result.outputs[0]).reshape(N, N), x + a @ a, rtol=1e-5, atol=1e-5)


REFUSED = [
    (
        'library("matmul", a, b, out=product)',
        'library("matmul", a, b.flatten()[: n + 1], out=product)',
        "crash",
        "torch",
    ),
    ('library("matmul", a, b, out=product)', 'library("matmull", a, b, out=product)', "unsupported", "no function"),
    ('library("matmul", a, b, out=product)', 'library("relu_", a, out=product)', "crash", "it changes its tensor"),
]


@pytest.mark.parametrize(("old", "new", "kind", "words"), REFUSED)
def test_a_call_that_torch_refuses_is_a_fault_of_the_plan(ran: Ran, old: str, new: str, kind: str, words: str) -> None:
    (fault,) = ran(LIBRARY_PLAN.replace(old, new)).faults
    assert fault.kind == kind
    assert "in plan line 5" in fault.message
    assert words in fault.message


def test_bytes_that_nothing_wrote_are_a_fault_of_the_call(ran: Ran) -> None:
    text = LIBRARY_PLAN.replace("    library(", "    late = empty((n, n))\n    library(").replace("a, b,", "a, late,")
    (fault,) = ran(text, sanitize=True).faults
    assert fault.kind == "sanitizer"
    assert f"reads {4 * N * N} bytes of 'late' that nothing wrote" in fault.message


def test_a_plan_with_a_call_has_counts_of_its_kernels_and_no_time(
    device: EmulatedDevice, prepared: Callable[[str], tuple[Any, Any]], arrays: list[Any]
) -> None:
    work, artifact = prepared(LIBRARY_PLAN)
    with device.open(artifact) as session:
        profile, performance = session.profile(work, facts(work.plan, arrays, 3 * 4 * N * N))
        assert performance is None
        assert profile.notes == ("1 library calls are in no number.",)
        assert [kernel.kernel for kernel in profile.kernels] == ["add"]
        with pytest.raises(RunFailed, match="no time is modelled of library"):
            session.rate(work, 1.0)
        part = session.run_part(work, {0: [1, 2]})
    assert part.parts == ()
    assert "torch operators" in part.reason


@pytest.fixture
def operator_calls(kept_zygotes: Callable[..., Zygote]) -> Iterator[OperatorCalls]:
    if select_tier().tier == "none":
        pytest.skip("no jail tier works on this machine")
    calls = OperatorCalls(kept_zygotes("operators"), 1 << 28)
    yield calls
    calls.close()


def test_the_runner_cannot_choose_the_operator_or_call_it_twice(
    prepared: Callable[[str], tuple[Any, Any]], operator_calls: OperatorCalls
) -> None:
    plan: ResolvedPlan = prepared(LIBRARY_PLAN)[0].plan
    content = bytes(4 * N * N)
    for number, blobs in [(1, (content, content)), (0, (content,)), (0, (content, content + b"1")), ("0", ())]:
        with pytest.raises(SandboxError, match="does not call"):
            operator_calls.answer(Frame({"library": number}, blobs), iter(enumerate(plan.libraries)), timeout_s=60)
    steps = iter(enumerate(plan.libraries))
    data, results = operator_calls.answer(Frame({"library": 0}, (content, content)), steps, timeout_s=60)
    assert data == {"faults": []}
    assert [bytes(blob) for blob in results] == [content]
    with pytest.raises(SandboxError, match="does not call"):
        operator_calls.answer(Frame({"library": 0}, (content, content)), steps, timeout_s=60)


def test_an_operator_that_ends_its_process_is_a_fault_and_the_next_call_works(
    prepared: Callable[[str], tuple[Any, Any]], operator_calls: OperatorCalls
) -> None:
    plan: ResolvedPlan = prepared(LIBRARY_PLAN)[0].plan
    content = bytes(4 * N * N)
    call_request = Frame({"library": 0}, (content, content))

    def answered() -> Any:
        return operator_calls.answer(call_request, iter(enumerate(plan.libraries)), timeout_s=60)[0]["faults"]

    assert answered() == []
    assert operator_calls._child is not None
    operator_calls._child.kill()
    ((kind, message),) = answered()
    assert kind == "crash"
    assert "ended its process" in message
    assert answered() == []


def view(buffer: int, *shape: int, stride: tuple[int, ...] = (), dtype: DType = DType.FLOAT32) -> TensorView:
    contiguous = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return TensorView(buffer, 0, shape, stride or contiguous, dtype)


def test_strides_empty_tensors_and_several_results() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    step = Library("topk", (view(0, 3, 2, stride=(1, 3)), 2), {}, (view(1, 3, 2), view(2, 3, 2, dtype=DType.INT64)), 4)
    values, indices = call_on_cpu(step, [x.tobytes()])
    np.testing.assert_array_equal(np.frombuffer(values, np.float32).reshape(3, 2), x.T[:, ::-1])
    np.testing.assert_array_equal(np.frombuffer(indices, np.int64), [1, 0] * 3)
    assert call_on_cpu(
        Library("matmul", (view(0, 0, 3), view(1, 3, 2)), {}, (view(2, 0, 2),), 4), [b"", bytes(24)]
    ) == (b"",)


def test_a_dtype_without_code_on_the_cpu_is_the_devices_lack() -> None:
    bools = view(0, 4, 4, dtype=DType.BOOL)
    step = Library("matmul", (bools, bools), {}, (view(1, 4, 4, dtype=DType.BOOL),), 4)
    with pytest.raises(LibraryCallFailed) as caught:
        call_on_cpu(step, [bytes(16)])
    assert caught.value.fault.kind == "unsupported"
