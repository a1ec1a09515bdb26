"""Exemplars of runs: which candidates become some, duplicates, eviction, restarts, and whose they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kernelforge.client.models import JobRequest, RunSettings
from kernelforge.records import Attempt, Verdict
from kernelforge.server.base import Caller
from kernelforge.server.jobs.exemplars import evicted
from kernelforge.server.jobs.service import JobService
from kernelforge.workers.base import EvaluationOrder, EvaluationReport
from tests.server.service_tools import CALLER, ended, serving
from tests.support.factories import make_attempt, make_build, modelled, uncompared_evaluation
from tests.support.inprocess_engine import InProcessEngine, request


class TimedEngine(InProcessEngine):
    """The number in a candidate's first line is its modelled time and its PTX; UNCOMPARED is not compared."""

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        report = await super().evaluate(order, slot)
        evaluation, line = report.evaluation, order.candidate.source.splitlines()[0]
        number = re.search(r"\d+", line)
        if evaluation is None or evaluation.verdict is not Verdict.OK:
            return report
        changes: dict[str, Any] = {}
        if "UNCOMPARED" in line:
            changes["correctness"] = uncompared_evaluation().correctness
        if number is not None:
            timed = modelled(float(number[0])) if order.profile else None
            changes |= {"performance": timed, "build": make_build(ptx_hash=f"ptx{number[0]}")}
        return report.model_copy(update={"evaluation": evaluation.model_copy(update=changes)})


def timed(time_us: float, **fields: Any) -> JobRequest:
    """A profiled job whose candidate takes so long."""
    return request(**source(f"{time_us:g}", f"out[{time_us:g}] = 1;"), profile=True, **fields)


def source(text: str, body: str = "") -> dict[str, Any]:
    plan = "def forward(x):\n    out = empty_like(x)\n    k[1, 32](out)\n    return out"
    return {
        "completion": None,
        "candidate": {"source": f"// {text}\n__global__ void k(float* out) {{{body}}}", "plan": plan},
    }


async def exemplars_of(service: JobService, caller: str = CALLER.name, run: str = "default") -> list[Attempt]:
    _, task = service.find_task("core/gelu")
    return await service.exemplars(caller, run, task)


async def test_right_candidates_are_exemplars_once_and_failed_ones_until_there_are_some(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        for number in range(6):
            await ended(service, request(f"WRONG {number}"))
        failed = await exemplars_of(service)
        assert [attempt.candidate.source.splitlines()[0] for attempt in failed if attempt.candidate] == [
            f"// WRONG {number}" for number in range(2, 6)
        ]
        await ended(service, request("no code").model_copy(update={"completion": "no code"}))
        await ended(service, request("UNCOMPARED 5"), request("TROUBLE"))
        assert [attempt.id for attempt in await exemplars_of(service)] == [attempt.id for attempt in failed]
        await ended(
            service,
            request(**source("30", "int a = 1;")),
            request(**source("31", "int  b = 1; /* named otherwise */")),  # the same text to the normaliser
            request(**source("30", "int c = 1; c = 2;")),  # the same PTX
            request(**source("20", "out[1] = 2;")),
        )
        right = await exemplars_of(service)
        assert len(right) == 2
        assert all(attempt.evaluation.verdict is Verdict.OK for attempt in right)
        assert [attempt.evaluation.performance for attempt in right] == [None, None]
        # A job that asks for a profile gives an exemplar its time.
        await ended(service, request(**source("20", "out[1] = 2;"), profile=True))
        times = [attempt.evaluation.performance for attempt in await exemplars_of(service)]
        assert [None if performance is None else performance.time_us for performance in times] == [None, 20.0]


async def test_exemplars_survive_a_restart_and_are_their_callers_and_runs(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await ended(service, timed(40), timed(50, run_id="other"))
        await service.submit([timed(40)], Caller("rival"))
        before = await exemplars_of(service)
        assert len(before) == 1
    async with serving(tmp_path, TimedEngine()) as service:
        assert await exemplars_of(service) == before
        # An answer from the cache enters the run of its job.
        await ended(service, timed(40, run_id="other"))
        assert len(await exemplars_of(service, run="other")) == 2
        assert [len(await exemplars_of(service, caller)) for caller in ("rival", "stranger")] == [1, 0]


async def test_a_full_store_keeps_the_fastest_and_every_speed(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        assert (await service.set_run("default", RunSettings(exemplars=3))).exemplars == 3
        times = (100, 101, 102, 103, 10, 50)
        for time_us in times:
            await ended(service, timed(time_us))
        kept = [a.evaluation.performance.time_us for a in await exemplars_of(service) if a.evaluation.performance]
        assert kept == [103.0, 10.0, 50.0]
    async with serving(tmp_path, TimedEngine()) as service:
        assert len(await exemplars_of(service)) == 3
        assert [run.exemplars for run in service.runs()] == [3]
        await service.set_run("default", RunSettings(exemplars=0))
        assert await exemplars_of(service) == []


def test_eviction_takes_the_oldest_of_the_fullest_bucket() -> None:
    def of(number: int, time_us: float | None) -> Attempt:
        attempt = make_attempt(number)
        performance = None if time_us is None else modelled(time_us)
        evaluation = attempt.evaluation.model_copy(update={"performance": performance})
        return attempt.model_copy(update={"evaluation": evaluation})

    attempts = [of(number, time) for number, time in enumerate((9.0, None, None, None, 20.0, 20.1, 40.0))]
    assert [attempt.number for attempt in evicted(attempts, 5)] == [0, 3, 4, 5, 6]
    assert [attempt.number for attempt in evicted(attempts, 1)] == [0]
    assert evicted(attempts, 0) == []
