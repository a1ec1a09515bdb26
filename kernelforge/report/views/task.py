"""Lineage of a task: every attempt under its parent, with the change of its target metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from pydantic import TypeAdapter

from kernelforge.evaluation.generators.parser import caught_by
from kernelforge.records import (
    Attempt,
    InputGenerator,
    Lesson,
    Metric,
    Operator,
    Origin,
    Profile,
    SideTimes,
    SizeFacts,
    Task,
    TaskFacts,
    Verdict,
    outcome_words,
)
from kernelforge.report.views import View
from kernelforge.report.views.messages import Cost, total_cost
from kernelforge.report.views.roofline import DevicePeaks, device_peaks, floor_us, spec_of_fingerprint
from kernelforge.report.views.run_records import RunRecords, TaskSummary, originals, step_name, summarise
from kernelforge.report.views.suite import spec_text
from kernelforge.search.novelty import NEAR, Likeness


class MetricChange(View):
    """One metric of an attempt and of its parent."""

    name: str
    unit: str
    origin: str
    before: float | None
    """The parent's value; None where the parent has none."""
    after: float | None
    change: float | None
    """Relative change: -0.5 is half. None where either value is missing or the parent's is 0."""
    named: bool
    """Whether the Judge's finding named it."""


class LineageNode(View):
    """One attempt in the tree, in depth-first order."""

    id: str
    number: int
    depth: int
    parent: int | None
    """Number of the parent attempt; None for a seed, or where the parent is missing."""
    operator: Operator
    move: str | None
    step: str
    """Step from its parent: the move, else the operator."""
    verdict: Verdict
    stage: str
    """Stage at which the cascade ended."""
    reason: str
    changes: tuple[MetricChange, ...]
    """Metrics that the finding named."""
    time_us: float | None
    origin: Origin | None
    """Whether ``time_us`` is measured or modelled."""
    speedup: float | None
    """Against the fastest baseline; None on a device that models time."""
    low: float | None
    """95 % interval of ``speedup``."""
    high: float | None
    dram_bytes: float | None
    dram_ratio: float | None
    """DRAM bytes over compulsory bytes; at least 1."""
    delta: float | None
    """Change from the parent, relative: -0.2 is a fifth less. None where a value is missing."""
    delta_of: Literal["time_us", "dram_bytes"] | None
    """Quantity of ``delta``: time where both are measured or both modelled, else DRAM traffic."""
    accepted: bool
    note: str
    """Reason for accepting or rejecting it."""
    best: bool
    """Whether it is the task's best."""
    seconds: float
    dollars: float | None
    """Price of its model calls; None where a price is unknown."""
    uncompared: bool = False
    """Whether the verdict is OK although no value was compared at the full size."""
    equals: str | None = None
    """Key of the evaluation that it shares with an equal attempt; None where it ran itself."""
    equal_to: int | None = None
    """Number of that attempt."""
    alike: float | None = None
    """Token BLEU of the candidate to the earlier one that it is most like, from 0.9 on; None where none is as near."""
    alike_to: int | None = None
    """Number of that attempt."""

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return outcome_words(self.verdict, self.uncompared)


class TaskSize(View):
    """One size of a task, with the facts from the oracle; None where the reference was not run."""

    size: str
    constants: dict[str, int | float | bool]
    """Module constants that the size replaces."""
    inputs: tuple[str, ...]
    """``float32[64, 128]``, or a scalar's value."""
    outputs: tuple[str, ...]
    weights: int | None
    """Number of parameters, buffers and tensor attributes of the reference."""
    compulsory_bytes: int | None
    """Least bytes: inputs, weights and outputs, each moved once."""
    flops: int | None
    eager_launches: int | None


class BaselineTime(View):
    """One baseline with the best time that any attempt of the run measured of it."""

    name: str
    median_us: float
    low_us: float
    """95 % interval of the median."""
    high_us: float
    samples: int
    captured: bool
    """Replayed from a CUDA graph."""
    attempt: str
    """Attempt that was timed in turns with it."""


class GeneratorView(View):
    """One input generator that a Tester proposed."""

    name: str
    provider: str
    admitted: bool
    reason: str
    """Reason for refusing it, at one size at least."""
    caught: tuple[int, ...]
    """Numbers of the attempts that failed on its inputs."""
    plan: str


class TaskView(View):
    """One task of one run."""

    run: str
    task: str
    title: str
    """Empty where the task's file was not journalled."""
    suite: str
    level: int | None
    tags: tuple[str, ...]
    digest: str | None
    reference: str | None
    """Python text with ``Model``, ``get_inputs`` and ``get_init_inputs``."""
    c_reference: str | None
    """Sequential code that Coders see instead."""
    sizes: tuple[TaskSize, ...]
    device: str
    roofs: DevicePeaks | None
    """Peaks of the run's device; None where unknown."""
    floor_us: float | None
    """Least time on that device, also where it only models time: compulsory bytes of the full size at peak bandwidth.
    ``summary.floor_share`` is the share of it that the best's measured time reaches."""
    baselines: tuple[BaselineTime, ...]
    """The fastest first; none on a device that models time."""
    summary: TaskSummary
    lineage: tuple[LineageNode, ...]
    cost: Cost
    """Price of all model calls for the task."""
    tests: tuple[GeneratorView, ...]
    """Input generators of the Tester."""
    lessons: tuple[Lesson, ...]
    """Lessons from the task."""


def task_view(records: RunRecords, task: str) -> TaskView:
    attempts = records.of_task(task)
    source, facts = records.tasks.get(task), records.facts.get(task)
    spec = next((spec_of_fingerprint(attempt.evaluation.fingerprint) for attempt in attempts), None)
    summary = summarise(records.run.id, task, attempts, records.finished.get(task))
    by_id = {attempt.id: attempt for attempt in attempts}
    shared = originals(attempts)
    near = near_copies(attempts)
    lineage = tuple(
        _node(attempt, depth, by_id.get(attempt.parent or ""), summary.best, shared.get(attempt.id), near)
        for attempt, depth in _tree(attempts)
    )
    return TaskView(
        run=records.run.id,
        task=task,
        title=source.title if source else "",
        suite=source.suite if source else records.run.config.suite,
        level=source.level if source else None,
        tags=source.tags if source else (),
        digest=source.digest if source else None,
        reference=source.source if source else None,
        c_reference=(source.c_source or None) if source else None,
        sizes=task_sizes(source, facts),
        device=records.run.config.device,
        roofs=None if spec is None else device_peaks(spec),
        floor_us=floor_us(compulsory_bytes(facts, attempts), spec, host_bytes(facts)),
        baselines=_baselines(attempts),
        summary=summary,
        lineage=lineage,
        cost=total_cost(records.task_messages(task)),
        tests=tuple(_test(generator, attempts) for generator in records.generators.get(task, ())),
        lessons=tuple(records.lessons.get(task, ())),
    )


def near_copies(attempts: Sequence[Attempt]) -> dict[int, tuple[int, float]]:
    """Of attempts that are near copies, by number: the earlier one that each is most like, and their token BLEU.

    Tuned children, whose text is their parent's, are none.
    """
    likeness = Likeness(NEAR)
    near = {}
    for attempt in attempts:
        if attempt.operator is not Operator.TUNE and (scores := likeness.add(attempt)):
            nearest = max(scores, key=lambda number: (scores[number], -number))
            near[attempt.number] = nearest, scores[nearest]
    return near


def compulsory_bytes(facts: TaskFacts | None, attempts: Sequence[Attempt]) -> float | None:
    """Compulsory bytes of a task at its full size: by the oracle, else by the first profile of an attempt."""
    if facts is not None:
        return facts.at("full").compulsory_bytes
    profiles = (attempt.profile for attempt in attempts if attempt.profile is not None)
    return next((profile.roofline.compulsory_bytes for profile in profiles), None)


def host_bytes(facts: TaskFacts | None) -> int:
    """Bytes of host memory that a task reads at its full size, by the oracle; 0 where that is unknown."""
    return 0 if facts is None else facts.at("full").host_bytes


def task_sizes(task: Task | None, facts: TaskFacts | None) -> tuple[TaskSize, ...]:
    """Sizes of a task with their facts; without the task, those that have facts."""
    by_size = {} if facts is None else {size.size: size for size in facts.sizes}
    constants = {name: {} for name in by_size} if task is None else {size.name: size.constants for size in task.sizes}
    return tuple(_size(name, replaced, by_size.get(name)) for name, replaced in constants.items())


def _size(name: str, constants: dict[str, int | float | bool], facts: SizeFacts | None) -> TaskSize:
    return TaskSize.of(
        facts,
        size=name,
        constants=constants,
        inputs=tuple(map(spec_text, facts.inputs)) if facts else (),
        outputs=tuple(map(spec_text, facts.outputs)) if facts else (),
        weights=len(facts.weights) if facts else None,
    )


def _baselines(attempts: Sequence[Attempt]) -> tuple[BaselineTime, ...]:
    """The lowest median of each baseline; quarantined timings are left out."""
    best: dict[str, tuple[SideTimes, str]] = {}
    for attempt in attempts:
        speed = attempt.evaluation.performance
        if speed is None or speed.timing is None or speed.quarantined is not None:
            continue
        for side in speed.timing.baselines:
            if side.name not in best or side.median_us < best[side.name][0].median_us:
                best[side.name] = side, attempt.id
    rows = (
        BaselineTime.of(
            side,
            low_us=side.interval_us[0],
            high_us=side.interval_us[1],
            samples=len(side.samples_us),
            attempt=attempt,
        )
        for side, attempt in best.values()
    )
    return tuple(sorted(rows, key=lambda row: row.median_us))


def _test(generator: InputGenerator, attempts: tuple[Attempt, ...]) -> GeneratorView:
    caught = tuple(attempt.number for attempt in attempts if caught_by(attempt.evaluation) == generator.name)
    return GeneratorView.of(generator, caught=caught)


def _tree(attempts: tuple[Attempt, ...]) -> Iterable[tuple[Attempt, int]]:
    """Attempts depth first, children by number; an attempt whose parent is missing is a root."""
    ids = {attempt.id for attempt in attempts}
    children: dict[str | None, list[Attempt]] = {}
    for attempt in attempts:
        children.setdefault(attempt.parent if attempt.parent in ids else None, []).append(attempt)
    stack = [(attempt, 0) for attempt in reversed(children.get(None, []))]
    while stack:
        attempt, depth = stack.pop()
        yield attempt, depth
        stack += [(child, depth + 1) for child in reversed(children.get(attempt.id, []))]


def _node(
    attempt: Attempt,
    depth: int,
    parent: Attempt | None,
    best: str | None,
    original: Attempt | None,
    near: Mapping[int, tuple[int, float]],
) -> LineageNode:
    finding = attempt.finding
    alike_to, alike = near.get(attempt.number, (None, None))
    # A candidate that was not measured has a modelled time, which is no time of this GPU.
    counted = not attempt.evaluation.passed_over
    speed = attempt.evaluation.performance if counted else None
    against = speed.timing.ratio(speed.timing.fastest) if speed and speed.timing and speed.timing.fastest else None
    interval = against.interval if against and speed and speed.speedup is not None else None
    roof = attempt.profile.roofline if attempt.profile and counted else None
    delta, delta_of = _delta(attempt, parent) if counted else (None, None)
    return LineageNode.of(
        attempt,
        attempt.evaluation,
        speed,
        roof,
        depth=depth,
        parent=parent.number if parent else None,
        move=finding.move if finding else None,
        step=step_name(attempt),
        changes=named_changes(attempt, parent),
        time_us=speed.time_us if speed else None,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        dram_ratio=roof.dram_bytes / roof.compulsory_bytes if roof and roof.compulsory_bytes else None,
        delta=delta,
        delta_of=delta_of,
        best=attempt.id == best,
        equal_to=original.number if original else None,
        alike=alike,
        alike_to=alike_to,
        dollars=total_cost(attempt.messages).dollars,
    )


def _delta(attempt: Attempt, parent: Attempt | None) -> tuple[float | None, Literal["time_us", "dram_bytes"] | None]:
    """Relative change from the parent, and its quantity."""
    if parent is None:
        return None, None
    before, after = parent.evaluation.performance, attempt.evaluation.performance
    if before and after and before.origin is after.origin and not (before.quarantined or after.quarantined):
        return after.time_us / before.time_us - 1, "time_us"
    moved = [attempt.profile.roofline.dram_bytes if attempt.profile else None for attempt in (parent, attempt)]
    if moved[0] and moved[1] is not None:
        return moved[1] / moved[0] - 1, "dram_bytes"
    return None, None


def plausible_time_us(attempt: Attempt) -> float | None:
    """Measured time that is not quarantined, in µs."""
    speed = attempt.evaluation.performance
    return None if speed is None else speed.plausible_us


def metric_changes(attempt: Attempt, parent: Attempt | None) -> tuple[MetricChange, ...]:
    """Every metric of the attempt and of its parent; those that the finding named first."""
    after, before = _by_name(attempt.profile), _by_name(parent.profile if parent else None)
    named = _named(attempt, after, before)
    return _changes(dict.fromkeys([*named, *after]), set(named), after, before)


def named_changes(attempt: Attempt, parent: Attempt | None) -> tuple[MetricChange, ...]:
    """The part of :func:`metric_changes` that the finding named."""
    if attempt.finding is None:
        return ()
    after, before = _by_name(attempt.profile), _by_name(parent.profile if parent else None)
    named = dict.fromkeys(_named(attempt, after, before))
    return _changes(named, named, after, before)


def _named(attempt: Attempt, after: Mapping[str, Metric], before: Mapping[str, Metric]) -> list[str]:
    named = [name.lstrip("+") for name in attempt.finding.metrics] if attempt.finding else []
    return [name for name in named if name in after or name in before]


_CHANGES = TypeAdapter(tuple[MetricChange, ...])
"""Validates many at once, which takes a third of the time."""


def _changes(
    names: Iterable[str], named: Collection[str], after: Mapping[str, Metric], before: Mapping[str, Metric]
) -> tuple[MetricChange, ...]:
    rows = []
    for name in names:
        current, previous = after.get(name), before.get(name)
        metric = current or previous
        assert metric is not None
        new, old = current.value if current else None, previous.value if previous else None
        relative = (new - old) / abs(old) if old and new is not None else None
        rows.append(
            {
                "name": name, "unit": metric.unit, "origin": metric.origin.value,
                "before": old, "after": new, "change": relative, "named": name in named,
            }
        )  # fmt: skip
    return _CHANGES.validate_python(rows)


def profile_metrics(profile: Profile) -> tuple[MetricChange, ...]:
    """The plan-wide metrics of one profile, without a parent."""
    metrics = _by_name(profile)
    return _changes(metrics, (), metrics, {})


def _by_name(profile: Profile | None) -> Mapping[str, Metric]:
    return {metric.name: metric for metric in profile.metrics} if profile else {}
