"""Ends of a job: a score, an infrastructure error, or an end before either."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernelforge.client.models import InputTestsRequest, JobRequest, JobStatus
from kernelforge.server.base import Caller, RequestRejected
from kernelforge.workers.base import EvaluationOrder, EvaluationReport
from tests.server.service_tools import CALLER, accepted, ended, serving, until
from tests.support.inprocess_engine import InProcessEngine, completion, request


async def test_a_candidate_is_evaluated_and_scored(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        right, wrong, built = await ended(service, request("v0", tag="mine"), request("WRONG"), request("BUILD"))
        assert (right.status, right.result.outcome, right.tag) == (JobStatus.FINISHED, "scored", "mine")
        assert right.result.reward == pytest.approx(0.3)
        assert right.result.components.correct == 1
        assert right.started_at is not None
        assert right.tries == 1
        assert (wrong.result.verdict, wrong.result.reward) == ("WRONG", 0)
        assert (built.result.verdict, built.result.reward) == ("BUILD", 0)
        stored = service.stored(right.id)
        assert stored.evaluation.key == right.result.evaluation


async def test_a_completion_without_a_candidate_ends_at_once_with_the_reward_of_its_policy(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        [job] = await accepted(service, JobRequest(task="core/gelu", completion="I cannot do that."))
        assert job.status is JobStatus.FINISHED
        assert (job.result.verdict, job.result.stage, job.result.reward) == ("POLICY", "parse", 0)
        assert job.result.components.format == 0
        assert "no code" in job.result.feedback
        assert engine.prepared == []
        stored = service.stored(job.id)
        assert stored.evaluation.stage == "parse"
        assert stored.evaluation.key == job.result.evaluation
        [agent] = await accepted(
            service, JobRequest(task="core/gelu", completion="I cannot do that.", policy="cuda-agent/1")
        )
        assert agent.result.reward == -1


async def test_a_candidate_may_come_in_parts(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        parts = {"source": "__global__ void k() {}", "plan": "def forward(x):\n    return x\n"}
        [job] = await ended(service, JobRequest(task="core/gelu", candidate=parts))
        assert job.result.outcome == "scored"
        large = JobRequest(task="core/gelu", candidate={**parts, "source": "é" * 200_000})
        [refusal] = await service.submit([large], CALLER)
        assert isinstance(refusal, RequestRejected)
        assert refusal.status == 413


async def test_trouble_is_no_number(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        for _ in range(2):
            [job] = await ended(service, request("TROUBLE"))
            assert job.status is JobStatus.FINISHED
            assert (job.result.outcome, job.result.reward, job.result.error.code) == ("infra_error", None, "device")
            assert service.stored(job.id) is None
        assert len(engine.evaluated) == 2, "trouble is never answered from the cache"


async def test_trouble_that_may_pass_is_tried_once_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        [job] = await ended(service, request("ONCE"))
        assert job.result.outcome == "scored"
        assert job.tries == 2


@pytest.mark.parametrize(("deaths", "outcome"), [(1, "scored"), (2, "scored"), (3, "infra_error")])
async def test_a_candidate_costs_three_workers_at_most(tmp_path: Path, deaths: int, outcome: str) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        [job] = await ended(service, request(f"DIE{deaths}"))
        assert job.result.outcome == outcome
        assert len(engine.evaluated) == job.tries == min(deaths + 1, 3)
        if outcome == "infra_error":
            assert job.result.error.code == "worker_died"
            assert job.result.error.retryable


async def test_a_lease_that_runs_out_counts_as_a_dead_worker(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    async with serving(tmp_path, engine, worker_limit_s=0.1) as service:
        [job] = await ended(service, request("HANG"))
        assert job.result.error.code == "worker_died"
        assert job.tries == 3
        assert engine.freed


async def test_an_engine_that_fails_ends_no_gateway(tmp_path: Path) -> None:
    class Broken(InProcessEngine):
        async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
            raise ZeroDivisionError("in the engine")

    async with serving(tmp_path, Broken()) as service:
        [job] = await ended(service, request())
        assert job.result.error.code == "internal"
        assert "ZeroDivisionError" in job.result.error.message


async def test_an_evaluation_of_another_candidate_is_nobodys_score(tmp_path: Path) -> None:
    class Swapping(InProcessEngine):
        async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
            other = order.model_copy(update={"candidate": order.candidate.model_copy(update={"source": "// other"})})
            return await super().evaluate(other, slot)

    async with serving(tmp_path, Swapping()) as service:
        [job] = await ended(service, request())
        assert job.result.outcome == "infra_error"
        assert job.result.error.code == "internal"


async def test_an_evaluation_on_another_device_is_nobodys_score(tmp_path: Path) -> None:
    class Elsewhere(InProcessEngine):
        async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
            report = await super().evaluate(order, slot)
            made = report.evaluation.fingerprint.model_copy(update={"device": "emulated:a100"})
            return report.model_copy(update={"evaluation": report.evaluation.model_copy(update={"fingerprint": made})})

    async with serving(tmp_path, Elsewhere()) as service:
        [job] = await ended(service, request())
        assert job.result.outcome == "infra_error"
        assert "a100" in job.result.error.message


@pytest.mark.slow
async def test_many_jobs_end_at_once(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(service, *(request(f"v{index}", deadline_s=60.0) for index in range(700)))
        assert len(await service.cancel([job.id for job in jobs[:650]], CALLER)) == 650
        engine.gate.set()
        rest = await service.wait([job.id for job in jobs[650:]], None, 60.0)
        assert [job.result.outcome for job in rest] == ["scored"] * 50


async def test_what_ran_without_a_jail_is_never_scored(tmp_path: Path) -> None:
    async with serving(tmp_path, InProcessEngine(jail="none")) as service:
        for text in ("v0", "WRONG"):
            [job] = await ended(service, request(text))
            assert (job.result.outcome, job.result.reward) == ("infra_error", None)
            assert "jail" in job.result.error.message


async def test_cancelling_frees_the_device(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    async with serving(tmp_path, engine) as service:
        running, queued = await accepted(service, request("HANG"), request("HANG too"))
        await until(lambda: engine.evaluated)
        assert service.job(running.id).status is JobStatus.RUNNING
        assert await service.cancel([queued.id, running.id, "unknown"], CALLER) == [queued.id, running.id]
        for job in (running, queued):
            result = service.job(job.id).result
            assert service.job(job.id).status is JobStatus.CANCELLED
            assert (result.outcome, result.error.code) == ("infra_error", "cancelled")
        assert await service.cancel([running.id], CALLER) == []
        [after] = await ended(service, request("v0"))
        assert after.result.outcome == "scored"
        assert len(engine.freed) == 1


async def test_work_that_others_wait_for_goes_on_when_one_cancels(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        first, second = await accepted(service, request(run_id="a"), request(run_id="b"))
        await until(lambda: engine.evaluated)
        await service.cancel([first.id], CALLER)
        engine.gate.set()
        await service.wait([second.id], None, 20.0)
        assert service.job(second.id).result.outcome == "scored"
        assert engine.freed == []


async def test_a_deadline_ends_queued_and_running_jobs(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    async with serving(tmp_path, engine) as service:
        late = [request("HANG", deadline_s=0.1), request("HANG more", deadline_s=0.05)]
        for job in await ended(service, *late):
            assert job.status is JobStatus.EXPIRED
            assert job.result.error.code == "deadline"
        await until(lambda: engine.freed)


async def test_a_score_that_nobody_waits_for_is_cancelled_and_its_key_is_free_again(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        waiting = asyncio.create_task(service.score(request(), CALLER, timeout_s=20.0, key="mine"))
        await until(lambda: engine.evaluated and service.keyed("mine", CALLER))
        lost = service.keyed("mine", CALLER)
        assert lost is not None
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: engine.freed)
        await service.wait([lost.id], None, 20.0)
        assert service.job(lost.id).status is JobStatus.CANCELLED
        engine.gate.set()
        second = await service.score(request(), CALLER, timeout_s=20.0, key="mine")
        assert second.id != lost.id
        assert second.result.outcome == "scored"


async def test_a_score_is_withdrawn_while_it_is_still_being_accepted(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        waiting = asyncio.create_task(service.score(request("HANG"), CALLER, timeout_s=20.0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until(lambda: service.runs() and service.runs()[0].ended == 1)
        assert service.status().queued + service.status().running == 0


async def test_a_score_that_takes_too_long_expires(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        job = await service.score(request("HANG"), CALLER, timeout_s=0.05)
        assert (job.status, job.result.error.code) == (JobStatus.EXPIRED, "deadline")
        await until(lambda: engine.freed)
        with pytest.raises(RequestRejected):
            await service.score(request(task="core/none"), CALLER, timeout_s=1.0)


async def test_a_score_whose_deadline_is_its_callers_patience_has_always_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, InProcessEngine(slots=8)) as service:
        scores = (
            service.score(request(f"HANG {index}", deadline_s=0.05), CALLER, timeout_s=0.05) for index in range(40)
        )
        for job in await asyncio.gather(*scores):
            assert job.status is JobStatus.EXPIRED
            assert job.result.error.code == "deadline"


async def test_a_held_request_that_goes_takes_no_job_that_others_come_back_for(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        [kept] = await service.submit([request()], CALLER, ["k"])
        both = [asyncio.create_task(service.score(request(), CALLER, timeout_s=20.0, key="k")) for _ in range(2)]
        other = [asyncio.create_task(service.score(request("v1"), CALLER, timeout_s=20.0, key="o")) for _ in range(2)]
        await until(lambda: len(engine.evaluated) == 2 and service.keyed("o", CALLER))
        both[0].cancel()
        both[1].cancel()
        other[0].cancel()
        await asyncio.gather(*both, other[0], return_exceptions=True)
        engine.gate.set()
        assert (await other[1]).result.outcome == "scored"
        await service.wait([kept.id], None, 20.0)
        assert service.job(kept.id).result.outcome == "scored"
        assert engine.freed == []


async def test_a_job_is_not_let_go_while_another_request_for_it_is_on_its_way(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        for number in range(20):
            engine.gate.clear()
            job_request, key = request(f"v{number}"), f"k{number}"
            first = asyncio.create_task(service.score(job_request, CALLER, timeout_s=20.0, key=key))
            await until(lambda key=key: service.keyed(key, CALLER))
            second = asyncio.create_task(service.score(job_request, CALLER, timeout_s=20.0, key=key))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            engine.gate.set()
            assert (await second).result.outcome == "scored"


async def test_a_policy_that_fails_leaves_no_job_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in the policy")

    monkeypatch.setattr("kernelforge.rewards.policies.KernelForge1.score", broken)

    async with serving(tmp_path) as service:
        for _ in range(2):
            [job] = await ended(service, request())
            assert (job.result.outcome, job.result.reward) == ("infra_error", None)
            assert job.result.error.code == "internal"
            assert job.result.verdict == "OK"
    assert "ZeroDivisionError" in caplog.text


async def test_tasks_are_found_by_name_digest_and_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        name, task = service.find_task("gelu")
        assert name == "core/gelu"
        assert service.find_task("core/gelu") == service.find_task(task.digest) == (name, task)
        assert service.find_task(None, task.source.replace("\n", "\r\n")) == (name, task)
        for reference, code in (("core/none", None), (None, "import os"), ("core/softmax", task.source)):
            with pytest.raises(RequestRejected) as refused:
                service.find_task(reference, code)
            assert refused.value.status == 422


async def test_a_brief_is_asked_of_the_engine_once(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        _, task = service.find_task("core/gelu")
        first, second = await asyncio.gather(service.task_context(task), service.task_context(task))
        assert first is second
        assert first.task == task
        await service.task_context(task)
        assert engine.briefs == 1


def generators_request(completion: str = "{}", **fields: object) -> InputTestsRequest:
    return InputTestsRequest.model_validate({"task": "core/gelu", "completion": completion, **fields})


async def test_equal_replies_of_a_tester_are_scored_once(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        first, second = await asyncio.gather(*[service.score_tests(generators_request(), CALLER) for _ in range(2)])
        assert first == second == await service.score_tests(generators_request(), CALLER)
        assert engine.testers == 1
        await service.score_tests(generators_request(most=2), CALLER)
        assert engine.testers == 2
    assert (first.task, first.outcome, first.reward, first.fault) == ("core/gelu", "scored", 0.5, None)
    assert (first.mutants, first.counted, first.rejected) == (4, 2, 1)
    [row] = first.tests
    assert (row.name, row.admitted, row.sizes, row.rejected) == ("far", True, 2, 1)
    assert "hidden" not in first.model_dump_json()


async def test_a_reply_without_tests_earns_nothing_and_a_task_without_faults_has_no_reward(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        unreadable = await service.score_tests(generators_request("prose"), CALLER)
        easy = await service.score_tests(generators_request("{EASY}"), CALLER)
    assert (unreadable.outcome, unreadable.reward) == ("unreadable", 0.0)
    assert unreadable.fault == "the reply holds no JSON object"
    assert (easy.outcome, easy.reward, easy.mutants) == ("no_faults", None, 1)


@pytest.mark.parametrize(
    ("completion", "status", "code", "requests"),
    [("{DIE2}", None, "", 3), ("{DIE9}", 503, "worker_died", 3), ("{BROKEN}", 422, "task_unusable", 1)],
)
async def test_workers_that_die_of_a_testers_reply_are_replaced_thrice(
    tmp_path: Path, completion: str, status: int | None, code: str, requests: int
) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        if status is None:
            assert (await service.score_tests(generators_request(completion), CALLER)).reward == 0.5
        else:
            with pytest.raises(RequestRejected) as refused:
                await service.score_tests(generators_request(completion), CALLER)
            assert (refused.value.status, refused.value.code) == (status, code)
    assert engine.testers == requests


async def test_replies_of_testers_count_among_the_jobs_of_a_minute(tmp_path: Path) -> None:
    caller = Caller("slow", jobs_per_minute=1.0)
    async with serving(tmp_path) as service:
        await service.score_tests(generators_request(), caller)
        with pytest.raises(RequestRejected) as refused:
            await service.score_tests(generators_request(), caller)
        assert (refused.value.status, refused.value.code) == (429, "too_fast")
        with pytest.raises(RequestRejected, match="there is no task"):
            await service.score_tests(generators_request(task="core/none"), CALLER)


async def test_a_completion_is_bounded_and_read_only_as_text(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        long = "x" * 1_900_000 + "\n" + completion("after much talk")
        nul = completion("v0 \0")
        long_job, nul_job = await ended(
            service, JobRequest(task="core/gelu", completion=long), JobRequest(task="core/gelu", completion=nul)
        )
        assert long_job.result.verdict == "OK"
        assert (nul_job.result.verdict, nul_job.result.stage) == ("POLICY", "parse")
