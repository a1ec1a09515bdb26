"""The built-in Coder and Judge: no model, no key, no network; the floor that any model must beat."""

from kernelforge.agents.builtin.coder import BuiltinCoder
from kernelforge.agents.builtin.judge import BuiltinJudge

__all__ = ["BuiltinCoder", "BuiltinJudge"]
