"""Views on a terminal. Everything that others wrote goes through ``Text``, so it is never markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from kernelforge.report.attempt_view import sides_of
from kernelforge.report.tables import (
    board_tables,
    board_title,
    check_table,
    metric_table,
    task_table,
    timing_table,
    trial_table,
)
from kernelforge.report.task_view import profile_metrics
from kernelforge.report.text import ABSENT, byte_count, change, duration, number, one_line, percent, printable, times

if TYPE_CHECKING:
    from kernelforge.records import Budget, Build, Fingerprint, Limits, Message, Origin, Performance, Timing
    from kernelforge.report.attempt_view import AttemptView
    from kernelforge.report.board import Leaderboard
    from kernelforge.report.cost import Cost
    from kernelforge.report.evaluation_view import EvaluationView
    from kernelforge.report.run_view import RunView
    from kernelforge.report.suite_view import AdmissionRow
    from kernelforge.report.task_view import GeneratorView, LineageNode, TaskView

_DEEPEST = 12
"""A lineage is indented no further than this many steps, so that a long one can still be read."""
_STYLE = {"OK": "green", "WRONG": "red", "CRASH": "red", "TIMEOUT": "red", "INFRA": "magenta"}


def run_lines(view: RunView) -> Group:
    """A run's head, funnel and tasks."""
    from kernelforge.records import Origin

    origin = next((task.origin for task in view.tasks if task.origin is not None), None)
    if origin is None:
        origin = Origin.MODELLED if view.device.startswith("emulated") else Origin.MEASURED
    return Group(*run_summary(view), Text(), task_table("Tasks", view.tasks, origin=origin).to_rich())


def run_summary(view: RunView) -> list[RenderableType]:
    """The lines that say how a run stands."""
    verdicts = ", ".join(f"{count} {verdict.value}" for verdict, count in view.verdicts.items()) or "none yet"
    tester = "" if view.tester is None else f", tester {view.tester}"
    config = f"{view.strategy}, coder {view.coder}, judge {view.judge}{tester}, seed {view.seed}"
    reward = f"{view.reward}: {number(view.mean_reward)} mean over tasks"
    rows = [
        ("run", f"{view.id}  {view.state}"),
        ("suite", f"{view.suite} ({view.suite_digest}), {view.tasks_total} tasks, {view.tasks_finished} finished"),
        ("device", view.device),
        ("agents", config),
        ("budget", _budget(view.budget)),
        ("started", view.started + ("" if view.ended is None else f", ended {view.ended}")),
        ("correct", f"{view.tasks_ok} of {view.tasks_total} tasks"),
        ("attempts", f"{view.attempts}: {verdicts}; {view.accepted} accepted"),
        ("funnel", " → ".join(f"{step.step} {step.count}" for step in view.funnel)),
        ("reward", reward),
        *(("cost", f"{one.agent} {one.provider}: {_cost(one)}") for one in view.costs),
    ]
    if len(view.costs) > 1:
        rows.append(("cost", f"in all: {_cost(view.cost)}"))
    if view.pass_at_k:
        told = ", ".join(f"{value:.3f} at {k}" for k, value in view.pass_at_k.items())
        rows.append(("pass@k", told))
    return [_field(label, value) for label, value in rows]


def _budget(budget: Budget) -> str:
    """The limits that are set, in a line."""
    rounds = [] if budget.rounds is None else [f"{budget.rounds} rounds a task"]
    each = _limits(budget.per_task)
    return (", ".join(rounds + _limits(budget)) or "no limit for the run") + (
        f"; for each task {', '.join(each)}" if each else ""
    )


def _limits(limits: Limits) -> list[str]:
    return [
        *([] if limits.evaluations is None else [f"{limits.evaluations} evaluations"]),
        *([] if limits.tokens is None else [f"{limits.tokens:,} tokens"]),
        *([] if limits.dollars is None else [f"${limits.dollars:g}"]),
        *([] if limits.wall_seconds is None else [f"{duration(limits.wall_seconds)} wall time"]),
    ]


def _cost(cost: Cost) -> str:
    """Calls, tokens and dollars in a line."""
    cached = "" if not cost.cached_tokens else f" ({cost.cached_tokens:,} cached)"
    tokens = (
        "tokens unknown"
        if cost.input_tokens is None or cost.output_tokens is None
        else f"{cost.input_tokens:,} tokens in{cached}, {cost.output_tokens:,} out"
    )
    dollars = "dollars unknown" if cost.dollars is None else f"${cost.dollars:,.4f}"
    return f"{cost.calls} calls, {tokens}, {dollars}, {duration(cost.seconds)}"


def _field(label: str, value: str) -> RenderableType:
    text = Text(f"{label:<9} ", style="bold")
    text.append(one_line(value), style="not bold")
    text.overflow = "fold"
    return text


def task_lines(view: TaskView) -> Group:
    """A task's lineage as an indented tree."""
    best = view.summary
    head = [
        _field("task", f"{view.task}  of run {view.run}"),
        _field("best", _best(view)),
        _field("state", best.finished or "not finished"),
        *([_field("cost", _cost(view.cost))] if view.cost.calls else []),
        *(_field("test", _test(one)) for one in view.tests),
        *(_field("lesson", f"{one.family}: {one.text}") for one in view.lessons),
        Text(),
    ]
    return Group(*head, *(line for node in view.lineage for line in _node(node)))


def _test(test: GeneratorView) -> str:
    state = "in force" if test.admitted else "refused"
    reason = f"{', but ' if test.admitted else ': '}{test.reason}" if test.reason else ""
    caught = f"; caught {', '.join(f'{number:02d}' for number in test.caught)}" if test.caught else ""
    return f"{test.name} by {test.provider}, {state}{reason}{caught}"


def _best(view: TaskView) -> str:
    best = view.summary
    if best.best is None:
        return "nothing correct yet"
    parts = [best.best, f"{byte_count(best.dram_bytes)} DRAM, {times(best.dram_ratio)} the least"]
    if best.speedup is not None:
        parts.append(f"{times(best.speedup)} the fastest baseline")
    return " · ".join(parts)


def _why(note: str) -> str:
    """A note without the word that is shown before it anyway."""
    return note.removeprefix("not accepted: ").removeprefix("accepted: ")


def _node(node: LineageNode) -> Iterable[RenderableType]:
    line = Text("└ " if node.depth else "")
    line.append(f"{node.number:02d} ")
    line.append(one_line(node.step), style="bold")
    line.append(" ")
    line.append(node.verdict.value, style=_STYLE.get(node.verdict.value, "yellow"))
    for delta in [one for one in node.changes if one.change is not None][:1]:
        line.append(f"  {one_line(delta.name)} {change(delta.change)}")
    line.append("  accepted" if node.accepted else "  rejected", style="green" if node.accepted else "dim")
    if node.best:
        line.append("  ← best", style="bold green")
    indent = 2 * min(node.depth, _DEEPEST)
    yield Padding(line, (0, 0, 0, indent))
    why = _why(node.note) if node.accepted or not node.reason else node.reason
    if why:
        yield Padding(Text(one_line(why, 300), style="dim", overflow="fold"), (0, 0, 0, indent + 5))


def attempt_lines(view: AttemptView) -> Group:
    """An attempt: what changed, is it right, is it fast, why."""
    parts: list[RenderableType] = [
        _field("attempt", f"{view.id}  {view.operator.value}" + (f" of {view.parent}" if view.parent else "")),
        _field("verdict", f"{view.verdict.value} at stage {view.stage}"),
        _field("status", ": ".join(filter(None, ("accepted" if view.accepted else "not accepted", _why(view.note))))),
        _field("reward", f"{number(view.reward.value)} ({view.reward.policy})"),
        *([_field("coder", _coder(view))] if view.coder else []),
        *([_field("cost", _cost(view.cost))] if view.cost.calls else []),
        *([_field("caught by", f"test input {view.caught_by}")] if view.caught_by else []),
        _field("where", _where(view.fingerprint)),
        _field("took", f"{duration(view.seconds)}: {_timings(view.timings)}"),
    ]
    if view.reason:
        parts += [*_heading("Reason"), _block(view.reason)]
    parts += [*_heading("What changed"), *_changes(view)]
    if view.checks:
        parts += [Text(), check_table(view.checks).to_rich()]
    parts += [*_heading("Is it fast"), *_speed(view.performance, view.build)]
    if view.trials:
        parts += [Text(), trial_table(view.trials, origin=_origin(view.fingerprint)).to_rich()]
    if view.finding:
        finding = view.finding
        parts += _heading("Why")
        parts += [
            _field(finding.kind, finding.headline),
            _field("because", finding.why),
            _field("action", finding.action),
        ]
    if view.metrics:
        parts += [Text(), metric_table(view.metrics, title="Metrics", compared=view.parent is not None).to_rich()]
    parts += [_field("note", one_line(note)) for note in view.profile_notes]
    for message in view.messages or ():
        parts += _message(message)
    return Group(*parts)


def _coder(view: AttemptView) -> str:
    technique = f", asked for {view.technique}" if view.technique else ""
    shown = f", shown {', '.join(view.inspirations)}" if view.inspirations else ""
    return view.coder + technique + shown


def _origin(fingerprint: Fingerprint) -> Origin:
    from kernelforge.records import Origin

    return Origin.MODELLED if fingerprint.device_kind == "emulated" else Origin.MEASURED


def _where(fingerprint: Fingerprint) -> str:
    hardware = (
        "" if fingerprint.gpu is None else f" ({fingerprint.gpu}, driver {fingerprint.driver}, {fingerprint.runtime})"
    )
    return f"{fingerprint.device}{hardware}, {fingerprint.toolchain}, jail {fingerprint.jail}"


def _timings(timings: dict[str, float]) -> str:
    return ", ".join(f"{name} {duration(seconds)}" for name, seconds in timings.items()) or ABSENT


def _heading(title: str) -> list[RenderableType]:
    return [Text(), Text(title, style="bold underline")]


def _block(text: str) -> Text:
    return Text(printable(text), overflow="fold")


def _changes(view: AttemptView) -> Iterable[RenderableType]:
    if view.source is None or view.plan is None:
        yield Text("the reply held no candidate")
        return
    for name, diff, whole in (("source", view.source_diff, view.source), ("plan", view.plan_diff, view.plan)):
        if diff:
            yield _coloured(diff)
        elif diff == "":
            yield Text(f"{name}: as the parent's", style="dim")
        else:
            yield Text(f"{name}:", style="bold")
            yield _block(whole)
    if view.choices:
        yield Text(f"tune: {', '.join(_choice(view, name, value) for name, value in view.choices.items())}")


def _choice(view: AttemptView, name: str, value: int) -> str:
    before = view.parent_choices.get(name, value)
    return f"{one_line(name)} = {value}" + ("" if before == value else f" (parent {before})")


def _coloured(diff: str) -> Text:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    text = Text(overflow="fold")
    for line in printable(diff).split("\n"):
        text.append(line + "\n", style=styles.get(line[:1], ""))
    return text


def _speed(speed: Performance | None, build: Build | None) -> Iterable[RenderableType]:
    if speed is None:
        yield Text("not timed")
    else:
        spread = (
            "" if speed.interval_us is None else f" [{number(speed.interval_us[0])}, {number(speed.interval_us[1])}]"
        )
        samples = "" if speed.samples is None else f", {speed.samples} samples"
        yield _field(speed.origin.value, f"{number(speed.time_us)} µs{spread}{samples}, bound by {speed.bound}")
        if speed.speedup is not None:
            others = f"at least {times(speed.speedup_lower)}; vs eager {times(speed.speedup_eager)}"
            yield _field("speedup", f"{times(speed.speedup)} ({others})")
        if speed.quarantined is not None:
            yield _field("quarantined", one_line(speed.quarantined))
        if speed.timing is not None:
            yield from _timing(speed.timing)
    for kernel in build.kernels if build else ():
        spills = kernel.spill_store_bytes + kernel.spill_load_bytes
        facts = (
            f"{kernel.registers_per_thread} registers, {kernel.static_shared_bytes} B static shared, {spills} B spills"
        )
        yield _field("kernel", f"{kernel.expression}: {facts}")


def _timing(timing: Timing) -> Iterable[RenderableType]:
    """How a measured time came about."""
    sets = f"{timing.sets} sets of {byte_count(timing.set_bytes)}"
    where = "before each" if timing.flush_each else "before all"
    flush = f", {byte_count(timing.flush_bytes)} flushed {where}" if timing.flush_bytes else ""
    settled = "settled" if timing.settled else f"not settled within {timing.budget_s:g} s"
    yield _field("protocol", f"{timing.protocol}: {sets}{flush}; {settled}")
    if timing.host is not None:
        agrees = "agrees" if timing.host.agrees else "disagrees"
        yield _field(
            "host clock", f"{agrees}: {number(timing.host.slope_us)} against {number(timing.host.events_us)} µs"
        )
    if timing.clocks is not None:
        clocks = timing.clocks
        held = f", held back by {', '.join(clocks.throttled)}" if clocks.throttled else ""
        low, high = clocks.sm_mhz
        yield _field("clocks", f"{low} to {high} MHz, at most {clocks.temperature_c[1]} °C{held}")
    if timing.coverage is not None and timing.coverage < 1:
        yield _field("coverage", f"{percent(timing.coverage)} of device time in the candidate's own kernels")
    if timing.setup_us is not None:
        yield _field("setup", f"{number(timing.setup_us)} µs, not part of the time")
    for note in timing.notes:
        yield _field("note", one_line(note))
    yield Text()
    yield timing_table(sides_of(timing)).to_rich()


def _message(message: Message) -> list[RenderableType]:
    return [*_heading(f"{message.agent} {message.role} ({one_line(message.provider)})"), _block(message.content)]


def leaderboard_lines(view: Leaderboard) -> Group:
    """Every board, one under another."""
    if not view.boards:
        return Group(Text("no run has an attempt yet: start one with 'kernelforge run'"))
    parts: list[RenderableType] = []
    for board in view.boards:
        parts.append(Text(one_line(board_title(board.key)), style="bold", overflow="fold"))
        parts += [table.to_rich() for table in board_tables(board)]
    return Group(*parts)


def evaluation_lines(view: EvaluationView) -> Group:
    """One evaluation: verdict, reason, checks by size, speed, profile."""
    evaluation, profile = view.evaluation, view.profile
    parts: list[RenderableType] = [
        _field("verdict", f"{evaluation.verdict.value} at stage {evaluation.stage}"),
        _field("candidate", evaluation.candidate),
        _field("where", _where(evaluation.fingerprint)),
        _field("took", _timings(evaluation.seconds)),
    ]
    if evaluation.reason:
        parts += [*_heading("Reason"), _block(evaluation.reason)]
    if evaluation.correctness:
        parts += [Text(), check_table(evaluation.correctness.sizes).to_rich()]
    parts += [*_heading("Is it fast"), *_speed(evaluation.performance, evaluation.build)]
    if profile is not None:
        roof = profile.roofline
        parts += [
            _field("DRAM", f"{byte_count(roof.dram_bytes)}, the least is {byte_count(roof.compulsory_bytes)}"),
            Text(),
            metric_table(profile_metrics(profile), title=f"Profile at size {profile.size}", compared=False).to_rich(),
            *(_field("note", one_line(note)) for note in profile.notes),
        ]
    return Group(*parts)


def admission_line(task: str, findings: Sequence[AdmissionRow]) -> Text:
    """What admission found of one task: a line, and one more for each failure and each kind of input left out.

    A reference that does not run is a single line. To be printed unwrapped.
    """
    ok = all(finding.ok for finding in findings)
    line = Text(f"{task:<18} ", style="bold")
    line.append("ok" if ok else "FAILED", style="green" if ok else "bold red")
    if any(finding.size is None for finding in findings):
        return line.append(f"  {one_line(findings[0].text)}", style="not bold")
    line.append(f"  {sum(finding.admitted for finding in findings)} of {len(findings)} checks used", style="not bold")
    for finding in findings:
        if not finding.ok or not finding.admitted:
            where = " ".join(filter(None, (finding.size, finding.family)))
            line.append(f"\n    {one_line(f'{where}: {finding.text}')}", style="not bold")
    return line
