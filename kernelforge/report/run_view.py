"""A run at a glance: how far attempts came, and where each task stands."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Literal

from kernelforge.records import Attempt, Budget, Operator, Verdict
from kernelforge.report.cost import AgentCost, Cost, agent_costs, total_cost
from kernelforge.report.source import RunRecords, ShownState
from kernelforge.report.summary import TaskSummary, View
from kernelforge.search import pass_at_k

_STAGES = ("parse", "plan", "compile", "policy", "small", "hidden", "full", "timing", "done")
_FUNNEL = (
    ("parsed", "plan"),
    ("built", "compile"),
    ("policy", "policy"),
    ("small", "small"),
    ("hidden", "hidden"),
    ("full", "full"),
)
"""Step of the funnel and the last stage of the cascade that it stands for."""


class FunnelStep(View):
    """How many attempts came through a gate."""

    step: str
    """``attempts parsed built policy small hidden full OK``."""
    count: int


class FastPoint(View):
    """Share of all tasks that are correct and more than ``p`` times as fast as a baseline, with its interval."""

    p: float
    value: float
    low: float
    high: float


class FastCurve(View):
    """fast_p against one baseline; measured runs only. The denominator is all tasks."""

    baseline: str
    """``fastest``, or a baseline's own name: ``eager``, ``eager-graph``, ``compile``..."""
    tasks: int
    untimed: int
    """Correct tasks without a speedup against this baseline: they count at p = 0 alone."""
    points: tuple[FastPoint, ...]


class AnytimePoint(View):
    """Where the run stood after one more evaluation."""

    evaluations: int
    seconds: float
    """Since the run began."""
    dollars: float | None
    """Paid so far; None once a price is unknown."""
    attempt: str
    tasks_ok: int
    geomean_speedup: float | None
    """Over all tasks, of max(speedup, 1), a failure as 1; None on a modelled run."""
    median_dram_ratio: float | None
    """Over the tasks' best so far, DRAM bytes over compulsory bytes."""


class Spent(View):
    """Where time and money went."""

    what: str
    """An agent (``coder judge tester reflexion``), or a stage of evaluations (``build oracle emulation ...``)."""
    seconds: float
    """Summed over workers, so it may exceed the run's wall time."""
    dollars: float | None
    """None where nothing is bought or a price is unknown."""


class Cell(View):
    """One attempt in the task matrix."""

    id: str
    number: int
    step: str
    verdict: Verdict
    stage: str
    accepted: bool
    speedup: float | None


class MatrixRow(View):
    """One task with all its attempts."""

    task: str
    title: str
    level: int | None
    tags: tuple[str, ...]
    seconds: float
    dollars: float | None
    cells: tuple[Cell, ...]


class RunView(View):
    """One run."""

    id: str
    state: ShownState
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
    tasks_ok: int
    tasks_total: int
    tasks_finished: int
    attempts: int
    accepted: int
    verdicts: dict[Verdict, int]
    funnel: tuple[FunnelStep, ...]
    """INFRA attempts count where they came through; they are not judged where they ended."""
    mean_reward: float | None
    """Over the tasks' best attempts, a task without one counting 0; None when nothing was scored."""
    cost: Cost
    """What all models were paid."""
    costs: tuple[AgentCost, ...]
    """The same by agent and provider; empty where nothing was bought."""
    pass_at_k: dict[int, float] | None
    """Chance that k samples of a task hold a correct one, the mean over tasks; None where samples are not independent
    (any strategy but ``best-of-n``) or a task has fewer than it was to have."""
    tasks: tuple[TaskSummary, ...]


def run_view(records: RunRecords) -> RunView:
    """View of a run."""
    run, config, attempts = records.run, records.run.config, records.attempts
    summaries = records.summaries()
    verdicts = Counter(attempt.evaluation.verdict for attempt in attempts)
    scored = [summary.reward for summary in summaries if summary.best and summary.reward is not None]
    return RunView(
        id=run.id,
        state=records.state,
        suite=config.suite,
        suite_digest=config.suite_digest,
        device=config.device,
        strategy=config.strategy,
        coder=config.coder,
        judge=config.judge,
        tester=config.tester,
        memory=config.memory,
        budget=config.budget,
        reward=config.reward,
        seed=config.seed,
        started=run.started,
        ended=run.ended,
        seconds=_between(run.started, run.ended),
        kernelforge=run.kernelforge,
        tasks_ok=sum(summary.best is not None for summary in summaries),
        tasks_total=len(summaries),
        tasks_finished=sum(summary.finished is not None for summary in summaries),
        attempts=len(attempts),
        accepted=sum(attempt.accepted for attempt in attempts),
        verdicts={verdict: verdicts[verdict] for verdict in Verdict if verdicts[verdict]},
        funnel=_funnel(attempts),
        mean_reward=sum(scored) / len(summaries) if scored else None,
        cost=total_cost(records.said()),
        costs=agent_costs(records.said()),
        pass_at_k=_pass_at_k(records),
        tasks=summaries,
    )


def _pass_at_k(records: RunRecords) -> dict[int, float] | None:
    """pass@k over the tasks at k = 1, 2, 5, 10, 20, 50... as far as the samples go. ``INFRA`` is no sample."""
    if records.run.config.strategy != "best-of-n":
        return None
    counts: list[tuple[int, int]] = []
    for task in records.run.config.tasks:
        samples = [
            one.evaluation.verdict
            for one in records.of_task(task)
            if one.operator is not Operator.TUNE and one.evaluation.verdict is not Verdict.INFRA
        ]
        counts.append((len(samples), samples.count(Verdict.OK)))
    least = min(samples for samples, _ in counts)
    if least == 0 or any(task not in records.finished for task in records.run.config.tasks):
        return None
    sizes = [k * 10**power for power in range(len(str(least))) for k in (1, 2, 5) if k * 10**power <= least]
    return {k: sum(pass_at_k(samples, correct, k) for samples, correct in counts) / len(counts) for k in sizes}


def _funnel(attempts: tuple[Attempt, ...]) -> tuple[FunnelStep, ...]:
    ended = [
        len(_STAGES) if attempt.evaluation.verdict is Verdict.OK else _STAGES.index(attempt.evaluation.stage)
        for attempt in attempts
    ]
    passed = [FunnelStep(step=name, count=sum(at > _STAGES.index(stage) for at in ended)) for name, stage in _FUNNEL]
    correct = sum(attempt.evaluation.verdict is Verdict.OK for attempt in attempts)
    return (
        FunnelStep(step="attempts", count=len(attempts)),
        *passed,
        FunnelStep(step="OK", count=correct),
    )


def _between(started: str, ended: str | None) -> float | None:
    if ended is None:
        return None
    try:
        return max((datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
