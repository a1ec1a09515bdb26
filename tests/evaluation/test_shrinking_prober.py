"""The parent's side of a try: children that hang, die or talk nonsense are outcomes, never the end of an import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.errors import ChildDied, ChildTimeout, SandboxError, TaskError
from kernelforge.evaluation.size_search.client import SizeSearchClient
from kernelforge.evaluation.size_search.search import Bounds, TrialOutcome
from kernelforge.sandbox import Frame, Limits

COST = {"elements": 1, "bytes": 4, "outputs": 1, "work": 1, "calls": 1, "flops": 0, "ran": True}


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
        return [prober.run({"ROWS": number}, near=True) for number in range(tries)]


def test_a_cost_and_an_error_are_read() -> None:
    cost, error = outcomes(Scripted(COST, {"error": "Model.forward failed"}), 2)
    assert cost.cost is not None
    assert (cost.cost.elements, cost.cost.ran) == (1, True)
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


def test_what_does_not_end_ends_the_search_and_is_no_property_of_the_task() -> None:
    zygote = Scripted(COST, ChildTimeout("late"))
    with SizeSearchClient(zygote, "text", Bounds(answer_s=3)) as prober:
        prober.run({"ROWS": 1}, near=True)
        assert prober.settled
        with pytest.raises(TaskError, match="it does not end: no answer in 3 s"):
            prober.run({"ROWS": 2}, near=True)
        assert not prober.settled


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "running the task file failed: ModuleNotFoundError: No module named 'einops'"},
        {"error": "Model.forward failed: RuntimeError: DefaultCPUAllocator: can't allocate memory"},
        ChildDied("the oracle child was killed"),
    ],
)
def test_a_missing_package_and_a_full_machine_are_no_properties_of_the_task(answer: Any) -> None:
    with SizeSearchClient(Scripted(answer), "text", Bounds()) as prober:
        assert prober.run({}, near=True).cost is None
        assert not prober.settled


def test_an_error_of_the_reference_is_one() -> None:
    with SizeSearchClient(Scripted({"error": "Model.forward failed"}), "text", Bounds()) as prober:
        prober.run({}, near=True)
        assert prober.settled


ON_SHAPES = {**COST, "work": 100, "ran": False}


def test_only_what_shapes_show_to_be_within_the_bounds_is_run_for_real_and_nothing_is_tried_twice() -> None:
    zygote = Scripted(ON_SHAPES, COST)
    narrow, wide = replace(Bounds().base, work=99), replace(Bounds().base, work=100)
    with SizeSearchClient(zygote, "text", Bounds()) as prober:
        above = prober.run({"ROWS": 1}, ceiling=narrow)
        within = prober.run({"ROWS": 1}, ceiling=wide)
        assert [outcome.cost and outcome.cost.ran for outcome in (above, within)] == [False, True]
        prober.close()
        assert prober.run({"ROWS": 1}, ceiling=wide) == within
        assert prober.run({"ROWS": 1}, near=True) == within
    assert zygote.spawned == 1


def test_what_shapes_do_not_tell_is_run_for_real() -> None:
    with SizeSearchClient(Scripted({"unknown": "control flow on values"}, COST), "text", Bounds()) as prober:
        outcome = prober.run({})
    assert outcome.cost is not None
    assert outcome.cost.ran
