"""Errors of the emulator; a fault of the emulated program is data (see :mod:`.report`), not an exception."""

from __future__ import annotations


class EmulatorError(Exception):
    """Base of the emulator's exceptions."""


class OutOfDeviceMemory(EmulatorError):
    """An allocation does not fit the device's global memory."""


class UnsupportedInstruction(EmulatorError):
    """The kernel needs an instruction or a form of one that the emulator does not implement.

    Raised when the kernel that contains it is built, before it can give a wrong result.
    """

    def __init__(self, instruction: str, source_line: int = 0, ptx_line: int = 0, reason: str = "") -> None:
        where = f"source line {source_line}, PTX line {ptx_line}" if source_line else f"PTX line {ptx_line}"
        super().__init__(f"the emulator does not support {instruction!r} ({where})" + (f": {reason}" if reason else ""))
        self.instruction = instruction
        self.source_line = source_line
        self.ptx_line = ptx_line
