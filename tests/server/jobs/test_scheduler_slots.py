"""Assignment of work to slots, and the memory cost of waiting."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path

import pytest

from kernelforge.server.base import utc_seconds
from kernelforge.server.jobs.requests import Registered
from kernelforge.server.jobs.scheduler import MAX_PASSED_OVER, FairQueue, match
from kernelforge.server.jobs.state import Deadlines, EvaluationTask, OwnedRun
from kernelforge.workers.base import Slot
from tests.server.service_tools import CALLER, accepted, serving, until
from tests.support.factories import make_candidate, make_fingerprint, make_task
from tests.support.inprocess_engine import InProcessEngine, request


def work(number: int, task: str) -> EvaluationTask:
    candidate = make_candidate(str(number))
    registered = Registered(f"core/{task}", make_task(), task)
    return EvaluationTask(number, f"key{number}", registered, candidate, candidate.hash, False, make_fingerprint())


def slot(name: str, *warm: str) -> Slot:
    return Slot(name, "emulated:h100", "idle", frozenset(warm))


def test_a_work_goes_where_its_oracle_is_warm() -> None:
    ready = deque([work(1, "a"), work(2, "b")])
    selected, first = match([slot("one", "b"), slot("two", "a")], ready)
    assert (selected.name, first.id) == ("two", 1)


def test_the_oldest_work_goes_first_where_nothing_is_warm() -> None:
    ready = deque([work(1, "a"), work(2, "b")])
    selected, first = match([slot("one"), slot("two")], ready)
    assert (selected.name, first.id) == ("one", 1)


def test_warm_oracles_keep_a_work_waiting_for_a_few_turns_at_most() -> None:
    ready = deque([work(0, "cold")])
    order = []
    for number in range(1, 3 * MAX_PASSED_OVER):
        ready.append(work(number, "warm"))
        _, taken = match([slot("one", "warm")], ready)
        ready.remove(taken)
        order.append(taken.id)
    assert order.index(0) == MAX_PASSED_OVER


async def test_jobs_that_ended_before_their_deadline_are_forgotten() -> None:
    live = set()
    deadlines = Deadlines(lambda due: None, live.__contains__)
    for number in range(50_000):
        live = {str(number)}
        deadlines._live = live.__contains__
        deadlines.add(4e9, str(number))
    assert len(deadlines._heap) <= 2_000
    deadlines.stop()


async def test_deadlines_ring_in_their_order() -> None:
    rung: list[str] = []
    deadlines = Deadlines(rung.extend, lambda job: True)
    now = utc_seconds()
    for name, after in (("third", 0.06), ("first", 0.02), ("second", 0.04), ("never", 3600.0)):
        deadlines.add(now + after, name)
    async with asyncio.timeout(10.0):
        while len(rung) < 3:
            await asyncio.sleep(0.01)
    assert rung == ["first", "second", "third"]
    deadlines.stop()


async def test_a_clock_that_is_set_meanwhile_moves_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[str] = []
    deadlines = Deadlines(rung.extend, lambda job: True)
    deadlines.add(utc_seconds() + 3600.0, "in an hour")
    before = utc_seconds()
    monkeypatch.setattr(time, "time", lambda: 4e9)
    deadlines.add(utc_seconds() + 0.01, "soon")
    async with asyncio.timeout(10.0):
        while not rung:
            await asyncio.sleep(0.01)
    assert rung == ["soon"]
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert utc_seconds() >= before
    deadlines.stop()


RUN = OwnedRun("local", "run")


def test_works_that_were_dropped_leave_a_line_though_others_go_before_them() -> None:
    queue: FairQueue[int] = FairQueue()
    queue.push(-1, {RUN: (10, 0)})
    for number in range(20_000):
        queue.push(number, {RUN: (-10, number)})
        queue.discard(number)
    assert len(queue._lines[RUN].heap) < 200
    assert queue.pop()[0] == -1


def test_runs_that_have_nothing_are_forgotten() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(5_000):
        queue.push(number, {OwnedRun("local", f"run-{number}"): (0, number)})
        assert queue.pop() is not None
    assert len(queue._lines) <= 64


@pytest.mark.parametrize("turns", range(10))
async def test_jobs_that_are_cancelled_at_any_moment_leave_workers_for_the_next(tmp_path: Path, turns: int) -> None:
    """A call of the engine may be cancelled before its first step: its worker is free all the same."""

    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(service, *(request(f"unwanted {index}") for index in range(8)))
        await until(lambda: len(engine.evaluated) == 2)
        engine.gate.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await service.cancel([job.id for job in jobs], CALLER)
        [after] = await accepted(service, request("after"))
        assert [job.result.outcome for job in await service.wait([after.id], None, 20.0)] == ["scored"]
