"""Every kind of page, opened from a folder: nothing goes wrong, everything is drawn, everyone can read it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelforge.leaderboard.build import BoardSite
from kernelforge.report import attempt_view, leaderboard, task_view
from kernelforge.report.html import paths
from kernelforge.report.html.writer import write_folder
from kernelforge.report.views.board import Leaderboard, Verified
from kernelforge.report.views.statistics import Estimate
from tests.browser.page_checks import DESKTOP, SIDEWAYS, Tab, Visit
from tests.report.golden.golden_runs import golden, golden_records

pytestmark = pytest.mark.browser

MODELLED, A, C = (golden(name).run.id for name in ("modelled", "measured-a", "measured-c"))
PAGES = {
    "runs": paths.INDEX,
    "run-measured": paths.run_page(A),
    "run-modelled": paths.run_page(MODELLED),
    "task-measured": paths.task_page(A, "softmax"),
    "attempt-measured": paths.attempt_page(A, "softmax", 1),
    "compare": paths.compare_page(A, C),
    "leaderboard": paths.LEADERBOARD,
    "integrity-measured": paths.integrity_page(A),
}
VARIANTS = {
    "task-modelled": paths.task_page(MODELLED, "softmax"),
    "attempt-modelled": paths.attempt_page(MODELLED, "softmax", 4),
    "attempt-failed": paths.attempt_page(MODELLED, "matmul", 2),
    "compare-unlike": paths.compare_page(MODELLED, A),
}
"""The same kinds with other things on them; looked at on a phone alone."""
ALL = PAGES | VARIANTS
LOOKS = [
    pytest.param(kind, theme, marks=[pytest.mark.slow] if theme == "dark" else [])
    for kind in ALL
    for theme in ("light", "dark")
    if kind in PAGES or theme == "dark"
]

Visited = Callable[[str, str], Visit]
each_look = pytest.mark.parametrize(("kind", "theme"), LOOKS)


@pytest.mark.slow
@each_look
def test_a_page_opens_without_a_word_of_complaint(kind: str, theme: str, visited: Visited):
    assert visited(ALL[kind], theme).faults == []


@each_look
def test_a_page_asks_for_nothing_outside_its_folder(kind: str, theme: str, visited: Visited):
    assert visited(ALL[kind], theme).strangers == []


@each_look
def test_every_chart_of_a_page_has_marks(kind: str, theme: str, visited: Visited):
    charts = visited(ALL[kind], theme).charts
    assert {name: marks for name, marks in charts.items() if marks < 1} == {}


def test_a_modelled_attempt_shows_what_binds_it_and_its_prediction_against_the_floor(visited: Visited):
    charts = visited(ALL["attempt-modelled"], "dark").charts
    marks = {name.rpartition("-")[2]: count for name, count in charts.items()}
    assert (marks["bounds"], marks["predicted"]) == (18, 5), "nine bars with their numbers; four times, an interval"


@each_look
def test_nothing_moves_while_a_page_comes_about(kind: str, theme: str, visited: Visited):
    assert visited(ALL[kind], theme).moved < 0.01


@pytest.mark.parametrize("kind", PAGES)
def test_every_chart_of_a_wide_page_has_the_room_that_it_takes(kind: str, visited: Visited):
    rooms = visited(ALL[kind], "light").rooms
    assert {name: room for name, room in rooms.items() if not room[0] - 8 <= room[1] <= room[0]} == {}


@pytest.mark.parametrize("kind", VARIANTS)
def test_every_chart_of_a_narrow_page_has_the_room_that_it_takes(kind: str, visited: Visited):
    """Its legends may be less high than they could."""
    rooms = visited(ALL[kind], "dark").rooms
    assert {name: room for name, room in rooms.items() if not room[0] - 20 <= room[1] <= room[0]} == {}


@each_look
def test_a_page_fits_its_screen(kind: str, theme: str, visited: Visited):
    assert visited(ALL[kind], theme).overflow <= 0


@each_look
def test_a_page_meets_wcag_aa(kind: str, theme: str, visited: Visited):
    assert visited(ALL[kind], theme).violations == []


def test_a_board_fits_a_desk(visited: Visited, tab: Callable[..., Tab], tmp_path: Path):
    """Also one of many tasks whose entries have long names and large numbers."""
    assert visited(ALL["leaderboard"], "light").sideways == {}
    large = Estimate(value=12.34, low=10.12, high=14.56)
    names = ("geomean_speedup", "geomean_correct", "median_speedup", "geomean_eager")
    more = dict.fromkeys(names, large) | {
        "by": "Researchers of a University", "coder": "anthropic:claude-sonnet-4-5-20250929", "note": "words " * 30,
        "judge": "anthropic:claude-opus-4-1-20250805", "tasks_ok": 238, "tasks_total": 250, "attempts": 12_000,
        "tokens_per_task": 1_234_567.0, "dollars_per_task": 12.345,
        "verified": Verified(by="Ada", when="2026-11-20", rerun=250, tasks=250, agree=False),
    }  # fmt: skip
    board = next(shown_board for shown_board in leaderboard([golden_records("measured-a")]).boards)
    entries = tuple(
        entry.model_copy(
            update=more
            | {"fast_p": tuple(shown_board.model_copy(update={"value": 1.0}) for shown_board in entry.fast_p)}
        )
        for entry in board.entries
    )
    write_folder(BoardSite(Leaderboard(boards=(board.model_copy(update={"entries": entries}),))), tmp_path / "site")
    page = tab(tmp_path / "site", viewport=DESKTOP, java_script_enabled=False).page
    assert page.evaluate(SIDEWAYS) == {}
    assert page.locator("[data-part=checked].bad").inner_text() == "250 of 250 re-run: DIFFERS"


def test_a_chart_of_tasks_has_a_mark_for_each(visited: Visited):
    speeds = golden_records("measured-a").summaries
    timed = sum(task.speedup is not None for task in speeds)
    assert visited(ALL["run-measured"], "light").charts["f-task-speedups"] >= timed > 5


@pytest.mark.parametrize("kind", ["run-measured", "run-modelled", "compare", "leaderboard"])
def test_numbers_of_a_page_are_those_of_the_files_that_it_offers(kind: str, visited: Visited, report: Path):
    seen = visited(ALL[kind], "light")
    expected = list(objects_of(json.loads((report / seen.data["json"]).read_text())))
    rows = [row for table in seen.tables for row in table if row]
    assert len(rows) > 5
    assert [row for row in rows if not any(agree(row, data) for data in expected)] == []
    with (report / seen.data["csv"]).open(newline="") as file:
        lines = [{key: text for key, text in line.items() if is_number(text)} for line in csv.DictReader(file)]
    assert len(lines) > 5
    assert [line for line in lines if not any(agree(line, data) for data in expected)] == []


@pytest.mark.parametrize("kind", ["task-measured", "task-modelled", "attempt-measured", "attempt-modelled"])
def test_numbers_of_a_page_are_those_of_show(kind: str, visited: Visited):
    records = golden_records(kind.replace("task-", "").replace("attempt-", "").replace("measured", "measured-a"))
    if kind.startswith("task"):
        view = task_view(records, "softmax")
    else:
        by_id = {attempt.id: attempt for attempt in records.attempts}
        number = int(Path(ALL[kind]).stem)
        attempt = by_id[f"{records.run.id}/softmax/{number:02d}"]
        view = attempt_view(attempt, by_id[attempt.parent])
    expected = list(objects_of(json.loads(view.model_dump_json())))
    rows = [row for table in visited(ALL[kind], "light" if kind in PAGES else "dark").tables for row in table if row]
    assert len(rows) > 5
    assert [row for row in rows if not any(agree(row, attempt) for attempt in expected)] == []


def objects_of(value: object, above: dict[str, object] | None = None) -> Iterator[dict[str, object]]:
    """Every object within a JSON value, with the fields of the objects around it.

    An estimate enters by its parts, ``NAME``, ``NAME_low`` and ``NAME_high``; a point of fast_p as ``fast_P``.
    """
    if isinstance(value, dict):
        above = {**(above or {}), **value}
        for name, part in value.items():
            if isinstance(part, dict) and part.keys() >= {"value", "low", "high"}:
                above |= {name: part["value"], f"{name}_low": part["low"], f"{name}_high": part["high"]}
        for point in value.get("fast_p", ()):
            name = f"fast_{point['p']:g}".replace(".", "_")
            above |= {name: point["value"], f"{name}_low": point["low"], f"{name}_high": point["high"]}
        yield above
        if isinstance(value.get("key"), dict):  # what all entries of a board have in common
            above |= value["key"]
        for part in value.values():
            yield from objects_of(part, above)
    elif isinstance(value, list):
        for part in value:
            yield from objects_of(part, above)


def agree(row: dict[str, str], data: dict[str, object]) -> bool:
    """Whether every number of a row is that of the object."""
    return all(key in data and json.dumps(data[key]).strip('"') == value for key, value in row.items())


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
