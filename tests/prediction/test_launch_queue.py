"""Launch and queue time: the closed sums against a simulation kernel by kernel, and a trace of PyTorch's profiler."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kernelforge.hardware.specs import A100, H100
from kernelforge.prediction import (
    Operator,
    OperatorTrace,
    gpu_bound_batch,
    measured_launch_queue,
    predict_launch_queue,
)
from kernelforge.prediction.baseline import fitted, operator_times
from kernelforge.prediction.launch_queue import LAUNCH_US
from kernelforge.prediction.operator_time import Setting, kernel_count
from kernelforge.prediction.operators import Operand
from kernelforge.records import LaunchQueue

EVENTS = json.loads(Path(__file__).with_name("kineto_trace.json").read_text(encoding="utf-8"))["traceEvents"]
HOST_US = fitted().parameters["host_us"]
MIB = 2**20


def pointwise(size: int, calls: int = 1) -> Operator:
    return Operator(
        name="relu", kind="pointwise", dtype="float32", reads=(Operand(bytes=size),), write_bytes=size,
        flops=size // 4, geometry={"elements": size // 4, "strided": 0}, calls=calls,
    )  # fmt: skip


def loss(size: int, calls: int = 1) -> Operator:
    """An operator of two kernels."""
    return pointwise(size, calls).model_copy(update={"name": "mse_loss", "kind": "loss", "geometry": {"mean": 1}})


def trace(*operators: Operator) -> OperatorTrace:
    return OperatorTrace(size="full", operators=operators)


def stepwise(operators: OperatorTrace) -> tuple[int, float]:
    """Kernels and TKLQT, launch by launch: a kernel starts when it has arrived and the one before it has ended."""
    parameters = fitted().parameters
    setting = Setting(H100, parameters, False)
    kernels, total, host, free = 0, 0.0, 0.0, 0.0
    for operator, time in zip(operators.operators, operator_times(operators.operators, setting), strict=True):
        count = max(1, round(operator.calls * kernel_count(operator, setting)))
        busy = (time.time_us + operator.calls * parameters["eager.gap_us"]) / count
        for _ in range(count):
            start = max(host + LAUNCH_US, free)
            total += start - host
            free = start + busy
            host += operator.calls * HOST_US / count
            kernels += 1
    return kernels, total


def test_the_closed_sums_are_those_of_a_simulation_kernel_by_kernel() -> None:
    rng = random.Random(5)
    for _ in range(40):
        operators = trace(
            *(
                rng.choice((pointwise, loss))(rng.choice((4096, MIB, 8 * MIB, 64 * MIB)), rng.choice((1, 1, 3, 40)))
                for _ in range(rng.randrange(1, 12))
            )
        )
        queue = predict_launch_queue(operators, H100)
        kernels, total = stepwise(operators)
        assert queue.kernels == kernels
        assert queue.tklqt_us == pytest.approx(total)


def test_small_kernels_wait_for_their_launches_alone_and_large_ones_queue_up() -> None:
    small = predict_launch_queue(trace(*[pointwise(4096)] * 10), H100)
    assert (small.bound, small.kernels, small.origin) == ("CPU", 10, "predicted")
    assert small.tklqt_us == pytest.approx(10 * LAUNCH_US)
    assert small.queue_us == pytest.approx(0)
    large = predict_launch_queue(trace(*[pointwise(256 * MIB)] * 10), H100)
    assert (large.bound, large.launch_us) == ("GPU", pytest.approx(10 * LAUNCH_US))
    # Each kernel waits for all earlier ones, less what the host needed for them.
    longer = (large.gpu_us - large.host_us) / 10
    assert large.tklqt_us == pytest.approx(10 * LAUNCH_US + longer * 45)
    assert predict_launch_queue(trace(pointwise(256 * MIB)), A100).queue_us == 0
    together, single = (
        predict_launch_queue(operators, H100)
        for operators in (trace(pointwise(64 * MIB, 1000)), trace(*[pointwise(64 * MIB)] * 1000))
    )
    assert together.tklqt_us == pytest.approx(single.tklqt_us)


def test_a_slow_host_moves_the_batch_from_which_on_the_gpu_is_slower() -> None:
    def least(host_us: float) -> int | None:
        return gpu_bound_batch(
            (batch, predict_launch_queue(trace(*[pointwise(batch * MIB)] * 8), H100, host_us=host_us))
            for batch in (1, 2, 4, 8, 16, 32, 64)
        )

    batches = [least(host_us) for host_us in (5.0, 15.0, 30.0, 1000.0)]
    assert batches[3] is None
    turning = [batch for batch in batches if batch is not None]
    assert len(turning) == 3
    assert turning == sorted(turning)
    assert turning[0] < turning[2]


def test_the_batch_is_that_from_which_on_no_larger_one_is_cpu_bound() -> None:
    def queue(gpu_us: float) -> LaunchQueue:
        return LaunchQueue(origin="predicted", kernels=1, tklqt_us=3, launch_us=2, host_us=10, gpu_us=gpu_us)

    assert gpu_bound_batch([(8, queue(30)), (1, queue(20)), (2, queue(5)), (4, queue(11))]) == 4
    assert gpu_bound_batch([(1, queue(20)), (2, queue(9))]) is None
    assert gpu_bound_batch([]) is None


def test_operators_without_a_time_are_refused() -> None:
    with pytest.raises(ValueError, match="no time follows"):
        predict_launch_queue(trace(pointwise(4096).model_copy(update={"geometry": {}})), H100)
    with pytest.raises(ValueError, match="launches nothing"):
        predict_launch_queue(trace(), H100)


def test_a_trace_of_the_profiler_gives_the_time_from_each_launch_to_its_kernel() -> None:
    queue = measured_launch_queue(EVENTS)
    assert (queue.origin, queue.kernels, queue.bound) == ("measured", 3, "CPU")
    assert queue.tklqt_us == pytest.approx(6 + 30 + 28)
    assert queue.launch_us == pytest.approx(3 * 6)
    assert queue.host_us == pytest.approx(64)
    assert queue.gpu_us == pytest.approx(40 + 6 + 2)


def changed(change: dict[str, Any], *, name: str) -> list[dict[str, Any]]:
    events = copy.deepcopy(EVENTS)
    next(event for event in events if event["name"] == name).update(change)
    return events


def test_traces_without_launches_or_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="has no kernel"):
        measured_launch_queue([event for event in EVENTS if event.get("cat") != "kernel"])
    with pytest.raises(ValueError, match="lacks the launch of kernel triton_poi_fused_relu_0"):
        measured_launch_queue(changed({"name": "cuModuleLoad"}, name="cuLaunchKernelEx"))
    early = measured_launch_queue(changed({"ts": 5600000000129.5}, name="sm80_xmma_gemm_f32f32"))
    assert early.tklqt_us == pytest.approx(30 + 28)  # the clocks of host and GPU differ a little


def test_what_pytorchs_profiler_writes_is_read(tmp_path: Path) -> None:
    """On a machine without a GPU its trace has operators and no kernel."""
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.relu(torch.ones(4))
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert any(event.get("cat") == "cpu_op" and event["name"] == "aten::relu" for event in events)
    with pytest.raises(ValueError, match="has no kernel"):
        measured_launch_queue(events)


def test_launches_are_no_more_than_launches_and_queue() -> None:
    with pytest.raises(ValidationError, match="more than launches and queue"):
        LaunchQueue(origin="measured", kernels=1, tklqt_us=3, launch_us=4, host_us=10, gpu_us=1)
