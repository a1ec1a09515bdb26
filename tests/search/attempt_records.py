"""Attempts as a run would make them of a strategy's proposals, for tests of strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kernelforge.records import Attempt, Operator, Verdict
from kernelforge.search import Proposal, Strategy
from tests.support.factories import RUN, TASK, make_attempt, make_build, make_candidate, make_evaluation, modelled


@dataclass(frozen=True)
class Outcome:
    """Outcome of a proposal. ``time_us`` and ``bound`` count for OK only; ``code`` is the source: empty for one of
    its own, None for a reply without a candidate."""

    verdict: Verdict = Verdict.OK
    time_us: float = 10.0
    code: str | None = ""
    ptx: str | None = None
    bound: str = "dram"
    changes: dict[str, Any] = field(default_factory=dict)


def ok(time_us: float, **changes: Any) -> Outcome:
    return Outcome(time_us=time_us, **changes)


WRONG = Outcome(Verdict.WRONG)
NO_CODE = Outcome(Verdict.POLICY, code=None)


def name(number: int) -> str:
    return f"{RUN}/{TASK}/{number:02d}"


def carry_out(number: int, proposal: Proposal, outcome: Outcome, past: Sequence[Attempt]) -> Attempt:
    """The attempt that ``outcome`` makes of ``proposal``; it is accepted if it is faster than all before."""
    good = outcome.verdict is Verdict.OK
    own = f"__global__ void k(float* out) {{ out[0] = {number}; }}"
    candidate = None if outcome.code is None else make_candidate(source=outcome.code or own)
    existing = [item.evaluation.performance.time_us for item in past if item.evaluation.performance is not None]
    build = make_build(ok=outcome.verdict is not Verdict.BUILD, ptx_hash=outcome.ptx)
    evaluation = make_evaluation(
        outcome.verdict,
        candidate="none" if candidate is None else candidate.hash,
        build=build,
        performance=modelled(outcome.time_us, bound=outcome.bound) if good else None,
    )
    return make_attempt(
        number,
        outcome.verdict,
        operator=proposal.operator,
        parent=proposal.parent,
        candidate=candidate,
        evaluation=evaluation,
        inspirations=tuple(name(item) for item in proposal.inspirations),
        **(
            {
                "accepted": good and outcome.time_us < min(existing, default=float("inf")),
                "coder": f"test:{proposal.coder}",
            }
            | outcome.changes
        ),
    )


class Search:
    """Asks a strategy and tells it outcomes, as a run does."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.attempts: list[Attempt] = []

    def ask(self, ahead: int = 0) -> Proposal | None:
        """The proposal of the strategy, with the generator that the step always gets."""
        return self.strategy.ask(Random(f"seed/{len(self.strategy.steps) + ahead}"), ahead)

    def generation(self) -> list[Proposal]:
        """All steps that can be named now."""
        result: list[Proposal] = []
        while (proposal := self.ask(len(result))) is not None:
            result.append(proposal)
        return result

    def step(self, outcome: Outcome) -> Proposal:
        proposal = self.ask()
        assert proposal is not None, self.strategy.stopped
        self._tell(proposal, outcome)
        return proposal

    def steps(self, *outcomes: Outcome) -> list[Proposal]:
        return [self.step(outcome) for outcome in outcomes]

    def tuned(self, outcome: Outcome, parent: int | None = None) -> None:
        """Tell a tuned child of ``parent``, by default of the last attempt."""
        number = len(self.attempts) - 1 if parent is None else parent
        self._tell(Proposal(Operator.TUNE, parent=number), outcome)

    def play(self, decide: Callable[[Proposal, Random], Outcome], *, steps: int = 1000) -> None:
        """Go on until the strategy ends, or for so many steps."""
        rng = Random(0)
        for _ in range(steps):
            proposal = self.ask()
            if proposal is None:
                return
            self._tell(proposal, decide(proposal, rng))

    def _tell(self, proposal: Proposal, outcome: Outcome) -> None:
        attempt = carry_out(len(self.attempts), proposal, outcome, self.attempts)
        self.attempts.append(attempt)
        self.strategy.tell(attempt)
