"""Pages that a client reads: tasks of a suite, optimisation notes, PTX and machine code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from kernelforge.agents.base import TaskContext
from kernelforge.agents.diagnosis.diagnose import all_notes, notes_about
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.compile import Artifact
from kernelforge.compile.machine_code import read_machine_code
from kernelforge.errors import UsageError
from kernelforge.mcp.schemas import CodeAnswer, NoteList, NoteRow, SuiteRow, TaskList, TaskRow, next_offset
from kernelforge.profiling.sass import source_lines
from kernelforge.tasks.suites import Catalogue


def task_page(
    catalogue: Catalogue,
    suite: str | None,
    select: Sequence[str],
    level: int | None,
    tag: str | None,
    offset: int,
    limit: int,
) -> TaskList:
    """A page of the tasks of a suite, of the default one if none is named.

    Raises:
        UsageError: the suite is not offered, or a pattern selects none.
    """
    selected = catalogue.suite(suite or catalogue.default)
    tasks = [
        task
        for task in catalogue.selected(selected.name, select)
        if level in (None, task.level) and (tag is None or tag in task.tags)
    ]
    rows = (TaskRow.of(task, task=f"{selected.name}/{task.name}") for task in tasks[offset : offset + limit])
    return TaskList(
        suite=selected.name,
        title=selected.title,
        suites=tuple(SuiteRow(suite=name, tasks=len(catalogue.tasks(name))) for name in catalogue.names),
        total=len(tasks),
        tasks=tuple(rows),
        next_offset=next_offset(tasks, offset, limit),
    )


def note_page(context: TaskContext | None, bottleneck: str | None, offset: int, limit: int) -> NoteList:
    """A page of the notes: of those about a bottleneck, and about what a task and its device have.

    Raises:
        UsageError: no note is about the bottleneck.
    """
    bottlenecks = dict.fromkeys(str(name) for note in all_notes() for name in note.bottlenecks)
    if bottleneck is not None and bottleneck not in bottlenecks:
        raise UsageError(f"no note is about {bottleneck[:80]!r}; there are notes about {', '.join(bottlenecks)}")
    about = notes_about(
        None if bottleneck is None else Bottleneck(bottleneck),
        None if context is None else context.graph.families,
        None if context is None else context.spec.compute_capability,
    )
    return NoteList(
        bottlenecks=tuple(bottlenecks),
        total=len(about),
        notes=tuple(map(NoteRow.of, about[offset : offset + limit])),
        next_offset=next_offset(about, offset, limit),
    )


def code_page(
    artifact: Artifact, kind: Literal["ptx", "sass"], kernel: str | None, offset: int, limit: int
) -> CodeAnswer:
    """A page of the code of a kernel, as the plan launches it; of the first one if none is named.

    Raises:
        UsageError: the build has no such kernel, or its machine code cannot be read.
    """
    kernels = {built.expression: built.symbol for built in artifact.build.kernels}
    if not kernels:
        raise UsageError("the plan launches no kernel at the full size")
    if kernel is not None and kernel not in kernels:
        raise UsageError(f"the build has no kernel {kernel[:120]!r}; it has: {', '.join(kernels)}")
    expression = kernel or next(iter(kernels))
    read = _ptx if kind == "ptx" else _sass
    lines = list(read(artifact, kernels[expression]))
    return CodeAnswer(
        kernel=expression,
        kernels=tuple(kernels),
        arch=artifact.build.arch,
        text="\n".join(lines[offset : offset + limit]),
        total_lines=len(lines),
        next_offset=next_offset(lines, offset, limit),
    )


def _text(artifact: Artifact) -> Sequence[str]:
    return artifact.ptx.decode("ascii", "replace").split("\n")


def _ptx(artifact: Artifact, symbol: str) -> Iterator[str]:
    """The lines of one entry point, without the tables of line numbers and of other kernels."""
    inside = False
    for line in _text(artifact):
        inside = inside or f".entry {symbol}(" in line
        if inside:
            yield line
        if inside and line.startswith("}"):
            return


def _sass(artifact: Artifact, symbol: str) -> Iterator[str]:
    code = read_machine_code(artifact.cubin)
    function = code.function(symbol)
    if function is None:
        raise UsageError(code.problem or f"the machine code of {symbol} is too large to be shown")
    sources = source_lines(_text(artifact))
    for instruction in function.instructions:
        parts = [f"{instruction.address:#06x}", "@P" if instruction.predicated else "  "]
        parts.append(f"{instruction.opcode:<14}stall {instruction.control.stall:>2}")
        if instruction.targets:
            parts.append("to " + ", ".join(f"{target:#06x}" for target in instruction.targets))
        if line := sources.get(instruction.ptx_line):
            parts.append(f"line {line}")
        yield " ".join(parts)
