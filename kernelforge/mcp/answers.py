"""Answers of the tools, made of records: what a Coder may know of an evaluation.

Hidden sizes keep their secret here: all of them are one row without a count, an error or a family of inputs, for each
of these can be made to tell extents; their messages come masked from the cascade.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelforge.evaluation.visible_sizes import Reproduction
from kernelforge.mcp.schemas import (
    MAX_DIAGNOSTICS,
    BuildAnswer,
    CheckRow,
    EvaluationAnswer,
    FindingRow,
    KernelMetrics,
    KernelRow,
    MetricRow,
    ProfileAnswer,
    TimeRow,
    VisibleFailure,
    finite_or_none,
)
from kernelforge.records import Build, Evaluation, Finding, Metric, Profile, SizeCheck, Verdict
from kernelforge.report.views.task import MetricChange


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


def evaluation_answer(
    task: str, evaluation: Evaluation, remaining: int | None, reproduction: Reproduction | None = None
) -> EvaluationAnswer:
    """The answer of an evaluation.

    Args:
        task: name of the task.
        evaluation: as its author may see it.
        remaining: number of evaluations that are left in the budget.
        reproduction: of a failure at a hidden size.
    """
    speed = evaluation.performance
    return EvaluationAnswer.of(
        evaluation,
        evaluation.fingerprint,
        task=task,
        checks=_checks(evaluation.correctness.sizes if evaluation.correctness else ()),
        visible_failure=None if reproduction is None else VisibleFailure.of(reproduction),
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
        metric.model_copy(
            update={name: finite_or_none(getattr(metric, name)) for name in ("before", "after", "change")}
        )
        for metric in metrics
    )
    return tuple(metric for metric in finite if metric.before != metric.after)


def _checks(checks: Iterable[SizeCheck]) -> tuple[CheckRow, ...]:
    """Rows of the sizes, all hidden ones in one: which of them, and how near to failing, would tell extents."""
    every = tuple(checks)
    hidden = [check for check in every if check.size.startswith("hidden")]
    rows = [CheckRow.of(check) for check in every if not check.size.startswith("hidden")]
    if hidden:
        telling = min(hidden, key=lambda check: _TELLING.index(check.status))
        # Why fewer inputs were run at a size tells how large it is.
        message = "" if telling.status == "passed" else telling.message
        row = CheckRow.of(telling, size="hidden", families=(), message=message, error=None, launches=None)
        rows.insert(every.index(hidden[0]), row)
    return tuple(rows)


_TELLING = ("failed", "guarded", "passed", "skipped")
"""States of checks; the first of these among hidden sizes is that of all."""


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
