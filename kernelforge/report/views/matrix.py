"""All tasks of a run with all attempts, for filtering."""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.records import Attempt, Stage, Verdict, outcome_words
from kernelforge.report.formatting import one_line
from kernelforge.report.views.base import View
from kernelforge.report.views.cost import paid
from kernelforge.report.views.funnel import Step, step_reached
from kernelforge.report.views.run_records import RunRecords
from kernelforge.report.views.summary import TaskSummary, step_name

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
    said = [message for attempt in attempts for message in attempt.messages]
    return MatrixRow(
        task=name,
        title=task.title if task else "",
        level=task.level if task else None,
        tags=task.tags if task else (),
        seconds=round(sum(attempt.seconds for attempt in attempts), 3),
        dollars=paid([*said, *records.messages.get(name, ())]),
        speedup=summary.speedup,
        dram_ratio=summary.dram_ratio,
        cells=tuple(map(_cell, attempts)),
    )


def _cell(attempt: Attempt) -> Cell:
    evaluation = attempt.evaluation
    return Cell(
        id=attempt.id,
        number=attempt.number,
        step=step_name(attempt),
        verdict=evaluation.verdict,
        stage=evaluation.stage,
        reached=step_reached(evaluation),
        reason=one_line(evaluation.reason[: 4 * _REASON_CHARS], _REASON_CHARS),
        accepted=attempt.accepted,
        speedup=evaluation.performance.speedup if evaluation.performance else None,
        uncompared=evaluation.uncompared,
    )
