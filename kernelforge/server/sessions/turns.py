"""The next message of a session: what a search strategy would send, whole or as what is new in a dialogue.

Pure functions over attempts. The strategies are those of :mod:`kernelforge.search`. There are no tuning and no
lessons, as in a run without tuning and memory.

- ``refine``: CudaForge's loop: repair a failed attempt, optimise a correct one, with one finding of the built-in Judge
  at a time, from the best attempt so far.
- ``contrast``: CUDA-L1's prompts. The examples are drawn from the run's exemplars and the session's own attempts.
- ``fsr``: CUDA-LLM's loop, each turn a round of one sample: from the fastest that there is, or else from a failed one.

One difference: a session has the requested number of turns. Where ``refine`` would end, because the Judge finds no gain
or three seeds failed, the next prompt has no finding. Conversations that end early would sum up fewer rewards, so the
best of them would have the lowest returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

from kernelforge.agents.acceptance import make_attempt
from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompting.text import fenced
from kernelforge.agents.prompts import coder_prompt
from kernelforge.client.models import PromptKindName, RewardResult
from kernelforge.llm.base import Prompt
from kernelforge.records import (
    Attempt,
    Candidate,
    Evaluation,
    Finding,
    Operator,
    Profile,
    Record,
    Reward,
    StartOrigin,
    Verdict,
)
from kernelforge.search import STRATEGIES, Proposal, Strategy
from kernelforge.search.base import best_scoring, is_step
from kernelforge.server.base import utc_seconds

CODER = "session"
"""Coder of a session's attempts."""
_NOTES_CHARS = 4_000
_SERIES = "known"
"""What the ids of attempts begin with that are shown together."""


class PendingTurn(Record):
    """The request that the next completion answers."""

    operator: Operator
    parent: int | None = None
    """Number of the attempt to repair or to improve; None if it is none of the session's."""
    finding: Finding | None = None
    technique: str = ""
    """Optimisation technique that the prompt asks for."""
    examples: tuple[str, ...] = ()
    """Ids of the run's exemplars that the prompt shows."""


class NextTurn(Record):
    """The next request and prompt of a session."""

    asked: PendingTurn | None
    """None if the session has ended."""
    prompt: str = ""
    stable: int = 0
    """Characters at the beginning of the prompt that are the same for all requests about the task."""


class FirstTurn(NextTurn):
    """The first request and prompt of a session."""

    start: Attempt | None = None
    """The kernel that the session was started from."""
    result: RewardResult | None = None
    """Its result."""


class Method(NamedTuple):
    """A strategy with its options, as a prompt or a session asks for it."""

    kind: PromptKindName = "refine"
    options: Mapping[str, Any] = {}

    def strategy(self, steps: int, samples: int = 1) -> Strategy[Any]:
        """The strategy for a number of steps, of which ``samples`` depend on the same past.

        Raises:
            UsageError: it has no such option, or the option cannot have that value.
        """
        options = dict(self.options)
        if self.kind != "refine":
            options.setdefault("samples", samples)
        if self.kind == "fsr":
            options.setdefault("depth", steps)
        return STRATEGIES[self.kind].make(options, rounds=steps)


class StrategyPrompt(NamedTuple):
    """A request to a Coder, rendered."""

    proposal: Proposal
    finding: Finding | None
    prompt: Prompt
    examples: tuple[Attempt, ...]
    """Attempts whose candidates the prompt shows, the parent first."""


REFINE = Method()


def next_turn(
    context: TaskContext,
    attempts: Sequence[Attempt],
    turns: int,
    *,
    method: Method = REFINE,
    exemplars: Sequence[Attempt] = (),
    seed: str = "",
    dialogue: bool = False,
    result: RewardResult | None = None,
) -> NextTurn:
    """The next turn after some attempts; ended after ``turns`` of them.

    Args:
        exemplars: of the run; ``refine`` goes by the session alone and takes none.
        seed: of what is drawn at random.
        dialogue: whether the model still has the earlier turns before it: only the first prompt is whole then.
        result: of the last attempt, whose notes about a ``ModelNew`` end the prompt.
    """
    if sum(map(is_step, attempts)) >= turns:
        return NextTurn(asked=None)
    own = {attempt.evaluation.candidate for attempt in attempts}
    others = [other for other in exemplars if method.kind != "refine" and other.evaluation.candidate not in own]
    past = list(attempts) if method.kind == "refine" else _joined(others, attempts)
    strategy = method.strategy(turns)
    strategy.start_from(past[: len(others)])
    for attempt in past[len(others) :]:
        strategy.tell(attempt)
    follows = dialogue and bool(attempts)
    following = _next_prompt(context, strategy, past, Random(f"{seed}/{len(attempts)}"), dialogue=follows)
    parent = following.proposal.parent
    pending = PendingTurn(
        operator=following.proposal.operator,
        parent=None if parent is None or parent < len(others) else parent - len(others),
        finding=following.finding,
        technique=following.proposal.technique or "",
        examples=tuple(others[attempt.number].id for attempt in following.examples if attempt.number < len(others)),
    )
    text, stable = following.prompt.text + _notes(result), following.prompt.stable
    return NextTurn(asked=pending, prompt=text[stable:] if follows else text, stable=0 if follows else stable)


def _notes(result: RewardResult | None) -> str:
    """A section about how the ``ModelNew`` of a reply was read; empty where there is nothing to say."""
    if result is None or not result.notes:
        return ""
    how = "It was converted to device code and a plan" if result.converted else "It ran as it is, not converted"
    notes = fenced("\n".join(f"- {note}" for note in result.notes), "text", _NOTES_CHARS)
    return f"\n\n## Your ModelNew\n\n{how}:\n\n{notes}\n"


def independent_prompts(
    context: TaskContext, exemplars: Sequence[Attempt], method: Method, count: int, seed: str
) -> list[StrategyPrompt]:
    """Independent requests that start from a run's exemplars, as the samples of one round.

    Raises:
        UsageError: as :meth:`Method.strategy`.
    """
    past = _joined(exemplars, ())
    strategy = method.strategy(count, count)
    strategy.start_from(past)
    return [_next_prompt(context, strategy, past, Random(f"{seed}/{slot}"), slot) for slot in range(count)]


def _next_prompt(
    context: TaskContext,
    strategy: Strategy[Any],
    attempts: Sequence[Attempt],
    rng: Random,
    ahead: int = 0,
    *,
    dialogue: bool = False,
) -> StrategyPrompt:
    """The request of a strategy's next proposal; a seed where it has none."""
    proposal = strategy.ask(rng, ahead) or strategy.ask(rng) or Proposal(Operator.SEED)
    best = None if strategy.best is None else attempts[strategy.best]
    parent = None if proposal.parent is None else attempts[proposal.parent]
    finding: Finding | None = None
    if proposal.judge and parent is not None:
        judged = BuiltinJudge().find(JudgeRequest(context, parent, attempts, best, proposal.rank, proposal.sight))
        finding = None if judged.kind == "stop" else judged
    inspirations = tuple(attempts[number] for number in proposal.inspirations)
    examples = ((parent,) if parent is not None else ()) + inspirations
    if dialogue and parent is None and attempts[-1].candidate is None:
        parent = attempts[-1]  # so that the message says why the reply before it is no candidate
    request = CoderRequest(
        context, proposal.operator, parent, finding, attempts, best, inspirations, proposal.technique,
        sample=proposal.sample, sight=proposal.sight,
    )  # fmt: skip
    return StrategyPrompt(proposal, finding, coder_prompt(request, dialogue=dialogue), examples)


def _joined(exemplars: Sequence[Attempt], attempts: Sequence[Attempt]) -> list[Attempt]:
    """Exemplars and a session's attempts as those of one search, of which the best of all is the accepted one."""
    joined = [*exemplars, *attempts]
    best = best_scoring(joined)
    names = {attempt.id: f"{_SERIES}/{number:02d}" for number, attempt in enumerate(joined)}

    def renumbered(number: int, attempt: Attempt) -> Attempt:
        parent = names.get(attempt.parent or "")
        origin = {"parent": parent} if parent is not None else {"parent": None, "operator": Operator.SEED}
        if attempt.operator is Operator.START:
            origin = {}
        changes = {"id": names[attempt.id], "number": number, "accepted": attempt is best}
        return attempt.model_copy(update={**changes, **origin})

    return [renumbered(number, attempt) for number, attempt in enumerate(joined)]


def attempt_of(
    session: str,
    pending: PendingTurn | StartOrigin,
    candidate: Candidate | None,
    evaluation: Evaluation,
    profile: Profile | None,
    reward: Reward,
    earlier: Sequence[Attempt],
    started: float,
) -> Attempt:
    """The attempt of an evaluated turn, accepted as the best under the same rule as in a run.

    Args:
        pending: what was requested; of a start, where it comes from.
        candidate: None if the completion held none.
        started: time of submission, in UTC seconds since 1970.
    """
    parent: str | None = None
    details: dict[str, Any] = {}
    if isinstance(pending, StartOrigin):
        operator, details = Operator.START, {"start": pending}
    else:
        operator, parent = pending.operator, None if pending.parent is None else earlier[pending.parent].id
        if parent is None and pending.examples:
            parent = pending.examples[0]
        details = {"inspirations": pending.examples, "technique": pending.technique, "finding": pending.finding}
        details["coder"] = CODER
    return make_attempt(
        earlier,
        candidate,
        evaluation,
        run=session,
        task=evaluation.task,
        operator=operator,
        parent=parent,
        reward=reward,
        started=datetime.fromtimestamp(started, UTC),
        seconds=max(0.0, utc_seconds() - started),
        series=session,
        profile=profile if evaluation.verdict is Verdict.OK else None,
        **details,
    )
