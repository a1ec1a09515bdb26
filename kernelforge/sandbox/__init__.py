"""Confinement: warm zygotes, disposable jailed children, and the frames they speak."""

from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.policy import ExitReport, Limits, RolePolicy, data_folder, role_policy
from kernelforge.sandbox.self_test import EscapeAttempt, JailReport, Zygote, select_tier
from kernelforge.sandbox.zygote import Child

__all__ = [
    "Channel",
    "Child",
    "EscapeAttempt",
    "ExitReport",
    "Frame",
    "JailReport",
    "Limits",
    "RolePolicy",
    "Zygote",
    "data_folder",
    "role_policy",
    "select_tier",
]
