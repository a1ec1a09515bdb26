"""Stages of a run's training, and smoothed rewards of groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelforge.client.models import JobRequest, RunSettings
from kernelforge.rewards.advantages import smoothed
from kernelforge.server.base import Caller, RequestRejected
from tests.server.service_tools import CALLER, accepted, ended, serving, until
from tests.support.inprocess_engine import InProcessEngine, request


def job(text: str, **fields: object) -> JobRequest:
    return request(text, policy="kernelforge/1", **fields)


async def test_stages_reward_correctness_first_and_speed_by_the_automatic_rule(tmp_path: Path) -> None:
    async with serving(tmp_path, InProcessEngine(measures=True)) as service:
        [plain] = await ended(service, job("1"))
        assert plain.result.training_stage is None
        settings = RunSettings(stage="correctness", advance_at=0.75, advance_window=4)
        assert (await service.set_run("default", settings)).stage == "correctness"
        results = [(await ended(service, job(text)))[0].result for text in ("1", "WRONG", "2", "WRONG 2")]
        # Of the same components, by another policy: also one that an earlier evaluation answers.
        assert results[0].cached
        assert [(result.policy, result.reward) for result in results] == [
            ("autotriton/1", reward) for reward in (1.0, 0.0, 1.0, 0.0)
        ]
        assert {result.training_stage for result in results} == {"correctness"}
        assert results[0].components.speedup_lower == plain.result.components.speedup_lower
        assert service.runs()[0].share_correct == 0.5
        [first] = await ended(service, job("3", group_id="g"))
        assert first.result.training_stage == "correctness"
        [right] = await ended(service, job("4"))  # the latest four: three of them are right
        assert right.result.training_stage == "correctness"
        await until(lambda: service.runs()[0].stage == "speed")
        # A group stays in the stage that it began in.
        [late, fast] = await ended(service, job("5", group_id="g"), job("6"))
        assert (late.result.policy, late.result.training_stage) == ("autotriton/1", "correctness")
        assert (fast.result.policy, fast.result.training_stage) == ("kernelforge/1", "speed")
        assert fast.result.reward == plain.result.reward
    async with serving(tmp_path, InProcessEngine(measures=True)) as service:
        assert (service.runs()[0].stage, service.runs()[0].advance_window) == ("speed", 4)
        assert service.job(late.id) == late
        [third] = await ended(service, job("7", group_id="g"))
        assert third.result.training_stage == "correctness"
        assert (await service.set_run("default", RunSettings(stage="none", advance_at=0))).stage is None
        assert (await ended(service, job("8")))[0].result.training_stage is None


async def test_the_stage_of_an_open_job_survives_a_restart(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        await service.set_run("default", RunSettings(stage="correctness"))
        [waiting] = await accepted(service, job("1"))
    async with serving(tmp_path) as service:
        await service.set_run("default", RunSettings(stage="speed"))
        [done] = await service.wait([waiting.id], None, 60.0)
        assert (done.result.policy, done.result.training_stage) == ("autotriton/1", "correctness")


async def test_a_complete_group_has_smoothed_rewards(tmp_path: Path) -> None:
    engine = InProcessEngine(measures=True)
    async with serving(tmp_path, engine) as service:
        texts = ("1", "WRONG", "2", "WRONG 2", "LACKS", "TROUBLE")
        await ended(service, *(job(text, group_id="step/1") for text in texts[:3]), job("9", group_id="other"))
        assert not service.group("default", "step/1", 6, CALLER).complete
        engine.gate.clear()
        open_jobs = await accepted(service, *(job(text, group_id="step/1") for text in texts[3:]))
        group = service.group("default", "step/1", None, CALLER)
        assert (group.complete, [row.smoothed for row in group.jobs]) == (False, [None] * 6)
        engine.gate.set()
        await service.wait([waiting.id for waiting in open_jobs], None, 60.0)
        group = service.group("default", "step/1", 6, CALLER)
        rewards = [row.reward for row in group.jobs]
        assert rewards == pytest.approx([rewards[0], 0.0, rewards[0], 0.0, 0.0, None])
        assert group.complete
        assert [row.smoothed for row in group.jobs] == smoothed(rewards)
        assert max(row.smoothed for row in group.jobs if row.smoothed is not None) > 0
        assert not service.group("default", "step/1", 7, CALLER).complete
        for owner, name in ((Caller("rival", frozenset({"read"})), "step/1"), (CALLER, "none")):
            with pytest.raises(RequestRejected) as refusal:
                service.group("default", name, None, owner)
            assert refusal.value.status == 404
