"""Two runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from kernelforge.report.documents.compare import compare_facts
from kernelforge.report.tables.compare import compare_table
from kernelforge.report.terminal.parts import field

if TYPE_CHECKING:
    from kernelforge.report.views.compare import CompareView


def compare_lines(view: CompareView) -> Group:
    """Score, what keeps the runs apart, and the pairs."""
    facts = [field(label, text) for label, text in compare_facts(view)]
    if not view.pairs:
        return Group(*facts, Text("no task is in both"))
    return Group(*facts, Text(), compare_table(view).to_rich())
