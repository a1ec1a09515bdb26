"""Functions that all adapters share."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

from kernelforge.adapters.common import Scorer, completion_of, task_of, text_of
from kernelforge.client.models import Components, RewardResult, TurnRequest
from kernelforge.errors import MissingRewardError, ServerError, ServerUnreachable, UsageError
from tests.support.protocol_server import refusal

PROMPT = "Write a kernel. An example:\n```cuda\n__global__ void example() {}\n```\n"


def test_every_field_of_a_scorer_reaches_the_server(server) -> None:
    scorer = Scorer(policy="kevin/1", run_id="a", priority=3, deadline_s=7.5, profile=True, sizes="train")
    assert scorer.score_blocking("core/swish", "1.5", policy_version=9).reward == 1.5
    (request,) = server.scored
    fields = ("task", "completion", "policy", "run_id", "priority", "deadline_s", "profile", "policy_version", "sizes")
    assert tuple(getattr(request, name) for name in fields) == (
        "core/swish", "1.5", "kevin/1", "a", 3, 7.5, True, 9, "train",
    )  # fmt: skip


async def test_every_field_of_a_scorer_reaches_a_conversation(server) -> None:
    scorer = Scorer(policy="kevin/1", run_id="a", deadline_s=7.5, sizes="train")
    scorer.turn_blocking(scorer.session_blocking("core/swish", 2), "1.5")

    async with scorer.conversation("core/swish", 2) as session:
        await scorer.turn(session, "2.5")
    assert [(request.policy, request.run_id, request.turns, request.sizes) for request in server.opened()] == [
        ("kevin/1", "a", 2, "train")
    ] * 2
    turns = [
        TurnRequest.model_validate_json(session_request.body)
        for session_request in server.received
        if session_request.line.endswith("/turns")
    ]
    assert [(session_request.completion, session_request.deadline_s) for session_request in turns] == [
        ("1.5", 7.5),
        ("2.5", 7.5),
    ]


VERSIONS = iter(range(5, 100))


def version_now() -> int:
    """A version that grows at each request."""
    return next(VERSIONS)


@pytest.mark.parametrize("own", [version_now, f"{__name__}:version_now", 5])
async def test_a_version_that_the_framework_does_not_tell_is_the_scorers(
    server, own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "VERSIONS", iter(range(5, 100)))
    scorer = pickle.loads(pickle.dumps(Scorer(policy_version=own)))
    scorer.score_blocking("core/swish", "1.5")
    await scorer.score("core/swish", "1.5", 3)
    scorer.score_many_blocking(["core/swish"] * 2, ["1.5", "2.5"], [None, 4])
    scorer.turn_blocking(scorer.session_blocking("core/swish", 2), "1.5")
    async with scorer.conversation("core/swish", 2, 2) as session:
        await scorer.turn(session, "1.5")
    step = int(own != 5)
    assert [request.policy_version for request in server.scored] == [5, 3, 5 + step, 4]
    dialogues = [json.loads(request.body) for request in server.received if request.line.startswith("POST /v1/sess")]
    versions = [request["policy_version"] for request in dialogues]
    assert versions == [5 + 2 * step, 5 + 3 * step, 2, 5 + 4 * step]


@pytest.mark.parametrize("name", ["no_such_module:f", "kernelforge:nothing", "kernelforge", f"{__name__}:json"])
def test_a_function_that_does_not_exist_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="policy_version"):
        Scorer(policy_version=name)


def test_a_server_that_cannot_be_reached_is_given_up_at_the_deadline() -> None:
    alone = Scorer(url="http://127.0.0.1:9", deadline_s=0.01, retries=1_000)
    for ask in (alone.score_blocking, lambda *whom: asyncio.run(alone.score(*whom))):
        with pytest.raises(ServerUnreachable):
            ask("core/swish", "1.5")
    with pytest.raises(ServerUnreachable):
        Scorer(url="http://127.0.0.1:9", retries=0).score_many_blocking(["core/swish"], ["1.5"])


def test_a_batch_keeps_its_order_and_is_submitted_at_once(server) -> None:
    results = asyncio.run(Scorer().score_many(["core/swish"] * 5, [f"{n}.0" for n in range(5)]))
    assert [result.reward for result in results] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [line for line in server.lines() if line.endswith("/batch")] == ["POST /v1/jobs/batch"]


def test_a_scorer_and_its_server_survive_a_pickle(server) -> None:
    scorer = pickle.loads(pickle.dumps(Scorer(url=server.url, policy="kevin/1")))
    assert scorer.score_blocking("core/swish", "1.5").reward == 1.5


def test_a_scorer_never_shows_its_token() -> None:
    assert "secret" not in repr(Scorer(token="secret"))


@pytest.mark.parametrize(
    ("places", "task"),
    [
        (("core/swish",), "core/swish"),
        (({"task": "core/swish"}, "other"), "core/swish"),
        (({"index": 3}, "core/swish"), "core/swish"),
        ((None, {"task": None}, "", "core/swish"), "core/swish"),
    ],
)
def test_a_task_is_named_by_the_first_place_that_names_one(places: tuple[object, ...], task: str) -> None:
    assert task_of(*places) == task


@pytest.mark.parametrize("places", [(), (None,), (3,), ({"task": ""},)])
def test_a_row_that_names_no_task_is_refused(places: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match="names no task"):
        task_of(*places)


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("plain", "plain"),
        ([{"role": "assistant", "content": "said"}], "said"),
        ([{"role": "assistant", "content": "draft"}, {"role": "tool", "content": "x"}], "draft"),
        ([{"role": "assistant", "content": "draft"}, {"role": "assistant", "content": "last"}], "last"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab"),
        ([{"role": "assistant", "content": None}], ""),
        ([], ""),
    ],
)
def test_a_completion_is_text_or_the_assistants_last_message(completion: object, text: str) -> None:
    assert text_of(completion) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("lost", [0, 1, 20, len(PROMPT) - 32])
def test_what_a_model_added_never_holds_the_prompts_own_code(lost: int) -> None:
    assert completion_of(PROMPT[lost:] + "The kernel:", PROMPT) == "The kernel:"


def test_a_query_that_does_not_go_on_from_its_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="does not begin with its prompt"):
        completion_of("something else\n", PROMPT)


def test_flags_have_the_same_keys_whatever_is_known() -> None:
    result = RewardResult(
        outcome="scored", reward=1.0, components=Components(format=1.0, built=1.0, correct=1.0, policy=0.0)
    )
    flags = result.components.flags()
    assert flags == {"format": 1.0, "built": 1.0, "correct": 1.0, "policy": 0.0}
    assert RewardResult(outcome="scored", reward=0.0).components.flags().keys() == flags.keys()


def test_weights_make_the_reward_of_every_kind_of_call(server) -> None:
    scorer = Scorer(weights={"reward": 2.0, "format": 0.5, "dram_ratio": 7.0})
    format_value = Scorer().score_blocking("core/swish", "1.5").components.format or 0.0
    expected = 2.0 * 1.5 + 0.5 * format_value  # no profile, so no bytes of DRAM
    assert scorer.score_blocking("core/swish", "1.5").reward == expected
    assert scorer.score_many_blocking(["core/swish"], ["1.5"])[0].reward == expected
    assert asyncio.run(scorer.score("core/swish", "1.5")).reward == expected
    assert asyncio.run(scorer.score_many(["core/swish"], ["1.5"]))[0].reward == expected
    assert scorer.turn_blocking(scorer.session_blocking("core/swish", 2), "1.5").result.reward == expected
    assert scorer.score_blocking("core/swish", "infra").reward is None
    assert pickle.loads(pickle.dumps(scorer)) == scorer


def test_a_candidate_that_the_device_cannot_run_fails_or_is_masked(server) -> None:
    failing, masked = Scorer(), Scorer(unsupported="mask")
    assert failing.score_blocking("core/swish", "lacks").require() == -0.5
    assert failing.score_blocking("core/swish", "lacks").outcome == "unsupported"
    assert Scorer(weights={"reward": 2.0, "format": 1.0}).score_blocking("core/swish", "lacks").require() == -1.0
    with pytest.raises(MissingRewardError) as missing:
        masked.score_blocking("core/swish", "lacks").require()
    assert missing.value.code == "unsupported"
    with pytest.raises(UsageError, match="'fail' or 'mask', not 'skip'"):
        Scorer(unsupported="skip")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"floor": 1.0}, "no component is called 'floor', so it cannot have a weight; did you mean floor_share"),
        ({"origins": 1.0}, "no component is called 'origins'"),
        ({"format": float("inf")}, "the weight of format is inf, and must be a finite number"),
        ({"format": "1"}, "the weight of format is '1'"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Scorer(weights=weights)


@pytest.mark.slow
def test_adapters_import_beside_a_trainer_that_has_only_pydantic_and_httpx2() -> None:
    """KernelForge is installed with ``--no-deps`` next to a trainer: its dependencies may contradict the trainer's."""
    script = (
        "import sys\n"
        "for name in sys.argv[1:]:\n"
        "    sys.modules[name] = None\n"
        "import kernelforge.adapters.common\n"
        "from kernelforge.adapters import areal, openrlhf, slime, trl, verl\n"
    )
    absent = ("torch", "openai", "anthropic", "numpy", "numba", "rich", "typer", "jinja2", "tenacity", "sqlite_utils")
    subprocess.run([sys.executable, "-c", script, *absent], check=True, timeout=60)


def test_what_is_raised_crosses_processes_whole(server) -> None:
    """Trainers score in pools of processes and in Ray: an error that cannot be unpickled breaks the pool instead."""
    with pytest.raises(MissingRewardError) as raised:
        Scorer().score_blocking("core/swish", "infra").require()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (str(error), error.code, error.retryable) == (str(raised.value), "worker_died", True)
    server.instead("/v1/jobs", refusal(422, "unknown_task"))
    with pytest.raises(ServerError) as refused:
        Scorer().score_blocking("core/none", "1.5")
    other = pickle.loads(pickle.dumps(refused.value))
    assert (type(other), other.status, other.code) == (ServerError, 422, "unknown_task")
