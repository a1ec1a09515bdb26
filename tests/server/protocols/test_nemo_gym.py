"""NeMo-Gym's resources server, as its agents talk to one.

Read in NVIDIA-NeMo/Gym: responses_api_agents/simple_agent/app.py (commit 00be44f) and nemo_gym/base_resources_server.py
(commit 011c338); the package is not on PyPI.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.scripted_service import reply

ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "Write a kernel."}], "temperature": 1.0},
    "verifier_metadata": {"task": "core/swish", "note": "kept"},
    "agent_ref": {"type": "responses_api_agents", "name": "simple_agent"},
    "_ng_task_index": 3,
}


@pytest.fixture(scope="module", params=["", "/nemo-gym"])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url + request.param, timeout=30) as client:
        yield client


def response(text: str) -> dict[str, Any]:
    """An OpenAI response, with the fields that the agent passes on."""
    reasoning = {"id": "rs_1", "summary": [], "type": "reasoning"}
    content = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    message = {"id": "msg_1", "content": [content], "role": "assistant", "status": "completed", "type": "message"}
    return {
        "id": "resp_1",
        "created_at": 1763750000.0,
        "model": "policy",
        "object": "response",
        "output": [reasoning, message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def test_an_episode_is_seeded_and_verified(client: httpx2.Client) -> None:
    assert client.post("/seed_session", json=ROW).raise_for_status().json() == {}
    sent = ROW | {"response": response(reply("fast"))}
    answer = client.post("/verify", json=sent).raise_for_status().json()
    assert {key: answer[key] for key in sent} == sent
    assert answer["reward"] == pytest.approx(0.9931471805599453)
    assert answer["reward_components"]["correct"] == 1.0
    assert all(isinstance(value, float) for value in answer["reward_components"].values())
    assert answer["kernelforge"]["verdict"] == "OK"


def test_a_model_that_said_nothing_has_a_score_of_zero(client: httpx2.Client) -> None:
    for empty_response in (response(""), response("no code"), response("x") | {"output": []}):
        answer = client.post("/verify", json=ROW | {"response": empty_response}).raise_for_status().json()
        assert (answer["reward"], answer["reward_components"]["format"]) == (0.0, 0.0)


def test_newer_agents_name_their_session(client: httpx2.Client) -> None:
    seeded = {"resources_session_id": "s1", "episode_id": "e", "task_id": "t", "task_data": {"task": "core/gelu"}}
    assert client.post("/seed_session", json=seeded).json() == {"resources_session_id": "s1"}
    closed = client.post("/close_session", json={"resources_session_id": "s1", "episode_id": "e"})
    assert closed.json() == {"resources_session_id": "s1"}
    assert client.get("/reverify_mode").json() == "stateless"


def test_rows_without_a_known_task_are_refused_before_a_model_is_asked(client: httpx2.Client) -> None:
    for row in ({}, {"task": "core/none"}, {"verifier_metadata": {"task": 4}}, {"task": "core/swish", "policy": []}):
        assert client.post("/seed_session", json=row).status_code == 422, row
    for wrong in ([], "x", {"output": "x"}, None, {"output": [{"type": "message", "role": "assistant", "content": 4}]}):
        assert client.post("/verify", json=ROW | {"response": wrong}).status_code == 422, wrong
    assert client.post("/verify", json=[1]).status_code == 422


def test_metrics_are_means_over_rows_with_a_reward(client: httpx2.Client) -> None:
    rows = [
        {"_ng_task_index": 0, "reward": 1.0, "reward_components": {"correct": 1.0}},
        {"_ng_task_index": 0, "reward": 0.0, "reward_components": {"correct": 0.0}},
        {"_ng_task_index": 1, "reward": 0.5, "reward_components": {"correct": 1.0}},
        {"_ng_task_index": 1, "reward": 9.0, "mask_sample": True},
        {"_ng_task_index": 1},
    ]
    answer = client.post("/aggregate_metrics", json={"verify_responses": rows}).raise_for_status().json()
    assert answer["key_metrics"] == {"mean/reward": 0.5, "mean/correct": pytest.approx(2 / 3)}
    assert [group["mean/reward"] for group in answer["group_level_metrics"]] == [0.5, 0.5]
    assert [group["max/reward"] for group in answer["group_level_metrics"]] == [1.0, 0.5]
    assert client.post("/aggregate_metrics", json={"verify_responses": []}).json()["agent_metrics"] == {}
