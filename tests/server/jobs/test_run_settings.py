"""Settings of runs: bounds of staleness; runs with nothing to do are forgotten, and looking for them costs little."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kernelforge.client.models import JobRequest, RunSettings
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.http.limits import LongPollLimiter
from kernelforge.server.http.logs import Metrics
from kernelforge.server.jobs import state
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import ActiveJobs, RunState
from tests.server.service_tools import CALLER, ended, serving, until
from tests.support.inprocess_engine import InProcessEngine, request


def test_idle_runs_are_forgotten_and_others_are_not_looked_at_for_each_that_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0

    class Counted(RunState):
        @property
        def forgettable(self) -> bool:
            nonlocal looked
            looked += 1
            return self.weight == 1.0

    monkeypatch.setattr(state, "_MOST_RUNS", 100)
    monkeypatch.setattr(state, "RunState", Counted)
    runs = ActiveJobs()
    for number in range(500):
        runs.run(f"busy{number}").weight = 2.0
    assert (len(runs.runs), looked) == (500, sum(range(100, 500, 10)))
    for number in range(500):
        runs.run(f"idle{number}")
    assert len(runs.runs) < 550
    assert all(f"busy{number}" in runs.runs for number in range(500))


async def refusals(service: JobService, *requests: JobRequest) -> list[tuple[int, str] | None]:
    """Status and code of each refusal; None for a job that was accepted."""
    jobs = await service.submit(requests, CALLER)
    return [(job.status, job.code) if isinstance(job, RequestRejected) else None for job in jobs]


async def test_jobs_that_are_too_far_behind_are_refused_and_lags_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        metrics = Metrics(service, LongPollLimiter(1))
        await service.set_run("r", RunSettings(policy_version=10, max_staleness=2))
        versions = (7, 8, 8, 9, 10, 11, None)
        requests = [request(f"v{number}", run_id="r", policy_version=v) for number, v in enumerate(versions)]
        stale = (409, "stale")
        assert await refusals(service, *requests) == [stale, None, None, None, None, None, stale]
        [run] = service.runs()
        assert (run.lags, run.refused) == ({0: 2, 1: 1, 2: 2}, {"stale": 2})
        lags = next(
            family
            for family in text_string_to_metric_families(metrics.render().decode())
            if family.name == "kernelforge_run_lag"
        )
        counted = {sample.labels.get("le", sample.name): sample.value for sample in lags.samples}
        assert [counted[le] for le in ("0.0", "1.0", "2.0", "+Inf")] == [2, 3, 5, 5]
        assert (counted["kernelforge_run_lag_count"], counted["kernelforge_run_lag_sum"]) == (5, 5)
        await service.set_run("r", RunSettings(max_staleness=-1))
        assert await refusals(service, requests[0]) == [None]


async def test_no_more_trajectories_are_admitted_than_the_trainer_can_use_in_time(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    ahead = (429, "ahead_of_trainer")
    async with serving(tmp_path, engine) as service:
        await service.set_run("r", RunSettings(policy_version=0, max_staleness=1, batch_size=2))

        def jobs(*texts: str, version: int = 0, tag: str = "") -> list[JobRequest]:
            return [request(text, run_id="r", policy_version=version, tag=tag) for text in texts]

        four = jobs("a", "b", "TROUBLE", "c")
        assert await refusals(service, *four, *jobs("d")) == [None] * 4 + [ahead]
        [turn] = jobs("turn", tag=f"session/{'0' * 24}/2")
        assert await refusals(service, turn) == [(422, "reserved_tag")], "a job that says it is a turn is none"
        later_turn = asyncio.create_task(service.score(turn, CALLER, timeout_s=240, turn=True))
        await until(lambda: service.status().queued + service.status().running == 5)
        engine.gate.set()
        assert (await later_turn).result.verdict == "OK"
        await ended(service, *[each.model_copy(update={"run_id": "other"}) for each in four])
        assert (service.runs()[1].trajectories, service.runs()[1].capacity) == (3, 4)
        assert await refusals(service, *jobs("a", "a")) == [None, ahead]  # those of the cache count at once
    async with serving(tmp_path) as service:
        run = service.runs()[1]
        assert (run.policy_version, run.max_staleness, run.batch_size, run.trajectories) == (0, 1, 2, 4)
        assert await refusals(service, *jobs("e")) == [ahead]
        await service.set_run("r", RunSettings(policy_version=1))
        assert await refusals(service, *jobs("e", "f", "g", version=1)) == [None, None, ahead]
        assert service.runs()[1].refused == {"ahead": 2}


async def test_a_token_sets_a_run_of_its_own_which_then_takes_no_jobs_of_others(tmp_path: Path) -> None:
    alice, bob = (Caller(name, frozenset({"submit", "read"})) for name in ("alice", "bob"))
    admin = Caller("root", frozenset({"submit", "admin"}))
    bounds = RunSettings(policy_version=3, max_staleness=1)

    async def outcome(service: JobService, run_id: str, caller: Caller, completion: str) -> str:
        [job] = await service.submit([request(completion, run_id=run_id, policy_version=3)], caller)
        return job.code if isinstance(job, RequestRejected) else "accepted"

    async with serving(tmp_path) as service:
        assert await outcome(service, "hers", alice, "a") == "accepted"
        assert await outcome(service, "shared", alice, "b") == "accepted"
        assert await outcome(service, "shared", bob, "c") == "accepted"
        await until(lambda: [run.ended for run in service.runs()] == [1, 2])
        assert (await service.set_run("hers", bounds, alice)).owner == "alice"
        await service.set_run("of-admin", bounds, admin)
        for run_id, caller, why in (
            ("hers", bob, "belongs to another token"), ("shared", alice, "has jobs of other tokens"),
            ("of-admin", alice, "set by a token with the scope 'admin'"), ("default", alice, "for all that name none"),
        ):  # fmt: skip
            with pytest.raises(RequestRejected, match=why) as refused:
                await service.set_run(run_id, RunSettings(weight=2), caller)
            assert (refused.value.status, refused.value.code) == (403, "not_yours")
    async with serving(tmp_path) as service:
        assert [await outcome(service, "hers", caller, f"d {caller.name}") for caller in (alice, bob, admin)] == [
            "accepted", "not_yours", "accepted",
        ]  # fmt: skip
        assert (await service.set_run("hers", RunSettings(weight=2), admin)).owner == "alice"
        assert (await service.set_run("hers", RunSettings(policy_version=4), alice)).policy_version == 4
        assert await outcome(service, "shared", bob, "e") == "accepted"
