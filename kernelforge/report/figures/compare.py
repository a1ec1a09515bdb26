"""The figure of two runs: each task's best of one against that of the other."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.report.figures import style
from kernelforge.report.figures.base import Absent, Drawing, Figure, figures_of
from kernelforge.report.figures.style import figure
from kernelforge.report.views.compare import CompareView

_OUTCOMES = {"win": "b is better", "tie": "a tie", "loss": "a is better"}
_COLOURS = (style.GREEN, style.GREY, style.VERMILLION)
_AXES = {"time_us": "µs (measured)", "dram_bytes": "DRAM bytes (modelled)"}


def draw_compare(view: CompareView, links: Mapping[str, str] | None = None) -> tuple[Drawing, ...]:
    """The scatter, or why there is none.

    Args:
        links: where a mark of a task leads, by the task's name.
    """
    return (_scatter(view, links or {}),)


def compare_figures(view: CompareView, links: Mapping[str, str] | None = None) -> tuple[Figure, ...]:
    """The figures that can be drawn of a comparison; see :func:`draw_compare`."""
    return figures_of(draw_compare(view, links))


def _scatter(view: CompareView, links: Mapping[str, str]) -> Drawing:
    name = "scatter"
    rows = [
        style.linked(
            {
                "task": style.words(pair.task),
                "a": pair.a_value,
                "b": pair.b_value,
                "outcome": _OUTCOMES[pair.outcome],
                "why": style.words(pair.why),
            },
            links.get(pair.task),
        )
        for pair in view.pairs
        if style.positive(pair.a_value) and style.positive(pair.b_value) and pair.outcome in _OUTCOMES
    ]
    if view.quantity == "none" or not rows:
        return Absent(name=name, why="no task has a value in both runs that may be compared")
    unit = _AXES[view.quantity]
    spread = [row[side] for row in rows for side in ("a", "b")]
    ticks = style.PLAIN if view.quantity == "time_us" else "~s"
    x = style.logarithmic("a", f"a: {style.words(view.a)}, {unit}", spread, ticks=ticks)
    y = style.logarithmic("b", f"b: {style.words(view.b)}, {unit}", spread, ticks=ticks)
    ends = x["scale"]["domain"]
    outcomes = tuple(_OUTCOMES.values())
    without = len(view.pairs) - len(rows)
    return figure(
        name,
        "Task by task",
        f"Best of {len(rows)} tasks in run {style.words(view.a)} (a) against run {style.words(view.b)} (b), {unit}; "
        f"below the diagonal b is better. b wins {view.wins}, loses {view.losses}, ties {view.ties}; both failed "
        f"{view.both_failed}; {without} tasks without a value in both are not drawn.",
        {
            "height": 360,
            "layer": [
                {
                    "data": style.data([{"a": end, "b": end} for end in ends]),
                    "mark": {"type": "line", "color": style.GREY, "strokeDash": [4, 3], "strokeWidth": 1.2},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": style.data(rows),
                    "mark": {
                        "type": "point",
                        "filled": True,
                        "size": 52,
                        "opacity": 0.9,
                        **({"cursor": "pointer"} if links else {}),
                    },
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": style.coloured("outcome", outcomes, _COLOURS),
                        "shape": style.shaped("outcome", outcomes),
                        "tooltip": style.tip(task="task", a="a", b="b", outcome="", why="why"),
                    },
                },
            ],
        },
    )
