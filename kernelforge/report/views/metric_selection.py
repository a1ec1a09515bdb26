"""Metrics that go with the time of candidates, chosen per GPU as CudaForge (arXiv 2511.01884) chose its 24.

The paper's steps: of each task the fastest and the slowest correct kernels, five of each; Pearson's correlation of
every metric with their time; the 20 strongest of each task; of these, metrics that recur over tasks with one sign, and
whose mean correlation is above the 75th percentile. Here that percentile is over the metrics that have a correlation in
as many tasks as a metric has to recur in.

A correlation of few candidates is weak evidence, and a modelled time is made of counters, so that its correlations say
what the model reads, not what a GPU would do.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernelforge.agents.prompting.profiles import TIME_UNITS
from kernelforge.profiling.ncu.catalogue import CUDAFORGE
from kernelforge.records import Attempt, Metric, Origin, Verdict
from kernelforge.report.views import View

ENDS = 5
"""Fastest, and slowest, candidates of a task that count: CudaForge's number."""
TOP = 20
"""Strongest correlations of a task that count: CudaForge's number."""
TASKS = 2
"""Least number of tasks in which a metric recurs: the paper says several."""
PERCENTILE = 75
"""Of the mean correlations, above which a metric has to be: CudaForge's number."""
LEAST = 4
"""Candidates of different times that a task needs. Ours: of three points most correlations are strong."""


class TaskSample(View):
    """Candidates of one task whose times were correlated."""

    task: str
    candidates: int
    """Correct ones with a time and a profile, each text once."""
    counted: int
    """Of these, the fastest and the slowest; 0 where the task is left out."""
    why: str
    """Reason for leaving it out, or empty."""


class MetricCorrelation(View):
    """One metric over the tasks of a GPU."""

    name: str
    unit: str
    origin: Origin
    correlations: dict[str, float]
    """Pearson's r with the time, by task; only tasks in which it varies."""
    mean: float
    """Mean of their absolute values."""
    top: int
    """Tasks in which it is among the strongest."""
    one_sign: bool
    """Whether it has the same sign in all of these."""
    selected: bool
    in_cudaforge: bool
    """Whether it is one of the paper's 24."""

    @property
    def sign(self) -> str:
        """``slower`` where a higher value goes with a longer time in all tasks, ``faster`` where it goes with a shorter
        one, else ``either``."""
        signs = {r > 0 for r in self.correlations.values()}
        return "either" if len(signs) > 1 else "slower" if True in signs else "faster"


class MetricSelection(View):
    """Metrics of one GPU, the chosen ones first, then by mean correlation."""

    gpu: str
    origin: Origin
    """Whether the times are measured or modelled."""
    tasks: tuple[TaskSample, ...]
    threshold: float
    """Mean correlation above which a metric is chosen."""
    metrics: tuple[MetricCorrelation, ...]
    """All that are among the strongest of a task, and CudaForge's that have a correlation."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the chosen metrics."""
        return tuple(metric.name for metric in self.metrics if metric.selected)


def metric_selections(
    attempts: Iterable[Attempt],
    *,
    ends: int = ENDS,
    top: int = TOP,
    tasks: int = TASKS,
    percentile: float = PERCENTILE,
) -> tuple[MetricSelection, ...]:
    """Selections of the GPUs that attempts were evaluated on, by name.

    Args:
        attempts: of runs; those of one task and one GPU count together.
        ends: fastest and slowest candidates of a task.
        top: strongest correlations of a task.
        tasks: in which a metric has to recur.
        percentile: of the mean correlations, from 0 to 100.
    """
    groups: dict[str, dict[tuple[str, str], list[Attempt]]] = {}
    for attempt in attempts:
        fingerprint = attempt.evaluation.fingerprint
        by_task = groups.setdefault(fingerprint.gpu or fingerprint.device, {})
        by_task.setdefault((attempt.task, attempt.evaluation.task), []).append(attempt)
    return tuple(_selection(gpu, by_task, ends, top, tasks, percentile) for gpu, by_task in sorted(groups.items()))


def _selection(
    gpu: str,
    by_task: Mapping[tuple[str, str], Sequence[Attempt]],
    ends: int,
    top: int,
    least_tasks: int,
    percentile: float,
) -> MetricSelection:
    measured = any(_timed(attempt, Origin.MEASURED) for group in by_task.values() for attempt in group)
    origin = Origin.MEASURED if measured else Origin.MODELLED
    samples, strongest = [], Counter[str]()
    correlations: dict[str, dict[str, float]] = {}
    facts: dict[str, Metric] = {}
    tops: dict[str, list[str]] = {}
    twice = {name for name, count in Counter(name for name, _ in by_task).items() if count > 1}
    for (name, digest), group in by_task.items():
        # Tasks of one name may have different texts in different runs.
        task = f"{name} ({digest[:8]})" if name in twice else name
        points = _points(group, origin)
        counted = [*points[:ends], *points[max(ends, len(points) - ends) :]]
        few = len({time_us for time_us, _ in counted}) < LEAST
        why = f"fewer than {LEAST} correct candidates of different times" if few else ""
        samples.append(TaskSample(task=task, candidates=len(points), counted=0 if few else len(counted), why=why))
        if few:
            continue
        of_task = _correlations(counted)
        facts |= {metric.name: metric for _, metrics in counted for metric in metrics.values()}
        for metric, r in of_task.items():
            correlations.setdefault(metric, {})[task] = r
        for metric in sorted(of_task, key=lambda metric: (-abs(of_task[metric]), metric))[:top]:
            strongest[metric] += 1
            tops.setdefault(metric, []).append(task)
    means = {name: statistics.fmean(map(abs, of.values())) for name, of in correlations.items()}
    recurring = [means[name] for name, of in correlations.items() if len(of) >= least_tasks]
    threshold = _percentile(recurring, percentile) if recurring else 1.0
    rows = []
    for name in {*strongest, *(correlations.keys() & set(CUDAFORGE))}:
        signs = {correlations[name][task] > 0 for task in tops.get(name, ())}
        rows.append(
            MetricCorrelation(
                name=name,
                unit=facts[name].unit,
                origin=facts[name].origin,
                correlations=correlations[name],
                mean=means[name],
                top=strongest[name],
                one_sign=len(signs) == 1,
                selected=strongest[name] >= least_tasks and len(signs) == 1 and means[name] > threshold,
                in_cudaforge=name in CUDAFORGE,
            )
        )
    rows.sort(key=lambda row: (not row.selected, -row.mean, row.name))
    return MetricSelection(gpu=gpu, origin=origin, tasks=tuple(samples), threshold=threshold, metrics=tuple(rows))


def _timed(attempt: Attempt, origin: Origin) -> bool:
    """Whether an attempt is correct, with a profile and a time of this origin that is believed."""
    speed = attempt.evaluation.performance
    return (
        attempt.evaluation.verdict is Verdict.OK
        and not attempt.evaluation.passed_over
        and attempt.profile is not None
        and speed is not None
        and speed.origin is origin
        and speed.quarantined is None
    )


def _points(attempts: Sequence[Attempt], origin: Origin) -> list[tuple[float, dict[str, Metric]]]:
    """Time and metrics of each candidate, the fastest first; of equal candidates the first counts."""
    seen: set[str] = set()
    points = []
    for attempt in attempts:
        speed, profile = attempt.evaluation.performance, attempt.profile
        key = attempt.evaluation.equals or attempt.evaluation.key
        if not _timed(attempt, origin) or speed is None or profile is None or key in seen:
            continue
        seen.add(key)
        metrics = {metric.name: metric for metric in profile.metrics if metric.unit not in TIME_UNITS}
        points.append((speed.time_us, metrics))
    return sorted(points, key=lambda point: point[0])


def _correlations(points: Sequence[tuple[float, Mapping[str, Metric]]]) -> dict[str, float]:
    """Pearson's r with the time of every metric that all points have and that varies."""
    times = [time_us for time_us, _ in points]
    shared = set(points[0][1]).intersection(*(metrics for _, metrics in points))
    result = {}
    for name in shared:
        values = [metrics[name].value for _, metrics in points]
        if all(map(math.isfinite, values)) and len(set(values)) > 1:
            result[name] = statistics.correlation(values, times)
    return result


def _percentile(values: Sequence[float], percentile: float) -> float:
    """The percentile between the two nearest values, in proportion."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percentile / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def names_file(selection: MetricSelection, runs: Sequence[str]) -> str:
    """The chosen names, a line each, below lines that say where they are from; ``--metrics`` reads it."""
    counted = [sample for sample in selection.tasks if sample.counted]
    about = [
        f"metrics of {selection.gpu}, by {selection.origin.value} times of {len(counted)} tasks of {', '.join(runs)}",
        "chosen as in CudaForge (arXiv 2511.01884)",
    ]
    return "".join(f"# {line}\n" for line in about) + "".join(f"{name}\n" for name in selection.names)


def read_names(text: str) -> tuple[str, ...]:
    """The names of such a file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(name for line in lines for name in line.split()))
