"""Parts ``evaluate``, ``repeat``, ``profile`` and ``modelnew``: time and repeatability of evaluations."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from benchmarks.gpu_parts.machine import ROOT, Machine, evaluator_of
from benchmarks.gpu_parts.report import Report
from benchmarks.gpu_parts.samples import MODELNEW, SAMPLES, SOFTMAX, Sample
from kernelforge.candidate import parse_reply
from kernelforge.devices.cuda.tools.ncu import profiler_status
from kernelforge.evaluation import EvaluationResult, Evaluator
from kernelforge.records import Candidate, MeasureSettings, Origin, Verdict
from kernelforge.tasks import size_source

WARM_SECONDS = 2.0
"""Target for one full evaluation in a warm pool."""
WARM_EVALUATIONS = 3
REPEATS, SPREAD = 10, 0.02
"""Target: spread of the median ratio over so many evaluations."""


def fresh(sample: Sample) -> Candidate:
    """The kernel under a name of its own, so that no build of it is in any cache."""
    nonce = f"apply_{secrets.token_hex(4)}"
    return parse_reply(sample.reply.replace("apply", nonce))


def judged(evaluator: Evaluator, candidate: Candidate) -> tuple[EvaluationResult, float]:
    """A full evaluation without a profile, and the seconds that it took."""
    started = time.perf_counter()
    result = evaluator.evaluate(candidate, seed=secrets.randbits(63), profile=False)
    return result, time.perf_counter() - started


def evaluate(
    machine: Machine, report: Report, samples: Sequence[Sample] = SAMPLES, warm_evaluations: int = WARM_EVALUATIONS
) -> None:
    """Seconds of one evaluation, cold and warm, and of KernelBench's published protocol on the same kernel."""
    slowest = 0.0
    wrong: list[str] = []
    for done, sample in enumerate(samples, 1):
        (task,) = machine.tasks([sample.task])
        started = time.perf_counter()
        warm: list[tuple[EvaluationResult, float]] = []
        with machine.workshop() as workshop, evaluator_of(workshop, task) as evaluator:
            result, _ = judged(evaluator, fresh(sample))
            cold_s = time.perf_counter() - started
            if result.evaluation.verdict is Verdict.OK:
                warm = [judged(evaluator, fresh(sample)) for _ in range(warm_evaluations)]
        reference = size_source(task, "full")
        published = kernelbench(sample.load_inline, reference, machine.torch_device, wait_s=report.remaining)
        theirs_s, flushed_s = _walls(published)
        bad = [evaluated.evaluation for evaluated, _ in warm if evaluated.evaluation.verdict is not Verdict.OK]
        evaluation = bad[0] if bad else result.evaluation
        if evaluation.verdict is not Verdict.OK:
            wrong.append(f"{sample.task}: {evaluation.verdict.value}")
        warm_s = median(seconds for _, seconds in warm) if warm else None
        slowest = max(slowest, warm_s or 0.0)
        report.row(
            task=sample.task,
            verdict=evaluation.verdict.value,
            cold_s=round(cold_s, 3),
            warm_s=None if warm_s is None else round(warm_s, 3),
            stages=warm[-1][0].evaluation.seconds if warm else evaluation.seconds,
            settled=_settled(warm),
            kernelbench_s=round(theirs_s, 2),
            kernelbench_flushed_s=round(flushed_s, 2),
            ratio=round(theirs_s / warm_s, 1) if warm_s and theirs_s else None,
            kernelbench=published,
            reason=evaluation.reason[:200],
        )
        if done < len(samples) and report.out_of_time(done, len(samples)):
            break
    figure = f"{slowest:.2f} s" + (f"; not OK: {', '.join(wrong)}" if wrong else "")
    report.figure(
        "warm evaluation, slowest", figure, f"<= {WARM_SECONDS:g} s", met=not wrong and slowest <= WARM_SECONDS
    )


def _settled(warm: Sequence[tuple[EvaluationResult, float]]) -> bool | None:
    timings = [
        evaluated.evaluation.performance.timing for evaluated, _ in warm if evaluated.evaluation.performance is not None
    ]
    settled = [timing.settled for timing in timings if timing is not None]
    return all(settled) if settled else None


def kernelbench(candidate: str, reference: str, device: str, *, wait_s: float) -> dict[str, Any]:
    """Answer of :mod:`benchmarks.gpu_parts.kernelbench_process`, with ``wall_s``; or its ``error``."""
    with tempfile.TemporaryDirectory() as builds:
        request = {"reference": reference, "candidate": candidate, "device": device, "builds": builds}
        started = time.perf_counter()
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "benchmarks.gpu_parts.kernelbench_process"],
                input=json.dumps(request),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=max(1.0, min(wait_s, 180.0)),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return {"error": f"no answer within {error.timeout:.0f} s"}
        wall_s = time.perf_counter() - started
    if ended.returncode:
        return {"error": ended.stderr[-400:], "wall_s": round(wall_s, 3)}
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return {**answer, "wall_s": round(wall_s, 3)}


def _walls(answer: dict[str, Any]) -> tuple[float, float]:
    """Wall time of an evaluation as published (warm L2), and with a flush instead; zeros where there was no answer."""
    if "error" in answer:
        return 0.0, 0.0
    seconds = answer["seconds"]
    return answer["wall_s"] - seconds["performance_flushed"], answer["wall_s"] - seconds["performance"]


def repeat(machine: Machine, report: Report, sample: Sample = SOFTMAX, repeats: int = REPEATS) -> None:
    """The same kernel again and again, each time as a fresh evaluation: how far do speedups lie apart?"""
    (task,) = machine.tasks([sample.task])
    ratios: dict[str, list[float]] = {}
    with machine.workshop() as workshop:
        for number in range(1, repeats + 1):
            with evaluator_of(workshop, task) as evaluator:
                result, seconds = judged(evaluator, parse_reply(sample.reply))
            performance = result.evaluation.performance
            timing = None if performance is None else performance.timing
            for ratio in () if timing is None else timing.ratios:
                ratios.setdefault(ratio.baseline, []).append(ratio.speedup)
            report.row(
                number=number,
                verdict=result.evaluation.verdict.value,
                time_us=None if performance is None else round(performance.time_us, 3),
                speedups={} if timing is None else {ratio.baseline: round(ratio.speedup, 4) for ratio in timing.ratios},
                settled=None if timing is None else timing.settled,
                quarantined=None if performance is None else performance.quarantined,
                seconds=round(seconds, 2),
                reason=result.evaluation.reason[:200],
            )
            if number < repeats and report.out_of_time(number, repeats):
                break
    complete = {name: values for name, values in ratios.items() if len(values) == len(report.rows)}
    spreads = {name: (max(values) - min(values)) / median(values) for name, values in complete.items()}
    report.facts["spreads"] = spreads
    worst = max(spreads.values(), default=None)
    figure = "nothing was timed" if worst is None else f"{worst:.2%} over {len(report.rows)} evaluations"
    report.figure("spread of the ratio, widest", figure, f"<= {SPREAD:.0%}", met=worst is not None and worst <= SPREAD)


COUNTER_SETS: tuple[Literal["default", "full"], ...] = ("default", "full")
ROUGH = {"seconds": 0.5, "precision": 0.2}


def profile(machine: Machine, report: Report, sample: Sample = SOFTMAX) -> None:
    """Seconds, metrics by origin, and what the profile says is missing on this chip."""
    status = profiler_status()
    report.facts["profiler"] = status.message
    report.note(status.message)
    measured = True
    (task,) = machine.tasks([sample.task])
    for counters in COUNTER_SETS:
        rough = MeasureSettings.model_validate(machine.measure.model_dump() | ROUGH | {"counters": counters})
        with machine.workshop(rough) as workshop, evaluator_of(workshop, task) as evaluator:
            started = time.perf_counter()
            evaluation = evaluator.evaluate(parse_reply(sample.reply), seed=secrets.randbits(63))
            seconds = time.perf_counter() - started
        origins: dict[str, int] = {}
        for metric in () if evaluation.profile is None else evaluation.profile.metrics:
            origins[metric.origin.value] = origins.get(metric.origin.value, 0) + 1
        measured = measured and origins.get(Origin.MEASURED.value, 0) > 0
        report.row(
            counters=counters,
            verdict=evaluation.evaluation.verdict.value,
            profile_s=evaluation.evaluation.seconds.get("profile"),
            evaluation_s=round(seconds, 2),
            metrics=sum(origins.values()),
            origins=origins,
            bound=None if evaluation.profile is None else evaluation.profile.roofline.bound,
            hot_spots=sum(len(kernel.hot_spots) for kernel in evaluation.profile.kernels) if evaluation.profile else 0,
            notes=list(evaluation.profile.notes) if evaluation.profile else [],
            reason=evaluation.evaluation.reason[:300],
        )
        measured = measured and evaluation.evaluation.verdict is Verdict.OK
    report.figure("counters measured by ncu", "yes" if measured else "no", "yes", met=measured)


MODELNEW_TASK = "swish"


def modelnew(machine: Machine, report: Report, ways: Mapping[str, str] = MODELNEW) -> None:
    """Verdict, time and seconds of each."""
    from kernelforge.modelnew.evaluator import modelnew_candidate  # with it comes torch, which no other part needs

    (task,) = machine.tasks([MODELNEW_TASK])
    good = done = 0
    with machine.modelnew() as evaluators:
        for way, text in ways.items():
            started = time.perf_counter()
            evaluation = evaluators.evaluate(task, modelnew_candidate(text), seed=secrets.randbits(63)).evaluation
            performance = evaluation.performance
            done += 1
            good += evaluation.verdict is Verdict.OK
            report.row(
                way=way,
                verdict=evaluation.verdict.value,
                time_us=None if performance is None else round(performance.time_us, 2),
                speedup_eager=None if performance is None else performance.speedup_eager,
                quarantined=None if performance is None else performance.quarantined,
                seconds=round(time.perf_counter() - started, 2),
                stages=evaluation.seconds,
                reason=evaluation.reason[:300],
            )
            if done < len(ways) and report.out_of_time(done, len(ways)):
                break
    report.figure("ways that are OK", f"{good} of {done}", "all", met=good == done)
