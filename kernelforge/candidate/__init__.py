"""Candidates: a reply read into source and plan, a plan resolved into launches."""

from kernelforge.candidate.plan import LaunchSignature, Plan, parse_plan, signatures
from kernelforge.candidate.plan_limits import PlanLimits
from kernelforge.candidate.reply import format_reply, parse_reply
from kernelforge.candidate.resolved import ResolvedPlan
from kernelforge.candidate.tuning_choices import chosen_values, plan_as_chosen

__all__ = [
    "LaunchSignature",
    "Plan",
    "PlanLimits",
    "ResolvedPlan",
    "chosen_values",
    "format_reply",
    "parse_plan",
    "parse_reply",
    "plan_as_chosen",
    "signatures",
]
