"""The agents: a Coder proposes candidates, a Judge names one thing to fix or to improve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelforge.agents.base import (
    Coder,
    CoderReply,
    CoderRequest,
    Judge,
    JudgeReply,
    JudgeRequest,
    ProposedGenerator,
    TaskContext,
    Tester,
    TesterReply,
)
from kernelforge.llm.base import Meter
from kernelforge.llm.providers import Providers

BUILTIN = "builtin"
"""The agents that need no model, no key and no network: they write and judge by rules."""

if TYPE_CHECKING:
    from kernelforge.agents.reflexion import Reflexion

__all__ = [
    "BUILTIN",
    "Coder",
    "CoderReply",
    "CoderRequest",
    "Judge",
    "JudgeReply",
    "JudgeRequest",
    "ProposedGenerator",
    "Reflexion",
    "TaskContext",
    "Tester",
    "TesterReply",
    "check_agent",
    "make_coder",
    "make_judge",
    "make_reflexion",
    "make_tester",
]


def check_agent(spec: str, providers: Providers) -> None:
    """See that ``spec`` could be an agent, without asking it anything.

    Raises:
        UsageError: an unknown provider, or one that lacks what it needs; the message says what to do.
    """
    if spec != BUILTIN:
        providers.check(spec)


def make_coder(spec: str, providers: Providers, meter: Meter) -> Coder:
    """A Coder by its specification, such as ``builtin`` or ``openai:MODEL``.

    Raises:
        UsageError: as :func:`check_agent`.
    """
    if spec == BUILTIN:
        from kernelforge.agents.builtin import BuiltinCoder

        return BuiltinCoder()
    from kernelforge.agents.llm_agents import LLMCoder

    return LLMCoder(spec, providers.answerer(spec, meter))


def make_judge(spec: str, providers: Providers, meter: Meter) -> Judge:
    """A Judge by its specification.

    Raises:
        UsageError: as :func:`check_agent`.
    """
    if spec == BUILTIN:
        from kernelforge.agents.builtin import BuiltinJudge

        return BuiltinJudge()
    from kernelforge.agents.llm_agents import LLMJudge

    return LLMJudge(spec, providers.answerer(spec, meter))


def make_reflexion(spec: str, providers: Providers, meter: Meter) -> Reflexion:
    """The writer of lessons, by its specification.

    Raises:
        UsageError: as :func:`check_agent`.
    """
    from kernelforge.agents.reflexion import BuiltinReflexion, LLMReflexion

    if spec == BUILTIN:
        return BuiltinReflexion()
    return LLMReflexion(spec, providers.answerer(spec, meter))


def make_tester(spec: str, providers: Providers, meter: Meter) -> Tester:
    """A Tester by its specification.

    Raises:
        UsageError: as :func:`check_agent`.
    """
    if spec == BUILTIN:
        from kernelforge.agents.builtin.tester import BuiltinTester

        return BuiltinTester()
    from kernelforge.agents.tester import LLMTester

    return LLMTester(spec, providers.answerer(spec, meter))
