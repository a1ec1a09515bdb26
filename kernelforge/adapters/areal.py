"""AReaL: an agent for its proxy workflow, and a reward function for its RLVR workflow.

AReaL (1.0: ``areal.experimental.openai.proxy.workflow``) awaits ``run`` of any object, with the address of a proxy
that speaks the API of OpenAI in front of the policy, and takes a float, or rewards by response id. A trajectory whose
``run`` raises is rejected: it is not trained on, and another takes its place.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelforge.adapters.common import Scorer, task_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

WRAPPER_TIMEOUT_S = 15.0
"""After which ``areal.api.AsyncRewardWrapper`` gives a reward function up; the last of its four tries counts as 0."""
_SPARE_S = 3.0
"""For what is not the evaluation's."""


class KernelAgent:
    """Asks the policy for a kernel, and again with what the Judge said, ``turns`` times in all.

    Args:
        turns: in one trajectory. Rewards are given per response; AReaL discounts them (``turn_discount``).
        scorer: or its fields, as a configuration has them; by default the server of the environment.
        generation: further arguments of ``chat.completions.create``, such as ``temperature``.
    """

    def __init__(self, turns: int = 1, scorer: Scorer | Mapping[str, Any] | None = None, **generation: Any) -> None:
        self._turns = turns
        self._scorer = scorer if isinstance(scorer, Scorer) else Scorer(**(scorer or {}))
        self._generation = generation

    async def run(self, data: Mapping[str, Any], **extra: Any) -> float | dict[str, float]:
        """One trajectory.

        Args:
            data: the row, with a ``task``; its ``messages``, where it has some, are asked in place of the server's
                prompt.
            extra: ``base_url``, ``api_key`` and ``http_client`` of AReaL's proxy; left out where AReaL runs agents in
                processes of their own, which find them in the environment.

        Raises:
            MissingRewardError: trouble of the server's.
            ServerError: the same, in a conversation.
        """
        from openai import AsyncOpenAI

        model = AsyncOpenAI(
            base_url=extra.get("base_url") or os.environ["OPENAI_BASE_URL"],
            api_key=extra.get("api_key") or os.environ["OPENAI_API_KEY"],
            http_client=extra.get("http_client"),
            max_retries=0,
        )
        task = task_of(data, data.get("answer"))
        messages = list(data.get("messages") or [{"role": "user", "content": await self._scorer.prompt(task)}])
        if self._turns == 1:
            _, text = await self._reply(model, messages)
            return (await self._scorer.score(task, text)).require()
        rewards: dict[str, float] = {}
        async with self._scorer.conversation(task, self._turns) as session:
            for _ in range(self._turns):
                reply_id, text = await self._reply(model, messages)
                turn = await self._scorer.turn(session, text)
                rewards[reply_id] = turn.result.require()
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": turn.observation}]
        return rewards

    async def _reply(self, model: AsyncOpenAI, messages: list[Any]) -> tuple[str, str]:
        """Return the policy's reply and the id of its response."""
        reply = await model.chat.completions.create(model="default", messages=messages, **self._generation)
        return reply.id, reply.choices[0].message.content or ""


def reward_function(scorer: Scorer | None = None) -> Callable[..., float]:
    """A reward function for ``RLVRWorkflow(reward_fn=...)``, which calls it in a pool of processes.

    It gives up before AReaL does: a reward that AReaL gave up waiting for would count as 0, an exception does not.
    :class:`KernelAgent` has no such limit.

    Args:
        scorer: by default the server of the environment. Its deadline is at most 12 s.
    """
    scorer_used = scorer or Scorer()
    limit_s = WRAPPER_TIMEOUT_S - _SPARE_S
    return functools.partial(_reward, replace(scorer_used, deadline_s=min(scorer_used.deadline_s or limit_s, limit_s)))


def _reward(
    scorer: Scorer,
    /,
    prompt: str,
    completions: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    **row: Any,
) -> float:
    """The reward of ``completions``, which is one. The row has a ``task``, or names it as ``answer``.

    Raises:
        MissingRewardError: trouble of the server's, or no answer in time.
    """
    return scorer.score_blocking(task_of(row, row.get("answer")), completions).require()


reward_fn = reward_function()
