"""Views on a terminal. Untrusted text goes through ``Text``, so it is never markup."""

from kernelforge.report.terminal.attempt import attempt_lines, evaluation_lines, search_lines, task_lines
from kernelforge.report.terminal.audit import admission_line
from kernelforge.report.terminal.compare import compare_lines, diff_lines, leaderboard_lines, selection_lines
from kernelforge.report.terminal.run import run_lines, run_summary

__all__ = [
    "admission_line",
    "attempt_lines",
    "compare_lines",
    "diff_lines",
    "evaluation_lines",
    "leaderboard_lines",
    "run_lines",
    "run_summary",
    "search_lines",
    "selection_lines",
    "task_lines",
]
