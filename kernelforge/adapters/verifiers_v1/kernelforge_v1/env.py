"""Environment: one trace per task, of one reply or a conversation with the Judge."""

from __future__ import annotations

import verifiers.v1 as vf

from .taskset import KernelTask


class KernelForgeEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())
    """Who writes kernels. A reply is text: that takes a chat, and neither tools nor a box of its own."""
    turns: int = 1
    """Replies in one trace; what the Judge says of one is the next message to the model."""


class KernelForgeEnv(vf.Env[KernelForgeEnvConfig]):
    """One agent, one trace."""

    async def run(self, task: KernelTask, agents: vf.Agents) -> None:
        """
        Raises:
            ServerError: trouble of the server's in the midst of a conversation: the episode failed.
        """
        if self.config.turns == 1:
            await agents.agent.run(task)
            return
        scorer = task.config.scorer()
        async with (
            scorer.conversation(task.data.task, self.config.turns) as session,
            agents.agent.interaction(task) as talk,
        ):
            reply = await talk.turn()
            while not reply.terminated:
                turn = await scorer.turn(session, reply.last_reply)
                talk.trace.state.results.append(turn.result.model_dump(mode="json"))
                if len(talk.trace.state.results) == self.config.turns:
                    break
                reply = await talk.turn(turn.observation)
