"""AReaL: an agent for its proxy workflow, and a reward function for its RLVR workflow.

AReaL (1.0: ``areal.experimental.openai.proxy.workflow``) awaits ``run`` of any object, with the address of a proxy
that speaks the API of OpenAI in front of the policy, and takes a float, or rewards by response id. A trajectory whose
``run`` raises is rejected: it is not trained on, and another takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernelforge.adapters.common import Scorer, task_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

WRAPPER_TIMEOUT_S = 15.0
"""After which ``areal.api.AsyncRewardWrapper`` gives a reward function up; the last of its four tries counts as 0."""


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
            NoScore: trouble of the server's.
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
                turn = await session.turn(text)
                rewards[reply_id] = turn.result.require()
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": turn.observation}]
        return rewards

    async def _reply(self, model: AsyncOpenAI, messages: list[Any]) -> tuple[str, str]:
        """What the policy says, with the id of its response."""
        reply = await model.chat.completions.create(model="default", messages=messages, **self._generation)
        return reply.id, reply.choices[0].message.content or ""


def reward_fn(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> float:
    """For ``RLVRWorkflow(reward_fn=...)``, which calls it in a process pool.

    It gives up before AReaL does: a reward that AReaL gave up waiting for would count as 0, an exception does not. An
    evaluation that takes longer is tried again, and found in the cache where it went on for others;
    :class:`KernelAgent` has no such limit.

    Args:
        completions: the text of one completion.
        row: the row's columns, with the task's name as ``task`` or ``answer``.

    Raises:
        NoScore: trouble of the server's, or no answer within 12 s.
    """
    scorer = replace(Scorer(), deadline_s=WRAPPER_TIMEOUT_S - 3.0)
    return scorer.score_blocking(task_of(row, row.get("answer")), completions).require()
