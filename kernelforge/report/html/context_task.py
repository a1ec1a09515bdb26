"""Template variables of the pages of a task and of an attempt."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from kernelforge.records import Attempt, Origin
from kernelforge.report.figures import draw_attempt, draw_task
from kernelforge.report.html import paths, tables
from kernelforge.report.html.context_run import RunPages
from kernelforge.report.html.paths import Links
from kernelforge.report.html.rendering import charts_of
from kernelforge.report.html.tables import HtmlTable, Link, html_table
from kernelforge.report.tables.task import (
    baseline_table,
    check_table,
    gate_table,
    generator_table,
    kernel_table,
    lineage_table,
    metric_table,
    roofline_table,
    size_table,
    timing_table,
    trial_table,
)
from kernelforge.report.views.attempt import AttemptView, unhidden_eager_us
from kernelforge.report.views.diff import Diff

Context = dict[str, Any]


class DiffPart(NamedTuple):
    """Consecutive lines of one kind."""

    kind: str
    text: str


def task_context(pages: RunPages, name: str, links: Links) -> Context:
    view = pages.task(name)
    to_attempt = {node.id: links.to(paths.attempt_page(pages.id, name, node.number)) for node in view.lineage}
    link: dict[str, Link] = {"attempt": lambda row: to_attempt.get(row["attempt"])}
    to_number: dict[str, Link] = {"number": lambda row: links.to(paths.attempt_page(pages.id, name, row["number"]))}
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
        "inspirations": [(item, pages.attempt_link(item, links)) for item in view.inspirations],
        "charts": charts_of(draw_attempt(view), links),
        "tables": _tables(view),
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
        "places": html_table(roofline_table(places)) if places else None,
        "checks": html_table(replace(check_table(view.checks), title="By size")) if view.checks else None,
        "timing": html_table(timing_table(view.sides)) if view.sides else None,
        "trials": html_table(trial_table(view.trials, origin=origin)) if view.trials else None,
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
