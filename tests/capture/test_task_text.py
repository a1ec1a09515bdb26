"""Task files of captured groups: they compute what the group computes, at the model's sizes and at others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelforge.capture.client import equal_groups
from kernelforge.capture.records import CapturedGraph
from kernelforge.capture.task_text import TaskText
from kernelforge.evaluation.oracle.worker.reference import Reference, flatten_outputs
from kernelforge.hardware.specs import spec_by_key
from kernelforge.records import TensorSpec

ATTENTION = """
b, n, _ = x.shape
q, k, v = self.qkv(x).split(32, dim=-1)
q, k, v = (t.view(b, n, 2, 16).transpose(1, 2) for t in (q, k, v))
k = torch.cat([-k[..., 8:], k[..., :8]], -1) * 0.5
a = torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v
return self.out(a.transpose(1, 2).reshape(b, n, 32))
"""
CASES = {
    "attention": (ATTENTION, "torch.randn(3, 24, 32)", "self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)"),
    "convolution": (
        "return F.max_pool2d(F.relu(self.bn(self.conv(x))), 2).flatten(1)",
        "torch.randn(2, 3, 16, 16)",
        "self.conv, self.bn = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)",
    ),
    "lookup": (
        "return self.norm(self.table(x) + self.places(x % 20))",
        "torch.randint(0, 40, (2, 12))",
        "self.table, self.places, self.norm = nn.Embedding(40, 16), nn.Embedding(20, 16), nn.LayerNorm(16)",
    ),
    "mask and casts": (
        "m = torch.ones(12, 12, dtype=torch.bool).tril()\n"
        "s = x.half().float().masked_fill(~m, float('-inf'))\nreturn torch.log_softmax(s.clamp(max=3.0), -1)",
        "torch.randn(2, 12, 12)",
        "pass",
    ),
    "two results": (
        "v, i = torch.max(self.drop(self.up(x)), -1)\nreturn v * 2, i",
        "torch.randn(4, 24)",
        "self.up, self.drop = nn.Linear(24, 40), nn.Dropout(0.1)",
    ),
}  # fmt: skip


def specs_of(tensors: list[torch.Tensor]) -> list[tuple[tuple[int, ...], str]]:
    return [(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in tensors]


def shapes(specs: tuple[TensorSpec, ...]) -> list[tuple[tuple[int, ...], str]]:
    return [(spec.shape, spec.dtype.value) for spec in specs]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_tasks_of_a_model_one_after_the_other_are_the_model(
    name: str, graph_of: Callable[..., CapturedGraph]
) -> None:
    """Every group's task runs on the values of the groups before it, with the model's weights."""
    body, inputs, init = CASES[name]
    graph = graph_of(body, inputs, init)
    nodes = {node.name: node for node in graph.nodes}
    groups = equal_groups(graph, {}, spec_by_key("h100"))
    model, values = model_and_inputs(body, inputs, init)
    expected = flatten_outputs(model(*values))
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    made: dict[str, torch.Tensor] = {}
    for node in graph.nodes:
        if node.kind == "input":
            made[node.name] = values[int(node.op)]
    assert [group.no_task for group in groups if group.no_task] == []
    calls = [(call, group) for group in groups for call in group.calls]
    while calls:
        call, group = next(each for each in calls if made.keys() >= set(each[0].inputs))
        calls.remove((call, group))
        reference = Reference(TaskText(group, nodes, "net").source, {})
        drawn = flatten_outputs(reference.model(*reference.inputs(0)))
        assert specs_of(drawn) == shapes(group.output_specs)
        own = {weight.name: weights[name] for weight, name in zip(group.weights, call.weights, strict=True)}
        reference.model.load_state_dict(own)
        reference.model.eval()
        made |= zip(call.outputs, flatten_outputs(reference.model(*(made[name] for name in call.inputs))), strict=True)
    results = [made[name] for name in results_of(graph, made)]
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result.reshape(value.shape), value)


def results_of(graph: CapturedGraph, made: dict[str, torch.Tensor]) -> list[str]:
    """Values that the model's results are, behind views of the whole."""
    nodes = {node.name: node for node in graph.nodes}
    names = []
    for name in graph.nodes[-1].refs:
        while name not in made:
            (name,) = nodes[name].refs
        names.append(name)
    return names


def model_and_inputs(body: str, inputs: str, init: str) -> tuple[nn.Module, list[torch.Tensor]]:
    from tests.capture.conftest import model_text

    namespace: dict[str, object] = {}
    exec(model_text(body, inputs, init), namespace)
    return namespace["make_model"](), namespace["make_inputs"]()  # type: ignore[operator]


@pytest.mark.slow
def test_extents_are_constants_and_numbers_follow_them(graph_of: Callable[..., CapturedGraph]) -> None:
    graph = graph_of(ATTENTION, CASES["attention"][1], CASES["attention"][2])
    nodes = {node.name: node for node in graph.nodes}
    groups = equal_groups(graph, {}, spec_by_key("h100"))
    (attention,) = (group for group in groups if group.kind == "attention")
    text = TaskText(attention, nodes, "net")
    rows = next(name for name, value in text.constants.items() if value == 24)
    other = Reference(text.source, {rows: 11})
    assert 11 in flatten_outputs(other.model(*other.inputs(0)))[0].shape
