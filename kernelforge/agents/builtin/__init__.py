"""The built-in Coder, Judge and Tester: no model, key or network needed; the baseline that a model must beat."""

from kernelforge.agents.builtin.coder import BuiltinCoder
from kernelforge.agents.builtin.judge import BuiltinJudge
from kernelforge.agents.builtin.tester import BuiltinTester

__all__ = ["BuiltinCoder", "BuiltinJudge", "BuiltinTester"]
