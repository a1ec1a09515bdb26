"""Reward policies: what one computes from an evaluation, and the components and speedups that several share.

A modelled or implausible time has no speedup.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, get_args

from kernelforge.client.models import ComponentOrigin, Components
from kernelforge.records import Evaluation, Origin, Performance, Profile, Reward, SideTimes, Stage, Timing, Verdict

MOST_SPEEDUP = 1e6
"""Ratios above this count as this: no kernel is a million times faster, and sums of rewards stay finite."""


def believed(evaluation: Evaluation) -> Performance | None:
    """The measured time of an evaluation; None if it is modelled, in quarantine, or not there."""
    performance = evaluation.performance
    if performance is None or performance.origin is not Origin.MEASURED or performance.quarantined is not None:
        return None
    return performance


def quarantined(evaluation: Evaluation) -> bool:
    """Whether a time was measured that is not believed."""
    return evaluation.performance is not None and evaluation.performance.quarantined is not None


def over_eager(evaluation: Evaluation) -> float | None:
    """Speedup over eager PyTorch, as KernelBench and what trains on it publish it."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup_eager)


def over_fastest(evaluation: Evaluation) -> float | None:
    """Speedup over the fastest baseline."""
    performance = believed(evaluation)
    return None if performance is None else capped(performance.speedup)


def over(evaluation: Evaluation, baseline: str) -> float | None:
    """Speedup over one baseline: the ratio of samples that alternated, or else of the two medians."""
    performance = believed(evaluation)
    if performance is None or performance.timing is None:
        return None
    timing = performance.timing
    ratio = timing.ratio(baseline)
    if ratio is not None:
        return capped(ratio.speedup)
    side = side_of(timing, baseline)
    return None if side is None else divided(side.median_us, timing.candidate.median_us)


def side_of(timing: Timing, baseline: str) -> SideTimes | None:
    """The times of a baseline, if it was timed."""
    return next((side for side in timing.baselines if side.name == baseline), None)


def coverage_of(evaluation: Evaluation) -> float | None:
    """Share of device time in the candidate's own kernels; None where it was not measured, or is not believed."""
    performance = believed(evaluation)
    return None if performance is None or performance.timing is None else performance.timing.coverage


def capped(speedup: float | None) -> float | None:
    return None if speedup is None else min(speedup, MOST_SPEEDUP)


def divided(over_us: float, under_us: float) -> float:
    """Ratio of two times, at most :data:`MOST_SPEEDUP`."""
    return MOST_SPEEDUP if over_us >= MOST_SPEEDUP * under_us else over_us / under_us


BEFORE_BUILT: Final[frozenset[Stage]] = frozenset({"parse", "plan", "compile", "policy"})
"""Stages at which what is not OK has no build that may run."""
OVERHEAD: Final = "harness"
"""The part of an evaluation's seconds that is ours, and neither compiler nor oracle nor device."""


def components(evaluation: Evaluation, profile: Profile | None = None) -> Components:
    """The components of an evaluation. ``INFRA`` says nothing about the candidate: all of them are None.

    Coverage is measured or None, also in the lane of plans: whether a plan called a library is not part of the record.

    Args:
        profile: of the candidate at the full size, if there is one.
    """
    if evaluation.verdict is Verdict.INFRA:
        return Components()
    parts = {**_checked(evaluation), **_speedups(evaluation), **_counted(evaluation, profile)}
    present = {name: part for name, part in parts.items() if part is not None}
    values = {name: part.value for name, part in present.items()}
    return Components(**values, origins={name: part.origin for name, part in present.items()})


class Part(NamedTuple):
    """The value of a component, and its origin."""

    value: float
    origin: ComponentOrigin


def _part(value: float | None, origin: ComponentOrigin) -> Part | None:
    return None if value is None else Part(value, origin)


def _checked(evaluation: Evaluation) -> dict[str, Part | None]:
    """Components that follow from the verdict and its stages, and the cost."""
    ok = evaluation.verdict is Verdict.OK
    parsed = evaluation.stage != "parse"
    stages = get_args(Stage)
    cost = sum(seconds for part, seconds in evaluation.seconds.items() if part != OVERHEAD)
    return {
        "format": Part(float(parsed), "checked"),
        "built": Part(float(ok or evaluation.stage not in BEFORE_BUILT), "checked"),
        "correct": Part(float(ok and not evaluation.uncompared), "checked"),
        "policy": Part(float(evaluation.verdict is not Verdict.POLICY), "checked"),
        "stage": Part(1.0 if ok else stages.index(evaluation.stage) / (len(stages) - 1), "checked"),
        "error": _part(largest_error(evaluation), "checked"),
        "cost": Part(cost, "measured"),
    }


def _speedups(evaluation: Evaluation) -> dict[str, Part | None]:
    """Components of a measured time, and of a predicted one."""
    performance = believed(evaluation)
    predicted = None if evaluation.performance is None else evaluation.performance.predicted
    return {
        "speedup": _part(None if performance is None else performance.speedup, "measured"),
        "speedup_lower": _part(None if performance is None else performance.speedup_lower, "measured"),
        "speedup_upper": _part(_upper(evaluation), "measured"),
        "coverage": _part(coverage_of(evaluation), "measured"),
        "energy_ratio": _part(
            None if performance is None or performance.timing is None else capped(performance.timing.energy_ratio),
            "measured",
        ),
        "predicted": _part(None if predicted is None else predicted.speedup, "predicted"),
        "predicted_lower": _part(None if predicted is None else predicted.low, "predicted"),
        "predicted_upper": _part(None if predicted is None else predicted.high, "predicted"),
    }


def _counted(evaluation: Evaluation, profile: Profile | None) -> dict[str, Part | None]:
    """Components of a profile. Kernels that are launched are counted without one, fills are not."""
    full = None if evaluation.correctness is None else evaluation.correctness.at("full")
    launches = None if full is None or full.launches is None else float(full.launches)
    if profile is None:
        return {"launches": _part(launches, "counted")}
    with_fills = _sum(profile, _LAUNCHES)
    least, dram = profile.roofline.compulsory_bytes, profile.metric(DRAM_BYTES)
    sectors, requests = sectors_of(profile), _sum(profile, _REQUESTS)
    floor_us, performance = profile.roofline.floor_us, evaluation.performance
    return {
        "launches": _part(launches if with_fills is None else with_fills, "counted"),
        "floor_share": None
        if floor_us is None or performance is None or performance.quarantined is not None
        else Part(min(floor_us / performance.time_us, 1.0), _of(performance.origin)),
        "dram_ratio": None if dram is None or least == 0 else Part(dram.value / least, _of(dram.origin)),
        "sector_ratio": None if sectors is None or least == 0 else Part(SECTOR * sectors / least, "counted"),
        "sectors_per_request": Part((_sum(profile, _SECTORS) or 0) / requests, "counted") if requests else None,
    }


DRAM_BYTES: Final = "dram__bytes.sum"
_LAUNCHES: Final = ("kernelforge__launches", "kernelforge__memsets")
SECTOR: Final = 32
"""Bytes."""
_GLOBAL: Final = ("pipe_lsu_mem_global_op_ld.sum", "pipe_lsu_mem_global_op_st.sum")
_SECTORS: Final = tuple(f"l1tex__t_sectors_{access}" for access in _GLOBAL)
_REQUESTS: Final = tuple(f"l1tex__t_requests_{access}" for access in _GLOBAL)


def sectors_of(profile: Profile) -> float | None:
    """Sectors of all accesses to global memory, those of bulk copies among them; None where none were counted."""
    return _sum(profile, (*_SECTORS, "ptx__bulk_copy_sectors.sum"))


def _sum(profile: Profile, names: Sequence[str]) -> float | None:
    """Sum of those metrics that a profile has; None if it has none of them."""
    values = [value for value in map(profile.value, names) if value is not None]
    return sum(values) if values else None


def _of(origin: Origin) -> ComponentOrigin:
    return "measured" if origin is Origin.MEASURED else "modelled"


def largest_error(evaluation: Evaluation) -> float | None:
    """Largest error over all sizes, as a multiple of the tolerance; None where none was recorded.

    What is above :data:`MOST_SPEEDUP`, or no number, counts as that.
    """
    checks = () if evaluation.correctness is None else evaluation.correctness.sizes
    errors = [check.error for check in checks if check.error is not None]
    return max((error if error <= MOST_SPEEDUP else MOST_SPEEDUP for error in errors), default=None)


def _upper(evaluation: Evaluation) -> float | None:
    """Upper end of the interval of the speedup over the fastest baseline; never below the speedup."""
    performance = believed(evaluation)
    if performance is None or performance.speedup is None:
        return None
    timing = performance.timing
    ratio = None if timing is None or timing.fastest is None else timing.ratio(timing.fastest)
    return None if ratio is None else max(ratio.interval[1], performance.speedup)


@dataclass(frozen=True)
class Context:
    """Inputs of some published formulas in addition to the evaluation; all of them are stored with it."""

    source: str | None = None
    """The candidate's source, for terms in its length; None where it was not kept or there was none."""
    earlier: Sequence[Evaluation] = ()
    """Evaluations of the same task that came before it in its run or session, oldest first."""
    profile: Profile | None = None
    """Of the candidate at the full size; None where none was made."""


class RewardPolicy(ABC):
    """A pure function from a stored evaluation to a number. A change of the number is another version."""

    name: ClassVar[str]
    """With its version: ``kernelforge/1``."""
    title: ClassVar[str]
    """One line for people."""
    source: ClassVar[str]
    """Paper or document with section, and what of it is not published and was decided here."""
    bounds: ClassVar[tuple[float, float]]
    """No reward lies outside."""
    parts: ClassVar[tuple[str, ...]]
    """Names of the components. Every reward of the policy has all of them; None is not known or does not apply."""
    rewards_host_code: ClassVar[bool] = False
    """Whether a ``ModelNew`` that ran as it is may be rewarded."""

    @abstractmethod
    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        """``INFRA`` never comes here, nor what may not be rewarded."""

    def reward(self, value: float | None, **components: float | None) -> Reward:
        """A reward of this policy; components that are left out are None."""
        return Reward(policy=self.name, value=value, components=dict.fromkeys(self.parts) | components)
