"""Charts of views, specified once for pages, PNG and SVG."""

from kernelforge.report.figures.attempt import attempt_figures, draw_attempt
from kernelforge.report.figures.base import Absent, Drawing, Figure, embedded_json
from kernelforge.report.figures.compare import board_figures, compare_figures, draw_board, draw_compare
from kernelforge.report.figures.run import draw_run, run_figures
from kernelforge.report.figures.task import draw_task, task_figures

__all__ = [
    "Absent",
    "Drawing",
    "Figure",
    "attempt_figures",
    "board_figures",
    "compare_figures",
    "draw_attempt",
    "draw_board",
    "draw_compare",
    "draw_run",
    "draw_task",
    "embedded_json",
    "run_figures",
    "task_figures",
]
