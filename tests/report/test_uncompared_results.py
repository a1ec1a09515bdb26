"""A full size that was not compared is marked wherever results are shown, and no share of what is correct counts it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelforge.records import UNCOMPARED, Attempt, Correctness, SizeCheck, Verdict
from kernelforge.report import RunRecords, attempt_view, export_lines, leaderboard, run_view, task_view
from kernelforge.report.exports import compare_markdown, entries_csv, leaderboard_csv, leaderboard_markdown
from kernelforge.report.figures import draw_task, figures_of
from kernelforge.report.formatting import UNCOMPARED_NOTE
from kernelforge.report.html import Site
from kernelforge.report.tables.base import Table
from kernelforge.report.tables.task import lineage_table, rescored_table
from kernelforge.report.terminal import (
    attempt_lines,
    diff_lines,
    evaluation_lines,
    leaderboard_lines,
    run_lines,
    run_summary,
    task_lines,
)
from kernelforge.report.views.attempt import EvaluationView, gates_of
from kernelforge.report.views.compare import compare_view
from kernelforge.report.views.curves import anytime
from kernelforge.report.views.diff import diff_view
from kernelforge.report.views.integrity import integrity_view
from kernelforge.report.views.progress import journalled_progress
from kernelforge.report.views.recomputed_rewards import RescoredView, rescored_attempts
from kernelforge.report.views.run_records import best_of
from kernelforge.store import DATABASE_NAME, Store
from tests.report.golden.golden_runs import golden_records
from tests.report.html.html_dom import Element, parse
from tests.support.factories import not_compared
from tests.support.recorded_run import make_facts, make_graph
from tests.support.terminal import drawn

RUNS = ("modelled", "measured-a")
WHY = "its own tensors take 100 GB"


def solved(records: RunRecords) -> str:
    """The first task with a best."""
    return next(task for task in records.run.config.tasks if best_of(records.of_task(task)) is not None)


def marked(records: RunRecords) -> RunRecords:
    """The same run, had no correct attempt at that task been compared at its full size."""
    task = solved(records)

    def as_marked(attempt: Attempt) -> Attempt:
        ok = attempt.task == task and attempt.evaluation.verdict is Verdict.OK
        return not_compared(attempt, WHY) if ok else attempt

    return replace(records, attempts=tuple(map(as_marked, records.attempts)))


def failed(records: RunRecords) -> RunRecords:
    """The same run without an attempt at that task."""
    task = solved(records)
    return replace(records, attempts=tuple(attempt for attempt in records.attempts if attempt.task != task))


def numbers(view: Any) -> dict[str, Any]:
    """Every statistic over tasks."""
    names = ("headline", "tasks_ok", "median_dram_ratio", "mean_reward", "fast_curves")
    return {name: getattr(view, name) for name in names}


every_run = pytest.mark.parametrize("name", RUNS)


@every_run
def test_a_run_has_the_numbers_that_it_would_have_had_the_task_failed(name: str) -> None:
    records = golden_records(name)
    before, after, without = (run_view(variant) for variant in (records, marked(records), failed(records)))
    assert numbers(after) == numbers(without)
    assert after.tasks_ok == before.tasks_ok - 1
    assert after.anytime[-1].tasks_ok == after.tasks_ok
    assert after.anytime[-1].geomean_speedup == without.anytime[-1].geomean_speedup
    assert after.uncompared == sum(variant.outcome == UNCOMPARED for row in after.matrix for variant in row.cells) > 0
    assert sum(after.outcomes.values()) == after.attempts
    assert after.outcomes[UNCOMPARED] == after.uncompared


@every_run
def test_a_board_ranks_by_the_numbers_that_the_failed_task_would_give(name: str) -> None:
    records = golden_records(name)
    (after,) = leaderboard([marked(records)]).boards[0].entries
    (without,) = leaderboard([failed(records)]).boards[0].entries
    same = ("tasks_ok", "correct", "median_dram_ratio", "fast_p", "untimed", "uncompiled", "geomean_speedup")
    same += ("median_speedup", "geomean_correct", "geomean_eager", "win_rate", "floor_share")
    assert {name: getattr(after, name) for name in same} == {name: getattr(without, name) for name in same}
    assert (after.uncompared, without.uncompared) == (1, 0)
    (row,) = [name for name in after.tasks if name.task == solved(records)]
    assert (row.best is not None, row.correct, row.outcome) == (True, False, UNCOMPARED)


def test_what_was_compared_is_the_best_per_task_however_much_another_claims() -> None:
    records = golden_records("modelled")
    slower = replace(records, run=records.run.model_copy(update={"id": "compared"}))
    board = leaderboard([marked(records), slower]).boards[0]
    (best,) = [record for record in board.records if record.task == solved(records)]
    assert (best.run, best.correct) == ("compared", True)
    assert [entry.run for entry in board.entries] == ["compared", records.run.id]


def test_pass_at_k_counts_no_sample_whose_full_size_was_not_compared() -> None:
    records = golden_records("modelled")
    config = records.run.config.model_copy(update={"strategy": "best-of-n", "tasks": (solved(records),)})
    selected = tuple(attempt for attempt in records.attempts if attempt.task == solved(records))
    one_task = replace(
        records,
        run=records.run.model_copy(update={"config": config}),
        attempts=selected,
        finished={solved(records): "enough samples"},
    )
    sampled, without = run_view(one_task).pass_at_k, run_view(marked(one_task)).pass_at_k
    assert sampled is not None
    assert max(sampled.values()) > 0
    assert without is not None
    assert set(without.values()) == {0.0}


def test_the_funnel_loses_it_on_the_way_to_correct_under_its_own_name() -> None:
    records = golden_records("modelled")
    after = run_view(marked(records))
    (correct,) = [step for step in after.funnel if step.step == "correct"]
    assert correct.lost_outcomes[UNCOMPARED] == after.uncompared
    assert "OK" not in correct.lost_outcomes
    assert correct.count == after.verdicts[Verdict.OK] - after.uncompared
    assert journalled_progress(marked(records)).funnel["correct"] == correct.count


def test_a_compared_attempt_that_comes_after_makes_the_task_correct() -> None:
    records = golden_records("modelled")
    task = next(name for name in records.run.config.tasks if sum(a.accepted for a in records.of_task(name)) > 1)
    first = next(attempt for attempt in records.of_task(task) if attempt.accepted)
    changed = replace(
        records, attempts=tuple(not_compared(attempt) if attempt is first else attempt for attempt in records.attempts)
    )
    assert run_view(changed).tasks_ok == run_view(records).tasks_ok
    before, after = (
        {point.attempt: point.tasks_ok for point in anytime(at, measured=False)} for at in (records, changed)
    )
    assert after[first.id] == before[first.id] - 1


@every_run
def test_pages_of_a_terminal_mark_it_and_say_what_the_mark_means(name: str) -> None:
    records = marked(golden_records(name))
    view = run_view(records)
    run = drawn(run_lines(view))
    assert re.search(rf"^attempts .*\b{view.uncompared} OK\*", run, re.M)
    assert UNCOMPARED_NOTE in run
    assert f"* {UNCOMPARED}" in run
    letters = re.search(rf"^{re.escape(solved(records))} +([A-Za-z* ]+)$", run.partition("\nAttempts\n")[2], re.M)
    assert letters is not None
    assert letters[1].count("*") == view.uncompared
    assert not {"A", "o"} & set(letters[1])
    assert f"{view.uncompared} OK*" in drawn(*run_summary(view))
    task = drawn(task_lines(task_view(records, solved(records))))
    assert len(re.findall(re.escape(UNCOMPARED), task)) == view.uncompared + 1  # each attempt, and the best
    assert UNCOMPARED_NOTE in drawn(leaderboard_lines(leaderboard([records])), width=200)


def test_no_mark_is_explained_where_there_is_none() -> None:
    records = golden_records("modelled")
    task = task_view(records, solved(records))
    pages = (run_lines(run_view(records)), leaderboard_lines(leaderboard([records])), task_lines(task))
    assert "not compared" not in drawn(*pages, width=200)
    assert "not compared" not in leaderboard_markdown(leaderboard([records]))


@pytest.mark.parametrize("width", [60, 120])
def test_the_page_of_an_attempt_says_why_it_was_not_compared(width: int) -> None:
    records = marked(golden_records("modelled"))
    best = best_of(records.of_task(solved(records)))
    assert best is not None
    (gate,) = [gate_view for gate_view in gates_of(best.evaluation) if gate_view.name == "full"]
    assert (gate.status, gate.detail) == ("not compared", WHY)
    for page in (
        drawn(attempt_lines(attempt_view(best, None)), width=width),
        drawn(evaluation_lines(EvaluationView.of(best)), width=width),
    ):
        assert re.search(rf"^verdict +{UNCOMPARED} at stage done", page, re.M)
    assert re.search(rf"^\* full +not compared: {WHY}", drawn(attempt_lines(attempt_view(best, None))), re.M)
    assert f"{best.id} {UNCOMPARED}" in drawn(diff_lines(diff_view(best, best)))


def test_a_full_size_that_was_compared_in_part_says_of_how_much() -> None:
    part = "compared in part: 144 elements of the output, at places drawn from the secret seed"
    records = golden_records("modelled")
    best = best_of(records.of_task(solved(records)))
    assert best is not None
    assert best.evaluation.correctness is not None
    sizes = tuple(
        SizeCheck(size="full", status="passed", message=part) if size.size == "full" else size
        for size in best.evaluation.correctness.sizes
    )
    evaluation = best.evaluation.model_copy(update={"correctness": Correctness(sizes=sizes)})
    assert not evaluation.uncompared
    attempt = best.model_copy(update={"evaluation": evaluation})
    (gate,) = [size for size in gates_of(evaluation) if size.name == "full"]
    assert (gate.status, gate.detail) == ("passed", part)
    assert f"passed: {part}" in drawn(attempt_lines(attempt_view(attempt, None)))
    assert "compared in part" in drawn(evaluation_lines(EvaluationView(evaluation=evaluation, profile=None)), width=200)


def test_tables_hold_the_words_and_show_the_mark_with_one_line_beneath() -> None:
    records = marked(golden_records("modelled"))
    view = task_view(records, solved(records))
    table = lineage_table(view.lineage, origin=run_view(records).origin)
    assert table.to_csv().count(f'"{UNCOMPARED}"') == run_view(records).uncompared
    assert table.to_markdown().count("OK\\*") == run_view(records).uncompared
    assert table.to_markdown().rstrip().endswith(UNCOMPARED_NOTE.replace("*", "\\*", 1))
    assert drawn(table.to_rich(), width=200).count(UNCOMPARED_NOTE) == 1
    plain = Table(table.title, table.columns, tuple(row for row in table.rows if UNCOMPARED not in row))
    assert (table.note, plain.note) == (UNCOMPARED_NOTE, "")


def test_documents_mark_it() -> None:
    records = marked(golden_records("modelled"))
    board = leaderboard([records])
    assert "OK\\*" in leaderboard_markdown(board)
    assert "1 with full size not compared" in leaderboard_markdown(board)
    assert "true" in next(line for line in leaderboard_csv(board).splitlines() if f",{solved(records)}," in line)
    assert "uncompared" in entries_csv(board).splitlines()[0].split(",")
    lines = [line for line in export_lines(records.attempts) if '"uncompared": true' in line]
    assert len(lines) == run_view(records).uncompared
    rows = list(rescored_attempts(records.of_task(solved(records)), ("kernelforge/1",)))
    assert "OK\\*" in rescored_table(RescoredView(rows=rows)).to_markdown()
    assert all(row.value == 0 for row in rows if row.outcome == UNCOMPARED)


def test_beside_a_run_that_was_compared_it_loses() -> None:
    records = golden_records("modelled")
    task = solved(records)
    other = replace(records, run=records.run.model_copy(update={"id": "compared"}))
    (pair,) = [row for row in compare_view(other, marked(records)).pairs if row.task == task]
    assert (pair.outcome, pair.b_outcome) == ("loss", UNCOMPARED)
    assert pair.why == f"a is correct, b is not: {UNCOMPARED}"
    (both,) = [row for row in compare_view(marked(other), marked(records)).pairs if row.task == task]
    assert (both.outcome, both.ratio) == ("both-failed", None)
    text = compare_markdown(compare_view(other, marked(records)))
    assert "OK\\*" in text
    assert UNCOMPARED_NOTE.replace("*", "\\*", 1) in text


def test_integrity_lists_it_with_the_reason() -> None:
    records = marked(golden_records("measured-a"))
    view = integrity_view(records)
    rows = [row for row in view.rows if row.concern == "uncompared"]
    assert {row.task for row in rows} == {solved(records)}
    assert all(WHY in row.detail for row in rows)
    assert not [row for row in view.rows if row.concern == "untimed" and row.task == solved(records)]


def test_no_figure_shows_it_as_a_result() -> None:
    records = marked(golden_records("modelled"))
    assert not figures_of(draw_task(task_view(records, solved(records))))


@pytest.mark.slow
def test_pages_mark_it_and_filters_tell_it_from_what_is_correct() -> None:
    records = marked(golden_records("modelled"))
    task, view = solved(records), run_view(records)
    site = Site([records])
    trees = {path: parse(site.render(path) or "") for path in site.pages() if path.endswith(".html")}
    run = trees["index.html"]
    cells = [
        element
        for element in run.only("table", class_="matrix").all("a")
        if element.attributes.get("data-verdict") == "OK*"
    ]
    assert len(cells) == view.uncompared
    assert {element.text for element in cells} == {"*"}
    assert all(UNCOMPARED in element.attributes["title"] for element in cells)
    offered = {
        element.attributes["value"]: element.text for element in run.only("select", name_="verdict").all("option")
    }
    assert offered["OK*"] == UNCOMPARED
    assert UNCOMPARED_NOTE in run.text
    best = best_of(records.of_task(task))
    assert best is not None
    attempt = next(tree for path, tree in trees.items() if path.endswith(f"{task}/{best.number:02d}.html"))
    assert UNCOMPARED in attempt.text
    assert _cells(attempt, "Gates", "full") == ["full", "not compared", WHY]


def _cells(tree: Element, table: str, first: str) -> list[str]:
    row = next(row for row in tree.table(table) if next(iter(row.values())).text == first)
    return [cell.text for cell in row.values() if cell.text != "–"]


def test_the_store_gives_back_what_marks_it(tmp_path: Path) -> None:
    records = marked(golden_records("modelled"))
    path = tmp_path / DATABASE_NAME
    with Store.open(path) as store:
        store.start_run(records.run)
        for task in records.tasks.values():
            store.put_task(records.run.id, task, make_facts(task), make_graph())
        for attempt in records.attempts:
            store.add_attempt(attempt)
    with Store.open(path, read_only=True) as store:
        loaded = RunRecords.load(store, records.run, texts=False)
    assert run_view(loaded).uncompared == run_view(records).uncompared
