"""A diagnosis names the fault that was planted, from counters of the real compiler and the emulated device."""

from __future__ import annotations

import pytest
from faulty_kernels import FAULTY, SOUND, Faulty, profiled

from kernelforge.agents.bottlenecks import Bottleneck
from kernelforge.agents.diagnosis import Diagnosis, diagnose
from kernelforge.compile import Compiler
from kernelforge.records import KernelProfile, Metric, Origin, Profile, Roofline


def diagnosed(case: Faulty, compiler: Compiler) -> tuple[Diagnosis, ...]:
    profile, build, facts = profiled(case, compiler)
    return diagnose(profile, build, facts)


@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_the_planted_fault_is_named_first(case: Faulty, compiler: Compiler) -> None:
    found = diagnosed(case, compiler)
    assert found[0].bottleneck is case.expected, [(one.bottleneck.value, round(one.share, 3)) for one in found]
    assert found[0].curable
    assert any(character.isdigit() for character in found[0].evidence)


def test_a_kernel_at_the_floor_has_no_fault(compiler: Compiler) -> None:
    found = diagnosed(SOUND, compiler)
    assert not any(one.curable for one in found)
    assert found[0].bottleneck is SOUND.expected
    assert "1.00x the compulsory bytes" in found[0].evidence


def test_the_rest_is_ranked_by_what_it_costs(compiler: Compiler) -> None:
    found = diagnosed(next(case for case in FAULTY if case.name == "dynamic local array"), compiler)
    curable = [one for one in found if one.curable]
    assert [one.share for one in curable] == sorted((one.share for one in curable), reverse=True)
    assert len({one.bottleneck for one in found}) == len(found)
    assert all(0 < one.share <= 1 for one in found)
    assert not found[-1].curable


def test_every_metric_that_a_diagnosis_names_is_in_the_profile(compiler: Compiler) -> None:
    for name in ("unpadded tile", "an atomic per element", "a barrier at every step", "odd lanes work more"):
        profile, build, facts = profiled(next(case for case in FAULTY if case.name == name), compiler)
        first = diagnose(profile, build, facts)[0]
        assert profile.value(first.metrics[0].removeprefix("+")) is not None, name


def test_metrics_of_nsight_compute_are_enough_to_name_scattered_reads() -> None:
    names = {
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 3.2e7,
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 1e6,
        "lts__t_sectors.sum": 3.2e7,
        "dram__bytes.sum": 2.56e8,
        "smsp__inst_executed.sum": 2e7,
        "gpu__time_duration.sum": 4e5,
        "launch__grid_size": 4096.0,
    }
    metrics = tuple(Metric(name=n, value=v, unit="1", origin=Origin.MEASURED) for n, v in names.items())
    kernel = KernelProfile(kernel="k", launches=1, grid=(4096, 1, 1), block=(256, 1, 1), sampled=1, metrics=metrics)
    roofline = Roofline(
        flops=0, dram_bytes=2.56e8, compulsory_bytes=2.56e8, arithmetic_intensity=0, ridge=20, bound="dram",
        time_us=400, time_origin=Origin.MEASURED,
    )  # fmt: skip
    profile = Profile(size="full", device="cuda:0", kernels=(kernel,), metrics=metrics, roofline=roofline)
    assert diagnose(profile)[0].bottleneck is Bottleneck.UNCOALESCED


def test_a_plan_that_launches_nothing_has_nothing_to_say() -> None:
    roofline = Roofline(
        flops=0, dram_bytes=0, compulsory_bytes=0, arithmetic_intensity=0, ridge=20, bound="launch", time_us=2,
        time_origin=Origin.MODELLED,
    )  # fmt: skip
    profile = Profile(size="full", device="emulated:h100", kernels=(), metrics=(), roofline=roofline)
    assert diagnose(profile) == ()
