"""OpenRLHF's remote reward, as the client of openrlhf 0.11.2 (PyPI) sends it: utils/agent.py."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest

from kernelforge.server.base import RequestRejected
from kernelforge.server.protocols.openrlhf import completion_in
from tests.support.scripted_service import ScriptedService, reply

PROMPT = (
    "<|im_start|>user\nWrite a kernel for relu.\n"
    + reply("fast", "An example:")
    + "<|im_end|>\n<|im_start|>assistant\n"
)

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield client


def post(client: httpx2.Client, completions: list[str], label: str = "core/swish", path: str = "") -> httpx2.Response:
    # aiohttp's session.post(url, json=data): json.dumps with its defaults, in UTF-8.
    body = {
        "query": [PROMPT + text for text in completions],
        "prompts": [PROMPT] * len(completions),
        "labels": [label] * len(completions),
    }
    return client.post(f"/openrlhf/reward{path}", content=json.dumps(body).encode(), headers=JSON)


@pytest.mark.slow
def test_one_item_gets_lists_of_one_that_torch_can_take(client: httpx2.Client) -> None:
    answer = post(client, [reply("fast") + "<|im_end|>"]).raise_for_status().json()
    assert answer["rewards"] == answer["scores"] == pytest.approx([0.3 + 0.6931471805599453])
    assert answer["extra_logs"]["correct"] == [1.0]
    assert answer["extra_logs"]["speedup"] == [2.0]
    assert all(isinstance(value, float) for values in answer["extra_logs"].values() for value in values)


def test_keys_of_extra_logs_are_the_same_whatever_became_of_a_completion(client: httpx2.Client) -> None:
    answers = [post(client, [text]).json() for text in (reply(), reply("wrong"), reply("build"), "no code", "")]
    assert len({tuple(answer["extra_logs"]) for answer in answers}) == 1
    assert [answer["rewards"] for answer in answers] == [[0.3], [0.0], [0.0], [0.0], [0.0]]


def test_empty_lists_are_answered_for_trainers_that_send_them_to_every_other_url(client: httpx2.Client) -> None:
    answer = client.post("/openrlhf/reward", json={"query": [], "prompts": [], "labels": []})
    assert (answer.status_code, answer.json()) == (200, {"rewards": [], "scores": [], "extra_logs": {}})


def test_items_of_a_request_are_scored_at_the_same_time_and_answered_in_their_order(client: httpx2.Client) -> None:
    texts = [reply("together 3 wrong"), reply("together 3 fast"), reply("together 3")]
    assert post(client, texts).json()["extra_logs"]["speedup"] == [0.0, 2.0, 0.0]


def test_trouble_of_ours_is_an_error_and_never_a_number(client: httpx2.Client) -> None:
    answer = post(client, [reply("fast"), reply("lost lost openrlhf")])
    assert answer.status_code == 503
    assert "worker_died" in answer.json()["error"]["message"]
    assert answer.headers["Retry-After"]


def test_a_full_queue_is_told_as_such(client: httpx2.Client) -> None:
    assert post(client, ["full"]).status_code == 429


def test_a_candidate_in_the_prompt_is_nobodys(client: httpx2.Client) -> None:
    assert post(client, ["I cannot do this.<|im_end|>"]).json()["extra_logs"]["format"] == [0.0]
    # A query that does not begin with its prompt is refused: the prompt's own example would be scored.
    body = {"query": ["other text " + reply("fast")], "prompts": [PROMPT], "labels": ["core/swish"]}
    answer = client.post("/openrlhf/reward", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


def test_a_label_may_say_more_and_the_url_the_rest(client: httpx2.Client, service: ScriptedService) -> None:
    label = json.dumps({"task": "core/swish", "policy_version": 7})
    post(client, [reply("labelled")], label, "?run_id=grpo-1&policy=kevin/1&policy_version=3").raise_for_status()
    job = service.submitted[-1]
    assert (job.task, job.run_id, job.policy, job.policy_version) == ("core/swish", "grpo-1", "kevin/1", 7)
    body = {"query": [reply("object")], "prompts": [""], "labels": [{"task": "core/gelu"}]}
    client.post("/openrlhf/reward", json=body).raise_for_status()
    assert service.submitted[-1].task == "core/gelu"
    post(client, [reply("by url")], "", "?task=core/swish").raise_for_status()


def test_requests_that_make_no_sense_are_refused_and_nothing_is_run(
    client: httpx2.Client, service: ScriptedService
) -> None:
    before = len(service.submitted)
    single = {"query": ["x"], "prompts": [""], "labels": ["core/swish"]}
    bodies = [
        single | {"labels": []},
        single | {"labels": ["core/none"]},
        single | {"labels": ["{not json"]},
        single | {"labels": ['{"task": "core/swish", "taks": 1}']},
        single | {"labels": [None]},
        single | {"query": [1]},
        single | {"query": "x"},
        single | {"more": 1},
        {"query": ["x"] * 1001, "prompts": [""] * 1001, "labels": ["core/swish"] * 1001},
    ]
    answers = [client.post("/openrlhf/reward", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [422] * len(bodies)
    assert client.post("/openrlhf/reward", content=b'{"query": ["\xff"]}', headers=JSON).status_code == 400
    assert client.post("/openrlhf/reward?policey=x", json=single).status_code == 422
    assert len(service.submitted) == before


def test_a_completion_is_what_follows_its_prompt() -> None:
    long = " ".join(f"word{number}" for number in range(400))
    assert completion_in("ab", "a") == "b"
    assert completion_in("a  b\nc", "a b") == "\nc"  # white space that the tokenizer changed
    assert completion_in(long[700:] + "END", long) == "END"  # a prompt that was cut at its start
    assert completion_in("text", "") == "text"
    for query, prompt in (("b", "a"), ("", "a"), (long[:900], long)):
        with pytest.raises(RequestRejected, match="does not begin with its prompt"):
            completion_in(query, prompt)
