"""A Coder and a Judge that are whatever answers a prompt: a model, a person, another agent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kernelforge.agents.base import Brief, CoderReply, CoderRequest, JudgeReply
from kernelforge.agents.prompts import coder_prompt, judge_prompt
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError
from kernelforge.records import Attempt, Finding, Message, Verdict

MAX_FINDING_CHARS = 32_768
"""How much of the end of a Judge's reply is searched for its finding."""


class Answerer(Protocol):
    """Something that answers prompts."""

    def ask(self, agent: str, task: str, prompt: str, check: Callable[[str], None]) -> str:
        """The reply to ``prompt``. ``check`` raises :class:`CandidateError` on a reply that cannot be used; an answerer
        that can, asks again with the error, a few times, and then gives the last reply as it is."""
        ...


class PromptedCoder:
    """A Coder behind an answerer. ``name`` is the provider as the CLI spells it."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def propose(self, request: CoderRequest) -> CoderReply:
        """Ask for a candidate. A reply that still cannot be read is handed on: its verdict will say why."""
        prompt = coder_prompt(request)
        text = self._answerer.ask("coder", request.brief.task.name, prompt, _check_candidate)
        return CoderReply(text, _kept("coder", self.name, prompt, text))


class PromptedJudge:
    """A Judge behind an answerer."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def assess(self, brief: Brief, parent: Attempt, history: Sequence[Attempt]) -> JudgeReply:
        """Ask for a finding. A reply that still cannot be read becomes a finding that ends the task, and says so."""
        prompt = judge_prompt(brief, parent, history)
        correct = parent.evaluation.verdict is Verdict.OK

        def check(text: str) -> None:
            parse_finding(text, optimise=correct)

        text = self._answerer.ask("judge", brief.task.name, prompt, check)
        try:
            finding = parse_finding(text, optimise=correct)
        except CandidateError as error:
            finding = Finding(
                kind="stop", headline="the Judge gave no usable finding", why=str(error), action="stop here"
            )
        return JudgeReply(finding, _kept("judge", self.name, prompt, text))


def _check_candidate(text: str) -> None:
    parse_reply(text)


def _kept(agent: str, provider: str, prompt: str, reply: str) -> tuple[Message, Message]:
    who = "coder" if agent == "coder" else "judge"
    return (
        Message(agent=who, role="prompt", provider=provider, content=prompt),
        Message(agent=who, role="reply", provider=provider, content=reply),
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


# Names go into later prompts as they are, so they hold nothing but a name.
MetricName = Annotated[str, Field(pattern=r"^\+?[A-Za-z]\w*(\.\w+)*$", max_length=120)]


class _Optimise(_Strict):
    bottleneck: str = Field(min_length=1, max_length=600)
    method: str = Field(min_length=1, max_length=600)
    plan: str = Field(min_length=1, max_length=600)
    metrics: tuple[MetricName, ...] = Field(default=(), max_length=8)


class _Repair(_Strict):
    critical_issue: str = Field(min_length=1, max_length=600)
    why_it_matters: str = Field(min_length=1, max_length=600)
    minimal_fix: str = Field(min_length=1, max_length=600)


class _Stop(_Strict):
    stop: str = Field(min_length=1, max_length=600)


def parse_finding(text: str, *, optimise: bool) -> Finding:
    """Read a Judge's reply: the last JSON object in it, of the form that its prompt asked for.

    Raises:
        CandidateError: there is none, or it has other keys; the message says what is wanted.
    """
    # A finding is short. Looking for one costs the square of the text's length, so a long reply counts by its end.
    raw = _last_object(text[-MAX_FINDING_CHARS:])
    wanted = (
        '"bottleneck", "method", "plan" and "metrics"'
        if optimise
        else '"critical_issue", "why_it_matters", "minimal_fix"'
    )
    if raw is None:
        raise CandidateError(f"the reply holds no JSON object; give one in a ```json block with the keys {wanted}")
    try:
        if optimise and "stop" in raw:
            stop = _Stop.model_validate(raw)
            return Finding(kind="stop", headline=stop.stop, why="the Judge says so", action="stop here")
        if optimise:
            found = _Optimise.model_validate(raw)
            return Finding(
                kind="optimise", headline=found.bottleneck, why=found.method, action=found.plan, metrics=found.metrics
            )
        issue = _Repair.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CandidateError(
            f"the JSON object is not the one asked for ({place}: {first['msg']}); its keys are {wanted}"
        ) from error
    return Finding(kind="repair", headline=issue.critical_issue, why=issue.why_it_matters, action=issue.minimal_fix)


def _last_object(text: str) -> dict[str, object] | None:
    """The last top-level JSON object in a text."""
    decoder, found, at = json.JSONDecoder(), None, 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(value, dict):
            found = value
        at = end
    return found
