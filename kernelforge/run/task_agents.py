"""The agents of one task: Coders, Judge, optional Tester and Reflexion, each charged to the task's budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelforge.agents import Coder, Judge, Tester, make_coder, make_judge, make_reflexion, make_tester
from kernelforge.llm.base import Meter
from kernelforge.llm.providers import Providers
from kernelforge.records import RunConfig

if TYPE_CHECKING:
    from kernelforge.agents.reflexion import Reflexion


@dataclass(frozen=True)
class TaskAgents:
    """The agents of one task; their calls are charged to that task."""

    coders: tuple[Coder, ...]
    judge: Judge
    tester: Tester | None
    reflexion: Reflexion | None

    @classmethod
    def of(cls, config: RunConfig, providers: Providers, meter: Meter) -> TaskAgents:
        """
        Raises:
            UsageError: an agent lacks what it needs, such as a key.
        """
        return cls(
            coders=tuple(make_coder(spec, providers, meter) for spec in config.coders),
            judge=make_judge(config.judge, providers, meter),
            tester=None if config.tester is None else make_tester(config.tester, providers, meter),
            reflexion=None if config.memory == "off" else make_reflexion(config.judge, providers, meter),
        )
