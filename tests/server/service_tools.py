"""A job service over the in-process engine, for tests of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kernelforge.client.models import Job, JobRequest
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.tasks.suites import Catalogue
from tests.support.inprocess_engine import InProcessEngine

CALLER = Caller("local")
CATALOGUE = Catalogue(["core"])


@asynccontextmanager
async def serving(
    folder: Path, engine: InProcessEngine | None = None, shares: dict[str, float] | None = None, **settings: Any
) -> AsyncIterator[JobService]:
    service = JobService(engine or InProcessEngine(), CATALOGUE, folder, JobServiceSettings(**settings), shares)
    await service.start()
    try:
        yield service
    finally:
        await service.close()


async def accepted(service: JobService, *requests: JobRequest) -> list[Job]:
    """Submit; the first refusal is raised."""
    jobs = await service.submit(requests, CALLER)
    for job in jobs:
        if isinstance(job, RequestRejected):
            raise job
    return jobs


async def ended(service: JobService, *requests: JobRequest) -> list[Job]:
    """Submit, wait for all, in the order of the requests."""
    jobs = await accepted(service, *requests)
    done = await service.wait([job.id for job in jobs], None, 240.0)
    assert len(done) == len({job.id for job in jobs})
    return [service.job(job.id) for job in jobs]


async def until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait until something is so; a test that waits in vain fails."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)
