"""The shipped transcript of levels 1 to 3: a kernel is accepted where its modelled time falls, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.llm.recording import read_transcript
from kernelforge.records import Attempt, Budget, Operator, RunState, Verdict
from kernelforge.run import configure
from tests.run.run_helpers import open_store, run_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_workshop")]

TRANSCRIPT = Path(__file__).parents[2] / "results" / "reference" / "exchange-levels.jsonl"

OK, WRONG = Verdict.OK, Verdict.WRONG


def replayed(folder: Path, task: str) -> list[Attempt]:
    """Attempts from the recorded replies of a task in their order; prompts may have changed since."""
    agent = f"replay:{TRANSCRIPT}?match=order"
    config = configure(
        suite="level1",
        tasks=(task,),
        device="emulated:h100",
        options={"metrics": "full"},
        coder=agent,
        judge=agent,
        memory="off",
        budget=Budget(rounds=5),
        seed=20261127,
        jobs=1,
    )
    run = run_in(folder, config)
    assert run.state is RunState.FINISHED
    with open_store(folder) as store:
        return sorted(store.attempts(run.id), key=lambda attempt: attempt.number)


def verdicts(attempts: list[Attempt]) -> list[Verdict]:
    return [attempt.evaluation.verdict for attempt in attempts]


def modelled_us(attempt: Attempt) -> float:
    return attempt.evaluation.performance.time_us if attempt.evaluation.performance is not None else float("inf")


def check_accepted_where_faster(attempts: list[Attempt]) -> None:
    best_us = float("inf")
    for attempt in attempts:
        assert attempt.accepted is (modelled_us(attempt) < best_us), attempt.note
        best_us = min(best_us, modelled_us(attempt))


def test_the_transcript_says_who_wrote_it() -> None:
    header, talks = read_transcript(TRANSCRIPT)
    assert "Claude" in header.written_by
    assert {line.written_by for talk in talks for line in talk.lines} == {header.written_by}


def repaired(attempts: list[Attempt]) -> None:
    """Sums that are left in the tensor cores are wrong; their repair is accepted, and what comes after it."""
    _, _, wrong, repair, last = attempts
    assert wrong.evaluation.reason.startswith("at the full size")
    assert (repair.operator, repair.parent) == (Operator.REPAIR, wrong.id)
    assert last.accepted


def refused(attempts: list[Attempt]) -> None:
    """Twice the warps cost time."""
    assert attempts[-1].note.startswith("not accepted: modelled time")


@pytest.mark.parametrize(
    ("task", "expected", "last"), [("matmul_square", [OK, OK, WRONG, OK, OK], repaired), ("softmax", [OK] * 4, refused)]
)
def test_attempts_are_those_recorded_and_accepted_where_they_are_faster(
    tmp_path: Path, task: str, expected: list[Verdict], last: Callable[[list[Attempt]], None]
) -> None:
    attempts = replayed(tmp_path, task)
    assert verdicts(attempts) == expected
    check_accepted_where_faster(attempts)
    last(attempts)
