"""Charts of a training run: rewards and shares by step, groups without a gradient, staleness."""

from __future__ import annotations

from kernelforge.report.figures import base
from kernelforge.report.figures.base import Absent, Drawing, Row, figure
from kernelforge.report.formatting import number, percent
from kernelforge.report.views.training import TrainingView

_SHARES = {"correct": "correct", "faster": "faster than eager"}
_LINE = {"type": "line", "strokeWidth": 2}


def draw_training(view: TrainingView) -> tuple[Drawing, ...]:
    """Every figure of a training run; for those that cannot be drawn, the reason."""
    return _rewards(view), _shares(view), _flat(view), _lags(view)


def _axis(view: TrainingView) -> str:
    return "policy version" if view.versioned else "scored jobs"


def _rewards(view: TrainingView) -> Drawing:
    name = "training-reward"
    if not view.steps:
        return Absent(name=name, why="no job has a score yet")
    rows: list[Row] = [{"at": step.at, "reward": step.mean_reward, "jobs": step.jobs} for step in view.steps]
    x, y = base.quantity("at", _axis(view), zero=False), base.quantity("reward", "mean reward")
    first, last = view.steps[0], view.steps[-1]
    return figure(
        name,
        f"Mean reward by {_axis(view)}",
        f"Mean reward goes from {number(first.mean_reward)} to {number(last.mean_reward)} over {len(rows)} steps.",
        [
            base.layer(_LINE | {"color": base.BLUE}, x=x, y=y),
            base.layer(
                base.point(22, color=base.BLUE), x=x, y=y,
                tooltip=base.tip(at=_axis(view), reward="mean reward", jobs="jobs"),
            ),
        ],
        rows=rows,
    )  # fmt: skip


def _shares(view: TrainingView) -> Drawing:
    name = "training-shares"
    if not view.steps:
        return Absent(name=name, why="no job has a score yet")
    rows: list[Row] = [
        {"at": step.at, "share": getattr(step, field), "of": title}
        for step in view.steps
        for field, title in _SHARES.items()
    ]
    x = base.quantity("at", _axis(view), zero=False)
    y = base.quantity("share", "share of jobs", ticks=".0%")
    y["scale"] |= {"domain": [0, 1]}
    domain = list(_SHARES.values())
    look = {"color": base.coloured("of", domain), "strokeDash": base.dashed("of", domain)}
    last = view.steps[-1]
    return figure(
        name,
        f"Correct and fast by {_axis(view)}",
        f"In the last step {percent(last.correct)} of the jobs are correct, and {percent(last.faster)} correct and "
        "faster than eager PyTorch.",
        [base.layer(_LINE, x=x, y=y, tooltip=base.tip(at=_axis(view), share="share", of="of"), **look)],
        rows=rows,
    )


def _flat(view: TrainingView) -> Drawing:
    name = "training-flat"
    steps = [step for step in view.steps if step.groups]
    if not steps:
        return Absent(name=name, why="no group has two scored jobs")
    rows: list[Row] = [{"at": step.at, "share": step.flat / step.groups, "groups": step.groups} for step in steps]
    x = base.quantity("at", _axis(view), zero=False)
    y = base.quantity("share", "groups of equal rewards", ticks=".0%")
    y["scale"] |= {"domain": [0, 1]}
    return figure(
        name,
        f"Groups without a gradient by {_axis(view)}",
        f"{number(view.flat)} of {number(view.groups)} groups have equal rewards throughout.",
        [
            base.layer(
                _LINE | {"color": base.VERMILLION, "point": True}, x=x, y=y,
                tooltip=base.tip(at=_axis(view), share="share", groups="groups"),
            )
        ],
        rows=rows,
    )  # fmt: skip


def _lags(view: TrainingView) -> Drawing:
    name = "training-lag"
    if not view.lags:
        return Absent(name=name, why="no job says its policy version")
    rows: list[Row] = [{"lag": str(lag.lag), "jobs": lag.jobs} for lag in view.lags]
    return figure(
        name,
        "Policy versions behind the newest, at submission",
        "; ".join(f"{number(lag.jobs)} jobs {lag.lag} versions behind" for lag in view.lags[:MOST_LAGS]) + ".",
        [
            base.layer(
                base.BAR | {"color": base.GREEN},
                x=base.quantity("jobs", "jobs"),
                y=base.names("lag", title="behind"),
                tooltip=base.tip(lag="versions behind", jobs="jobs"),
            )
        ],
        height=base.rows_height(len(rows)),
        rows=rows,
    )


MOST_LAGS = 6
"""Lags that the description names."""
