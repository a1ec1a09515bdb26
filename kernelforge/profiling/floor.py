"""The floor under a task's time: what its bytes, its operations and a launch take at least."""

from __future__ import annotations

from typing import NamedTuple

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.records import DType, SizeFacts, TensorSpec

HOST_LINE_BYTES = 128
"""Largest read of host memory, aligned to as much (Min et al., *EMOGI*, PVLDB 14, 2020; *PyTorch-Direct*, 2021)."""
TF32_PRODUCTS = 3
"""Products of TF32 parts, on tensor cores, that make one of FP32: large by large, large by small, small by large."""


class ArithmeticFloor(NamedTuple):
    """Time of the reference's operations at the peak rate of the unit that may do them."""

    time_us: float
    unit: str


def arithmetic_floor(spec: DeviceSpec, size: SizeFacts) -> ArithmeticFloor:
    """The reference's operations by the fastest way that the precision of its floating-point tensors allows.

    16 bits: the tensor cores, or two operations at a time where a GPU has none. 32 bits: the FP32 units, or three
    products of TF32 parts on the tensor cores for each of FP32, as one of TF32 is not as precise as a candidate has to
    be, and parts of FP16 do not have the range of FP32. 64 bits: the FP32 peak.
    """
    tensors = [item for item in (*size.inputs, *size.outputs) if isinstance(item, TensorSpec)]
    floating = {item.dtype for item in tensors if "float" in item.dtype.value}
    ways = {"the FP32 peak": spec.fp32_flops_per_s}
    if floating and floating <= {DType.FLOAT16, DType.BFLOAT16}:
        products = spec.tensor_flops_per_s("f16", "f32")
        ways = {"the tensor cores' peak": products} if products else {"twice the FP32 peak": 2 * spec.fp32_flops_per_s}
    elif DType.FLOAT64 not in floating:
        products = spec.tensor_flops_per_s("tf32", "f32") / TF32_PRODUCTS
        ways["a third of the tensor cores' TF32 peak"] = products
    unit = max(ways, key=ways.__getitem__)
    return ArithmeticFloor(size.flops / ways[unit] * 1e6, unit)


def host_link_us(spec: DeviceSpec, nbytes: float, requests: float) -> float:
    """Time that bytes of host memory, and the headers of the requests for them, take on the host link."""
    header = spec.host_request_bytes
    raw_gbps = spec.host_link_gbps * (HOST_LINE_BYTES + header) / HOST_LINE_BYTES
    return (nbytes + header * requests) / raw_gbps * 1e-3


def attainable_us(spec: DeviceSpec, size: SizeFacts) -> float:
    """Least time that a kernel can be expected to take: one launch, and the longest of the compulsory bytes at the
    bandwidth that the memory sustains, those of host memory in complete lines over the link, and the reference's
    operations."""
    return work_us(spec, size) + spec.launch_overhead_us


def work_us(spec: DeviceSpec, size: SizeFacts, *, l2_bytes: float = 0.0) -> float:
    """Least time of the work of a kernel, as in :func:`attainable_us` but without the launch.

    Args:
        spec: The GPU.
        size: The work.
        l2_bytes: Part of the compulsory bytes that the L2 holds when the kernel starts.
    """
    dram = (size.compulsory_bytes - l2_bytes) / spec.dram_sustained_gbps * 1e-3
    l2 = size.compulsory_bytes / spec.l2_bandwidth_gbps * 1e-3
    host = host_link_us(spec, size.host_bytes, size.host_bytes / HOST_LINE_BYTES)
    return max(dram, l2, host, arithmetic_floor(spec, size).time_us)
