"""The tasks of a reward server, and how a finished trace is scored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

from kernelforge.adapters.common import Scorer
from kernelforge.client import Client
from kernelforge.client.models import RewardResult


class ServerConfig(vf.TaskConfig):
    """The reward server and its options: ``--env.taskset.task.*``."""

    url: str | None = None
    """By default ``KERNELFORGE_SERVER``. The token is always ``KERNELFORGE_TOKEN``: configurations are recorded."""
    policy: str | None = None
    run_id: str = "default"
    deadline_s: float | None = None
    profile: bool = False
    sizes: Literal["all", "train"] | None = None
    weights: dict[str, float] | None = None
    policy_version: int | str | None = None
    """A number, or the name of a function that says it at each request: ``package.module:function``."""

    def scorer(self) -> Scorer:
        return Scorer(
            url=self.url,
            policy=self.policy,
            run_id=self.run_id,
            deadline_s=self.deadline_s,
            profile=self.profile,
            sizes=self.sizes,
            weights=self.weights,
            policy_version=self.policy_version,
        )


class KernelForgeConfig(vf.TasksetConfig):
    suite: str | None = None
    """Only tasks of this suite; all that the server has when left out."""
    task: ServerConfig = ServerConfig()


class KernelData(vf.TaskData):
    task: str
    """``suite/name``."""


class KernelState(vf.State):
    results: list[dict[str, object]] = []
    """Results of the turns that a conversation already had scored."""


class KernelTask(vf.Task[KernelData, KernelState, ServerConfig]):
    """One kernel to write."""

    @vf.reward
    async def kernel(self, trace: vf.Trace) -> float:
        """The last reply's reward, or the best turn's of a conversation.

        Raises:
            MissingRewardError: trouble of the server's: the trace carries the error and is not trained on.
        """
        results = [RewardResult.model_validate(result) for result in trace.state.results]
        if not results:
            results = [await self.config.scorer().score(self.data.task, trace.last_reply)]
        best = max(results, key=RewardResult.require)
        trace.record_metrics(best.components.flags())
        return best.require()


class KernelForgeTaskset(vf.Taskset[KernelTask, KernelForgeConfig]):
    def load(self) -> Iterator[KernelTask]:
        """Every task of the server, with the prompt that its Coders get."""
        with Client(self.config.task.url) as server:
            for row in server.tasks():
                if self.config.suite in (None, row.task.partition("/")[0]):
                    prompt = server.task(row.task).prompt
                    yield KernelTask(
                        KernelData(id=row.digest, name=row.task, task=row.task, prompt=prompt), self.config.task
                    )
