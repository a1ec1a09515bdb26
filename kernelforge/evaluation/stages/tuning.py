"""The tuning stage: search among ``# tune:`` values for a combination worth an attempt.

Up to :data:`~kernelforge.candidate.plan.MAX_HALVED` combinations are all built and rated, by successive halving
(Jamieson & Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter Optimization*, AISTATS 2016,
section 3): ``ceil(log2 n)`` rungs, each keeps the better half of the combinations and spends twice as much on the time
of each; the last one spends what a profile does. Two things are ours. The candidate's own combination is rated on every
rung, so that what is compared was always rated alike. A combination whose time no effort can change is not rated again,
nor is one that compiles to the same code and launches as another.

More are searched by :mod:`~kernelforge.evaluation.stages.multi_fidelity`: few are built, most of those rated cheaply.

Nothing here is a result: times pick what to try, and the winner goes through the whole cascade as an attempt.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from kernelforge.candidate import MAX_HALVED, parse_plan
from kernelforge.devices.base import Device, RunFailed, TuningTime
from kernelforge.errors import SandboxError, TaskError
from kernelforge.evaluation.oracle.client import DrawHandle, Oracle
from kernelforge.evaluation.stages.candidate_runs import run_request, usual_limit_s
from kernelforge.evaluation.stages.compile_stage import BuildState, StageFailed
from kernelforge.evaluation.stages.full_size import PROFILE_POISON, WHOLE_DRAW_BYTES
from kernelforge.evaluation.stages.multi_fidelity import EFFORTS, FINALISTS, Fidelity, MultiFidelitySearch, encode
from kernelforge.evaluation.timing import tensor_bytes
from kernelforge.records import Candidate, Task, TaskFacts, TuneTrial, content_hash

LEAST_GAIN = 0.02
"""By which part of the candidate's own time a combination must be faster to be worth an evaluation, and by which two
combinations differ at all. A child that gains less would not replace its parent either."""

RATING_SECONDS = 10.0
"""One rating on a GPU that takes longer is that combination's problem."""

RATING_INSTRUCTIONS = 1_000_000_000
"""The same on an emulated device, in thread instructions. A rating takes a few million as a rule."""

TUNING_SECONDS = 120.0
"""After this long nothing more is compiled or rated for a GPU; what is known by then decides. To wait for a device is
no part. On an emulated device the number of combinations and the work of each are limits enough."""

CLOSING_SECONDS = FINALISTS * RATING_SECONDS
"""What a search among many that was ended so may take longer, for complete ratings of its best combinations."""

_LOST_GENERALITY = "the plan's assert refuses a hidden size that the candidate's own values support"


class Preparing(Protocol):
    """An evaluator, as far as tuning needs one."""

    task: Task
    oracle: Oracle
    facts: TaskFacts
    device: Device

    def gpu_lock(self) -> AbstractContextManager[None]: ...

    def prepare(self, candidate: Candidate, preparation: BuildState) -> None: ...


@dataclass(eq=False)
class Combination:
    """One combination. Those of the same code and launches share the rating of one, their ``same_as``."""

    choices: dict[str, int]
    work: BuildState = field(default_factory=BuildState)
    rung: int = 0
    rating: TuningTime | None = None
    problem: str = ""
    same_as: Combination | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for combinations that do the same at the full size."""
        plan = self.work.plans["full"]
        return (
            _code(self.work.artifacts["full"].ptx, plan.constants),
            plan.buffers,
            plan.setup,
            plan.steps,
            plan.outputs,
        )

    def trial(self) -> TuneTrial:
        source = self.same_as or self
        if source.rating is None or source.problem:
            problem = source.problem or "not rated, for the candidate's own values could not be"
            return TuneTrial(choices=self.choices, rung=source.rung, problem=problem)
        return TuneTrial(choices=self.choices, rung=source.rung, time_us=source.rating.time_us)


def tune(
    evaluator: Preparing, candidate: Candidate, *, seed: int, stopped: Callable[[], bool] | None = None
) -> tuple[TuneTrial, ...]:
    """Rate combinations of a candidate's ``# tune:`` values: of many a choice, else all of them.

    Args:
        evaluator: of the candidate's task; it has found the candidate OK with its own choices.
        candidate: what to tune. Its own choices take part.
        seed: secret seed of the inputs that kernels are rated on. On an emulated device the same one gives the same
            trials.
        stopped: asked before each step; once it says True, what is left is not tried.

    Returns:
        One trial per combination that was tried, in the order of
        :attr:`~kernelforge.candidate.Plan.combinations`; none where the plan offers no choice. A combination that does
        not resolve and compile at every size that the candidate supports, that faults, or that was not reached has a
        problem instead of a time. A candidate that takes part in no comparison (its own choices have a problem) has no
        :func:`winner`. Trouble of ours is a problem too.
    """
    combinations = parse_plan(candidate.plan, candidate.language or "cuda").combinations
    if len(combinations) < 2:
        return ()
    arms = [Combination(choices) for choices in combinations]
    own = next(arm for arm in arms if candidate.choices.items() <= arm.choices.items())
    if len(arms) > MAX_HALVED:
        return _BayesianSearch(evaluator, candidate, own, stopped or (lambda: False)).search(arms, seed)
    search = _SuccessiveHalving(evaluator, candidate, own, stopped or (lambda: False))
    contenders = search.prepare(arms)
    if not own.problem:
        search.halve(contenders, seed)
    return tuple(arm.trial() for arm in arms)


def winner(trials: Sequence[TuneTrial], parent_choices: Mapping[str, int]) -> dict[str, int] | None:
    """The choices worth evaluating as a child of the tuned candidate.

    Args:
        trials: what :func:`tune` gave.
        parent_choices: ``choices`` of the candidate that was tuned; names left out take their first values.

    Returns:
        A combination of the last rung that is faster than the parent's own by more than :data:`LEAST_GAIN`: of the
        fastest and those slower by no more than that, the first in the order of the plan. None where there is no such
        combination. It may still fail the cascade.
    """
    # Combinations come first values first, so the first that agrees has the first value of every name left out.
    own = next((trial for trial in trials if parent_choices.items() <= trial.choices.items()), None)
    if own is None or own.time_us is None:
        return None
    timed = [(trial.time_us, trial) for trial in trials if trial.time_us is not None and trial.rung == own.rung]
    better = [(time_us, trial) for time_us, trial in timed if time_us < own.time_us * (1 - LEAST_GAIN)]
    fastest = min((time_us for time_us, _ in better), default=0.0)
    tied = (trial.choices for time_us, trial in better if time_us * (1 - LEAST_GAIN) <= fastest)
    return next(map(dict, tied), None)


def _code(ptx: bytes, constants: Mapping[str, int]) -> bytes:
    """The PTX without the plan's constants, which NVRTC writes out as variables even where nothing reads them."""
    for name in map(str.encode, constants):
        if len(re.findall(rb"(?<![\w$])%s(?![\w$])" % name, ptx)) == 1:
            ptx = re.sub(rb"^\.(?:global|const) [^\n;]*(?<![\w$])%s = [^\n;]*;\n" % name, b"", ptx, flags=re.MULTILINE)
    return ptx


class Rater:
    """Builds and rates combinations."""

    def __init__(
        self, evaluator: Preparing, candidate: Candidate, own: Combination, stopped: Callable[[], bool]
    ) -> None:
        self._evaluator = evaluator
        self._candidate = candidate
        self._own = own
        self._stopped = stopped
        self._modelled = not evaluator.device.capabilities.measures_time
        self._end = time.monotonic() + (math.inf if self._modelled else TUNING_SECONDS)

    def take(
        self, arm: Combination, fidelity: Fidelity, built: dict[tuple[object, ...], Combination], draw: DrawHandle
    ) -> bool:
        """Build the combination, unless that is done, and rate it, unless one of the same code was rated so.

        Returns:
            Whether it took a rating.
        """
        if not arm.work.artifacts and not arm.problem:
            self._build(arm, built)
        if arm.problem:
            return False
        source = arm.same_as or arm
        complete = fidelity == "complete"
        if source.problem or (source.rating is not None and source.rung >= complete):
            return False
        with self._locked():
            self._rate(source, draw, int(complete), EFFORTS[fidelity])
        if source.rating is not None and source.rating.settled:
            source.rung = 1
        return True

    def _build(self, arm: Combination, built: dict[tuple[object, ...], Combination]) -> None:
        """Build the combination, and enter it under what it does, or find the one that does the same."""
        arm.problem = self._unfit(arm)
        if not arm.problem:
            equal = built.setdefault(arm.identity, arm)
            arm.same_as = None if equal is arm else equal

    @contextmanager
    def drawn(self, seed: int) -> Iterator[DrawHandle]:
        """Inputs at the full size, of the task's own distribution; what must come out is not asked.

        The device is held while they are drawn and given back, for the oracle may use it for that.
        """
        oracle = self._evaluator.oracle
        tiled = self._modelled and tensor_bytes(self._evaluator.facts.at("full")) > WHOLE_DRAW_BYTES
        with self._locked():
            draw = oracle.draw("full", oracle.families("full")[0], seed, expected=False, tiled=tiled)
        try:
            yield draw
        finally:
            with self._locked():
                oracle.release(draw.handle)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the device; to wait for it takes none of the search's time."""
        requested = time.monotonic()
        with self._evaluator.gpu_lock():
            self._end += time.monotonic() - requested
            yield

    def _over(self) -> str:
        """The reason that nothing more is tried; empty while there is time."""
        if self._stopped():
            return "not tried: the run was stopped"
        if time.monotonic() > self._end:
            return f"not tried: the search had taken its {TUNING_SECONDS:g} s"
        return ""

    def _unfit(self, arm: Combination) -> str:
        """Resolve and compile one combination; why it cannot be rated, or nothing."""
        try:
            self._evaluator.prepare(self._candidate.model_copy(update={"choices": arm.choices}), arm.work)
        except StageFailed as failure:
            return failure.reason
        except SandboxError as error:
            return f"it could not be compiled here: {error}"
        return "" if arm.work.plans.keys() >= self._own.work.plans.keys() else _LOST_GENERALITY

    def _rate(self, arm: Combination, draw: DrawHandle, rung: int, effort: float) -> None:
        arm.rung = rung
        if arm.rating is not None and arm.rating.settled:
            return
        plan = arm.work.plans["full"]
        limit_s = usual_limit_s(self._evaluator.device) if self._modelled else RATING_SECONDS
        instructions = RATING_INSTRUCTIONS if self._modelled else None
        request = run_request(
            self._evaluator.task,
            plan,
            draw,
            PROFILE_POISON,
            limit_s=limit_s,
            limit_binds=not self._modelled,
            instructions=instructions,
        )
        try:
            with self._evaluator.device.open(arm.work.artifacts["full"]) as session:
                arm.rating = session.rate(request, effort)
        except RunFailed as faulted:
            arm.problem = faulted.fault.message
        except SandboxError as error:
            arm.problem = f"it could not be run here: {error}"


class _SuccessiveHalving(Rater):
    def prepare(self, arms: Sequence[Combination]) -> list[Combination]:
        """Resolve and compile every combination; gives back those to be rated, the candidate's own first."""
        contenders: dict[tuple[object, ...], Combination] = {}
        for arm in sorted(arms, key=lambda arm: arm is not self._own):
            arm.problem = self._over()
            if not arm.problem:
                self._build(arm, contenders)
        return list(contenders.values())

    def halve(self, contenders: Sequence[Combination], seed: int) -> None:
        """Rate the contenders rung by rung. What does not reach the next rung keeps the time of its last."""
        alive, rungs = list(contenders), max(math.ceil(math.log2(len(contenders))), 1)
        try:
            with self.drawn(int(content_hash(seed, "tune"), 16)) as draw, self._locked():
                for rung in range(rungs):
                    rated = self._rate_all(alive, draw, rung, effort=2.0 ** (rung + 1 - rungs))
                    alive = sorted(rated, key=_time)[: math.ceil(len(alive) / 2)]
        except (SandboxError, TaskError) as error:
            for arm in contenders:
                arm.problem = arm.problem or ("" if arm.rating else f"its inputs could not be drawn: {error}")

    def _rate_all(self, alive: Sequence[Combination], draw: DrawHandle, rung: int, effort: float) -> list[Combination]:
        """Rate what is alive and the candidate's own combination, which goes first; gives back what has a time."""
        rated = []
        for arm in dict.fromkeys([self._own, *alive]):
            over = self._over()
            if over:
                arm.problem = "" if arm.rating else over
                continue
            self._rate(arm, draw, rung, effort)
            if not arm.problem:
                rated.append(arm)
        return rated


class _BayesianSearch(Rater):
    def search(self, arms: Sequence[Combination], seed: int) -> tuple[TuneTrial, ...]:
        """Build and rate combinations one by one; gives back the trials of those that were tried.

        A device is held for each rating, so that others use it while a combination is built. Where the time is over,
        the combinations that seem best still get their complete ratings.
        """
        points = encode([arm.choices for arm in arms])
        search = MultiFidelitySearch(points, arms.index(self._own), int(content_hash(seed, "tune points"), 16))
        built: dict[tuple[object, ...], Combination] = {}
        closed = False
        try:
            with self.drawn(int(content_hash(seed, "tune"), 16)) as draw:
                while (step := search.next()) is not None:
                    arm = arms[step.point]
                    over = self._over()
                    if over:
                        arm.problem = "" if arm.rating else over
                        if closed or self._stopped():
                            break
                        search.close()
                        closed, self._end = True, time.monotonic() + CLOSING_SECONDS
                        continue
                    rated = self.take(arm, step.fidelity, built, draw)
                    source = arm.same_as or arm
                    rating = None if arm.problem or source.problem else source.rating
                    search.record(
                        step,
                        None if rating is None else rating.time_us,
                        built="build" in arm.work.seconds,
                        rated=rated,
                        settled=rating is not None and (rating.settled or source.rung == 1),
                        twin=arm.same_as is not None,
                    )
        except (SandboxError, TaskError) as error:
            self._own.problem = self._own.problem or (
                "" if self._own.rating else f"its inputs could not be drawn: {error}"
            )
        return tuple(arm.trial() for arm in arms if arm.rating or arm.problem or arm.same_as)


def _time(arm: Combination) -> float:
    assert arm.rating is not None
    return arm.rating.time_us
