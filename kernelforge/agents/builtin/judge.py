"""The built-in Judge: reads an evaluation and a profile, and returns exactly one finding.

A candidate of the built-in Coder is judged by the moves that it has not taken: those whose counters show something to
gain, in a fixed order. Any other candidate is judged by :func:`~kernelforge.agents.diagnosis.diagnose.diagnose`, and so
is a built-in one that has no move left, when another agent may answer. A failed candidate gets the issue behind its
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelforge.agents.base import BUILTIN, JudgeReply, JudgeRequest
from kernelforge.agents.builtin.advice import ADVICE, advise
from kernelforge.agents.builtin.coder import applicable_designs
from kernelforge.agents.builtin.design import Design
from kernelforge.agents.builtin.transformations import RULES
from kernelforge.agents.diagnosis.diagnose import Diagnosis, diagnose
from kernelforge.agents.diagnosis.floor import reason_to_go_on
from kernelforge.agents.prompts import judge_prompt
from kernelforge.agents.reply_forms import write_finding
from kernelforge.errors import UnsupportedError
from kernelforge.records import Attempt, Finding, Message, Operator, Origin, Profile, Verdict, eager_launches


class BuiltinJudge:
    """A Judge without a model."""

    name = BUILTIN

    def find(self, request: JudgeRequest) -> Finding:
        """The one issue to fix, the ``rank``-th improvement, or a ``stop`` when nothing is left."""
        correct = request.parent.evaluation.verdict is Verdict.OK
        return _optimise(request) if correct else advise(request.parent)

    def assess(self, request: JudgeRequest) -> JudgeReply:
        """One finding on the parent, with the prompt that a model would have been given."""
        finding = self.find(request)
        messages = (
            Message(agent="judge", role="prompt", provider=self.name, content=judge_prompt(request).text),
            Message(agent="judge", role="reply", provider=self.name, content=write_finding(finding)),
        )
        return JudgeReply(finding, messages)


def _optimise(request: JudgeRequest) -> Finding:
    parent = request.parent
    profile = parent.profile
    if profile is None:
        return _stop("the candidate has no profile to judge by", "bottlenecks are found by counters")
    design = Design.of(parent.candidate.source) if parent.candidate is not None else None
    findings: list[Finding] = []
    if design is not None:
        try:
            findings = _by_moves(request, profile, design)
        except UnsupportedError as error:
            return _stop("the built-in Judge cannot read the reference", str(error))
    if design is None or (len(findings) < request.rank and _others_answer(request.history)):
        findings += _by_diagnosis(request, profile)
    if request.rank <= len(findings):
        return findings[request.rank - 1]
    return _nothing_left(profile, request.history, findings)


def _by_moves(request: JudgeRequest, profile: Profile, design: Design) -> list[Finding]:
    """Moves of the built-in Coder that should pay, in the order they are looked at."""
    options, failed = applicable_designs(request.brief, design), failed_moves(request.history)
    findings = []
    for move, look in RULES.items():
        evidence = look(profile) if move in options and move not in failed else None
        if evidence is not None:
            advice = ADVICE.moves[move]
            findings.append(
                Finding(
                    kind="optimise", headline=evidence.headline, why=evidence.why, action=advice.action, move=move,
                    metrics=evidence.metrics, bottleneck=evidence.bottleneck or advice.bottleneck,
                )
            )  # fmt: skip
    return findings


def _by_diagnosis(request: JudgeRequest, profile: Profile) -> list[Finding]:
    """Findings by the profile, which fit any candidate: the most costly first, without those tried in vain."""
    parent, failed = request.parent, failed_bottlenecks(request.history, request.parent)
    facts = next((item for item in request.brief.facts.sizes if item.size == profile.size), None)
    eager = eager_launches(parent.evaluation.performance)
    diagnoses = diagnose(profile, parent.evaluation.build, facts, request.brief.spec, eager)
    untried = [item for item in diagnoses if item.bottleneck not in failed]
    faults = [item for item in untried if item.curable]
    # A hardware limit can be worked on too, but for a candidate that is near the floor.
    named = faults or (untried[:1] if reason_to_go_on(request.brief, parent) else [])
    measured = profile.roofline.time_origin is Origin.MEASURED
    return [finding_of(item, measured) for item in named]


def finding_of(diagnosis: Diagnosis, measured: bool = False) -> Finding:
    """A diagnosis as the Judge puts it, with the standard remedy."""
    remedy = ADVICE.remedies[diagnosis.bottleneck]
    where = f" in kernel {diagnosis.kernel}" if diagnosis.kernel else ""
    time = "the time that measured counters and public figures explain" if measured else "the modelled time"
    return Finding(
        kind="optimise",
        headline=f"{diagnosis.bottleneck}: {remedy.headline}{where}",
        why=f"{diagnosis.evidence}; about {diagnosis.share:.0%} of {time}",
        action=remedy.action,
        metrics=diagnosis.metrics,
        bottleneck=diagnosis.bottleneck,
    )


def _others_answer(history: Sequence[Attempt]) -> bool:
    """Whether a Coder other than the built-in one writes candidates for this task."""
    return any(attempt.coder not in ("", BUILTIN) for attempt in history)


def failed_moves(history: Sequence[Attempt]) -> set[str]:
    """Moves whose attempts did not become the best, repaired or not."""
    return {
        past.finding.move for past in _failed(history) if past.finding is not None and past.finding.move is not None
    }


def failed_bottlenecks(history: Sequence[Attempt], parent: Attempt) -> set[str]:
    """Bottlenecks that were worked on from this parent without gain."""
    return {
        past.finding.bottleneck
        for past in _failed(history)
        if past.finding is not None and past.finding.bottleneck is not None and past.parent == parent.id
    }


def _failed(history: Sequence[Attempt]) -> list[Attempt]:
    """Attempts that answered a finding in vain; not those that no GPU measured."""
    tried = [attempt for attempt in history if attempt.operator is Operator.OPTIMISE and not attempt.accepted]
    return [attempt for attempt in tried if not attempt.evaluation.passed_over]


def _nothing_left(profile: Profile, history: Sequence[Attempt], findings: Sequence[Finding]) -> Finding:
    ratio = profile.roofline.dram_bytes / max(profile.roofline.compulsory_bytes, 1)
    failed = sorted(failed_moves(history))
    untold = f"; tried without gain: {', '.join(failed)}" if failed else ""
    return _stop(
        f"only {len(findings)} things are left to gain" if findings else "nothing that is left would pay",
        f"DRAM traffic is {ratio:.2f}x the compulsory bytes, the bound is {profile.roofline.bound}{untold}",
    )


def _stop(headline: str, why: str) -> Finding:
    return Finding(kind="stop", headline=headline, why=why, action="stop here")
