"""Conformance of the protocols of trainers: the same rewards, errors without a number, nothing run that is refused.

A ``Trainer`` sends one completion as the client of its protocol does. What only one protocol has is tested elsewhere.
"""

from __future__ import annotations

import itertools
import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from websockets.sync.client import connect

from tests.support.scripted_service import ScriptedService, reply

TASK = "core/swish"


@dataclass
class Answer:
    """The part of an answer that a trainer uses."""

    correct: bool | None = None
    """None if the answer has no score."""
    reward: float | None = None
    """None also where the protocol leaves the reward to the trainer."""
    status: int = 200
    """HTTP status; OpenEnv's error codes by the status that they stand for."""


class Trainer(ABC):
    """The client of one protocol."""

    gives_reward = True

    def __init__(self, url: str, source: str) -> None:
        self.url = url
        self.source = source
        self.http = httpx2.Client(base_url=url, timeout=30)

    @abstractmethod
    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        """Send one completion for a registered task, with further fields where the protocol has them."""

    def score_reference(self, completion: str, code: str) -> Answer:
        """The same for a task that reference code names."""
        raise NotImplementedError

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = self.http.post(path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
        return answer.status_code, answer.json()


class Slime(Trainer):
    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        label = json.dumps({"task": task, **fields}) if fields else task
        status, answer = self.post(
            "/slime/reward?form=dict", {"prompt": "p", "response": completion + "<|im_end|>", "label": label}
        )
        return Answer(bool(answer["correct"]), answer["reward"]) if status == 200 else Answer(status=status)


class OpenRLHF(Trainer):
    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        body = {"query": ["p" + completion + "<|im_end|>"], "prompts": ["p"], "labels": [task]}
        status, answer = self.post(f"/openrlhf/reward?{urlencode(fields)}", body)
        if status != 200:
            return Answer(status=status)
        return Answer(bool(answer["extra_logs"]["correct"][0]), answer["rewards"][0])


class NemoGym(Trainer):
    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": completion}]}
        row = {"verifier_metadata": {"task": task, **fields}, "response": {"output": [message]}}
        status, answer = self.post("/nemo-gym/verify", row)
        if status != 200:
            return Answer(status=status)
        return Answer(bool(answer["reward_components"]["correct"]), answer["reward"])


class KernelGYM(Trainer):
    gives_reward = False
    numbers = itertools.count()

    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        return self.score_reference(completion, self.source if task == TASK else "class Model: ...", **fields)

    def score_reference(self, completion: str, code: str, **fields: Any) -> Answer:
        body = {"task_id": f"task {next(self.numbers)}", "reference_code": code, "kernel_code": completion, **fields}
        status, answer = self.post("/kernelgym/evaluate", body)
        return Answer(answer["correctness"]) if status == 200 else Answer(status=status)


class OpenEnv(Trainer):
    statuses = {"VALIDATION_ERROR": 422, "EXECUTION_ERROR": 503}

    def score(self, completion: str, task: str = TASK, **fields: Any) -> Answer:
        return self.play({"task": task, **fields}, completion)

    def score_reference(self, completion: str, code: str) -> Answer:
        return self.play({"reference_code": code}, completion)

    def play(self, task: dict[str, str], completion: str) -> Answer:
        with connect(self.url.replace("http", "ws") + "/openenv/ws") as socket:
            for kind, data in (("reset", task), ("step", {"completion": completion})):
                socket.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(socket.recv(timeout=30))
                if answer["type"] == "error":
                    assert "reward" not in answer["data"]
                    return Answer(status=self.statuses[answer["data"]["code"]])
        components = answer["data"]["observation"]["components"]
        return Answer(bool(components["correct"]), answer["data"]["reward"])


@pytest.fixture(scope="module", params=[Slime, OpenRLHF, NemoGym, KernelGYM, OpenEnv], ids=lambda kind: kind.__name__)
def trainer(request: pytest.FixtureRequest, url: str, service: ScriptedService) -> Trainer:
    return request.param(url, service.find_task(TASK)[1].source)


@pytest.mark.parametrize(
    ("completion", "correct", "reward"),
    [
        (reply(), True, 0.3),
        (reply("fast"), True, 0.3 + math.log(2)),
        (reply("wrong"), False, 0.0),
        (reply("build"), False, 0.0),
        (reply("policy"), False, 0.0),
        (reply("uncompared"), False, 0.0),
        ("I refuse.", False, 0.0),
    ],
)
def test_a_completion_gets_the_reward_of_the_policy(
    trainer: Trainer, completion: str, correct: bool, reward: float
) -> None:
    answer = trainer.score(completion)
    assert answer.correct is correct
    assert answer.reward == (pytest.approx(reward) if trainer.gives_reward else None)


def test_an_infrastructure_failure_has_no_score_and_may_be_sent_again(trainer: Trainer) -> None:
    completion = reply(f"lost {type(trainer).__name__}")
    assert trainer.score(completion) == Answer(status=503)
    assert trainer.score(completion).correct is True


def test_an_unknown_task_is_refused_and_nothing_is_run(trainer: Trainer, service: ScriptedService) -> None:
    before = len(service.submitted)
    assert trainer.score(reply(), "core/none") == Answer(status=422)
    assert len(service.submitted) == before


def test_a_completion_may_say_which_sizes_are_checked(trainer: Trainer, service: ScriptedService) -> None:
    for sizes in ("train", "all"):
        assert trainer.score(reply(f"at {sizes} {type(trainer).__name__}"), sizes=sizes).correct is True
        assert service.submitted[-1].sizes == sizes
    before = len(service.submitted)
    assert trainer.score(reply(), sizes="hidden") == Answer(status=422)
    assert len(service.submitted) == before


@pytest.mark.parametrize("trainer", [KernelGYM, OpenEnv], indirect=True)
def test_reference_code_names_a_registered_task_and_is_never_executed(
    trainer: Trainer, service: ScriptedService, tmp_path: Path
) -> None:
    before, canary = len(service.submitted), tmp_path / "canary"
    hostile = f"open({str(canary)!r}, 'w').write('ran')\n" + trainer.source
    assert trainer.score_reference(reply(), hostile) == Answer(status=422)
    assert not canary.exists()
    assert len(service.submitted) == before
    assert trainer.score_reference(reply(), trainer.source).correct is True
    assert service.submitted[-1].task == TASK
