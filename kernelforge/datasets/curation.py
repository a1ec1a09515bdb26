"""Curation of replies by their reasoning: which of a task's traces to train on, and how hard a task is.

A trace is a reply whose reasoning was kept. The rule is that of ConCuR (arXiv 2510.07356): concise reasoning that led
to a fast kernel. The paper's counts are 3,934 traces that are a task's shortest and its fastest, 414 with a speedup
over 5, and 544 of single operators for balance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, geometric_mean
from types import MappingProxyType
from typing import Literal

from kernelforge.datasets.training import Row, Sample, supervised
from kernelforge.records import Origin, Record

TRACES = 5
"""Traces of a task to choose from: ConCuR sampled five."""
FAST_SPEEDUP = 5.0
"""Over eager PyTorch; a trace with more is chosen although its task has a shorter one."""
SINGLE_OPERATOR_SHARE = 544 / (3_934 + 414)
"""Traces added for balance, to those chosen by the other two rules: ConCuR's counts."""
EQUAL_TIMES = 0.01
"""Share by which a time may exceed the least and count as equal: how far a measured ratio is resolved."""
DIFFICULTY_TRACES = 10
"""M of the average reasoning length."""
EASY_TOKENS, MEDIUM_TOKENS = 4_000, 8_500
"""An average below the first is easy; up to the second it is medium."""

RULES: Mapping[str, str] = MappingProxyType(
    {
        "concur": "shortest and fastest, or over 5x, or of a single operator",
        "random": "a correct trace of each task",
        "longest": "the longest correct trace of each task",
        "shortest": "the shortest correct trace of each task",
        "fastest": "the fastest correct trace of each task",
    }
)
"""Every rule, and what it chooses: ConCuR's, and those of its ablations."""


class Difficulty(Record):
    """Average reasoning length of a task."""

    tokens: float
    """Mean over its first traces, wrong ones too."""
    traces: int
    """How many these are: :data:`DIFFICULTY_TRACES` where there are so many."""
    level: Literal["easy", "medium", "hard"]

    @property
    def text(self) -> str:
        replies = "reply" if self.traces == 1 else "replies"
        return f"{self.level}: {self.tokens:,.0f} tokens of reasoning on average of {self.traces} {replies}"


def difficulty(lengths: Sequence[int]) -> Difficulty | None:
    """Difficulty by the reasoning lengths of a task's replies, in tokens, in their order; None without any."""
    first = lengths[:DIFFICULTY_TRACES]
    if not first:
        return None
    tokens = fmean(first)
    level: Literal["easy", "medium", "hard"] = "medium" if tokens <= MEDIUM_TOKENS else "hard"
    return Difficulty(tokens=tokens, traces=len(first), level="easy" if tokens < EASY_TOKENS else level)


@dataclass(frozen=True)
class TaskTraces:
    """The traces of one task on one device."""

    digest: str
    correct: tuple[Sample, ...]
    """Those that are correct and have a time, of the first that were asked for."""
    difficulty: Difficulty
    single_operator: bool

    @property
    def shortest(self) -> Sample:
        return min(self.correct, key=_length)

    @property
    def fastest(self) -> Sample:
        """Of equal times the one with the shortest reasoning."""
        return min(self.correct, key=lambda sample: (_time_us(sample), _length(sample)))


@dataclass(frozen=True)
class CuratedTrace:
    """A chosen trace."""

    sample: Sample
    why: str
    """The part of ConCuR's rule that it fits, or the other rule."""
    task: TaskTraces


@dataclass(frozen=True)
class RuleSummary:
    """Counts and means of what a rule chooses. Means are None where there is nothing to average."""

    rule: str
    traces: int
    tokens: float | None
    """Mean length of their reasoning."""
    measured_speedup: float | None
    """Geometric mean over eager PyTorch, of measured times."""
    predicted_speedup: float | None
    """The same of modelled times."""


def traces_by_task(samples: Iterable[Sample], single_operator: Collection[str], most: int = TRACES) -> list[TaskTraces]:
    """Tasks with a correct trace, in the order of their first one.

    Args:
        single_operator: digests of tasks of one operator.
        most: traces of a task that are looked at, correct or not: its first ones.
    """
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.reasoning is not None:
            groups.setdefault((sample.evaluation.task, sample.evaluation.fingerprint.device), []).append(sample)
    tasks = []
    for (digest, _), members in groups.items():
        correct = tuple(sample for sample in members[:most] if sample.correct and _is_timed(sample))
        average = difficulty([_length(sample) for sample in members])
        if correct and average is not None:
            tasks.append(TaskTraces(digest, correct, average, digest in single_operator))
    return tasks


def curate(tasks: Sequence[TaskTraces], rule: str, seed: int = 0, equal: float = EQUAL_TIMES) -> list[CuratedTrace]:
    """The traces that a rule chooses, in the order of the tasks.

    Args:
        seed: of the rule ``random``.
        equal: share by which the shortest of a task may be slower than its fastest, for ConCuR's rule.
    """
    if rule == "concur":
        return _concur(tasks, equal)
    random = Random(seed)
    return [CuratedTrace(_single_choice(task, rule, random), rule, task) for task in tasks]


def _single_choice(task: TaskTraces, rule: str, random: Random) -> Sample:
    if rule == "random":
        return random.choice(task.correct)
    if rule == "longest":
        return max(task.correct, key=_length)
    return {"shortest": task.shortest, "fastest": task.fastest}[rule]


def _concur(tasks: Sequence[TaskTraces], equal: float) -> list[CuratedTrace]:
    selected: dict[int, CuratedTrace] = {}
    for number, task in enumerate(tasks):
        if _time_us(task.shortest) <= _time_us(task.fastest) * (1 + equal):
            selected[number] = CuratedTrace(task.shortest, "shortest and fastest", task)
        elif (speedup(task.fastest) or 0.0) > FAST_SPEEDUP:
            selected[number] = CuratedTrace(task.fastest, "over 5x", task)
    others = [number for number, task in enumerate(tasks) if number not in selected and task.single_operator]
    others.sort(key=lambda number: _length(tasks[number].shortest))
    for number in others[: round(SINGLE_OPERATOR_SHARE * len(selected))]:
        selected[number] = CuratedTrace(tasks[number].shortest, "single operator", tasks[number])
    return [selected[number] for number in sorted(selected)]


def curated_rows(traces: Iterable[CuratedTrace]) -> Iterator[Row]:
    """Rows for supervised fine-tuning, with why each was chosen, and the difficulty of its task."""
    for trace in traces:
        average = trace.task.difficulty
        for row in supervised([trace.sample]):
            yield {
                **row,
                "chosen_as": trace.why,
                "difficulty": average.level,
                "average_reasoning_tokens": round(average.tokens, 1),
            }


def summaries(tasks: Sequence[TaskTraces], seed: int = 0, equal: float = EQUAL_TIMES) -> list[RuleSummary]:
    """Counts and means of what each rule chooses."""
    made = []
    for rule in RULES:
        samples = [trace.sample for trace in curate(tasks, rule, seed, equal)]
        by_origin = {
            origin: [value for sample in samples if _origin(sample) is origin and (value := speedup(sample))]
            for origin in (Origin.MEASURED, Origin.MODELLED)
        }
        measured, predicted = (geometric_mean(values) if values else None for values in by_origin.values())
        tokens = fmean(map(_length, samples)) if samples else None
        made.append(RuleSummary(rule, len(samples), tokens, measured, predicted))
    return made


def speedup(sample: Sample) -> float | None:
    """Speedup over eager PyTorch, measured or predicted; None where there is none."""
    performance = sample.evaluation.performance
    if performance is None:
        return None
    return performance.speedup_eager if performance.predicted is None else performance.predicted.speedup


def _is_timed(sample: Sample) -> bool:
    performance = sample.evaluation.performance
    return performance is not None and performance.quarantined is None


def _length(sample: Sample) -> int:
    return sample.reasoning_tokens or 0


def _time_us(sample: Sample) -> float:
    performance = sample.evaluation.performance
    assert performance is not None  # traces have a time
    return performance.time_us


def _origin(sample: Sample) -> Origin | None:
    performance = sample.evaluation.performance
    return None if performance is None else performance.origin
