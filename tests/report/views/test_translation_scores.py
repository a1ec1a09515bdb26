"""A run of best-of-n on tasks with known translations has compile rate and likeness, on boards too; no other has."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.candidate import format_reply
from kernelforge.leaderboard.entry import EntryError, digest_of, entry_text, parse_entry
from kernelforge.leaderboard.make_entry import entry_result, make_entry
from kernelforge.records import RunState, Verdict
from kernelforge.report.exports import leaderboard_markdown
from kernelforge.report.terminal import run_lines
from kernelforge.report.views.board import boards_of, run_result, translation_scores
from kernelforge.report.views.run import run_view
from kernelforge.report.views.run_records import RunRecords
from kernelforge.report.views.samples import SampleCounts, mean_pass_at
from kernelforge.search import pass_at_k
from tests.report.golden.golden_runs import golden_records
from tests.report.test_uncompared_results import solved
from tests.support.terminal import drawn


def sampled_records() -> RunRecords:
    """The attempts of a recorded run at one task, had they been samples of a translation that the right one is."""
    records = golden_records("modelled")
    name = solved(records)
    selected = tuple(attempt for attempt in records.attempts if attempt.task == name)
    right = next(attempt for attempt in selected if attempt.evaluation.verdict is Verdict.OK)
    assert right.candidate is not None
    task = records.tasks[name].model_copy(
        update={"c_source": "void f(void);", "translation": format_reply(right.candidate)}
    )
    config = records.run.config.model_copy(update={"strategy": "best-of-n", "tasks": (name,)})
    run = records.run.model_copy(update={"config": config, "state": RunState.FINISHED})
    return replace(records, run=run, attempts=selected, tasks={name: task})


def test_samples_are_compared_with_the_known_device_code() -> None:
    records, sampled = golden_records("modelled"), sampled_records()
    right = next(attempt for attempt in sampled.attempts if attempt.evaluation.verdict is Verdict.OK)
    alone = run_view(replace(sampled, attempts=(right,)))
    assert alone.compile_rate == 1.0
    assert alone.likeness is not None
    assert alone.likeness.bleu == pytest.approx(1.0)
    every = run_view(sampled)
    assert every.compile_rate is not None
    assert 0 < every.compile_rate <= 1
    assert run_view(replace(sampled, tasks=records.tasks)).likeness is None
    assert run_view(replace(sampled, run=records.run)).compile_rate is None
    text = drawn(run_lines(alone))
    assert "100.0%" in text
    assert "against known translations" in text


def test_boards_have_the_scores_of_runs_and_of_entries() -> None:
    sampled = sampled_records()
    view = run_view(sampled)
    digests = {name: task.digest for name, task in sampled.tasks.items()}
    entry = make_entry(sampled, digests, by="Ann")
    parsed = parse_entry(json.loads(entry_text(entry)), "entry.json")
    assert view.likeness is not None
    assert view.pass_at_k is not None
    alike = (view.likeness.bleu, view.likeness.codebleu)
    for result, likeness in ((run_result(sampled), alike), (entry_result(parsed), (None, None))):
        [row] = boards_of([result]).boards[0].entries
        assert (row.compile_rate, (row.bleu, row.codebleu)) == (view.compile_rate, likeness)
        assert row.pass_at_1 == pytest.approx(view.pass_at_k[1])
        assert "CodeBLEU" in leaderboard_markdown(boards_of([result]))
    plain = run_result(golden_records("modelled"))
    assert (plain.compile_rate, plain.pass_at_1, plain.bleu) == (None, None, None)
    assert "CodeBLEU" not in leaderboard_markdown(boards_of([plain]))


def test_pass_at_k_is_the_mean_over_tasks_and_missing_where_one_has_fewer_samples() -> None:
    counts = [SampleCounts(judged=10, built=8, right=3), SampleCounts(judged=6, built=6, right=0)]
    assert mean_pass_at(5, counts) == pytest.approx((pass_at_k(10, 3, 5) + 0.0) / 2)
    scores = translation_scores(counts, None, all_measured=True)
    assert scores["compile_rate"] == pytest.approx(14 / 16)
    assert scores["pass_at_1"] == pytest.approx(0.15)
    assert (scores["pass_at_10"], scores["bleu"]) == (None, None)
    assert mean_pass_at(1, [*counts, SampleCounts(judged=0, built=0, right=0)]) is None
    assert translation_scores([], None, all_measured=True) == {}
    some = translation_scores(counts, None, all_measured=False)
    assert (some["compile_rate"], some["pass_at_1"]) == (scores["compile_rate"], None)


@pytest.mark.parametrize("samples", [{"judged": 2, "built": 1, "right": 2}, {"judged": 10**8, "built": 1, "right": 1}])
def test_an_entry_with_impossible_samples_is_refused(samples: dict[str, Any]) -> None:
    sampled = sampled_records()
    made = make_entry(sampled, {name: task.digest for name, task in sampled.tasks.items()}, by="Ann")
    data = json.loads(entry_text(made))
    data["tasks"][0]["samples"] = samples
    data["digest"] = digest_of(data)
    with pytest.raises(EntryError, match=r"entry\.json"):
        parse_entry(data, "entry.json")
