"""Facts of a GPU for a Coder and a profile, with and without known public figures."""

from dataclasses import replace

import pytest

from kernelforge.devices.base import Capabilities
from kernelforge.devices.cuda.target import description, figures_note
from kernelforge.devices.cuda.worker.driver import GpuFacts
from kernelforge.hardware.specs import MULTIPROCESSORS
from tests.devices.cuda.software import FACTS

ALL = Capabilities(measures_time=True, checks_accesses=False, clusters=True, cooperative=True)
RTX_4090 = replace(
    FACTS, name="NVIDIA GeForce RTX 4090", compute_capability=(8, 9), sm_count=128, max_clock_mhz=2520,
    memory_clock_mhz=10501, memory_bus_bits=384,
)  # fmt: skip
LAPTOP = replace(RTX_4090, name="NVIDIA GeForce RTX 4090 Laptop GPU", sm_count=76, max_clock_mhz=2040)


def test_a_known_gpu_is_told_by_its_own_figures_alone() -> None:
    described = description("cuda:0", RTX_4090, 1 << 30, ALL)
    assert "modelled as" not in described
    assert described["fp32"] == "82.6 TFLOPS"
    assert figures_note(RTX_4090, launch_overhead=True) == ()


def test_an_unknown_gpu_is_told_with_the_one_whose_figures_stand_for_its_own() -> None:
    described = description("cuda:0", LAPTOP, 1 << 30, ALL)
    assert described["modelled as"] == "nearest known: NVIDIA GeForce RTX 4090 24 GB"
    assert described["multiprocessors"] == "76"
    (note,) = figures_note(LAPTOP, launch_overhead=True)
    assert note == (
        "Figures of another GPU than NVIDIA GeForce RTX 4090 Laptop GPU "
        "(nearest known: NVIDIA GeForce RTX 4090 24 GB): launch overhead."
    )


@pytest.mark.parametrize(("gpu", "notes"), [(LAPTOP, 1), (RTX_4090, 0)])
def test_a_bandwidth_that_the_driver_does_not_give_is_told_as_anothers(gpu: GpuFacts, notes: int) -> None:
    assert figures_note(gpu, launch_overhead=False) == ()
    silent = figures_note(replace(gpu, memory_clock_mhz=0), launch_overhead=False)
    assert [note.rpartition(": ")[2] for note in silent] == ["peak memory bandwidth (of the ridge)."] * notes


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_limits_of_every_known_compute_capability_are_told(capability: tuple[int, int]) -> None:
    sm = MULTIPROCESSORS[capability]
    described = description("cuda:0", replace(FACTS, compute_capability=capability), 1 << 30, ALL)
    assert described["blocks per multiprocessor"] == str(sm.blocks)
    assert described["L1 and shared memory per multiprocessor"] == f"{sm.unified_l1_kib} KiB"
    assert described["fp32"] == f"{2e6 * sm.fp32_lanes * 4 * 1000 / 1e12:.1f} TFLOPS"
