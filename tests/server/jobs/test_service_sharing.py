"""Sharing between jobs: evaluations, the cache, idempotency keys, room in the queue, and devices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernelforge.client.models import Job, JobRequest, JobStatus, RunSettings
from kernelforge.server.base import Caller, RequestRejected, utc_seconds
from kernelforge.server.jobs import submission
from tests.server.service_tools import CALLER, accepted, ended, serving, until
from tests.support.inprocess_engine import InProcessEngine, completion, request


async def test_equal_candidates_of_a_group_are_evaluated_once(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        group = [JobRequest(task="core/gelu", completion=f"Thought {index}.\n" + completion()) for index in range(8)]
        jobs = await ended(service, *group, request(policy="cuda-agent/1"))
        assert len(engine.evaluated) == 1
        assert {job.result.reward for job in jobs[:8]} == {0.3}
        assert jobs[8].result.reward != 0.3
        assert len({job.id for job in jobs}) == 9
        assert not any(job.result.cached for job in jobs)


async def test_candidates_equal_but_for_names_share_an_evaluation_also_after_a_restart(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=4)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(service, *[request(f"ALIKE {index}", profile=True) for index in range(6)], request())
        await until(lambda: len(engine.prepared) == 7)
        engine.gate.set()
        results = [job.result for job in await service.wait([job.id for job in jobs], None, 60.0)]
        assert len(engine.evaluated) == 2
        alike = [result for result in results if result.equals is not None]
        [original] = {result.equals for result in alike}
        assert len(alike) == 5
        assert original in {result.evaluation for result in results if result.equals is None}
        assert len({result.candidate for result in results}) == 7
        assert len({result.reward for result in results}) == 1
        assert service.counters["shared"] == 5
        for index, job in enumerate(jobs[:6]):
            stored = service.stored(job.id)
            assert stored is not None
            assert f"ALIKE {index}" in (stored.source or "")
            assert stored.profile is not None
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        [later] = await ended(service, request("ALIKE again"))
        assert engine.evaluated == []
        assert later.result.equals == original
        [cached] = await accepted(service, request("ALIKE again"))
        assert cached.result.cached


async def test_equal_candidates_run_themselves_where_that_is_asked_or_the_first_has_no_result(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        jobs = await ended(service, request("ALIKE TROUBLE"), request("ALIKE b"))
        assert [job.result.outcome for job in jobs] == ["infra_error", "scored"]
        assert jobs[1].result.equals is None
        [profiled] = await ended(service, request("ALIKE c", profile=True))
        assert profiled.result.equals is None, "there was no profile to share"
        [fresh] = await ended(service, request("ALIKE d", profile=True, fresh=True))
        assert fresh.result.equals is None
        [shared] = await ended(service, request("ALIKE e", profile=True))
        assert shared.result.equals is not None


async def test_an_equal_candidate_whose_first_is_cancelled_runs_itself(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        first, second = await accepted(service, request("ALIKE 1"), request("ALIKE 2"))
        await until(lambda: engine.evaluated and len(engine.prepared) == 2)
        await service.cancel([first.id], CALLER)
        engine.gate.set()
        [job] = await service.wait([second.id], None, 60.0)
        assert job.result.equals is None
        assert job.result.outcome == "scored"


async def test_a_measured_time_that_is_too_old_answers_for_no_equal_candidate(tmp_path: Path) -> None:
    async with serving(tmp_path, InProcessEngine(measures=True)) as service:
        await ended(service, request("ALIKE 1"))
        [young, old] = await ended(service, request("ALIKE 2", max_age_s=3600), request("ALIKE 3", max_age_s=0))
        assert young.result.equals is not None
        assert service.stored(young.id).finished_at < young.finished_at, "it is as old as the one that ran"
        assert old.result.equals is None


async def test_a_job_or_its_run_asks_for_the_sizes_that_the_server_offers(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        with pytest.raises(RequestRejected, match="--sizes any") as refused:
            await accepted(service, request(sizes="train"))
        assert refused.value.status == 422
        with pytest.raises(RequestRejected, match="--sizes any"):
            await service.set_run("r", RunSettings(sizes="train"))
        await ended(service, request("ALIKE 1", sizes="all"))
    engine = InProcessEngine()
    async with serving(tmp_path, engine, train_on_request=True) as service:
        assert (await service.set_run("r", RunSettings(sizes="train"))).sizes == "train"
        less, own, usual = await ended(
            service,
            request("ALIKE 2", run_id="r"),
            request("ALIKE 1", run_id="r", sizes="all"),
            request("ALIKE 3"),
        )
        assert [job.result.sizes for job in (less, own, usual)] == ["train", "all", "all"]
        assert (less.result.equals, own.result.cached, usual.result.equals) == (None, True, own.result.evaluation)
        assert len(engine.evaluated) == 1, "what checked less answers for no other, and no other for it"
        [later] = await ended(service, request("ALIKE 4", run_id="r"))
        assert later.result.equals == less.result.evaluation
        assert (await service.set_run("r", RunSettings(sizes="server"))).sizes is None
        engine.gate.clear()
        [open_job] = await accepted(service, request("HELD", sizes="train"))
    async with serving(tmp_path) as service:  # the operator's wish is another: what was accepted stays as it was
        [job] = await service.wait([open_job.id], None, 60.0)
        assert job.result.sizes == "train"


async def test_the_same_candidate_for_another_task_is_another_work(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        await ended(service, request(), request(task="core/softmax"))
        assert len(engine.evaluated) == 2


async def test_a_known_candidate_is_answered_at_once_and_again_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        [first] = await ended(service, request())
        [second] = await accepted(service, request(policy="kevin/1"))
        assert second.status is JobStatus.FINISHED
        assert second.result.cached
        assert second.result.age_s >= 0
        assert second.result.evaluation == first.result.evaluation
        assert service.stored(second.id) == service.stored(first.id)
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        assert service.job(second.id) == second
        assert service.job(first.id) == first
        [third] = await accepted(service, request())
        assert third.result.cached
        assert engine.evaluated == []


async def test_what_is_known_is_told_as_such_though_the_clock_was_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = JobRequest(task="core/gelu", completion="I cannot do that.")
    async with serving(tmp_path) as service:
        await ended(service, request(), talk)
        monkeypatch.setattr(submission, "utc_seconds", lambda: utc_seconds() - 3600.0)
        for job in await accepted(service, request(), talk):
            assert (job.result.cached, job.result.age_s) == (True, 0.0)
        assert service.counters["cached"] == 2


async def test_fresh_evaluates_anew(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        await ended(service, request())
        [job] = await ended(service, request(fresh=True))
        assert not job.result.cached
        assert len(engine.evaluated) == 2


async def test_a_long_completion_that_is_evaluated_anew_is_not_read_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InProcessEngine()
    long = {"task": "core/gelu", "completion": "I thought.\n" * 10_000 + completion("long")}
    async with serving(tmp_path, engine) as service:
        await ended(service, JobRequest.model_validate(long))

        def read_here(request: JobRequest) -> None:
            raise AssertionError("it was read in the event loop")

        monkeypatch.setattr(submission, "candidate_in", read_here)
        await ended(service, JobRequest.model_validate({**long, "fresh": True}))
        assert len(engine.evaluated) == 2


async def test_a_profile_is_made_where_the_known_evaluation_has_none(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        await ended(service, request(), request("WRONG"))
        [job, wrong] = await ended(service, request(profile=True), request("WRONG", profile=True))
        assert service.stored(job.id).profile is not None
        assert not job.result.cached
        assert wrong.result.cached, "what is wrong has no profile to be made"
        [cached_job] = await accepted(service, request(profile=True))
        assert cached_job.result.cached
        assert service.stored(cached_job.id).profile is not None


async def test_an_evaluation_is_found_by_its_key_with_its_profile(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        [job] = await ended(service, request(profile=True))
        assert job.result.evaluation is not None
        task, stored, notes = service.evaluation(job.result.evaluation)
        assert task == "core/gelu"
        assert stored == service.stored(job.id)
        assert stored.profile is not None
        assert notes == ()
        with pytest.raises(RequestRejected, match="no evaluation 'abc'") as refused:
            service.evaluation("abc")
        assert refused.value.status == 404
    async with serving(tmp_path) as service:  # after a restart
        assert service.evaluation(job.result.evaluation)[1].profile == stored.profile


async def test_a_misspelt_task_is_refused_with_the_nearest_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        with pytest.raises(RequestRejected, match="there is no task 'core/sofmax' here; did you mean core/softmax"):
            await accepted(service, request(task="core/sofmax"))


async def test_a_queued_work_is_given_the_profile_that_a_later_job_wants(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        others = [request(f"other {index}") for index in range(6)]
        await accepted(service, *others)
        [plain] = await accepted(service, request())
        [profiled] = await accepted(service, request(profile=True))
        engine.gate.set()
        await service.wait([plain.id, profiled.id], None, 20.0)
        assert sum("v0" in source for source in engine.evaluated) == 1
        assert service.stored(profiled.id).profile is not None


async def test_a_measured_time_is_answered_only_while_it_is_young(tmp_path: Path) -> None:
    engine = InProcessEngine(measures=True)
    async with serving(tmp_path, engine) as service:
        await ended(service, request(), request("WRONG"))
        await ended(service, request(max_age_s=3600.0), request("WRONG", max_age_s=0.0))
        assert len(engine.evaluated) == 2
        [job] = await ended(service, request(max_age_s=0.0))
        assert not job.result.cached
        assert job.result.origin == "measured"
        assert len(engine.evaluated) == 3


async def test_the_servers_own_limit_on_the_age_holds_too(tmp_path: Path) -> None:
    engine = InProcessEngine(measures=True)
    async with serving(tmp_path, engine, max_measured_age_s=0.0) as service:
        await ended(service, request())
        await ended(service, request(max_age_s=3600.0))
        assert len(engine.evaluated) == 2


async def test_an_idempotency_key_gives_the_job_of_then(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        both = service.submit([request()], CALLER, ["k"]), service.submit([request()], CALLER, ["k"])
        [[first], [second]] = await asyncio.gather(*both)
        assert isinstance(first, Job)
        assert first.id == second.id
        twice = await service.submit([request("new"), request("new")], CALLER, ["k2", "k2"])
        assert twice[0].id == twice[1].id
        await service.wait([first.id], None, 20.0)
        [later] = await service.submit([request()], CALLER, ["k"])
        assert later.id == first.id
        assert later.result.outcome == "scored"
        [other] = await service.submit([request("other")], CALLER, ["k"])
        assert isinstance(other, RequestRejected)
        assert other.status == 409
        [theirs] = await service.submit([request("other")], Caller("them"), ["k"])
        assert theirs.id != first.id
        assert service.keyed("k", CALLER).id == first.id
        assert service.keyed("none", CALLER) is None
    async with serving(tmp_path) as service:
        [restarted] = await service.submit([request()], CALLER, ["k"])
        assert restarted.id == first.id


async def test_a_key_that_comes_twice_at_once_for_something_known_is_one_job(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await ended(service, request())
        submissions = (service.submit([request(), request()], CALLER, ["k", "k"]) for _ in range(3))
        job_ids = {job.id for jobs in await asyncio.gather(*submissions) for job in jobs}
        assert len(job_ids) == 1


async def test_a_full_queue_refuses_and_says_when_to_come_back(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine, max_jobs=6, max_jobs_per_run=4) as service:
        await ended(service, request("known"))
        engine.gate.clear()
        await accepted(service, *(request(f"a{index}", run_id="a") for index in range(4)))
        outcomes = await service.submit([request("a5", run_id="a")], CALLER)
        assert (outcomes[0].status, outcomes[0].code) == (429, "run_queue_full")
        outcomes = await service.submit([request(f"b{index}", run_id="b") for index in range(4)], CALLER)
        assert [isinstance(outcome, RequestRejected) for outcome in outcomes] == [False, False, True, True]
        assert (outcomes[3].status, outcomes[3].code) == (503, "queue_full")
        assert outcomes[3].retry_after_s >= 1
        [cached_job] = await accepted(service, request("known", run_id="a"))
        assert cached_job.result.cached, "what is known needs no room"
        engine.gate.set()
        await until(lambda: service.status().queued + service.status().running == 0)
        await accepted(service, request("a5", run_id="a"))


async def test_candidates_that_wait_are_bounded_in_size_too(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine, max_queued_chars=100) as service:
        await accepted(service, request("first"))
        [refusal] = await service.submit([request("second")], CALLER)
        assert isinstance(refusal, RequestRejected)
        assert refusal.code == "queue_full"
        engine.gate.set()


async def test_a_run_with_little_to_do_does_not_wait_for_one_with_much(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        many = await accepted(service, *(request(f"many {index}", run_id="many") for index in range(40)))
        few = await accepted(service, *(request(f"few {index}", run_id="few") for index in range(2)))
        engine.gate.set()
        await service.wait([job.id for job in (*many, *few)], None, 20.0)
        places = [index for index, source in enumerate(engine.evaluated) if "few" in source]
        assert max(places) < 12


async def test_within_a_run_priority_goes_first(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        await accepted(service, *(request(f"filler {index}") for index in range(5)))
        jobs = await accepted(service, request("low", priority=-1), request("normal"), request("high", priority=3))
        engine.gate.set()
        await service.wait([job.id for job in jobs], None, 20.0)
        order = [word for source in engine.evaluated for word in ("low", "normal", "high") if word in source]
        assert order == ["high", "normal", "low"]


async def test_stale_work_is_ended_now_and_when_it_comes(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        old, new, unversioned = await accepted(
            service, request("old", policy_version=3), request("new", policy_version=4), request("any")
        )
        status = await service.set_run("default", RunSettings(weight=2.0, min_policy_version=4))
        assert (status.weight, status.min_policy_version) == (2.0, 4)
        both = [RunSettings(min_policy_version=0), RunSettings(weight=3.0), RunSettings(min_policy_version=4)]
        await asyncio.gather(*(service.set_run("default", settings) for settings in both))
        [status] = service.runs()
        assert (status.weight, status.min_policy_version) == (3.0, 4)
        assert (await service.set_run("default", RunSettings(min_policy_version=0))).min_policy_version is None
        assert (await service.set_run("default", RunSettings(min_policy_version=4))).weight == 3.0
        assert (service.job(old.id).status, service.job(old.id).result.error.code) == (JobStatus.EXPIRED, "stale")
        [late] = await accepted(service, request("late", policy_version=3))
        assert (late.status, late.result.error.code) == (JobStatus.EXPIRED, "stale")
        engine.gate.set()
        assert len(await service.wait([new.id, unversioned.id], None, 20.0)) == 2
        assert service.job(new.id).result.outcome == "scored"
    async with serving(tmp_path) as service:
        [run] = service.runs()
        assert (run.weight, run.min_policy_version, run.ended) == (3.0, 4, 4)


async def test_a_run_can_be_cancelled_up_to_a_version(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        requests = [request(f"v{index}", policy_version=index, run_id="r") for index in range(4)]
        jobs = await accepted(service, *requests)
        other = await accepted(service, request("other", run_id="s", policy_version=0))
        assert set(await service.cancel_run("r", 2, CALLER)) == {jobs[0].id, jobs[1].id}
        assert set(await service.cancel_run("r", None, CALLER)) == {jobs[2].id, jobs[3].id}
        assert not service.job(other[0].id).status.ended
        assert await service.cancel_run("none", None, CALLER) == []
        engine.gate.set()


async def test_a_caller_ends_its_own_jobs_and_an_admin_all(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    alice, bob = (Caller(name, frozenset({"submit", "read"})) for name in ("alice", "bob"))
    async with serving(tmp_path, engine) as service:
        [hers, other] = await service.submit([request("a", run_id="r"), request("b", run_id="r")], alice)
        [his] = await service.submit([request("c", run_id="r")], bob)
        with pytest.raises(RequestRejected, match="another token") as refused:
            await service.cancel([his.id, hers.id], bob)
        assert refused.value.status == 403
        assert not service.job(his.id).status.ended
        assert await service.cancel_run("r", None, bob) == [his.id]
        assert await service.cancel([hers.id], alice) == [hers.id]
        assert await service.cancel([other.id], Caller("root", frozenset({"admin"}))) == [other.id]
        engine.gate.set()


async def test_a_caller_has_as_many_jobs_as_its_token_allows(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    few = Caller("few", frozenset({"submit"}), max_jobs=2)
    async with serving(tmp_path, engine) as service:
        requests = [request(str(index), run_id=f"run-{index}") for index in range(3)]
        *taken, refused = await service.submit(requests, few)
        assert isinstance(refused, RequestRejected)
        assert (refused.status, refused.code) == (429, "token_queue_full")
        assert refused.retry_after_s >= 1
        await accepted(service, request("another caller's"))
        await service.cancel([taken[0].id], few)
        [job] = await service.submit([requests[2]], few)
        assert not isinstance(job, RequestRejected)
        engine.gate.set()


def test_a_rate_allows_a_minutes_jobs_at_once_and_then_as_time_goes_on() -> None:
    now = 0.0
    rates, caller = submission.SubmissionRates(lambda: now), Caller("six", jobs_per_minute=6.0)
    for _ in range(6):
        rates.take(caller)
    rates.take(Caller("another", jobs_per_minute=6.0))
    with pytest.raises(RequestRejected, match="6 jobs a minute") as refused:
        rates.take(caller)
    assert (refused.value.status, refused.value.retry_after_s) == (429, 10.0)
    now = 10.0
    rates.take(caller)
    with pytest.raises(RequestRejected):
        rates.take(caller)
    now = 1e6
    for _ in range(6):
        rates.take(caller)
    with pytest.raises(RequestRejected):
        rates.take(caller)


async def test_callers_have_the_shares_of_their_tokens_after_a_restart_too(tmp_path: Path) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    async with serving(tmp_path, engine, shares={"restored": 3.0}) as service:
        await service.submit([request()], Caller("large", share=2.0))
        shares = {name: service._scheduler.queue.share(name) for name in ("restored", "large", "small")}
        assert shares == {"restored": 3.0, "large": 2.0, "small": 1.0}
        engine.gate.set()


async def test_wait_returns_after_any_k_of_n(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=4)
    async with serving(tmp_path, engine) as service:
        jobs = await accepted(service, request("HANG"), request("a"), request("b"))
        ids = [job.id for job in jobs]
        first = await service.wait(ids, 1, 20.0)
        assert {job.id for job in first} <= set(ids[1:])
        two = await service.wait(ids, 2, 20.0)
        assert {job.id for job in two} == set(ids[1:])
        assert [job.finished_at for job in two] == sorted(job.finished_at for job in two)
        assert len(await service.wait(ids, None, 0.0)) == 2
        with pytest.raises(RequestRejected) as unknown:
            await service.wait([*ids, "none"], None, 1.0)
        assert unknown.value.status == 404


async def test_watching_tells_each_change_and_ends_with_the_last(tmp_path: Path) -> None:
    engine = InProcessEngine(slots=1)
    engine.gate.clear()
    async with serving(tmp_path, engine) as service:
        events: list[Job] = []
        service.on_ended(events.append)
        jobs = await accepted(service, *(request(f"c{index}") for index in range(6)))
        seen: dict[str, list[JobStatus]] = {}
        async for job in service.watch([job.id for job in jobs]):
            seen.setdefault(job.id, []).append(job.status)
            if len(seen) == 6:
                engine.gate.set()
        assert all(statuses[-1] is JobStatus.FINISHED for statuses in seen.values())
        assert seen[jobs[-1].id] == [JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.FINISHED]
        assert sorted(job.id for job in events) == sorted(seen)


@pytest.mark.slow
async def test_a_job_that_was_accepted_is_known_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.server.jobs.submission._MAX_STEP_S", 0.0)

    async with serving(tmp_path) as service:
        for start in range(0, 200, 20):
            jobs = await accepted(service, *(request(f"v{number}") for number in range(start, start + 20)))
            assert [service.job(job.id).id for job in jobs] == [job.id for job in jobs]


async def test_a_fault_in_the_middle_of_a_batch_leaves_no_job_behind_that_nobody_works_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InProcessEngine()
    batch = [request("first"), JobRequest(task="core/gelu", completion="no code"), request("second")]
    async with serving(tmp_path, engine) as service:
        with monkeypatch.context() as patch:
            new = submission.Submission._new_id

            def breaks(submission: submission.Submission, now: float) -> str:
                if service.status().queued:
                    raise RuntimeError("a fault of ours")
                return new(submission, now)

            patch.setattr(submission.Submission, "_new_id", breaks)
            patch.setattr(submission, "_MAX_STEP_S", 60.0)  # a batch is one step, however busy the machine is
            with pytest.raises(RuntimeError, match="of ours"):
                await service.submit(batch, CALLER, ["a", "b", "c"])
        assert service.status().queued == 0
        jobs = await service.submit(batch, CALLER, ["a", "b", "c"])
        assert not [job for job in jobs if isinstance(job, RequestRejected)]
        done = await service.wait([job.id for job in jobs if isinstance(job, Job)], None, 60.0)
        assert [job.status for job in done] == [JobStatus.FINISHED] * 3


async def test_jobs_that_are_refused_do_not_count_among_those_of_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    caller = Caller("slow", frozenset({"submit"}), max_jobs=1, jobs_per_minute=2.0)
    async with serving(tmp_path, engine) as service:
        monkeypatch.setattr(service._submission, "_rates", submission.SubmissionRates(lambda: 0.0))  # all in one moment
        job, *refused = await service.submit([request(str(index)) for index in range(4)], caller)
        assert isinstance(job, Job)
        assert [each.code for each in refused if isinstance(each, RequestRejected)] == ["token_queue_full"] * 3
        await service.cancel([job.id], caller)
        second, third = await service.submit([request("a"), request("b")], caller)
        assert isinstance(second, Job)
        assert isinstance(third, RequestRejected)
        assert third.code == "too_fast"
        engine.gate.set()
