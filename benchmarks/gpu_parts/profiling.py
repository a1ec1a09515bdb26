"""Part ``profile``: Nsight Compute with the default counters and with all of them."""

from __future__ import annotations

import secrets
import time
from typing import Literal

from benchmarks.gpu_parts.place import Place, evaluator_of
from benchmarks.gpu_parts.report import Report
from benchmarks.gpu_parts.samples import SOFTMAX, Sample
from kernelforge.candidate import parse_reply
from kernelforge.devices.cuda.tools.ncu import profiler_status
from kernelforge.records import MeasureSettings, Origin, Verdict

SETS: tuple[Literal["default", "full"], ...] = ("default", "full")
ROUGH = {"seconds": 0.5, "precision": 0.2}


def profile(place: Place, report: Report, sample: Sample = SOFTMAX) -> None:
    """Seconds, metrics by origin, and what the profile says is missing on this chip."""
    status = profiler_status()
    report.facts["profiler"] = status.message
    report.note(status.message)
    measured = True
    (task,) = place.tasks([sample.task])
    for counters in SETS:
        rough = MeasureSettings.model_validate(place.measure.model_dump() | ROUGH | {"counters": counters})
        with place.workshop(rough) as workshop, evaluator_of(workshop, task) as evaluator:
            started = time.perf_counter()
            found = evaluator.evaluate(parse_reply(sample.reply), seed=secrets.randbits(63))
            seconds = time.perf_counter() - started
        origins: dict[str, int] = {}
        for metric in () if found.profile is None else found.profile.metrics:
            origins[metric.origin.value] = origins.get(metric.origin.value, 0) + 1
        measured = measured and origins.get(Origin.MEASURED.value, 0) > 0
        report.row(
            counters=counters,
            verdict=found.evaluation.verdict.value,
            profile_s=found.evaluation.seconds.get("profile"),
            evaluation_s=round(seconds, 2),
            metrics=sum(origins.values()),
            origins=origins,
            bound=None if found.profile is None else found.profile.roofline.bound,
            hot_spots=sum(len(kernel.hot_spots) for kernel in found.profile.kernels) if found.profile else 0,
            notes=list(found.profile.notes) if found.profile else [],
            reason=found.evaluation.reason[:300],
        )
        measured = measured and found.evaluation.verdict is Verdict.OK
    report.figure("counters measured by ncu", "yes" if measured else "no", "yes", met=measured)
