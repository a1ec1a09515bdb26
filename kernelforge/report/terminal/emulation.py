"""A user's own kernel on the emulated device, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from kernelforge.report.formatting import one_line
from kernelforge.report.tables.emulation import line_table, opcode_table, tensor_table
from kernelforge.report.tables.task import metric_table
from kernelforge.report.terminal.attempt import energy_lines
from kernelforge.report.terminal.run import speed_lines
from kernelforge.report.terminal.widgets import field, heading
from kernelforge.report.views.emulation import EmulationView
from kernelforge.report.views.task import profile_metrics


def emulation_lines(view: EmulationView) -> Group:
    """Findings, tensors, time, counters, and counts per line."""
    return Group(*_parts(view))


def _parts(view: EmulationView) -> Iterator[RenderableType]:
    yield field("device", f"{view.device}; times are modelled")
    if view.findings:
        yield from heading("Findings")
        yield from (Text(one_line(finding), style="red", overflow="fold") for finding in view.findings)
    else:
        yield field("findings", "none")
    yield from heading("Kernels")
    yield from speed_lines(view.performance, view.build)
    if view.tensors:
        yield Text()
        yield tensor_table(view.tensors).to_rich()
    if view.profile is not None:
        yield from energy_lines(view.profile.energy)
        yield metric_table(profile_metrics(view.profile), title="Counters", compared=False).to_rich()
        if any(kernel.sampled < 1 for kernel in view.profile.kernels):
            yield field("note", "counters are scaled up from a sample of the blocks; the results are of all blocks")
        yield from (field("note", note) for note in view.profile.notes)
    if view.opcodes:
        yield opcode_table(view.opcodes).to_rich()
    if view.lines:
        yield line_table(view.lines).to_rich()
