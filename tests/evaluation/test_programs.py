"""Candidates with one program share an evaluation: equal but for names, comments and layout, at every size that any
evaluation could draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kernelforge.devices.base import Session
from kernelforge.evaluation import EvaluationResult, Evaluator, EvaluatorPool
from kernelforge.evaluation.evaluator import SharedEvaluations
from kernelforge.evaluation.stages.compile_stage import BuildState
from kernelforge.evaluation.stages.programs import may_be_shared, program_of
from kernelforge.records import Candidate, Evaluation, Screening, Verdict
from tests.support.axpy import KERNEL, PLAN, axpy_task
from tests.support.factories import (
    make_build,
    make_evaluation,
    make_passed_over,
    measured_evaluation,
    uncompared_evaluation,
)

RENAMED_KERNEL = """// Another author.

__global__ void scale(const float* first, const float* second, float* sum, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    /* the tail */
    if (at < count) sum[at] = 2.0f * first[at] + second[at];
}
"""
STORE_LINE = RENAMED_KERNEL.split("\n").index("    if (at < count) sum[at] = 2.0f * first[at] + second[at];") + 1
RENAMED_PLAN = """def forward(a, b):  # two tensors
    total = empty_like(a)
    scale[ceil_div(a.numel(), 128), 128](a, b, total,
                                         i32(a.numel()))
    return total
"""
FIRST, SECOND = Candidate(source=KERNEL, plan=PLAN), Candidate(source=RENAMED_KERNEL, plan=RENAMED_PLAN)


@pytest.fixture
def evaluator(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(axpy_task())
    made.shared = SharedEvaluations()
    yield made
    made.close()


@contextmanager
def no_device(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block in which nothing can run."""

    def refuse(artifact: object) -> Session:
        raise AssertionError("it ran")

    with monkeypatch.context() as patch:
        patch.setattr(evaluator.device, "open", refuse)
        yield


def evaluated(evaluator: Evaluator, candidate: Candidate) -> EvaluationResult:
    return evaluator.evaluate(candidate, seed=11)


@pytest.mark.slow
def test_an_equal_candidate_is_not_run_and_its_record_says_whose_evaluation_it_has(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, profile = evaluated(evaluator, FIRST)
    with no_device(evaluator, monkeypatch):
        second, own_profile = evaluated(evaluator, SECOND)
        third, _ = evaluated(evaluator, FIRST)
    assert first.verdict is Verdict.OK
    assert first.equals is None
    assert second.equals == third.equals == first.key != second.key
    assert second.candidate == SECOND.hash
    assert second.performance == first.performance
    assert second.correctness == first.correctness
    assert second.build is not None
    assert [kernel.expression for kernel in second.build.kernels] == ["scale"]
    assert "emulation" not in second.seconds
    assert profile is not None
    assert own_profile is not None
    assert own_profile.metrics == profile.metrics
    assert [kernel.kernel for kernel in own_profile.kernels] == ["scale"]
    assert {spot.source_line for spot in own_profile.kernels[0].hot_spots} == {STORE_LINE}
    lines = own_profile.kernels[0].sass.lines if own_profile.kernels[0].sass else ()
    assert STORE_LINE in {line.source_line for line in lines}


@pytest.mark.slow
def test_what_was_evaluated_before_a_restart_answers_too(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    first = evaluated(evaluator, FIRST)
    evaluator.shared = SharedEvaluations([(FIRST, first)])
    with no_device(evaluator, monkeypatch):
        assert evaluated(evaluator, SECOND).evaluation.equals == first.evaluation.key


@pytest.mark.slow
def test_a_text_that_is_refused_stays_refused(evaluator: Evaluator) -> None:
    second_kernel = "void further(float* out) { out[threadIdx.x] = 1.0f; }\n"
    honest = Candidate(source=f"{KERNEL}__global__ {second_kernel}", plan=PLAN)
    hidden = Candidate(source=f"#define OF_A_MACRO __global__\n{KERNEL}OF_A_MACRO {second_kernel}", plan=PLAN)
    assert evaluated(evaluator, honest).evaluation.verdict is Verdict.OK
    refused = evaluated(evaluator, hidden).evaluation
    assert refused.verdict is Verdict.POLICY
    assert refused.equals is None


def digest(evaluator: Evaluator, source: str, plan: str) -> str:
    work, candidate = BuildState(), Candidate(source=source, plan=plan)
    evaluator.prepare(candidate, work)
    program = program_of(candidate, work)
    assert program is not None
    return program.digest


BRANCH = """def forward(x, y):
    out = empty_like(x)
    n = x.numel()
    if n % 1009 == 5 and n > 4096:
        {0}[1, 128](x, y, out, i32(n))
    else:
        axpy[ceil_div(n, 128), 128](x, y, out, i32(n))
    return out
"""
TEMPLATE = """template <int ROWS> __global__ void axpy(const float* x, const float* y, float* out, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (ROWS == 20 ? {0} : 2.0f) * x[i] + y[i];
}}
"""
OTHER = "template <class T> __global__ void other(const T* x, const T* y, T* out, int n) {{ out[0] = {0}; }}\n"


def test_a_plan_that_differs_where_no_listed_size_goes_is_another_program(evaluator: Evaluator) -> None:
    straight = PLAN.replace("    axpy", "    n = x.numel()\n    axpy")
    assert digest(evaluator, KERNEL, BRANCH.format("axpy")) != digest(evaluator, KERNEL, straight)


@pytest.mark.slow
def test_a_kernel_that_no_listed_size_launches_has_to_be_the_same_text(evaluator: Evaluator) -> None:
    plan = BRANCH.format('kernel("other<float>")')
    texts = [KERNEL + OTHER.format(value) for value in ("1.0f", "2.0f")]
    digests = [digest(evaluator, text, plan) for text in (*texts, f"{texts[0]}// the end\n", texts[0])]
    assert digests[0] == digests[3]
    assert len(set(digests)) == 3


@pytest.mark.slow
def test_a_kernel_compiled_for_each_size_has_to_be_the_same_text(evaluator: Evaluator) -> None:
    plan = PLAN.replace("axpy[", 'kernel(f"axpy<{x.shape[0]}>")[')
    honest, hack = (digest(evaluator, TEMPLATE.format(factor), plan) for factor in ("2.0f", "3.0f"))
    assert honest != hack


def test_names_of_a_plan_do_not_count_and_their_order_does(evaluator: Evaluator) -> None:
    plan = """def start({0}, {1}, out):
    axpy[ceil_div(out.numel(), 128), 128](left, right, out, i32(out.numel()))

def forward(x, y):
    out = empty_like(x)
    start({2}, out=out)
    return out
"""
    straight = plan.format("left", "right", "left=x, right=y")
    assert digest(evaluator, KERNEL, straight) != digest(
        evaluator, KERNEL, plan.format("right", "left", "left=x, right=y")
    )
    renamed = straight.replace("left", "p").replace("right", "q").replace("start", "go")
    assert digest(evaluator, KERNEL, straight) == digest(evaluator, KERNEL, renamed)


@pytest.mark.parametrize(
    ("evaluation", "allowed"),
    [
        (make_evaluation(), True),
        (make_evaluation(Verdict.WRONG, stage="full", build=make_build()), True),
        (make_evaluation(Verdict.CRASH, stage="full", build=make_build()), False),
        (make_evaluation(Verdict.TIMEOUT, stage="full", build=make_build()), False),
        (make_evaluation(Verdict.INFRA, stage="full", build=make_build()), False),
        (make_evaluation(Verdict.WRONG, stage="hidden", build=None), False),
        (uncompared_evaluation(), False),
        (make_passed_over(), False),
        (measured_evaluation(1.5), True),
        (
            measured_evaluation(
                1.5, screening=Screening(device="emulated:h100", outcome="infra", message="a child of it failed")
            ),
            False,
        ),
    ],
)
def test_what_may_be_trouble_of_the_machine_answers_for_no_other(evaluation: Evaluation, allowed: bool) -> None:
    assert may_be_shared(evaluation) is allowed
