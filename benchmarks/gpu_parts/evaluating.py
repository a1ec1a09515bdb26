"""Parts ``evaluate`` and ``repeat``: how long one evaluation takes, and whether it says the same each time."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.gpu_parts.place import ROOT, Place, evaluator_of
from benchmarks.gpu_parts.report import Report
from benchmarks.gpu_parts.samples import SAMPLES, SOFTMAX, Sample
from kernelforge.candidate import parse_reply
from kernelforge.evaluation import EvaluationResult, Evaluator
from kernelforge.records import Candidate, Verdict
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
    place: Place, report: Report, samples: Sequence[Sample] = SAMPLES, warm_evaluations: int = WARM_EVALUATIONS
) -> None:
    """Seconds of one evaluation, cold and warm, beside KernelBench's published protocol on the same kernel."""
    slowest = 0.0
    wrong: list[str] = []
    for done, sample in enumerate(samples, 1):
        (task,) = place.tasks([sample.task])
        started = time.perf_counter()
        warm: list[tuple[EvaluationResult, float]] = []
        with place.workshop() as workshop, evaluator_of(workshop, task) as evaluator:
            result, _ = judged(evaluator, fresh(sample))
            cold_s = time.perf_counter() - started
            if result.evaluation.verdict is Verdict.OK:
                warm = [judged(evaluator, fresh(sample)) for _ in range(warm_evaluations)]
        reference = size_source(task, "full")
        published = kernelbench(sample.load_inline, reference, place.torch_device, wait_s=report.left)
        theirs_s, flushed_s = _walls(published)
        bad = [one.evaluation for one, _ in warm if one.evaluation.verdict is not Verdict.OK]
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
    timings = [one.evaluation.performance.timing for one, _ in warm if one.evaluation.performance is not None]
    known = [timing.settled for timing in timings if timing is not None]
    return all(known) if known else None


def kernelbench(candidate: str, reference: str, device: str, *, wait_s: float) -> dict[str, Any]:
    """What :mod:`benchmarks.gpu_parts.kernelbench_process` answers, with ``wall_s``; or its ``error``."""
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


def repeat(place: Place, report: Report, sample: Sample = SOFTMAX, repeats: int = REPEATS) -> None:
    """The same kernel again and again, each time as a fresh evaluation: how far do speedups lie apart?"""
    (task,) = place.tasks([sample.task])
    ratios: dict[str, list[float]] = {}
    with place.workshop() as workshop:
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
                speedups={} if timing is None else {one.baseline: round(one.speedup, 4) for one in timing.ratios},
                settled=None if timing is None else timing.settled,
                quarantined=None if performance is None else performance.quarantined,
                seconds=round(seconds, 2),
                reason=result.evaluation.reason[:200],
            )
            if number < repeats and report.out_of_time(number, repeats):
                break
    whole = {name: values for name, values in ratios.items() if len(values) == len(report.rows)}
    spreads = {name: (max(values) - min(values)) / median(values) for name, values in whole.items()}
    report.facts["spreads"] = spreads
    worst = max(spreads.values(), default=None)
    figure = "nothing was timed" if worst is None else f"{worst:.2%} over {len(report.rows)} evaluations"
    report.figure("spread of the ratio, widest", figure, f"<= {SPREAD:.0%}", met=worst is not None and worst <= SPREAD)
