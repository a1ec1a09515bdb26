"""The agents: a Coder proposes candidates, a Judge names one thing to fix or to improve."""

from kernelforge.agents.base import (
    BUILTIN,
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

__all__ = [
    "BUILTIN",
    "Coder",
    "CoderReply",
    "CoderRequest",
    "Judge",
    "JudgeReply",
    "JudgeRequest",
    "ProposedGenerator",
    "TaskContext",
    "Tester",
    "TesterReply",
]
