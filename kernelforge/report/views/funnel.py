"""Attempts by how far they came: the funnel of a run, and the matrix of tasks and attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from kernelforge.records import Attempt, Evaluation, Stage, Verdict, outcome_words
from kernelforge.report.formatting import one_line
from kernelforge.report.views import View
from kernelforge.report.views.messages import paid
from kernelforge.report.views.run_records import RunRecords
from kernelforge.report.views.summary import TaskSummary, step_name

Step = Literal["generated", "parsed", "built", "ran", "correct", "stable", "faster"]
"""``generated``: an attempt was made; of a Coder's reply, or of other ``# tune:`` values.
``parsed``: the reply held a candidate, and its launch plan was read (stages ``parse`` and ``plan``).
``built``: the compiler took it and no policy gate refused it (``compile`` and ``policy``).
``ran``: it ran to its end at one size at least, so that values could be compared (``small``).
``correct``: verdict OK: the values are right at every size. What was not compared at the full size stops before it.
``stable``: its measured time is believed: not quarantined, and its interval as narrow as was asked for.
``faster``: the speedup over the fastest baseline is above 1 beyond its noise: the interval's lower end is.

Modelled runs end at ``correct``. Attempts with verdict ``INFRA`` count where they came through, and fall out where they
ended, which says nothing about them."""

STEPS: tuple[Step, ...] = get_args(Step)
_STAGES: tuple[Stage, ...] = get_args(Stage)
_BUILT, _RAN = _STAGES.index("policy"), _STAGES.index("small")


class FunnelStep(View):
    """How many attempts came through a step."""

    step: Step
    count: int
    lost: dict[Verdict, int]
    """Those that came through the step before and not through this one, by verdict."""

    @property
    def lost_outcomes(self) -> dict[str, int]:
        """The same by outcome in words: at ``correct``, what is OK was not compared at the full size."""
        uncompared = self.step == "correct"
        return {outcome_words(verdict, uncompared and verdict is Verdict.OK): n for verdict, n in self.lost.items()}


class StageEnd(View):
    """How many attempts ended at a stage of the cascade with a verdict."""

    stage: Stage
    verdict: Verdict
    count: int


def step_reached(evaluation: Evaluation) -> Step:
    """The last step that an attempt came through."""
    at, verdict, speed = _STAGES.index(evaluation.stage), evaluation.verdict, evaluation.performance
    if evaluation.uncompared:
        return "ran"
    if verdict is Verdict.OK:
        if speed is None or evaluation.fingerprint.device_kind != "cuda" or speed.quarantined is not None:
            return "correct"
        if speed.timing is not None and not speed.timing.settled:
            return "correct"
        return "faster" if speed.speedup_lower is not None and speed.speedup_lower > 1 else "stable"
    if at > _RAN or (at == _RAN and verdict is Verdict.WRONG):
        return "ran"
    if at > _BUILT:
        return "built"
    return "parsed" if evaluation.stage not in ("parse", "plan") else "generated"


def funnel(attempts: Iterable[Attempt], *, measured: bool = False) -> tuple[FunnelStep, ...]:
    """The steps in order, each with how many came through and who was lost on the way to it.

    Args:
        measured: whether the device measures, so that there may be stable and faster ones.
    """
    ended = Counter((step_reached(attempt.evaluation), attempt.evaluation.verdict) for attempt in attempts)
    steps = STEPS if measured else STEPS[: STEPS.index("correct") + 1]
    counts = {
        step: sum(count for (last, _), count in ended.items() if STEPS.index(last) >= index)
        for index, step in enumerate(steps)
    }
    before = (None, *steps)
    return tuple(
        FunnelStep(
            step=step,
            count=counts[step],
            lost={verdict: ended[last, verdict] for verdict in Verdict if last is not None and ended[last, verdict]},
        )
        for last, step in zip(before, steps, strict=False)
    )


def stage_ends(attempts: Iterable[Attempt]) -> tuple[StageEnd, ...]:
    """Where attempts ended, in the cascade's order and then by verdict."""
    ended = Counter((attempt.evaluation.stage, attempt.evaluation.verdict) for attempt in attempts)
    return tuple(
        StageEnd(stage=stage, verdict=verdict, count=ended[stage, verdict])
        for stage in _STAGES
        for verdict in Verdict
        if ended[stage, verdict]
    )


_REASON_CHARS = 200


class Cell(View):
    """One attempt in the task matrix."""

    id: str
    number: int
    step: str
    """The built-in move, else the operator."""
    verdict: Verdict
    stage: Stage
    """Where its cascade ended."""
    reached: Step
    """The last step of the funnel that it came through."""
    reason: str
    """Why it is not OK, cut short, on one line; what a full-text filter looks in."""
    accepted: bool
    speedup: float | None
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size."""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return outcome_words(self.verdict, self.uncompared)


class MatrixRow(View):
    """One task with all its attempts."""

    task: str
    title: str
    """Empty when the run never came to the task."""
    level: int | None
    tags: tuple[str, ...]
    seconds: float
    """Of all its attempts, one after another."""
    dollars: float | None
    """Paid for it, outside attempts too; None once a price is unknown."""
    speedup: float | None
    """Of its best."""
    dram_ratio: float | None
    """Of its best: DRAM bytes over the least there can be."""
    cells: tuple[Cell, ...]


def matrix(records: RunRecords, summaries: Iterable[TaskSummary]) -> tuple[MatrixRow, ...]:
    """One row per summary of the run's tasks."""
    return tuple(_row(records, summary) for summary in summaries)


def _row(records: RunRecords, summary: TaskSummary) -> MatrixRow:
    name = summary.task
    task, attempts = records.tasks.get(name), records.of_task(name)
    return MatrixRow(
        task=name,
        title=task.title if task else "",
        level=task.level if task else None,
        tags=task.tags if task else (),
        seconds=round(sum(attempt.seconds for attempt in attempts), 3),
        dollars=paid(records.said_of(name)),
        speedup=summary.speedup,
        dram_ratio=summary.dram_ratio,
        cells=tuple(map(_cell, attempts)),
    )


def _cell(attempt: Attempt) -> Cell:
    evaluation = attempt.evaluation
    return Cell.of(
        attempt,
        evaluation,
        step=step_name(attempt),
        reached=step_reached(evaluation),
        reason=one_line(evaluation.reason[: 4 * _REASON_CHARS], _REASON_CHARS),
        speedup=evaluation.performance.speedup if evaluation.performance else None,
    )
