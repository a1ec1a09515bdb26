"""The data of a training run's page: rewards by step, verdicts, groups without a gradient, staleness, slow tasks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, median
from typing import NamedTuple

from kernelforge.report.views import View

MOST_STEPS = 60
"""Steps of a curve; of more, neighbours are taken together."""
SLOWEST = 10
"""Tasks that are listed."""
MOST_NOTES = 10
"""Notes about conversions that are listed."""


class TrainingJob(NamedTuple):
    """One job of the reward server, as far as the page needs it."""

    task: str
    policy_version: int | None
    group: str | None
    queued: bool
    seconds: float | None
    """From the start of its evaluation to the end; None where an earlier evaluation answered, or there was none."""
    verdict: str | None
    """Words of the verdict, or the reason why there is none; None while it is queued."""
    reward: float | None
    correct: bool
    faster: bool
    """Whether it is correct, and its speedup over eager PyTorch, measured or predicted, is above 1."""
    reading: str = "plan"
    """``plan``, or what a ``ModelNew`` was: ``converted``, or ``modelnew`` where it ran as it is."""
    notes: tuple[str, ...] = ()
    """What was said of its conversion."""
    equal: bool = False
    """Whether it shares the evaluation of an equal candidate."""


class TrainingStep(View):
    """Jobs of one policy version, or of a stretch of the run."""

    at: int
    """First policy version, or number of the last job from 1."""
    jobs: int
    """With a score."""
    mean_reward: float
    correct: float
    """Share of the jobs."""
    faster: float
    """Share of the jobs that are correct and faster than eager PyTorch."""
    groups: int
    """With two scored jobs at least."""
    flat: int
    """Groups whose rewards are all equal: they give no gradient."""


class Lag(View):
    """Jobs whose completion was written by equally stale weights."""

    lag: int
    """Policy versions behind the newest one that the run had submitted by then."""
    jobs: int


class TaskPace(View):
    """Duration of a task's evaluations."""

    task: str
    evaluated: int
    """Jobs that were evaluated for themselves."""
    median_s: float
    longest_s: float
    correct: float
    """Share of the task's scored jobs."""


class VerdictCount(View):
    """Jobs that ended with one verdict."""

    verdict: str
    jobs: int
    share: float


class ReadingCount(View):
    """Jobs whose candidates were read in one way."""

    reading: str
    """``plan``, ``converted`` or ``modelnew``."""
    jobs: int
    correct: float
    """Share of the scored ones."""


class NoteCount(View):
    """Jobs with one note about the conversion of a ``ModelNew``."""

    note: str
    jobs: int


class TrainingView(View):
    """A run of the reward server."""

    run: str
    queued: int
    ended: int
    scored: int
    versioned: bool
    """Whether steps are policy versions; otherwise they are stretches of equally many jobs."""
    steps: tuple[TrainingStep, ...]
    verdicts: tuple[VerdictCount, ...]
    """The most frequent first."""
    shared: int = 0
    """Jobs that share the evaluation of an equal candidate."""
    groups: int
    flat: int
    lags: tuple[Lag, ...]
    """Of the jobs that say a version, the freshest first."""
    slowest: tuple[TaskPace, ...]
    readings: tuple[ReadingCount, ...]
    """Empty where every reply held device code and a plan."""
    notes: tuple[NoteCount, ...]
    """The most frequent first."""


def training_view(run: str, jobs: Sequence[TrainingJob]) -> TrainingView:
    """The view of a run.

    Args:
        jobs: in the order of their submission.
    """
    scored = [job for job in jobs if job.reward is not None]
    versioned = bool(scored) and all(job.policy_version is not None for job in scored)
    counts = Counter(job.verdict for job in jobs if job.verdict is not None)
    ended = sum(counts.values())
    groups, flat = _groups(scored)
    return TrainingView(
        run=run,
        queued=sum(job.queued for job in jobs),
        ended=ended,
        scored=len(scored),
        shared=sum(job.equal for job in jobs),
        versioned=versioned,
        steps=tuple(_by_version(scored) if versioned else _by_number(scored)),
        verdicts=tuple(
            VerdictCount(verdict=name, jobs=count, share=count / ended) for name, count in counts.most_common()
        ),
        groups=groups,
        flat=flat,
        lags=_lags(jobs),
        slowest=_slowest(jobs),
        readings=_readings(jobs),
        notes=tuple(
            NoteCount(note=note, jobs=count)
            for note, count in Counter(note for job in jobs for note in set(job.notes)).most_common(MOST_NOTES)
        ),
    )


def _readings(jobs: Sequence[TrainingJob]) -> tuple[ReadingCount, ...]:
    by_reading: defaultdict[str, list[TrainingJob]] = defaultdict(list)
    for job in jobs:
        by_reading[job.reading].append(job)
    if set(by_reading) <= {"plan"}:
        return ()
    return tuple(
        ReadingCount(reading=name, jobs=len(members), correct=_share_correct(members))
        for name, members in sorted(by_reading.items(), key=lambda item: -len(item[1]))
    )


def _share_correct(jobs: Sequence[TrainingJob]) -> float:
    """Of those with a score; 0 where none has one."""
    scored = [job.correct for job in jobs if job.reward is not None]
    return fmean(scored) if scored else 0.0


def _by_version(scored: Sequence[TrainingJob]) -> list[TrainingStep]:
    ordered = sorted(scored, key=_version)
    versions = [list(members) for _, members in groupby(ordered, key=_version)]
    stride = -(-len(versions) // MOST_STEPS)
    parts = [versions[start : start + stride] for start in range(0, len(versions), stride)]
    return [_step(_version(part[0][0]), [job for members in part for job in members]) for part in parts]


def _by_number(scored: Sequence[TrainingJob]) -> list[TrainingStep]:
    stride = max(1, -(-len(scored) // MOST_STEPS))
    parts = [scored[start : start + stride] for start in range(0, len(scored), stride)]
    return [_step(min((number + 1) * stride, len(scored)), part) for number, part in enumerate(parts)]


def _version(job: TrainingJob) -> int:
    assert job.policy_version is not None
    return job.policy_version


def _step(at: int, jobs: Sequence[TrainingJob]) -> TrainingStep:
    groups, flat = _groups(jobs)
    return TrainingStep(
        at=at,
        jobs=len(jobs),
        mean_reward=fmean(job.reward for job in jobs if job.reward is not None),
        correct=fmean(job.correct for job in jobs),
        faster=fmean(job.faster for job in jobs),
        groups=groups,
        flat=flat,
    )


def _groups(scored: Sequence[TrainingJob]) -> tuple[int, int]:
    """Groups with two scored jobs at least, and those of them whose rewards are all equal."""
    rewards: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for job in scored:
        if job.group is not None and job.reward is not None:
            rewards[job.task, job.group].append(job.reward)
    several = [values for values in rewards.values() if len(values) > 1]
    return len(several), sum(min(values) == max(values) for values in several)


def _lags(jobs: Sequence[TrainingJob]) -> tuple[Lag, ...]:
    newest: int | None = None
    counts: Counter[int] = Counter()
    for job in jobs:
        if job.policy_version is not None:
            newest = job.policy_version if newest is None else max(newest, job.policy_version)
            counts[newest - job.policy_version] += 1
    return tuple(Lag(lag=lag, jobs=count) for lag, count in sorted(counts.items()))


def _slowest(jobs: Sequence[TrainingJob]) -> tuple[TaskPace, ...]:
    by_task: defaultdict[str, list[TrainingJob]] = defaultdict(list)
    for job in jobs:
        if not job.queued:
            by_task[job.task].append(job)
    paces = []
    for task, members in by_task.items():
        seconds = [job.seconds for job in members if job.seconds is not None]
        if seconds:
            paces.append(
                TaskPace(
                    task=task,
                    evaluated=len(seconds),
                    median_s=median(seconds),
                    longest_s=max(seconds),
                    correct=_share_correct(members),
                )
            )
    return tuple(sorted(paces, key=lambda pace: -pace.median_s)[:SLOWEST])
