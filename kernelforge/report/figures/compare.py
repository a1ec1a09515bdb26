"""Chart of two runs: the best of each task in one against the other."""

from __future__ import annotations

from collections.abc import Mapping

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Figure, figure, figures_of
from kernelforge.report.views.compare import CompareView

_OUTCOMES = {"win": "b is better", "tie": "a tie", "loss": "a is better"}
_COLOURS = (base.GREEN, base.GREY, base.VERMILLION)
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
        base.linked(
            {
                "task": base.words(pair.task),
                "a": pair.a_value,
                "b": pair.b_value,
                "outcome": _OUTCOMES[pair.outcome],
                "why": base.words(pair.why),
            },
            links.get(pair.task),
        )
        for pair in view.pairs
        if base.positive(pair.a_value) and base.positive(pair.b_value) and pair.outcome in _OUTCOMES
    ]
    if view.quantity == "none" or not rows:
        return Absent(name=name, why="no task has a value in both runs that may be compared")
    unit = _AXES[view.quantity]
    spread = [row[side] for row in rows for side in ("a", "b")]
    ticks = base.PLAIN if view.quantity == "time_us" else "~s"
    x = base.logarithmic("a", f"a: {base.words(view.a)}, {unit}", spread, ticks=ticks)
    y = base.logarithmic("b", f"b: {base.words(view.b)}, {unit}", spread, ticks=ticks)
    ends = x["scale"]["domain"]
    outcomes = tuple(_OUTCOMES.values())
    without = len(view.pairs) - len(rows)
    return figure(
        name,
        "Task by task",
        f"Best of {len(rows)} tasks in run {base.words(view.a)} (a) against run {base.words(view.b)} (b), {unit}; "
        f"below the diagonal b is better. b wins {view.wins}, loses {view.losses}, ties {view.ties}; both failed "
        f"{view.both_failed}; {without} tasks without a value in both are not drawn.",
        {
            "height": 360,
            "layer": [
                {
                    "data": base.data([{"a": end, "b": end} for end in ends]),
                    "mark": {"type": "line", "color": base.GREY, "strokeDash": [4, 3], "strokeWidth": 1.2},
                    "encoding": {"x": x, "y": y},
                },
                {
                    "data": base.data(rows),
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
                        "color": base.coloured("outcome", outcomes, _COLOURS),
                        "shape": base.shaped("outcome", outcomes),
                        "tooltip": base.tip(task="task", a="a", b="b", outcome="", why="why"),
                    },
                },
            ],
        },
    )
