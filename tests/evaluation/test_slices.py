"""Axes whose slices can be worked out by themselves, and comparisons of some elements."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelforge.errors import TaskError
from kernelforge.evaluation.oracle.worker.reference import Reference, Value
from kernelforge.evaluation.oracle.worker.reference_facts import facts_at
from kernelforge.evaluation.oracle.worker.reference_runner import InputDraw, ReferenceRunner
from kernelforge.evaluation.oracle.worker.slices import Elements, Mean, Slices, Slicing, elements_of
from kernelforge.evaluation.oracle.worker.tiles import TiledTensor
from kernelforge.records import DType, Size, Task

HEADER = """
import torch
import torch.nn as nn
import torch.nn.functional as F
B, M, K, N = 40, 30, 50, 21
"""


def task(forward: str, inputs: str, *, extra: str = "", ties: tuple[int, ...] = ()) -> Task:
    arguments = ", ".join("xyz"[: inputs.count("torch.")])
    source = (
        f"{HEADER}\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {extra or 'pass'}\n"
        f"    def forward(self, {arguments}):\n        return {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return []\n"
    )
    sizes = (
        Size(name="full"),
        Size(name="small", constants={"B": 6, "M": 10, "K": 12, "N": 8}),
        Size(name="hidden_a", constants={"B": 5, "M": 7, "K": 9, "N": 4}),
        Size(name="hidden_b", constants={"B": 7, "M": 4, "K": 5, "N": 9}),
    )
    policy = {"ties": ties}
    return Task.model_validate(
        {"name": "t", "suite": "test", "title": "", "level": 1, "source": source, "sizes": sizes, "policy": policy}
    )


SLICED = {
    "softmax": (task("torch.softmax(x, -1)", "torch.randn(M, N)"), Slicing({0: 0}, (0,))),
    "rows of a product": (task("x @ y", "torch.randn(M, K), torch.randn(K, N)"), Slicing({0: 0}, (0,))),
    "a transposed product": (task("x.T @ y", "torch.randn(K, M), torch.randn(K, N)"), Slicing({0: 1}, (0,))),
    "columns only": (
        task("torch.softmax(x, 0) * y", "torch.randn(M, N), torch.randn(N)"),
        Slicing({0: 1, 1: 0}, (1,)),
    ),
    "batches": (task("x @ y", "torch.randn(B, M, K), torch.randn(B, K, N)"), Slicing({0: 0, 1: 0}, (0,))),
    "convolution": (
        task("torch.relu(self.c(x))", "torch.randn(B, 3, M, K)", extra="self.c = nn.Conv2d(3, 4, 3)"),
        Slicing({0: 0}, (0,)),
    ),
    "argmax": (task("x.argmax(1)", "torch.randn(M, N)", ties=(0,)), Slicing({0: 0}, (0,))),
    "two outputs": (
        task("torch.max(x, 1).values, x.sum(1, keepdim=True).T", "torch.randn(M, N)"),
        Slicing({0: 0}, (0, 1)),
    ),
    "attention": (
        task(
            "F.scaled_dot_product_attention(x, y, z)",
            "torch.randn(B, 2, M, K), torch.randn(B, 2, M, K), torch.randn(B, 2, M, K)",
        ),
        Slicing({0: 0, 1: 0, 2: 0}, (0,)),
    ),
    "what seldom passes a ReLU": (
        task("torch.relu(x.sum(1, keepdim=True) - 40)", "torch.rand(M, N)"),
        Slicing({0: 0}, (0,)),
    ),
    "batch norm": (
        task("self.n(x)", "torch.randn(B, N, M)", extra="self.n = nn.BatchNorm1d(N)"),
        Slicing({0: 1}, (1,), dict.fromkeys(("n.weight", "n.bias", "n.running_mean", "n.running_var"), 0)),
    ),
    "features behind a batch norm": (
        task("self.n(self.l(x))", "torch.randn(B, K)", extra="self.l = nn.Linear(K, N); self.n = nn.BatchNorm1d(N)"),
        Slicing(
            {},
            (1,),
            dict.fromkeys(("l.weight", "l.bias", "n.weight", "n.bias", "n.running_mean", "n.running_var"), 0),
        ),
    ),
    "labels": (
        task(
            "F.cross_entropy(x, y, reduction='none')",
            "torch.randn(M, N), torch.randint(0, N, (M,))",
        ),
        Slicing({0: 0, 1: 0}, (0,)),
    ),
}


@pytest.mark.parametrize("name", SLICED)
def test_the_axis_whose_slices_stand_by_themselves_is_found(name: str) -> None:
    task, slicing = SLICED[name]
    assert Slices(ReferenceRunner(task)).slicings[0] == slicing


FURTHER = {
    "softmax": [],
    "rows of a product": [Slicing({1: 1}, (1,))],
    "a transposed product": [Slicing({1: 1}, (1,))],
    "columns only": [],
    "batches": [Slicing({0: 1}, (1,)), Slicing({1: 2}, (2,))],
    "convolution": [Slicing({}, (1,), {"c.weight": 0, "c.bias": 0})],
    "attention": [Slicing({0: 1, 1: 1, 2: 1}, (1,)), Slicing({0: 2}, (2,)), Slicing({2: 3}, (3,))],
}
"""Further axes, along which slices stand by themselves too."""


@pytest.mark.parametrize("name", FURTHER)
def test_further_axes_are_found(name: str) -> None:
    assert list(Slices(ReferenceRunner(SLICED[name][0])).slicings[1:]) == FURTHER[name]


WHOLE = {
    "sum": task("x.sum()", "torch.randn(M, N)"),
    "an extent of its own": task("x / B", "torch.randn(B, M)"),
    "a mean over everything": task("x - x.mean()", "torch.randn(M, N)"),
    "a mean behind a ReLU": task("torch.relu(x.sum(1, keepdim=True) - x.mean() - 40)", "torch.rand(M, N)"),
    "a batch norm's neighbours": task("self.n(x).sum(1)", "torch.randn(B, 3, M)", extra="self.n = nn.BatchNorm1d(3)"),
    "rows in another order": task("x.flip(0) + x.flip(1)", "torch.randn(M, N)"),
}


@pytest.mark.parametrize(
    "name",
    ["sum", "a mean over everything", "a mean behind a ReLU", "rows in another order", "a batch norm's neighbours"],
)
def test_where_slices_hang_together_there_is_no_such_axis(name: str) -> None:
    assert not Slices(ReferenceRunner(WHOLE[name])).slicings


@pytest.mark.slow
def test_slices_that_stand_on_the_tasks_own_inputs_alone_are_told_apart() -> None:
    """Of products of triangular matrices, rows alone look right: the part that is cut off is zero anyway."""
    square = "torch.rand(M, M).triu(), torch.rand(M, M).triu()"
    triangular = Slices(ReferenceRunner(task("torch.triu(x @ y)", square)))
    assert triangular.slicings[0] == Slicing({0: 0}, (0,))
    assert not triangular.stand_on("normal")
    assert Slices(ReferenceRunner(task("x @ y", square))).stand_on("normal")


def test_a_constant_divisor_does_not_hinder() -> None:
    assert Slices(ReferenceRunner(WHOLE["an extent of its own"])).slicings[0] == Slicing({0: 0}, (0,))


def right(reckoner: ReferenceRunner, seed: int, wrong: float = 0.0) -> bool:
    """Compare what torch gives at the chosen elements, the first of them moved by ``wrong``."""
    drawn = reckoner.draw("full", "task", seed, expected=False)
    elements = Slices(reckoner).choose("full", seed, 5)
    outputs = reckoner.reference("full").run(drawn.inputs)
    got = {}
    for position, output in enumerate(outputs):
        indices = torch.tensor(sorted(elements[position]))
        values = output.reshape(-1)[indices].clone()
        values[0] += torch.tensor(wrong).to(values.dtype)
        got[position] = Elements(indices, values.numpy().tobytes())
    comparison = Slices(reckoner).compare(drawn, elements, got)
    assert comparison.total == sum(map(len, elements.values()))
    return comparison.ok


@pytest.mark.slow
@pytest.mark.parametrize("name", SLICED)
def test_elements_are_compared_with_the_reference_on_their_slices(name: str) -> None:
    reckoner = ReferenceRunner(SLICED[name][0])
    assert right(reckoner, 3)
    assert not right(reckoner, 4, wrong=1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "most"), [("rows of a product", 2000), ("batches", 2000), ("attention", 9000), ("convolution", 19_000)]
)
def test_slices_too_large_are_cut_along_further_axes(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    reckoner = ReferenceRunner(SLICED[name][0])
    plain = Slices(reckoner)
    for limit in ("PART_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(f"kernelforge.evaluation.oracle.worker.slices.{limit}", most)
    shapes: list[torch.Size] = []
    expected_at = ReferenceRunner.expected_at

    def recorded(self: ReferenceRunner, size: str, reference: Reference, inputs: tuple[Value, ...]) -> Any:
        shapes[:] = [value.shape for value in inputs if isinstance(value, torch.Tensor)]
        return expected_at(self, size, reference, inputs)

    monkeypatch.setattr(ReferenceRunner, "expected_at", recorded)
    assert right(reckoner, 3)
    assert not right(reckoner, 4, wrong=1.0)
    assert 4 * sum(shape.numel() for shape in shapes) <= most
    first, second = (plain.choose("full", seed, 5)[0] for seed in (1, 2))
    assert first[0] == second[0]
    assert set(first) != set(second)
    for limit in ("WHOLE_BYTES", "SLICE_BYTES"):
        monkeypatch.setattr(f"kernelforge.evaluation.oracle.worker.slices.{limit}", 10)
    with pytest.raises(TaskError, match="the smallest part of the reference that stands by itself takes"):
        plain.choose("full", 1, 5)


def test_weights_that_would_not_fit_with_their_twins_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reckoner = ReferenceRunner(task("self.l(x)", "torch.rand(M, N)", extra="self.l = nn.Linear(N, 8)"))
    weights = [weight.nbytes for weight in reckoner.reference("full").model.parameters()]
    limit = "kernelforge.evaluation.oracle.worker.slices.WEIGHT_BYTES"
    monkeypatch.setattr(limit, 3 * sum(weights) + 2 * max(weights))
    assert Slices(reckoner).choose("full", 1, 5)
    monkeypatch.setattr(limit, 3 * sum(weights) + 2 * max(weights) - 1)
    with pytest.raises(TaskError, match="the weights take"):
        Slices(reckoner).choose("full", 1, 5)


def test_a_reference_is_described_once_for_facts_and_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    reckoner = ReferenceRunner(SLICED["softmax"][0])
    facts = facts_at(reckoner.described("full"), "full", (), (), fake=True)
    monkeypatch.delattr("kernelforge.evaluation.oracle.worker.reference_facts.size_facts")
    assert len(Slices(reckoner).choose("full", 3, 5)[0]) == 5
    assert facts_at(reckoner.described("full"), "full", (), (), fake=True) is facts


def test_elements_of_tiled_inputs_are_compared_with_the_reference_on_their_slices() -> None:
    reckoner = ReferenceRunner(SLICED["rows of a product"][0])
    drawn_whole = reckoner.draw("full", "task", 5, expected=False)
    x = drawn_whole.inputs[0]
    assert isinstance(x, torch.Tensor)
    tiled = TiledTensor(tuple(x.shape), x.reshape(-1)[:311])
    drawn = InputDraw("full", "task", (tiled.tile, drawn_whole.inputs[1]), None, seed=5, tiles={0: tiled})
    output = reckoner.reference("full").run((tiled.select({}), drawn_whole.inputs[1]))[0]
    elements = Slices(reckoner).choose("full", 3, 5)
    indices = torch.tensor(sorted(elements[0]))
    for wrong in (0, 1):
        got = {0: Elements(indices, (output.reshape(-1)[indices] + wrong).numpy().tobytes())}
        assert Slices(reckoner).compare(drawn, elements, got).ok is not bool(wrong)


def test_elements_without_an_axis_of_slices_are_compared_with_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reckoner = ReferenceRunner(WHOLE["a mean over everything"])
    assert right(reckoner, 3)
    assert not right(reckoner, 3, wrong=1.0)
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.slices.WHOLE_FLOPS", 10)
    with pytest.raises(TaskError, match="no axis whose slices"):
        Slices(reckoner).choose("full", 1, 5)


MEANS = {
    "a mean of squares": (task("((x - y) ** 2).mean()", "torch.rand(M, N), torch.rand(M, N)"), Mean((0, 1), True)),
    "a smooth loss": (task("F.smooth_l1_loss(x, y)", "torch.rand(M, N), torch.rand(M, N)"), Mean((0, 1), True)),
    "labels of columns": (
        task("torch.clamp(1 - x * y, min=0).mean()", "torch.rand(M, N), torch.rand(N)"),
        Mean((0,), True),
    ),
    "a sum": (task("(x * x).sum()", "torch.rand(M, N)"), Mean((0,), False)),
    "a norm": (task("x.norm()", "torch.rand(M, N)"), None),
    "the largest": (task("x.max()", "torch.rand(M, N)"), None),
    "a product of means": (task("x.mean() * y.mean()", "torch.rand(M, N), torch.rand(M, N)"), Mean((0,), True)),
    "rows": (task("x.mean(1)", "torch.rand(M, N)"), None),
}


@pytest.mark.parametrize("name", MEANS)
def test_one_number_that_is_a_mean_of_parts_is_compared_with_their_references(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of a loss over gigabytes nothing could be compared."""
    of, mean = MEANS[name]
    reckoner = ReferenceRunner(of)
    slices = Slices(reckoner)
    assert slices.mean == mean
    if mean is None:
        return
    monkeypatch.setattr("kernelforge.evaluation.oracle.worker.slices.MEAN_BYTES", 7 * 21 * 4)
    drawn = reckoner.draw("full", "task", 5, expected=False)
    x = drawn.inputs[0]
    assert isinstance(x, torch.Tensor)
    tiled = TiledTensor(tuple(x.shape), x.reshape(-1)[:311])
    drawn = InputDraw("full", "task", (tiled.tile, *drawn.inputs[1:]), None, seed=5, tiles={0: tiled})
    (value,) = reckoner.reference("full").run((tiled.select({}), *drawn.inputs[1:]))
    for factor, is_right in ((1.0, True), (1.0 + 1e-6, True), (1.001, False), (0.0, False)):
        got = {0: Elements(None, (value * factor).numpy().tobytes())}
        comparison = slices.compare_whole(drawn, got)
        assert (comparison.ok, comparison.total) == (is_right, 1)


def test_the_last_element_is_among_the_chosen_and_seeds_differ() -> None:
    slices = Slices(ReferenceRunner(SLICED["softmax"][0]))
    first, second = slices.choose("full", 1, 8)[0], slices.choose("full", 2, 8)[0]
    assert first[0] == second[0] == 30 * 21 - 1
    assert set(first) != set(second)


def test_weights_of_the_draw_are_those_of_the_comparison() -> None:
    """Another draw at the same size redraws the weights in between."""
    reckoner = ReferenceRunner(
        task("self.l(x)", "torch.randn(M, K)", extra="self.l = nn.Linear(50 if M == 30 else K, 5)")
    )
    drawn = reckoner.draw("full", "task", 5, expected=False)
    output = reckoner.reference("full").run(drawn.inputs)[0]
    indices = torch.arange(output.numel())
    reckoner.draw("full", "task", 6, expected=False)
    got = {0: Elements(indices, output.numpy().tobytes())}
    assert Slices(reckoner).compare(drawn, {0: [0]}, got).ok
    assert Slices(reckoner).compare_whole(drawn, {0: Elements(None, output.numpy().tobytes())}).ok
    assert not Slices(reckoner).compare_whole(drawn, {0: Elements(None, (output + 1).numpy().tobytes())}).ok


def test_what_a_runner_sends_is_read_as_hostile() -> None:
    def sent(indices: list[int], count: int) -> Elements:
        return elements_of(torch.tensor(indices).numpy().tobytes(), bytes(4 * count), (3, 4), DType("float32"))

    assert sent([0, 5, 11], 3).indices is not None
    for indices, count in (([0, 12], 2), ([-1, 3], 2), ([3, 3], 2), ([4, 3], 2), ([1, 2], 3)):
        with pytest.raises(TaskError):
            sent(indices, count)
    with pytest.raises(TaskError):
        elements_of(None, bytes(44), (3, 4), DType("float32"))
