"""Coder and Judge that send prompts to a provider: a model, a person or another agent."""

from __future__ import annotations

from difflib import get_close_matches

from kernelforge.agents.base import CoderRequest, JudgeReply, JudgeRequest
from kernelforge.agents.diagnosis.floor import reason_to_go_on
from kernelforge.agents.prompting.profiles import seen
from kernelforge.agents.prompts import (
    check_three_parts,
    coder_prompt,
    coder_prompt_name,
    judge_prompt,
    requested_sections,
)
from kernelforge.agents.reply_forms import OptimiseReply, RepairReply, parse_finding
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError
from kernelforge.llm.base import Answer, Answerer, Question
from kernelforge.records import Finding, Verdict


class LLMCoder:
    """A Coder behind an answerer. ``name`` is the provider as the CLI spells it."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def propose(self, request: CoderRequest) -> Answer:
        """Ask for a candidate. A reply that still cannot be read is handed on: its verdict will say why.

        A reply may ask for sections of the launch plan's page instead, which takes one of its tries.
        """
        in_parts = coder_prompt_name(request) == "contrast"

        def check(text: str) -> None:
            sections = requested_sections(text, request.brief)
            if sections:
                raise CandidateError(f"It asks for sections of the launch plan's page. Here they are:\n\n{sections}")
            if in_parts:
                check_three_parts(text)
            parse_reply(text, request.brief.language)

        question = Question("coder", request.brief.task.name, coder_prompt(request), check, sample=request.sample)
        return self._answerer.ask(question)


class LLMJudge:
    """A Judge behind an answerer."""

    def __init__(self, name: str, answerer: Answerer) -> None:
        self.name = name
        self._answerer = answerer

    def assess(self, request: JudgeRequest) -> JudgeReply:
        """Ask for a finding. A reply that still cannot be read is no finding."""
        correct = request.parent.evaluation.verdict is Verdict.OK

        def check(text: str) -> None:
            finding = parse_finding(text, optimise=correct)
            _check_metrics(finding, request)
            _check_stop(finding, request)

        schema = OptimiseReply if correct else RepairReply
        answer = self._answerer.ask(Question("judge", request.brief.task.name, judge_prompt(request), check, schema))
        finding: Finding | None
        try:
            finding = parse_finding(answer.text, optimise=correct)
        except CandidateError:
            # What was wrong with it is among the messages.
            finding = None
        return JudgeReply(finding, answer.messages)


def _check_stop(finding: Finding, request: JudgeRequest) -> None:
    """See that a Judge says ``stop`` near the floor only.

    Raises:
        CandidateError: the best candidate is further from it; the message says how far.
    """
    reason = reason_to_go_on(request.brief, request.best or request.parent) if finding.kind == "stop" else ""
    if reason:
        raise CandidateError(f"it is too early to stop: {reason}. Name its next bottleneck")


def _check_metrics(finding: Finding, request: JudgeRequest) -> None:
    """See that the profile has every metric that a finding names.

    Raises:
        CandidateError: it lacks one; the message says which is the nearest.
    """
    profile = request.parent.profile
    if profile is None or request.sight.metrics == "none":
        return
    names = [metric.name for metric in (*profile.metrics, *seen(profile, request.sight))]
    for name in (name.removeprefix("+") for name in finding.metrics):
        if name not in names:
            alike = get_close_matches(name, names, 1, 0.5)
            nearest = f"; the nearest is {alike[0]}" if alike else ""
            raise CandidateError(f"the profile has no metric {name!r}{nearest}. Name metrics that are in its table")
