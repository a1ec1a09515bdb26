"""The next message of a session: what ``refine`` would send, whole or as what is new in a dialogue.

Pure functions over attempts. The loop is CudaForge's, as in :mod:`kernelforge.search.refine`: repair a failed attempt,
optimise a correct one, with one finding of the built-in Judge at a time, from the best attempt so far. There are no
tuning and no lessons, as in a run without tuning and memory.

One difference: a session has the requested number of turns. Where ``refine`` would end, because the Judge finds no gain
or three seeds failed, the next prompt has no finding. Conversations that end early would sum up fewer rewards, so the
best of them would have the lowest returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

from kernelforge.agents.acceptance import make_attempt
from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompts import coder_prompt
from kernelforge.records import Attempt, Candidate, Evaluation, Finding, Operator, Profile, Record, Reward, Verdict
from kernelforge.search import Proposal, Refine
from kernelforge.server.base import utc_seconds

CODER = "session"
"""Coder of a session's attempts."""


class PendingTurn(Record):
    """The request that the next completion answers."""

    operator: Operator
    parent: int | None = None
    """Number of the attempt to repair or to improve."""
    finding: Finding | None = None


class NextTurn(Record):
    """The next request and prompt of a session."""

    asked: PendingTurn | None
    """None if the session has ended."""
    prompt: str = ""
    stable: int = 0
    """Characters at the beginning of the prompt that are the same for all requests about the task."""


def next_turn(context: TaskContext, attempts: Sequence[Attempt], turns: int, *, dialogue: bool = False) -> NextTurn:
    """The next turn after some attempts; ended after ``turns`` of them.

    Args:
        dialogue: whether the model still has the earlier turns before it: only the first prompt is whole then.
    """
    if len(attempts) >= turns:
        return NextTurn(asked=None)
    strategy = Refine.make(rounds=turns)
    for attempt in attempts:
        strategy.tell(attempt)
    proposal = strategy.ask(Random(0)) or Proposal(Operator.SEED)
    best = None if strategy.best is None else attempts[strategy.best]
    parent = None if proposal.parent is None else attempts[proposal.parent]
    finding: Finding | None = None
    if proposal.judge and parent is not None:
        judged = BuiltinJudge().find(JudgeRequest(context, parent, attempts, best, proposal.rank, proposal.sight))
        finding = None if judged.kind == "stop" else judged
    follows = dialogue and bool(attempts)
    if follows and parent is None and attempts[-1].candidate is None:
        parent = attempts[-1]  # so that the message says why the reply before it is no candidate
    request = CoderRequest(
        context, proposal.operator, parent, finding, attempts, best, sample=proposal.sample, sight=proposal.sight
    )
    pending = PendingTurn(operator=proposal.operator, parent=proposal.parent, finding=finding)
    prompt = coder_prompt(request, dialogue=follows)
    text, stable = (prompt.text[prompt.stable :], 0) if follows else (prompt.text, prompt.stable)
    return NextTurn(asked=pending, prompt=text, stable=stable)


def attempt_of(
    session: str,
    pending: PendingTurn,
    candidate: Candidate | None,
    evaluation: Evaluation,
    profile: Profile | None,
    reward: Reward,
    earlier: Sequence[Attempt],
    started: float,
) -> Attempt:
    """The attempt of an evaluated turn, accepted as the best under the same rule as in a run.

    Args:
        candidate: None if the completion held none.
        started: time of submission, in UTC seconds since 1970.
    """
    return make_attempt(
        earlier,
        candidate,
        evaluation,
        run=session,
        task=evaluation.task,
        operator=pending.operator,
        parent=None if pending.parent is None else earlier[pending.parent],
        reward=reward,
        started=datetime.fromtimestamp(started, UTC),
        seconds=max(0.0, utc_seconds() - started),
        series=session,
        coder=CODER,
        finding=pending.finding,
        profile=profile if evaluation.verdict is Verdict.OK else None,
    )
