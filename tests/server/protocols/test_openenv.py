"""OpenEnv's environment, as GenericEnvClient of openenv 0.10.0 (PyPI) talks to one: core/env_client.py.

The messages are tested byte by byte, and with the client itself where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.support.scripted_service import ScriptedService, reply


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"{url}/openenv", timeout=30) as client:
        yield client


@pytest.fixture
def socket(url: str) -> Iterator[ClientConnection]:
    with connect(url.replace("http", "ws") + "/openenv/ws") as socket:
        yield socket


def say(socket: ClientConnection, kind: str, data: Any = None) -> dict[str, Any]:
    # env_client._send: json.dumps of {"type", "data"}; state and close have no data.
    socket.send(json.dumps({"type": kind} if data is None else {"type": kind, "data": data}))
    answer: dict[str, Any] = json.loads(socket.recv(timeout=30))
    return answer


@pytest.mark.slow
def test_an_episode_is_a_session_of_turns(socket: ClientConnection) -> None:
    reset = say(socket, "reset", {"task": "core/swish", "turns": 2, "seed": 3, "episode_id": "e1"})
    assert (reset["type"], reset["data"]["reward"], reset["data"]["done"]) == ("observation", None, False)
    assert "swish" in reset["data"]["observation"]["prompt"].lower()
    first = say(socket, "step", {"completion": reply("wrong")})["data"]
    assert (first["reward"], first["done"], first["observation"]["verdict"]) == (0.0, False, "WRONG")
    assert "expected 1.0, got 2.0" in first["observation"]["prompt"]
    assert say(socket, "state")["data"] == {"episode_id": "e1", "step_count": 1, "task": "core/swish"}
    second = say(socket, "step", {"completion": reply("fast"), "metadata": {}})["data"]
    assert (second["done"], second["observation"]["prompt"], second["observation"]["best"]) == (True, "", True)
    assert second["reward"] == pytest.approx(0.9931471805599453)
    assert say(socket, "step", {"completion": "more"})["data"]["code"] == "VALIDATION_ERROR"


def test_what_was_not_compared_at_its_full_size_is_the_best_of_nothing(socket: ClientConnection) -> None:
    alone = say(socket, "step", {"completion": reply("uncompared"), "task": "core/swish"})["data"]
    say(socket, "reset", {"task": "core/swish", "turns": 2})
    first = say(socket, "step", {"completion": reply("uncompared first")})["data"]
    for step in (alone, first):
        seen = step["observation"]
        assert (step["reward"], seen["verdict"], seen["uncompared"], seen["best"]) == (0.0, "OK", True, False)
        assert seen["components"]["correct"] == 0
        assert "full size not compared" in seen["feedback"]


def test_trouble_of_ours_is_an_error_and_the_step_may_be_sent_again(socket: ClientConnection) -> None:
    say(socket, "reset", {"task": "core/swish"})
    failed = say(socket, "step", {"completion": reply("lost openenv")})
    assert (failed["type"], failed["data"]["code"]) == ("error", "EXECUTION_ERROR")
    assert "reward" not in failed["data"]
    second = say(socket, "step", {"completion": reply("lost openenv")})
    assert (second["type"], second["data"]["observation"]["turn"]) == ("observation", 1)


def test_a_step_without_a_reset_names_its_task(socket: ClientConnection) -> None:
    answer = say(socket, "step", {"completion": reply(), "task": "core/swish"})["data"]
    assert (answer["reward"], answer["done"]) == (0.3, True)
    assert say(socket, "step", {"completion": reply()})["data"]["code"] == "VALIDATION_ERROR"


def test_a_client_that_goes_away_ends_its_turn(url: str, service: ScriptedService) -> None:
    with connect(url.replace("http", "ws") + "/openenv/ws") as socket:
        say(socket, "reset", {"task": "core/swish"})
        before = len(service.submitted)
        socket.send(json.dumps({"type": "step", "data": {"completion": reply("never")}}))
        while len(service.submitted) == before:
            time.sleep(0.01)
    while not service.cancelled:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not json", "INVALID_JSON"),
        ('{"type": "step", "data": {"completion": NaN}}', "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        (b"\xff\xfe", "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"type": "reset", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "core/none"}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"task": "core/swish", "tusk": 1}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"completion": 3}}', "VALIDATION_ERROR"),
        ('{"type": "mcp", "data": {}}', "UNKNOWN_TYPE"),
        ('{"data": {}}', "UNKNOWN_TYPE"),
    ],
)
def test_a_message_that_makes_no_sense_is_answered_and_the_connection_stays(
    socket: ClientConnection, message: str | bytes, code: str
) -> None:
    socket.send(message)
    assert json.loads(socket.recv(timeout=30))["data"]["code"] == code
    assert say(socket, "state")["type"] == "state"


def test_http_routes_keep_nothing(client: httpx2.Client) -> None:
    assert client.post("/reset", json={"task": "core/swish"}).json()["observation"]["prompt"]
    assert client.post("/reset", json={"reference_code": "class Model: ..."}).status_code == 422
    step = {"action": {"completion": reply("build"), "task": "core/swish"}, "timeout_s": 30.0, "request_id": "r"}
    answer = client.post("/step", json=step).json()
    assert (answer["reward"], answer["done"], answer["observation"]["stage"]) == (0.0, True, "compile")
    lost = {"action": {"completion": reply("lost openenv http"), "task": "core/swish"}}
    assert client.post("/step", json=lost).status_code == 503
    assert client.post("/step", json={"action": {"completion": "x"}}).status_code == 422
    assert client.post("/step", json={"action": []}).status_code == 422
    assert client.get("/state").json()["step_count"] == 0
    assert client.get("/health").json() == {"status": "healthy"}
    assert client.get("/metadata").json()["name"] == "kernelforge"
    assert set(client.get("/schema").json()) == {"action", "observation", "state"}


def _client_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """OpenEnv's client without OpenEnv's server, whose dependencies ask for another version of mcp than ours: what
    `pip install --no-deps openenv` gives is enough."""
    spec = importlib.util.find_spec("openenv")
    if spec is None or spec.origin is None:
        pytest.skip("openenv is not installed; `pip install --no-deps openenv==0.10.0` is enough for this test")
    folder = Path(spec.origin).parent
    for name, module_folder in (("openenv", folder), ("openenv.core", folder / "core")):
        package = ModuleType(name)
        package.__path__ = [str(module_folder)]
        monkeypatch.setitem(sys.modules, name, package)
    return importlib.import_module("openenv.core.generic_client")


def test_the_real_client_plays_an_episode(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generic = _client_module(monkeypatch)
    with generic.GenericEnvClient(base_url=f"{url}/openenv").sync() as env:
        result = env.reset(task="core/swish", turns=2)
        assert result.observation["prompt"]
        result = env.step({"completion": reply("wrong")})
        assert (result.reward, result.done) == (0.0, False)
        with pytest.raises(RuntimeError, match="EXECUTION_ERROR"):
            env.step({"completion": reply("lost real client")})
        result = env.step(generic.GenericAction(completion=reply("fast")))
        assert (round(result.reward, 3), result.done) == (0.993, True)
        assert env.state()["step_count"] == 2
