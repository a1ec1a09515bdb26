"""slime's ``custom_rm``, called the way ``slime.rollout.rm_hub`` does."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from kernelforge.adapters.slime import FILTER, custom_rm, keep_scored
from kernelforge.errors import MissingRewardError


class Status(Enum):
    """As ``Sample.Status``."""

    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass
class Sample:
    """The fields of ``slime.utils.types.Sample`` that rewards have to do with."""

    response: str
    label: str | None = "core/swish"
    metadata: dict[str, Any] = field(default_factory=dict)
    reward: Any = None
    status: Status = Status.COMPLETED
    weight_versions: list[str] = field(default_factory=list)

    def get_reward_value(self, args: Any) -> Any:
        return self.reward if not args.reward_key else self.reward[args.reward_key]


def arguments(*, filtered: bool = False, reward_key: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(dynamic_sampling_filter_path=FILTER if filtered else None, reward_key=reward_key)


def test_one_sample_has_a_number(server) -> None:
    assert asyncio.run(custom_rm(arguments(), Sample("1.5"))) == 1.5


def test_a_group_has_a_list_and_is_one_submission(server) -> None:
    group = [Sample("1.5"), Sample("no code"), Sample("2.5", label=None, metadata={"task": "core/swish"})]
    assert asyncio.run(custom_rm(arguments(), group)) == [1.5, 0.0, 2.5]
    assert [line for line in server.lines() if line.endswith("/batch")] == ["POST /v1/jobs/batch"]


def test_a_reward_key_finds_the_reward_among_its_components(server) -> None:
    answer = asyncio.run(custom_rm(arguments(reward_key="score"), Sample("1.5")))
    assert answer["score"] == 1.5
    assert {"correct", "speedup", "verdict"} <= answer.keys()


def test_trouble_is_raised_where_nothing_would_drop_the_sample(server) -> None:
    with pytest.raises(MissingRewardError):
        asyncio.run(custom_rm(arguments(), Sample("infra")))


def test_a_partial_response_is_scored_once_it_is_complete(server) -> None:
    group = [Sample("1.5"), Sample("2.", status=Status.ABORTED)]
    assert asyncio.run(custom_rm(arguments(), group)) == [1.5, None]
    assert asyncio.run(custom_rm(arguments(reward_key="score"), group[1])) == {"score": None}
    assert [request.completion for request in server.scored] == ["1.5"]
    group[1].response += "5"
    group[1].status = Status.COMPLETED
    assert asyncio.run(custom_rm(arguments(), group[1])) == 2.5


def test_a_job_has_the_version_of_the_oldest_weights_that_wrote_a_part(server) -> None:
    group = [
        Sample("1.5", weight_versions=["12", "9", "10"]), Sample("2.5", weight_versions=["default"]), Sample("3.5"),
    ]  # fmt: skip
    asyncio.run(custom_rm(arguments(), group))
    assert {request.completion: request.policy_version for request in server.scored} == {
        "1.5": 9, "2.5": None, "3.5": None,
    }  # fmt: skip


@pytest.mark.parametrize("reward_key", [None, "score"])
def test_with_the_filter_a_group_in_trouble_is_dropped_and_another_kept(server, reward_key: str | None) -> None:
    args = arguments(filtered=True, reward_key=reward_key)

    def kept(*texts: str) -> bool:
        group = [Sample(text) for text in texts]
        for sample, reward in zip(group, asyncio.run(custom_rm(args, group)), strict=True):
            sample.reward = reward
        return keep_scored(args, group)

    assert kept("1.5", "no code")
    assert not kept("1.5", "infra")


def test_the_filter_is_where_its_option_says() -> None:
    module, _, name = FILTER.rpartition(".")
    assert getattr(importlib.import_module(module), name) is keep_scored
