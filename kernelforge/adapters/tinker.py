"""Tinker: an environment and a group builder for the tinker-cookbook's RL loop, single-turn or in several turns.

The cookbook (0.6: ``tinker_cookbook.rl``) pickles builders, makes a group of single-use environments from each, and
leaves what to do about an exception to its rollout strategy: ``FailFast`` ends the run, ``RetryOnFailure`` rolls out
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Message, Renderer, get_text_content
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    EnvGroupBuilder,
    StepResult,
    StopReason,
)

from kernelforge.adapters.common import Scorer, forget
from kernelforge.client import AsyncConversation
from kernelforge.client.models import RewardResult


class KernelEnv(Env):
    """One episode about one task. With more than one turn, what the Judge says of a turn is the next observation."""

    def __init__(
        self,
        task: str,
        prompt: str,
        renderer: Renderer,
        scorer: Scorer,
        turns: int = 1,
        policy_version: int | None = None,
    ) -> None:
        self._task = task
        self._renderer = renderer
        self._scorer = scorer
        self._turns = turns
        self._version = policy_version
        self._messages: list[Message] = [{"role": "user", "content": prompt}]
        self._taken = 0
        self._session: AsyncConversation | None = None

    async def initial_observation(self) -> tuple[tinker.ModelInput, StopCondition]:
        return self._observation(), self._renderer.get_stop_sequences()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Evaluate one reply.

        Raises:
            MissingRewardError: trouble of the server's.
            ServerError: the same, in a conversation.
        """
        message, _ = self._renderer.parse_response(action)
        text = get_text_content(message)
        self._taken += 1
        if self._turns == 1:
            return self._result(await self._scorer.score(self._task, text, self._version))
        if self._session is None:
            self._session = await self._scorer.session(self._task, self._turns, self._version)
        turn = await self._scorer.turn(self._session, text)
        if self._taken >= self._turns:
            await forget(self._session)
        self._messages += [message, {"role": "user", "content": turn.observation}]
        return self._result(turn.result)

    def _observation(self) -> tinker.ModelInput:
        return self._renderer.build_generation_prompt(self._messages)

    def _result(self, result: RewardResult) -> StepResult:
        done = self._taken >= self._turns
        return StepResult(
            reward=result.require(),
            episode_done=done,
            next_observation=tinker.ModelInput.empty() if done else self._observation(),
            next_stop_condition=self._renderer.get_stop_sequences(),
            metrics=result.components.flags() | (_STOPPED if done and self._turns > 1 else {}),
            logs={"task": self._task, "verdict": result.verdict_words or "", "feedback": result.feedback},
        )


_STOPPED = {f"{STOP_METRIC_PREFIX}{StopReason.MAX_TURNS}": 1.0}


@dataclass(frozen=True)
class KernelGroupBuilder(EnvGroupBuilder):
    """A group of episodes about one task.

    Args:
        task: its name.
        renderer: from the cookbook's ``get_renderer``, which makes ones that can be pickled.
        group_size: episodes.
        turns: of each episode.
        prompt: by default the server's.
        policy_version: of the weights that begin the episodes: the ``index`` of ``RLDataset.get_batch``, which is the
            cookbook's iteration. The cookbook itself tells environments none.
    """

    task: str
    renderer: Renderer
    group_size: int
    turns: int = 1
    scorer: Scorer = field(default_factory=Scorer)
    prompt: str | None = None
    policy_version: int | None = None

    async def make_envs(self) -> Sequence[Env]:
        prompt = self.prompt if self.prompt is not None else await self.scorer.prompt(self.task)
        arguments = (self.task, prompt, self.renderer, self.scorer, self.turns, self.policy_version)
        return [KernelEnv(*arguments) for _ in range(self.group_size)]

    def logging_tags(self) -> list[str]:
        return ["kernelforge", self.task.partition("/")[0]]
