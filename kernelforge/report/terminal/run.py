"""One run in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from kernelforge.records.evaluation import UNCOMPARED
from kernelforge.report.formatting import (
    EXCESSIVE,
    UNCOMPARED_NOTE,
    byte_count,
    duration,
    format_budget,
    format_card_error,
    format_dollars,
    format_interval,
    format_launches,
    moment,
    number,
    one_line,
    percent,
    predicted_speedup,
    short_outcome,
    times,
)
from kernelforge.report.tables.base import STYLES, Column, Table
from kernelforge.report.tables.task import task_table, timing_table
from kernelforge.report.terminal.translation import cpu_lines, empty_call_line, likeness_text
from kernelforge.report.terminal.widgets import bar, field, heading, interval
from kernelforge.report.views.attempt import sides_of, unhidden_eager_us
from kernelforge.report.views.statistics import FAST_P

if TYPE_CHECKING:
    from kernelforge.records import Build, Performance, PredictedSpeedup, Timing
    from kernelforge.report.views.curves import FastCurve
    from kernelforge.report.views.funnel import Cell, FunnelStep, MatrixRow
    from kernelforge.report.views.run import RunView


def speed_lines(speed: Performance | None, build: Build | None) -> Iterator[RenderableType]:
    """Time, speedup, protocol, the table of sides, and the compiler's facts."""
    if speed is None:
        yield Text("not timed")
    else:
        spread = (
            "" if speed.interval_us is None else f" [{number(speed.interval_us[0])}, {number(speed.interval_us[1])}]"
        )
        samples = "" if speed.samples is None else f", {speed.samples} samples"
        yield field(speed.origin.value, f"{number(speed.time_us)} µs{spread}{samples}, bound by {speed.bound}")
        if speed.predicted is not None:
            yield field("predicted", prediction_text(speed.predicted))
        if speed.speedup is not None:
            unhidden = unhidden_eager_us(speed.timing)
            launched = "" if unhidden is None else f", {number(unhidden)} µs where no flush hides its launches"
            others = f"at least {times(speed.speedup_lower)}; vs eager {times(speed.speedup_eager)}{launched}"
            yield field("speedup", f"{times(speed.speedup)} ({others})")
        if speed.quarantined is not None:
            yield field("quarantined", speed.quarantined, style="red")
        if speed.timing is not None:
            yield from _timing(speed.timing)
    for kernel in build.kernels if build else ():
        spills = kernel.spill_store_bytes + kernel.spill_load_bytes
        facts = (
            f"{kernel.registers_per_thread} registers, {kernel.static_shared_bytes} B static shared, {spills} B spills"
        )
        yield field("kernel", f"{kernel.expression}: {facts}")


def prediction_text(predicted: PredictedSpeedup) -> str:
    """A predicted speedup in words, with what it was predicted from."""
    eager = f"which takes {number(predicted.eager_us)} µs there ({predicted.eager_origin})"
    return f"{predicted_speedup(predicted)} over eager PyTorch on {predicted.gpu}, {eager}"


def _timing(timing: Timing) -> Iterator[RenderableType]:
    sets = f"{timing.sets} sets of {byte_count(timing.set_bytes)}"
    where = "before each" if timing.flush_each else "before all"
    flush = f", {byte_count(timing.flush_bytes)} flushed {where}" if timing.flush_bytes else ""
    settled = "settled" if timing.settled else f"not settled within {timing.budget_s:g} s"
    yield field("protocol", f"{timing.protocol}: {sets}{flush}; {settled}")
    if timing.host is not None:
        agrees = "agrees" if timing.host.agrees else "disagrees"
        yield field(
            "host clock", f"{agrees}: {number(timing.host.slope_us)} against {number(timing.host.events_us)} µs"
        )
    yield from cpu_lines(timing.cpu)
    yield from empty_call_line(timing.cpu)
    if timing.clocks is not None:
        clocks = timing.clocks
        throttled = f", held back by {', '.join(clocks.throttled)}" if clocks.throttled else ""
        low, high = clocks.sm_mhz
        yield field("clocks", f"{low} to {high} MHz, at most {clocks.temperature_c[1]} °C{throttled}")
    for side in timing.energy:
        least, most = (number(1e3 * end) for end in side.interval)
        above = f"({least} to {most}) above {number(side.idle_w)} W of idling"
        yield field("energy", f"{side.name}: {number(1e3 * side.joules)} mJ {above}")
    if timing.eager_launches is not None:
        yield field("eager", format_launches(timing.eager_launches))
    if timing.coverage is not None and timing.coverage < 1:
        yield field("coverage", f"{percent(timing.coverage)} of device time in the candidate's own kernels")
    if timing.setup_us is not None:
        yield field("setup", f"{number(timing.setup_us)} µs, not part of the time")
    gap = timing.candidate.node_gap_us
    if gap is not None:
        meaning = (
            f"{number(gap)} µs: the gap before a kernel and the least that one takes, in every time once per kernel"
        )
        yield field("empty kernel", meaning)
    for baseline, reason in timing.absent.items():
        yield field("no baseline", f"{baseline}: {reason}")
    for note in timing.notes:
        yield field("note", note)
    yield Text()
    yield timing_table(sides_of(timing)).to_rich()


_BAR = 30
_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_CELLS = 30
_LETTERS = {
    "WRONG": "w", "POLICY": "p", "BUILD": "b", "CRASH": "c", "TIMEOUT": "t", "LIMIT": "l", "INFRA": "i",
}  # fmt: skip
_ACCEPTED, _CORRECT, _EQUAL, _UNCOMPARED = "A", "o", "=", "*"
_GROUP = 10
"""Attempts in the matrix between two blanks."""


def run_lines(view: RunView) -> Group:
    """A run on a page: head, achievements, funnel, attempts by task, tasks."""
    from kernelforge.records import Origin

    parts: list[RenderableType] = [*_head(view), *_achieved(view)]
    if view.attempts:
        parts += [*heading("How far attempts came"), *_funnel(view.funnel)]
        parts += [*heading("Attempts"), _legend(view), Matrix(view.matrix)]
    if view.spent:
        parts += [*heading("Where time went"), *_spent(view)]
    doubts = {concern: count for concern, count in view.integrity.counts.items() if count}
    if doubts:
        parts += heading("Integrity")
        parts += [field(str(count), concern) for concern, count in doubts.items()]
        parts += _unscored(view)
    tasks = task_table("Tasks", view.tasks, origin=view.origin or Origin.MODELLED)
    return Group(*parts, Text(), tasks.to_rich())


def run_summary(view: RunView) -> list[RenderableType]:
    """Lines that summarise a run."""
    funnel = " → ".join(f"{step.step} {step.count}" for step in view.funnel)
    rows = [*_head(view), field("correct", f"{view.tasks_ok} of {view.tasks_total} tasks"), field("funnel", funnel)]
    return [*rows, field("reward", _reward(view)), *_model_errors(view), *_absent(view), *_unscored(view)]


def _model_errors(view: RunView) -> Iterator[RenderableType]:
    """Error of the time model on the GPUs that measured."""
    for error in view.model_errors:
        yield field("model", format_card_error(error))


def _head(view: RunView) -> list[RenderableType]:
    outcomes = ", ".join(f"{count} {short_outcome(outcome)}" for outcome, count in view.outcomes.items()) or "none yet"
    shared = f"; {view.shared} equal to another, and not run" if view.shared else ""
    tester = "" if view.tester is None else f", tester {view.tester}"
    ended = "" if view.ended is None else f", ended {moment(view.ended)}"
    took = "" if view.seconds is None else f" after {duration(view.seconds)}"
    rows = [
        ("run", f"{view.id} {view.state}"),
        ("suite", f"{view.suite} ({view.suite_digest}), {view.tasks_total} tasks, {view.tasks_finished} finished"),
        ("device", view.device + (f"; times are {view.origin.value}" if view.origin else "")),
        ("agents", f"{view.strategy}, coder {view.coder}, judge {view.judge}{tester}, seed {view.seed}"),
        ("budget", format_budget(view.budget)),
        ("started", f"{moment(view.started)}{ended}{took}"),
        ("attempts", f"{view.attempts}: {outcomes}; {view.accepted} accepted{shared}"),
        *([("", UNCOMPARED_NOTE)] if view.uncompared else []),
        *(("cost", f"{cost.agent} {cost.provider}: {cost.text}") for cost in view.costs),
    ]
    if len(view.costs) > 1:
        rows.append(("cost", f"in all: {view.cost.text}"))
    if view.pass_at_k:
        rows.append(("pass@k", ", ".join(f"{value:.3f} at {k}" for k, value in view.pass_at_k.items())))
    if view.compile_rate is not None:
        rows.append(("compile rate", f"{view.compile_rate:.1%}"))
    if view.likeness is not None:
        rows.append(("likeness", likeness_text(view.likeness)))
    return [field(label, value) for label, value in rows]


def _absent(view: RunView) -> Iterator[RenderableType]:
    """Missing baselines of the speedups."""
    for baseline in view.absent:
        where = f"not there at {baseline.tasks} of {view.tasks_total} tasks: {baseline.reason}"
        yield field("baseline", one_line(f"{baseline.baseline} was {where}", 500), style="yellow")
    weaker = next((curve.uncompiled for curve in view.fast_curves), 0)
    if weaker:
        yield field(
            "baseline",
            f"at {weaker} of {view.tasks_total} tasks the speedup is without torch.compile, against a weaker baseline",
            style="yellow",
        )


def _unscored(view: RunView) -> Iterator[RenderableType]:
    """Attempts that failed at a hidden size, and those without a score: number, reasons, and a warning when there are
    too many."""
    unscored, hidden = view.integrity.unscored, view.integrity.failed_at_hidden
    if hidden:
        yield field("hidden", f"{hidden} of {view.attempts} attempts failed at a hidden size")
    if unscored.count:
        yield field("no score", one_line(unscored.text, 500), style="yellow")
    if unscored.excessive:
        yield field("no score", EXCESSIVE, style="bold yellow")


def _reward(view: RunView) -> str:
    return f"{view.reward}: {number(view.mean_reward)} mean over tasks"


def _achieved(view: RunView) -> Iterator[RenderableType]:
    """Results, with 95 % intervals by task bootstrap where there are enough tasks."""
    line = view.headline
    yield from heading("What it achieved")
    correct = f"{view.tasks_ok} of {view.tasks_total} tasks"
    yield field("correct", correct if line.correct is None else f"{correct}, {interval(line.correct)}")
    shares = (
        ("faster", line.fast_1),
        ("win rate", line.win_rate),
        ("of floor", line.floor_share),
        ("predicted", line.predicted_fast_1),
    )
    for label, estimate in shares:
        if estimate is not None:
            yield field(label, f"{interval(estimate)} {_MEANS[label]}")
    means = (
        ("geomean", line.geomean_speedup, _MEANS["geomean"]),
        ("", line.geomean_correct, _MEANS[""]),
        ("", line.predicted_geomean, "over all tasks of max(predicted speedup over eager PyTorch, 1), a failure as 1"),
    )
    yield from _model_errors(view)
    for label, estimate, meaning in means:
        if estimate is not None:
            yield field(label, f"{times(estimate.value)} {format_interval(estimate, times)} {meaning}")
    if view.median_dram_ratio is not None:
        yield field("DRAM", f"{times(view.median_dram_ratio)} the least bytes, median over tasks")
    yield field("reward", _reward(view))
    best = _best_so_far(view)
    if best is not None:
        yield field("over time", best)
    if view.fast_curves:
        yield Text()
        yield _fast(view.fast_curves).to_rich()
    yield from _absent(view)


_MEANS = {
    "faster": "of all tasks are correct and faster than the fastest baseline",
    "predicted": "of all tasks are correct and, as predicted, faster than eager PyTorch",
    "win rate": "of all tasks are faster beyond their noise",
    "of floor": "of the floor's speed, a failure as 0",
    "geomean": "over all tasks of max(speedup, 1), a failure as 1",
    "": "over tasks with a speedup only",
}


def _fast(curves: Sequence[FastCurve]) -> Table:
    """fast_p at the published thresholds, a column per baseline."""
    columns = (Column("p", "p"), *(Column(curve.baseline, curve.baseline, align="right") for curve in curves))
    points = [{point.p: point for point in curve.points} for curve in curves]
    rows = tuple((f"> {p:g}", *(interval(curve[p]) if p in curve else None for curve in points)) for p in FAST_P)
    return Table("Share of all tasks that are correct and more than p times as fast as a baseline", columns, rows)


def _best_so_far(view: RunView) -> Text | None:
    """A spark line over the run's evaluations."""
    points = view.anytime
    if len(points) < 2:
        return None
    last = points[-1]
    if last.geomean_speedup is not None:
        values = [point.geomean_speedup or 1.0 for point in points]
        change = f"geomean {times(values[0])} → {times(values[-1])}"
    else:
        values = [float(point.tasks_ok) for point in points]
        change = f"{points[0].tasks_ok} → {last.tasks_ok} tasks correct"
    dollars = "" if not last.dollars else f", {format_dollars(last.dollars)}"
    return Text(f"{_spark(values)} {change} in {last.evaluations} evaluations, {duration(last.seconds)}{dollars}")


def _spark(values: Sequence[float]) -> str:
    cells = min(len(values), _SPARK_CELLS)
    sampled = [values[round(at * (len(values) - 1) / max(cells - 1, 1))] for at in range(cells)]
    low, high = min(sampled), max(sampled)
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round((value - low) / (high - low) * steps) if high > low else 0] for value in sampled)


def _funnel(steps: Sequence[FunnelStep]) -> Iterator[RenderableType]:
    total = max(steps[0].count, 1)
    width = len(f"{total:,}")
    for step in steps:
        line = Text(f"{step.step:<9} ", style="bold")
        line.append(f"{step.count:>{width},} ", style="not bold")
        line.append(f"{bar(step.count / total, _BAR):<{_BAR}} ", style="not bold green")
        lost = ", ".join(f"{count} {short_outcome(outcome)}" for outcome, count in step.lost_outcomes.items())
        line.append(f"−{lost}" if lost else "", style="not bold dim")
        line.rstrip()
        yield line


def _spent(view: RunView) -> Iterator[RenderableType]:
    total = sum(part.seconds for part in view.spent) or 1.0
    for part in sorted(view.spent, key=lambda part: -part.seconds):
        dollars = "" if part.dollars is None else f"  {format_dollars(part.dollars)}"
        line = Text(f"{one_line(part.what, 20):<9} ", style="bold")
        line.append(f"{percent(part.seconds / total):>5} ", style="not bold")
        line.append(f"{bar(part.seconds / total, _BAR):<{_BAR}} ", style="not bold cyan")
        line.append(duration(part.seconds) + dollars, style="not bold")
        yield line


def _legend(view: RunView) -> Text:
    """Legend of the letters in the matrix."""
    there = {cell.verdict.value for row in view.matrix for cell in row.cells}
    text = Text(overflow="fold")
    for letter, style, meaning in (
        (_ACCEPTED, "bold green", "accepted"),
        (_CORRECT, "green", "correct"),
        *([(_EQUAL, "green", "correct, equal to another")] if view.shared else []),
        *([(_UNCOMPARED, STYLES[UNCOMPARED], UNCOMPARED)] if view.uncompared else []),
        *((letter, STYLES[verdict], verdict) for verdict, letter in _LETTERS.items() if verdict in there),
    ):
        text.append(letter, style=style)
        text.append(f" {meaning}   ", style="dim")
    text.rstrip()
    return text


class Matrix:
    """A line per task with a letter per attempt; long rows wrap at the width of the terminal."""

    def __init__(self, rows: Sequence[MatrixRow]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [one_line(row.task, max(options.max_width // 3, 8)) for row in self._rows]
        label = max(map(len, names), default=0)
        room = max(options.max_width - label - 2, _GROUP + 1)
        each = room // (_GROUP + 1) * _GROUP
        for name, row in zip(names, self._rows, strict=True):
            for start in range(0, max(len(row.cells), 1), each):
                line = Text(f"{name if start == 0 else '':<{label}}  ", style="bold")
                if not row.cells:
                    line.append("no attempt", style="not bold dim")
                for at, cell in enumerate(row.cells[start : start + each]):
                    line.append(" " if at and at % _GROUP == 0 else "")
                    line.append(*_glyph(cell))
                yield line


def _glyph(cell: Cell) -> tuple[str, str]:
    if cell.uncompared:
        return _UNCOMPARED, f"{'bold' if cell.accepted else 'not bold'} {STYLES[cell.outcome]}"
    if cell.verdict.value == "OK":
        if cell.accepted:
            return _ACCEPTED, "bold green"
        return _CORRECT if cell.equals is None else _EQUAL, "not bold green"
    return _LETTERS[cell.verdict.value], f"not bold {STYLES[cell.verdict.value]}"
