"""Peak rates of a device, and the roofline position of a candidate (Williams et al., CACM 2009).

The peaks are those of the datasheets in :mod:`kernelforge.hardware.specs`; an unknown device has none.
"""

from __future__ import annotations

from kernelforge.evaluation.timing import physical_floor_us
from kernelforge.hardware.specs import EMULATED, DeviceSpec, find_spec
from kernelforge.profiling.metrics import MATRIX_INSTRUCTIONS
from kernelforge.profiling.ncu.catalogue import TENSOR_INSTRUCTIONS, TENSOR_PIPE
from kernelforge.records import Attempt, Fingerprint, Origin, Profile, Roofline
from kernelforge.report.views import View

TENSOR_METRICS = (MATRIX_INSTRUCTIONS, TENSOR_INSTRUCTIONS, TENSOR_PIPE)
"""Metrics that are above 0 where tensor cores worked."""


class DevicePeaks(View):
    """Peak rates of one device."""

    device: str
    """``NVIDIA H100 SXM5 80 GB``."""
    dram_bandwidth_gbps: float
    """Peak of the device memory, in 10^9 bytes per second."""
    fp32_flops_per_s: float
    """Peak of FP32 multiply-adds without tensor cores, each two operations."""
    tf32_tensor_flops_per_s: float
    fp16_tensor_flops_per_s: float
    """Peaks of the tensor cores, without sparsity; BF16 is as fast as FP16. 0 where there is no TF32."""
    ridge: float
    """Flop per byte where the roofs of DRAM and FP32 meet."""

    def flops_per_s(self, *, tensor_cores: bool) -> float:
        """Peak of a candidate's arithmetic; with tensor cores that of FP16, because no counter gives the type."""
        return self.fp16_tensor_flops_per_s if tensor_cores else self.fp32_flops_per_s

    def attainable_flops_per_s(self, intensity: float, *, tensor_cores: bool) -> float:
        """Height of the roof at an arithmetic intensity in flop per DRAM byte."""
        return min(self.flops_per_s(tensor_cores=tensor_cores), intensity * self.dram_bandwidth_gbps * 1e9)


class RooflinePoint(View):
    """One candidate at the full size under the roofs of its device."""

    attempt: str
    flops: float
    dram_bytes: float
    compulsory_bytes: float
    arithmetic_intensity: float
    """Flop per DRAM byte."""
    flops_per_s: float
    """Operations over the time of the profile."""
    bound: str
    """``dram``, ``l2``, ``l1``, ``shared``, ``fp32``, ``tensor``, ``issue``, ``latency`` or ``launch``."""
    tensor_cores: bool
    """Whether tensor cores worked."""
    time_us: float
    time_origin: Origin
    """Whether the time is measured or modelled."""
    ceiling_us: float | None
    """Least time by the governing roof for the candidate's own bytes and operations: the larger of its DRAM bytes at
    peak bandwidth and its operations at the FP32 peak, with tensor cores at their FP16 peak (of which a kernel that
    multiplies in TF32 can reach half). None where the device is unknown."""
    roofs: DevicePeaks | None
    """None where the device is unknown."""


def device_spec(device: str, gpu: str | None) -> DeviceSpec | None:
    """Figures of a device (``emulated:h100``, or the name of a GPU); None where there are none.

    Unlike :func:`kernelforge.hardware.specs.nearest_spec` it never substitutes another GPU.
    """
    return find_spec(device if device.startswith(EMULATED) else gpu or "")


def spec_of_fingerprint(fingerprint: Fingerprint) -> DeviceSpec | None:
    """Figures of the device of an evaluation."""
    return device_spec(fingerprint.device, fingerprint.gpu)


def device_peaks(spec: DeviceSpec) -> DevicePeaks:
    return DevicePeaks.of(
        spec,
        device=spec.title,
        tf32_tensor_flops_per_s=spec.tf32_tensor_tflops * 1e12,
        fp16_tensor_flops_per_s=spec.fp16_tensor_tflops * 1e12,
        ridge=spec.ridge_flop_per_byte,
    )


def floor_us(compulsory_bytes: float | None, spec: DeviceSpec | None, host_bytes: float = 0.0) -> float | None:
    """Least time of a task in µs: its compulsory bytes at peak bandwidth, or those of host memory at the raw rate of
    the host link where that takes longer. None where bytes or device are unknown.

    Caches are ignored, so a task whose tensors fit in the L2 may correctly be faster. Plausibility of measured times is
    decided in :mod:`kernelforge.evaluation.timing.plausibility`.
    """
    if compulsory_bytes is None or spec is None:
        return None
    return physical_floor_us(
        int(compulsory_bytes),
        spec.dram_bandwidth_gbps,
        host_bytes=int(host_bytes),
        host_link_gbps=spec.host_link_raw_gbps,
    )


def roofline_point(attempt: Attempt | None) -> RooflinePoint | None:
    """Position of an attempt; None without a profile."""
    if attempt is None or attempt.profile is None:
        return None
    roofline, spec = attempt.profile.roofline, spec_of_fingerprint(attempt.evaluation.fingerprint)
    roofs = None if spec is None else device_peaks(spec)
    tensor_cores = uses_tensor_cores(attempt.profile)
    return RooflinePoint.of(
        roofline,
        attempt=attempt.id,
        flops_per_s=roofline.flops / (roofline.time_us * 1e-6) if roofline.time_us > 0 else 0.0,
        tensor_cores=tensor_cores,
        ceiling_us=None if roofs is None else _ceiling(roofline, roofs, tensor_cores),
        roofs=roofs,
    )


def uses_tensor_cores(profile: Profile) -> bool:
    """Whether a tensor core counter is above 0: PTX instructions, or the pipe's share of the cycles."""
    return profile.roofline.bound == "tensor" or any(profile.value(name) for name in TENSOR_METRICS)


def _ceiling(roofline: Roofline, roofs: DevicePeaks, tensor_cores: bool) -> float:
    by_memory = roofline.dram_bytes / (roofs.dram_bandwidth_gbps * 1e3)
    return max(by_memory, roofline.flops / roofs.flops_per_s(tensor_cores=tensor_cores) * 1e6)
