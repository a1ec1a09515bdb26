"""Search results in the terminal: matching lines of prompts and replies."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from kernelforge.report.formatting import one_line
from kernelforge.report.views.search_results import FoundView


def found_lines(view: FoundView) -> Group:
    """A line each, after whose it is, and how many there are."""
    lines = []
    for one in view.lines:
        whose = f"{one.attempt or f'{view.run}/{one.task}'} {one.agent} {one.role}, line {one.line}: "
        lines.append(Text.assemble((one_line(whose) + " ", "dim"), one_line(one.text), overflow="fold"))
    told = f"lines that hold '{one_line(view.sought)}': {len(lines):,}"
    return Group(*lines, Text(told, overflow="fold"))
