"""Template variables of the pages: of runs, boards and comparisons, of a task and of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any, NamedTuple

from kernelforge.records import UNCOMPARED, Attempt, Origin
from kernelforge.report.figures import draw_attempt, draw_board, draw_compare, draw_run, draw_task
from kernelforge.report.formatting import (
    EXCESSIVE,
    duration,
    format_dollars,
    format_energy,
    format_fingerprint,
    format_forecast,
    format_interval,
    format_screening,
    number,
    percent,
    short_outcome,
    times,
)
from kernelforge.report.html import paths, tables
from kernelforge.report.html.paths import Links
from kernelforge.report.html.rendering import Chart, charts_of
from kernelforge.report.html.tables import HtmlTable, Link, html_table, raw_number
from kernelforge.report.tables.base import Table
from kernelforge.report.tables.run import (
    anytime_table,
    board_notes,
    board_tables,
    board_title,
    cost_table,
    fast_table,
    integrity_table,
    runs_table,
    spent_table,
)
from kernelforge.report.tables.task import (
    baseline_table,
    bound_table,
    check_table,
    compare_table,
    gate_table,
    generator_table,
    kernel_table,
    lineage_table,
    metric_table,
    roofline_table,
    size_table,
    task_table,
    timing_table,
    trial_table,
)
from kernelforge.report.views.attempt import AttemptView, attempt_view, unhidden_eager_us
from kernelforge.report.views.board import Leaderboard
from kernelforge.report.views.compare import CompareView
from kernelforge.report.views.diff import Diff
from kernelforge.report.views.funnel import STEPS
from kernelforge.report.views.integrity import CONCERNS
from kernelforge.report.views.run import RunView, run_view
from kernelforge.report.views.run_records import RunRecords, best_of, originals
from kernelforge.report.views.statistics import Estimate
from kernelforge.report.views.task import TaskView, task_view
from kernelforge.utils.shell_hints import shell_command

Full = Callable[[RunRecords, str], RunRecords]
"""Loads one task's records in full, given a run's records without texts."""


class RunPages:
    """Views of a run for its pages, each computed once, on first use.

    Args:
        full: loads a task with its texts, where ``records`` have none.
    """

    def __init__(self, records: RunRecords, full: Full | None = None) -> None:
        self.records = records
        self.id = records.run.id
        self.tasks = records.run.config.tasks
        self._full = full
        self._kept: tuple[str, RunRecords] | None = None  # one task's records: its pages are asked for together

    @cached_property
    def view(self) -> RunView:
        return run_view(self.records)

    @cached_property
    def by_id(self) -> Mapping[str, Attempt]:
        return {attempt.id: attempt for attempt in self.records.attempts}

    def prepare(self) -> None:
        """Compute the views that many pages share."""
        for shared in ("view", "by_id", "made_by"):
            getattr(self, shared)

    def forget(self) -> None:
        """Release the task that was loaded in full."""
        self._kept = None

    @property
    def origin(self) -> Origin | None:
        """Whether its times are modelled or measured; None without times."""
        return self.records.origin

    @cached_property
    def made_by(self) -> tuple[str, ...]:
        """Devices, evaluators, toolchains and jails of the run."""
        prints = (attempt.evaluation.fingerprint for attempt in self.records.attempts)
        return tuple(
            dict.fromkeys(
                f"{format_fingerprint(fingerprint)}, evaluator {fingerprint.evaluator}" for fingerprint in prints
            )
        )

    def in_full(self, task: str) -> RunRecords:
        """Records of a task with all texts."""
        if self.records.texts or self._full is None:
            return self.records
        if self._kept is None or self._kept[0] != task:
            self._kept = task, self._full(self.records, task)
        return self._kept[1]

    def task(self, name: str) -> TaskView:
        return task_view(self.in_full(name), name)

    def attempt(self, task: str, number: int) -> AttemptView:
        records = self.in_full(task)
        by_id = {other.id: other for other in records.of_task(task)}
        attempt = next(other for other in by_id.values() if other.number == number)
        return attempt_view(
            attempt,
            by_id.get(attempt.parent or ""),
            best=best_of(records.of_task(attempt.task)),
            original=originals(records.of_task(attempt.task)).get(attempt.id),
            task=records.tasks.get(attempt.task),
            facts=records.facts.get(attempt.task),
            messages=True,
            results=records.results,
        )

    def attempt_link(self, attempt: str | None, links: Links) -> str | None:
        """Address of an attempt of this run by its id; None where it has no such attempt."""
        record = self.by_id.get(attempt or "")
        return None if record is None else links.to(paths.attempt_page(self.id, record.task, record.number))


Context = dict[str, Any]

CONCERN_WORDS = {
    "quarantined": "Times that are not believed: below the floor, or the clocks disagree. They have no speedup.",
    "clocks-disagree": "The device's events and the host's clock differ.",
    "throttled": "The GPU held its clocks back while it was timed.",
    "unsettled": "The interval of the ratio did not become as narrow as was asked for.",
    "high-variance": "The interval of the time is wide.",
    "policy": "The candidate did what no candidate may. It was refused.",
    "unconfined": "Untrusted code ran without a jail. Such results are never rewarded.",
    "infra": "Our fault, or unsupported here. No statement about the candidate.",
    "untimed": "Correct, on a device that measures, and without a speedup.",
    "uncompared": "OK, and no value was compared at the full size. It counts as not correct and earns no reward.",
}
assert set(CONCERN_WORDS) == set(CONCERNS), "every concern is explained"


def integrity_context(pages: RunPages, links: Links) -> Context:
    view = pages.view.integrity
    link: dict[str, Link] = {"attempt": lambda row: pages.attempt_link(row["attempt"], links)}
    tables = []
    for concern in CONCERNS:
        rows = [row for row in view.rows if row.concern == concern]
        if rows:
            tables.append((concern, CONCERN_WORDS[concern], html_table(integrity_table(concern, rows), link)))
    clear = [(concern, CONCERN_WORDS[concern]) for concern in CONCERNS if not view.counts[concern]]
    return {"view": view, "tables": tables, "clear": clear}


def boards_context(view: Leaderboard, pages: dict[str, RunPages], links: Links) -> Context:
    to_run: dict[str, Link] = {"run": lambda row: links.to(paths.run_page(row["run"])) if row["run"] in pages else None}
    boards = []
    for index, board in enumerate(view.boards):
        entries, records = board_tables(board)
        own = {entry.run: links.to(paths.run_page(entry.run)) for entry in board.entries if entry.run in pages}
        charts = [
            chart._replace(id=f"{chart.id}-{index}") for chart in charts_of(draw_board(board, own), links).values()
        ]
        to_task = {
            record.task: links.to(paths.task_page(record.run, record.task))
            for record in board.records
            if record.run in pages
        }
        to_best = to_run | {"task": partial(_of, to_task, "task")}
        tables = html_table(entries, to_run), html_table(records, to_best)
        boards.append((board, board_title(board.key), board_notes(board), *tables, charts))
    measured = any(board.key.origin is Origin.MEASURED for board in view.boards)
    return {"view": view, "boards": boards, "measured": measured}


def compare_context(a: RunPages, b: RunPages, view: CompareView, links: Links) -> Context:
    to_task = {pair.task: links.to(paths.task_page(b.id, pair.task)) for pair in view.pairs}
    link: dict[str, Link] = {
        "task": lambda row: to_task[row["task"]],
        "a_best": lambda row: a.attempt_link(row["a_best"], links),
        "b_best": lambda row: b.attempt_link(row["b_best"], links),
    }
    return {
        "view": view,
        "a": a.view,
        "b": b.view,
        "pairs": html_table(compare_table(view), link),
        "charts": charts_of(draw_compare(view, to_task), links),
    }


def _of(addresses: Mapping[str, str], key: str, row: Mapping[str, Any]) -> str | None:
    return addresses.get(row[key])


_TABS = {"dollars": "dollars", "evaluations": "evaluations", "seconds": "time"}
_LETTERS = {
    "OK": "·",
    UNCOMPARED: "*",
    "WRONG": "W",
    "POLICY": "P",
    "BUILD": "B",
    "CRASH": "C",
    "TIMEOUT": "T",
    "LIMIT": "L",
    "INFRA": "I",
}


class Number(NamedTuple):
    """One headline number."""

    label: str
    text: str
    raw: str | None
    detail: str


class Choice(NamedTuple):
    """One choice of a filter."""

    value: str
    label: str


def runs_context(pages: Sequence[RunPages], pairs: Sequence[tuple[RunPages, RunPages]], links: Links) -> Context:
    """The front page of several runs."""
    comparisons = [(a.id, b.id, links.to(paths.compare_page(a.id, b.id))) for a, b in pairs]
    table = runs_table(run.view for run in pages)
    return {"table": html_table(table, {"id": lambda row: links.to(paths.run_page(row["id"]))}), "pairs": comparisons}


def run_context(pages: RunPages, links: Links) -> Context:
    view = pages.view
    to_task = {task: links.to(paths.task_page(pages.id, task)) for task in pages.tasks}
    charts = charts_of(draw_run(view, to_task), links)
    best = {summary.task: summary.best for summary in view.tasks}
    link: dict[str, Link] = {
        "task": lambda row: to_task[row["task"]],
        "moves": lambda row: pages.attempt_link(best[row["task"]], links),
    }
    to_attempt: dict[str, Link] = {"attempt": lambda row: pages.attempt_link(row["attempt"], links)}
    return {
        "view": view,
        "numbers": headline(view),
        "fast": html_table(fast_table(view.fast_curves)) if view.fast_curves else None,
        "fast_tabs": _fast_tabs(charts),
        "anytime": html_table(anytime_table(view.anytime), to_attempt) if view.anytime else None,
        "anytime_tabs": _anytime_tabs(charts),
        "funnel": view.funnel,
        "spent": html_table(spent_table(view.spent)),
        "most_spent": max((summary.seconds for summary in view.spent), default=0.0),
        "costs": html_table(cost_table(view.costs)) if view.costs else None,
        "charts": charts,
        "tasks": html_table(tasks_table(view), link, mark="task"),
        "to_task": to_task,
        "bests": frozenset(summary for summary in best.values() if summary is not None),
        "letters": _LETTERS,
        "steps": STEPS,
        "filters": _filters(view),
        "unscored": view.integrity.unscored.text if view.integrity.unscored.count else "",
        "excessive": EXCESSIVE if view.integrity.unscored.excessive else "",
        "concerns": [(concern, count) for concern, count in view.integrity.counts.items() if count],
        "show": shell_command("show", pages.id, results=pages.records.results),
    }


def tasks_table(view: RunView) -> Table:
    """The run's tasks: counters where times are modelled, speedups where they are measured."""
    origin = Origin.MEASURED if view.origin is Origin.MEASURED else Origin.MODELLED
    return task_table("Tasks", view.tasks, origin=origin)


def headline(view: RunView) -> list[Number]:
    """Headline numbers of a run, the most important first."""
    correct = view.headline.correct
    numbers: list[Number | None] = [
        Number(
            "tasks correct",
            f"{view.tasks_ok} of {view.tasks_total}",
            raw_number(view.tasks_ok),
            "" if correct is None else f"{percent(correct.value)} {_interval(correct, percent)}".rstrip(),
        )
    ]
    if view.origin is Origin.MEASURED:
        numbers += [
            _estimate("fast 1", view.headline.fast_1, percent, "correct and faster"),
            _estimate("faster beyond noise", view.headline.win_rate, percent, "of all tasks"),
            _estimate("speedup", view.headline.geomean_speedup, times, "geomean, a failure as 1"),
            _estimate("share of the floor", view.headline.floor_share, percent, "mean, a failure as 0"),
        ]
    else:
        ratio = view.median_dram_ratio
        numbers += [
            _estimate("fast 1 (predicted)", view.headline.predicted_fast_1, percent, "correct and faster than eager"),
            _estimate("speedup (predicted)", view.headline.predicted_geomean, times, "over eager, geomean"),
            Number("DRAM vs least", times(ratio), raw_number(ratio), "median over correct tasks, modelled"),
        ]
    outcomes = ", ".join(f"{count:,} {short_outcome(outcome)}" for outcome, count in view.outcomes.items())
    shared = f"; {view.shared:,} equal to another" if view.shared else ""
    numbers.append(
        Number("attempts", number(view.attempts), raw_number(view.attempts), f"{outcomes or 'none yet'}{shared}")
    )
    if view.cost.calls:
        numbers.append(
            Number(
                "paid", format_dollars(view.cost.dollars), raw_number(view.cost.dollars), f"{view.cost.calls:,} calls"
            )
        )
    numbers.append(Number("wall time", duration(view.seconds), raw_number(view.seconds), view.state))
    return [entry for entry in numbers if entry is not None]


def _interval(value: Estimate, show: Any) -> str:
    """The interval, unless it has no width: equal results of all tasks would look like certainty."""
    return format_interval(value, show) if value.low < value.high else ""


def _estimate(label: str, value: Estimate | None, show: Any, detail: str) -> Number | None:
    if value is None:
        return None
    return Number(label, show(value.value), raw_number(value.value), f"{_interval(value, show)} {detail}".lstrip())


def _fast_tabs(charts: dict[str, Chart]) -> list[tuple[str, list[Chart]]]:
    """All baselines in one figure, then each with its band."""
    names = [name for name in charts if name == "fast-p" or name.startswith("fast-p-")]
    return [(name.removeprefix("fast-p-") if name != "fast-p" else "all", [charts.pop(name)]) for name in names]


def _anytime_tabs(charts: dict[str, Chart]) -> list[tuple[str, list[Chart]]]:
    """One tab per budget with all measures that can be drawn."""
    curves = {name: charts.pop(name) for name in list(charts) if name.startswith("anytime-")}
    tabs = [
        (label, [chart for name, chart in curves.items() if name.endswith(f"-{key}")]) for key, label in _TABS.items()
    ]
    return [(label, inside) for label, inside in tabs if inside]


def _filters(view: RunView) -> Mapping[str, list[Choice]]:
    cells = [cell for row in view.matrix for cell in row.cells]
    stages = dict.fromkeys(item.stage for item in view.stages if item.stage != "done")
    levels = sorted({row.level for row in view.matrix if row.level is not None})
    tags = sorted({tag for row in view.matrix for tag in row.tags})
    reached = {cell.reached for cell in cells}
    return {
        "verdict": [Choice(short_outcome(item), item) for item in view.outcomes],
        "stage": [Choice(stage, stage) for stage in stages],
        "reached": [Choice(str(index), step) for index, step in enumerate(STEPS) if step in reached and index],
        "level": [Choice(str(level), str(level)) for level in levels] if len(levels) > 1 else [],
        "tag": [Choice(tag, tag) for tag in tags],
    }


class DiffPart(NamedTuple):
    """Consecutive lines of one kind."""

    kind: str
    text: str


def task_context(pages: RunPages, name: str, links: Links) -> Context:
    view = pages.task(name)
    to_attempt = {node.id: links.to(paths.attempt_page(pages.id, name, node.number)) for node in view.lineage}
    link: dict[str, Link] = {"attempt": lambda row: to_attempt.get(row["attempt"])}
    to_number: dict[str, Link] = {
        "number": lambda row: links.to(paths.attempt_page(pages.id, name, row["number"])),
        "equal_to": lambda row: (
            None if row["equal_to"] is None else links.to(paths.attempt_page(pages.id, name, row["equal_to"]))
        ),
        "alike_to": lambda row: (
            None if row["alike_to"] is None else links.to(paths.attempt_page(pages.id, name, row["alike_to"]))
        ),
    }
    index = pages.tasks.index(name)
    return {
        "view": view,
        "charts": charts_of(draw_task(view, to_attempt), links),
        "sizes": html_table(size_table(view.sizes)) if view.sizes else None,
        "baselines": html_table(baseline_table(view.baselines), link) if view.baselines else None,
        "tests": html_table(generator_table(view.tests)) if view.tests else None,
        "attempts": html_table(lineage_table(view.lineage, origin=pages.origin or Origin.MODELLED), to_number),
        "rows": tables.rows(view.lineage),
        "to_attempt": to_attempt,
        "before": pages.tasks[index - 1] if index else None,
        "after": pages.tasks[index + 1] if index + 1 < len(pages.tasks) else None,
    }


def attempt_context(pages: RunPages, attempt: Attempt, links: Links) -> Context:
    view = pages.attempt(attempt.task, attempt.number)
    named = [item for item in view.metrics if item.named]
    siblings = pages.records.of_task(attempt.task)
    index = siblings.index(attempt)
    return {
        "view": view,
        "modelled": view.fingerprint.device_kind == "emulated",
        "before": siblings[index - 1].number if index else None,
        "after": siblings[index + 1].number if index + 1 < len(siblings) else None,
        "parent_link": pages.attempt_link(view.parent, links),
        "best_link": pages.attempt_link(view.best, links),
        "equal_link": pages.attempt_link(view.equal_to, links),
        "inspirations": [(item, pages.attempt_link(item, links)) for item in view.inspirations],
        "charts": charts_of(draw_attempt(view), links),
        "tables": _tables(view),
        "forecast": format_forecast(
            view.screening.forecast, view.performance.plausible_us if view.performance else None
        )
        if view.screening and view.screening.forecast
        else None,
        "screening": format_screening(view.screening) if view.screening else None,
        "energy": format_energy(view.energy) if view.energy else None,
        "unhidden_us": unhidden_eager_us(view.performance.timing) if view.performance else None,
        "named": html_table(replace(metric_table(named), title="What the Judge named")) if named else None,
        "diffs": [(diff, diff_parts(diff)) for diff in view.diffs],
    }


def _tables(view: AttemptView) -> dict[str, HtmlTable | None]:
    origin = Origin.MODELLED if view.fingerprint.device_kind == "emulated" else Origin.MEASURED
    places = [point for point in (view.place, view.parent_place) if point is not None]
    return {
        "gates": html_table(gate_table(view.gates)),
        "kernels": html_table(kernel_table(view.build.kernels)) if view.build else None,
        "bounds": html_table(bound_table(view.bounds)) if view.bounds else None,
        "places": html_table(roofline_table(places)) if places else None,
        "checks": html_table(replace(check_table(view.checks), title="By size")) if view.checks else None,
        "timing": html_table(timing_table(view.sides)) if view.sides else None,
        "trials": html_table(trial_table(view.trials, view.combinations, origin=origin)) if view.trials else None,
        "metrics": html_table(metric_table(view.metrics, title="Metrics", compared=view.parent is not None))
        if view.metrics
        else None,
    }


_MARKS = {"same": " ", "removed": "−", "added": "+"}


def diff_parts(diff: Diff) -> list[DiffPart]:
    """Lines of a difference with their marks, grouped by kind."""
    parts = []
    for kind, lines in groupby(diff.lines, key=lambda line: line.kind):
        if kind == "gap":
            parts += [DiffPart("gap", f"… {line.text}") for line in lines]
        else:
            parts.append(DiffPart(kind, "\n".join(f"{_MARKS[kind]} {line.text}" for line in lines)))
    return parts
