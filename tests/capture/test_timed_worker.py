"""Times of a captured model on a GPU: the child's part on the CPU, with a trace that is given a GPU's events."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelforge.capture import timed_worker
from kernelforge.capture.client import (
    Source,
    capture_on_gpu,
    measured_record,
    model_children,
    model_times,
    source_request,
)
from kernelforge.capture.records import FEWEST_CALLS, CapturedGraph, ModelTimes
from kernelforge.devices.cuda.device import CudaDevice
from kernelforge.errors import SandboxError, TaskError, UsageError
from kernelforge.evaluation.oracle.worker.torch_device import HOST
from kernelforge.hardware.specs import spec_by_key
from kernelforge.report.terminal.capture import capture_lines
from kernelforge.sandbox.channel import Frame
from tests.capture.conftest import model_text
from tests.support.terminal import drawn

DRIVER = "tests.profiling.ncu.light_driver:create"
BODY = "h = torch.relu(self.up(x)) + torch.arange(64)\nreturn torch.softmax(h.view(4, -1), -1)"
TEXT = model_text(BODY, "torch.randn(4, 2, 64)", "self.up = nn.Linear(64, 64)")
SOURCE = Source(Path("net.py"), "make_model", TEXT)
INPUTS = Source(Path("net.py"), "make_inputs", TEXT)


def event(cat: str, name: str, ts: float, dur: float, correlation: int | None = None) -> dict[str, Any]:
    args = {} if correlation is None else {"args": {"correlation": correlation}}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, **args}


def node(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event("user_annotation", f"kernelforge node {name}", ts, dur)


def test_a_kernel_belongs_to_the_node_that_launched_it_whenever_it_runs() -> None:
    events = [
        event("kernel", "gemm", 500.0, 30.0, 7),
        node("linear", 100.0, 20.0),
        event("cuda_runtime", "cudaLaunchKernel", 105.0, 3.0, 7),
        event("cuda_driver", "cuLaunchKernel", 119.9, 3.0, 7),
        node("softmax", 121.0, 9.0),
        event("cuda_runtime", "cudaMemsetAsync", 122.0, 1.0, 8),
        event("cuda_driver", "cuLaunchKernelEx", 125.0, 1.0, 9),
        event("gpu_memset", "Memset", 530.0, 2.0, 8),
        event("kernel", "softmax", 532.0, 8.0, 9),
        node("linear", 200.0, 20.0),
        event("cuda_runtime", "cudaLaunchKernel", 205.0, 3.0, 10),
        event("kernel", "gemm", 540.0, 34.0, 10),
        node("view", 221.0, 1.0),
        event("cuda_runtime", "cudaLaunchKernel", 300.0, 3.0, 11),
        event("kernel", "of no node", 574.0, 100.0, 11),
        event("kernel", "without a launch", 674.0, 100.0, 12),
        event("gpu_user_annotation", "kernelforge node linear", 500.0, 30.0),
    ]
    assert timed_worker.node_times(events, 2) == pytest.approx({"linear": 32.0, "softmax": 5.0, "view": 0.0})
    with pytest.raises(TaskError, match=r"saw no kernel of the model.*--device emulated"):
        timed_worker.node_times([each for each in events if each["cat"] != "cuda_runtime"][:2], 2)


def on_a_gpu(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The trace as it would be if each operator of the CPU were one kernel of 2 us."""
    operators = [each for each in events if each.get("cat") == "cpu_op"]
    launches = [event("cuda_runtime", "cudaLaunchKernel", each["ts"], 0.0, n) for n, each in enumerate(operators)]
    kernels = [event("kernel", each["name"], 1e9 + n, 2.0, n) for n, each in enumerate(operators)]
    return [*events, *launches, *kernels]


@pytest.mark.slow
def test_each_node_of_the_captured_graph_has_a_time(
    graph_of: Callable[..., CapturedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = graph_of(BODY, "torch.randn(4, 2, 64)", "self.up = nn.Linear(64, 64)")
    traced = timed_worker.kernel_trace
    monkeypatch.setattr(timed_worker, "open_device", lambda name: HOST)
    monkeypatch.setattr(timed_worker, "kernel_trace", lambda *arguments: on_a_gpu(traced(*arguments)))
    nodes = {each.name: each.op for each in graph.nodes if each.kind == "op"}
    request = {**source_request(SOURCE, INPUTS, ""), "device": "cuda:0", "nodes": nodes}
    times = ModelTimes.model_validate(timed_worker.timed(request))
    assert set(nodes) <= set(times.nodes_us)
    assert min(times.nodes_us[name] for name in nodes) >= 2.0
    assert FEWEST_CALLS <= len(times.calls_us) <= timed_worker.MOST_CALLS
    with pytest.raises(TaskError, match="another one on real tensors"):
        timed_worker.timed({**request, "nodes": {"softmax": "aten.relu"}})


def times_elsewhere(text: str, monkeypatch: pytest.MonkeyPatch) -> ModelTimes:
    """``meta`` stands in for a GPU: there, too, most operators refuse an operand of the CPU."""
    traced = timed_worker.kernel_trace
    monkeypatch.setattr(timed_worker, "open_device", lambda name: torch.device("meta"))
    monkeypatch.setattr(timed_worker, "kernel_trace", lambda *arguments: on_a_gpu(traced(*arguments)))
    model, inputs = Source(Path("net.py"), "make_model", text), Source(Path("net.py"), "make_inputs", text)
    request = {**source_request(model, inputs, ""), "device": "cuda:0", "nodes": {}}
    return ModelTimes.model_validate(timed_worker.timed(request))


def test_plain_tensors_of_modules_move_with_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    init = "self.up = nn.Identity()\nself.up.mask = torch.ones(64)\nself.masks = {'causal': (torch.ones(64), 1)}"
    text = model_text("return x * self.up.mask * self.masks['causal'][0]", "torch.randn(4, 64)", init)
    assert times_elsewhere(text, monkeypatch).calls_us


def test_a_tensor_that_no_module_has_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    text = model_text("return x * MASK", "torch.randn(4, 64)") + "MASK = torch.ones(64)\n"
    with pytest.raises(TaskError, match=r"the model on meta fails: .*register it by register_buffer, or predict"):
        times_elsewhere(text, monkeypatch)


def test_shares_are_of_the_measured_times(graph_of: Callable[..., CapturedGraph]) -> None:
    graph = graph_of(BODY, "torch.randn(4, 2, 64)", "self.up = nn.Linear(64, 64)")
    by_op = {each.op.split(".")[1]: each.name for each in graph.nodes if each.kind == "op"}
    nodes_us = {by_op["linear"]: 60.0, by_op["relu"]: 5.0, by_op["add"]: 5.0, by_op["softmax"]: 30.0}
    times = ModelTimes(calls_us=tuple(200.0 + n % 7 for n in range(40)), nodes_us=nodes_us, torch="2.13.0+cu130")
    spec = spec_by_key("h100")
    record = measured_record(graph, times, SOURCE, INPUTS, "", spec, "NVIDIA H100 80GB HBM3")
    shares = {group.operators[0]: (group.time_us, group.share) for group in record.groups}
    assert shares["linear"] == pytest.approx((70.0, 0.7))
    assert shares["softmax"] == pytest.approx((30.0, 0.3))
    assert record.time_origin == "measured"
    assert record.kernels_us == pytest.approx(100.0)
    assert record.low_us <= record.total_us == 203.0 <= record.high_us
    assert "40 calls by CUDA events" in record.time_source
    text = " ".join(drawn(capture_lines(record)).split())
    assert "203 us in eager PyTorch, measured for NVIDIA H100 80GB HBM3 (95 %: " in text
    nothing = times.model_copy(update={"nodes_us": {"other": 3.0}})
    with pytest.raises(TaskError, match="no time was measured for any operator"):
        measured_record(graph, nothing, SOURCE, INPUTS, "", spec, "H100")


class Child:
    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = reply

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None: ...

    def call(self, request: dict[str, Any], *, timeout_s: float) -> Frame:
        return Frame(self.reply)


def answers(reply: dict[str, Any]) -> Callable[[], Any]:
    return lambda: Child(reply)


def test_times_that_cannot_be_read_are_the_childs_failure() -> None:
    """It runs third-party code."""
    until = time.monotonic() + 60
    replies: list[dict[str, Any]] = [{}, {"calls_us": [1.0] * 20, "nodes_us": {"a": -1.0}, "torch": "2"}]
    for reply in replies:
        with pytest.raises(SandboxError, match="times that cannot be read"):
            model_times(answers(reply), {}, until, Path("net.py"))
    with pytest.raises(TaskError, match=r"net\.py: out of memory"):
        model_times(answers({"error": "out of memory"}), {}, until, Path("net.py"))


@pytest.mark.slow
def test_a_confined_child_runs_and_traces_the_model(graph_of: Callable[..., CapturedGraph]) -> None:
    """It gets as far as the trace, in which a CPU has no kernel. The role is one that may start threads, as the
    profiler does, and needs no GPU."""
    graph = graph_of(BODY, "torch.randn(4, 2, 64)", "self.up = nn.Linear(64, 64)")
    nodes = {each.name: each.op for each in graph.nodes if each.kind == "op"}
    request = {**source_request(SOURCE, INPUTS, ""), "device": "cpu", "nodes": nodes}
    module = timed_worker.__name__
    with (
        model_children(module, role="modelnew", allow_unconfined=False, timeout_s=300) as spawn,
        pytest.raises(TaskError, match=r"net\.py: the profiler of PyTorch saw no kernel"),
    ):
        model_times(spawn, request, time.monotonic() + 300, SOURCE.path)


def test_a_device_that_is_no_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="no GPU of this machine; name one, such as cuda:0"):
        capture_on_gpu(SOURCE, INPUTS, "emulated:h100")


@pytest.mark.slow
def test_a_gpu_is_locked_and_what_the_child_says_of_it_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a GPU in software, and a torch that cannot use it."""
    gpu = CudaDevice(0, driver=DRIVER)
    monkeypatch.setattr("kernelforge.capture.client.make_device", lambda name, **_: gpu)
    monkeypatch.setattr("kernelforge.evaluation.pool.gpu_lock_folder", lambda: tmp_path)
    with pytest.raises(TaskError, match=r"net\.py: torch .* cannot use 'cuda:0' .*--device emulated:h100"):
        capture_on_gpu(SOURCE, INPUTS, "cuda:0")
    assert any(tmp_path.iterdir()), "there was no lock"
