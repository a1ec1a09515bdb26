"""Calls of groups in a model's graph, replaced by modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelforge.capture.records import CapturedGroup
from kernelforge.capture.worker import Made, Tensors, exported, made_of
from kernelforge.packaging.graph_rewrite import Replacement, replaced_graph
from tests.packaging.two_blocks import TWO_BLOCKS, groups_of_model


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[torch.Tensor, ...]] = []

    def forward(self, x: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
        self.calls.append((x, weight, bias))
        return [F.layer_norm(x, (32,), weight, bias)]


def graph_of(text: str) -> tuple[Made, Tensors, torch.export.ExportedProgram]:
    made = made_of(text, "make_model", text, "make_inputs", "")
    wrapped = Tensors(made.model)
    with torch.no_grad():
        return made, wrapped, exported(made, wrapped)


def replacements(group: CapturedGroup, module: nn.Module, order: tuple[int, ...], *axes: object) -> list[Replacement]:
    restored = axes or (None,) * len(group.output_specs)
    return [Replacement(call, module, order, restored) for call in group.calls]  # type: ignore[arg-type]


@pytest.mark.slow
def test_every_call_of_a_repeated_group_is_replaced_with_its_own_weights() -> None:
    made, wrapped, program = graph_of(TWO_BLOCKS)
    norm = Norm()
    graph = replaced_graph(program, wrapped, replacements(groups_of_model(TWO_BLOCKS)["layer_norm"], norm, (1, 0)))
    with torch.no_grad():
        expected, got = wrapped(*made.args), graph(*made.args)
    assert [torch.equal(a, b) for a, b in zip(expected, got, strict=True)] == [True] * 3
    layers = [made.model.get_submodule(f"layers.{at}.norm") for at in range(2)]
    assert [
        (call[1] is layer.weight, call[2] is layer.bias) for call, layer in zip(norm.calls, layers, strict=True)
    ] == [(True, True)] * 2
    assert not any("layer_norm" in str(node.target) for node in graph.graph.nodes)
    assert made.model.calls == 2, "a buffer that the model writes is written by both"


SEVERAL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(16, 4)
        self.scale = torch.tensor([2.0, 3.0])

    def forward(self, x, y):
        first = x.exp() * 2
        joined = torch.cat([first.transpose(1, 2), y], -1)
        second = first.sin()
        self_made = self.out(second)
        return self_made, joined, second.sum(), self.scale * 2

def make_model():
    return Net().eval()

def make_inputs():
    return {"x": torch.randn(2, 8, 16), "y": torch.randn(2, 16, 3)}
"""


class Both(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.exp() * 2
        return torch.cat([first.transpose(1, 2), y], -1), first.sin()


@pytest.mark.slow
def test_a_group_of_several_outputs_gives_each_to_its_readers() -> None:
    made, wrapped, program = graph_of(SEVERAL)
    groups = groups_of_model(SEVERAL)
    group = groups["exp mul cat sin"]
    assert len(group.output_specs) == 2
    graph = replaced_graph(program, wrapped, replacements(group, Both(), ()))
    inputs = made.keywords["x"], made.keywords["y"]
    with torch.no_grad():
        for a, b in zip(wrapped(**made.keywords), graph(*inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    names = [name for name, _ in graph.named_parameters()]
    assert names == ["out.weight", "out.bias"]
    assert graph.get_parameter("out.weight") is made.model.get_parameter("out.weight")


STRIDED = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return (x.transpose(1, 2) * 3 + 1).transpose(1, 2).view(-1)

def make_model():
    return Net()

def make_inputs():
    return [torch.randn(2, 8, 16)]
"""


class Scale(nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [(x.transpose(1, 2) * 3 + 1).contiguous()]


@pytest.mark.slow
def test_outputs_get_the_strides_that_the_model_has() -> None:
    made, wrapped, program = graph_of(STRIDED)
    (group,) = groups_of_model(STRIDED).values()
    assert not group.output_specs[0].is_contiguous
    graph = replaced_graph(program, wrapped, replacements(group, Scale(), (), (0, 2, 1)))
    torch.testing.assert_close(graph(*made.args)[0], wrapped(*made.args)[0], rtol=0, atol=0)
