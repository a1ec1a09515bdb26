"""Reports: views over records, and their renderings.

A view is computed once from records by a pure function; the terminal, pages, figures, Markdown, CSV and JSON only
write it down, so their numbers cannot disagree.
"""

from kernelforge.report.exports import export_lines, export_object
from kernelforge.report.views.attempt import AttemptView, attempt_view
from kernelforge.report.views.board import Leaderboard, leaderboard
from kernelforge.report.views.run import RunView, run_view
from kernelforge.report.views.run_records import RunRecords, TaskSummary, summarise
from kernelforge.report.views.task import TaskView, task_view

__all__ = [
    "AttemptView",
    "Leaderboard",
    "RunRecords",
    "RunView",
    "TaskSummary",
    "TaskView",
    "attempt_view",
    "export_lines",
    "export_object",
    "leaderboard",
    "run_view",
    "summarise",
    "task_view",
]
