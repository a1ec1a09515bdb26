"""The emulated device: real PTX run on the CPU, every access checked, PTX events counted.

Names are loaded on first use: the parent side of the device must not load LLVM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelforge.devices.emulated.execute.loaded_module import (
        CacheModel,
        EmulatorError,
        KernelEntry,
        LaunchFault,
        LaunchReport,
        LoadedModule,
        Memory,
        MemoryOp,
        OutOfDeviceMemory,
        Param,
        UnsupportedInstruction,
        warm_up,
    )
    from kernelforge.devices.emulated.ptx.parser import PtxSyntaxError

__all__ = [
    "CacheModel",
    "EmulatorError",
    "KernelEntry",
    "LaunchFault",
    "LaunchReport",
    "LoadedModule",
    "Memory",
    "MemoryOp",
    "OutOfDeviceMemory",
    "Param",
    "PtxSyntaxError",
    "UnsupportedInstruction",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "ptx.parser" if name == "PtxSyntaxError" else "execute.loaded_module"
    return getattr(import_module(f"{__name__}.{home}"), name)
