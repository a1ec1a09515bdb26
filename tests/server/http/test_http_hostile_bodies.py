"""Bodies made to be expensive: each is refused before the cost, or delays no other request."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from kernelforge.client.models import MAX_CHOICES, BatchRequest, CandidateText, JobRequest
from kernelforge.server.http.limits import MAX_VALUES, has_too_many_values
from kernelforge.server.protocols.common import LARGE_CHARS, completion_text
from kernelforge.server.protocols.nemo_gym import aggregate
from tests.server.http_serving import client_of
from tests.support.minimal_service import MinimalService

WIDE = {f"x{number}": 1 for number in range(20_000)}


def answer(content: bytes) -> tuple[int, str]:
    async def ask() -> tuple[int, str]:
        client = client_of(MinimalService())
        sent = await client.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
        return sent.status_code, sent.json()["error"]["message"]

    return asyncio.run(ask())


def test_an_object_of_many_unknown_fields_is_one_fault() -> None:
    status, message = answer(json.dumps({"task": "core/swish", "completion": "x", **WIDE}).encode())
    assert status == 422
    assert "20002 fields" in message
    assert "'x0'" in message
    assert "more" not in message


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (JobRequest, {"task": "core/swish", "candidate": {"source": "a", "plan": "b", "choices": WIDE}}),
        (CandidateText, {"source": "a", "plan": "b", "choices": dict.fromkeys(WIDE, "x")}),
        (BatchRequest, {"jobs": [{"task": "core/swish", "completion": "x", **WIDE}]}),
    ],
)
def test_faults_are_as_many_as_objects(model: type[Any], data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        model.model_validate(data)
    assert error.value.error_count() == 1


def test_as_many_choices_as_there_may_be_are_taken() -> None:
    choices = {f"n{number}": number for number in range(MAX_CHOICES)}
    assert CandidateText(source="a", plan="b", choices=choices).choices == choices


def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    status, message = answer(b"[" + b"[]," * MAX_VALUES + b"1]")
    assert status == 413
    assert "values" in message


@pytest.mark.parametrize(
    ("text", "too_many"),
    [
        (b"[" + b"1," * (MAX_VALUES - 2) + b"1]" + b" " * 9, False),
        (b"[" + b"1," * MAX_VALUES + b"1]", True),
        (b'["' + b'","' * MAX_VALUES + b'"]', True),
        (b'{"source": "' + b'a[i], {\\"b\\\\\\", c\\\\' * (MAX_VALUES // 2) + b'"}', False),
        (b'"' + b"\\\\" * MAX_VALUES + b'"', False),
    ],
    ids=["most", "numbers", "strings", "code", "backslashes"],
)
def test_only_what_is_outside_of_strings_is_counted(text: bytes, too_many: bool) -> None:
    from_json(text)  # it is JSON
    assert has_too_many_values(text) is too_many


@pytest.mark.slow
def test_rows_that_all_measure_something_else_are_counted_once_each() -> None:
    """With a pass over all rows for each key this would take minutes."""
    rows = [{"reward": 1.0, "reward_components": {f"k{number}": number}} for number in range(20_000)]
    agent_metrics = aggregate(rows).agent_metrics
    assert agent_metrics["mean/reward"] == 1.0
    assert (agent_metrics["min/k19999"], agent_metrics["max/k7"]) == (19_999, 7)


async def test_a_long_run_of_end_tokens_does_not_hold_the_event_loop() -> None:
    reading = asyncio.create_task(completion_text("a" + "</s>" * LARGE_CHARS))
    await asyncio.sleep(0)
    assert not reading.done()
    assert await reading == "a"
    assert await completion_text("b</s>") == "b"
