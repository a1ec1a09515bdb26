"""A Coder and a Judge that are whatever answers a prompt: a model, a person, another agent."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelforge.agents.base import CoderReply, CoderRequest, JudgeReply, JudgeRequest
from kernelforge.agents.json_reply import last_object
from kernelforge.agents.prompts import check_three_parts, coder_prompt, coder_prompt_name, judge_prompt
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError
from kernelforge.llm.base import Answerer, Question
from kernelforge.records import Finding, Verdict


class PromptedCoder:
    """A Coder behind an answerer. ``name`` is the provider as the CLI spells it."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def propose(self, request: CoderRequest) -> CoderReply:
        """Ask for a candidate. A reply that still cannot be read is handed on: its verdict will say why."""
        check = _check_contrast if coder_prompt_name(request) == "contrast" else _check_candidate
        question = Question("coder", request.brief.task.name, coder_prompt(request), check, sample=request.sample)
        answer = self._answerer.ask(question)
        return CoderReply(answer.text, answer.messages)


class PromptedJudge:
    """A Judge behind an answerer."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def assess(self, request: JudgeRequest) -> JudgeReply:
        """Ask for a finding. A reply that still cannot be read becomes a finding that ends the task, and says so."""
        correct = request.parent.evaluation.verdict is Verdict.OK

        def check(text: str) -> None:
            parse_finding(text, optimise=correct)

        schema = OptimiseReply if correct else RepairReply
        answer = self._answerer.ask(Question("judge", request.brief.task.name, judge_prompt(request), check, schema))
        try:
            finding = parse_finding(answer.text, optimise=correct)
        except CandidateError as error:
            finding = Finding(
                kind="stop", headline="the Judge gave no usable finding", why=str(error), action="stop here"
            )
        return JudgeReply(finding, answer.messages)


def _check_candidate(text: str) -> None:
    parse_reply(text)


def _check_contrast(text: str) -> None:
    check_three_parts(text)
    parse_reply(text)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, data: object) -> object:
        """Structured output makes a model give every key: one with nothing to say is null or blank."""
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if value is not None and str(value).strip()}


# Names go into later prompts as they are, so they hold nothing but a name.
MetricName = Annotated[str, Field(pattern=r"^\+?[A-Za-z]\w*(\.\w+)*$", max_length=120)]


class OptimiseReply(_Strict):
    """A Judge's reply about a correct candidate; ``stop`` alone when nothing is left to gain."""

    bottleneck: str | None = Field(default=None, min_length=1, max_length=600)
    method: str | None = Field(default=None, min_length=1, max_length=600)
    plan: str | None = Field(default=None, min_length=1, max_length=600)
    metrics: tuple[MetricName, ...] = Field(default=(), max_length=8)
    stop: str | None = Field(default=None, min_length=1, max_length=600)

    @model_validator(mode="after")
    def _one_of_both(self) -> OptimiseReply:
        missing = [name for name in ("bottleneck", "method", "plan") if getattr(self, name) is None]
        if self.stop is None and missing:
            raise ValueError(f"{missing[0]} is missing, and so is stop")
        return self


class RepairReply(_Strict):
    """A Judge's reply about a candidate that failed."""

    critical_issue: str = Field(min_length=1, max_length=600)
    why_it_matters: str = Field(min_length=1, max_length=600)
    minimal_fix: str = Field(min_length=1, max_length=600)


def parse_finding(text: str, *, optimise: bool) -> Finding:
    """Read a Judge's reply: the last JSON object in it, of the form that its prompt asked for.

    Raises:
        CandidateError: there is none, or it has other keys; the message says what is wanted.
    """
    raw = last_object(text)
    wanted = (
        '"bottleneck", "method", "plan" and "metrics"'
        if optimise
        else '"critical_issue", "why_it_matters", "minimal_fix"'
    )
    if raw is None:
        raise CandidateError(f"the reply holds no JSON object; give one in a ```json block with the keys {wanted}")
    try:
        if optimise:
            found = OptimiseReply.model_validate(raw)
            if found.stop is not None:
                return Finding(kind="stop", headline=found.stop, why="the Judge says so", action="stop here")
            return Finding(
                kind="optimise",
                headline=found.bottleneck or "",
                why=found.method or "",
                action=found.plan or "",
                metrics=found.metrics,
            )
        issue = RepairReply.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CandidateError(
            f"the JSON object is not the one asked for ({place}: {first['msg']}); its keys are {wanted}"
        ) from error
    return Finding(kind="repair", headline=issue.critical_issue, why=issue.why_it_matters, action=issue.minimal_fix)
