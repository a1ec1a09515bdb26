"""Search strategies: proposals, the base classes, and attempts as a strategy sees them, with their scores.

A strategy does no I/O, reads no clock and draws randomness only from the generator it receives. Its whole state is a
function of the attempts it has seen, so ``resume`` needs no checkpoint: it passes the journalled attempts to ``tell``.

A *step* is one proposal. Tuned children (``Operator.TUNE``) come between steps; they are passed to ``tell`` like any
attempt, and are not steps. Nor is the kernel that a search was started from (``Operator.START``), which comes first:
every strategy takes it as the first parent, to be improved where it is correct and repaired where it is not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import StringConstraints, ValidationError

from kernelforge.errors import UsageError
from kernelforge.records import Attempt, Evaluation, Operator, Origin, Record, Verdict, first_fault


@dataclass(frozen=True)
class ProfileVisibility:
    """Parts of a profile that the agents see."""

    metrics: str = "full"
    """``full``: all of the profile, with hot spots and machine code. ``subset``: the 24 metrics that CudaForge found to
    tell most. Anything else: names of metrics with spaces between them."""
    latency: bool = True
    """Times and speedups."""


DEFAULT_VISIBILITY = ProfileVisibility()


_NAMES = StringConstraints(pattern=r"^\w+_[\w.]+( \w+_[\w.]+)*$")
ShownMetrics = Literal["none", "subset", "full"] | Annotated[str, _NAMES]
"""What agents see of a profile: a set of metrics, or names with spaces between them."""


class StrategyOptions(Record):
    """Options that every strategy has."""

    metrics: ShownMetrics = "full"
    """What the agents see of a profile: all of it (ours), ``subset``, CudaForge's 24 metrics, ``none``, or the metrics
    with these names, spaces between them."""


@dataclass(frozen=True)
class Proposal:
    """The next step. Attempts are named by their number within the task."""

    operator: Operator
    parent: int | None = None
    judge: bool = False
    """Ask the Judge for a finding on the parent first."""
    rank: int = 1
    """Which bottleneck the Judge is to name: the most important is 1."""
    inspirations: tuple[int, ...] = ()
    """Further attempts that the Coder is shown as examples."""
    technique: str | None = None
    """An optimisation feature that the Coder is asked to use."""
    coder: int = 0
    """Which of the run's Coders."""
    sample: int = 0
    """Position among proposals that are otherwise the same."""
    sight: ProfileVisibility = DEFAULT_VISIBILITY


OptionsT = TypeVar("OptionsT", bound=StrategyOptions)


class Strategy(ABC, Generic[OptionsT]):
    """The search of one task: ``ask`` returns the next proposal; ``tell`` records the finished attempt.

    Args:
        options: the options of the strategy.
        rounds: maximum number of steps; None for :meth:`default_rounds`.
        stop_after: stop after this many steps without a new best, once there is one; None never stops early.
        coders: number of Coders of the run.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """The system and paper of the method."""
    default_stop_after: ClassVar[int | None] = None
    """``stop_after`` where the user gives none."""
    uses_judge: ClassVar[bool] = False
    """Whether its proposals, other than seeds, ask the Judge first."""
    cascades: ClassVar[bool] = True
    """Whether its Coders may be a cascade: its steps depend on results, and it does not choose Coders by itself."""
    open_ended: ClassVar[bool] = True
    """Whether it can go on for more rounds than its published number."""
    ends_on_stop: ClassVar[bool] = False
    """Whether a Judge's ``stop`` ends the search; otherwise the Coder is asked without a finding."""
    Options: ClassVar[type[StrategyOptions]] = StrategyOptions
    """The options, with the defaults of the paper."""

    def __init__(self, options: OptionsT, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        self.options = options
        self.rounds = self.default_rounds(options) if rounds is None else rounds
        self.stop_after = stop_after
        self.coders = coders
        self.cascade: int | None = None
        """Rounds without a new best after which the next Coder writes; None: they take turns."""
        self.stop_gain = 0.0
        """Least relative gain in speed of what ``stop_after`` and ``cascade`` count as a new best."""
        self.sight = ProfileVisibility(metrics=options.metrics)
        """What the agents see of profiles, in every proposal."""
        self.attempts: list[Attempt] = []
        """Every recorded attempt, by number."""
        self.steps: list[int] = []
        """Numbers of the attempts that were steps: all but tuned children and the start."""
        self._best: int | None = None
        self._gains: set[int] = set()
        """Attempts that count as a new best for ``stop_after`` and ``cascade``."""
        self._gained: float | None = None
        """Score of the last of them."""
        self._taken_over = 0
        """How many of the attempts are another strategy's."""

    @classmethod
    def make(
        cls,
        options: Mapping[str, Any] | None = None,
        *,
        rounds: int | None = None,
        stop_after: int | None = None,
        coders: int = 1,
        cascade: int | None = None,
        stop_gain: float = 0.0,
    ) -> Self:
        """Build the strategy. ``rounds`` None: the published number; ``stop_after`` None: never.

        Raises:
            UsageError: as :meth:`settle`.
        """
        settled: Any = cls.Options.model_validate(cls.settle(options or {}))
        strategy = cls(settled, rounds=rounds, stop_after=stop_after, coders=coders)
        strategy.cascade, strategy.stop_gain = cascade, stop_gain
        return strategy

    @classmethod
    def settle(cls, values: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
        """All options: those given, the others at their defaults.

        Raises:
            UsageError: an unknown option, or a value that the option cannot have.
        """
        options = cls.Options.model_fields
        for option in values:
            if option not in options:
                what = f"its options are {', '.join(options)}" if options else "it has no options"
                raise UsageError(f"strategy {cls.name!r} has no option {option!r}; {what}")
        try:
            return cls.Options.model_validate(dict(values), strict=False).model_dump()
        except ValidationError as error:
            raise UsageError(f"strategy {cls.name!r}, option {first_fault(error, show_input=True)}") from error

    @classmethod
    @abstractmethod
    def default_rounds(cls, options: Any) -> int:
        """Steps that the published method takes with these options."""

    @abstractmethod
    def _propose(self, step: int, rng: Random) -> Proposal | None:
        """The proposal for ``step`` (0-based), or None when it depends on the results of earlier steps."""

    def _stop_reason(self) -> str | None:
        """Reason why the strategy's own rule ends the search, or None."""
        return None

    def ask(self, rng: Random, ahead: int = 0) -> Proposal | None:
        """Return the proposal ``ahead`` steps after the last recorded one.

        Changes nothing: the same attempts, generator and ``ahead`` give the same proposal, regardless of earlier calls.
        The caller seeds ``rng`` by the step.

        Returns:
            The proposal, or None. For ``ahead`` = 0 None means that the search is over, and ``stopped`` says why; for a
            later step, that it depends on results that are still to come.
        """
        step = len(self.steps) + ahead
        if self.stopped is not None or step >= self.rounds:
            return None
        proposal = self._propose(step, rng)
        return None if proposal is None else replace(proposal, sight=self.sight)

    def tell(self, attempt: Attempt) -> None:
        """Record a finished attempt. Attempts come in order of their numbers.

        Raises:
            ValueError: the number of the attempt is not the next one.
        """
        if attempt.number != len(self.attempts):
            raise ValueError(f"attempt {attempt.number} came out of order, expected {len(self.attempts)}")
        self.attempts.append(attempt)
        if is_step(attempt):
            self.steps.append(attempt.number)
        if attempt.accepted:
            self._best = attempt.number
            number = score(attempt)
            if number is None or self._gained is None or number - self._gained >= math.log1p(self.stop_gain):
                self._gains.add(attempt.number)
                self._gained = number
        if attempt.operator is Operator.START:
            self._adopt_past()
        else:
            self._update(attempt)

    def start_from(self, past: Sequence[Attempt]) -> None:
        """Begin where another strategy's search stands: its attempts are known, and none is a step of this one.

        Must be called before the first ``tell``.
        """
        self.attempts, self._taken_over = list(past), len(past)
        self._best = max((attempt.number for attempt in past if attempt.accepted), default=None)
        self._adopt_past()

    def _adopt_past(self) -> None:
        """Update the state of the subclass from attempts of another strategy."""

    def _update(self, attempt: Attempt) -> None:
        """Update the state of the subclass."""

    @property
    def best(self) -> int | None:
        """Number of the best attempt so far."""
        return self._best

    @property
    def start(self) -> Attempt | None:
        """The kernel that the search was started from; None where it began with nothing."""
        return self.attempts[0] if self.attempts and self.attempts[0].operator is Operator.START else None

    @property
    def stopped(self) -> str | None:
        """Reason why the search is over, or None."""
        if len(self.steps) >= self.rounds:
            return f"the budget of {self.rounds} rounds is spent"
        coder, idle = self._progress(self.attempts)
        if self.cascade is not None and coder < self.coders - 1:
            return None  # the next Coder has not written
        if self.stop_after is not None and self._best is not None and idle >= self.stop_after:
            by = f" faster by {self.stop_gain:.0%}" if self.stop_gain else ""
            return f"no new best{by} in {self.stop_after} rounds"
        return self._stop_reason()

    def _progress(self, attempts: Sequence[Attempt]) -> tuple[int, int]:
        """The cascade's Coder that writes after some attempts, and its rounds without a new best.

        A best that is faster by less than ``stop_gain`` counts as none. Of an attempt that was passed over nothing is
        known, so it counts for nothing.
        """
        coder = idle = 0
        for attempt in attempts[self._taken_over :]:
            step = is_step(attempt)
            if step and self._hands_on(coder, idle):
                coder, idle = coder + 1, 0
            if attempt.number in self._gains:
                idle = 0
            elif step and not attempt.evaluation.passed_over:
                idle += 1
        return (coder + 1, 0) if self._hands_on(coder, idle) else (coder, idle)

    def _hands_on(self, coder: int, idle: int) -> bool:
        return self.cascade is not None and idle >= self.cascade and coder < self.coders - 1

    def state(self) -> dict[str, Any]:
        """State of the search as plain JSON: for people, and for ``resume`` to check that a replay arrives at it."""
        return {"strategy": self.name, "steps": len(self.steps), "best": self._best, **self._state()}

    def _state(self) -> dict[str, Any]:
        """State of the subclass, as plain JSON."""
        return {}

    def turn(self, step: int) -> int:
        """Number of the Coder whose turn a step is: one after the other, or that of the cascade."""
        return step % self.coders if self.cascade is None else self._progress(self._decided)[0]

    @property
    def _decided(self) -> Sequence[Attempt]:
        """Attempts that the next proposal may depend on."""
        return self.attempts


class StrategyTable(dict[str, type[Strategy[Any]]]):
    """Strategies by name; a :class:`UsageError` says which there are instead of one that is not."""

    def __missing__(self, name: str) -> type[Strategy[Any]]:
        raise UsageError(f"there is no strategy {name!r}; choose one of: {', '.join(self)}")


class GenerationalStrategy(Strategy[OptionsT]):
    """Base of the strategies that work in generations."""

    def __init__(self, options: OptionsT, *, rounds: int | None, stop_after: int | None, coders: int = 1) -> None:
        super().__init__(options, rounds=rounds, stop_after=stop_after, coders=coders)
        self.known: list[Attempt] = []
        """Attempts that the next proposal may depend on."""
        self.generation = 0
        """Generations that were begun."""
        self._first = self._end = 0

    @abstractmethod
    def _size(self) -> int:
        """Steps of the generation that follows what is known."""

    @abstractmethod
    def _member(self, slot: int, rng: Random) -> Proposal:
        """The proposal for the 0-based ``slot`` of the generation that follows what is known."""

    @abstractmethod
    def _learn(self, attempts: Sequence[Attempt]) -> None:
        """Take in what has just become known: a whole generation with its tuned children, or the tuned child of its
        last step, or what :meth:`start_from` was given."""

    def _propose(self, step: int, rng: Random) -> Proposal | None:
        # While a generation is under way, nothing becomes known: its slots are the same as when it was begun.
        slot = step - self._first_step
        return self._member(slot, rng) if slot < self._size() else None

    @property
    def _decided(self) -> Sequence[Attempt]:
        return self.known

    @property
    def _open(self) -> bool:
        return len(self.steps) < self._end

    def _update(self, attempt: Attempt) -> None:
        if is_step(attempt) and len(self.steps) > self._end:
            self._first, self._end = self._end, self._end + max(1, self._size())
            self.generation += 1
        if not self._open:
            self._catch_up()

    def _adopt_past(self) -> None:
        self._catch_up()

    def _catch_up(self) -> None:
        attempts = self.attempts[len(self.known) :]
        self.known += attempts
        self._learn(attempts)

    @property
    def _failed_start(self) -> Attempt | None:
        """The start, if it is all that is known and has to be repaired."""
        start = self.start if len(self.known) == 1 else None
        return None if start is None or is_correct(start) else start

    @property
    def _index(self) -> int:
        """0-based number of the generation that :meth:`_member` is asked for."""
        return self.generation - 1 if self._open else self.generation

    @property
    def _first_step(self) -> int:
        """0-based step of slot 0 of that generation."""
        return self._first if self._open else self._end


def score(attempt: Attempt) -> float | None:
    """Score of an attempt: that of its evaluation."""
    return score_of(attempt.evaluation)


def score_of(evaluation: Evaluation) -> float | None:
    """Higher is better; None for an evaluation that is not OK, or has no time that counts.

    Measured: log of the lower bound of the speedup; where no baseline could be timed, minus the log of the upper end of
    the time's interval, in microseconds, which is below the former for every kernel of more than some microseconds.
    A quarantined time counts for nothing: the attempt is correct, and behind all that were timed. So does every time of
    an attempt whose full size was not compared. Modelled: minus the log of the modelled time in microseconds. That
    orders a task's attempts as their predicted speedups do, for all have the same time of eager PyTorch.

    All scores of a task can be compared: the devices of a run are of one kind, and a candidate that was passed over,
    whose time alone is then modelled, was not compared.
    """
    performance = evaluation.performance
    if evaluation.verdict is not Verdict.OK or evaluation.uncompared:
        return None
    if performance is None or performance.quarantined is not None:
        return None
    if performance.origin is not Origin.MEASURED:
        return -math.log(performance.time_us)
    if performance.speedup_lower is not None:
        return math.log(performance.speedup_lower)
    assert performance.interval_us is not None
    return -math.log(performance.interval_us[1])


def rank_key(attempt: Attempt) -> tuple[bool, float]:
    """Key that sorts the attempts of a task, the best first; those without a score come last."""
    number = score(attempt)
    return number is None, 0.0 if number is None else -number


def gain(before: Attempt, after: Attempt) -> float | None:
    """Difference of two scores; None where one has none."""
    first, second = score(before), score(after)
    return None if first is None or second is None else second - first


def is_step(attempt: Attempt) -> bool:
    """Whether a strategy proposed an attempt: all but tuned children and the start."""
    return attempt.operator not in (Operator.TUNE, Operator.START)


def is_correct(attempt: Attempt) -> bool:
    """Whether an attempt is correct."""
    return attempt.evaluation.verdict is Verdict.OK


def is_repairable(attempt: Attempt) -> bool:
    """Whether an attempt failed and has a candidate that a Coder can repair."""
    return not is_correct(attempt) and attempt.candidate is not None


def best_attempt(attempts: Sequence[Attempt]) -> Attempt | None:
    """The best attempt of a task: the one accepted last.

    It comes before others with higher scores: where the model cannot tell two kernels apart, a counter decided.
    """
    return next((attempt for attempt in reversed(attempts) if attempt.accepted), None)


def current_best(attempts: Sequence[Attempt]) -> int | None:
    """Number of :func:`best_attempt`."""
    best = best_attempt(attempts)
    return None if best is None else best.number


def parent_number(attempt: Attempt) -> int | None:
    """Number of an attempt's parent within the task."""
    return None if attempt.parent is None else int(attempt.parent.rpartition("/")[2])


def best_per_step(attempts: Sequence[Attempt]) -> list[Attempt]:
    """One attempt for each step, oldest first: the step itself, or the best of its tuned children that is better."""
    standing: dict[str, Attempt] = {}
    step_of: dict[str, str] = {}
    for attempt in attempts:
        tuned = attempt.operator is Operator.TUNE and attempt.parent is not None
        step = step_of.get(attempt.parent or "", attempt.id) if tuned else attempt.id
        step_of[attempt.id] = step
        if step not in standing or rank_key(attempt) < rank_key(standing[step]):
            standing[step] = attempt
    return list(standing.values())


def best_scoring(attempts: Sequence[Attempt]) -> Attempt | None:
    """The correct attempt with the highest score, the oldest of equals; without any score, the last accepted one."""
    scored = [attempt for attempt in attempts if score(attempt) is not None]
    if scored:
        return min(scored, key=lambda attempt: (rank_key(attempt), attempt.number))
    return best_attempt(attempts)
