"""Estimated energy of launches: their operations and bytes, times published energies of each. Never measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kernelforge.hardware.specs import DeviceSpec
from kernelforge.profiling.counts import SECTOR_BYTES, KernelCounts, PlanCounts, by_class
from kernelforge.records import EnergyEstimate, EnergyPart

HOROWITZ: Final = "Horowitz, ISSCC 2014, at 45 nm"
DRAM_PAPER: Final = "O'Connor et al., MICRO 2017"
AT_7_NM: Final = "Jouppi et al., ISCA 2021, table 2, at 7 nm"
ON_A100: Final = "Antepara et al., SC 2025, measured on an A100 with its controllers and wires"


@dataclass(frozen=True)
class UnitEnergy:
    """Published energies of one operation or byte, in picojoules.

    ``low`` and ``high`` are the least and the most of the sources; a GPU made at 4 nm may need less than ``low``. All
    were read in public notes that quote these papers.
    """

    picojoules: float
    low: float
    high: float
    source: str


HBM_BYTE = UnitEnergy(
    8 * 3.97, 250 / 8, 8 * 13.11,
    f"{DRAM_PAPER}: HBM2, 3.97 pJ a bit; low: {AT_7_NM}, HBM2, 250 pJ for 64 bits; high: {ON_A100}",
)  # fmt: skip
GDDR_BYTE = UnitEnergy(
    8 * 14.0, 350 / 8, 8 * 14.0, f"{DRAM_PAPER}: GDDR5, 14 pJ a bit; low: {AT_7_NM}, GDDR6, 350 pJ for 64 bits"
)
L2_BYTE = UnitEnergy(
    100 / 8, 14 / 8, 8 * 4.71, f"{HOROWITZ}: 64 bits of a cache of 1 MB, 100 pJ; low: {AT_7_NM}, 14 pJ; high: {ON_A100}"
)
SHARED_BYTE = UnitEnergy(
    10 / 8, 7.5 / 8, 8 * 1.59, f"{HOROWITZ}: 64 bits of a cache of 8 kB, 10 pJ; low: {AT_7_NM}, 7.5 pJ; high: {ON_A100}"
)
FP32_FMA = UnitEnergy(
    3.7 + 0.9, 1.31 + 0.38, 3.7 + 0.9, f"{HOROWITZ}: a product and an addition, 3.7 and 0.9 pJ; low: {AT_7_NM}"
)
INTEGER = UnitEnergy(0.1, 0.03, 0.1, f"{HOROWITZ}: an addition of 32 bits, 0.1 pJ; low: {AT_7_NM}")
HALF_FMA = UnitEnergy(
    1.1 + 0.9, 0.34 + 0.38, 1.1 + 0.9, f"{HOROWITZ}: a product of 16 bits, a sum of 32, 1.1 and 0.9 pJ; low: {AT_7_NM}"
)
BYTE_FMA = UnitEnergy(
    0.2 + 0.1, 0.07 + 0.03, 0.2 + 0.1,
    f"{HOROWITZ}: a product of 8 bits, a sum of 32, 0.2 and 0.1 pJ; low: {AT_7_NM}",
)  # fmt: skip

_MATRIX: Final = {"f16": HALF_FMA, "bf16": HALF_FMA, "s8": BYTE_FMA, "u8": BYTE_FMA}
"""By the type of A. A product of bfloat16 is at most that of float16, whose significand is longer."""
_WITH_HBM: Final = frozenset(((7, 0), (8, 0), (9, 0), (10, 0), (10, 3)))
"""Compute capabilities of GPUs with HBM; the others have GDDR."""
_UNPUBLISHED: Final = ("fp64", "fp16", "special")
"""Classes of arithmetic instructions of which no source has an energy."""


def estimate_energy(spec: DeviceSpec, counts: PlanCounts) -> EnergyEstimate:
    """Estimate the energy of one run of a plan, by its parts ``dram l2 shared fp32 int`` and ``tensor``.

    It is that of moving bytes and of arithmetic alone: instructions, leakage and clocks, which take most of a GPU's
    power, are in none of the sources. It compares kernels of one GPU, and is no bill.
    """
    kernels = counts.kernels
    threads = [by_class({name: (lanes, lanes) for name, (_, lanes) in kernel.mix.items()}) for kernel in kernels]
    sectors = sum(kernel.l2_read_sectors + kernel.l2_write_sectors for kernel in kernels)
    work: list[tuple[str, float, UnitEnergy]] = [
        (
            "dram",
            counts.memset_bytes + sum(kernel.dram_bytes for kernel in kernels),
            HBM_BYTE if spec.compute_capability in _WITH_HBM else GDDR_BYTE,
        ),
        ("l2", sectors * SECTOR_BYTES, L2_BYTE),
        ("shared", sum(_shared_bytes(kernel) for kernel in kernels), SHARED_BYTE),
        ("fp32", sum(of_class["fp32"] for of_class in threads), FP32_FMA),
        ("int", sum(of_class["int"] for of_class in threads), INTEGER),
    ]
    omitted = [name for name in _UNPUBLISHED if any(of_class[name] for of_class in threads)]
    for kind, operations in sorted(_matrix_operations(kernels).items()):
        unit = _MATRIX.get(kind)
        if unit is None:
            omitted.append(f"tensor {kind}")
        else:
            work.append((f"tensor {kind}", operations / 2, unit))
    return EnergyEstimate(parts=tuple(_part(*item) for item in work), omitted=tuple(omitted))


def _shared_bytes(kernel: KernelCounts) -> float:
    """Bytes of shared memory that threads read or write, and those that matrix products read there themselves."""
    served = sum(op.threads * op.bytes_per_thread for op in kernel.select("shared"))
    return served + sum(read for _, read in kernel.matrix.values())


def _matrix_operations(kernels: Iterable[KernelCounts]) -> dict[str, float]:
    """Operations of matrix products by the type of A, two per multiply-add."""
    totals: dict[str, float] = {}
    for kernel in kernels:
        for kind, (operations, _) in kernel.matrix.items():
            name = kind.partition(".")[0]
            totals[name] = totals.get(name, 0.0) + operations
    return totals


def _part(name: str, amount: float, unit: UnitEnergy) -> EnergyPart:
    return EnergyPart(
        name=name,
        millijoules=amount * unit.picojoules * 1e-9,
        low_mj=amount * unit.low * 1e-9,
        high_mj=amount * unit.high * 1e-9,
        source=unit.source,
    )
