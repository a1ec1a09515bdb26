"""Graphs at several sizes as task files: which numbers become constants, attributes and extents."""

from __future__ import annotations

import pytest

from kernelforge.errors import TaskError
from kernelforge.records import DType, Graph, Node, Size, Task, TensorSpec
from kernelforge.tasks.files import parse_task_file
from kernelforge.tasks.graph_tasks import SizedGraph, SizedNumber, graph_task, sized_graph

SOURCE = """
import torch
import torch.nn as nn

ROWS, UNUSED = 8, 3
COLS = 6
STEP = 2
SPREAD = 2 * STEP


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(COLS, COLS)

    def forward(self, k):
        return self.linear(k)[::STEP].reshape(-1)


def noise(rows):
    return torch.rand(rows, COLS) * SPREAD


def get_inputs():
    return [noise(ROWS)]


def get_init_inputs():
    return []
"""
SIZES = {"full": (8, 6, 2), "small": (4, 3, 1), "hidden_odd": (9, 5, 3)}
ORIGIN = Task(
    name="strided",
    suite="mine",
    title="",
    level=1,
    source=SOURCE,
    license="MIT",
    sizes=tuple(
        Size(name=name, constants={} if name == "full" else {"ROWS": rows, "COLS": cols, "STEP": step})
        for name, (rows, cols, step) in SIZES.items()
    ),
)


def traced(size: str, *, weight: str = "linear.weight", dtype: DType = DType.FLOAT32) -> Graph:
    rows, cols, step = SIZES[size]
    taken = -(-rows // step)
    made = TensorSpec.contiguous

    def op(name: str, shape: tuple[int, ...], *args: object) -> Node:
        op = f"aten.{name}.default" if name != "slice" else "aten.slice.Tensor"
        return Node(name=name, kind="op", op=op, args=args, spec=made(shape, DType.FLOAT32))

    nodes = (
        Node(name="p_weight", kind="weight", op=weight, spec=made((cols, cols), dtype)),
        Node(name="p_unused", kind="weight", op="unused", spec=made((2,), DType.INT64)),
        Node(name="k", kind="input", op="0", spec=made((rows, cols), DType.FLOAT32)),
        op("linear", (rows, cols), {"ref": "k"}, {"ref": "p_weight"}),
        op("slice", (taken, cols), {"ref": "linear"}, 0, 0, 9223372036854775807, step),
        op("reshape", (taken * cols,), {"ref": "slice"}, [taken * cols]),
        Node(name="output", kind="output", op="output", args=({"ref": "reshape"},)),
    )
    return Graph(size=size, nodes=nodes)


def graph(**changes: object) -> SizedGraph:
    return sized_graph([traced(size, **changes) for size in ("hidden_odd", "small")])  # type: ignore[arg-type]


def test_an_input_that_is_a_number_is_one_in_c_too() -> None:
    number = Node(name="steps", kind="input", op="1", args=(4,))
    graphs = []
    for size in ("hidden_odd", "small"):
        nodes = traced(size).nodes
        graphs.append(Graph(size=size, nodes=(*nodes[:3], number, *nodes[3:])))
    made = graph_task(ORIGIN, sized_graph(graphs), "graph_strided", anything)
    assert made.numbers == {"steps": "int"}
    assert made.extents["steps"] == "steps"
    assert "def forward(self, k_in, steps, linear_weight)" in made.task.source


def anything(name: str) -> bool:
    return name != "k"


def test_numbers_that_differ_are_constants_by_the_originals_names() -> None:
    made = graph_task(ORIGIN, graph(), "graph_strided", anything)
    source = made.task.source
    assert "aten.linear(k_in, linear_weight)" in source
    assert "aten.slice(linear, 0, 0, 9223372036854775807, self.step)" in source
    assert "aten.reshape(slice_in, [EXTENT_0])" in source
    assert "torch.randn((COLS, COLS, )) / ((COLS)) ** 0.5" in source
    assert "unused" not in source.lower()
    parsed = parse_task_file(source, "made")
    assert parsed.parameters == ("k_in", "linear_weight")
    assert parsed.constants == {"ROWS": 9, "COLS": 5, "STEP": 3, "SPREAD": 6, "EXTENT_0": 15}
    assert made.task.size("small").constants == {"ROWS": 4, "COLS": 3, "STEP": 1, "SPREAD": 2, "EXTENT_0": 12}
    assert made.task.license == "MIT"
    assert dict(made.extents) == {
        "k_in_0": "rows", "k_in_1": "cols", "linear_weight_0": "cols", "linear_weight_1": "cols",
        'attrs["step"]': "step",
    }  # fmt: skip


def test_a_graph_is_itself_at_another_order_of_sizes_and_by_other_names() -> None:
    first = graph()
    other = first.beginning_with("small")
    assert other.sizes == ("small", "hidden_odd")
    assert other.nodes[-2].args[1] == [SizedNumber((12, 15))]
    assert other.unlike_first("hidden_odd") == first.unlike_first("small") > 0
    assert first.digest == graph(weight="other.weight").digest
    assert first.digest != graph(dtype=DType.FLOAT64).digest


def test_what_a_file_cannot_say_is_refused() -> None:
    with pytest.raises(TaskError, match="other operators at another size"):
        sized_graph([traced("full"), traced("small").model_copy(update={"nodes": traced("small").nodes[1:]})])
    with pytest.raises(TaskError, match="holds no real numbers"):
        graph_task(ORIGIN, graph(dtype=DType.INT64), "graph_strided", anything)
    inplace = ORIGIN.model_copy(update={"policy": ORIGIN.policy.model_copy(update={"mutates": (0,)})})
    with pytest.raises(TaskError, match="in place"):
        graph_task(inplace, graph(), "graph_strided", anything)
