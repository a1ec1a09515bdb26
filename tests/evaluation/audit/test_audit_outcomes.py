"""Outcomes of mutants: rejected by our check, by KernelBench's rule, argued to be equivalent."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from kernelforge.errors import TaskError
from kernelforge.evaluation.audit import results
from kernelforge.evaluation.audit.equivalents import Arguments, Equivalent, read_equivalents, stale_arguments
from kernelforge.evaluation.audit.results import MutantOutcome, TaskAudit
from kernelforge.evaluation.audit.runner import MutationAudit
from kernelforge.evaluation.generators.recipe import Recipe, Step
from kernelforge.evaluation.oracle.worker.reference_runner import ReferenceRunner
from kernelforge.evaluation.suite_checks import judged_content, parallel_map
from kernelforge.records import Task
from kernelforge.report.views.audit import audit_row, audit_view
from tests.evaluation.oracle_tasks import make_task

NORM = make_task("self.n(a)", "torch.rand(6, 40)", init="self.n = nn.LayerNorm(40)")
RELU_OF_SOFTMAX = make_task("torch.relu(torch.softmax(a, 1))", "torch.randn(6, 40)")


@pytest.fixture(scope="module")
def norm() -> dict[str, MutantOutcome]:
    audit = MutationAudit(ReferenceRunner(NORM)).audit(200)
    return {mutant.mutant: mutant for mutant in audit.mutants}


@pytest.mark.parametrize(
    "mutant",
    [
        "initial-weight@weight[n.weight]",
        "dropped-weight:zeros@weight[n.bias]",
        "misread-weight:first-row@weight[n.weight]",
    ],
)
def test_a_fault_that_kernelbench_passes_is_rejected_here(norm: dict[str, MutantOutcome], mutant: str) -> None:
    assert norm[mutant].outcome == "killed"
    assert not norm[mutant].kernelbench_killed


def test_a_fault_is_rejected_where_it_first_shows(norm: dict[str, MutantOutcome]) -> None:
    assert (norm["stale@output0"].size, norm["stale@output0"].family) == ("small", "task")
    assert norm["stale@output0"].kernelbench_killed


def test_nothing_survives_in_a_well_made_task(norm: dict[str, MutantOutcome]) -> None:
    assert [name for name, mutant in norm.items() if mutant.outcome == "survived"] == []
    assert norm["lost-terms:past-1024@native_layer_norm/var_mean"].outcome == "invalid"


def test_an_equivalent_mutant_survives_with_the_same_bits() -> None:
    audit = MutationAudit(ReferenceRunner(RELU_OF_SOFTMAX)).audit(0, ["removed@relu", "no such mutant"])
    (mutant,) = audit.mutants
    assert (mutant.mutant, mutant.outcome, mutant.bitwise_equal) == ("removed@relu", "survived", True)
    assert not mutant.kernelbench_killed


SOFTMAX = make_task("torch.softmax(a, 1)", "torch.randn(6, 40)")

FAR_BELOW = Recipe(
    steps=(
        Step(op="number", value=-900.0),
        Step(op="number", value=-800.0),
        Step(op="uniform", of=(0, 1)),
    ),
    results=(2,),
)
SAME = Recipe(steps=(), results=(None,))


@pytest.fixture(scope="module")
def softmax() -> dict[str, results.TestedMutant]:
    reckoner = ReferenceRunner(SOFTMAX)
    reckoner.tests = {"far_below": FAR_BELOW, "same": SAME}
    tested = MutationAudit(reckoner).tested(200, {"far_below": ["small"], "same": ["small", "hidden_same"]})
    return {mutant.mutant: mutant for mutant in tested}


@pytest.mark.slow
def test_inputs_of_a_generator_reject_what_the_tasks_own_do_not(softmax: dict[str, results.TestedMutant]) -> None:
    mutant = softmax["no-max@_softmax"]
    assert (mutant.by_first, mutant.by_tests, mutant.by_check) == (False, ("far_below",), True)


def test_what_the_tasks_own_inputs_reject_is_tried_on_no_generator(softmax: dict[str, results.TestedMutant]) -> None:
    mutant = softmax["stale@output0"]
    assert (mutant.by_first, mutant.by_tests, mutant.by_check) == (True, (), True)


def test_a_generator_that_returns_the_tasks_own_inputs_adds_nothing(softmax: dict[str, results.TestedMutant]) -> None:
    assert not any("same" in mutant.by_tests for mutant in softmax.values())
    assert any(not mutant.by_first for mutant in softmax.values())


@pytest.mark.slow
def test_the_audit_and_the_score_run_the_same_mutants(softmax: dict[str, results.TestedMutant]) -> None:
    audit = MutationAudit(ReferenceRunner(SOFTMAX)).audit(200)
    assert {m.mutant: m.outcome == "killed" for m in audit.mutants} == {m.mutant: m.by_check for m in softmax.values()}


def test_a_mutant_is_not_rejected_by_the_first_inputs_and_by_tests() -> None:
    with pytest.raises(ValidationError):
        results.TestedMutant(mutant="a", fault="removed", by_first=True, by_tests=("t",), by_check=True)


def outcome(mutant: str, outcome: str, **rest: object) -> MutantOutcome:
    location = {"size": "small", "family": "task"} if outcome == "killed" else {}
    return MutantOutcome.model_validate({"mutant": mutant, "fault": "removed", "outcome": outcome, **location, **rest})


def argued(*mutants: str) -> Arguments:
    why = "the operand of the relu is never negative"
    return Arguments(own=tuple(Equivalent(task="t", mutant=mutant, argument=why) for mutant in mutants))


AUDIT = TaskAudit(
    task="t",
    mutants=(outcome("a", "killed", kernelbench_killed=True), outcome("b", "survived"), outcome("c", "invalid")),
    made=3,
)


def test_an_argument_goes_stale_when_its_mutant_is_killed_or_gone() -> None:
    assert stale_arguments(AUDIT, argued("b")) == []
    killed, gone = stale_arguments(AUDIT, argued("a", "d"))
    assert killed == "a is argued to be equivalent, but it is killed"
    assert gone == "d is argued to be equivalent, but there is no such mutant any more"


def test_arguments_of_a_base_need_not_apply() -> None:
    assert stale_arguments(AUDIT, Arguments(inherited=argued("a", "d").own)) == []


def test_an_argued_survivor_counts_for_neither_rule() -> None:
    view = audit_view([audit_row("s", AUDIT, ["b"], [])], 0.97)
    assert (view.judged, view.killed, view.equivalent, view.invalid) == (1, 1, 1, 1)
    (suite,) = view.suites
    assert (suite.suite, suite.tasks, suite.judged, suite.killed, suite.equivalent, suite.invalid) == (
        "s",
        1,
        1,
        1,
        1,
        1,
    )
    assert view.kill_rate == view.kernelbench_kill_rate == 1.0
    assert view.ok


def test_an_unargued_survivor_lowers_the_rate() -> None:
    view = audit_view([audit_row("s", AUDIT, [], [])], 0.97)
    assert view.kill_rate == 0.5
    assert not view.ok
    assert audit_view([audit_row("s", AUDIT, [], [])], 0.5).ok


def test_a_stale_argument_or_an_error_fails_the_audit_whatever_the_rate() -> None:
    good = audit_row("s", AUDIT, ["b"], [])
    assert not audit_view([audit_row("s", AUDIT, ["b"], ["stale"])], 0).ok
    assert not audit_view([good, audit_row("s", TaskAudit(task="u", error="raises"), [], [])], 0).ok


def test_what_is_the_same_as_another_is_not_counted_twice() -> None:
    repeated = audit_row("s", AUDIT.model_copy(update={"task": "u", "same_as": "t"}), [], [])
    assert audit_view([audit_row("s", AUDIT, [], []), repeated], 0).judged == 2


def test_a_killed_mutant_without_a_place_cannot_be_told() -> None:
    with pytest.raises(ValidationError):
        MutantOutcome(mutant="a", fault="removed", outcome="killed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[equivalent]\n", "is not TOML"),
        ("[[equivalent]]\ntask = 't'\nmutant = 'm'\nargument = 'short'\n", "at least 20"),
        ("[[equivalent]]\ntask = 't'\nmutant = 'm'\n", "argument"),
        ("[[equivalent]]\ntask = 't'\nmutant = 'm'\nargument = 'long enough to be an argument'\n" * 2, "argued twice"),
    ],
)
def test_a_malformed_file_of_arguments_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "audit.toml"
    path.write_text(text)
    with pytest.raises(TaskError, match=message) as raised:
        read_equivalents(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def renamed(task: Task, name: str, source: str | None = None) -> Task:
    return task.model_copy(update={"name": name, "source": source or task.source})


def test_the_same_program_under_another_title_is_the_same_content() -> None:
    titled = f'"""Another title."""\n{NORM.source}'
    assert judged_content(renamed(NORM, "u", titled)) == judged_content(NORM)
    assert judged_content(RELU_OF_SOFTMAX) != judged_content(NORM)


def test_results_keep_their_order_whatever_is_done_first() -> None:
    assert list(parallel_map(lambda item: item * 2, range(9), 3)) == list(range(0, 18, 2))
