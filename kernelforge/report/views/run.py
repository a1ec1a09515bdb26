"""A run at a glance: results, funnel, cost, and the state of each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Literal

from kernelforge.prediction.correction import CardError, card_errors
from kernelforge.records import (
    UNCOMPARED,
    Attempt,
    Budget,
    ForecastOutcome,
    Origin,
    Verdict,
    forecast_outcome,
)
from kernelforge.report.views import View
from kernelforge.report.views.curves import (
    AnytimePoint,
    FastCurve,
    Headline,
    Spent,
    anytime,
    fast_curves,
    headline,
    seconds_between,
    spent,
)
from kernelforge.report.views.funnel import FunnelStep, MatrixRow, StageEnd, funnel, matrix, stage_ends
from kernelforge.report.views.integrity import IntegrityView, integrity_view
from kernelforge.report.views.messages import AgentCost, Cost, agent_costs, total_cost
from kernelforge.report.views.run_records import DisplayedState, RunRecords, TaskSummary
from kernelforge.report.views.samples import (
    compile_rate,
    has_pass_at_k,
    mean_pass_at,
    sample_counts,
    translated,
    translation_likeness,
)
from kernelforge.translation.likeness import Likeness


class AbsentBaseline(View):
    """A baseline that was not there, for one reason."""

    baseline: str
    reason: str
    tasks: int
    """Number of tasks without it."""


class RunView(View):
    """One run."""

    id: str
    state: DisplayedState
    suite: str
    suite_digest: str
    device: str
    strategy: str
    coder: str
    judge: str
    tester: str | None
    memory: Literal["off", "run", "results"]
    budget: Budget
    reward: str
    seed: int
    started: str
    ended: str | None
    seconds: float | None
    """Wall time from start to end; None while it has no end."""
    kernelforge: str
    origin: Origin | None
    """Whether times are measured or modelled; None where the device does neither. Only measured runs have speedups,
    curves and their intervals."""
    headline: Headline
    tasks_ok: int
    tasks_total: int
    tasks_finished: int
    attempts: int
    accepted: int
    verdicts: dict[Verdict, int]
    uncompared: int = 0
    """Attempts with verdict OK without a value compared at the full size: they are not correct."""
    shared: int = 0
    """Attempts that share the evaluation of an equal one, with the same PTX and plan but for names."""
    funnel: tuple[FunnelStep, ...]
    """INFRA attempts count for the steps that they passed, and are not judged at the step where they ended."""
    stages: tuple[StageEnd, ...]
    """Attempts by the stage at which they ended, and by verdict."""
    median_dram_ratio: float | None
    """Over tasks whose best has a profile: DRAM bytes over compulsory bytes, at least 1."""
    mean_reward: float | None
    """Mean over the tasks' best attempts, with 0 for a task that is not correct; None when nothing was scored."""
    cost: Cost
    """Price of all model calls."""
    costs: tuple[AgentCost, ...]
    """The same by agent and provider; empty without model calls."""
    pass_at_k: dict[int, float] | None
    """Probability that k samples of a task contain a correct one, mean over tasks; None where samples are not
    independent (any strategy but ``best-of-n``), not all measured, or fewer than planned at a task."""
    compile_rate: float | None = None
    """Share of the samples that compile, of a run of ``best-of-n`` on tasks with known translations; else None."""
    likeness: Likeness | None = None
    """Of these samples to the known translations."""
    fast_curves: tuple[FastCurve, ...]
    """fast_p against the fastest baseline, then against each that was timed; empty for a modelled run."""
    model_errors: tuple[CardError, ...] = ()
    """Error of the time model on the GPUs that measured, from this run's predictions."""
    absent: tuple[AbsentBaseline, ...] = ()
    """Missing baselines, each reason once."""
    anytime: tuple[AnytimePoint, ...]
    spent: tuple[Spent, ...]
    integrity: IntegrityView
    tasks: tuple[TaskSummary, ...]
    matrix: tuple[MatrixRow, ...]
    """The same tasks in the same order, with every attempt."""

    @property
    def outcomes(self) -> dict[str, int]:
        """Number of attempts by outcome in words."""
        counts = {verdict.value: count for verdict, count in self.verdicts.items()}
        if self.uncompared:
            compared = counts.pop(Verdict.OK.value) - self.uncompared
            counts = {**({Verdict.OK.value: compared} if compared else {}), UNCOMPARED: self.uncompared, **counts}
        return counts


def run_view(records: RunRecords) -> RunView:
    run, config, attempts = records.run, records.run.config, records.attempts
    summaries = records.summaries
    verdicts = Counter(attempt.evaluation.verdict for attempt in attempts)
    measured = records.measured
    ratios = [summary.dram_ratio for summary in summaries if summary.correct and summary.dram_ratio is not None]
    scored = [summary.reward for summary in summaries if summary.correct and summary.reward is not None]
    return RunView.of(
        run,
        config,
        state=records.state,
        seconds=seconds_between(run.started, run.ended),
        origin=records.origin,
        headline=headline(summaries, measured=measured),
        tasks_ok=sum(summary.correct for summary in summaries),
        tasks_total=len(summaries),
        tasks_finished=sum(summary.finished is not None for summary in summaries),
        attempts=len(attempts),
        accepted=sum(attempt.accepted for attempt in attempts),
        verdicts={verdict: verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
        uncompared=sum(attempt.evaluation.uncompared for attempt in attempts),
        shared=sum(attempt.evaluation.equals is not None for attempt in attempts),
        funnel=funnel(attempts, measured=measured),
        stages=stage_ends(attempts),
        median_dram_ratio=median(ratios) if ratios else None,
        mean_reward=sum(scored) / len(summaries) if scored else None,
        cost=total_cost(records.all_messages()),
        costs=agent_costs(records.all_messages()),
        pass_at_k=_pass_at_k(records),
        compile_rate=compile_rate(sample_counts(records, task) for task in translated(records)),
        likeness=translation_likeness(records),
        fast_curves=fast_curves(records.bests()) if measured else (),
        model_errors=card_errors(_outcomes(records)),
        absent=_absent(attempts),
        anytime=anytime(records, measured=measured),
        spent=spent(records),
        integrity=integrity_view(records),
        tasks=summaries,
        matrix=matrix(records, summaries),
    )


def _outcomes(records: RunRecords) -> Iterator[ForecastOutcome]:
    """Measured times of the run next to those that were predicted."""
    for attempt in records.attempts:
        outcome = forecast_outcome(attempt.evaluation, attempt.task)
        if outcome is not None:
            yield outcome


def _absent(attempts: Sequence[Attempt]) -> tuple[AbsentBaseline, ...]:
    """Baselines missing from timings, by name and reason; those missing at the most tasks first."""
    tasks: dict[tuple[str, str], set[str]] = {}
    for attempt in attempts:
        speed = attempt.evaluation.performance
        for baseline, reason in (speed.timing.absent if speed and speed.timing else {}).items():
            tasks.setdefault((baseline, reason), set()).add(attempt.task)
    rows = [
        AbsentBaseline(baseline=baseline, reason=reason, tasks=len(names))
        for (baseline, reason), names in tasks.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.tasks, row.baseline, row.reason)))


def _pass_at_k(records: RunRecords) -> dict[int, float] | None:
    """pass@k over the tasks at k = 1, 2, 5, 10, 20, 50... up to the number of samples."""
    if not has_pass_at_k(records):
        return None
    counts = [sample_counts(records, task) for task in records.run.config.tasks]
    least = min(count.judged for count in counts)
    if least == 0:
        return None
    sizes = [k * 10**power for power in range(len(str(least))) for k in (1, 2, 5) if k * 10**power <= least]
    return {k: value for k in sizes if (value := mean_pass_at(k, counts)) is not None}
