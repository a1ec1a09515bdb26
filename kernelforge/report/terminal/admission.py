"""Whether tasks can be judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from kernelforge.report.text import one_line

if TYPE_CHECKING:
    from kernelforge.report.views.suite import AdmissionRow


def admission_line(task: str, findings: Sequence[AdmissionRow]) -> Text:
    """What admission found of one task: a line, and one more for each failure and each kind of input left out.

    A reference that does not run is a single line. To be printed unwrapped.
    """
    ok = all(finding.ok for finding in findings)
    line = Text(f"{task:<18} ", style="bold")
    line.append("ok" if ok else "FAILED", style="green" if ok else "bold red")
    if any(finding.size is None for finding in findings):
        return line.append(f"  {one_line(findings[0].text)}", style="not bold")
    line.append(f"  {sum(finding.admitted for finding in findings)} of {len(findings)} checks used", style="not bold")
    for finding in findings:
        if not finding.ok or not finding.admitted:
            where = " ".join(filter(None, (finding.size, finding.family)))
            line.append(f"\n    {one_line(f'{where}: {finding.text}')}", style="not bold")
    return line
