"""The Tester: asks a provider for further test inputs; torch must pass them before they are used.

After the Tester of MuSL (QiMeng-MuPa), which writes tests together with the programs that it checks. Here a test is a
restricted plan for inputs alone; what must come out of them is the oracle's business, so a wrong test cannot exist.

What tests are worth is measured by mutation: references with one fault in them, which the task's own inputs do not
show. A Tester's score is the share of these that its tests reject.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernelforge.agents.base import GeneratorForm, TaskContext, Tester, TesterReply
from kernelforge.agents.prompting.render import shipped_page
from kernelforge.agents.prompts import tester_prompt
from kernelforge.agents.reply_forms import read_form
from kernelforge.errors import CandidateError, PlanError, SandboxError
from kernelforge.evaluation.audit.results import MOST_MUTANTS, TestedMutant
from kernelforge.evaluation.evaluator import TaskOracle
from kernelforge.evaluation.generators.parser import MAX_GENERATORS, parse_generator
from kernelforge.evaluation.oracle.client import GeneratorFinding, MutantTest, Oracle
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import InputGenerator, Message, Task, TensorSpec

_log = logging.getLogger(__name__)


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
    inputs = brief.facts.at("small").inputs
    return try_tests(reply.generators, tester.name, brief.task, inputs, oracle), reply.messages


@dataclass(frozen=True)
class TesterScore:
    """Score of a Tester's tests: the mutants of a task that they reject, of those that need other inputs."""

    tests: tuple[InputGenerator, ...]
    """Those proposed; the admitted ones are scored."""
    mutants: tuple[TestedMutant, ...]

    @property
    def counted(self) -> tuple[TestedMutant, ...]:
        """Mutants that the task's own inputs do not reject, and the check's other families do."""
        return tuple(mutant for mutant in self.mutants if mutant.by_check and not mutant.by_first)

    @property
    def rejected(self) -> tuple[TestedMutant, ...]:
        """Mutants of :attr:`counted` that the tests reject."""
        return tuple(mutant for mutant in self.counted if mutant.by_tests)

    def rejected_by(self, name: str) -> int:
        """Number of mutants of :attr:`rejected` that one test rejects."""
        return sum(name in mutant.by_tests for mutant in self.rejected)

    @property
    def only_tests(self) -> tuple[TestedMutant, ...]:
        """Mutants that the tests alone reject: a gap in the check, or inputs on which a correct kernel may differ."""
        return tuple(mutant for mutant in self.mutants if mutant.by_tests and not mutant.by_check)

    @property
    def score(self) -> float | None:
        """Share of :attr:`counted` that the tests reject; None where there are no such mutants."""
        return len(self.rejected) / len(self.counted) if self.counted else None


def score_tester(
    brief: TaskContext, tester: Tester, oracle: Oracle, most: int = MOST_MUTANTS
) -> tuple[TesterScore, tuple[Message, ...]]:
    """Ask a Tester for generators, and score them on mutants of the task.

    Args:
        brief: what the Tester may know of the task.
        tester: who proposes.
        oracle: the task's own.
        most: how many mutants are run at most.

    Returns:
        The score, and what was said.

    Raises:
        BudgetExhausted: a budget is spent.
        ProviderError: the Tester cannot be asked.
        TaskError: the reference cannot be run or judged.
    """
    tests, messages = agree_on_tests(brief, tester, oracle)
    return score_tests(tests, brief.facts.at("small").inputs, oracle, most), messages


def score_tests(
    tests: Sequence[InputGenerator],
    inputs: Sequence[TensorSpec | int | float | bool | None],
    oracle: Oracle,
    most: int = MOST_MUTANTS,
) -> TesterScore:
    """Score generators that were tried already on at most ``most`` mutants of the oracle's task.

    Args:
        tests: as :func:`try_tests` gives them.
        inputs: specs of the task's inputs at the size ``small``.
        oracle: the task's own.
        most: how many mutants are run at most.

    Raises:
        TaskError: the reference cannot be run or judged.
    """
    admitted = [
        MutantTest(test.name, parse_generator(test.plan, inputs), test.sizes) for test in tests if test.admitted
    ]
    return TesterScore(tuple(tests), oracle.tested_mutants(most, admitted))


def try_tests(
    proposed: Sequence[GeneratorForm],
    provider: str,
    task: Task,
    inputs: Sequence[TensorSpec | int | float | bool | None],
    oracle: TaskOracle,
) -> tuple[InputGenerator, ...]:
    """Try generators at every size but ``full``: each with the sizes where torch passes, or the reason why at none.

    Args:
        proposed: generators; at most :data:`MAX_GENERATORS` are tried.
        provider: who proposed them.
        task: the oracle's.
        inputs: specs of the task's inputs at the size ``small``.
        oracle: the task's own.
    """
    return tuple(_try(each, provider, task, inputs, oracle) for each in proposed[:MAX_GENERATORS])


def _try(
    proposed: GeneratorForm,
    provider: str,
    task: Task,
    inputs: Sequence[TensorSpec | int | float | bool | None],
    oracle: TaskOracle,
) -> InputGenerator:
    sizes = [size.name for size in task.sizes if size.name != "full"]
    reason, passed = "", tuple[str, ...]()
    try:
        recipe = parse_generator(proposed.plan, inputs)
        outcomes = oracle.try_generator(proposed.name, recipe, sizes)
    except PlanError as error:
        reason = str(error)
    except SandboxError as error:
        # Its text may be of a hidden size: all are tried by one request.
        _log.info("generator %s of task %s: %s", proposed.name, task.name, error)
        reason = "the reference did not survive such inputs"
    else:
        passed = tuple(outcome.size for outcome in outcomes if outcome.ok)
        reason = _refusal(outcomes, task)
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
