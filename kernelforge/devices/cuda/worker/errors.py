"""Failures of a plan, from CUDA errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kernelforge.candidate.resolved import Launch, Step
from kernelforge.devices.base import RunFailure
from kernelforge.devices.cuda.worker.driver import DriverError

Kind = Literal["sanitizer", "timeout", "crash", "memory", "unsupported"]

_FAILURES: Mapping[str, tuple[Kind, str]] = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": ("crash", "a kernel accessed memory that is not mapped"),
    "CUDA_ERROR_MISALIGNED_ADDRESS": ("crash", "a kernel accessed an address that is not a multiple of its size"),
    "CUDA_ERROR_ASSERT": ("crash", "a device assert() failed"),
    "CUDA_ERROR_LAUNCH_FAILED": ("crash", "a kernel trapped, or accessed shared or local memory out of bounds"),
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": ("crash", "a kernel executed an illegal instruction"),
    "CUDA_ERROR_HARDWARE_STACK_ERROR": ("crash", "a kernel's call stack overflowed or was corrupted"),
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": ("crash", "a kernel used an address in the wrong memory space"),
    "CUDA_ERROR_INVALID_PC": ("crash", "a kernel jumped to an invalid address"),
    "CUDA_ERROR_TENSOR_MEMORY_LEAK": ("crash", "a kernel ended without freeing its tensor memory"),
    "CUDA_ERROR_UNKNOWN": ("crash", "the GPU failed in an unknown way"),
    "CUDA_ERROR_LAUNCH_TIMEOUT": ("timeout", "a kernel did not end before the watchdog of the driver stopped it"),
    "CUDA_ERROR_OUT_OF_MEMORY": ("memory", "out of device memory"),
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": ("crash", "a block needs more registers or shared memory than there are"),
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": (
        "crash",
        "the grid of a cooperative launch is larger than what the GPU holds at once",
    ),
    "CUDA_ERROR_INVALID_CLUSTER_SIZE": ("crash", "the GPU cannot schedule clusters of this size"),
    "CUDA_ERROR_INVALID_VALUE": ("crash", "CUDA refuses an argument"),
    "CUDA_ERROR_INVALID_IMAGE": ("crash", "the build cannot be loaded"),
    "CUDA_ERROR_NO_BINARY_FOR_GPU": ("unsupported", "the build is for another architecture"),
    "CUDA_ERROR_NOT_SUPPORTED": ("unsupported", "this GPU or driver does not support it"),
}
"""By CUDA's name. Other errors are the machine's, never a plan's: ``CUDA_ERROR_ECC_UNCORRECTABLE``."""


class PlanFailed(Exception):
    """The plan ended with faults, which are its result. ``lost``: the context was destroyed, too."""

    def __init__(self, *faults: RunFailure, lost: bool = False) -> None:
        super().__init__(faults[0].message)
        self.faults = faults
        self.lost = lost


def describe_step(step: Step) -> str:
    """Name and plan line of a step, for messages."""
    if isinstance(step, Launch):
        return f"{step.expression!r}, launched in plan line {step.line}"
    return f"plan line {step.line}"


def plan_failure(error: DriverError, where: str) -> PlanFailed:
    """The plan's failure for an error. ``where`` names a launch or an action.

    Raises:
        DriverError: the error itself, if no plan can cause it.
    """
    if error.code not in _FAILURES:
        raise error
    kind, text = _FAILURES[error.code]
    # A context that ran out of memory may have leaked some: nothing else runs in it.
    return PlanFailed(RunFailure(kind, f"{text} ({error.code}): {where}"), lost=error.sticky or kind == "memory")
