"""The next message of a session: the same text as ``refine`` would send.

Pure functions over attempts. The loop is CudaForge's, as :mod:`kernelforge.search.refine` has it: repair what failed,
optimise what is right, one finding of the built-in Judge at a time, from the best attempt so far. Nothing is tuned and
no lessons are shown, as in a run without tuning and memory.

One thing differs: a session has the turns that were asked for. Where ``refine`` would end, because the Judge finds
nothing left to gain or three seeds gave nothing, the model is asked on, without a finding. Conversations that end early
would have fewer rewards to sum up, and so the best of them the lowest returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random

from kernelforge.agents.acceptance import make_attempt
from kernelforge.agents.base import CoderRequest, JudgeRequest, TaskContext
from kernelforge.agents.builtin import BuiltinJudge
from kernelforge.agents.prompts import coder_prompt
from kernelforge.candidate import parse_reply
from kernelforge.errors import CandidateError
from kernelforge.records import Attempt, Evaluation, Finding, Operator, Profile, Record, Reward, Verdict
from kernelforge.search import Proposal, make_strategy
from kernelforge.server.base import utc_seconds

CODER = "session"
"""What attempts of a session say of who wrote them."""


class PendingTurn(Record):
    """What was asked for, and so what the next completion answers."""

    operator: Operator
    parent: int | None = None
    """Number of the attempt to mend or to improve."""
    finding: Finding | None = None


class NextTurn(Record):
    """How a session goes on."""

    asked: PendingTurn | None
    """None: it has ended."""
    prompt: str = ""


def next_turn(brief: TaskContext, attempts: Sequence[Attempt], turns: int) -> NextTurn:
    """What to ask after some attempts; nothing after ``turns`` of them."""
    if len(attempts) >= turns:
        return NextTurn(asked=None)
    strategy = make_strategy("refine", rounds=turns)
    for attempt in attempts:
        strategy.tell(attempt)
    proposal = strategy.ask(Random(0)) or Proposal(Operator.SEED)
    best = None if strategy.best is None else attempts[strategy.best]
    parent = None if proposal.parent is None else attempts[proposal.parent]
    finding: Finding | None = None
    if proposal.judge and parent is not None:
        found = BuiltinJudge().find(JudgeRequest(brief, parent, attempts, best, proposal.rank, proposal.sight))
        finding = None if found.kind == "stop" else found
    request = CoderRequest(
        brief, proposal.operator, parent, finding, attempts, best, sample=proposal.sample, sight=proposal.sight
    )
    asked = PendingTurn(operator=proposal.operator, parent=proposal.parent, finding=finding)
    return NextTurn(asked=asked, prompt=coder_prompt(request).text)


def attempt_of(
    session: str,
    asked: PendingTurn,
    completion: str,
    evaluation: Evaluation,
    profile: Profile | None,
    reward: Reward,
    earlier: Sequence[Attempt],
    started: float,
) -> Attempt:
    """A completion that was evaluated, as the next attempt; whether it is the best so far is decided as in a run.

    Args:
        started: when it was submitted, in UTC seconds since 1970.
    """
    try:
        candidate = parse_reply(completion)
    except CandidateError:
        candidate = None
    return make_attempt(
        earlier,
        candidate,
        evaluation,
        run=session,
        task=evaluation.task,
        operator=asked.operator,
        parent=None if asked.parent is None else earlier[asked.parent],
        reward=reward,
        started=datetime.fromtimestamp(started, UTC),
        seconds=max(0.0, utc_seconds() - started),
        series=session,
        coder=CODER,
        finding=asked.finding,
        profile=profile if evaluation.verdict is Verdict.OK else None,
    )
