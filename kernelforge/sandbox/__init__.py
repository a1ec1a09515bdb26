"""Confinement: warm zygotes, disposable jailed children, and the frames they speak."""

from kernelforge.sandbox.channel import Channel, Frame
from kernelforge.sandbox.limits import Death, Limits
from kernelforge.sandbox.policy import RolePolicy, data_folder, role_policy
from kernelforge.sandbox.probe import Door, JailReport, probe
from kernelforge.sandbox.zygote import Child, Zygote

__all__ = [
    "Channel",
    "Child",
    "Death",
    "Door",
    "Frame",
    "JailReport",
    "Limits",
    "RolePolicy",
    "Zygote",
    "data_folder",
    "probe",
    "role_policy",
]
