"""The emulated device: real PTX run on the CPU, every access checked, PTX events counted."""

from kernelforge.devices.emulated.machine import (
    CacheModel,
    EmulatorError,
    Entry,
    Fault,
    LaunchReport,
    Machine,
    Memory,
    MemoryOp,
    OutOfDeviceMemory,
    Param,
    UnsupportedInstruction,
    warm_up,
)
from kernelforge.devices.emulated.ptx import PtxSyntaxError

__all__ = [
    "CacheModel",
    "EmulatorError",
    "Entry",
    "Fault",
    "LaunchReport",
    "Machine",
    "Memory",
    "MemoryOp",
    "OutOfDeviceMemory",
    "Param",
    "PtxSyntaxError",
    "UnsupportedInstruction",
    "warm_up",
]
