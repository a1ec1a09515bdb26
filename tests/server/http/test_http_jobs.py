"""Jobs over HTTP: submitted, followed, waited for, cancelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from kernelforge.client.models import BatchAnswer, CancelAnswer, Job, JobStatus, ProblemAnswer, WaitAnswer
from kernelforge.server.http.limits import WATCH_AFTER_S, Limits
from tests.server.http_serving import JOB, SLOW_JOB, WAIT_S, client_of, served
from tests.support.minimal_service import MinimalService


@pytest.fixture
def service() -> MinimalService:
    return MinimalService()


@pytest.fixture
def client(service: MinimalService) -> httpx2.AsyncClient:
    return client_of(service)


def events_of(text: str) -> list[Job]:
    """Jobs of a stream of events; anything but comments and jobs is a fault."""
    jobs = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            kind, data = block.split("\n")
            assert kind == "event: job"
            jobs.append(Job.model_validate_json(data.removeprefix("data: ")))
    return jobs


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def until_held(client: httpx2.AsyncClient, count: int, metrics: str = "/metrics") -> None:
    """Wait until the server holds so many requests."""
    async with asyncio.timeout(WAIT_S):
        while f"kernelforge_held_requests {count}.0\n" not in (await client.get(metrics)).text:
            await asyncio.sleep(0.01)


async def test_a_job_is_accepted_and_polled_until_it_has_ended(
    service: MinimalService, client: httpx2.AsyncClient
) -> None:
    answer = await client.post("/v1/jobs", json={**SLOW_JOB, "tag": "mine"})
    assert answer.status_code == 202
    job = Job.model_validate_json(answer.text)
    assert (job.status, job.tag) == (JobStatus.QUEUED, "mine")
    assert Job.model_validate_json((await client.get(f"/v1/jobs/{job.id}")).text) == job
    await service.finish(job.id, 0.7)
    ended = Job.model_validate_json((await client.get(f"/v1/jobs/{job.id}")).text)
    assert ended.result.reward == 0.7


async def test_a_job_that_the_cache_answers_has_status_200(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/jobs", json=JOB)
    assert answer.status_code == 200
    assert Job.model_validate_json(answer.text).status is JobStatus.FINISHED


async def test_a_long_poll_answers_when_the_job_ends(service: MinimalService, client: httpx2.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]
    poll = asyncio.create_task(client.get(f"/v1/jobs/{job}", params={"wait_s": 50}))
    await asyncio.sleep(2 * WATCH_AFTER_S)
    assert not poll.done()
    await service.finish(job, 1.0)
    assert (await poll).json()["status"] == "finished"


async def test_a_long_poll_that_runs_out_of_time_gives_the_job_as_it_is(client: httpx2.AsyncClient) -> None:
    job = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]
    assert (await client.get(f"/v1/jobs/{job}", params={"wait_s": 0.05})).json()["status"] == "queued"
    assert (await client.get(f"/v1/jobs/{job}", params={"wait_s": 61})).status_code == 422


async def test_an_idempotency_key_gives_the_job_of_then_and_refuses_another_request(client: httpx2.AsyncClient) -> None:
    key = {"Idempotency-Key": "step-1"}
    first, second = [await client.post("/v1/jobs", json=SLOW_JOB, headers=key) for _ in range(2)]
    assert first.json()["id"] == second.json()["id"]
    other = await client.post("/v1/jobs", json=JOB, headers=key)
    assert other.status_code == 409
    assert (await client.post("/v1/jobs", json=JOB, headers={"Idempotency-Key": "a b"})).status_code == 422


async def test_each_job_of_a_batch_is_accepted_or_refused_by_itself(client: httpx2.AsyncClient) -> None:
    jobs = [JOB, {**JOB, "task": "core/none"}, {**JOB, "completion": "full"}, SLOW_JOB]
    answer = await client.post("/v1/jobs/batch", json={"jobs": jobs, "idempotency_keys": list("abcd")})
    items = BatchAnswer.model_validate_json(answer.text).items
    assert [item.problem.code if item.problem else item.job and item.job.status for item in items] == [
        "finished", "unknown_task", "queue_full", "queued",
    ]  # fmt: skip
    assert items[2].problem.retry_after_s == 0.2


async def test_waiting_for_any_k_answers_with_those_that_ended_first(
    service: MinimalService, client: httpx2.AsyncClient
) -> None:
    ids = [(await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"] for _ in range(3)]
    wait = asyncio.create_task(client.post("/v1/jobs/wait", json={"ids": ids, "k": 2, "timeout_s": 50}))
    await service.finish(ids[2], 1.0)
    await asyncio.sleep(2 * WATCH_AFTER_S)
    assert not wait.done()
    await service.finish(ids[0], 2.0)
    answer = WaitAnswer.model_validate_json((await wait).text)
    assert [job.id for job in answer.ended] == [ids[2], ids[0]]
    assert answer.pending == [ids[1]]


async def test_cancelling_ends_what_had_not_ended_and_leaves_the_rest(client: httpx2.AsyncClient) -> None:
    done = (await client.post("/v1/jobs", json=JOB)).json()["id"]
    first, two, three = [
        (await client.post("/v1/jobs", json={**SLOW_JOB, "run_id": run_id})).json()["id"] for run_id in "abb"
    ]
    deleted = Job.model_validate_json((await client.delete(f"/v1/jobs/{first}")).text)
    assert deleted.status is JobStatus.CANCELLED
    assert (await client.delete(f"/v1/jobs/{done}")).json()["status"] == "finished"
    answer = await client.post("/v1/jobs/cancel", json={"ids": [done, two]})
    assert CancelAnswer.model_validate_json(answer.text).cancelled == [two]
    answer = await client.post("/v1/jobs/cancel", json={"run_id": "b"})
    assert CancelAnswer.model_validate_json(answer.text).cancelled == [three]


async def test_the_events_of_a_job_are_how_it_is_and_each_change(
    service: MinimalService, client: httpx2.AsyncClient
) -> None:
    job = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]
    stream = asyncio.create_task(client.get(f"/v1/jobs/{job}/events"))
    await until(lambda: len(service.watched_jobs) == 1)
    await service.start(job)
    await until(lambda: len(service.watched_jobs) == 2)
    await service.finish(job, 1.0)
    answer = await stream
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [job.status for job in events_of(answer.text)] == ["queued", "running", "finished"]


async def test_the_events_of_many_jobs_end_after_the_last_of_them(
    service: MinimalService, client: httpx2.AsyncClient
) -> None:
    ids = [(await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"] for _ in range(3)]
    stream = asyncio.create_task(client.post("/v1/jobs/events", json={"ids": [*ids, ids[0]]}))
    for event_count, job in enumerate(reversed(ids), start=len(ids)):
        await until(lambda event_count=event_count: len(service.watched_jobs) == event_count)
        await service.finish(job, 1.0)
    ended = [job.id for job in events_of((await stream).text) if job.status.ended]
    assert ended == list(reversed(ids))
    assert (await client.post("/v1/jobs/events", json={"ids": [ids[0], "none"]})).status_code == 404


@pytest.mark.slow
async def test_a_reward_comes_in_one_request_and_its_job_is_cancelled_when_time_runs_out(
    client: httpx2.AsyncClient,
) -> None:
    assert (await client.post("/v1/rewards", json=JOB)).json()["result"]["reward"] == 1.5
    late = Job.model_validate_json((await client.post("/v1/rewards?timeout_s=0.05", json=SLOW_JOB)).text)
    assert (late.status, late.result.outcome) == (JobStatus.CANCELLED, "infra_error")


async def test_a_job_is_cancelled_when_who_waits_for_its_reward_goes_away() -> None:
    service = MinimalService()
    async with served(service) as (host, port):
        body = json.dumps(SLOW_JOB).encode()
        head = f"POST /v1/rewards HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        _, writer = await asyncio.open_connection(host, port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: service.jobs)
        await asyncio.sleep(2 * WATCH_AFTER_S)
        assert not service.jobs["job-1"].status.ended
        writer.close()
        await until(lambda: service.jobs["job-1"].status is JobStatus.CANCELLED)


@pytest.mark.slow
async def test_nothing_is_followed_any_more_when_who_follows_it_goes_away() -> None:
    service = MinimalService()
    async with served(service) as (host, port), httpx2.AsyncClient(base_url=f"http://{host}:{port}") as client:
        job = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]

        async with client.stream("GET", f"/v1/jobs/{job}/events") as stream:
            assert (await anext(stream.aiter_lines())) == "event: job"
            assert service.watching == 1
            await until_held(client, 1)
        await until(lambda: service.watching == 0)
        await until_held(client, 0)


async def test_more_requests_than_may_be_held_are_told_to_come_again() -> None:
    service = MinimalService()
    client = client_of(service, limits=Limits(long_polls=1))
    job = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]
    poll = asyncio.create_task(client.get(f"/v1/jobs/{job}?wait_s=50"))
    await until_held(client, 1)
    refused = await client.post("/v1/jobs/wait", json={"ids": [job]})
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "1"
    assert ProblemAnswer.model_validate_json(refused.text).error.code == "too_many_held"
    await service.finish(job, 1.0)
    assert (await poll).status_code == 200
    assert (await client.post("/v1/jobs/wait", json={"ids": [job]})).status_code == 200


async def test_a_server_that_ends_lets_its_held_requests_go() -> None:
    service = MinimalService()
    async with httpx2.AsyncClient(timeout=WAIT_S) as client:
        async with served(service) as (host, port):
            server = f"http://{host}:{port}/v1/jobs"
            job = (await client.post(server, json=SLOW_JOB)).json()["id"]
            poll = asyncio.create_task(client.get(f"{server}/{job}?wait_s=50"))
            stream = asyncio.create_task(client.get(f"{server}/{job}/events"))
            await until_held(client, 2, f"http://{host}:{port}/metrics")
            await until(lambda: service.watched_jobs)
            await asyncio.sleep(2 * WATCH_AFTER_S)
            assert not poll.done()
        answer, events = await asyncio.gather(poll, stream)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    assert [job.status for job in events_of(events.text)] == ["queued"]
    assert service.state == "draining"
    assert not service.jobs[job].status.ended


@pytest.mark.parametrize("path", ["/v1/jobs/none", "/v1/jobs/none/events"])
async def test_an_unknown_job_is_not_found(path: str, client: httpx2.AsyncClient) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert ProblemAnswer.model_validate_json(answer.text).error.code == "unknown_job"
