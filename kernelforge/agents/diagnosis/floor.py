"""The floor under a task's time, and whether a candidate is near enough to it for a search to stop."""

from __future__ import annotations

from typing import NamedTuple

from kernelforge.agents.base import TaskContext
from kernelforge.hardware.specs import DeviceSpec
from kernelforge.records import Attempt, DType, SizeFacts, TensorSpec

NEAR = 1.1
"""A Judge's ``stop`` counts where the time is at most this multiple of the floor."""


class ArithmeticFloor(NamedTuple):
    """Time of the reference's operations at the peak rate of the unit that may do them."""

    time_us: float
    unit: str


def arithmetic_floor(spec: DeviceSpec, size: SizeFacts) -> ArithmeticFloor:
    """The reference's operations at the tensor cores' peak where all floating-point tensors have 16 bits, else at the
    FP32 peak: what the tensor cores do with FP32 is not as precise as a candidate has to be."""
    tensors = [item for item in (*size.inputs, *size.outputs) if isinstance(item, TensorSpec)]
    floating = {item.dtype for item in tensors if "float" in item.dtype.value}
    if floating and floating <= {DType.FLOAT16, DType.BFLOAT16}:
        return ArithmeticFloor(size.flops / spec.tensor_flops_per_s("f16", "f32") * 1e6, "the tensor cores' peak")
    return ArithmeticFloor(size.flops / spec.fp32_flops_per_s * 1e6, "the FP32 peak")


def attainable_us(spec: DeviceSpec, size: SizeFacts) -> float:
    """Least time that a kernel can be expected to take: one launch, and the longer of the compulsory bytes at the
    bandwidth that the memory sustains and the reference's operations."""
    memory = size.compulsory_bytes / spec.dram_sustained_gbps * 1e-3
    return max(memory, arithmetic_floor(spec, size).time_us) + spec.launch_overhead_us


def reason_to_go_on(context: TaskContext, attempt: Attempt) -> str:
    """Reason why a search does not end at an attempt, for a Judge that says ``stop``; empty where it may end."""
    performance, profile = attempt.evaluation.performance, attempt.profile
    if performance is not None:
        time_us = performance.time_us
    elif profile is not None:
        time_us = profile.roofline.time_us
    else:
        return "the candidate has no time, so nothing shows that it is near the floor"
    floor_us = attainable_us(context.spec, context.facts.at("full"))
    if time_us <= NEAR * floor_us:
        return ""
    return (
        f"the candidate takes {time_us:,.4g} us, {time_us / floor_us:.2f}x the {floor_us:,.4g} us that its bytes or "
        f"operations and a launch take at least, and a search stops at {NEAR:.2g}x"
    )
