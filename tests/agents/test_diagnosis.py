"""A diagnosis names the fault that was planted, from counters of the real compiler and the emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelforge.agents import JudgeRequest, prompts
from kernelforge.agents.diagnosis.diagnose import Diagnosis, diagnose
from kernelforge.agents.diagnosis.metrics import KernelMetrics
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.compile import Compiler
from kernelforge.hardware.specs import A100, H100, DeviceSpec
from kernelforge.profiling.counts import KernelCounts, PlanCounts, with_counts
from kernelforge.profiling.metrics import build_profile
from kernelforge.records import (
    DType,
    KernelProfile,
    LaunchQueue,
    Metric,
    Origin,
    Profile,
    Roofline,
    SassOpcode,
    SassProfile,
    TensorSpec,
)
from tests.agents.faulty_kernels import FAULTY, SOUND, Faulty, profiled
from tests.agents.prompt_samples import BRIEF, FAST, HISTORY
from tests.support.factories import sum_facts


def diagnosed(case: Faulty, compiler: Compiler) -> tuple[Diagnosis, ...]:
    profile, build, facts = profiled(case, compiler)
    return diagnose(profile, build, facts)


@pytest.mark.slow
@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_the_planted_fault_is_named_first(case: Faulty, compiler: Compiler) -> None:
    result = diagnosed(case, compiler)
    assert result[0].bottleneck is case.expected, [(item.bottleneck.value, round(item.share, 3)) for item in result]
    assert result[0].curable
    assert any(character.isdigit() for character in result[0].evidence)


@pytest.mark.slow
def test_a_kernel_at_the_floor_has_no_fault(compiler: Compiler) -> None:
    result = diagnosed(SOUND, compiler)
    assert not any(item.curable for item in result)
    assert result[0].bottleneck is SOUND.expected
    assert "1.00x the compulsory bytes" in result[0].evidence


@pytest.mark.slow
def test_the_rest_is_ranked_by_what_it_costs(compiler: Compiler) -> None:
    result = diagnosed(planted("dynamic local array"), compiler)
    curable = [item for item in result if item.curable]
    assert [item.share for item in curable] == sorted((item.share for item in curable), reverse=True)
    assert len({item.bottleneck for item in result}) == len(result)
    assert all(0 < item.share <= 1 for item in result)
    assert not result[-1].curable


def test_parts_of_lines_of_host_memory_are_a_fault_and_complete_ones_a_limit() -> None:
    def of(requests: float, width: int = 602) -> Diagnosis:
        counts = KernelCounts(
            "gather", (1024, 1, 1), (256, 1, 1), 0, 0, launches=1, blocks=1024, blocks_run=1024, warp_instructions=1e5,
            thread_instructions=3.2e6, host_read_sectors=4e5, host_read_requests=requests,
        )  # fmt: skip
        profile, _ = build_profile(H100, "emulated:h100", PlanCounts([counts]), {"gather": 16}, sum_facts(1 << 10))
        table = TensorSpec.contiguous((1 << 22, width), DType.FLOAT32)
        facts = sum_facts(1 << 10).model_copy(update={"inputs": (table,), "host_bytes": int(128e5)})
        return diagnose(profile, None, facts)[0]

    halves, lines, short_rows = of(2e5), of(1e5), of(2e5, width=16)
    assert (halves.bottleneck, halves.curable) == (Bottleneck.HOST_BOUND, True)
    assert "2.0 each (threshold 3.0); in complete lines of 4 they would take 364 us, not 413 us" in halves.evidence
    assert (lines.bottleneck, lines.curable) == (Bottleneck.HOST_BOUND, False)
    # Of rows of two sectors that are somewhere in a table, no warp can read complete lines.
    assert (short_rows.bottleneck, short_rows.curable) == (Bottleneck.HOST_BOUND, False)


def planted(name: str) -> Faulty:
    return next(case for case in FAULTY if case.name == name)


def share_of(bottleneck: Bottleneck, result: tuple[Diagnosis, ...]) -> float:
    return sum(item.share for item in result if item.bottleneck is bottleneck)


def test_small_blocks_cost_the_time_that_starting_and_ending_them_takes(compiler: Compiler) -> None:
    profile, build, facts = profiled(planted("blocks of one warp"), compiler)
    (kernel,) = profile.kernels
    assert kernel.limits_us["blocks"] == max(kernel.limits_us.values()), "what these blocks are bound by"
    assert share_of(Bottleneck.LOW_OCCUPANCY_BLOCK, diagnose(profile, build, facts)) > 0.5


def test_one_thread_is_the_fault_of_the_grid_and_not_of_the_block(compiler: Compiler) -> None:
    """A single wave lets no block wait for the place of empty lanes."""
    result = diagnosed(planted("one thread"), compiler)
    assert share_of(Bottleneck.LOW_OCCUPANCY_BLOCK, result) < 0.5 * share_of(Bottleneck.TINY_GRID, result)


def changed(profile: Profile, **changes: object) -> Profile:
    """A profile of one kernel, with other fields of that kernel."""
    (kernel,) = profile.kernels
    return profile.model_copy(update={"kernels": (kernel.model_copy(update=changes),)})


@pytest.mark.slow
def test_registers_limit_nothing_where_more_blocks_fit_than_there_are(compiler: Compiler) -> None:
    profile, build, facts = profiled(planted("too many registers"), compiler)
    waves = "launch__waves_per_multiprocessor"
    metrics = [
        item.model_copy(update={"value": 0.5}) if item.name == waves else item for item in profile.kernels[0].metrics
    ]
    few = diagnose(changed(profile, metrics=tuple(metrics)), build, facts)
    assert share_of(Bottleneck.LOW_OCCUPANCY_REGISTERS, diagnose(profile, build, facts)) > 0.1
    assert share_of(Bottleneck.LOW_OCCUPANCY_REGISTERS, few) == 0


def test_machine_code_says_how_often_spills_run(compiler: Compiler) -> None:
    profile, build, facts = profiled(planted("spilled registers"), compiler)

    def spilling(accesses: int) -> float:
        opcodes = (
            SassOpcode(opcode="FFMA", warp_instructions=10**6),
            SassOpcode(opcode="LDL", warp_instructions=accesses),
        )
        sass = SassProfile(warp_instructions=10**6 + accesses, opcodes=opcodes)
        return share_of(Bottleneck.SPILLS, diagnose(changed(profile, sass=sass), build, facts))

    assert spilling(100) == 0, "outside of every loop, which costs too little to name"
    assert 0.02 < spilling(10**5) < spilling(10**6)


@pytest.mark.slow
def test_every_metric_that_a_diagnosis_names_is_in_the_profile(compiler: Compiler) -> None:
    for name in ("unpadded tile", "an atomic per element", "a barrier at every step", "odd lanes work more"):
        profile, build, facts = profiled(planted(name), compiler)
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


@pytest.mark.slow
def test_launches_of_eager_pytorch_are_evidence_for_a_plan_of_many_launches_alone(compiler: Compiler) -> None:
    case = next(item for item in FAULTY if item.expected is Bottleneck.LAUNCH_BOUND)
    profile, build, facts = profiled(case, compiler)
    eager = LaunchQueue(origin="predicted", kernels=1, tklqt_us=2.37, launch_us=2.37, host_us=14.4, gpu_us=3.0)
    with_eager, without = diagnose(profile, build, facts, H100, eager), diagnose(profile, build, facts, H100)
    text = "; eager PyTorch is CPU-bound, its 1 kernel waits 2.37 us for launches and queue (TKLQT, predicted)"
    for item, plain in zip(with_eager, without, strict=True):
        more = text if plain.bottleneck is Bottleneck.LAUNCH_BOUND else ""
        assert item.evidence == plain.evidence + more
    assert any(text in item.evidence for item in with_eager)


def as_measured(emulated: Profile) -> Profile:
    """Profile of a GPU of the same speed: counters of hardware alone, each kernel's time the modelled one."""

    def measured(name: str, value: float, unit: str) -> Metric:
        return Metric(name=name, value=value, unit=unit, origin=Origin.MEASURED)

    def counters(kernel: KernelProfile) -> tuple[Metric, ...]:
        hardware = [item for item in kernel.metrics if item.name.startswith(("dram__", "lts__", "l1tex__"))]
        time = measured("gpu__time_duration.sum", 1e3 * max(kernel.limits_us.values()), "ns")
        return (time, *(measured(item.name, item.value, item.unit) for item in hardware))

    kernels = tuple(item.model_copy(update={"metrics": counters(item), "hot_spots": ()}) for item in emulated.kernels)
    hardware = [item for item in emulated.metrics if item.name.startswith(("dram__", "lts__", "l1tex__"))]
    metrics = tuple(measured(item.name, item.value, item.unit) for item in hardware)
    roofline = emulated.roofline.model_copy(update={"time_origin": Origin.MEASURED})
    return Profile(size="full", device="cuda:0", kernels=kernels, metrics=metrics, roofline=roofline)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", FAULTY, ids=lambda case: case.name)
def test_a_measured_profile_beside_the_counts_names_what_the_counts_alone_name(
    case: Faulty, compiler: Compiler
) -> None:
    emulated, build, facts = profiled(case, compiler)
    merged = with_counts(as_measured(emulated), emulated)
    result = diagnose(merged, build, facts, H100)
    assert case.expected in {item.bottleneck for item in result[:2]}, [(item.bottleneck, item.share) for item in result]


def test_where_the_time_was_measured_it_decides_how_much_is_waiting() -> None:
    def metric(name: str, value: float, origin: Origin) -> Metric:
        return Metric(name=name, value=value, unit="1", origin=origin)

    metrics = (
        metric("gpu__time_duration.sum", 9e3, Origin.MEASURED),
        metric("dram__bytes.sum", 2850.0 * 1e3 * 2, Origin.MEASURED),
        metric("kernelforge__limit_dram_us", 77.0, Origin.MODELLED),
        metric("kernelforge__limit_latency_us", 55.0, Origin.MODELLED),
        metric("kernelforge__limit_fp32_us", 1.5, Origin.MODELLED),
    )
    kernel = KernelProfile(kernel="k", launches=1, grid=(4, 1, 1), block=(256, 1, 1), sampled=1, metrics=metrics)
    limits = KernelMetrics(kernel, H100, None).limits
    assert limits["dram"] == pytest.approx(2.0)
    assert limits["latency"] == pytest.approx(7.0)
    assert limits["arithmetic"] == 1.5


def test_local_memory_is_seen_by_hardwares_names_too() -> None:
    metrics = tuple(
        Metric(name=f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum", value=8, unit="1", origin=Origin.MEASURED)
        for op in ("ld", "st")
    )
    kernel = KernelProfile(kernel="k", launches=1, grid=(4, 1, 1), block=(256, 1, 1), sampled=1, metrics=metrics)
    evidence = KernelMetrics(kernel, H100, None)
    assert evidence.has("ptx__local_sectors.sum")
    assert evidence.value("ptx__local_sectors.sum") == 16


def test_agents_weigh_a_profile_by_the_figures_of_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the device's description, which is for reading."""
    weighed: list[DeviceSpec] = []

    def note(profile: Profile, build: object, facts: object, spec: DeviceSpec) -> tuple[Diagnosis, ...]:
        weighed.append(spec)
        return ()

    monkeypatch.setattr(prompts, "diagnose", note)
    brief = replace(BRIEF, spec=A100, device={"device": "NVIDIA H200 (cuda:0)", "architecture": "sm_90a"})
    prompts.judge_prompt(JudgeRequest(brief, FAST, HISTORY, FAST))
    assert {spec.key for spec in weighed} == {"a100"}


def test_a_plan_that_launches_nothing_has_nothing_to_say() -> None:
    roofline = Roofline(
        flops=0, dram_bytes=0, compulsory_bytes=0, arithmetic_intensity=0, ridge=20, bound="launch", time_us=2,
        time_origin=Origin.MODELLED,
    )  # fmt: skip
    profile = Profile(size="full", device="emulated:h100", kernels=(), metrics=(), roofline=roofline)
    assert diagnose(profile) == ()
