"""Edits of graphs: what each makes, that a seed repeats it, and that nothing refers to a node that is not there."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kernelforge.datasets.graph_augmentation import augmented, may_follow
from kernelforge.records import DType, Graph, Node, TensorSpec
from kernelforge.tasks.graph_tasks import SizedGraph, references, sized_graph


def graph(*calls: tuple[str, Any], rows: tuple[int, int] = (4, 6), second: bool = False) -> SizedGraph:
    """A chain of operators on a matrix ``x``: name and further arguments of each."""

    def at(size: str, count: int) -> Graph:
        spec = TensorSpec.contiguous((count, 5), DType.FLOAT32)
        names = ["x", "y"] if second else ["x"]
        nodes = [Node(name=name, kind="input", op=str(i), spec=spec) for i, name in enumerate(names)]
        last = "x"
        for name, args in calls:
            nodes.append(Node(name=name, kind="op", op=f"aten.{name}", args=({"ref": last}, *args), spec=spec))
            last = name
        nodes.append(Node(name="output", kind="output", op="output", args=({"ref": last},)))
        return Graph(size=size, nodes=tuple(nodes))

    return sized_graph([at(size, count) for size, count in zip(("full", "small"), rows, strict=True)])


SOFTMAX = graph(("gelu", ()), ("softmax", (1,)))


def every_edit(item: SizedGraph, partner: SizedGraph | None = None) -> dict[str, SizedGraph]:
    made = {}
    for seed in range(400):
        drawn = augmented(item, Random(seed), partner)
        if drawn is not None and len(drawn[1]) == 1:
            made[drawn[1][0]] = drawn[0]
    return made


def test_edits_of_every_kind_are_drawn_and_each_graph_is_closed() -> None:
    made = every_edit(SOFTMAX, graph(("sum", ([1], True))))
    assert {"replace softmax by log_softmax", "softmax along axis 0 instead of 1", "fuse with sum"} <= made.keys()
    assert {what.split(" ")[0] for what in made} == {"replace", "append", "prepend", "softmax", "fuse", "add", "sub",
                                                     "mul", "maximum", "minimum"}  # fmt: skip
    for what, item in made.items():
        names: set[str] = set()
        for node in item.nodes:
            assert set(references([node.args, dict(node.kwargs)])) <= names, what
            assert node.name not in names, what
            names.add(node.name)
        assert item.digest != SOFTMAX.digest
    assert made["fuse with sum"].operators == ("gelu", "softmax", "sum")
    assert made["softmax along axis 0 instead of 1"].nodes[2].args == ({"ref": "gelu"}, 0)
    assert made["softmax along axis 0 instead of 1"].nodes[2].shape is None


def test_a_seed_repeats_its_edits() -> None:
    first, second = (augmented(SOFTMAX, Random(5), None) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first[0].digest, first[1]) == (second[0].digest, second[1])


@pytest.mark.parametrize(
    ("partner", "usable"),
    [
        (graph(("sum", ([1],))), True),
        (graph(("reshape", ([20],))), False),
        (graph(("relu", ()), rows=(4, 4)), True),
        (graph(("relu", ()), second=True), False),
    ],
)
def test_a_graph_that_follows_another_has_one_input_and_no_extents(partner: SizedGraph, usable: bool) -> None:
    assert may_follow(partner) is usable
