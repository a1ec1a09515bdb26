"""The parent's side of a try: children that hang, die or talk nonsense are outcomes, never the end of an import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError
from kernelforge.evaluation.size_search.client import SizeSearchClient
from kernelforge.evaluation.size_search.search import Bounds, TrialOutcome
from kernelforge.sandbox import Frame, Limits

COST = {"elements": 1, "bytes": 4, "outputs": 1, "work": 1, "calls": 1, "flops": 0, "seconds": 0.5}


class Scripted:
    """A zygote whose children answer tries with what they are given: a reply, or an error to raise."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.spawned = 0

    def spawn(self, limits: Limits | None = None) -> Scripted:
        self.spawned += 1
        return self

    def call(self, data: dict[str, Any], blobs: Sequence[Any] = (), *, timeout_s: float | None = None) -> Frame:
        if data.get("op") == "probe":
            return Frame({}, ())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Frame(answer, ())

    def close(self) -> None:
        pass


def outcomes(zygote: Scripted, tries: int) -> list[TrialOutcome]:
    with SizeSearchClient(zygote, "text", Bounds(answer_s=3)) as prober:
        return [prober.run({"ROWS": number}) for number in range(tries)]


def test_a_cost_and_an_error_are_read() -> None:
    cost, error = outcomes(Scripted(COST, {"error": "Model.forward failed"}), 2)
    assert cost.cost is not None
    assert (cost.cost.elements, cost.cost.seconds) == (1, 0.5)
    assert error == TrialOutcome(None, "Model.forward failed")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"elements": "many"}, "cannot be read"),
        ({}, "cannot be read"),
        (ChildDied("the oracle child failed: MemoryError: all of it"), "MemoryError: all of it"),
        (SandboxError("the frame is malformed"), "the frame is malformed"),
    ],
)
def test_nonsense_and_death_are_failed_tries_and_the_next_has_a_new_child(answer: Any, error: str) -> None:
    zygote = Scripted(answer, COST)
    failed, fine = outcomes(zygote, 2)
    assert failed.cost is None
    assert error in failed.error
    assert fine.cost is not None
    assert zygote.spawned == 2


def test_after_two_hangs_no_more_is_tried() -> None:
    zygote = Scripted(ChildTimeout("late"), ChildTimeout("late"))
    assert [outcome.error for outcome in outcomes(zygote, 5)] == ["it hangs: no answer in 3 s"] * 5
    assert zygote.spawned == 2
