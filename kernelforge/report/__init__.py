"""Views over records, and their renderings.

A view is computed once from records by a pure function; the terminal, Markdown, CSV and JSON only write it down, so
their numbers cannot disagree.
"""

from kernelforge.report.attempt_view import AttemptView, attempt_view
from kernelforge.report.board import Leaderboard, leaderboard
from kernelforge.report.export import export_lines, export_object
from kernelforge.report.run_view import RunView, run_view
from kernelforge.report.source import RunRecords
from kernelforge.report.summary import TaskSummary, summarise
from kernelforge.report.task_view import TaskView, task_view

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
