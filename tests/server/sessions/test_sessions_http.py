"""Sessions over HTTP, on the real job service: kept, repeated, cancelled, bounded, and untouched by trouble of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kernelforge.candidate import parse_reply
from kernelforge.errors import TaskError
from kernelforge.records import Correctness, Evaluation, Reward, SizeCheck, Task, Verdict
from kernelforge.rewards import DEFAULT_POLICY, POLICIES, Context, RewardPolicy
from kernelforge.rewards.hacks import shipped_cases
from kernelforge.server.base import Caller
from kernelforge.server.http.app import create_app
from kernelforge.server.jobs.service import JobService
from kernelforge.server.jobs.state import JobServiceSettings
from kernelforge.server.samples import samples_of_sessions
from kernelforge.server.sessions import routes as session_routes
from kernelforge.server.sessions.service import MAX_SESSION_CHARS, Sessions
from kernelforge.tasks.suites import Catalogue
from kernelforge.workers.base import EvaluationOrder, EvaluationReport, TaskContextData
from tests.agents.prompt_samples import profile
from tests.support.inprocess_engine import InProcessEngine, completion

CATALOGUE = Catalogue(["core"], ["softmax", "gelu"])


class TellingEngine(InProcessEngine):
    """Also tells of a task what a prompt needs, and profiles by the number in a candidate's first line."""

    async def evaluate(self, order: EvaluationOrder, slot: str) -> EvaluationReport:
        report = await super().evaluate(order, slot)
        if report.profile is None:
            return report
        numbers = [word for word in order.candidate.source.splitlines()[0].split() if word.isdigit()]
        seen = profile(float(numbers[0] if numbers else 4_194_304)).model_copy(
            update={"device": self.fingerprint.device}
        )
        return report.model_copy(update={"profile": seen})

    async def task_context(self, task: Task) -> TaskContextData:
        if task.name == "gelu":
            raise TaskError("its reference does not run")
        return await super().task_context(task)


class Server:
    def __init__(self, client: httpx2.AsyncClient, engine: TellingEngine, sessions: Sessions) -> None:
        self.client = client
        self.engine = engine
        self.sessions = sessions

    async def open(self, **fields: Any) -> dict[str, Any]:
        answer = await self.client.post("/v1/sessions", json={"task": "core/softmax"} | fields)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def turn(self, session: str, text: str, number: int | None = None, **fields: Any) -> httpx2.Response:
        body = {"completion": text, "number": number} | fields
        return await self.client.post(f"/v1/sessions/{session}/turns", json=body)


@asynccontextmanager
async def serving(
    folder: Path,
    policy: str = DEFAULT_POLICY,
    *,
    measures: bool = False,
    train_on_request: bool = False,
    **options: Any,
) -> AsyncIterator[Server]:
    engine = TellingEngine(measures=measures)
    settings = JobServiceSettings(policy=policy, train_on_request=train_on_request)
    service = JobService(engine, CATALOGUE, folder, settings)
    await service.start()
    sessions = Sessions(service, folder / "server.db", **options)
    app = create_app(service, routers=[session_routes.router(sessions)])
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as client:
            yield Server(client, engine, sessions)
    finally:
        await sessions.close()
        await service.close()


@pytest.mark.slow
async def test_a_session_survives_a_restart_and_goes_on_where_it_stood(tmp_path: Path) -> None:
    turns = [completion("WRONG"), completion("4194304"), completion("2097152")]
    async with serving(tmp_path) as server:
        uncut = await server.open(turns=3)
        through = [(await server.turn(uncut["id"], text, number)).json() for number, text in enumerate(turns, 1)]
        cut = await server.open(turns=3)
        await server.turn(cut["id"], turns[0], 1)
    async with serving(tmp_path) as server:
        rest = [(await server.turn(cut["id"], text, number)).json() for number, text in enumerate(turns[1:], 2)]
        session = (await server.client.get(f"/v1/sessions/{cut['id']}")).json()
    assert [turn["observation"] for turn in rest] == [turn["observation"] for turn in through[1:]]
    assert [turn["result"]["verdict"] for turn in through] == ["WRONG", "OK", "OK"]
    assert [turn["best"] for turn in through] == [False, True, True]
    assert "it was WRONG" in through[0]["observation"]
    assert through[2]["observation"] == ""
    assert (session["done"], session["policy"], len(session["turns"])) == (True, "kernelforge/2", 3)
    assert [turn["completion"] for turn in session["turns"]] == turns
    # R_t = S_t + 0.4 R_{t+1}
    assert session["returns"] == pytest.approx([0.4 * (0.3 + 0.4 * 0.3), 0.3 + 0.4 * 0.3, 0.3])


@pytest.mark.slow
async def test_observations_are_deltas_or_whole_prompts(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        full, delta = await server.open(observations="whole"), await server.open()
        assert delta["prompt"] == full["prompt"] == delta["system"] + "\n\n" + delta["user"]
        texts = [(await server.turn(session["id"], completion("WRONG"))).json() for session in (full, delta)]
        assert texts[0]["observation"].startswith(full["system"])
        assert delta["system"] not in texts[1]["observation"]
        assert "it was WRONG" in texts[1]["observation"]


@pytest.mark.slow
async def test_the_turns_of_a_session_check_the_sizes_that_it_was_begun_with(tmp_path: Path) -> None:
    less = {"task": "core/softmax", "sizes": "train"}
    async with serving(tmp_path, train_on_request=True) as server:
        opened = [await server.open(sizes="train"), await server.open()]
        turns = [(await server.turn(session["id"], completion("4194304"))).json() for session in opened]
        assert [turn["result"]["sizes"] for turn in turns] == ["train", "all"]
        assert len(server.engine.evaluated) == 2, "one answers for no other"
        lacking = (await server.turn(opened[0]["id"], completion("LACKS"))).json()
        assert lacking["result"]["outcome"] == "unsupported"
        _, kept = server.sessions._store.get(opened[0]["id"])
        assert [turn.attempt.evaluation.fingerprint.sizes for turn in kept] == ["train", "train"]
    async with serving(tmp_path) as server:
        refusals = [
            await server.client.post("/v1/sessions", json=less),
            await server.client.post("/v1/sessions", json=less | {"sizes": "hidden"}),
            await server.turn(opened[0]["id"], completion("1")),
        ]
    assert [refusal.status_code for refusal in refusals] == [422] * 3
    assert ["--sizes any" in refusal.json()["error"]["message"] for refusal in refusals] == [True, False, True]


@pytest.mark.slow
async def test_a_turn_has_the_version_of_the_weights_that_wrote_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open(policy_version=3))["id"]
        versions = [
            (await server.turn(session, completion(text), **fields)).json()["policy_version"]
            for text, fields in (("1", {}), ("2", {"policy_version": 5}), ("3", {}))
        ]
        assert versions == [3, 5, 3]


@pytest.mark.slow
async def test_a_candidate_that_the_device_cannot_run_is_a_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open(turns=3, policy="cuda-agent/1"))["id"]
        lacks = (await server.turn(session, completion("LACKS"))).json()
        right = (await server.turn(session, completion("4194304"))).json()
        state = (await server.client.get(f"/v1/sessions/{session}")).json()
    assert (lacks["result"]["outcome"], lacks["result"]["failure_reward"], lacks["best"]) == (
        "unsupported",
        -1.0,
        False,
    )
    assert "this device cannot run it: no clusters here" in lacks["observation"]
    assert right["result"]["outcome"] == "scored"
    assert state["returns"] == pytest.approx([-1.0 + 0.4 * 1.0, 1.0])


@pytest.mark.slow
async def test_after_so_many_failures_at_hidden_sizes_a_session_is_not_told_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelforge.evaluation.stages.compile_stage.HIDDEN_FAILURES", 1)
    evaluate = TellingEngine.evaluate

    async def at_hidden(self: TellingEngine, order: EvaluationOrder, slot: str) -> EvaluationReport:
        report = await evaluate(self, order, slot)
        check = SizeCheck(size="hidden_odd", status="failed", message="it crashes")
        assert report.evaluation is not None
        crash = {"verdict": Verdict.CRASH, "reason": "it crashes", "stage": "hidden", "performance": None}
        failed = report.evaluation.model_copy(update={**crash, "correctness": Correctness(sizes=(check,))})
        return report.model_copy(update={"evaluation": failed, "profile": None})

    monkeypatch.setattr(TellingEngine, "evaluate", at_hidden)

    async with serving(tmp_path) as server:
        session = (await server.open(turns=3))["id"]
        turns = [(await server.turn(session, completion(text))).json() for text in ("1", "2")]
        assert [turn["result"]["verdict"] for turn in turns] == ["CRASH", "WRONG"]
        assert "not even how it fails" in turns[1]["result"]["feedback"]
        assert "not even how it fails" in turns[1]["observation"]
        metrics = (await server.client.get("/metrics")).text
        assert 'kernelforge_gateway_events_total{event="failed_at_hidden"} 2.0' in metrics


@pytest.mark.slow
async def test_a_numbered_turn_can_be_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open())["id"]
        first = await server.turn(session, completion("1"), 1)
        repeated = await server.turn(session, completion("1"), 1)
        assert repeated.json() == first.json()
        assert len(server.engine.evaluated) == 1
        for text, number, code in ((completion("2"), 1, "turn_differs"), (completion("2"), 3, "turn_out_of_order")):
            answer = await server.turn(session, text, number)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, code)


@pytest.mark.slow
async def test_two_turns_at_once_are_refused_and_the_same_one_is_joined(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open())["id"]
        server.engine.gate.clear()
        first = asyncio.create_task(server.turn(session, completion("1"), 1))
        while not server.engine.evaluated:
            await asyncio.sleep(0.001)
        joining = asyncio.create_task(server.turn(session, completion("1"), 1))
        for text, number in ((completion("2"), 1), (completion("1"), None), (completion("2"), 2)):
            answer = await server.turn(session, text, number)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "turn_running")
        server.engine.gate.set()
        assert (await joining).json() == (await first).json()
        assert len(server.engine.evaluated) == 1


@pytest.mark.slow
async def test_trouble_of_ours_is_not_a_turn_and_the_turn_may_be_repeated(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open())["id"]
        broken = await server.turn(session, completion("TROUBLE"), 1)
        assert (broken.status_code, broken.json()["error"]["code"]) == (503, "infra_error")
        server.engine.gate.clear()
        late = await server.turn(session, completion("late"), 1, deadline_s=0.05)
        assert late.status_code == 504, late.text
        server.engine.gate.set()
        state = (await server.client.get(f"/v1/sessions/{session}")).json()
        assert (state["turns"], state["done"]) == ([], False)
        assert (await server.turn(session, completion("late"), 1)).json()["number"] == 1


@pytest.mark.slow
async def test_deleting_a_session_frees_what_its_turn_holds(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open())["id"]
        hanging = asyncio.create_task(server.turn(session, completion("HANG"), 1))
        while not server.engine.evaluated:
            await asyncio.sleep(0.001)
        assert (await server.client.delete(f"/v1/sessions/{session}")).status_code == 204
        assert (await hanging).status_code >= 400
        while not server.engine.freed:
            await asyncio.sleep(0.001)
        assert (await server.client.get(f"/v1/sessions/{session}")).status_code == 404


@pytest.mark.slow
async def test_a_turn_that_begins_while_its_session_is_deleted_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        session, loop, store = (await server.open())["id"], asyncio.get_running_loop(), server.sessions._store
        delete, late = store.delete, []

        async def begin() -> None:
            late.append(asyncio.create_task(server.turn(session, completion("HANG"), 1)))
            while not server.engine.evaluated:
                await asyncio.sleep(0.001)

        def delete_slowly(name: str) -> None:
            asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
            delete(name)

        monkeypatch.setattr(store, "delete", delete_slowly)
        assert (await server.client.delete(f"/v1/sessions/{session}")).status_code == 204
        answer = await asyncio.wait_for(late[0], 60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "turn_ended")
        while not server.engine.freed:
            await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_a_session_ends_and_takes_no_more_turns(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open(turns=1))["id"]
        assert (await server.turn(session, "no code at all")).json()["result"]["stage"] == "parse"
        answer = await server.turn(session, completion("1"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_done")


@pytest.mark.slow
async def test_a_session_is_its_owners(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = (await server.open())["id"]
        sessions = server.sessions
        with pytest.raises(Exception, match="there is no session"):
            await sessions.get(session, Caller("other", frozenset({"submit", "read"})))
        assert (await sessions.get(session, Caller("boss", frozenset({"admin"})))).id == session


@pytest.mark.slow
async def test_sessions_are_bounded_in_number_size_and_time(tmp_path: Path) -> None:
    async with serving(tmp_path, limit=2, idle_s=3600.0) as server:
        session = (await server.open(turns=32))["id"]
        await server.open()
        third = await server.client.post("/v1/sessions", json={"task": "core/softmax"})
        assert (third.status_code, "Retry-After" in third.headers) == (429, True)
        text = "x" * (2 << 20)
        statuses = [(await server.turn(session, f"{number}{text[1:]}")).status_code for number in range(3)]
        assert (statuses, 4 * len(text)) == ([200] * 3, MAX_SESSION_CHARS)
    async with serving(tmp_path, idle_s=0.0) as server:
        assert (await server.client.get(f"/v1/sessions/{session}")).status_code == 404


@pytest.mark.slow
async def test_a_session_at_the_limit_takes_the_place_of_the_one_that_is_missed_least(tmp_path: Path) -> None:
    async def existing(server: Server, *names: str) -> list[bool]:
        return [(await server.client.get(f"/v1/sessions/{name}")).status_code == 200 for name in names]

    async with serving(tmp_path, limit=3) as server:
        fresh, done, fresher = [(await server.open(turns=turns))["id"] for turns in (4, 1, 4)]
        await server.turn(done, completion("1"))
        assert await existing(server, fresh, done, fresher) == [True, True, True]
        newest = (await server.open())["id"]
        assert await existing(server, fresh, done, fresher, newest) == [True, False, True, True]
    async with serving(tmp_path, limit=3, spared_s=0.0) as server:
        server.engine.gate.clear()
        running = asyncio.create_task(server.turn(fresh, completion("2"), 1))
        while not server.engine.evaluated:
            await asyncio.sleep(0.001)
        await server.open()
        assert await existing(server, fresh, fresher, newest) == [True, False, True]
        server.engine.gate.set()
        assert (await running).status_code == 200
        await server.open()
        assert await existing(server, fresh, newest) == [True, False]


@pytest.mark.slow
async def test_sessions_that_are_too_large_together_make_room_for_the_newest_turn(tmp_path: Path) -> None:
    """Otherwise they would fill the file that they share with jobs, whose answers would go for them."""
    text = "I thought.\n" * 20_000 + completion("1")  # is kept once; the prompt that follows has the candidate alone

    async with serving(tmp_path) as server:
        old, newer = (await server.open())["id"], (await server.open())["id"]
        assert (await server.turn(old, text)).status_code == 200
    async with serving(tmp_path, most_chars=int(1.5 * len(text))) as server:
        assert (await server.turn(newer, text)).status_code == 200
        assert (await server.client.get(f"/v1/sessions/{old}")).status_code == 404
        assert len((await server.client.get(f"/v1/sessions/{newer}")).json()["turns"]) == 1
        assert (await server.turn(newer, text)).status_code == 200  # a session is never in its own way
        assert (await server.client.delete(f"/v1/sessions/{newer}")).status_code == 204
        other = (await server.open())["id"]
        assert (await server.turn(other, text)).status_code == 200


class LooksBack(RewardPolicy):
    """A formula that looks back and at the source; the third turn of a session has no score."""

    name = "looks-back/1"
    title = source = ""
    bounds = (-1000.0, 1000.0)
    parts = ()

    def score(self, evaluation: Evaluation, context: Context) -> Reward:
        value = None if len(context.earlier) == 2 else len(context.earlier) + len(context.source or "") / 1000
        return self.reward(value)


@pytest.mark.slow
async def test_a_policy_is_shown_the_turns_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelforge.rewards.policies.POLICIES", {**POLICIES, LooksBack.name: LooksBack()})

    async with serving(tmp_path) as server:
        session = await server.open(policy=LooksBack.name)
        length = len(parse_reply(completion("1")).source) / 1000
        rewards = [(await server.turn(session["id"], completion("1"), n)).json()["result"] for n in (1, 2)]
        assert [step["reward"] for step in rewards] == pytest.approx([length, 1 + length])
        assert [step["cached"] for step in rewards] == [False, True]
        unscored = await server.turn(session["id"], completion("1"), 3)
        assert (unscored.status_code, unscored.json()["error"]["code"]) == (503, "infra_error")
        assert len((await server.client.get(f"/v1/sessions/{session['id']}")).json()["turns"]) == 2


@pytest.mark.slow
async def test_a_session_keeps_the_policy_that_it_began_with(tmp_path: Path) -> None:
    async with serving(tmp_path, policy="kevin/1") as server:
        session = await server.open()
        assert session["policy"] == "kevin/1"
    async with serving(tmp_path, policy="cuda-agent/1") as server:
        turn = await server.turn(session["id"], completion("1"))
        assert (turn.json()["result"]["policy"], (await server.open())["policy"]) == ("kevin/1", "cuda-agent/1")


@pytest.mark.slow
async def test_requests_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for body in (
            {},
            {"task": "core/none"},
            {"task": "core/gelu"},  # has no facts for a prompt
            {"task": "core/softmax", "turns": 33},
            {"task": "core/softmax", "policy": "none/1"},
            {"task": "core/softmax", "discount": 1.5},
            {"task": "core/softmax", "trns": 3},
        ):
            assert (await server.client.post("/v1/sessions", json=body)).status_code == 422, body
        session = (await server.open())["id"]
        for body in (
            {},
            {"completion": 1},
            {"completion": "x", "number": 0},
            {"completion": "x", "deadline_s": -1},
        ):
            answer = await server.client.post(f"/v1/sessions/{session}/turns", json=body)
            assert answer.status_code == 422, body
        raw = json.dumps({"completion": "\ud800"}).encode()
        path, kind = f"/v1/sessions/{session}/turns", {"Content-Type": "application/json"}
        assert (await server.client.post(path, content=raw, headers=kind)).status_code == 400
        for answer in (
            await server.turn("none", "x"),
            await server.client.get("/v1/sessions/none"),
            await server.client.delete("/v1/sessions/none"),
        ):
            assert answer.status_code == 404


@pytest.mark.slow
async def test_prompts_and_contrast_sessions_show_what_the_runs_jobs_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        body = {"task": "core/softmax", "run_id": "l1", "seed": 3, "count": 2}
        empty = (await server.client.post("/v1/prompts", json=body)).json()
        assert [prompt["operator"] for prompt in empty["prompts"]] == ["seed", "seed"]
        job = {"task": "core/softmax", "run_id": "l1", "completion": completion("4194304"), "profile": True}
        scored = (await server.client.post("/v1/rewards", json=job)).json()["result"]
        answer = (await server.client.post("/v1/prompts", json=body | {"options": {"metrics": "subset"}})).json()
        assert (answer["task"], answer["kind"], answer["seed"]) == ("core/softmax", "contrast", 3)
        for prompt in answer["prompts"]:
            assert [exemplar["evaluation"] for exemplar in prompt["exemplars"]] == [scored["evaluation"]]
            assert "// 4194304" in prompt["user"]
            assert "Profile of example 1" in prompt["user"]
            assert prompt["prompt"] == prompt["system"] + "\n\n" + prompt["user"]
        session = await server.open(kind="contrast", run_id="l1", turns=2)
        assert "// 4194304" in session["user"]
        assert "// 4194304" not in (await server.open(kind="contrast", run_id="other"))["user"]
        turn = (await server.turn(session["id"], completion("1048576 1"))).json()
        assert turn["result"]["verdict"] == "OK"
        assert "## Algorithm Design" in turn["observation"]
        for wrong in ({"options": {"samples": 0}}, {"options": {"none": 1}}):
            for path, kind in (("/v1/prompts", "fsr"), ("/v1/sessions", "contrast")):
                refused = await server.client.post(path, json={"task": "core/softmax", "kind": kind} | wrong)
                assert refused.status_code == 422, refused.text
                assert kind in refused.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("decision", ["confirm", "release"])
async def test_a_turn_whose_reward_is_withheld_is_a_turn(tmp_path: Path, decision: str) -> None:
    hack = next(case.source for case in shipped_cases() if case.name == "lazy-softmax-one-row")
    text = completion("1").replace("// 1\n__global__ void k(float* out) {}", hack)

    async with serving(tmp_path, measures=True) as server:
        server.engine.speedup = 5.0
        await server.client.patch("/v1/runs/l1", json={"jump_factor": 2})
        session = await server.open(run_id="l1", turns=2)
        turn = (await server.turn(session["id"], text)).json()
        assert (turn["result"]["outcome"], turn["result"]["verdict"]) == ("withheld", "OK")
        assert turn["observation"]
        state = (await server.client.get(f"/v1/sessions/{session['id']}")).json()
        assert state["returns"] == [turn["result"]["failure_reward"]]
        [suspect] = (await server.client.get("/v1/suspects", params={"run_id": "l1"})).json()
        decided = await server.client.post(f"/v1/suspects/{suspect['id']}", json={"decision": decision})
        assert decided.json()["decision"] == decision
        assert "kernelforge_suspects 0.0" in (await server.client.get("/metrics")).text
        after = (await server.client.get(f"/v1/sessions/{session['id']}")).json()
    samples = list(samples_of_sessions(tmp_path, None, DEFAULT_POLICY))
    if decision == "confirm":
        assert after == state
        assert samples == [], "a suspect is no training data"
    else:
        result = after["turns"][0]["result"]
        assert (result["outcome"], after["returns"]) == ("scored", [result["reward"]])
        assert result["reward"] > 0
        assert [sample.reward for sample in samples] == [result["reward"]]


@pytest.mark.slow
async def test_a_session_begins_with_a_kernel_that_its_first_prompt_revises(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        session = await server.open(turns=2, start=completion("WRONG"))
        assert session["start"]["verdict"] == "WRONG"
        assert "# Request: repair a candidate" in session["prompt"]
        assert parse_reply(completion("WRONG")).source in session["prompt"]
        assert (session["turns"], session["done"], session["returns"]) == ([], False, [])
        first = (await server.turn(session["id"], completion("4194304"), 1)).json()
        assert (first["number"], first["result"]["verdict"], first["best"]) == (1, "OK", True)
        assert "your reply in turn 1" in first["observation"]
        refused = await server.client.post("/v1/sessions", json={"task": "core/softmax", "start": "no kernel"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid")
    async with serving(tmp_path) as server:
        last = (await server.turn(session["id"], completion("WRONG"), 2)).json()
        after = (await server.client.get(f"/v1/sessions/{session['id']}")).json()
    assert last["observation"] == ""
    assert (after["done"], len(after["turns"]), len(after["returns"])) == (True, 2, 2)
    assert after["start"] == session["start"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refine", "contrast", "fsr"])
async def test_every_kind_of_prompts_begins_with_the_start(kind: str, tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for text in ("4194304", "WRONG"):
            session = await server.open(turns=2, kind=kind, start=completion(text))
            assert parse_reply(completion(text)).source in session["prompt"]
        session = await server.open(turns=2, kind=kind, start=completion("2097152"))
        after = (await server.turn(session["id"], "no code", 1)).json()["observation"]
        assert "The one that the first message shows." in after or kind != "refine"
