"""Charts of a run."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.report.figures.anytime import anytime
from kernelforge.report.figures.base import Drawing, Figure, figures_of
from kernelforge.report.figures.speedups import fast_p, speedups, task_bars, task_dram
from kernelforge.report.figures.spending import funnel, spent_money, spent_time
from kernelforge.report.views.run import RunView


def draw_run(view: RunView, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """Every figure of a run, and of those that cannot be drawn why.

    Args:
        links: where a mark of a task leads, by the task's name: addresses of our own pages, relative to the page.
    """
    links = links or {}
    modelled = view.origin == "modelled"
    return (
        *fast_p(view.fast_curves, modelled=modelled),
        speedups(view.tasks, links, modelled=modelled),
        task_bars(view.tasks, links, modelled=modelled),
        task_dram(view.tasks, links),
        *anytime(view.anytime, view.tasks_total, modelled=modelled),
        funnel(view.funnel),
        spent_time(view.spent),
        spent_money(view.spent),
    )


def run_figures(view: RunView, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a run; see :func:`draw_run`."""
    return figures_of(draw_run(view, links))
