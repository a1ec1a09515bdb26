"""Many tasks that wait, with few requests between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kernelforge.client import AsyncClient
from kernelforge.client.models import Job, JobStatus, WaitAnswer
from kernelforge.client.transport import IDS_PER_REQUEST, SharedWait
from kernelforge.errors import ServerError
from tests.support.protocol_server import TASK, ProtocolServer, scored


def ended(job_id: str) -> Job:
    return Job(id=job_id, status=JobStatus.FINISHED, task=TASK, run_id="default", submitted_at=1.0, result=scored(1.0))


class ScriptedWait:
    """Answers a wait when a test says which jobs have ended."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.open = self.most = 0
        self.done: set[str] = set()
        self.unknown: set[str] = set()
        self.changed = asyncio.Event()

    def end(self, *ids: str) -> None:
        self.done.update(ids)
        self.changed.set()
        self.changed = asyncio.Event()

    async def __call__(self, ids: Sequence[str], seconds: float) -> WaitAnswer:
        self.requests.append(list(ids))
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            if self.unknown & set(ids):
                raise ServerError("unknown job", status=404, code="unknown_job")
            while not self.done & set(ids) and seconds:
                await self.changed.wait()
        finally:
            self.open -= 1
        return WaitAnswer(
            ended=[ended(job_id) for job_id in ids if job_id in self.done],
            pending=[job_id for job_id in ids if job_id not in self.done],
        )


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_thousand_waits_take_few_requests() -> None:
    waiting = ScriptedWait()
    shared = SharedWait(waiting, requests=4)
    waits = [asyncio.create_task(shared.wait(f"j{number}", 60.0)) for number in range(1_000)]
    await settle()
    assert waiting.most == 4
    waiting.end(*(f"j{number}" for number in range(1_000)))
    jobs = await asyncio.gather(*waits)
    assert [job.id for job in jobs if job] == [f"j{number}" for number in range(1_000)]
    assert waiting.most == 4
    assert max(map(len, waiting.requests)) == IDS_PER_REQUEST
    assert len(waiting.requests) <= 4 + 1_000 / IDS_PER_REQUEST + 1


async def test_a_job_that_comes_late_is_asked_for_beside_those_that_wait() -> None:
    waiting = ScriptedWait()
    shared = SharedWait(waiting, requests=4)
    early = asyncio.create_task(shared.wait("j1", 60.0))
    await settle()
    waiting.done.add("j2")
    late = await shared.wait("j2", 60.0)
    assert late is not None
    assert not early.done()
    waiting.end("j1")
    assert await early is not None


async def test_two_may_wait_for_one_job_and_one_may_leave() -> None:
    waiting = ScriptedWait()
    shared = SharedWait(waiting, requests=4)
    stays = asyncio.create_task(shared.wait("j1", 60.0))
    assert await shared.wait("j1", 0.01) is None
    await settle()
    assert not stays.done()
    waiting.end("j1")
    assert await stays is not None
    assert waiting.requests == [["j1"]]


async def test_nothing_is_asked_once_nobody_waits() -> None:
    waiting = ScriptedWait()
    shared = SharedWait(waiting, requests=4)
    assert await shared.wait("j1", 0.01) is None
    await settle()
    assert waiting.open == 0
    waiting.end("j1")
    assert await shared.wait("j1", 60.0) is not None


async def test_a_job_that_the_server_forgot_fails_alone() -> None:
    waiting = ScriptedWait()
    waiting.unknown.add("j2")
    shared = SharedWait(waiting, requests=1)
    waits = [asyncio.create_task(shared.wait(job_id, 60.0)) for job_id in ("j1", "j2", "j3")]
    await settle()
    waiting.end("j1", "j3")
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Job, ServerError, Job]


async def test_a_server_that_is_gone_is_told_to_all_who_wait() -> None:
    async def gone(ids: Sequence[str], seconds: float) -> WaitAnswer:
        raise ServerError("gone", code="unreachable")

    shared = SharedWait(gone, requests=2)
    waits = [shared.wait(f"j{number}", 60.0) for number in range(3)]
    outcomes = await asyncio.gather(*waits, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["gone"] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3


async def test_closing_tells_whoever_still_waits() -> None:
    shared = SharedWait(ScriptedWait(), requests=2)
    wait = asyncio.create_task(shared.wait("j1", 60.0))
    await settle()
    await shared.aclose()
    with pytest.raises(ServerError, match="closed"):
        await wait


async def test_more_rollouts_than_connections_are_all_scored(server: ProtocolServer) -> None:
    """Waiting requests leave connections for submissions."""

    async with AsyncClient(server.url, connections=4) as client:
        tasks = [asyncio.create_task(client.score(TASK, "hold")) for _ in range(10)]
        await asyncio.to_thread(server.until, lambda: len(server.jobs) == 10)
        others = await asyncio.gather(*(client.score(TASK, f"{number}") for number in range(30)))
        for job_id, request in list(server.requests.items()):
            if request.completion == "hold":
                server.release(job_id, 7.0)
        assert [result.reward for result in await asyncio.gather(*tasks)] == [7.0] * 10
        assert [result.reward for result in others] == [float(number) for number in range(30)]


async def test_waiting_for_what_the_server_does_not_know_is_refused(server: ProtocolServer) -> None:
    async with AsyncClient(server.url) as client:
        with pytest.raises(ServerError) as raised:
            await client.job("j99")
    assert raised.value.status == 404
