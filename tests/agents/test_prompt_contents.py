"""Contents of prompts: what they show, what they hide, and their length."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from kernelforge.agents import CoderRequest, JudgeRequest
from kernelforge.agents.acceptance import APART, Outcome
from kernelforge.agents.builtin.codegen.loops import LONGEST_RUN
from kernelforge.agents.prompting.attempts import HISTORY_CHARS, floor_text, history_text
from kernelforge.agents.prompting.sizes import attributes_text, shared_text, symbolic_sizes
from kernelforge.agents.prompting.text import clipped, tensors
from kernelforge.agents.prompts import coder_prompt, judge_prompt, reflexion_prompt, requested_sections
from kernelforge.evaluation.oracle.worker import sequential_sums
from kernelforge.profiling.ncu.catalogue import CUDAFORGE
from kernelforge.records import (
    ENERGY_ESTIMATE,
    UNCOMPARED,
    DType,
    EnergyEstimate,
    EnergyPart,
    Metric,
    Operator,
    Origin,
    SizeFacts,
    TaskFacts,
    TensorSpec,
    TuneTrial,
    Verdict,
    WeightSpec,
)
from kernelforge.records.evaluation import MODELLED_TIME
from kernelforge.search.base import DEFAULT_VISIBILITY, ProfileVisibility
from tests.agents import prompt_samples as samples
from tests.agents.prompt_samples import (
    BLIND,
    BRIEF,
    FAILED,
    FAST,
    FINDING,
    GPU_BRIEF,
    HISTORY,
    SLOW,
    SUBSET,
    coder,
    judge,
)
from tests.support.factories import modelled, not_compared

ON_BRIEF = [
    name for name in samples.SAMPLES if not name.startswith(("reflexion", "tester", "triton")) and "gpu" not in name
]
"""Samples of a Coder and of a Judge on the task of ``samples.BRIEF``, in its language."""


@pytest.mark.parametrize(("language", "own"), [("cuda", []), ("triton", ["triton"]), ("any", ["triton-judge"])])
def test_every_call_of_an_agent_on_a_task_in_a_language_begins_alike(
    monkeypatch: pytest.MonkeyPatch, language: str, own: list[str]
) -> None:
    """``own`` are the samples that name that language themselves."""
    made = {name: samples.SAMPLES[name]() for name in own}
    monkeypatch.setattr(samples, "BRIEF", replace(BRIEF, language=language))
    made |= {name: samples.SAMPLES[name]() for name in ON_BRIEF}
    judges = [prompt for name, prompt in made.items() if "judge" in name]
    coders = [prompt for name, prompt in made.items() if "judge" not in name]
    for prompts in (coders, judges):
        assert len({prompt.text[: prompt.stable] for prompt in prompts}) == 1
        assert all(0 < prompt.stable < len(prompt.text) for prompt in prompts)
        assert all(prompt.text[prompt.stable :].startswith("# Request") for prompt in prompts)


def floor_of(flops: int, dtype: DType) -> str:
    """The floor of a task with one input of 4 MB, which must be read and written."""
    full = BRIEF.facts.at("full")
    values = TensorSpec(shape=(1 << 20,), stride=(1,), dtype=dtype)
    changes = {"inputs": (values,), "outputs": (values,), "compulsory_bytes": 8 << 20, "flops": flops}
    size = full.model_copy(update=changes)
    return floor_text(replace(BRIEF, facts=TaskFacts(task_digest="0" * 16, sizes=(size,))))


def test_the_floor_is_that_of_memory_or_of_arithmetic_by_type() -> None:
    memory = "2.504 us, for the compulsory bytes at peak memory bandwidth"
    assert floor_of(10**6, DType.FLOAT32) == memory
    spec = BRIEF.spec
    for dtype, rate, unit in (
        (DType.FLOAT32, spec.tf32_tensor_tflops * 1e12 / 3, "a third of the tensor cores' TF32 peak"),
        (DType.BFLOAT16, spec.fp16_tensor_tflops * 1e12, "the tensor cores' peak"),
    ):
        expected = f"{137_438_953_472 / rate * 1e6:,.4g} us, for the reference's operations at {unit} ({memory})"
        assert floor_of(137_438_953_472, dtype) == expected
    assert floor_text(replace(BRIEF, device={})) == ""


def test_inputs_in_host_memory_are_named_with_their_bytes_and_their_floor() -> None:
    facts = BRIEF.facts.at("full").model_copy(update={"host_bytes": 35_190_000})
    policy = BRIEF.task.policy.model_copy(update={"host_inputs": (0,)})
    brief = replace(
        BRIEF,
        task=BRIEF.task.model_copy(update={"policy": policy}),
        facts=BRIEF.facts.model_copy(update={"sizes": (facts, *BRIEF.facts.sizes[1:])}),
    )
    text = coder_prompt(CoderRequest(brief, Operator.SEED, None, None, ())).text
    assert "\n\nInput 0 is in pinned host memory" in text
    assert ", reads at least 35.19 MB of host memory" in text
    assert floor_text(brief) == "1,000 us, for the bytes of host memory on the host link"


def test_a_sum_that_is_called_exact_enough_is_one_that_the_tolerance_measures() -> None:
    text = coder(Operator.OPTIMISE, FAST, finding=FINDING).text
    assert f"of up to {LONGEST_RUN:,} terms is exact enough" in text
    assert 4 * LONGEST_RUN <= sequential_sums._LONGEST_RUN


def test_what_varies_is_not_in_the_stable_part() -> None:
    prompt = coder(Operator.OPTIMISE, FAST, finding=FINDING)
    for text in ("version 1", FINDING.headline, "18.5 us", "dram__bytes_read.sum", "10.02 us"):
        assert text not in prompt.text[: prompt.stable]
        assert text in prompt.text[prompt.stable :]


def test_the_subset_is_those_of_cudaforges_24_metrics_that_the_profile_has() -> None:
    assert len(set(CUDAFORGE)) == 24
    text = coder(Operator.OPTIMISE, FAST, finding=None, sight=SUBSET).text
    assert "| dram__bytes_read.sum | 16,777,216 |" in text
    assert "| l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum |" not in text
    assert "Roofline" not in text
    assert "not available" not in text.lower()


def test_metrics_that_are_named_are_shown_in_their_order_and_nothing_else() -> None:
    names = ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum", "dram__bytes_read.sum", "sm__nothing.sum")
    text = coder(Operator.OPTIMISE, FAST, finding=None, sight=ProfileVisibility(" ".join(names))).text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ") and "__" in line]
    assert rows == list(names[:2])
    assert "Roofline" not in text


def test_the_estimated_energy_is_shown_where_it_is_named_alone() -> None:
    part = EnergyPart(name="dram", millijoules=0.25, low_mj=0.2, high_mj=0.5, source="a paper")
    before, after = samples.profile(1_572_864), samples.profile(1_572_864)
    estimated = after.model_copy(update={"energy": EnergyEstimate(parts=(part,))})
    parent = samples.attempt(1, time_us=18.5, seen=estimated)
    named = coder(Operator.OPTIMISE, parent, finding=None, sight=ProfileVisibility(ENERGY_ESTIMATE)).text
    assert f"| {ENERGY_ESTIMATE} | 0.25 | mJ | estimated |" in named
    for sight in (ProfileVisibility(), SUBSET, ProfileVisibility("none"), ProfileVisibility("dram__bytes_read.sum")):
        assert "energy" not in coder(Operator.OPTIMISE, parent, finding=None, sight=sight).text
        plain = samples.attempt(1, time_us=18.5, seen=before)
        assert judge(parent, sight).text == judge(plain, sight).text


def test_by_default_every_metric_is_there_with_roofline_and_hot_spots() -> None:
    text = coder(Operator.OPTIMISE, FAST, finding=None).text
    for part in ("| l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum | 1,572,864 |", "Roofline: bound by dram", "line 3"):
        assert part in text, part


@pytest.mark.parametrize("parent", [FAST, FAILED])
def test_no_metrics_means_no_profile_and_no_notes(parent: object) -> None:
    sight = ProfileVisibility("none")
    texts = [
        coder(Operator.FSR, parent, sight=sight).text,  # type: ignore[arg-type]
        coder(Operator.CONTRAST, SLOW, inspirations=(SLOW, FAST), sight=sight).text,
        coder(Operator.CROSSOVER, SLOW, inspirations=(FAST,), sight=sight).text,
        judge(FAST, sight).text,
    ]
    for text in texts:
        for part in ("dram__bytes", "launch__", "Roofline", "## Notes", "rows<256>"):
            assert part not in text, part


@pytest.mark.parametrize("metrics", ["none", "subset", "full"])
def test_without_sight_of_latency_there_is_no_time_and_no_speedup(metrics: str) -> None:
    sight = ProfileVisibility(metrics, latency=False)  # type: ignore[arg-type]
    gpu = samples.on_gpu(1, 18.5, 1.7, parent=0, note="accepted: lower bound of the speedup 1.2x -> 1.6x")
    history = (samples.on_gpu(0, 31.4, 1.25), gpu)
    operators = (Operator.SEED, Operator.OPTIMISE, Operator.CONTRAST, Operator.FSR, Operator.CROSSOVER)
    texts = [
        coder_prompt(CoderRequest(GPU_BRIEF, item, gpu, None, history, gpu, inspirations=history[:1], sight=sight)).text
        for item in operators
    ]
    texts.append(judge_prompt(JudgeRequest(GPU_BRIEF, gpu, history, history[0], 1, sight)).text)
    rendered = [text.partition("# Request")[2].partition("## Notes")[0] for text in texts]
    for text in rendered:
        assert not re.search(r"\b(18\.5|31\.4|1\.7|1\.25|1\.2x|1\.6x)\b", text)
        assert not re.search(r"\d us\b|speedup|time_duration|Floor", text)


def test_a_measured_time_has_its_interval_samples_and_speedups() -> None:
    parent = samples.on_gpu(1, 20.0, 1.8)
    text = coder_prompt(CoderRequest(GPU_BRIEF, Operator.OPTIMISE, parent, None, (parent,), parent)).text
    for part in (
        "20 us (measured, confidence interval 18 to 22 us, 30 samples)", "speedup 1.8x (at least 1.71x)",
        "which takes 36 us", "3.6x over eager PyTorch", "Floor: 6.991 us",
    ):  # fmt: skip
        assert part in text, part
    assert "modelled, not measured" not in text


def test_on_an_emulated_device_times_are_said_to_be_modelled() -> None:
    for prompt in (coder(Operator.SEED, None, best=None), coder(Operator.OPTIMISE, FAST), judge(FAST)):
        assert "modelled, not measured" in prompt.text
        assert (f"{APART:.0%} or more are real" in prompt.text) == ("a first candidate" not in prompt.text)


def test_a_modelled_time_has_its_predicted_speedup_with_interval_and_origin() -> None:
    predicted = "18.5 us (modelled, 90 %: 9.42 to 36.3 us); predicted 2.27x over eager PyTorch (90 %: 1.36x to 3.86x)"
    for prompt in (coder(Operator.OPTIMISE, FAST), judge(FAST)):
        times = prompt.text.partition("## Times")[2].partition("##")[0]
        assert predicted in times
        assert "Eager PyTorch takes 42 us (predicted)." in times
    compared = coder(Operator.CROSSOVER, FAST, inspirations=(SLOW,)).text
    assert predicted in compared
    assert "predicted 0.35x over eager PyTorch" in compared
    performance = FAST.evaluation.performance
    assert performance is not None
    assert performance.predicted is not None
    published = performance.predicted.model_copy(update={"eager_origin": "published"})
    evaluation = FAST.evaluation.model_copy(
        update={"performance": performance.model_copy(update={"predicted": published})}
    )
    assert "42 us (published)" in judge(FAST.model_copy(update={"evaluation": evaluation})).text


def test_a_prompt_says_where_a_modelled_time_goes() -> None:
    line = "modelled us under each limit alone: dram 11.6, l2 6.29, issue 3.2\n"
    for prompt in (coder(Operator.OPTIMISE, FAST), judge(FAST), judge(FAST, SUBSET)):
        assert line in prompt.text
    assert "each limit" not in judge(FAST, ProfileVisibility("full", latency=False)).text
    gpu = samples.on_gpu(1, 20.0, 1.8)
    assert gpu.profile is not None
    roofline = gpu.profile.roofline.model_copy(update={"time_origin": Origin.MEASURED})
    counted = gpu.model_copy(update={"profile": gpu.profile.model_copy(update={"roofline": roofline})})
    assert "each limit" not in judge_prompt(JudgeRequest(GPU_BRIEF, counted, (counted,), counted)).text


def test_agents_are_told_that_the_modelled_time_decides() -> None:
    rule = f"The modelled time decides. Where it falls by less than {APART:.0%}, the first"
    assert rule in coder(Operator.OPTIMISE, FAST, finding=FINDING).text
    assert rule in judge(FAST).text


def test_changes_against_the_parents_parent_come_largest_first_and_leave_out_what_stayed() -> None:
    after = samples.attempt(1, parent=0, seen=samples.profile(1_572_864, registers=40))
    text = coder(Operator.OPTIMISE, after, history=(SLOW, after)).text
    message = text.partition("## What its last change did")[2].partition("##")[0]
    lines = [line for line in message.splitlines() if line.startswith("- ")]
    assert lines == [
        "- l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum: 12,582,912 -> 1,572,864 sector (-87.5%)",
        "- launch__registers_per_thread: 32 -> 40 register/thread (+25.0%)",
    ]
    assert "What its last change did" not in coder(Operator.OPTIMISE, SLOW, history=(SLOW,)).text


def test_what_a_change_was_meant_to_change_comes_first() -> None:
    finding = FINDING.model_copy(update={"metrics": ("+launch__registers_per_thread",)})
    after = samples.attempt(1, parent=0, seen=samples.profile(1_572_864, registers=40), finding=finding)
    text = coder(Operator.OPTIMISE, after, history=(SLOW, after)).text
    message = text.partition("## What its last change did")[2].partition("##")[0]
    assert message.index("launch__registers_per_thread") < message.index("l1tex__t_sectors")


def test_a_judge_sees_how_the_candidate_differs_from_the_best() -> None:
    worse = samples.attempt(3, parent=0, seen=samples.profile(12_582_912, registers=64))
    text = judge_prompt(JudgeRequest(BRIEF, worse, (*HISTORY, worse), FAST)).text
    message = text.partition("## Against the best")[2].partition("##")[0]
    assert "those of attempt 1, the best so far" in message
    assert "launch__registers_per_thread: 32 -> 64" in message


def test_technique_and_sample_are_asked_for_only_when_given() -> None:
    plain, requested = (
        coder(Operator.FSR, FAST).text,
        coder(Operator.FSR, FAST, technique="use cp.async", sample=3).text,
    )
    assert "## Technique" not in plain
    assert "One of several" not in plain
    assert "use cp.async" in requested
    assert "This is attempt 4 of several" in requested


def test_lessons_are_shown_where_there_are_any() -> None:
    assert "What earlier tasks taught" in coder(Operator.SEED, None).text
    request = CoderRequest(GPU_BRIEF, Operator.SEED, None, None, ())
    assert "What earlier tasks taught" not in coder_prompt(request).text


def test_a_rank_names_the_place_of_the_bottleneck() -> None:
    assert "place 3" in judge(SLOW, rank=3).text
    assert "place" not in judge(SLOW).text.partition("# Request")[2].partition("## Notes")[0]


def test_fsr_shows_errors_of_a_failed_parent_and_the_profile_of_a_correct_one() -> None:
    failed, correct = coder(Operator.FSR, FAILED).text, coder(Operator.FSR, FAST).text
    assert "17 of 16,384 elements differ" in failed.partition("## What happened")[2]
    assert "## Its profile" not in failed
    assert "## Its profile" in correct
    for text in (failed, correct):
        assert "attempt 0, seed: OK" in text


def test_what_a_prompt_needs_and_lacks_makes_it_a_simpler_one() -> None:
    unread = FAILED.model_copy(update={"candidate": None})
    for operator in (Operator.REPAIR, Operator.OPTIMISE, Operator.CROSSOVER):
        text = coder(operator, unread).text
        assert "# Request: a first candidate" in text
        assert "17 of 16,384 elements differ" in text
    assert "# Request: make a candidate faster" in coder(Operator.CROSSOVER, FAST).text
    assert "# Request: a first candidate" in coder(Operator.CONTRAST, unread).text


def test_contrast_shows_two_examples_however_they_are_handed_over() -> None:
    for parent, others in ((SLOW, (FAST,)), (SLOW, (SLOW, FAST)), (FAILED, (SLOW, FAST))):
        text = coder(Operator.CONTRAST, parent, inspirations=others).text
        assert text.index("// version 0") < text.index("// version 1")
        assert "## Example 3" not in text
        assert "version 2" not in text


def test_tuned_values_are_shown_with_the_code() -> None:
    assert FAST.candidate is not None
    candidate = FAST.candidate.model_copy(update={"choices": {"BLOCK": 128}})
    evaluation = FAST.evaluation.model_copy(update={"candidate": candidate.hash})
    tuned = FAST.model_copy(update={"candidate": candidate, "evaluation": evaluation})
    trial = TuneTrial(choices={"BLOCK": 128}, rung=1, time_us=12.0)
    text = coder(Operator.OPTIMISE, tuned.model_copy(update={"trials": (trial,)})).text
    assert "The values of its `# tune:` names:\n\n```text\nBLOCK = 128\n" in text
    assert "modelled and as uncertain as the time above; a plan" in text
    assert "BLOCK = 128: 12 us\n" in text


def test_history_is_the_latest_attempts_within_its_budget() -> None:
    many = tuple(samples.attempt(n, parent=n - 1 if n else None, finding=FINDING, note="n" * 500) for n in range(40))
    text = history_text(many, DEFAULT_VISIBILITY)
    assert len(text) <= HISTORY_CHARS + 100
    assert text.startswith("(30 earlier attempts are left out)")
    assert text.count("the Judge had said") == 5
    assert "attempt 39, optimise" in text
    short = history_text(many, DEFAULT_VISIBILITY, budget=1500)
    assert len(short) <= 1600
    assert "attempt 39, optimise" in short


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.REFUSED, "is no better"),
        (Outcome.UNDECIDED, "not clearly apart from the best"),
        (Outcome.NOT_COMPARED, "could not be compared"),
    ],
)
@pytest.mark.parametrize("sight", [DEFAULT_VISIBILITY, BLIND])
def test_history_separates_what_is_no_better_from_what_could_not_be_compared(
    outcome: Outcome, words: str, sight: ProfileVisibility
) -> None:
    refused = FAST.model_copy(update={"accepted": False, "note": f"{outcome}: 20 -> 19.8 us"})
    line = history_text((SLOW, refused), sight).partition("attempt 1, ")[2].splitlines()[0]
    assert f": OK, {words}" in line


def test_history_says_where_the_full_size_was_not_compared() -> None:
    text = history_text((SLOW, not_compared(FAST)), DEFAULT_VISIBILITY)
    assert f": {UNCOMPARED}, " in text
    assert text.count("not compared") == 1


def test_huge_texts_do_not_make_huge_prompts() -> None:
    huge = "x" * 260_000
    parent = samples.attempt(1, parent=0, source=huge + "\n// the end")
    failed = samples.attempt(2, parent=1, verdict=Verdict.CRASH, source=huge)
    failed = failed.model_copy(update={"evaluation": failed.evaluation.model_copy(update={"reason": huge})})
    finding = FINDING.model_copy(update={"action": huge})
    history = (SLOW, parent, failed) * 20
    for operator, of in ((Operator.OPTIMISE, parent), (Operator.CONTRAST, parent), (Operator.FSR, failed)):
        text = coder(operator, of, finding=finding, history=history, inspirations=(parent, failed)).text
        assert len(text) < 120_000
        assert "characters are left out here" in text
    assert "// the end" in coder(Operator.OPTIMISE, parent).text
    assert len(judge_prompt(JudgeRequest(BRIEF, failed, history)).text) < 100_000
    assert len(reflexion_prompt(BRIEF, history, ("softmax",)).text) < 30_000


@pytest.mark.parametrize("limit", [10, 100, 1000])
def test_a_cut_text_keeps_its_ends_and_says_how_much_is_missing(limit: int) -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    cut = clipped(text, limit)
    left_out = re.search(r"\n\[\.\.\. ([\d,]+) characters are left out here \.\.\.\]\n", cut)
    assert left_out
    assert len(cut) <= limit + 60
    assert abs(len(cut) - len(left_out[0]) + int(left_out[1].replace(",", "")) - len(text)) <= 2
    assert clipped("short", limit) == "short"


def test_a_modelled_time_has_no_speedup() -> None:
    parent = samples.attempt(0, evaluation=None, time_us=modelled(12.5).time_us)
    text = coder(Operator.OPTIMISE, parent, history=(parent,)).text
    assert "12.5 us (modelled, 90 %: 6.37 to 24.5 us)" in text


def test_a_sampled_share_and_each_kernels_time_are_with_modelled_numbers() -> None:
    assert FAST.profile is not None
    (kernel,) = FAST.profile.kernels
    time = Metric(name=MODELLED_TIME, value=2.0, unit="us", origin=Origin.MODELLED)
    both = {"sampled": 0.125, "metrics": (time, *kernel.metrics)}  # a GPU has the model's time as well
    small = {"kernel": "sums", "sampled": 1.0, "grid": (64, 1, 1), "metrics": (time,)}
    kernels = (kernel.model_copy(update=both), kernel.model_copy(update=small))
    parent = FAST.model_copy(update={"profile": FAST.profile.model_copy(update={"kernels": kernels})})
    for prompt in (coder(Operator.OPTIMISE, parent, best=parent), judge(parent), judge(parent, SUBSET)):
        assert "us, from 17.65% of its blocks); predicted" in prompt.text  # (1024 / 8 + 64) / (1024 + 64)
        assert "15 us (modelled), counts scaled up from 12.50% of its blocks\n" in prompt.text
        assert "block (256, 1, 1), 2 us (modelled, 90 %: " in prompt.text
        assert prompt.text.count("of its blocks") == 2
    assert "2 us" not in judge(parent, ProfileVisibility(latency=False)).text.partition("## Its profile")[2]


def test_the_device_has_the_peaks_of_its_tensor_cores_and_no_list_of_what_it_lacks() -> None:
    device = {**BRIEF.device, "tensor cores": "FP16 312 TFLOPS", "not supported here": "thread block clusters"}
    text = coder_prompt(CoderRequest(replace(BRIEF, device=device), Operator.SEED, None, None, ())).text
    assert "; tensor cores: FP16 312 TFLOPS" in text
    assert "fp32" not in text, "figures that occupancy needs are on request"
    figures = replace(BRIEF, device={**device, "fp32": "67 TFLOPS", "warps per multiprocessor": "64"})
    assert "; fp32: 67 TFLOPS; per multiprocessor: warps 64.\n" in requested_sections("page: The device", figures)
    assert "not supported" not in text
    assert "`cooperative=True` may follow" in text
    assert "cluster" not in text.partition("## The device")[0].partition("More is in these sections")[0]


def test_facts_about_sizes_are_said_once() -> None:
    shared = {
        "x.shape[0]": "varies", "x.shape[1]": "varies", "w.shape[0]": "3 at every size",
        "output 0 shape[0]": "equal to x.shape[0] at every size", "output 0 shape[1]": "3 at every size",
    }  # fmt: skip
    assert shared_text(shared) == "- x.shape[0], [1]: varies\n- w.shape[0], output 0 shape[1]: 3"
    attributes = {"conv.stride.0": 1, "conv.stride.1": 1, "conv.pad.0": 0, "conv.pad.1": 2, "eps": 0.5, "a.b.c": True}
    assert attributes_text(attributes) == "conv.{stride.{0,1}=1, pad.0=0, pad.1=2}, eps=0.5, a.b.c=True"
    alike = {"conv.stride.0": 1, "conv.stride.1": 1, "conv.pad.0": 1, "conv.pad.1": 1, "conv.groups": 1}
    assert attributes_text(alike) == "conv.{{stride,pad}.{0,1}=1, groups=1}"
    wide, narrow = (TensorSpec(shape=(rows, 4), dtype=DType.FLOAT16, stride=(4, 1)) for rows in (8, 2))
    assert tensors([wide, wide, 3]) == "2 x float16[8, 4]; 3"
    assert tensors([narrow, wide], [wide]) == "[2, 4]; float16[8, 4]"


def tensor(*shape: int, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec.contiguous(shape, dtype)


def sized(name: str, rows: int, inner: int, **changes: Any) -> SizeFacts:
    values: dict[str, Any] = {
        "size": name, "inputs": (tensor(rows, inner), tensor(rows, dtype=DType.INT64)),
        "weights": (WeightSpec(name="norm.weight", spec=tensor(inner), kind="parameter"),),
        "outputs": (tensor(rows, 3),), "attrs": {"eps": 0.5, "rows": rows},
        "compulsory_bytes": 6_310_016, "flops": 999_960, "eager_launches": 1,
    }  # fmt: skip
    return SizeFacts(**{**values, **changes})


def test_shapes_are_written_in_symbols_for_extents() -> None:
    facts = TaskFacts(task_digest="", sizes=(sized("full", 8, 64), sized("small", 2, 4)))
    shared = {
        "x.shape[0]": "varies; a multiple of 4 at some sizes only",
        "x.shape[1]": "varies; a multiple of 4 at every size",
        "index.shape[0]": "equal to x.shape[0] at every size",
        "w['norm.weight'].shape[0]": "equal to x.shape[1] at every size",
        "output 0 shape[0]": "equal to x.shape[0] at every size", "output 0 shape[1]": "3 at every size",
        "elements": "every tensor has fewer than 2**31 elements at every size",
    }  # fmt: skip
    assert symbolic_sizes(facts, shared).splitlines() == [
        '- x float32[s0, s1]; index int64[s0]; w["norm.weight"] float32[s1]; output float32[s0, 3]',
        "- s0, s1: full (8, 64), small (2, 4); s1: a multiple of 4 at every size",
        "- at full: attrs eps=0.5, rows=8; moves at least 6.31 MB, 1 MFLOP; eager PyTorch calls 1 operator",
        "- at small: attrs rows=2",
        "- every tensor has fewer than 2**31 elements",
    ]
    assert "eager" not in symbolic_sizes(facts, shared, eager=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": (tensor(2, 4).model_copy(update={"stride": (1, 2)}), tensor(2, dtype=DType.INT64))},
        {"inputs": (tensor(2, 4, dtype=DType.FLOAT16), tensor(2, dtype=DType.INT64))},
        {"weights": ()},
    ],
    ids=["strides", "dtype", "weights"],
)
def test_shapes_that_symbols_do_not_say_whole_are_listed_by_size(changes: dict[str, Any]) -> None:
    facts = TaskFacts(task_digest="", sizes=(sized("full", 8, 64), sized("small", 2, 4, **changes)))
    shared = {"x.shape[0]": "varies; odd at some sizes"}
    assert symbolic_sizes(facts, shared) == ""
    alike = TaskFacts(task_digest="", sizes=(sized("full", 8, 64), sized("small", 2, 4)))
    assert symbolic_sizes(alike, shared) == "", "an extent without a statement"


def test_the_blind_sample_hides_what_others_show() -> None:
    assert "dram__bytes_read" in samples.SAMPLES["optimise"]().text
    assert "dram__bytes_read" not in coder(Operator.OPTIMISE, FAST, sight=BLIND).text
