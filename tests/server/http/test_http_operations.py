"""The operator's view: metrics, logs, pages."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import StreamingResponse

from kernelforge.client.models import InputTestsAnswer, Job, JobStatus, PolicyRow, RewardResult, TaskPage, TaskRow
from kernelforge.records import UNCOMPARED
from kernelforge.rewards import DEFAULT_POLICY, POLICIES
from kernelforge.server.http import logs, process
from kernelforge.server.http.app import create_app
from kernelforge.server.http.auth import Tokens
from kernelforge.server.http.limits import Limits, LongPollLimiter
from kernelforge.server.http.logs import LogFormat, Metrics, configure_logs
from kernelforge.server.http.process import Stop, listen, serve
from kernelforge.server.jobs.requests import reference_hash
from tests.server.http_serving import JOB, SLOW_JOB, WAIT_S, client_of
from tests.support.minimal_service import MinimalService


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_count_apart_what_was_not_compared_at_its_full_size() -> None:
    metrics = Metrics(MinimalService(), LongPollLimiter(1))
    for uncompared in (False, True, True):
        result = RewardResult(outcome="scored", reward=0.0, verdict="OK", uncompared=uncompared)
        ended = {"status": JobStatus.FINISHED, "submitted_at": 1.0, "finished_at": 2.0, "result": result}
        metrics.observe_job(Job(id="j1", task="t", run_id="r1", **ended))
    metric_samples = samples(metrics.render().decode())
    assert metric_samples["kernelforge_verdicts_total", frozenset({("verdict", "OK")})] == 1
    assert metric_samples["kernelforge_verdicts_total", frozenset({("verdict", UNCOMPARED)})] == 2


async def test_workers_are_listed_drained_and_resumed_by_name() -> None:
    client = client_of(MinimalService())
    [row] = (await client.get("/v1/workers")).json()
    assert (row["name"], row["kind"], row["state"]) == ("emulated:h100#1", "device", "idle")
    assert (await client.post("/v1/workers/drain", json={"name": row["name"]})).json()[0]["state"] == "drained"
    assert (await client.post("/v1/workers/resume", json={"name": row["name"]})).json()[0]["state"] == "idle"
    assert (await client.post("/v1/workers/drain", json={"name": "none"})).status_code == 404
    assert (await client.post("/v1/workers/drain", json={"pattern": "*"})).status_code == 422


async def test_metrics_count_jobs_by_outcome_and_requests_by_route() -> None:
    client = client_of(MinimalService())
    for _ in range(3):
        await client.post("/v1/jobs", json=JOB)
    slow = (await client.post("/v1/jobs", json=SLOW_JOB)).json()["id"]
    await client.post("/v1/jobs", json=SLOW_JOB)
    await client.delete(f"/v1/jobs/{slow}")
    await client.get("/none/at/all")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    metric_samples = samples(answer.text)

    def value(name: str, **labels: str) -> float:
        return metric_samples[name, frozenset(labels.items())]

    assert value("kernelforge_jobs_total", outcome="scored", status="finished", cached="no") == 3
    assert value("kernelforge_jobs_total", outcome="infra_error", status="cancelled", cached="no") == 1
    assert value("kernelforge_verdicts_total", verdict="OK") == 3
    assert value("kernelforge_faults_total", code="cancelled") == 1
    assert value("kernelforge_job_seconds_count", cached="no") == 4
    assert value("kernelforge_jobs_queued") == 1
    assert value("kernelforge_worker_restarts") == 2
    assert value("kernelforge_engine_warm_tasks") == 3
    assert value("kernelforge_ready") == 1
    assert value("kernelforge_gateway_events_total", event="submitted") == 5
    assert value("kernelforge_http_requests_total", method="POST", route="/v1/jobs", status="200") == 3
    assert value("kernelforge_http_requests_total", method="DELETE", route="/v1/jobs/{job_id}", status="200") == 1
    assert value("kernelforge_http_requests_total", method="GET", route="unknown", status="404") == 1


async def test_runs_that_ended_a_job_last_have_metrics_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SHOWN_RUNS", 2)
    client = client_of(MinimalService())
    for run in ("first", "second", "second", "third"):
        await client.post("/v1/jobs", json={**JOB, "run_id": run})
    await client.post("/v1/jobs", json={**SLOW_JOB, "run_id": "third"})
    values = samples((await client.get("/metrics")).text)
    results = {
        dict(labels)["run"]: value for (name, labels), value in values.items() if name.endswith("_run_results_total")
    }
    assert results == {"second": 2, "third": 1}
    assert values["kernelforge_run_reward_count", frozenset({("run", "second")})] == 2
    assert values["kernelforge_run_reward_sum", frozenset({("run", "second")})] == 2 * 1.5
    assert values["kernelforge_run_jobs", frozenset({("run", "third"), ("state", "queued")})] == 1
    assert values["kernelforge_stages_total", frozenset({("stage", "none"), ("verdict", "OK")})] == 4


async def test_nothing_else_that_callers_choose_becomes_a_label() -> None:
    client = client_of(MinimalService())
    for name in ("alpha", "beta"):
        await client.post("/v1/jobs", json={**JOB, "tag": name, "group_id": name})
        await client.request(name.upper(), f"/{name}")
        await client.get(f"/v1/jobs/{name}")
        await client.patch(f"/v1/runs/{name}", json={})
    text = (await client.get("/metrics")).text.lower()
    assert "alpha" not in text
    assert "beta" not in text


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    root, server_logger = logging.getLogger(), logging.getLogger("kernelforge.server")
    kept = root.handlers, root.level, server_logger.level
    stream = io.StringIO()
    yield stream
    root.handlers, root.level, server_logger.level = kept[0], kept[1], kept[2]


@pytest.mark.parametrize("form", ["json", "text"])
async def test_a_line_says_who_asked_what_and_holds_neither_token_nor_completion(
    tmp_path: Path, logged: io.StringIO, form: LogFormat
) -> None:
    configure_logs(form, logged)
    tokens = Tokens(tmp_path)
    token = tokens.create("trainer", ["submit"])

    headers = {"Authorization": f"Bearer {token}", "X-Request-Id": "step-7"}
    client = client_of(MinimalService(), tokens=tokens, headers=headers)
    await client.post("/v1/jobs", json={**JOB, "completion": "my-completion"})
    await client.post("/v1/jobs", json={**JOB, "completion": "my-completion", "tag": 1})
    await client.get("/healthz")
    tokens.close()
    text = logged.getvalue()
    assert token not in text
    assert "my-completion" not in text
    assert "trainer" in text
    if form == "json":
        job, first, second = [json.loads(line) for line in text.splitlines()]
        assert (job["message"], job["task"], job["run"]) == ("job", JOB["task"], "default")
        assert (job["verdict"], job["outcome"], job["error"]) == ("OK", "scored", None)
        assert (first["request_id"], first["caller"], first["route"]) == ("step-7", "trainer", "/v1/jobs")
        assert (first["status"], second["status"]) == (200, 422)
        assert first["ms"] >= 0


async def test_tasks_come_with_the_prompt_and_what_reference_code_is_looked_up_by() -> None:
    service = MinimalService()
    client = client_of(service)
    rows = [TaskRow.model_validate(row) for row in (await client.get("/v1/tasks?suite=core")).json()]
    page = TaskPage.model_validate_json((await client.get("/v1/tasks/core/swish")).text)
    policies = [PolicyRow.model_validate(row) for row in (await client.get("/v1/policies")).json()]
    assert [row.task for row in rows] == [f"core/{task.name}" for task in service.catalogue.tasks("core")]
    _, task = service.catalogue.task("core/swish")
    assert page.reference_sha256 == reference_hash(task.source)
    assert task.source.strip() in page.prompt
    assert page.device == "emulated:h100"
    assert {row.policy for row in policies} == set(POLICIES)
    assert [row.policy for row in policies if row.default] == [DEFAULT_POLICY]


async def test_the_page_of_a_task_has_the_prompt_of_a_tester_where_that_is_asked_for() -> None:
    client = client_of(MinimalService())
    pages = [
        TaskPage.model_validate_json((await client.get(f"/v1/tasks/core/swish{query}")).text)
        for query in ("", "?agent=tester", "?agent=coder")
    ]
    assert "# Request: further test inputs" in pages[1].prompt
    assert "hidden_" not in pages[1].prompt
    assert pages[0] == pages[2] != pages[1]
    assert pages[1].system + "\n" in pages[1].prompt
    assert (await client.get("/v1/tasks/core/swish?agent=judge")).status_code == 422


async def test_a_testers_reply_is_scored_on_request() -> None:
    client = client_of(MinimalService())
    answer = await client.post("/v1/tests", json={"task": "core/swish", "completion": "{}", "most": 7})
    scored = InputTestsAnswer.model_validate_json(answer.text)
    assert (scored.task, scored.reward, scored.mutants) == ("core/swish", 0.5, 7)
    for fault in ({"most": 0}, {"most": 201}, {"task": "core/none"}, {"generators": []}):
        body = {"task": "core/swish", "completion": "{}", **fault}
        assert (await client.post("/v1/tests", json=body)).status_code == 422, fault


@pytest.mark.slow
async def test_the_pages_of_the_api_are_served() -> None:
    client = client_of(MinimalService())
    page, docs, health = [await client.get(path) for path in ("/openapi.json", "/docs", "/healthz")]
    assert {"/v1/jobs", "/v1/rewards", "/metrics"} <= page.json()["paths"].keys()
    assert "/openapi.json" in docs.text
    assert health.text == "ok\n"


class NeverDone(MinimalService):
    """Has work that does not end."""

    async def drain(self) -> None:
        self.state = "draining"
        await asyncio.Event().wait()


@pytest.mark.slow
async def test_a_stream_that_is_cancelled_as_its_jobs_end_leaves_no_error_behind() -> None:
    ended, errors = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))

    async def jobs() -> AsyncIterator[Job]:
        await ended.wait()
        return
        yield

    async def follow() -> None:
        async for _ in LongPollLimiter(1).until_closed(jobs()):
            pass

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.01)
    ended.set()
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait((following,))
    assert following.cancelled()
    del following
    gc.collect()
    assert errors == []


@pytest.mark.slow
@pytest.mark.parametrize("second", [True, False])
async def test_a_second_signal_or_the_limit_ends_what_does_not_drain(
    second: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service, accepting, limits, reached = NeverDone(), asyncio.Event(), Limits(), asyncio.Semaphore(0)
    monkeypatch.setattr(process, "CLOSE_S", 0.2)
    app = create_app(service, limits=limits)

    @app.get("/endless")
    async def endless() -> None:
        reached.release()
        await asyncio.Event().wait()

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield b"first"
            reached.release()
            await asyncio.Event().wait()

        return StreamingResponse(parts())

    with Stop() as stop:
        drain_s = WAIT_S if second else 0.1
        listener = listen("127.0.0.1", 0)
        serving = asyncio.create_task(
            serve(app, service, listener, stop, limits=limits, ready=accepting.set, drain_s=drain_s)
        )
        await asyncio.wait_for(accepting.wait(), WAIT_S)
        client = httpx2.AsyncClient(base_url=process.address(listener), timeout=WAIT_S)
        requests = [asyncio.create_task(client.get(path)) for path in ("/endless", "/stream")]
        for _ in requests:
            await asyncio.wait_for(reached.acquire(), WAIT_S)
        signal.raise_signal(signal.SIGTERM)
        while service.state != "draining":
            await asyncio.sleep(0.01)
        if second:
            signal.raise_signal(signal.SIGINT)
        ending = await asyncio.wait_for(serving, WAIT_S)
        refused, streamed = await asyncio.gather(*requests)
        await client.aclose()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert (streamed.status_code, streamed.content) == (200, b"first")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR], caplog.text
    assert ending.at_once is second
    assert ending.signal == (signal.SIGINT if second else signal.SIGTERM)
