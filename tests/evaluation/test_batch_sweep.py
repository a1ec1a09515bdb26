"""The constant that is a task's batch, by its name or by its place in shapes, and the operators over many of it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernelforge.evaluation.batch_sweep import LARGEST, BatchConstant, batch_constant, batch_sweep
from kernelforge.prediction.operators import Operator, OperatorTrace
from kernelforge.records import DType, Size, SizeFacts, Task, TaskFacts, TensorSpec, WeightSpec

SIZES = {"full": (512, 64, 32), "small": (8, 16, 32), "hidden_odd": (5, 3, 7)}
"""Rows, columns and depth of each size."""

Shapes = list[tuple[str, ...]]


def task_of(names: str = "ROWS COLS DEPTH") -> Task:
    """A task with three constants of these names, and their values at each size."""
    constants = {size: dict(zip(names.split(), extents, strict=True)) for size, extents in SIZES.items()}
    lines = [f"{name} = {value}" for name, value in constants["full"].items()]
    lines += ["class Model(nn.Module):", "    def forward(self, x): return x"]
    lines += ["def get_inputs(): return []", "def get_init_inputs(): return []"]
    sizes = [Size(name=size, constants={} if size == "full" else values) for size, values in constants.items()]
    return Task(suite="made", name="up", title="Made up", level=1, source="\n".join(lines), sizes=tuple(sizes))


def facts_of(inputs: Shapes, outputs: Shapes, weights: Shapes = ()) -> TaskFacts:  # type: ignore[assignment]
    """Facts of tensors whose axes are named by constants, at the sizes above."""

    def specs(shapes: Shapes, size: str) -> tuple[TensorSpec, ...]:
        extents = dict(zip(("rows", "cols", "depth"), SIZES[size], strict=True))
        return tuple(TensorSpec.contiguous(tuple(extents[axis] for axis in shape), DType.FLOAT32) for shape in shapes)

    sizes = [
        SizeFacts(
            size=size,
            inputs=specs(inputs, size),
            outputs=specs(outputs, size),
            weights=tuple(
                WeightSpec(name=f"w{i}", spec=spec, kind="parameter") for i, spec in enumerate(specs(weights, size))
            ),
            attrs={},
            compulsory_bytes=0,
            flops=0,
            eager_launches=1,
        )
        for size in SIZES
    ]
    return TaskFacts(task_digest="0" * 16, sizes=tuple(sizes))


@pytest.mark.parametrize(
    ("inputs", "outputs", "weights", "name"),
    [
        ([("rows", "cols")], [("rows", "depth")], [("cols", "depth")], "ROWS"),
        # A mask or a row of scales may have it, or not.
        ([("rows", "cols"), ("rows",), ("cols", "depth")], [("rows", "depth"), ("depth",)], [], "ROWS"),
        # Of a matrix times a vector: the rows are those of the weight, the first input has none.
        ([("cols",), ("rows", "cols")], [("rows",)], [], None),
        ([("rows", "cols")], [("cols", "rows")], [], None),
        ([("rows", "cols")], [("rows", "cols")], [("rows",)], None),
        ([("rows", "rows")], [("rows", "cols")], [], None),
        ([("rows", "cols"), ("cols", "rows")], [("rows",)], [], None),
        ([("rows", "cols")], [("rows",), ("cols", "rows")], [], None),
        ([], [("rows",)], [], None),
    ],
)
def test_a_batch_is_the_first_axis_of_what_comes_in_and_goes_out(
    inputs: Shapes, outputs: Shapes, weights: Shapes, name: str | None
) -> None:
    batch = batch_constant(task_of(), facts_of(inputs, outputs, weights))
    assert (batch and (batch.name, batch.value, batch.label)) == (name and (name, 512, name))


@pytest.mark.parametrize("name", ["BATCH", "batch_size"])
def test_a_name_comes_before_the_place(name: str) -> None:
    batch = batch_constant(task_of(f"ROWS {name} DEPTH"), facts_of([("rows", "cols")], [("rows", "depth")]))
    assert batch == (name, 64)
    assert batch.label == "batch"


def test_an_extent_that_never_changes_may_be_so_by_chance() -> None:
    facts = facts_of([("rows", "cols")], [("rows", "cols")])
    full = facts.sizes[0]
    same = facts.model_copy(update={"sizes": (full, full.model_copy(update={"size": "small"}))})
    task = task_of()
    still = task.model_copy(update={"sizes": (Size(name="full"), Size(name="small", constants={"COLS": 64}))})
    assert batch_constant(task, facts) == ("ROWS", 512)
    assert batch_constant(still, same) is None


class Oracle:
    """Operators of a reference whose operations are some function of the batch."""

    def __init__(self, task: Task, operations: Any) -> None:
        self.batches = {size.name: size.constants.get("ROWS", size.constants.get("BATCH")) for size in task.sizes}
        self.operations = operations

    def operators(self, size: str, *, run: bool) -> OperatorTrace:
        assert not run
        flops = self.operations(self.batches[size])
        return OperatorTrace(
            size=size, operators=(Operator(name="mm", kind="matmul", dtype="float32", write_bytes=4, flops=flops),)
        )


def swept(constant: str, value: int, operations: Any = lambda batch: 10 * batch + 7, end: int = 1) -> list[int]:
    """Batches of a sweep of a task, which may end at a batch."""
    batch = BatchConstant(constant, value)
    sweep = batch_sweep(
        lambda task: cast(Any, nullcontext(Oracle(task, operations))),
        task_of(f"{constant} COLS DEPTH"),
        cast(Any, SimpleNamespace(weights=())),
        batch,
        lambda trace: trace.operators[0].flops >= operations(end),
    )
    return [extent for extent, _ in sweep]


def test_a_sweep_ends_where_the_gpu_is_slower_but_not_before_the_task_s_own_rows() -> None:
    assert swept("BATCH", 64) == [1]
    assert swept("BATCH", 64, end=4) == [1, 2, 4]
    assert swept("ROWS", 20) == [1, 2, 4, 8, 16, 32]
    assert swept("ROWS", 20, end=10**6)[-1] == LARGEST
    assert swept("ROWS", 3 * LARGEST, end=10**6)[-1] == 2 * LARGEST


def test_rows_that_cost_more_the_more_there_are_are_no_batch() -> None:
    assert swept("ROWS", 20, lambda rows: rows * rows) == []
    assert swept("BATCH", 2, lambda batch: batch * batch, end=2) == [1, 2]
