"""SkyRL: an environment for ``skyrl_gym``, single-turn or in several turns.

SkyRL (0.4: ``skyrl_gym.envs.base_text_env``) makes one environment per trajectory from the row's columns and calls it
in a pool of threads. Its rewards must be numbers and it masks nothing, so that an exception is the only way to say
that there is no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import registry

from kernelforge.adapters.common import Scorer, forget_blocking, task_of, version_in
from kernelforge.client import Conversation
from kernelforge.client.models import RewardResult

NAME = "kernelforge"


class KernelEnv(BaseTextEnv):
    """One trajectory about one task.

    Args:
        env_config: fields of :class:`~kernelforge.adapters.common.Scorer`, from SkyRL's configuration.
        extras: the row: ``task``, or the task's name as ``reward_spec.ground_truth``; ``max_turns`` comes from SkyRL's
            generator. With more than one turn, what the Judge says of a turn is the next observation. A
            ``policy_version`` comes from a generator of one's own, which puts it there in ``_setup_env_extras``.
        scorer: what ``env_config`` does not say.
    """

    def __init__(
        self,
        env_config: Mapping[str, Any] | None = None,
        extras: Mapping[str, Any] | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        super().__init__()
        row = extras or {}
        self.task = task_of(row, (row.get("reward_spec") or {}).get("ground_truth"))
        self.max_turns = int(row.get("max_turns") or 1)
        self._scorer = replace(scorer or Scorer(), **(env_config or {}))
        self._version = version_in(row)
        self._session: Conversation | None = None
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Evaluate one reply.

        Raises:
            MissingRewardError: trouble of the server's.
            ServerError: the same, in a conversation.
        """
        self.turns += 1
        if self.max_turns == 1:
            return self._output(self._scorer.score_blocking(self.task, action, self._version), "", done=True)
        if self._session is None:
            self._session = self._scorer.session_blocking(self.task, self.max_turns, self._version)
        turn = self._scorer.turn_blocking(self._session, action)
        return self._output(turn.result, turn.observation, done=self.turns >= self.max_turns)

    def close(self) -> None:
        if self._session is not None:
            forget_blocking(self._session)
            self._session = None

    def get_metrics(self) -> dict[str, Any]:
        """Of the last turn: whether there was a candidate, whether it built, whether it was right."""
        return self._metrics

    def _output(self, result: RewardResult, observation: str, *, done: bool) -> BaseTextEnvStepOutput:
        value = result.require()
        self._metrics = result.components.flags()
        return BaseTextEnvStepOutput(
            observations=[] if done else [{"role": "user", "content": observation}],
            reward=value,
            done=done,
            metadata={"verdict": result.verdict_words, **result.components.numbers()},
        )


def register(name: str = NAME, scorer: Scorer | None = None) -> None:
    """Make the environment known to ``skyrl_gym`` in this process: the one that generates. Once more replaces it.

    Args:
        name: the rows' ``env_class``.
        scorer: by default the server of the environment.
    """
    registry.pop(name, None)
    skyrl_gym.register(id=name, entry_point=f"{__name__}:KernelEnv", kwargs={"scorer": scorer or Scorer()})
