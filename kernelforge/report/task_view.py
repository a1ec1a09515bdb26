"""A task's lineage: every attempt under the one it came from, with what it did to the metric it was after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelforge.evaluate.generators import caught_by
from kernelforge.records import Attempt, InputGenerator, Lesson, Operator, Profile, Verdict
from kernelforge.report.cost import Cost, total_cost
from kernelforge.report.source import RunRecords
from kernelforge.report.summary import TaskSummary, View, step_name, summarise


class MetricChange(View):
    """One metric of an attempt beside its parent's."""

    name: str
    unit: str
    origin: str
    before: float | None
    """The parent's value; None where the parent has none."""
    after: float | None
    change: float | None
    """Relative: -0.5 is half. None where either value is missing or the parent's is 0."""
    named: bool
    """Whether the Judge's finding named it."""


class LineageNode(View):
    """One attempt in the tree, in depth-first order."""

    id: str
    number: int
    depth: int
    operator: Operator
    move: str | None
    step: str
    """The move, else the operator."""
    verdict: Verdict
    reason: str
    changes: tuple[MetricChange, ...]
    """Metrics that the finding named."""
    accepted: bool
    note: str
    """Why it was or was not accepted."""
    best: bool
    """Whether it is the task's best."""
    seconds: float


class GeneratorView(View):
    """One input generator that a Tester proposed."""

    name: str
    provider: str
    admitted: bool
    reason: str
    """Why it was refused, at some size at least."""
    caught: tuple[int, ...]
    """Numbers of the attempts that it failed."""
    plan: str


class TaskView(View):
    """One task of one run."""

    run: str
    task: str
    summary: TaskSummary
    lineage: tuple[LineageNode, ...]
    cost: Cost
    """What models were paid for the task."""
    tests: tuple[GeneratorView, ...]
    """Further inputs that a Tester proposed."""
    lessons: tuple[Lesson, ...]
    """What the task taught."""


def task_view(records: RunRecords, task: str) -> TaskView:
    """View of a task's lineage."""
    attempts = records.of_task(task)
    summary = summarise(records.run.id, task, attempts, records.finished.get(task))
    by_id = {attempt.id: attempt for attempt in attempts}
    lineage = tuple(
        _node(attempt, depth, by_id.get(attempt.parent or ""), summary.best) for attempt, depth in _tree(attempts)
    )
    said = [message for attempt in attempts for message in attempt.messages]
    return TaskView(
        run=records.run.id,
        task=task,
        summary=summary,
        lineage=lineage,
        cost=total_cost([*said, *records.messages.get(task, ())]),
        tests=tuple(_test(one, attempts) for one in records.generators.get(task, ())),
        lessons=tuple(records.lessons.get(task, ())),
    )


def _test(generator: InputGenerator, attempts: tuple[Attempt, ...]) -> GeneratorView:
    caught = tuple(one.number for one in attempts if caught_by(one.evaluation) == generator.name)
    names = ("name", "provider", "admitted", "reason", "plan")
    return GeneratorView(**{name: getattr(generator, name) for name in names}, caught=caught)


def _tree(attempts: tuple[Attempt, ...]) -> Iterable[tuple[Attempt, int]]:
    """Attempts depth first, children by number; a parent that is not there makes a root."""
    known = {attempt.id for attempt in attempts}
    children: dict[str | None, list[Attempt]] = {}
    for attempt in attempts:
        children.setdefault(attempt.parent if attempt.parent in known else None, []).append(attempt)
    stack = [(attempt, 0) for attempt in reversed(children.get(None, []))]
    while stack:
        attempt, depth = stack.pop()
        yield attempt, depth
        stack += [(child, depth + 1) for child in reversed(children.get(attempt.id, []))]


def _node(attempt: Attempt, depth: int, parent: Attempt | None, best: str | None) -> LineageNode:
    finding = attempt.finding
    changes = metric_changes(attempt, parent)
    return LineageNode(
        id=attempt.id,
        number=attempt.number,
        depth=depth,
        operator=attempt.operator,
        move=finding.move if finding else None,
        step=step_name(attempt),
        verdict=attempt.evaluation.verdict,
        reason=attempt.evaluation.reason,
        changes=tuple(change for change in changes if change.named),
        accepted=attempt.accepted,
        note=attempt.note,
        best=attempt.id == best,
        seconds=attempt.seconds,
    )


def metric_changes(attempt: Attempt, parent: Attempt | None) -> tuple[MetricChange, ...]:
    """Every metric of the attempt beside its parent's, those that the finding named first."""
    named = tuple(name.lstrip("+") for name in attempt.finding.metrics) if attempt.finding else ()
    after = _by_name(attempt.profile)
    before = _by_name(parent.profile if parent else None)
    names = dict.fromkeys([name for name in named if name in after or name in before])
    names |= dict.fromkeys(after)
    result = []
    for name in names:
        known = after.get(name) or before[name]
        old = before[name][0] if name in before else None
        new = after[name][0] if name in after else None
        relative = (new - old) / abs(old) if old and new is not None else None
        result.append(
            MetricChange(
                name=name, unit=known[1], origin=known[2], before=old, after=new, change=relative, named=name in named
            )
        )
    return tuple(result)


def profile_metrics(profile: Profile) -> tuple[MetricChange, ...]:
    """The plan-wide metrics of one profile, with nothing to compare them with."""
    return tuple(
        MetricChange(
            name=metric.name,
            unit=metric.unit,
            origin=metric.origin.value,
            before=None,
            after=metric.value,
            change=None,
            named=False,
        )
        for metric in profile.metrics
    )


def _by_name(profile: Profile | None) -> Mapping[str, tuple[float, str, str]]:
    if profile is None:
        return {}
    return {metric.name: (metric.value, metric.unit, metric.origin.value) for metric in profile.metrics}
