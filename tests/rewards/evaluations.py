"""Evaluations of every verdict, stage and kind of time, as hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kernelforge.records import Correctness, Evaluation, Performance, Ratio, SideTimes, SizeCheck, Timing, Verdict
from tests.support.factories import make_evaluation, make_fingerprint, make_timing, measured, modelled

GPU = make_fingerprint(device="cuda:0", device_kind="cuda")
STAGES = ("parse", "plan", "compile", "policy", "small", "hidden", "full", "sanitizer", "timing")

times_us = st.floats(1e-3, 1e6) | st.floats(1e-300, 1e300)
speedups = st.floats(0.01, 100) | st.floats(1e-300, 1e300)
errors = st.none() | st.floats(0, 1) | st.just(float("nan")) | st.just(float("inf"))


def side(name: str, samples: list[float]) -> SideTimes:
    middle = sorted(samples)[len(samples) // 2]
    return SideTimes(
        name=name, samples_us=tuple(samples), median_us=middle, interval_us=(min(samples), max(samples)), captured=True
    )


@st.composite
def timings(draw: st.DrawFn) -> Timing:
    """Sides of any times and numbers of samples; those compared with are any of the baselines."""
    own = side("candidate", draw(st.lists(times_us, min_size=1, max_size=9)))
    names = draw(st.lists(st.sampled_from(["eager", "compile", "cublas"]), unique=True))
    baselines = tuple(side(name, draw(st.lists(times_us, min_size=1, max_size=9))) for name in names)
    compared = names[: draw(st.integers(0, len(names)))]
    ratios = []
    for name in compared:
        speedup = draw(speedups)
        ratios.append(Ratio(baseline=name, speedup=speedup, interval=(speedup / 2, min(2 * speedup, 1e300)), blocks=4))
    changes = {"candidate": own, "baselines": baselines, "ratios": tuple(ratios)}
    fastest = compared[0] if compared else None
    return make_timing(coverage=draw(st.none() | st.floats(0.01, 1)), fastest=fastest, **changes)


@st.composite
def performances(draw: st.DrawFn) -> Performance:
    """Measured: believed or in quarantine, with a timing or without."""
    timing = draw(st.none() | timings())
    if draw(st.integers(0, 4)) == 0:
        return measured(timing=timing, quarantined="below the floor")
    eager = draw(st.none() | speedups)
    speedup = draw(st.none() | speedups)
    lower = None if speedup is None else speedup * draw(st.floats(0.5, 1))
    return measured(timing=timing, speedup=speedup, speedup_lower=lower or None, speedup_eager=eager)


@st.composite
def correct(draw: st.DrawFn) -> Evaluation:
    """OK on either kind of device."""
    check = SizeCheck(size="small", status="passed", error=draw(errors))
    kind: dict[str, Any] = {"performance": draw(st.none() | st.just(modelled()))}
    if draw(st.booleans()):
        kind = {"fingerprint": GPU, "performance": draw(st.none() | performances())}
    return make_evaluation(correctness=Correctness(sizes=(check,)), **kind)


@st.composite
def incorrect(draw: st.DrawFn) -> Evaluation:
    """Every verdict but OK and INFRA, at every stage."""
    verdict = draw(st.sampled_from([item for item in Verdict if item not in (Verdict.OK, Verdict.INFRA)]))
    return make_evaluation(verdict, stage=draw(st.sampled_from(STAGES)), build=None)


@st.composite
def unscorable(draw: st.DrawFn) -> Evaluation:
    """INFRA at every stage, what had no jail, and classes with host code."""
    which = draw(st.sampled_from(["infra", "jail", "lane"]))
    if which == "infra":
        return make_evaluation(Verdict.INFRA, stage=draw(st.sampled_from(STAGES)))
    if which == "jail":
        bare = draw(correct() | incorrect())
        return bare.model_copy(update={"fingerprint": bare.fingerprint.model_copy(update={"jail": "none"})})
    return draw(correct() | incorrect()).model_copy(update={"lane": "modelnew"})


evaluations = correct() | incorrect() | unscorable()
sources = st.none() | st.integers(0, 300_000).map(lambda length: "x" * length)


def timed(speedup: float, samples: int = 14, **changes: Any) -> Evaluation:
    """OK on a GPU, with steady samples: as fast against eager and torch.compile as said, by every figure."""
    own, theirs = side("candidate", [10.0] * samples), [10.0 * speedup] * samples
    baselines = (side("eager", theirs), side("compile", theirs))
    timing = make_timing(10.0, speedup, candidate=own, baselines=baselines, coverage=1.0)
    figures = {"speedup": speedup, "speedup_lower": speedup, "speedup_eager": speedup, "timing": timing}
    return make_evaluation(**({"fingerprint": GPU, "performance": measured(**figures)} | changes))
