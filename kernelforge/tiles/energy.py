"""Estimated energy of launches: their operations and bytes, times published energies of each. Never measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, PlanCounts, by_class

HOROWITZ = "Horowitz, ISSCC 2014, at 45 nm"
DRAM_PAPER = "O'Connor et al., Fine-Grained DRAM, MICRO 2017, as quoted in public repositories"


@dataclass(frozen=True)
class UnitEnergy:
    """Energy of one operation or byte."""

    picojoules: float
    source: str


HBM_BYTE = UnitEnergy(8 * 3.97, f"{DRAM_PAPER}: HBM2, 3.97 pJ a bit")
GDDR_BYTE = UnitEnergy(8 * 14.0, f"{DRAM_PAPER}: GDDR5, 14 pJ a bit; newer ones need less")
L2_BYTE = UnitEnergy(100 / 8, f"not confirmed: {HOROWITZ}: 100 pJ for 64 bits of a cache of 1 MB")
SHARED_BYTE = UnitEnergy(10 / 8, f"{HOROWITZ}, as quoted in PMC8934428: 10 pJ for 64 bits of a cache of 8 kB")
FP32_FMA = UnitEnergy(3.7 + 0.9, f"{HOROWITZ}, as quoted in PMC8934428: 3.7 pJ a product, 0.9 pJ an addition")
INTEGER = UnitEnergy(0.1, f"{HOROWITZ}, as quoted in PMC8934428: 0.1 pJ an addition")

_WITH_HBM = frozenset(((7, 0), (8, 0), (9, 0), (10, 0), (10, 3)))
"""Compute capabilities of GPUs with HBM; the others have GDDR."""


def energy_mj(spec: DeviceSpec, counts: PlanCounts) -> Mapping[str, float]:
    """Energy of one run of a plan by its parts, in millijoules: ``dram l2 shared fp32 int``.

    It is that of moving bytes and of arithmetic alone: instructions, leakage and clocks, which take most of a GPU's
    power, are in none of the sources. It compares kernels of one GPU, and is no bill.
    """
    dram = HBM_BYTE if spec.compute_capability in _WITH_HBM else GDDR_BYTE
    parts = dict.fromkeys(("dram", "l2", "shared", "fp32", "int"), 0.0)
    parts["dram"] = counts.memset_bytes * dram.picojoules
    for kernel in counts.kernels:
        threads = by_class({name: (lanes, lanes) for name, (_, lanes) in kernel.mix.items()})
        parts["dram"] += kernel.dram_bytes * dram.picojoules
        parts["l2"] += (kernel.l2_read_sectors + kernel.l2_write_sectors) * SECTOR_BYTES * L2_BYTE.picojoules
        served = sum(op.threads * op.bytes_per_thread for op in kernel.select("shared"))
        parts["shared"] += served * SHARED_BYTE.picojoules
        parts["fp32"] += threads["fp32"] * FP32_FMA.picojoules
        parts["int"] += threads["int"] * INTEGER.picojoules
    return {name: picojoules * 1e-9 for name, picojoules in parts.items()}
