"""Trainers' protocols on the real job service: what is shared, tried again, and freed when a trainer goes away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kernelforge.client.models import RunSettings
from kernelforge.server.protocols import kernelgym, nemo_gym, openrlhf, slime
from tests.server.http_serving import client_of, served
from tests.server.service_tools import serving, until
from tests.support.inprocess_engine import InProcessEngine, completion


def query(*texts: str) -> dict[str, Any]:
    replies = [completion(text) for text in texts]
    return {"query": replies, "prompts": [""] * len(replies), "labels": ["core/gelu"] * len(replies)}


async def test_equal_completions_of_a_request_are_evaluated_once(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        client = client_of(service, routers=[openrlhf.router(service)])
        answer = await client.post("/openrlhf/reward", json=query("a", "WRONG", "a", "a"))
        assert answer.json()["rewards"] == pytest.approx([0.3, 0.0, 0.3, 0.3])
    assert len(engine.evaluated) == 2


@pytest.mark.slow
async def test_the_sizes_of_a_protocol_are_those_that_the_server_offers(tmp_path: Path) -> None:
    sent = {"prompt": "", "response": completion("a"), "label": "core/gelu"}
    row = {"task": "core/gelu", "sizes": "train"}
    async with serving(tmp_path) as service:
        client = client_of(service, routers=[slime.router(service), nemo_gym.router(service)])
        for path, body in (("/slime/reward?sizes=train", sent), ("/nemo-gym/seed_session", row)):
            refused = await client.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "sizes_not_offered")
            assert "--sizes any" in refused.json()["error"]["message"]
    async with serving(tmp_path, train_on_request=True) as service:
        client = client_of(service, routers=[slime.router(service), kernelgym.router(service)])
        await service.set_run("r", RunSettings(sizes="train"))
        code = service.find_task("core/gelu")[1].source
        body = {"task_id": "t", "reference_code": code, "kernel_code": completion("b"), "timeout": 30}
        answer = await client.post("/kernelgym/evaluate", json=body | {"sizes": "train"})
        assert answer.json()["metadata"]["sizes"] == "train"
        assert (await client.post("/kernelgym/evaluate", json=body)).json()["error"]["code"] == "key_reused"
        for query_text, sizes in (("?run_id=r", "train"), ("?run_id=r&sizes=all", "all"), ("", "all")):
            assert (await client.post(f"/slime/reward{query_text}", json=sent)).status_code == 200
            [last] = service._state.store.read("SELECT result ->> 'sizes' FROM jobs ORDER BY seq DESC LIMIT 1")
            assert last == (sizes,)


async def test_a_worker_that_dies_and_trouble_that_passes_are_not_seen_by_a_trainer(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        client = client_of(service, routers=[openrlhf.router(service)])
        answer = await client.post("/openrlhf/reward", json=query("DIE2", "ONCE"))
        assert answer.json()["rewards"] == pytest.approx([0.3, 0.3])
        lost = await client.post("/openrlhf/reward", json=query("a", "DIE9"))
        assert (lost.status_code, "rewards" in lost.json()) == (503, False)


async def test_a_trainer_that_asks_again_joins_what_is_still_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = InProcessEngine()
    engine.gate.clear()
    sent = {"prompt": "", "response": completion("a"), "label": "core/gelu"}
    async with serving(tmp_path, engine) as service:
        client = client_of(service, routers=[slime.router(service)])
        monkeypatch.setattr(slime, "HELD_S", 0.05)
        assert (await client.post("/slime/reward", json=sent)).status_code == 504
        monkeypatch.setattr(slime, "HELD_S", 30.0)
        repeated = asyncio.create_task(client.post("/slime/reward", json=sent))
        await until(lambda: service.counters["joined"] == 1)
        engine.gate.set()
        assert (await repeated).json() == pytest.approx(0.3)
    assert len(engine.evaluated) == 1


@pytest.mark.slow
async def test_a_trainer_that_goes_away_frees_the_device(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        async with served(service, routers=[openrlhf.router(service)]) as (host, port):
            body = json.dumps(query("HANG", "HANG 2")).encode()
            head = f"POST /openrlhf/reward HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            _, writer = await asyncio.open_connection(host, port)
            writer.write(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: len(engine.evaluated) == 2)
            writer.close()
            await until(lambda: len(engine.freed) == 2)


@pytest.mark.slow
async def test_kernelgyms_ids_hold_through_a_restart(tmp_path: Path) -> None:
    sent = {"task_id": "t 1", "kernel_code": completion("a"), "timeout": 30}
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        sent["reference_code"] = service.find_task("core/gelu")[1].source
        client = client_of(service, routers=[kernelgym.router(service)])
        first = (await client.post("/kernelgym/evaluate", json=sent)).raise_for_status().json()
        lost = sent | {"task_id": "t 2", "kernel_code": completion("TROUBLE")}
        assert (await client.post("/kernelgym/evaluate", json=lost)).status_code == 503
        assert (await client.get("/kernelgym/status/t 2")).json()["status"] == "failed"
    async with serving(tmp_path) as service:
        client = client_of(service, routers=[kernelgym.router(service)])
        assert (await client.get("/kernelgym/status/t 1")).json()["status"] == "completed"
        stored = (await client.get("/kernelgym/results/t 1")).json()
        repeated = (await client.post("/kernelgym/evaluate", json=sent)).json()
    assert first["correctness"] is stored["correctness"] is True
    assert repeated["metadata"]["job"] == first["metadata"]["job"]
    assert len([source for source in engine.evaluated if "// a\n" in source]) == 1


@pytest.mark.slow
async def test_a_kernelgym_task_is_cancelled_from_another_connection(tmp_path: Path) -> None:
    engine = InProcessEngine()
    async with serving(tmp_path, engine) as service:
        code = service.find_task("core/gelu")[1].source
        sent = {"task_id": "long", "reference_code": code, "kernel_code": completion("HANG"), "timeout": 600}
        client = client_of(service, routers=[kernelgym.router(service)])
        waiting = asyncio.create_task(client.post("/kernelgym/evaluate", json=sent))
        await until(lambda: engine.evaluated)
        while (seen := await client.get("/kernelgym/status/long")).status_code == 404:
            await asyncio.sleep(0.002)  # on its way to the journal
        assert seen.json()["status"] == "processing"
        assert (await client.delete("/kernelgym/tasks/long")).json()["status"] == "cancelled"
        assert (await waiting).status_code == 503
        await until(lambda: engine.freed)
