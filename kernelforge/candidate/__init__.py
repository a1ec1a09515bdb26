"""Candidates: a reply read into source and plan, a plan resolved into launches."""

from kernelforge.candidate.plan import (
    MAX_COMBINATIONS,
    MAX_HALVED,
    LaunchSignature,
    Plan,
    chosen_values,
    combinations_of,
    parse_plan,
    plan_as_chosen,
    signatures,
)
from kernelforge.candidate.plan_language.interpreter import PlanLimits
from kernelforge.candidate.reply import format_reply, model_new_in, parse_reply, split_reasoning
from kernelforge.candidate.resolved import ResolvedPlan

__all__ = [
    "MAX_COMBINATIONS",
    "MAX_HALVED",
    "LaunchSignature",
    "Plan",
    "PlanLimits",
    "ResolvedPlan",
    "chosen_values",
    "combinations_of",
    "format_reply",
    "model_new_in",
    "parse_plan",
    "parse_reply",
    "plan_as_chosen",
    "signatures",
    "split_reasoning",
]
