"""Results of the tools as typed JSON; ``answers`` makes them of records."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import Annotated

from pydantic import AfterValidator

from kernelforge.records import Attempt, Performance, Verdict
from kernelforge.report.views import View
from kernelforge.report.views.task import MetricChange

MAX_DIAGNOSTICS = 20
MAX_TEXT_CHARS = 20_000
"""Longest text of a compiler or of a reason that is passed on."""


def finite_or_none(value: float | None) -> float | None:
    """The value, or None in place of NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + " [cut]"


Bounded = Annotated[str, AfterValidator(_bounded)]
Finite = Annotated[float | None, AfterValidator(finite_or_none)]
"""None where a number is unknown or not finite."""


class Answer(View):
    """A part of an answer."""


class TaskRow(Answer):
    """One task that is offered."""

    task: str
    """What the other tools call it."""
    title: str
    level: int
    tags: tuple[str, ...]


class SuiteRow(Answer):
    """One suite that is offered."""

    suite: str
    tasks: int


class TaskList(Answer):
    """A page of the tasks of one suite."""

    suite: str
    title: str
    suites: tuple[SuiteRow, ...]
    """Every suite that is offered."""
    total: int
    """Tasks that the filters leave."""
    tasks: tuple[TaskRow, ...]
    next_offset: int | None
    """Offset of the next page; None at the end."""


class TaskPage(Answer):
    """A task as a Coder sees it."""

    task: str
    digest: str
    """Names the task's source, sizes and policy."""
    device: str
    prompt: str
    """The task, its visible sizes, the device, a whole candidate and the rules of launch plans."""
    plan_sections: tuple[str, ...]
    """Sections of the reference page of launch plans, for ``plan_language``."""
    how_to_answer: str


class PlanPage(Answer):
    """The reference page of launch plans, without what the task and the device have no use for."""

    sections: tuple[str, ...]
    text: str
    """Of the section that was asked for, or of the whole page."""


class NoteRow(Answer):
    """One piece of advice, with where the fact behind it can be checked."""

    id: str
    title: str
    text: str
    bottlenecks: tuple[str, ...]
    """What it is about, the most telling first."""
    source: str


class NoteList(Answer):
    """A page of notes about a bottleneck, or about all."""

    bottlenecks: tuple[str, ...]
    """Every bottleneck that a note is about."""
    total: int
    notes: tuple[NoteRow, ...]
    next_offset: int | None
    """Offset of the next page; None at the end."""


class KernelRow(Answer):
    """The compiler's figures of one kernel."""

    kernel: str
    registers_per_thread: int
    static_shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_frame_bytes: int


class BuildAnswer(Answer):
    """Result of the plan's interpreter, the compiler and the policy gate; nothing was run."""

    task: str
    candidate: str
    """Hash of source, plan and choices."""
    ok: bool
    verdict: Verdict | None
    """The verdict that an evaluation would end with; None where the candidate may be run."""
    stage: str | None
    """Where it was refused: ``plan``, ``compile`` or ``policy``."""
    reason: Bounded
    arch: str | None
    toolchain: str | None
    kernels: tuple[KernelRow, ...]
    diagnostics: tuple[Bounded, ...]
    """Warnings and notes."""


class CodeAnswer(Answer):
    """A page of the code that one kernel of a candidate became at the full size."""

    kernel: str
    kernels: tuple[str, ...]
    """Every kernel of the build, as the plan launches it."""
    arch: str
    text: str
    """Lines of PTX; or one line for each machine instruction: address, opcode without operands, cycles until the warp
    issues the next one, addresses that it may go to, line of the source."""
    total_lines: int
    next_offset: int | None
    """Offset of the next page; None at the end."""


class CheckRow(Answer):
    """Correctness at one size, or at all hidden ones."""

    size: str
    """``small``, ``full``, or ``hidden``: every hidden size that was reached."""
    status: str
    """``passed``, ``failed``, ``guarded`` (the plan's own assert refused a hidden size) or ``skipped`` (no value was
    compared)."""
    families: tuple[str, ...]
    """Input distributions that were run."""
    message: Bounded
    error: Finite
    """Largest error as a multiple of the tolerance; None where it is unknown, not finite or hidden."""
    launches: int | None


class PredictionRow(Answer):
    """Predicted speedup over eager PyTorch. Neither time was measured here."""

    gpu: str
    speedup: float
    low: float
    high: float
    """Ends of its 90 % interval."""
    eager_us: float
    eager_origin: str
    """``predicted`` or ``published``."""


class TimeRow(Answer):
    """Time at the full size."""

    time_us: float
    origin: str
    """``measured`` or ``modelled``; a modelled time is no measurement."""
    bound: str
    interval_us: tuple[float, float] | None
    speedup: float | None
    """Against the fastest baseline; measured only."""
    speedup_lower: float | None
    quarantined: Bounded | None
    """Why a measured time is not believed; it then has no speedup."""
    predicted: PredictionRow | None
    """Of a modelled time only."""

    @classmethod
    def of_performance(cls, performance: Performance) -> TimeRow:
        """The row of a time."""
        predicted = performance.predicted
        return cls.of(performance, predicted=None if predicted is None else PredictionRow.of(predicted))


class VisibleFailure(Answer):
    """A failure at a hidden size, shown at a visible one that follows from what every author sees."""

    constants: dict[str, int | float | bool]
    """Module constants of the task's file at that size."""
    verdict: Verdict
    reason: Bounded


class EvaluationAnswer(Answer):
    """The verdict on a candidate."""

    task: str
    candidate: str
    verdict: Verdict
    outcome: str
    """The verdict in words. ``OK, full size not compared`` counts as not correct and earns no reward."""
    stage: str
    """Where the cascade ended; ``done`` for OK."""
    reason: Bounded
    checks: tuple[CheckRow, ...]
    visible_failure: VisibleFailure | None
    """Of a failure at a hidden size: a visible size at which it fails alike; None where none was found."""
    time: TimeRow | None
    kernels: tuple[KernelRow, ...]
    diagnostics: tuple[Bounded, ...]
    device: str
    jail: str
    evaluations_left: int | None
    """Evaluations that the server will still make; None without a limit."""


class MetricRow(Answer):
    """One number of a profile."""

    name: str
    value: Finite
    """None where it is not finite."""
    unit: str
    origin: str
    """``measured``, ``counted``, ``compiler`` or ``modelled``."""


class KernelMetrics(Answer):
    """One kernel of a profile, all its launches together."""

    kernel: str
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: tuple[MetricRow, ...]


class FindingRow(Answer):
    """The Judge's one finding. It is advice: verdicts come from the evaluator alone."""

    kind: str
    """``repair``, ``optimise`` or ``stop``."""
    headline: str
    why: Bounded
    action: Bounded
    bottleneck: str | None
    """For ``notes``."""
    metrics: tuple[str, ...]
    """Metrics that the action should lower, or raise where one begins with ``+``, the most telling first."""


class ProfileAnswer(Answer):
    """Counters of a correct candidate at the full size, with what the Judge reads in them."""

    evaluation: EvaluationAnswer
    bound: str | None
    """What limits it: ``dram``, ``l2``, ``l1``, ``shared``, ``fp32``, ``issue``, ``latency`` or ``launch``."""
    dram_ratio: float | None
    """DRAM bytes over the least that the task must move: 1 is the best."""
    metrics: tuple[MetricRow, ...]
    """Totals over the plan."""
    kernels: tuple[KernelMetrics, ...]
    notes: tuple[Bounded, ...]
    """What a reader of the metrics must know."""
    finding: FindingRow


class ShortEvaluation(Answer):
    """The verdict on a candidate in short."""

    candidate: str | None
    """None of texts that are no candidate."""
    verdict: Verdict | None
    """None where it was not evaluated."""
    outcome: str
    stage: str | None
    reason: Bounded
    visible_failure: VisibleFailure | None
    time: TimeRow | None


class BatchAnswer(Answer):
    """Verdicts on several candidates."""

    task: str
    results: tuple[ShortEvaluation, ...]
    """In the order in which they came."""
    fastest: int | None
    """Position of the fastest correct one, from 0."""
    evaluations_left: int | None


class TrialRow(Answer):
    """One combination of ``# tune:`` values."""

    choices: dict[str, int]
    rung: int
    """The last rung of the search that it reached; times of one rung can be compared."""
    time_us: float | None
    problem: Bounded
    """Why it has no time."""


class TuneAnswer(Answer):
    """A search among the ``# tune:`` values of a candidate. Times pick what to try; only an evaluation is a result."""

    evaluation: ShortEvaluation
    """Of the candidate as it was sent; nothing is searched unless it is correct."""
    trials: tuple[TrialRow, ...]
    winner: dict[str, int] | None
    """Choices to submit; None where none is faster than the candidate's own by more than 2 %."""
    evaluations_left: int | None


class SubmitAnswer(Answer):
    """A journalled attempt."""

    attempt: str
    """Its id, for ``diff`` and for ``parent``."""
    parent: str | None
    operator: str
    """``seed``, ``repair`` or ``optimise``."""
    evaluation: EvaluationAnswer
    reward: Finite
    reward_policy: str
    accepted: bool
    """Whether it became the task's best."""
    note: str
    """Why it was accepted or not."""
    best: str | None
    next_parent: str | None
    """The attempt that the finding is about: the parent of the next submission, if none is named."""
    finding: FindingRow | None


class DiffAnswer(Answer):
    """Differences between two attempts of this session."""

    before: str
    after: str
    verdict_before: Verdict
    verdict_after: Verdict
    outcome_before: str
    """The verdict in words, as in an evaluation."""
    outcome_after: str
    source_diff: str | None
    plan_diff: str | None
    metrics: tuple[MetricChange, ...]
    """Metrics whose value changed."""


class AttemptRow(Answer):
    """One journalled attempt."""

    attempt: str
    task: str
    parent: str | None
    operator: str
    verdict: Verdict
    outcome: str
    time_us: float | None
    origin: str | None
    predicted_speedup: float | None
    """Over eager PyTorch; of a modelled time only."""
    reward: Finite
    accepted: bool
    client_note: str
    """What the client wrote with it."""

    @classmethod
    def of_attempt(cls, suite: str, attempt: Attempt) -> AttemptRow:
        """The row of an attempt at a task of a suite."""
        time = attempt.evaluation.performance
        replies = [message.content for message in attempt.messages if message.role == "reply"]
        return cls.of(
            attempt,
            attempt.evaluation,
            time,
            attempt=attempt.id,
            task=f"{suite}/{attempt.task}",
            predicted_speedup=None if time is None or time.predicted is None else time.predicted.speedup,
            reward=attempt.reward.value,
            client_note=replies[0].partition("```")[0].strip() if replies else "",
        )


class TaskProgress(Answer):
    """Attempts of a session at one task, and the best of them."""

    task: str
    attempts: int
    best: str | None
    best_time_us: float | None
    next_parent: str | None
    """Parent of the next submission, if none is named."""


class AttemptList(Answer):
    """A page of the attempts of a session, in the order of their submission."""

    progress: tuple[TaskProgress, ...]
    """Of every task with an attempt, or of the one that was asked for."""
    total: int
    attempts: tuple[AttemptRow, ...]
    next_offset: int | None
    """Offset of the next page; None at the end."""


class AttemptPage(Answer):
    """One attempt as it was submitted."""

    attempt: AttemptRow
    source: str
    plan: str
    choices: dict[str, int]
    evaluation: ShortEvaluation
    note: str
    """Why it was accepted or not."""
    finding: FindingRow
    """On this attempt: what a child of it should do."""


class SessionAnswer(Answer):
    """The run that this session goes on with."""

    run: str
    suite: str
    progress: tuple[TaskProgress, ...]


def next_offset(rows: Sized, offset: int, limit: int) -> int | None:
    """Offset of the page after the one of ``limit`` rows from ``offset``; None at the end."""
    return offset + limit if offset + limit < len(rows) else None
