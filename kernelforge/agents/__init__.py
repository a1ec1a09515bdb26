"""The agents: a Coder proposes candidates, a Judge names one thing to fix or to improve."""

from kernelforge.agents.base import (
    BUILTIN,
    Coder,
    CoderRequest,
    GeneratorForm,
    Judge,
    JudgeReply,
    JudgeRequest,
    TaskContext,
    Tester,
    TesterReply,
)

__all__ = [
    "BUILTIN",
    "Coder",
    "CoderRequest",
    "GeneratorForm",
    "Judge",
    "JudgeReply",
    "JudgeRequest",
    "TaskContext",
    "Tester",
    "TesterReply",
]
