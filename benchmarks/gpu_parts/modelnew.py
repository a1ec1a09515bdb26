"""Part ``modelnew``: one task in every way that a ``ModelNew`` may be written, judged in its lane."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from benchmarks.gpu_parts.place import Place
from benchmarks.gpu_parts.report import Report
from benchmarks.gpu_parts.samples import MODELNEW
from kernelforge.modelnew import modelnew_candidate
from kernelforge.records import Verdict

TASK = "swish"


def modelnew(place: Place, report: Report, ways: Mapping[str, str] = MODELNEW) -> None:
    """Verdict, time and seconds of each."""
    (task,) = place.tasks([TASK])
    good = done = 0
    with place.lane() as lane:
        for way, text in ways.items():
            started = time.perf_counter()
            evaluation = lane.evaluate(task, modelnew_candidate(text), seed=secrets.randbits(63)).evaluation
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
