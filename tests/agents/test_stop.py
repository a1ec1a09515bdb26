"""A Judge's ``stop`` counts near the floor only."""

from __future__ import annotations

import pytest

from kernelforge.agents import JudgeRequest, TaskContext
from kernelforge.agents.builtin.judge import BuiltinJudge
from kernelforge.agents.diagnosis.floor import reason_to_go_on
from kernelforge.agents.diagnosis.rules import Bottleneck
from kernelforge.agents.llm_agents import LLMJudge
from kernelforge.compile import Compiler
from kernelforge.errors import CandidateError
from kernelforge.hardware.specs import H100, SPECS
from kernelforge.llm.base import Answer, Question
from kernelforge.profiling.floor import arithmetic_floor, attainable_us
from kernelforge.records import Attempt, Candidate, DType, Profile, SizeFacts, TensorSpec
from tests.agents import agent_setup as workbench
from tests.agents.faulty_kernels import SOUND, profiled
from tests.agents.prompt_samples import quarantined_on_gpu

BYTES = 33_554_432
"""Compulsory bytes of core/softmax."""
FLOOR_US = BYTES / H100.dram_sustained_gbps * 1e-3 + H100.launch_overhead_us
STOP = '```json\n{"stop": "nothing is left"}\n```'


def product(dtype: DType) -> SizeFacts:
    """A matrix product of 4096 cubed."""
    tensor = TensorSpec.contiguous((4096, 4096), dtype)
    return SizeFacts(
        size="full", inputs=(tensor, tensor), outputs=(tensor,), weights=(), attrs={},
        compulsory_bytes=3 * tensor.nbytes, flops=2 * 4096**3, eager_launches=1,
    )  # fmt: skip


def test_the_floor_is_of_the_bytes_or_of_the_operations_by_type() -> None:
    context = workbench.brief("softmax")
    assert attainable_us(H100, context.facts.at("full")) == pytest.approx(FLOOR_US)
    single, half = product(DType.FLOAT32), product(DType.FLOAT16)
    third = "a third of the tensor cores' TF32 peak"
    assert arithmetic_floor(H100, single).unit == third
    assert arithmetic_floor(SPECS["rtx-3090"], single).unit == "the FP32 peak"
    assert arithmetic_floor(SPECS["v100"], single).unit == "the FP32 peak"
    assert arithmetic_floor(H100, product(DType.FLOAT64)).unit == "the FP32 peak"
    assert arithmetic_floor(H100, half).unit == "the tensor cores' peak"
    assert arithmetic_floor(SPECS["gtx-1650"], half).unit == "twice the FP32 peak"
    expected = 3 * 2 * 4096**3 / (H100.tf32_tensor_tflops * 1e12) * 1e6 + H100.launch_overhead_us
    assert expected < 2 * 4096**3 / H100.fp32_flops_per_s * 1e6
    assert attainable_us(H100, single) == pytest.approx(expected)
    assert attainable_us(H100, half) < 0.2 * attainable_us(H100, single)


def candidate_of(context: TaskContext, time_us: float | None, profile: Profile | None = None) -> Attempt:
    candidate = Candidate(source=SOUND.source, plan=SOUND.plan)
    return workbench.attempt(context, candidate, profile=profile, time_us=time_us)


@pytest.mark.parametrize(
    ("times_floor", "words"),
    [(0.9, ""), (1.09, ""), (1.11, "1.11x the 14.07 us"), (3, "3.00x"), (None, "has no time that is believed")],
)
def test_a_search_may_stop_within_a_tenth_of_the_floor(times_floor: float | None, words: str) -> None:
    context = workbench.brief("softmax")
    reason = reason_to_go_on(context, candidate_of(context, times_floor and times_floor * FLOOR_US))
    assert words in reason
    assert bool(reason) == bool(words)


def test_a_time_that_is_not_believed_does_not_end_a_search() -> None:
    doubted = quarantined_on_gpu(2, 1.0).model_copy(update={"profile": None})
    assert "has no time that is believed" in reason_to_go_on(workbench.brief("softmax"), doubted)


class Obstinate:
    """An answerer that always says stop, and keeps what was wrong with it."""

    name = "test"
    complaint = ""

    def ask(self, question: Question) -> Answer:
        try:
            question.check(STOP)
        except CandidateError as error:
            self.complaint = str(error)
        return Answer(STOP, ())


def test_a_model_that_stops_early_is_asked_for_the_next_bottleneck() -> None:
    context, answerer = workbench.brief("softmax"), Obstinate()
    parent, best = candidate_of(context, 5 * FLOOR_US), candidate_of(context, 1.05 * FLOOR_US)
    LLMJudge("test", answerer).assess(JudgeRequest(context, parent, (parent,), best))
    assert answerer.complaint == ""
    LLMJudge("test", answerer).assess(JudgeRequest(context, parent, (parent,), parent))
    assert "too early to stop: the candidate takes" in answerer.complaint
    assert answerer.complaint.endswith("Name its next bottleneck")


def test_the_builtin_judge_names_the_limit_of_a_faultless_candidate_that_is_far_from_the_floor(
    compiler: Compiler,
) -> None:
    profile, _, _ = profiled(SOUND, compiler)
    context = workbench.brief("softmax")
    slow = candidate_of(context, 1.2 * FLOOR_US, profile)
    finding = BuiltinJudge().find(JudgeRequest(context, slow, (slow,), slow))
    assert (finding.kind, finding.bottleneck) == ("optimise", Bottleneck.DRAM_BOUND)
    fast = candidate_of(context, 1.05 * FLOOR_US, profile)
    assert BuiltinJudge().find(JudgeRequest(context, fast, (fast,), fast)).kind == "stop"
