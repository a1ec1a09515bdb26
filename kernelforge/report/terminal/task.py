"""One task of a run in the terminal: task, baselines, and the lineage as an indented tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import byte_count, change, format_note, number, one_line, percent, times
from kernelforge.report.tables.base import STYLES
from kernelforge.report.tables.task import baseline_table, size_table
from kernelforge.report.terminal.widgets import field, heading

if TYPE_CHECKING:
    from kernelforge.report.views.task import GeneratorView, LineageNode, TaskView

_DEEPEST = 12
"""Most steps of indentation, so that a long lineage stays readable."""


def task_lines(view: TaskView) -> Group:
    what = f": {view.title}" if view.title else ""
    about = ", ".join([*([] if view.level is None else [f"level {view.level}"]), *view.tags])
    parts: list[RenderableType] = [
        field("task", f"{view.task}{what}"),
        field("run", f"{view.run} on {view.device}"),
        *([field("about", f"{about} (suite {view.suite})")] if about else []),
        *([field("floor", _floor(view))] if view.floor_us is not None else []),
        field("best", _best(view)),
        field("state", view.summary.finished or "not finished"),
        *([field("cost", view.cost.text)] if view.cost.calls else []),
        *(field("test", _test(item)) for item in view.tests),
        *(field("lesson", f"{item.family}: {item.text}") for item in view.lessons),
    ]
    if view.sizes:
        parts += [Text(), size_table(view.sizes).to_rich()]
    if view.baselines:
        parts += [Text(), baseline_table(view.baselines).to_rich()]
    if view.lineage:
        parts += [*heading("Lineage"), *(line for node in view.lineage for line in _node(node))]
    return Group(*parts)


def _floor(view: TaskView) -> str:
    peak = "" if view.roofs is None else f", at {number(view.roofs.dram_bandwidth_gbps)} GB/s of {view.roofs.device}"
    return f"{number(view.floor_us)} µs to move the least bytes{peak}"


def _test(test: GeneratorView) -> str:
    state = "in force" if test.admitted else "refused"
    reason = f"{', but ' if test.admitted else ': '}{test.reason}" if test.reason else ""
    caught = f"; caught {', '.join(f'{number:02d}' for number in test.caught)}" if test.caught else ""
    return f"{test.name} by {test.provider}, {state}{reason}{caught}"


def _best(view: TaskView) -> str:
    best = view.summary
    if best.best is None:
        return "nothing correct yet"
    parts = [best.best, *([] if best.correct else [UNCOMPARED])]
    if best.speedup is not None:
        parts.append(f"{times(best.speedup)} the fastest baseline")
    if best.time_us is not None and best.origin is not None:
        parts.append(f"{number(best.time_us)} µs {best.origin.value}")
    if best.floor_share is not None:
        parts.append(f"{percent(best.floor_share)} of the floor's speed")
    if best.dram_bytes is not None:
        parts.append(f"{byte_count(best.dram_bytes)} DRAM, {times(best.dram_ratio)} the least")
    return " · ".join(parts)


def _node(node: LineageNode) -> Iterator[RenderableType]:
    line = Text("└ " if node.depth else "")
    line.append(f"{node.number:02d} ")
    line.append(one_line(node.step), style="bold")
    line.append(" ")
    line.append(node.outcome, style=STYLES[node.outcome])
    for text in _numbers(node):
        line.append(f"  {text}")
    line.append("  accepted" if node.accepted else "  rejected", style="green" if node.accepted else "dim")
    if node.best:
        line.append("  ← best", style="bold green")
    indent = 2 * min(node.depth, _DEEPEST)
    yield Padding(line, (0, 0, 0, indent), expand=False)
    for text in _because(node):
        yield Padding(Text(text, style="dim", overflow="fold"), (0, 0, 0, indent + 5), expand=False)


def _numbers(node: LineageNode) -> Iterator[str]:
    """Speedup where it is measured, else DRAM traffic; then the change from the parent."""
    if node.speedup is not None:
        spread = "" if node.low is None or node.high is None else f" [{times(node.low)}, {times(node.high)}]"
        yield f"{times(node.speedup)}{spread}"
    elif node.dram_ratio is not None:
        yield f"{times(node.dram_ratio)} the least DRAM"
    if node.delta is not None:
        what = "time" if node.delta_of == "time_us" else "DRAM"
        yield f"same {what}" if node.delta == 0 else f"{change(node.delta)} {what}"


def _because(node: LineageNode) -> Iterator[str]:
    """Change of the metric that the Judge named, and the reason for the attempt's result."""
    note = format_note(node.note) if node.accepted or not node.reason else node.reason
    for metric in [metric for metric in node.changes if metric.change is not None and metric.name not in note][:1]:
        yield one_line(f"{metric.name} {change(metric.change)}")
    if note:
        yield one_line(note, 300)
