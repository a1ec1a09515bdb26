"""The agents: a Coder proposes candidates, a Judge names one thing to mend or to improve."""

from __future__ import annotations

from collections.abc import Callable

from kernelforge.agents.base import Brief, Coder, CoderReply, CoderRequest, Judge, JudgeReply
from kernelforge.errors import UsageError

PROVIDERS: dict[str, str] = {
    "builtin": "writes and judges by rules: no model, no key, no network",
    "exchange:FOLDER": "prompts out to a folder, replies read back: a person or any coding agent as the model",
}
"""What may stand for a Coder or a Judge, and what it is."""

__all__ = [
    "PROVIDERS",
    "Brief",
    "Coder",
    "CoderReply",
    "CoderRequest",
    "Judge",
    "JudgeReply",
    "make_agents",
]


def make_agents(coder: str, judge: str, *, stopped: Callable[[], bool] = lambda: False) -> tuple[Coder, Judge]:
    """The two agents by their specifications, such as ``builtin`` or ``exchange:./desk``.

    An agent that waits for an answer looks at ``stopped`` as it does; once true, the wait ends with
    :class:`~kernelforge.errors.BudgetExhausted`.

    Raises:
        UsageError: an unknown provider, or one that lacks what it needs; the message lists what there is.
    """
    return _coder(coder, stopped), _judge(judge, stopped)


def _coder(spec: str, stopped: Callable[[], bool]) -> Coder:
    provider, _, rest = spec.partition(":")
    if provider == "builtin" and not rest:
        from kernelforge.agents.builtin import BuiltinCoder

        return BuiltinCoder()
    if provider == "exchange" and rest:
        from kernelforge.agents.prompted import PromptedCoder
        from kernelforge.llm.exchange import Exchange

        return PromptedCoder(spec, Exchange(rest, stopped=stopped))
    raise _unknown("Coder", spec)


def _judge(spec: str, stopped: Callable[[], bool]) -> Judge:
    provider, _, rest = spec.partition(":")
    if provider == "builtin" and not rest:
        from kernelforge.agents.builtin import BuiltinJudge

        return BuiltinJudge()
    if provider == "exchange" and rest:
        from kernelforge.agents.prompted import PromptedJudge
        from kernelforge.llm.exchange import Exchange

        return PromptedJudge(spec, Exchange(rest, stopped=stopped))
    raise _unknown("Judge", spec)


def _unknown(role: str, spec: str) -> UsageError:
    known = "; ".join(f"'{name}' ({what})" for name, what in PROVIDERS.items())
    return UsageError(f"there is no {role} {spec!r}; choose one of: {known}")
