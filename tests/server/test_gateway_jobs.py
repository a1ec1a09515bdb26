"""What becomes of a job: a score, trouble, or an end before it has either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from inprocess_engine import InProcessEngine, completion, request

from kernelforge.client.wire import Job, JobRequest, JobStatus, RunSettings
from kernelforge.server.base import Caller, Refusal
from kernelforge.server.gateway import Gateway
from kernelforge.server.settings import GatewaySettings
from kernelforge.tasks.catalogue import Catalogue

CALLER = Caller("local")
CATALOGUE = Catalogue(["core"])


@asynccontextmanager
async def serving(folder: Path, engine: InProcessEngine | None = None, **settings: object) -> AsyncIterator[Gateway]:
    gateway = Gateway(engine or InProcessEngine(), CATALOGUE, folder, GatewaySettings(**settings))
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.close()


async def accepted(gateway: Gateway, *requests: JobRequest) -> list[Job]:
    jobs = await gateway.submit(requests, CALLER)
    for job in jobs:
        if isinstance(job, Refusal):
            raise job
    return jobs


async def ended(gateway: Gateway, *requests: JobRequest) -> list[Job]:
    jobs = await accepted(gateway, *requests)
    await gateway.wait([job.id for job in jobs], None, 20.0)
    return [gateway.job(job.id) for job in jobs]


def test_a_candidate_is_evaluated_and_scored(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as gateway:
            right, wrong = await ended(gateway, request("v0", tag="mine"), request("WRONG"))
            assert right.status is JobStatus.FINISHED
            assert right.result.outcome == "scored"
            assert right.result.reward == pytest.approx(0.3)
            assert right.result.components.correct == 1
            assert right.tag == "mine"
            assert wrong.result.verdict == "WRONG"
            assert wrong.result.reward == 0
            assert gateway.stored(right.id).evaluation.key == right.result.evaluation

    asyncio.run(main())
