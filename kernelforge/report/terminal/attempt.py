"""One task, one attempt, one evaluation, and lines found in messages, in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelforge.llm.rate_limits import reasoning_tokens
from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import (
    ABSENT,
    byte_count,
    change,
    duration,
    format_energy,
    format_fingerprint,
    format_forecast,
    format_note,
    format_screening,
    format_timings,
    number,
    one_line,
    percent,
    times,
)
from kernelforge.report.tables.base import STYLES
from kernelforge.report.tables.task import baseline_table, check_table, metric_table, size_table, trial_table
from kernelforge.report.terminal.compare import diff_parts
from kernelforge.report.terminal.run import speed_lines
from kernelforge.report.terminal.widgets import Block, bar, field, hanging, heading
from kernelforge.report.views.bounds import kernel_bounds
from kernelforge.report.views.messages import SearchResults
from kernelforge.report.views.task import profile_metrics

if TYPE_CHECKING:
    from kernelforge.records import EnergyEstimate, Fingerprint, Message, Origin, Performance, Screening
    from kernelforge.report.views.attempt import AttemptView, EvaluationView, Gate
    from kernelforge.report.views.bounds import KernelBounds
    from kernelforge.report.views.roofline import RooflinePoint
    from kernelforge.report.views.task import GeneratorView, LineageNode, MetricChange, TaskView


_DEEPEST = 12
"""Most steps of indentation, so that a long lineage stays readable."""


def task_lines(view: TaskView) -> Group:
    what = f": {view.title}" if view.title else ""
    about = ", ".join([*([] if view.level is None else [f"level {view.level}"]), *view.tags])
    parts: list[RenderableType] = [
        field("task", f"{view.task}{what}"),
        field("run", f"{view.run} on {view.device}"),
        *([field("about", f"{about} (suite {view.suite})")] if about else []),
        *([field("floor", _floor(view))] if view.floor_us is not None else []),
        field("best", _best(view)),
        field("state", view.summary.finished or "not finished"),
        *([field("cost", view.cost.text)] if view.cost.calls else []),
        *(field("test", _test(item)) for item in view.tests),
        *(field("lesson", f"{item.family}: {item.text}") for item in view.lessons),
    ]
    if view.sizes:
        parts += [Text(), size_table(view.sizes).to_rich()]
    if view.baselines:
        parts += [Text(), baseline_table(view.baselines).to_rich()]
    if view.lineage:
        parts += [*heading("Lineage"), *(line for node in view.lineage for line in _node(node))]
    return Group(*parts)


def _floor(view: TaskView) -> str:
    peak = "" if view.roofs is None else f", at {number(view.roofs.dram_bandwidth_gbps)} GB/s of {view.roofs.device}"
    return f"{number(view.floor_us)} µs to move the least bytes{peak}"


def _test(test: GeneratorView) -> str:
    state = "in force" if test.admitted else "refused"
    reason = f"{', but ' if test.admitted else ': '}{test.reason}" if test.reason else ""
    caught = f"; caught {', '.join(f'{number:02d}' for number in test.caught)}" if test.caught else ""
    return f"{test.name} by {test.provider}, {state}{reason}{caught}"


def _best(view: TaskView) -> str:
    best = view.summary
    if best.best is None:
        return "nothing correct yet"
    parts = [best.best, *([] if best.correct else [UNCOMPARED])]
    if best.speedup is not None:
        parts.append(f"{times(best.speedup)} the fastest baseline")
    if best.time_us is not None and best.origin is not None:
        parts.append(f"{number(best.time_us)} µs {best.origin.value}")
    if best.floor_share is not None:
        parts.append(f"{percent(best.floor_share)} of the floor's speed")
    if best.dram_bytes is not None:
        parts.append(f"{byte_count(best.dram_bytes)} DRAM, {times(best.dram_ratio)} the least")
    return " · ".join(parts)


def _node(node: LineageNode) -> Iterator[RenderableType]:
    line = Text("└ " if node.depth else "")
    line.append(f"{node.number:02d} ")
    line.append(one_line(node.step), style="bold")
    line.append(" ")
    line.append(node.outcome, style=STYLES[node.outcome])
    if node.equals:
        line.append(f"  equal to {'another' if node.equal_to is None else f'{node.equal_to:02d}'}", style="dim")
    elif node.alike is not None:
        line.append(f"  {percent(node.alike)} alike {node.alike_to:02d}", style="dim")
    for text in _numbers(node):
        line.append(f"  {text}")
    undecided = (word for word in ("undecided", "not compared") if node.note.startswith(word))
    decision = "accepted" if node.accepted else next(undecided, "not accepted")
    line.append(f"  {decision}", style="green" if node.accepted else "dim")
    if node.best:
        line.append("  ← best", style="bold green")
    indent = 2 * min(node.depth, _DEEPEST)
    yield Padding(line, (0, 0, 0, indent), expand=False)
    for text in _because(node):
        yield Padding(Text(text, style="dim", overflow="fold"), (0, 0, 0, indent + 5), expand=False)


def _numbers(node: LineageNode) -> Iterator[str]:
    """Speedup where it is measured, else DRAM traffic; then the change from the parent."""
    if node.speedup is not None:
        spread = "" if node.low is None or node.high is None else f" [{times(node.low)}, {times(node.high)}]"
        yield f"{times(node.speedup)}{spread}"
    elif node.dram_ratio is not None:
        yield f"{times(node.dram_ratio)} the least DRAM"
    if node.delta is not None:
        what = "time" if node.delta_of == "time_us" else "DRAM"
        yield f"same {what}" if node.delta == 0 else f"{change(node.delta)} {what}"


def _because(node: LineageNode) -> Iterator[str]:
    """Change of the metric that the Judge named, and the reason for the attempt's result."""
    note = format_note(node.note) if node.accepted or not node.reason else node.reason
    for metric in [metric for metric in node.changes if metric.change is not None and metric.name not in note][:1]:
        yield one_line(f"{metric.name} {change(metric.change)}")
    if note:
        yield one_line(note, 300)


def evaluation_lines(view: EvaluationView) -> Group:
    """One evaluation: verdict, reason, checks by size, speed, profile."""
    evaluation, profile = view.evaluation, view.profile
    parts: list[RenderableType] = [
        field("verdict", f"{evaluation.outcome} at stage {evaluation.stage}"),
        field("candidate", evaluation.candidate),
        field("where", format_fingerprint(evaluation.fingerprint, evaluation.build)),
        field("took", format_timings(evaluation.seconds) or ABSENT),
    ]
    if evaluation.reason:
        parts += [*heading("Reason"), Block(evaluation.reason)]
    if evaluation.correctness:
        parts += [Text(), check_table(evaluation.correctness.sizes).to_rich()]
    parts += [*heading("Is it fast"), *speed_lines(evaluation.performance, evaluation.build)]
    parts += _screening(evaluation.screening, evaluation.performance)
    if profile is not None:
        roof = profile.roofline
        parts += [
            field("DRAM", f"{byte_count(roof.dram_bytes)}, the least is {byte_count(roof.compulsory_bytes)}"),
            *energy_lines(profile.energy),
            *bound_lines(kernel_bounds(profile)),
            Text(),
            metric_table(profile_metrics(profile), title=f"Profile at size {profile.size}", compared=False).to_rich(),
            *(field("note", note) for note in profile.notes),
        ]
    return Group(*parts)


_GLYPHS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "not compared": ("*", "yellow"),
    "not reached": ("·", "dim"),
    "not applicable": ("–", "dim"),
}
_FLOOR = "in which the least bytes move at peak bandwidth"
_SAME = 0.0005
"""Relative change below which a metric is shown as unchanged."""


def _screening(screening: Screening | None, speed: Performance | None) -> Iterator[RenderableType]:
    """Outcome on the emulated device in front of the GPU, and the predicted time beside the measured one."""
    if screening is None:
        return
    if screening.forecast is not None:
        measured_us = None if speed is None else speed.plausible_us
        note = "" if measured_us is None else "; predicted before it was measured"
        yield field("before", f"{format_forecast(screening.forecast, measured_us)}{note}")
    yield field("screened", format_screening(screening))


def attempt_lines(view: AttemptView) -> Group:
    parts: list[RenderableType] = [
        field("attempt", f"{view.id}  {view.operator.value}" + (f" of {view.parent}" if view.parent else "")),
        *([field("start", one_line(str(view.start)))] if view.start else []),
        field("verdict", f"{view.outcome} at stage {view.stage}"),
        field(
            "status", ": ".join(filter(None, ("accepted" if view.accepted else "not accepted", format_note(view.note))))
        ),
        field("reward", f"{number(view.reward.value)} ({view.reward.policy})"),
        *([field("equal to", _equal(view))] if view.equals else []),
        *([field("coder", _coder(view))] if view.coder else []),
        *([field("language", view.language)] if view.language == "triton" else []),
        *([field("cost", view.cost.text)] if view.cost.calls else []),
        *([field("caught by", f"test input {view.caught_by}")] if view.caught_by else []),
        field("where", format_fingerprint(view.fingerprint, view.build)),
        field("took", f"{duration(view.seconds)}: {format_timings(view.timings) or ABSENT}"),
    ]
    if view.reason:
        parts += [*heading("Reason"), Block(view.reason)]
    parts += [*heading("What changed"), *_changes(view)]
    parts += [*heading("Is it right"), *map(_gate, view.gates)]
    if view.checks:
        parts += [Text(), check_table(view.checks, title="Sizes").to_rich()]
    parts += [*heading("Is it fast"), *speed_lines(view.performance, view.build), *_shares(view)]
    parts += energy_lines(view.energy)
    parts += bound_lines(view.bounds)
    parts += _screening(view.screening, view.performance)
    if view.trials:
        trials = trial_table(view.trials, view.combinations, origin=_origin(view.fingerprint))
        parts += [Text(), trials.to_rich()]
    parts += _why(view)
    for message in view.messages or ():
        parts += _message(message)
    parts += [*heading("See it again"), *(Text(f"  {one_line(line)}", overflow="fold") for line in view.replay)]
    return Group(*parts)


def _equal(view: AttemptView) -> str:
    return f"{view.equal_to or view.equals}, but for names; its evaluation is shared, and this one was not run"


def _coder(view: AttemptView) -> str:
    technique = f", asked for {view.technique}" if view.technique else ""
    inspirations = f", shown {', '.join(view.inspirations)}" if view.inspirations else ""
    return view.coder + technique + inspirations


def _origin(fingerprint: Fingerprint) -> Origin:
    from kernelforge.records import Origin

    return Origin.MODELLED if fingerprint.device_kind == "emulated" else Origin.MEASURED


def _changes(view: AttemptView) -> Iterable[RenderableType]:
    if view.source is None or view.plan is None:
        yield Text("the reply held no candidate")
        return
    for name, text in (("source", view.source), ("plan", view.plan)):
        diff = view.diff("source" if name == "source" else "plan")
        if diff is not None and diff.compared:
            yield from diff_parts(diff)
        else:
            yield Text(f"{name}:", style="bold")
            yield Block(text)
    if view.choices:
        yield Text(f"tune: {', '.join(_choice(view, name, value) for name, value in view.choices.items())}")
    beside = [diff for diff in view.diffs if diff.beside == "best"]
    if beside and view.best is not None:
        sizes = ", ".join(f"{diff.name} +{diff.added} -{diff.removed}" for diff in beside if diff.compared)
        yield Text(f"against the task's best ({one_line(view.best)}): {sizes or 'too long to compare'}", style="dim")


def _choice(view: AttemptView, name: str, value: int) -> str:
    before = view.parent_choices.get(name, value)
    return f"{one_line(name)} = {value}" + ("" if before == value else f" (parent {before})")


def _gate(gate: Gate) -> RenderableType:
    """``✗ hidden     failed, error 3.2 of the tolerance: ...``; the table below has the sizes."""
    glyph, style = _GLYPHS[gate.status]
    label = Text(f"{glyph} ", style=style)
    label.append(f"{gate.name:<10} ", style="not bold not dim default")
    line = Text(gate.status, style=style if gate.status != "passed" else "")
    if gate.error is not None:
        line.append(f", error {number(gate.error)} of the tolerance", style="not bold default")
    if gate.detail:
        line.append(f": {one_line(gate.detail, 300)}", style="not bold")
    return hanging(label, line)


def _shares(view: AttemptView) -> Iterator[RenderableType]:
    """Floor and roofline of the attempt's time."""
    if view.floor_share is not None:
        yield field("floor", f"{percent(view.floor_share)} reached of {number(view.floor_us)} µs, {_FLOOR}")
    elif view.floor_us is not None and view.performance is not None:
        yield field("floor", f"{number(view.floor_us)} µs, {_FLOOR}")
    if view.place is not None:
        yield field("roofline", _position(view.place))
    if view.ceiling_share is not None and view.place is not None:
        yield field("ceiling", f"{percent(view.ceiling_share)} of it reached ({view.place.time_origin.value} time)")
    if view.parent_place is not None:
        yield field("parent", _position(view.parent_place))


def energy_lines(energy: EnergyEstimate | None) -> Iterator[RenderableType]:
    """The estimated energy of a run on an emulated device; nothing where there is none."""
    if energy is not None:
        yield field("energy", format_energy(energy))


def _position(point: RooflinePoint) -> str:
    ridge = "" if point.roofs is None else f", the ridge is at {number(point.roofs.ridge)}"
    ceiling = "" if point.ceiling_us is None else f"; the roof allows {number(point.ceiling_us)} µs"
    return (
        f"{number(point.arithmetic_intensity)} flop/byte{ridge}; {number(point.flops_per_s / 1e9)} Gflop/s, "
        f"bound by {point.bound}{ceiling}"
    )


_BAR = 24
_MOST_KERNELS = 4


def bound_lines(kernels: Sequence[KernelBounds]) -> list[RenderableType]:
    """A bar per limit of each kernel: its modelled time under that limit alone."""
    parts: list[RenderableType] = []
    for kernel in kernels[:_MOST_KERNELS]:
        total = "" if kernel.time_us is None else f"{number(kernel.time_us)} µs modelled, "
        launches = "1 launch" if kernel.launches == 1 else f"{kernel.launches:,} launches"
        parts += [Text(), field("time of", f"{kernel.kernel}: {total}{launches}; under each limit alone")]
        longest = kernel.bounds[0].time_us
        for bound in kernel.bounds:
            line = Text(f"  {bound.title:<15}{number(bound.time_us):>9} µs ")
            line.append(bar(bound.time_us / longest, _BAR), style="red" if bound is kernel.bounds[0] else "blue")
            parts.append(line)
    if len(kernels) > _MOST_KERNELS:
        parts.append(Text(f"{len(kernels) - _MOST_KERNELS} more kernels; --json has them", style="dim"))
    return parts


def _why(view: AttemptView) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if view.finding:
        finding = view.finding
        parts += heading("Why")
        parts += [
            field(finding.kind, finding.headline),
            field("because", finding.why),
            field("action", finding.action),
        ]
    changed = [metric for metric in view.metrics if metric.named or not _unchanged(metric)]
    if view.metrics:
        parts += [Text(), metric_table(changed, title="Metrics", compared=view.parent is not None).to_rich()]
    if len(changed) < len(view.metrics):
        parts.append(Text(f"{len(view.metrics) - len(changed)} more did not change; --json has them", style="dim"))
    parts += [field("note", note) for note in view.profile_notes]
    return parts


def _unchanged(metric: MetricChange) -> bool:
    return metric.before == metric.after or (metric.change is not None and abs(metric.change) < _SAME)


def _message(message: Message) -> list[RenderableType]:
    content = [*heading(f"{message.agent} {message.role} ({one_line(message.provider)})"), Block(message.content)]
    if message.reasoning is None:
        return content
    length = reasoning_tokens(message.reasoning, message.usage).text
    return [*heading(f"{message.agent} reasoning ({length})"), Block(message.reasoning), *content]


def search_lines(view: SearchResults) -> Group:
    """One line per match with its origin, then the number of matches."""
    lines = []
    for line in view.lines:
        whose = f"{line.attempt or f'{view.run}/{line.task}'} {line.agent} {line.role}, line {line.line}: "
        lines.append(Text.assemble((one_line(whose) + " ", "dim"), one_line(line.text), overflow="fold"))
    count = f"lines that hold '{one_line(view.sought)}': {len(lines):,}"
    return Group(*lines, Text(count, overflow="fold"))
