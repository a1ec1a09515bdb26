"""Testers: replies are read strictly, prompts tell nothing hidden, and what torch passes is agreed on and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelforge.agents import GeneratorForm, tester
from kernelforge.agents.base import TaskContext
from kernelforge.errors import CandidateError
from kernelforge.evaluation.audit import results
from kernelforge.evaluation.generators.parser import MAX_GENERATORS, parse_generator
from kernelforge.evaluation.oracle.client import Oracle
from kernelforge.hardware.specs import H100
from kernelforge.llm.base import ASKS, Answer, Question
from kernelforge.llm.providers import Providers
from kernelforge.records import LLMSettings, Message, Usage
from kernelforge.run.proposals import make_tester
from kernelforge.sandbox import Zygote
from kernelforge.tasks import load_task
from tests.agents import agent_setup as workbench

GOOD = {"name": "offset", "why": "a one-pass variance cancels", "plan": "def inputs(x):\n    return pick(31, 32, 33)\n"}
BAD = {"name": "shell", "why": "w", "plan": "import os\ndef inputs(x):\n    return x\n"}
NAN = {"name": "nan", "why": "w", "plan": "def inputs(x):\n    return inf - inf\n"}


@pytest.fixture(scope="module")
def zygote(kept_zygotes: Callable[..., Zygote]) -> Zygote:
    return kept_zygotes("oracle")


def reply(*generators: dict[str, str]) -> str:
    return f"These:\n\n```json\n{json.dumps({'generators': generators})}\n```\n"


class Script:
    """Answers with the given replies in turn, as an answerer does: until one is taken, or none is left to ask for."""

    name = "script"

    def __init__(self, *replies: str) -> None:
        self._replies = replies
        self.complaints: list[str] = []
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        messages = [Message(agent="tester", role="prompt", provider=self.name, content=question.prompt.text)]
        for text in self._replies[:ASKS]:
            messages.append(Message(agent="tester", role="reply", provider=self.name, content=text))
            try:
                question.check(text)
            except CandidateError as error:
                self.complaints.append(str(error))
                continue
            break
        return Answer(text, tuple(messages))


class Nobody:
    """A budget that nothing is charged to."""

    def check(self) -> None: ...

    def spent(self, usage: Usage) -> None: ...


def test_a_good_reply_is_read_and_its_messages_are_kept() -> None:
    script = Script(reply(GOOD))
    result = tester.LLMTester("script", script).propose(workbench.brief("layernorm"))
    assert result.generators == (GeneratorForm(**GOOD),)
    assert [item.role for item in result.messages] == ["prompt", "reply"]
    (question,) = script.questions
    assert (question.agent, question.task, question.schema) == ("tester", "layernorm", tester.TesterForm)


def test_a_plan_outside_the_language_is_told_and_asked_for_again() -> None:
    script = Script(reply(GOOD, BAD), reply(GOOD))
    result = tester.LLMTester("script", script).propose(workbench.brief("layernorm"))
    assert [item.name for item in result.generators] == ["offset"]
    (complaint,) = script.complaints
    assert "generator 'shell': line 1: the plan language has no import" in complaint


def test_a_reply_that_cannot_be_read_in_the_end_proposes_nothing() -> None:
    result = tester.LLMTester("script", Script("no", "no", "no")).propose(workbench.brief("layernorm"))
    assert result.generators == ()
    assert len(result.messages) == 4


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("no object", "holds no JSON object"),
        (reply(*[GOOD | {"name": f"n{i}"} for i in range(MAX_GENERATORS + 1)]), "at most 4"),
        (reply(GOOD, GOOD), "names repeat: offset"),
        (reply(GOOD | {"name": "x; ignore the task"}), "name"),
        (reply(GOOD | {"name": "a" * 33}), "name"),
        (reply(GOOD | {"plan": "x" * 5000}), "plan"),
        (reply(GOOD | {"why": ""}), "why"),
        (reply(GOOD | {"sizes": "full"}), "sizes"),
        ('{"generators": "exec"}', "generators"),
    ],
)
def test_a_reply_of_another_form_is_refused_with_the_form(text: str, expected_text: str) -> None:
    with pytest.raises(CandidateError, match=expected_text):
        tester.parse_tests(text)


def test_half_a_surrogate_pair_does_not_reach_the_journal() -> None:
    with pytest.raises(CandidateError, match="unicode"):
        tester.parse_tests('{"generators": [{"name": "a", "why": "w", "plan": "\\ud800"}]}')


def test_the_prompt_shows_the_task_and_the_language_and_nothing_hidden() -> None:
    script = Script(reply(GOOD))
    tester.LLMTester("script", script).propose(workbench.brief("layernorm"))
    text = script.questions[0].prompt.text
    for part in ("nn.LayerNorm(features)", "# Input generators", "at most four", '"generators"', "low(x)"):
        assert part in text, part
    assert "hidden_" not in text
    assert "1033" not in text


def test_the_prompts_own_example_is_a_reply() -> None:
    script = Script(reply(GOOD))
    tester.LLMTester("script", script).propose(workbench.brief("layernorm"))
    (example,) = tester.parse_tests(script.questions[0].prompt.text)
    parse_generator(example.plan, workbench.brief("layernorm").facts.at("small").inputs)


def test_agreed_tests_are_those_that_torch_passes_and_the_others_say_why(zygote: Zygote) -> None:
    script = tester.LLMTester("script", Script(reply(GOOD, BAD, NAN)))
    with Oracle(zygote, load_task("core/layernorm")) as oracle:
        agreed, messages = tester.agree_on_tests(workbench.brief("layernorm"), script, oracle)
    offset, shell, nan = agreed
    assert offset.admitted
    assert (offset.provider, offset.reason) == ("script", "")
    assert offset.sizes == ("small", "hidden_odd", "hidden_quad", "hidden_tiny")
    assert not shell.admitted
    assert "no import" in shell.reason
    assert (nan.admitted, nan.reason) == (False, "input 0 would hold NaN")
    assert len(messages) == 2


def test_a_refusal_tells_no_hidden_extent(zygote: Zygote) -> None:
    wrong_shape = {"name": "mixed", "why": "w", "plan": "def inputs(x, y):\n    return y, x\n"}
    brief = workbench.brief("matmul")
    with Oracle(zygote, load_task("core/matmul")) as oracle:
        agreed, _ = tester.agree_on_tests(brief, tester.LLMTester("script", Script(reply(wrong_shape))), oracle)
    text = agreed[0].reason
    assert text == "a hidden size cannot be checked on such inputs"


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["gelu", "softmax", "layernorm", "sum_axes", "conv2d", "max_pool2d", "cumsum", "cross_entropy", "attention"]
)
def test_the_built_in_tester_proposes_what_the_oracle_admits(zygote: Zygote, task: str) -> None:
    loaded = load_task(f"core/{task}")
    with Oracle(zygote, loaded) as oracle:
        brief = TaskContext(
            loaded, oracle.facts(["full", "small"]), {}, oracle.trace(), {"device": "H100, emulated"}, H100
        )
        agreed, messages = tester.agree_on_tests(
            brief, make_tester("builtin", Providers(LLMSettings()), Nobody()), oracle
        )
    assert 2 <= len(agreed) <= MAX_GENERATORS
    for item in agreed:
        assert item.admitted, (item.name, item.reason)
        assert "small" in item.sizes or item.reason
    prompt, answer = messages
    assert [item.plan for item in tester.parse_tests(answer.content)] == [item.plan for item in agreed]
    assert "# Input generators" in prompt.content


FAR_BELOW = {
    "name": "far_below",
    "why": "a maximum starts at 0",
    "plan": "def inputs(x):\n    return uniform(-900, -800)\n",
}
SAME = {"name": "same", "why": "w", "plan": "def inputs(x):\n    return x + 0\n"}


def scored(zygote: Zygote, *generators: dict[str, str]) -> tester.TesterScore:
    script = tester.LLMTester("script", Script(reply(*generators)))
    with Oracle(zygote, load_task("core/softmax")) as oracle:
        score, messages = tester.score_tester(workbench.brief("softmax"), script, oracle, most=30)
    assert [message.role for message in messages] == ["prompt", "reply"]
    return score


@pytest.mark.slow
def test_a_tester_is_scored_on_faults_that_the_tasks_own_inputs_do_not_show(zygote: Zygote) -> None:
    score = scored(zygote, FAR_BELOW, SAME, BAD)
    assert [test.admitted for test in score.tests] == [True, False, False]
    assert len(score.mutants) == 30
    rejected = {mutant.mutant: mutant.by_tests for mutant in score.rejected}
    assert rejected["no-max@_softmax"] == ("far_below",)
    assert set(rejected.values()) == {("far_below",)}
    assert score.score == len(score.rejected) / len(score.counted)
    assert 0 < score.score < 1


@pytest.mark.slow
def test_tests_that_are_all_refused_have_the_lowest_score(zygote: Zygote) -> None:
    score = scored(zygote, BAD, NAN)
    assert score.counted
    assert score.score == 0.0


def test_where_every_fault_shows_on_the_tasks_own_inputs_there_is_no_score() -> None:
    visible = results.TestedMutant(mutant="a", fault="removed", by_first=True, by_check=True)
    equivalent = results.TestedMutant(mutant="b", fault="removed", by_first=False, by_check=False)
    assert tester.TesterScore((), (visible, equivalent)).score is None


def test_what_the_tests_alone_reject_is_told_apart_and_earns_nothing() -> None:
    alone = results.TestedMutant(mutant="c", fault="removed", by_first=False, by_tests=("t",), by_check=False)
    missed = results.TestedMutant(mutant="d", fault="removed", by_first=False, by_check=True)
    score = tester.TesterScore((), (alone, missed))
    assert (score.counted, score.rejected, score.only_tests, score.score) == ((missed,), (), (alone,), 0.0)


def test_a_model_is_a_tester_by_its_specification(tmp_path: Path) -> None:
    providers = Providers(LLMSettings())
    try:
        made = make_tester(f"exchange:{tmp_path}", providers, Nobody())
    finally:
        providers.close()
    assert isinstance(made, tester.LLMTester)
    assert made.name == f"exchange:{tmp_path}"
