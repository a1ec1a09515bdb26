"""Charts of views, specified once for pages, PNG and SVG."""

from kernelforge.report.figures.attempt import draw_attempt, draw_task
from kernelforge.report.figures.base import Absent, Drawing, Figure, embedded_json, figures_of
from kernelforge.report.figures.compare import draw_board, draw_compare
from kernelforge.report.figures.run import draw_run

__all__ = [
    "Absent",
    "Drawing",
    "Figure",
    "draw_attempt",
    "draw_board",
    "draw_compare",
    "draw_run",
    "draw_task",
    "embedded_json",
    "figures_of",
]
