"""Jobs of the reward server are scored again from ``server.db``, as they were answered and under other policies."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from kernelforge.cli.main import main
from kernelforge.client.models import Job, JobRequest
from kernelforge.errors import UsageError
from kernelforge.rewards import POLICIES
from kernelforge.server.base import Caller
from kernelforge.server.jobs.results import completed_jobs
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.tasks.suites import Catalogue
from tests.support.inprocess_engine import InProcessEngine, request

CALLER = Caller("local")


async def answered(folder: Path, *requests: JobRequest, measures: bool = False, cancel: int = 0) -> list[Job]:
    """Ends of jobs of a real job service; the last ``cancel`` of them are cancelled before anything runs."""
    engine = InProcessEngine(measures=measures)
    engine.gate.clear()
    service = JobService(engine, Catalogue(["core"]), folder, JobServiceSettings())
    await service.start()
    try:
        ids = [job.id for job in await service.submit(requests, CALLER) if isinstance(job, Job)]
        assert len(ids) == len(requests)
        await service.cancel(ids[len(ids) - cancel :], CALLER)
        engine.gate.set()
        await service.wait(ids, None, 20.0)
        return [service.job(job_id) for job_id in ids]
    finally:
        await service.close()


def recompute(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[dict]:
    monkeypatch.setattr(sys, "argv", ["kernelforge", "reward", "recompute", "--jobs", "--json", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    output = capsys.readouterr()
    assert not exit_info.value.code, output.err
    return json.loads(output.out)["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("measures", [False, True])
def test_every_policy_gives_again_what_the_server_answered(
    tmp_path: Path, measures: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("v0", "WRONG", "BUILD")
    requests = [request(word, policy=policy) for policy in POLICIES for word in words]
    empty = JobRequest(task="core/gelu", completion="no candidate at all", policy="dr-kernel-tiers/1")
    jobs = asyncio.run(answered(tmp_path, *requests, empty, measures=measures))
    rows = recompute(capsys, monkeypatch, "--results", str(tmp_path))
    assert [row["id"] for row in rows] == [job.id for job in jobs]
    assert [row["value"] for row in rows] == [job.result.reward for job in jobs if job.result]
    assert not any(row["differs"] for row in rows)
    assert rows[-1]["value"] == -1
    assert len({row["value"] for row in rows}) > 4


@pytest.mark.slow
def test_jobs_are_of_a_run_and_scored_under_any_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request("v0", run_id="a"), request("v1", run_id="b"), request("WRONG", run_id="b")]
    jobs = asyncio.run(answered(tmp_path, *requests))
    rows = recompute(capsys, monkeypatch, "b", "--policy", "cuda-agent/1", "--results", str(tmp_path))
    assert [(row["id"], row["stored"], row["value"]) for row in rows] == [
        (jobs[1].id, 0.3, 1.0),
        (jobs[2].id, 0.0, -1.0),
    ]
    with pytest.raises(UsageError, match="no job of run 'c'; it has: a, b"):
        list(completed_jobs(tmp_path, "c"))


def test_a_job_that_was_cancelled_was_never_scored(tmp_path: Path) -> None:
    # Both ask for the same candidate: the evaluation is there, but it did not answer the second.
    first, second = asyncio.run(answered(tmp_path, request("v0"), request("v0"), cancel=1))
    assert second.result.outcome == "infra_error"
    assert [job.id for job in completed_jobs(tmp_path)] == [first.id]


def test_a_folder_without_jobs_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="start one with 'kernelforge serve'"):
        list(completed_jobs(tmp_path))
