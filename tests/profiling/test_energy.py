"""Estimated energies: work times what was published of each kind, by the memory of the card."""

from __future__ import annotations

import pytest

from kernelforge.hardware.specs import H100, SPECS
from kernelforge.profiling.counts import KernelCounts, MemoryCounts, PlanCounts
from kernelforge.profiling.energy import (
    BYTE_FMA,
    FP32_FMA,
    GDDR_BYTE,
    HALF_FMA,
    HBM_BYTE,
    INTEGER,
    L2_BYTE,
    SHARED_BYTE,
    UnitEnergy,
    estimate_energy,
)
from kernelforge.records import EnergyPart

COUNTS = PlanCounts(
    [
        KernelCounts(
            "k", (1, 1, 1), (32, 1, 1), 0, 0, launches=1, blocks=1, blocks_run=1,
            dram_read_bytes=600.0, dram_write_bytes=400.0, l2_read_sectors=10.0, l2_write_sectors=20.0,
            mix={"fma.f32": (2.0, 64.0), "add.s32": (1.0, 31.0), "ld.global": (1.0, 32.0), "ex2.f32": (1.0, 8.0)},
            memory=[MemoryCounts(1, 1, "ld.shared", "shared", "load", 4, requests=1.0, threads=32.0)],
            matrix={
                "f16.f32": (400.0, 256.0), "f16.f16": (200.0, 0.0), "s8.s32": (80.0, 0.0), "e4m3.f32": (600.0, 0.0)
            },
        )
    ],
    memsets=1,
    memset_bytes=500,
)  # fmt: skip


@pytest.mark.parametrize(("key", "byte"), [("h100", HBM_BYTE), ("a100", HBM_BYTE), ("rtx-4090", GDDR_BYTE)])
def test_each_part_is_work_times_its_published_energy(key: str, byte: UnitEnergy) -> None:
    work = {
        "dram": (1500, byte),
        "l2": (30 * 32, L2_BYTE),
        "shared": (32 * 4 + 256, SHARED_BYTE),
        "fp32": (64, FP32_FMA),
        "int": (31, INTEGER),
        "tensor f16": (300, HALF_FMA),
        "tensor s8": (40, BYTE_FMA),
    }
    estimate = estimate_energy(SPECS[key], COUNTS)
    assert {part.name: 1e9 * part.millijoules for part in estimate.parts} == pytest.approx(
        {name: amount * unit.picojoules for name, (amount, unit) in work.items()}
    )
    assert estimate.millijoules == pytest.approx(1e-9 * sum(n * unit.picojoules for n, unit in work.values()))
    low, high = estimate.interval_mj
    assert low == pytest.approx(1e-9 * sum(amount * unit.low for amount, unit in work.values()))
    assert high == pytest.approx(1e-9 * sum(amount * unit.high for amount, unit in work.values()))


def test_arithmetic_without_a_published_energy_is_named() -> None:
    assert estimate_energy(H100, COUNTS).omitted == ("special", "tensor e4m3")
    nothing = estimate_energy(H100, PlanCounts([]))
    assert (nothing.millijoules, nothing.interval_mj, nothing.omitted) == (0.0, (0.0, 0.0), ())


def test_every_energy_names_its_source_and_lies_between_its_extremes() -> None:
    for unit in (HBM_BYTE, GDDR_BYTE, L2_BYTE, SHARED_BYTE, FP32_FMA, INTEGER, HALF_FMA, BYTE_FMA):
        assert "Horowitz" in unit.source or "O'Connor" in unit.source
        assert 0 < unit.low < unit.picojoules <= unit.high


def test_a_part_outside_of_its_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"dram: 3\.0 mJ is not from"):
        EnergyPart(name="dram", millijoules=3.0, low_mj=1.0, high_mj=2.0, source="a paper")
