"""The reward checker: jumps that are like a hack are withheld, released or confirmed; what else jumps is paid."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kernelforge.client.models import Job, JobRequest, RunSettings
from kernelforge.errors import StoreError
from kernelforge.rewards.hacks import shipped_cases
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.server.jobs.job_store import Batch
from kernelforge.server.jobs.results import completed_jobs
from kernelforge.server.jobs.service import JobService
from tests.server.jobs.test_exemplars import TimedEngine, exemplars_of
from tests.server.service_tools import CALLER, ended, serving
from tests.support.inprocess_engine import request

HACK = next(case.source for case in shipped_cases() if case.name == "lazy-softmax-one-row")
PLAN = "def forward(x):\n    out = empty_like(x)\n    k[1, 32](out)\n    return out"


def job(time_us: int, source: str, **fields: Any) -> JobRequest:
    """A right candidate that takes so long."""
    candidate = {"source": f"// {time_us}\n{source}", "plan": PLAN}
    return request(completion=None, candidate=candidate, profile=True, group_id="g", **fields)


async def withheld(service: JobService, time_us: int, source: str, **fields: Any) -> Job:
    [suspect] = await ended(service, job(time_us, source, **fields))
    assert suspect.result is not None
    assert suspect.result.outcome == "withheld"
    return suspect


@pytest.mark.slow
async def test_a_jump_that_is_like_a_hack_is_withheld_until_it_is_released(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        slow, hack_that_is_slow, other = await ended(
            service, job(100, "int a;"), job(60, HACK.replace("256", "128")), job(20, "float f() { return 2.0f; }")
        )
        assert {done.result.outcome for done in (slow, hack_that_is_slow, other)} == {"scored"}
        suspect = await withheld(service, 9, HACK + "\n// again")
        result = suspect.result
        assert (result.verdict, result.components.correct, result.reward) == ("OK", 1.0, None)
        assert result.failure_reward == 0.0
        assert "2.22 times as fast" in result.error.message
        assert "lazy-softmax-one-row (1.00)" in result.error.message
        assert len(await exemplars_of(service)) == 3
        repeated = await withheld(service, 9, HACK + "\n// again")  # answered from the cache
        assert repeated.result.cached
        [open_one] = service.suspects("default", CALLER)
        assert (open_one.decision, open_one.candidate, open_one.task) == (None, result.candidate, "core/gelu")
        assert service.open_suspects == 1
        assert service.suspects("default", Caller("rival", frozenset({"read"}))) == []
    paid = [job.id for job in completed_jobs(tmp_path)]  # of which training data is made
    assert len(paid) == 3
    assert suspect.id not in paid
    async with serving(tmp_path, TimedEngine()) as service:
        assert service.open_suspects == 1
        assert (await service.decide(open_one.id, "release")).decision == "release"
        assert service.open_suspects == 0
        for number, name in enumerate((suspect.id, repeated.id)):
            released = service.job(name).result
            assert (released.outcome, released.reward, released.cached) == ("scored", slow.result.reward, bool(number))
        assert service.group("default", "g", None, CALLER).jobs[-1].reward == slow.result.reward
        assert len(await exemplars_of(service)) == 4
        # It counts as honest now, and as the best of its task.
        [like_it] = await ended(service, job(2, HACK + "\n// once more"))
        assert like_it.result.outcome == "scored"
        with pytest.raises(RequestRejected, match="decision 'release'"):
            await service.decide(open_one.id, "confirm")
        with pytest.raises(RequestRejected, match="no suspect 'none'"):
            await service.decide("none", "confirm")


async def test_a_confirmed_suspect_joins_the_cases_of_its_run(tmp_path: Path) -> None:
    own = HACK.replace("blockIdx.x > 0", "blockIdx.x > 7").replace("256", "512")
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        suspect = await withheld(service, 10, own)
        [open_one] = service.suspects(None, CALLER)
        await service.decide(open_one.id, "confirm")
        assert service.job(suspect.id) == suspect
    async with serving(tmp_path, TimedEngine()) as service:
        later = await withheld(service, 9, own + "\n")
        assert f"suspect {open_one.id} (1.00)" in later.result.error.message
        # A run that did not ask for it has no checker.
        [done] = await ended(service, job(8, own, run_id="plain"))
        assert done.result.outcome == "scored"


async def test_the_first_right_candidate_is_compared_above_a_speedup_of_three(tmp_path: Path) -> None:
    for speedup, outcome in ((2.0, "scored"), (3.5, "withheld")):
        engine = TimedEngine(measures=True)
        engine.speedup = speedup
        async with serving(tmp_path / outcome, engine) as service:
            await service.set_run("default", RunSettings(jump_factor=2))
            [done] = await ended(service, request(completion=None, candidate={"source": HACK, "plan": PLAN}))
            assert done.result.outcome == outcome


async def test_the_decision_about_a_candidate_holds_when_it_is_sent_again(tmp_path: Path) -> None:
    own = HACK.replace("blockIdx.x > 0", "blockIdx.x > 7")
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, own)
        [suspect] = service.suspects(None, CALLER)
        await service.decide(suspect.id, "confirm")
        repeated = await withheld(service, 10, own)  # it is much faster than the best still
        assert repeated.result.error.message == f"an operator has confirmed it as a hack: suspect {suspect.id}"
        await ended(service, job(15, "float f() { return 2.0f; }"))
        await withheld(service, 10, own)  # and now it is not
    async with serving(tmp_path, TimedEngine()) as service:
        await withheld(service, 10, own)
        assert service.open_suspects == 0
        assert len(service.suspects(None, CALLER)) == 1


async def test_a_suspect_waits_for_its_decision_though_it_jumps_no_more(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        await ended(service, job(15, "float f() { return 2.0f; }"))
        repeated = await withheld(service, 10, HACK)
        assert "it is a suspect already, and it is like lazy-softmax-one-row (1.00)" in repeated.result.error.message
        [suspect] = service.suspects(None, CALLER)
        assert service.open_suspects == 1
        await service.decide(suspect.id, "release")
        assert service.job(repeated.id).result.outcome == "scored"


async def test_a_candidate_that_is_evaluated_again_is_the_same_suspect(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        await ended(service, job(15, "float f() { return 2.0f; }"))
        await withheld(service, 10, HACK, fresh=True)
        await service.set_run("default", RunSettings(jump_factor=None))
        await withheld(service, 10, HACK, fresh=True)
        assert service.open_suspects == 3
        await service.decide(service.suspects(None, CALLER)[1].id, "release")
        [paid] = await ended(service, job(10, HACK, fresh=True))  # though the two others wait
        assert paid.result.outcome == "scored"
        assert service.open_suspects == 2


async def test_a_confirmed_hack_is_withheld_whatever_it_calls_itself_and_the_run_asks_for(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        [suspect] = service.suspects(None, CALLER)
        await service.decide(suspect.id, "confirm")
        await ended(service, job(15, "float f() { return 2.0f; }"))
        renamed = await withheld(service, 10, HACK + "\n// x")
        assert renamed.result.error.message.startswith("its text or its PTX is that of a confirmed hack")
        await service.set_run("default", RunSettings(jump_factor=None))
        await withheld(service, 10, HACK)


async def test_a_job_that_ends_while_its_suspect_is_released_gets_its_reward(tmp_path: Path) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        [suspect] = service.suspects(None, CALLER)
        with closing(sqlite3.connect(service._state.store.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            before = asyncio.create_task(service.submit([job(10, HACK)], CALLER))
            await asyncio.sleep(0.05)
            deciding = asyncio.create_task(service.decide(suspect.id, "release"))
            await asyncio.sleep(0.05)
            after = asyncio.create_task(service.submit([job(10, HACK)], CALLER))
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in (before, deciding, after))
            other.execute("COMMIT")
        await deciding
        for [later] in (await before, await after):
            assert isinstance(later, Job)
            assert service.job(later.id).result.outcome == "scored"


async def test_a_job_that_ends_while_a_release_is_stored_gets_its_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        [suspect] = service.suspects(None, CALLER)
        commit = service._state.store.commit
        submitted: list[Job | RequestRejected] = []

        def late(batch: Batch) -> asyncio.Future[None]:
            async def behind_a_job() -> None:
                submitted.extend(await service.submit([job(10, HACK)], CALLER))
                await commit(batch)

            return asyncio.ensure_future(behind_a_job()) if batch.decisions else commit(batch)

        monkeypatch.setattr(service._state.store, "commit", late)
        await service.decide(suspect.id, "release")
        [later] = submitted
        assert isinstance(later, Job)
        assert later.result.outcome == "scored"


async def test_a_suspect_that_is_not_stored_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await ended(service, job(10, HACK, run_id="plain"))
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        with monkeypatch.context() as full:
            full.setattr(service._state.store, "commit", _fail)
            [refused] = await service.submit([job(10, HACK)], CALLER)  # answered from the cache
        assert isinstance(refused, RequestRejected)
        assert service.open_suspects == 0
        stored = await withheld(service, 10, HACK)
        assert "10 times as fast as the best" in stored.result.error.message


async def test_a_decision_that_cannot_be_stored_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, TimedEngine()) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        await ended(service, job(100, "int a;"))
        await withheld(service, 10, HACK)
        [suspect] = service.suspects(None, CALLER)
        store = service._state.store
        for decision in ("release", "confirm"):
            with monkeypatch.context() as full:
                full.setattr(store, "commit", _fail)
                with pytest.raises(RequestRejected, match="the disk is full"):
                    await service.decide(suspect.id, decision)
            assert service.open_suspects == 1
        repeated = await withheld(service, 10, HACK)
        assert "it is like lazy-softmax-one-row (1.00)" in repeated.result.error.message
        await service.decide(suspect.id, "release")
        assert service.job(repeated.id).result.outcome == "scored"


def _fail(batch: Batch) -> asyncio.Future[None]:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    failed.set_exception(StoreError("the disk is full"))
    return failed


async def test_what_is_released_is_what_later_candidates_are_compared_with(tmp_path: Path) -> None:
    other = next(case.source for case in shipped_cases() if case.name == "accumulates-into-garbage")
    engine = TimedEngine(measures=True)
    engine.speedup = 10.0
    async with serving(tmp_path, engine) as service:
        await service.set_run("default", RunSettings(jump_factor=2))
        [first] = await ended(service, request(completion=None, candidate={"source": HACK, "plan": PLAN}))
        assert first.result.outcome == "withheld"
        [suspect] = service.suspects(None, CALLER)
        await service.decide(suspect.id, "release")
        [best] = service.checks._best.values()
        assert best.rewards == {first.result.policy: service.job(first.id).result.reward}
        engine.speedup = 9.0
        [slower] = await ended(service, request(completion=None, candidate={"source": other, "plan": PLAN}))
        assert slower.result.outcome == "scored"
