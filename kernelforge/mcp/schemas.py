"""Results of the tools as typed JSON: what a Coder may know of an evaluation.

Hidden sizes keep their secret here: they are numbered, their messages come masked from the cascade, counts that tell
their extents are left out, and the compiler's words are shown for visible sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

from kernelforge.records import Build, Evaluation, Finding, Metric, Performance, Profile, SizeCheck, Verdict
from kernelforge.report.views import View
from kernelforge.report.views.task import MetricChange

MAX_DIAGNOSTICS = 20
MAX_TEXT_CHARS = 20_000
"""Longest text of a compiler or of a reason that is passed on."""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + " [cut]"


Bounded = Annotated[str, AfterValidator(_bounded)]
Finite = Annotated[float | None, AfterValidator(_finite)]
"""None where a number is unknown or not finite."""


class TaskRow(View):
    """One task that is offered."""

    task: str
    """What the other tools call it."""
    title: str
    level: int
    tags: tuple[str, ...]


class TaskList(View):
    """Tasks of one suite."""

    suite: str
    title: str
    suites: tuple[str, ...]
    """Every suite that is offered."""
    tasks: tuple[TaskRow, ...]


class TaskPage(View):
    """A task as a Coder sees it."""

    task: str
    digest: str
    """Names the task's source, sizes and policy."""
    device: str
    prompt: str
    """The task, its visible sizes, the device, a whole candidate and the rules of launch plans."""
    plan_language: str
    """The reference page of launch plans, without what the task and the device have no use for."""
    how_to_answer: str


class KernelRow(View):
    """The compiler's figures of one kernel."""

    kernel: str
    registers_per_thread: int
    static_shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_frame_bytes: int


class BuildAnswer(View):
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


class CheckRow(View):
    """Correctness at one size."""

    size: str
    """``small``, ``full``, or ``hidden 1`` and so on."""
    status: str
    """``passed``, ``failed``, ``guarded`` (the plan's own assert refused a hidden size) or ``skipped`` (no value was
    compared)."""
    families: tuple[str, ...]
    """Input distributions that were run."""
    message: Bounded
    error: Finite
    """Largest error as a multiple of the tolerance; None where it is unknown or not finite."""
    launches: int | None


class PredictionRow(View):
    """Predicted speedup over eager PyTorch. Neither time was measured here."""

    gpu: str
    speedup: float
    low: float
    high: float
    """Ends of its 90 % interval."""
    eager_us: float
    eager_origin: str
    """``predicted`` or ``published``."""


class TimeRow(View):
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


class EvaluationAnswer(View):
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
    time: TimeRow | None
    kernels: tuple[KernelRow, ...]
    diagnostics: tuple[Bounded, ...]
    device: str
    jail: str
    evaluations_left: int | None
    """Evaluations that the server will still make; None without a limit."""


class MetricRow(View):
    """One number of a profile."""

    name: str
    value: Finite
    """None where it is not finite."""
    unit: str
    origin: str
    """``measured``, ``counted``, ``compiler`` or ``modelled``."""


class KernelMetrics(View):
    """One kernel of a profile, all its launches together."""

    kernel: str
    launches: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    metrics: tuple[MetricRow, ...]


class FindingRow(View):
    """The Judge's one finding. It is advice: verdicts come from the evaluator alone."""

    kind: str
    """``repair``, ``optimise`` or ``stop``."""
    headline: str
    why: Bounded
    action: Bounded
    metrics: tuple[str, ...]
    """Metrics that the action should lower, or raise where one begins with ``+``, the most telling first."""


class ProfileAnswer(View):
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


class SubmitAnswer(View):
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


class DiffAnswer(View):
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


def build_answer(
    task: str, candidate: str, build: Build | None, failure: tuple[Verdict, str, str] | None
) -> BuildAnswer:
    """The answer of a build; ``failure`` is the verdict, stage and reason of a refused candidate."""
    verdict, stage, reason = failure or (None, None, "")
    return BuildAnswer.of(
        build,
        task=task,
        candidate=candidate,
        ok=failure is None,
        verdict=verdict,
        stage=stage,
        reason=reason,
        kernels=_kernels(build),
        diagnostics=_diagnostics(build),
    )


def evaluation_answer(task: str, evaluation: Evaluation, remaining: int | None) -> EvaluationAnswer:
    """The answer of an evaluation; ``remaining`` is the number of evaluations that are left in the budget."""
    speed = evaluation.performance
    return EvaluationAnswer.of(
        evaluation,
        evaluation.fingerprint,
        task=task,
        checks=_checks(evaluation.correctness.sizes if evaluation.correctness else ()),
        time=None if speed is None else TimeRow.of_performance(speed),
        kernels=_kernels(evaluation.build),
        diagnostics=_diagnostics(evaluation.build),
        evaluations_left=remaining,
    )


def profile_answer(
    evaluation: EvaluationAnswer, profile: Profile | None, names: Iterable[str] | None, finding: Finding
) -> ProfileAnswer:
    """The answer of a profile; ``names`` are the metrics to show, None for all."""
    selected = None if names is None else frozenset(names)
    roofline = profile.roofline if profile else None
    return ProfileAnswer(
        evaluation=evaluation,
        bound=roofline.bound if roofline else None,
        dram_ratio=roofline.dram_bytes / roofline.compulsory_bytes if roofline and roofline.compulsory_bytes else None,
        metrics=_metrics(profile.metrics, selected) if profile else (),
        kernels=tuple(
            KernelMetrics.of(item, metrics=_metrics(item.metrics, selected))
            for item in (profile.kernels if profile else ())
        ),
        notes=profile.notes if profile else (),
        finding=FindingRow.of(finding),
    )


def changed(metrics: Iterable[MetricChange]) -> tuple[MetricChange, ...]:
    """Metrics that differ, with finite values only."""
    finite = (
        metric.model_copy(update={name: _finite(getattr(metric, name)) for name in ("before", "after", "change")})
        for metric in metrics
    )
    return tuple(metric for metric in finite if metric.before != metric.after)


def _checks(checks: Iterable[SizeCheck]) -> tuple[CheckRow, ...]:
    rows: list[CheckRow] = []
    hidden = 0
    for check in checks:
        secret = check.size.startswith("hidden")
        hidden += secret
        masked = {"size": f"hidden {hidden}", "launches": None} if secret else {}
        rows.append(CheckRow.of(check, **masked))
    return tuple(rows)


def _kernels(build: Build | None) -> tuple[KernelRow, ...]:
    if build is None or not build.ok:
        return ()
    return tuple(KernelRow.of(kernel, kernel=kernel.expression) for kernel in build.kernels)


def _diagnostics(build: Build | None) -> tuple[str, ...]:
    # A failed build may belong to a hidden size; the reason has what a Coder may know.
    if build is None or not build.ok:
        return ()
    return tuple(map(str, build.diagnostics[:MAX_DIAGNOSTICS]))


def _metrics(metrics: Iterable[Metric], selected: frozenset[str] | None) -> tuple[MetricRow, ...]:
    return tuple(MetricRow.of(metric) for metric in metrics if selected is None or metric.name in selected)
