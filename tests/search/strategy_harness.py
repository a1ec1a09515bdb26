"""Plays whole searches against made-up results, and checks on the way what every strategy promises.

A :class:`Story` is what the world answers: for each step a :class:`Result`, with what became of its tuned children.
:func:`play` lets a strategy live through a story; :func:`retell` lets another one hear the beginning of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from kernelforge.agents.acceptance import accept
from kernelforge.records import (
    Attempt,
    Candidate,
    Correctness,
    Evaluation,
    Message,
    Operator,
    Performance,
    Reward,
    SizeCheck,
    StartOrigin,
    Usage,
    Verdict,
)
from kernelforge.search import Proposal, Strategy
from tests.support.factories import (
    RUN,
    TASK,
    make_build,
    make_candidate,
    make_evaluation,
    make_fingerprint,
    measured,
    modelled,
)

AHEAD = 6
"""How many steps ahead are asked for at every point."""
STAGE = {
    Verdict.POLICY: ("parse", "plan", "policy"),
    Verdict.BUILD: ("compile",),
    Verdict.WRONG: ("small", "hidden", "full"),
    Verdict.CRASH: ("small", "hidden", "full"),
    Verdict.TIMEOUT: ("compile", "small"),
    Verdict.LIMIT: ("compile", "hidden"),
    Verdict.INFRA: ("compile", "full"),
}


@dataclass(frozen=True)
class Tuned:
    """Outcome of a tuned child."""

    time_us: float
    """Its time; its verdict is WRONG when this is 0."""


@dataclass(frozen=True)
class Result:
    """Outcome of a step."""

    verdict: Verdict
    stage: int = 0
    """Which of the stages at which a verdict can fall."""
    candidate: bool = True
    """Whether a failed reply held a candidate."""
    time_us: float | None = 10.0
    """None: correct, but without a time that a score can be made of."""
    text: int | None = None
    """Which of a few sources it is; None: one of its own."""
    ptx: int | None = None
    bound: str = "dram"
    dollars: float | None = None
    tuned: tuple[Tuned, ...] = ()


@dataclass(frozen=True)
class Story:
    results: tuple[Result, ...]
    """Used in turn, again from the start when there are more steps."""
    measured: bool = False
    """Whether the device measures time."""
    seed: int = 0
    start: Result | None = None
    """Result of the kernel that the search is started from; None where it begins with nothing."""

    def rng(self, step: int) -> Random:
        """The generator that a caller hands to a strategy for a step."""
        return Random(f"{self.seed}/{step}")


@dataclass
class Played:
    """A search from its first ask to its last."""

    attempts: list[Attempt] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    """What was carried out, step by step."""
    upcoming: list[list[Proposal | None]] = field(default_factory=list)
    """After each number of attempts recorded, the proposals 0 to :data:`AHEAD` - 1 steps ahead."""
    states: list[str] = field(default_factory=list)
    """After each number of attempts recorded, the state as JSON."""


TIMES = st.sampled_from([1.0, 2.0, 5.0, 9.9, 10.0, 10.1, 20.0, 40.0, 300.0])
TUNED = st.builds(Tuned, time_us=st.just(0.0) | TIMES)
RESULT = st.builds(
    Result,
    verdict=st.sampled_from([Verdict.OK, Verdict.OK, Verdict.OK, *Verdict]),
    stage=st.integers(0, 2),
    candidate=st.sampled_from([True, True, True, False]),
    time_us=st.sampled_from([None]) | TIMES | TIMES | TIMES,
    text=st.none() | st.integers(0, 3),
    ptx=st.none() | st.integers(0, 3),
    bound=st.sampled_from(["dram", "fp32", "latency"]),
    dollars=st.none() | st.sampled_from([0.0, 0.01, 1.0]),
    tuned=st.lists(TUNED, max_size=2).map(tuple),
)
STORY = st.builds(
    Story,
    results=st.lists(RESULT, min_size=1, max_size=24).map(tuple),
    measured=st.booleans(),
    seed=st.integers(0, 9),
    start=st.none() | RESULT,
)


def play(strategy: Strategy, story: Story, *, rounds: int, coders: int = 1) -> Played:
    """Live through a story to its end, and check every proposal on the way.

    Checked: a search ends within ``rounds`` and says why; asking changes nothing; every proposal names attempts that
    were recorded; what was proposed ahead is still proposed when its step comes.
    """
    played, promised = Played(), dict[int, Proposal]()
    ask(strategy, story, played)
    if story.start is not None:
        begin(strategy, story, story.start, played)
    while (proposal := played.upcoming[-1][0]) is not None:
        step = len(played.proposals)
        for ahead, later in enumerate(played.upcoming[-1]):
            if later is not None:
                check(later, played.attempts, coders)
                assert promised.setdefault(step + ahead, later) == later
        assert step < rounds
        played.proposals.append(proposal)
        result = story.results[step % len(story.results)]
        parent = carry_out(played.attempts, proposal, result, story)
        tell(strategy, story, played, parent)
        if parent.evaluation.verdict is Verdict.OK:
            for tuned in result.tuned:
                tell(strategy, story, played, tune(played.attempts, parent, tuned, story))
        state = strategy.state()
        assert state["steps"] == len(strategy.steps) == step + 1
        if strategy.stopped is None and step + 1 in promised:
            assert played.upcoming[-1][0] == promised[step + 1]
    assert strategy.stopped
    assert played.upcoming[-1] == [None] * AHEAD
    return played


def retell(strategy: Strategy, story: Story, played: Played, recorded: int) -> None:
    """Tell the first ``recorded`` attempts of a search, as ``resume`` does, and check that all is as it was then."""
    for attempt in played.attempts[:recorded]:
        strategy.tell(attempt)
    assert json.dumps(strategy.state()) == played.states[recorded]
    assert asks(strategy, story) == played.upcoming[recorded]


def ask(strategy: Strategy, story: Story, played: Played) -> None:
    state = json.dumps(strategy.state(), allow_nan=False)
    first = asks(strategy, story)
    assert asks(strategy, story) == first
    assert json.dumps(strategy.state()) == state
    played.upcoming.append(first)
    played.states.append(state)


def asks(strategy: Strategy, story: Story) -> list[Proposal | None]:
    """Proposals 0 to :data:`AHEAD` - 1 steps ahead, asked for from the far end, for the order must not matter."""
    steps = len(strategy.steps)
    return [strategy.ask(story.rng(steps + ahead), ahead) for ahead in reversed(range(AHEAD))][::-1]


def tell(strategy: Strategy, story: Story, played: Played, attempt: Attempt) -> None:
    strategy.tell(attempt)
    played.attempts.append(attempt)
    ask(strategy, story, played)


def check(proposal: Proposal, recorded: Sequence[Attempt], coders: int) -> None:
    """A proposal can be carried out: it names attempts that were recorded and that hold a candidate."""
    assert proposal.operator not in (Operator.TUNE, Operator.START)
    assert (proposal.parent is None) == (proposal.operator is Operator.SEED)
    assert 0 <= proposal.coder < coders
    assert proposal.rank >= 1
    assert not (proposal.judge and proposal.parent is None)
    rendered = [*([] if proposal.parent is None else [proposal.parent]), *proposal.inspirations]
    assert len(set(rendered)) == len(rendered)
    for number in rendered:
        assert recorded[number].candidate is not None
    if proposal.operator is Operator.REPAIR:
        assert recorded[proposal.parent or 0].evaluation.verdict is not Verdict.OK
    if proposal.operator in (Operator.OPTIMISE, Operator.CONTRAST, Operator.CROSSOVER):
        assert all(recorded[number].evaluation.verdict is Verdict.OK for number in rendered)


def carry_out(recorded: Sequence[Attempt], proposal: Proposal, result: Result, story: Story) -> Attempt:
    """The attempt that a proposal becomes, accepted as in a run."""
    number = len(recorded)
    ok = result.verdict is Verdict.OK
    candidate = _candidate(f"v{number}" if result.text is None else f"text {result.text}")
    kept = candidate if ok or result.candidate else None
    evaluation = _evaluation(candidate.hash, result, story)
    usage = Usage(model="m", dollars=result.dollars, seconds=1.0)
    return attempt(
        recorded,
        operator=proposal.operator,
        parent=None if proposal.parent is None else recorded[proposal.parent].id,
        inspirations=tuple(recorded[item].id for item in proposal.inspirations),
        coder=f"test:{proposal.coder}",
        technique=proposal.technique or "",
        messages=(Message(agent="coder", role="reply", provider="test", content="", usage=usage),),
        candidate=kept,
        evaluation=evaluation,
    )


def begin(strategy: Strategy, story: Story, result: Result, played: Played) -> None:
    """Tell the start and its tuned children, before anything is proposed."""
    candidate = _candidate("start")
    start = attempt(
        (),
        operator=Operator.START,
        start=StartOrigin(file="start.cu", digest="0" * 64),
        candidate=candidate,
        evaluation=_evaluation(candidate.hash, result, story),
    )
    tell(strategy, story, played, start)
    for tuned in result.tuned if start.evaluation.verdict is Verdict.OK else ():
        tell(strategy, story, played, tune(played.attempts, start, tuned, story))
    assert strategy.state()["steps"] == 0


def tune(recorded: Sequence[Attempt], parent: Attempt, tuned: Tuned, story: Story) -> Attempt:
    """A tuned child of a correct attempt."""
    assert parent.candidate is not None
    candidate = _candidate(f"tuned {len(recorded)}")
    verdict = Verdict.OK if tuned.time_us else Verdict.WRONG
    evaluation = _evaluation(candidate.hash, Result(verdict, time_us=tuned.time_us or None), story)
    return attempt(recorded, operator=Operator.TUNE, parent=parent.id, candidate=candidate, evaluation=evaluation)


def attempt(recorded: Sequence[Attempt], *, evaluation: Evaluation, **fields: Any) -> Attempt:
    number = len(recorded)
    made = Attempt(
        id=f"{RUN}/{TASK}/{number:02d}",
        run=RUN,
        task=TASK,
        number=number,
        evaluation=evaluation,
        reward=Reward(policy="test/1", value=None, components={}),
        accepted=False,
        started="2026-01-01T00:00:00.000+00:00",
        seconds=1.0,
        **fields,
    )
    return made.model_copy(update={"accepted": accept(made, recorded).accepted})


def _candidate(text: str) -> Candidate:
    """A candidate that differs from others in more than a comment."""
    return make_candidate(source=f"__global__ void k(float* out) {{ {text}; }}")


def _evaluation(candidate: str, result: Result, story: Story) -> Evaluation:
    fingerprint = make_fingerprint(device="cuda:0", device_kind="cuda") if story.measured else make_fingerprint()
    if result.verdict is not Verdict.OK:
        stages = STAGE[result.verdict]
        stage = stages[result.stage % len(stages)]
        built = stage in ("policy", "small", "hidden", "full")
        build = make_build(ptx_hash=None if result.ptx is None else f"ptx {result.ptx}") if built else None
        return make_evaluation(result.verdict, candidate=candidate, fingerprint=fingerprint, stage=stage, build=build)
    return make_evaluation(
        candidate=candidate,
        fingerprint=fingerprint,
        build=make_build(ptx_hash=None if result.ptx is None else f"ptx {result.ptx}"),
        correctness=Correctness(sizes=(SizeCheck(size="full", status="passed"),)),
        performance=_performance(result, measured_time=story.measured),
    )


def _performance(result: Result, *, measured_time: bool) -> Performance | None:
    if result.time_us is None:
        return measured(bound=result.bound, quarantined="faster than it can be") if measured_time else None
    if measured_time:
        speedup = 20.0 / result.time_us
        return measured(result.time_us, bound=result.bound, speedup=speedup, speedup_lower=0.9 * speedup)
    return modelled(result.time_us, bound=result.bound)
