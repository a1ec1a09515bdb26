"""Kernels with real mistakes that pass every input family of ours at every size, and fail a generator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelforge.evaluation import Evaluator, EvaluatorPool
from kernelforge.evaluation.evaluator import EVALUATOR_VERSION
from kernelforge.evaluation.generators.parser import caught_by, parse_generator
from kernelforge.records import Candidate, Evaluation, InputGenerator, Task, Verdict
from kernelforge.tasks import load_task

BLOCK_SUM = """
__device__ float block_sum(float value) {
    __shared__ float parts[256];
    __syncthreads();
    parts[threadIdx.x] = value;
    __syncthreads();
    for (int k = 128; k; k /= 2) {
        if (threadIdx.x < k) parts[threadIdx.x] += parts[threadIdx.x + k];
        __syncthreads();
    }
    return parts[0];
}

__device__ float block_max(float value) {
    __shared__ float parts[256];
    parts[threadIdx.x] = value;
    __syncthreads();
    for (int k = 128; k; k /= 2) {
        if (threadIdx.x < k) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + k]);
        __syncthreads();
    }
    return parts[0];
}
"""

TWO_PASS = """
__global__ void rows(const float* x, const float* w, const float* b, float* out, int d) {
    const float* row = x + blockIdx.x * d;
    float a = 0.0f, c = 0.0f;
    for (int i = threadIdx.x; i < d; i += 256) a += row[i];
    float mean = block_sum(a) / d;
    for (int i = threadIdx.x; i < d; i += 256) c += (row[i] - mean) * (row[i] - mean);
    float variance = block_sum(c) / d;
    float scale = rsqrtf(variance + 1e-5f);
    for (int i = threadIdx.x; i < d; i += 256) out[blockIdx.x * d + i] = (row[i] - mean) * scale * w[i] + b[i];
}
"""
ONE_PASS = TWO_PASS.replace("c += (row[i] - mean) * (row[i] - mean)", "c += row[i] * row[i]").replace(
    "block_sum(c) / d", "block_sum(c) / d - mean * mean"
)
NORM_PLAN = """def forward(x):
    n, d = x.shape
    out = empty_like(x)
    rows[n, 256](x, w["norm.weight"], w["norm.bias"], out, i32(d))
    return out
"""

SOFTMAX = """
__global__ void rows(const float* x, float* out, int d) {
    const float* row = x + blockIdx.x * d;
    float m = -INFINITY, a = 0.0f;
    for (int i = threadIdx.x; i < d; i += 256) m = fmaxf(m, row[i]);
    m = block_max(m);
    for (int i = threadIdx.x; i < d; i += 256) a += expf(row[i] - m);
    a = block_sum(a);
    for (int i = threadIdx.x; i < d; i += 256) out[blockIdx.x * d + i] = expf(row[i] - m) / a;
}
"""
START_AT_ZERO = SOFTMAX.replace("m = -INFINITY", "m = 0.0f")
SOFTMAX_PLAN = """def forward(x):
    n, d = x.shape
    out = empty_like(x)
    rows[n, 256](x, out, i32(d))
    return out
"""

SIZES = ("small", "hidden_odd", "hidden_quad", "hidden_tiny")


def quick(name: str) -> Task:
    """A core task whose full size takes no time; its other sizes are as they are."""
    task = load_task(name)
    return task.model_copy(update={"source": task.source.replace("= 1024", "= 16").replace("= 4096", "= 256")})


@pytest.fixture(scope="module")
def layernorm(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(quick("core/layernorm"))
    yield made
    made.oracle.close()


@pytest.fixture(scope="module")
def softmax(workshop: EvaluatorPool) -> Iterator[Evaluator]:
    made = workshop.evaluator(quick("core/softmax"))
    yield made
    made.oracle.close()


def admitted(evaluator: Evaluator, name: str, fill: str) -> InputGenerator:
    """A generator with the sizes at which the oracle admits it."""
    plan = f"def inputs(x):\n    return {fill}\n"
    findings = evaluator.oracle.try_generator(name, parse_generator(plan, evaluator.facts.at("small").inputs), SIZES)
    sizes = tuple(finding.size for finding in findings if finding.ok)
    return InputGenerator(name=name, plan=plan, provider="test", admitted=bool(sizes), reason="", sizes=sizes)


def judged(evaluator: Evaluator, source: str, plan: str, *generators: InputGenerator, seed: int = 4) -> Evaluation:
    evaluator.use_generators(generators)
    candidate = Candidate(source=BLOCK_SUM + source, plan=plan)
    return evaluator.evaluate(candidate, seed=seed, profile=False).evaluation


def families(evaluation: Evaluation, size: str) -> tuple[str, ...]:
    assert evaluation.correctness is not None
    return next(check.families for check in evaluation.correctness.sizes if check.size == size)


@pytest.mark.slow
def test_a_one_pass_variance_passes_our_families_and_not_an_offset(layernorm: Evaluator) -> None:
    offset = admitted(layernorm, "offset", "pick(31, 32, 33)")
    assert offset.sizes == SIZES
    for seed in (1, 2):
        assert judged(layernorm, ONE_PASS, NORM_PLAN, seed=seed).verdict is Verdict.OK
        caught = judged(layernorm, ONE_PASS, NORM_PLAN, offset, seed=seed)
        assert caught.verdict is Verdict.WRONG
        assert caught_by(caught) == "offset"
    honest = judged(layernorm, TWO_PASS, NORM_PLAN, offset)
    assert honest.verdict is Verdict.OK, honest.reason
    assert caught_by(honest) is None


@pytest.mark.slow
def test_a_maximum_that_starts_at_zero_passes_our_families_and_not_low_rows(softmax: Evaluator) -> None:
    low = admitted(softmax, "low_rows", "uniform(-900, -800)")
    assert judged(softmax, START_AT_ZERO, SOFTMAX_PLAN).verdict is Verdict.OK
    caught = judged(softmax, START_AT_ZERO, SOFTMAX_PLAN, low)
    assert (caught.verdict, caught.stage, caught_by(caught)) == (Verdict.WRONG, "small", "low_rows")
    assert judged(softmax, SOFTMAX, SOFTMAX_PLAN, low).verdict is Verdict.OK


@pytest.mark.slow
def test_generators_come_after_all_families_of_ours(layernorm: Evaluator) -> None:
    offset, spread = admitted(layernorm, "offset", "pick(31, 32, 33)"), admitted(layernorm, "spread", "x / 1000")
    only_small = spread.model_copy(update={"sizes": ("small",)})
    plain = judged(layernorm, TWO_PASS, NORM_PLAN)
    tested = judged(layernorm, TWO_PASS, NORM_PLAN, offset, only_small)
    assert families(tested, "small") == (*families(plain, "small"), "tester:offset", "tester:spread")
    assert families(tested, "hidden_odd") == (*families(plain, "hidden_odd"), "tester:offset")
    assert families(tested, "full") == families(plain, "full") == ("task", "normal")


@pytest.mark.slow
def test_a_mistake_that_our_families_find_is_theirs(layernorm: Evaluator) -> None:
    """A missing tail guard shows at a hidden size only; the generator would fail it at the small one already."""
    offset = admitted(layernorm, "offset", "pick(31, 32, 33)")
    tail = ONE_PASS.replace("i < d; i += 256) out", "i < (d + 3) / 4 * 4; i += 256) out")
    evaluation = judged(layernorm, tail, NORM_PLAN, offset)
    assert evaluation.verdict is Verdict.CRASH
    assert evaluation.stage == "hidden"
    assert caught_by(evaluation) is None
    assert evaluation.reason == judged(layernorm, tail, NORM_PLAN).reason


@pytest.mark.slow
def test_a_failed_size_is_recorded_once_and_the_others_as_passed(layernorm: Evaluator) -> None:
    # At the small size the offset is too small to show.
    offset = admitted(layernorm, "offset", "pick(31, 32, 33)").model_copy(update={"sizes": ("hidden_odd",)})
    caught = judged(layernorm, ONE_PASS, NORM_PLAN, offset)
    assert caught.correctness is not None
    states = {check.size: check.status for check in caught.correctness.sizes}
    assert states == {size: "failed" if size == "hidden_odd" else "passed" for size in SIZES}
    assert caught.stage == "hidden"
    assert "29" not in caught.reason
    assert "1033" not in caught.reason


@pytest.mark.slow
def test_the_fingerprint_says_which_tests_were_in_force(layernorm: Evaluator) -> None:
    offset, spread = admitted(layernorm, "offset", "pick(31, 32, 33)"), admitted(layernorm, "spread", "x / 1000")
    plain = judged(layernorm, TWO_PASS, NORM_PLAN)
    evaluation = judged(layernorm, TWO_PASS, NORM_PLAN, offset)
    assert plain.fingerprint.evaluator == EVALUATOR_VERSION
    assert evaluation.fingerprint.evaluator.startswith(f"{EVALUATOR_VERSION}+tests.")
    assert evaluation.key != plain.key

    def in_force(*generators: InputGenerator) -> str:
        layernorm.use_generators(generators)
        return layernorm.fingerprint.evaluator

    assert in_force(offset) == evaluation.fingerprint.evaluator == in_force(offset)
    assert in_force(offset, spread) == in_force(spread, offset) != in_force(offset)
    assert in_force(offset.model_copy(update={"sizes": ("small",)})) != in_force(offset)
    refused = offset.model_copy(update={"admitted": False, "sizes": (), "reason": "no"})
    assert in_force(refused) == in_force() == EVALUATOR_VERSION


@pytest.mark.slow
def test_a_draw_that_torch_does_not_pass_is_no_test(layernorm: Evaluator) -> None:
    """A generator admitted by some seeds may be unfit under another: the family is left out, and the verdict stands."""
    spread = admitted(layernorm, "spread", "x / 1000")
    unfit = spread.model_copy(update={"name": "unfit", "plan": "def inputs(x):\n    return constant(1000)\n"})
    tested = judged(layernorm, TWO_PASS, NORM_PLAN, unfit, spread)
    assert tested.verdict is Verdict.OK, tested.reason
    assert families(tested, "small")[-1] == "tester:spread"
    assert "tester:unfit" not in families(tested, "small")


@pytest.mark.slow
def test_the_workshop_opens_an_evaluator_with_generators_in_force(workshop: EvaluatorPool, softmax: Evaluator) -> None:
    low = admitted(softmax, "low_rows", "uniform(-900, -800)")
    evaluator = workshop.evaluator(softmax.task, (low,))
    try:
        assert evaluator.generators == (low,)
        assert evaluator.fingerprint.evaluator.startswith(f"{EVALUATOR_VERSION}+tests.")
    finally:
        evaluator.oracle.close()
    assert workshop.fingerprint.evaluator == EVALUATOR_VERSION
