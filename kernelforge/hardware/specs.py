"""What the emulated devices stand for: public figures of three data-centre GPUs, each with its source.

A figure that NVIDIA does not publish is an estimate and its source says so. Nothing here was measured by us.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True)
class DeviceSpec:
    """One GPU. Units are in the names; :attr:`sources` says where each figure comes from."""

    key: str
    """Short name: ``h100`` in ``emulated:h100``."""
    title: str
    arch: str
    """Real architecture that kernels are compiled for: ``sm_90a``."""
    sm_count: int
    max_clock_mhz: int
    fp32_lanes_per_sm: int
    fp64_lanes_per_sm: int
    int32_lanes_per_sm: int
    tf32_tensor_tflops: float
    fp16_tensor_tflops: float
    """Peaks of the tensor cores for dense matrices, in 10^12 operations per second; BF16 is as fast as FP16."""
    special_lanes_per_sm: int
    """Lanes for reciprocals, square roots, exponentials, sines."""
    schedulers_per_sm: int
    """Warp schedulers, each issuing one warp instruction per cycle; also the register file's partitions."""
    dram_bytes: int
    dram_bandwidth_gbps: float
    """Peak, as on the datasheet."""
    dram_sustained_gbps: float
    """What a reading kernel attains in practice."""
    l2_bytes: int
    l2_bandwidth_gbps: float
    """Attained by a kernel whose data lies in the L2."""
    l2_to_sm_bytes_per_cycle: int
    l1_bytes_per_cycle: int
    """Data width of one SM's L1 and shared memory: one wavefront."""
    unified_l1_bytes_per_sm: int
    """L1 and shared memory together."""
    shared_carveouts_kib: tuple[int, ...]
    """Shares of :attr:`unified_l1_bytes_per_sm` that can be set aside for shared memory."""
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    """With the opt-in attribute."""
    shared_bytes_static: int
    """Without the opt-in attribute."""
    shared_reserved_bytes_per_block: int
    shared_allocation_bytes: int
    """Granularity of shared memory allocation."""
    registers_per_sm: int
    registers_per_block: int
    registers_per_thread: int
    register_allocation: int
    """Registers are given to a warp in multiples of this."""
    warps_per_sm: int
    blocks_per_sm: int
    threads_per_block: int
    warp_size: int
    l1_latency_cycles: int
    shared_latency_cycles: int
    l2_latency_cycles: int
    dram_latency_cycles: int
    launch_overhead_us: float
    """From the start of one small kernel to the start of the next in a CUDA graph."""
    sources: Mapping[str, str]
    """Source of each figure, by field name."""

    @property
    def threads_per_sm(self) -> int:
        return self.warps_per_sm * self.warp_size

    @property
    def clock_hz(self) -> float:
        return self.max_clock_mhz * 1e6

    @property
    def fp32_flops_per_s(self) -> float:
        """Peak of multiply-adds, each two operations."""
        return 2.0 * self.fp32_lanes_per_sm * self.sm_count * self.clock_hz

    @property
    def ridge_flop_per_byte(self) -> float:
        """Arithmetic intensity above which FP32 arithmetic binds before DRAM."""
        return self.fp32_flops_per_s / (self.dram_bandwidth_gbps * 1e9)


_GUIDE = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability"
_OCCUPANCY = "cuda_occupancy.h of the CUDA runtime headers"
_TUNING_9 = "NVIDIA Hopper Tuning Guide, Unified Shared Memory/L1/Texture Cache"
_TUNING_8 = "NVIDIA Ampere GPU Architecture Tuning Guide, Unified Shared Memory/L1/Texture Cache"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
_A100 = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_RRZE = "RRZE-HPC gpu-benches (github.com/te42kyfo/gpu-benches)"
_AMPERE_PAPER = "estimate: Abdelkhalik et al., Demystifying the NVIDIA Ampere Architecture (2022)"
_HOPPER_PAPER = "estimate: Luo et al., Benchmarking and Dissecting the NVIDIA Hopper GPU Architecture (2024)"

_SAME_LIMITS = {
    "schedulers_per_sm": _OCCUPANCY + ", sub-partitions",
    "special_lanes_per_sm": "CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions",
    "l2_to_sm_bytes_per_cycle": "estimate: one 64-byte return port per SM, as on Volta (Jia et al., 2018)",
    "l1_bytes_per_cycle": "CUDA C++ Programming Guide, Shared Memory: 32 banks of 4 bytes per cycle",
    "shared_carveouts_kib": _GUIDE,
    "shared_bytes_per_sm": _GUIDE,
    "shared_bytes_per_block": _GUIDE,
    "shared_bytes_static": _GUIDE,
    "shared_allocation_bytes": _OCCUPANCY,
    "registers_per_sm": _GUIDE,
    "registers_per_block": _GUIDE,
    "registers_per_thread": _GUIDE,
    "register_allocation": _OCCUPANCY,
    "warps_per_sm": _GUIDE,
    "blocks_per_sm": _GUIDE,
    "threads_per_block": _GUIDE,
    "warp_size": _GUIDE,
}

_HOPPER_SOURCES = _SAME_LIMITS | {
    "sm_count": _H100 + " (SXM5)",
    "max_clock_mhz": "NVIDIA H100 and H200 datasheets: 67 TFLOPS of FP32 = 132 SMs x 128 lanes x 2 x 1.98 GHz",
    "fp32_lanes_per_sm": _H100,
    "tf32_tensor_tflops": "NVIDIA H100 and H200 datasheets (SXM): 989 TFLOPS with sparsity, half of it without",
    "fp16_tensor_tflops": "NVIDIA H100 and H200 datasheets (SXM): 1,979 TFLOPS with sparsity, half of it without",
    "fp64_lanes_per_sm": _H100,
    "int32_lanes_per_sm": _H100,
    "unified_l1_bytes_per_sm": _TUNING_9,
    "shared_reserved_bytes_per_block": _TUNING_9,
    "l1_latency_cycles": _RRZE + ", gpu-latency, H100 PCIe",
    "shared_latency_cycles": _HOPPER_PAPER,
    "l2_latency_cycles": _RRZE + ", gpu-latency, H100 PCIe (near partition)",
    "dram_latency_cycles": _RRZE + ", gpu-latency, H100 PCIe",
    "launch_overhead_us": _RRZE + ", gpu-small-kernels, H200 in a graph: 64 kB at 29 GB/s",
}


def _hopper(
    key: str,
    title: str,
    dram_gb: float,
    dram_bandwidth_gbps: float,
    dram_sustained_gbps: float,
    l2_mib: int,
    l2_bandwidth_gbps: float,
    sources: dict[str, str],
) -> DeviceSpec:
    """H100 and H200 are one chip with different memories."""
    return DeviceSpec(
        key=key,
        title=title,
        arch="sm_90a",
        sm_count=132,
        max_clock_mhz=1980,
        fp32_lanes_per_sm=128,
        tf32_tensor_tflops=494.7,
        fp16_tensor_tflops=989.4,
        fp64_lanes_per_sm=64,
        int32_lanes_per_sm=64,
        special_lanes_per_sm=16,
        schedulers_per_sm=4,
        dram_bytes=int(dram_gb * 10**9),
        dram_bandwidth_gbps=dram_bandwidth_gbps,
        dram_sustained_gbps=dram_sustained_gbps,
        l2_bytes=l2_mib * MIB,
        l2_bandwidth_gbps=l2_bandwidth_gbps,
        l2_to_sm_bytes_per_cycle=64,
        l1_bytes_per_cycle=128,
        unified_l1_bytes_per_sm=256 * KIB,
        shared_carveouts_kib=(0, 8, 16, 32, 64, 100, 132, 164, 196, 228),
        shared_bytes_per_sm=228 * KIB,
        shared_bytes_per_block=227 * KIB,
        shared_bytes_static=48 * KIB,
        shared_reserved_bytes_per_block=1 * KIB,
        shared_allocation_bytes=128,
        registers_per_sm=64 * KIB,
        registers_per_block=64 * KIB,
        registers_per_thread=255,
        register_allocation=256,
        warps_per_sm=64,
        blocks_per_sm=32,
        threads_per_block=1024,
        warp_size=32,
        l1_latency_cycles=34,
        shared_latency_cycles=29,
        l2_latency_cycles=265,
        dram_latency_cycles=650,
        launch_overhead_us=2.3,
        sources=MappingProxyType(_HOPPER_SOURCES | sources),
    )


H100 = _hopper(
    "h100",
    "NVIDIA H100 SXM5 80 GB",
    dram_gb=80,
    dram_bandwidth_gbps=3350.0,
    dram_sustained_gbps=2850.0,
    l2_mib=50,
    l2_bandwidth_gbps=9000.0,
    sources={
        "dram_bytes": "NVIDIA H100 datasheet (SXM)",
        "dram_bandwidth_gbps": "NVIDIA H100 datasheet (SXM): 3.35 TB/s",
        "dram_sustained_gbps": "estimate: 85 % of peak, between the A100's and the H200's share in " + _RRZE,
        "l2_bytes": _H100,
        "l2_bandwidth_gbps": "estimate: 6900 GB/s of the H100 PCIe in " + _RRZE + ", by SMs and clock",
    },
)

H200 = _hopper(
    "h200",
    "NVIDIA H200 SXM 141 GB",
    dram_gb=141,
    dram_bandwidth_gbps=4800.0,
    dram_sustained_gbps=3900.0,
    l2_mib=60,
    l2_bandwidth_gbps=9700.0,
    sources={
        "dram_bytes": "NVIDIA H200 datasheet (SXM)",
        "dram_bandwidth_gbps": "NVIDIA H200 datasheet (SXM): 4.8 TB/s",
        "dram_sustained_gbps": "estimate: " + _RRZE + ", gpu-l2-cache, H200, data over 100 MB",
        "l2_bytes": "estimate: " + _H100 + ": 60 MB with all twelve memory controllers of the die, which the H200 uses",
        "l2_bandwidth_gbps": "estimate: " + _RRZE + ", gpu-l2-cache, H200, data under 40 MB",
    },
)

A100 = DeviceSpec(
    key="a100",
    title="NVIDIA A100 SXM4 80 GB",
    arch="sm_80",
    sm_count=108,
    max_clock_mhz=1410,
    fp32_lanes_per_sm=64,
    tf32_tensor_tflops=156.0,
    fp16_tensor_tflops=312.0,
    fp64_lanes_per_sm=32,
    int32_lanes_per_sm=64,
    special_lanes_per_sm=16,
    schedulers_per_sm=4,
    dram_bytes=80 * 10**9,
    dram_bandwidth_gbps=2039.0,
    dram_sustained_gbps=1750.0,
    l2_bytes=40 * MIB,
    l2_bandwidth_gbps=5400.0,
    l2_to_sm_bytes_per_cycle=64,
    l1_bytes_per_cycle=128,
    unified_l1_bytes_per_sm=192 * KIB,
    shared_carveouts_kib=(0, 8, 16, 32, 64, 100, 132, 164),
    shared_bytes_per_sm=164 * KIB,
    shared_bytes_per_block=163 * KIB,
    shared_bytes_static=48 * KIB,
    shared_reserved_bytes_per_block=1 * KIB,
    shared_allocation_bytes=128,
    registers_per_sm=64 * KIB,
    registers_per_block=64 * KIB,
    registers_per_thread=255,
    register_allocation=256,
    warps_per_sm=64,
    blocks_per_sm=32,
    threads_per_block=1024,
    warp_size=32,
    l1_latency_cycles=33,
    shared_latency_cycles=23,
    l2_latency_cycles=200,
    dram_latency_cycles=510,
    launch_overhead_us=1.4,
    sources=MappingProxyType(
        _SAME_LIMITS
        | {
            "sm_count": _A100,
            "max_clock_mhz": _A100 + ": boost clock",
            "fp32_lanes_per_sm": _A100,
            "tf32_tensor_tflops": "NVIDIA A100 80 GB datasheet (SXM), without sparsity",
            "fp16_tensor_tflops": "NVIDIA A100 80 GB datasheet (SXM), without sparsity",
            "fp64_lanes_per_sm": _A100,
            "int32_lanes_per_sm": _A100,
            "dram_bytes": "NVIDIA A100 80 GB datasheet (SXM)",
            "dram_bandwidth_gbps": "NVIDIA A100 80 GB datasheet (SXM): 2,039 GB/s",
            "dram_sustained_gbps": "estimate: " + _RRZE + ", gpu-l2-cache, A100 80 GB, data over 500 MB",
            "l2_bytes": _A100,
            "l2_bandwidth_gbps": "estimate: " + _RRZE + ", gpu-l2-cache, A100 80 GB, data under 25 MB",
            "unified_l1_bytes_per_sm": _TUNING_8,
            "shared_reserved_bytes_per_block": _TUNING_8,
            "l1_latency_cycles": _AMPERE_PAPER,
            "shared_latency_cycles": _AMPERE_PAPER,
            "l2_latency_cycles": _AMPERE_PAPER,
            "dram_latency_cycles": "estimate: the A100's L2 latency plus the H100's step from L2 to DRAM in seconds",
            "launch_overhead_us": _RRZE + ", gpu-small-kernels, A100 80 GB in a graph: 64 kB at 47 GB/s",
        }
    ),
)

SPECS: Mapping[str, DeviceSpec] = MappingProxyType({spec.key: spec for spec in (H100, H200, A100)})
"""By key, the default first."""


def nearest_spec(gpu_name: str, arch: str = "") -> DeviceSpec:
    """Figures of a GPU by its name (``NVIDIA H200``), else of one of its architecture, else those of the H100."""
    named = (spec for key, spec in SPECS.items() if key in gpu_name.lower())
    alike = (spec for spec in SPECS.values() if spec.arch == arch)
    return (*named, *alike, H100)[0]
