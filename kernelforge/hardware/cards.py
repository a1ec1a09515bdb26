"""Figures of single GPUs, each with its source.

Sizes, clocks, bandwidths and peaks are published by NVIDIA, or follow from published ones as their source says; what
only the driver tells (SMs or L2 of some) is named as a device attribute. Nothing here was measured by this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelforge.hardware.generations import A100_WHITEPAPER, H100_WHITEPAPER, RRZE, Figure

_H100_SHEET = "NVIDIA H100 datasheet"
_H100_H200_SHEETS = "NVIDIA H100 and H200 datasheets"


@dataclass(frozen=True)
class Card:
    """One GPU as it is sold."""

    key: str
    """``rtx-4090`` in ``emulated:rtx-4090``."""
    title: str
    names: tuple[str, ...]
    """Names that the driver reports for it."""
    compute_capability: tuple[int, int]
    sm_count: int
    max_clock_mhz: int
    dram_gb: float
    dram_bandwidth_gbps: float
    l2_mib: float
    fp16_tensor_tflops: float
    """Dense, with FP32 accumulation."""
    tf32_tensor_tflops: float
    """Dense; 0 where the tensor cores have no TF32."""
    source: str
    """Of every figure above that :attr:`sources` does not name."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    dram_sustained_gbps: Figure | None = None
    """Where this very card was measured, or estimated otherwise than by its generation."""
    l2_bandwidth_gbps: Figure | None = None


def _tensor_tflops(sm_count: int, max_clock_mhz: int, flops_per_cycle_per_sm: int) -> float:
    return sm_count * max_clock_mhz * flops_per_cycle_per_sm * 1e-6


_NO_TF32 = "the tensor cores of Volta and Turing have no TF32"
_HOPPER_CLOCK = _H100_H200_SHEETS + ": 67 TFLOPS of FP32 = 132 SMs x 128 lanes x 2 x 1.98 GHz"
_SXM_TENSOR = {
    "tf32_tensor_tflops": _H100_H200_SHEETS + " (SXM): 989 TFLOPS with sparsity, half of it without",
    "fp16_tensor_tflops": _H100_H200_SHEETS + " (SXM): 1,979 TFLOPS with sparsity, half of it without",
}
_SIX_STACKS = "estimate: " + H100_WHITEPAPER + ": 60 MB with all twelve memory controllers of the die, which {} uses"

_DATA_CENTER = (
    Card(
        key="h100",
        title="NVIDIA H100 SXM5 80 GB",
        names=("NVIDIA H100 80GB HBM3",),
        compute_capability=(9, 0),
        sm_count=132,
        max_clock_mhz=1980,
        dram_gb=80,
        dram_bandwidth_gbps=3350.0,
        l2_mib=50,
        fp16_tensor_tflops=989.4,
        tf32_tensor_tflops=494.7,
        source=_H100_SHEET + " (SXM)",
        sources={
            "sm_count": H100_WHITEPAPER + " (SXM5)",
            "max_clock_mhz": _HOPPER_CLOCK,
            "l2_bytes": H100_WHITEPAPER,
            **_SXM_TENSOR,
        },
        dram_sustained_gbps=Figure(
            2850.0, "estimate: 85 % of peak, between the A100's and the H200's share in " + RRZE
        ),
        l2_bandwidth_gbps=Figure(9000.0, "estimate: 6900 GB/s of the H100 PCIe in " + RRZE + ", by SMs and clock"),
    ),
    Card(
        key="h200",
        title="NVIDIA H200 SXM 141 GB",
        names=("NVIDIA H200",),
        compute_capability=(9, 0),
        sm_count=132,
        max_clock_mhz=1980,
        dram_gb=141,
        dram_bandwidth_gbps=4800.0,
        l2_mib=60,
        fp16_tensor_tflops=989.4,
        tf32_tensor_tflops=494.7,
        source="NVIDIA H200 datasheet (SXM)",
        sources={
            "sm_count": H100_WHITEPAPER + " (SXM5)",
            "max_clock_mhz": _HOPPER_CLOCK,
            "l2_bytes": _SIX_STACKS.format("the H200"),
            **_SXM_TENSOR,
        },
        dram_sustained_gbps=Figure(3900.0, f"estimate: {RRZE}, gpu-l2-cache, H200, data over 100 MB"),
        l2_bandwidth_gbps=Figure(9700.0, f"estimate: {RRZE}, gpu-l2-cache, H200, data under 40 MB"),
    ),
    Card(
        key="a100",
        title="NVIDIA A100 SXM4 80 GB",
        names=("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM-80GB"),
        compute_capability=(8, 0),
        sm_count=108,
        max_clock_mhz=1410,
        dram_gb=80,
        dram_bandwidth_gbps=2039.0,
        l2_mib=40,
        fp16_tensor_tflops=312.0,
        tf32_tensor_tflops=156.0,
        source="NVIDIA A100 80 GB datasheet (SXM), tensor cores without sparsity",
        sources={
            "sm_count": A100_WHITEPAPER,
            "max_clock_mhz": A100_WHITEPAPER + ": boost clock",
            "l2_bytes": A100_WHITEPAPER,
        },
        dram_sustained_gbps=Figure(1750.0, f"estimate: {RRZE}, gpu-l2-cache, A100 80 GB, data over 500 MB"),
        l2_bandwidth_gbps=Figure(5400.0, f"estimate: {RRZE}, gpu-l2-cache, A100 80 GB, data under 25 MB"),
    ),
    Card(
        key="a100-40gb",
        title="NVIDIA A100 40 GB (SXM4 or PCIe)",
        names=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        compute_capability=(8, 0),
        sm_count=108,
        max_clock_mhz=1410,
        dram_gb=40,
        dram_bandwidth_gbps=1555.0,
        l2_mib=40,
        fp16_tensor_tflops=312.0,
        tf32_tensor_tflops=156.0,
        source=A100_WHITEPAPER + " (40 GB), tensor cores without sparsity",
        dram_sustained_gbps=Figure(1490.0, f"estimate: {RRZE}, gpu-stream read, A100 40 GB"),
    ),
    Card(
        key="a100-pcie",
        title="NVIDIA A100 PCIe 80 GB",
        names=("NVIDIA A100 80GB PCIe",),
        compute_capability=(8, 0),
        sm_count=108,
        max_clock_mhz=1410,
        dram_gb=80,
        dram_bandwidth_gbps=1935.0,
        l2_mib=40,
        fp16_tensor_tflops=312.0,
        tf32_tensor_tflops=156.0,
        source="NVIDIA A100 80 GB datasheet (PCIe), tensor cores without sparsity",
        sources={
            "sm_count": A100_WHITEPAPER,
            "max_clock_mhz": A100_WHITEPAPER + ": boost clock",
            "l2_bytes": A100_WHITEPAPER,
        },
    ),
    Card(
        key="h100-pcie",
        title="NVIDIA H100 PCIe 80 GB",
        names=("NVIDIA H100 PCIe",),
        compute_capability=(9, 0),
        sm_count=114,
        max_clock_mhz=1755,
        dram_gb=80,
        dram_bandwidth_gbps=2039.0,
        l2_mib=50,
        fp16_tensor_tflops=756.5,
        tf32_tensor_tflops=378.0,
        source=_H100_SHEET + " (PCIe)",
        sources={
            "sm_count": H100_WHITEPAPER + " (PCIe)",
            "max_clock_mhz": _H100_SHEET + " (PCIe): 51 TFLOPS of FP32 = 114 SMs x 128 lanes x 2 x 1.755 GHz",
            "dram_bandwidth_gbps": _H100_SHEET + " (PCIe): 2 TB/s = 5,120 bits x 1,593 MHz x 2",
            "l2_bytes": H100_WHITEPAPER,
            "tf32_tensor_tflops": _H100_SHEET + " (PCIe): 756 TFLOPS with sparsity, half of it without",
            "fp16_tensor_tflops": _H100_SHEET + " (PCIe): 1,513 TFLOPS with sparsity, half of it without",
        },
        dram_sustained_gbps=Figure(1940.0, f"estimate: {RRZE}, gpu-stream read, H100 PCIe"),
        l2_bandwidth_gbps=Figure(6900.0, f"estimate: {RRZE}, gpu-l2-cache, H100 PCIe, data under 30 MB"),
    ),
    Card(
        key="h100-nvl",
        title="NVIDIA H100 NVL 94 GB",
        names=("NVIDIA H100 NVL",),
        compute_capability=(9, 0),
        sm_count=132,
        max_clock_mhz=1785,
        dram_gb=94,
        dram_bandwidth_gbps=3938.0,
        l2_mib=60,
        fp16_tensor_tflops=835.5,
        tf32_tensor_tflops=417.5,
        source=_H100_SHEET + " (NVL)",
        sources={
            "max_clock_mhz": _H100_SHEET + " (NVL): 60 TFLOPS of FP32 = 132 SMs x 128 lanes x 2 x 1.785 GHz",
            "dram_bandwidth_gbps": _H100_SHEET + " (NVL): 3.9 TB/s = 6,144 bits x 2,563 MHz x 2",
            "l2_bytes": _SIX_STACKS.format("the H100 NVL"),
            "tf32_tensor_tflops": _H100_SHEET + " (NVL): 835 TFLOPS with sparsity, half of it without",
            "fp16_tensor_tflops": _H100_SHEET + " (NVL): 1,671 TFLOPS with sparsity, half of it without",
        },
    ),
    Card(
        key="gh200",
        title="NVIDIA GH200 96 GB",
        names=("NVIDIA GH200 480GB",),
        compute_capability=(9, 0),
        sm_count=132,
        max_clock_mhz=1980,
        dram_gb=96,
        dram_bandwidth_gbps=4023.0,
        l2_mib=60,
        fp16_tensor_tflops=989.4,
        tf32_tensor_tflops=494.7,
        source="NVIDIA GH200 Grace Hopper Superchip datasheet (96 GB of HBM3; 480 GB are the CPU's)",
        sources={
            "max_clock_mhz": _HOPPER_CLOCK,
            "dram_bandwidth_gbps": "NVIDIA GH200 datasheet: 4 TB/s = 6,144 bits x 2,619 MHz x 2",
            "l2_bytes": "device attribute of a GH200 480GB: 60 MiB",
            **_SXM_TENSOR,
        },
    ),
    Card(
        key="b200",
        title="NVIDIA B200 180 GB",
        names=("NVIDIA B200",),
        compute_capability=(10, 0),
        sm_count=148,
        max_clock_mhz=1965,
        dram_gb=180,
        dram_bandwidth_gbps=7700.0,
        l2_mib=126,
        fp16_tensor_tflops=2250.0,
        tf32_tensor_tflops=1100.0,
        source="NVIDIA Blackwell datasheet (HGX B200, one GPU), tensor cores at half of the peaks with sparsity",
        sources={
            "sm_count": "device attribute of a B200: 148",
            "max_clock_mhz": "NVIDIA Blackwell datasheet: 75 TFLOPS of FP32 = 148 SMs x 128 lanes x 2 x 1.965 GHz",
            "l2_bytes": "device attribute of a B200: 126 MiB",
        },
    ),
    Card(
        key="gb200",
        title="NVIDIA GB200 186 GB",
        names=("NVIDIA GB200",),
        compute_capability=(10, 0),
        sm_count=152,
        max_clock_mhz=2062,
        dram_gb=186,
        dram_bandwidth_gbps=8000.0,
        l2_mib=126,
        fp16_tensor_tflops=2500.0,
        tf32_tensor_tflops=1250.0,
        source="NVIDIA Blackwell datasheet (GB200 NVL72, one GPU), tensor cores at half of the peaks with sparsity",
        sources={
            "sm_count": "device attribute of a GB200: 152",
            "max_clock_mhz": "NVIDIA Blackwell datasheet: 80 TFLOPS of FP32 = 152 SMs x 128 lanes x 2 x 2.06 GHz",
            "l2_bytes": "estimate: as on the B200, which is the same die",
        },
    ),
    Card(
        key="v100",
        title="NVIDIA V100 SXM2",
        names=("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"),
        compute_capability=(7, 0),
        sm_count=80,
        max_clock_mhz=1530,
        dram_gb=16,
        dram_bandwidth_gbps=900.0,
        l2_mib=6,
        fp16_tensor_tflops=125.0,
        tf32_tensor_tflops=0.0,
        source="NVIDIA Tesla V100 GPU Architecture whitepaper (SXM2; 16 GB, there is one of 32 GB)",
        sources={"tf32_tensor_tflops": _NO_TF32},
    ),
    Card(
        key="v100-pcie",
        title="NVIDIA V100 PCIe",
        names=("Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"),
        compute_capability=(7, 0),
        sm_count=80,
        max_clock_mhz=1380,
        dram_gb=16,
        dram_bandwidth_gbps=900.0,
        l2_mib=6,
        fp16_tensor_tflops=112.0,
        tf32_tensor_tflops=0.0,
        source="NVIDIA V100 datasheet (PCIe; 16 GB, there is one of 32 GB)",
        sources={
            "max_clock_mhz": "NVIDIA V100 datasheet (PCIe): 14 TFLOPS of FP32 = 80 SMs x 64 lanes x 2 x 1.38 GHz",
            "tf32_tensor_tflops": _NO_TF32,
        },
    ),
    Card(
        key="t4",
        title="NVIDIA T4 16 GB",
        names=("Tesla T4",),
        compute_capability=(7, 5),
        sm_count=40,
        max_clock_mhz=1590,
        dram_gb=16,
        dram_bandwidth_gbps=320.0,
        l2_mib=4,
        fp16_tensor_tflops=65.0,
        tf32_tensor_tflops=0.0,
        source="NVIDIA Turing GPU Architecture whitepaper (Tesla T4)",
        sources={
            "dram_bandwidth_gbps": "NVIDIA T4 datasheet: 256 bits x 10 Gbit/s",
            "tf32_tensor_tflops": _NO_TF32,
        },
    ),
)


def _by_clock(
    name: str,
    compute_capability: tuple[int, int],
    *,
    sms: int,
    mhz: int,
    gb: int,
    bus_bits: int,
    gbit_per_pin: float,
    l2_mib: float,
    fp16_flops_per_cycle_per_sm: int = 1024,
    source: str,
    l2_source: str = "",
) -> Card:
    """A card with GDDR6 whose peaks follow from its clock: those of TF32 are half of those of FP16."""
    per_cycle = fp16_flops_per_cycle_per_sm
    derived = f"{source}: SMs x {{}} operations per cycle x boost clock"
    return Card(
        key=name.removeprefix("GeForce ").lower().replace(" ", "-"),
        title=f"NVIDIA {name} {gb} GB",
        names=(f"NVIDIA {name}",),
        compute_capability=compute_capability,
        sm_count=sms,
        max_clock_mhz=mhz,
        dram_gb=gb,
        dram_bandwidth_gbps=bus_bits * gbit_per_pin / 8,
        l2_mib=l2_mib,
        fp16_tensor_tflops=_tensor_tflops(sms, mhz, per_cycle),
        tf32_tensor_tflops=_tensor_tflops(sms, mhz, per_cycle // 2),
        source=source,
        sources={
            "l2_bytes": l2_source or source,
            "dram_bandwidth_gbps": f"{source}: {bus_bits} bits x {gbit_per_pin:g} Gbit/s",
            "fp16_tensor_tflops": derived.format(per_cycle),
            "tf32_tensor_tflops": derived.format(per_cycle // 2),
        },
    )


_AMPERE, _ADA, _BLACKWELL = (8, 6), (8, 9), (12, 0)

_PROFESSIONAL = (
    _by_clock(
        "A10", _AMPERE, sms=72, mhz=1695, gb=24, bus_bits=384, gbit_per_pin=12.5, l2_mib=6,
        source="NVIDIA A10 datasheet",
    ),
    _by_clock(
        "A10G", _AMPERE, sms=80, mhz=1710, gb=24, bus_bits=384, gbit_per_pin=12.5, l2_mib=6,
        fp16_flops_per_cycle_per_sm=512,
        source="NVIDIA A10G datasheet (70 TFLOPS of FP16), SMs, clock and L2 by the attributes of the device",
    ),
    _by_clock(
        "RTX A6000", _AMPERE, sms=84, mhz=1800, gb=48, bus_bits=384, gbit_per_pin=16, l2_mib=6,
        source="NVIDIA Ampere GA102 GPU Architecture whitepaper (RTX A6000)",
    ),
    _by_clock(
        "L4", _ADA, sms=58, mhz=2040, gb=24, bus_bits=192, gbit_per_pin=12.5, l2_mib=48,
        source="NVIDIA L4 datasheet, SMs, clock and L2 by the attributes of the device",
    ),
    _by_clock(
        "L20", _ADA, sms=92, mhz=2520, gb=48, bus_bits=384, gbit_per_pin=18, l2_mib=96,
        fp16_flops_per_cycle_per_sm=512,
        source="NVIDIA L20 datasheet (119.5 TFLOPS of FP16)",
    ),
    _by_clock(
        "L40S", _ADA, sms=142, mhz=2520, gb=48, bus_bits=384, gbit_per_pin=18, l2_mib=96,
        source="NVIDIA L40S datasheet",
    ),
)  # fmt: skip

_GEFORCE_SOURCES = {
    _AMPERE: "NVIDIA Ampere GA102 GPU Architecture whitepaper and GeForce RTX 30 specifications",
    _ADA: "NVIDIA Ada GPU Architecture whitepaper and GeForce RTX 40 specifications",
    _BLACKWELL: "NVIDIA RTX Blackwell GPU Architecture whitepaper and GeForce RTX 50 specifications",
}


class _GeForce(NamedTuple):
    """GeForce cards: FP16 with FP32 accumulation runs at half the rate of FP16 accumulation."""

    name: str
    sms: int
    mhz: int
    """Boost clock of NVIDIA's specification; cards of other makers may run faster."""
    gb: int
    bus_bits: int
    gbit_per_pin: float
    l2_mib: float
    l2_source: str = ""
    """Where it is another than the card's."""


_GEFORCES: Mapping[tuple[int, int], tuple[_GeForce, ...]] = {
    _AMPERE: (
        _GeForce("RTX 3060", 28, 1777, 12, 192, 15, 2.25, "device attribute of an RTX 3060: 2.25 MiB"),
        _GeForce("RTX 3060 Ti", 38, 1665, 8, 256, 14, 3, "device attribute of an RTX 3060 Ti: 3 MiB"),
        _GeForce("RTX 3070", 46, 1725, 8, 256, 14, 4),
        _GeForce("RTX 3070 Ti", 48, 1770, 8, 256, 19, 4),
        _GeForce("RTX 3080", 68, 1710, 10, 320, 19, 5),
        _GeForce("RTX 3080 Ti", 80, 1665, 12, 384, 19, 6),
        _GeForce("RTX 3090", 82, 1695, 24, 384, 19.5, 6),
        _GeForce("RTX 3090 Ti", 84, 1860, 24, 384, 21, 6),
    ),
    _ADA: (
        _GeForce("RTX 4060", 24, 2460, 8, 128, 17, 24),
        _GeForce("RTX 4060 Ti", 34, 2535, 8, 128, 18, 32),
        _GeForce("RTX 4070", 46, 2475, 12, 192, 21, 36),
        _GeForce("RTX 4070 SUPER", 56, 2475, 12, 192, 21, 48),
        _GeForce("RTX 4070 Ti", 60, 2610, 12, 192, 21, 48),
        _GeForce("RTX 4070 Ti SUPER", 66, 2610, 16, 256, 21, 48, "device attribute of an RTX 4070 Ti SUPER: 48 MiB"),
        _GeForce("RTX 4080", 76, 2505, 16, 256, 22.4, 64),
        _GeForce("RTX 4080 SUPER", 80, 2550, 16, 256, 23, 64),
        _GeForce("RTX 4090", 128, 2520, 24, 384, 21, 72),
    ),
    _BLACKWELL: (
        _GeForce("RTX 5060", 30, 2497, 8, 128, 28, 24, "device attribute of an RTX 5060: 24 MiB"),
        _GeForce("RTX 5060 Ti", 36, 2572, 16, 128, 28, 32),
        _GeForce("RTX 5070", 48, 2512, 12, 192, 28, 48),
        _GeForce("RTX 5070 Ti", 70, 2452, 16, 256, 28, 48),
        _GeForce("RTX 5080", 84, 2617, 16, 256, 30, 64),
        _GeForce("RTX 5090", 170, 2407, 32, 512, 28, 96),
    ),
}


def _geforces() -> Iterator[Card]:
    for capability, cards in _GEFORCES.items():
        for card in cards:
            yield _by_clock(
                f"GeForce {card.name}", capability, sms=card.sms, mhz=card.mhz, gb=card.gb, bus_bits=card.bus_bits,
                gbit_per_pin=card.gbit_per_pin, l2_mib=card.l2_mib, fp16_flops_per_cycle_per_sm=512,
                source=_GEFORCE_SOURCES[capability], l2_source=card.l2_source,
            )  # fmt: skip


CARDS: tuple[Card, ...] = (*_DATA_CENTER, *_PROFESSIONAL, *_geforces())
"""Every card, the default first."""
