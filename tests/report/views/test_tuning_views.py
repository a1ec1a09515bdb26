"""Results of a ``# tune:`` search in views, terminal and journal."""

from __future__ import annotations

import json
from pathlib import Path

from kernelforge.records import Attempt, Operator, TuneTrial, Verdict
from kernelforge.report import RunRecords, attempt_view, export_lines, task_view
from kernelforge.report.terminal import attempt_lines, task_lines
from kernelforge.store import Store
from tests.support.recorded_run import make_attempt, make_run, make_task
from tests.support.terminal import drawn

RUN = make_run(tasks=("softmax",))
TASK = make_task("softmax")
TRIALS = (
    TuneTrial(choices={"BLOCK": 128}, rung=1, time_us=9.5),
    TuneTrial(choices={"BLOCK": 256}, rung=0, time_us=3.25),
    TuneTrial(choices={"BLOCK": 512}, rung=1, time_us=7.5),
    TuneTrial(choices={"BLOCK": 2048}, rung=0, problem="x must be at most 1,024\nand is not"),
)


def tuned() -> tuple[Attempt, Attempt]:
    """A tuned candidate, and its tuned child."""
    seed = make_attempt(RUN, TASK, 0, Verdict.OK, accepted=True)
    assert seed.candidate is not None
    plan = seed.candidate.plan.replace("128 | 256", "128 | 256 | 512 | 2048")
    candidate = seed.candidate.model_copy(update={"plan": plan, "choices": {}})
    selected = candidate.model_copy(update={"choices": {"BLOCK": 512}})
    parent = seed.model_copy(
        update={"candidate": candidate, "evaluation": bound(seed, candidate.hash), "trials": TRIALS}
    )
    child = make_attempt(RUN, TASK, 1, Verdict.OK, parent=0, accepted=True)
    changes = {
        "operator": Operator.TUNE,
        "finding": None,
        "messages": (),
        "candidate": selected,
        "evaluation": bound(child, selected.hash),
    }
    return parent, child.model_copy(update=changes)


def bound(attempt: Attempt, candidate: str) -> object:
    return attempt.evaluation.model_copy(update={"candidate": candidate})


def test_trials_are_shown_furthest_and_fastest_first_with_what_went_wrong() -> None:
    parent, _ = tuned()
    view = attempt_view(parent, None)
    assert [row.choices["BLOCK"] for row in view.trials] == [512, 128, 256, 2048]
    assert [row.own for row in view.trials] == [False, True, False, False]
    lines = [" ".join(line.split()) for line in drawn(attempt_lines(view)).splitlines()]
    at = lines.index("Tuning")
    assert "modelled" in lines[at + 1]
    assert lines[at + 3] == "BLOCK = 512 1 7.5 –"
    assert lines[at + 4] == "BLOCK = 128 1 9.5 own –"
    assert lines[at + 5] == "BLOCK = 256 0 3.25 –"
    assert lines[at + 6] == "BLOCK = 2048 0 – x must be at most 1,024 and is not"


def test_how_many_combinations_a_search_left_out_is_shown() -> None:
    parent, _ = tuned()
    assert parent.candidate is not None
    plan = parent.candidate.plan.replace("512 | 2048", "512 | 2048 | 32 | 64")
    candidate = parent.candidate.model_copy(update={"plan": plan})
    attempt = parent.model_copy(update={"candidate": candidate, "evaluation": bound(parent, candidate.hash)})
    assert attempt_view(attempt, None).combinations == 6
    assert "Tuning: 4 of 6 combinations" in drawn(attempt_lines(attempt_view(attempt, None)))


def test_a_tuned_attempt_shows_its_values_beside_the_parents() -> None:
    parent, child = tuned()
    view = attempt_view(child, parent)
    assert (view.choices, view.parent_choices) == ({"BLOCK": 512}, {"BLOCK": 128})
    assert view.trials == ()
    assert (view.source_diff, view.plan_diff) == ("", "")
    text = drawn(attempt_lines(view))
    assert "tune: BLOCK = 512 (parent 128)" in text
    assert "Tuning" not in text
    assert "tune: BLOCK = 128\n" in drawn(attempt_lines(attempt_view(parent, None)))
    assert "01 tune BLOCK = 512 OK" in drawn(task_lines(task_view(RunRecords(RUN, (parent, child)), "softmax")))


def test_choices_and_trials_survive_the_journal_and_the_export(tmp_path: Path) -> None:
    attempts = tuned()
    with Store.open(tmp_path / "kernelforge.db") as store:
        store.start_run(RUN)
        store.put_task(RUN.id, TASK)
        for attempt in attempts:
            store.add_attempt(attempt)
        assert tuple(store.attempts(RUN.id)) == attempts
    first, second = map(json.loads, export_lines(attempts))
    assert [TuneTrial.model_validate(trial) for trial in first["trials"]] == list(TRIALS)
    assert (second["operator"], second["candidate"]["choices"], second["trials"]) == ("tune", {"BLOCK": 512}, [])
    assert first["candidate"]["hash"] != second["candidate"]["hash"]
