"""``kernelforge prompts`` lists every prompt and renders it for a real task, with attempts that were really made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kernelforge.agents import TaskContext
from kernelforge.agents.prompting.examples import Case, journalled, made_here, render_case
from kernelforge.agents.prompts import PROMPTS
from kernelforge.cli.main import app
from kernelforge.errors import UsageError
from kernelforge.evaluation.evaluator import Evaluator
from kernelforge.evaluation.pool import EvaluatorPool
from kernelforge.llm.rate_limits import estimate_tokens
from kernelforge.records import Operator, Verdict
from kernelforge.run.task_loop import make_task_context
from kernelforge.search.base import ProfileVisibility
from kernelforge.tasks import load_task
from tests.agents import prompt_samples as samples
from tests.support.benchmark_scripts import benchmark_script


@pytest.fixture(scope="module")
def real(workshop: EvaluatorPool) -> Iterator[tuple[TaskContext, Evaluator]]:
    evaluator = workshop.evaluator(load_task("core/softmax"))
    yield make_task_context(evaluator), evaluator
    evaluator.oracle.close()


@pytest.fixture(scope="module")
def failed(real: tuple[TaskContext, Evaluator]) -> Case:
    return made_here("repair", *real)


@pytest.fixture(scope="module")
def correct(real: tuple[TaskContext, Evaluator]) -> Case:
    return made_here("optimise", *real)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["prompts", *arguments])


@pytest.mark.slow
def test_an_example_of_a_failure_really_failed(failed: Case) -> None:
    assert failed.parent is not None
    assert failed.parent.evaluation.verdict is Verdict.BUILD
    assert 'expected a ";"' in render_case("repair", failed).text
    assert 'expected a ";"' in render_case("judge-repair", failed).text


@pytest.mark.slow
def test_an_example_of_an_improvement_has_a_profile_and_a_parent_that_it_was_made_from(correct: Case) -> None:
    assert [item.operator for item in correct.history] == [Operator.SEED, Operator.OPTIMISE]
    assert all(item.evaluation.verdict is Verdict.OK and item.profile for item in correct.history)
    text = render_case("optimise", correct, sight=ProfileVisibility("full")).text
    assert "## What its last change did" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMPTS)
def test_every_prompt_renders_for_a_real_task(name: str, correct: Case, failed: Case) -> None:
    case = failed if name in ("repair", "judge-repair") else correct
    prompt = render_case(name, case)
    assert prompt.text[prompt.stable :].startswith("# Request")
    assert "hidden_" not in prompt.text


@pytest.mark.parametrize(
    ("name", "number", "expected_text"), [("repair", 1, "is correct"), ("optimise", 2, "is WRONG")]
)
def test_a_prompt_refuses_an_attempt_that_it_is_not_about(name: str, number: int, expected_text: str) -> None:
    with pytest.raises(UsageError, match=expected_text):
        render_case(name, journalled(samples.BRIEF, samples.HISTORY, number))


def test_a_journalled_case_knows_nothing_of_what_came_later() -> None:
    case = journalled(samples.BRIEF, samples.HISTORY, 1)
    assert case.history == samples.HISTORY[:2]
    assert case.parent == samples.FAST
    assert case.finding == samples.FAILED.finding
    with pytest.raises(UsageError, match="no attempt 9"):
        journalled(samples.BRIEF, samples.HISTORY, 9)


@pytest.mark.slow
def test_the_list_names_every_prompt() -> None:
    listed = run("list")
    assert listed.exit_code == 0
    assert all(name in listed.stdout for name in PROMPTS)
    assert {row["name"] for row in json.loads(run("list", "--json").stdout)} == set(PROMPTS)


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (("show", "nothing", "--task", "softmax"), "there is no prompt 'nothing'"),
        (("show", "seed"), "name a task with --task"),
        (("show", "seed", "--task", "softmax", "--attempt", "latest/softmax/0"), "names a task already"),
    ],
)
def test_what_cannot_be_shown_is_said(arguments: tuple[str, ...], expected_text: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, UsageError)
    assert expected_text in str(result.exception)


@pytest.mark.slow
def test_a_prompt_is_shown_with_its_lengths(
    real: tuple[TaskContext, Evaluator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rendered = json.loads(run("show", "seed", "--suite", "core", "--task", "softmax", "--json").stdout)
    prompt = render_case("seed", Case(real[0]))
    assert rendered["text"] == prompt.text
    assert (rendered["characters"], rendered["stable_characters"]) == (len(prompt.text), prompt.stable)
    assert 0 < rendered["stable_tokens_estimate"] < rendered["tokens_estimate"] == estimate_tokens(prompt.text)


def test_what_a_plan_uses_is_looked_for_in_a_prompt() -> None:
    script = benchmark_script("prompts")
    plan = """# tune: B = 1 | 2
def forward(x):
    n = x.shape[0] // B
    rows[n, B](x, i32(n), cluster=(2, 1, 1))
    return x
"""
    words = script.used(plan)
    assert words == {"shape", "//", "i32", "cluster"}
    assert script.unnamed(words, "`i32()` and `x.shape`, but no xcluster") == ["//", "cluster"]
