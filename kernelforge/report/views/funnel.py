"""How far attempts got: from a reply to a kernel that is faster beyond its noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from kernelforge.records import Attempt, Evaluation, Stage, Verdict, outcome_words
from kernelforge.report.views.base import View

Step = Literal["generated", "parsed", "built", "ran", "correct", "stable", "faster"]
"""``generated``: an attempt was made; of a Coder's reply, or of other ``# tune:`` values.
``parsed``: the reply held a candidate, and its launch plan was read (stages ``parse`` and ``plan``).
``built``: the compiler took it and no policy gate refused it (``compile`` and ``policy``).
``ran``: it ran to its end at one size at least, so that values could be compared (``small``).
``correct``: verdict OK: the values are right at every size. What was not compared at the full size stops before it.
``stable``: its measured time is believed: not quarantined, and its interval as narrow as was asked for.
``faster``: the speedup over the fastest baseline is above 1 beyond its noise: the interval's lower end is.

Modelled runs end at ``correct``. Attempts with verdict ``INFRA`` count where they came through, and fall out where they
ended, which says nothing about them."""

STEPS: tuple[Step, ...] = get_args(Step)
_STAGES: tuple[Stage, ...] = get_args(Stage)
_BUILT, _RAN = _STAGES.index("policy"), _STAGES.index("small")


class FunnelStep(View):
    """How many attempts came through a step."""

    step: Step
    count: int
    lost: dict[Verdict, int]
    """Those that came through the step before and not through this one, by verdict."""

    @property
    def lost_outcomes(self) -> dict[str, int]:
        """The same by outcome in words: at ``correct``, what is OK was not compared at the full size."""
        return {outcome_words(one, one is Verdict.OK and self.step == "correct"): n for one, n in self.lost.items()}


class StageEnd(View):
    """How many attempts ended at a stage of the cascade with a verdict."""

    stage: Stage
    verdict: Verdict
    count: int


def step_reached(evaluation: Evaluation) -> Step:
    """The last step that an attempt came through."""
    at, verdict, speed = _STAGES.index(evaluation.stage), evaluation.verdict, evaluation.performance
    if evaluation.uncompared:
        return "ran"
    if verdict is Verdict.OK:
        if speed is None or evaluation.fingerprint.device_kind != "cuda" or speed.quarantined is not None:
            return "correct"
        if speed.timing is not None and not speed.timing.settled:
            return "correct"
        return "faster" if speed.speedup_lower is not None and speed.speedup_lower > 1 else "stable"
    if at > _RAN or (at == _RAN and verdict is Verdict.WRONG):
        return "ran"
    if at > _BUILT:
        return "built"
    return "parsed" if evaluation.stage not in ("parse", "plan") else "generated"


def funnel(attempts: Iterable[Attempt], *, measured: bool = False) -> tuple[FunnelStep, ...]:
    """The steps in order, each with how many came through and who was lost on the way to it.

    Args:
        measured: whether the device measures, so that there may be stable and faster ones.
    """
    ended = Counter((step_reached(one.evaluation), one.evaluation.verdict) for one in attempts)
    steps = STEPS if measured else STEPS[: STEPS.index("correct") + 1]
    counts = {
        step: sum(count for (last, _), count in ended.items() if STEPS.index(last) >= place)
        for place, step in enumerate(steps)
    }
    before = (None, *steps)
    return tuple(
        FunnelStep(
            step=step,
            count=counts[step],
            lost={verdict: ended[last, verdict] for verdict in Verdict if last is not None and ended[last, verdict]},
        )
        for last, step in zip(before, steps, strict=False)
    )


def stage_ends(attempts: Iterable[Attempt]) -> tuple[StageEnd, ...]:
    """Where attempts ended, in the cascade's order and then by verdict."""
    ended = Counter((one.evaluation.stage, one.evaluation.verdict) for one in attempts)
    return tuple(
        StageEnd(stage=stage, verdict=verdict, count=ended[stage, verdict])
        for stage in _STAGES
        for verdict in Verdict
        if ended[stage, verdict]
    )
