"""A captured model: equal groups, times, floors, parts by name, and models that cannot be captured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernelforge.capture.client import equal_groups, graph_reply, node_times, read_graph
from kernelforge.capture.records import CapturedGraph
from kernelforge.capture.worker import Made, capture, captured, exported, looks_at_values
from kernelforge.errors import ChildDied, TaskError
from kernelforge.hardware.specs import spec_by_key
from kernelforge.prediction import kernel_us, predict_baseline
from kernelforge.sandbox.channel import Frame
from tests.capture.conftest import PRELUDE, model_text

LAYERS = "self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(3))"
FORWARD = "for layer in self.layers:\n    x = layer(x)\nreturn x"


@pytest.mark.slow
def test_a_repeated_layer_is_one_group_with_its_calls(graph_of: Callable[..., CapturedGraph]) -> None:
    graph = graph_of(FORWARD, "torch.randn(4, 16, 32)", LAYERS)
    spec = spec_by_key("h100")
    eager = predict_baseline(graph.trace, spec)
    product, norm = equal_groups(graph, node_times(graph, eager), spec)[::-1]
    assert (product.operators, norm.operators) == (("linear", "gelu"), ("layer_norm",))
    assert [call.module for call in product.calls] == ["layers.0", "layers.1", "layers.2"]
    assert [call.weights for call in norm.calls] == [(f"layers.{n}.0.weight", f"layers.{n}.0.bias") for n in range(3)]
    assert product.flops == 2 * 4 * 16 * 32 * 32 + 4 * 16 * 32
    assert product.bytes == 4 * (2 * 4 * 16 * 32 + 32 * 32 + 32)
    total = sum(group.time_us * len(group.calls) for group in (product, norm))
    assert total == pytest.approx(sum(part.time_us for part in eager.per_operator))


@pytest.mark.slow
def test_a_floor_is_a_time_of_the_same_kind_as_that_of_the_kernels(graph_of: Callable[..., CapturedGraph]) -> None:
    """Neither has a launch, and both read from the L2 what the product has just written."""
    graph = graph_of("return torch.softmax(self.up(x), -1)", "torch.randn(4, 96, 64)", "self.up = nn.Linear(64, 64)")
    spec = spec_by_key("h100")
    times = node_times(graph, predict_baseline(graph.trace, spec))
    groups = {group.kind: group for group in equal_groups(graph, times, spec)}
    product, softmax = groups["matmul"], groups["reduction"]
    assert kernel_us() < softmax.floor_us < softmax.time_us < spec.launch_overhead_us
    written = 4 * 4 * 96 * 64
    from_dram = kernel_us() + softmax.bytes / spec.dram_sustained_gbps * 1e-3
    assert softmax.floor_us == pytest.approx(from_dram - written / spec.dram_sustained_gbps * 1e-3)
    assert product.floor_us == pytest.approx(kernel_us() + product.bytes / spec.dram_sustained_gbps * 1e-3)
    assert product.headroom == pytest.approx(product.time_us / product.floor_us)


@pytest.mark.slow
def test_complex_numbers_are_the_reason_why_a_group_has_no_task(graph_of: Callable[..., CapturedGraph]) -> None:
    """Also where another group alone reads them, and in bytes."""
    graph = graph_of("return torch.fft.irfft(torch.fft.rfft(x) * 2)", "torch.randn(4, 64)")
    groups = equal_groups(graph, {}, spec_by_key("h100"))
    transform, product, _ = groups
    reason = "fft_rfft is complex64: complex numbers are not supported as inputs, weights or outputs of a task"
    assert [transform.no_task, product.no_task] == [reason, reason]
    assert (transform.bytes, product.bytes) == (4 * 64 * 4 + 4 * 33 * 8, 2 * 4 * 33 * 8)


def test_the_graph_of_a_model_on_a_device_is_walked_on_the_host() -> None:
    """As of a model that :func:`.splice` is given; ``meta`` stands in for a GPU."""
    elsewhere = torch.device("meta")

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x + torch.arange(64, device=x.device), -1)

    program = exported(Made(Net(), (torch.empty(4, 64, device=elsewhere),), {}))
    graph = read_graph(captured(program) | {"training": False})
    assert [node.op.split(".")[1] for node in graph.nodes if node.kind == "op"] == ["arange", "add", "softmax"]


@pytest.mark.slow
def test_a_large_model_takes_no_memory(graph_of: Callable[..., CapturedGraph]) -> None:
    graph = graph_of("return self.up(x)", "torch.randn(8, 1 << 20)", "self.up = nn.Linear(1 << 20, 1 << 20)")
    weight = next(node for node in graph.nodes if node.role == "parameter" and "weight" in node.op)
    assert weight.spec is not None
    assert weight.spec.nbytes == 4 << 40


@pytest.mark.slow
def test_a_part_is_captured_where_the_rest_has_no_graph(graph_of: Callable[..., CapturedGraph]) -> None:
    init = "self.part, self.rest = nn.Sequential(nn.Linear(32, 8), nn.ReLU()), nn.Linear(8, 8)"
    body = "h = self.part(x * 2)\nreturn self.rest(h) if h.sum() > 0 else h"
    with pytest.raises(TaskError, match=r"depend on values of tensors.*--module"):
        graph_of(body, "torch.randn(4, 32)", init)
    graph = graph_of(body, "torch.randn(4, 32)", init, module="part")
    assert [node.op for node in graph.nodes if node.kind == "op"] == ["aten.linear", "aten.relu"]
    assert [node.op for node in graph.nodes if node.kind == "weight"] == ["0.weight", "0.bias"]
    with pytest.raises(TaskError, match=r"no module 'nothing'; it has: part"):
        graph_of(body, "torch.randn(4, 32)", init, module="nothing")


CONVERTED = model_text("return self.up(x.half())", "torch.randn(2, 8)", "self.up = nn.Linear(8, 8).half()")


@pytest.mark.slow
def test_a_model_that_is_converted_is_made_for_real() -> None:
    files = (CONVERTED, "make_model", CONVERTED, "make_inputs", "")
    with pytest.raises(TaskError) as raised:
        capture(*files)
    assert looks_at_values(raised.value)
    weights = [node.spec for node in read_graph(capture(*files, real=True)).nodes if node.kind == "weight"]
    assert [spec and spec.dtype.value for spec in weights] == ["float16", "float16"]


class Children:
    """Children that answer one request each."""

    def __init__(self, *answers: Frame | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[bool, bool]] = []

    def __call__(self) -> Any:
        return contextlib.nullcontext(self)

    def call(self, request: dict[str, Any], *, timeout_s: float) -> Frame:
        self.asked.append((request["real"], timeout_s > 0))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_file_is_executed_once_in_each_process() -> None:
    """A file that registers an operator fails the second time it is executed."""
    until = time.monotonic() + 60
    needs = Frame({"error": "no fake implementation", "needs_values": True})
    children = Children(needs, Frame({"nodes": []}))
    assert graph_reply(children, {}, until) == {"nodes": []}
    assert children.asked == [(False, True), (True, True)]
    assert graph_reply(Children(Frame({"error": "no disk", "needs_values": False})), {}, until)["error"] == "no disk"
    with pytest.raises(TaskError, match=r"process ended.*for real because on shapes alone no fake implementation"):
        graph_reply(Children(needs, ChildDied("out of memory")), {}, until)


BAD = {
    "a factory that raises": (PRELUDE + "def make_model():\n    raise RuntimeError('no disk')\n", "no disk"),
    "no module": (PRELUDE + "def make_model():\n    return 3\n", "returns int; let it return a torch.nn.Module"),
    "no function": (PRELUDE, "no function 'make_model'"),
    "a package that is missing": ("import not_there\n", "No module named 'not_there'; install that package"),
    "no inputs": (
        PRELUDE + "def make_model():\n    return nn.ReLU()\ndef make_inputs():\n    return []\n",
        "returns nothing; let it return the arguments",
    ),
    "arguments that do not fit": (
        PRELUDE + "def make_model():\n    return nn.Linear(4, 4)\ndef make_inputs():\n    return [torch.randn(2, 5)]\n",
        "gives no graph of the model",
    ),
    "an operator without a schema": (
        "import torch\nfrom torch import nn\n"
        "library = torch.library.Library('capture_test', 'FRAGMENT')\n"
        "library.define('twice(Tensor x) -> Tensor')\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return torch.ops.capture_test.twice(x)\n"
        "def make_model():\n    return Net()\ndef make_inputs():\n    return [torch.randn(2)]\n",
        "an operator of the model has no schema, or no result for shapes alone",
    ),
    "a value that no shape follows": (model_text("return x * x.sum().item()", "torch.randn(4)"), "depend on values of"),
    "a mask that is an index": (model_text("return x[x > 0] * 2", "torch.randn(4)"), "depend on values of tensors"),
    "branches that are graphs": (
        model_text("return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))", "torch.randn(4)"),
        "calls torch's cond, which has graphs of its own",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_captured_says_why_in_a_sentence(name: str) -> None:
    text, reason = BAD[name]
    with pytest.raises(TaskError) as raised:
        capture(text, "make_model", text, "make_inputs", "")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)
