"""Estimated energies: work times what was published of each kind, by the memory of the card."""

from __future__ import annotations

import pytest

from kernelforge.hardware.specs import H100, SPECS
from kernelforge.profiling.counts import KernelCounts, MemoryCounts, PlanCounts
from kernelforge.tiles import energy_mj
from kernelforge.tiles.energy import FP32_FMA, GDDR_BYTE, HBM_BYTE, INTEGER, L2_BYTE, SHARED_BYTE

COUNTS = PlanCounts(
    [
        KernelCounts(
            "k", (1, 1, 1), (32, 1, 1), 0, 0, launches=1, blocks=1, blocks_run=1,
            dram_read_bytes=600.0, dram_write_bytes=400.0, l2_read_sectors=10.0, l2_write_sectors=20.0,
            mix={"fma.f32": (2.0, 64.0), "add.s32": (1.0, 31.0), "ld.global": (1.0, 32.0)},
            memory=[MemoryCounts(1, 1, "ld.shared", "shared", "load", 4, requests=1.0, threads=32.0)],
        )
    ],
    memsets=1,
    memset_bytes=500,
)  # fmt: skip


@pytest.mark.parametrize(("key", "byte"), [("h100", HBM_BYTE), ("a100", HBM_BYTE), ("rtx-4090", GDDR_BYTE)])
def test_each_part_is_work_times_its_published_energy(key: str, byte: object) -> None:
    picojoules = {name: millijoules * 1e9 for name, millijoules in energy_mj(SPECS[key], COUNTS).items()}
    assert picojoules == {
        "dram": pytest.approx(1500 * byte.picojoules),  # type: ignore[attr-defined]
        "l2": pytest.approx(30 * 32 * L2_BYTE.picojoules),
        "shared": pytest.approx(32 * 4 * SHARED_BYTE.picojoules),
        "fp32": pytest.approx(64 * FP32_FMA.picojoules),
        "int": pytest.approx(31 * INTEGER.picojoules),
    }


def test_every_energy_names_its_source() -> None:
    for unit in (HBM_BYTE, GDDR_BYTE, L2_BYTE, SHARED_BYTE, FP32_FMA, INTEGER):
        assert "Horowitz" in unit.source or "O'Connor" in unit.source
    assert sum(energy_mj(H100, PlanCounts([])).values()) == 0
