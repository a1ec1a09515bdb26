"""Tables of suites, and of a task as the oracle found it."""

from __future__ import annotations

from kernelforge.records import SizeFacts, TensorSpec
from kernelforge.report.tables.table import Column, Table
from kernelforge.report.text import ABSENT, byte_count, number
from kernelforge.report.views.suite import SuitesView, SuiteView, TaskDetail, spec_text


def suites_table(view: SuitesView) -> Table:
    """Suites side by side."""
    columns = (
        Column("name", "suite"),
        Column("tasks", "tasks", number, "right"),
        Column("levels", "levels", lambda levels: _listed(tuple(map(str, levels))), "right"),
        Column("title", "title", wide=True),
        Column("description", "what it is", wide=True),
    )
    total = sum(suite.tasks for suite in view.suites)
    return Table.of(f"{len(view.suites)} suites, {total:,} tasks", columns, view.suites)


def suite_table(view: SuiteView) -> Table:
    """Tasks of a suite."""
    columns = (
        Column("name", "task"),
        Column("level", "level", number, "right"),
        Column("title", "title", wide=True),
        Column("tags", "tags", _listed, wide=True),
        Column("sizes", "sizes", lambda sizes: number(len(sizes)), "right"),
    )
    return Table.of(f"{view.title}: suite {view.name} ({view.digest}), {len(view.tasks)} tasks", columns, view.tasks)


def size_table(detail: TaskDetail) -> Table:
    """Sizes of a task with the module constants that make them, and the facts where they are known."""
    known = {one.size: one for one in detail.facts.sizes} if detail.facts else {}
    columns = [Column("size", "size"), Column("constants", "constants", wide=True)]
    if known:
        columns += [
            Column("inputs", "inputs", wide=True),
            Column("outputs", "outputs", wide=True),
            Column("compulsory_bytes", "least bytes", byte_count, "right"),
            Column("flops", "flops", number, "right"),
            Column("eager_launches", "eager launches", number, "right"),
        ]
    rows = []
    for size in detail.task.sizes:
        constants = ", ".join(f"{name} = {value}" for name, value in size.constants.items()) or "as in the file"
        row: list[object] = [size.name, constants]
        if known:
            row += _fact_cells(known.get(size.name))
        rows.append(tuple(row))
    return Table("Sizes", tuple(columns), tuple(rows))


def _fact_cells(facts: SizeFacts | None) -> list[object]:
    if facts is None:
        return [None] * 5
    inputs = ", ".join(spec_text(one) if isinstance(one, TensorSpec) else str(one) for one in facts.inputs)
    outputs = ", ".join(spec_text(one) for one in facts.outputs)
    return [inputs, outputs, facts.compulsory_bytes, facts.flops, facts.eager_launches]


def floor_table(detail: TaskDetail) -> Table:
    """Least times at the full size, by GPU."""
    columns = (
        Column("title", "GPU"),
        Column("dram_bandwidth_gbps", "peak GB/s", number, "right"),
        Column("floor_us", "floor us", number, "right"),
        Column("arithmetic_us", "FP32 us", number, "right"),
    )
    return Table.of("At size full: least bytes at peak bandwidth; operations at the FP32 peak", columns, detail.floors)


def weight_table(facts: SizeFacts) -> Table:
    """What a plan reaches as ``w[...]``, at one size."""
    columns = (
        Column("name", "weight", wide=True),
        Column("kind", "kind"),
        Column("spec", "shape and dtype", spec_text),
        Column("aliases", "also", _listed),
    )
    return Table.of(f"Weights at size {facts.size}: w[name]", columns, facts.weights)


def attribute_table(facts: SizeFacts) -> Table:
    """What a plan reaches as ``attrs[...]``, at one size."""
    columns = (Column("name", "attribute", wide=True), Column("value", "value", str))
    return Table(f"Attributes at size {facts.size}: attrs[name]", columns, tuple(facts.attrs.items()))


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or ABSENT
