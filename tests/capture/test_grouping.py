"""Groups of a captured model's operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelforge.capture.grouping import groups_of, packet
from kernelforge.capture.records import CapturedGraph

X = "torch.randn(4, 16, 32)"

CASES = {
    "a product takes its epilogue": (
        "return x + F.gelu(self.up(x))",
        X,
        "self.up = nn.Linear(32, 32)",
        [("matmul", ["linear", "gelu", "add"])],
    ),
    "what a second product reads as well is no epilogue": (
        "h = self.up(x)\nreturn F.relu(h) + self.down(h)",
        X,
        "self.up, self.down = nn.Linear(32, 32), nn.Linear(32, 32)",
        [("matmul", ["linear"]), ("matmul", ["relu", "linear", "add"])],
    ),
    "a batch norm with running statistics is an epilogue": (
        "return F.relu(self.bn(self.conv(x)))",
        "torch.randn(2, 3, 16, 16)",
        "self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)",
        [("convolution", ["conv2d", "_native_batch_norm_legit_no_training", "getitem", "relu"])],
    ),
    "a norm that is written out is one reduction": (
        "m = x.mean(-1, keepdim=True)\nv = (x - m).pow(2).mean(-1, keepdim=True)\n"
        "return (x - m) / torch.sqrt(v + 1e-5)",
        X,
        "pass",
        [("reduction", ["mean", "sub", "pow", "mean", "sub", "add", "sqrt", "div"])],
    ),
    "a norm takes the sum before it, which only it reads": (
        "return self.norm(x + self.down(x))",
        X,
        "self.norm, self.down = nn.LayerNorm(32), nn.Linear(32, 32)",
        [("matmul", ["linear"]), ("reduction", ["add", "layer_norm"])],
    ),
    "an attention that is written out is one group": (
        "s = torch.matmul(x, x.transpose(1, 2)) / 5.0\nreturn torch.matmul(torch.softmax(s, -1), x)",
        X,
        "pass",
        [("attention", ["matmul", "div", "softmax", "matmul"])],
    ),
    "a rotation of halves is a chain of its own": (
        "q = self.q(x)\na, b = q[..., :16], q[..., 16:]\nr = q * 2 + torch.cat([-b, a], -1) * 3\n"
        "return F.scaled_dot_product_attention(r[:, None], r[:, None], r[:, None])",
        X,
        "self.q = nn.Linear(32, 32)",
        [
            ("matmul", ["linear"]),
            ("pointwise", ["mul", "neg", "cat", "mul", "add"]),
            ("attention", ["scaled_dot_product_attention"]),
        ],
    ),
    "a prologue that one product reads": (
        "return torch.matmul(torch.sigmoid(x), self.w)",
        X,
        "self.w = nn.Parameter(torch.randn(32, 8))",
        [("matmul", ["sigmoid", "matmul"])],
    ),
    "dropout that drops nothing is no operator": (
        "return self.norm(x + self.drop(self.down(x)))",
        X,
        "self.norm, self.down, self.drop = nn.LayerNorm(32), nn.Linear(32, 32), nn.Dropout(0.1)",
        [("matmul", ["linear"]), ("reduction", ["add", "layer_norm"])],
    ),
    "changes in place are values of their own": (
        "h = self.up(x)\nh.relu_()\nh[:, 0] = 1.0\nreturn torch.softmax(h, -1)",
        X,
        "self.up = nn.Linear(32, 32)",
        None,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_groups(name: str, graph_of: Callable[..., CapturedGraph]) -> None:
    body, inputs, init, expected = CASES[name]
    graph = graph_of(body, inputs, init)
    nodes = {node.name: node for node in graph.nodes}
    groups = groups_of(graph)
    kinds = [(group.kind, [packet(nodes[each].op) for each in group.nodes]) for group in groups]
    if expected is not None:
        assert sorted(kinds) == sorted(expected)
    computed = [name for group in groups for name in group.nodes]
    assert len(computed) == len(set(computed))
    ready = {node.name for node in graph.nodes if node.kind in ("input", "weight")}
    for group in groups:
        assert ready.issuperset([*group.inputs, *group.weights]), "a group reads what no earlier one made"
        made = set(ready)
        for each in (node.name for node in graph.nodes if node.name in {*group.views, *group.nodes}):
            assert made.issuperset(nodes[each].refs)
            made.add(each)
        ready |= set(group.outputs)


@pytest.mark.slow
def test_groups_never_wait_for_each_other(graph_of: Callable[..., CapturedGraph]) -> None:
    """The first product's sum also reads the second product, which reads the first: no group holds both."""
    graph = graph_of(
        "a = self.one(x)\nb = torch.sigmoid(a)\nreturn a + self.two(b) * b",
        X,
        "self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)",
    )
    groups = groups_of(graph)
    writers = {name: number for number, group in enumerate(groups) for name in group.outputs}
    for number, group in enumerate(groups):
        assert all(writers.get(name, -1) < number for name in group.inputs)
