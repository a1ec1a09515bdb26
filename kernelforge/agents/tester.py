"""The Tester: asks a provider for further test inputs; torch must pass them before they are used.

After the Tester of MuSL (QiMeng-MuPa), which writes tests together with the programs that it checks. Here a test is a
restricted plan for inputs alone; what must come out of them is the oracle's business, so a wrong test cannot exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernelforge.agents.base import GeneratorForm, TaskContext, Tester, TesterReply
from kernelforge.agents.prompting.render import shipped_page
from kernelforge.agents.prompts import tester_prompt
from kernelforge.agents.reply_forms import read_form
from kernelforge.errors import CandidateError, PlanError, SandboxError
from kernelforge.evaluation.evaluator import TaskOracle
from kernelforge.evaluation.generators.parser import MAX_GENERATORS, parse_generator
from kernelforge.evaluation.oracle.client import GeneratorFinding
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import InputGenerator, Message, Task


class TesterForm(BaseModel):
    """A Tester's reply."""

    model_config = ConfigDict(extra="forbid")

    generators: tuple[GeneratorForm, ...] = Field(max_length=MAX_GENERATORS)

    @model_validator(mode="after")
    def _each_name_once(self) -> TesterForm:
        names = [generator.name for generator in self.generators]
        if len(set(names)) != len(names):
            raise ValueError(f"names repeat: {', '.join(names)}")
        return self


class LLMTester:
    """A Tester behind an answerer."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def propose(self, brief: TaskContext) -> TesterReply:
        """Ask for generators. A reply that still cannot be read proposes none."""

        def check(text: str) -> None:
            for proposed in parse_tests(text):
                _check_plan(proposed, brief)

        prompt = tester_prompt(brief, generator_page())
        answer = self._answerer.ask(Question("tester", brief.task.name, prompt, check, TesterForm))
        try:
            return TesterReply(parse_tests(answer.text), answer.messages)
        except CandidateError:
            return TesterReply((), answer.messages)


def parse_tests(text: str) -> tuple[GeneratorForm, ...]:
    """Read a Tester's reply: the last JSON object in it. The plans are not read yet.

    Raises:
        CandidateError: there is none, or it has another form.
    """
    expected = 'of the form {"generators": [{"name": "...", "why": "...", "plan": "def inputs(...): ..."}]}'
    return read_form(TesterForm, text, expected).generators


def _check_plan(proposed: GeneratorForm, brief: TaskContext) -> None:
    try:
        parse_generator(proposed.plan, brief.facts.at("small").inputs)
    except PlanError as error:
        raise CandidateError(f"generator {proposed.name!r}: {error}") from error


def agree_on_tests(
    brief: TaskContext, tester: Tester, oracle: TaskOracle
) -> tuple[tuple[InputGenerator, ...], tuple[Message, ...]]:
    """Ask a Tester for generators and keep those that torch passes.

    Done once for a task, before its first attempt; give the result to ``Evaluator.use_generators`` (or
    ``EvaluatorPool.evaluator``), and to the journal. Those refused are among the result, each with the reason.

    Args:
        brief: what the Tester may know of the task.
        tester: who proposes.
        oracle: the task's own; it tries each generator at every size but ``full``.

    Returns:
        The generators, and what was said.

    Raises:
        BudgetExhausted: a budget is spent, or the run is to stop.
        ProviderError: the Tester cannot be asked.
    """
    reply = tester.propose(brief)
    tried = tuple(_try(proposed, tester.name, brief, oracle) for proposed in reply.generators[:MAX_GENERATORS])
    return tried, reply.messages


def _try(proposed: GeneratorForm, provider: str, brief: TaskContext, oracle: TaskOracle) -> InputGenerator:
    sizes = [size.name for size in brief.task.sizes if size.name != "full"]
    reason, passed = "", tuple[str, ...]()
    try:
        recipe = parse_generator(proposed.plan, brief.facts.at("small").inputs)
        outcomes = oracle.try_generator(proposed.name, recipe, sizes)
    except PlanError as error:
        reason = str(error)
    except SandboxError as error:
        reason = f"the reference did not survive such inputs: {error}"
    else:
        passed = tuple(outcome.size for outcome in outcomes if outcome.ok)
        reason = _refusal(outcomes, brief.task)
    return InputGenerator(
        name=proposed.name, plan=proposed.plan, provider=provider, admitted=bool(passed), reason=reason, sizes=passed
    )


def _refusal(outcomes: Sequence[GeneratorFinding], task: Task) -> str:
    """Reasons why a generator was not admitted, each once; hidden sizes are not named."""
    refused = [outcome for outcome in outcomes if not outcome.ok]
    reasons = dict.fromkeys(outcome.text for outcome in refused if not task.size(outcome.size).is_hidden)
    if not reasons and refused:
        return "a hidden size cannot be checked on such inputs"
    return "; ".join(reasons)


def generator_page() -> str:
    """The reference page of the generator language, as it ships.

    Raises:
        UsageError: the installation lacks the page.
    """
    return shipped_page("input-generators.md")
