"""Example material for rendering prompts: attempts made by the built-in agents, or stored ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kernelforge.agents.acceptance import make_attempt
from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinCoder, BuiltinJudge
from kernelforge.agents.prompts import (
    PROMPTS,
    coder_prompt,
    judge_prompt,
    reflexion_prompt,
    tester_prompt,
)
from kernelforge.agents.tester import generator_page
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError, UsageError
from kernelforge.evaluation.evaluator import CandidateEvaluator
from kernelforge.llm.base import Prompt
from kernelforge.records import Attempt, Candidate, Finding, Operator, Verdict
from kernelforge.rewards import DEFAULT_POLICY
from kernelforge.search.base import DEFAULT_VISIBILITY, ProfileVisibility, best_attempt

ABOUT_FAILED = frozenset({"repair", "judge-repair"})
ABOUT_CORRECT = frozenset({"optimise", "judge-optimise"})
WITHOUT_ATTEMPTS = frozenset({"seed", "tester"})
SEED = 1
"""Seed of the inputs that examples are checked with; nothing depends on its being secret."""


@dataclass(frozen=True)
class Case:
    """The attempts that a prompt is rendered with."""

    brief: TaskContext
    history: tuple[Attempt, ...] = ()
    parent: Attempt | None = None
    """The attempt that the prompt is about."""
    finding: Finding | None = None
    """The finding of a Judge on it."""


def render_case(
    name: str,
    case: Case,
    *,
    technique: str | None = None,
    sample: int = 0,
    rank: int = 1,
    sight: ProfileVisibility = DEFAULT_VISIBILITY,
    dialogue: bool = False,
) -> Prompt:
    """The prompt of that name, with the settings of its :class:`CoderRequest` or :class:`JudgeRequest`.

    ``dialogue`` is that of :func:`~kernelforge.agents.prompts.coder_prompt`.

    Raises:
        UsageError: there is no such prompt, or it is not about such an attempt.
    """
    kind = PROMPTS[check_name(name)]
    if kind.agent == "tester":
        return tester_prompt(case.brief, generator_page())
    if kind.agent == "reflexion":
        return reflexion_prompt(case.brief, case.history, case.brief.graph.families)
    _check_fits(name, case.parent)
    best = best_attempt(case.history)
    if kind.agent == "judge":
        assert case.parent is not None
        return judge_prompt(JudgeRequest(case.brief, case.parent, case.history, best, rank, sight))
    others = [attempt for attempt in case.history if attempt.candidate is not None and attempt is not case.parent]
    if name == "crossover" and not others:
        raise UsageError("a crossover needs a second attempt with code; name one that has another before it")
    return coder_prompt(
        CoderRequest(
            case.brief,
            Operator(name),
            case.parent,
            case.finding,
            case.history,
            best,
            inspirations=tuple(others[-1:]) if name in ("contrast", "crossover") else (),
            technique=technique,
            sample=sample,
            sight=sight,
        ),
        dialogue=dialogue,
    )


def check_name(name: str) -> str:
    """
    Raises:
        UsageError: there is no prompt of that name; the message lists them.
    """
    if name not in PROMPTS:
        raise UsageError(f"there is no prompt {name!r}; choose one of: {', '.join(PROMPTS)}")
    return name


def _check_fits(name: str, parent: Attempt | None) -> None:
    if name == "seed":
        return
    if parent is None or parent.candidate is None:
        raise UsageError(f"the prompt {name!r} is about an attempt with code; name another with --attempt")
    correct = parent.evaluation.verdict is Verdict.OK
    if name in ABOUT_FAILED and correct:
        raise UsageError(f"the prompt {name!r} is about an attempt that failed, and {parent.id} is correct")
    if name in ABOUT_CORRECT and not correct:
        verdict = parent.evaluation.verdict
        raise UsageError(f"the prompt {name!r} is about a correct attempt, and {parent.id} is {verdict}")


def journalled(brief: TaskContext, attempts: Sequence[Attempt], number: int) -> Case:
    """The case of a journalled attempt: what was known when it had been evaluated, and what was said of it next."""
    history = tuple(attempt for attempt in attempts if attempt.number <= number)
    parent = next((attempt for attempt in history if attempt.number == number), None)
    if parent is None:
        raise UsageError(f"there is no attempt {number} at task {brief.task.name}")
    findings = (attempt.finding for attempt in attempts if attempt.parent == parent.id and attempt.finding is not None)
    return Case(brief, history, parent, next(findings, None))


def made_here(name: str, brief: TaskContext, evaluator: CandidateEvaluator) -> Case:
    """A case for a prompt, made by the built-in agents and evaluated on the spot: seconds per attempt.

    For a prompt about a failure, the seed's code loses its last semicolon.

    Raises:
        UsageError: the built-in Coder cannot write this task.
    """
    if check_name(name) in WITHOUT_ATTEMPTS:
        return Case(brief)
    seed = _proposed(CoderRequest(brief, Operator.SEED, None, None, ()))
    if name in ABOUT_FAILED:
        head, _, tail = seed.source.rpartition(";")
        broken = _evaluated(brief, evaluator, seed.model_copy(update={"source": head + tail}), (), None)
        return Case(brief, (broken,), broken, _judged(brief, (broken,)))
    first = _evaluated(brief, evaluator, seed, (), None)
    finding = _judged(brief, (first,))
    if first.evaluation.verdict is not Verdict.OK or finding is None:
        return Case(brief, (first,), first, finding)
    better = _proposed(CoderRequest(brief, Operator.OPTIMISE, first, finding, (first,), first))
    second = _evaluated(brief, evaluator, better, (first,), finding)
    history = (first, second)
    return Case(brief, history, second, _judged(brief, history))


def _proposed(request: CoderRequest) -> Candidate:
    try:
        return parse_reply(BuiltinCoder().propose(request).text)
    except CandidateError as error:
        raise UsageError(
            f"the built-in Coder cannot write an example for task {request.brief.task.name} ({error}); "
            "name a journalled attempt with --attempt RUN/TASK/NUMBER"
        ) from error


def _judged(brief: TaskContext, history: tuple[Attempt, ...]) -> Finding | None:
    """The finding of the built-in Judge on the last attempt; None when nothing is left to improve."""
    finding = BuiltinJudge().find(JudgeRequest(brief, history[-1], history))
    return None if finding.kind == "stop" else finding


def _evaluated(
    brief: TaskContext,
    evaluator: CandidateEvaluator,
    candidate: Candidate,
    history: tuple[Attempt, ...],
    finding: Finding | None,
) -> Attempt:
    """One attempt, as a run would have made it."""
    started, clock = datetime.now(UTC), time.perf_counter()
    result = evaluator.evaluate(candidate, seed=SEED)
    return make_attempt(
        history,
        candidate,
        result.evaluation,
        run="example",
        task=brief.task.name,
        operator=Operator.OPTIMISE if history else Operator.SEED,
        parent=history[-1] if history else None,
        reward=DEFAULT_POLICY,
        started=started,
        seconds=time.perf_counter() - clock,
        coder=BuiltinCoder.name,
        finding=finding,
        profile=result.profile,
    )
