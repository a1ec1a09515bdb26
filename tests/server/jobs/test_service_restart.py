"""Accepted jobs survive the job service, whether it closes, drains, or is killed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from kernelforge.client.models import JobStatus
from kernelforge.errors import StoreError
from kernelforge.server.base import RequestRejected
from kernelforge.server.jobs.job_store import Batch
from kernelforge.server.jobs.service import JobService
from kernelforge.tasks.suites import Catalogue
from tests.server.service_tools import CALLER, CATALOGUE, accepted, ended, serving, until
from tests.support.inprocess_engine import InProcessEngine, request

SCRIPT = Path(__file__).parents[1] / "kill_server.py"


async def test_what_was_queued_is_queued_again_in_its_order_and_with_its_deadline(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(
            service,
            *(request(f"job {index}", priority=index == 7, profile=index == 3) for index in range(8)),
            request("late", deadline_s=0.3, tag="t"),
        )
        await until(lambda: engine.evaluated)
    await asyncio.sleep(0.3)
    restarted = InProcessEngine(slots=1)
    async with serving(tmp_path, restarted) as service:
        ids = [job.id for job in jobs]
        await service.wait(ids, None, 20.0)
        for job in jobs[:8]:
            assert service.job(job.id).result.outcome == "scored"
            assert service.job(job.id).submitted_at == job.submitted_at
        late = service.job(jobs[8].id)
        assert (late.status, late.result.error.code, late.tag) == (JobStatus.EXPIRED, "deadline", "t")
        numbers = [int(source.split()[2]) for source in restarted.evaluated]
        assert numbers == [7, 0, 1, 2, 3, 4, 5, 6]
        assert service.stored(jobs[3].id).profile is not None
        new = await ended(service, request("new"))
        assert new[0].id not in ids


async def test_a_drained_gateway_ends_what_runs_and_keeps_what_is_queued(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(service, *(request(f"job {index}") for index in range(8)))
        await until(lambda: engine.evaluated)
        draining = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        assert service.status().state == "draining"
        [refusal] = await service.submit([request("more")], CALLER)
        assert isinstance(refusal, RequestRejected)
        assert (refusal.status, refusal.code) == (503, "draining")
        engine.gate.set()
        await asyncio.wait_for(draining, 20.0)
        assert [service.job(job.id).status.ended for job in jobs] == [True] + [False] * 7
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        await service.wait([job.id for job in jobs], None, 20.0)
        assert len(engine.evaluated) == 7


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE jobs SET priority = 'x' WHERE status = 'queued'", "open job"),
        ("UPDATE works SET choices = '[1, 2]' WHERE state = 'open'", "open task"),
        ("UPDATE works SET source = NULL WHERE state = 'open'", "open task"),
        ("INSERT INTO runs (run, weight) VALUES ('r', 'heavy')", "the settings of run r"),
        ("INSERT INTO runs (run, weight) VALUES ('r', 9e999)", "the settings of run r"),
    ],
)
async def test_an_open_job_that_cannot_be_read_keeps_the_gateway_from_starting_and_is_named(
    tmp_path: Path, change: str, named: str
) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        await accepted(service, request("job"))
    with sqlite3.connect(tmp_path / "server.db") as plain:
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute(change)
    with pytest.raises(StoreError, match=f"{named}.*cannot read"):
        async with serving(tmp_path):
            pass
    with sqlite3.connect(tmp_path / "server.db") as plain:
        assert plain.execute("SELECT count(*) FROM jobs WHERE status = 'queued'").fetchone() == (1,), "it is kept"


async def test_an_evaluation_that_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        [first] = await ended(service, request("job"))
    with sqlite3.connect(tmp_path / "server.db") as plain:
        plain.execute("UPDATE works SET evaluation = ?", ("[" * 100_000 + "]" * 100_000,))
        plain.execute("UPDATE jobs SET result = '[]'")
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        [job] = await ended(service, request("job"))
        assert len(engine.evaluated) == 1
        assert job.result.outcome == "scored"
        with pytest.raises(StoreError, match=f"job {first.id} .*cannot read"):
            service.job(first.id)


async def test_a_folder_has_one_gateway(tmp_path: Path) -> None:
    async with serving(tmp_path):
        second = JobService(InProcessEngine(), CATALOGUE, tmp_path)
        with pytest.raises(StoreError, match="another server"):
            await second.start()
    async with serving(tmp_path):
        pass


async def test_a_job_for_a_task_that_is_offered_no_more_ends_without_a_score(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        [gone, stays] = await accepted(service, request("v0"), request("v0", task="core/softmax"))
    fewer = JobService(InProcessEngine(), Catalogue(["core"], tasks=["softmax"]), tmp_path)
    await fewer.start()
    try:
        await fewer.wait([stays.id], None, 20.0)
        await until(lambda: fewer.job(gone.id).status.ended)
        assert fewer.job(gone.id).result.error.code == "oracle"
        assert fewer.job(stays.id).result.outcome == "scored"
    finally:
        await fewer.close()


async def test_tables_of_others_in_the_file_are_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "server.db") as database:
        database.execute("CREATE TABLE tokens (name TEXT)")
        database.execute("INSERT INTO tokens VALUES ('mine')")

    async with serving(tmp_path) as service:
        [job] = await ended(service, request())
        assert job.result.outcome == "scored"
    with sqlite3.connect(tmp_path / "server.db") as database:
        assert database.execute("SELECT name FROM tokens").fetchall() == [("mine",)]


async def test_another_programs_file_is_not_taken_over(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "server.db") as database:
        database.execute("CREATE TABLE songs (name TEXT)")

    with pytest.raises(StoreError, match="other program"):
        async with serving(tmp_path):
            pass


async def test_a_full_disk_refuses_jobs_and_loses_none_that_were_accepted(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        [kept] = await accepted(service, request("kept"))
        await until(lambda: engine.evaluated)
        await asyncio.sleep(0.05)
        service._state.store._writer._connection.execute("PRAGMA max_page_count = 1")  # what a full disk looks like
        outcomes = await service.submit([request(f"{'x' * 8000} {index}") for index in range(4)], CALLER)
        assert all(
            isinstance(outcome, RequestRejected) and (outcome.status, outcome.code) == (503, "storage")
            for outcome in outcomes
        )
        assert service.status().queued + service.status().running == 1
        engine.gate.set()
        service._state.store._writer._connection.execute("PRAGMA max_page_count = 1000000")
        await service.wait([kept.id], None, 20.0)
        assert service.job(kept.id).result.outcome == "scored"
        [after] = await ended(service, request("after"))
        assert after.result.outcome == "scored"


@pytest.mark.parametrize("turns", range(10))
async def test_jobs_that_are_refused_at_any_moment_leave_workers_for_the_next(tmp_path: Path, turns: int) -> None:
    """A commit may fail before, while, or after an engine is given what the failed batch would have kept."""

    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        journal, loop = service._state.store, asyncio.get_running_loop()

        def fails_later(batch: Batch) -> asyncio.Future[None]:
            failing: asyncio.Future[None] = loop.create_future()

            def count_down(turns_left: int) -> None:
                if turns_left:
                    loop.call_soon(count_down, turns_left - 1)
                else:
                    failing.set_exception(StoreError("the disk is full"))

            count_down(turns)
            return failing

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(journal, "commit", fails_later)
            outcomes = await service.submit([request(f"lost {index}") for index in range(4)], CALLER)
        assert all(isinstance(outcome, RequestRejected) and outcome.code == "storage" for outcome in outcomes)
        engine.gate.set()
        [after] = await accepted(service, request("after"))
        assert [job.result.outcome for job in await service.wait([after.id], None, 20.0)] == ["scored"]


async def test_old_jobs_and_evaluations_make_room(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine, keep_jobs=3, keep_evaluations=2, keep_exemplars=0) as service:
        jobs = [(await ended(service, request(f"v{index}")))[0] for index in range(6)]
        [keyed] = await service.submit([request("v0")], CALLER, ["k"])
        engine.gate.clear()
        [open_job] = await accepted(service, request("open"))
        assert await service._retention.prune() > 0
        for job in jobs[:4]:
            with pytest.raises(RequestRejected):
                service.job(job.id)
        assert service.job(jobs[5].id).result.outcome == "scored"
        assert service.job(keyed.id).result.cached
        assert not service.job(open_job.id).status.ended
        engine.gate.set()
        await service.wait([open_job.id], None, 20.0)
        before = len(engine.evaluated)
        [evicted_job] = await ended(service, request("v1"))
        assert not evicted_job.result.cached, "its evaluation was not kept"
        assert len(engine.evaluated) == before + 1
        [cached_job] = await accepted(service, request("v5"))
        assert cached_job.result.cached


@pytest.mark.slow
async def test_a_gateway_that_is_killed_loses_no_job_and_ends_each_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path), "10"], check=True, timeout=200)
    accepted_file = tmp_path / "accepted.txt"
    ids = accepted_file.read_text().split()
    ids = ids if accepted_file.read_text().endswith("\n") else ids[:-1]
    assert len(set(ids)) == len(ids) >= 100

    async with serving(tmp_path) as service:
        ended_jobs = await service.wait(ids, None, 240.0)
        assert len(ended_jobs) == len(ids)
        assert all(job.result.outcome == "scored" for job in ended_jobs)
        # A job may be in the journal although its caller got no answer.
        await until(lambda: service.status().queued + service.status().running == 0, 240.0)
    with sqlite3.connect(tmp_path / "server.db") as database:
        ends = dict(database.execute("SELECT job, count(*) FROM ends GROUP BY job"))
        open_works = database.execute("SELECT count(*) FROM works WHERE state = 'open'").fetchone()[0]
    assert set(ids) <= ends.keys()
    assert set(ends.values()) == {1}
    assert open_works == 0
