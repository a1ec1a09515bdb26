"""The built-in Coder, Judge and Tester: no model, key or network needed; the baseline that a model must beat."""

from kernelforge.agents.builtin.coder import BuiltinCoder
from kernelforge.agents.builtin.judge import BuiltinJudge

__all__ = ["BuiltinCoder", "BuiltinJudge"]
