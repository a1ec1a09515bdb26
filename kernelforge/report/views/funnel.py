"""Attempts by how far they came: the funnel of a run, and the matrix of tasks and attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from kernelforge.records import Attempt, Evaluation, Stage, Verdict, outcome_words
from kernelforge.report.formatting import one_line
from kernelforge.report.views import View
from kernelforge.report.views.messages import paid
from kernelforge.report.views.run_records import RunRecords, TaskSummary, originals, step_name

Step = Literal["generated", "parsed", "built", "ran", "correct", "stable", "faster"]
"""``generated``: there is an attempt, from a Coder's reply or from other ``# tune:`` values.
``parsed``: the reply contained a candidate with a readable launch plan (stages ``parse`` and ``plan``).
``built``: it compiled and passed the policy gate (``compile`` and ``policy``).
``ran``: it ran to its end at one size at least, so that values could be compared (``small``).
``correct``: verdict OK, with values compared at every size, the full size included.
``stable``: its measured time is not quarantined, and its interval is as narrow as requested.
``faster``: the lower end of the interval of its speedup over the fastest baseline is above 1.

Modelled runs end at ``correct``. Attempts with verdict ``INFRA`` count for the steps that they passed, and are not
judged at the step where they ended."""

STEPS: tuple[Step, ...] = get_args(Step)
_STAGES: tuple[Stage, ...] = get_args(Stage)
_BUILT, _RAN = _STAGES.index("policy"), _STAGES.index("small")


class FunnelStep(View):
    """Number of attempts that passed a step."""

    step: Step
    count: int
    lost: dict[Verdict, int]
    """Attempts by verdict that passed the step before and not this one."""

    @property
    def lost_outcomes(self) -> dict[str, int]:
        """The same by outcome in words: an OK attempt lost at ``correct`` was not compared at the full size."""
        uncompared = self.step == "correct"
        return {outcome_words(verdict, uncompared and verdict is Verdict.OK): n for verdict, n in self.lost.items()}


class StageEnd(View):
    """Number of attempts that ended at a stage of the cascade with a verdict."""

    stage: Stage
    verdict: Verdict
    count: int


def step_reached(evaluation: Evaluation) -> Step:
    """The last step that an evaluation passed."""
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
    """The steps in order, with the attempts that passed each and those lost before it.

    Args:
        measured: whether the device measures times, so that attempts may be stable and faster.
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
    """Attempts by stage in the cascade's order, then by verdict."""
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
    """Built-in move, else the operator."""
    verdict: Verdict
    stage: Stage
    """Stage at which its cascade ended."""
    reached: Step
    """Last step of the funnel that it passed."""
    reason: str
    """Reason for not being OK, shortened to one line; searched by the full-text filter."""
    accepted: bool
    speedup: float | None
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size."""
    equals: str | None = None
    """Key of the evaluation that it shares with an equal attempt; None where it ran itself."""
    equal_to: int | None = None
    """Number of that attempt."""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return outcome_words(self.verdict, self.uncompared)


class MatrixRow(View):
    """One task with all its attempts."""

    task: str
    title: str
    """Empty when the run did not start the task."""
    level: int | None
    tags: tuple[str, ...]
    seconds: float
    """Sum over its attempts."""
    dollars: float | None
    """Price of its model calls, including those outside attempts; None where a price is unknown."""
    speedup: float | None
    """Of its best attempt."""
    predicted: float | None
    """Predicted speedup of its best attempt, where times are modelled."""
    cells: tuple[Cell, ...]


def matrix(records: RunRecords, summaries: Iterable[TaskSummary]) -> tuple[MatrixRow, ...]:
    """One row per summary of the run's tasks."""
    return tuple(_row(records, summary) for summary in summaries)


def _row(records: RunRecords, summary: TaskSummary) -> MatrixRow:
    name = summary.task
    task, attempts = records.tasks.get(name), records.of_task(name)
    shared = originals(attempts)
    return MatrixRow(
        task=name,
        title=task.title if task else "",
        level=task.level if task else None,
        tags=task.tags if task else (),
        seconds=round(sum(attempt.seconds for attempt in attempts), 3),
        dollars=paid(records.task_messages(name)),
        speedup=summary.speedup,
        predicted=summary.predicted.speedup if summary.predicted else None,
        cells=tuple(_cell(attempt, shared.get(attempt.id)) for attempt in attempts),
    )


def _cell(attempt: Attempt, original: Attempt | None) -> Cell:
    evaluation = attempt.evaluation
    return Cell.of(
        attempt,
        evaluation,
        step=step_name(attempt),
        reached=step_reached(evaluation),
        equal_to=original.number if original else None,
        reason=one_line(evaluation.reason[: 4 * _REASON_CHARS], _REASON_CHARS),
        speedup=evaluation.performance.speedup if evaluation.performance else None,
    )
