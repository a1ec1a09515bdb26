"""Independent samples of ``best-of-n``: pass@k, and the scores of samples that translate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import Field, model_validator

from kernelforge.candidate import parse_reply
from kernelforge.records import Attempt, Verdict
from kernelforge.report.views import View
from kernelforge.report.views.run_records import RunRecords
from kernelforge.rewards.base import BEFORE_BUILT
from kernelforge.search import pass_at_k
from kernelforge.search.base import is_step
from kernelforge.translation.likeness import Likeness, likeness


class SampleCounts(View):
    """Outcomes of the samples of one task; ``INFRA`` is no sample."""

    judged: int = Field(ge=0, lt=10**9)
    built: int = Field(ge=0)
    """Those that compile."""
    right: int = Field(ge=0)
    """Those that are right, compared at the full size."""

    @model_validator(mode="after")
    def _ordered(self) -> SampleCounts:
        if not self.right <= self.built <= self.judged:
            raise ValueError("of the judged samples some are built, and of these some are right")
        return self


def judged_samples(records: RunRecords, task: str) -> tuple[Attempt, ...]:
    """Judged samples of a task; none where the strategy's samples are not independent (any but ``best-of-n``)."""
    if records.run.config.strategy != "best-of-n":
        return ()
    return tuple(
        attempt
        for attempt in records.of_task(task)
        if is_step(attempt) and attempt.evaluation.verdict is not Verdict.INFRA
    )


def sample_counts(records: RunRecords, task: str) -> SampleCounts:
    """Outcomes of a task's samples."""
    evaluations = [attempt.evaluation for attempt in judged_samples(records, task)]
    right = [evaluation.verdict is Verdict.OK for evaluation in evaluations]
    return SampleCounts(
        judged=len(evaluations),
        built=sum(
            ok or evaluation.stage not in BEFORE_BUILT for ok, evaluation in zip(right, evaluations, strict=True)
        ),
        right=sum(ok and not evaluation.uncompared for ok, evaluation in zip(right, evaluations, strict=True)),
    )


def has_pass_at_k(records: RunRecords) -> bool:
    """Whether all samples that were planned were drawn and measured."""
    config = records.run.config
    finished = all(task in records.finished for task in config.tasks)
    return config.strategy == "best-of-n" and config.measure_top is None and finished


def mean_pass_at(k: int, counts: Sequence[SampleCounts]) -> float | None:
    """Probability that k samples of a task contain a right one, mean over tasks; None where a task has fewer."""
    if not counts or min(count.judged for count in counts) < k:
        return None
    return sum(pass_at_k(count.judged, count.right, k) for count in counts) / len(counts)


def compile_rate(counts: Iterable[SampleCounts]) -> float | None:
    """Share of the samples that compile; all count alike. None without any."""
    outcomes = list(counts)
    judged = sum(count.judged for count in outcomes)
    return sum(count.built for count in outcomes) / judged if judged else None


def translated(records: RunRecords) -> tuple[str, ...]:
    """Tasks of the run with a known translation."""
    tasks = records.tasks
    return tuple(name for name in records.run.config.tasks if name in tasks and tasks[name].translation)


def translation_likeness(records: RunRecords) -> Likeness | None:
    """Likeness of the samples' device code to that of the known translations."""
    texts = [(name, attempt.candidate) for name in translated(records) for attempt in judged_samples(records, name)]
    written = [(task, candidate.source) for task, candidate in texts if candidate and candidate.language == "cuda"]
    code = {task: parse_reply(records.tasks[task].translation).source for task in {task for task, _ in written}}
    return likeness([source for _, source in written], [code[task] for task, _ in written], "cuda")
