"""slime's remote reward, as slime/rollout/rm_hub/__init__.py sends it (THUDM/slime, commit 0b420f1, remote_rm)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from kernelforge.server.protocols import slime
from kernelforge.server.protocols.common import without_end_tokens
from tests.support.scripted_service import ScriptedService, reply


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=url, timeout=30) as client:
        yield client


def post(client: httpx2.Client, response: str, query: str = "", **changes: Any) -> httpx2.Response:
    # aiohttp's session.post(url, json=payload): json.dumps with its defaults, in UTF-8.
    payload = {"prompt": "<|im_start|>user\n...", "response": response, "label": "core/swish"} | changes
    return client.post(
        f"/slime/reward{query}",
        content=json.dumps(payload).encode(),
        headers={"Content-Type": "application/json"},
    )


@pytest.mark.slow
def test_the_answer_is_the_number_itself(client: httpx2.Client) -> None:
    assert post(client, reply() + "<|im_end|>").json() == 0.3
    assert post(client, reply("wrong")).json() == 0.0
    assert post(client, "I refuse.").json() == 0.0


def test_with_a_reward_key_the_answer_is_a_dictionary_of_numbers(client: httpx2.Client) -> None:
    answer = post(client, reply("fast"), "?form=dict").json()
    assert answer["reward"] == pytest.approx(0.9931471805599453)
    assert (answer["correct"], answer["speedup"], answer["timed"]) == (1.0, 2.0, 1.0)
    assert set(post(client, "no code", "?form=dict").json()) == set(answer)


def test_what_takes_too_long_keeps_its_place_until_it_is_sent_again(
    client: httpx2.Client, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slime, "HELD_S", 0.05)
    slow = reply("together 2 slime")
    first = post(client, slow)
    assert (first.status_code, first.json()["error"]["code"]) == (504, "infra_error")
    assert "Retry-After" in first.headers
    monkeypatch.setattr(slime, "HELD_S", 30.0)
    assert post(client, slow).json() == 0.3  # the second of two that were waited for: the first was never cancelled
    assert not service.cancelled


def test_messages_as_prompt_are_not_looked_at_and_a_label_may_say_more(
    client: httpx2.Client, service: ScriptedService
) -> None:
    label = json.dumps({"task": "core/gelu", "run_id": "r7", "profile": True})
    post(client, reply("chat"), prompt=[{"role": "user", "content": "..."}], label=label).raise_for_status()
    assert (service.submitted[-1].task, service.submitted[-1].run_id, service.submitted[-1].profile) == (
        "core/gelu",
        "r7",
        True,
    )


def test_requests_that_make_no_sense_are_refused(client: httpx2.Client) -> None:
    for changes in ({"label": None}, {"label": "core/none"}, {"response": 3}, {"extra": 1}, {"label": ["core/swish"]}):
        assert post(client, **({"response": reply()} | changes)).status_code == 422, changes
    assert post(client, reply(), "?form=list").status_code == 422
    assert post(client, reply(), "?policy=none/9").status_code == 422


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("```<|im_end|>", "```"),
        ("```\n<|eot_id|>\n", "```\n"),
        ("```</s></s>", "```"),
        ("```<end_of_turn>\n<eos>", "```"),
        ("```<｜end▁of▁sentence｜>", "```"),
        ("```[PAD][PAD]", "```"),
        ("x < y > z", "x < y > z"),
        ("if (a[0] > b) y[EOS_TOKEN]", "if (a[0] > b) y[EOS_TOKEN]"),
        ("", ""),
        ("<|im_end|>", ""),
    ],
)
def test_special_tokens_at_the_end_are_not_part_of_a_completion(text: str, kept: str) -> None:
    assert without_end_tokens(text) == kept


@pytest.mark.slow
def test_a_completion_of_nothing_but_special_tokens_is_read_quickly() -> None:
    assert without_end_tokens("<|x|>" * 200_000) == ""
    assert without_end_tokens("<" * 1_000_000 + ">") == "<" * 1_000_000 + ">"
