"""States that would mislead a reader cannot be built."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from kernelforge.records import (
    ENERGY_ESTIMATE,
    Budget,
    Comparison,
    Correctness,
    EnergyEstimate,
    KernelProfile,
    LLMSettings,
    MeasureSettings,
    Metric,
    Operator,
    Origin,
    Profile,
    Rank,
    Reward,
    Roofline,
    RunConfig,
    Screening,
    Size,
    SizeCheck,
    StartOrigin,
    TaskPolicy,
    Verdict,
)
from kernelforge.records.task import MAX_PLAN_BYTES, MAX_SOURCE_BYTES
from tests.support.factories import (
    make_attempt,
    make_build,
    make_candidate,
    make_evaluation,
    make_fingerprint,
    make_forecast,
    make_passed_over,
    make_task,
    measured,
    measured_evaluation,
    modelled,
)

NOT_OK = [verdict for verdict in Verdict if verdict is not Verdict.OK]
ROOFLINE: dict[str, Any] = {
    "flops": 1.0,
    "dram_bytes": 1.0,
    "compulsory_bytes": 1.0,
    "arithmetic_intensity": 1.0,
    "ridge": 20.0,
    "bound": "dram",
    "time_us": 1.0,
    "time_origin": Origin.MODELLED,
}


def make_profile(origin: Origin, device: str, **roofline: Any) -> Profile:
    metric = Metric(name="gpu__time_duration.sum", value=1.0, unit="us", origin=origin)
    kernel = KernelProfile(kernel="k", launches=1, grid=(1, 1, 1), block=(32, 1, 1), sampled=1.0, metrics=(metric,))
    return Profile(size="full", device=device, kernels=(kernel,), metrics=(), roofline=Roofline(**ROOFLINE | roofline))


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"host_inputs": (0,), "mutates": (1, 0)}, "input 0 is in host_inputs and in mutates"),
        ({"host_inputs": (1, 1)}, "positions of different inputs"),
        ({"host_inputs": (-1,)}, "positions of different inputs"),
        ({"host_inputs": (0,), "library": ("matmul",)}, "allows no library"),
    ],
)
def test_inputs_in_host_memory_are_only_read_and_only_by_kernels(policy: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TaskPolicy(**policy)


def test_digests_of_policies_without_host_memory_are_those_from_before_it() -> None:
    assert TaskPolicy().content() == TaskPolicy().model_dump(mode="json", exclude={"host_inputs"})
    assert TaskPolicy(host_inputs=(1,)).content()["host_inputs"] == [1]


def test_an_energy_is_estimated_of_an_emulated_device_alone() -> None:
    energy = EnergyEstimate(parts=())
    emulated = make_profile(Origin.MODELLED, "emulated:h100")
    assert emulated.metric(ENERGY_ESTIMATE) is None
    estimate = Profile(**{**dict(emulated), "energy": energy}).metric(ENERGY_ESTIMATE)
    assert estimate == Metric(name=ENERGY_ESTIMATE, value=0.0, unit="mJ", origin=Origin.ESTIMATED)
    with pytest.raises(ValidationError, match="estimated of an emulated device alone"):
        Profile(**{**dict(emulated), "device": "cuda:0", "energy": energy})


@pytest.mark.parametrize("verdict", NOT_OK)
def test_only_ok_carries_a_performance(verdict: Verdict) -> None:
    assert make_evaluation(verdict).performance is None
    with pytest.raises(ValidationError, match="must not carry a performance"):
        make_evaluation(verdict, performance=modelled())


@pytest.mark.parametrize("verdict", NOT_OK)
def test_a_verdict_other_than_ok_needs_a_reason(verdict: Verdict) -> None:
    with pytest.raises(ValidationError, match="needs a reason"):
        make_evaluation(verdict, reason="")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"build": None}, "good build"),
        ({"build": make_build(ok=False)}, "good build"),
        ({"correctness": None}, "passed correctness"),
        ({"correctness": Correctness(sizes=())}, "passed correctness"),
        (
            {"correctness": Correctness(sizes=(SizeCheck(size="small", status="failed", message="no"),))},
            "passed correctness",
        ),
        (
            {"correctness": Correctness(sizes=(SizeCheck(size="full", status="skipped", message="too large"),))},
            "passed correctness",
        ),
        ({"reason": "but"}, "no reason"),
    ],
)
def test_ok_needs_a_build_and_values_that_were_compared(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_evaluation(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": Origin.MEASURED},
        {"protocol": "graph/1"},
        {"samples": 10},
        {"interval_us": (9.0, 11.0)},
        {"speedup": 2.0},
        {"speedup": 2.0, "speedup_lower": 1.9},
        {"speedup_eager": 2.0},
        {"origin": Origin.COUNTED},
    ],
)
def test_a_modelled_time_cannot_pass_for_a_measured_one(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="time"):
        modelled(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": None},
        {"interval_us": None},
        {"protocol": "emulated/7"},
        {"interval_us": (11.0, 9.0)},
        {"interval_us": (math.nan, 9.0)},
        {"interval_us": (1.0, math.inf)},
        {"samples": 0},
        {"speedup_lower": 1.0},
        {"speedup": 1.0, "speedup_lower": 1.1},
    ],
)
def test_a_measured_time_needs_samples_and_a_sound_interval(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        measured(**changes)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_and_a_speedup_are_positive_and_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        modelled(value)
    with pytest.raises(ValidationError):
        measured(speedup=value)


def test_the_kind_of_device_decides_the_kind_of_time() -> None:
    with pytest.raises(ValidationError, match="emulated device cannot carry a measured time"):
        make_evaluation(performance=measured())
    with pytest.raises(ValidationError, match="emulated device only"):
        measured_evaluation(performance=modelled())


def test_an_emulated_profile_carries_nothing_measured() -> None:
    assert make_profile(Origin.MODELLED, "emulated:h100").device == "emulated:h100"
    assert make_profile(Origin.MEASURED, "cuda:0", time_origin=Origin.MEASURED).device == "cuda:0"
    with pytest.raises(ValidationError, match="measured metric gpu__time_duration"):
        make_profile(Origin.MEASURED, "emulated:h100")
    with pytest.raises(ValidationError, match="measured time"):
        make_profile(Origin.COUNTED, "emulated:h100", time_origin=Origin.MEASURED)
    with pytest.raises(ValidationError, match="measured or modelled"):
        make_profile(Origin.COUNTED, "emulated:h100", time_origin=Origin.COUNTED)


def test_a_device_is_of_the_kind_that_its_name_says() -> None:
    with pytest.raises(ValidationError, match="not of kind cuda"):
        make_fingerprint(device_kind="cuda")
    with pytest.raises(ValidationError, match="not of kind emulated"):
        make_fingerprint(device="cuda:0")


def test_an_attempt_holds_the_profile_of_its_own_device() -> None:
    assert make_attempt(0, profile=make_profile(Origin.COUNTED, "emulated:h100")).profile
    with pytest.raises(ValidationError, match="another device"):
        make_attempt(0, profile=make_profile(Origin.COUNTED, "emulated:a100"))


@pytest.mark.parametrize("sampled", [0.0, 1.5, math.nan])
def test_a_profile_says_what_share_of_blocks_ran(sampled: float) -> None:
    with pytest.raises(ValidationError):
        KernelProfile(kernel="k", launches=1, grid=(1, 1, 1), block=(1, 1, 1), sampled=sampled, metrics=())


def test_a_failed_build_says_why() -> None:
    with pytest.raises(ValidationError, match="needs an error"):
        make_build(ok=False, diagnostics=())
    assert make_build(ok=False, diagnostics=(), refused="reads %clock").refused
    assert make_build(ok=False, diagnostics=(), limit="memory").limit == "memory"


@pytest.mark.parametrize(
    "changes", [{"refused": "reads %clock"}, {"limit": "time"}, {"diagnostics": make_build(ok=False).diagnostics}]
)
def test_a_good_build_has_nothing_against_it(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="ok cannot"):
        make_build(**changes)


def test_a_comparison_agrees_with_itself() -> None:
    with pytest.raises(ValidationError, match="needs a message"):
        Comparison(ok=False)
    with pytest.raises(ValidationError, match="not ok"):
        Comparison(ok=True, mismatched=1, total=4)
    with pytest.raises(ValidationError, match="cannot differ"):
        Comparison(ok=False, message="no", mismatched=5, total=4)


@pytest.mark.parametrize("status", ["failed", "guarded", "skipped"])
def test_a_size_that_did_not_pass_says_why(status: Any) -> None:
    with pytest.raises(ValidationError, match="say why"):
        SizeCheck(size="hidden_odd", status=status)


@pytest.mark.parametrize("size", ["full", "small"])
def test_only_hidden_sizes_may_be_refused_by_the_plan(size: str) -> None:
    with pytest.raises(ValidationError, match="hidden sizes only"):
        SizeCheck(size=size, status="guarded", message="n % 4")


def test_generality_is_the_share_of_sizes_not_refused() -> None:
    checks = [SizeCheck(size=size, status="passed") for size in ("small", "full", "hidden_odd")]
    refused = SizeCheck(size="hidden_tiny", status="guarded", message="n >= 32")
    correctness = Correctness(sizes=(*checks, refused))
    assert correctness.passed
    assert correctness.generality == 0.75


def test_a_size_is_checked_once() -> None:
    check = SizeCheck(size="small", status="passed")
    with pytest.raises(ValidationError, match="repeat"):
        Correctness(sizes=(check, check))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("candidate", "another"),
        ("task", "another"),
        ("evaluator", "2"),
        ("device", "emulated:a100"),
        ("toolchain", "nvrtc 13.0.99"),
    ],
)
def test_an_evaluation_is_bound_to_all_that_it_depends_on(field: str, value: str) -> None:
    change: dict[str, Any] = {field: value}
    if field not in ("candidate", "task"):
        change = {"fingerprint": make_fingerprint(**change)}
    assert make_evaluation(**change).key != make_evaluation().key


def test_an_evaluation_is_not_bound_to_what_it_does_not_depend_on() -> None:
    elsewhere = make_fingerprint(host="linux-aarch64", python="3.13.0", kernelforge="0.2.0")
    assert make_evaluation(fingerprint=elsewhere, seconds={"build": 9.0}).key == make_evaluation().key


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "int x;"},
        {"plan": "def forward(x): return x"},
        {"choices": {"B": 2}},
        {"lane": "modelnew", "plan": ""},
    ],
)
def test_a_candidate_is_named_by_all_of_its_content(changes: dict[str, Any]) -> None:
    assert make_candidate(**changes).hash != make_candidate().hash


@pytest.mark.parametrize(
    "changes",
    [
        {"source": ""},
        {"plan": ""},
        {"lane": "modelnew"},
        {"lane": "modelnew", "plan": "", "choices": {"B": 1}},
        {"source": "x" * (MAX_SOURCE_BYTES + 1)},
        {"plan": "é" * (MAX_PLAN_BYTES // 2 + 1)},
        {"source": "\ud800"},
    ],
)
def test_a_candidate_has_content_of_bounded_size(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_candidate(**changes)


def test_an_attempt_holds_the_evaluation_of_its_own_candidate() -> None:
    with pytest.raises(ValidationError, match="another candidate"):
        make_attempt(0, candidate=make_candidate("stranger"))
    with pytest.raises(ValidationError, match="needs a candidate"):
        make_attempt(0, candidate=None)
    assert make_attempt(0, Verdict.POLICY, candidate=None).candidate is None


@pytest.mark.parametrize("verdict", NOT_OK)
def test_only_ok_can_be_accepted_or_profiled(verdict: Verdict) -> None:
    with pytest.raises(ValidationError, match="cannot be accepted"):
        make_attempt(0, verdict, accepted=True)
    with pytest.raises(ValidationError, match="cannot be accepted or carry a profile"):
        make_attempt(0, verdict, profile=make_profile(Origin.COUNTED, "emulated:h100"))


def test_infra_is_never_a_score() -> None:
    with pytest.raises(ValidationError, match="never a score"):
        make_attempt(0, Verdict.INFRA, reward=Reward(policy="p/1", value=0.0, components={}))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_is_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Reward(policy="p/1", value=value, components={})


def test_only_a_seed_and_a_start_have_no_parent() -> None:
    origin = StartOrigin(file="kernel.cu", digest="0" * 64)
    for operator, parent, start in (
        (Operator.SEED, 0, None), (Operator.START, 0, origin), (Operator.REPAIR, None, None),
    ):  # fmt: skip
        with pytest.raises(ValidationError, match="a seed and a start have no parent"):
            make_attempt(1, operator=operator, parent=parent, start=start)
    for operator, start in ((Operator.SEED, origin), (Operator.START, None)):
        with pytest.raises(ValidationError, match="a start says where it comes from"):
            make_attempt(0, operator=operator, start=start)


def test_a_task_has_the_sizes_that_the_cascade_needs() -> None:
    with pytest.raises(ValidationError, match="'full' and 'small'"):
        make_task(sizes=(Size(name="full"),))
    with pytest.raises(ValidationError, match="repeat"):
        make_task(sizes=(Size(name="full"), Size(name="small"), Size(name="small")))
    with pytest.raises(ValidationError, match="replaces no constants"):
        Size(name="full", constants={"N": 1})


@pytest.mark.parametrize("name", ["medium", "Hidden", "", "full ", "hidden-odd"])
def test_a_size_is_full_small_or_hidden(name: str) -> None:
    with pytest.raises(ValidationError):
        Size(name=name)


@pytest.mark.parametrize("name", ["../x", "a/../b", "a//b", "a/", "A", "", "a b", "a\n"])
def test_the_name_of_a_task_is_a_plain_relative_path(name: str) -> None:
    with pytest.raises(ValidationError):
        make_task(name=name)


@pytest.mark.parametrize(
    "changes",
    [{"source": "ROWS = 65\n"}, {"sizes": (Size(name="full"), Size(name="small"))}, {"title": "t"}, {"suite": "s"}],
)
def test_a_task_is_named_by_all_of_its_content(changes: dict[str, Any]) -> None:
    assert make_task(**changes).digest != make_task().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"modelled_us": 0.0},
        {"idle": 1.5},
        {"low_us": 11.0},
        {"high_us": 9.0},
        {"protocol": "graph/1"},
        {"factor": 1.2},
        {"measured": 2, "tasks": 3, "median": 1.0},
        {"measured": 2, "tasks": 1, "median": None},
        {"median": 1.5},
    ],
)
def test_a_forecast_says_what_it_rests_on(changes: dict[str, Any]) -> None:
    make_forecast()
    make_forecast(factor=1.2, measured=3, tasks=1)
    with pytest.raises(ValidationError):
        make_forecast(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"device": "cuda:0"},
        {"outcome": "unsupported"},
        {"outcome": "infra"},
        {"outcome": "failed", "forecast": make_forecast()},
        {"rank": {"position": 1, "of": 1, "measured": 1}},
        {"outcome": "unsupported", "message": "no such instruction", "forecast": make_forecast()},
    ],
)
def test_only_a_candidate_that_passed_on_an_emulated_device_has_a_forecast(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Screening(**({"device": "emulated:h100", "outcome": "passed"} | changes))


def test_a_candidate_that_was_passed_over_claims_nothing_of_a_gpu() -> None:
    evaluation = make_passed_over()
    assert (evaluation.passed_over, evaluation.uncompared) == (True, True)
    with pytest.raises(ValidationError, match="was not compared at the full size"):
        make_passed_over(correctness=Correctness(sizes=(SizeCheck(size="full", status="passed"),)))
    with pytest.raises(ValidationError, match="belongs to the emulated device"):
        make_passed_over(fingerprint=make_fingerprint(device="cuda:0", device_kind="cuda"), performance=measured())
    with pytest.raises(ValidationError, match="belongs to the emulated device"):
        make_passed_over(fingerprint=make_fingerprint(device="emulated:a100"))


@pytest.mark.parametrize("changes", [{"position": 5}, {"position": 0}, {"measured": 0}])
def test_a_rank_is_one_of_its_round(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Rank(**({"position": 3, "of": 4, "measured": 2} | changes))


def test_figures_are_of_an_emulated_device_that_is_there() -> None:
    with pytest.raises(ValidationError, match="is switched off"):
        MeasureSettings(figures="h100", screen=False)


def test_an_emulated_device_stands_in_front_of_a_gpu_and_its_forecast_is_no_time() -> None:
    screening = Screening(device="emulated:h100", outcome="passed", forecast=make_forecast())
    both = measured_evaluation(screening=screening)
    assert both.performance is not None
    assert (both.performance.origin, both.performance.predicted) == (Origin.MEASURED, None)
    untimed = measured_evaluation(screening=screening, performance=None)
    assert untimed.performance is None
    with pytest.raises(ValidationError, match="in front of a GPU only"):
        make_evaluation(screening=screening)
    with pytest.raises(ValidationError, match="is not OK"):
        measured_evaluation(screening=Screening(device="emulated:h100", outcome="failed"))


@pytest.mark.parametrize("changes", [{"rounds": 0}, {"evaluations": 0}, {"wall_seconds": 0.0}])
def test_a_budget_allows_something(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Budget(**changes)


@pytest.mark.parametrize("changes", [{"tasks": ()}, {"tasks": ("a", "a")}, {"jobs": 0}, {"stop_after": 0}])
def test_a_run_has_each_of_its_tasks_once_and_someone_to_work_on_them(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "suite": "core",
        "suite_digest": "0",
        "tasks": ("a",),
        "device": "emulated:h100",
        "strategy": "refine",
        "coder": "builtin",
        "judge": "builtin",
        "reward": "kernelforge/1",
        "budget": Budget(),
        "seed": 1,
        "jobs": 1,
    }
    settings = (MeasureSettings(approx="worst"), MeasureSettings(screen=False), MeasureSettings(figures="h100"))
    measures: list[dict[str, Any]] = [{"measure": measure} for measure in settings]
    digests = {
        RunConfig(**(fields | other)).digest
        for other in (
            {},
            {"seed": 2},
            {"language": "triton"},
            {"measure_top": 2},
            {"llm": LLMSettings(reasoning="off")},
            *measures,
        )
    }
    assert len(digests) == 8
    with pytest.raises(ValidationError):
        RunConfig(**(fields | changes))
