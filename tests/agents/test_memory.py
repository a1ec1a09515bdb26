"""Lessons: whose they are, which are shown, and what the built-in reflexion writes."""

from __future__ import annotations

import pytest

from kernelforge.agents.reflexion import BuiltinReflexion
from kernelforge.records import Attempt, Finding, Lesson, Operator
from kernelforge.run.task_loop import PER_FAMILY, SHOWN, select_lessons
from tests.agents import agent_setup as workbench
from tests.support.factories import make_attempt, make_candidate, make_evaluation, modelled


def lesson(text: str, family: str = "softmax", gain: float | None = 1.0) -> Lesson:
    return Lesson(family=family, text=text, task="t", provider="builtin", gain=gain, written="2026-01-01T00:00:00")


@pytest.mark.parametrize(
    ("task", "family"),
    [
        ("softmax", "softmax"),
        ("matmul", "matmul"),
        ("conv2d", "convolution"),
        ("layernorm", "normalisation"),
        ("gelu", "elementwise"),
        ("cumsum", "scan"),
        ("max_pool2d", "pooling"),
        ("sum_axes", "reduction"),
    ],
)
def test_a_reference_belongs_to_the_family_of_its_most_telling_operator(task: str, family: str) -> None:
    assert workbench.graph_of(task).families[0] == family


def test_the_lessons_of_the_largest_gain_are_shown_and_no_more_than_a_few() -> None:
    many = [lesson(f"s{i}", gain=float(i)) for i in range(9)] + [lesson(f"m{i}", "matmul") for i in range(9)]
    rendered = select_lessons(many, ["softmax", "matmul"])
    assert rendered[:PER_FAMILY] == tuple(f"softmax: s{i}" for i in (8, 7, 6))
    assert len(rendered) == SHOWN
    assert select_lessons(many, ["scan"]) == ()


def test_a_lesson_is_shown_once() -> None:
    assert select_lessons([lesson("same"), lesson("same", gain=2.0)], ["softmax"]) == ("softmax: same",)


def timed(number: int, time_us: float, action: str = "", *, accepted: bool = True) -> Attempt:
    evaluation = make_evaluation(candidate=make_candidate(f"v{number}").hash, performance=modelled(time_us))
    if not action:
        return make_attempt(number, accepted=accepted, evaluation=evaluation)
    finding = Finding(kind="optimise", headline="h", why="w", action=action)
    note = ("accepted: " if accepted else "not accepted: ") + "dram 2 -> 1"
    return make_attempt(
        number,
        operator=Operator.OPTIMISE,
        parent=0,
        finding=finding,
        accepted=accepted,
        note=note,
        evaluation=evaluation,
    )


def test_what_paid_and_what_did_not_is_written_down() -> None:
    history = [timed(0, 20.0), timed(1, 10.0, "stage the row"), timed(2, 11.0, "vectorise", accepted=False)]
    result = BuiltinReflexion().reflect(workbench.brief("softmax"), history)
    assert [item.text for item in result.lessons] == [
        "Pays: stage the row (dram 2 -> 1)",
        "Did not pay: vectorise (dram 2 -> 1)",
    ]
    assert {item.gain for item in result.lessons} == {2.0}
    assert {item.family for item in result.lessons} == {"softmax"}


def test_what_was_undecided_or_could_not_be_compared_is_no_lesson() -> None:
    untimed = timed(2, 10.0, "fuse", accepted=False)
    untimed = untimed.model_copy(update={"evaluation": untimed.evaluation.model_copy(update={"performance": None})})
    history = [timed(0, 20.0), timed(1, 19.9, "stage the row", accepted=False), untimed]
    assert BuiltinReflexion().reflect(workbench.brief("softmax"), history).lessons == ()


def test_a_gain_is_between_the_first_and_the_last_accepted_time() -> None:
    refused = timed(3, 1.0, "stage the row", accepted=False)
    history = [timed(0, 20.0), timed(1, 10.0, "fuse"), timed(2, 5.0, "vectorise"), refused]
    result = BuiltinReflexion().reflect(workbench.brief("softmax"), history)
    assert {item.gain for item in result.lessons} == {4.0}


def test_a_task_that_taught_nothing_leaves_no_lesson() -> None:
    assert BuiltinReflexion().reflect(workbench.brief("softmax"), [make_attempt(0)]).lessons == ()
