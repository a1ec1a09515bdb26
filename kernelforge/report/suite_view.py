"""Suites and tasks as they are before any run: what ``kernelforge tasks`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelforge.records import SizeFacts, Task, TaskFacts, TensorSpec
from kernelforge.report.summary import View
from kernelforge.report.table import Column, Table
from kernelforge.report.text import ABSENT, byte_count, number


class TaskRow(View):
    """One task of a suite."""

    name: str
    title: str
    level: int
    tags: tuple[str, ...]
    sizes: tuple[str, ...]
    digest: str


class SuiteView(View):
    """A suite."""

    name: str
    title: str
    description: str
    digest: str
    tasks: tuple[TaskRow, ...]


class TaskDetail(View):
    """One task, with what the oracle found by running the reference."""

    digest: str
    task: Task
    facts: TaskFacts | None
    """None when the reference was not run."""


class AdmissionRow(View):
    """What admission found of one task at one size with one input family."""

    task: str
    size: str | None
    """None: the reference cannot be run at all."""
    family: str | None
    ok: bool
    admitted: bool
    """Whether candidates are checked on this family at this size."""
    text: str


class AdmissionView(View):
    """Whether the tasks of a suite can be judged."""

    suite: str
    tasks: int
    ok: bool
    refused: tuple[str, ...]
    """Tasks that are not admitted."""
    findings: tuple[AdmissionRow, ...]


def suite_view(name: str, title: str, description: str, digest: str, tasks: Iterable[Task]) -> SuiteView:
    """View of a suite."""
    rows = tuple(
        TaskRow(
            name=task.name,
            title=task.title,
            level=task.level,
            tags=task.tags,
            sizes=tuple(size.name for size in task.sizes),
            digest=task.digest,
        )
        for task in tasks
    )
    return SuiteView(name=name, title=title, description=description, digest=digest, tasks=rows)


def task_detail(task: Task, facts: TaskFacts | None) -> TaskDetail:
    """View of one task."""
    return TaskDetail(digest=task.digest, task=task, facts=facts)


def admission_view(suite: str, tasks: Sequence[str], findings: Iterable[AdmissionRow]) -> AdmissionView:
    """View of an admission check."""
    rows = tuple(findings)
    refused = tuple(name for name in tasks if any(row.task == name and not row.ok for row in rows))
    return AdmissionView(suite=suite, tasks=len(tasks), ok=not refused, refused=refused, findings=rows)


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


def spec_text(spec: TensorSpec) -> str:
    """``float32[64, 128]``, with strides where they are not C order."""
    strides = "" if spec.is_contiguous else f" strides {list(spec.stride)}"
    return f"{spec.dtype.value}{list(spec.shape)}{strides}"


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(values) or ABSENT
