"""An attempt that shares the evaluation of an equal one is marked wherever attempts are listed, with a link to it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernelforge.records import Attempt, Origin
from kernelforge.report import RunRecords, attempt_view, run_view, task_view
from kernelforge.report.html import Site
from kernelforge.report.tables.task import lineage_table
from kernelforge.report.terminal import attempt_lines, run_lines, task_lines
from kernelforge.report.views.run_records import originals
from tests.report.golden.golden_runs import golden_records
from tests.report.html.html_dom import Element, parse
from tests.support.terminal import drawn

TASK, FIRST, EQUAL = "softmax", 3, 7
"""In the golden run ``modelled`` both are right and none is the best."""


def numbered(records: RunRecords, number: int) -> Attempt:
    return next(attempt for attempt in records.of_task(TASK) if attempt.number == number)


def shared(*, key: str | None = None) -> RunRecords:
    """The golden run with one attempt whose evaluation is an earlier one's, or one that is in no attempt of the run."""
    records = golden_records("modelled")
    first, other = numbered(records, FIRST), numbered(records, EQUAL)
    evaluation = other.evaluation.model_copy(update={"equals": key or first.evaluation.key})
    changed = other.model_copy(update={"evaluation": evaluation})
    return replace(records, attempts=tuple(changed if each is other else each for each in records.attempts))


@pytest.fixture(scope="module")
def site() -> Site:
    return Site([shared()])


def page(site: Site, end: str) -> Element:
    return parse(site.render(next(path for path in site.pages() if path.endswith(end))) or "")


def test_views_name_the_attempt_that_ran() -> None:
    records = shared()
    assert originals(records.of_task(TASK)) == {numbered(records, EQUAL).id: numbered(records, FIRST)}
    view, task = run_view(records), task_view(records, TASK)
    assert view.shared == 1
    cells = [cell for row in view.matrix for cell in row.cells if cell.equals]
    nodes = [node for node in task.lineage if node.equals]
    assert [(each.number, each.equal_to) for each in (*cells, *nodes)] == [(EQUAL, FIRST)] * 2
    assert originals(golden_records("modelled").of_task(TASK)) == {}


def test_pages_link_to_it(site: Site) -> None:
    attempt = page(site, f"{TASK}/{EQUAL:02d}.html")
    links = [link for link in attempt.all("a") if link.text.split() == ["attempt", f"{FIRST:02d}"]]
    assert {link.attributes["href"] for link in links} == {f"{FIRST:02d}.html"}
    assert "but for names, comments and layout" in " ".join(attempt.text.split())
    task = page(site, f"{TASK}/index.html")
    [marked] = [link for link in task.all("a") if link.text == f"{FIRST:02d}"]
    assert marked.attributes["href"] == f"{FIRST:02d}.html"
    table = task.table("Attempts")
    assert [row["equal_to"].text for row in table if row["number"].text == str(EQUAL)] == [str(FIRST)]
    run = page(site, "/index.html")
    [square] = run.all("a", class_="equal")
    assert f"equal to {FIRST:02d}" in square.attributes["title"]
    assert "1 equal to another" in run.text


def test_a_terminal_marks_it() -> None:
    records = shared()
    run = drawn(run_lines(run_view(records)), width=200)
    assert "1 equal to another, and not run" in run
    assert "= correct, equal to another" in run
    assert f"{EQUAL:02d} vectorise OK  equal to {FIRST:02d}" in drawn(task_lines(task_view(records, TASK)))
    attempt = numbered(records, EQUAL)
    view = attempt_view(attempt, None, original=originals(records.of_task(TASK))[attempt.id])
    assert f"equal to  {numbered(records, FIRST).id}, but for names" in drawn(attempt_lines(view), width=200)
    assert json.loads(view.model_dump_json())["equal_to"] == numbered(records, FIRST).id


def test_one_whose_original_is_not_in_the_run_is_marked_without_a_link() -> None:
    records = shared(key="f" * 16)
    attempt = parse(Site([records]).render(f"runs/{records.run.id}/{TASK}/{EQUAL:02d}.html") or "")
    assert "equal to another attempt" in " ".join(attempt.text.split())
    assert "equal to another" in drawn(task_lines(task_view(records, TASK)))


def test_nothing_is_said_where_no_attempt_shares_one() -> None:
    records = golden_records("modelled")
    table = lineage_table(task_view(records, TASK).lineage, origin=Origin.MODELLED)
    assert "equal_to" not in [column.key for column in table.columns]
    assert "equal" not in drawn(run_lines(run_view(records)), task_lines(task_view(records, TASK))).replace(
        "all_equal", ""
    )
